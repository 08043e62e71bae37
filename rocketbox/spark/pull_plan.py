"""Which pull a task makes next, and what of the answers is ready: ranges of queues, several pulls in flight. No I/O.

A range is read in stretches, each by one pull after another, several stretches at once; what they bring is handed out
in the order of ranges and offsets. How long a stretch is follows the broker: a pull covers 32 offsets of Apache's
brokers, 8 when they read from disk, one for messages of megabytes, 800 and more where a filter matches nothing. The
first pull of a range shows it; it has no stretch behind it that could overlap with what it covers. A stretch is more
than one pull, so that there is one to show when pulls have come to cover more.

Bytes are what bounds the pulls: those that are held, and those that the pulls in flight are going to bring, stay below
HELD_BYTES as far as the sizes of the last answers tell. The first stretch goes on whatever others hold, so that there
is always something to hand out.

Requests, errors and waiting are ``reading``'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rocketbox.message import MessageQueue
from rocketbox.spark.offsets import QueueRange
from rocketbox.spark.record_columns import BYTES_PER_RECORD_BATCH, Pulled

__all__ = ["HELD_BYTES", "PULLS_IN_FLIGHT", "PullPlan", "Stretch"]

PULLS_IN_FLIGHT = 8
PULL_MESSAGES = 1024  # a broker gives what it likes to give at once
ROWS_PER_RECORD_BATCH = 4096
HELD_BYTES = 8 * 1024 * 1024
STRETCH_PULLS = 2  # at most: those in flight lie close together, and the broker reads once for all of them
STRETCH_BYTES = 2 * 1024 * 1024
FIRST_STRETCH = 32  # offsets
FIRST_PULL_BYTES = 256 * 1024  # what Apache's brokers give at most, but for a larger message
BYTES_BESIDE_A_RECORD = 40  # what its place takes
MUCH_TOO_LONG = 4  # times the length that a stretch would have now


@dataclass(slots=True, eq=False)
class Stretch:
    """Offsets of a queue from ``position`` to before ``end``; all before ``position`` has been read."""

    piece: _Piece
    position: int
    end: int
    in_flight: bool = False
    parts: list[Pulled] = field(default_factory=list)
    """What it has brought and may not be handed out yet."""

    @property
    def queue(self) -> MessageQueue:
        return self.piece.queue

    @property
    def unread(self) -> QueueRange:
        """What of the whole range has not been read, from the first such offset on."""
        first = min(each.position for each in self.piece.stretches if each.position < each.end)
        return QueueRange(self.queue, first, self.piece.end)

    @property
    def is_last(self) -> bool:
        """Whether nothing of the range behind it has been begun."""
        return self.piece.assigned == self.end

    @property
    def farthest(self) -> int:
        """Where a pull of it may end: behind the first of a range nothing else is read before it is answered."""
        return self.end if self.piece.answered else self.piece.end


@dataclass(slots=True, eq=False)
class _Piece:
    """A range, of which offsets before ``assigned`` belong to a stretch."""

    queue: MessageQueue
    assigned: int
    end: int
    answered: bool = False
    stretches: deque[Stretch] = field(default_factory=deque)


class PullPlan:
    """The pulls of some ranges, and what they have brought."""

    def __init__(self, ranges: Iterable[QueueRange]) -> None:
        self._pieces = deque(_Piece(piece.queue, piece.start, piece.end) for piece in ranges if piece.end > piece.start)
        self._ready: deque[Pulled] = deque()
        self._ready_rows = self._ready_bytes = 0
        self._held = 0
        self._in_flight = 0
        self._step = 0.0  # offsets that a pull covers
        self._pull_bytes = FIRST_PULL_BYTES  # that the next one may bring

    @property
    def finished(self) -> bool:
        """Whether all has been read; what is ready may still have to be taken."""
        return not self._pieces

    @property
    def has_batch(self) -> bool:
        """Whether enough for a record batch is ready, or all that there is."""
        enough = self._ready_rows >= ROWS_PER_RECORD_BATCH or self._ready_bytes >= BYTES_PER_RECORD_BATCH
        return enough or self.finished

    def next_pull(self) -> tuple[Stretch, int] | None:
        """What to pull now, and how many messages at most; None when an answer, or a taker, must come first."""
        if self._in_flight >= PULLS_IN_FLIGHT:
            return None
        is_first = True
        for piece in self._pieces:
            for stretch in piece.stretches:
                if not stretch.in_flight and stretch.position < stretch.end and self._has_room(is_first):
                    return self._begin(stretch)
                is_first = False
            if piece.assigned < piece.end and (piece.answered or not piece.stretches):
                return self._begin(self._assign(piece)) if self._has_room(is_first) else None
            is_first = False
        return None

    def _has_room(self, is_first: bool) -> bool:
        if is_first and self._ready_bytes < BYTES_PER_RECORD_BATCH:
            return True
        return self._held + (self._in_flight + 1) * self._pull_bytes <= HELD_BYTES

    def _assign(self, piece: _Piece) -> Stretch:
        length = self._length(piece.end - piece.assigned) if piece.answered else FIRST_STRETCH
        end = min(piece.end, piece.assigned + length)
        stretch = Stretch(piece, piece.assigned, end)
        piece.assigned = end
        piece.stretches.append(stretch)
        return stretch

    def _length(self, left: int) -> int:
        """Offsets of a stretch, in whole pulls: few for large messages, and for a range of which little is left."""
        step = max(1, round(self._step))
        pulls = min(STRETCH_PULLS, STRETCH_BYTES // max(1, self._pull_bytes), left // (step * PULLS_IN_FLIGHT))
        return step * max(1, pulls)

    def _begin(self, stretch: Stretch) -> tuple[Stretch, int]:
        stretch.in_flight = True
        self._in_flight += 1
        return stretch, min(PULL_MESSAGES, stretch.farthest - stretch.position)

    def answered(self, stretch: Stretch, asked: int, data: bytes, starts: Sequence[int], next_offset: int) -> None:
        """The pull of a stretch, for ``asked`` messages, has brought these records; ``next_offset`` comes next."""
        piece = stretch.piece
        piece.answered = True
        covered = next_offset - stretch.position
        if len(starts) >= asked or next_offset >= piece.end:  # it might have covered more
            self._step = max(self._step, covered)
        else:
            self._step = covered if not self._step else (3 * self._step + covered) / 4
        self._pull_bytes = max(len(data), self._pull_bytes * 7 // 8)
        self.brought(stretch, data, starts, next_offset)

    def brought(
        self, stretch: Stretch, data: bytes, starts: Sequence[int], reached: int, error: str | None = None
    ) -> None:
        """Records of a stretch, which goes on at ``reached``; with ``error`` one that only stands for a message."""
        if stretch.is_last:
            stretch.end = stretch.piece.assigned = min(max(stretch.end, reached), stretch.piece.end)
        behind, reached = reached, min(reached, stretch.end)
        if starts:
            part = Pulled(stretch.queue, stretch.position, reached, data, starts, error, behind)
            stretch.parts.append(part)
            self._held += _cost(part)
        stretch.position = reached
        left = stretch.end - reached
        if left > MUCH_TOO_LONG * (length := self._length(left)):  # messages are larger than they were
            cut = reached + length
            stretches = stretch.piece.stretches
            stretches.insert(stretches.index(stretch) + 1, Stretch(stretch.piece, cut, stretch.end))
            stretch.end = cut
        self._make_ready()

    def ended(self, stretch: Stretch) -> None:
        """A pull of :meth:`next_pull` is over, however it ended."""
        stretch.in_flight = False
        self._in_flight -= 1

    def _make_ready(self) -> None:
        """Move what the first stretches have brought to what may be handed out."""
        while self._pieces:
            piece = self._pieces[0]
            while piece.stretches:
                stretch = piece.stretches[0]
                for part in stretch.parts:
                    self._ready.append(part)
                    self._ready_rows += len(part.starts)
                    self._ready_bytes += len(part.data)
                stretch.parts.clear()
                if stretch.position < stretch.end:
                    return
                piece.stretches.popleft()
            if piece.assigned < piece.end:
                return
            self._pieces.popleft()

    def take(self) -> list[Pulled]:
        """What is ready, as much as makes one record batch; nothing when all has been taken."""
        taken: list[Pulled] = []
        rows = size = 0
        while self._ready and rows < ROWS_PER_RECORD_BATCH:
            if taken and size + len(self._ready[0].data) > BYTES_PER_RECORD_BATCH:
                break
            part = self._ready.popleft()
            taken.append(part)
            rows += len(part.starts)
            size += len(part.data)
            self._held -= _cost(part)
        self._ready_rows -= rows
        self._ready_bytes -= size
        return taken


def _cost(part: Pulled) -> int:
    return len(part.data) + BYTES_BESIDE_A_RECORD * len(part.starts)
