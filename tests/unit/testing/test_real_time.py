"""Handlers that do something in real time: the harness waits, moves no time meanwhile, and says what it waits for."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from rocketbox import RocketBox
from rocketbox.errors import RequestTimeoutError
from rocketbox.testing import Harness, Outcome, StuckError
from tests.support.framework.services import ServiceMaker
from tests.support.loops import ASYNCIO_LOOPS

pytestmark = pytest.mark.anyio

SOURCE = """
import asyncio, contextlib, sqlite3, sys, threading, time
import anyio
from rocketbox import RocketBox, RocketMQTemplate, rocketmq_listener

app = RocketBox("slow", scan=[__name__])
seen, release = [], threading.Event()
begun, goes_on = asyncio.Event(), asyncio.Event()
virtual = None  # what time it is

def note(text):
    seen.append((text, virtual()))

@rocketmq_listener(topic="sleeps", consumer_group="sleeps")
async def sleeps(text: str) -> None:
    note("begins")
    await asyncio.sleep(0.02)
    note("has slept")

@rocketmq_listener(topic="blocks", consumer_group="blocks")
def blocks(text: str) -> None:
    time.sleep(0.02)
    with contextlib.closing(sqlite3.connect(":memory:")) as store:
        note(store.execute("select 'stored'").fetchone()[0])

@rocketmq_listener(topic="offloads", consumer_group="offloads")
async def offloads(text: str) -> None:
    await anyio.to_thread.run_sync(time.sleep, 0.02)
    run = asyncio.get_running_loop().run_in_executor
    await asyncio.gather(run(None, time.sleep, 0.02), run(None, time.sleep, 0.03))
    note("offloaded")

@rocketmq_listener(topic="spawns", consumer_group="spawns")
async def spawns(text: str) -> None:
    async def later():
        await asyncio.sleep(0.02)
        note("spawned")
    spawns.task = asyncio.create_task(later())

@rocketmq_listener(topic="gathers", consumer_group="gathers")
async def gathers(text: str, template: RocketMQTemplate) -> None:
    async def both():
        await asyncio.sleep(0.01)
        await template.send("others", text)
    async with asyncio.TaskGroup() as group:
        group.create_task(both())
        group.create_task(both())
    async with anyio.create_task_group() as group:
        group.start_soon(both)
    await asyncio.gather(both(), asyncio.wait_for(both(), 5))
    note("gathered")

@rocketmq_listener(topic="sockets", consumer_group="sockets")
async def sockets(text: str) -> None:
    async def answer(reader, writer):
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"echo\\n")
        note((await reader.readline()).decode().strip())
        writer.close()
        await writer.wait_closed()

async def generates():
    await asyncio.sleep(0.02)
    yield 1

async def set_by_timer(event):
    asyncio.get_running_loop().call_later(0.02, event.set)
    await event.wait()

async def in_groups():
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(time.sleep, 0.02))
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 0.02)

async def iterates():
    async for _ in generates(): pass

def in_thread():
    return asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.02)

ways = {  # that end in code of Python's or anyio's own
    "gather": lambda: asyncio.gather(asyncio.sleep(0.02), asyncio.to_thread(time.sleep, 0.02), in_thread()),
    "gather of gathers": lambda: asyncio.gather(asyncio.gather(asyncio.sleep(0.02)), in_thread()),
    "a task": lambda: asyncio.create_task(asyncio.sleep(0.02)),
    "task groups": in_groups,
    "wait_for": lambda: asyncio.wait_for(asyncio.sleep(0.02), 5),
    "wait_for, a future": lambda: asyncio.wait_for(in_thread(), 5),
    "wait_for, too long": lambda: asyncio.gather(asyncio.wait_for(asyncio.sleep(60), 0.02), return_exceptions=True),
    "wait": lambda: asyncio.wait([asyncio.create_task(asyncio.sleep(0.02))]),
    "wait, a future": lambda: asyncio.wait([in_thread()]),
    "wait, too long": lambda: asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.02),
    "shield": lambda: asyncio.shield(asyncio.sleep(0.02)),
    "an event": lambda: set_by_timer(asyncio.Event()),
    "an event of anyio's": lambda: set_by_timer(anyio.Event()),
    "an event, wait_for": lambda: asyncio.wait_for(set_by_timer(asyncio.Event()), 5),
    "a process": lambda: anyio.run_process([sys.executable, "-c", ""]),
    "an async generator": iterates,
}

@rocketmq_listener(topic="waits", consumer_group="waits")
async def waits(way: str) -> None:
    note(way)
    await ways[way]()
    note(way)

async def stream_of_sends(template, text):
    yield await template.send("others", text)

@rocketmq_listener(topic="sends", consumer_group="sends")
async def sends(text: str, template: RocketMQTemplate) -> None:
    begun.set()
    await goes_on.wait()
    if text == "shield":
        await asyncio.shield(template.send("others", text))
    if text == "generator":
        async for _ in stream_of_sends(template, text): pass
    if text == "wait":
        ended, _ = await asyncio.wait([asyncio.create_task(template.send("others", text))])
        ended.pop().result()
    if text == "as_completed":
        for each in asyncio.as_completed([template.send("others", text), template.send("others", text)]):
            await each
    if text in ("future", "queue", "event"):
        future, queue, event = asyncio.get_running_loop().create_future(), asyncio.Queue(), asyncio.Event()
        async def send():
            try:
                await template.send("others", text)
            finally:
                future.set_result(None)
                queue.put_nowait(None)
                event.set()
        task = asyncio.create_task(send())
        await {"future": lambda: future, "queue": queue.get, "event": event.wait}[text]()
        await task

@rocketmq_listener(topic="leaves", consumer_group="leaves")
async def leaves(text: str) -> None:
    leaves.task = asyncio.create_task(asyncio.sleep(0.02))

@rocketmq_listener(topic="gives-up", consumer_group="gives-up")
async def gives_up(text: str, template: RocketMQTemplate) -> None:
    loop = asyncio.get_running_loop()

    def work():
        time.sleep(0.05)
        asyncio.run_coroutine_threadsafe(template.send("others", text), loop).result()

    try:
        await asyncio.wait_for(asyncio.to_thread(work), 0.01)
    except TimeoutError:
        note("gave up")

@rocketmq_listener(topic="hangs", consumer_group="hangs")
async def hangs(text: str) -> None:
    await asyncio.get_running_loop().create_future()  # for ever

@rocketmq_listener(topic="hangs-in-gather", consumer_group="hangs-in-gather")
async def hangs_in_gather(text: str) -> None:
    await asyncio.gather(asyncio.sleep(600), asyncio.sleep(600))

@rocketmq_listener(topic="hangs-in-thread", consumer_group="hangs-in-thread")
def hangs_in_thread(text: str) -> None:
    release.wait()

@rocketmq_listener(topic="polls", consumer_group="polls")
async def polls(text: str) -> None:
    done = asyncio.get_running_loop().run_in_executor(None, release.wait)
    while not done.done():
        await asyncio.sleep(0)
    note("polled")

@rocketmq_listener(topic="others", consumer_group="others")
async def other(text: str) -> None: ...
"""

CLOSES = """
import asyncio
from rocketbox import RocketBox, rocketmq_listener

app = RocketBox("closes", scan=[__name__])
closed = []

@rocketmq_listener(topic="hangs", consumer_group="hangs")
async def hangs(text: str) -> None:
    await asyncio.Event().wait()

@app.on_shutdown
async def close() -> None:
    await asyncio.sleep(1.1)  # more than hanging handlers are waited for at the end
    closed.append("closed")
"""

SETTINGS = """
rocketmq:
  name-server: ns1.example:9876
  producer: {group: slow}
"""


@pytest.fixture
def slow(service: ServiceMaker) -> ModuleType:
    return service(SOURCE, SETTINGS)


@pytest.fixture
def harness_of(slow: ModuleType) -> Callable[..., Harness]:
    def make(*topics: str, **options: Any) -> Harness:
        groups = re.findall('consumer_group="(.*?)"', SOURCE)
        off = {f"rocketmq.consumer.listeners.{group}.enabled": group in topics for group in groups}
        harness = Harness(slow.app, settings=off, **options)
        vars(slow)["virtual"] = lambda: harness.now
        return harness

    return make


@pytest.mark.parametrize("anyio_backend", ASYNCIO_LOOPS)
@pytest.mark.parametrize(
    ("topic", "seen"),
    [
        ("sleeps", ["begins", "has slept"]),
        ("blocks", ["stored"]),
        ("offloads", ["offloaded"]),
        ("spawns", ["spawned"]),
        ("gathers", ["gathered"]),
        ("sockets", ["echo"]),
    ],
)
async def test_what_goes_on_in_real_time_is_waited_for_while_time_stands_still(
    topic: str, seen: list[str], slow: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of(topic, "others") as harness:
        before = harness.now
        await harness.send(topic, "one")
        await harness.drain()
        assert slow.seen == [(text, before) for text in seen]
        slow.seen.clear()
        await harness.send(topic, "two", delay="1m")
        await harness.advance("2m")
        assert [text for text, _ in slow.seen] == seen
        times = {(time - before).total_seconds() for _, time in slow.seen}
        assert all(59.9 < time < 60.1 for time in times)


@pytest.mark.parametrize("anyio_backend", ASYNCIO_LOOPS)
async def test_time_stands_still_however_a_handler_waits(slow: ModuleType, harness_of: Callable[..., Harness]) -> None:
    async with harness_of("waits") as harness:
        before = harness.now
        for way in slow.ways:
            await harness.send("waits", way)
            await harness.drain()
        assert slow.seen == [(way, before) for way in slow.ways for _ in range(2)]


async def test_a_task_of_a_library_that_a_handler_leaves_behind_is_waited_for(
    slow: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of("leaves") as harness:
        await harness.send("leaves", "one")
        await harness.drain()
        assert slow.leaves.task.done()


@pytest.mark.parametrize("anyio_backend", ASYNCIO_LOOPS)
async def test_a_thread_whose_call_was_given_up_is_waited_for_and_what_it_sends_is_handled(
    slow: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of("gives-up", "others") as harness:
        before = harness.now
        await harness.send("gives-up", "one")
        await harness.drain()
        assert slow.seen == [("gave up", before)]
        assert [call.outcome for call in harness.calls(slow.other)] == [Outcome.CONSUMED]
        assert harness.now == before


@pytest.mark.parametrize("text", ["shield", "generator", "wait", "as_completed", "future", "queue", "event"])
async def test_a_handler_whose_send_is_not_answered_waits_for_virtual_time_however_it_waits(
    text: str, slow: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of("sends", patience=0.5, failures="keep") as harness:
        await harness.send("sends", text)
        await slow.begun.wait()
        harness.broker.silence()
        slow.goes_on.set()
        await harness.drain()  # its send times out
        (call,) = harness.calls(slow.sends)
        assert call.outcome is Outcome.COMES_BACK
        assert isinstance(call.error, RequestTimeoutError)


async def test_a_send_of_the_test_says_what_keeps_time_from_moving(
    slow: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of("hangs", patience=0.2) as harness:
        await harness.send("hangs", "one")
        with harness.broker.silence(), pytest.raises(StuckError, match="handler hangs"):
            await harness.send("others", "two")


async def test_who_is_cancelled_while_the_service_stops_leaves_nothing_behind(
    slow: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    loop = asyncio.get_running_loop()
    factory, inside = loop.get_task_factory(), asyncio.Event()

    async def test() -> None:
        async with harness_of("hangs") as harness:
            await harness.send("hangs", "one")
            inside.set()
            await harness.drain()

    task = asyncio.create_task(test())
    await inside.wait()
    for _ in range(3):  # the first one ends drain(), the others come while the handler that hangs is waited for
        task.cancel()
        for _ in range(50):
            await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert loop.get_task_factory() is factory
    async with harness_of("sleeps") as harness:
        await harness.send("sleeps", "two")
        await harness.drain()
    assert [text for text, _ in slow.seen] == ["begins", "has slept"]


@pytest.mark.parametrize("anyio_backend", ASYNCIO_LOOPS)
async def test_who_is_cancelled_while_the_service_starts_leaves_nothing_behind(
    harness_of: Callable[..., Harness],
) -> None:
    async def test() -> None:
        async with harness_of("sleeps"):
            raise AssertionError("it has started")

    before = asyncio.all_tasks()
    for turns in range(40):  # of the loop, in which servers begin, and then the service
        task = asyncio.create_task(test())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == before, f"after {turns} turns"


async def test_a_hook_at_the_end_has_its_real_time(service: ServiceMaker) -> None:
    module = service(CLOSES, SETTINGS)
    async with Harness(module.app, patience=5) as harness:
        await harness.send("hangs", "one")
    assert module.closed == ["closed"]


@pytest.mark.parametrize(
    ("topic", "told"),
    [
        ("hangs", r"handler hangs \(service_\d+\.py:\d+\), attempt 1, for keys h1 waits at .*\.py:\d+ in hangs"),
        ("hangs-in-gather", r"handler hangs_in_gather .* waits at .*service_\d+\.py:\d+ in hangs_in_gather"),
        ("hangs-in-thread", r"handler hangs_in_thread .* waits at a worker thread; .*\.py:\d+ in hangs_in_thread"),
    ],
)  # fmt: skip
async def test_a_handler_that_hangs_is_named_with_its_line(
    topic: str, told: str, slow: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    async with harness_of(topic, patience=0.2) as harness:
        before = harness.now
        await harness.send(topic, "one", keys="h1")
        try:
            with pytest.raises(StuckError, match=told):
                await harness.drain()
            with pytest.raises(StuckError, match=told):
                await harness.advance("1h")
            assert harness.now == before
            assert harness.calls(topic.replace("-", "_"))[0].outcome is Outcome.RUNNING
        finally:
            slow.release.set()


@pytest.mark.parametrize("anyio_backend", ASYNCIO_LOOPS)
async def test_a_handler_that_polls_in_each_turn_of_the_loop_is_waited_for_and_named(
    slow: ModuleType, harness_of: Callable[..., Harness]
) -> None:
    """The loop is never idle meanwhile. The harness ends all the same, and the next one begins."""

    async def test() -> None:
        async with harness_of("polls", patience=0.1) as harness:
            await harness.send("polls", "one", keys="p1")
            with pytest.raises(StuckError, match=r"handler polls .* for keys p1 waits at .*\.py:\d+ in polls"):
                await harness.drain()

    try:
        with pytest.raises(StuckError, match=r"a thread that handler polls .* has started"):
            await test()
        assert slow.seen == []
        async with harness_of("polls") as harness:
            await harness.send("polls", "one")
            slow.release.set()
            await harness.drain()
            assert [text for text, _ in slow.seen] == ["polled"]
    finally:
        slow.release.set()


async def test_a_start_that_hangs_is_named_with_its_line_and_ends(slow: ModuleType) -> None:
    ended = []
    app: RocketBox = slow.app

    @app.on_startup
    async def waits_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    with pytest.raises(StuckError, match=r"a hook or bean of slow waits at .*\.py:\d+ in waits_for_ever"):
        async with Harness(slow.app, patience=0.2):
            pytest.fail("it started")
    assert ended == ["cancelled"]
    async with Harness(slow.app, hooks=False) as harness:
        await harness.send("others", "one")
        await harness.drain()
        assert len(harness.calls("other")) == 1


async def test_no_time_passes_under_a_scheduled_function_that_awaits_a_thread_of_anyio(service: ServiceMaker) -> None:
    module: Any = service(
        """
import time
import anyio
from rocketbox import RocketBox

app = RocketBox("rounds", scan=[__name__])
seen, virtual = [], None

@app.every("10m")
async def round() -> None:
    begun = virtual()
    await anyio.to_thread.run_sync(time.sleep, 0.02)
    seen.append(virtual() - begun)
""",
        "",
    )
    async with Harness(module.app) as harness:
        module.virtual = lambda: harness.now
        await harness.advance("25m")
        assert len(module.seen) >= 2
        assert {passed.total_seconds() for passed in module.seen} == {0.0}


async def test_a_loop_whose_time_is_frozen_is_told_and_a_frozen_time_of_day_changes_nothing(
    slow: ModuleType, harness_of: Callable[..., Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness_of("sleeps", "hangs", patience=0.2) as harness:
        await harness.send("sleeps", "a")
        with monkeypatch.context() as frozen:
            frozen.setattr(time, "monotonic", lambda: 5.0)  # as freezegun does
            with pytest.raises(StuckError, match=r"sleeps.*real_asyncio=True"):
                await harness.drain()
        await harness.drain()
        await harness.send("hangs", "b")
        with monkeypatch.context() as frozen:
            machine = time.monotonic
            real = type("RealTime", (), {"monotonic": staticmethod(machine)})
            frozen.setattr("asyncio.base_events.time", real)  # real_asyncio=True
            frozen.setattr(time, "monotonic", lambda: 5.0)
            with pytest.raises(StuckError, match=r"nothing has gone on for 0\.2 s"):
                await harness.drain()


SHARED = """
import asyncio
import anyio
from rocketbox import RocketBox, RocketMQTemplate, rocketmq_listener

app = RocketBox("shared", scan=[__name__])
seen, release = [], asyncio.Event()
locks = {"lock": asyncio.Lock(), "semaphore": asyncio.Semaphore(1), "anyio": anyio.Lock()}

@rocketmq_listener(topic="holds", consumer_group="holds")
async def holds(kind: str) -> None:
    async with locks[kind]:
        await release.wait()

@rocketmq_listener(topic="sends", consumer_group="sends")
async def sends(kind: str, template: RocketMQTemplate) -> None:
    async with locks[kind]:
        await release.wait()
        await template.send("notes", "a note", timeout=30)
        seen.append("sent")

@rocketmq_listener(topic="waits", consumer_group="waits")
async def waits(kind: str) -> None:
    async with locks[kind]:
        seen.append("had it")

@rocketmq_listener(topic="twice", consumer_group="twice")
async def twice(kind: str) -> None:
    async with locks[kind]:
        async with locks[kind]:
            pass
"""


@pytest.mark.parametrize("kind", ["lock", "semaphore", "anyio"])
async def test_who_waits_for_a_lock_is_told_with_who_has_it(kind: str, service: ServiceMaker) -> None:
    module = service(SHARED, SETTINGS)
    async with Harness(module.app, patience=0.2) as harness:
        await harness.send("holds", kind, keys="h1")
        with pytest.raises(StuckError):
            await harness.drain()
        await harness.send("waits", kind, keys="w1")
        told = r"handler waits .* for keys w1 waits at .* in waits, for the \w+ that handler holds .* for keys h1 has"
        with pytest.raises(StuckError, match=told):
            await harness.drain()
        module.release.set()
        await harness.drain()
        assert module.seen == ["had it"]


ENTERS_IN_OTHER_WAYS = """
from contextlib import AsyncExitStack, asynccontextmanager

@asynccontextmanager
async def of_customer():
    async with locks["lock"]:
        yield

@asynccontextmanager
async def in_a_stack():
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(of_customer())
        yield

@rocketmq_listener(topic="rooms", consumer_group="rooms")
async def room(kind: str, template: RocketMQTemplate) -> None:
    seen.append(kind)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(locks[kind])
        if kind not in seen[:-1]:
            await release.wait()
            await template.send("notes", "a note", timeout=30)
        seen.append(f"{kind} had it")

@rocketmq_listener(topic="desks", consumer_group="desks")
async def desk(kind: str, template: RocketMQTemplate) -> None:
    seen.append(kind)
    async with {"generator": of_customer, "stack": in_a_stack}[kind]():
        if kind not in seen[:-1]:
            await release.wait()
            await template.send("notes", "a note", timeout=30)
        seen.append(f"{kind} had it")

@rocketmq_listener(topic="doors", consumer_group="doors")
async def door(kind: str, template: RocketMQTemplate) -> None:
    seen.append(kind)
    if kind in seen[:-1]:
        await locks[kind].acquire()
        seen.append(f"{kind} had it")
        return
    async with locks[kind]:
        await release.wait()
        await template.send("notes", "a note", timeout=30)
        seen.append(f"{kind} had it")
"""


@pytest.mark.parametrize(
    ("topic", "kind"),
    [
        *(("rooms", kind) for kind in ("lock", "semaphore", "anyio")),
        *(("desks", kind) for kind in ("generator", "stack")),
        *(("doors", kind) for kind in ("lock", "semaphore", "anyio")),
    ],
)
async def test_time_moves_for_who_sends_inside_of_a_lock_however_that_was_entered(
    topic: str, kind: str, service: ServiceMaker
) -> None:
    module = service(SHARED + ENTERS_IN_OTHER_WAYS, SETTINGS)
    async with Harness(module.app, patience=0.2) as harness:
        await harness.send(topic, kind, keys="first")
        with pytest.raises(StuckError):
            await harness.drain()
        await harness.send(topic, kind, keys="second")
        told = rf"for keys second waits at .* for the \w+ that handler {topic[:-1]} .* for keys first has entered"
        with pytest.raises(StuckError, match=told):
            await harness.drain()
        harness.broker.silence()
        module.release.set()
        began = harness.now
        await harness.advance("2s")
        assert (harness.now - began).total_seconds() == 2
        assert module.seen == [kind, kind]
        harness.broker.resume()
        await harness.drain()
        assert module.seen == [kind, kind, f"{kind} had it", f"{kind} had it"]


STREAMS = """
import anyio
from rocketbox import RocketBox, RocketMQTemplate, rocketmq_listener

app = RocketBox("streams", scan=[__name__])
seen = []

async def send_all(receive, template: RocketMQTemplate) -> None:
    async with receive:
        async for item in receive:
            await template.send("notes", item, timeout=30)
            seen.append(item)

async def fill(send) -> None:
    async with send:
        for item in ("one", "two", "three"):
            await send.send(item)

@rocketmq_listener(topic="fills", consumer_group="fills")
async def fills(item: str, template: RocketMQTemplate) -> None:
    send, receive = anyio.create_memory_object_stream[str](0)
    async with anyio.create_task_group() as group:
        group.start_soon(send_all, receive, template)
        await fill(send)

@rocketmq_listener(topic="takes", consumer_group="takes")
async def takes(item: str, template: RocketMQTemplate) -> None:
    send, receive = anyio.create_memory_object_stream[str](0)

    async def give() -> None:
        async with send:
            await template.send("notes", "a note", timeout=30)
            await send.send("given")

    async with receive, anyio.create_task_group() as group:
        group.start_soon(give)
        seen.append(await receive.receive())
"""


@pytest.mark.parametrize(("topic", "seen"), [("fills", ["one", "two", "three"]), ("takes", ["given"])])
async def test_time_moves_for_who_waits_at_one_end_of_a_stream_whose_other_end_a_task_has_that_sends(
    topic: str, seen: list[str], service: ServiceMaker
) -> None:
    """Each send waits for others, to go with them."""
    module = service(STREAMS, SETTINGS)
    linger = {"rocketmq.producer": {"auto-batch": True, "batch-max-delay": "20ms"}}
    async with Harness(module.app, settings=linger, patience=0.2) as harness:
        await harness.send(topic, "go")
        began = harness.now
        await harness.drain()
        assert module.seen == seen
        assert (harness.now - began).total_seconds() == pytest.approx(0.02 * len(seen))


CALLS_A_LIBRARY = """
import asyncio
from rocketbox import RocketBox, rocketmq_listener

LIBRARY = '''
import asyncio

async def keepalive(release):
    await release.wait()

async def connect(release):
    return asyncio.create_task(keepalive(release), name="keepalive")

async def ask(release):
    await release.wait()
'''
library = {}
exec(compile(LIBRARY, "/venv/lib/site-packages/feed/client.py", "exec"), library)
app = RocketBox("calls", scan=[__name__])
release, kept = asyncio.Event(), []

@rocketmq_listener(topic="keeps", consumer_group="keeps")
async def keeps(item: str) -> None:
    kept.append(await library["connect"](release))

@rocketmq_listener(topic="asks", consumer_group="asks")
async def asks(item: str) -> None:
    await library["ask"](release)
"""


async def test_what_waits_in_a_library_is_told_by_the_users_own_line_and_what_a_library_keeps_with_what_to_do(
    service: ServiceMaker,
) -> None:
    module = service(CALLS_A_LIBRARY, SETTINGS)
    async with Harness(module.app, patience=0.2) as harness:
        await harness.send("keeps", "a")
        told = r"task 'keepalive', which handler keeps .* waits at /venv/.*client.py:5 in keepalive \(it is code"
        with pytest.raises(StuckError, match=told):
            await harness.drain()
        module.release.set()
        await harness.drain()
        module.release.clear()
        await harness.send("asks", "b")
        with pytest.raises(
            StuckError, match=rf"handler asks .* waits at {re.escape(str(module.__file__))}:\d+ in asks\. "
        ):
            await harness.drain()
        module.release.set()
        await harness.drain()


HOLDS_IN_THE_BACKGROUND = """
@app.background_task
async def keeps() -> None:
    async with locks["lock"]:
        await release.wait()
"""


async def test_who_waits_for_a_lock_is_told_of_a_background_task_that_has_it(service: ServiceMaker) -> None:
    module = service(SHARED + HOLDS_IN_THE_BACKGROUND, SETTINGS)
    async with Harness(module.app, patience=0.2) as harness:
        await harness.send("waits", "lock")
        with pytest.raises(StuckError, match=r"for the Lock that task '.*background task keeps \S+ has entered"):
            await harness.drain()
        module.release.set()
        await harness.drain()
        assert module.seen == ["had it"]


async def test_a_handler_that_waits_for_a_lock_which_it_has_is_told_so(service: ServiceMaker) -> None:
    module = service(SHARED, SETTINGS)
    async with Harness(module.app, patience=0.2) as harness:
        await harness.send("twice", "lock")
        with pytest.raises(StuckError, match=r"handler twice .* for the Lock that it has entered itself"):
            await harness.drain()


ASKS_A_HELPER = """
async def take() -> None:
    await locks["lock"].acquire()

@rocketmq_listener(topic="helps", consumer_group="helps")
async def helps(item: str) -> None:
    async with locks["lock"]:
        await take()
"""


async def test_who_has_a_lock_is_told_although_it_waits_for_it_once_more(service: ServiceMaker) -> None:
    module = service(SHARED + ASKS_A_HELPER, SETTINGS)
    async with Harness(module.app, patience=0.2) as harness:
        await harness.send("helps", "a")
        with pytest.raises(StuckError, match=r"handler helps .* for the Lock that it has entered itself"):
            await harness.drain()
        await harness.send("waits", "lock")
        with pytest.raises(StuckError, match=r"handler waits .* for the Lock that handler helps .* has entered"):
            await harness.drain()


async def test_time_moves_for_a_handler_that_sends_inside_of_a_lock_which_others_wait_for(
    service: ServiceMaker,
) -> None:
    module = service(SHARED, SETTINGS)
    async with Harness(module.app, patience=0.2) as harness:
        await harness.send("sends", "lock")
        with pytest.raises(StuckError, match="handler sends"):
            await harness.drain()
        await harness.send("waits", "lock")
        with pytest.raises(StuckError, match="handler waits"):
            await harness.drain()
        harness.broker.silence()
        module.release.set()
        began = harness.now
        await harness.advance("2s")
        assert (harness.now - began).total_seconds() == 2
        assert module.seen == []
        harness.broker.resume()
        await harness.drain()
        assert module.seen == ["sent", "had it"]
