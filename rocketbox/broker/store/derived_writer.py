"""Writing what is derived from the log, queues and index, and the checkpoint that says how far they are on the disk.

Entries of queues are written every ``flush_interval_consume_queue``, behind a sync of the log and without one of their
own: what lies behind the checkpoint is cut and built again after a crash. They are synced, and the checkpoint moves on,
every ``flush_consume_queue_thorough_interval``, or when the log has grown by ``CHECKPOINT_BYTES`` since, and at the
stop. Then a few threads sync what has changed: a thousand queues do not hold up the log's own syncs for long. The index
is written, and synced, every ``flush_interval_index``.

An error is a trouble: what could not be written is kept and written again, after a pause that grows. Meanwhile the
checkpoint stays where it is; nothing else waits.

Source: Apache RocketMQ 5.5 ``FlushConsumeQueueService``, ``StoreCheckpoint``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import anyio

from rocketbox.blocking import WorkerPool
from rocketbox.broker.store.checkpoint import CheckpointFile
from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.consume_queue import ConsumeQueue
from rocketbox.broker.store.dispatch import Derived
from rocketbox.broker.store.dispatcher import Dispatcher
from rocketbox.broker.store.index_feed import BUILDING, IndexFeed, TakenIndex
from rocketbox.broker.store.log_writer import CHECKPOINT, LogWriter
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.store.state import StoreState
from rocketbox.broker.store.troubles import Troubles
from rocketbox.clock import Clock

__all__ = ["DerivedWriter", "checkpoint_changes"]

CHECKPOINT_BYTES = 64 << 20  # of log behind the checkpoint: about what is read again in a second after a crash
SYNC_THREADS = 4
INDEX_ENTRIES_HELD = 300_000  # more than this (7 MB) are written without waiting for flush_interval_index
LONGEST_BACKOFF = 30.0
QUEUES = "writing consume queues"  # names of the troubles
INDEX = "writing the index"
DELETED = "removing the queues of deleted topics"


class DerivedWriter:
    """Writes queues, index and checkpoint. :meth:`run` is its task."""

    def __init__(
        self,
        log: CommitLog,
        writer: LogWriter,
        derived: Derived,
        feed: IndexFeed,
        dispatcher: Dispatcher,
        checkpoint: CheckpointFile,
        options: StoreOptions,
        clock: Clock,
        state: StoreState,
        troubles: Troubles,
        topic_deleted: Callable[[str], None],
    ) -> None:
        self._log = log
        self._writer = writer
        self._derived = derived
        self._feed = feed
        self._dispatcher = dispatcher
        self._checkpoint = checkpoint
        self._clock = clock
        self._state = state
        self._troubles = troubles
        self._topic_deleted = topic_deleted
        self._interval = options.flush_interval_consume_queue / 1000
        self._thorough = options.flush_consume_queue_thorough_interval / 1000
        self._index_interval = options.flush_interval_index / 1000
        now = clock.monotonic()
        self._thorough_due = now + self._thorough
        self._index_due = now + self._index_interval
        self._unsynced: dict[ConsumeQueue, None] = {}
        self._removed: list[ConsumeQueue] = []  # their files are still to be removed
        self._one_at_a_time = anyio.Lock()

    async def run(self, pool: WorkerPool) -> None:
        """Write in intervals, for ever."""
        pause = self._interval
        while self._state.failure is None:
            await self._clock.sleep(pause)
            now = self._clock.monotonic()
            index = now >= self._index_due or self._derived.index.changed > INDEX_ENTRIES_HELD
            grown = self._dispatcher.dispatched - self._checkpoint.value.queued_offset
            good = await self.flush(pool, index=index, thorough=now >= self._thorough_due or grown >= CHECKPOINT_BYTES)
            if self._removed:
                good = await self._go_on_deleting(pool) and good
            pause = self._interval if good else min(max(pause, 0.5) * 2, LONGEST_BACKOFF)

    async def flush(self, pool: WorkerPool, *, index: bool, thorough: bool) -> bool:
        """Write queues, and index; with ``thorough`` sync queues too, and move the checkpoint. False after an error."""
        async with self._one_at_a_time:
            with anyio.CancelScope(shield=True):  # what is taken must be written or put back
                good = await self._flush(pool, index=index and self._derived.indexes, thorough=thorough)
        return good

    async def delete_queues(self, pool: WorkerPool, topic: str) -> None:
        """Take the queues of a topic out and remove their files.

        Raises OSError; what could not be removed is tried again in intervals, then ``topic_deleted`` is called.
        """
        async with self._one_at_a_time:
            with anyio.CancelScope(shield=True):
                for queue in self._derived.detach(topic):
                    self._unsynced.pop(queue, None)
                    self._removed.append(queue)
                await self._remove_files(pool)

    def is_deleting(self, topic: str) -> bool:
        """Whether files of a deleted topic are still to be removed."""
        return any(queue.topic == topic for queue in self._removed)

    async def _remove_files(self, pool: WorkerPool) -> None:
        while self._removed:
            await pool.run(self._removed[-1].remove_files)
            self._removed.pop()
        await self._flush(pool, index=False, thorough=True)  # else an unclean stop finds other queues than said

    async def _go_on_deleting(self, pool: WorkerPool) -> bool:
        async with self._one_at_a_time:
            topics = {queue.topic for queue in self._removed}
            with anyio.CancelScope(shield=True):
                try:
                    await self._remove_files(pool)
                except OSError as error:
                    self._troubles.begin(DELETED, error)
                    return False
        self._troubles.end(DELETED)
        for topic in topics:
            self._topic_deleted(topic)
        return True

    async def _flush(self, pool: WorkerPool, *, index: bool, thorough: bool) -> bool:
        built = not index or await self._build_index(pool)
        keys = await self._take_index(pool) if index else None
        good: bool | None = None
        try:
            good = await self._flush_queues(pool, keys.built if keys else 0, thorough=thorough)
        finally:
            if good is None and keys is not None:
                await pool.run(self._feed.put_back, keys)
        if good is None:
            return False
        if keys is not None:
            good = await self._write_index(pool, keys) and good
        return good and built and (keys is not None) is index

    async def _flush_queues(self, pool: WorkerPool, indexed: int, *, thorough: bool) -> bool | None:
        """Write queues; None when the log could not be synced up to their records, and those ``indexed``."""
        dispatcher = self._dispatcher
        end, timestamp, last = dispatcher.dispatched, dispatcher.timestamp, dispatcher.last_record
        ends = self._derived.queue_ends if thorough else 0
        taken = self._derived.take_changed()  # nothing of what comes meanwhile, for that may not be synced
        if self._log.synced < max(end, indexed):
            await self._writer.sync_written(pool)
            if self._log.synced < max(end, indexed):
                self._derived.set_written(taken, {queue for queue, _, _ in taken})
                return None
        good = await self._write_queues(pool, taken)
        if thorough:
            good = good and await self._sync_queues(pool)
            if good:
                good = await self._write_checkpoint(pool, checkpoint_changes(end, timestamp, last, ends))
        return good

    async def _write_queues(self, pool: WorkerPool, taken: list[tuple[ConsumeQueue, int, bytes]]) -> bool:
        if not taken:
            return True
        failed: dict[ConsumeQueue, OSError] = {}

        def write() -> None:
            for queue, offset, data in taken:
                try:
                    queue.write(offset, data)
                except OSError as error:
                    failed[queue] = error

        try:
            await pool.run(write)
        except BaseException:
            self._derived.set_written(taken, {queue for queue, _, _ in taken})
            raise
        self._derived.set_written(taken, failed)
        self._unsynced.update(dict.fromkeys(queue for queue, _, _ in taken if queue not in failed))
        for error in failed.values():
            self._troubles.begin(QUEUES, error)
            return False
        self._troubles.end(QUEUES)
        return True

    async def _sync_queues(self, pool: WorkerPool) -> bool:
        """Sync all that was written since the last time, in a few threads at once."""
        todo = list(self._unsynced)
        errors: list[OSError] = []

        def sync(queues: list[ConsumeQueue]) -> None:
            for queue in queues:
                try:
                    queue.sync()
                except OSError as error:
                    errors.append(error)
                    return
                self._unsynced.pop(queue, None)

        async with anyio.create_task_group() as group:
            for number in range(SYNC_THREADS):
                if part := todo[number::SYNC_THREADS]:
                    group.start_soon(partial(pool.run, sync, part))
        for error in errors:
            self._troubles.begin(QUEUES, error)
            return False
        self._troubles.end(QUEUES)
        self._thorough_due = self._clock.monotonic() + self._thorough
        return True

    async def _build_index(self, pool: WorkerPool) -> bool:
        """Build the rest of it; where that is not possible, what is built is written all the same, which makes room."""
        try:
            await self._feed.build(pool)
        except Exception as error:
            self._troubles.begin(BUILDING, error)
            return False
        return True

    async def _take_index(self, pool: WorkerPool) -> TakenIndex | None:
        try:
            return await pool.run(self._feed.take)
        except Exception as error:
            self._troubles.begin(BUILDING, error)
            return None

    async def _write_index(self, pool: WorkerPool, keys: TakenIndex) -> bool:
        try:
            await pool.run(self._feed.write, keys)
        except OSError as error:
            self._troubles.begin(INDEX, error)
            return False
        self._troubles.end(INDEX)
        self._index_due = self._clock.monotonic() + self._index_interval
        return await self._write_checkpoint(pool, {"indexed_offset": keys.built, "index_msg_timestamp": keys.timestamp})

    async def _write_checkpoint(self, pool: WorkerPool, changes: dict[str, int]) -> bool:
        if all(getattr(self._checkpoint.value, name) == value for name, value in changes.items()):
            return True
        try:
            await pool.run(partial(self._checkpoint.write, sync=True, **changes))
        except OSError as error:
            self._troubles.begin(CHECKPOINT, error)
            return False
        self._troubles.end(CHECKPOINT)
        return True


def checkpoint_changes(end: int, timestamp: int, last_record: int, queue_ends: int) -> dict[str, int]:
    """What the checkpoint says when log and queues are synced up to ``end``."""
    return {
        "synced_offset": end,
        "physic_msg_timestamp": timestamp,
        "queued_offset": end,
        "logics_msg_timestamp": timestamp,
        "logics_physical_offset": last_record,
        "queue_ends": queue_ends,
    }
