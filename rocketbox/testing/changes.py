"""What a test has changed about a running service, and how it is undone: overrides, frozen groups."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import NoReturn, Self

from rocketbox.testing.errors import HarnessError

__all__ = ["Change", "Changes", "PlainBlock"]


class PlainBlock:
    """What ``with`` ends, in async tests as well: ``async with`` is told so."""

    async def __aenter__(self) -> NoReturn:
        raise HarnessError("it begins and ends without waiting for anything: write 'with', and not 'async with'")

    async def __aexit__(self, *error: object) -> None: ...


class Change(PlainBlock):
    """One of them. ``with`` undoes it at the end of the block; without, ``harness.fresh()`` does, or the end."""

    def __init__(self, made: list[Change], undo: Callable[[], object]) -> None:
        self._made = made
        self._undo = undo
        made.append(self)

    def undo(self) -> None:
        """Undo it, unless that was done."""
        if self in self._made:
            self._made.remove(self)
            self._undo()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


class Changes:
    """All that hold now."""

    def __init__(self) -> None:
        self._made: list[Change] = []

    def made(self, undo: Callable[[], object]) -> Change:
        """Something was changed, which ``undo()`` undoes."""
        return Change(self._made, undo)

    def undo_all(self) -> None:
        """Undo them, the last one first."""
        for change in reversed(self._made[:]):
            change.undo()
