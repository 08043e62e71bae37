"""The message store: put, durable, get; recovered when it is entered, stopped cleanly when it is left.

A put encodes a record and appends it to a buffer; the buffer is written once per tick of the loop. With SYNC_FLUSH a
thread writes and syncs it, and all that is put meanwhile joins the next sync (group commit); with ASYNC_FLUSH it is
written at once and synced every ``flush_interval_commit_log``. Only then is a message acknowledged (``when_durable``),
put into its queue and told to ``on_arrival``: nobody reads what may still vanish. Queues and index are kept in memory
and written, behind a sync of the log, every ``flush_interval_consume_queue``, then the checkpoint that says so.

After an error of a write or sync nothing is written any more (what the kernel holds is unknown then): all who wait and
every later put get StoreFailedError; reads go on. Opening the store again recovers it.

    <root>/abort  checkpoint  lock  commitlog/  consumequeue/<topic>/<queue id>/  index/  config/

Left to others: the layout of each file (its module), what may be put (``handlers``), retention.

Source: Apache RocketMQ 5.5 ``DefaultMessageStore``, ``ConsumeQueueStore``, ``GetMessageStatus``, ``CommitLog`` (put,
``GroupCommitService``, ``FlushRealTimeService``).
"""

from __future__ import annotations

import ipaddress
import logging
import os
import struct
from bisect import insort
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import anyio

from rocketbox.broker.store.checkpoint import CheckpointFile
from rocketbox.broker.store.commit_log import CommitLog, Segment
from rocketbox.broker.store.consume_queue import FILLER_SIZE, ConsumeQueue
from rocketbox.broker.store.dispatch import TRANSACTION, Derived, is_queued
from rocketbox.broker.store.files import OpenFiles
from rocketbox.broker.store.options import CONSUME_QUEUE_UNIT, FlushDiskType, StoreOptions
from rocketbox.broker.store.records import MAGICS, MIN_RECORD_BYTES, store_timestamp_of
from rocketbox.broker.store.recovery import RecoveryReport, recover
from rocketbox.broker.store.storage import LockHandle, RealStorage, Storage
from rocketbox.clock import Clock, RealClock
from rocketbox.errors import InvalidMessageError, NotStartedError, StoreFailedError
from rocketbox.handoff import Waiter, WorkerPool, make_waiter
from rocketbox.message import format_offset_msg_id
from rocketbox.protocol.stored_message import StoredMessage, encode_stored_message
from rocketbox.tasks import SupervisedTask, Supervisor

__all__ = ["ArrivalCallback", "DurableCallback", "GetMessageStatus", "GetResult", "MessageStore", "PutResult"]

_log = logging.getLogger(__name__)

ArrivalCallback = Callable[[str, int, int, int], None]
"""Called with topic, queue id, the offset behind the new message, and its tags code."""
DurableCallback = Callable[[BaseException | None], None]
"""Called with None when it is durable, else with what prevents it."""

READ_GAP = 4 << 10  # records of one queue nearer than this are read together with what is between
THREADS = 3  # commit log, its sync under ASYNC_FLUSH, queues and index
INDEX_ENTRIES_HELD = 100_000  # more than this are written without waiting for flush_interval_index
_HEAD = struct.Struct(">II20xq")  # size, magic, physical offset


class GetMessageStatus(Enum):
    """What a read found (Apache's names)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_RESET = "OFFSET_RESET"


@dataclass(frozen=True, slots=True)
class GetResult:
    """What a read found, and where to go on. ``records`` are whole records in queue order."""

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    records: list[bytes] = field(default_factory=list)


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


class MessageStore:
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
        self.options = options or StoreOptions()
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
        self._memory = _memory_bytes() * self.options.access_message_in_memory_max_ratio // 100
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
        self._log = CommitLog(self._files, f"{self._root}/commitlog", self.options)
        self._derived = Derived(self._files, self._root, self.options)
        self._checkpoint = CheckpointFile(self._storage, f"{self._root}/checkpoint")
        self._appended: list[_Appended] = []
        self._waiting: list[tuple[int, float, DurableCallback]] = []
        self._durable = 0
        self._dispatched = 0
        self._last_timestamp = 0  # of all that was put
        self._dispatched_timestamp = 0
        self._last_record = 0  # offset of the newest record that was dispatched
        self._cache: dict[int, bytes] = {}  # the newest records by offset; the older half is _older
        self._older: dict[int, bytes] = {}
        self._cached = 0
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
                self.report = await self._pool.run(self._recover)
            self._durable = self._dispatched = self._log.end
            tasks = await stack.enter_async_context(Supervisor("store", self._clock))
            self._open = True
            flush = tasks.start("write the commit log", self._write_log, restart=False)
            others = [tasks.start("write queues and index", self._write_derived)]
            if self._sync:
                others.append(tasks.start("flush timeouts", self._sweep_waiting))
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

    def _recover(self) -> RecoveryReport:
        abort = f"{self._root}/abort"
        clean = not self._storage.exists(abort)
        checkpoint = self._checkpoint.load()
        self._log.run.load()
        self._derived.load(checkpoint.queued_offset, repair_index=not clean)
        report = recover(self._log, self._derived, checkpoint, clean=clean, monotonic=self._clock.monotonic)
        self._last_timestamp = max(report.last_store_timestamp_ms, checkpoint.physic_msg_timestamp)
        self._dispatched_timestamp = self._last_timestamp
        self._last_record = report.last_record
        file = self._storage.open(abort, create=True)
        file.truncate(0)
        file.write(0, [str(os.getpid()).encode()])
        file.sync()
        self._storage.sync_directory(self._root)
        checksums_from = -1
        if self._crc:
            checksums_from = checkpoint.checksums_from if checkpoint.checksums_from >= 0 else report.end
        self._checkpoint.write(sync=False, checksums_from=checksums_from, synced_offset=report.end)
        entries = self._derived.entries
        self._write_checkpoint(report.end, self._last_timestamp, self._last_record, entries, index=True)
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
            self._fail_waiting(StoreFailedError("the store was stopped"))

    def _say_clean(self) -> None:
        self._storage.remove(f"{self._root}/abort")
        self._storage.sync_directory(self._root)

    def _close_files(self) -> None:
        self._open = False
        self._checkpoint.close()
        self._derived.close()
        self._files.close()

    # --- put ---

    def put(self, message: StoredMessage) -> PutResult:
        """Append a message; it is safe, and readable, when :meth:`when_durable` says so.

        Its queue offset, commit-log offset, store time and store host are set here. Raises InvalidMessageError for a
        message that cannot be stored, StoreFailedError when the store takes no more.
        """
        self._check_open()
        queue = self._derived.queue(message.topic, message.queue_id)
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

    def _encode(self, message: StoredMessage, queue_offset: int, now: int, distance: int = 0) -> tuple[bytes, int]:
        """The record for the log's end (or ``distance`` behind it), and its queue offset."""
        if len(message.body) > self.options.max_message_size:
            raise InvalidMessageError(
                f"a body of {len(message.body)} bytes; max-message-size is {self.options.max_message_size}"
            )
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
            deadline = self._clock.monotonic() + self.options.sync_flush_timeout / 1000
            entry = (end_offset, deadline, callback)
            if not self._waiting or self._waiting[-1][0] <= end_offset:
                self._waiting.append(entry)
            else:
                insort(self._waiting, entry, key=itemgetter(0))

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

    def _set_durable(self, end: int) -> None:
        self._durable = end
        waiting = self._waiting
        if waiting and waiting[-1][0] <= end:
            self._waiting = []
            ready = waiting
        else:
            count = 0
            while count < len(waiting) and waiting[count][0] <= end:
                count += 1
            ready = waiting[:count]
            del waiting[:count]
        for _, _, callback in ready:
            _call(callback, None)

    async def _sweep_waiting(self) -> None:
        """Tell those who wait too long for a sync that does not end."""
        interval = self.options.sync_flush_timeout / 10_000
        while True:
            await self._clock.sleep(interval)
            now = self._clock.monotonic()
            late = [entry for entry in self._waiting if entry[1] <= now]
            if late:
                self._waiting = [entry for entry in self._waiting if entry[1] > now]
                for _, _, callback in late:
                    _call(callback, TimeoutError(f"no sync within {self.options.sync_flush_timeout} ms"))

    def _fail_waiting(self, error: BaseException) -> None:
        waiting, self._waiting = self._waiting, []
        for _, _, callback in waiting:
            _call(callback, error)

    def _fail(self, what: str, error: BaseException) -> None:
        if self.failure is not None:
            return
        self.failure = (
            f"{what} failed ({error}); the log is certain up to offset {self._durable}. The store takes no more writes "
            "until it is opened again; see that its disk has room and works, then restart"
        )
        _log.error("%s", self.failure)
        self._fail_waiting(StoreFailedError(self.failure))

    # --- the tasks that write ---

    def _wake(self) -> None:
        waiter, self._idle = self._idle, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _write_log(self) -> None:
        """Write what was appended, again and again; with SYNC_FLUSH sync it too."""
        while self.failure is None:
            if not self._log.has_unwritten:
                if self._stopping:
                    break
                self._idle = make_waiter()
                await self._idle
                continue
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
            self._set_durable(end)

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
            snapshot, entries = self._derived.snapshot(index=index), self._derived.entries
            if self._log.synced < end:
                await self._sync_written()
                if self._log.synced < end:
                    return

            def write() -> None:
                self._derived.write(snapshot)
                self._write_checkpoint(end, timestamp, last, entries, index=index)

            with anyio.CancelScope(shield=True):
                await self._pool.run(write)
            self._derived.set_written(snapshot)

    def _write_checkpoint(self, end: int, timestamp: int, last_record: int, entries: int, *, index: bool) -> None:
        changes = {
            "synced_offset": end,
            "physic_msg_timestamp": timestamp,
            "queued_offset": end,
            "logics_msg_timestamp": timestamp,
            "logics_physical_offset": last_record,
            "entries": entries,
        }
        if index and self._derived.indexes:
            changes["indexed_offset"] = end
            changes["index_msg_timestamp"] = self._derived.index.end_timestamp
        self._checkpoint.write(sync=True, **changes)

    def _dispatch(self, appended: Sequence[_Appended]) -> None:
        """Make messages readable: put them into their queues and the index, and tell who waits for them."""
        add, cache, listeners = self._derived.add, self._cache, self.on_arrival
        for queue, offset, timestamp, message, record in appended:
            size = len(record)
            cache[offset] = record
            self._cached += size
            topic, sys_flag = message.topic, message.sys_flag
            queued = not sys_flag & TRANSACTION or is_queued(sys_flag)
            code = add(queue if queued else None, topic, message.properties, sys_flag, offset, size, timestamp)
            if queued:
                for listener in listeners:
                    try:
                        listener(topic, queue.queue_id, queue.max_offset, code)
                    except Exception:
                        _log.exception("telling of the message at %d of %s/%d failed", offset, topic, queue.queue_id)
        _, self._last_record, self._dispatched_timestamp, _, record = appended[-1]
        self._dispatched = self._last_record + len(record)
        if self._cached > self.options.read_cache_size // 2:
            self._older, self._cache, self._cached = cache, {}, 0

    # --- get ---

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first message of a queue; 0 for a queue that is not there."""
        queue = self._derived.find(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Behind the last readable message of a queue; 0 for a queue that is not there."""
        queue = self._derived.find(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    @property
    def min_commit_log_offset(self) -> int:
        return self._log.start

    @property
    def max_commit_log_offset(self) -> int:
        """The end of what is written."""
        return self._log.written

    def queues(self) -> list[tuple[str, int]]:
        """Topic and id of all queues."""
        return [(queue.topic, queue.queue_id) for queue in self._derived]

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        max_bytes: int | None = None,
        matches: Callable[[int], bool] | None = None,
    ) -> GetResult:
        """Up to ``max_messages`` records of a queue from ``offset`` on whose tags code ``matches``.

        At most ``max_transfer_*`` of the options, and ``max_bytes``; the first record comes whatever its size.
        """
        queue = self._derived.find(topic, queue_id)
        if queue is None:
            return GetResult(GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        least, end = queue.min_offset, queue.max_offset
        if end == 0:
            return GetResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, least, end)
        if offset < least:
            return GetResult(GetMessageStatus.OFFSET_TOO_SMALL, least, least, end)
        if offset == end:
            return GetResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, least, end)
        if offset > end:
            return GetResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, end, least, end)
        options = self.options
        most_bytes = options.max_transfer_bytes_on_message_in_memory
        most = options.max_transfer_count_on_message_in_memory
        log_end, log_start = self._log.written, self._log.start
        limits_known = False
        taken: list[tuple[int, int]] = []
        total, next_offset, removed = 0, offset, False
        for physical, size, code in queue.units(
            offset, max(options.max_filter_message_size // CONSUME_QUEUE_UNIT, max_messages)
        ):
            if size == FILLER_SIZE or physical < log_start:
                removed = removed or size != FILLER_SIZE
                next_offset += 1
                continue
            if matches is not None and not matches(code):
                next_offset += 1
                continue
            if not limits_known:
                limits_known = True
                if log_end - physical > self._memory:
                    most_bytes = options.max_transfer_bytes_on_message_in_disk
                    most = options.max_transfer_count_on_message_in_disk
                most = min(most, max_messages)
                if max_bytes is not None:
                    most_bytes = min(most_bytes, max_bytes)
            if taken and (len(taken) >= most or total + size > most_bytes):
                break
            taken.append((physical, size))
            total += size
            next_offset += 1
        if taken:
            return GetResult(GetMessageStatus.FOUND, next_offset, least, end, self._read_records(taken))
        if next_offset == offset:
            return GetResult(GetMessageStatus.OFFSET_FOUND_NULL, queue.next_file(offset), least, end)
        status = GetMessageStatus.MESSAGE_WAS_REMOVING if removed else GetMessageStatus.NO_MATCHED_MESSAGE
        return GetResult(status, next_offset, least, end)

    def _read_records(self, places: list[tuple[int, int]]) -> list[bytes]:
        """Records at (offset, size), from memory or else with one read for those that lie near each other."""
        cache, older = self._cache, self._older
        records = []
        count = 0
        while count < len(places):
            start, size = places[count]
            record = cache.get(start) or older.get(start)
            count += 1
            if record is not None:
                records.append(record)
                continue
            near = [(start, size)]
            end = start + size
            while count < len(places) and 0 <= places[count][0] - end <= READ_GAP and places[count][0] not in cache:
                end = sum(places[count])
                near.append(places[count])
                count += 1
            records += self._read_near(near, end)
        return records

    def _read_near(self, places: list[tuple[int, int]], end: int) -> list[bytes]:
        start = places[0][0]
        data = self._log.read(start, end - start)
        if len(places) == 1:
            return [data]
        records = []
        for offset, size in places:
            record = data[offset - start : offset - start + size]
            # A read ends where its file does: what lies in the next one is read by itself.
            records.append(record if len(record) == size else self._log.read(offset, size))
        return records

    def read(self, commit_log_offset: int) -> bytes | None:
        """The record that begins at a commit-log offset; None if none does."""
        record = self._cache.get(commit_log_offset) or self._older.get(commit_log_offset)
        if record is not None:
            return record
        if not self._log.start <= commit_log_offset <= self._log.written - MIN_RECORD_BYTES:
            return None
        head = self._log.read(commit_log_offset, _HEAD.size)
        if len(head) < _HEAD.size:
            return None
        size, magic, own_offset = _HEAD.unpack(head)
        if magic not in MAGICS or own_offset != commit_log_offset or commit_log_offset + size > self._log.written:
            return None
        record = self._log.read(commit_log_offset, size)
        return record if len(record) == size else None

    def query(self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int) -> list[bytes]:
        """Records of a topic that may have a key, stored between two times, newest first.

        Keys are UNIQ_KEY, the words of KEYS, and ``T#`` and the tags. They are found by their hash: others may be among
        them.
        """
        records: list[bytes] = []
        most = min(max_num, self.options.max_msgs_num_batch)
        for physical in self._derived.find_key(topic, key, begin_ms, end_ms):
            if len(records) >= most:
                break
            record = self.read(physical)
            if record is not None:
                records.append(record)
        return records

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """The first message of a queue stored at or after a time; with ``upper`` the last one stored at or before it.

        Within min and max offset; 0 for a queue that is not there.
        """
        queue = self._derived.find(topic, queue_id)
        if queue is None:
            return 0
        low, high = queue.min_offset, queue.max_offset
        if not upper:
            return queue.search(low, high, lambda physical: self._stored_at(physical) >= timestamp_ms)
        behind = queue.search(low, high, lambda physical: self._stored_at(physical) > timestamp_ms)
        return max(low, behind - 1)

    def earliest_store_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Store time (epoch ms) of the oldest message, of a queue if it is named; -1 without one."""
        if topic is not None:
            queue = self._derived.find(topic, queue_id)
            if queue is None or queue.min_offset >= queue.max_offset:
                return -1
            return self._stored_at(queue.unit(queue.min_offset)[0])
        record = self.read(self._log.start)
        return -1 if record is None else store_timestamp_of(record)

    def _stored_at(self, physical: int) -> int:
        record = self.read(physical)
        return store_timestamp_of(record) if record is not None else 0


def _call(callback: DurableCallback, error: BaseException | None) -> None:
    try:
        callback(error)
    except Exception:
        _log.exception("telling a sender of its flush failed")


def _memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
