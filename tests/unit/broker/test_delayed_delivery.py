"""Delayed messages: parked, delivered when due by the clock, in order, at least once over a crash."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from rocketbox.broker.delay import DelayedDelivery
from rocketbox.broker.delay_levels import DelayLevels, park
from rocketbox.broker.put_stage import PutStage
from rocketbox.broker.store.memory_storage import MemoryStorage
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import StoreOptions
from rocketbox.errors import StoreCorruptError
from rocketbox.protocol.stored_message import StoredMessage, decode_message
from rocketbox.tasks import Supervisor
from tests.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio

OPTIONS = StoreOptions(
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=20_000,
    max_hash_slot_num=100,
    max_index_num=1000,
    max_message_size=10_000,
    allocate_ahead=0,
    message_delay_level="1s 10s",
)


class Bench:
    """A store with delayed delivery on a clock that stands still."""

    def __init__(self, clock: VirtualClock, store: MessageStore, delayed: DelayedDelivery, texts: list[str]) -> None:
        self.clock = clock
        self.store = store
        self.delayed = delayed
        self.texts = texts

    async def send(self, body: bytes, level: int) -> None:
        topic, queue_id, properties = park("t", 3, b"TAGS\x01A\x02", level)
        put = self.store.put(StoredMessage(topic, queue_id, body, properties, reconsume_times=2))
        await self.store.durable(put.end_offset)
        await settle()

    def delivered(self) -> list[bytes]:
        bodies: list[bytes] = []
        while records := self.store.get("t", 3, len(bodies)).records:
            bodies += [decode_message(record)[0].body for record in records]
        return bodies

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the store's threads come to it; the clock stands still meanwhile."""
        with anyio.fail_after(5):
            while not condition():
                await anyio.sleep(0.001)


@asynccontextmanager
async def bench(storage: MemoryStorage, saved: str | None = None) -> AsyncIterator[Bench]:
    clock = VirtualClock()
    texts: list[str] = []
    async with MessageStore("/store", OPTIONS, clock=clock, storage=storage) as store:
        delayed = DelayedDelivery(store, PutStage(store, [DelayLevels(2)]), OPTIONS.delay_level_ms, texts.append, clock)
        if saved is not None:
            delayed.load(saved)
        store.on_arrival.append(delayed.on_arrival)
        async with Supervisor("test", clock) as tasks:
            delayed.start(tasks)
            yield Bench(clock, store, delayed, texts)


def test_parking_keeps_where_the_message_goes() -> None:
    topic, queue, text = park("t", 3, b"TAGS\x01A\x02DELAY\x0199\x02", 2)
    assert (topic, queue) == ("SCHEDULE_TOPIC_XXXX", 1)
    assert text == b"TAGS\x01A\x02DELAY\x012\x02REAL_TOPIC\x01t\x02REAL_QID\x013\x02"
    assert park("u", 0, text, 1)[2] == b"TAGS\x01A\x02DELAY\x011\x02REAL_TOPIC\x01u\x02REAL_QID\x010\x02"


async def test_a_message_is_delivered_when_its_time_has_come_and_not_before() -> None:
    async with bench(MemoryStorage()) as run:
        await run.send(b"soon", 1)
        await run.send(b"later", 2)
        await run.clock.advance(0.9)
        assert run.delivered() == []
        await run.clock.advance(0.1)
        await run.until(lambda: run.delivered() == [b"soon"])
        await run.clock.advance(8.9)
        await settle()
        assert run.delivered() == [b"soon"]
        await run.clock.advance(0.1)
        await run.until(lambda: run.delivered() == [b"soon", b"later"])
        message = decode_message(run.store.get("t", 3, 0).records[0])[0]
        assert message.reconsume_times == 2
        assert message.tag == "A"


async def test_messages_of_a_level_keep_their_order() -> None:
    async with bench(MemoryStorage()) as run:
        bodies = [b"%d" % number for number in range(50)]
        for body in bodies:
            await run.send(body, 1)
        await run.clock.advance(1)
        await run.until(lambda: run.delayed.offset(1) == 50)
        assert run.delivered() == bodies


async def test_the_offset_counts_when_the_delivery_is_durable() -> None:
    storage = MemoryStorage()
    async with bench(storage) as run:
        await run.send(b"x", 1)
        run.delayed.persist()
        assert run.texts == []
        await run.clock.advance(1)
        await run.until(lambda: run.delayed.offset(1) == 1)
        assert run.delivered() == [b"x"]
        run.delayed.persist()
        run.delayed.persist()
        assert [json.loads(text)["offsetTable"] for text in run.texts] == [{"1": 1}]
    async with bench(storage, run.texts[-1]) as after:
        await after.clock.advance(100)
        await settle()
        assert after.delivered() == [b"x"]
    async with bench(storage) as crashed:  # the file was not written: delivered once more, rather than never
        await crashed.clock.advance(100)
        await crashed.until(lambda: crashed.delivered() == [b"x", b"x"])


async def test_offsets_beyond_the_queue_are_brought_back_into_it() -> None:
    async with bench(MemoryStorage(), '{"offsetTable":{1:77,2:0}}') as run:
        assert run.delayed.offset(1) == 0
        await run.send(b"x", 1)
        await run.clock.advance(1)
        await run.until(lambda: run.delivered() == [b"x"])


async def test_what_is_no_table_of_delay_offsets_is_refused() -> None:
    async with bench(MemoryStorage()) as run:
        with pytest.raises(StoreCorruptError, match="delayOffset"):
            run.delayed.load('{"offsetTable":{"a":0}}')


class SlowDisk(MemoryStorage):
    """Syncs of the commit log wait while it is not free."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()
        self.free.set()
        self.waiting = threading.Event()

    def record(self, name: str, path: str, offset: int = 0, size: int = 0) -> None:
        if name == "sync" and "/commitlog/" in path and not self.free.is_set():
            self.waiting.set()
            self.free.wait(10)
        super().record(name, path, offset, size)


async def test_a_slow_disk_delivers_once() -> None:
    disk = SlowDisk()
    async with bench(disk) as run:
        await run.send(b"x", 1)
        disk.free.clear()
        await run.clock.advance(1)
        await run.until(disk.waiting.is_set)
        for _ in range(20):
            await run.clock.advance(OPTIONS.sync_flush_timeout / 1000)
        disk.free.set()
        await run.until(lambda: run.delayed.offset(1) == 1)
        assert run.delivered() == [b"x"]
