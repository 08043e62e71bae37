"""Open transactions by the places of their half messages, those where they lay before among them.

A half message that is checked, or moved, is stored anew, and the end of its transaction may still name an older place.
What the steps of a transaction mean, and in which order they are stored, is ``half_messages``' part.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

__all__ = ["Half", "OpenHalves"]

PLACES_KEPT = 20  # of one transaction, beside its first: an end that comes late may name one of them


class Half:
    """An open transaction, and the half message of it that counts: the newest copy.

    ``begun``, ``due`` and ``placed`` are on the monotonic clock: when it began, from when on it may be checked, when it
    came to its place. ``is_age_known``: else it began then by its sender's clock, and ``due`` is open where it was not
    checked yet. ``is_immune``: it said itself for how long it is not to be checked. ``is_doubtful``: it may have ended,
    and its mark be missing. ``turn`` is its place among those that were asked about. ``is_told``: somebody may know its
    place, whom a send or a check told of it; one to which it was only moved is nobody's.
    """

    __slots__ = (
        "__weakref__",
        "begun",
        "by",
        "checks",
        "due",
        "ending",
        "is_age_known",
        "is_doubtful",
        "is_immune",
        "is_told",
        "log_offset",
        "placed",
        "places",
        "queue_offset",
        "turn",
    )  # fmt: skip

    def __init__(
        self, queue_offset: int, log_offset: int, *, begun: float, due: float, placed: float, is_immune: bool,
        is_age_known: bool = True, checks: int = 0, by: str = "",
    ) -> None:  # fmt: skip
        self.queue_offset = queue_offset
        self.log_offset = log_offset
        self.begun = begun
        self.is_age_known = is_age_known
        self.due = due
        self.placed = placed
        self.is_immune = is_immune
        self.checks = checks
        self.by = by
        self.is_doubtful = False
        self.is_told = True
        self.turn: int | None = None
        self.places: dict[int, int] = {}
        """Where it lay before, as somebody knows: offsets of the commit log by those of the queue."""
        self.ending = False
        """Its end is in the log, and not yet known to be durable."""

    def lies_at(self, queue_offset: int, log_offset: int) -> bool:
        """Whether it is, or was, just there."""
        return (queue_offset, log_offset) == (self.queue_offset, self.log_offset) or (
            self.places.get(queue_offset) == log_offset
        )


class OpenHalves:
    """Those of one broker. Iterating gives those whose end is not in the log."""

    def __init__(self) -> None:
        self._here: dict[int, Half] = {}
        self._before: dict[int, Half] = {}  # by the places they had

    def __len__(self) -> int:
        return len(self._here)

    def __iter__(self) -> Iterator[Half]:
        return iter([half for half in self._here.values() if not half.ending])

    def first(self, default: int) -> int:
        """The first offset of their queue at which one lies."""
        return min(self._here, default=default)

    def at(self, queue_offset: int) -> Half | None:
        """The one that lies there now."""
        return self._here.get(queue_offset)

    def at_log_offset(self, log_offset: int) -> Half | None:
        """The one that lies now at an offset of the commit log."""
        return next((half for half in self._here.values() if half.log_offset == log_offset), None)

    def has(self, half: Half) -> bool:
        """Whether it is one of them, where it says to lie."""
        return self._here.get(half.queue_offset) is half

    def find(self, queue_offset: int, log_offset: int) -> Half | None:
        """The one that is, or was, at an offset of its queue and one of the commit log, and has not been ended.

        Both are looked at: the body of any message may hold what looks like a half message at another's place.
        """
        half = self._here.get(queue_offset) or self._before.get(queue_offset)
        return None if half is None or half.ending or not half.lies_at(queue_offset, log_offset) else half

    def add(self, half: Half) -> None:
        self._here[half.queue_offset] = half

    def remember(self, half: Half, queue_offset: int, log_offset: int) -> None:
        """It lay there before."""
        half.places[queue_offset] = log_offset
        self._before[queue_offset] = half

    def move(self, half: Half, queue_offset: int, log_offset: int) -> None:
        """It lies there from now on; where it lies now is the newest of its places before, if somebody knows of it."""
        del self._here[half.queue_offset]
        if half.is_told:
            self.remember(half, half.queue_offset, half.log_offset)
        if len(half.places) > PLACES_KEPT + 1:
            oldest = next(islice(half.places, 1, None))  # but for the first, of which its sender knows
            del half.places[oldest]
            self._before.pop(oldest, None)
        half.queue_offset, half.log_offset = queue_offset, log_offset
        self.add(half)

    def move_back(self, half: Half, queue_offset: int, log_offset: int) -> None:
        """It lies where it lay before its last move: what was stored then was taken back."""
        del self._here[half.queue_offset]
        half.places.pop(queue_offset, None)
        self._before.pop(queue_offset, None)
        half.queue_offset, half.log_offset = queue_offset, log_offset
        self.add(half)

    def remove(self, half: Half) -> bool:
        """It is open no more, and is found by none of its places. Whether it was one of them."""
        was_here = self.has(half)
        if was_here:
            del self._here[half.queue_offset]
        for place in half.places:
            if self._before.get(place) is half:
                del self._before[place]
        return was_here
