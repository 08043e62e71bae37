"""What is read from the store: a queue's messages from an offset on, records by offset, key or time.

Holds the memory of the newest records too, where consumers that keep up read. Puts are left to ``message_store``, the
layout of files to their modules. All is called in the loop that runs the store.

Source: Apache RocketMQ 5.5 ``DefaultMessageStore`` (``getMessage``, ``queryMessage``, ``getOffsetInQueueByTime``),
``ConsumeQueueStore``, ``GetMessageStatus``.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from enum import Enum

from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.consume_queue import FILLER_SIZE, ConsumeQueue
from rocketbox.broker.store.dispatch import Derived
from rocketbox.broker.store.index_feed import IndexFeed
from rocketbox.broker.store.message_filter import MessageFilter
from rocketbox.broker.store.options import CONSUME_QUEUE_UNIT, StoreOptions
from rocketbox.broker.store.records import MAGICS, MIN_RECORD_BYTES, store_timestamp_of
from rocketbox.errors import StoreError

__all__ = ["GetMessageStatus", "GetResult", "RecordCache", "StoreReader"]

FILTERED_BYTES = 4 << 20  # of records that a filter refused, in one read
READ_GAP = 4 << 10  # records of one queue nearer than this are read together with what is between
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


class RecordCache:
    """The newest records by commit-log offset, up to about ``size`` bytes of them.

    Two halves: when the newer one is full, the older one goes. So nothing has to be removed one by one.
    """

    def __init__(self, size: int) -> None:
        self._half = size // 2
        self._newer: dict[int, bytes] = {}
        self._older: dict[int, bytes] = {}
        self._used = 0  # bytes in the newer half

    def add(self, records: dict[int, bytes], size: int) -> None:
        """Add records, which have ``size`` bytes in all."""
        self._newer.update(records)
        self._used += size
        if self._used > self._half:
            self._older, self._newer, self._used = self._newer, {}, 0

    def get(self, offset: int) -> bytes | None:
        return self._newer.get(offset) or self._older.get(offset)


class StoreReader:
    """Reads from the files and the memory of a store. ``cache`` is where the newest records are put."""

    def __init__(self, options: StoreOptions) -> None:
        self.options = options
        self._memory = _memory_bytes() * options.access_message_in_memory_max_ratio // 100

    def begin(self, log: CommitLog, derived: Derived, feed: IndexFeed) -> None:
        """Read from these from now on; nothing of them is in memory yet."""
        self._log = log
        self._derived = derived
        self._feed = feed
        self.cache = RecordCache(self.options.read_cache_size)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first message of a queue; 0 for a queue that is not there."""
        queue = self._derived.find(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Behind the last readable message of a queue; 0 for a queue that is not there."""
        queue = self._derived.find(topic, queue_id)
        return queue.max_offset if queue is not None else 0

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
        filter: MessageFilter | None = None,  # noqa: A002 - what it is called everywhere else
    ) -> GetResult:
        """Up to ``max_messages`` records of a queue from ``offset`` on that ``filter`` selects.

        At most ``max_transfer_*`` of the options, and ``max_bytes``; the first record comes whatever its size. The
        search is bounded, by ``max_filter_message_size`` in units and by FILTERED_BYTES in records that the filter has
        refused: NO_MATCHED_MESSAGE says where to go on.
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
        try:
            records, next_offset, removed = self._search(queue, offset, max_messages, max_bytes, filter)
        except (StoreError, FileNotFoundError):
            if offset >= queue.min_offset:
                raise
            return GetResult(GetMessageStatus.OFFSET_TOO_SMALL, queue.min_offset, queue.min_offset, end)
        if records:
            return GetResult(GetMessageStatus.FOUND, next_offset, least, end, records)
        if next_offset == offset:
            return GetResult(GetMessageStatus.OFFSET_FOUND_NULL, queue.next_file(offset), least, end)
        status = GetMessageStatus.MESSAGE_WAS_REMOVING if removed else GetMessageStatus.NO_MATCHED_MESSAGE
        return GetResult(status, next_offset, least, end)

    def _search(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_messages: int,
        max_bytes: int | None,
        filter: MessageFilter | None,  # noqa: A002 - what it is called everywhere else
    ) -> tuple[list[bytes], int, bool]:
        """The records, the offset behind what was searched, and whether entries stood for messages that are gone."""
        options = self.options
        most_bytes = options.max_transfer_bytes_on_message_in_memory
        most = options.max_transfer_count_on_message_in_memory
        log_end, log_start = self._log.written, self._log.start
        limits_known = False
        records: list[bytes] = []
        taken: list[tuple[int, int]] = []  # they passed by their unit, and fit if they pass by their record too
        total, refused, next_offset, removed = 0, 0, offset, False
        for physical, size, code in queue.units(
            offset, max(options.max_filter_message_size // CONSUME_QUEUE_UNIT, max_messages)
        ):
            if size == FILLER_SIZE or physical < log_start:
                removed = removed or size != FILLER_SIZE
                next_offset += 1
                continue
            if filter is not None and not filter.matches_unit(code):
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
            if taken and (len(records) + len(taken) >= most or total + size > most_bytes):
                if filter is None:
                    break
                records += _wanted(self._read_records(taken), filter)
                taken, before, total = [], total, sum(map(len, records))
                refused += before - total
                if refused >= FILTERED_BYTES:
                    break
            if records and (len(records) >= most or total + size > most_bytes):
                break
            taken.append((physical, size))
            total += size
            next_offset += 1
        if taken:
            records += _wanted(self._read_records(taken), filter)
        return records, next_offset, removed

    def _read_records(self, places: list[tuple[int, int]]) -> list[bytes]:
        """Records at (offset, size), from memory or else with one read for those that lie near each other."""
        cache = self.cache
        records = []
        count = 0
        while count < len(places):
            start, size = places[count]
            record = cache.get(start)
            count += 1
            if record is not None:
                records.append(record)
                continue
            near = [(start, size)]
            end = start + size
            while (
                count < len(places) and 0 <= places[count][0] - end <= READ_GAP and cache.get(places[count][0]) is None
            ):
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
        if commit_log_offset < self._log.start:
            return None
        record = self.cache.get(commit_log_offset)
        if record is not None:
            return record
        if commit_log_offset > self._log.written - MIN_RECORD_BYTES:
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
        self._feed.build_now()
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


def _wanted(records: list[bytes], filter: MessageFilter | None) -> list[bytes]:  # noqa: A002 - as above
    """Those that are wanted, and are there: the file of one may have been removed meanwhile."""
    return [record for record in records if record and (filter is None or filter.matches_record(record))]


def _memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
