"""Whether the index files say what the commit log says: entries in the order of the records, slots, links, headers.

Entries stand in the order in which their records stand in the log, so both are read side by side once. Each slot must
hold the number of the newest entry whose hash falls into it, and each entry the number of the one before it.

Entries of records that are damaged in the log are taken as they are, as long as their links fit.

What an Apache broker writes is accepted where it differs from ours: no entry for the tags (4.9, 5.3), and the last
record before a crash a second time.

Source: Apache RocketMQ 5.5 ``IndexFile``, ``IndexHeader``, ``IndexService``.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from rocketbox.broker.store.files import read_data
from rocketbox.broker.store.finding import FindingKind, StoreFinding
from rocketbox.broker.store.index_file import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES
from rocketbox.storage.file_system import Storage, StorageFile

__all__ = ["IndexComparison"]

READ_ENTRIES = 4096  # read at once
_HEADER = struct.Struct(">4q2i")
_ENTRY = struct.Struct(">iqii")
_SLOT = struct.Struct(">i")
_REMEDY = "the running broker mends it; rocketbox store repair sets the file aside, and the next start builds it again"
_Entry = tuple[int, int, int, int]  # hash, physical offset, seconds, entry before


@dataclass(frozen=True)
class _Header:
    begin_timestamp: int
    end_timestamp: int
    begin_physical: int
    end_physical: int
    used_slots: int
    count: int


class _File:
    """One index file that is walked through: ``number`` is the next entry, ``table`` what its slots should hold."""

    def __init__(self, file: StorageFile, slots: int, entries: int, *, full: bool) -> None:
        self.path = file.path
        self.slots = slots
        self.full = full  # others follow
        self.header = _Header(*_HEADER.unpack(file.read(0, HEADER_BYTES).ljust(HEADER_BYTES, b"\0")))
        self.count = max(1, min(self.header.count, entries))
        self.number = 1
        self.table = array("i", [0]) * slots
        self.used = 0
        self.last_physical = 0
        self.last_stored: int | None = None  # of the record of the newest entry; None when it is gone
        self.begin: tuple[int, int] | None = None  # store time and offset of the first record
        self._file = file
        self._entries: list[_Entry] = []
        self._first = 1

    def entry(self, number: int) -> _Entry:
        at = number - self._first
        if not 0 <= at < len(self._entries):
            data = self._file.read(self.position(number), READ_ENTRIES * ENTRY_BYTES)
            data = data[: len(data) // ENTRY_BYTES * ENTRY_BYTES].ljust(ENTRY_BYTES, b"\0")
            self._entries, self._first, at = list(_ENTRY.iter_unpack(data)), number, 0
        return self._entries[at]

    def position(self, number: int) -> int:
        return HEADER_BYTES + self.slots * SLOT_BYTES + number * ENTRY_BYTES

    def slot_values(self) -> array[int]:
        values = array("i", [0]) * self.slots
        for position, data in read_data(self._file, HEADER_BYTES, HEADER_BYTES + SLOT_BYTES * self.slots):
            part = array("i", data[: len(data) // SLOT_BYTES * SLOT_BYTES])
            if sys.byteorder == "little":
                part.byteswap()
            first = (position - HEADER_BYTES) // SLOT_BYTES
            values[first : first + len(part)] = part
        return values


class IndexComparison:
    """Feed it the log's records by :meth:`record`, in order, then call :meth:`rest`; both yield what differs.

    ``complete``: nothing is written to the files meanwhile, so that the newest header and slots can be compared too.
    """

    def __init__(
        self,
        storage: Storage,
        paths: Sequence[str],
        slots: int,
        entries: int,
        log_start: Callable[[], int],
        *,
        complete: bool,
    ) -> None:
        self._storage = storage
        self._paths = list(paths)
        self._slot_count = slots
        self._entries = entries
        self._log_start = log_start
        self._complete = complete
        self._file: _File | None = None
        self._before: _Header | None = None  # of the file before
        self._ended: list[_File] = []  # walked through, not yet compared as a whole
        self._skip_to = 0  # records below are not compared: their file was given up
        self._begun = False
        self._missing = False
        self._gaps: deque[tuple[int, int]] = deque()

    def gap(self, offset: int, end: int) -> None:
        """The log holds no intact record from ``offset`` to ``end``: nothing is known of the entries of those there."""
        self._gaps.append((offset, end))

    def record(self, physical: int, stored: int, hashes: Sequence[int], tagged: bool) -> Iterator[StoreFinding]:
        """Compare the entries of a record, of which the last may be that of its tags (``tagged``)."""
        if not hashes or self._missing:
            return
        file = self._current()
        if not self._begun or (file is not None and file.entry(file.number)[1] < min(physical, self._log_start())):
            yield from self._pass_gone()  # also of what retention removes meanwhile
            self._begun = True
        yield from self._pass_damaged()
        if physical >= max(self._skip_to, self._log_start()):
            yield from self._entries_of(physical, stored, hashes, tagged)
        yield from self._compare_ended()

    def rest(self) -> Iterator[StoreFinding]:
        """Compare what is behind the newest record."""
        if not self._begun:
            yield from self._pass_gone()
        yield from self._pass_damaged()
        file = self._current()
        if file is not None and self._complete:
            yield from self._give_up(file, f"entry {file.number} speaks of a record that the log does not have")
        elif file is not None:
            yield from self._slots(file)
        elif self._file is not None and not self._missing:
            self._ended.append(self._file)
        yield from self._compare_ended()

    # --- entries ---

    def _entries_of(self, physical: int, stored: int, hashes: Sequence[int], tagged: bool) -> Iterator[StoreFinding]:
        file = self._current()
        expected = list(hashes)
        if file is not None and tagged and len(expected) > 1 and self._follow(file, expected, physical):
            expected.pop()  # an Apache broker before 5.5 leaves the tags out
        for key_hash in expected:
            file = self._current()
            if physical < self._log_start():
                return  # retention has removed it, and perhaps the file with its entries, which was passed over
            if file is None:
                self._missing = True
                path = self._file.path if self._file is not None else "index"
                yield _finding(path, 0, f"the record at {physical}, and those behind it, have no entries")
                return
            yield from self._entry(file, key_hash, physical, stored)
            if self._file is not file:
                return  # given up
        while (file := self._current()) is not None and file.entry(file.number)[1] == physical:
            entry = file.entry(file.number)
            if entry[0] not in expected or entry[3] != file.table[entry[0] % file.slots]:
                yield from self._give_up(file, f"entry {file.number} is not of a key of the record at {physical}")
                return
            self._take(file, entry, stored)  # an Apache broker indexes its last record again after a crash

    def _entry(self, file: _File, key_hash: int, physical: int, stored: int) -> Iterator[StoreFinding]:
        number, slot = file.number, key_hash % file.slots
        found = file.entry(number)
        if number == 1:
            file.begin = (stored, physical)
        begin = file.begin[0] if file.begin is not None else file.header.begin_timestamp
        seconds = min(max(0, (stored - begin) // 1000), 0x7FFFFFFF)
        expected = (key_hash, physical, seconds, file.table[slot])
        if number == 1 and self._before is not None and found[2] == (stored - self._before.end_timestamp) // 1000:
            expected = (key_hash, physical, found[2], 0)  # Apache counts these from the end of the file before
        if found != expected:
            what = f"entry {number} is {found}, but the record at {physical} makes it {expected}"
            # Only this one is wrong if the one behind speaks of this record or a later one, and its time is known.
            alone = number + 1 >= file.count or file.entry(number + 1)[1] >= physical
            if not alone or (file.begin is None and found[2] != seconds):
                yield from self._give_up(file, what)
                return
            yield _finding(file.path, file.position(number), what, _ENTRY.pack(*expected))
        self._take(file, expected, stored)

    @staticmethod
    def _take(file: _File, entry: _Entry, stored: int | None) -> None:
        slot = entry[0] % file.slots
        file.used += file.table[slot] == 0
        file.table[slot] = file.number
        file.number += 1
        file.last_physical, file.last_stored = entry[1], stored

    @staticmethod
    def _follow(file: _File, hashes: Sequence[int], physical: int) -> bool:
        """Whether exactly these keys but the last stand next, and then those of another record."""
        end = file.number + len(hashes) - 1
        if end >= file.count or file.entry(end)[0] == hashes[-1] or file.entry(end)[1] <= physical:
            return False
        found = [file.entry(number)[:2] for number in range(file.number, end)]
        return found == [(key_hash, physical) for key_hash in hashes[:-1]]

    def _pass_gone(self) -> Iterator[StoreFinding]:
        """Take the entries of records that retention has removed as they are."""
        yield from self._pass_unknown(lambda physical: physical < self._log_start())

    def _pass_damaged(self) -> Iterator[StoreFinding]:
        """Take the entries of records that are damaged in the log as they are, up to the next intact one's."""
        while self._gaps:
            offset, end = self._gaps.popleft()
            yield from self._pass_unknown(partial(_is_between, offset, end))

    def _pass_unknown(self, is_unknown: Callable[[int], bool]) -> Iterator[StoreFinding]:
        while (file := self._current()) is not None:
            entry = file.entry(file.number)
            if not is_unknown(entry[1]):
                break
            if entry[0] < 0 or entry[3] != file.table[entry[0] % file.slots]:
                yield from self._give_up(file, f"entry {file.number} is not linked to the one before it in its slot")
                break
            self._take(file, entry, None)

    # --- files ---

    def _current(self) -> _File | None:
        """The file that holds the next entry; None behind the last."""
        while self._file is None or self._file.number >= self._file.count:
            if not self._paths:
                return None
            self._leave()
        return self._file

    def _leave(self) -> None:
        """Go on with the next file."""
        if self._file is not None:
            self._ended.append(self._file)
            self._before = self._file.header
        self._file = None
        while self._paths and self._file is None:
            path = self._paths.pop(0)
            with suppress(FileNotFoundError):  # retention has removed it meanwhile
                self._file = _File(self._storage.open(path), self._slot_count, self._entries, full=bool(self._paths))

    def _give_up(self, file: _File, what: str) -> Iterator[StoreFinding]:
        """Go on with the records of the next file, as nothing more can be said of this one."""
        yield _finding(file.path, file.position(file.number), what)
        self._begun = True
        self._file = None
        self._before = file.header
        if not self._paths:
            self._missing = True
            return
        self._leave()
        if (following := self._current()) is not None:
            first = following.entry(1)[1]
            self._skip_to = first + 1
            while following.number < following.count and (entry := following.entry(following.number))[1] == first:
                self._take(following, entry, None)

    def _compare_ended(self) -> Iterator[StoreFinding]:
        ended, self._ended = self._ended, []
        for file in ended:
            yield from self._slots(file)
            if file.full or self._complete:
                yield from self._headers(file)

    def _slots(self, file: _File) -> Iterator[StoreFinding]:
        values = file.slot_values()
        if values == file.table:
            return
        for slot, (value, expected) in enumerate(zip(values, file.table, strict=True)):
            if value == expected or (value >= file.number and self._leads_to(file, value, expected)):
                continue
            yield _finding(
                file.path, HEADER_BYTES + slot * SLOT_BYTES,
                f"slot {slot} holds {value}, but its newest entry is {expected}", _SLOT.pack(expected),
            )  # fmt: skip

    def _leads_to(self, file: _File, value: int, expected: int) -> bool:
        """Whether entries that were added while this file was read lead from the slot's value to what it had to be."""
        seen = 0
        while value >= file.number and value < self._entries and not self._complete and seen < self._entries:
            value = file.entry(value)[3]
            seen += 1
        return value == expected

    def _headers(self, file: _File) -> Iterator[StoreFinding]:
        header = file.header
        begin_timestamp, begin_physical = file.begin or (header.begin_timestamp, header.begin_physical)
        end_timestamp = header.end_timestamp if file.last_stored is None else file.last_stored
        count = self._entries if file.full else file.count
        last = file.last_physical if file.number > 1 else header.end_physical
        expected = _Header(begin_timestamp, end_timestamp, begin_physical, last, file.used, count)
        if header != expected:
            known = file.begin is not None and file.last_stored is not None and file.count == count
            data = _HEADER.pack(begin_timestamp, end_timestamp, begin_physical, last, file.used, count)
            what = f"the header is {header}, but the entries make it {expected}"
            yield _finding(file.path, 0, what, data if known else None)


def _is_between(offset: int, end: int, physical: int) -> bool:
    return offset <= physical < end


def _finding(path: str, position: int, what: str, correct: bytes | None = None) -> StoreFinding:
    return StoreFinding(FindingKind.INDEX, path, position, what, _REMEDY, correct)
