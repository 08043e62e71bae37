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
from collections.abc import Coroutine, Mapping
from contextvars import Context, copy_context
from heapq import heappop, heappush
from typing import Any

from anyio._backends import _asyncio as backend

from rocketbox.remoting.connection import Connection

__all__ = ["BEGIN", "Deadlock", "SeededLoop", "count_anew", "hash_by_order"]

BEGIN = 1_000.0  # seconds: a time of 0 might be taken for "never"

_made = itertools.count(1)  # what is made in this run


class Deadlock(Exception):  # noqa: N818 - it is one
    """Every task waits, and no timer is left."""


def hash_by_order() -> None:
    """Let scopes and connections hash by the order in which they are made, in this process."""
    for kind in (backend.CancelScope, Connection):
        _number(kind)


def count_anew() -> None:
    """A run begins: its sets are to be in the same order whatever ran before it in this process."""
    global _made
    _made = itertools.count(1)


def _number(kind: Any) -> None:
    numbers: dict[int, int] = {}

    def __new__(cls: Any, *args: Any, **named: Any) -> Any:  # noqa: N807
        made = object.__new__(cls)
        numbers[id(made)] = next(_made)
        return made

    kind.__new__ = __new__
    kind.__hash__ = lambda self: numbers.get(id(self), 0)


class _Task(asyncio.Task[Any]):
    """A task that hashes by the order in which it was made."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = next(_made)
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


class _Selector(selectors.BaseSelector):
    """For what asyncio registers when a loop is made. Nothing of the machine is ever waited for."""

    def __init__(self) -> None:
        self._map: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._map[fileobj] = selectors.SelectorKey(fileobj, fileobj, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._map.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._map

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        raise AssertionError(f"the loop waits for the machine, {timeout} s")


class _Call:
    """What the loop is to call: a handle of asyncio's without the care for debugging."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_when")

    def __init__(self, when: float, callback: Any, args: Any, context: Context | None) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._context = copy_context() if context is None else context
        self._cancelled = False

    def cancel(self) -> None:
        """It is passed over when its time comes, and holds nothing until then."""
        self._cancelled = True
        self._callback = self._args = None

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when

    def __repr__(self) -> str:
        return f"{self._callback} at {self._when - BEGIN:.3f} s"


class SeededLoop(asyncio.SelectorEventLoop):
    """``SeededLoop(seed).run_until_complete(...)``. ``turns`` counts what it did.

    Of asyncio's own loop it replaces how calls are noted down and what a turn does: half of the time of a simulation
    went into asyncio's care for selectors, threads and debugging.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._now = BEGIN
        self._ready: deque[Any]
        self._timers: list[tuple[float, int, _Call]] = []
        self._stopping: bool
        self._order = itertools.count()
        self.turns = 0
        super().__init__(_Selector())
        self.set_task_factory(_make_task)

    def time(self) -> float:
        return self._now

    def timers(self) -> list[_Call]:
        """Those that are still to come."""
        return [call for _, _, call in self._timers if not call._cancelled]

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> _Call:  # type: ignore[override]
        call = _Call(0.0, callback, args, context)
        self._ready.append(call)
        return call

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> _Call:
        call = _Call(when, callback, args, context)
        heappush(self._timers, (when, next(self._order), call))
        return call

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> _Call:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _run_once(self) -> None:
        """All turns until the loop is to stop: asyncio's own part in each would cost as much as the turn."""
        ready, timers = self._ready, self._timers
        while True:
            self.turns += 1
            if len(ready) > 1:
                self._shuffle(ready)
            elif not ready:
                self._to_next_timer()
            now = self._now
            while timers and timers[0][0] <= now:
                ready.append(heappop(timers)[2])
            for _ in range(len(ready)):
                call = ready.popleft()
                if not call._cancelled:
                    try:
                        call._context.run(call._callback, *call._args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        self.call_exception_handler({"message": "a callback failed", "exception": error})
            if self._stopping:
                return

    def _to_next_timer(self) -> None:
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heappop(timers)
        if not timers:
            raise Deadlock(f"at {self._now - BEGIN:.3f} s")
        self._now = max(self._now, timers[0][0])

    def _shuffle(self, ready: deque[Any]) -> None:
        """Let the tasks change places with each other."""
        places = [
            place
            for place, call in enumerate(ready)
            if not call._cancelled and type(getattr(call._callback, "__self__", None)) is _Task
        ]
        chance = self._random.random
        for count in range(len(places), 1, -1):
            one, other = places[count - 1], places[int(chance() * count)]
            ready[one], ready[other] = ready[other], ready[one]

    def _write_to_self(self) -> None:
        """Nobody calls from another thread."""


def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> _Task:
    return _Task(coroutine, loop=loop, **options)
