"""Coroutines that nobody awaits: found in the source with their lines, and nothing else is."""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rocketbox.errors import ConfigurationError, Finding
from tests.support.framework.services import ServiceMaker

SETTINGS = "rocketmq: {name-server: 'ns:9876', producer: {group: desk}}\n"
HEAD = """
import asyncio
from dataclasses import dataclass
from typing import Annotated, Any
from rocketbox import Message, Qualifier, RocketBox, RocketMQTemplate, bean, rocketmq_listener

app = RocketBox("desk", scan=[__name__])

async def audit(order: dict[str, Any]) -> None: ...
def plain(order: dict[str, Any]) -> None: ...

class Desk:
    def __init__(self, template: RocketMQTemplate) -> None:
        self.template = template
    async def notify(self, order: dict[str, Any]) -> None: ...
    def count(self) -> int: return 1

@bean
def desk(template: RocketMQTemplate) -> Desk:
    return Desk(template)
"""
LISTENER = "\n@rocketmq_listener(topic='orders', consumer_group='desk')\n"


def findings(module: object) -> list[Finding]:
    found: list[Finding] = module.app.look().findings  # type: ignore[attr-defined]
    return found


def told(service: ServiceMaker, source: str) -> list[tuple[str, str]]:
    """What is found and what to write, each at the line that ends with ``# here``."""
    text = (HEAD + source).lstrip("\n")
    module = service(text, SETTINGS)
    found = findings(module)
    lines = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# here")]
    assert [each.where for each in found] == [f"{module.__name__}.py:{number}" for number in lines]
    return [(each.what, each.fix or "") for each in found]


PARAMETERS = "order: dict[str, Any], template: RocketMQTemplate, desk: Desk"


@pytest.mark.parametrize(
    ("line", "called", "fix"),
    [
        ("template.send('late', order)", "template.send", "write await template.send('late', order)"),
        ("desk.notify(order)", "desk.notify", "write await desk.notify(order)"),
        ("desk.template.send('late', order)", "desk.template.send", "write await desk.template.send('late', order)"),
        ("app.template.send('late', order)", "app.template.send", "write await app.template.send('late', order)"),
        ("audit(order)", "audit", "write await audit(order)"),
        ("asyncio.sleep(1)", "asyncio.sleep", "write await asyncio.sleep(1)"),
        ("Desk.notify(desk, order)", "Desk.notify", "write await Desk.notify(desk, order)"),
    ],
)
@pytest.mark.parametrize("around", ["{}", "if order:\n        {}", "async def inner() -> None:\n        {}"])
def test_a_coroutine_that_is_dropped_is_found(
    service: ServiceMaker, line: str, called: str, fix: str, around: str
) -> None:
    body = around.format(f"{line}  # here")
    assert told(service, f"{LISTENER}async def on_order({PARAMETERS}) -> None:\n    {body}\n") == [
        (f"listener on_order does not await {called}(...), which never runs so", fix)
    ]


def test_a_coroutine_that_an_async_handler_returns_is_found(service: ServiceMaker) -> None:
    source = f"{LISTENER}async def on_order({PARAMETERS}) -> Any:\n    return template.send('late', order)  # here\n"
    assert told(service, source) == [
        (
            "listener on_order returns, and does not await, template.send(...), which never runs so",
            "write return await template.send('late', order)",
        )
    ]


def test_a_plain_handler_is_told_to_become_async(service: ServiceMaker) -> None:
    source = f"{LISTENER}def on_order(order: dict[str, Any], desk: Desk) -> None:\n    desk.notify(order)  # here\n"
    assert told(service, source)[0][1] == "declare it with async def, and write await desk.notify(order)"


def test_hooks_and_beans_are_looked_at(service: ServiceMaker) -> None:
    source = """
@app.on_startup
async def begin(template: RocketMQTemplate) -> None:
    template.send("late", {})  # here

@bean
def other(desk: Desk) -> Message:
    desk.notify({})  # here
    return Message("a", b"b")

@bean
@dataclass
class Office:
    desk: Annotated[Desk, Qualifier("desk")]
    async def work(self) -> None:
        self.desk.notify({})  # here
        self.rest()  # here
    async def rest(self) -> None: ...
"""
    assert [what.partition(" does not")[0] for what, _ in told(service, source)] == [
        "startup hook begin",
        "bean other",
        "Office.work of a bean",
        "Office.work of a bean",
    ]


@pytest.mark.parametrize(
    "body",
    [
        "await template.send('late', order)",
        "task = template.send('late', order)\n    await task",
        "return await template.send('late', order)",
        "await asyncio.gather(template.send('late', order), audit(order))",
        "asyncio.get_running_loop().create_task(template.send('late', order))",
        "template = Other()\n    template.send('late', order)",
        "for desk in [Other()]:\n        desk.notify(order)",
        "audit = plain\n    audit(order)",
        "def inner(template: Any) -> None:\n        template.send('late', order)\n    inner(Other())",
        "def inner() -> Any:\n        return template.send('late', order)\n    await inner()",
        "desk.count()\n    plain(order)\n    print(order)",
        "unknown.send('late', order)",
        "import unknown as template\n    template.send('late', order)",
        "on_order.seen = {order}\n    on_order.seen.add(order)",
    ],
)
def test_what_is_awaited_or_not_known_is_not_told(service: ServiceMaker, body: str) -> None:
    source = "\nclass Other:\n    def __getattr__(self, name: str) -> Any: ...\nunknown: Any = Other()\n"
    assert told(service, f"{source}{LISTENER}async def on_order({PARAMETERS}) -> Any:\n    {body}\n") == []


def test_a_method_that_an_object_may_have_otherwise_is_not_told(service: ServiceMaker) -> None:
    source = f"""
class Quick(Desk):
    def notify(self, order: dict[str, Any]) -> None: ...
class Replaced:
    def __init__(self) -> None:
        self.notify = plain
    async def notify(self, order: dict[str, Any]) -> None: ...
@bean
def replaced() -> Replaced: return Replaced()
{LISTENER}async def on_order(order: dict[str, Any], desk: Desk, replaced: Replaced) -> None:
    replaced.notify(order)
    if isinstance(desk, Quick):
        desk.notify(order)
"""
    assert told(service, source) == []


def test_what_a_method_of_a_bean_returns_to_others_is_not_told(service: ServiceMaker) -> None:
    source = """
@bean
class Office:
    def __init__(self, desk: Desk) -> None:
        self.desk = desk
    def later(self, order: dict[str, Any]) -> Any:
        return self.desk.notify(order)
"""
    assert told(service, source) == []


def test_services_may_be_looked_at_in_several_threads(service: ServiceMaker) -> None:
    module = service(
        HEAD + "".join(f"async def f{each}() -> list[int]: return [{each}]\n" for each in range(150)), SETTINGS
    )
    together = threading.Barrier(8)

    def look(depth: int) -> list[Finding]:
        if depth:  # each from another, which is what the parser would confuse
            return look(depth - 1)
        together.wait()
        return [each for _ in range(2) for each in findings(module)]

    def give_way(phase: str, info: dict[str, int]) -> None:
        os.sched_yield()  # in the middle of whatever makes objects

    gc.callbacks.append(give_way)
    threshold = gc.get_threshold()
    gc.set_threshold(100)
    try:
        with ThreadPoolExecutor(8) as threads:
            assert [one.result() for one in [threads.submit(look, each * 5) for each in range(8)]] == [[]] * 8
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(give_way)


def test_a_start_refuses_it_as_check_does(service: ServiceMaker) -> None:
    module = service(
        HEAD + f"{LISTENER}async def on_order(order: dict[str, Any]) -> None:\n    audit(order)\n", SETTINGS
    )
    with pytest.raises(ConfigurationError, match=r"does not await audit\(\.\.\.\)"):
        module.app.check()
