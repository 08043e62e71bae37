"""An asyncio loop whose time is virtual and whose order of tasks a seed decides.

When nothing is ready it moves its time to the next timer. Tasks that are ready in the same turn run in an order that
the seed draws; plain callbacks keep theirs, on which asyncio's own parts rely. Objects that sets hold (tasks, scopes)
hash by the order in which they were made: sets of them would otherwise be walked by address, which no seed decides.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from anyio._backends import _asyncio as backend

from rocketbox.remoting.connection import Connection

__all__ = ["BEGIN", "Deadlock", "SeededLoop", "hash_by_order"]

BEGIN = 1_000.0  # seconds: a time of 0 might be taken for "never"
ResultT = TypeVar("ResultT")

_made = itertools.count(1)


class Deadlock(Exception):  # noqa: N818 - it is one
    """Every task waits, and no timer is left."""


def hash_by_order() -> None:
    """Let scopes and connections hash by the order in which they are made, in this process."""
    for kind in (backend.CancelScope, Connection):
        _number(kind)


def _number(kind: Any) -> None:
    numbers: dict[int, int] = {}
    begin = kind.__init__

    def __init__(self: Any, *args: Any, **named: Any) -> None:  # noqa: N807
        numbers[id(self)] = next(_made)
        begin(self, *args, **named)

    kind.__init__ = __init__
    kind.__hash__ = lambda self: numbers.get(id(self), 0)


class _Task(asyncio.Task[Any]):
    """A task that hashes by the order in which it was made."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = next(_made)
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


class _Selector(selectors.BaseSelector):
    """Nothing of the machine is ever ready: instead of waiting it moves the loop's time."""

    def __init__(self) -> None:
        self.loop: SeededLoop
        self._map: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._map[fileobj] = selectors.SelectorKey(fileobj, fileobj, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._map.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._map

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.loop.pass_time(timeout)
        return []


class SeededLoop(asyncio.SelectorEventLoop):
    """``SeededLoop(seed).run_until_complete(...)``. ``turns`` counts what it did."""

    def __init__(self, seed: int) -> None:
        selector = _Selector()
        self._random = random.Random(seed)
        self._now = BEGIN
        self.turns = 0
        super().__init__(selector)
        selector.loop = self
        self.set_task_factory(_make_task)

    def time(self) -> float:
        return self._now

    def pass_time(self, timeout: float | None) -> None:
        """Called once a turn, with the seconds until the next timer (0: something is ready)."""
        self.turns += 1
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined] # a detail of asyncio's own loop
        if ready:
            self._shuffle(ready)
        elif timeout is None:
            raise Deadlock(f"at {self._now - BEGIN:.3f} s")
        else:
            scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined] # likewise
            if scheduled:
                self._now = max(self._now, scheduled[0].when())

    def _shuffle(self, ready: deque[asyncio.Handle]) -> None:
        places = [place for place, handle in enumerate(ready) if _is_task(handle)]
        if len(places) > 1:
            handles = [ready[place] for place in places]
            self._random.shuffle(handles)
            for place, handle in zip(places, handles, strict=True):
                ready[place] = handle

    def _write_to_self(self) -> None:
        """Nobody calls from another thread."""


def _is_task(handle: asyncio.Handle) -> bool:
    callback: Callable[..., object] | None = handle._callback  # type: ignore[attr-defined] # likewise
    return isinstance(getattr(callback, "__self__", None), asyncio.Task)


def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> _Task:
    return _Task(coroutine, loop=loop, **options)
