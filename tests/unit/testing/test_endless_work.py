"""What never comes to its end in a service: a harness names it, and its own end comes all the same."""

from __future__ import annotations

import asyncio
import time
from types import ModuleType

import anyio
import pytest

from rocketbox.testing import Harness, HarnessError, StuckError, pace
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

SETTINGS = "rocketmq: {name-server: embedded, producer: {group: shop}}"

HEAD = """
import asyncio
import threading
import time

import anyio
from rocketbox import RocketBox, RocketMQTemplate, rocketmq_listener, send_to
from rocketbox.errors import ReplyTimeoutError

app = RocketBox("shop", scan=[__name__])
"""

PING_PONG = """
@rocketmq_listener(topic="ping", consumer_group="ping")
@send_to("pong")
async def ping(item: str) -> str:
    return item

@rocketmq_listener(topic="pong", consumer_group="pong")
@send_to("ping")
%s pong(item: str) -> str:
    return item
"""


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_messages_that_lead_to_each_other_without_end_are_named(
    service: ServiceMaker, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = service(HEAD + PING_PONG % kind, SETTINGS)
    async with Harness(shop.app, patience=0.05) as harness:
        monkeypatch.setattr(pace, "ENDLESS", 4)
        await harness.send("ping", "ball")
        with pytest.raises(StuckError, match=r"without end: .* sent to p[io]ng  ball; .*p[io]ng, attempt 1: consumed"):
            await harness.drain()


SENDS_ON = """
@app.background_task
async def noise(template: RocketMQTemplate) -> None:
    while True:
        await template.%s
"""


@pytest.mark.parametrize("verb", ['send("noise", 1)', 'send_one_way("noise", 1)', 'send_many("noise", [1] * 5)'])
async def test_a_background_task_that_sends_without_end_is_named(service: ServiceMaker, verb: str) -> None:
    shop = service(HEAD + SENDS_ON % verb, SETTINGS)
    with anyio.fail_after(60), pytest.raises(StuckError, match=r"without end: .* sent to noise  1; .* wait between"):
        async with Harness(shop.app, patience=0.05) as harness:
            await harness.drain()


HANDLER = """
begun = asyncio.Event()

@rocketmq_listener(topic="orders", consumer_group="orders")
async def polls(item: str) -> None:
    begun.set()
    while True:
        await %s
"""


@pytest.mark.parametrize(
    "step",
    [
        "asyncio.to_thread(time.sleep, 0.005)",
        "asyncio.gather(asyncio.sleep(0.005), asyncio.sleep(0.005))",
        "asyncio.wait([asyncio.create_task(asyncio.sleep(0.005))])",
    ],
)
async def test_a_handler_that_polls_by_threads_or_tasks_is_named_and_so_ends_the_harness(
    service: ServiceMaker, step: str
) -> None:
    shop = service(HEAD + HANDLER % step, SETTINGS)
    with anyio.fail_after(60):
        async with Harness(shop.app, patience=0.05) as harness:
            await harness.send("orders", "cup")
            with pytest.raises(StuckError, match=r"handler polls .*, for a message of orders waits at .* in polls"):
                await harness.drain()
    assert not [task for task in asyncio.all_tasks() if "consumer" in task.get_name()]


HEARTBEAT = """
@app.background_task
async def heartbeat(template: RocketMQTemplate) -> None:
    while True:
        await asyncio.sleep(0.01)
        await template.send("beats", 1)
"""


async def test_a_handler_that_hangs_is_named_beside_work_that_goes_on(service: ServiceMaker) -> None:
    shop = service(HEAD + HEARTBEAT + HANDLER % "asyncio.Event().wait()", SETTINGS)
    with anyio.fail_after(60):
        async with Harness(shop.app, patience=0.1) as harness:
            await harness.send("orders", "cup")
            with pytest.raises(StuckError, match=r"handler polls .* waits at .* in polls"):
                await harness.drain()
            assert harness.sent("beats").all(int)


IN_A_THREAD = """
release, begun = threading.Event(), threading.Event()

@rocketmq_listener(topic="orders", consumer_group="orders")
async def offloads(item: str) -> None:
    begun.set()
    await anyio.to_thread.run_sync(release.wait)
"""


async def test_a_handler_in_a_thread_of_anyios_is_left_to_its_thread_at_the_end(service: ServiceMaker) -> None:
    shop = service(HEAD + IN_A_THREAD, SETTINGS)
    harness = Harness(shop.app, patience=0.05)

    async def fail() -> None:
        async with harness:
            await harness.send("orders", "cup")
            await asyncio.to_thread(shop.begun.wait, 30)
            raise AssertionError("the test's own")

    try:
        with anyio.fail_after(60), pytest.raises(AssertionError, match="the test's own"):
            await fail()
        assert "force" not in harness.log
        assert not [task for task in asyncio.all_tasks() if "consumer" in task.get_name()]
    finally:
        shop.release.set()


SWALLOWS = """
begun = asyncio.Event()

async def swallow() -> None:
    begun.set()
    while True:
        try:
            await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            raise ValueError("whatever it was") from error

%s
"""

STUBBORN = {
    "background task": "@app.background_task\nasync def stays() -> None:\n    await swallow()",
    "hook": "@app.on_shutdown\nasync def stays() -> None:\n    await swallow()",
    "handler": """
@rocketmq_listener(topic="orders", consumer_group="orders")
async def stays(item: str) -> None:
    await swallow()
""",
    "task": """
@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(item: str) -> None:
    async def stays():
        await swallow()
    order.task = asyncio.create_task(stays())
""",
}


async def begin(harness: Harness, shop: ModuleType, who: str, error: Exception | None = None) -> None:
    await harness.send("orders", "cup")
    if who != "hook":
        await shop.begun.wait()
    if error is not None:
        raise error


@pytest.fixture
def short_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who swallow cancellations have less time: they are cancelled again in each turn of the loop."""
    monkeypatch.setattr("rocketbox.testing.harness.PATIENCE_AT_THE_END", 0.2)


@pytest.mark.parametrize("who", STUBBORN)
@pytest.mark.usefixtures("short_end")
async def test_who_swallows_cancellations_at_the_end_is_named_and_the_service_ends(
    service: ServiceMaker, who: str
) -> None:
    shop = service(HEAD + SWALLOWS % STUBBORN[who], SETTINGS)
    before = asyncio.all_tasks()
    named = r"ended by force: .* at .* in swallow\. In production"
    with anyio.fail_after(60), pytest.raises(HarnessError, match=named):
        async with Harness(shop.app, patience=0.05) as harness:
            await begin(harness, shop, who)
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("who", STUBBORN)
@pytest.mark.usefixtures("short_end")
async def test_the_error_of_the_test_is_told_whoever_swallows_cancellations(service: ServiceMaker, who: str) -> None:
    shop = service(HEAD + SWALLOWS % STUBBORN[who], SETTINGS)
    with anyio.fail_after(60), pytest.raises(ZeroDivisionError):
        async with Harness(shop.app, patience=0.05) as harness:
            await begin(harness, shop, who, ZeroDivisionError())


SHIELDED = """
done, begun = [], asyncio.Event()

async def clean_up(who: str) -> None:
    try:
        begun.set()
        await asyncio.Event().wait()
    finally:
        with anyio.CancelScope(shield=True):
            await asyncio.sleep(0.3)
            done.append(who)
"""

CLEANS_UP = """
@app.background_task
async def in_a_thread() -> None:
    await anyio.to_thread.run_sync(time.sleep, 0.3)
    done.append("in a thread")

@app.background_task
async def shielded() -> None:
    await clean_up("shielded")
"""

CLEANS_UP_IN_A_HANDLER = """
@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(item: str) -> None:
    await clean_up("handler")
"""


@pytest.mark.parametrize(
    ("source", "done"), [(CLEANS_UP, ["in a thread", "shielded"]), (CLEANS_UP_IN_A_HANDLER, ["handler"])]
)
async def test_who_cleans_up_at_the_end_has_real_time_for_it(
    service: ServiceMaker, source: str, done: list[str]
) -> None:
    shop = service(HEAD + SHIELDED + source, SETTINGS)
    async with Harness(shop.app) as harness:
        await harness.send("orders", "cup")
        await shop.begun.wait()
    assert sorted(shop.done) == done
    assert "force" not in harness.log


ONE_AFTER_THE_OTHER = """
from rocketbox import LocalTransactionState, bean, rocketmq_transaction_listener
from rocketbox.client import SendMiddleware

asked, go = [], asyncio.Event()

@rocketmq_transaction_listener(topic="deals")
async def ask(item: str) -> LocalTransactionState:
    await asyncio.sleep(0.02)
    asked.append(item)
    return LocalTransactionState.COMMIT

@bean
def slow() -> SendMiddleware:
    async def wait(context, call_next):
        if context.messages[0].topic == "rows":
            await asyncio.sleep(0.02)
        return await call_next(context)
    return wait

@app.background_task
async def sends(template: RocketMQTemplate) -> None:
    await go.wait()
    for number in range(60):
        await template.send("rows", number)
"""


async def test_what_one_task_does_one_after_the_other_may_take_longer_than_a_single_thing(
    service: ServiceMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "ENDLESS", 1)
    shop = service(HEAD + ONE_AFTER_THE_OTHER, SETTINGS)
    async with Harness(shop.app, patience=1) as harness:
        for number in range(60):
            await harness.template.transaction("deals", str(number)).begin()
        await harness.advance("100s")
        assert len(shop.asked) == 60
        shop.go.set()
        await harness.drain()
        assert harness.sent("rows").all(int) == list(range(60))


ASKS = """
@app.on_startup
async def asks(template: RocketMQTemplate) -> None:
    while True:
        try:
            await template.send_and_receive("config", "which?", str)
            return
        except ReplyTimeoutError:
            pass
"""


async def test_a_start_that_asks_until_somebody_answers_is_named(service: ServiceMaker) -> None:
    shop = service(HEAD + ASKS, SETTINGS)
    with anyio.fail_after(60), pytest.raises(StuckError, match=r"the start of shop waits for rocketbox at .* in asks"):
        async with Harness(shop.app):
            pass


STAYS_IN_A_THREAD = """
release, begun = threading.Event(), asyncio.Event()

@app.background_task
async def offloads() -> None:
    begun.set()
    await anyio.to_thread.run_sync(release.wait)
"""


async def test_a_background_task_in_a_thread_of_anyios_that_outlasts_the_patience_is_named(
    service: ServiceMaker,
) -> None:
    shop = service(HEAD + STAYS_IN_A_THREAD, SETTINGS)
    try:
        named = r"background task offloads .* waits at .* in offloads"
        with anyio.fail_after(60), pytest.raises(StuckError, match=named):
            async with Harness(shop.app, patience=0.1):
                await shop.begun.wait()
    finally:
        shop.release.set()


TAKES_A_MOMENT = """
@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(item: str) -> None:
    await asyncio.sleep(0.05)
"""


async def test_what_was_consumed_is_returned_beside_a_task_that_never_waits(service: ServiceMaker) -> None:
    async def poll() -> None:
        while True:
            time.sleep(0.001)  # noqa: ASYNC251  # its turns are to take long
            await asyncio.sleep(0)

    shop = service(HEAD + TAKES_A_MOMENT, SETTINGS)
    async with Harness(shop.app, patience=0.1) as harness:
        await harness.send("orders", "cup")
        polls = asyncio.create_task(poll())
        assert [call.payload for call in await harness.consumed("orders")] == ["cup"]
        polls.cancel()
