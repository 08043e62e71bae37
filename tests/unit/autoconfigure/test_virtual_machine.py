"""A service on a machine of its own: virtual time, a network and a disk in memory, the real servers in its own loop."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from rocketbox.application import RocketBox
from rocketbox.autoconfigure.loading import Launch
from rocketbox.autoconfigure.machine import Machine
from rocketbox.blocking import blocking_in_loop
from rocketbox.protocol.tags import java_string_hash
from rocketbox.remoting.network import MemoryNetwork
from rocketbox.storage.memory_storage import MemoryStorage
from rocketbox.template import JsonMessageConverter
from tests.support.broker.wire import SMALL_FILES
from tests.support.clocks import VirtualClock, idle
from tests.support.framework.services import ServiceMaker

SOURCE = """
from rocketbox import MessageExt, RetryLater, RocketBox, rocketmq_listener, send_to

app = RocketBox("flight-desk", scan=[__name__])
tries, alerts = [], []
delay = now = None

@rocketmq_listener(topic="departures", consumer_group="desk", consume_from_where="first-offset")
@send_to("alerts")
async def on_departure(text: str, message: MessageExt) -> str | None:
    tries.append(now())
    if message.reconsume_times == 0:
        raise RetryLater(delay)
    return f"{text} is late"

@rocketmq_listener(topic="alerts", consumer_group="pager", consume_from_where="first-offset")
def on_alert(text: str) -> None:
    alerts.append(text)
    if len(alerts) == 2:
        app.shutdown()
"""

SETTINGS = {
    "rocketmq.name-server": "embedded",
    "rocketmq.producer.group": "desk",
    "rocketbox.embedded": {name.replace("_", "-"): value for name, value in SMALL_FILES.items()},
}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("anyio_backend", "delay"),
    [("asyncio", timedelta(seconds=10)), ("asyncio", timedelta(hours=2)), ("trio", timedelta(seconds=10))],
)
async def test_a_retry_comes_after_its_delay_on_virtual_time(
    anyio_backend: str, delay: timedelta, service: ServiceMaker, tmp_path: Path
) -> None:
    module = service(SOURCE, "")
    app: RocketBox = module.app
    clock = VirtualClock(settle=idle if anyio_backend == "asyncio" else anyio.wait_all_tasks_blocked)
    vars(module).update(delay=delay, now=clock.monotonic)
    before = set(threading.enumerate())

    async def use() -> None:
        assert set(threading.enumerate()) == before
        await app.template.send("alerts", "none")  # the topic is there: nobody asks for it until then
        await app.template.send("departures", "UA1545")
        await app.wait_for_shutdown()

    await run_on(clock, app, use)
    assert module.alerts == ["none", "UA1545 is late"]
    first, second = module.tries
    assert second - first == pytest.approx(delay.total_seconds(), abs=1.0)
    assert not await anyio.Path(tmp_path, ".rocketbox").exists()


OVERRIDDEN = """
from rocketbox import RocketBox, bean, rocketmq_listener, send_to

app = RocketBox("flight-desk", scan=[__name__])
handled = []

class Pager:
    name = "own"

class Desk:
    def __init__(self, name="own"):
        self.name = name

    @rocketmq_listener(topic="departures", consumer_group="desk", consume_from_where="first-offset")
    @send_to("alerts")
    async def on_departure(self, text: str, pager: Pager) -> str:
        handled.append((text, self.name, pager.name))
        return text

@bean
def pager() -> Pager:
    return Pager()

@bean
def desk() -> Desk:
    return Desk()
"""


class RecordingTemplate:
    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []

    async def send(self, destination: str, payload: Any) -> None:
        self.sent.append((destination, payload))


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_override_while_it_runs_reaches_handlers_their_owners_and_what_they_send_on(
    anyio_backend: str, service: ServiceMaker
) -> None:
    module = service(OVERRIDDEN, "")
    app: RocketBox = module.app
    clock = VirtualClock(settle=idle)
    template = RecordingTemplate()
    pager = module.Pager()
    pager.name = "of all starts"

    async def handled(times: int) -> None:
        while len(module.handled) < times:
            await clock.sleep(1)

    async def use() -> None:
        own = app.template
        await own.send("departures", "first")
        await handled(1)
        with app.container.desk.override(module.Desk("fake")), app.container.rocketmq_template.override(template):
            await own.send("departures", "second")
            await handled(2)
        await own.send("departures", "third")
        await handled(3)

    with app.container.pager.override(pager):
        await run_on(clock, app, use)
    assert module.handled == [
        ("first", "own", "of all starts"),
        ("second", "fake", "of all starts"),
        ("third", "own", "of all starts"),
    ]
    assert template.sent == [("alerts", "second")]


CONVERTED = """
from rocketbox import RocketBox, rocketmq_listener

app = RocketBox("flight-desk", scan=[__name__])
handled = []

@rocketmq_listener(topic="departures", consumer_group="desk", consume_from_where="first-offset")
async def on_departure(payload: dict) -> None:
    handled.append(payload)
"""


class Upside:
    """A converter that reads and writes bodies backwards."""

    def to_body(self, payload: Any) -> bytes:
        return JsonMessageConverter().to_body(payload)[::-1]

    def from_body(self, body: bytes, type_: Any) -> Any:
        return {**JsonMessageConverter().from_body(body[::-1], type_), "read": "backwards"}

    def check(self, type_: Any) -> None: ...


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_override_of_the_converter_while_it_runs_reaches_template_and_listeners(
    anyio_backend: str, service: ServiceMaker
) -> None:
    module = service(CONVERTED, "")
    app: RocketBox = module.app
    clock = VirtualClock(settle=idle)

    async def send(number: int) -> None:
        await app.template.send("departures", {"number": number})
        while len(module.handled) < number:
            await clock.sleep(1)

    async def use() -> None:
        await send(1)
        with app.container.message_converter.override(Upside()):
            await send(2)
        await send(3)

    await run_on(clock, app, use)
    assert module.handled == [{"number": 1}, {"number": 2, "read": "backwards"}, {"number": 3}]


BLOCKING_HOOKS = """
import threading
from rocketbox import RocketBox

app = RocketBox("flight-desk", scan=[__name__])
ran = []

@app.on_startup
def begin() -> None:
    ran.append(("begin", threading.current_thread()))

@app.every("1h")
def look() -> None:
    ran.append(("look", threading.current_thread()))

@app.on_shutdown
def end() -> None:
    ran.append(("end", threading.current_thread()))
"""


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_blocking_hooks_go_by_the_seam_of_blocking_handlers_and_need_no_thread(
    anyio_backend: str, service: ServiceMaker
) -> None:
    module = service(BLOCKING_HOOKS, "")
    clock = VirtualClock(settle=idle)

    async def use() -> None:
        await clock.sleep(2.5 * 3600)

    await run_on(clock, module.app, use)
    assert module.ran == [(name, threading.main_thread()) for name in ("begin", "look", "look", "end")]


COLLIDING = """
from rocketbox import MessageExt, RocketBox, rocketmq_listener

app = RocketBox("flight-desk", scan=[__name__])
handled = []

@rocketmq_listener(
    topic="departures", consumer_group="desk", consume_from_where="first-offset", selector_expression="Aa || AaAa"
)
async def first(message: MessageExt) -> None:
    handled.append(("first", message.tag))

@rocketmq_listener(
    topic="departures", consumer_group="desk", consume_from_where="first-offset", selector_expression="BB || end"
)
async def second(message: MessageExt) -> None:
    handled.append(("second", message.tag))
"""


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_functions_whose_tags_have_one_hash_code_get_each_its_own(
    anyio_backend: str, service: ServiceMaker
) -> None:
    module = service(COLLIDING, "")
    app: RocketBox = module.app
    clock = VirtualClock(settle=idle)

    async def use() -> None:
        # Of "Aa" and "BB", and of "AaAa", "BBBB" and "AaBB", Java's hash codes are the same: that is all brokers know.
        for tag in ("Aa", "BB", "BBBB", "AaAa", "AaBB", "BB"):
            await app.template.send(f"departures:{tag}", tag)
        await app.template.send("departures:end", "end")
        while ("second", "end") not in module.handled or len(module.handled) < 5:
            await clock.sleep(1)
        await clock.sleep(60)

    assert java_string_hash("Aa") == java_string_hash("BB")
    assert java_string_hash("AaAa") == java_string_hash("BBBB") == java_string_hash("AaBB")
    await run_on(clock, app, use)
    assert sorted(module.handled) == [
        ("first", "Aa"), ("first", "AaAa"), ("second", "BB"), ("second", "BB"), ("second", "end"),
    ]  # fmt: skip


async def run_on(clock: VirtualClock, app: RocketBox, use: Callable[[], Awaitable[None]]) -> None:
    """Start the application on virtual time, all in this loop; what blocks in it, too."""
    machine = Machine.in_one_loop(clock=clock, network=MemoryNetwork(), storage=MemoryStorage())

    async def run() -> None:
        async with app.launched(Launch(settings=SETTINGS, machine=machine)):
            await use()

    async with anyio.create_task_group() as tasks:

        async def call(function: Callable[[], object]) -> None:
            function()

        def later(function: Callable[[], object]) -> None:
            tasks.start_soon(call, function)

        with blocking_in_loop(later):
            await clock.run(run)
