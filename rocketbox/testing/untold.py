"""What handlers have raised and the test does not know of: a failure is never lost, and told once."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Place", "Untold"]

Place = tuple[str | None, str, str]
"""A message in a group: the group's cluster, its name, and the id that the message keeps in all of its attempts."""


class Untold:
    """Of one harness. Who knows how one attempt at a message has failed is not told of later ones."""

    def __init__(self) -> None:
        self._errors: dict[Place, Exception] = {}
        self._of_before: dict[Place, Exception] = {}  # of tests before this one
        self._known: set[Place] = set()
        self._is_closed = False

    def add(self, place: Place, error: Exception) -> None:
        """A handler has raised it for that message."""
        if not self._is_closed and place not in self._known and place not in self._of_before:
            self._errors.setdefault(place, error)

    def know(self, places: Iterable[Place]) -> None:
        """The test has looked at how these have failed."""
        for place in places:
            self._known.add(place)
            self._errors.pop(place, None)
            self._of_before.pop(place, None)

    def know_all(self) -> None:
        """The test was told of all."""
        self.know([*self._errors, *self._of_before])

    def next_test(self, *, is_known: bool) -> None:
        """Another test begins; whether it is known what was raised in the last one, or nobody wants to hear of it."""
        for place in list(self._errors):  # a handler in a thread may add to them meanwhile
            error = self._errors.pop(place)
            if is_known:
                self._known.add(place)
            else:
                self._of_before[place] = error

    def close(self) -> None:
        """Add nothing from now on: handlers that still run are cancelled, and how they fail by that says nothing."""
        self._is_closed = True

    def forget(self) -> None:
        """Know of nothing that was."""
        self._errors.clear()
        self._of_before.clear()
        self._known.clear()

    def errors(self, *, of_test: bool) -> list[Exception]:
        """Each once, for several messages of a batch may have failed by the same; those of this test too, or only those
        of tests before it."""
        found = [*self._of_before.values(), *(self._errors.values() if of_test else ())]
        return list({id(each): each for each in found}.values())
