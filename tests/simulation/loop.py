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

__all__ = ["BEGIN", "Deadlock", "SeededLoop", "hash_by_order"]

BEGIN = 1_000.0  # seconds: a time of 0 might be taken for "never"

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


class _Call(asyncio.TimerHandle):
    """What the loop is to call, made without asyncio's care for debugging."""

    __slots__ = ()
    _callback: Any
    _cancelled: bool
    _context: Context

    def __init__(self, when: float, callback: Any, args: Any, loop: Any, context: Context | None) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        self._scheduled = False


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
        call = _Call(0.0, callback, args, self, context)
        self._ready.append(call)
        return call

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> _Call:
        call = _Call(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._order), call))
        return call

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> _Call:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def _run_once(self) -> None:
        self.turns += 1
        ready, timers = self._ready, self._timers
        if len(ready) > 1:
            self._shuffle(ready)
        elif not ready:
            self._to_next_timer()
        while timers and timers[0][0] <= self._now:
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

    def _to_next_timer(self) -> None:
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heappop(timers)
        if not timers:
            raise Deadlock(f"at {self._now - BEGIN:.3f} s")
        self._now = max(self._now, timers[0][0])

    def _shuffle(self, ready: deque[Any]) -> None:
        places = [place for place, call in enumerate(ready) if _is_task(call)]
        if len(places) > 1:
            calls = [ready[place] for place in places]
            self._random.shuffle(calls)
            for place, call in zip(places, calls, strict=True):
                ready[place] = call

    def _write_to_self(self) -> None:
        """Nobody calls from another thread."""


def _is_task(call: Any) -> bool:
    return isinstance(getattr(call._callback, "__self__", None), asyncio.Task)


def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> _Task:
    return _Task(coroutine, loop=loop, **options)
