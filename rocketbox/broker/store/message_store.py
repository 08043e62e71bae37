"""The message store: put and durable; recovered when it is entered, stopped cleanly when it is left.

A put encodes a record and appends it to a buffer, which ``log_writer`` writes, and syncs. Only then is a message
acknowledged (:meth:`MessageStore.when_durable`) and dispatched (``dispatcher``): put into its queue and told to
``on_arrival``. Nobody reads what may still vanish. ``derived_writer`` writes queues, index and checkpoint behind that.

    put -> log_writer -> acknowledged
                      -> dispatcher -> queues -> derived_writer -> checkpoint
                                    -> index_feed -> index ---^
                                    -> on_arrival

    <root>/abort  checkpoint  lock  commitlog/  consumequeue/<topic>/<queue id>/  index/  config/

Left to others: who waits for the disk, and what follows from an error (``log_writer``), opening (``opening``), deleting
a topic (``topic_deletion``), reading (``reading``; its methods and those of the first are offered here too), the layout
of each file (its module), what may be put (``handlers``).

Source: Apache RocketMQ 5.5 ``DefaultMessageStore``, ``CommitLog`` (put).
"""

from __future__ import annotations

import ipaddress
import logging
import os
import struct
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import anyio

from rocketbox.blocking import WorkerPool
from rocketbox.broker.store.checkpoint import CheckpointFile
from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.consume_queue import ConsumeQueue
from rocketbox.broker.store.derived_writer import SYNC_THREADS, DerivedWriter
from rocketbox.broker.store.dispatch import Derived, is_queued
from rocketbox.broker.store.dispatcher import ArrivalCallback, Dispatcher
from rocketbox.broker.store.files import NO_ROOM, OpenFiles
from rocketbox.broker.store.forks import forget_fork, on_fork
from rocketbox.broker.store.index_feed import IndexFeed
from rocketbox.broker.store.log_writer import LogWriter
from rocketbox.broker.store.opening import OpenedStore, lock_directory, open_store, say_clean
from rocketbox.broker.store.options import FlushDiskType, StoreOptions
from rocketbox.broker.store.reading import StoreReader
from rocketbox.broker.store.record_reading import WrongEntryError
from rocketbox.broker.store.records import find_keys, seems_damaged
from rocketbox.broker.store.recovery import RecoveryReport
from rocketbox.broker.store.retention import Retention
from rocketbox.broker.store.state import StoreHealth, StoreState
from rocketbox.broker.store.topic_deletion import TopicDeletion
from rocketbox.broker.store.troubles import Troubles
from rocketbox.broker.store.upkeep import Upkeep
from rocketbox.clock import Clock, RealClock
from rocketbox.errors import (
    InvalidMessageError,
    NotStartedError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreLockedError,
)
from rocketbox.loops import call_soon_from_thread
from rocketbox.message import format_offset_msg_id
from rocketbox.protocol.stored_message import StoredMessage, encode_stored_message
from rocketbox.storage.file_system import LockHandle, RealStorage, Storage
from rocketbox.tasks import SupervisedTask, Supervisor, TaskState

__all__ = ["ArrivalCallback", "MessageStore", "PutResult"]

_log = logging.getLogger(__name__)

THREADS = 2 + SYNC_THREADS  # beside that of the log: its sync under ASYNC_FLUSH, the index, queues


class PutResult(NamedTuple):  # not a dataclass: one is made for each message, in a fifth of the time
    """Where a message, or a batch, was put. It is durable when the log is up to ``end_offset``."""

    commit_log_offset: int
    end_offset: int
    queue_offset: int
    """The (first) message's place in its queue."""
    store_timestamp_ms: int
    offsets: tuple[int, ...]
    """The commit-log offsets of all messages."""
    store_host: tuple[bytes, int]

    @property
    def msg_id(self) -> str:
        """The offset ids of the messages, joined with commas."""
        ip, port = self.store_host
        return ",".join([format_offset_msg_id(ip, port, offset) for offset in self.offsets])


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
    ) -> None:
        self.options = options or StoreOptions()
        self.on_arrival: list[ArrivalCallback] = []
        self.on_durable: list[Callable[[int], None]] = []
        """Called in the loop with the offset up to which the log is safe, after each group commit."""
        self.report: RecoveryReport | None = None
        """What opening found and did."""
        self.store_host = store_host
        self._root = os.path.abspath(root)
        self._clock = clock or RealClock()
        self._storage: Storage = storage or RealStorage()
        self.troubles = Troubles(self._clock)
        """Errors that are being retried, of the store and of whoever else writes beside it."""
        self._state = StoreState()
        self.on_state_change = self._state.on_change
        """Called in the loop when :attr:`failure` or :attr:`refusal` has changed."""
        self._crc = self.options.enabled_append_prop_crc
        self._most_waiting = self.options.max_waiting_bytes
        self._reader = StoreReader(self.options)
        self.fetch = self._reader.fetch
        self.get = self._reader.get
        self.get_from_memory = self._reader.get_from_memory
        self.read = self._reader.read
        self.read_record = self._reader.read_record
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
        self._open = False
        self._stopping = False
        self._pool = WorkerPool(THREADS, "store")
        self._stack = AsyncExitStack()

    def _set_up(self) -> None:
        """Everything that begins anew when the store is entered."""
        self._files = OpenFiles(self._storage)
        self._log = CommitLog(self._files, f"{self._root}/commitlog", self.options)
        self._derived = Derived(self._files, self._root, self.options)
        self._checkpoint = CheckpointFile(self._storage, f"{self._root}/checkpoint")
        self._state.begin()
        self._last_timestamp = 0  # of all that was put
        self._refused_busy = self._refused_full = 0
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
        return self._store_host

    @store_host.setter
    def store_host(self, host: tuple[str | bytes, int]) -> None:
        ip, port = host
        self._store_host = (ip if isinstance(ip, bytes) else ipaddress.ip_address(ip).packed, port)

    # --- how it is ---

    @property
    def failure(self) -> str | None:
        """Why nothing can be written any more."""
        return self._state.failure

    @property
    def refusal(self) -> str | None:
        """Why messages are refused now: it has failed, or its disk is full."""
        return self._state.refusal

    @property
    def min_commit_log_offset(self) -> int:
        return self._log.start

    @property
    def max_commit_log_offset(self) -> int:
        """The end of what is written."""
        return self._log.written

    def health(self) -> StoreHealth:
        return StoreHealth(
            failure=self.failure,
            refusal=self.refusal,
            troubles=self.troubles.current,
            waiting_bytes=self._log.end - self._writer.durable,
            durable_offset=self._writer.durable,
            dispatched_offset=self._dispatcher.dispatched,
            refused_busy=self._refused_busy,
            refused_full=self._refused_full + self._writer.refused,
        )

    # --- start and stop ---

    async def __aenter__(self) -> Self:
        if self._entered:  # before anything of the one that runs is touched
            raise StoreLockedError(self._root)
        self._set_up()
        self._stopping = False
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
                self._last_timestamp = opened.last_timestamp
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
            self._open = self._writer.is_open = True
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
            self._stopping = True
            self._writer.stop()
            await writing.wait()
            for task in others:
                task.cancel()
            for task in others:
                await task.wait()
            self._open = False
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
            await pool.run(say_clean, self._storage, self._root)
        else:
            _log.error(
                "not all of %s could be written: the next start recovers it (%s)", self._root,
                ", ".join([trouble.error for trouble in self.troubles.current]) or "the commit log is not synced",
            )  # fmt: skip

    def _leave_to_parent(self, lock: LockHandle, parent: int) -> None:
        """In a child of fork: nothing can be done with the store, and leaving it does nothing."""
        self._is_parents = True
        self._open = self._writer.is_open = False
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
        self._open = self._entered = False
        self._checkpoint.close()
        self._derived.close()
        self._log.close()
        self._files.close()

    # --- put ---

    def put(self, message: StoredMessage, accepted: bool = False) -> PutResult:
        """Append a message; it is safe, and readable, when :meth:`when_durable` says so.

        ``accepted``: it was stored before under another topic, so max-message-size, lowered since, does not refuse it.
        Its queue offset, commit-log offset, store time and store host are set here. Raises InvalidMessageError for a
        message that cannot be stored, StoreFullError and StoreBusyError when it may be sent later, StoreFailedError
        when the store takes no more.
        """
        self._check_open(len(message.body))
        if self._deletion.topics:
            self._deletion.check(message.topic)
        queue = self._derived.queue(message.topic, message.queue_id)
        if not accepted:
            self._check_size(message)
        now = self._now()
        record, queue_offset = self._encode(message, queue.next_offset, now)
        if not self._log.fits(len(record)):
            self._log.roll()
            record, queue_offset = self._encode(message, queue.next_offset, now)
        offset = self._append(queue, message, record, now)
        if self._writer.idle is not None:
            self._writer.wake()
        return PutResult(offset, self._log.end, queue_offset, now, (offset,), self._store_host)

    def put_batch(self, messages: Sequence[StoredMessage]) -> PutResult:
        """Append messages of one queue one behind the other, all in one commit-log file. Raises as :meth:`put` does."""
        self._check_open(sum([len(message.body) for message in messages]))
        if not messages:
            raise InvalidMessageError("a batch holds at least one message")
        first = messages[0]
        if self._deletion.topics:
            self._deletion.check(first.topic)
        if any(message.topic != first.topic or message.queue_id != first.queue_id for message in messages):
            raise InvalidMessageError("the messages of a batch belong to one queue")
        for message in messages:
            self._check_size(message)
        queue = self._derived.queue(first.topic, first.queue_id)
        now = self._now()
        records = self._encode_batch(messages, queue, now)
        if not self._log.fits(sum(map(len, records))):
            self._log.roll()
            records = self._encode_batch(messages, queue, now)
        queue_offset = queue.next_offset if is_queued(first.sys_flag) else 0
        offsets = tuple(
            [self._append(queue, message, record, now) for message, record in zip(messages, records, strict=True)]
        )
        if self._writer.idle is not None:
            self._writer.wake()
        return PutResult(offsets[0], self._log.end, queue_offset, now, offsets, self._store_host)

    def _check_open(self, size: int) -> None:
        if self._state.refuses:
            raise self._refused()
        if not self._open or self._stopping:
            raise NotStartedError("the message store")
        waiting = self._log.end - self._writer.durable
        if waiting and waiting + size > self._most_waiting:
            self._refused_busy += 1
            raise StoreBusyError(waiting, self._most_waiting, "max-waiting-bytes")

    def _refused(self) -> StoreError:
        error = self._state.error()
        assert error is not None
        self._refused_full += isinstance(error, StoreFullError)
        return error

    def _now(self) -> int:
        """The time, which in the log never goes back."""
        now = self._clock.time_ms()
        if now < self._last_timestamp:
            return self._last_timestamp
        self._last_timestamp = now
        return now

    def _check_size(self, message: StoredMessage) -> None:
        if len(message.body) > self.options.max_message_size:
            raise InvalidMessageError(
                f"a body of {len(message.body)} bytes; max-message-size is {self.options.max_message_size}"
            )

    def _encode(self, message: StoredMessage, queue_offset: int, now: int, distance: int = 0) -> tuple[bytes, int]:
        """The record for the log's end (or ``distance`` behind it), and its queue offset."""
        if message.sys_flag and not is_queued(message.sys_flag):
            queue_offset = 0
        place = (queue_offset, self._log.end + distance, now, self._store_host)
        try:
            record = encode_stored_message(message, property_crc=self._crc, place=place)
            if not self._crc and seems_damaged(record, message.properties):
                record = encode_stored_message(message, property_crc=True, place=place)
            return record, queue_offset
        except struct.error as error:
            raise InvalidMessageError(f"a number of the message is out of its range: {error}") from error

    def _encode_batch(self, messages: Sequence[StoredMessage], queue: ConsumeQueue, now: int) -> list[bytes]:
        records: list[bytes] = []
        queue_offset, distance = queue.next_offset, 0
        for message in messages:
            records.append(self._encode(message, queue_offset, now, distance)[0])
            distance += len(records[-1])
            queue_offset += is_queued(message.sys_flag)
        return records

    def _append(self, queue: ConsumeQueue, message: StoredMessage, record: bytes, now: int) -> int:
        offset = self._log.append(record)
        queued = is_queued(message.sys_flag)
        queue.next_offset += queued
        properties = message.properties
        self._writer.appended.append(
            (
                queue if queued else None, offset, now, message.topic, message.sys_flag, properties, record,
                find_keys(properties),
            )
        )  # fmt: skip
        return offset

    async def delete_topic(self, topic: str) -> None:
        """Forget the queues of a topic: what was stored in them is not read any more, also after a crash.

        A later message of the topic begins a new queue, behind the offsets of the old one. The records stay in the log
        until retention, found by their keys and places. Meanwhile puts to the topic raise StoreError. Raises
        StoreError, OSError when it was not possible: then nothing is deleted, or puts to the topic wait until the store
        has removed its files.
        """
        await self._deletion.delete(topic, self._derived_writer, self._pool, lambda: self._check_open(0))

    def was_deleted(self, topic: str) -> bool:
        """Whether a topic of that name was deleted; another may have been made since."""
        return topic in self._derived.deleted
