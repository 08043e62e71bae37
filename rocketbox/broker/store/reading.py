"""What is read from the store: a queue's messages from an offset on, records by offset, key or time.

The newest records are in memory too, where consumers that keep up read, and some of what lies before consumers that
catch up (``read_ahead``): :meth:`StoreReader.get_from_memory` never touches a file, so the loop may call it. What may
touch files runs in a few threads (:meth:`StoreReader.fetch` and the other coroutines); the plain methods block and may
be called in any thread. Files may be removed meanwhile: what was in them is gone then. Of an entry that does not lead
to its message ``upkeep`` hears.

Puts are left to ``message_store``, the layout of files to their modules, reading and checking records to
``record_reading``, queries by key to ``key_search``.

Source: Apache RocketMQ 5.5 ``DefaultMessageStore`` (``getMessage``, ``queryMessage``, ``getOffsetInQueueByTime``),
``ConsumeQueueStore``, ``GetMessageStatus``.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from rocketbox.blocking import WorkerPool
from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.consume_queue import FILLER_SIZE, ConsumeQueue, iter_units, unit_columns
from rocketbox.broker.store.dispatch import Derived
from rocketbox.broker.store.index_feed import IndexFeed
from rocketbox.broker.store.key_search import KeySearch
from rocketbox.broker.store.message_filter import MessageFilter
from rocketbox.broker.store.options import CONSUME_QUEUE_UNIT, StoreOptions
from rocketbox.broker.store.read_ahead import ReadAhead, ReadOn
from rocketbox.broker.store.record_cache import RecordCache
from rocketbox.broker.store.record_reading import NeedsDiskError, RecordReader, WrongEntryError
from rocketbox.broker.store.records import Place, has_topic, parse_record, topic_fields
from rocketbox.errors import NotStartedError, StoreError

__all__ = ["GetMessageStatus", "GetResult", "StoreReader"]

_log = logging.getLogger(__name__)

FILTERED_BYTES = 4 << 20  # of records that a filter refused, in one read
READ_THREADS = 4
READ_AHEAD_SHARE = 4  # of the read cache: so much beside it is for what is read ahead
MATCHED_AHEAD = 8  # units that are looked at for each message, in the loop, of those that were read ahead


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
        self._ahead = ReadAhead(log, self.cache, self.options.read_cache_size // READ_AHEAD_SHARE)
        self._records = RecordReader(log, self.cache, self._ahead, lambda queue, number: self.is_damaged(queue, number))

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
        """As :meth:`get`: from memory if all of it is there, else by a thread, which reads on for who comes next."""
        found = self.get_from_memory(topic, queue_id, offset, max_messages, max_bytes, filter)
        if found is None:
            found = await self.pool.run(
                lambda: self._get(topic, queue_id, offset, max_messages, max_bytes, filter, disk=True, ahead=True)
            )
            self._read_on()
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
            found = self._get(topic, queue_id, offset, max_messages, max_bytes, filter, disk=False, ahead=True)
        except NeedsDiskError:
            return None
        self._read_on()
        return found

    def _read_on(self) -> None:
        """Have a thread read ahead what is due."""
        due, self._ahead.due = self._ahead.due, None
        if due is not None:
            with suppress(NotStartedError):  # who leaves the store asks for nothing more
                self.pool.put((ReadOn(self._ahead, due),))

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
        return self._get(topic, queue_id, offset, max_messages, max_bytes, filter, disk=True, ahead=False)

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
        ahead: bool,
    ) -> GetResult:
        self._check_readable()
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
            records, next_offset, removed = self._search(
                queue, offset, max_messages, max_bytes, filter, disk=disk, ahead=ahead
            )
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
        *,
        disk: bool,
        ahead: bool,
    ) -> tuple[list[bytes], int, bool]:
        """The records, the offset behind what was searched, and whether entries stood for messages that are gone."""
        log_start = self._log.start
        units, is_ahead = self._units(queue, offset, max_messages, filter, disk=disk, ahead=ahead)
        if filter is None and (row := self._in_a_row(units, offset, max_messages, max_bytes, log_start)):
            found = self._records.of_entries(queue, row, disk=disk, ahead=ahead)
            return found, offset + len(row), not found
        most = most_bytes = -1  # not known yet
        records: list[bytes] = []
        taken: list[Place] = []  # they passed by their unit, and fit if they pass by their record too
        total, refused, next_offset, removed = 0, 0, offset, False
        for physical, size, code in iter_units(units):
            if size == FILLER_SIZE or physical < log_start:
                if is_ahead:
                    raise NeedsDiskError
                if size != FILLER_SIZE:
                    self._check_removed(queue, next_offset, physical, size)
                    removed = True
                next_offset += 1
                continue
            if filter is not None and not filter.matches_unit(code):
                next_offset += 1
                continue
            if most < 0:
                most, most_bytes = self._limits(physical, max_messages, max_bytes)
            if taken and (len(records) + len(taken) >= most or total + size > most_bytes):
                if filter is None:
                    break
                records += _wanted(self._records.of_entries(queue, taken, disk=disk, ahead=ahead), filter)
                taken, before, total = [], total, sum(map(len, records))
                refused += before - total
                if refused >= FILTERED_BYTES:
                    break
            if records and (len(records) >= most or total + size > most_bytes):
                break
            taken.append((physical, size, next_offset))
            total += size
            next_offset += 1
        if taken:
            read = self._records.of_entries(queue, taken, disk=disk, ahead=ahead)
            removed = removed or not read
            records += _wanted(read, filter)
        if is_ahead and not records:  # a thread is to look through more of them
            raise NeedsDiskError
        return records, next_offset, removed

    def _in_a_row(
        self, units: bytes, offset: int, max_messages: int, max_bytes: int | None, log_start: int
    ) -> list[Place]:
        """The entries that come next and are read at once, if none of them needs a closer look; else none.

        Fast path: 5 us for 32 entries instead of 20, one by one (benchmark "java client: push consume").
        """
        if not units or max_messages < 1:
            return []
        most, most_bytes = self._limits(int.from_bytes(units[:8], "big", signed=True), max_messages, max_bytes)
        physical, sizes = unit_columns(units[: most * CONSUME_QUEUE_UNIT])
        if min(physical) < log_start or max(sizes) == FILLER_SIZE or sum(sizes) > most_bytes:
            return []
        return list(zip(physical, sizes, range(offset, offset + len(sizes)), strict=True))

    def _limits(self, physical: int, max_messages: int, max_bytes: int | None) -> tuple[int, int]:
        """How many messages one read takes that begins at an offset of the log, and how many bytes."""
        options = self.options
        if self._log.written - physical > self._memory:
            most = options.max_transfer_count_on_message_in_disk
            most_bytes = options.max_transfer_bytes_on_message_in_disk
        else:
            most = options.max_transfer_count_on_message_in_memory
            most_bytes = options.max_transfer_bytes_on_message_in_memory
        return min(most, max_messages), most_bytes if max_bytes is None else min(most_bytes, max_bytes)

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

    def _units(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_messages: int,
        filter: MessageFilter | None,  # noqa: A002 - as above
        *,
        disk: bool,
        ahead: bool,
    ) -> tuple[bytes, bool]:
        """Units of a queue from ``offset`` on, and whether they are some that were read ahead.

        Raises NeedsDiskError when none are in memory, without ``disk``.
        """
        if not disk and not queue.is_in_memory(offset):
            count = max_messages if filter is None else max_messages * MATCHED_AHEAD
            if (units := self._ahead.units(queue, offset, count)) is None:
                raise NeedsDiskError
            return units, True
        count = max(self.options.max_filter_message_size // CONSUME_QUEUE_UNIT, max_messages)
        changes, is_in_files = queue.changes, not queue.is_in_memory(offset)
        try:
            units = queue.unit_bytes(offset, count)
        except (FileNotFoundError, StoreError):
            if offset < queue.first_offset:  # its file was removed meanwhile
                return b"", False
            raise
        if ahead and is_in_files:
            self._ahead.keep_units(queue, changes, offset, units)
        return units, False

    def read_from_memory(self, commit_log_offset: int) -> bytes | None:
        """The record that begins at a commit-log offset, if it is in memory."""
        return self._records.from_memory(commit_log_offset)

    async def read_record(self, commit_log_offset: int) -> bytes | None:
        """As :meth:`read`: from memory, or by a thread."""
        record = self.read_from_memory(commit_log_offset)
        return record if record is not None else await self.pool.run(self.read, commit_log_offset)

    def read(self, commit_log_offset: int) -> bytes | None:
        """The record that begins at a commit-log offset; None if none does, or it is not whole. Blocks; any thread."""
        self._check_readable()
        return self._records.read(commit_log_offset)

    def _check_readable(self) -> None:
        if self._refusal is not None:
            raise StoreError(self._refusal)

    async def read_message(self, commit_log_offset: int) -> bytes | None:
        """The record of the message that begins at a commit-log offset; None if none does. From memory, or by a thread.

        For who is told the offset by a peer. Other than :meth:`read_record` it takes nothing for a record to which no
        entry of its queue leads: the body of a message may hold what looks like a record of its sender's topic, at the
        place that he foresees, and ends behind the next message, which is another's.
        """
        record = self.read_from_memory(commit_log_offset)
        return record if record is not None else await self.pool.run(self._message_at, commit_log_offset)

    def _message_at(self, offset: int) -> bytes | None:
        self._check_readable()
        return self._records.read(offset, is_believed=lambda record: self._has_entry(record, offset))

    def _has_entry(self, record: bytes, offset: int) -> bool:
        """Whether the entry of the queue that a record says to be of leads to that offset."""
        try:
            topic, queue_id, number, *_ = parse_record(record)
        except (ValueError, struct.error, IndexError):  # what its lengths say does not fit together
            return False
        queue = self._derived.find(topic, queue_id)
        if queue is None or not queue.first_offset <= number < queue.max_offset:
            return False
        try:
            entries = [(physical, size) for physical, size, _ in queue.units(number, 1)]
        except (FileNotFoundError, StoreError):  # its file was removed meanwhile
            return False
        return entries == [(offset, len(record))]

    async def query_keys(self, topic: str, key: str, max_num: int, begin_ms: int, end_ms: int) -> KeySearch:
        """Records of a topic that may have a key, stored between two times, newest first; by threads, in slices.

        None of another topic, whatever its hash is: who asks has a right to this one (Apache gives them all).

        Keys are UNIQ_KEY, the words of KEYS, and ``T#`` and the tags. They are found by their hash: others may be among
        them. At most ``max_index_search_steps`` entries of the index are looked at, and only so many records come as
        fit into one answer. Raises StoreError while the index is left out, for want of room.
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
        fields = topic_fields(topic)

        def read(physical: int) -> bytes | None:
            record = self.read(physical)
            return record if record is not None and has_topic(record, fields) else None

        return KeySearch(found, self._feed.guard, read, most, options.max_index_search_steps)

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
            return queue.search(low, high, lambda physical: self._records.stored_at(physical) >= timestamp_ms)
        behind = queue.search(low, high, lambda physical: self._records.stored_at(physical) > timestamp_ms)
        return max(low, behind - 1)


def _nothing_is(queue: ConsumeQueue, number: int) -> bool:
    return False


def _wanted(records: list[bytes], filter: MessageFilter | None) -> list[bytes]:  # noqa: A002 - as above
    """Those that are wanted, and are there: the file of one may have been removed meanwhile."""
    return [record for record in records if record and (filter is None or filter.matches_record(record))]


def _memory_bytes() -> int:
    """The machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
