"""The message store: put and durable; recovered when it is entered, stopped cleanly when it is left.

A put encodes a record and appends it to a buffer; the buffer is written once per tick of the loop. With SYNC_FLUSH a
thread writes and syncs it, and all that is put meanwhile joins the next sync (group commit); with ASYNC_FLUSH it is
written at once and synced every ``flush_interval_commit_log``. Only then is a message acknowledged (``when_durable``),
put into its queue and told to ``on_arrival``: nobody reads what may still vanish. Queues and index are kept in memory
and written, behind a sync of the log, every ``flush_interval_consume_queue``, then the checkpoint that says so.

After an error of a write or sync nothing is written any more (what the kernel holds is unknown then): all who wait and
every later put get StoreFailedError; reads go on. Opening the store again recovers it.

    <root>/abort  checkpoint  lock  commitlog/  consumequeue/<topic>/<queue id>/  index/  config/

Left to others: reading (``reading``), the layout of each file (its module), what may be put (``handlers``), retention.

Source: Apache RocketMQ 5.5 ``DefaultMessageStore``, ``CommitLog`` (put, ``GroupCommitService``,
``FlushRealTimeService``).
"""

from __future__ import annotations

import ipaddress
import logging
import os
import struct
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import anyio

from rocketbox.broker.store.checkpoint import CheckpointFile
from rocketbox.broker.store.commit_log import CommitLog, Segment
from rocketbox.broker.store.consume_queue import ConsumeQueue
from rocketbox.broker.store.dispatch import TRANSACTION, Derived, DerivedSnapshot, is_queued
from rocketbox.broker.store.files import OpenFiles
from rocketbox.broker.store.lock_file import decode_lock_file, encode_lock_file
from rocketbox.broker.store.options import FlushDiskType, StoreOptions
from rocketbox.broker.store.reading import StoreReader
from rocketbox.broker.store.recovery import RecoveryReport, recover, write_abort
from rocketbox.broker.store.storage import LockHandle, RealStorage, Storage
from rocketbox.broker.store.waiting import DurableCallback, DurableWaiters
from rocketbox.clock import Clock, RealClock
from rocketbox.errors import InvalidMessageError, NotStartedError, StoreFailedError
from rocketbox.handoff import Waiter, WorkerPool, make_waiter
from rocketbox.message import format_offset_msg_id
from rocketbox.protocol.stored_message import StoredMessage, encode_stored_message
from rocketbox.tasks import SupervisedTask, Supervisor

__all__ = ["ArrivalCallback", "MessageStore", "PutResult"]

_log = logging.getLogger(__name__)

ArrivalCallback = Callable[[str, int, int, int, bytes], None]
"""Called with topic, queue id, the offset behind the new message, its tags code and its record."""

THREADS = 3  # commit log, its sync under ASYNC_FLUSH, queues and index
INDEX_ENTRIES_HELD = 100_000  # more than this are written without waiting for flush_interval_index


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


_Appended = tuple[ConsumeQueue, int, int, StoredMessage, bytes]
"""A message in the log that its queue does not show yet: queue, offset, store time (epoch ms), message, record."""


class MessageStore(StoreReader):
    """``async with MessageStore(directory, options) as store: store.put(message)``.

    Entering takes the lock and recovers: raises StoreLockedError, StoreCorruptError, StoreError (wrong file sizes) or
    OSError. All methods are called in the loop that runs it.
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
        super().__init__(options or StoreOptions())
        self.on_arrival: list[ArrivalCallback] = []
        self.report: RecoveryReport | None = None
        """What opening found and did."""
        self.failure: str | None = None
        """Why nothing can be written any more."""
        self.store_host = store_host
        self._root = os.path.abspath(root)
        self._clock = clock or RealClock()
        self._storage: Storage = storage or RealStorage()
        self._sync = self.options.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._crc = self.options.enabled_append_prop_crc
        self._files = OpenFiles(self._storage)
        self._set_up()
        self._open = False
        self._stack = AsyncExitStack()
        self._pool = WorkerPool(THREADS, "store")
        self._idle: Waiter | None = None
        self._stopping = False
        self._deriving = anyio.Lock()

    def _set_up(self) -> None:
        """Everything that begins anew when the store is entered."""
        log = CommitLog(self._files, f"{self._root}/commitlog", self.options)
        self._read_from(log, Derived(self._files, self._root, self.options))
        self._checkpoint = CheckpointFile(self._storage, f"{self._root}/checkpoint")
        self._appended: list[_Appended] = []
        self._waiters = DurableWaiters(self._clock, self.options.sync_flush_timeout)
        self._durable = 0
        self._dispatched = 0
        self._last_timestamp = 0  # of all that was put
        self._dispatched_timestamp = 0
        self._last_record = 0  # offset of the newest record that was dispatched
        self._index_due = 0.0

    @property
    def store_host(self) -> tuple[bytes, int]:
        """The address written into records: IP of 4 or 16 bytes, port. May be set as text, and while it runs."""
        return self._store_host

    @store_host.setter
    def store_host(self, host: tuple[str | bytes, int]) -> None:
        ip, port = host
        self._store_host = (ip if isinstance(ip, bytes) else ipaddress.ip_address(ip).packed, port)

    # --- start and stop ---

    async def __aenter__(self) -> Self:
        self._set_up()
        self.failure = None
        self._stopping = False
        async with AsyncExitStack() as stack:
            self._pool = await stack.enter_async_context(WorkerPool(THREADS, "store"))
            stack.callback(self._close_files)
            lock = await self._pool.run(self._take_lock)
            stack.callback(lock.release)
            with anyio.CancelScope(shield=True):  # half a recovery must not go on in its thread behind our back
                self.report = await self._pool.run(self._recover, lock)
            self._durable = self._dispatched = self._log.end
            tasks = await stack.enter_async_context(Supervisor("store", self._clock))
            self._open = True
            flush = tasks.start("write the commit log", self._write_log, restart=False)
            others = [tasks.start("write queues and index", self._write_derived)]
            if self._sync:
                others.append(tasks.start("flush timeouts", self._waiters.sweep))
            else:
                others.append(tasks.start("sync the commit log", self._sync_log))
            stack.push_async_callback(self._stop, flush, others)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    def _take_lock(self) -> LockHandle:
        self._storage.make_directories(self._root)
        return self._storage.lock(f"{self._root}/lock")

    def _recover(self, lock: LockHandle) -> RecoveryReport:
        clean = not self._storage.exists(f"{self._root}/abort")
        locked = lock.read()
        checkpoint = self._checkpoint.load(decode_lock_file(locked))
        if locked and not checkpoint.marked:
            _log.warning(
                "another broker than this one has used the directory %s, or its checkpoint was lost: the commit log is "
                "read through", self._root,
            )  # fmt: skip
        self._log.run.load()
        self._derived.load()
        report = recover(
            self._log,
            self._derived,
            self._checkpoint,
            storage=self._storage,
            root=self._root,
            options=self.options,
            clean=clean,
            clock=self._clock,
        )
        self._last_timestamp = max(report.last_store_timestamp_ms, checkpoint.physic_msg_timestamp)
        self._dispatched_timestamp = self._last_timestamp
        self._last_record = report.last_record
        write_abort(self._storage, self._root)
        checksums_from = -1
        if self._crc:
            known = report.marked and checkpoint.checksums_from >= 0
            checksums_from = checkpoint.checksums_from if known else report.end
        run = checkpoint.run if report.marked else self._clock.random.getrandbits(64) | 1
        self._checkpoint.write(sync=False, run=run, checksums_from=checksums_from, synced_offset=report.end)
        snapshot = self._derived.snapshot(index=True)
        self._write_checkpoint(report.end, self._last_timestamp, self._last_record, snapshot, index=True)
        if not report.marked:
            lock.write(encode_lock_file(run))  # behind the checkpoint's sync: the table in lock_file
        self._index_due = self._clock.monotonic() + self.options.flush_interval_index / 1000
        return report

    async def _stop(self, flush: SupervisedTask, others: Sequence[SupervisedTask]) -> None:
        """Write, sync and dispatch all that was put; then say that the stop was clean."""
        with anyio.CancelScope(shield=True):
            self._stopping = True
            self._wake()
            await flush.wait()
            for task in others:
                task.cancel()
            for task in others:
                await task.wait()
            self._open = False
            if self.failure is None:
                try:
                    await self._flush_derived(index=True)
                    await self._pool.run(self._say_clean)
                except Exception as error:
                    self._fail("stopping", error)
            self._waiters.fail(StoreFailedError("the store was stopped"))

    def _say_clean(self) -> None:
        self._storage.remove(f"{self._root}/abort")
        self._storage.sync_directory(self._root)

    def _close_files(self) -> None:
        self._open = False
        self._checkpoint.close()
        self._derived.close()
        self._files.close()

    # --- put ---

    def put(self, message: StoredMessage, *, accepted: bool = False) -> PutResult:
        """Append a message; it is safe, and readable, when :meth:`when_durable` says so.

        ``accepted``: it was stored before under another topic, so max-message-size, lowered since, does not refuse it.
        Its queue offset, commit-log offset, store time and store host are set here. Raises InvalidMessageError for a
        message that cannot be stored, StoreFailedError when the store takes no more.
        """
        self._check_open()
        queue = self._derived.queue(message.topic, message.queue_id)
        if not accepted:
            self._check_size(message)
        now = self._now()
        record, queue_offset = self._encode(message, queue.next_offset, now)
        if not self._log.fits(len(record)):
            self._log.roll()
            record, queue_offset = self._encode(message, queue.next_offset, now)
        offset = self._append(queue, message, record, now)
        if self._idle is not None:
            self._wake()
        return PutResult(offset, self._log.end, queue_offset, now, (offset,), self._store_host)

    def put_batch(self, messages: Sequence[StoredMessage]) -> PutResult:
        """Append messages of one queue one behind the other, all in one commit-log file. Raises as :meth:`put` does."""
        self._check_open()
        if not messages:
            raise InvalidMessageError("a batch holds at least one message")
        first = messages[0]
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
        if self._idle is not None:
            self._wake()
        return PutResult(offsets[0], self._log.end, queue_offset, now, offsets, self._store_host)

    def _check_open(self) -> None:
        if self.failure is not None:
            raise StoreFailedError(self.failure)
        if not self._open or self._stopping:
            raise NotStartedError("the message store")

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
        if message.sys_flag & TRANSACTION and not is_queued(message.sys_flag):
            queue_offset = 0
        place = (queue_offset, self._log.end + distance, now, self._store_host)
        try:
            return encode_stored_message(message, property_crc=self._crc, place=place), queue_offset
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
        if not message.sys_flag & TRANSACTION or is_queued(message.sys_flag):
            queue.next_offset += 1
        self._appended.append((queue, offset, now, message, record))
        return offset

    # --- durable ---

    def when_durable(self, end_offset: int, callback: DurableCallback) -> None:
        """Have ``callback`` called when the log is safe up to ``end_offset``; at once if it is already.

        Safe means synced, or written under ASYNC_FLUSH. It gets a TimeoutError when that takes longer than
        ``sync_flush_timeout`` (the message is in the log and may yet be synced), StoreFailedError if it never will be.
        """
        if end_offset <= self._durable:
            callback(None)
        elif self.failure is not None:
            callback(StoreFailedError(self.failure))
        elif not self._open:
            callback(NotStartedError("the message store"))
        else:
            self._waiters.add(end_offset, callback)

    async def durable(self, end_offset: int) -> None:
        """Return when the log is safe up to ``end_offset``. Raises what :meth:`when_durable` calls back with."""
        if end_offset <= self._durable:
            return
        waiter = make_waiter()

        def done(error: BaseException | None) -> None:
            if waiter.done():
                return
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

        self.when_durable(end_offset, done)
        await waiter

    def _fail(self, what: str, error: BaseException) -> None:
        if self.failure is not None:
            return
        self.failure = (
            f"{what} failed ({error}); the log is certain up to offset {self._durable}. The store takes no more writes "
            "until it is opened again; see that its disk has room and works, then restart"
        )
        _log.error("%s", self.failure)
        self._waiters.fail(StoreFailedError(self.failure))

    # --- the tasks that write ---

    def _wake(self) -> None:
        waiter, self._idle = self._idle, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _write_log(self) -> None:
        """Write what was appended, again and again; with SYNC_FLUSH sync it too.

        Only the stop ends it, no cancellation from outside: what is in the writing thread's hands must be done before
        the files are closed and the lock is given back.
        """
        with anyio.CancelScope(shield=True):
            while self.failure is None:
                if self._log.has_unwritten:
                    await self._write_appended()
                elif self._stopping:
                    break
                else:
                    self._idle = make_waiter()
                    await self._idle

    async def _write_appended(self) -> None:
        appended, self._appended = self._appended, []
        segments, end = self._log.take(), self._log.end
        try:
            if self._sync:
                await self._pool.run(self._write_and_sync, segments, end, appended[-1][2])
                self._log.synced = end
            elif self._log.is_plain(segments, end):
                self._log.write(segments)
            else:
                await self._pool.run(self._log.write, segments)
        except Exception as error:
            self._fail("writing the commit log", error)
            return
        self._log.written = end
        self._dispatch(appended)
        self._durable = end
        self._waiters.release(end)

    def _write_and_sync(self, segments: list[Segment], end: int, store_timestamp: int) -> None:
        self._log.write(segments)
        self._log.sync()
        self._checkpoint.write(sync=False, synced_offset=end, physic_msg_timestamp=store_timestamp)

    async def _sync_log(self) -> None:
        """ASYNC_FLUSH: sync what was written, in intervals."""
        while self.failure is None:
            await self._clock.sleep(self.options.flush_interval_commit_log / 1000)
            await self._sync_written()

    async def _sync_written(self) -> None:
        written, timestamp = self._log.written, self._dispatched_timestamp
        if written <= self._log.synced or self.failure is not None:
            return
        try:
            with anyio.CancelScope(shield=True):
                await self._pool.run(self._sync_up_to, written, timestamp)
        except Exception as error:
            self._fail("syncing the commit log", error)
            return
        self._log.synced = max(self._log.synced, written)

    def _sync_up_to(self, written: int, timestamp: int) -> None:
        self._log.sync()
        self._checkpoint.write(sync=False, synced_offset=written, physic_msg_timestamp=timestamp)

    async def _write_derived(self) -> None:
        while self.failure is None:
            await self._clock.sleep(self.options.flush_interval_consume_queue / 1000)
            now = self._clock.monotonic()
            index = now >= self._index_due or self._derived.index.changed > INDEX_ENTRIES_HELD
            if index:
                self._index_due = now + self.options.flush_interval_index / 1000
            try:
                await self._flush_derived(index=index)
            except Exception as error:
                self._fail("writing consume queues and index", error)

    async def _flush_derived(self, *, index: bool) -> None:
        """Write queues (and index), behind a sync of the log, and then the checkpoint."""
        async with self._deriving:
            if self.failure is not None:
                return
            end, timestamp, last = self._dispatched, self._dispatched_timestamp, self._last_record
            value = self._checkpoint.value
            if end == value.queued_offset and (not index or end == value.indexed_offset):
                return
            snapshot = self._derived.snapshot(index=index)
            if self._log.synced < end:
                await self._sync_written()
                if self._log.synced < end:
                    return

            def write() -> None:
                self._derived.write(snapshot)
                self._write_checkpoint(end, timestamp, last, snapshot, index=index)

            with anyio.CancelScope(shield=True):
                await self._pool.run(write)
            self._derived.set_written(snapshot)

    def _write_checkpoint(
        self, end: int, timestamp: int, last_record: int, snapshot: DerivedSnapshot, *, index: bool
    ) -> None:
        changes = {
            "synced_offset": end,
            "physic_msg_timestamp": timestamp,
            "queued_offset": end,
            "logics_msg_timestamp": timestamp,
            "logics_physical_offset": last_record,
            "queue_ends": snapshot.queue_ends,
        }
        if index and self._derived.indexes:
            changes["indexed_offset"] = end
            changes["index_msg_timestamp"] = snapshot.index_timestamp
        self._checkpoint.write(sync=True, **changes)

    def _dispatch(self, appended: Sequence[_Appended]) -> None:
        """Make messages readable: put them into their queues and the index, and tell who waits for them."""
        records = {offset: record for _, offset, _, _, record in appended}
        self._cache.add(records, sum(map(len, records.values())))
        add, listeners = self._derived.add, self.on_arrival
        for queue, offset, timestamp, message, record in appended:
            size = len(record)
            topic, sys_flag = message.topic, message.sys_flag
            queued = not sys_flag & TRANSACTION or is_queued(sys_flag)
            code = add(queue if queued else None, topic, message.properties, sys_flag, offset, size, timestamp)
            if queued:
                for listener in listeners:
                    try:
                        listener(topic, queue.queue_id, queue.max_offset, code, record)
                    except Exception:
                        _log.exception("telling of the message at %d of %s/%d failed", offset, topic, queue.queue_id)
        _, self._last_record, self._dispatched_timestamp, _, record = appended[-1]
        self._dispatched = self._last_record + len(record)
