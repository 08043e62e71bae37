"""Whether the units of one consume queue say what the commit log says, record by record in the order of the log.

Source: Apache RocketMQ 5.x ``ConsumeQueue`` (units), ``ConsumeQueueStore``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from rocketbox.broker.store.consume_queue import FILLER_SIZE
from rocketbox.broker.store.files import FileRun, read_data
from rocketbox.broker.store.finding import FindingKind, StoreFinding
from rocketbox.broker.store.options import CONSUME_QUEUE_UNIT as UNIT
from rocketbox.errors import StoreError

__all__ = ["QueueComparison"]

READ_UNITS = 512  # read at once; with thousands of queues a few KiB each
_UNIT = struct.Struct(">qiq")
_FILLER = _UNIT.pack(0, FILLER_SIZE, 0)
_ZERO = bytes(UNIT)
_REBUILD = "it is rebuilt from the log by rocketbox store repair, or by the running broker"


class QueueComparison:
    """Feed it the queue's records by :meth:`record`, then call :meth:`rest`; both yield what differs.

    :meth:`rest` is for a queue that nobody writes: of one that grows it would take the newest units for wrong ones.

    ``log_start`` says where the log begins now: units of records below stand for messages that are gone.
    """

    def __init__(self, name: str, run: FileRun, log_start: Callable[[], int]) -> None:
        self.name = name
        self.run = run
        self.next: int | None = None
        """The offset behind the newest record; None before the first."""
        self._log_start = log_start
        self._block = b""
        self._block_start = 0

    def record(self, queue_offset: int, physical: int, size: int, code: int) -> Iterator[StoreFinding]:
        """Compare the unit of a record."""
        if self.next is not None and queue_offset < self.next:
            return  # its number is taken: recovery has said so, and left it out
        if self.next is None:
            per_file = self.run.file_size // UNIT
            first = self.run.start // UNIT if self.run.starts else queue_offset - queue_offset % per_file
            yield from self._gone(first, queue_offset)
        else:
            for offset in range(self.next, queue_offset):
                if not self._is_gone(self._unit(offset)):
                    yield from self._compare(offset, _FILLER)
        for finding in self._compare(queue_offset, _UNIT.pack(physical, size, code)):
            if physical >= self._log_start():  # else retention has removed the record, and perhaps its entry, meanwhile
                yield finding
        self.next = queue_offset + 1

    def rest(self, complete_until: int) -> Iterator[StoreFinding]:
        """Compare what is behind the newest record; units of records at or behind ``complete_until`` are left out."""
        if self.next is None:
            yield from self._gone(self.run.start // UNIT, None, complete_until)
            return
        for offset, unit in self._units_from(self.next):
            physical, size, _ = _UNIT.unpack(unit)
            if size != FILLER_SIZE and physical >= complete_until and size > 0:
                return
            if unit == _FILLER and self._filler_until_new(offset, complete_until):
                return
            yield self._finding(offset, unit, _ZERO, "the log has no such message")
            return  # what follows is as wrong

    def _filler_until_new(self, offset: int, complete_until: int) -> bool:
        """Whether only fillers follow up to the unit of a record that was not compared."""
        for _, unit in self._units_from(offset):
            physical, size, _ = _UNIT.unpack(unit)
            if unit != _FILLER:
                return bool(size > 0 and physical >= complete_until)
        return False

    def _gone(self, first: int, end: int | None, complete_until: int | None = None) -> Iterator[StoreFinding]:
        """Units from ``first`` on up to ``end`` stand for messages that are gone.

        Without ``end`` up to the first zeros, or to a record at or behind ``complete_until``.
        """
        for offset, unit in self._units_from(first, end):
            physical, size, _ = _UNIT.unpack(unit)
            if complete_until is not None and size != FILLER_SIZE and size > 0 and physical >= complete_until:
                return
            if size != FILLER_SIZE and not self._is_gone(unit):
                yield self._finding(offset, unit, _FILLER, "the log does not hold a message for it")

    def _is_gone(self, unit: bytes) -> bool:
        """Whether a unit is that of a record that the log does not have any more."""
        physical, size, _ = _UNIT.unpack(unit)
        return bool(physical >= 0 and 0 < size < FILLER_SIZE and physical + size <= self._log_start())

    def _compare(self, offset: int, expected: bytes) -> Iterator[StoreFinding]:
        found = self._unit(offset)
        if found != expected:
            yield self._finding(offset, found, expected, _said(expected))

    def _finding(self, offset: int, found: bytes, expected: bytes, should: str) -> StoreFinding:
        place = offset * UNIT
        start = place - place % self.run.file_size
        return StoreFinding(
            FindingKind.QUEUE,
            self.run.path(start),
            place - start,
            f"entry {offset} of {self.name} {_said(found)}, but {should}",
            _REBUILD,
            expected,
        )

    def _unit(self, offset: int) -> bytes:
        at = (offset - self._block_start) * UNIT
        if not 0 <= at < len(self._block):
            self._block, self._block_start, at = self._read(offset), offset, 0
        return self._block[at : at + UNIT].ljust(UNIT, b"\0")

    def _read(self, offset: int) -> bytes:
        place = offset * UNIT
        if not self.run.start <= place < self.run.limit:
            return _ZERO  # no file
        try:
            return self.run.read(place, READ_UNITS * UNIT) or _ZERO
        except (FileNotFoundError, StoreError):
            return _ZERO

    def _units_from(self, offset: int, end: int | None = None) -> Iterator[tuple[int, bytes]]:
        """(offset, unit) up to ``end``; without it up to the last in the files that is not zero."""
        while end is None or offset < end:
            place = offset * UNIT
            if place >= self.run.limit:
                for missing in range(offset, end or offset):
                    yield missing, _ZERO
                return
            unit = self._unit(offset)
            if end is None and unit == _ZERO and not self._more_behind(offset):
                return
            yield offset, unit
            offset += 1

    def _more_behind(self, offset: int) -> bool:
        place = offset * UNIT
        for start in list(self.run.starts):
            if start + self.run.file_size <= place:
                continue
            try:
                file = self.run.file(start)
                for _, data in read_data(file, max(0, place - start), self.run.file_size):
                    if data.strip(b"\0"):
                        return True
            except (FileNotFoundError, StoreError):
                continue
        return False


def _said(unit: bytes) -> str:
    physical, size, code = _UNIT.unpack(unit)
    if unit == _ZERO:
        return "is not there"
    if size == FILLER_SIZE and physical == 0:
        return "stands for no message"
    return f"says a record of {size} bytes at {physical}, tags code {code}"
