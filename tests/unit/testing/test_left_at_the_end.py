"""What a test leaves when its harness ends: none of it comes into the next test, and what has failed is told."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import nullcontext
from types import ModuleType

import anyio
import pytest

from rocketbox.errors import Reject, RocketBoxError
from rocketbox.testing import Harness, HarnessError, Outcome, StuckError
from rocketbox.testing.harness import Failures
from rocketbox.testing.pace import BrokenOffError
from rocketbox.testing.real_world import RealPace, RunClock
from rocketbox.testing.untold import Untold
from tests.support.framework.services import ServiceMaker
from tests.support.raised_in_threads import raised_in_a_thread

pytestmark = pytest.mark.anyio

SETTINGS = "rocketmq: {name-server: embedded, producer: {group: shop}}"
HEAD = """
import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import anyio
from rocketbox import RocketBox, rocketmq_listener

app = RocketBox("shop", scan=[__name__])
seen = []
begun, release = threading.Event(), threading.Event()
"""

CLEANS_UP_IN_ITS_CONTEXT = """
of_whom = contextvars.ContextVar("of whom", default="nobody")

async def audit():
    await asyncio.Event().wait()

async def swallow():
    while True:
        try:
            await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            pass

@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(item: str) -> None:
    token = of_whom.set(item)
    try:
        begun.set()
        await swallow()
    finally:
        seen.append(of_whom.get())
        of_whom.reset(token)
        seen.append(asyncio.create_task(audit()))
"""


async def hear(begun: threading.Event) -> None:
    assert await asyncio.to_thread(begun.wait, 60)


@pytest.mark.usefixtures("short_end")
async def test_a_handler_that_is_ended_by_force_cleans_up_in_its_own_context(service: ServiceMaker) -> None:
    shop = service(HEAD + CLEANS_UP_IN_ITS_CONTEXT, SETTINGS)
    before = asyncio.all_tasks()

    async def test() -> None:
        async with Harness(shop.app, patience=0.05) as harness:
            await harness.send("orders", "cup")
            await hear(shop.begun)

    with pytest.raises(HarnessError, match=r"ended by force: handler order .* in swallow\."):
        await test()
    told, task = shop.seen
    assert told == "cup"
    assert task.cancelled()
    assert asyncio.all_tasks() == before


MANY_THAT_SWALLOW = (
    CLEANS_UP_IN_ITS_CONTEXT.partition("@rocket")[0]
    + """
@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(item: str) -> None:
    seen.extend(asyncio.create_task(swallow(), name=f"t{n}") for n in range(25))
    begun.set()
"""
)


@pytest.mark.usefixtures("short_end")
async def test_of_many_that_were_ended_by_force_the_first_are_named(service: ServiceMaker) -> None:
    shop = service(HEAD + MANY_THAT_SWALLOW, SETTINGS)

    async def test() -> None:
        async with Harness(shop.app, patience=0.05) as harness:
            await harness.send("orders", "cup")
            await hear(shop.begun)
            await asyncio.sleep(0.01)  # they have begun

    with pytest.raises(HarnessError, match=r"task .* in swallow; and 5 others\. In production") as told:
        await test()
    assert str(told.value).count("handler order") == 20
    assert all(task.done() for task in shop.seen)


STAYS_IN_A_THREAD = {
    "background task": """
@app.background_task
async def feed() -> None:
    begun.set()
    await asyncio.to_thread(release.wait)
""",
    "hook": """
@app.on_startup
async def feed() -> None:
    asyncio.get_running_loop().run_in_executor(None, release.wait)
    begun.set()
""",
    "background task in a thread of anyio's": """
def take() -> None:
    begun.set()  # not before: anyio looks whether it was cancelled, and begins no thread then
    release.wait()

@app.background_task
async def feed() -> None:
    await anyio.to_thread.run_sync(take, abandon_on_cancel=True)
""",
}


@pytest.mark.parametrize("who", STAYS_IN_A_THREAD)
def test_who_keeps_the_loop_or_the_process_from_ending_is_named_and_the_harness_ends(
    service: ServiceMaker, who: str
) -> None:
    shop = service(HEAD + STAYS_IN_A_THREAD[who], SETTINGS)

    def test() -> None:
        with Harness(shop.app, patience=0.2):
            shop.begun.wait(60)

    error = raised_in_a_thread(test, shop.release)
    assert isinstance(error, StuckError)
    by = "shop in the background: background task feed" if who.startswith("background") else "a hook or bean of shop"
    assert f"a thread that a hook or a background task has started in task '{by}" in str(error)
    assert error.__notes__ == [
        "The end of the event loop, or of the process, waits for it: have the stop let it return"
    ]


WORKS_IN_A_POOL = {
    "submits": "pool.submit(release.wait)",
    "awaits it": "asyncio.ensure_future(asyncio.get_running_loop().run_in_executor(pool, release.wait))",
}


@pytest.mark.parametrize("way", WORKS_IN_A_POOL)
def test_a_pool_of_a_hooks_may_serve_several_harnesses(service: ServiceMaker, way: str) -> None:
    hook = f"pool = ThreadPoolExecutor(1)\n\n@app.on_startup\nasync def feed() -> None:\n    {WORKS_IN_A_POOL[way]}\n"
    shop = service(HEAD + hook, SETTINGS)
    try:
        for _ in range(2):
            with Harness(shop.app, patience=0.2):
                assert not shop.release.is_set()
    finally:
        shop.release.set()
        shop.pool.shutdown()


LETS_GO_AT_THE_STOP = """
@app.on_shutdown
async def let_go() -> None:
    release.set()
"""


async def test_a_thread_of_the_loop_that_returns_at_the_stop_is_waited_for(service: ServiceMaker) -> None:
    shop = service(HEAD + STAYS_IN_A_THREAD["background task"] + LETS_GO_AT_THE_STOP, SETTINGS)
    async with Harness(shop.app):
        await hear(shop.begun)


HANGS = """
@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(item: str) -> None:
    begun.set()
    await asyncio.Event().wait()
"""


async def test_the_end_breaks_off_what_is_still_awaited(service: ServiceMaker) -> None:
    """However long that would wait: a test was ended by its timeout, or has failed beside it."""
    shop = service(HEAD + HANGS, SETTINGS)

    async def test() -> None:
        async with Harness(shop.app, patience=1e6) as harness:
            await harness.send("orders", "cup")
            waiting.append(asyncio.create_task(harness.drain()))
            waiting.append(asyncio.create_task(harness.consumed("orders")))
            await hear(shop.begun)
            raise ZeroDivisionError

    waiting = list[asyncio.Task[object]]()
    with anyio.fail_after(60), pytest.raises(ZeroDivisionError):
        await test()
    for each in waiting:
        with pytest.raises(BrokenOffError, match="has come to its end while"):
            await each


async def test_the_end_breaks_off_what_waits_in_real_time() -> None:
    async def unfinished() -> list[str]:
        return ["orders has lag"]

    async def look() -> None: ...

    real = RealPace(RunClock(), unfinished, lambda: 0, lambda text: None, look, 60)
    waiting = [asyncio.create_task(wait) for wait in (real.settle(), real.advance(1e6), real.until(lambda: False))]
    for _ in range(10):
        await asyncio.sleep(0)
    real.waits.break_off()
    for each in waiting:
        with anyio.fail_after(60), pytest.raises(BrokenOffError):
            await each


BEGINS_FROM_A_THREAD = """
@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(item: str) -> None:
    loop = asyncio.get_running_loop()
    async def poll() -> None:
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("ended")
    def work() -> None:
        release.wait()
        asyncio.run_coroutine_threadsafe(poll(), loop)
    threading.Thread(target=work).start()

@app.on_shutdown
async def later() -> None:
    threading.Timer(0.1, release.set).start()
"""


async def test_what_a_thread_begins_in_the_loop_at_the_end_is_ended(service: ServiceMaker) -> None:
    shop = service(HEAD + BEGINS_FROM_A_THREAD, SETTINGS)
    before = asyncio.all_tasks()
    async with Harness(shop.app) as harness:
        await harness.send("orders", "cup")
        await harness.consumed("orders")
    assert shop.seen in ([], ["begun", "ended"])  # it may not have begun
    assert asyncio.all_tasks() == before


SETS_A_TIMER_AT_ITS_END = """
@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(item: str) -> None:
    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            seen.append(asyncio.get_running_loop().call_later(60, lambda: None))
    order.task = asyncio.create_task(work())
"""


async def test_a_timer_that_is_set_at_the_end_calls_nobody_in_the_next_test(service: ServiceMaker) -> None:
    shop = service(HEAD + SETS_A_TIMER_AT_ITS_END, SETTINGS)
    async with Harness(shop.app) as harness:
        await harness.send("orders", "cup")
        await hear(shop.begun)
    (timer,) = shop.seen
    assert timer.cancelled()


LACKS_THREADS = """
@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(item: str) -> None:
    try:
        threading.Thread(target=release.wait).start()
    except RuntimeError as error:
        seen.append(str(error))
"""


async def test_a_thread_that_could_not_be_started_is_not_waited_for(
    service: ServiceMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = service(HEAD + LACKS_THREADS, SETTINGS)

    def refuse(*args: object, **named: object) -> None:
        raise RuntimeError("can't start new thread")

    async with Harness(shop.app, patience=1) as harness:
        with monkeypatch.context() as lacking:
            name = "_start_joinable_thread" if sys.version_info >= (3, 13) else "_start_new_thread"
            lacking.setattr(threading, name, refuse)
            await harness.send("orders", "cup")
            await harness.consumed("orders")
        await harness.drain()
    assert shop.seen == ["can't start new thread"]


# --- what handlers have raised ---------------------------------------------------------------------------------------

FAILS = """
from rocketbox import Reject

@rocketmq_listener(topic="orders", consumer_group="sell")
async def sell(item: str) -> None: ...

@rocketmq_listener(topic="orders", consumer_group="count", max_reconsume_times=1)
async def count(item: str) -> None:
    raise ValueError("nobody counts")

@rocketmq_listener(topic="orders", consumer_group="check")
async def check(item: str) -> None:
    raise Reject("on purpose")
"""


@pytest.fixture
def shop(service: ServiceMaker) -> ModuleType:
    return service(HEAD + FAILS, SETTINGS)


async def sold(harness: Harness, count: int = 1) -> None:
    for _ in range(count):
        await harness.send("orders", "cup")
    await harness.consumed("sell", count)


async def test_what_a_handler_has_raised_is_raised_at_the_end_where_nobody_was_told(shop: ModuleType) -> None:
    with pytest.raises(ValueError, match="nobody counts") as told:
        async with Harness(shop.app) as harness:
            await sold(harness)
    (note,) = told.value.__notes__
    assert "end the test with drain()" in note


def test_so_it_is_in_a_plain_function(shop: ModuleType) -> None:
    def test() -> None:
        with Harness(shop.app) as harness:
            harness.blocking.send("orders", "cup")
            harness.blocking.consumed("sell")

    with pytest.raises(ValueError, match="nobody counts"):
        test()


async def test_several_are_raised_together(shop: ModuleType) -> None:
    with pytest.raises(ExceptionGroup, match=r"^handlers of shop have failed") as told:
        async with Harness(shop.app) as harness:
            await sold(harness, 2)
    assert [str(each) for each in told.value.exceptions] == ["nobody counts"] * 2


async def test_the_error_of_the_test_comes_before_it(shop: ModuleType) -> None:
    async def test() -> None:
        async with Harness(shop.app) as harness:
            await sold(harness)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await test()


async def told_by_drain(harness: Harness) -> None:
    with pytest.raises(ValueError, match="nobody counts"):
        await harness.drain()


async def told_by_calls(harness: Harness) -> None:
    assert [call.outcome for call in harness.calls("count")] == [Outcome.COMES_BACK]


async def told_by_dead_letters(harness: Harness) -> None:
    await harness.advance("1h", failures="keep")
    (letter,) = harness.dead_letters("count")
    assert str(letter.why) == "nobody counts"


async def told_by_consumed(harness: Harness) -> None:
    with pytest.raises(AssertionError, match="group count has consumed 0 messages"):
        await harness.consumed("count")


@pytest.mark.parametrize("tell", [told_by_drain, told_by_calls, told_by_dead_letters, told_by_consumed])
async def test_who_has_looked_is_not_told_again(shop: ModuleType, tell: object) -> None:
    async with Harness(shop.app) as harness:
        await sold(harness)
        await tell(harness)  # type: ignore[operator]


async def test_failures_that_are_kept_are_not_raised_at_the_end(shop: ModuleType) -> None:
    async with Harness(shop.app, failures="keep") as harness:
        await sold(harness)


async def test_between_two_tests_it_is_raised_when_all_is_fresh(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        await sold(harness)
        log = harness.log
        with pytest.raises(ValueError, match="nobody counts"):
            await harness.fresh()
        assert harness.log == "nothing has happened"
        assert harness.log_for_report == f"{log}\nfresh() has raised, and then: nothing has happened"
        harness.next_test(last_has_failed=True)  # as the plugin says
        assert harness.log_for_report == "nothing has happened"
        await harness.fresh()
        assert harness.calls("count") == []


@pytest.mark.parametrize("last_has_failed", [True, False])
async def test_what_a_test_that_has_failed_leaves_is_not_told_by_the_next_ones_fresh(
    shop: ModuleType, last_has_failed: bool
) -> None:
    async with Harness(shop.app) as harness:
        await sold(harness)
        harness.next_test(last_has_failed=last_has_failed)  # as the plugin says
        with nullcontext() if last_has_failed else pytest.raises(ValueError, match="nobody counts"):
            await harness.fresh()


def test_what_is_untold_of_several_tests() -> None:
    """One fails later than another, by the same message, and by one of its own."""
    untold, first, own = Untold(), ValueError("first"), ValueError("own")
    untold.add((None, "sell", "m1"), first)
    untold.next_test(is_known=False)
    untold.add((None, "sell", "m1"), ValueError("again"))
    untold.add((None, "sell", "m2"), own)
    assert untold.errors(of_test=True) == [first, own]
    assert untold.errors(of_test=False) == [first]
    untold.next_test(is_known=True)
    untold.add((None, "sell", "m2"), ValueError("once more"))
    assert untold.errors(of_test=True) == [first]
    untold.know_all()
    assert untold.errors(of_test=True) == []


async def test_what_a_handler_rejects_is_no_failure_of_the_test(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        harness.handler("count").fails(1, error=Reject("as well"))
        await sold(harness)


async def test_later_attempts_at_what_the_test_knows_to_fail_are_not_raised(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        await sold(harness)
        await told_by_drain(harness)
        await harness.send("orders", "late", delay="1h")
        harness.handler("count").fails(1)
        await harness.consumed("sell", 2)
        assert [call.attempt for call in harness.calls("count")] == [1, 2, 1]


SAME_ERROR = """
error = ConnectionError("down")

@rocketmq_listener(topic="orders", consumer_group="one")
async def one(item: str) -> None:
    raise error

@rocketmq_listener(topic="orders", consumer_group="other")
async def other(item: str) -> None:
    raise error

@rocketmq_listener(topic="orders", consumer_group="sell")
async def sell(item: str) -> None: ...
"""


async def test_who_has_looked_at_one_handler_is_told_of_another_one(service: ServiceMaker) -> None:
    shop = service(HEAD + SAME_ERROR, SETTINGS)

    async def test() -> None:
        async with Harness(shop.app) as harness:
            await sold(harness)
            assert harness.calls("one")[0].error is shop.error

    with pytest.raises(ConnectionError, match="down"):
        await test()


FAILS_BEHIND_A_SEND = """
from rocketbox import MessageExt, RetryLater, RocketMQTemplate

@rocketmq_listener(topic="orders", consumer_group="order")
async def order(item: str, message: MessageExt, template: RocketMQTemplate) -> None:
    if item == "later" and not message.reconsume_times:
        raise RetryLater("10s")
    await template.send("receipts", item)
    raise TypeError("behind the receipt")

@rocketmq_listener(topic="receipts", consumer_group="receipts")
async def file(item: str) -> None: ...
"""


@pytest.mark.parametrize("first", ["later", "made to fail"])
async def test_who_has_looked_at_a_failure_that_is_meant_is_told_of_the_next_one(
    service: ServiceMaker, first: str
) -> None:
    shop = service(HEAD + FAILS_BEHIND_A_SEND, SETTINGS)

    async def test() -> None:
        async with Harness(shop.app) as harness:
            if first == "made to fail":
                harness.handler("order").fails(1)
            await harness.send("orders", first)
            await harness.drain()
            assert harness.calls("order")[0].outcome is Outcome.COMES_BACK
            assert harness.dead_letters("order") == []
            await harness.consumed("receipts")

    with pytest.raises(TypeError, match="behind the receipt"):
        await test()


FAILS_LATER = """
@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(item: str) -> None:
    begun.set()
    await asyncio.to_thread(release.wait)
    raise ValueError("too late")

@rocketmq_listener(topic="others", consumer_group="others")
async def other(item: str) -> None: ...
"""


async def test_a_call_that_was_looked_at_while_it_ran_is_told(service: ServiceMaker) -> None:
    shop = service(HEAD + FAILS_LATER, SETTINGS)

    async def test() -> None:
        async with Harness(shop.app) as harness:
            await harness.send("orders", "cup")
            await hear(shop.begun)
            assert harness.calls("order")[0].outcome is Outcome.RUNNING
            shop.release.set()
            await harness.send("others", "cup")
            await harness.consumed("others")
            await harness._pace.settle()

    with pytest.raises(ValueError, match="too late"):
        await test()


FAILS_IN_A_THREAD = """
@rocketmq_listener(topic="orders", consumer_group="orders")
def order(item: str) -> None:
    begun.set()
    release.wait()
    raise ValueError("too late")
"""


async def let_go_at_the_end(harness: Harness, shop: ModuleType) -> None:
    """Have the handler go on when the harness has begun to end."""

    async def let_go() -> None:
        await harness._stop.wait()
        shop.release.set()

    shop.seen.append(asyncio.create_task(let_go()))


@pytest.mark.parametrize("fails", [FAILS_LATER, FAILS_IN_A_THREAD], ids=["async def", "def"])
async def test_what_fails_while_the_end_waits_for_it_is_raised(service: ServiceMaker, fails: str) -> None:
    shop = service(HEAD + fails, SETTINGS)

    async def test() -> None:
        async with Harness(shop.app) as harness:
            await harness.send("orders", "cup")
            await hear(shop.begun)
            await let_go_at_the_end(harness, shop)

    with pytest.raises(ValueError, match="too late") as told:
        await test()
    (note,) = told.value.__notes__
    assert "end the test with drain()" in note


@pytest.mark.parametrize("failures", ["raise", "keep"])
@pytest.mark.parametrize("fails", [FAILS_LATER, FAILS_IN_A_THREAD], ids=["async def", "def"])
def test_so_it_is_where_a_plain_function_ends(service: ServiceMaker, fails: str, failures: Failures) -> None:
    shop = service(HEAD + fails, SETTINGS)

    def test() -> None:
        with Harness(shop.app, failures=failures) as harness:
            harness.blocking.send("orders", "cup")
            assert shop.begun.wait(60)
            harness.blocking.call(let_go_at_the_end, harness, shop)

    with nullcontext() if failures == "keep" else pytest.raises(ValueError, match="too late"):
        test()


FAILS_AGAIN = """
@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(item: str) -> None:
    if not begun.is_set():
        begun.set()
        raise ValueError("first")
    seen.append("again")
    await asyncio.to_thread(release.wait)
    raise ValueError("too late")
"""


async def test_a_later_attempt_that_fails_at_the_end_is_known(service: ServiceMaker) -> None:
    shop = service(HEAD + FAILS_AGAIN, SETTINGS)
    async with Harness(shop.app) as harness:
        await harness.send("orders", "cup")
        with pytest.raises(ValueError, match="first"):
            await harness.drain()
        await harness._pace.until(lambda: "again" in shop.seen)
        await let_go_at_the_end(harness, shop)
    assert [str(call.error) for call in harness.calls("order")] == ["first", "too late"]


FAILS_WHEN_IT_IS_CANCELLED = """
@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(item: str) -> None:
    begun.set()
    try:
        await asyncio.Event().wait()
    finally:
        raise ValueError("broken off")
"""


@pytest.mark.usefixtures("short_end")
async def test_what_only_fails_as_the_end_cancels_it_is_not_raised(service: ServiceMaker) -> None:
    shop = service(HEAD + FAILS_WHEN_IT_IS_CANCELLED, SETTINGS)
    async with Harness(shop.app) as harness:
        await harness.send("orders", "cup")
        await hear(shop.begun)
    assert str(harness.calls("order")[0].error) == "broken off"


async def test_fresh_that_refuses_says_nothing_of_what_drain_will_raise(service: ServiceMaker) -> None:
    shop = service(HEAD + FAILS + FAILS_LATER.replace("orders", "hangs"), SETTINGS)
    async with Harness(shop.app, patience=0.1) as harness:
        await sold(harness)
        await harness.send("hangs", "cup")
        await hear(shop.begun)
        with pytest.raises(StuckError):
            await harness.fresh()
        shop.release.set()
        with pytest.raises(ExceptionGroup) as told:
            await harness.drain()
    assert [str(each) for each in told.value.exceptions] == ["nobody counts", "too late"]
    assert not any(hasattr(each, "__notes__") for each in told.value.exceptions)


async def test_what_fails_when_fresh_has_it_handled_is_raised_as_well(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        await harness.template.send("orders", "cup")
        with pytest.raises(ValueError, match="nobody counts"):
            await harness.fresh()


BACKGROUND_FAILS = """
@app.background_task
async def feed() -> None:
    begun.set()
    raise ValueError("nothing to feed on")
"""


async def test_what_background_tasks_have_raised_is_raised_by_fresh(service: ServiceMaker) -> None:
    shop = service(HEAD + BACKGROUND_FAILS, SETTINGS)
    async with Harness(shop.app) as harness:
        await hear(shop.begun)
        with pytest.raises(ValueError, match="nothing to feed on"):
            await harness.fresh()


async def test_an_end_that_fails_tells_what_handlers_had_raised(service: ServiceMaker) -> None:
    hangs = STAYS_IN_A_THREAD["background task"]
    shop = service(HEAD + FAILS + hangs, SETTINGS)

    async def test() -> None:
        async with Harness(shop.app, patience=0.2) as harness:
            await sold(harness)

    try:
        with pytest.raises(StuckError) as told:
            await test()
    finally:
        shop.release.set()
    assert told.value.__notes__[1:] == ["And a handler of shop had failed: ValueError: nobody counts"]


# --- what is under way when the end comes ----------------------------------------------------------------------------


@pytest.mark.parametrize("disturb", [False, True])
async def test_a_send_that_is_under_way_at_the_end_ends(shop: ModuleType, disturb: bool) -> None:
    """However it does: its client is closed, and no time is moved any more."""
    with anyio.fail_after(60):
        async with Harness(shop.app) as harness:
            if disturb:
                harness.broker.silence()
            send = asyncio.create_task(harness.send("others", "cup"))
            await asyncio.sleep(0)
        await asyncio.wait([send])
    error = send.exception()
    assert isinstance(error, RocketBoxError) or (error is None and not disturb)


WAITS_IN_MIDDLEWARE = """
from rocketbox import RocketMQTemplate, bean
from rocketbox.client import SendMiddleware

class Waits:
    async def __call__(self, context, call_next):
        if context.messages[0].topic == "orders":
            begun.set()
            await wait()
        return await call_next(context)

@bean
def waits() -> SendMiddleware:
    return Waits()
"""
SENDS_IN_THE_BACKGROUND = """
@app.background_task
async def feed(template: RocketMQTemplate) -> None:
    with anyio.CancelScope(shield=True):
        seen.append(await template.send("orders", "cup"))
"""


async def test_a_send_that_is_in_middleware_at_the_end_is_broken_off(service: ServiceMaker) -> None:
    """And nothing of it goes on: another harness in the same loop comes to rest."""
    shop = service(HEAD + WAITS_IN_MIDDLEWARE, SETTINGS)
    vars(shop)["wait"] = asyncio.Event().wait
    with anyio.fail_after(60):
        async with Harness(shop.app) as harness:
            send = asyncio.create_task(harness.send("orders", "cup"))
            await hear(shop.begun)
        with pytest.raises(BrokenOffError):
            await send
        async with Harness(shop.app) as harness:
            await harness.send("others", "cup")
            await harness.drain()


async def test_a_send_that_begins_when_the_end_has_come_is_broken_off_as_well(service: ServiceMaker) -> None:
    shop = service(HEAD + WAITS_IN_MIDDLEWARE + LETS_GO_AT_THE_STOP, SETTINGS)
    vars(shop)["wait"] = asyncio.Event().wait

    async def send_late(harness: Harness) -> None:
        await hear(shop.release)
        await harness.template.send("orders", "cup")

    with anyio.fail_after(60):
        async with Harness(shop.app) as harness:
            late = asyncio.create_task(send_late(harness))
        with pytest.raises(RocketBoxError):  # it may have come too late for its client
            await late


def test_a_blocking_send_that_is_in_middleware_at_the_end_holds_up_nothing(service: ServiceMaker) -> None:
    shop = service(HEAD + WAITS_IN_MIDDLEWARE, SETTINGS)
    vars(shop)["wait"] = lambda: asyncio.Event().wait()
    told = list[BaseException]()

    def send() -> None:
        try:
            shop.app.template.blocking.send("orders", "cup")
        except BaseException as error:
            told.append(error)

    with Harness(shop.app, patience=1e6):
        sending = threading.Thread(target=send)
        sending.start()
        assert shop.begun.wait(60)
    sending.join(60)
    assert [type(error) for error in told] == [BrokenOffError]


async def test_a_send_of_the_service_that_is_in_middleware_at_the_end_has_its_time(
    service: ServiceMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketbox.testing.service_end.PATIENCE_AT_THE_END", 0.05)
    shop = service(HEAD + WAITS_IN_MIDDLEWARE + SENDS_IN_THE_BACKGROUND, SETTINGS)
    vars(shop)["wait"] = lambda: asyncio.sleep(0.3)
    async with Harness(shop.app, patience=30) as harness:
        await hear(shop.begun)
    assert len(shop.seen) == 1
    assert harness.sent("orders").one(str) == "cup"


async def test_who_waits_for_what_has_come_is_told_so_at_the_end(shop: ModuleType) -> None:
    async with Harness(shop.app, failures="keep") as harness:
        await harness.send("orders", "cup")
        await harness.drain()
        waiting = asyncio.create_task(harness.consumed("sell"))
    assert [call.payload for call in await waiting] == ["cup"]


MOVES_TIME = """
move = None

@app.background_task
async def poll() -> None:
    while True:
        await move("1m")
        begun.set()
"""


async def test_what_the_service_itself_asks_of_the_harness_is_stopped_with_the_service(service: ServiceMaker) -> None:
    """A stand-in for a clock lets time pass."""
    shop = service(HEAD + MOVES_TIME, SETTINGS)

    async def move(time: str) -> None:
        while not harnesses:
            await asyncio.sleep(0.001)
        await harnesses[0].advance(time)

    vars(shop)["move"], harnesses = move, list[Harness]()
    async with Harness(shop.app) as harness:
        harnesses.append(harness)
        await hear(shop.begun)


POLLS_IN_THREADS = """
@app.on_startup
async def begin() -> None:
    async def poll() -> None:
        while not release.is_set():
            await asyncio.to_thread(release.wait, 0.02)
            begun.set()
    seen.append(asyncio.create_task(poll()))
"""


async def test_who_polls_by_short_calls_in_threads_hangs_nowhere(service: ServiceMaker) -> None:
    """It is a hook's, and goes on in the loop of the test: none of these calls is one that stays."""
    shop = service(HEAD + POLLS_IN_THREADS, SETTINGS)
    async with Harness(shop.app, patience=0.5):
        await hear(shop.begun)
    shop.release.set()
    await shop.seen[0]


async def test_a_thread_may_give_a_function_to_the_loops_threads(shop: ModuleType) -> None:
    """asyncio lets it, outside of its debug mode."""
    loop = asyncio.get_running_loop()
    async with Harness(shop.app):
        given = await asyncio.to_thread(loop.run_in_executor, None, lambda: "done")
        assert await asyncio.wait_for(given, 60) == "done"
