"""Delivery of timer messages: moved from rmq_sys_wheel_timer to their topics when they are due, unless recalled.

The messages lie in that topic's queue 0, as Apache's; which of them wait is in memory (``timer_wheel``), with a copy on
disk now and then (``store.timer_file``) and what came behind it read from the queue at a start. How they are parked,
and when each is due, stands in ``timer_messages``.

    arrived -> wheel -> due -> read -> stored under its topic, durable -> waits no more
                            -> it recalls another: that one is dropped when it comes, which is later
                            -> not due yet: parked anew, so that retention does not take it (rolled)
                   -> cannot be read: set aside, and read again (``unread_timers``)

At most half of the time for which messages are kept lies between two rollings. A message is delivered once in a run
that is not killed, and at least once over kills: those since the last copy are delivered again. A clock that is put
back is noticed: what waits is read again then, and a delay that was begun by a clock that was ahead has ended.

Source: Apache RocketMQ 5.x ``TimerMessageStore``.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Iterator, Sequence

import anyio
from anyio.lowlevel import checkpoint

from rocketbox.blocking import run_blocking
from rocketbox.broker.property_text import find_property, remove_properties
from rocketbox.broker.put_stage import PutOrigin, PutStage
from rocketbox.broker.store.dispatcher import Arrival
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.record_reading import WrongEntryError
from rocketbox.broker.store.records import parse_record
from rocketbox.broker.store.timer_file import TimerFile, TimerState
from rocketbox.broker.timer_messages import (
    CORRECTION_MS,
    TimerParking,
    delete_key,
    due_ms,
    is_brought_forward,
    is_rolled,
    rolled,
)
from rocketbox.broker.timer_reading import TimerReader
from rocketbox.broker.timer_recalls import AT_ONCE, BroughtForward, Entry, Recalls
from rocketbox.broker.timer_wheel import LATEST_MS, TimerWheel
from rocketbox.broker.topics import TopicTable
from rocketbox.broker.unparking import LONGEST_SLEEP, RETRY_INTERVAL, Unparking, record_of
from rocketbox.broker.unread_timers import UnreadTimers
from rocketbox.clock import Clock
from rocketbox.errors import InvalidMessageError, StoreError, StoreFailedError, StoreFullError, StoreStalledError
from rocketbox.message import MAX_PROPERTIES_BYTES, MessageExt
from rocketbox.protocol.codes import TIMER_TOPIC
from rocketbox.protocol.stored_message import CHECKSUM_BYTES
from rocketbox.rare_log import RareLog
from rocketbox.tasks import Supervisor
from rocketbox.waiters import Waiter, make_waiter

__all__ = ["TimerDelivery"]

_log = logging.getLogger(__name__)

BATCH = 128  # messages that are delivered by one flush
RUN = 32  # messages that are given on in one turn of the loop
HELD_AT_ONCE = 1024  # entries that are moved in one turn of the loop
SCANNED_AT_ONCE = 256  # messages that a start reads in one step of a thread
SHARE_OF_TIME = 0.1  # at most this much of it goes into writing copies
MOST_OF_ONE_KEY = 32  # messages: one is stored more than once where its sender, or a broker after a kill, repeats it
MOST_REMEMBERED = 100_000  # recalls, while messages are aside that they may be of
ADDED_BYTES = 100  # of properties that a delivered message gets, where there is room


class TimerDelivery:
    """Delivers what waits in one store. ``interval`` is that of copies, ``kept_ms`` how long messages are kept.

    ``longest_ms`` is for how long one may wait.
    """

    def __init__(
        self,
        store: MessageStore,
        puts: PutStage,
        topics: TopicTable,
        parking: TimerParking,
        file: TimerFile,
        clock: Clock,
        *,
        interval: float,
        kept_ms: int,
        longest_ms: int,
        precision_ms: int,
    ) -> None:
        self._store = store
        self.puts = puts
        self._parking = parking
        self._file = file
        self._clock = clock
        self._interval = interval
        self._window_ms = kept_ms // 2
        self._longest_ms = longest_ms
        self._precision_ms = precision_ms
        self._reader = TimerReader(store)
        self._unparking = Unparking(store, puts, topics, clock, "timer")
        self._wheel = TimerWheel()
        self._hand: list[Entry] = []  # what is being delivered: it waits until it is durable
        self._seen = 0  # messages of the queue before this offset are known
        self._scan_end = 0
        self._is_loaded = False
        self._early = array("q")  # what arrives while it is not known what waits: due time, offset, ...
        self._taken_ms = -1  # nothing of the wheel is due before
        self._change = self._saved = 0
        self._saving = anyio.Lock()
        self._changed = anyio.Event()
        self._arrived = anyio.Event()
        self._sleeps_until = 0
        self._settled = anyio.Event()  # what is being delivered, has been
        self._times: tuple[int, float] | None = None
        self._was_at_ms = 0  # what the clock has shown before it was put back, as far as that is known
        self._recalls = Recalls()
        self._aside = UnreadTimers(store.troubles)
        self._brought = BroughtForward()  # of what is looked at while it is not known what waits
        self._expected: dict[int, Waiter] = {}  # recalls that somebody waits for, by their offset
        self.delivered = 0
        """How many messages were delivered in this run."""
        self.recalled = 0
        """How many were not delivered because they were recalled, in this run."""
        self.rolled = 0
        """How many were parked anew, in this run."""
        self.lost = 0
        """How many were gone from the log before their time, in this run."""
        self._log = RareLog(_log)

    @property
    def waiting(self) -> int:
        """How many wait, with those that recall others."""
        return len(self._wheel) + len(self._hand) + len(self._aside) + len(self._early) // 2

    @property
    def remembered(self) -> int:
        """How many recalls whose time has come are remembered still."""
        return len(self._recalls)

    @property
    def undelivered(self) -> int:
        """How many messages could not be delivered, in this run."""
        return self._unparking.undelivered

    @property
    def dropped(self) -> int:
        """How many were not delivered because their topic was deleted, in this run."""
        return self._unparking.dropped

    @property
    def is_loaded(self) -> bool:
        """Whether it is known what waits; nothing is delivered before."""
        return self._is_loaded

    # --- what comes in ---

    def on_arrival(self, arrived: Sequence[Arrival]) -> None:
        """Messages of the queue became readable."""
        now = self._clock.time_ms()
        if (back := self._put_back_ms()) > CORRECTION_MS:
            self._was_at_ms = max(self._was_at_ms, now + back)
            self._taken_ms = min(self._taken_ms, now)  # it was told by a clock that is no more
            self._arrived.set()
        for _, _, next_offset, _, record in arrived:
            offset = next_offset - 1
            if offset < self._scan_end:
                continue  # a start reads it
            _, _, _, _, stored, properties = parse_record(record)
            due = due_ms(properties, stored, now, self._precision_ms)
            waiter = self._expected.pop(offset, None)
            if waiter is not None and not waiter.done():
                in_time = due >= self._taken_ms  # what it recalls is due later than itself, and not taken yet
                waiter.set_result(in_time)
                if not in_time:
                    continue  # who asked is told that the message comes, so nothing may keep it back
            if due <= now and self._is_loaded and is_rolled(properties) and is_brought_forward(properties, due):
                # It was parked anew just before the clock was put back, and its recall waits for the time of before.
                self._is_loaded = False
                self._arrived.set()
            if self._is_loaded:
                if delete_key(properties) and not is_rolled(properties) and self.may_have_come(due + 1):
                    due = AT_ONCE  # what it recalls may come before its time; then it is parked anew for that
                self._add(due, offset, now)
            elif not self._brought.holds_back(properties, due, offset):
                self._early.extend((min(due, LATEST_MS), offset))
        self._seen = max(self._seen, arrived[-1][2])
        self._mark()

    def _add(self, due: int, offset: int, now_ms: int) -> None:
        wake = min(due, now_ms + self._window_ms)
        self._wheel.add(wake, offset)
        if wake < self._sleeps_until:
            self._arrived.set()

    def _mark(self) -> None:
        self._parking.waiting = self.waiting
        self._change += 1
        self._changed.set()

    def expect_recall(self, offset: int) -> Waiter:
        """Whether what recalls another, stored at ``offset`` a moment ago, comes before that one is delivered."""
        waiter = self._expected[offset] = make_waiter()
        return waiter

    def forget_recall(self, offset: int) -> None:
        """Nobody waits for that any more."""
        self._expected.pop(offset, None)

    def may_have_come(self, time_ms: int) -> bool:
        """Whether a message whose handle names a time that is to come may have come, for the clock was put back."""
        was_at = self._was_at_ms
        return time_ms <= self._store.last_timestamp_ms or (was_at > 0 and time_ms <= was_at + self._longest_ms)

    async def has_come(self, topic: str, uniq_key: str, time_ms: int) -> bool:
        """Whether a message that is recalled had come before, by a clock that was put back since.

        To be asked when the recall has arrived: from then on it does not come. Raises StoreError while that cannot be
        found out; without an index (``message-index-enable``) it is not known, and False.
        """
        if not self.may_have_come(time_ms):
            return False
        hand = self._hand
        while hand and self._hand is hand:
            await self._settled.wait()
        found = await self._store.query_keys(topic, uniq_key, MOST_OF_ONE_KEY, 0, LATEST_MS)
        wanted = b"%d" % (time_ms - 1)
        for record in found.records:
            properties = parse_record(record)[5]
            if (
                find_property(properties, b"UNIQ_KEY") == uniq_key.encode()
                and find_property(properties, b"TIMER_OUT_MS") == wanted
            ):
                return True
        return False

    def pass_over(self) -> None:
        """Deliver nothing of what waits now; it stays in the log until retention."""
        self._wheel = TimerWheel()
        self._hand, self._early = [], array("q")
        self._aside.clear()
        self._recalls.clear()
        self._mark()

    # --- start and stop ---

    async def bring_back(self) -> None:
        """Have the copy on disk name no message that a crash, or a repair, has taken from the end of the queue.

        What is parked next gets these offsets again, and would be taken for known, so it would never come.
        """
        await run_blocking(self._file.bring_back, self._store.max_offset(TIMER_TOPIC, 0))

    def start(self, tasks: Supervisor) -> None:
        """Find out what waits, then deliver it."""
        tasks.start("timer messages", self._run)
        tasks.start(f"write {self._file.path}", self._keep_saved)

    async def finish(self) -> None:
        """Write what waits, when nothing of it changes any more."""
        if self._change != self._saved:
            with anyio.CancelScope(shield=True):
                try:
                    await self._save()
                except Exception as error:  # the stop must go on; the next start delivers some again
                    _log.error("%s could not be written: %s", self._file.path, error)

    async def _load(self) -> None:
        """Fill the wheel: from the copy on disk, and from the queue behind it, up to where that ends now."""
        self._wheel, self._early, self._brought = TimerWheel(), array("q"), BroughtForward()
        self._scan_end = self._seen = self._store.max_offset(TIMER_TOPIC, 0)
        state, wrong = await run_blocking(self._file.load)
        for problem in wrong:
            _log.error("%s; what was delivered since the copy before is delivered again", problem)
        now, begin = self._clock.time_ms(), 0
        if self._store.last_timestamp_ms > now + CORRECTION_MS:
            self._was_at_ms = self._store.last_timestamp_ms
        reads_again = False
        if state is not None:
            begin = state.next_offset
            reads_again = state.written_ms > now + CORRECTION_MS
            await self._load_copy(state, now)
        await self._scan(begin)
        if reads_again or self._brought:  # their recalls may be in the copy
            await self._look_again()
        await self._get_ready()

    async def _get_ready(self) -> None:
        """It is known what waits: have the wheel hold what was held back until then, and what arrives meanwhile."""
        wheel, now = self._wheel, self._clock.time_ms()
        while self._wheel is wheel:  # else it was passed over
            entries = self._brought.take(HELD_AT_ONCE)
            if entries is None:
                if not self._early:
                    break
                part = self._early[: 2 * HELD_AT_ONCE]
                del self._early[: 2 * HELD_AT_ONCE]
                entries = list(zip(part[::2], part[1::2], strict=True))
            for due, offset in entries:
                self._add(due, offset, now)
            if len(entries) == HELD_AT_ONCE:
                await checkpoint()
        self._brought = BroughtForward()
        self._is_loaded = True
        self._mark()

    async def _load_copy(self, state: TimerState, now: int) -> None:
        entries, end = state.entries, self._scan_end
        # With a shorter window than before, what was to be rolled later may be gone by then.
        latest = now + self._window_ms if state.window_ms <= self._window_ms else now
        add = self._wheel.add
        for begin in range(0, len(entries), 2 * BATCH * RUN):
            for at in range(begin, min(begin + 2 * BATCH * RUN, len(entries)), 2):
                offset = entries[at + 1]
                if offset < end:
                    add(min(entries[at], latest), offset)
            await checkpoint()

    async def _scan(self, begin: int) -> None:
        """Find what waits in the queue from ``begin`` on, up to where it ended at the start."""
        begin = max(begin, self._store.min_offset(TIMER_TOPIC, 0))
        while begin < self._scan_end:
            count = min(SCANNED_AT_ONCE, self._scan_end - begin)
            records, unread = await run_blocking(self._reader.read_runs, [(begin, count)])
            now = self._clock.time_ms()
            try:
                self._aside.set_aside([(AT_ONCE, offset) for offset in unread], unread, self._clock.monotonic())
            except (OSError, WrongEntryError) as error:
                _log.debug("timer messages wait: %s", error)
                await self._clock.sleep(RETRY_INTERVAL)
                continue
            for record in records:
                _, _, offset, _, stored, properties = parse_record(record)
                due = due_ms(properties, stored, now, self._precision_ms)
                if not self._brought.holds_back(properties, due, offset):
                    self._add(due, offset, now)
            begin += count

    # --- the copy on disk ---

    async def _keep_saved(self) -> None:
        seconds = 0.0
        what = f"writing {self._file.path}"
        while True:
            while self._change == self._saved or not self._is_loaded:
                self._changed = anyio.Event()
                await self._changed.wait()
            await self._clock.sleep(max(self._interval, seconds / SHARE_OF_TIME))
            began = self._clock.monotonic()
            try:
                await self._save()
            except Exception as error:
                self._store.troubles.begin(what, error)
            else:
                self._store.troubles.end(what)
            seconds = self._clock.monotonic() - began

    async def _save(self) -> None:
        """Write a copy; one at a time, or an older one may be the last to come to the disk."""
        async with self._saving:
            await self._save_now()

    async def _save_now(self) -> None:
        if not self._is_loaded:
            return
        change, next_offset = self._change, self._seen
        # What waits was reckoned by the clock as it was: if it was put back since, the next start has to notice that.
        now = self._clock.time_ms() + self._put_back_ms()
        pieces = []
        for piece in self._pieces():  # the first one sets aside all that the others are made of
            pieces.append(piece)
            await checkpoint()
        if not await self._store.sync():  # else a power failure may take what is said to be delivered
            raise StoreError("the commit log is not synced, and the copy must not be ahead of it")
        await run_blocking(self._file.save, next_offset, now, self._window_ms, pieces)
        self._saved = change

    def _pieces(self) -> Iterator[bytes]:
        hand = [*self._hand, *self._aside.entries()]
        remembered, parts = self._recalls.pieces(HELD_AT_ONCE), self._wheel.pieces()
        entries, first = next(remembered), next(parts, b"")
        yield _bytes_of(hand) + _bytes_of(entries) + first
        yield from map(_bytes_of, remembered)
        yield from parts

    # --- delivering ---

    async def _run(self) -> None:
        if not self._is_loaded:
            await self._load()
        while True:
            if self._put_back_ms() > CORRECTION_MS or not self._is_loaded:
                await self._see_clock()
            now = self._clock.time_ms()
            self._times = (now, self._clock.monotonic())
            if self._aside and self._clock.monotonic() >= self._aside.again:
                await self._read_again()
                continue
            more = self._wheel.pour(now)
            due = self._wheel.take(now, BATCH)
            if due:
                if not await self._deliver(due, now):
                    return
            elif more:
                await checkpoint()
            else:
                await self._sleep(now)

    async def _sleep(self, now: int) -> None:
        """Until something is due, or arrives that is due sooner."""
        self._arrived = anyio.Event()
        self._taken_ms = now
        times = [self._wheel.next_ms()]
        if not self._aside or len(self._recalls) > MOST_REMEMBERED:  # else what they recall may be aside
            self._recalls.forget_before(now, HELD_AT_ONCE)
            times.append(self._recalls.next_ms())
        self._sleeps_until = until = min([each for each in times if each is not None], default=1 << 62)
        if until == 1 << 62 and not self._aside:
            await self._arrived.wait()
        else:
            seconds = min(max(until - now, 0) / 1000, LONGEST_SLEEP)
            if self._aside:
                seconds = min(seconds, max(0.0, self._aside.again - self._clock.monotonic()))
            with self._clock.move_on_after(seconds):
                await self._arrived.wait()
        self._sleeps_until = 0

    async def _deliver(self, entries: list[Entry], now: int) -> bool:
        """Deliver what is due; False when nothing more can be. What could not be delivered now waits again."""
        self._taken_ms = max(self._taken_ms, entries[-1][0])
        self._settled = anyio.Event()
        hand = self._hand = entries
        ends: list[int | None] = []  # where each of the first ones ends in the log
        settled = 0
        try:
            records, unread = await self._reader.read(entries)
            entries[:] = self._aside.set_aside(entries, unread, self._clock.monotonic())
            while len(ends) < len(entries):
                if self._hand is not hand:
                    break  # it was passed over meanwhile
                entry = entries[len(ends)]
                message, at = records.get(entry[1]), max(now, self._clock.time_ms())
                if message is not None and (due := self._comes_later(message, entry, at)) is not None:
                    del entries[len(ends)]
                    self._wheel.add(due, entry[1])
                    continue
                ends.append(self._give(message, entry, at))
                if len(ends) % RUN == 0:
                    await checkpoint()
        except StoreFailedError as error:
            _log.error("timer messages are delivered no more: %s", error)
            return False
        except (OSError, StoreError) as error:  # no room now, or an entry that is mended meanwhile
            _log.debug("timer messages wait: %s", error)
            with anyio.CancelScope(shield=True):
                settled = await self._settle(ends)
            ends = []
            await self._clock.sleep(RETRY_INTERVAL)
        finally:
            if ends:
                with anyio.CancelScope(shield=True):
                    settled = await self._settle(ends)
            if self._hand is hand:
                for wake, offset in entries[settled:]:
                    self._wheel.add(wake, offset)
                self._hand = []
            self._settled.set()
            self._mark()
        return True

    def _comes_later(self, message: MessageExt, entry: Entry, now: int) -> int | None:
        """When a message is due that was to be parked anew and is due by now, as after a long stop, or as a clock jumps
        ahead while it is read; None of any other.

        It waits once more, until that: what recalls it may stand behind it here, and comes before it there.
        """
        properties = message.raw_properties
        if entry[0] >= now or delete_key(properties) is not None:
            return None
        due = due_ms(properties, message.store_timestamp_ms, now, self._precision_ms)
        return due if entry[0] < due <= now and not is_brought_forward(properties, due) else None

    async def _settle(self, ends: list[int | None]) -> int:
        """How many of those that were put wait no more: they are durable."""
        end_offset = max([end for end in ends if end is not None], default=None)
        while end_offset is not None:
            try:
                await self._store.durable(end_offset)
                break
            except (TimeoutError, StoreStalledError):  # it is in the log: put once more it would come twice
                _log.warning("timer messages wait for a slow disk")
            except StoreFullError:  # some were taken back, and are put again
                durable = self._store.health().durable_offset
                return next((at for at, end in enumerate(ends) if end is not None and end > durable), len(ends))
            except StoreError:
                return 0
        return len(ends)

    def _give(self, message: MessageExt | None, entry: Entry, now: int) -> int | None:
        """Do with a message what its time has come for; where it ends in the log, None when nothing was stored."""
        if message is None:
            self.lost += 1
            self._log.tell(
                logging.WARNING, self._clock.monotonic(), "lost",
                "timer message %d is gone from the log, by age or for want of room, before it was delivered", entry[1],
            )  # fmt: skip
            return None
        properties = message.raw_properties
        key = delete_key(properties)
        due = due_ms(properties, message.store_timestamp_ms, now, self._precision_ms)
        is_early = due > now
        if key is not None and (not is_early or entry[0] == AT_ONCE):
            self._recalls.remember(key, entry, now)
        if is_early:
            return self._roll(message, due)
        if key is not None:
            return None
        if self._recalls.drop(properties):
            self.recalled += 1
            return None
        added = b""
        if len(properties) + ADDED_BYTES + CHECKSUM_BYTES <= MAX_PROPERTIES_BYTES:
            added = b"TIMER_ENQUEUE_MS\x01%d\x02TIMER_DEQUEUE_MS\x01%d\x02" % (message.store_timestamp_ms, now)
        end_offset = self._unparking.put(message, added)
        self.delivered += end_offset is not None
        return end_offset

    def _roll(self, message: MessageExt, due: int) -> int | None:
        """Park a message anew, so that it is young again."""
        text = remove_properties(message.raw_properties, (b"__CRC32#",))
        longer = rolled(text, due)
        if len(longer) + CHECKSUM_BYTES <= MAX_PROPERTIES_BYTES:
            text = longer
        record = record_of(message, TIMER_TOPIC, 0, text, message.reconsume_times)
        try:
            end_offset = self.puts.put(record, PutOrigin.DELIVERY).end_offset
        except InvalidMessageError:  # it is too large by now: it comes early rather than never
            return self._unparking.put(message)
        self.rolled += 1
        return end_offset

    # --- reading ---

    async def _read_again(self) -> None:
        """Have those that were set aside, and can be read by now, be due."""
        entries = sorted(self._aside.entries(), key=lambda entry: entry[1])
        messages, unread = await self._reader.read(entries)
        now = self._clock.time_ms()
        for wake, offset in self._aside.read_again(unread, self._clock.monotonic()):
            self._wheel.add(wake, offset)
            message = messages.get(offset)
            if message is not None and wake > now:  # it was due, and the clock was put back
                properties = message.raw_properties
                due = due_ms(properties, message.store_timestamp_ms, now, self._precision_ms)
                if delete_key(properties) is None and is_brought_forward(properties, due):
                    self._is_loaded = False  # then all is looked at, for what recalls it
        self._mark()

    # --- a clock that is put back ---

    def _put_back_ms(self) -> int:
        """By how much the clock was put back since what waits was reckoned by it; 0: it was not."""
        if self._times is None:
            return 0
        wall, monotonic = self._times
        return max(0, round(wall + (self._clock.monotonic() - monotonic) * 1000) - self._clock.time_ms())

    async def _see_clock(self) -> None:
        """The clock was put back: see when everything that waits is due by it as it is now."""
        self._was_at_ms = max(self._was_at_ms, self._clock.time_ms() + self._put_back_ms())
        if not self._wheel and self._is_loaded:
            return
        _log.warning("the clock was put back; %d timer messages are looked at again", len(self._wheel))
        try:
            await self._save()  # if this is cut short, it is begun again from there
        except Exception as error:
            _log.error("%s could not be written: %s", self._file.path, error)
        self._is_loaded = False
        await self._look_again()
        await self._get_ready()

    async def _look_again(self) -> None:
        """Read all messages of the wheel, and have them wait until they are due by the clock as it is now."""
        before, self._wheel = self._wheel, TimerWheel()
        self._taken_ms = self._clock.time_ms()
        for piece in before.pieces():
            numbers = array("q", piece)
            for begin in range(0, len(numbers), 2 * BATCH):
                part = [(numbers[at], numbers[at + 1]) for at in range(begin, min(begin + 2 * BATCH, len(numbers)), 2)]
                messages = await self._read_as_possible(part)
                now = self._clock.time_ms()
                for wake, offset in part:
                    message = messages.get(offset)
                    if message is not None:
                        properties = message.raw_properties
                        wake = due_ms(properties, message.store_timestamp_ms, now, self._precision_ms)
                        if self._brought.holds_back(properties, wake, offset):
                            continue
                    self._add(wake, offset, now)
                await checkpoint()

    async def _read_as_possible(self, entries: Sequence[Entry]) -> dict[int, MessageExt]:
        """As far as they can be read: the others are due when they were."""
        messages, unread = await self._reader.read(entries)
        if unread:
            offset, error = next(iter(unread.items()))
            self._log.tell(
                logging.ERROR, self._clock.monotonic(), "clock",
                "timer message %d, and %d more, come by the clock as it was: %s", offset, len(unread) - 1, error,
            )  # fmt: skip
        return messages


def _bytes_of(entries: Iterable[Entry]) -> bytes:
    return array("q", [number for entry in entries for number in entry]).tobytes()
