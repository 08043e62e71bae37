"""Finding the end of the commit log, and completing what is derived from it, when a store is opened.

The log is read from the beginning of the file that holds the first record which may lack its queue or index entry (all
of it if nothing is known); each record is checked (``records.check_record``). Reading stops at a record that is not
whole, or at zeros. The question is then whether the log simply ends there, or was damaged:

Torn or corrupt. The store syncs one batch at a time and a file before the next begins, so a crash leaves at most one
batch un-synced: its pages may be on the disk in any order, and an intact record behind a bad one proves nothing by
itself. The place B where reading stopped is a torn tail, and is cut off, unless one of these proves that the bytes at B
were synced before; then the start is refused with StoreCorruptError and no record is touched:

1.  The checkpoint bears our mark and says that the log is synced beyond B. It says so after every group commit, and at
    a clean stop.
2.  An intact record lies in a later file.

Only without the mark (a store last used by an Apache broker, or a lost checkpoint), where 1. cannot be asked:

3.  An intact record behind B was stored before the checkpoint's physicMsgTimestamp.
4.  A consume queue has the entry of an intact record behind B: entries are written after the log's sync. (Apache's are
    not, quite: a power failure under ASYNC_FLUSH may leave such a picture. Refusing is then the safe mistake.)
5.  The broker stopped cleanly (no ``abort``), and a consume queue has an entry of a record at or behind B.

What follows B is overwritten with zeros before anything is appended, so that no leftover of the torn batch can be taken
for a record later. Then entries of records that are gone are removed, missing ones are written, and the checkpoint says
so. A crash in between changes nothing: the next start does the same again.

Source: Apache RocketMQ 5.5 ``CommitLog.recoverNormally``, ``recoverAbnormally`` (which truncate at the first bad record
in any case), ``ConsumeQueue.recover``; what counts as torn is Pebble's rule, decided here with the files Apache has.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rocketbox.broker.store.checkpoint import Checkpoint
from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.consume_queue import FILLER_SIZE, ConsumeQueue
from rocketbox.broker.store.dispatch import Derived, is_queued
from rocketbox.broker.store.files import FileRun
from rocketbox.broker.store.options import BLANK_BYTES
from rocketbox.broker.store.records import (
    BLANK_MAGIC,
    MAGIC_V1,
    MAGIC_V2,
    MAGICS,
    MIN_RECORD_BYTES,
    ParsedRecord,
    check_record,
    length_mismatch,
    parse_record,
)
from rocketbox.errors import StoreCorruptError

__all__ = ["LogScan", "RecoveryReport", "recover"]

_log = logging.getLogger(__name__)

WINDOW = 4 << 20  # bytes read at once
PROGRESS_SECONDS = 2.0
FLUSH_EVERY = (
    64 << 20
)  # bytes of log after which the entries found missing are written, so that they do not fill memory
_HEAD = struct.Struct(">II")
_OFFSET = struct.Struct(">q")


@dataclass(frozen=True)
class RecoveryReport:
    """What opening a store found and did. Offsets are physical."""

    clean: bool
    """The last broker stopped cleanly."""
    start: int
    """From here on the log was read and checked."""
    end: int
    """The log ends, and goes on, here."""
    records: int
    """How many records were read."""
    truncated_bytes: int
    """How many bytes of a torn tail, not counting zeros, were cut off."""
    torn_file: str | None
    torn_position: int
    torn_reason: str | None
    """Where in which file the torn tail began, and what was wrong there."""
    queue_entries_added: int
    queue_entries_removed: int
    last_store_timestamp_ms: int
    last_record: int
    """Store time and offset of the last record that was read; 0 without one."""


class LogScan:
    """Iterates over (offset, record) from ``offset`` on, each checked.

    From ``checksums_from`` on, unless it is negative, each must bear a checksum: one that is torn off is missed.
    Then ``end`` and ``reason`` say where and why it stopped; ``reason`` is None where there are only zeros.
    """

    def __init__(
        self, run: FileRun, offset: int, *, checksums_from: int = -1, on_window: Callable[[int], None] | None = None
    ) -> None:
        self.end = offset
        self.reason: str | None = None
        self._run = run
        self._checksums_from = checksums_from
        self._on_window = on_window

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        run = self._run
        offset = self.end
        while run.start <= offset < run.limit:
            file_end = run.file_start(offset) + run.file_size
            if self._on_window is not None:
                self._on_window(offset)
            window = run.read(offset, WINDOW)
            base = offset
            while True:
                position = offset - base
                space = file_end - offset
                if len(window) - position < BLANK_BYTES <= space:
                    break  # read on
                if space < BLANK_BYTES:
                    self.end, self.reason = offset, f"{space} bytes are left in the file, less than a blank"
                    return
                size, magic = _HEAD.unpack_from(window, position)
                if magic == BLANK_MAGIC and size == space:
                    offset = file_end
                    break
                if size == 0 and magic == 0:
                    self.end = offset
                    return
                self.reason = _implausible(size, magic, space)
                if self.reason is None and position + size > len(window):
                    if position > 0:
                        break  # read on, from this record
                    self.reason = length_mismatch(window, size)
                    if self.reason is None:
                        window = run.read(offset, size)
                        continue
                if self.reason is None:
                    record = window[position : position + size]
                    self.reason = check_record(record, offset, needs_checksum=0 <= self._checksums_from <= offset)
                if self.reason is not None:
                    self.end = offset
                    return
                yield offset, record
                offset += size
                self.end = offset
        self.end = offset


def _implausible(size: int, magic: int, space: int) -> str | None:
    if magic not in MAGICS:
        return f"no record begins with the number 0x{magic:08X}"
    if not MIN_RECORD_BYTES <= size <= space - BLANK_BYTES:
        return f"a record of {size} bytes cannot be where the file has {space} left"
    return None


def recover(
    log: CommitLog,
    derived: Derived,
    checkpoint: Checkpoint,
    *,
    clean: bool,
    monotonic: Callable[[], float],
) -> RecoveryReport:
    """Make log, queues and index agree; all of them are loaded before. Blocks. Raises StoreCorruptError, OSError."""
    return _Recovery(log, derived, checkpoint, clean, monotonic).run()


class _Recovery:
    def __init__(
        self, log: CommitLog, derived: Derived, checkpoint: Checkpoint, clean: bool, monotonic: Callable[[], float]
    ) -> None:
        self._log = log
        self._run = log.run
        self._derived = derived
        self._checkpoint = checkpoint
        self._clean = clean
        self._monotonic = monotonic
        self._started = self._reported = monotonic()
        self._records = 0
        self._added = 0
        self._timestamp = 0
        self._last_record = 0
        self._queue_conflict = False
        self._flushed_at = 0

    def run(self) -> RecoveryReport:
        start = self._first_offset()
        for file_start in self._run.starts:
            if file_start >= self._run.file_start(start) and not self._clean:
                self._run.file(file_start).sync()  # what a killed broker wrote may not be on the disk yet
        queued, indexed = self._queued_offset(), self._indexed_offset()
        scan = self._scan(start, queued, indexed, last_try=queued <= self._run.start)
        if self._queue_conflict:
            _log.warning("the consume queues do not fit the commit log; all of it is read again to complete them")
            scan = self._scan(self._run.start, self._run.start, indexed, last_try=True)
        end = scan.end
        self._refuse_if_synced(end, scan.reason)
        torn = self._cut(end, scan.reason)
        removed = sum(queue.cut_physical(end) for queue in self._derived)
        self._rebuild_index(end)
        self._flush_derived()
        for queue in self._derived:
            queue.next_offset = queue.max_offset
            queue.set_min_offset(self._run.start)
        seconds = self._monotonic() - self._started
        if not self._clean or torn or self._added or removed or seconds > PROGRESS_SECONDS:
            _log.info(
                "recovered the commit log from %d to %d in %.1f s: %d records read, %d queue entries added, %d removed",
                start, end, seconds, self._records, self._added, removed,
            )  # fmt: skip
        return RecoveryReport(
            clean=self._clean,
            start=start,
            end=end,
            records=self._records,
            truncated_bytes=torn,
            torn_file=self._file_of(end) if torn else None,
            torn_position=self._position_of(end) if torn else 0,
            torn_reason=(scan.reason or "zeros") if torn else None,
            queue_entries_added=self._added,
            queue_entries_removed=removed,
            last_store_timestamp_ms=self._timestamp,
            last_record=self._last_record,
        )

    # --- where to begin ---

    def _first_offset(self) -> int:
        """The start of the file from which on records may lack an entry, or may not be whole."""
        run = self._run
        if not run.starts:
            return 0
        known = min(self._queued_offset(), self._indexed_offset())
        if self._checkpoint.marked:
            known = min(known, self._checkpoint.synced_offset)
        return run.file_start(max(run.start, min(known, run.limit - 1)))

    def _queued_offset(self) -> int:
        """Records below have their queue entries."""
        checkpoint = self._checkpoint
        if checkpoint.marked:
            entries = sum(queue.offset_behind(checkpoint.queued_offset) for queue in self._derived)
            if entries == checkpoint.entries:
                return checkpoint.queued_offset
            _log.warning(
                "the consume queues have %d entries where the checkpoint says %d", entries, checkpoint.entries
            )  # fmt: skip
            return self._run.start
        if self._clean:  # Apache's: a clean stop leaves the queues complete
            return max((queue.max_physical_end for queue in self._derived), default=self._run.start)
        return self._run.start

    def _indexed_offset(self) -> int:
        """Records below have their index entries."""
        index = self._derived.index
        if not self._derived.indexes:
            return self._run.limit
        if self._checkpoint.marked and index.end_timestamp == self._checkpoint.index_msg_timestamp:
            return self._checkpoint.indexed_offset
        return max(self._run.start, index.end_physical + 1)

    # --- reading ---

    def _scan(self, start: int, queued: int, indexed: int, *, last_try: bool) -> LogScan:
        """Check all from ``start`` on; add the entries missing of records from ``queued`` and ``indexed`` on."""
        self._queue_conflict = False
        self._flushed_at = start
        needed = min(queued, indexed)
        scan = LogScan(self._run, start, checksums_from=self._checkpoint.checksums_from, on_window=self._progress)
        offset, record = start, b""
        for offset, record in scan:
            self._records += 1
            if offset >= needed:
                parsed = parse_record(record)
                in_queue = offset >= queued and is_queued(parsed.sys_flag)
                queue = self._queue_without(parsed, offset, len(record), last_try=last_try) if in_queue else None
                self._add(queue, parsed, offset, len(record), index=offset >= indexed)
        if record:
            self._timestamp = parse_record(record).stored
            self._last_record = offset
        return scan

    def _add(self, queue: ConsumeQueue | None, parsed: ParsedRecord, offset: int, size: int, *, index: bool) -> None:
        topic, _, _, sys_flag, stored, properties = parsed
        index = index and offset > self._derived.index.end_physical
        if queue is not None or index:
            self._derived.add(queue, topic, properties, sys_flag, offset, size, stored, index=index)
            self._added += queue is not None

    def _queue_without(self, parsed: ParsedRecord, offset: int, size: int, *, last_try: bool) -> ConsumeQueue | None:
        """The record's queue if it lacks the record's entry and can take it now."""
        queue = self._derived.queue(parsed.topic, parsed.queue_id)
        if offset + size <= queue.max_physical_end:
            return None
        if parsed.queue_offset == queue.max_offset:
            return queue
        if not last_try:  # entries before are missing too, or wrong: the log is read again from its beginning
            self._queue_conflict = True
            if parsed.queue_offset < queue.max_offset:
                queue.clear()
            return None
        if parsed.queue_offset < queue.max_offset:
            _log.warning(
                "the record at %d has queue offset %d in %s/%d, which another has already; it is not in its queue",
                offset, parsed.queue_offset, parsed.topic, parsed.queue_id,
            )  # fmt: skip
            return None
        self._derived.fill_queue(queue, parsed.queue_offset)
        return queue

    def _progress(self, offset: int) -> None:
        now = self._monotonic()
        if now - self._reported >= PROGRESS_SECONDS:
            self._reported = now
            _log.info("reading the commit log: at %d of at most %d", offset, self._run.limit)
        if offset - self._flushed_at >= FLUSH_EVERY:
            self._flushed_at = offset
            self._flush_derived()

    def _flush_derived(self) -> None:
        snapshot = self._derived.snapshot(index=True)
        self._derived.write(snapshot)
        self._derived.set_written(snapshot)

    # --- torn or corrupt ---

    def _refuse_if_synced(self, end: int, reason: str | None) -> None:
        run, checkpoint = self._run, self._checkpoint
        proof = None
        if checkpoint.marked and end < checkpoint.synced_offset:
            proof = f"the checkpoint says that the log was synced up to {checkpoint.synced_offset}"
        elif run.starts:
            later = [start for start in run.starts if start > end]
            proof = next(
                (f"there is an intact record at {offset}" for start in later for offset, _ in LogScan(run, start)), None
            )
        if proof is None and not checkpoint.marked:
            proof = self._proof_without_mark(end)
        if proof is not None:
            raise StoreCorruptError(
                self._file_of(end), self._position_of(end), f"{reason or 'the bytes are zero'} ({proof})"
            )

    def _proof_without_mark(self, end: int) -> str | None:
        physical_end = max((queue.max_physical_end for queue in self._derived), default=0)
        if self._clean and physical_end > end:
            return f"a consume queue has an entry of a record that ends at {physical_end}"
        queued: set[int] | None = None
        for offset, record in self._intact_behind(end):
            stored = parse_record(record).stored
            if stored < self._checkpoint.physic_msg_timestamp:
                return f"there is an intact record at {offset}, which the checkpoint says was synced"
            if queued is None:
                queued = set(self._queued_behind(end))
            if offset in queued:
                return f"there is an intact record at {offset}, which has a consume-queue entry"
        return None

    def _queued_behind(self, end: int) -> Iterator[int]:
        for queue in self._derived:
            number = queue.max_offset
            while number > queue.first_offset:
                number -= 1
                physical, size, _ = queue.unit(number)
                if size != FILLER_SIZE and physical < end:
                    break
                yield physical

    def _intact_behind(self, end: int) -> Iterator[tuple[int, bytes]]:
        """Intact records behind ``end`` in its file."""
        run = self._run
        if not run.start <= end < run.limit:
            return
        start = run.file_start(end)
        file = run.file(end)
        position: int | None = end - start
        while position is not None and (position := file.next_data(position)) is not None:
            data = file.read(position, WINDOW)
            if len(data) < MIN_RECORD_BYTES:
                return
            for at in _magics(data):
                offset = start + position + at - 4
                if offset <= end or at < 4 or at + 32 > len(data):
                    continue
                (size,) = struct.unpack_from(">I", data, at - 4)
                (own,) = _OFFSET.unpack_from(data, at + 24)
                if own == offset and MIN_RECORD_BYTES <= size <= start + run.file_size - offset:
                    record = run.read(offset, size)
                    if len(record) == size and check_record(record, offset) is None:
                        yield offset, record
            position += max(1, len(data) - 40)  # a record's head may lie across the border of two windows
            if position + 40 >= run.file_size:
                return

    def _file_of(self, offset: int) -> str:
        run = self._run
        return run.path(run.file_start(offset) if run.starts else offset - offset % run.file_size)

    def _position_of(self, offset: int) -> int:
        return (offset - self._run.start) % self._run.file_size

    # --- making it so ---

    def _cut(self, end: int, reason: str | None) -> int:
        """Clear what is behind the end; returns how many bytes were not zero."""
        run = self._run
        torn = run.cut(end)
        if torn:
            _log.warning(
                "dropped %d bytes of torn tail at %s:%d: %s",
                torn, self._file_of(end), self._position_of(end), reason or "bytes behind zeros",
            )  # fmt: skip
        self._log.open_at(end)
        return torn

    def _rebuild_index(self, end: int) -> None:
        """Index again what an index file held that also spoke of records which are gone."""
        first = self._derived.index.cut(end)
        if first is None:
            return
        start = self._run.file_start(max(first, self._run.start)) if self._run.starts else end
        for offset, record in LogScan(self._run, start):
            if offset >= first:
                self._add(None, parse_record(record), offset, len(record), index=True)


def _magics(data: bytes) -> Iterator[int]:
    """Where in the bytes the number stands that a record has behind its size."""
    for magic in (MAGIC_V1, MAGIC_V2):
        sign = magic.to_bytes(4, "big")
        position = data.find(sign)
        while position >= 0:
            yield position
            position = data.find(sign, position + 1)
