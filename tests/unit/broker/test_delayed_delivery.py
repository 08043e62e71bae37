"""Delayed messages: parked, delivered when due by the clock, in order, at least once over a crash."""

from __future__ import annotations

import errno
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest

from rocketbox.broker.delay import READ_PATIENCE, DelayedDelivery
from rocketbox.broker.delay_levels import DelayLevels, park
from rocketbox.broker.options import BrokerOptions
from rocketbox.broker.persister import TableFile
from rocketbox.broker.put_stage import PutOrigin, PutStage, PutTransform
from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.timer_messages import TimerParking
from rocketbox.broker.topics import TopicTable
from rocketbox.broker.unparking import LONGEST_SLEEP
from rocketbox.errors import StoreCorruptError
from rocketbox.protocol.codes import SCHEDULE_TOPIC, UNDELIVERED_TOPIC
from rocketbox.protocol.registration_bodies import TopicConfig
from rocketbox.protocol.stored_message import StoredMessage, decode_message
from rocketbox.storage.memory_storage import MemoryStorage
from rocketbox.tasks import Supervisor
from tests.support.broker.table_tools import saved, table_file, text_of
from tests.support.clocks import VirtualClock, settle
from tests.support.store.retention import expire_first_files
from tests.support.store.store_tools import WAITING, FaultyStorage, os_error
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

OPTIONS = replace(WAITING, message_delay_level="1s 10s")


class Bench:
    """A store with delayed delivery on a clock that stands still."""

    def __init__(
        self,
        clock: VirtualClock,
        store: MessageStore,
        delayed: DelayedDelivery,
        file: TableFile,
        topics: TopicTable,
        tasks: Supervisor,
        puts: PutStage,
    ) -> None:
        self.tasks = tasks
        self.puts = puts
        self.topics = topics
        self.clock = clock
        self.store = store
        self.delayed = delayed
        self.file = file

    async def send(self, body: bytes, level: int) -> None:
        message = StoredMessage("t", 3, body, b"TAGS\x01A\x02DELAY\x01%d\x02" % level, reconsume_times=2)
        put = self.puts.put(message, PutOrigin.SEND)
        await self.store.durable(put.end_offset)
        await settle()

    def delivered(self) -> list[bytes]:
        bodies: list[bytes] = []
        while records := self.store.get("t", 3, len(bodies)).records:
            bodies += [decode_message(record)[0].body for record in records]
        return bodies

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the store's threads come to it; the clock stands still meanwhile."""
        with anyio.fail_after(PATIENCE):
            while not condition():
                await anyio.sleep(0.001)


@asynccontextmanager
async def bench(
    storage: MemoryStorage,
    saved: str | None = None,
    *,
    clock: VirtualClock | None = None,
    options: StoreOptions = OPTIONS,
    transforms: Sequence[PutTransform] = (),
) -> AsyncIterator[Bench]:
    clock = clock or VirtualClock()
    file = table_file(clock)
    topics = TopicTable(BrokerOptions(store_path_root_dir=Path("store")), clock, table_file(clock), lambda topic: None)
    async with MessageStore("/store", options, clock=clock, storage=storage) as store:
        timers = TimerParking(BrokerOptions(store_path_root_dir=Path("store"), store=options), clock)
        puts = PutStage(store, [*transforms, DelayLevels(len(options.delay_level_ms), timers, store, clock)])
        delayed = DelayedDelivery(store, puts, topics, options.delay_level_ms, file, clock)
        if saved is not None:
            delayed.load(saved)
        store.on_arrival.append(delayed.on_arrival)
        async with Supervisor("test", clock) as tasks:
            delayed.start(tasks)
            yield Bench(clock, store, delayed, file, topics, tasks, puts)
            delayed.end()


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


async def test_a_level_has_a_task_from_its_first_message_on_and_none_begins_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = MemoryStorage()
    async with bench(storage) as run:
        assert run.tasks.health() == []
        await run.send(b"later", 2)
        assert [task.name for task in run.tasks.health()] == ["delay level 2"]
    async with bench(storage) as run:
        assert [task.name for task in run.tasks.health()] == ["delay level 2"]  # what was parked in an earlier run
        run.delayed.end()
        await run.send(b"soon", 1)
        assert [task.name for task in run.tasks.health()] == ["delay level 2"]
    assert not caplog.records


async def test_a_bad_sector_holds_up_a_level_for_a_while_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is before it comes in time; while nothing can be read nothing is passed over."""
    storage, clock = MemoryStorage(), VirtualClock()
    bodies = [b"%d" % number for number in range(5)]
    async with bench(storage, clock=clock) as run:
        for body in bodies:
            await run.send(body, 2)
        records = run.store.get(SCHEDULE_TOPIC, 1, 0).records
        places = [decode_message(record)[0].commit_log_offset + 90 for record in records]
    bad, read = places[1:], CommitLog.read
    mended: list[int] = []

    def fails_there(log: CommitLog, offset: int, size: int) -> bytes:
        if mended and offset <= places[1] < offset + size:  # not while it is looked at those behind the first
            bad[:] = [place for place in bad if place not in mended]
        if any(offset <= place < offset + size for place in bad):
            raise os_error(errno.EIO)
        return read(log, offset, size)

    monkeypatch.setattr(CommitLog, "read", fails_there)

    async def later(condition: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE):
            while not condition():
                await clock.advance(1)
                await anyio.sleep(0.001)

    async with bench(storage, clock=clock) as run:
        await later(lambda: run.delivered() == bodies[:1])
        await later(lambda: [each.what for each in run.store.troubles.current] == ["reading delay level 2"])
        for _ in range(3):
            clock.now += READ_PATIENCE
            await later(lambda: run.store.troubles.current[0].count > 3)
        assert run.delayed.offset(2) == 1, "it is the disk"
        mended += places[3:]
        await later(lambda: run.delivered() == [bodies[0], *bodies[3:]])
        assert run.store.troubles.current == []
    assert "delay level 2: messages 1 to 2 cannot be read for 600 s, and are not delivered" in caplog.text


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
        assert run.file.marked == 0
        await run.clock.advance(1)
        await run.until(lambda: run.delayed.offset(1) == 1)
        assert run.delivered() == [b"x"]
        assert run.file.marked == 1
        assert saved(run.delayed)["offsetTable"] == {"1": 1}
    async with bench(storage, text_of(run.delayed)) as after:
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


class WallClock(VirtualClock):
    """Its time of day may be wrong, by ``ahead`` seconds, and be put right; what has gone by is still measured well."""

    def __init__(self, ahead: float = 0.0) -> None:
        super().__init__()
        self.ahead = ahead

    def time_ms(self) -> int:
        return super().time_ms() + round(self.ahead * 1000)


async def test_what_was_parked_while_the_clock_was_ahead_is_delivered_when_it_is_put_right() -> None:
    clock = WallClock(ahead=3600)
    async with bench(MemoryStorage(), clock=clock) as run:
        for body in (b"1", b"2", b"3"):
            await run.send(body, 2)
        await clock.advance(1)
        assert run.delivered() == []
        clock.ahead = 0
        await clock.advance(LONGEST_SLEEP)
        await run.until(lambda: run.delivered() == [b"1", b"2", b"3"])


async def test_what_was_parked_while_the_clock_was_ahead_is_delivered_at_the_next_start() -> None:
    storage = MemoryStorage()
    async with bench(storage, clock=WallClock(ahead=90 * 86_400)) as run:
        await run.send(b"x", 2)
    async with bench(storage, clock=WallClock()) as after:
        await settle()
        await after.until(lambda: after.delivered() == [b"x"])


async def test_messages_parked_after_the_clock_went_back_wait_their_delay() -> None:
    clock = WallClock(ahead=3600)
    async with bench(MemoryStorage(), clock=clock) as run:
        await run.send(b"before", 2)
        clock.ahead = 0
        await clock.advance(LONGEST_SLEEP)
        await run.until(lambda: run.delivered() == [b"before"])
        await run.send(b"1", 2)
        await clock.advance(4)
        await run.send(b"2", 2)
        await clock.advance(5.9)
        await settle()
        assert run.delivered() == [b"before"]
        await clock.advance(0.2)
        await run.until(lambda: run.delivered() == [b"before", b"1"])
        await clock.advance(3.7)
        await settle()
        assert run.delivered() == [b"before", b"1"]
        await clock.advance(0.3)
        await run.until(lambda: run.delivered() == [b"before", b"1", b"2"])


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
async def test_messages_parked_after_the_clock_went_back_wait_their_delay_also_over_a_restart(killed: bool) -> None:
    storage, clock = MemoryStorage(), WallClock(ahead=90 * 86_400)
    async with bench(storage, clock=clock) as run:
        await run.send(b"before", 1)
        clock.ahead = 0
        await clock.advance(LONGEST_SLEEP)
        await run.until(lambda: run.delivered() == [b"before"])
        for body in (b"1", b"2"):
            await run.send(body, 2)
            await clock.advance(4)
        offsets, crashed = text_of(run.delayed), storage.copy()
    async with bench(crashed if killed else storage, offsets, clock=clock) as run:
        await clock.advance(1.9)
        await settle()
        assert run.delivered() == [b"before"]
        await clock.advance(0.1)
        await run.until(lambda: run.delivered() == [b"before", b"1"])
        await clock.advance(3.9)
        await settle()
        assert run.delivered() == [b"before", b"1"]
        await clock.advance(0.1)
        await run.until(lambda: run.delivered() == [b"before", b"1", b"2"])
        message = decode_message(run.store.get("t", 3, 2).records[0])[0]
        assert {"TAGS", "DELAY", "REAL_TOPIC", "REAL_QID"} == message.properties.keys() - {"__CRC32#"}


async def test_a_clock_that_is_corrected_by_a_little_shortens_no_delay() -> None:
    clock = WallClock(ahead=0.5)
    async with bench(MemoryStorage(), clock=clock) as run:
        await run.send(b"x", 2)
        clock.ahead = 0
        await clock.advance(10.4)
        await settle()
        assert run.delivered() == []
        await clock.advance(0.1)
        await run.until(lambda: run.delivered() == [b"x"])


async def test_a_clock_that_is_put_forward_is_noticed() -> None:
    clock = WallClock()
    async with bench(MemoryStorage(), clock=clock, options=replace(OPTIONS, message_delay_level="1s 2h")) as run:
        await run.send(b"x", 2)
        clock.ahead = 2 * 3600
        await clock.advance(LONGEST_SLEEP)
        await run.until(lambda: run.delivered() == [b"x"])


@pytest.mark.parametrize("known", [True, False], ids=["with offsets", "without"])
async def test_what_is_gone_from_the_log_before_a_start_is_told(known: bool, caplog: pytest.LogCaptureFixture) -> None:
    """But where nobody knows how far its level was: then it may have been delivered."""
    storage, options = MemoryStorage(), replace(OPTIONS, mapped_file_size_commit_log=10_000)
    bodies = [b"%02d" % number for number in range(60)]
    async with bench(storage, '{"offsetTable":{2:0}}', options=options) as run:
        for body in bodies:
            await run.send(body, 2)
        offsets = text_of(run.delayed) if known else None
    expire_first_files(storage, "/store")
    async with bench(storage, offsets, options=options) as run:
        gone = run.store.min_offset(SCHEDULE_TOPIC, 1)
        assert gone
        await run.clock.advance(LONGEST_SLEEP + 10)
        await run.until(lambda: run.delivered() == bodies[gone:])
    told = f"delay level 2: messages 0 to {gone - 1} are gone from the log, by age or for want of room"
    assert (told in caplog.text) is known


async def test_a_lowered_limit_of_sizes_holds_no_parked_message_back() -> None:
    storage = MemoryStorage()
    async with bench(storage) as run:
        await run.send(b"x" * 5000, 1)
        await run.send(b"small", 1)
    async with bench(storage, options=replace(OPTIONS, max_message_size=1000)) as after:
        await after.clock.advance(2)
        await after.until(lambda: after.delivered() == [b"x" * 5000, b"small"])


@pytest.mark.parametrize(
    "properties", [b"TAGS\x01A\x02", b"REAL_TOPIC\x01t\x02REAL_QID\x01three\x02", b"REAL_TOPIC\x01\xff\xfe\x02",
                   b"REAL_TOPIC\x01t/../u\x02REAL_QID\x010\x02", b"REAL_TOPIC\x01t\x02REAL_QID\x01-1\x02"]
)  # fmt: skip
async def test_what_cannot_be_delivered_is_kept_in_a_topic_and_holds_nothing_up(
    properties: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    storage = MemoryStorage()
    async with bench(storage) as run:
        put = run.store.put(StoredMessage("SCHEDULE_TOPIC_XXXX", 0, b"lost?", properties + b"DELAY\x011\x02"))
        await run.store.durable(put.end_offset)
        await run.send(b"next", 1)
        await run.clock.advance(1)
        await run.until(lambda: run.delivered() == [b"next"])
        kept = [decode_message(record)[0] for record in run.store.get(UNDELIVERED_TOPIC, 0, 0).records]
        assert [message.body for message in kept] == [b"lost?"]
        assert run.delayed.undelivered == 1
        assert run.topics.get(UNDELIVERED_TOPIC) is not None
        said = [record.message for record in caplog.records if UNDELIVERED_TOPIC in record.message]
        assert len(said) == 1
    async with bench(storage, text_of(run.delayed)) as after:
        await after.clock.advance(100)
        assert [decode_message(record)[0].body for record in after.store.get(UNDELIVERED_TOPIC, 0, 0).records]


async def test_what_is_parked_in_levels_that_are_no_more_is_delivered(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    async with bench(storage, options=replace(OPTIONS, message_delay_level="1s 10s 1h")) as run:
        await run.send(b"hour", 3)
        await run.send(b"ten", 2)
    async with bench(storage, options=replace(OPTIONS, message_delay_level="1s")) as after:
        await after.clock.advance(1)
        await after.until(lambda: sorted(after.delivered()) == [b"hour", b"ten"])
        (said,) = [record.message for record in caplog.records if "message-delay-level" in record.message]
        assert "2 messages" in said
        assert "levels 2, 3" in said
    caplog.clear()
    async with bench(storage, '{"offsetTable":{2:1,3:1}}', options=replace(OPTIONS, message_delay_level="1s")) as again:
        await again.clock.advance(10)
        assert len(again.delivered()) == 2
        assert not [record for record in caplog.records if "message-delay-level" in record.message]


async def test_what_was_delivered_is_not_again_when_a_later_message_makes_the_delivery_fail() -> None:
    failing = True

    def fail(message: StoredMessage, origin: PutOrigin) -> StoredMessage:
        if failing and origin is PutOrigin.DELIVERY and message.body == b"third":
            raise LookupError("a transform with a fault")
        return message

    async with bench(MemoryStorage(), transforms=[fail]) as run:
        for body in (b"first", b"second", b"third", b"fourth"):
            await run.send(body, 1)
        await run.clock.advance(1)
        await run.until(lambda: run.delayed.offset(1) == 2)
        for _ in range(3):
            await run.clock.advance(2)
            await settle()
        assert run.delivered() == [b"first", b"second"]
        failing = False
        await run.clock.advance(30)
        await run.until(lambda: run.delayed.offset(1) == 4)
        assert run.delivered() == [b"first", b"second", b"third", b"fourth"]


async def test_a_delivery_that_waits_for_room_on_the_disk_comes_once() -> None:
    storage = FaultyStorage()
    async with bench(storage) as run:
        await run.send(b"x", 1)
        storage.fail(os_error(errno.ENOSPC), "write", where="commitlog")
        await run.clock.advance(1)
        await run.until(lambda: run.store.refusal is not None)
        for _ in range(3):
            await run.clock.advance(20)
        assert run.delivered() == []
        storage.heal()
        for _ in range(4):
            await run.clock.advance(20)
        await run.until(lambda: run.delivered() != [])
        await run.send(b"y", 1)
        await run.clock.advance(2)
        await run.until(lambda: len(run.delivered()) > 1)
        assert run.delivered() == [b"x", b"y"]


async def test_what_is_due_for_a_deleted_topic_is_dropped_told_once_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with bench(MemoryStorage()) as run:
        for number in range(50):
            await run.send(b"%d" % number, 1)
        await run.store.delete_topic("t")
        await run.clock.advance(1)
        await run.until(lambda: run.delayed.offset(1) == 50)
        assert run.store.queues() == [("SCHEDULE_TOPIC_XXXX", 0)]
        assert run.delayed.dropped == 50
        (line,) = [record.getMessage() for record in caplog.records if "deleted" in record.getMessage()]
        assert "topic t" in line
        await run.send(b"for the new one", 1)
        run.topics.put(TopicConfig("t", 4, 4))
        await run.clock.advance(1)
        await run.until(lambda: run.delayed.offset(1) == 51)
        assert run.delivered() == [b"for the new one"]
        assert run.delayed.dropped == 50


async def test_what_is_for_a_queue_that_the_topic_has_no_more_goes_to_one_that_it_has() -> None:
    async with bench(MemoryStorage()) as run:
        for read, write, queue_id in ((4, 4, 3), (4, 2, 3), (2, 2, 1), (1, 2, 0)):
            run.topics.put(TopicConfig("t", read, write))
            end = partial(run.store.max_offset, "t", queue_id)
            before = end()
            await run.send(b"x", 1)  # for queue 3
            await run.clock.advance(1)
            with anyio.fail_after(PATIENCE):
                while end() == before:
                    await anyio.sleep(0.001)
