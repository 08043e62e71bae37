"""Delivery of delayed messages: moved from SCHEDULE_TOPIC_XXXX, a queue for each level, to their topic when due.

How they are parked stands in ``delay_levels``. How far each level is delivered is kept in ``delayOffset.json``; an
offset counts only when what it delivered is durable, so a crash repeats messages and loses none.

A message that cannot be read (a bad sector) holds up its level, which health shows. After READ_PATIENCE it is passed
over, if those behind it can be read, which the log tells: it stays where it is. Where none can, the disk is waited for.

Source: Apache RocketMQ 5.x ``ScheduleMessageService``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from math import inf

import anyio

from rocketbox.broker.delay_levels import parked_ms
from rocketbox.broker.persister import TableFile
from rocketbox.broker.put_stage import PutStage
from rocketbox.broker.store.dispatcher import Arrival
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.record_reading import WrongEntryError
from rocketbox.broker.table_text import table_pieces
from rocketbox.broker.timer_messages import CORRECTION_MS
from rocketbox.broker.topics import TopicTable
from rocketbox.broker.unparking import LONGEST_SLEEP, RETRY_INTERVAL, Unparking
from rocketbox.clock import Clock
from rocketbox.errors import (
    StoreCorruptError,
    StoreError,
    StoreFailedError,
    StoreFullError,
    StoreStalledError,
)
from rocketbox.message import MessageExt
from rocketbox.protocol.codes import SCHEDULE_TOPIC, UNDELIVERED_TOPIC
from rocketbox.protocol.loose_json import loads_loose
from rocketbox.protocol.registration_bodies import DataVersion
from rocketbox.protocol.stored_message import decode_message
from rocketbox.tasks import Supervisor

__all__ = ["DelayedDelivery"]

_log = logging.getLogger(__name__)

DELIVERIES_FOR_EACH_VERSION = 200  # Apache's delayOffsetUpdateVersionStep
BATCH = 32  # records read at once
READ_PATIENCE = 600.0  # seconds


class DelayedDelivery:
    """Moves messages to their topics when their delay is over; one task for each level in which a message has waited.

    A message that would be due later than now and its delay was stored by a clock that was ahead: it is due at once,
    unless it was parked since the clock is right, which it says then, and waits its delay. Levels that
    ``message-delay-level`` names no longer are delivered after the longest delay that is left.
    """

    def __init__(
        self,
        store: MessageStore,
        puts: PutStage,
        topics: TopicTable,
        level_ms: tuple[int, ...],
        file: TableFile,
        clock: Clock,
    ) -> None:
        self._store = store
        self._level_ms = level_ms
        self._file = file
        self._clock = clock
        self._offsets: dict[int, int] = {}
        self._version = DataVersion(timestamp=clock.time_ms())
        self._moves = 0
        self._tasks: Supervisor | None = None
        self._arrived: dict[int, anyio.Event] = {}  # of the levels whose tasks have begun
        self._levels: set[int] = set()
        self._unparking = Unparking(store, puts, topics, clock, "delayed")

    @property
    def undelivered(self) -> int:
        """How many messages could not be delivered, in this run."""
        return self._unparking.undelivered

    @property
    def dropped(self) -> int:
        """How many were not delivered because their topic was deleted, in this run."""
        return self._unparking.dropped

    def offset(self, level: int) -> int:
        """The first parked message of a level that is not delivered for certain."""
        return self._offsets.get(level, 0)

    def bring_back(self, end_of: Callable[[str, int], int]) -> bool:
        """Bring offsets behind the end of their queue back to it; whether there were any.

        ``end_of`` says where a queue (topic, id) ends. What is parked next gets these offsets again, and would be taken
        for delivered.
        """
        behind = {
            level: end for level, offset in self._offsets.items() if offset > (end := end_of(SCHEDULE_TOPIC, level - 1))
        }
        if behind:
            self._offsets.update(behind)
            self._file.mark()
        return bool(behind)

    def start(self, tasks: Supervisor) -> None:
        """Begin to deliver, from where the last run came to."""
        self._tasks = tasks
        queues = self._store.queues()
        if (UNDELIVERED_TOPIC, 0) in queues:
            self._unparking.show_undelivered()
        parked = {queue_id + 1 for topic, queue_id in queues if topic == SCHEDULE_TOPIC}
        left: dict[int, int] = {}  # what waits in levels that are no more
        for level in sorted(parked | set(range(1, len(self._level_ms) + 1))):
            least = self._store.min_offset(SCHEDULE_TOPIC, level - 1)
            end = self._store.max_offset(SCHEDULE_TOPIC, level - 1)
            if level in self._offsets or end:  # what is gone from the log before its time is told by its task
                self._offsets[level] = min(self._offsets.get(level, least), end)
            if level > len(self._level_ms):
                if end <= self.offset(level):
                    continue  # nothing waits there, and nothing more comes
                left[level] = end - self.offset(level)
            self._levels.add(level)
            if end > self.offset(level):
                self._begin(level)
        if left:
            _log.warning(
                "%d messages wait in delay levels that message-delay-level does not name any more (levels %s); they "
                "are delivered after its longest delay, %d s", sum(left.values()), ", ".join(map(str, left)),
                max(self._level_ms) // 1000,
            )  # fmt: skip

    def end(self) -> None:
        """Begin with no further level; those that were begun are their supervisor's to end."""
        self._tasks = None

    def _begin(self, level: int) -> None:
        if self._tasks is not None:
            self._arrived[level] = anyio.Event()
            self._tasks.start(f"delay level {level}", self._deliver_level, level)

    def on_arrival(self, arrived: Sequence[Arrival]) -> None:
        """Messages became readable; the levels' tasks wait for theirs, and the first one of a level begins its task."""
        parked = {queue_id + 1 for topic, queue_id, *_ in arrived if topic == SCHEDULE_TOPIC}
        for level in sorted(parked & self._levels):
            if level in self._arrived:
                self._arrived[level].set()
            else:
                self._begin(level)

    def pass_over(self) -> None:
        """Deliver nothing of what is parked now; it stays in the log until retention."""
        for level in self._levels:
            end = self._store.max_offset(SCHEDULE_TOPIC, level - 1)
            if end > self.offset(level):
                self._advance(level, end, end - self.offset(level))

    def _delay_ms(self, level: int) -> int:
        return self._level_ms[level - 1] if level <= len(self._level_ms) else max(self._level_ms)

    async def _deliver_level(self, level: int) -> None:
        queue_id, trouble = level - 1, f"reading delay level {level}"
        one_by_one_until, unread_since = 0, inf
        while True:
            arrived = self._arrived[level] = anyio.Event()
            offset = self.offset(level)
            count = 1 if offset < one_by_one_until else BATCH
            try:
                found = await self._store.fetch(SCHEDULE_TOPIC, queue_id, offset, count)
            except (OSError, WrongEntryError) as error:  # an entry that is wrong is mended meanwhile
                if count > 1:  # which of them is it?
                    one_by_one_until = offset + BATCH
                    continue
                self._store.troubles.begin(trouble, f"message {offset}: {error}")
                unread_since = min(unread_since, self._clock.monotonic())
                if self._clock.monotonic() - unread_since < READ_PATIENCE or not await self._pass_unread(level, offset):
                    await self._clock.sleep(RETRY_INTERVAL)
                continue
            self._store.troubles.end(trouble)
            unread_since = inf
            if found.records:
                try:
                    await self._deliver(
                        level, [decode_message(record, decompress=False)[0] for record in found.records]
                    )
                except StoreFailedError as error:
                    _log.error("delay level %d delivers no more: %s", level, error)
                    return
                except StoreFullError as error:  # what was taken back is delivered again
                    _log.debug("delay level %d waits: %s", level, error)
                    await self._clock.sleep(RETRY_INTERVAL)
            elif found.next_begin_offset > offset:
                _log.warning(
                    "delay level %d: messages %d to %d are gone from the log, by age or for want of room, before they "
                    "were delivered", level, offset, found.next_begin_offset - 1,
                )  # fmt: skip
                self._advance(level, found.next_begin_offset, 1)
            else:
                await arrived.wait()

    async def _pass_unread(self, level: int, offset: int) -> bool:
        """Pass over what cannot be read from an offset on, up to the next message that can be; whether there is one."""
        for other in range(offset + 1, min(offset + 1 + BATCH, self._store.max_offset(SCHEDULE_TOPIC, level - 1))):
            try:
                await self._store.fetch(SCHEDULE_TOPIC, level - 1, other, 1)
            except (OSError, WrongEntryError):
                continue
            _log.error(
                "delay level %d: messages %d to %d cannot be read for %d s, and are not delivered; those behind them "
                "can, and are", level, offset, other - 1, READ_PATIENCE,
            )  # fmt: skip
            self._advance(level, other, 1)
            return True
        return False

    async def _deliver(self, level: int, messages: list[MessageExt]) -> None:
        """Deliver messages of one level, in order, each when it is due."""
        puts: list[tuple[int | None, int]] = []  # where each ends in the log, and the offset behind it here
        for message in messages:
            while (wait := self._due_ms(level, message) - self._clock.time_ms()) > 0:
                await self._settle(level, puts)
                puts = []
                await self._clock.sleep(min(wait / 1000, LONGEST_SLEEP))
            if message.queue_offset < self.offset(level):
                continue  # it was passed over meanwhile
            while True:
                try:
                    puts.append((self._unparking.put(message), message.queue_offset + 1))
                    break
                except StoreFailedError:
                    raise
                except StoreError as error:  # no room now: the store, or the file of topics, says so itself
                    _log.debug("delay level %d waits: %s", level, error)
                    await self._settle(level, puts)
                    puts = []
                    await self._clock.sleep(RETRY_INTERVAL)
                except Exception:  # the task begins again: with this message, and not with those before it
                    await self._settle(level, puts)
                    raise
        await self._settle(level, puts)

    async def _settle(self, level: int, puts: list[tuple[int | None, int]]) -> None:
        """Count what was put as delivered, once it is durable; a stop that comes meanwhile waits for that.

        Raises StoreFullError when some of it was taken back; what was not counts.
        """
        end_offset = max([end for end, _ in puts if end is not None], default=None)
        with anyio.CancelScope(shield=True):
            while end_offset is not None:
                try:
                    await self._store.durable(end_offset)
                    break
                except (TimeoutError, StoreStalledError):  # it is in the log: put once more it would come twice
                    _log.warning("delay level %d waits for a slow disk", level)
                except StoreFullError:
                    durable = self._store.health().durable_offset
                    kept = [done for end, done in puts if end is None or end <= durable]
                    if kept:
                        self._advance(level, kept[-1], len(kept))
                    raise
            if puts:
                self._advance(level, puts[-1][1], len(puts))

    def _due_ms(self, level: int, message: MessageExt) -> int:
        now, delay = self._clock.time_ms(), self._delay_ms(level)
        parked = parked_ms(message.raw_properties)
        due = (message.store_timestamp_ms if parked is None else parked) + delay
        return due if due <= now + delay + CORRECTION_MS else now

    def _advance(self, level: int, offset: int, moved: int) -> None:
        self._offsets[level] = max(offset, self.offset(level))
        before, self._moves = self._moves, self._moves + moved
        if self._moves // DELIVERIES_FOR_EACH_VERSION != before // DELIVERIES_FOR_EACH_VERSION:
            self._version = self._version.next(self._clock.time_ms())
        self._file.mark()

    def pieces(self) -> Iterator[bytes]:
        """The text of ``delayOffset.json``."""
        return table_pieces([("dataVersion", self._version.to_json()), ("offsetTable", self._offsets)], [])

    def load(self, text: str, file: str = "delayOffset.json") -> None:
        """Take the offsets over from a file, ours or Apache's. Raises StoreCorruptError when it is not one."""
        try:
            values = loads_loose(text)
            self._offsets = {int(level): int(offset) for level, offset in values.get("offsetTable", {}).items()}
            self._version = DataVersion.from_json(values.get("dataVersion") or {})
        except (ValueError, TypeError, AttributeError) as error:
            raise StoreCorruptError(file, 0, f"not a table of delay offsets ({error})") from error
