"""Timer messages: delivered at their millisecond, once, not when recalled; at least once over a crash."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from rocketbox.broker.delay_levels import DelayLevels
from rocketbox.broker.limits import LimitError
from rocketbox.broker.options import BrokerOptions
from rocketbox.broker.put_stage import PutOrigin, PutStage
from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.dispatcher import Arrival
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.store.timer_file import TimerFile
from rocketbox.broker.timer_messages import TimerParking, due_ms, recall_handle_of
from rocketbox.broker.timer_recalls import REMEMBERED_MS
from rocketbox.broker.timers import BATCH, TimerDelivery
from rocketbox.broker.topics import TopicTable
from rocketbox.broker.unparking import LONGEST_SLEEP
from rocketbox.errors import InvalidMessageError
from rocketbox.message import MessageExt
from rocketbox.protocol.codes import TIMER_TOPIC, UNDELIVERED_TOPIC
from rocketbox.protocol.recall_handles import decode_recall_handle
from rocketbox.protocol.stored_message import StoredMessage, decode_message
from rocketbox.storage.memory_storage import MemoryStorage
from rocketbox.tasks import Supervisor
from tests.support.broker.table_tools import table_file
from tests.support.clocks import VirtualClock, settle
from tests.support.store.store_tools import WAITING, FaultyStorage, os_error
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

HOUR_MS = 3_600_000


class Clock(VirtualClock):
    """A virtual clock that knows how many wait for something, but not for ever."""

    waiting = 0

    @contextmanager
    def move_on_after(self, seconds: float) -> Iterator[anyio.CancelScope]:
        with super().move_on_after(seconds) as scope:
            self.waiting += 1
            try:
                yield scope
            finally:
                self.waiting -= 1


class Bench:
    """A store with timer delivery on a clock that stands still."""

    def __init__(self, clock: Clock, store: MessageStore, puts: PutStage, timers: TimerDelivery) -> None:
        self.clock = clock
        self.arrived = 0  # offset of the queue up to which delivery was told what is in it
        self.held: list[Arrival] | None = None  # what it is told later; None: at once
        self.store = store
        self.puts = puts
        self.timers = timers

    async def send(self, body: bytes, properties: str, *, topic: str = "t") -> StoredMessage:
        """Send a message with an id that is its body; what was stored in its place."""
        text = f"UNIQ_KEY\x01{body.decode()}\x02{properties}\x02".encode()
        stored, put = self.puts.put_telling(StoredMessage(topic, 3, body, text, reconsume_times=2), PutOrigin.SEND)
        await self.store.durable(put.end_offset)
        if stored.topic == TIMER_TOPIC:
            await self.until(lambda: self.arrived > put.queue_offset)
        await settle()
        return stored

    async def after(self, body: bytes, delay_ms: int) -> StoredMessage:
        return await self.send(body, f"TIMER_DELAY_MS\x01{delay_ms}")

    async def recall(self, stored: StoredMessage) -> None:
        text = recall_handle_of(stored, "broker-a")
        assert text is not None
        handle = decode_recall_handle(text)
        await self.send(
            b"0", f"TIMER_DEL_UNIQKEY\x01{handle.topic}+{handle.msg_id}\x02TIMER_DELIVER_MS\x01{handle.time_ms}"
        )

    def messages(self, topic: str = "t", queue: int = 3) -> list[MessageExt]:
        found: list[MessageExt] = []
        while records := self.store.get(topic, queue, len(found)).records:
            found += [decode_message(record)[0] for record in records]
        return found

    def delivered(self) -> list[bytes]:
        return [message.body for message in self.messages()]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the store's threads come to it; the clock stands still meanwhile."""
        with anyio.fail_after(PATIENCE):
            while not condition():
                await anyio.sleep(0.001)

    async def later(self, condition: Callable[[], bool]) -> None:
        """Let time pass until it is so: what is tried again is due after what the store's threads do."""
        with anyio.fail_after(PATIENCE):
            while not condition():
                await self.clock.advance(1)
                await anyio.sleep(0.001)

    async def jump(self, seconds: float) -> None:
        """Let the time of day jump ahead, and what is due by it come: not timer by timer, as ``advance`` does."""
        await self.until(lambda: self.timers.waiting == 0 or self.clock.waiting > 0)  # the sleep is of the time before
        self.clock.wall_is_ahead += seconds
        await self.clock.advance(LONGEST_SLEEP)

    async def come(self, *bodies: bytes) -> None:
        await self.until(lambda: sorted(self.delivered()) == sorted(bodies))


@asynccontextmanager
async def bench(
    storage: MemoryStorage,
    *,
    clock: Clock | None = None,
    options: StoreOptions = WAITING,
    most: int = 1000,
) -> AsyncIterator[Bench]:
    clock = clock or Clock()
    settings = BrokerOptions(store_path_root_dir=Path("store"), store=options, max_timer_messages=most)
    topics = TopicTable(settings, clock, table_file(clock), lambda topic: None)
    async with MessageStore("/store", options, clock=clock, storage=storage) as store:
        parking = TimerParking(settings, clock)
        puts = PutStage(store, [DelayLevels(18, parking, store, clock)])
        timers = TimerDelivery(
            store, puts, topics, parking, TimerFile("/store/config", storage), clock, interval=10.0,
            kept_ms=options.file_reserved_ms, longest_ms=options.timer_max_delay_sec * 1000,
            precision_ms=options.timer_precision_ms,
        )  # fmt: skip
        run = Bench(clock, store, puts, timers)
        store.on_arrival.append(lambda arrived: on_arrival(run, arrived))
        try:
            async with Supervisor("test", clock) as tasks:
                timers.start(tasks)
                await run.until(lambda: timers.is_loaded)
                yield run
        finally:
            await timers.finish()


def on_arrival(run: Bench, arrived: object) -> None:
    assert isinstance(arrived, list)
    own = [each for each in arrived if each[0] == TIMER_TOPIC]
    if run.held is not None:
        run.held += own
    elif own:
        run.timers.on_arrival(own)
        run.arrived = own[-1][2]


async def test_a_message_is_delivered_at_its_millisecond_and_not_before() -> None:
    async with bench(MemoryStorage()) as run:
        await run.after(b"b", 1500)
        await run.send(b"c", f"TIMER_DELIVER_MS\x01{run.clock.time_ms() + 1501}")
        await run.send(b"d", "TIMER_DELAY_SEC\x012")
        await run.after(b"a", 3)
        assert run.timers.waiting == 4
        await run.clock.advance(0.00225)  # a quarter: so that no rounding decides
        assert run.delivered() == []
        await run.clock.advance(0.001)
        await run.come(b"a")
        await run.clock.advance(1.496)
        assert run.delivered() == [b"a"]
        await run.clock.advance(0.0011)  # a little past the moment for which a sleep was set that began a quarter late
        await run.come(b"a", b"b")
        await run.clock.advance(0.0011)
        await run.come(b"a", b"b", b"c")
        await run.clock.advance(1.0)
        await run.until(lambda: run.delivered() == [b"a", b"b", b"c", b"d"])
        await run.until(lambda: run.timers.waiting == 0)
        assert run.timers.delivered == 4


async def test_a_message_lies_where_apache_has_it_and_arrives_as_it_was_sent() -> None:
    async with bench(MemoryStorage()) as run:
        now = run.clock.time_ms()
        stored = await run.send(b"a", f"KEYS\x01k\x02TIMER_DELIVER_MS\x01{now + 700}")
        assert (stored.topic, stored.queue_id) == (TIMER_TOPIC, 0)
        (parked,) = run.messages(TIMER_TOPIC, 0)
        assert parked.properties["TIMER_OUT_MS"] == str(now + 699)
        assert (parked.properties["REAL_TOPIC"], parked.properties["REAL_QID"]) == ("t", "3")
        await run.clock.advance(0.7)
        await run.come(b"a")
        (message,) = run.messages()
        assert (message.queue_id, message.reconsume_times, message.properties["KEYS"]) == (3, 2, "k")
        assert message.properties["TIMER_DEQUEUE_MS"] == str(now + 700)


async def test_one_that_is_past_or_has_a_level_does_not_wait_here() -> None:
    async with bench(MemoryStorage()) as run:
        assert (await run.send(b"a", f"TIMER_DELIVER_MS\x01{run.clock.time_ms()}")).topic == "t"
        level = await run.send(b"b", "DELAY\x012\x02TIMER_DELAY_MS\x015")
        assert level.topic == "SCHEDULE_TOPIC_XXXX"
        assert b"TIMER_DELAY_MS" not in level.properties
        again = await run.send(b"c", "TIMER_DELAY_MS\x015\x02TIMER_OUT_MS\x015")
        assert again.topic == "t"
        assert run.timers.waiting == 0


@pytest.mark.parametrize("text", ["TIMER_DELAY_MS\x01x", "TIMER_DELAY_SEC\x011e3", "TIMER_DELIVER_MS\x01 5",
                                  "TIMER_DELAY_MS\x01" + "9" * 30, "TIMER_DELAY_SEC\x01259201",
                                  "TIMER_DELAY_MS\x019223372036854775807"])  # fmt: skip
async def test_what_is_no_time_or_too_far_away_is_refused(text: str) -> None:
    async with bench(MemoryStorage()) as run:
        with pytest.raises(InvalidMessageError, match="timer message illegal"):
            await run.send(b"a", text)


async def test_settings_switch_them_off_round_them_and_let_them_wait_longer() -> None:
    async with bench(MemoryStorage(), options=replace(WAITING, timer_wheel_enable=False)) as run:
        with pytest.raises(InvalidMessageError, match="timerWheelEnable is false"):
            await run.after(b"a", 5)
    longer = replace(WAITING, timer_max_delay_sec=400_000, timer_precision_ms=1000)
    async with bench(MemoryStorage(), options=longer) as run:
        await run.send(b"a", "TIMER_DELAY_SEC\x01400000")
        await run.after(b"b", 1500 - run.clock.time_ms() % 1000)
        await run.clock.advance(1.6)
        assert run.delivered() == []
        await run.clock.advance(0.4)
        await run.come(b"b")


async def test_a_recalled_message_never_comes_and_its_neighbours_do() -> None:
    async with bench(MemoryStorage()) as run:
        stored = [await run.after(b"%d" % number, 5_000) for number in range(5)]
        await run.after(b"other", 6_000)
        await run.recall(stored[2])
        await run.recall(stored[2])
        await run.recall(stored[4])
        await run.clock.advance(5)
        await run.until(lambda: run.timers.waiting == 1)
        assert run.delivered() == [b"0", b"1", b"3"]
        assert run.timers.recalled == 2
        await run.clock.advance(1)
        await run.come(b"0", b"1", b"3", b"other")


async def test_nobody_recalls_what_was_sent_to_another_topic() -> None:
    async with bench(MemoryStorage()) as run:
        await run.after(b"a", 5_000)
        with pytest.raises(InvalidMessageError, match="no message of topic u"):
            await run.send(b"0", "TIMER_DEL_UNIQKEY\x01t+a\x02TIMER_DELAY_MS\x014000", topic="u")
        await run.send(b"0", "TIMER_DEL_UNIQKEY\x01a\x02TIMER_DELAY_MS\x014000", topic="u")  # as before 5.3: u's own
        with pytest.raises(InvalidMessageError, match="has to come before"):
            await run.send(b"0", "TIMER_DEL_UNIQKEY\x01t+a\x02TIMER_DELAY_MS\x010")
        await run.clock.advance(5)
        await run.come(b"a")


async def test_a_recall_that_comes_too_late_is_told_so() -> None:
    async with bench(MemoryStorage()) as run:
        await run.after(b"a", 5_000)
        await run.clock.advance(5)
        await run.come(b"a")
        # The handler looks at the clock; here it went on in between.
        text = f"TIMER_OUT_MS\x01{run.clock.time_ms() - 1}\x02TIMER_DEL_UNIQKEY\x01t+a\x02"
        put = run.store.put(StoredMessage(TIMER_TOPIC, 0, b"0", text.encode()))
        told = run.timers.expect_recall(put.queue_offset)
        await run.store.durable(put.end_offset)
        assert await told is False


async def test_what_a_recall_names_that_is_told_to_be_too_late_comes() -> None:
    async with bench(MemoryStorage()) as run:
        await run.after(b"a", 1_000)
        await run.clock.advance(0.5)
        text = f"TIMER_OUT_MS\x01{run.clock.time_ms() - 1}\x02TIMER_DEL_UNIQKEY\x01t+a\x02"
        await run.after(b"b", 1)
        await run.clock.advance(0.01)
        await run.come(b"b")  # so that what was due before now is taken
        put = run.store.put(StoredMessage(TIMER_TOPIC, 0, b"0", text.encode()))
        told = run.timers.expect_recall(put.queue_offset)
        await run.store.durable(put.end_offset)
        assert await told is False
        await run.clock.advance(1)
        await run.come(b"a", b"b")


async def test_a_recall_is_in_time_again_as_soon_as_something_arrives_after_the_clock_is_put_back() -> None:
    async with bench(MemoryStorage()) as run:
        await run.after(b"a", 1_000)
        await run.clock.advance(1)
        await run.come(b"a")
        run.clock.wall_is_ahead = -3600
        handle = decode_recall_handle(recall_handle_of(await run.after(b"b", 20_000), "broker-a") or "")
        text = f"TIMER_DEL_UNIQKEY\x01t+b\x02TIMER_DELIVER_MS\x01{handle.time_ms}\x02"
        _, put = run.puts.put_telling(StoredMessage("t", 0, b"0", text.encode()), PutOrigin.SEND)
        told = run.timers.expect_recall(put.queue_offset)
        await run.store.durable(put.end_offset)
        assert await told is True


async def test_a_restart_delivers_once_and_keeps_what_was_recalled() -> None:
    storage, clock = MemoryStorage(), Clock()
    async with bench(storage, clock=clock) as run:
        await run.after(b"early", 1_000)
        await run.after(b"while away", 5_000)
        recalled = await run.after(b"recalled", 20_000)
        await run.after(b"late", 20_000)
        await run.recall(recalled)
        await clock.advance(1)
        await run.come(b"early")
    await clock.advance(10)
    async with bench(storage, clock=clock) as run:
        await run.come(b"early", b"while away")
        await clock.advance(9.1)
        await run.come(b"early", b"while away", b"late")
        await run.until(lambda: run.timers.waiting == 0)
        assert (run.timers.recalled, run.timers.delivered) == (1, 2)


@pytest.mark.parametrize("delay_ms", [1300, 1337])
@pytest.mark.parametrize("restarts_ms", [[100], [400], [100, 100, 299], [1200, 1]])
async def test_what_is_parked_over_restarts_comes_at_its_millisecond(delay_ms: int, restarts_ms: list[int]) -> None:
    storage, clock = MemoryStorage(), Clock()
    passed_ms = 0
    async with bench(storage, clock=clock) as run:
        await run.after(b"m", delay_ms)
    for milliseconds in restarts_ms:
        async with bench(storage, clock=clock) as run:
            await run.until(lambda run=run: run.clock.waiting > 0)  # type: ignore[misc]
            await clock.advance(milliseconds / 1000)
            passed_ms += milliseconds
    async with bench(storage, clock=clock) as run:
        await run.until(lambda: clock.waiting > 0)
        await clock.advance((delay_ms - 1 - passed_ms) / 1000)
        assert run.delivered() == []
        await clock.advance(0.001)
        await run.come(b"m")
        await run.until(lambda: run.timers.waiting == 0)
        assert (run.timers.delivered, run.delivered()) == (1, [b"m"])


async def test_a_crash_loses_nothing_and_repeats_only_what_came_since_the_last_copy() -> None:
    storage, clock = MemoryStorage(), Clock()
    async with bench(storage, clock=clock) as run:
        await run.after(b"before the copy", 1_000)
        await clock.advance(1)
        await run.come(b"before the copy")
        await clock.advance(20)  # a copy is written every 10 s
        await run.until(lambda: storage.exists("/store/config/timers.bin"))
        await settle()
        await run.after(b"behind it", 1_000)
        await run.after(b"pending", 60_000)
        await clock.advance(1)
        await run.come(b"before the copy", b"behind it")
        crashed = storage.copy()
    async with bench(crashed, clock=clock) as run:
        await run.come(b"before the copy", b"behind it", b"behind it")
        await clock.advance(60)
        await run.come(b"before the copy", b"behind it", b"behind it", b"pending")


class BadSectors:
    """Places of the log that cannot be read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places: list[int] = []
        read = CommitLog.read

        def fails_there(log: CommitLog, offset: int, size: int) -> bytes:
            if any(offset <= place < offset + size for place in self.places):
                raise os_error(errno.EIO)
            return read(log, offset, size)

        monkeypatch.setattr(CommitLog, "read", fails_there)


def parked(run: Bench, body: bytes) -> int:
    """Where the body of a message that waits is in the log, or near it."""
    return next(each.commit_log_offset for each in run.messages(TIMER_TOPIC, 0) if each.body == body) + 90


@pytest.mark.parametrize("copied", [True, False], ids=["from the copy", "from the queue"])
async def test_a_bad_sector_makes_one_message_late_and_no_other(copied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, clock, bad = MemoryStorage(), Clock(), BadSectors(monkeypatch)
    async with bench(storage, clock=clock) as run:
        for body in (b"a", b"b", b"c"):
            await run.after(body, 5_000)
        place = parked(run, b"b")
    if not copied:
        for name in ("timers.bin", "timers.bin.bak"):
            if storage.exists(f"/store/config/{name}"):
                storage.remove(f"/store/config/{name}")
    bad.places.append(place)
    async with bench(storage, clock=clock) as run:
        await run.clock.advance(6)
        await run.come(b"a", b"c")
        await run.after(b"d", 1_000)
        await run.clock.advance(1.5)
        await run.come(b"a", b"c", b"d")
        assert [each.what for each in run.store.troubles.current] == ["reading timer messages"]
        await run.until(lambda: run.timers.waiting == 1)
        bad.places.clear()
        await run.later(lambda: run.timers.waiting == 0)
        assert run.store.troubles.current == []
        assert run.delivered().count(b"b") == 1


async def test_a_recalled_message_does_not_come_though_it_is_read_late(monkeypatch: pytest.MonkeyPatch) -> None:
    storage, clock, bad = MemoryStorage(), Clock(), BadSectors(monkeypatch)
    async with bench(storage, clock=clock) as run:
        await run.recall(await run.after(b"recalled", 5_000))
        await run.after(b"kept", 5_000)
        bad.places.append(parked(run, b"recalled"))
    async with bench(storage, clock=clock) as run:
        await run.clock.advance(6)
        await run.come(b"kept")
        await run.clock.advance(REMEMBERED_MS / 1000 + 60)
        bad.places.clear()
        await run.later(lambda: run.timers.recalled == 1)
        assert (run.delivered(), run.timers.waiting) == ([b"kept"], 0)


async def test_what_could_not_be_read_comes_soon_though_the_clock_is_put_back_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its delay has ended, as that of any other that was begun by a clock that was ahead; a time of day is to come."""
    storage, clock, bad = MemoryStorage(), Clock(), BadSectors(monkeypatch)
    async with bench(storage, clock=clock) as run:
        await run.after(b"delayed", 5_000)
        at = clock.time_ms() + 5_000
        await run.send(b"of that time", f"TIMER_DELIVER_MS\x01{at}")
        await run.recall(await run.after(b"recalled", 5_000))
        await run.recall(await run.after(b"recalled-too", 10_000))
        places = [parked(run, body) for body in (b"delayed", b"of that time", b"recalled", b"recalled-too")]
    bad.places += places
    async with bench(storage, clock=clock) as run:
        await clock.advance(6)
        await run.until(lambda: len(run.store.troubles.current) == 1)
        await run.until(lambda: run.timers.waiting == 5)  # a recall has come, the other one has not
        clock.wall_is_ahead -= 3600
        bad.places.clear()
        await run.later(lambda: run.delivered() == [b"delayed"])
        await run.later(lambda: run.timers.recalled == 2)
        assert clock.time_ms() < at
        await run.jump(3600)
        await run.later(lambda: run.timers.waiting == 0)
        assert sorted(run.delivered()) == [b"delayed", b"of that time"]


async def test_a_disk_of_which_nothing_can_be_read_loses_no_timer_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than are set aside wait where they are."""
    monkeypatch.setattr("rocketbox.broker.unread_timers.MOST_ASIDE", 2)
    storage, clock, bad = MemoryStorage(), Clock(), BadSectors(monkeypatch)
    bodies = [b"%d" % number for number in range(5)]
    async with bench(storage, clock=clock) as run:
        for body in bodies:
            await run.after(body, 5_000)
        places = [parked(run, body) for body in bodies]
    bad.places += places
    async with bench(storage, clock=clock) as run:
        await run.clock.advance(20)
        await run.until(lambda: len(run.store.troubles.current) == 1)
        assert (run.delivered(), run.timers.waiting) == ([], 5)
        bad.places.clear()
        await run.later(lambda: len(run.delivered()) == 5)
    assert sorted(run.delivered()) == bodies


@pytest.mark.parametrize("damage", ["flip", "cut", "head", "gone", "both"])
async def test_a_damaged_copy_is_noticed_and_nothing_is_lost(damage: str, caplog: pytest.LogCaptureFixture) -> None:
    storage, clock = MemoryStorage(), Clock()
    for body in (b"a", b"b"):
        async with bench(storage, clock=clock) as run:
            await run.after(body, HOUR_MS)
    path = "/store/config/timers.bin"
    for each in (path, f"{path}.bak") if damage in ("gone", "both") else (path,):
        file = storage.open(each)
        if damage == "gone":
            storage.remove(each)
        elif damage == "cut":
            file.truncate(file.size() - 1)
        else:
            at = 9 if damage == "head" else file.size() - 1
            file.write(at, [bytes([file.read(at, 1)[0] ^ 1])])
    async with bench(storage, clock=clock) as run:
        assert run.timers.waiting == 2
        assert any("timers.bin" in record.message for record in caplog.records) is (damage != "gone")
        await run.jump(HOUR_MS / 1000)
        await run.come(b"a", b"b")


@pytest.mark.parametrize("where", ["timers.bin", "timers.bin.bak"])
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
async def test_a_bad_sector_in_the_copy_keeps_no_broker_from_starting_and_no_message_from_coming(
    killed: bool, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """``where`` is of both copies, or of the one before alone, where that is the only one."""
    storage, clock, faulty = MemoryStorage(), Clock(), FaultyStorage()
    for body in (b"a", b"b"):
        async with bench(storage, clock=clock) as run:
            await run.after(body, HOUR_MS)
    async with bench(storage, clock=clock):
        crashed = storage.copy()
    faulty.take(crashed if killed else storage)
    if where.endswith(".bak"):
        faulty.remove("/store/config/timers.bin")
    faulty.fail(os_error(errno.EIO), "read", where=where)
    async with bench(faulty, clock=clock) as run:
        await run.timers.bring_back()  # as a start after a kill
        assert run.timers.waiting == 2
        await run.jump(HOUR_MS / 1000)
        await run.come(b"a", b"b")
    assert "Input/output error; what was delivered since" in caplog.text


async def test_a_copy_that_cannot_be_opened_for_a_while_is_waited_for() -> None:
    """It is not damaged: to do without it would bring again what has come."""
    storage, clock = FaultyStorage(), Clock()
    async with bench(storage, clock=clock) as run:
        await run.after(b"a", 1_000)
        await clock.advance(1)
        await run.come(b"a")
    file = TimerFile("/store/config", storage)
    storage.fail(os_error(errno.EMFILE), "open", where="timers.bin")
    with pytest.raises(OSError, match="Too many open files"):
        file.load()
    storage.heal()
    state, wrong = file.load()
    assert state is not None
    assert (state.next_offset, list(state.entries), wrong) == (1, [], [])


async def test_what_waits_long_is_parked_anew_before_retention_takes_it() -> None:
    clock = Clock()
    async with bench(MemoryStorage(), clock=clock, options=replace(WAITING, file_reserved_time="3h")) as run:
        await run.after(b"a", 4 * HOUR_MS)
        recalled = await run.after(b"b", 4 * HOUR_MS)
        await run.recall(recalled)
        await run.jump(1.5 * 3600)
        await run.until(lambda: run.arrived == 6)  # when they are parked anew counts from here
        assert run.timers.rolled == 3
        await run.jump(1.5 * 3600)
        await run.until(lambda: run.arrived == 9)
        assert run.timers.rolled == 6
        assert run.delivered() == []
        await run.jump(3600 - 5 * LONGEST_SLEEP)
        assert run.delivered() == []
        await run.jump(2 * LONGEST_SLEEP)
        await run.come(b"a")
        await run.until(lambda: run.timers.waiting == 0)
        assert run.timers.recalled == 1
        assert run.messages()[0].properties["TIMER_ROLL_TIMES"] == "2"


@pytest.mark.parametrize("stops", [False, True])
async def test_what_was_recalled_never_comes_when_it_was_to_be_parked_anew_while_nothing_ran(stops: bool) -> None:
    storage, clock = MemoryStorage(), Clock()
    async with bench(storage, clock=clock) as run:
        recalled = await run.after(b"recalled", 48 * HOUR_MS)  # parked anew after 36 h
        await run.after(b"neighbour", 48 * HOUR_MS)
        await clock.advance(1)
        await run.recall(recalled)
        if not stops:
            await run.jump(50 * 3600)
            await run.come(b"neighbour")
            assert run.timers.recalled == 1
    clock.wall_is_ahead = 50 * 3600
    async with bench(storage, clock=clock) as run:
        await run.until(lambda: run.timers.waiting == 0)
        await run.come(b"neighbour")
        assert (run.timers.recalled, run.timers.rolled) == (int(stops), 0)


async def test_what_was_recalled_never_comes_though_the_clock_jumps_ahead_while_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was to be parked anew, and is due when that is to be done; what recalls it stands behind it."""
    storage, clock = MemoryStorage(), Clock()
    options = replace(WAITING, file_reserved_time="3h")
    async with bench(storage, clock=clock, options=options) as run:
        await run.recall(await run.after(b"recalled", 2 * HOUR_MS))
        await run.after(b"kept", 2 * HOUR_MS)
    read, jumps = CommitLog.read, [3600.0]

    def as_the_clock_jumps(log: CommitLog, offset: int, size: int) -> bytes:
        if jumps:
            clock.wall_is_ahead += jumps.pop()
        return read(log, offset, size)

    async with bench(storage, clock=clock, options=options) as run:  # whose messages are not in memory
        monkeypatch.setattr(CommitLog, "read", as_the_clock_jumps)
        await run.jump(1.6 * 3600)
        await run.until(lambda: run.timers.waiting == 0)
        assert not jumps
        assert (run.delivered(), run.timers.recalled) == ([b"kept"], 1)


async def test_what_was_parked_anew_comes_at_its_millisecond() -> None:
    async with bench(MemoryStorage(), options=replace(WAITING, file_reserved_time="3h")) as run:
        due = run.clock.time_ms() + 2 * HOUR_MS
        for name in ("DELAY_MS", "DELAY_SEC"):
            await run.send(name.encode(), f"TIMER_{name}\x01{2 * HOUR_MS // (1000 if name == 'DELAY_SEC' else 1)}")
        await run.send(b"at", f"TIMER_DELIVER_MS\x01{due}")
        await run.jump(1.5 * 3600)
        await run.until(lambda: run.arrived == 6)
        await run.clock.advance((due - run.clock.time_ms() - 2) / 1000)
        assert run.delivered() == []
        await run.clock.advance(0.003)
        await run.come(b"DELAY_MS", b"DELAY_SEC", b"at")


async def test_messages_that_were_to_be_kept_longer_are_parked_anew_at_once() -> None:
    storage, clock = MemoryStorage(), Clock()
    async with bench(storage, clock=clock) as run:
        await run.after(b"a", 30 * HOUR_MS)
    async with bench(storage, clock=clock, options=replace(WAITING, file_reserved_time="3h")) as run:
        await run.until(lambda: run.timers.rolled == 1)
        assert run.delivered() == []


async def test_a_clock_that_was_ahead_does_not_keep_a_delay_from_ending(caplog: pytest.LogCaptureFixture) -> None:
    async with bench(MemoryStorage()) as run:
        await run.after(b"begun ahead", 60_000)
        await run.send(b"at a time", f"TIMER_DELIVER_MS\x01{run.clock.time_ms() + 1000}")
        run.clock.wall_is_ahead = -3600
        await run.clock.advance(10)
        await run.come(b"begun ahead")
        await run.after(b"begun now", 5_000)
        await run.clock.advance(6.1)  # store times are ahead still: up to a second late
        await run.come(b"begun ahead", b"begun now")
        assert "the clock was put back" in caplog.text
        await run.jump(3600)
        await run.come(b"begun ahead", b"begun now", b"at a time")


async def test_a_clock_that_was_ahead_before_a_restart_is_noticed() -> None:
    storage, clock = MemoryStorage(), Clock()
    async with bench(storage, clock=clock) as run:
        await run.after(b"a", 60_000)
    clock.wall_is_ahead = -86_400
    async with bench(storage, clock=clock) as run:
        await run.come(b"a")


async def test_a_copy_that_was_written_before_the_clock_was_looked_at_does_not_hide_that_it_was_put_back() -> None:
    storage, clock = MemoryStorage(), Clock()
    async with bench(storage, clock=clock) as run:
        await run.after(b"a", 60_000)
        clock.wall_is_ahead = -86_400
        await run.timers.finish()
        killed = storage.copy()
    async with bench(killed, clock=clock) as run:
        await run.come(b"a")


class SlowCopy(MemoryStorage):
    """The first copy that is written takes long, unless another one is begun meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = self.was_alone = False
        self._second = threading.Event()

    def begin_call(self, name: str, path: str) -> None:
        super().begin_call(name, path)
        if name == "truncate" and path.endswith("timers.bin.tmp"):
            if self.is_slow:
                self._second.clear()
                self.is_slow = False
                self.was_alone = not self._second.wait(0.5)
            else:
                self._second.set()


async def test_a_copy_that_is_written_because_the_clock_was_put_back_waits_for_the_one_that_is_being_written() -> None:
    """Both go by the same name first; and of the older one, as the last, what it names would come again."""
    storage, clock = SlowCopy(), Clock()
    async with bench(storage, clock=clock) as run:
        await run.after(b"a", 24 * HOUR_MS)
        await run.later(lambda: storage.exists("/store/config/timers.bin"))
        storage.is_slow = True
        await run.after(b"b", 1_000)
        await run.later(lambda: not storage.is_slow)  # it is being written
        clock.wall_is_ahead -= 12 * 3600
        await run.later(lambda: sorted(run.delivered()) == [b"a", b"b"])  # the former was begun by a clock ahead
        assert storage.was_alone
        assert [each for each in run.store.troubles.current if "timers.bin" in each.what] == []


@pytest.mark.parametrize("end", ["none", "stop", "kill"])
async def test_what_was_recalled_never_comes_though_the_clock_is_put_back(end: str) -> None:
    storage, clock = MemoryStorage(), Clock()
    async with bench(storage, clock=clock) as run:
        await run.recall(await run.after(b"recalled", 60_000))
        await run.after(b"neighbour", 60_000)
        killed = storage.copy()
        if end == "none":
            clock.wall_is_ahead = -3600
            await clock.advance(LONGEST_SLEEP)
            await run.come(b"neighbour")
            assert run.timers.recalled == 1
    clock.wall_is_ahead = -3600
    async with bench(storage if end != "kill" else killed, clock=clock) as run:
        await run.come(b"neighbour")
        assert run.timers.recalled == (end != "none")
        await run.jump(2 * 3600)
        await run.until(lambda: run.timers.waiting == 0)
        assert run.delivered() == [b"neighbour"]


@pytest.mark.parametrize("killed", [False, True])
async def test_what_was_recalled_never_comes_though_it_is_parked_anew_while_the_clock_is_put_back(killed: bool) -> None:
    storage, clock = MemoryStorage(), Clock()
    options = replace(WAITING, file_reserved_time="3h")
    async with bench(storage, clock=clock, options=options) as run:
        await run.recall(await run.after(b"recalled", 2 * HOUR_MS))
        await run.after(b"other", 2 * HOUR_MS)
        await clock.advance(60)
        await run.after(b"stays", 2 * HOUR_MS)
        held: list[Arrival] = []
        run.held = held
        await run.jump(1.5 * 3600 - 30)
        await run.until(lambda: len(held) == 3)
        await run.jump(-4 * 3600)
        await run.come(b"stays")
        run.held = None
        if killed:
            storage = storage.copy()
        else:
            on_arrival(run, held)
            await run.come(b"stays", b"other")
            await run.until(lambda: run.timers.recalled == 1)
    if killed:
        async with bench(storage, clock=clock, options=options) as run:
            await run.until(lambda: run.timers.recalled > 0 and b"other" in run.delivered())
            assert {*run.delivered()} == {b"stays", b"other"}  # twice, where the copy on disk is of the time before


async def told_recalled(run: Bench, stored: StoredMessage) -> bool:
    """Recall a message as a broker does; whether who asks is told that it never comes."""
    handle = decode_recall_handle(recall_handle_of(stored, "broker-a") or "")
    assert handle.time_ms > run.clock.time_ms()
    text = (
        f"UNIQ_KEY\x01{handle.msg_id}\x02TIMER_DEL_UNIQKEY\x01{handle.topic}+{handle.msg_id}\x02"
        f"TIMER_DELIVER_MS\x01{handle.time_ms}\x02"
    )
    _, put = run.puts.put_telling(StoredMessage("t", 0, b"0", text.encode()), PutOrigin.SEND)
    told = run.timers.expect_recall(put.queue_offset)
    await run.store.durable(put.end_offset)
    with anyio.fail_after(PATIENCE):
        return bool(await told) and not await run.timers.has_come(handle.topic, handle.msg_id, handle.time_ms)


@pytest.mark.parametrize("restarts", [False, True])
async def test_nobody_is_told_that_a_message_never_comes_that_came_before_the_clock_was_put_back(
    restarts: bool,
) -> None:
    storage, clock = MemoryStorage(), Clock()

    async def recalls(run: Bench) -> None:
        assert not await told_recalled(run, came)
        assert not await told_recalled(run, brought_forward)
        assert await told_recalled(run, waits)
        assert await told_recalled(run, await run.after(b"new", 20_000))
        await run.jump(3 * 3600)
        await run.until(lambda: run.timers.waiting == 0)
        assert run.delivered() == [b"came", b"brought-forward"]

    async with bench(storage, clock=clock) as run:
        came = await run.after(b"came", 1_000)
        brought_forward = await run.after(b"brought-forward", 60_000)
        waits = await run.send(b"waits", f"TIMER_DELIVER_MS\x01{clock.time_ms() + HOUR_MS}")
        await clock.advance(1)
        await run.come(b"came")
        clock.wall_is_ahead = -3600
        await clock.advance(LONGEST_SLEEP)
        await run.come(b"came", b"brought-forward")
        if not restarts:
            await recalls(run)
    if restarts:
        async with bench(storage, clock=clock) as run:
            await recalls(run)


async def test_a_recall_that_comes_while_what_a_clock_brought_forward_is_delivered_is_kept_to() -> None:
    async with bench(MemoryStorage()) as run:
        stored = [await run.after(b"%d" % number, 60_000) for number in range(2 * BATCH)]
        run.clock.wall_is_ahead = -3600
        moving = run.clock.advance(LONGEST_SLEEP)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: moving)
            with anyio.fail_after(PATIENCE):
                while run.timers.delivered == 0:
                    await checkpoint()
            told = await told_recalled(run, stored[-1])
        await run.until(lambda: len(run.delivered()) == 2 * BATCH - told)
        assert (stored[-1].body in run.delivered()) is not told
        await run.jump(2 * 3600)
        await run.until(lambda: run.timers.waiting == 0)
        assert len(run.delivered()) == 2 * BATCH - told


async def test_a_clock_that_jumps_ahead_brings_what_is_due_by_it() -> None:
    async with bench(MemoryStorage()) as run:
        for number in range(40):
            await run.after(b"%d" % number, 1000 * 3600 * (number + 1))
        run.clock.wall_is_ahead = 86_400
        await run.clock.advance(10)
        await run.come(*[b"%d" % number for number in range(24)])


async def test_a_full_disk_delays_and_neither_loses_nor_repeats() -> None:
    storage = FaultyStorage()
    async with bench(storage) as run:
        recalled = await run.after(b"recalled", 1_000)
        for number in range(50):
            await run.after(b"%d" % number, 1_000)
        await run.recall(recalled)
        storage.fail(os_error(errno.ENOSPC), "write", where="commitlog")
        await run.clock.advance(1)
        await run.until(lambda: run.store.refusal is not None)
        for _ in range(3):
            await run.clock.advance(REMEMBERED_MS / 1000)
        assert run.delivered() == []
        storage.heal()
        await run.later(lambda: len(run.delivered()) >= 50)
        await run.come(*[b"%d" % number for number in range(50)])
        assert run.timers.recalled == 1


async def test_recalls_are_forgotten_soon_also_when_nothing_else_is_to_come() -> None:
    async with bench(MemoryStorage()) as run:
        await run.recall(await run.after(b"recalled", 1_000))
        await run.clock.advance(1.5)
        await run.until(lambda: run.timers.recalled == 1)
        assert run.timers.remembered == 1
        await run.until(lambda: run.clock.waiting > 0)
        await run.clock.advance(REMEMBERED_MS / 1000)
        await run.until(lambda: run.timers.remembered == 0)


async def test_too_many_are_refused_and_may_still_be_recalled() -> None:
    async with bench(MemoryStorage(), most=2) as run:
        stored = await run.after(b"a", 5_000)
        await run.after(b"b", 5_000)
        with pytest.raises(LimitError, match="max-timer-messages") as refused:
            await run.after(b"c", 5_000)
        assert refused.value.soon
        await run.recall(stored)
        await run.clock.advance(5)
        await run.come(b"b")
        await run.until(lambda: run.timers.waiting == 0)
        await run.after(b"c", 5)


async def test_what_cannot_be_delivered_is_kept_and_no_garbage_stops_the_others() -> None:
    async with bench(MemoryStorage()) as run:
        garbage = [b"", b"REAL_TOPIC\x01../x\x02TIMER_OUT_MS\x011\x02", b"TIMER_OUT_MS\x01" + b"9" * 40 + b"\x02",
                   b"TIMER_OUT_MS\x01-5\x02REAL_TOPIC\x01rmq_sys_wheel_timer\x02", b"TIMER_DEL_UNIQKEY\x01\x02",
                   b"TIMER_OUT_MS\x017\x02TIMER_DELAY_MS\x01x\x02REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02",
                   b"REAL_TOPIC\x01t\x02REAL_QID\x01-1\x02TIMER_OUT_MS\x019223372036854775806\x02"]  # fmt: skip
        for text in garbage:
            run.store.put(StoredMessage(TIMER_TOPIC, 0, b"garbage", text))
        await run.after(b"a", 1)
        await run.clock.advance(0.001)
        await run.come(b"a")
        await run.until(lambda: run.timers.waiting <= 1)
        assert 4 <= len(run.messages(UNDELIVERED_TOPIC, 0)) == run.timers.undelivered


async def test_nothing_that_a_sender_writes_leads_to_another_queue_or_holds_up_the_others() -> None:
    options = replace(WAITING, file_reserved_time="3h")
    async with bench(MemoryStorage(), options=options) as run:
        texts = ["REAL_QID\x0177", "REAL_QID\x01-1", "REAL_QID\x01x", f"TIMER_ROLL_TIMES\x01{'9' * 5000}",
                 "TIMER_ROLL_TIMES\x01-1", "MY_TIMER_DEL_UNIQKEY\x01t+4"]  # fmt: skip
        for number, text in enumerate(texts):
            stored = await run.send(b"%d" % number, f"TIMER_DELAY_MS\x01{2 * HOUR_MS}\x02{text}")
            assert recall_handle_of(stored, "broker-a") is not None
        await run.jump(1.5 * 3600)
        await run.until(lambda: run.timers.rolled == len(texts))
        await run.jump(3600)
        await run.come(*[b"%d" % number for number in range(len(texts))])
        assert run.timers.undelivered == 0


async def test_what_no_handle_can_name_has_none() -> None:
    async with bench(MemoryStorage()) as run:
        assert recall_handle_of(await run.after(b"with a space", 1_000), "broker-a") is None


async def test_messages_of_a_deleted_topic_are_dropped() -> None:
    async with bench(MemoryStorage()) as run:
        await run.after(b"a", 1_000)
        run.store.put(StoredMessage("t", 3, b"makes the queue"))
        await settle()
        await run.store.delete_topic("t")
        await run.clock.advance(1)
        await run.until(lambda: run.timers.waiting == 0)
        assert run.timers.dropped == 1


async def test_what_is_gone_from_the_log_is_told_and_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    storage, clock = MemoryStorage(), Clock()
    options = replace(WAITING, mapped_file_size_commit_log=10_000, mapped_file_size_consume_queue=400)
    async with bench(storage, clock=clock, options=options) as run:
        for number in range(200):
            await run.after(b"%03d" % number, HOUR_MS)
    first = storage.list_directory("/store/commitlog")[0]
    storage.remove(f"/store/commitlog/{first}")
    checkpoint_free = [name for name in storage.list_directory("/store") if name == "checkpoint"]
    for name in checkpoint_free:
        storage.remove(f"/store/{name}")
    with caplog.at_level(logging.WARNING):
        async with bench(storage, clock=clock, options=options) as run:
            await run.jump(HOUR_MS / 1000)
            await run.until(lambda: run.timers.waiting == 0)
            assert run.timers.lost > 0
            assert run.timers.lost + len(run.delivered()) == 200


def test_when_a_message_is_due_follows_from_its_record_alone() -> None:
    relative = b"TIMER_OUT_MS\x0110000\x02TIMER_DELAY_MS\x01700\x02"  # by Apache, with a precision of 1000
    assert due_ms(relative, stored_ms=9_801, now_ms=9_801) == 10_501
    assert due_ms(relative, stored_ms=99_000, now_ms=10_600) == 11_000  # store times that are ahead
    assert due_ms(relative, stored_ms=9_801, now_ms=1_000) == 1_000  # begun by a clock that was ahead
    assert due_ms(b"TIMER_OUT_MS\x0110000\x02TIMER_DELIVER_MS\x0110300\x02", 0, 0) == 10_300
    assert due_ms(b"TIMER_OUT_MS\x0110000\x02TIMER_DELIVER_MS\x0110300\x02", 0, 0, precision_ms=1000) == 11_000
    assert due_ms(b"TIMER_OUT_MS\x0110299\x02TIMER_DELIVER_MS\x0110300\x02TIMER_DEL_UNIQKEY\x01t+a\x02", 0, 0) == 10_299
    assert due_ms(b"TIMER_OUT_MS\x0110299\x02TIMER_DELIVER_MS\x0110300\x02A_TIMER_DEL_UNIQKEY\x01b\x02", 0, 0) == 10_300
    assert due_ms(b"TIMER_DELIVER_MS\x0110300\x02", 0, 0) == 0
