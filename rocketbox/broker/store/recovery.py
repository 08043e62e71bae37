"""What is done when a store is opened: find the end of the commit log, cut off what is torn, complete what is derived.

The log is read from the beginning of the file that holds the first record which may lack its queue or index entry (all
of it if nothing is known); each record is checked (``log_scan``). Where reading stops the log ends or is damaged:
``log_end`` decides, and cuts. Then entries of records that are gone are removed, missing ones are written, and the
checkpoint says so. A crash in between changes nothing: the next start does the same again.

Source: Apache RocketMQ 5.5 ``CommitLog.recoverNormally``, ``recoverAbnormally``, ``ConsumeQueue.recover``.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass

from rocketbox.broker.store.checkpoint import Checkpoint
from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.consume_queue import ConsumeQueue
from rocketbox.broker.store.dispatch import Derived, is_queued
from rocketbox.broker.store.log_end import cut_torn_tail, place_of, refuse_if_synced
from rocketbox.broker.store.log_scan import LogScan
from rocketbox.broker.store.records import NO_CHECKSUM, ParsedRecord, has_whole_properties, parse_record
from rocketbox.broker.store.storage import Storage
from rocketbox.clock import Clock

__all__ = ["RecoveryReport", "recover"]

_log = logging.getLogger(__name__)

PROGRESS_SECONDS = 2.0
FLUSH_EVERY = (
    64 << 20
)  # bytes of log after which the entries found missing are written, so that they do not fill memory
_SIZE = struct.Struct(">I")


@dataclass(frozen=True)
class RecoveryReport:
    """What opening a store found and did. Offsets are physical."""

    clean: bool
    """The last broker stopped cleanly."""
    marked: bool
    """The last broker was ours, and its mark in the checkpoint held."""
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
    torn_copies: tuple[str, ...]
    """The files that hold a copy of it."""
    queue_entries_added: int
    queue_entries_removed: int
    last_store_timestamp_ms: int
    last_record: int
    """Store time and offset of the last record that was read; 0 without one."""


def recover(
    log: CommitLog,
    derived: Derived,
    checkpoint: Checkpoint,
    *,
    storage: Storage,
    root: str,
    clean: bool,
    clock: Clock,
) -> RecoveryReport:
    """Make log, queues and index agree; all of them are loaded before. Blocks.

    Raises StoreCorruptError, StoreError when what is torn cannot be copied, OSError.
    """
    return _Recovery(log, derived, checkpoint, storage, root, clean, clock).run()


class _Recovery:
    def __init__(
        self,
        log: CommitLog,
        derived: Derived,
        checkpoint: Checkpoint,
        storage: Storage,
        root: str,
        clean: bool,
        clock: Clock,
    ) -> None:
        self._log = log
        self._run = log.run
        self._derived = derived
        self._checkpoint = checkpoint
        self._storage = storage
        self._root = root
        self._clean = clean
        self._monotonic = clock.monotonic
        self._now_ms = clock.time_ms()
        self._started = self._reported = clock.monotonic()
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
        if scan.reason == NO_CHECKSUM and self._is_foreign(end):
            _log.warning("the record at %d is another broker's: the mark in the checkpoint counts as none", end)
            self._checkpoint = self._checkpoint.without_mark()
            self._clean = False
            return self.run()
        refuse_if_synced(self._run, end, scan.reason, self._checkpoint, self._derived, clean=self._clean)
        torn = cut_torn_tail(self._storage, self._root, self._run, end, scan.reason, self._now_ms)
        self._log.open_at(end)
        removed = sum(queue.cut_physical(end) for queue in self._derived)
        self._rebuild_index(end)
        self._flush_derived()
        for queue in self._derived:
            queue.next_offset = queue.max_offset
            queue.set_min_offset(self._run.start)
        seconds = self._monotonic() - self._started
        if not self._clean or torn.bytes or self._added or removed or seconds > PROGRESS_SECONDS:
            _log.info(
                "recovered the commit log from %d to %d in %.1f s: %d records read, %d queue entries added, %d removed",
                start, end, seconds, self._records, self._added, removed,
            )  # fmt: skip
        return RecoveryReport(
            clean=self._clean,
            marked=self._checkpoint.marked,
            start=start,
            end=end,
            records=self._records,
            truncated_bytes=torn.bytes,
            torn_file=place_of(self._run, end)[0] if torn.bytes else None,
            torn_position=place_of(self._run, end)[1] if torn.bytes else 0,
            torn_reason=(scan.reason or "zeros") if torn.bytes else None,
            torn_copies=torn.copies,
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

    def _is_foreign(self, offset: int) -> bool:
        """Whether a whole record without the checksum that ours have was written by another broker.

        The lock file does not say so where files of several copies of a directory are mixed.
        """
        (size,) = _SIZE.unpack(self._run.read(offset, _SIZE.size))
        return has_whole_properties(self._run.read(offset, size)) or any(
            entry == (offset, size) for entry in self._derived.entries_from(offset)
        )

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

    # --- making it so ---

    def _rebuild_index(self, end: int) -> None:
        """Index again what an index file held that also spoke of records which are gone."""
        first = self._derived.index.cut(end)
        if first is None:
            return
        start = self._run.file_start(max(first, self._run.start)) if self._run.starts else end
        for offset, record in LogScan(self._run, start):
            if offset >= first:
                self._add(None, parse_record(record), offset, len(record), index=True)
