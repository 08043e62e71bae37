"""Handlers that do something in real time: the harness waits, moves no time meanwhile, and says what it waits for."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from rocketbox.testing import Harness, Outcome, StuckError
from tests.support.framework.services import ServiceMaker
from tests.support.loops import UVLOOP, needs_uvloop

pytestmark = pytest.mark.anyio

SOURCE = """
import asyncio, sqlite3, threading, time
import anyio
from rocketbox import RocketBox, RocketMQTemplate, rocketmq_listener

app = RocketBox("slow", scan=[__name__])
seen, release, lock = [], threading.Event(), None
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
    with sqlite3.connect(":memory:") as store:
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

@rocketmq_listener(topic="hangs", consumer_group="hangs")
async def hangs(text: str) -> None:
    await asyncio.get_running_loop().create_future()  # for ever

@rocketmq_listener(topic="hangs-in-thread", consumer_group="hangs-in-thread")
def hangs_in_thread(text: str) -> None:
    release.wait()

@rocketmq_listener(topic="others", consumer_group="others")
async def other(text: str) -> None: ...
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
        groups = ("sleeps", "blocks", "offloads", "spawns", "gathers", "sockets", "hangs", "hangs-in-thread", "others")
        off = {f"rocketmq.consumer.listeners.{group}.enabled": group in topics for group in groups}
        harness = Harness(slow.app, settings=off, **options)
        vars(slow)["virtual"] = lambda: harness.now
        return harness

    return make


@pytest.mark.parametrize("anyio_backend", ["asyncio", pytest.param(UVLOOP, id="uvloop", marks=needs_uvloop)])
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


@pytest.mark.parametrize(
    ("topic", "told"),
    [
        ("hangs", r"handler hangs \(service_\d+\.py:\d+\), attempt 1, for keys h1 waits at .*\.py:\d+ in hangs"),
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
