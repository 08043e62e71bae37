"""A queue of a topic on disk: for each message where its record is, how long it is, and its tag's hash.

Units of 20 bytes, big-endian: ``physical offset i64, size i32, tags code i64``. The queue offset of a message is the
number of its unit. A unit of size 0x7FFFFFFF stands for a message that is not there. Unused bytes are zero.

New units stay in memory until :meth:`ConsumeQueue.unwritten` hands them out to be written, which the store does only
when the records they speak of are synced: so a unit on the disk proves that its record was synced.

Source: Apache RocketMQ 5.x ``ConsumeQueue``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from rocketbox.broker.store.files import FileRun, OpenFiles
from rocketbox.broker.store.options import CONSUME_QUEUE_UNIT as UNIT

__all__ = ["FILLER_SIZE", "ConsumeQueue"]

FILLER_SIZE = 0x7FFFFFFF
KEPT_UNITS = 512  # units kept in memory behind the newest, where consumers that keep up read
CHECKED_FILES = 3  # the newest files, which are read through at a start
_UNIT = struct.Struct(">qiq")
_ZEROS = bytes(1 << 14)
_FILLER = _UNIT.pack(0, FILLER_SIZE, 0)


class ConsumeQueue:
    """One queue. All offsets are numbers of units but where "physical" is said.

    ``next_offset`` is what the next message put gets, ``max_offset`` what the next message to become readable has.
    """

    def __init__(self, files: OpenFiles, directory: str, file_size: int, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.next_offset = 0
        self.max_offset = 0
        self.min_offset = 0
        self.max_physical_end = 0
        """Where the record of the newest unit ends."""
        self._run = FileRun(files, directory, file_size, "mapped-file-size-consume-queue")
        self._tail = bytearray()  # the units from _tail_start to max_offset
        self._tail_start = 0
        self._written = 0  # units below are in the files

    @property
    def first_offset(self) -> int:
        """The first unit in the files, whether its record is still there or not."""
        return self._run.start // UNIT

    @property
    def run(self) -> FileRun:
        """Its files."""
        return self._run

    @property
    def written_offset(self) -> int:
        """The units below are in the files."""
        return self._written

    def load(self, trusted_physical: int) -> None:
        """Find the end of the queue in its files, and cut what does not belong to it.

        Units of records below ``trusted_physical`` are known to be whole.
        """
        run = self._run
        run.load()
        end = run.start // UNIT
        last_physical_end = 0
        for start in run.starts[-CHECKED_FILES:]:
            data = run.read_file(start)
            count = -(-_used(data) // UNIT)  # a unit with a size is not all zeros
            data = data[: count * UNIT].ljust(count * UNIT, b"\0")
            end = start // UNIT
            if count * UNIT == run.file_size and start != run.starts[-1]:
                physical, size, _ = _UNIT.unpack_from(data, len(data) - UNIT)
                if 0 < size < FILLER_SIZE and physical + size <= trusted_physical:
                    last_physical_end = physical + size
                    end += count
                    continue
            for physical, size, _ in _UNIT.iter_unpack(data):
                if size <= 0 or (size != FILLER_SIZE and physical < last_physical_end):
                    break
                if size != FILLER_SIZE:
                    last_physical_end = physical + size
                end += 1
            if end * UNIT < start + run.file_size:
                break
        self.max_physical_end = last_physical_end
        self._set_end(end)
        if run.starts:
            run.cut(end * UNIT)

    def _set_end(self, end: int) -> None:
        self.next_offset = self.max_offset = self._written = self._tail_start = end
        self._tail.clear()

    def set_min_offset(self, min_physical: int) -> None:
        """Set ``min_offset`` to the first unit whose record the commit log still has."""
        self.min_offset = self.offset_behind(min_physical)

    def offset_behind(self, physical_end: int) -> int:
        """The offset behind the newest unit of a record below ``physical_end``."""
        return self.search(self.first_offset, self.max_offset, lambda physical: physical >= physical_end)

    def entries_from(self, physical: int) -> Iterator[tuple[int, int]]:
        """(offset, size) of the records at or behind ``physical`` that have a unit here, the newest first."""
        for number in range(self.max_offset - 1, self.first_offset - 1, -1):
            offset, size, _ = self.unit(number)
            if size != FILLER_SIZE:
                if offset < physical:
                    return
                yield offset, size

    def cut_physical(self, physical_end: int) -> int:
        """Remove the units whose record is not wholly below ``physical_end``; returns how many they were."""
        before = end = self.max_offset
        start = self.first_offset
        last_physical_end = 0
        while end > start:
            physical, size, _ = self.unit(end - 1)
            if size != FILLER_SIZE and physical + size <= physical_end:
                last_physical_end = physical + size
                break
            end -= 1
        if end == before:
            return 0
        self.max_physical_end = last_physical_end
        self._run.cut(end * UNIT)
        self._set_end(end)
        return before - end

    def clear(self) -> None:
        """Remove all units, to have them built again."""
        self._run.cut(0)
        self.max_physical_end = 0
        self._set_end(0)

    # --- appending ---

    def append(self, physical: int, size: int, tags_code: int) -> None:
        """Add the unit of the next message; it is readable at once."""
        self._tail += _UNIT.pack(physical, size, tags_code)
        self.max_offset += 1
        self.max_physical_end = physical + size

    def fill(self, offset: int) -> None:
        """Add units that stand for no message up to ``offset``; an empty queue begins in the file of ``offset``."""
        if not self._run.starts and self.max_offset == 0:
            self._set_end(offset - offset % (self._run.file_size // UNIT))
        self._tail += _FILLER * (offset - self.max_offset)
        self.max_offset = offset

    def unwritten(self) -> tuple[int, bytes]:
        """The first unit that is not in the files, and the bytes of all those."""
        return self._written, bytes(self._tail[(self._written - self._tail_start) * UNIT :])

    def write(self, offset: int, data: bytes) -> None:
        """Write and sync units; may run in another thread."""
        for file in self._run.write(offset * UNIT, data):
            file.sync()

    def set_written(self, offset: int) -> None:
        """The units below are in the files now."""
        self._written = offset
        spare = min(offset, self.max_offset - KEPT_UNITS) - self._tail_start
        if spare > 0:
            del self._tail[: spare * UNIT]
            self._tail_start += spare

    # --- reading ---

    def units(self, offset: int, count: int) -> Iterator[tuple[int, int, int]]:
        """(physical offset, size, tags code) of up to ``count`` units from ``offset`` on, from one file."""
        count = min(count, self.max_offset - offset)
        if offset >= self._tail_start:
            start = (offset - self._tail_start) * UNIT
            return _UNIT.iter_unpack(bytes(self._tail[start : start + count * UNIT]))
        data = self._run.read(offset * UNIT, min(count, self._tail_start - offset) * UNIT)
        return _UNIT.iter_unpack(data)

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
            at, physical = self._message_at(middle, high)
            if at == high or matches(physical):
                high = middle
            else:
                low = at + 1
        return self._message_at(low, end)[0]

    def _message_at(self, offset: int, end: int) -> tuple[int, int]:
        """The first unit from ``offset`` on that is of a message, and its record's offset; ``end`` if none is."""
        while offset < end:
            before = offset
            for physical, size, _ in self.units(offset, min(KEPT_UNITS, end - offset)):
                if size != FILLER_SIZE:
                    return offset, physical
                offset += 1
            if offset == before:  # nothing can be read there
                break
        return end, 0

    def next_file(self, offset: int) -> int:
        """The first offset in the file behind the one that holds ``offset``."""
        per_file = self._run.file_size // UNIT
        return offset - offset % per_file + per_file


def _used(data: bytes) -> int:
    """How many bytes there are without the zeros at the end; by large pieces, as most files are mostly empty."""
    end = len(data)
    while end >= len(_ZEROS) and data.endswith(_ZEROS, 0, end):
        end -= len(_ZEROS)
    return len(data[:end].rstrip(b"\0"))
