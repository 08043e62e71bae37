"""Records of the commit log, from memory or from its files, checked before they are served.

Whether they are whole, and whether they are what a queue's entry says. Where they are not, nothing is served:
:class:`WrongEntryError` says so. When ``upkeep`` has found that the entry is right, and the record itself is damaged,
the record is skipped: one bad sector does not stop a queue.

What is in memory is served for an entry only if it agrees with it in topic, queue id, queue offset, place and size.
Where it does not, it is as if it were not there, and what the disk has decides.

Which entries are read, and in which thread, is left to ``reading``.

Source: Apache RocketMQ 5.5 ``CommitLog.getMessage``, which checks nothing.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from itertools import repeat
from typing import cast

from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.consume_queue import ConsumeQueue
from rocketbox.broker.store.read_ahead import ReadAhead
from rocketbox.broker.store.record_cache import RecordCache
from rocketbox.broker.store.records import (
    BEGIN_V4,
    CHECKSUM_BYTES,
    CHECKSUM_NAME,
    MAGICS,
    MIN_RECORD_BYTES,
    V6_HOSTS,
    Place,
    check_record,
    checksum_text,
    has_topic,
    is_sound,
    store_timestamp_of,
    topic_fields,
)
from rocketbox.errors import StoreError
from rocketbox.protocol.framing import MAX_FRAME_BYTES

__all__ = ["NeedsDiskError", "RecordReader", "WrongEntryError"]

READ_GAP = 4 << 10  # records of one queue nearer than this are read together with what is between
LARGE = 256 << 10  # an entry that says more is only believed when the record's head says so too
LARGEST = 2 * MAX_FRAME_BYTES  # bytes of a record that a frame has brought; what says more is no record
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


class RecordReader:
    """Reads records of a log; ``cache`` has the newest, ``ahead`` what was read ahead. Any thread may."""

    def __init__(
        self, log: CommitLog, cache: RecordCache, ahead: ReadAhead, is_damaged: Callable[[ConsumeQueue, int], bool]
    ) -> None:
        self._log = log
        self._cache = cache
        self._ahead = ahead
        self._is_damaged = is_damaged

    def from_memory(self, commit_log_offset: int) -> bytes | None:
        """The record that begins at a commit-log offset, if it is in memory."""
        return self._cache.get(commit_log_offset) if commit_log_offset >= self._log.start else None

    def read(
        self, commit_log_offset: int, *, is_believed: Callable[[bytes], bool] = lambda record: True
    ) -> bytes | None:
        """The record that begins at a commit-log offset; None if none does, or it is not whole. Blocks; any thread.

        One that is not in memory, and that ``is_believed`` refuses, is none. That is asked first: how long it takes to
        say so tells nobody whether the checksum is right of what he has made look like a record.
        """
        record = self.from_memory(commit_log_offset)
        if record is not None:
            return record
        size = self._size_at(commit_log_offset)
        record = b"" if size is None else self._log.read(commit_log_offset, size)
        is_whole = len(record) == size and is_believed(record) and check_record(record, commit_log_offset) is None
        return record if is_whole else None

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
        if size > LARGEST:  # part of a body that looks like a record, and would have a gigabyte read
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

    def of_entries(self, queue: ConsumeQueue, places: list[Place], *, disk: bool, ahead: bool) -> list[bytes]:
        """Their records, from memory or else with one read for those that lie near each other; not what is gone.

        With ``ahead`` what was read ahead is served too, and more is read ahead. Raises WrongEntryError;
        NeedsDiskError when one is not in memory, without ``disk``.
        """
        known = self._in_runs(queue, places) if ahead else []
        if known and None not in known:
            self._ahead.served(sum([place[1] for place in places]), places[-1][0])
            return cast("list[bytes]", known)
        found = self._in_cache(queue, places, known)
        if None in found:
            if not disk:
                raise NeedsDiskError
            if ahead:
                known, found = self._read_ahead(queue, places, found)
        if served := [place for place, record in zip(places, known, strict=False) if record is not None]:
            self._ahead.served(sum([place[1] for place in served]), served[-1][0])
        records = [record for record in found if record is not None]
        return records if len(records) == len(places) else self._from_disk(queue, places, found)

    def _read_ahead(
        self, queue: ConsumeQueue, places: list[Place], found: list[bytes | None]
    ) -> tuple[list[bytes | None], list[bytes | None]]:
        """What is in runs, and in memory, when what was not ``found`` has been read, and more, where it is worth it."""
        known: list[bytes | None] = []
        size, span = sum([place[1] for place in places]), places[-1][0] + places[-1][1] - places[0][0]
        missing = -1
        while None in found and missing < found.index(None):  # others may be reading what follows
            missing = found.index(None)
            self._ahead.read_for(places[missing], len(places), size, span)
            known = self._in_runs(queue, places)
            found = self._in_cache(queue, places, known)
        return known, found

    def _in_runs(self, queue: ConsumeQueue, places: list[Place]) -> list[bytes | None]:
        """The records of those entries that were read ahead, are sound, and agree with them; none if the first is not.

        Written out, as each message that somebody catches up on passes here (benchmark "java client: push consume").
        """
        data, start = self._ahead.data_at(places[0][0], places[0][1])
        if not data:
            return []
        unpack, queue_id, topic = BEGIN_V4.unpack_from, queue.queue_id, topic_fields(queue.topic)
        startswith, view, crc32 = data.startswith, memoryview(data), zlib.crc32
        found: list[bytes | None] = []
        for place in places:
            physical, size, number = place
            at, record = physical - start, None
            if at < 0 or at + size > len(data):
                data, start = self._ahead.data_at(physical, size)
                startswith, view, at = data.startswith, memoryview(data), physical - start
            if data and size >= MIN_RECORD_BYTES:
                its_size, magic, its_queue, its_number, its_offset, flag, length = unpack(data, at)
                if (
                    its_number == number
                    and its_offset == physical
                    and its_size == size
                    and its_queue == queue_id
                    and magic in topic
                ):
                    behind, trailer = at + size, at + size - CHECKSUM_BYTES
                    if (
                        0 <= length < size
                        and not flag & V6_HOSTS
                        and startswith(topic[magic], at + BEGIN_V4.size + length)
                        and startswith(CHECKSUM_NAME, trailer)
                    ):
                        if startswith(checksum_text(crc32(view[at:trailer])), trailer + len(CHECKSUM_NAME)):
                            record = data[at:behind]
                    elif has_topic(odd := data[at:behind], topic) and is_sound(odd, physical):
                        record = odd
            found.append(record)
        return found

    def _in_cache(self, queue: ConsumeQueue, places: list[Place], known: list[bytes | None]) -> list[bytes | None]:
        """The newest records that agree with those entries; what is ``known`` is as it is."""
        get, unpack = self._cache.get, BEGIN_V4.unpack_from
        queue_id, topic = queue.queue_id, topic_fields(queue.topic)
        found: list[bytes | None] = []
        for place, record in zip(places, known, strict=True) if known else zip(places, repeat(None)):
            if record is None and (record := get(place[0])) is not None:
                size, magic, its_queue, number, physical, flag, length = unpack(record)
                if (
                    (physical, size, number) != place
                    or its_queue != queue_id
                    or len(record) != size
                    or magic not in topic
                    or not (
                        has_topic(record, topic)
                        if flag & V6_HOSTS
                        else record.startswith(topic[magic], BEGIN_V4.size + length)
                    )
                ):
                    record = None
            found.append(record)
        return found

    def _from_disk(self, queue: ConsumeQueue, places: list[Place], found: list[bytes | None]) -> list[bytes]:
        """The records of all; those that are not found in memory are read."""
        records: list[bytes] = []
        count = 0
        while count < len(places):
            place, record = places[count], found[count]
            count += 1
            if record is not None:
                records.append(record)
                continue
            near = [place]
            end = place[0] + place[1]
            while (
                count < len(places)
                and 0 <= places[count][0] - end <= READ_GAP
                and places[count][1] >= MIN_RECORD_BYTES  # else its entry is damaged, which is told of it alone
                and found[count] is None
            ):
                near.append(places[count])
                end = places[count][0] + places[count][1]
                count += 1
            records += self._read_near(queue, near, end)
        return records

    def _read_near(self, queue: ConsumeQueue, places: list[Place], end: int) -> list[bytes]:
        start = places[0][0]
        records = []
        data = b""
        try:
            for place in places:
                try:
                    if place is places[0]:
                        self._check_size(queue, place)
                        data = self._log.read(start, min(end, self._log.written) - start)
                    distance = place[0] - start
                    records.append(self._checked(queue, place, data[distance : distance + place[1]]))
                except WrongEntryError:
                    if not self._is_damaged(queue, place[2]):
                        raise
        except (WrongEntryError, FileNotFoundError, StoreError):
            if places[-1][0] < self._log.start:  # the file was removed meanwhile
                return records
            raise
        return records

    def _checked(self, queue: ConsumeQueue, place: Place, record: bytes) -> bytes:
        """The record of an entry, of which ``record`` is what was read; raises WrongEntryError unless it is sound."""
        physical, size, number = place
        if len(record) < size:  # a read ends where its file does: the next one's is read by itself
            self._check_size(queue, place)
            record = self._log.read(physical, size)
        _check_place(record, queue, place)
        wrong = check_record(record, physical)
        if wrong is None:
            wrong = None if has_topic(record, topic_fields(queue.topic)) else "the record is of another topic"
        if wrong is not None:
            raise WrongEntryError(queue, number, wrong)
        return record

    def _check_size(self, queue: ConsumeQueue, place: Place) -> None:
        """Have a large record not read, nor room made for it, because a damaged entry says that it is large."""
        physical, size, number = place
        if not MIN_RECORD_BYTES <= size <= self._log.written - physical:
            raise WrongEntryError(queue, number, f"{size} bytes at {physical}, and the log ends at {self._log.written}")
        if size > LARGE:
            _check_place(self._log.read(physical, _PLACE.size), queue, place, whole=False)


def _is_at(record: bytes, queue_id: int, place: Place) -> bool:
    """Whether a record, or its head, is the one that an entry of a queue with this id speaks of."""
    size, magic, its_queue, number, physical = _PLACE.unpack_from(record)
    return magic in MAGICS and its_queue == queue_id and (physical, size, number) == place


def _check_place(record: bytes, queue: ConsumeQueue, place: Place, *, whole: bool = True) -> None:
    """Raise WrongEntryError unless the record is the one that the entry speaks of."""
    physical, size, number = place
    if len(record) < _PLACE.size or (whole and len(record) != size):
        raise WrongEntryError(queue, number, f"the log has {len(record)} of its {size} bytes at {physical}")
    if not _is_at(record, queue.queue_id, place):
        raise WrongEntryError(queue, number, f"at {physical} there is another record, or none")
