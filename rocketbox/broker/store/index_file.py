"""Index files: which records have a key, found by the key's hash.

A file, big-endian: a header of 40 bytes (begin and end store time i64 i64, begin and end physical offset i64 i64, used
slots i32, entries + 1 i32), then the slots (i32 each: number of the newest entry whose hash falls into it, 0 for none),
then the entries from number 0 on, the first unused:

    key hash i32, physical offset i64, whole seconds since the begin time i32, previous entry of the slot i32

A message is indexed under ``topic#UNIQ_KEY``, ``topic#`` and each word of its KEYS, and ``topic#T#TAGS``; the hash is
the absolute value of Java's. A search finds what has the hash: callers compare the key.

Entries and slots are changed in memory and written by :meth:`MessageIndex.write`: entries, slots, header, each synced
before the next, so that a crash in between leaves slots that point too far, which :meth:`MessageIndex.cut` sets back.

Source: Apache RocketMQ 5.5 ``IndexService``, ``IndexFile``, ``IndexHeader``.
"""

from __future__ import annotations

import logging
import struct
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain

from rocketbox.broker.store.files import read_data
from rocketbox.broker.store.index_sizes import found_sizes, other_size
from rocketbox.storage.file_system import Storage, StorageFile

__all__ = ["REST", "IndexFile", "IndexSnapshot", "MessageIndex", "RecordHashes"]

_log = logging.getLogger(__name__)

HEADER_BYTES = 40
SLOT_BYTES = 4
ENTRY_BYTES = 20
REST = 256  # entries that a search looks at, in about a millisecond
BLOCK_SLOTS = 1024  # slots are written by so many: what the page cache writes of a file in any case
WRITE_BLOCKS = 256  # of them at once
_HEADER = struct.Struct(">4q2i")
_SLOT = struct.Struct(">i")
_ENTRY = struct.Struct(">iqii")

RecordHashes = tuple[Sequence[int], int, int]
"""The hashes of a record's keys, its physical offset and its store time (epoch ms)."""


@dataclass(frozen=True)
class IndexSnapshot:
    """What is to be written of one file."""

    file: IndexFile
    first_entry: int
    entries: bytes
    changed: array[int]
    """The slots that are not in the file yet."""
    blocks: dict[int, bytes]
    """Those, and their neighbours, by the number of the block."""
    header: bytes


class IndexFile:
    """One index file. ``count`` is the number of the next entry; the first is 1."""

    def __init__(self, storage: Storage, path: str, slots: int, entries: int) -> None:
        self.path = path
        self.begin_timestamp = self.end_timestamp = 0
        self.begin_physical = self.end_physical = 0
        self.used_slots = 0
        self.count = 1
        self._storage = storage
        self._slots = slots
        self._limit = entries
        self._file: StorageFile | None = None
        self._table: array[int] | None = None  # all slots; read when the first key is put
        self._changed = array("i")  # slots that are not written
        self._writing = array("i")  # those of the snapshot that is on its way into the file
        self._tail = bytearray()  # the entries from number _written on
        self._written = 1
        self._tail_start = 1

    @property
    def size(self) -> int:
        return HEADER_BYTES + SLOT_BYTES * self._slots + ENTRY_BYTES * self._limit

    @property
    def is_on_disk(self) -> bool:
        """Whether there is a file, or all of it is in memory yet."""
        return self._file is not None

    @property
    def full(self) -> bool:
        return self.count >= self._limit

    @property
    def changed(self) -> int:
        """How many entries are not written."""
        return self.count - self._written

    def load(self) -> None:
        """Read the header. Raises StoreError for a file of another size than its numbers of slots and entries make."""
        file = self._file = self._storage.open(self.path)
        if file.size() != self.size:
            raise other_size(self.path, file.size(), self._slots, self._limit)
        (
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_physical,
            self.end_physical,
            self.used_slots,
            self.count,
        ) = _HEADER.unpack(file.read(0, HEADER_BYTES))
        self.count = max(1, min(self.count, self._limit))
        self._written = self._tail_start = self.count

    def count_below(self, physical_end: int) -> int:
        """What :attr:`count` would be with the entries of records below ``physical_end`` only."""
        low, high = 1, self.count
        while low < high:
            middle = (low + high) // 2
            if self._entry(middle)[1] < physical_end:
                low = middle + 1
            else:
                high = middle
        return low

    def cut(self, count: int, end_timestamp: int) -> None:
        """Keep the entries below number ``count``; all are in the file. Slots that point to others are set back.

        ``end_timestamp``: the store time of the newest record that is kept, if the caller knows it; an entry has only
        whole seconds of it. Slots are synced before the header, so that a crash in between leaves too many entries.
        """
        file = self._file
        assert file is not None
        table = self._table = self._read_table(file)
        if max(table) >= count:
            self._set_back(file, table, count)
        if count == self.count:
            return
        self.count = self._written = self._tail_start = count
        self._tail.clear()
        self._changed = array("i")
        _, self.end_physical, seconds, _ = self._entry(count - 1)
        self.end_timestamp = self.begin_timestamp + seconds * 1000
        if 0 <= end_timestamp - self.end_timestamp < 1000:
            self.end_timestamp = end_timestamp
        self.used_slots = len(table) - table.count(0)
        file.write(0, [self._header()])
        file.sync()

    def _set_back(self, file: StorageFile, table: array[int], count: int) -> None:
        for slot in [slot for slot, number in enumerate(table) if number >= count]:
            number, seen = table[slot], 0
            while number >= count and seen < self._limit:  # entries were synced before their slots
                number = self._entry(number)[3]
                seen += 1
            table[slot] = max(0, number) if number < count else 0
            file.write(HEADER_BYTES + slot * SLOT_BYTES, [_SLOT.pack(table[slot])])
        file.sync()

    def _header(self) -> bytes:
        return _HEADER.pack(
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_physical,
            self.end_physical,
            self.used_slots,
            self.count,
        )

    def _read_table(self, file: StorageFile | None) -> array[int]:
        table = array("i", [0]) * self._slots
        if file is None:
            return table
        for position, data in read_data(file, HEADER_BYTES, HEADER_BYTES + SLOT_BYTES * self._slots):
            part = array("i", data)
            if sys.byteorder == "little":
                part.byteswap()
            first = (position - HEADER_BYTES) // SLOT_BYTES  # pieces begin at blocks, and blocks at a slot
            table[first : first + len(part)] = part
        return table

    @property
    def room(self) -> int:
        """How many entries can be added."""
        return self._limit - self.count

    def put(self, records: Sequence[RecordHashes]) -> None:
        """Add an entry for each hash of some records, one at least; there is room for them."""
        entries = [(one, physical, stored) for hashes, physical, stored in records for one in hashes]
        self.put_entries(*zip(*entries, strict=True))

    def put_entries(self, hashes: Sequence[int], physicals: Sequence[int], stored: Sequence[int]) -> None:
        """Add an entry for each hash, with the offset and store time of its record; there is room for them."""
        table = self._table
        if table is None:
            table = self._table = self._read_table(self._file)
        first, count = self.count, self.count
        if count == 1:
            self.begin_physical, self.begin_timestamp = physicals[0], stored[0]
        size = self._slots
        slots = [one % size for one in hashes]
        previous: list[int] = []
        add = previous.append
        for slot in slots:
            add(table[slot])
            table[slot] = count
            count += 1
        if max(previous) >= first or min(previous) < 0:  # in the same slot as one before; or a slot points too far
            previous = [before if 0 < before < number else 0 for number, before in enumerate(previous, first)]
        self._tail += b"".join(map(_ENTRY.pack, hashes, physicals, self._seconds(stored), previous))
        self._changed.extend(slots)
        self.count = count
        self.used_slots += previous.count(0)
        self.end_timestamp = stored[-1]
        self.end_physical = physicals[-1]

    def _seconds(self, stored: Sequence[int]) -> Sequence[int]:
        """Whole seconds since the begin time, as far as an entry can say them."""
        begin = self.begin_timestamp
        seconds = {time: min(max((time - begin) // 1000, 0), 0x7FFFFFFF) for time in set(stored)}
        return [seconds[time] for time in stored]

    def search(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Physical offsets of records with that hash stored in [begin, end], newest first.

        None after each REST entries that were looked at: whoever asks may rest there.
        """
        looked_at = 0
        slot = key_hash % self._slots
        if self._table is not None:
            number = self._table[slot]
        elif self._file is not None:
            (number,) = _SLOT.unpack(self._file.read(HEADER_BYTES + slot * SLOT_BYTES, SLOT_BYTES))
        else:
            return
        if number >= self.count:
            return
        while number > 0:
            looked_at += 1
            if looked_at % REST == 0:
                yield None
            found, physical, seconds, previous = self._entry(number)
            stored = self.begin_timestamp + seconds * 1000  # up to 999 ms before the true time
            if stored + 999 < begin_ms:
                return
            if found == key_hash and stored <= end_ms:
                yield physical
            if previous >= number:  # a chain leads back only
                return
            number = previous

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        entry: tuple[int, int, int, int]
        if number >= self._tail_start and (number - self._tail_start) * ENTRY_BYTES < len(self._tail):
            entry = _ENTRY.unpack_from(self._tail, (number - self._tail_start) * ENTRY_BYTES)
            return entry
        assert self._file is not None
        data = self._file.read(HEADER_BYTES + SLOT_BYTES * self._slots + number * ENTRY_BYTES, ENTRY_BYTES)
        entry = _ENTRY.unpack(data) if len(data) == ENTRY_BYTES else (0, 0, 0, 0)
        return entry

    def forget_slots(self) -> None:
        """Take the slots from the file again, but for those that are not written, or may not be yet."""
        table = self._table
        if table is not None and self._file is not None:
            self._table = self._read_table(self._file)
            for slot in (*self._changed, *self._writing):
                self._table[slot] = table[slot]
            if self._writing:  # with their neighbours as they were: those that are right now are to be written again
                self._changed.extend(slot for slot, number in enumerate(self._table) if number != table[slot])

    def snapshot(self) -> IndexSnapshot:
        """What is to be written now; :meth:`write` writes it, :meth:`set_written` lets go of it."""
        changed, self._changed = self._changed, array("i")
        self._writing = changed
        table, blocks = self._table, {}
        if table is not None:
            for number in {slot // BLOCK_SLOTS for slot in changed}:
                block = table[number * BLOCK_SLOTS : (number + 1) * BLOCK_SLOTS]
                if sys.byteorder == "little":
                    block.byteswap()
                blocks[number] = block.tobytes()
        return IndexSnapshot(self, self._tail_start, bytes(self._tail), changed, blocks, self._header())

    def write(self, snapshot: IndexSnapshot) -> None:
        """Write and sync; may run in another thread."""
        if self._file is None:
            file = self._storage.open(self.path, create=True)
            file.truncate(self.size)
            file.sync()
            self._file = file
        file = self._file
        base = HEADER_BYTES + SLOT_BYTES * self._slots
        file.write(base + snapshot.first_entry * ENTRY_BYTES, [snapshot.entries])
        file.sync()
        for first, chunks in _runs(snapshot.blocks):
            file.write(HEADER_BYTES + first * BLOCK_SLOTS * SLOT_BYTES, chunks)
        file.sync()
        file.write(0, [snapshot.header])
        file.sync()

    def restore(self, snapshot: IndexSnapshot) -> None:
        """That snapshot could not be written: its slots belong to the next one too."""
        self._changed += snapshot.changed
        self._writing = array("i")

    def set_written(self, snapshot: IndexSnapshot) -> None:
        """That snapshot is in the file now."""
        del self._tail[: len(snapshot.entries)]
        self._tail_start += len(snapshot.entries) // ENTRY_BYTES
        self._written = self._tail_start
        self._writing = array("i")
        if self.full and not self._tail:
            self._table = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _runs(blocks: Mapping[int, bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Blocks that lie one behind the other, with the number of the first."""
    first, chunks = 0, list[bytes]()
    for number in sorted(blocks):
        if chunks and (number != first + len(chunks) or len(chunks) == WRITE_BLOCKS):
            yield first, chunks
            chunks = []
        if not chunks:
            first = number
        chunks.append(blocks[number])
    if chunks:
        yield first, chunks


class MessageIndex:
    """All index files of a store, named by the local time they were begun."""

    def __init__(self, storage: Storage, directory: str, slots: int, entries: int) -> None:
        self.directory = directory
        self.files: list[IndexFile] = []
        self._storage = storage
        self._slots = slots
        self._entries = entries

    @property
    def end_physical(self) -> int:
        """Offset of the newest record that has an entry; -1 without entries."""
        return next((file.end_physical for file in reversed(self.files) if file.count > 1), -1)

    @property
    def end_timestamp(self) -> int:
        """Store time of that record; 0 without entries."""
        return next((file.end_timestamp for file in reversed(self.files) if file.count > 1), 0)

    @property
    def sizes(self) -> tuple[int, int]:
        """How many slots and entries a file has."""
        return self._slots, self._entries

    @property
    def changed(self) -> int:
        """How many entries are not written."""
        return sum([file.changed for file in self.files])

    def load(self) -> None:
        """Open the files, and take the numbers of slots and entries from them where they are not those of the settings.

        Raises StoreError when the files have several sizes, or one that does not tell.
        """
        names = [name for name in self._storage.list_directory(self.directory) if name.isdigit() and len(name) == 17]
        for name in names:
            path = f"{self.directory}/{name}"
            if self._storage.open(path).size() == 0:  # begun when the machine stopped, as those behind it were
                self._storage.remove(path)
                continue
            if not self.files:
                self._slots, self._entries = found_sizes(self._storage.open(path), self._slots, self._entries)
            file = IndexFile(self._storage, path, self._slots, self._entries)
            file.load()
            self.files.append(file)

    def put(self, records: Sequence[RecordHashes]) -> None:
        """Index records, each of which has a hash at least, in the order of the log.

        What one has lies in one file if there is room for all, as almost always; else each begins files as it needs.
        """
        file = self.files[-1] if self.files else None
        if records and file is not None and sum([len(hashes) for hashes, _, _ in records]) <= file.room:
            file.put(records)
            return
        for hashes, physical, stored in records:
            while hashes:
                if file is None or file.full:
                    file = self._begin_file(stored)
                room = file.room
                file.put([(hashes[:room], physical, stored)])
                hashes = hashes[room:]

    def put_alike(self, hashes: Sequence[Sequence[int]], physicals: Sequence[int], stored: Sequence[int]) -> None:
        """As :meth:`put` for records that have as many hashes: the first ones of all, the second ones, and so on."""
        file, each = self.files[-1] if self.files else None, len(hashes)
        if file is None or each * len(physicals) > file.room:
            self.put(list(zip(zip(*hashes, strict=True), physicals, stored, strict=True)))
            return
        file.put_entries(_in_turn(hashes), _in_turn([physicals] * each), _in_turn([stored] * each))

    def _begin_file(self, store_timestamp: int) -> IndexFile:
        last = self.files[-1] if self.files else None
        name = _name(store_timestamp)
        if last is not None:
            name = max(name, _name_behind(last.path.rpartition("/")[2]))
        file = IndexFile(self._storage, f"{self.directory}/{name}", self._slots, self._entries)
        if last is not None:
            file.begin_timestamp = file.end_timestamp = last.end_timestamp
            file.begin_physical = file.end_physical = last.end_physical
        self.files.append(file)
        return file

    def search(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Physical offsets of records with a key of that hash stored in [begin, end], newest first, each once.

        None after each REST entries that were looked at.
        """
        seen: set[int] = set()
        for file in reversed(self.files):
            if file.begin_timestamp <= end_ms and file.end_timestamp >= begin_ms:
                for physical in file.search(key_hash, begin_ms, end_ms):
                    if physical is None:
                        yield None
                    elif physical not in seen:
                        seen.add(physical)
                        yield physical
            if file.begin_timestamp < begin_ms:
                return

    def snapshots(self) -> list[IndexSnapshot]:
        """What is to be written now."""
        return [file.snapshot() for file in self.files if file.changed]

    def write(self, snapshots: list[IndexSnapshot]) -> None:
        """Write and sync; may run in another thread."""
        if any(snapshot.file._file is None for snapshot in snapshots):
            self._storage.make_directories(self.directory)
        for snapshot in snapshots:
            snapshot.file.write(snapshot)
        if snapshots:
            self._storage.sync_directory(self.directory)

    def restore(self, snapshots: list[IndexSnapshot]) -> None:
        """They could not be written."""
        for snapshot in snapshots:
            snapshot.file.restore(snapshot)

    def set_written(self, snapshots: list[IndexSnapshot]) -> None:
        for snapshot in snapshots:
            snapshot.file.set_written(snapshot)

    def cut(self, physical_end: int, end_timestamp: int = -1) -> None:
        """Remove the entries of records at or behind ``physical_end``, also those that only slots speak of.

        For an index of which nothing is waiting to be written; ``end_timestamp`` is that of the newest record below,
        if it is known.
        """
        removed = False
        while self.files:
            file = self.files[-1]
            count = file.count_below(physical_end)
            if count > 1:
                file.cut(count, end_timestamp)
                break
            self.files.pop()
            file.close()
            if self._storage.exists(file.path):  # not one that was begun in memory only
                self._storage.remove(file.path)
                removed = True
        if removed:
            self._storage.sync_directory(self.directory)

    def forget_slots(self, path: str) -> None:
        """The slots of a file were changed on the disk: those that are not to be written are read again."""
        for file in self.files:
            if file.path == path:
                file.forget_slots()

    def remove_below(self, physical: int) -> None:
        """Remove the files that speak of no record at or behind ``physical``, but not the newest."""
        while len(self.files) > 1 and self.files[0].end_physical < physical:
            file = self.files[0]
            if self._storage.exists(file.path):
                self._storage.remove(file.path)
                self._storage.sync_directory(self.directory)
            file.close()
            self.files = self.files[1:]

    def close(self) -> None:
        for file in self.files:
            file.close()


def _in_turn(columns: Sequence[Sequence[int]]) -> Sequence[int]:
    """The first of each, the second of each, and so on."""
    return columns[0] if len(columns) == 1 else list(chain.from_iterable(zip(*columns, strict=True)))


def _name(time_ms: int) -> str:
    """The name of a file that is begun then, in local time."""
    local = datetime.fromtimestamp(time_ms // 1000, UTC).astimezone()
    return f"{local:%Y%m%d%H%M%S}{time_ms % 1000:03d}"


def _name_behind(name: str) -> str:
    """The next name: a millisecond later, wherever local time has gone since (summer time, another zone)."""
    try:
        # No zone: it is counted on in the name alone, where an hour may come twice, or never.
        time = datetime.strptime(name + "000", "%Y%m%d%H%M%S%f") + timedelta(milliseconds=1)  # noqa: DTZ007
    except (ValueError, OverflowError):  # no time, but a name: the next number sorts behind it
        return f"{int(name) + 1:017d}"
    return f"{time:%Y%m%d%H%M%S}{time.microsecond // 1000:03d}"
