"""Waiters: a result that one task awaits and another sets, and a state that tasks wait for, in one event loop.

Asyncio's own Future under asyncio, an event under any other backend. An ``anyio.Event`` for each request would cost 3
us, a Future 1 us (benchmark "send, 256 in flight").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Protocol

import anyio

__all__ = ["LoopCondition", "Waiter", "make_waiter"]


class Waiter(Protocol):
    """One result: awaited once, set once. Setting one that is done raises; ask :meth:`done` first."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, error: BaseException, /) -> None: ...

    def __await__(self) -> Generator[Any, None, Any]: ...


class EventWaiter:
    """A waiter for backends that have no futures."""

    __slots__ = ("_error", "_event", "_result")

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._event.is_set()

    def set_result(self, result: Any, /) -> None:
        self._result = result
        self._event.set()

    def set_exception(self, error: BaseException, /) -> None:
        self._error = error
        self._event.set()

    def __await__(self) -> Generator[Any, None, Any]:
        yield from self._event.wait().__await__()
        if self._error is not None:
            raise self._error
        return self._result


def make_waiter() -> Waiter:
    """A waiter for the event loop that runs here."""
    try:
        return asyncio.get_running_loop().create_future()
    except RuntimeError:
        return EventWaiter()


class LoopCondition:
    """Tasks that wait until a predicate holds; whoever makes it hold notifies them.

    ``anyio.Condition`` has a lock, for which whoever notifies would have to wait. Here all is one event loop's.
    """

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[Waiter] = []
        """Empty: nobody is there to be notified."""

    async def wait_for(self, predicate: Callable[[], object]) -> None:
        """Return when the predicate holds: at once, or when somebody notifies and it still does in this task's turn."""
        while not predicate():
            waiter = make_waiter()
            self.waiting.append(waiter)
            try:
                await waiter
            finally:
                self.waiting.remove(waiter)

    def notify_all(self) -> None:
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)
