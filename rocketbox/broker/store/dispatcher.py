"""What becomes of a record behind the durable point: its queue shows it, the index will, and who listens is told.

In the healthy case that happens in the same turn of the loop, from the records that were just written. After any error
it is behind: what comes then is not kept in memory but read again from the log, from the first record that is not
dispatched on, with a pause that grows, until it has caught up. Nobody who waits for the disk waits for it.

A record is dispatched once: its queue entry is the last thing that can fail, and the place is noted record by record.

Source: Apache RocketMQ 5.5 ``DefaultMessageStore.ReputMessageService`` (which always reads from the log).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio

from rocketbox.blocking import WorkerPool
from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.dispatch import Appended, Derived, is_queued
from rocketbox.broker.store.index_feed import IndexFeed
from rocketbox.broker.store.record_cache import RecordCache
from rocketbox.broker.store.records import find_keys, parse_record
from rocketbox.broker.store.troubles import Troubles
from rocketbox.clock import Clock
from rocketbox.errors import StoreError

__all__ = ["Arrival", "ArrivalCallback", "Dispatcher"]

Arrival = tuple[str, int, int, int, bytes]
"""A message that can be read now: topic, queue id, the offset behind it, its tags code and its record."""

ArrivalCallback = Callable[[Sequence[Arrival]], None]
"""Called with the messages of one group commit, in the order of the log; at least one."""

FIRST_BACKOFF = 0.1
LONGEST_BACKOFF = 30.0
MOST_UNWRITTEN = 4_000_000  # entries of queues (20 bytes each) that wait in memory for a disk that takes none
BEHIND = "dispatching messages to their queues"  # names of the troubles
LISTENERS = "telling of new messages"


class Dispatcher:
    """Makes messages readable. ``dispatched`` is where the first begins that is not."""

    def __init__(
        self,
        log: CommitLog,
        derived: Derived,
        feed: IndexFeed,
        cache: RecordCache,
        clock: Clock,
        troubles: Troubles,
        listeners: list[ArrivalCallback],
    ) -> None:
        self.dispatched = log.end
        self.timestamp = 0  # store time (epoch ms) and offset of the newest record that is dispatched
        self.last_record = 0
        self._log = log
        self._derived = derived
        self._feed = feed
        self._cache = cache
        self._clock = clock
        self._troubles = troubles
        self._listeners = listeners
        self._durable = log.end
        self._is_behind = False
        self._fell_behind = anyio.Event()

    def begin(self, timestamp: int, last_record: int) -> None:
        """What recovery found of the newest record."""
        self.timestamp, self.last_record = timestamp, last_record

    def dispatch(self, appended: Sequence[Appended], end: int) -> None:
        """All before ``end`` is durable now; ``appended`` are the records in it that were not before. Never raises."""
        self._durable = end
        if self._is_behind:
            return
        try:
            self._check_room()
            self._cache.add({each[1]: each[6] for each in appended}, sum([len(each[6]) for each in appended]))
            self._dispatch(appended)
            self.dispatched = end
        except Exception as error:
            self._fall_behind(error)

    def _dispatch(self, appended: Sequence[Appended]) -> None:
        self._feed.add(appended)
        add = self._derived.add_to_queue
        arrived: list[Arrival] = []
        try:
            for queue, offset, timestamp, topic, _, properties, record, keys in appended:
                if queue is not None:
                    code = add(queue, topic, properties, keys[0], offset, len(record), timestamp)
                    arrived.append((topic, queue.queue_id, queue.max_offset, code, record))
                self.dispatched = offset + len(record)
                self.timestamp = timestamp
                self.last_record = offset
        finally:
            if arrived:
                self._tell(arrived)

    def _tell(self, arrived: Sequence[Arrival]) -> None:
        failed = False
        for listener in self._listeners:
            try:
                listener(arrived)
            except Exception as error:
                failed = True
                self._troubles.begin(LISTENERS, error)
        if not failed:
            self._troubles.end(LISTENERS)

    def _check_room(self) -> None:
        if self._derived.unwritten > MOST_UNWRITTEN:
            raise StoreError(f"{self._derived.unwritten} entries of queues wait for a disk that takes none")

    def _fall_behind(self, error: BaseException) -> None:
        self._troubles.begin(BEHIND, error)
        self._is_behind = True
        self._fell_behind.set()

    # --- catching up ---

    async def run(self, pool: WorkerPool) -> None:
        """Catch up whenever it is behind; runs until it is cancelled."""
        while True:
            await self._fell_behind.wait()
            backoff = FIRST_BACKOFF
            while self._is_behind:
                await self._clock.sleep(backoff)
                backoff = min(backoff * 2, LONGEST_BACKOFF)
                if await self.catch_up(pool):
                    backoff = FIRST_BACKOFF

    async def catch_up(self, pool: WorkerPool) -> bool:
        """Dispatch what is behind, read from the log by a thread of ``pool``; False when that failed again."""
        if not self._is_behind:
            return True
        try:
            while self.dispatched < self._durable:
                self._check_room()
                start = self.dispatched
                records, behind = await pool.run(self._log.read_records, start, self._durable)
                if self.dispatched == start:  # nobody else has caught up meanwhile
                    self._dispatch_again(records)
                    self.dispatched = behind
        except Exception as error:
            self._troubles.begin(BEHIND, error)
            return False
        self._is_behind = False
        self._fell_behind = anyio.Event()
        self._troubles.end(BEHIND)
        return True

    def _dispatch_again(self, records: list[tuple[int, bytes]]) -> None:
        for offset, record in records:
            topic, queue_id, queue_offset, sys_flag, stored, properties = parse_record(record)
            queued = is_queued(sys_flag) and not self._derived.deleted.is_gone(topic, offset)
            queue = self._derived.queue(topic, queue_id) if queued else None
            if queue is not None and queue.max_offset != queue_offset:
                if queue.max_physical_end >= offset + len(record):
                    continue  # the error came after its entry
                raise StoreError(
                    f"the record at {offset} has queue offset {queue_offset} in {topic}/{queue_id}, "
                    f"where {queue.max_offset} comes next"
                )
            self._dispatch([(queue, offset, stored, topic, sys_flag, properties, record, find_keys(properties))])
