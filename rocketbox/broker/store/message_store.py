"""The message store: put and durable; recovered when it is entered, stopped cleanly when it is left.

A put encodes a record and appends it to a buffer, which ``log_writer`` writes, and syncs. Only then is a message
acknowledged (:meth:`MessageStore.when_durable`) and dispatched (``dispatcher``): put into its queue and told to
``on_arrival``. Nobody reads what may still vanish. ``derived_writer`` writes queues, index and checkpoint behind that.

    put -> log_writer -> acknowledged
                      -> dispatcher -> queues -> derived_writer -> checkpoint
                                    -> index_feed -> index ---^
                                    -> on_arrival

    <root>/abort  checkpoint  lock  commitlog/  consumequeue/<topic>/<queue id>/  index/  config/

Left to others: what a put does (``putting``), who waits for the disk, and what follows from an error (``log_writer``),
opening (``opening``), deleting a topic (``topic_deletion``), reading (``reading``; its methods, and those of puts and
waits, are offered here too), the layout of each file (its module), what may be put (``handlers``).

Source: Apache RocketMQ 5.5 ``DefaultMessageStore``, ``CommitLog`` (put).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from rocketbox.blocking import WorkerPool
from rocketbox.broker.store.checkpoint import CheckpointFile
from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.derived_writer import SYNC_THREADS, DerivedWriter
from rocketbox.broker.store.dispatch import Derived
from rocketbox.broker.store.dispatcher import ArrivalCallback, Dispatcher
from rocketbox.broker.store.files import NO_ROOM, OpenFiles
from rocketbox.broker.store.forks import forget_fork, on_fork
from rocketbox.broker.store.index_feed import IndexFeed
from rocketbox.broker.store.log_writer import LogWriter
from rocketbox.broker.store.opening import OpenedStore, lock_directory, open_store, say_clean
from rocketbox.broker.store.options import FlushDiskType, StoreOptions
from rocketbox.broker.store.putting import StorePutter
from rocketbox.broker.store.reading import StoreReader
from rocketbox.broker.store.record_reading import WrongEntryError
from rocketbox.broker.store.recovery import RecoveryReport
from rocketbox.broker.store.retention import Retention
from rocketbox.broker.store.state import StoreHealth, StoreState
from rocketbox.broker.store.topic_deletion import TopicDeletion
from rocketbox.broker.store.troubles import Troubles
from rocketbox.broker.store.upkeep import Upkeep
from rocketbox.clock import Clock, RealClock
from rocketbox.errors import (
    StoreFullError,
    StoreLockedError,
)
from rocketbox.loops import call_soon_from_thread
from rocketbox.storage.file_system import DiskUsage, LockHandle, RealStorage, Storage
from rocketbox.tasks import SupervisedTask, Supervisor, TaskState

__all__ = ["ArrivalCallback", "MessageStore"]

_log = logging.getLogger(__name__)

THREADS = 2 + SYNC_THREADS  # beside that of the log: its sync under ASYNC_FLUSH, the index, queues


class MessageStore:
    """``async with MessageStore(directory, options) as store: store.put(message)``.

    Entering takes the lock and recovers: raises StoreLockedError, StoreCorruptError, StoreError (wrong file sizes) or
    OSError. Methods are called in the loop that runs it, but for those of reading that say otherwise.
    """

    def __init__(
        self,
        root: Path | str,
        options: StoreOptions | None = None,
        *,
        clock: Clock | None = None,
        storage: Storage | None = None,
        store_host: tuple[str | bytes, int] = ("127.0.0.1", 10911),
        says_clean: bool = True,
    ) -> None:
        """``says_clean``: whether an orderly stop is noted as one.

        Who opens the store without the broker's tables does not: the next start of a broker is to see that some of what
        they say may be gone from the log, or lack its end there.
        """
        self.options = options or StoreOptions()
        self.on_arrival: list[ArrivalCallback] = []
        self.on_durable: list[Callable[[int], None]] = []
        """Called in the loop with the offset up to which the log is safe, after each group commit."""
        self.looks_again: list[Callable[[], bool]] = []
        """Asked at an orderly stop: whether the next start is to be one after a crash all the same, since this one
        could not put right all that the last crash has left."""
        self.report: RecoveryReport | None = None
        """What opening found and did."""
        self._root = os.path.abspath(root)
        self._clock = clock or RealClock()
        self._storage: Storage = storage or RealStorage()
        self._says_clean = says_clean
        self.troubles = Troubles(self._clock)
        """Errors that are being retried, of the store and of whoever else writes beside it."""
        self._state = StoreState()
        self.on_state_change = self._state.on_change
        """Called in the loop when :attr:`failure` or :attr:`refusal` has changed."""
        self._putter = StorePutter(self.options, self._clock, store_host)
        self.put = self._putter.put
        self.put_batch = self._putter.put_batch
        self.put_together = self._putter.put_together
        self.put_run = self._putter.put_run
        self.lane = self._putter.lane
        self._reader = StoreReader(self.options)
        self.fetch = self._reader.fetch
        self.get = self._reader.get
        self.get_from_memory = self._reader.get_from_memory
        self.read = self._reader.read
        self.read_record = self._reader.read_record
        self.read_message = self._reader.read_message
        self.read_from_memory = self._reader.read_from_memory
        self.query_keys = self._reader.query_keys
        self.find_offset_by_time = self._reader.find_offset_by_time
        self.first_offset = self._reader.first_offset
        self.min_offset = self._reader.min_offset
        self.max_offset = self._reader.max_offset
        self.queues = self._reader.queues
        self._set_up()
        self._entered = False
        self._is_parents = False
        self._pool = WorkerPool(THREADS, "store")
        self._stack = AsyncExitStack()

    def _set_up(self) -> None:
        """Everything that begins anew when the store is entered."""
        self._files = OpenFiles(self._storage)
        self._log = CommitLog(self._files, f"{self._root}/commitlog", self.options)
        self._derived = Derived(self._files, self._root, self.options)
        self._checkpoint = CheckpointFile(self._storage, f"{self._root}/checkpoint")
        self._state.begin()
        self._putter.last_timestamp = 0
        self._putter.refused_busy = self._putter.refused_full = 0
        self._deletion = TopicDeletion(self._log, self._derived, lambda end: self.durable(end))
        self._build()

    def _build(self) -> None:
        """The stages behind a put, from where the log ends now."""
        log, derived, checkpoint, clock = self._log, self._derived, self._checkpoint, self._clock
        self._feed = IndexFeed(log, derived, clock, self.troubles)
        self._reader.begin(log, derived, self._feed)
        self._dispatcher = Dispatcher(
            log, derived, self._feed, self._reader.cache, clock, self.troubles, self.on_arrival
        )
        self._writer = LogWriter(
            log, self._dispatcher, checkpoint, self.options, self._storage, clock, self._state, self.troubles,
            self.on_durable,
        )  # fmt: skip
        self._putter.begin(log, derived, self._writer, self._state, self._deletion)
        self.when_durable = self._writer.when_durable
        self.when_written = self._writer.when_written
        self.tell_when_durable = self._writer.tell_when_durable
        self.tell_when_written = self._writer.tell_when_written
        self.durable = self._writer.durable_up_to
        self._derived_writer = DerivedWriter(
            log, self._writer, derived, self._feed, self._dispatcher, checkpoint, self.options, clock, self._state,
            self.troubles, self._deletion.files_gone,
        )  # fmt: skip

    @property
    def store_host(self) -> tuple[bytes, int]:
        """The address written into records: IP of 4 or 16 bytes, port. May be set as text, and while it runs."""
        return self._putter.store_host

    @store_host.setter
    def store_host(self, host: tuple[str | bytes, int]) -> None:
        self._putter.store_host = host

    # --- how it is ---

    @property
    def failure(self) -> str | None:
        """Why nothing can be written any more."""
        return self._state.failure

    @property
    def refusal(self) -> str | None:
        """Why messages are refused now: it has failed, or its disk is full."""
        return self._state.refusal

    def judge_disk(self, usage: DiskUsage) -> None:
        """Take messages, or refuse them, as on a disk that is used so, which is asked in intervals otherwise.

        Called in the loop, by who knows that the disk has changed, while the store is open.
        """
        self._retention.judge(usage)

    @property
    def min_commit_log_offset(self) -> int:
        return self._log.start

    @property
    def max_commit_log_offset(self) -> int:
        """The end of what is written."""
        return self._log.written

    @property
    def last_timestamp_ms(self) -> int:
        """Store time of the newest message, also of runs before this one; it never goes back, as a clock may."""
        return self._putter.last_timestamp

    def health(self) -> StoreHealth:
        return StoreHealth(
            failure=self.failure,
            refusal=self.refusal,
            troubles=self.troubles.current,
            waiting_bytes=self._log.end - self._writer.durable,
            durable_offset=self._writer.durable,
            dispatched_offset=self._dispatcher.dispatched,
            refused_busy=self._putter.refused_busy,
            refused_full=self._putter.refused_full + self._writer.refused,
        )

    # --- start and stop ---

    async def __aenter__(self) -> Self:
        if self._entered:  # before anything of the one that runs is touched
            raise StoreLockedError(self._root)
        self._set_up()
        async with AsyncExitStack() as stack:
            self._entered = True
            stack.callback(self._close_files)
            pool = self._pool = await stack.enter_async_context(WorkerPool(THREADS, "store"))
            await stack.enter_async_context(self._reader.enter())
            with anyio.CancelScope(shield=True):  # a lock that a thread takes behind our back is never given back
                lock = await pool.run(lock_directory, self._storage, self._root)
            stack.callback(lock.release)
            on_fork(self, partial(self._leave_to_parent, lock, os.getpid()))
            with anyio.CancelScope(shield=True):  # half a recovery must not go on in its thread behind our back
                opened = await pool.run(
                    open_store, self._storage, self._root, lock, self._log, self._derived, self._checkpoint,
                    self.options, self._clock,
                )  # fmt: skip
                self.report = opened.report
                self._putter.last_timestamp = opened.last_timestamp
                self._build()
                self._retention = Retention(
                    self._storage, self._root, self._log, self._derived, self._feed, self._checkpoint, self.options,
                    self._clock, self._state, self.troubles, opened.last_timestamp,
                )  # fmt: skip
                self.upkeep = Upkeep(
                    self._root, self._files, self._log, self._derived, self._feed, self._checkpoint, self.options,
                    self._clock, self.troubles, at_once=not opened.report.clean,
                )  # fmt: skip
                self._dispatcher.begin(opened.last_timestamp, opened.report.last_record)
                await self._finish_opening(pool, opened)
            tasks = await stack.enter_async_context(Supervisor("store", self._clock))
            self._putter.is_open = self._writer.is_open = True
            writing = tasks.start("write the commit log", self._writer.run, restart=False)
            others = [
                tasks.start("dispatch what is behind", self._dispatcher.run, pool),
                tasks.start("build the index", self._feed.run, pool),
                tasks.start("write queues and index", self._derived_writer.run, pool),
                tasks.start("flush timeouts", self._writer.sweep),
                tasks.start("remove what has expired", self._retention.run, pool),
                tasks.start("compare with the log", self.upkeep.check_in_intervals, pool),
                tasks.start("rebuild queues", self.upkeep.rebuild_what_is_asked, pool),
            ]
            call_soon = call_soon_from_thread()

            def report(error: WrongEntryError) -> None:
                call_soon(lambda: self._mend(error))

            self._reader.on_wrong_entry = report
            self._reader.is_damaged = self.upkeep.is_damaged
            if self.options.flush_disk_type is FlushDiskType.ASYNC_FLUSH:
                others.append(tasks.start("sync the commit log", self._writer.sync_in_intervals, pool))
            stack.push_async_callback(self._stop, pool, writing, others)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._is_parents:
            return None
        return await self._stack.__aexit__(kind, error, trace)

    async def _finish_opening(self, pool: WorkerPool, opened: OpenedStore) -> None:
        """Say that the store is in use; on a full disk before the first message is taken, not now."""

        def finish() -> None:
            opened.finish()
            if self.options.message_index_enable and not self._derived.indexes:  # it was left out until now
                self._feed.begin_index(self._log.start)

        try:
            await pool.run(finish)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._writer.needs = finish
            self._state.refuse(StoreFullError(f"opening {self._root}", error.strerror or str(error)))

    def _mend(self, error: WrongEntryError) -> None:
        queue = self._derived.find(error.topic, error.queue_id)
        if queue is not None:
            self.upkeep.rebuild(queue, error.number, error.reason)

    async def _stop(self, pool: WorkerPool, writing: SupervisedTask, others: Sequence[SupervisedTask]) -> None:
        """Write, sync and dispatch all that was put; then, if all of that came about, say that the stop was clean."""
        with anyio.CancelScope(shield=True):
            self._putter.is_open = False
            self._writer.stop()
            await writing.wait()
            for task in others:
                task.cancel()
            for task in others:
                await task.wait()
            self._writer.abandon("the store was stopped")
            if self.failure is None and self._writer.needs is None and writing.state is TaskState.FINISHED:
                try:
                    await self._leave(pool)
                except Exception as error:
                    self.troubles.begin(f"leaving {self._root} in order", error)

    async def _leave(self, pool: WorkerPool) -> None:
        await self._dispatcher.catch_up(pool)
        written = await self._derived_writer.flush(pool, index=True, thorough=True)
        if written and self._writer.is_done and self._dispatcher.dispatched == self._log.end:
            if any(looks_again() for looks_again in self.looks_again):
                _log.warning("what a crash has left in %s is not put right yet: the next start looks again", self._root)
            elif self._says_clean:
                await pool.run(say_clean, self._storage, self._root)
        else:
            _log.error(
                "not all of %s could be written: the next start recovers it (%s)", self._root,
                ", ".join([trouble.error for trouble in self.troubles.current]) or "the commit log is not synced",
            )  # fmt: skip

    def _leave_to_parent(self, lock: LockHandle, parent: int) -> None:
        """In a child of fork: nothing can be done with the store, and leaving it does nothing."""
        self._is_parents = True
        self._putter.is_open = self._writer.is_open = False
        reason = f"this store was opened by process {parent}, which goes on with it; open another one in the child"
        self._state.failure, self._state.refuses = reason, True  # nobody is told: who listens belongs to the parent
        self._reader.refuse(reason)
        self._pool = WorkerPool(THREADS, "store")
        self._files.leave_to_parent()
        self._checkpoint.close()
        self._derived.close()
        self._log.close()
        lock.leave_to_parent()

    def _close_files(self) -> None:
        forget_fork(self)
        self._putter.is_open = self._entered = False
        self._checkpoint.close()
        self._derived.close()
        self._log.close()
        self._files.close()

    async def sync(self) -> bool:
        """Sync all of the log that is safe by now; whether it is on the disk.

        Who writes down elsewhere what became of messages does this first: with ASYNC_FLUSH what a power failure takes
        from the log would be taken for done otherwise. With SYNC_FLUSH there is nothing to do. False when the disk
        refuses, which is told as a trouble or a failure of the store.
        """
        end = self._writer.durable
        if self._log.synced < end:
            await self._writer.sync_written(self._pool)
        return self._log.synced >= end

    # --- deleting ---

    async def delete_topic(self, topic: str) -> None:
        """Forget the queues of a topic: what was stored in them is not read any more, also after a crash.

        A later message of the topic begins a new queue, behind the offsets of the old one. The records stay in the log
        until retention, found by their keys and places. Meanwhile puts to the topic raise StoreError. Raises
        StoreError, OSError when it was not possible: then nothing is deleted, or puts to the topic wait until the store
        has removed its files.
        """
        await self._deletion.delete(topic, self._derived_writer, self._pool, self._putter.check_open)

    def was_deleted(self, topic: str) -> bool:
        """Whether a topic of that name was deleted; another may have been made since."""
        return topic in self._derived.deleted
