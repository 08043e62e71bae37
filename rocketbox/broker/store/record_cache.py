"""The newest records in memory, where consumers that keep up read.

What is put there, and read from there, is left to ``dispatcher`` and ``reading``.

Source: rocketbox' own; Apache RocketMQ 5.x leaves it to the page cache, from which a read is a call of the system.
"""

from __future__ import annotations

from math import inf

__all__ = ["RecordCache"]


class RecordCache:
    """The newest records by commit-log offset, up to about ``size`` bytes of them.

    Two halves: when the newer one is full, the older one goes. So nothing has to be removed one by one.
    """

    def __init__(self, size: int) -> None:
        self._half = size // 2
        self._newer: dict[int, bytes] = {}
        self._older: dict[int, bytes] = {}
        self._used = 0  # bytes in the newer half
        self._first: float = inf  # offset of both halves
        self._first_newer: float = inf

    def add(self, records: dict[int, bytes], size: int) -> None:
        """Add records, which have ``size`` bytes in all, in the order of their offsets."""
        if not self._newer:
            self._first_newer = next(iter(records), inf)
            self._first = next(iter(self._older), self._first_newer)
        self._newer.update(records)
        self._used += size
        if self._used > self._half:
            self._older, self._newer, self._used = self._newer, {}, 0
            self._first = self._first_newer

    def reaches(self, offset: int) -> bool:
        """Whether an offset does not lie before all records that are here."""
        return offset >= self._first

    def get(self, offset: int) -> bytes | None:
        return self._newer.get(offset) or self._older.get(offset)
