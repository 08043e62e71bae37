"""A queue of a topic on disk: for each message where its record is, how long it is, and its tag's hash.

Units of 20 bytes, big-endian: ``physical offset i64, size i32, tags code i64``. The queue offset of a message is the
number of its unit. A unit of size 0x7FFFFFFF stands for a message that is not there. Unused bytes are zero.

New units stay in memory until :meth:`ConsumeQueue.unwritten` hands them out to be written, which the store does only
when the records they speak of are synced: so a unit on the disk proves that its record was synced.

Source: Apache RocketMQ 5.x ``ConsumeQueue``.
"""

from __future__ import annotations

import errno
import re
import struct
import threading
import zlib
from collections.abc import Callable, Iterator

from rocketbox.broker.store.files import FileRun, OpenFiles
from rocketbox.broker.store.options import CONSUME_QUEUE_UNIT as UNIT
from rocketbox.storage.file_system import Storage

__all__ = ["FILLER_SIZE", "FILLER_UNIT", "ConsumeQueue", "find_queues", "iter_units", "unit_columns"]

FILLER_SIZE = 0x7FFFFFFF
KEPT_UNITS = 512  # units kept in memory behind the newest, where consumers that keep up read
BLOCK = 4 << 10  # of a file system; where the end of a file is looked for
_UNIT = struct.Struct(">qiq")
_QUEUE_ID = re.compile(r"0|[1-9][0-9]*", re.ASCII)
FILLER_UNIT = _UNIT.pack(0, FILLER_SIZE, 0)


def find_queues(storage: Storage, directory: str) -> Iterator[tuple[str, int]]:
    """Topic and id of the queues that there are directories for; whatever else lies there is left alone."""
    for topic in storage.list_directory(directory):
        path = f"{directory}/{topic}"
        if storage.is_directory(path) and _is_text(topic):
            for name in storage.list_directory(path):
                if _QUEUE_ID.fullmatch(name) and storage.is_directory(f"{path}/{name}"):
                    yield topic, int(name)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # bytes that are no UTF-8: no topic is named so
        return False
    return True


def iter_units(units: bytes) -> Iterator[tuple[int, int, int]]:
    """(physical offset, size, tags code) of each unit."""
    return _UNIT.iter_unpack(units)


def unit_columns(units: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The physical offsets of units, and their sizes; 2 us for 32 of them."""
    fields = struct.unpack(f">{'qiq' * (len(units) // UNIT)}", units)
    return fields[::3], fields[1::3]


class ConsumeQueue:
    """One queue. All offsets are numbers of units but where "physical" is said. Any thread may read.

    ``next_offset`` is what the next message put gets, ``max_offset`` what the next message to become readable has.
    """

    def __init__(self, files: OpenFiles, directory: str, file_size: int, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.weight = zlib.crc32(f"{topic}/{queue_id}".encode()) << 32 | 1
        """A number of this queue, by which its end is multiplied in ``Derived.queue_ends``."""
        self.is_deleted = False
        """Whether its topic was deleted; another queue may stand in its place by now."""
        self.files_guard = threading.Lock()
        """Held while its files are removed, or written by others than ``derived_writer``."""
        self.has_misfits = False
        """Whether files lie in its place that do not fit, and cannot be put aside yet: nothing is written to any."""
        self.changes = 0
        """How often units may have become others than they were, once they could be read; counted behind the change."""
        self.next_offset = 0
        self.max_offset = 0
        self.min_offset = 0
        self.max_physical_end = 0
        """Where the record of the newest unit ends."""
        self._run = FileRun(files, directory, file_size, "mapped-file-size-consume-queue")
        self._tail = (0, bytearray())  # first of the units in memory, which reach to max_offset, and their bytes
        self._first = 0  # where the files will begin, as long as there are none ...
        self._begin = 0  # ... and the offset of the first message
        self._written = 0  # units below are in the files
        self._loaded = 0  # the end that the files were found with
        self._rewound: int | None = None  # units of the files from here on were not believed

    @property
    def first_offset(self) -> int:
        """The first unit in the files, its record may be gone; without files where they will begin."""
        starts = self._run.starts
        return starts[0] // UNIT if starts else self._first

    @property
    def run(self) -> FileRun:
        """Its files."""
        return self._run

    @property
    def written_offset(self) -> int:
        """The units below are in the files."""
        return self._written

    def load(self) -> None:
        """Find the files, and in them the end of the queue, by a few small reads.

        It is true after a clean stop; after any other the queue goes on at or behind the true end, with holes and
        torn units in it: :meth:`rewind` before anything is read, and :meth:`cut_files` in the end.
        """
        run = self._run
        run.load()
        end = run.start // UNIT
        for start in reversed(run.starts):
            if units := self._units_in_file(start):
                end = start // UNIT + units
                break
        self._set_end(end)
        self._loaded = end

    def _units_in_file(self, start: int) -> int:
        """How many units there are up to the first that is all zero; a unit has a size, so it is not."""
        file = self._run.file(start)
        low, high = 0, self._run.file_size // UNIT
        # What the file system has no blocks for need not be read; the newest block then mostly holds the end.
        blocks = (0, -(-high * UNIT // BLOCK))
        while blocks[0] < blocks[1]:
            middle = (blocks[0] + blocks[1]) // 2
            blocks = (blocks[0], middle) if file.next_data(middle * BLOCK) is None else (middle + 1, blocks[1])
        high = min(high, blocks[0] * BLOCK // UNIT + 1)
        first = max(0, high - 2 * BLOCK // UNIT)
        data = file.read(first * UNIT, (high - first) * UNIT)
        used = -(-len(data.rstrip(b"\0")) // UNIT)
        if used:
            whole = _UNIT.unpack_from(data.ljust(used * UNIT, b"\0"), (used - 1) * UNIT)[1] > 0
            return first + used - (not whole)
        high = first
        while low < high:
            middle = (low + high) // 2
            if _UNIT.unpack(file.read(middle * UNIT, UNIT))[1] > 0:
                low = middle + 1
            else:
                high = middle
        return low

    def _set_end(self, end: int) -> None:
        self.next_offset = self.max_offset = self._written = end
        self._tail = (end, bytearray())
        self._first = self._begin = end
        self.changes += 1
        self.max_physical_end = 0
        while self._run.starts and end > self.first_offset:
            physical, size, _ = self.unit(end - 1)
            if size != FILLER_SIZE:
                self.max_physical_end = physical + size
                break
            end -= 1

    def begin_at(self, offset: int) -> None:
        """Give the first message this offset; for a queue that has had none, and has no files."""
        self._set_end(offset - offset % (self._run.file_size // UNIT))
        self.fill(offset)
        self.next_offset = self.min_offset = self._begin = offset

    @property
    def is_new(self) -> bool:
        """Whether it has had no message, and has no files."""
        return not self._run.starts and self.max_offset == self._begin

    def begins_below(self, physical: int) -> bool:
        """Whether its first message's record lies below an offset of the log."""
        at, first, _ = self._message_at(self.first_offset, self.max_offset)
        return at < self.max_offset and first < physical

    def remove_files(self) -> None:
        """Remove its files; blocks. Nothing may be read or added any more. Raises OSError."""
        with self.files_guard:
            self._run.remove_files()
        self.changes += 1

    def leave_files(self, file_size: int, end: int) -> None:
        """Go on at ``end`` without the files, which do not fit, as one that has had no message; they stay as they are.

        What is added is kept in memory until :meth:`take_files`.
        """
        self.has_misfits = True
        self._run.starts = []
        self._run.file_size = file_size
        self._set_end(end)
        self._loaded = end

    def take_files(self, *, keep: bool) -> None:
        """The files fit now: go on in them, or without ``keep`` in new ones. Blocks. Raises StoreError, OSError.

        What is in memory is to be written over what they have.
        """
        with self.files_guard:
            self._run.load()
            if not keep or not self._run.start <= self._tail[0] * UNIT <= self._run.limit:
                self._run.remove_files()
            self.has_misfits = False
        self.changes += 1

    def set_min_offset(self, min_physical: int) -> None:
        """Set ``min_offset`` to the first unit whose record the commit log still has."""
        first = self.first_offset
        if first < self.max_offset:
            physical, size, _ = self.unit(first)
            if size == FILLER_SIZE or physical < min_physical:
                first = self.offset_behind(min_physical)
        self.min_offset = first

    def rewind(self, physical_end: int) -> None:
        """Go on behind the newest unit of a record below ``physical_end``; the units from there on are written anew.

        Up to there the units are known to be whole. The files keep what they have (``log_end`` may need it as a
        proof) until it is overwritten, or :meth:`cut_files`.
        """
        low, high = self.first_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            at, physical, size = self._message_at(middle, high)
            if at < high and size > 0 and physical < physical_end:
                low = at + 1
            else:
                high = middle
        self._set_end(low)
        self._rewound = low

    def cut_files(self) -> int:
        """Make zero what the files hold behind the newest unit; returns how many units that were."""
        loaded, self._loaded = self._loaded, self.max_offset
        if self._run.starts:
            self._run.cut(self.max_offset * UNIT)
        return max(0, loaded - self.max_offset)

    def offset_behind(self, physical_end: int) -> int:
        """The offset behind the newest unit of a record below ``physical_end``."""
        return self.search(self.first_offset, self.max_offset, lambda physical: physical >= physical_end)

    def entries_from(self, physical: int) -> Iterator[tuple[int, int]]:
        """(offset, size) of the records at or behind ``physical`` that have a unit in the files, in no order."""
        first = self.offset_behind(physical) if self._rewound is None else self._rewound
        for start in self._run.starts:
            begin = max(start, first * UNIT)
            if begin < start + self._run.file_size:
                for offset, size, _ in self._units_in_files(begin, start + self._run.file_size):
                    if 0 < size < FILLER_SIZE and offset >= physical:
                        yield offset, size

    def _units_in_files(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        content = bytearray()
        for distance, data in self._run.data(begin, end - begin):
            content += bytes(distance - len(content)) + data
        return _UNIT.iter_unpack(content[: len(content) // UNIT * UNIT])

    def starts_below(self, min_physical: int) -> bool:
        """Whether :attr:`min_offset` is that of a record below ``min_physical``, or files hold no others."""
        if self._run.start + self._run.file_size <= self.min_offset * UNIT and len(self._run.starts) > 1:
            return True
        if self.min_offset >= self.max_offset:
            return False
        physical, size, _ = self.unit(self.min_offset)
        return size != FILLER_SIZE and physical < min_physical

    def remove_below_min(self) -> None:
        """Remove the files that hold no unit from :attr:`min_offset` on; the last stays, with the queue's end."""
        with self.files_guard:
            while self._run.start + self._run.file_size <= self.min_offset * UNIT:
                if not self._run.remove_first():
                    return

    def cut_physical(self, physical_end: int) -> int:
        """Remove the units whose record is not wholly below ``physical_end``; returns how many they were."""
        before = end = self.max_offset
        while end > self.first_offset:
            physical, size, _ = self.unit(end - 1)
            if size != FILLER_SIZE and physical + size <= physical_end:
                break
            end -= 1
        if end == before:
            return 0
        self._run.cut(end * UNIT)
        self._set_end(end)
        return before - end

    # --- appending ---

    def append(self, physical: int, size: int, tags_code: int) -> None:
        """Add the unit of the next message; it is readable at once."""
        tail = self._tail[1]
        tail += _UNIT.pack(physical, size, tags_code)
        self.max_physical_end = physical + size
        self.max_offset += 1  # last: other threads read what is below

    def fill(self, offset: int) -> None:
        """Add units that stand for no message up to ``offset``; an empty queue begins in the file of ``offset``."""
        per_file = self._run.file_size // UNIT
        if self.max_offset == self.first_offset and offset // per_file > self.max_offset // per_file:
            self.begin_again_at(offset)
        tail = self._tail[1]
        tail += FILLER_UNIT * (offset - self.max_offset)
        self.max_offset = offset

    def begin_again_at(self, offset: int) -> None:
        """Remove the files, which all lie behind, and go on in the file that holds ``offset``; the queue is empty."""
        self._run.remove_files()
        self._rewound = None
        self._set_end(offset - offset % (self._run.file_size // UNIT))

    def unwritten(self) -> tuple[int, bytes]:
        """The first unit that is not in the files, and the bytes of all those."""
        start, tail = self._tail
        return self._written, bytes(tail[(self._written - start) * UNIT :])

    def write(self, offset: int, data: bytes) -> None:
        """Write units; may run in another thread. They are safe after :meth:`sync`."""
        with self.files_guard:
            if self.has_misfits:
                raise OSError(errno.ENOSPC, f"no room to put aside what does not fit in {self._run.directory}")
            self._run.write(offset * UNIT, data)

    def sync(self) -> None:
        """Sync what was written; may run in another thread."""
        self._run.sync()

    def set_written(self, offset: int) -> None:
        """The units below are in the files now."""
        self._written = offset
        start, tail = self._tail
        spare = min(offset, self.max_offset - KEPT_UNITS) - start
        if spare >= KEPT_UNITS:  # not a few each time, for all that stay are copied
            self._tail = (start + spare, tail[spare * UNIT :])

    # --- reading ---

    def units(self, offset: int, count: int) -> Iterator[tuple[int, int, int]]:
        """(physical offset, size, tags code) of up to ``count`` units from ``offset`` on, from one file."""
        return iter_units(self.unit_bytes(offset, count))

    def unit_bytes(self, offset: int, count: int) -> bytes:
        """As :meth:`units`, as they are stored."""
        count = min(count, self.max_offset - offset)
        start, tail = self._tail
        if offset >= start:
            position = (offset - start) * UNIT
            return bytes(tail[position : position + count * UNIT])
        data = self._run.read(offset * UNIT, min(count, start - offset) * UNIT)
        return data[: len(data) - len(data) % UNIT]

    def is_in_memory(self, offset: int) -> bool:
        """Whether :meth:`units` from ``offset`` on touches no file."""
        return offset >= self._tail[0]

    def unit(self, offset: int) -> tuple[int, int, int]:
        """One unit."""
        return next(self.units(offset, 1))

    def search(self, low: int, high: int, matches: Callable[[int], bool]) -> int:
        """The first offset in [low, high) whose unit's record (its physical offset) matches; ``high`` if none does.

        If one matches all behind it must. A unit that stands for no message is never it, and is as the next that does.
        """
        end = high
        while low < high:
            middle = (low + high) // 2
            at, physical, _ = self._message_at(middle, high)
            if at == high or matches(physical):
                high = middle
            else:
                low = at + 1
        return self._message_at(low, end)[0]

    def _message_at(self, offset: int, end: int) -> tuple[int, int, int]:
        """The first unit from ``offset`` on that is of a message, its record's offset and size; ``end`` if none is."""
        count = 1  # at first: mostly there is no other
        while offset < end:
            before = offset
            for physical, size, _ in self.units(offset, min(count, end - offset)):
                if size != FILLER_SIZE:
                    return offset, physical, size
                offset += 1
            if offset == before:  # nothing can be read there
                break
            count = KEPT_UNITS
        return end, 0, 0

    def next_file(self, offset: int) -> int:
        """The first offset in the file behind the one that holds ``offset``."""
        per_file = self._run.file_size // UNIT
        return offset - offset % per_file + per_file
