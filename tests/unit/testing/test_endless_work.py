"""What never comes to its end in a service: a harness names it, and its own end comes all the same."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from math import inf
from types import ModuleType
from typing import Any

import anyio
import pytest

from rocketbox.testing import Harness, HarnessError, Outcome, StuckError, pace
from rocketbox.testing.errors import EndlessError, FrozenTimeError, UnendingError
from rocketbox.testing.loop_turns import LoopTurns, RealWait
from rocketbox.testing.pace import Pace
from rocketbox.testing.virtual_clock import VirtualClock
from tests.support.framework.services import ServiceMaker
from tests.support.raised_in_threads import raised_in_a_thread

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("short_stop")]

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
    monkeypatch.setattr(pace, "ENDLESS", 1)
    async with Harness(shop.app, patience=0.3) as harness:
        await harness.send("ping", "ball")
        with pytest.raises(StuckError, match=r"without end: .* sent to p[io]ng  ball; .*p[io]ng, attempt 1: consumed"):
            await harness.drain()


SENDS_ON = """
@app.background_task
async def noise(template: RocketMQTemplate) -> None:
    while True:
        await template.%s
"""


@pytest.mark.parametrize(
    ("verb", "turns", "told"),
    [
        ('send("noise", 1)', pace.FEWEST_TURNS, "sent to noise  1"),
        ('send_one_way("noise", 1)', pace.FEWEST_TURNS // 5, "to noise (is on its way| 1)"),
        ('send_many("noise", [1] * 5)', pace.FEWEST_TURNS, "sent to noise  1"),
    ],
    ids=["send", "send_one_way", "send_many"],
)
async def test_a_background_task_that_sends_without_end_is_named(
    service: ServiceMaker, verb: str, turns: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One turn of the loop sends hundreds of messages one-way, as many as a connection takes, and another one stores
    them: the last of what is told was one or the other."""
    monkeypatch.setattr(pace, "ENDLESS", 1)
    monkeypatch.setattr(pace, "FEWEST_TURNS", turns)
    shop = service(HEAD + SENDS_ON % verb, SETTINGS)
    with anyio.fail_after(240), pytest.raises(StuckError, match=rf"without end: .* {told}; .* wait between"):
        async with Harness(shop.app, patience=0.25) as harness:
            await harness.drain()
    assert "sent to noise  1" in harness.log


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
    with anyio.fail_after(240):
        async with Harness(shop.app, patience=0.05) as harness:
            await harness.send("orders", "cup")
            with pytest.raises(StuckError, match=r"handler polls .*, for a message of orders waits at .* in polls"):
                await harness.drain()
    assert not [task for task in asyncio.all_tasks() if "consumer" in task.get_name()]


BEGINS_ITSELF_ANEW = """
release, begun = threading.Event(), threading.Event()

@rocketmq_listener(topic="orders", consumer_group="orders")
async def starts(item: str) -> None:
    again()

def again():
    begun.set()
    if not release.is_set():
        %s
"""
CHAINS = {
    "timer": ("asyncio.get_running_loop().call_later(0.005, again)", r"a timer that handler starts \S+ has set"),
    "task": ("asyncio.create_task(asyncio.sleep(0.005)).add_done_callback(lambda task: again())", "task .*starts"),
    "thread": ("threading.Timer(0.005, again).start()", r"a thread that handler starts \S+ has started"),
}


@pytest.mark.parametrize("kind", CHAINS)
def test_what_a_handler_starts_and_begins_itself_anew_without_end_is_named(
    service: ServiceMaker, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, named = CHAINS[kind]
    monkeypatch.setattr(pace, "ENDLESS", 3)
    shop = service(HEAD + BEGINS_ITSELF_ANEW % step, SETTINGS)

    def test() -> None:
        with Harness(shop.app, patience=0.2) as harness:
            harness.blocking.send("orders", "cup")
            harness.blocking.drain()

    error = raised_in_a_thread(test, shop.release)
    assert isinstance(error, StuckError)  # on a slow machine nothing may seem to go on
    assert re.search(named, str(error))


def stuck_at_the_end_of(shop: ModuleType) -> StuckError:
    """What the end of a harness raises whose handler has begun."""

    def test() -> None:
        with Harness(shop.app, patience=0.2) as harness:
            harness.blocking.send("orders", "cup")
            shop.begun.wait(60)

    error = raised_in_a_thread(test, shop.release)
    assert isinstance(error, StuckError)
    return error


def test_a_thread_that_starts_the_next_without_end_is_named_at_the_end(service: ServiceMaker) -> None:
    shop = service(HEAD + BEGINS_ITSELF_ANEW % CHAINS["thread"][0], SETTINGS)
    assert re.search(rf"{CHAINS['thread'][1]} waits at ", str(stuck_at_the_end_of(shop)))


class HeldUp(LoopTurns):
    """The machine has something else to do between two looks."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def real_time(self) -> float:
        self.seconds += 0.3
        return self.seconds


async def raised_beside(work: Coroutine[Any, Any, None], looked_at: Pace) -> type[StuckError]:
    """What is raised in place of settling while that goes on."""
    going_on = asyncio.create_task(work)
    try:
        with pytest.raises(StuckError) as told:
            await looked_at.settle()
    finally:
        going_on.cancel()
    return told.type


@pytest.mark.parametrize(("steps", "error"), [(3, StuckError), (9, StuckError), (100_000, EndlessError)])
async def test_what_has_come_to_a_stop_is_not_called_endless_however_slow_the_machine_is(
    steps: int, error: type[StuckError]
) -> None:
    async def poll() -> None:
        while True:
            await asyncio.sleep(0)

    progress = iter(range(steps))
    waits = [RealWait("handler polls", "service.py:1 in polls")]
    looked_at = Pace(VirtualClock(0), HeldUp(), lambda: waits, lambda: next(progress, steps), list, 0.02)
    assert await raised_beside(poll(), looked_at) is error


@pytest.mark.parametrize(
    ("root", "error", "told"),
    [
        (None, EndlessError, r"messages come .* without end: .* a ball"),
        ("a call", UnendingError, r"not come to its end .* handler pong waits at service\.py:1 in pong"),
    ],
    ids=["of one message after the other", "of one that begins itself anew"],
)
async def test_what_is_brought_forward_in_real_time_without_end_is_named(
    root: str | None, error: type[StuckError], told: str
) -> None:
    looks = 0

    def progress() -> int:
        nonlocal looks
        looks += 1
        assert looks < 5_000, "it is never given up"
        return looks

    def waits() -> list[RealWait]:
        return [RealWait("handler pong", "service.py:1 in pong", of=object(), root=root or object())]

    looked_at = Pace(VirtualClock(0), HeldUp(), waits, progress, lambda: ["a ball"], 0.005)
    with pytest.raises(error, match=told) as raised:
        await looked_at.settle()
    assert raised.type is error


class ShortPauses(HeldUp):
    """Of the time between two looks next to nothing is pauses: the machine is slow with what lies between these."""

    async def pause(self, seconds: float) -> float:
        await super().pause(seconds)
        return 0.0


async def test_what_begins_itself_anew_is_not_called_messages_however_slow_the_machine_is() -> None:
    looks = 0

    def progress() -> int:
        nonlocal looks
        looks += 1
        assert looks < 5_000, "it is never given up"
        return looks

    def waits() -> list[RealWait]:  # it is seen later than the handler which has begun it
        return [RealWait("a timer", "service.py:1", of=object(), root="a call" if looks > 9 else None)]

    looked_at = Pace(VirtualClock(0), ShortPauses(), waits, progress, lambda: ["a ball"], 0.005)
    with pytest.raises(UnendingError, match=r"a timer waits at service\.py:1"):
        await looked_at.settle()


class OneTurnALook(HeldUp):
    """The machine is so slow that the loop makes one turn between two looks."""

    async def until_idle(self, turns: int, seconds: float = inf) -> int:
        return await super().until_idle(1, seconds)


TURNS_OF_A_SEND = 25  # or less; between them nothing is seen of it


@pytest.mark.parametrize(("sends", "error"), [(0, StuckError), (9, StuckError), (inf, EndlessError)])
async def test_what_takes_some_turns_is_not_stuck_however_few_the_machine_makes(
    sends: float, error: type[StuckError]
) -> None:
    sent = list[int]()

    async def send() -> None:
        while True:
            for _ in range(TURNS_OF_A_SEND):
                await asyncio.sleep(0)
            if len(sent) < sends:
                sent.append(1)

    looked_at = Pace(VirtualClock(0), OneTurnALook(), list, lambda: len(sent), list, 0.1)
    assert await raised_beside(send(), looked_at) is error
    assert len(sent) >= min(sends, 10)


async def test_what_comes_to_its_end_in_some_turns_does_so_however_few_the_machine_makes() -> None:
    async def work() -> None:
        for _ in range(5 * TURNS_OF_A_SEND):
            await asyncio.sleep(0)

    working = asyncio.create_task(work())
    await Pace(VirtualClock(0), OneTurnALook(), list, int, list, 0.1).settle()
    assert working.done()
    await working


async def test_what_is_over_after_some_looks_is_waited_for_however_slow_the_machine_is() -> None:
    """A request to another service, say, whose answer comes in parts."""
    left = [[RealWait("handler asks", "service.py:1 in asks")]] * 18
    await Pace(VirtualClock(0), HeldUp(), lambda: left.pop() if left else [], int, list, 0.1).settle()
    assert not left


HEARTBEAT = """
@app.background_task
async def heartbeat(template: RocketMQTemplate) -> None:
    while True:
        await asyncio.sleep(0.01)
        await template.send("beats", 1)
"""


async def test_a_handler_that_hangs_is_named_beside_work_that_goes_on(service: ServiceMaker) -> None:
    shop = service(HEAD + HEARTBEAT + HANDLER % "asyncio.Event().wait()", SETTINGS)
    with anyio.fail_after(240):
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
        with anyio.fail_after(240), pytest.raises(AssertionError, match="the test's own"):
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

HANDLER_THAT = """
@rocketmq_listener(topic="orders", consumer_group="orders")
async def stays(item: str) -> None:
    %s
"""
TASK_THAT = "@app.background_task\nasync def stays() -> None:\n    %s"
HOOK_THAT = "@app.on_shutdown\nasync def stays() -> None:\n    %s"
GENERATOR = """
async def swallowing():
    await swallow()
    yield
"""

STUBBORN = {
    "background task": TASK_THAT % "await swallow()",
    "background task, gathered": TASK_THAT % "await asyncio.gather(swallow())",
    "background task, in a group": TASK_THAT % "async with asyncio.TaskGroup() as group: group.create_task(swallow())",
    "hook": HOOK_THAT % "await swallow()",
    "hook, gathered": HOOK_THAT % "await asyncio.gather(swallow())",
    "handler": HANDLER_THAT % "await swallow()",
    "handler, gathered": HANDLER_THAT % "await asyncio.gather(swallow(), swallow())",
    "handler, shielded": HANDLER_THAT % "await asyncio.shield(swallow())",
    "handler, in a group": HANDLER_THAT % "async with asyncio.TaskGroup() as group: group.create_task(swallow())",
    "handler, in anyio's": HANDLER_THAT % "async with anyio.create_task_group() as group: group.start_soon(swallow)",
    "handler, in a generator": GENERATOR + HANDLER_THAT % "async for _ in swallowing(): pass",
    "handler, in a step of a generator": GENERATOR
    + HANDLER_THAT % "await asyncio.create_task(swallowing().__anext__())",
    "handler, in a shield of anyio's": HANDLER_THAT % "with anyio.CancelScope(shield=True): await swallow()",
    "handler, left": HANDLER_THAT % "stays.task = asyncio.create_task(swallow())",
}


async def begin(harness: Harness, shop: ModuleType, who: str, error: Exception | None = None) -> None:
    await harness.send("orders", "cup")
    if "hook" not in who:
        await shop.begun.wait()
    if error is not None:
        raise error


A_TASK_OF_PYTHONS = "asyncio.gather(asyncio.sleep(0.005))"


@pytest.mark.parametrize(
    ("who", "awaits"),
    [
        *((who, "asyncio.sleep(0.005)") for who in STUBBORN),
        *((who, A_TASK_OF_PYTHONS) for who in ("handler", "handler, left", "hook", "background task")),
    ],
)
@pytest.mark.usefixtures("short_end")
async def test_who_swallows_cancellations_at_the_end_is_named_and_the_service_ends(
    service: ServiceMaker, who: str, awaits: str
) -> None:
    """The loop hears of nothing that is wrong: where anyio's plugin runs the tests, it would be their error."""
    shop = service(HEAD + SWALLOWS.replace("asyncio.sleep(0.005)", awaits) % STUBBORN[who], SETTINGS)
    before = asyncio.all_tasks()
    by = "(a hook or bean of shop|shop in the background: background task stays .*|(handler|task .*, which .*) .*)"
    with anyio.fail_after(240), pytest.raises(HarnessError, match=rf"ended by force: {by} at .* in swallow\.") as told:
        async with Harness(shop.app, patience=0.05) as harness:
            await begin(harness, shop, who)
    assert "None" not in str(told.value)
    assert "catches whatever" not in str(told.value)
    assert told.value.__cause__ is None  # what came of the force says nothing
    assert asyncio.all_tasks() == before


TRIES_AGAIN = """
async def swallow_only() -> None:
    while True:
        begun.set()
        try:
            await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            pass

async def in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(swallow_only())

tries = 0

async def tries_again() -> None:
    global tries
    while True:
        tries += 1
        try:
            await %s
        except asyncio.CancelledError:
            pass

"""


@pytest.mark.parametrize("who", ["background task", "hook", "handler", "handler, left"])
@pytest.mark.parametrize(
    ("awaits", "most"),
    [
        ("asyncio.create_task(swallow_only())", 2),
        ("in_a_group()", 2),
        ("asyncio.gather(swallow_only())", 100_000),  # it raises the CancelledError that is swallowed
    ],
)
@pytest.mark.usefixtures("short_end")
async def test_who_tries_again_what_is_ended_by_force_is_ended_with_it(
    service: ServiceMaker, who: str, awaits: str, most: int
) -> None:
    """Both swallow their cancellation, and nothing else."""
    its = STUBBORN[who].replace("swallow()", "tries_again()")
    shop = service(HEAD + "begun = asyncio.Event()" + TRIES_AGAIN % awaits + its, SETTINGS)
    before = asyncio.all_tasks()
    named = r"ended by force: .* in (tries_again|swallow_only|in_a_group)\."
    with anyio.fail_after(240), pytest.raises(HarnessError, match=named) as told:
        async with Harness(shop.app, patience=0.05) as harness:
            await begin(harness, shop, who)
    assert "catches whatever" not in str(told.value)
    assert shop.tries <= most
    assert asyncio.all_tasks() == before


SWALLOWS_ALL = """
begun = asyncio.Event()
rounds = 0

async def swallow() -> None:
    global rounds
    begun.set()
    while True:
        rounds += 1
        try:
            await asyncio.sleep(%s)
        except:
            pass

%s
"""


@pytest.mark.parametrize(
    ("who", "pause"), [*((who, "0.005") for who in STUBBORN), ("handler", "0"), ("background task", "0")]
)
@pytest.mark.usefixtures("short_end")
async def test_who_catches_whatever_ends_it_is_named_and_never_goes_on(
    service: ServiceMaker, who: str, pause: str
) -> None:
    """And so the loop has nothing to do then, and can be closed."""
    shop = service(HEAD + SWALLOWS_ALL % (pause, STUBBORN[who]), SETTINGS)
    before = asyncio.all_tasks()
    named = r"catches whatever ends it, and .* in swallow\."
    with anyio.fail_after(240), pytest.raises(HarnessError, match=named) as told:
        async with Harness(shop.app, patience=0.05) as harness:
            await begin(harness, shop, who)
    assert "went on although it was cancelled" not in str(told.value)
    assert "ended by force, for it catches whatever ends it" in harness.log
    assert asyncio.all_tasks() == before
    rounds = shop.rounds
    async with Harness(service(HEAD, SETTINGS).app) as other:
        await other.drain()
        await other.advance("1m")
    assert shop.rounds == rounds


ITSELF = """
stubborn = True

class Pool:
    async def close(self) -> None:
        %s

%s
async def stays()%s:
    %s
"""
LOOP = """while stubborn:
        try:
            await asyncio.sleep(0.005)
        except:
            pass"""
THEMSELVES = {
    "startup hook": ("pass", "@app.on_startup", "", LOOP),
    "shutdown hook": ("pass", "@app.on_shutdown", "", LOOP),
    "background task": ("pass", "@app.background_task", "", LOOP),
    "bean that is made": ("pass", "@bean", " -> Pool", f"{LOOP}\n    return Pool()"),
    "bean that closes": (LOOP.replace("\n", "\n    "), "@bean", " -> Pool", "return Pool()"),
    "bean that yields": ("pass", "@bean", " -> AsyncIterator[Pool]", f"yield Pool()\n    {LOOP}"),
}


@pytest.mark.parametrize("who", THEMSELVES)
@pytest.mark.usefixtures("short_end")
async def test_who_catches_whatever_ends_it_keeps_nothing_of_the_service(service: ServiceMaker, who: str) -> None:
    """Not even where it is the very function that the service waits for."""
    head = "from collections.abc import AsyncIterator\nfrom rocketbox import bean\n"
    shop = service(head + HEAD + ITSELF % THEMSELVES[who], SETTINGS)
    before = asyncio.all_tasks()
    with anyio.fail_after(240), pytest.raises(Exception, match=r"nothing has gone on|catches whatever ends it") as told:
        async with Harness(shop.app, patience=0.05):
            pass
    said = "\n".join([str(told.value), *getattr(told.value, "__notes__", ())])
    assert re.search(r"it catches whatever ends it, and was ended by force: [^\n]* at \S*:\d+ in (stays|close)\.", said)
    assert asyncio.all_tasks() == before
    vars(shop)["stubborn"] = False
    async with Harness(shop.app) as harness:
        await harness.advance("1m")


BEGINS_ANEW = """
@rocketmq_listener(topic="orders", consumer_group="orders")
async def stays(item: str) -> None:
    while True:
        begun.set()
        try:
            await asyncio.create_task(swallow())
        except:
            pass
"""
POLITE_PARENT = """
given_back = []

async def parent() -> None:
    try:
        try:
            await asyncio.create_task(swallow())
        finally:
            await asyncio.sleep(0.02)
    finally:
        given_back.append("resource")

@rocketmq_listener(topic="orders", consumer_group="orders")
async def stays(item: str) -> None:
    stays.task = asyncio.create_task(parent())
"""
NESTED = """
async def nested(depth: int) -> None:
    while True:
        try:
            await (nested(depth - 1) if depth else swallow())
        except:
            pass

@rocketmq_listener(topic="orders", consumer_group="orders")
async def stays(item: str) -> None:
    await nested(7)
"""
PROTESTS = """
@rocketmq_listener(topic="orders", consumer_group="orders")
async def stays(item: str) -> None:
    while True:
        try:
            await swallow()
        except Exception:
            pass
"""


@pytest.mark.parametrize(
    "code", [BEGINS_ANEW, POLITE_PARENT, NESTED, PROTESTS], ids=["begins anew", "polite parent", "nested", "protests"]
)
@pytest.mark.usefixtures("short_end")
async def test_who_is_around_what_catches_whatever_ends_it_has_its_own_end(service: ServiceMaker, code: str) -> None:
    shop = service(HEAD + SWALLOWS_ALL % ("0.005", code), SETTINGS)
    before = asyncio.all_tasks()
    with anyio.fail_after(240), pytest.raises(HarnessError, match="catches whatever ends it"):
        async with Harness(shop.app, patience=0.05) as harness:
            await begin(harness, shop, "handler")
    assert asyncio.all_tasks() == before
    assert getattr(shop, "given_back", ["resource"]) == ["resource"]


@pytest.mark.parametrize("who", ["handler", "handler, in a generator", "background task, gathered", "hook"])
@pytest.mark.usefixtures("short_end")
def test_a_loop_of_the_harnesses_own_is_closed_although_somebody_catches_whatever_ends_it(
    service: ServiceMaker, who: str
) -> None:
    shop = service(HEAD + SWALLOWS_ALL % ("0.005", STUBBORN[who]), SETTINGS)

    def test() -> None:
        with Harness(shop.app, patience=0.05) as harness:
            harness.blocking.call(begin, harness, shop, who)

    with pytest.raises(HarnessError, match="catches whatever ends it"):
        test()


@pytest.mark.parametrize(
    "who", ["background task", "hook", "handler", "handler, in a group", "handler, in a generator"]
)
@pytest.mark.usefixtures("short_end")
async def test_the_error_of_the_test_is_told_whoever_swallows_cancellations(service: ServiceMaker, who: str) -> None:
    shop = service(HEAD + SWALLOWS % STUBBORN[who], SETTINGS)
    with anyio.fail_after(240), pytest.raises(ZeroDivisionError) as told:
        async with Harness(shop.app, patience=0.05) as harness:
            await begin(harness, shop, who, ZeroDivisionError())
    note, *_ = told.value.__notes__
    assert "the end of shop failed" in note
    assert "in swallow" in note


def test_what_a_background_task_leaves_is_ended_where_the_loop_is_the_harnesses_own(service: ServiceMaker) -> None:
    """And not where it is the test's: there it may serve what is around several tests."""
    shop = service(HEAD + SWALLOWS % (TASK_THAT % "stays.task = asyncio.create_task(swallow())"), SETTINGS)

    def test() -> None:
        with Harness(shop.app, patience=0.05) as harness:
            harness.blocking.call(shop.begun.wait)

    named = r"task .*, which a hook or a background task has started, at .* in swallow\."
    with pytest.raises(HarnessError, match=named):
        test()


SERVES_OTHERS = """
class Counter:
    def __init__(self):
        self.task, self.asked = None, asyncio.Queue()

    async def work(self):
        while True:
            (await self.asked.get()).set_result(None)

    def begin(self):
        if self.task is None:
            self.task = asyncio.create_task(self.work())

    async def ask(self):
        answer = asyncio.get_running_loop().create_future()
        self.asked.put_nowait(answer)
        await answer

counter = Counter()

@app.on_startup
async def begins() -> None:
    counter.begin()

@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(item: str) -> None:
    await counter.ask()
"""


async def test_what_a_hook_starts_may_serve_several_harnesses_of_one_loop(service: ServiceMaker) -> None:
    shop = service(HEAD + SERVES_OTHERS, SETTINGS)
    for _ in range(2):
        async with Harness(shop.app, patience=1) as harness:
            await harness.send("orders", "cup")
            await harness.drain()
            assert [call.outcome for call in harness.calls("order")] == [Outcome.CONSUMED]
    shop.counter.task.cancel()


WAITS_FOR_OTHERS = """
others = None

@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(item: str) -> None:
    while True:
        try:
            begun.set()
            await asyncio.wait([others])
        except asyncio.CancelledError:
            pass
"""


@pytest.mark.usefixtures("short_end")
async def test_tasks_of_others_are_left_alone_whoever_waits_for_them(service: ServiceMaker) -> None:
    shop = service(HEAD + SWALLOWS % WAITS_FOR_OTHERS, SETTINGS)
    go = asyncio.Event()
    vars(shop)["others"] = asyncio.create_task(go.wait())
    with anyio.fail_after(240), pytest.raises(HarnessError, match=r"ended by force: handler order .* in order\."):
        async with Harness(shop.app, patience=0.05) as harness:
            await begin(harness, shop, "handler")
    go.set()
    assert await shop.others


LEAVES_A_REPORT = """
begun, reports = asyncio.Event(), []

async def report() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        reports.append("ended")

async def work() -> None:
    begun.set()
    await asyncio.Event().wait()

@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(item: str) -> None:
    order.task = asyncio.create_task(work())
    order.task.add_done_callback(lambda task: reports.append(asyncio.create_task(report())))
"""


async def test_what_begins_when_a_task_is_ended_is_ended_as_well(service: ServiceMaker) -> None:
    shop = service(HEAD + LEAVES_A_REPORT, SETTINGS)
    before = asyncio.all_tasks()
    async with Harness(shop.app) as harness:
        await begin(harness, shop, "handler")
    assert asyncio.all_tasks() == before
    assert shop.reports[1:] in ([], ["ended"])  # it may not have begun


BEGINS_ANOTHER = """
ends, tasks = [], []

async def audit() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        ends.append("cancelled")
        raise
    finally:
        ends.append("ended")

async def work() -> None:
    try:
        begun.set()
        await asyncio.Event().wait()
    finally:
        tasks.append(asyncio.create_task(audit()))
        await asyncio.sleep(0)

@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(item: str) -> None:
    tasks.append(asyncio.create_task(work()))
"""


async def test_what_begins_at_the_end_is_cancelled_in_its_turn(service: ServiceMaker) -> None:
    shop = service(HEAD + SWALLOWS % BEGINS_ANOTHER, SETTINGS)
    before = asyncio.all_tasks()
    async with Harness(shop.app) as harness:
        await begin(harness, shop, "handler")
    assert "force" not in harness.log
    assert shop.ends == ["cancelled", "ended"]
    assert asyncio.all_tasks() == before


BEGINS_ANOTHER_BY_FORCE = """
tasks = []

async def audit() -> None:
    await asyncio.Event().wait()

async def work() -> None:
    try:
        await swallow()
    finally:
        tasks.append(asyncio.create_task(audit()))

@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(item: str) -> None:
    tasks.append(asyncio.create_task(work()))
"""


@pytest.mark.usefixtures("short_end")
async def test_what_begins_when_another_is_ended_by_force_is_ended_as_well(service: ServiceMaker) -> None:
    shop = service(HEAD + SWALLOWS % BEGINS_ANOTHER_BY_FORCE, SETTINGS)
    before = asyncio.all_tasks()
    with pytest.raises(HarnessError, match=r"ended by force: task .*, which handler order .* in swallow"):
        async with Harness(shop.app) as harness:
            await begin(harness, shop, "handler")
    assert len(shop.tasks) == 2
    assert asyncio.all_tasks() == before


BEGINS_AGAIN = """
goes_on = True

def begin(ended=None) -> None:
    if goes_on:
        asyncio.create_task(swallow_nothing()).add_done_callback(begin)

async def swallow_nothing() -> None:
    begun.set()
    await asyncio.Event().wait()

@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(item: str) -> None:
    begin()
"""


async def test_a_task_that_is_begun_again_and_again_is_named(service: ServiceMaker) -> None:
    shop = service(HEAD + SWALLOWS % BEGINS_AGAIN, SETTINGS)
    before = asyncio.all_tasks()
    with pytest.raises(HarnessError, match=r"task .*, which handler order .* has started, goes on although"):
        async with Harness(shop.app) as harness:
            await begin(harness, shop, "handler")
    vars(shop)["goes_on"] = False
    for task in asyncio.all_tasks() - before:
        task.cancel()
        await asyncio.wait([task])


CLOSE_FAILS = """
from collections.abc import AsyncIterator
from rocketbox import bean

class Till: ...

@bean
async def till() -> AsyncIterator[Till]:
    yield Till()
    raise ValueError("the till is closed already")
"""


CLOSE_AND_HOOK_FAIL = (
    CLOSE_FAILS
    + """
@app.on_shutdown
async def says_bye() -> None:
    raise ValueError("nobody hears it")
"""
)


async def test_the_error_of_the_test_is_told_when_the_stop_fails(service: ServiceMaker) -> None:
    shop = service(HEAD + CLOSE_AND_HOOK_FAIL, SETTINGS)
    with pytest.raises(ZeroDivisionError) as told:
        async with Harness(shop.app):
            raise ZeroDivisionError
    assert told.value.__notes__ == [
        "And the end of shop failed: ValueError: the till is closed already",
        "And the end of shop failed: ValueError: nobody hears it",
    ]


@dataclass(frozen=True)
class FrozenError(Exception):
    number: int


async def test_the_error_of_the_test_is_told_also_where_it_takes_no_notes(service: ServiceMaker) -> None:
    shop = service(HEAD + CLOSE_FAILS, SETTINGS)
    with pytest.raises(FrozenError):
        async with Harness(shop.app):
            raise FrozenError(1)


HANGS_AT_THE_END = """
seen = []

@app.on_shutdown
async def closes() -> None:
    await asyncio.%s
    seen.append("closed")
"""


@pytest.mark.parametrize("wait", ["Event().wait()", "sleep(30)"])
async def test_a_hook_that_outlasts_the_patience_at_the_end_is_named(service: ServiceMaker, wait: str) -> None:
    shop = service(HEAD + HANGS_AT_THE_END % wait, SETTINGS)
    with pytest.raises(StuckError, match=r"a hook or bean of shop waits at .* in closes"):
        async with Harness(shop.app, patience=0.2):
            pass
    assert shop.seen == []


LEAVES_A_THREAD = """
release, begun = threading.Event(), threading.Event()

def stays() -> None:
    begun.set()
    release.wait()

@rocketmq_listener(topic="orders", consumer_group="orders")
%s
"""
LEFT_THREADS = {
    "to_thread": "async def order(item: str) -> None:\n    await asyncio.to_thread(stays)",
    "thread": "async def order(item: str) -> None:\n    threading.Thread(target=stays).start()",
    "anyio": "async def order(item: str) -> None:\n    await anyio.to_thread.run_sync(stays)",
    "pool": "async def order(item: str) -> None:\n    ThreadPoolExecutor(1).submit(stays)",
}
FOR_POOLS = "from concurrent.futures import ThreadPoolExecutor\n"


@pytest.mark.parametrize("way", LEFT_THREADS)
def test_a_thread_that_keeps_the_loop_or_the_process_from_ending_is_named(service: ServiceMaker, way: str) -> None:
    shop = service(HEAD + FOR_POOLS + LEAVES_A_THREAD % LEFT_THREADS[way], SETTINGS)
    assert re.search(r"a thread that handler order .* has started waits at .* in stays", str(stuck_at_the_end_of(shop)))


LEFT_TO_THEIR_THREADS = """
release, begun = threading.Event(), threading.Event()

@rocketmq_listener(topic="orders", consumer_group="orders")
def order(item: str) -> None:
    begun.set()
    release.wait()
"""


def test_a_def_handler_is_left_to_its_thread_at_the_end(service: ServiceMaker) -> None:
    shop = service(HEAD + LEFT_TO_THEIR_THREADS, SETTINGS)
    try:
        with Harness(shop.app, patience=0.2) as harness:
            harness.blocking.send("orders", "cup")
            shop.begun.wait(60)
    finally:
        shop.release.set()


SWALLOWS_AND_LEAVES_A_THREAD = (
    HANDLER_THAT
    % """threading.Thread(target=release.wait, name="left").start()
    await swallow()

release = threading.Event()
"""
)


@pytest.mark.usefixtures("short_end")
async def test_a_thread_is_named_beside_what_was_ended_by_force(service: ServiceMaker) -> None:
    shop = service(HEAD + SWALLOWS % SWALLOWS_AND_LEAVES_A_THREAD, SETTINGS)
    try:
        with pytest.raises(HarnessError, match=r"ended by force: handler stays .* in swallow") as told:
            async with Harness(shop.app, patience=0.05) as harness:
                await begin(harness, shop, "handler")
        assert "a thread that handler stays" in "".join(told.value.__notes__)
        assert "at the end: nothing has gone on" in harness.log
    finally:
        shop.release.set()


async def test_the_harness_ends_in_a_loop_whose_time_is_frozen(
    service: ServiceMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = service(HEAD + LEAVES_A_THREAD % LEFT_THREADS["to_thread"], SETTINGS)

    async def test(frozen: pytest.MonkeyPatch) -> None:
        async with Harness(shop.app, patience=0.2) as harness:
            await harness.send("orders", "cup")
            await asyncio.to_thread(shop.begun.wait)
            frozen.setattr(time, "monotonic", lambda: 5.0)  # as freezegun does
            threading.Timer(0.3, shop.release.set).start()
            await harness.drain()

    with monkeypatch.context() as frozen, pytest.raises(FrozenTimeError):
        await test(frozen)


SENDS_AT_THE_END = """
@app.on_shutdown
async def sends(template: RocketMQTemplate) -> None:
    while True:
        await template.send("noise", 1)
"""


async def test_a_hook_that_sends_without_end_is_named_as_that(
    service: ServiceMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "ENDLESS", 2)
    shop = service(HEAD + SENDS_AT_THE_END, SETTINGS)
    with pytest.raises(EndlessError, match=r"without end: .* sent to noise  1; "):
        async with Harness(shop.app, patience=0.25):
            pass


CLEANS_UP_SLOWLY = """
cleaned = []

@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(item: str) -> None:
    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            time.sleep(1.3)
            await asyncio.sleep(0.01)
            cleaned.append(item)
    order.task = asyncio.create_task(work())
"""


async def test_time_in_which_nobody_could_look_does_not_count_for_who_cleans_up(service: ServiceMaker) -> None:
    shop = service(HEAD + SWALLOWS % CLEANS_UP_SLOWLY, SETTINGS)
    async with Harness(shop.app) as harness:
        await begin(harness, shop, "handler")
    assert shop.cleaned == ["cup"]


BLOCKS_THE_LOOP = """
@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(item: str) -> None:
    await asyncio.sleep(0.01)
    time.sleep(0.8)
    await asyncio.sleep(0.01)
"""


async def test_time_in_which_nobody_could_look_does_not_count(service: ServiceMaker) -> None:
    """As when a debugger has stopped the process."""
    shop = service(HEAD + BLOCKS_THE_LOOP, SETTINGS)
    async with Harness(shop.app, patience=0.4) as harness:
        await harness.send("orders", "cup")
        await harness.drain()
        assert [call.outcome for call in harness.calls("order")] == [Outcome.CONSUMED]


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
    await asyncio.sleep(0.1)
    asked.append(item)
    return LocalTransactionState.COMMIT

@bean
def slow() -> SendMiddleware:
    async def wait(context, call_next):
        if context.messages[0].topic == "rows":
            await asyncio.sleep(0.1)
        return await call_next(context)
    return wait

@app.background_task
async def sends(template: RocketMQTemplate) -> None:
    await go.wait()
    for number in range(12):
        await template.send("rows", number)
"""


async def test_what_one_task_does_one_after_the_other_may_take_longer_than_a_single_thing(
    service: ServiceMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "ENDLESS", 1)
    shop = service(HEAD + ONE_AFTER_THE_OTHER, SETTINGS)
    async with Harness(shop.app, patience=1) as harness:
        for number in range(12):
            await harness.template.transaction("deals", str(number)).begin()
        await harness.advance("100s")
        assert len(shop.asked) == 12
        shop.go.set()
        await harness.drain()
        assert harness.sent("rows").all(int) == list(range(12))


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
    with anyio.fail_after(240), pytest.raises(StuckError, match=r"the start of shop waits for rocketbox at .* in asks"):
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
        with anyio.fail_after(240), pytest.raises(StuckError, match=named):
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
        with pytest.raises(StuckError, match=r"never waits for anything"):  # not: messages come without end
            await harness.drain()
        polls.cancel()
