"""The timer messages that wait: when each is due and where it lies, in a few bytes.

What is due in the next minutes lies in a heap, all else in arrays, one for each stretch of 17.5 minutes; an array is
poured into the heap in steps, a minute before its stretch begins. So one that waits for long takes 16 bytes (18 while
an array grows), one that is due soon 56, and nothing that is done at once takes longer than some milliseconds, however
many there are.

Source: none for the form; Apache RocketMQ 5.x ``TimerWheel`` has a slot on disk for each second.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

__all__ = ["LATEST_MS", "TimerWheel"]

STRETCH_BITS = 20  # of milliseconds
LEAD_MS = 60_000
OFFSET_BITS = 48  # of the number in the heap that an entry is: its time, then its place in the queue
OFFSETS = (1 << OFFSET_BITS) - 1
LATEST_MS = (1 << 62) - 1  # whatever a message says: it must fit into an array
AT_ONCE = 4096  # entries


class TimerWheel:
    """Entries, each a time (epoch ms) and the offset of a message in the queue of those that wait."""

    def __init__(self) -> None:
        self._near: list[int] = []
        self._far: dict[int, array[int]] = {}  # by stretch: time, offset, time, offset, ...
        self._poured = -1  # the last stretch of which all goes into the heap
        self._pouring: array[int] | None = None
        self._next = 0  # of the array that is being poured: what is not in the heap yet
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, time_ms: int, offset: int) -> None:
        """Have a message wait for its time."""
        time_ms = min(max(time_ms, 0), LATEST_MS)
        stretch = time_ms >> STRETCH_BITS
        self._count += 1
        if stretch <= self._poured:
            heappush(self._near, time_ms << OFFSET_BITS | offset)
            return
        entries = self._far.get(stretch)
        if entries is None:
            entries = self._far[stretch] = array("q")
        entries.append(time_ms)
        entries.append(offset)

    def pour(self, now_ms: int) -> bool:
        """Take a step towards having in the heap what is due soon; whether another one is to follow."""
        if self._pouring is None:
            stretch = min(self._far, default=None)
            if stretch is None or (stretch << STRETCH_BITS) - LEAD_MS > now_ms:
                return False
            self._pouring, self._next = self._far.pop(stretch), 0
            self._poured = max(self._poured, stretch)
        entries, begin = self._pouring, self._next
        end = self._next = min(begin + 2 * AT_ONCE, len(entries))
        near = self._near
        added = [entries[at] << OFFSET_BITS | entries[at + 1] for at in range(begin, end, 2)]
        if near:
            for each in added:
                heappush(near, each)
        else:
            near += added
            heapify(near)
        if end == len(entries):
            self._pouring = None
        return self._pouring is not None or self._is_stretch_due(now_ms)

    def _is_stretch_due(self, now_ms: int) -> bool:
        stretch = min(self._far, default=None)
        return stretch is not None and (stretch << STRETCH_BITS) - LEAD_MS <= now_ms

    def take(self, now_ms: int, most: int) -> list[tuple[int, int]]:
        """Up to ``most`` entries that are due, the earliest first, which wait no more.

        None that is later than what is not in the heap yet.
        """
        near, limit = self._near, (now_ms + 1) << OFFSET_BITS
        stretch = self._poured if self._pouring is not None else min(self._far, default=None)
        if stretch is not None:
            limit = min(limit, stretch << STRETCH_BITS << OFFSET_BITS)
        taken: list[tuple[int, int]] = []
        while near and near[0] < limit and len(taken) < most:
            entry = heappop(near)
            taken.append((entry >> OFFSET_BITS, entry & OFFSETS))
        self._count -= len(taken)
        return taken

    def next_ms(self) -> int | None:
        """When there is something to do: one is due, or a stretch is to be poured. None: nothing waits."""
        stretch = min(self._far, default=None)
        pour = None if stretch is None else (stretch << STRETCH_BITS) - LEAD_MS
        if not self._near:
            return pour
        due = self._near[0] >> OFFSET_BITS
        return due if pour is None else min(due, pour)

    def pieces(self) -> Iterator[bytes]:
        """All entries as they are now, each twice eight bytes in the machine's order; to be asked for one by one.

        What changes between two pieces is not seen: all of it is set aside with the first one.
        """
        near = list(self._near)
        parts = [bytes(each) for each in self._far.values()]
        if self._pouring is not None:
            parts.append(bytes(self._pouring[self._next :]))
        yield from parts
        for begin in range(0, len(near), AT_ONCE):
            piece = array("q")
            for entry in near[begin : begin + AT_ONCE]:
                piece.append(entry >> OFFSET_BITS)
                piece.append(entry & OFFSETS)
            yield bytes(piece)
