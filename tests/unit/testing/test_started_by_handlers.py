"""What a handler starts and leaves to itself, real databases and web services, and a handler that will not end."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import pytest

from rocketbox.testing import Harness, HarnessError, Outcome, StuckError
from rocketbox.testing.harness import Failures
from rocketbox.testing.loop_turns import LoopTurns, RealWait, ThreadCall
from rocketbox.testing.pace import Pace
from rocketbox.testing.virtual_clock import VirtualClock
from tests.support.framework.services import ServiceMaker
from tests.support.loops import ASYNCIO_LOOPS

pytestmark = pytest.mark.anyio

SOURCE = """
import asyncio, contextlib, functools, sched, sqlite3, threading, time
from concurrent.futures import ThreadPoolExecutor
import httpx
from rocketbox import RocketBox, RocketMQTemplate, rocketmq_listener

app = RocketBox("starts", scan=[__name__])
seen, release = [], threading.Event()
virtual = None  # what time it is
url = database = None

def note(text):
    seen.append((text, virtual()))

def work(text):
    time.sleep(0.05)
    note(text)

class Worker(threading.Thread):
    def run(self):
        work("a class of threads")

def start(function, *args):
    threading.Thread(target=function, args=args).start()

async def sleep(text):
    await asyncio.sleep(0.05)
    note(text)

def from_a_thread(call):
    loop = asyncio.get_running_loop()
    start(lambda: call(loop))

def in_a_thread(function, *args):
    asyncio.get_running_loop().run_in_executor(None, function, *args)

def scheduled(text):
    calls = sched.scheduler()
    calls.enter(0.05, 1, note, (text,))
    return calls

pool = ThreadPoolExecutor(2)

ways = {
    "a thread": lambda: start(work, "a thread"),
    "a thread that is no daemon": lambda: threading.Thread(
        target=work, args=("a thread that is no daemon",), daemon=False
    ).start(),
    "a thread of a partial": lambda: start(functools.partial(work, "a thread of a partial")),
    "a thread of a thread": lambda: start(start, work, "a thread of a thread"),
    "a class of threads": lambda: Worker().start(),
    "a timer thread": lambda: threading.Timer(0.02, work, ("a timer thread",)).start(),
    "a pool": lambda: pool.submit(work, text="a pool"),
    "a function of Python's in a pool": lambda: pool.submit(scheduled("a function of Python's in a pool").run),
    "one that a pool maps": lambda: pool.map(sched.scheduler.run, [scheduled("one that a pool maps")]),
    "one in a thread": lambda: start(scheduled("one in a thread").run),
    "a thread of a pool": lambda: pool.submit(start, work, "a thread of a pool"),
    "a pool of a pool": lambda: pool.submit(pool.submit, work, "a pool of a pool"),
    "what is called when one of a pool has ended": lambda: pool.submit(time.sleep, 0.02).add_done_callback(
        lambda future: work("what is called when one of a pool has ended")
    ),
    "call in a thread that starts one": lambda: in_a_thread(start, work, "call in a thread that starts one"),
    "call in a thread that calls a coroutine": lambda: in_a_thread(
        asyncio.run_coroutine_threadsafe,
        sleep("call in a thread that calls a coroutine"),
        asyncio.get_running_loop(),
    ),
    "call_later of a thread": lambda: from_a_thread(
        lambda loop: loop.call_soon_threadsafe(loop.call_later, 0.05, note, "call_later of a thread")
    ),
    "call of a coroutine by a thread": lambda: from_a_thread(
        lambda loop: asyncio.run_coroutine_threadsafe(sleep("call of a coroutine by a thread"), loop)
    ),
    "call_later": lambda: asyncio.get_running_loop().call_later(0.05, note, "call_later"),
    "call_at": lambda: asyncio.get_running_loop().call_at(asyncio.get_running_loop().time() + 0.05, note, "call_at"),
}

@rocketmq_listener(topic="starts", consumer_group="starts")
async def starts(way: str) -> None:
    ways[way]()

@rocketmq_listener(topic="blocks", consumer_group="blocks")
def blocks(way: str) -> None:
    ways[way]()

@rocketmq_listener(topic="leaves-a-send", consumer_group="leaves-a-send")
async def leaves_a_send(text: str, template: RocketMQTemplate) -> None:
    async def send():
        await asyncio.sleep(0.05)
        try:
            await template.send("nowhere", text, timeout="3s")
        except Exception as error:
            note(type(error).__name__)
    sending.add(asyncio.create_task(send()))

sending = set()

@rocketmq_listener(topic="leaves", consumer_group="leaves")
async def leaves(text: str) -> None:
    asyncio.get_running_loop().call_later(3600, note, "never").cancel()
    with contextlib.suppress(TypeError):
        asyncio.get_running_loop().call_later("soon", note, "never")
    threading.Thread(target=release.wait, daemon=True).start()
    asyncio.get_running_loop().call_later(3600, asyncio.Event().set)  # as pools of libraries do

@rocketmq_listener(topic="goes-on", consumer_group="goes-on")
async def goes_on(text: str) -> None:
    goes_on.task = asyncio.create_task(asyncio.Event().wait())
    goes_on.timer = asyncio.get_running_loop().call_later(3600, note, "never")

@rocketmq_listener(topic="hangs", consumer_group="hangs")
async def hangs(text: str) -> None:
    threading.Thread(target=hang).start()

def hang():
    release.wait()

@rocketmq_listener(topic="asks", consumer_group="asks")
async def asks(path: str) -> None:
    async with httpx.AsyncClient() as client:
        note((await client.get(url + path)).text)

@rocketmq_listener(topic="asks-in-a-thread", consumer_group="asks-in-a-thread")
def asks_in_a_thread(path: str) -> None:
    note(httpx.get(url + path).text)

@rocketmq_listener(topic="stores", consumer_group="stores")
async def stores(text: str) -> None:
    store(text)

@rocketmq_listener(topic="stores-in-a-thread", consumer_group="stores-in-a-thread")
def stores_in_a_thread(text: str) -> None:
    store(text)

@rocketmq_listener(topic="stores-to-thread", consumer_group="stores-to-thread")
async def stores_to_thread(text: str) -> None:
    await asyncio.to_thread(store, text)

def store(text):
    with sqlite3.connect(database) as connection:
        connection.execute("create table if not exists texts (text)")
        connection.execute("insert into texts values (?)", (text,))
        note(connection.execute("select text from texts").fetchone()[0])
    connection.close()

@rocketmq_listener(topic="swallows", consumer_group="swallows")
async def swallows(text: str) -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
"""
SETTINGS = "rocketmq: {name-server: ns1.example:9876, producer: {group: starts}}"


@pytest.fixture
def starts(service: ServiceMaker) -> ModuleType:
    return service(SOURCE, SETTINGS)


def harness_of(starts: ModuleType, *topics: str, patience: float = 10) -> Harness:
    groups = re.findall('consumer_group="(.*?)"', SOURCE)
    off = {f"rocketmq.consumer.listeners.{group}.enabled": group in topics for group in groups}
    harness = Harness(starts.app, settings=off, patience=patience)
    vars(starts)["virtual"] = lambda: harness.now
    return harness


@pytest.mark.parametrize("anyio_backend", ASYNCIO_LOOPS)
async def test_threads_and_timers_of_a_handler_are_waited_for_while_time_stands_still(starts: ModuleType) -> None:
    originals = threading.Thread.start, threading.Thread.__init__, ThreadPoolExecutor.submit
    async with harness_of(starts, "starts", "blocks") as harness:
        before = harness.now
        for way in starts.ways:
            await harness.send("starts", way)
            await harness.drain()
        threads = [way for way in starts.ways if not way.startswith("call")]  # the others need the loop at hand
        for way in threads:
            await harness.send("blocks", way)
            await harness.drain()
        assert starts.seen == [(way, before) for way in (*starts.ways, *threads)]
        starts.seen.clear()
        await harness.send("starts", "a thread", delay="1m")
        await harness.advance("5m")
        assert [(text, round((at - before).total_seconds())) for text, at in starts.seen] == [("a thread", 60)]
    assert (threading.Thread.start, threading.Thread.__init__, ThreadPoolExecutor.submit) == originals


@pytest.mark.parametrize("way", ["a thread", "a thread of a thread", "a thread of a pool"])
async def test_a_thread_that_is_just_beginning_is_waited_for(
    starts: ModuleType, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Python knows its number before it says that the thread lives."""
    tell_number = threading.Thread._set_native_id  # type: ignore[attr-defined]

    def begin_slowly(thread: threading.Thread) -> None:
        time.sleep(0.05)
        tell_number(thread)

    monkeypatch.setattr(threading.Thread, "_set_native_id", begin_slowly)
    async with harness_of(starts, "blocks") as harness:
        await harness.send("blocks", way)
        await harness.drain()
        assert starts.seen == [(way, harness.now)]


GIVES_UP = """
import asyncio, threading, time
import anyio
from rocketbox import RocketBox, rocketmq_listener

app = RocketBox("gives-up", scan=[__name__])
seen = []

@rocketmq_listener(topic="works", consumer_group="works")
async def begin(text: str) -> None:
    loop, given_up = asyncio.get_running_loop(), threading.Event()
    with anyio.CancelScope() as scope:
        def work():
            loop.call_soon_threadsafe(scope.cancel)  # what has not begun is never begun
            given_up.wait()
            time.sleep(0.1)
            seen.append("done")
        await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
    seen.append("gave up")
    given_up.set()
"""


async def test_a_thread_of_anyios_that_was_given_up_is_waited_for(service: ServiceMaker) -> None:
    gives_up = service(GIVES_UP, SETTINGS)
    async with Harness(gives_up.app) as harness:
        await harness.send("works", "now")
        await harness.drain()
        assert gives_up.seen == ["gave up", "done"]


def test_a_call_that_is_given_up_before_its_thread_begins_it_is_never_begun() -> None:
    called: list[str] = []
    begun, given_up = ThreadCall(called.append), ThreadCall(called.append)
    for call in (begun, given_up):
        call.future = Future()
        assert call.goes_on
    begun("begun")
    for call in (begun, given_up):
        assert call.future is not None
        call.future.cancel()
        assert not call.goes_on
    given_up("given up")  # its thread had seen no cancellation
    assert called == ["begun"]


async def test_what_others_put_around_threads_and_timers_stays_theirs(
    starts: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service may begin to watch its threads when it starts, as those do that send errors elsewhere."""
    loop, begun, timers = asyncio.get_running_loop(), list[str](), list[object]()

    def watch(before: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
        def start(thread: threading.Thread) -> None:
            begun.append(thread.name)
            before(thread)

        return start

    def call_later(*args: Any, **named: Any) -> asyncio.TimerHandle:
        timers.append(args)
        return type(loop).call_later(loop, *args, **named)

    monkeypatch.setattr(loop, "call_later", call_later, raising=False)
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)  # put back at the end
    for number in range(3):
        async with harness_of(starts, "starts") as harness:
            theirs = watch(threading.Thread.start)
            threading.Thread.start = theirs  # type: ignore[method-assign, assignment]
            await harness.send("starts", "a thread")
            await harness.send("starts", "call_later")
            await harness.drain()
            assert len(starts.seen) == 2 * (number + 1)
        assert threading.Thread.start is theirs
        assert loop.call_later is call_later
        begun.clear()
        thread = threading.Thread(target=list, name="later")
        thread.start()
        thread.join()
        assert begun == ["later"] * (number + 1)
    assert timers


async def test_what_a_thread_asks_of_the_loop_with_its_last_breath_is_done() -> None:
    """Looked at is the loop first, then whether a thread goes on: it may have gone on in between, and no more now."""
    turns, asked, done = LoopTurns(), list[str](), list[str]()

    def real_waits() -> list[RealWait]:
        if not asked:
            asked.append("once")
            turns.call_soon(lambda: done.append("done"))
        return []

    await Pace(VirtualClock(0), turns, real_waits, lambda: len(done), list, 5).settle()
    assert done == ["done"]


async def test_time_moves_for_the_send_of_a_task_whose_handler_has_ended(starts: ModuleType) -> None:
    async with harness_of(starts, "leaves-a-send") as harness:
        before = harness.now
        await harness.send("leaves-a-send", "one")
        while not harness.calls(starts.leaves_a_send):
            await asyncio.sleep(0)
        with harness.broker.silence():
            await harness.drain()
        ((text, at),) = starts.seen
        assert text == "SendTimeoutError"
        assert 1 <= (at - before).total_seconds() <= 10


async def test_what_may_go_on_for_ever_is_not_waited_for(starts: ModuleType) -> None:
    async with harness_of(starts, "leaves", patience=1) as harness:
        try:
            await harness.send("leaves", "one")
            await harness.advance("1m")
            assert [call.outcome for call in harness.calls(starts.leaves)] == [Outcome.CONSUMED]
        finally:
            starts.release.set()


async def test_what_a_handler_has_started_ends_with_the_harness(starts: ModuleType) -> None:
    async with harness_of(starts, "goes-on") as harness:
        await harness.send("goes-on", "one")
        while not harness.calls(starts.goes_on):
            await asyncio.sleep(0)
    assert starts.goes_on.task.cancelled()
    assert starts.goes_on.timer.cancelled()


async def test_a_thread_that_hangs_is_named_with_its_line(starts: ModuleType) -> None:
    async with harness_of(starts, "hangs", patience=0.2) as harness:
        await harness.send("hangs", "one")
        try:
            told = r"a thread that handler hangs \(.*\) has started waits at .*\.py:\d+ in hang\b"
            with pytest.raises(StuckError, match=told):
                await harness.drain()
        finally:
            starts.release.set()


@pytest.fixture
async def web_service() -> AsyncIterator[str]:
    """A real one on a port of this machine, which takes its time; the harness has nothing to do with it."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.02)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\nanswered")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield "http://{}:{}/".format(*server.sockets[0].getsockname())


@pytest.mark.parametrize(
    ("topic", "seen"),
    [
        ("asks", "answered"),
        ("asks-in-a-thread", "answered"),
        ("stores", "one"),
        ("stores-in-a-thread", "one"),
        ("stores-to-thread", "one"),
    ],
)
async def test_a_web_service_and_a_database_are_real_and_waited_for(
    topic: str, seen: str, starts: ModuleType, web_service: str, tmp_path: object
) -> None:
    vars(starts).update(url=web_service, database=f"{tmp_path}/texts.db")
    async with harness_of(starts, topic) as harness:
        before = harness.now
        await harness.send(topic, "one")
        await harness.drain()
        assert starts.seen == [(seen, before)]
        await harness.send(topic, "two", delay="1m")
        await harness.consumed(topic, 2)
        assert len(starts.seen) == 2


async def test_a_handler_that_swallows_its_cancellation_is_ended_and_named(starts: ModuleType) -> None:
    async def test() -> None:
        async with harness_of(starts, "swallows") as harness:
            harnesses.append(harness)
            await harness.send("swallows", "one", keys="s1")
            while not harness.calls(starts.swallows):
                await asyncio.sleep(0)

    harnesses = list[Harness]()
    told = r"ended by force: handler swallows \(.*\), for keys s1, at .*\.py:\d+ in swallows\. In production it would"
    with pytest.raises(HarnessError, match=told):
        await test()
    assert "ended by force, for it went on although it was cancelled: handler swallows" in harnesses[0].log
    async with harness_of(starts, "starts") as harness:  # nothing of it is left
        await harness.send("starts", "call_later")
        await harness.drain()
        assert len(starts.seen) == 1


SCHEDULES = """
import asyncio, threading, time
from rocketbox import RocketBox, RocketMQTemplate, rocketmq_listener

app = RocketBox("schedules", scan=[__name__])
seen = []
virtual = None  # what time it is

def work(text):
    begun = virtual()
    time.sleep(0.03)
    seen.append((text, begun == virtual()))

async def job(template):
    await asyncio.sleep(0.03)
    seen.append(("task", True))
    await template.send("done", "task")

ways = {
    "task": lambda template: asyncio.get_running_loop().create_task(job(template)),
    "thread": lambda template: threading.Thread(target=work, args=("thread",)).start(),
    "executor": lambda template: asyncio.get_running_loop().run_in_executor(None, work, "executor"),
}

@app.every("1m")
async def tick(template: RocketMQTemplate) -> None:
    way = next(iter(ways), None)
    if way is not None:
        ways.pop(way)(template)

@app.every("150s")
def tock() -> None:
    threading.Thread(target=work, args=("thread of a def",)).start()

@rocketmq_listener(topic="done", consumer_group="done")
async def done(text: str) -> None:
    seen.append(("done", True))
"""


async def test_what_a_scheduled_function_starts_is_waited_for_while_time_stands_still(service: ServiceMaker) -> None:
    shop = service(SCHEDULES, "rocketmq: {name-server: embedded, producer: {group: shop}}")
    async with Harness(shop.app) as harness:
        vars(shop)["virtual"] = lambda: harness.now
        await harness.advance("1m")
        assert shop.seen == [("task", True), ("done", True)]
        await harness.advance("2m")
        assert shop.seen[2:] == [("thread", True), ("thread of a def", True), ("executor", True)]


FACTORY = """
import asyncio
from rocketbox import RocketBox, rocketmq_listener

app = RocketBox("factory", scan=[__name__])
seen, made = [], []

def make(loop, work, **options):
    made.append(work)
    return asyncio.Task(work, loop=loop, **options)

@app.on_startup
async def begin() -> None:
    asyncio.get_running_loop().set_task_factory(make)

@rocketmq_listener(topic="orders", consumer_group="orders")
async def order(text: str) -> None:
    async def later():
        await asyncio.sleep(0.03)
        seen.append(text)
    order.task = asyncio.create_task(later())
"""


@pytest.mark.parametrize("anyio_backend", ASYNCIO_LOOPS)
async def test_tasks_of_a_factory_that_the_service_sets_are_waited_for_and_it_stays(service: ServiceMaker) -> None:
    shop = service(FACTORY, "rocketmq: {name-server: embedded, producer: {group: shop}}")
    loop = asyncio.get_running_loop()
    try:
        async with Harness(shop.app) as harness:
            await harness.send("orders", "cup")
            await harness.drain()
            assert shop.seen == ["cup"]
            assert shop.made
        assert loop.get_task_factory() is shop.make
    finally:
        loop.set_task_factory(None)


CHAINED = """
@app.on_startup
async def begin() -> None:
    loop = asyncio.get_running_loop()
    former = begin.former = loop.get_task_factory()
    def factory(loop, work, **options):
        made.append(work)
        return former(loop, work, **options) if former else asyncio.Task(work, loop=loop, **options)
    loop.set_task_factory(factory)

@app.on_shutdown
async def end() -> None:
    asyncio.get_running_loop().set_task_factory(begin.former)

@rocketmq_listener(topic="questions", consumer_group="answers")
async def answer(text: str) -> str:
    return "yes"

@rocketmq_listener(topic="asks", consumer_group="asks")
async def ask(text: str, template: RocketMQTemplate) -> None:
    seen.append(await template.send_and_receive("questions", text, str))
"""


@pytest.mark.parametrize("anyio_backend", ASYNCIO_LOOPS[:2])  # anyio itself knows no factory around an eager one
async def test_a_factory_may_call_the_former_one_and_nothing_of_the_harness_stays(service: ServiceMaker) -> None:
    source = FACTORY.replace("import RocketBox,", "import RocketBox, RocketMQTemplate,")
    source = source[: source.index("@app.on_startup")] + CHAINED
    shop = service(source, "rocketmq: {name-server: embedded, producer: {group: shop}}")
    loop = asyncio.get_running_loop()
    former = loop.get_task_factory()
    for _ in range(2):
        async with Harness(shop.app) as harness:
            await harness.send("asks", "?")
            await harness.drain()
    assert shop.seen == ["yes", "yes"]
    assert loop.get_task_factory() is former


LOSES_ERRORS = """
import asyncio
import threading
from rocketbox import RocketBox, rocketmq_listener

app = RocketBox("loses", scan=[__name__])
begun, ended = threading.Event(), threading.Event()

def fail():
    raise ValueError("nobody hears")

async def fail_in_a_task():
    await asyncio.sleep(0)
    fail()

async def fail_when_it_is_cancelled():
    begun.set()
    try:
        await asyncio.Event().wait()
    finally:
        fail()

@rocketmq_listener(topic="tasks", consumer_group="tasks")
async def leave_a_task(text: str) -> None:
    asyncio.create_task(fail_in_a_task(), name="lost")

async def fail_as_one_that_refers_to_itself():
    myself = asyncio.current_task()
    fail()

@rocketmq_listener(topic="cycles", consumer_group="cycles")
async def leave_a_cycle(text: str) -> None:
    asyncio.create_task(fail_as_one_that_refers_to_itself(), name="lost")

@rocketmq_listener(topic="threads", consumer_group="threads")
async def leave_a_thread(text: str) -> None:
    loop = asyncio.get_running_loop()

    def call_back():
        ended.wait()
        loop.call_soon_threadsafe(fail)

    threading.Thread(target=call_back).start()

@rocketmq_listener(topic="timers", consumer_group="timers")
async def set_a_timer(text: str) -> None:
    asyncio.get_running_loop().call_later(0.001, fail)

@rocketmq_listener(topic="hangs", consumer_group="hangs")
async def leave_one_that_hangs(text: str) -> None:
    asyncio.create_task(fail_when_it_is_cancelled())
"""


@pytest.fixture
def loses(service: ServiceMaker) -> ModuleType:
    return service(LOSES_ERRORS, "rocketmq: {name-server: ns1:9876, producer: {group: loses}}")


LOST = [
    ("tasks", "task 'lost', which nobody has awaited,"),
    ("cycles", "task 'lost', which nobody has awaited,"),
    ("timers", "a callback of the event loop"),
]


@pytest.mark.parametrize(("topic", "what"), LOST)
def test_in_a_plain_function_drain_raises_what_nobody_hears_of_tasks_and_timers(
    loses: ModuleType, topic: str, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Harness(loses.app) as harness:
        harness.blocking.send(topic, "one")
        with pytest.raises(ValueError, match="nobody hears"):
            harness.blocking.drain()
        harness.blocking.drain()
        assert f"{what} failed (ValueError: nobody hears)" in harness.log
    assert [each.name for each in caplog.records if each.exc_info and each.exc_info[0] is ValueError] == ["asyncio"]


def test_what_fails_by_itself_while_the_end_waits_for_a_thread_is_raised(loses: ModuleType) -> None:
    def test() -> None:
        with Harness(loses.app) as harness:
            harness.blocking.send("threads", "one")
            harness.blocking.consumed("threads")
            harness.blocking.call(let_go_behind_the_service, harness)

    async def let_go_behind_the_service(harness: Harness) -> None:
        harness._host.add_done_callback(lambda host: loses.ended.set())

    with pytest.raises(ValueError, match="nobody hears"):
        test()


@pytest.mark.parametrize("failures", ["raise", "keep"])
def test_what_nobody_hears_is_raised_by_the_end_where_no_drain_has(loses: ModuleType, failures: Failures) -> None:
    def test() -> None:
        with Harness(loses.app, failures=failures) as harness:
            harness.blocking.send("tasks", "one")
            harness.blocking.consumed("tasks")
            harness.blocking.call(harness._pace.settle)

    with nullcontext() if failures == "keep" else pytest.raises(ValueError, match="nobody hears"):
        test()


def test_what_fails_as_the_end_cancels_it_is_heard_by_the_log_alone(loses: ModuleType) -> None:
    with Harness(loses.app) as harness:
        harness.blocking.send("hangs", "one")
        assert loses.begun.wait(60)
    assert "failed (ValueError: nobody hears)" in harness.log
