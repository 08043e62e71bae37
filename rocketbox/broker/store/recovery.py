"""What is done when a store is opened: find the end of the commit log, cut off what is torn, complete what is derived.

The log is read from the first record on that may lack its queue or index entry, or may not be synced, and each record
is checked (``log_scan``). Where reading stops the log ends or is damaged: ``log_end`` decides, and cuts. What is read
is put into queues and index again; what they held of it before is not believed. Where that begins:

    mark    stop       queues                                     index                   the log is read from
    holds   clean      complete, if they end where the mark       complete                the mark's end: nothing
                       says (else: as below, without the mark)
    holds   unclean    rewound to queued_offset, if they then     cut at indexed_offset   the smallest of the mark's
                       end where the mark says (else: below)                              three offsets
    none    clean      complete (Apache's stop leaves them so),   complete                the file of the newest
                       compared with what is read; if they                                record that has both
                       differ: as in the next row
    none    unclean    all is built again                         built again             its beginning

"Rewound": units from there on are overwritten (a unit may be torn at a sector's border, and have its size, but not its
tags code); the units behind the last one are made zero when the log's end is decided, as they may be proofs for that.
Of a queue that is built again the units of records that the log no longer has are kept: they hold the numbers.
"Built again" of the index: when its newest entry is not the one that the mark speaks of.

Nothing is believed that half a recovery left. A crash behind

    the copy of the torn tail, or its cutting     the same again; what is zero needs neither copy nor cutting
    writing units over those that were there      the checkpoint still says queued_offset: the same again. Where more
                                                  than that is built again, the checkpoint (or, without the mark,
                                                  ``abort``) says so before the first unit is written
    cutting the index                             its newest entry is below indexed_offset: it is built again from there
    all of it, before the checkpoint              the same again

Source: Apache RocketMQ 5.5 ``CommitLog.recoverNormally``, ``recoverAbnormally``, ``ConsumeQueue.recover``.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass

from rocketbox.broker.store.checkpoint import CheckpointFile
from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.consume_queue import FILLER_SIZE, ConsumeQueue
from rocketbox.broker.store.dispatch import Derived, is_queued
from rocketbox.broker.store.files import NO_ROOM, read_data
from rocketbox.broker.store.log_end import TornTail, cut_torn_tail, place_of, refuse_if_synced
from rocketbox.broker.store.log_scan import LogScan
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.store.records import NO_CHECKSUM, ParsedRecord, has_whole_properties, parse_record
from rocketbox.clock import Clock
from rocketbox.errors import InvalidMessageError, StoreCorruptError
from rocketbox.storage.file_system import Storage

__all__ = ["RecoveryReport", "recover", "write_abort"]

_log = logging.getLogger(__name__)

PROGRESS_SECONDS = 2.0
FLUSH_EVERY = 64 << 20  # bytes of log after which entries that were read are written, so that they do not fill memory
FILL_AT_ONCE = 1 << 20  # entries that stand for no message: held in memory before they are written
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
    cut_later: Callable[[], object] | None
    """What still has to be done before the log is written: there was no room for a copy of its torn tail."""
    queue_entries_added: int
    queue_entries_removed: int
    last_store_timestamp_ms: int
    last_record: int
    """Store time and offset of the last record that was read; without one what the checkpoint says."""


def recover(
    log: CommitLog,
    derived: Derived,
    checkpoint: CheckpointFile,
    *,
    storage: Storage,
    root: str,
    options: StoreOptions,
    clean: bool,
    clock: Clock,
) -> RecoveryReport:
    """Make log, queues and index agree; all of them are loaded before. Blocks.

    Raises StoreCorruptError, StoreError when what is torn cannot be copied, OSError.
    """
    _tell_sizes(log, derived, options)
    return _Recovery(log, derived, checkpoint, storage, root, clean, clock).run()


def _tell_sizes(log: CommitLog, derived: Derived, options: StoreOptions) -> None:
    """Log what was found of other sizes than the settings say: new files are made as those that are there."""
    for what, found, setting, wanted in (
        ("the commit log", log.run.file_size, "mapped-file-size-commit-log", options.mapped_file_size_commit_log),
        (
            "consume queues", derived.queue_file_size,
            "mapped-file-size-consume-queue", options.mapped_file_size_consume_queue,
        ),
    ):  # fmt: skip
        if found != wanted:
            _log.info("the files of %s have %d bytes, and new ones will; %s says %d", what, found, setting, wanted)
    slots, entries = derived.index.sizes
    if derived.indexes and (slots, entries) != (options.max_hash_slot_num, options.max_index_num):
        _log.info(
            "the index files have %d slots and %d entries, and new ones will; max-hash-slot-num says %d, "
            "max-index-num %d", slots, entries, options.max_hash_slot_num, options.max_index_num,
        )  # fmt: skip


def write_abort(storage: Storage, root: str) -> None:
    """Return when the disk says that the store was not stopped cleanly."""
    file = storage.open(f"{root}/abort", create=True)
    text = b"%d" % os.getpid()
    try:
        file.write(0, [text])  # in place: once cut it might need a block that a full disk does not have
        file.truncate(len(text))
    except OSError as error:
        if error.errno not in NO_ROOM:  # that the file is there says it all
            raise
    file.sync()
    storage.sync_directory(root)


class _MismatchError(Exception):
    """The queues, as they are, cannot take a record that was read."""


class _Recovery:
    def __init__(
        self,
        log: CommitLog,
        derived: Derived,
        checkpoint: CheckpointFile,
        storage: Storage,
        root: str,
        clean: bool,
        clock: Clock,
    ) -> None:
        self._log = log
        self._run = log.run
        self._derived = derived
        self._checkpoint_file = checkpoint
        self._checkpoint = checkpoint.value
        self._storage = storage
        self._root = root
        self._clean = clean
        self._monotonic = clock.monotonic
        self._now_ms = clock.time_ms()
        self._started = self._reported = clock.monotonic()
        self._all_queues = False  # are built again from the log's beginning
        self._seen: set[ConsumeQueue] = set()  # the queues that had a record since
        self._rewound = False
        self._records = 0
        self._added = 0
        self._last: tuple[int, bytes] | None = None  # the last record that was read
        self._flushed_at = 0

    def run(self) -> RecoveryReport:
        queued, indexed = self._place_queues(), self._place_index()
        start = first = self._first_offset(queued, indexed)
        self._sync_from(start)
        try:
            scan = self._scan(start, queued, indexed)
        except _MismatchError as mismatch:
            _log.warning("%s; all of the log is read again to complete them", mismatch)
            queued = self._build_all_queues()
            first = self._run.start
            scan = self._scan(first, queued, indexed)
        end = scan.end
        if scan.reason == NO_CHECKSUM and self._is_foreign(end):
            _log.warning("the record at %d is another broker's: the mark in the checkpoint counts as none", end)
            self._checkpoint, self._clean = self._checkpoint.without_mark(), False
            self._checkpoint_file.value = self._checkpoint
            self._records = self._added = 0
            return self.run()
        torn = TornTail(0)
        if not (self._clean and self._checkpoint.marked and end == start == self._checkpoint.synced_offset):
            refuse_if_synced(self._run, end, scan.reason, self._checkpoint, self._derived, clean=self._clean)
            torn = cut_torn_tail(self._storage, self._root, self._run, end, scan.reason, self._now_ms)
        if not self._clean and self._checkpoint.marked:
            self._write_again(max(first, self._checkpoint.synced_offset), end)
        self._log.open_at(end)
        removed = self._complete(end)
        seconds = self._monotonic() - self._started
        if not self._clean or torn.bytes or self._added or removed or seconds > PROGRESS_SECONDS:
            _log.info(
                "recovered the commit log from %d to %d in %.1f s: %d records read, %d queue entries added, %d removed",
                first, end, seconds, self._records, self._added, removed,
            )  # fmt: skip
        last_record, timestamp = self._checkpoint.logics_physical_offset, self._checkpoint.physic_msg_timestamp
        if self._last is not None:
            last_record, timestamp = self._last[0], self._parsed(*self._last).stored
        return RecoveryReport(
            clean=self._clean,
            marked=self._checkpoint.marked,
            start=first,
            end=end,
            records=self._records,
            truncated_bytes=torn.bytes,
            torn_file=place_of(self._run, end)[0] if torn.bytes else None,
            torn_position=place_of(self._run, end)[1] if torn.bytes else 0,
            torn_reason=(scan.reason or "zeros") if torn.bytes else None,
            torn_copies=torn.copies,
            cut_later=torn.cut_later,
            queue_entries_added=self._added,
            queue_entries_removed=removed,
            last_store_timestamp_ms=timestamp,
            last_record=last_record,
        )

    # --- where to begin ---

    def _place_queues(self) -> int:
        """Have the queues go on where they are complete; records from the offset that is returned on lack entries."""
        checkpoint = self._checkpoint
        if not checkpoint.marked:
            if not self._clean:
                return self._build_all_queues()
            if self._misses_first_files():
                return self._build_all_queues()
            return max((queue.max_physical_end for queue in self._derived), default=self._run.start)
        if not self._clean or checkpoint.queued_offset < checkpoint.synced_offset:
            self._derived.rewind(checkpoint.queued_offset)
            self._rewound = True
        if self._derived.queue_ends == checkpoint.queue_ends:
            if not self._misses_first_files():
                return checkpoint.queued_offset
        else:
            _log.warning("the consume queues do not end where the checkpoint says; they are built again from the log")
        return self._build_all_queues()

    def _misses_first_files(self) -> bool:
        """Whether the first files of a queue are missing though the log has their messages.

        Retention leaves the file with the entry before the first message, or one that begins with that message: only
        then the log has to be read, up to there, to know.
        """
        doubtful = {}
        for queue in self._derived:
            first, begins = queue.first_offset, self._derived.deleted.begin_of(queue.topic, queue.queue_id)
            if queue.run.starts and begins < first < queue.max_offset:
                physical, size, _ = queue.unit(first)
                if size != FILLER_SIZE and physical >= self._run.start:
                    doubtful[queue.topic, queue.queue_id] = physical
        if not doubtful:
            return False
        for offset, record in LogScan(self._run, self._run.start):
            if offset >= max(doubtful.values()):
                break
            topic, queue_id, _, sys_flag, _, _ = self._parsed(offset, record)
            if (
                offset < doubtful.get((topic, queue_id), 0)
                and is_queued(sys_flag)
                and not self._derived.deleted.is_gone(topic, offset)
            ):
                _log.warning("the first files of %s/%d are missing: the queues are built again", topic, queue_id)
                return True
        return False

    def _build_all_queues(self) -> int:
        self._all_queues = self._rewound = True
        start = self._run.start
        self._derived.rewind(start)
        if self._checkpoint.marked:
            ends = self._derived.queue_ends
            self._checkpoint_file.write(sync=True, queued_offset=start, queue_ends=ends)
        elif self._clean:
            write_abort(self._storage, self._root)
        return start

    def _place_index(self) -> int:
        """Have the index go on where it is complete; records from the offset that is returned on lack entries."""
        checkpoint, index = self._checkpoint, self._derived.index
        if not self._derived.indexes:
            return self._run.limit
        if not checkpoint.marked:
            if self._clean:
                return max(self._run.start, index.end_physical + 1)
        else:
            if not self._clean:
                index.cut(checkpoint.indexed_offset, checkpoint.index_msg_timestamp)
            if index.end_timestamp == checkpoint.index_msg_timestamp:
                return checkpoint.indexed_offset
            _log.warning("the index does not end where the checkpoint says; it is built again from the log")
            self._checkpoint_file.write(sync=True, indexed_offset=self._run.start, index_msg_timestamp=0)
        index.cut(0)
        return self._run.start

    def _first_offset(self, queued: int, indexed: int) -> int:
        """Where to begin to read: at a record, or the start of a file."""
        run, checkpoint = self._run, self._checkpoint
        if not run.starts:
            return 0
        if checkpoint.marked:
            return max(run.start, min(queued, indexed, checkpoint.synced_offset, run.limit))
        return run.file_start(max(run.start, min(queued, indexed, run.limit - 1)))

    def _sync_from(self, offset: int) -> None:
        """What a killed broker wrote may not be on the disk yet, nor the names of its files."""
        run = self._run
        if not self._clean and run.starts:
            for file_start in run.starts:
                if file_start + run.file_size > offset:
                    run.file(file_start).sync()
            self._storage.sync_directory(run.directory)

    def _write_again(self, start: int, end: int) -> None:
        """Write and sync the log from ``start`` to ``end`` once more.

        Pages for which a sync has failed count as clean, and no later sync tries them.
        """
        run = self._run
        while start < end:
            file_start = run.file_start(start)
            file_end = min(end, file_start + run.file_size)
            file = run.file(start)
            try:
                for position, data in read_data(file, start - file_start, file_end - file_start):
                    file.write(position, [data])
            except OSError as error:
                if error.errno not in NO_ROOM:  # a file system that never overwrites needs room for it
                    raise
            file.sync()
            start = file_end

    # --- reading ---

    def _scan(self, start: int, queued: int, indexed: int) -> LogScan:
        """Check all from ``start`` on; add the entries of records from ``queued`` and ``indexed`` on."""
        self._flushed_at = start
        scan = LogScan(self._run, start, checksums_from=self._checkpoint.checksums_from, on_window=self._progress)
        needed = min(queued, indexed)
        index_end = self._derived.index.end_physical
        add = self._derived.add
        for offset, record in scan:
            self._records += 1
            self._last = (offset, record)
            if offset >= needed:
                parsed = self._parsed(offset, record)
                queue = None
                if (
                    is_queued(parsed.sys_flag)
                    and (offset >= queued or not self._rewound)
                    and not self._derived.deleted.is_gone(parsed.topic, offset)
                ):
                    queue = self._queue_for(parsed, offset, record, has_entry=offset < queued)
                index = offset >= indexed and offset > index_end
                if queue is not None or index:
                    topic, _, _, sys_flag, stored, properties = parsed
                    add(queue, topic, properties, sys_flag, offset, len(record), stored, index=index)
                    self._added += queue is not None
        return scan

    def _queue_for(self, parsed: ParsedRecord, offset: int, record: bytes, *, has_entry: bool) -> ConsumeQueue | None:
        """The record's queue, which is where it can take its entry; None if it has it, or cannot have it."""
        try:
            queue = self._derived.queue(parsed.topic, parsed.queue_id)
        except InvalidMessageError as error:
            raise self._inexplicable(offset, error) from error
        number = parsed.queue_offset
        if has_entry or (not self._rewound and offset + len(record) <= queue.max_physical_end):
            if queue.first_offset <= number < queue.max_offset:
                expected = (offset, len(record), self._derived.code(parsed))
                if queue.unit(number) == expected:
                    return None
            raise _MismatchError(
                f"the entry {number} of {parsed.topic}/{parsed.queue_id} is not that of the record at {offset}"
            )
        if number < queue.max_offset and queue.is_new:  # of a broker that does not know which topics were deleted
            queue.begin_at(number)
        if self._all_queues and queue not in self._seen:
            self._seen.add(queue)
            if number < queue.first_offset:
                _log.warning("the first files of %s/%d are missing: all are made again", parsed.topic, parsed.queue_id)
                queue.begin_again_at(number)
        if number == queue.max_offset:
            return queue
        if not self._all_queues:
            raise _MismatchError(
                f"{parsed.topic}/{parsed.queue_id} ends at {queue.max_offset}, before a record of {number}"
            )
        if number < queue.max_offset:
            _log.warning(
                "the record at %d has queue offset %d in %s/%d, which another has already; it is not in its queue",
                offset, number, parsed.topic, parsed.queue_id,
            )  # fmt: skip
            return None
        if queue.max_offset == queue.first_offset:  # an empty one begins in the file of that number
            self._derived.fill_queue(queue, number)
        while queue.max_offset < number:
            self._derived.fill_queue(queue, min(number, queue.max_offset + FILL_AT_ONCE))
            if queue.max_offset < number:
                self._derived.flush()
        return queue

    def _parsed(self, offset: int, record: bytes) -> ParsedRecord:
        try:
            return parse_record(record)
        except (ValueError, struct.error, IndexError) as error:
            raise self._inexplicable(offset, error) from error

    def _inexplicable(self, offset: int, error: Exception) -> StoreCorruptError:
        return StoreCorruptError(*place_of(self._run, offset), f"the record is whole, but cannot be one: {error}")

    def _is_foreign(self, offset: int) -> bool:
        """Whether a whole record without the checksum that ours have was written by another broker.

        The lock file does not say so where files of several copies of a directory are mixed.
        """
        (size,) = _SIZE.unpack(self._run.read(offset, _SIZE.size))
        return has_whole_properties(self._run.read(offset, size)) or any(
            entry == (offset, size) for entry in self._derived.entries_from(offset)
        )

    def _progress(self, offset: int) -> None:
        now = self._monotonic()
        if now - self._reported >= PROGRESS_SECONDS:
            self._reported = now
            _log.info("reading the commit log: at %d of at most %d", offset, self._run.limit)
        if offset - self._flushed_at >= FLUSH_EVERY:
            self._flushed_at = offset
            self._derived.flush()

    # --- making it so ---

    def _complete(self, end: int) -> int:
        """Write what was added, remove entries of records that are gone; returns how many those were in the queues."""
        removed = 0
        if not self._rewound and not self._clean_and_marked:
            removed = sum(queue.cut_physical(end) for queue in self._derived)
            if self._derived.index.end_physical >= end:
                self._derived.index.cut(end)
        self._derived.flush()
        for queue in self._derived:
            if self._rewound:
                removed += queue.cut_files()
            queue.next_offset = queue.max_offset
            queue.set_min_offset(self._run.start)
        return removed

    @property
    def _clean_and_marked(self) -> bool:
        return self._clean and self._checkpoint.marked
