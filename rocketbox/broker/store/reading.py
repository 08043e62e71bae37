"""What is read from the store: a queue's messages from an offset on, records by offset, key or time.

Holds the memory of the newest records too, where consumers that keep up read: :meth:`StoreReader.get_from_memory` never
touches a file, so the loop may call it. What may touch files runs in a few threads (:meth:`StoreReader.fetch` and the
other coroutines); the plain methods block and may be called in any thread. Records that come from files are checked
before they are served: whether they are whole, and whether they are what the queue's entry says. Where they are not,
nothing is served, and ``upkeep`` hears of it. When that has found that the queue is right, and so the record itself is
damaged, the record is skipped: one bad sector does not stop a queue. Files may be removed meanwhile: what was in them
is gone then.

Puts are left to ``message_store``, the layout of files to their modules, queries by key to ``key_search``.

Source: Apache RocketMQ 5.5 ``DefaultMessageStore`` (``getMessage``, ``queryMessage``, ``getOffsetInQueueByTime``),
``ConsumeQueueStore``, ``GetMessageStatus``.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.consume_queue import FILLER_SIZE, ConsumeQueue
from rocketbox.broker.store.dispatch import Derived
from rocketbox.broker.store.index_feed import IndexFeed
from rocketbox.broker.store.key_search import KeySearch
from rocketbox.broker.store.message_filter import MessageFilter
from rocketbox.broker.store.options import CONSUME_QUEUE_UNIT, StoreOptions
from rocketbox.broker.store.record_cache import RecordCache
from rocketbox.broker.store.records import MAGICS, MIN_RECORD_BYTES, check_record, parse_record, store_timestamp_of
from rocketbox.errors import StoreError
from rocketbox.handoff import WorkerPool

__all__ = ["GetMessageStatus", "GetResult", "StoreReader", "WrongEntryError"]

_log = logging.getLogger(__name__)

FILTERED_BYTES = 4 << 20  # of records that a filter refused, in one read
READ_GAP = 4 << 10  # records of one queue nearer than this are read together with what is between
READ_THREADS = 4
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


class _NeedsDiskError(Exception):
    """It is not in memory."""


class _Taken(NamedTuple):
    """An entry whose record is to be read."""

    physical: int
    size: int
    number: int


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


class StoreReader:
    """Reads from the files and the memory of a store. ``cache`` is where the newest records are put."""

    def __init__(self, options: StoreOptions) -> None:
        self.options = options
        self._memory = _memory_bytes() * options.access_message_in_memory_max_ratio // 100
        self.pool = self.enter()
        self._refusal: str | None = None
        self.on_wrong_entry: Callable[[WrongEntryError], None] | None = None
        """Called, in any thread, with what cannot be served."""
        self.is_damaged: Callable[[ConsumeQueue, int], bool] = _nothing_is
        """Whether a message that cannot be served is known to be damaged itself; called in any thread."""

    def refuse(self, reason: str) -> None:
        """Nothing is read any more, until :meth:`begin`."""
        self._refusal = reason
        self.enter()

    def enter(self) -> WorkerPool:
        """Its threads, to be entered by whoever runs the store."""
        self.pool = WorkerPool(READ_THREADS, "store reads")
        return self.pool

    def begin(self, log: CommitLog, derived: Derived, feed: IndexFeed) -> None:
        """Read from these from now on; nothing of them is in memory yet."""
        self._log = log
        self._derived = derived
        self._feed = feed
        self._refusal = None
        self.cache = RecordCache(self.options.read_cache_size)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first message of a queue; where it will begin for a queue that is not there."""
        queue = self._derived.find(topic, queue_id)
        return queue.min_offset if queue is not None else self.first_offset(topic, queue_id)

    def first_offset(self, topic: str, queue_id: int) -> int:
        """The offset that the first message of a queue had or will have: 0, but for topics that were deleted before."""
        return self._derived.deleted.begin_of(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Behind the last readable message of a queue; where it will begin for a queue that is not there."""
        queue = self._derived.find(topic, queue_id)
        return queue.max_offset if queue is not None else self.first_offset(topic, queue_id)

    def queues(self) -> list[tuple[str, int]]:
        """Topic and id of all queues."""
        return [(queue.topic, queue.queue_id) for queue in self._derived]

    async def fetch(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        max_bytes: int | None = None,
        filter: MessageFilter | None = None,  # noqa: A002 - what it is called everywhere else
    ) -> GetResult:
        """As :meth:`get`: from memory if all of it is there, else by a thread."""
        found = self.get_from_memory(topic, queue_id, offset, max_messages, max_bytes, filter)
        if found is None:
            found = await self.pool.run(self.get, topic, queue_id, offset, max_messages, max_bytes, filter)
        return found

    def get_from_memory(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        max_bytes: int | None = None,
        filter: MessageFilter | None = None,  # noqa: A002 - as above
    ) -> GetResult | None:
        """As :meth:`get`, without a look into a file: None when one is needed. Called in the loop."""
        try:
            return self._get(topic, queue_id, offset, max_messages, max_bytes, filter, disk=False)
        except _NeedsDiskError:
            return None

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int = 32,
        max_bytes: int | None = None,
        filter: MessageFilter | None = None,  # noqa: A002 - as above
    ) -> GetResult:
        """Up to ``max_messages`` records of a queue from ``offset`` on that ``filter`` selects; blocks, in any thread.

        At most ``max_transfer_*`` of the options, and ``max_bytes``; the first record comes whatever its size. The
        search is bounded, by ``max_filter_message_size`` in units and by FILTERED_BYTES in records that the filter has
        refused: NO_MATCHED_MESSAGE says where to go on. Raises WrongEntryError, OSError.
        """
        return self._get(topic, queue_id, offset, max_messages, max_bytes, filter, disk=True)

    def _get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int | None,
        filter: MessageFilter | None,  # noqa: A002 - as above
        *,
        disk: bool,
    ) -> GetResult:
        if self._refusal is not None:
            raise StoreError(self._refusal)
        queue = self._derived.find(topic, queue_id)
        if queue is None:
            least = end = self.first_offset(topic, queue_id)
        else:
            least, end = queue.min_offset, queue.max_offset
        if end == 0:
            none = GetMessageStatus.NO_MATCHED_LOGIC_QUEUE if queue is None else GetMessageStatus.NO_MESSAGE_IN_QUEUE
            return GetResult(none, 0, least, end)
        if offset < least:
            return GetResult(GetMessageStatus.OFFSET_TOO_SMALL, least, least, end)
        if offset == end:
            return GetResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, least, end)
        if offset > end:
            return GetResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, end, least, end)
        assert queue is not None  # which has no message
        try:
            records, next_offset, removed = self._search(queue, offset, max_messages, max_bytes, filter, disk)
        except (StoreError, FileNotFoundError) as error:
            if offset < queue.min_offset:  # its file was removed meanwhile
                return GetResult(GetMessageStatus.OFFSET_TOO_SMALL, queue.min_offset, queue.min_offset, end)
            if isinstance(error, WrongEntryError) and self.on_wrong_entry is not None:
                self.on_wrong_entry(error)
            raise
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
        disk: bool,
    ) -> tuple[list[bytes], int, bool]:
        """The records, the offset behind what was searched, and whether entries stood for messages that are gone."""
        options = self.options
        most_bytes = options.max_transfer_bytes_on_message_in_memory
        most = options.max_transfer_count_on_message_in_memory
        log_end, log_start = self._log.written, self._log.start
        limits_known = False
        records: list[bytes] = []
        taken: list[_Taken] = []  # they passed by their unit, and fit if they pass by their record too
        total, refused, next_offset, removed = 0, 0, offset, False
        if not disk and not queue.is_in_memory(offset):
            raise _NeedsDiskError
        for physical, size, code in self._units(
            queue, offset, max(options.max_filter_message_size // CONSUME_QUEUE_UNIT, max_messages)
        ):
            if size == FILLER_SIZE or physical < log_start:
                if size != FILLER_SIZE:
                    self._check_removed(queue, next_offset, physical, size)
                    removed = True
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
                records += _wanted(self._read_taken(queue, taken, disk), filter)
                taken, before, total = [], total, sum(map(len, records))
                refused += before - total
                if refused >= FILTERED_BYTES:
                    break
            if records and (len(records) >= most or total + size > most_bytes):
                break
            taken.append(_Taken(physical, size, next_offset))
            total += size
            next_offset += 1
        if taken:
            read = self._read_taken(queue, taken, disk)
            removed = removed or not read
            records += _wanted(read, filter)
        return records, next_offset, removed

    def _check_removed(self, queue: ConsumeQueue, number: int, physical: int, size: int) -> None:
        """Raise WrongEntryError for an entry that only says that its message is gone, with the log's beginning.

        The messages of a queue go in their order: none is gone behind one that is there.
        """
        if size <= 0 or physical < 0:
            raise WrongEntryError(queue, number, f"it says {size} bytes at {physical}")
        if number > queue.min_offset:
            before, before_size, _ = queue.unit(number - 1)
            if before_size != FILLER_SIZE and before >= self._log.start:
                raise WrongEntryError(queue, number, f"it says {physical}, and the entry before says {before}")

    def _units(self, queue: ConsumeQueue, offset: int, count: int) -> Iterator[tuple[int, int, int]]:
        try:
            return queue.units(offset, count)
        except (FileNotFoundError, StoreError):
            if offset < queue.first_offset:  # its file was removed meanwhile
                return iter(())
            raise

    def _read_taken(self, queue: ConsumeQueue, places: list[_Taken], disk: bool) -> list[bytes]:
        """Their records, from memory or else with one read for those that lie near each other; not what is gone."""
        cache = self.cache
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
                raise _NeedsDiskError
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

    def _read_near(self, queue: ConsumeQueue, places: list[_Taken], end: int) -> list[bytes]:
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
                    if not self.is_damaged(queue, place.number):
                        raise
        except (WrongEntryError, FileNotFoundError, StoreError):
            if places[-1].physical < self._log.start:  # the file was removed meanwhile
                return records
            raise
        return records

    def _checked(self, queue: ConsumeQueue, place: _Taken, record: bytes) -> bytes:
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

    def _check_size(self, queue: ConsumeQueue, place: _Taken) -> None:
        """Have a large record not read, nor room made for it, because a damaged entry says that it is large."""
        physical, size, number = place
        if not MIN_RECORD_BYTES <= size <= self._log.written - physical:
            raise WrongEntryError(queue, number, f"{size} bytes at {physical}, and the log ends at {self._log.written}")
        if size > LARGE:
            _check_place(self._log.read(physical, _PLACE.size), queue, place, whole=False)

    def read_from_memory(self, commit_log_offset: int) -> bytes | None:
        """The record that begins at a commit-log offset, if it is in memory."""
        return self.cache.get(commit_log_offset) if commit_log_offset >= self._log.start else None

    async def read_record(self, commit_log_offset: int) -> bytes | None:
        """As :meth:`read`: from memory, or by a thread."""
        record = self.read_from_memory(commit_log_offset)
        return record if record is not None else await self.pool.run(self.read, commit_log_offset)

    def read(self, commit_log_offset: int) -> bytes | None:
        """The record that begins at a commit-log offset; None if none does, or it is not whole. Blocks; any thread."""
        if self._refusal is not None:
            raise StoreError(self._refusal)
        record = self.read_from_memory(commit_log_offset)
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

    async def query_keys(self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int) -> KeySearch:
        """Records of a topic that may have a key, stored between two times, newest first; by threads, in slices.

        Keys are UNIQ_KEY, the words of KEYS, and ``T#`` and the tags. They are found by their hash: others may be among
        them. At most ``max_index_search_steps`` entries of the index are looked at. Raises StoreError while the index
        is left out, for want of room.
        """
        if self._derived.left_out is not None and self._derived.left_out.index is not None:
            raise StoreError(
                f"{self._derived.left_out.index}; no message is found by its key until the disk has room for another "
                "index"
            )
        try:
            await self._feed.build(self.pool)
        except Exception as error:  # what is in the index can be found; why it lacks something, the feed's task tells
            _log.debug("a query by key does not see the newest messages: %s", error)
        search = self._search_key(topic, key, max_num, begin_ms, end_ms)
        while not await self.pool.run(search.step):
            pass
        return search

    def _search_key(self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int) -> KeySearch:
        options = self.options
        found = self._derived.find_key(topic, key, begin_ms, end_ms)
        most = min(max_num, options.max_msgs_num_batch)
        return KeySearch(found, self._feed.guard, self.read, most, options.max_index_search_steps)

    async def find_offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """The first message of a queue stored at or after a time; with ``upper`` the last one stored at or before it.

        Within min and max offset; 0 for a queue that is not there.
        """
        return await self.pool.run(lambda: self._offset_by_time(topic, queue_id, timestamp_ms, upper=upper))

    def _offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool) -> int:
        queue = self._derived.find(topic, queue_id)
        if queue is None:
            return 0
        low, high = queue.min_offset, queue.max_offset
        if not upper:
            return queue.search(low, high, lambda physical: self._stored_at(physical) >= timestamp_ms)
        behind = queue.search(low, high, lambda physical: self._stored_at(physical) > timestamp_ms)
        return max(low, behind - 1)

    def _stored_at(self, physical: int) -> int:
        """Store time of a record; 0 of one that is gone."""
        head = self.cache.get(physical)
        if head is None:
            try:
                head = self._log.read(physical, TIME_BYTES) if self._size_at(physical) is not None else b""
            except (FileNotFoundError, StoreError):
                head = b""
        return store_timestamp_of(head) if head else 0


def _nothing_is(queue: ConsumeQueue, number: int) -> bool:
    return False


def _check_place(record: bytes, queue: ConsumeQueue, place: _Taken, *, whole: bool = True) -> None:
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


def _wanted(records: list[bytes], filter: MessageFilter | None) -> list[bytes]:  # noqa: A002 - as above
    """Those that are wanted, and are there: the file of one may have been removed meanwhile."""
    return [record for record in records if record and (filter is None or filter.matches_record(record))]


def _memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
