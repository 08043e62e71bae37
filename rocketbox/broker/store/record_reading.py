"""Records of the commit log, from memory or from its files, checked before they are served.

Whether they are whole, and whether they are what a queue's entry says. Where they are not, nothing is served:
:class:`WrongEntryError` says so. When ``upkeep`` has found that the entry is right, and the record itself is damaged,
the record is skipped: one bad sector does not stop a queue.

Which entries are read, and in which thread, is left to ``reading``.

Source: Apache RocketMQ 5.5 ``CommitLog.getMessage``, which checks nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.consume_queue import ConsumeQueue
from rocketbox.broker.store.record_cache import RecordCache
from rocketbox.broker.store.records import MAGICS, MIN_RECORD_BYTES, check_record, parse_record, store_timestamp_of
from rocketbox.errors import StoreError

__all__ = ["NeedsDiskError", "RecordReader", "TakenEntry", "WrongEntryError"]

READ_GAP = 4 << 10  # records of one queue nearer than this are read together with what is between
LARGE = 256 << 10  # an entry that says more is only believed when the record's head says so too
TIME_BYTES = 76  # of a record, in which its store time lies
_HEAD = struct.Struct(">II20xq")  # size, magic, physical offset
_PLACE = struct.Struct(">II4xi4xqq")  # size, magic, queue id, queue offset, physical offset


class WrongEntryError(StoreError):
    """An entry of a queue does not lead to its message; the queue is compared with the log, and mended, meanwhile."""

    def __init__(self, queue: ConsumeQueue, number: int, reason: str) -> None:
        self.topic = queue.topic
        self.queue_id = queue.queue_id
        self.number = number
        self.reason = reason
        super().__init__(
            f"entry {number} of {queue.topic}/{queue.queue_id} does not lead to its message: {reason}; "
            "the queue is compared with the commit log now, ask again"
        )


class NeedsDiskError(Exception):
    """It is not in memory."""


class TakenEntry(NamedTuple):
    """An entry whose record is to be read."""

    physical: int
    size: int
    number: int


class RecordReader:
    """Reads records of a log; ``cache`` has the newest. Any thread may."""

    def __init__(self, log: CommitLog, cache: RecordCache, is_damaged: Callable[[ConsumeQueue, int], bool]) -> None:
        self._log = log
        self._cache = cache
        self._is_damaged = is_damaged

    def from_memory(self, commit_log_offset: int) -> bytes | None:
        """The record that begins at a commit-log offset, if it is in memory."""
        return self._cache.get(commit_log_offset) if commit_log_offset >= self._log.start else None

    def read(self, commit_log_offset: int) -> bytes | None:
        """The record that begins at a commit-log offset; None if none does, or it is not whole. Blocks; any thread."""
        record = self.from_memory(commit_log_offset)
        if record is not None:
            return record
        try:
            size = self._size_at(commit_log_offset)
            record = b"" if size is None else self._log.read(commit_log_offset, size)
        except (FileNotFoundError, StoreError):
            if commit_log_offset < self._log.start:  # removed meanwhile
                return None
            raise
        return record if len(record) == size and check_record(record, commit_log_offset) is None else None

    def _size_at(self, offset: int) -> int | None:
        """The size of the record that begins there; None if none does."""
        if not self._log.start <= offset <= self._log.written - MIN_RECORD_BYTES:
            return None
        head = self._log.read(offset, _HEAD.size)
        if len(head) < _HEAD.size:
            return None
        size, magic, own_offset = _HEAD.unpack(head)
        if magic not in MAGICS or own_offset != offset or not MIN_RECORD_BYTES <= size <= self._log.written - offset:
            return None
        return int(size)

    def stored_at(self, physical: int) -> int:
        """Store time of a record; 0 of one that is gone."""
        head = self._cache.get(physical)
        if head is None:
            try:
                head = self._log.read(physical, TIME_BYTES) if self._size_at(physical) is not None else b""
            except (FileNotFoundError, StoreError):
                head = b""
        return store_timestamp_of(head) if head else 0

    # --- of a queue ---

    def of_entries(self, queue: ConsumeQueue, places: list[TakenEntry], *, disk: bool) -> list[bytes]:
        """Their records, from memory or else with one read for those that lie near each other; not what is gone.

        Raises WrongEntryError; NeedsDiskError when one is not in memory, without ``disk``.
        """
        cache = self._cache
        records: list[bytes] = []
        count = 0
        while count < len(places):
            place = places[count]
            record = cache.get(place.physical)
            count += 1
            if record is not None:
                _check_place(record, queue, place)
                records.append(record)
                continue
            if not disk:
                raise NeedsDiskError
            near = [place]
            end = place.physical + place.size
            while (
                count < len(places)
                and 0 <= places[count].physical - end <= READ_GAP
                and places[count].size >= MIN_RECORD_BYTES  # else its entry is damaged, which is told of it alone
                and cache.get(places[count].physical) is None
            ):
                near.append(places[count])
                end = places[count].physical + places[count].size
                count += 1
            records += self._read_near(queue, near, end)
        return records

    def _read_near(self, queue: ConsumeQueue, places: list[TakenEntry], end: int) -> list[bytes]:
        start = places[0].physical
        records = []
        data = b""
        try:
            for place in places:
                try:
                    if place is places[0]:
                        self._check_size(queue, place)
                        data = self._log.read(start, min(end, self._log.written) - start)
                    distance = place.physical - start
                    records.append(self._checked(queue, place, data[distance : distance + place.size]))
                except WrongEntryError:
                    if not self._is_damaged(queue, place.number):
                        raise
        except (WrongEntryError, FileNotFoundError, StoreError):
            if places[-1].physical < self._log.start:  # the file was removed meanwhile
                return records
            raise
        return records

    def _checked(self, queue: ConsumeQueue, place: TakenEntry, record: bytes) -> bytes:
        """The record of an entry, of which ``record`` is what was read; raises WrongEntryError unless it is sound."""
        if len(record) < place.size:  # a read ends where its file does: the next one's is read by itself
            self._check_size(queue, place)
            record = self._log.read(place.physical, place.size)
        _check_place(record, queue, place)
        wrong = check_record(record, place.physical)
        if wrong is None and (named := parse_record(record).topic) != queue.topic:
            wrong = f"the record at {place.physical} is of topic {named}"
        if wrong is not None:
            raise WrongEntryError(queue, place.number, wrong)
        return record

    def _check_size(self, queue: ConsumeQueue, place: TakenEntry) -> None:
        """Have a large record not read, nor room made for it, because a damaged entry says that it is large."""
        physical, size, number = place
        if not MIN_RECORD_BYTES <= size <= self._log.written - physical:
            raise WrongEntryError(queue, number, f"{size} bytes at {physical}, and the log ends at {self._log.written}")
        if size > LARGE:
            _check_place(self._log.read(physical, _PLACE.size), queue, place, whole=False)


def _check_place(record: bytes, queue: ConsumeQueue, place: TakenEntry, *, whole: bool = True) -> None:
    """Raise WrongEntryError unless the record is the one that the entry speaks of; 0.4 us for each that is served."""
    physical, size, number = place
    if len(record) < _PLACE.size or (whole and len(record) != size):
        raise WrongEntryError(queue, number, f"the log has {len(record)} of its {size} bytes at {physical}")
    found = _PLACE.unpack_from(record)
    if (
        found[0] != size
        or found[1] not in MAGICS
        or found[2] != queue.queue_id
        or found[3] != number
        or found[4] != physical
    ):
        raise WrongEntryError(queue, number, f"at {physical} there is another record, or none")
