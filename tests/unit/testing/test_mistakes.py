"""What a harness says when it is not used as it is meant: what is wrong, and what to write."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rocketbox.errors import ClientStateError, ConfigurationError, NotStartedError
from rocketbox.template import PayloadError
from rocketbox.testing import Harness, HarnessError
from tests.support.framework.services import ServiceMaker

SOURCE = """
from pydantic import BaseModel
from rocketbox import RocketBox, RocketMQTemplate, rocketmq_listener, send_to

app = RocketBox("shop", scan=[__name__])
background = app.background()

class Order(BaseModel):
    item: str

@rocketmq_listener(topic="orders", consumer_group="billing")
@send_to("receipts:paid")
async def bill(order: Order) -> str:
    return order.item
"""
EAST, FAR = timezone(timedelta(hours=5)), datetime(9999, 6, 1, tzinfo=UTC)
SETTINGS = "rocketmq: {name-server: ns1.example:9876, producer: {group: shop}}"


@pytest.fixture
def shop(service: ServiceMaker) -> ModuleType:
    return service(SOURCE, SETTINGS)


NAMES: dict[Callable[[Harness], Any], str] = {
    lambda harness: harness.sent("receipt").one(str): (
        r"nothing was sent to receipt, .* \(messages were sent to: orders, receipts\)"
    ),
    lambda harness: harness.sent("receipts:paid"): (
        r"names a topic and a tag: .* sent\('receipts'\), and each has its tag, 'paid'"
    ),
    lambda harness: harness.sent(harness.calls): (  # type: ignore[arg-type]
        r'sent is given a method, and not the name of a topic: write sent\("orders"\)'
    ),
    lambda harness: harness.sent(None): "sent is given a NoneType, and not the name of a topic",  # type: ignore[arg-type]
    lambda harness: harness.calls("pay"): "pay is no handler of shop; its handlers are: bill",
    lambda harness: harness.calls("billing"): "billing is a group of shop, and calls are those of a handler; .*: bill",
    lambda harness: harness.dead_letters("bill"): "'bill' is a handler, and its group is 'billing'",
    lambda harness: harness.freeze("orders").__enter__(): "'orders' is no group of shop; its groups are: billing",
    lambda harness: harness.offsets("billings"): "'billings' is no group of shop; its groups are: billing",
}


@pytest.mark.parametrize(("use", "told"), NAMES.items())
@pytest.mark.anyio
async def test_a_name_that_is_none(shop: ModuleType, use: Callable[[Harness], Any], told: str) -> None:
    async with Harness(shop.app) as harness:
        await harness.send("orders", shop.Order(item="lamp"))
        await harness.drain()
        with pytest.raises((HarnessError, AssertionError), match=told):
            use(harness)


SEVERAL = """
import functools
from collections.abc import Callable
from typing import Any

from rocketbox import RocketBox, bean, rocketmq_listener

app = RocketBox("shop", scan=[__name__])

def pay(where: str, text: str) -> None: ...

eu = rocketmq_listener(topic="eu", consumer_group="eu")(functools.partial(pay, "eu"))
us = rocketmq_listener(topic="us", consumer_group="us")(functools.partial(pay, "us"))

@rocketmq_listener(topic="first", consumer_group="first")
@rocketmq_listener(topic="second", consumer_group="second")
def twice(text: str) -> None: ...

def logged(function: Any) -> Any:
    @functools.wraps(function)
    def call(text: str) -> None: ...
    return call

@rocketmq_listener(topic="wrapped", consumer_group="wrapped")
@logged
def wrapped(text: str) -> None: ...
"""


@pytest.mark.anyio
async def test_a_name_that_several_handlers_have(service: ServiceMaker) -> None:
    module = service(SEVERAL, SETTINGS)
    async with Harness(module.app) as harness:
        for ask in (harness.handler, harness.calls):
            with pytest.raises(HarnessError) as raised:
                ask("pay")
            assert re.sub(r"\(service_\w+\.py:9\)", "(HERE)", str(raised.value)) == (
                "pay is the name of 2 handlers of shop: give the one that is meant itself, and not its name: "
                "pay of group eu (HERE), pay of group us (HERE)"
            )
        failing = harness.handler(module.us).fails(1)
        harness.handler("twice").fails(1)
        for topic in ("eu", "us", "first", "second"):
            await harness.send(topic, "text")
        await harness.drain()
        assert failing.left == 0
        assert [call.topic for call in harness.calls(module.us)] == ["us"]
        assert [call.topic for call in harness.calls("twice")] == ["first", "second"]


@pytest.mark.anyio
async def test_an_object_that_only_has_the_name_of_a_handler(service: ServiceMaker) -> None:
    module, copy = service(SEVERAL, SETTINGS), service(SEVERAL, SETTINGS)
    marked = "give the object that the decorator has marked"
    told = {
        module.pay: f"this pay is another object than the handler of that name, pay of group eu (HERE:9) and "
        f"pay of group us (HERE:9): {marked}",
        module.wrapped.__wrapped__: "this wrapped is another object than the handler of that name, wrapped of group "
        f"wrapped (HERE:23): {marked}, or its name, 'wrapped'",
        copy.twice: "this twice is another object than the handler of that name, twice of group second (HERE:14) and "
        f"twice of group first (HERE:14) (it is of module {copy.__name__}, and not of {module.__name__}): {marked}, or "
        "its name, 'twice'",
    }
    async with Harness(module.app) as harness:
        for asked, text in told.items():
            with pytest.raises(HarnessError) as raised:
                harness.calls(asked)
            assert str(raised.value).replace(f"{module.__name__}.py", "HERE") == text


@pytest.mark.anyio
async def test_names_of_spark_listeners(service: ServiceMaker) -> None:
    pytest.importorskip("pyspark")
    source = """
    from rocketbox import RocketBox, rocketmq_spark_listener

    app = RocketBox("shop", scan=[__name__])

    @rocketmq_spark_listener(topic="a", consumer_group="load")
    def one(rows) -> None: ...

    @rocketmq_spark_listener(topic="b", consumer_group="other")
    def load(rows) -> None: ...
    """
    module, copy = service(source, SETTINGS), service(source, SETTINGS)
    async with Harness(module.app) as harness:
        for asked in ("one", "load", "other", module.one):
            with pytest.raises(HarnessError, match=r"is a Spark listener: harness\.batch calls it"):
                harness.calls(asked)
        with pytest.raises(HarnessError, match=r"load is a Spark listener 2 times: .*: 'load\.a', 'other'$"):
            await harness.batch("load", ["x"])
        for asked in ("one", "load.a", "other"):  # it is found, and refuses the batch
            with pytest.raises(HarnessError, match="a batch has a message at least"):
                await harness.batch(asked, [])
        with pytest.raises(HarnessError, match=r"another object than the Spark listener .*, or its name, 'one'$"):
            await harness.batch(copy.one, ["x"])


@pytest.mark.anyio
async def test_a_handler_in_the_place_of_its_group(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        with pytest.raises(HarnessError, match="'bill' is a handler, and its group is 'billing'"):
            await harness.consumed(shop.bill)


@pytest.mark.anyio
async def test_a_payload_that_cannot_be_sent_and_one_that_its_handler_cannot_read(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        with pytest.raises(PayloadError, match="object"):
            await harness.send("orders", object())
        await harness.send("orders", {"thing": "lamp"})
        await harness.drain()
        (letter,) = harness.dead_letters("billing")
        assert str(letter.why).endswith("a body of 16 bytes is no Order: item: Field required")
        assert str(letter.why) in harness.log


@pytest.mark.anyio
async def test_after_its_end(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        await harness.send("orders", shop.Order(item="lamp"))
    assert len(harness.sent("orders")) == 1
    verbs = [harness.drain(), harness.advance("1s"), harness.send("orders", "x"), harness.consumed("billing")]
    for verb in verbs:
        with pytest.raises(
            HarnessError, match=r"Harness\('shop', over\): what was seen can be looked at .*; make a new one"
        ):
            await verb


@pytest.mark.anyio
async def test_options_that_are_none(shop: ModuleType) -> None:
    for patience in ("5s", 0, True):
        with pytest.raises(HarnessError, match=r"patience=.*: write how many seconds of real time"):
            Harness(shop.app, patience=patience)  # type: ignore[arg-type]
    with pytest.raises(HarnessError, match=r"failures='keeep': write \"raise\", or \"keep\""):
        Harness(shop.app, failures="keeep")  # type: ignore[arg-type]
    async with Harness(shop.app) as harness:
        for verb in (harness.drain(failures="ignore"), harness.advance("1s", failures="ignore")):  # type: ignore[arg-type]
            with pytest.raises(HarnessError, match="failures='ignore': write"):
                await verb


OPTIONS: dict[str, tuple[list[Any], str]] = {
    "beans": ([["pager"], [(int, 5)], 5, int], r"beans= is given a \w+: write beans=\{TheType: object\}$"),
    "settings": ([["a"], "a=b", 5], r'settings= is given a \w+: write settings=\{"desk\.threshold": 30\}$'),
    "profiles": (["prod", 5, [1], b"ab"], r'profiles=.*: write profiles=\["test"\]$'),
    "config": ([5, ["a.yaml"]], r'config= is given a \w+: write the path of a settings file, "rocketbox\.yaml"$'),
    "hooks": (["no", 1], r"hooks=.*: write hooks=False to leave out whatever runs by itself$"),
    "name_server": ([5, ["a:1"]], r'name_server= is given a \w+: write "host:port", or \{"": "host:port", \.\.\.\}'),
}


@pytest.mark.parametrize(("option", "given"), [(name, each) for name, (given, _) in OPTIONS.items() for each in given])
def test_an_option_of_another_type(shop: ModuleType, option: str, given: object) -> None:
    with pytest.raises(HarnessError, match=OPTIONS[option][1]):
        Harness(shop.app, **{option: given})  # type: ignore[arg-type]


def test_options_that_can_be_read_are_taken(shop: ModuleType, tmp_path: Path) -> None:
    class Given:
        def __fspath__(self) -> str:
            return str(tmp_path / "shop.yaml")

    for profiles in (None, {"test"}, (each for each in ["test"])):
        Harness(shop.app, config=Given(), profiles=profiles)  # type: ignore[arg-type]


class ClosedError(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")


@pytest.mark.anyio
async def test_an_error_of_which_none_can_be_made(shop: ModuleType) -> None:
    """The calls would fail by what its constructor raises."""
    async with Harness(shop.app) as harness:
        bill = harness.handler("bill")
        for kind in (ClosedError, UnicodeDecodeError):
            with pytest.raises(HarnessError) as raised:
                bill.fails(error=kind)
            assert str(raised.value).startswith(f"error={kind.__name__} cannot be made without arguments (")
            assert str(raised.value).endswith(f"): give an object, error={kind.__name__}(...)")
        with pytest.raises(HarnessError, match=r"or fails\(error=\.\.\.\) for what they raise"):
            bill.fails(ConnectionError("closed"))  # type: ignore[arg-type]
        failing = bill.fails(error=ClosedError(5, "closed"))
        await harness.send("orders", shop.Order(item="lamp"))
        await harness.drain()
        assert failing.left == 0
        assert [str(call.error) for call in harness.calls("bill")] == ["5: closed"]


@pytest.mark.anyio
async def test_a_cluster_that_is_none_is_not_sent_to(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        for cluster in (5, ["audit"]):
            with pytest.raises(HarnessError, match=r"is no cluster of shop \(rocketmq.clusters\); it has no further"):
                await harness.send("orders", "x", cluster=cluster)  # type: ignore[arg-type]


@pytest.mark.parametrize("now", [datetime(1960, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=EAST), FAR])
def test_a_time_of_day_that_no_broker_knows(shop: ModuleType, now: datetime) -> None:
    """Times of a store are milliseconds since 1970: before that, what waits for its time would come at once."""
    with pytest.raises(HarnessError, match=r"now=.* is before 1970 or after 9998, .*\. Write datetime\(2026, 1, 2"):
        Harness(shop.app, now=now)


@pytest.mark.parametrize("now", [datetime(1970, 1, 1, tzinfo=UTC), datetime(9998, 12, 31, 20, tzinfo=UTC)])
@pytest.mark.anyio
async def test_the_first_and_the_last_time_of_day_that_there_is(shop: ModuleType, now: datetime) -> None:
    async with Harness(shop.app, now=now) as harness:
        for when in ({"delay": "10s"}, {"delay_level": 2}, {"deliver_at": now + timedelta(hours=1)}):
            await harness.send("orders", shop.Order(item="lamp"), **when)
        harness.handler("bill").fails()
        await harness.advance("2h")
        assert [round(call.at) for call in harness.calls("bill")] == [5, 10, 15, 3600]
        assert harness.now == now + timedelta(hours=2)


@pytest.mark.parametrize("given", ["shop:app", object(), 5])
def test_what_is_no_service(given: object) -> None:
    with pytest.raises(HarnessError, match=r"is given a .*, and not the RocketBox of the service: write 'from desk"):
        Harness(given)  # type: ignore[arg-type]


@pytest.mark.parametrize("now", ["2026-01-02T08:00Z", 5, date(2026, 1, 2)])
def test_a_time_of_day_that_is_none(shop: ModuleType, now: object) -> None:
    with pytest.raises(HarnessError, match=r"now=.*: write datetime\(2026, 1, 2, 8, tzinfo=timezone.utc\)"):
        Harness(shop.app, now=now)  # type: ignore[arg-type]


def test_before_its_begin_the_error_says_how_to_start_it(shop: ModuleType) -> None:
    with pytest.raises(NotStartedError, match="use it inside 'async with', or inside 'with' in a plain function"):
        Harness(shop.app).sent("orders")


@pytest.mark.anyio
async def test_two_at_once_of_one_service(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        with pytest.raises(HarnessError, match="another harness of shop is running, and a service runs once"):
            async with Harness(shop.app):
                pytest.fail("it started")
        await harness.send("orders", shop.Order(item="lamp"))
        await harness.drain()
        assert harness.sent("receipts").one(str) == "lamp"
    async with Harness(shop.app):
        pass


def test_two_at_once_of_two_services_are_in_loops_of_their_own(service: ServiceMaker) -> None:
    first, second = service(SOURCE, SETTINGS), service(SOURCE.replace('"shop"', '"store"'), SETTINGS)

    async def both() -> None:
        async with Harness(first.app), Harness(second.app):
            pytest.fail("the second one started")

    with pytest.raises(HarnessError, match="a harness of shop runs in this event loop"):
        asyncio.run(both())
    with Harness(first.app) as one, Harness(second.app) as other:
        other.blocking.send("orders", second.Order(item="cup"))
        one.blocking.send("orders", first.Order(item="lamp"))
        other.blocking.drain()
        one.blocking.advance("1h")
        assert other.sent("receipts").one(str) == "cup"
        assert one.sent("receipts").one(str) == "lamp"


CALLS_ANOTHER = """
from rocketbox import RocketBox, rocketmq_listener

app = RocketBox("front", scan=[__name__])
call = None

@rocketmq_listener(topic="calls", consumer_group="front")
def front(item: str) -> None:
    call(item)
"""


def test_what_a_handler_has_done_in_another_harness_is_not_its_own(service: ServiceMaker) -> None:
    """Two services that are tested together, and one of them calls the other by a stand-in for the network."""
    front, shop = service(CALLS_ANOTHER, SETTINGS), service(SOURCE, SETTINGS)
    tasks = list[asyncio.Task[bool]]()
    with Harness(shop.app) as behind:
        goes_on = behind.blocking.call(asyncio.Event)

        async def begin() -> None:
            tasks.append(asyncio.create_task(goes_on.wait()))

        def call(item: str) -> None:
            behind.blocking.send("orders", shop.Order(item=item))
            behind.blocking.call(begin)
            behind.blocking.drain()

        vars(front)["call"] = call
        with Harness(front.app, patience=1) as harness:
            harness.blocking.send("calls", "cup")
            harness.blocking.drain()
        assert behind.sent("receipts").one(str) == "cup"
        assert not tasks[0].done()
        behind.blocking.call(goes_on.set)
        assert behind.blocking.call(asyncio.wait_for, tasks[0], 60)


@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.anyio
async def test_under_trio(shop: ModuleType) -> None:
    with pytest.raises(HarnessError, match=r'this is one of trio: .* a fixture anyio_backend that returns "asyncio"'):
        async with Harness(shop.app):
            pytest.fail("it started")


def test_without_a_loop(shop: ModuleType) -> None:
    with pytest.raises(HarnessError, match="there is none here: in a plain function write 'with Harness"):
        Harness(shop.app).__aenter__().send(None)


def test_verbs_in_another_loop_than_the_services(shop: ModuleType) -> None:
    with Harness(shop.app) as harness:

        async def drain() -> None:
            await harness.drain()

        with pytest.raises(
            HarnessError, match=r"harness.drain.* in another event loop .* harness.blocking.drain\(...\)"
        ):
            asyncio.run(drain())
        harness.blocking.drain()


def test_a_send_of_the_service_in_another_loop_does_not_hang(shop: ModuleType) -> None:
    with Harness(shop.app) as harness:

        async def endpoint() -> None:  # as FastAPI's TestClient calls it, whose loop is its own
            await shop.app.template.send("orders", shop.Order(item="lamp"))

        with pytest.raises(HarnessError, match=r"a message to orders is sent in another event loop .*ASGITransport"):
            asyncio.run(endpoint())
        harness.blocking.drain()
        assert not harness.sent("orders")


def test_a_background_is_the_harness_while_there_is_one(shop: ModuleType) -> None:
    """As Flask's views have it: they neither know nor start another one."""
    with Harness(shop.app) as harness:
        assert shop.background.start() is shop.background
        assert shop.background.is_running
        shop.background.call(shop.app.template.send, "orders", shop.Order(item="lamp"))
        names = shop.background.submit(current_thread).result()
        harness.blocking.drain()
        assert harness.sent("receipts").one(str) == "lamp"
        assert names != threading.current_thread().name
        shop.background.stop()
        harness.blocking.drain()
    assert not shop.background.is_running
    with pytest.raises(NotStartedError, match="the background of shop is not started"):
        shop.background.call(current_thread)


@pytest.mark.anyio
async def test_a_background_in_the_loop_of_the_harness_is_refused_as_ever(shop: ModuleType) -> None:
    async with Harness(shop.app):
        with pytest.raises(NotStartedError, match="the background of shop"):
            shop.background.call(current_thread)
        with pytest.raises(ClientStateError, match="would block the event loop"):
            shop.background.start()


async def current_thread() -> str:
    return threading.current_thread().name


@pytest.mark.anyio
async def test_a_time_without_a_unit(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        for time in (5, "5"):
            with pytest.raises(HarnessError, match=r'5.? has no unit: write "5s" for seconds, "5m" for minutes'):
                await harness.advance(time)  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_async_with_where_with_is_meant_and_the_other_way_round(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        for block in (
            harness.freeze("billing"),
            harness.broker.silence(),
            harness.disk.full(),
            harness.handler("bill").fails(),
        ):
            with pytest.raises(HarnessError, match="write 'with', and not 'async with'"):
                async with block:  # type: ignore[attr-defined]
                    pytest.fail("it began")
        told = r"write 'async with harness\.broker\.stopped"
        with pytest.raises(HarnessError, match=told), harness.broker.stopped():
            pytest.fail("it began")
        await harness.fresh()


# --- hooks that fail ---------------------------------------------------------------------------------------------

HOOKS = """
import sys
from rocketbox import RocketBox

app = RocketBox("hooks", scan=[__name__])
fails = set()

@app.on_startup
async def begin() -> None:
    if "exits" in fails:
        sys.exit(3)
    if "start" in fails:
        raise OSError("no such desk")

@app.background_task
async def watch() -> None:
    if "background" in fails:
        fails.clear()
        raise OSError("nothing to watch")

@app.every("1m")
def look() -> None:
    if "schedule" in fails:
        raise OSError("nothing to look at")

@app.on_shutdown
async def close() -> None:
    if "shutdown" in fails:
        raise OSError("it does not close")
"""


@pytest.fixture
def hooks(service: ServiceMaker) -> ModuleType:
    return service(HOOKS, SETTINGS)


@pytest.mark.anyio
async def test_a_background_task_and_a_schedule_that_fail_are_told_to_the_test(hooks: ModuleType) -> None:
    hooks.fails.add("background")
    async with Harness(hooks.app) as harness:
        with pytest.raises(OSError, match="nothing to watch"):
            await harness.drain()
        hooks.fails.add("schedule")
        with pytest.raises(OSError, match="nothing to look at"):
            await harness.advance("1m")
        assert re.search(r"look \(.*\.py:\d+\) failed \(OSError: nothing to look at\)", harness.log)
        hooks.fails.clear()
        await harness.advance("10m")


@pytest.mark.anyio
async def test_a_shutdown_hook_that_fails_is_raised_at_the_end_unless_failures_are_kept(hooks: ModuleType) -> None:
    hooks.fails.add("shutdown")
    with pytest.raises(OSError, match="it does not close"):
        async with Harness(hooks.app):
            pass
    async with Harness(hooks.app, failures="keep") as harness:
        pass
    assert "failed (OSError: it does not close)" in harness.log
    with pytest.raises(OSError, match="it does not close"), Harness(hooks.app):
        pass
    with pytest.raises(ZeroDivisionError):
        async with Harness(hooks.app):
            raise ZeroDivisionError  # what the test itself says comes first


@pytest.mark.anyio
async def test_a_startup_hook_that_exits_is_named(hooks: ModuleType) -> None:
    hooks.fails.add("exits")
    with pytest.raises(HarnessError, match=r"hooks has ended itself, by SystemExit\(3\)"):
        async with Harness(hooks.app):
            pytest.fail("it started")
    with pytest.raises(HarnessError, match=r"hooks has ended itself, by SystemExit\(3\)"), Harness(hooks.app):
        pytest.fail("it started")


@pytest.mark.anyio
async def test_a_start_that_fails_names_no_option_that_pytest_does_not_have(hooks: ModuleType) -> None:
    hooks.fails.add("start")
    with pytest.raises(ConfigurationError, match="begin failed: OSError: no such desk") as raised:
        async with Harness(hooks.app):
            pytest.fail("it started")
    assert "--debug" not in str(raised.value)
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.findings[0].fix == "--debug shows the traceback", "which the commands say"
