"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sized
from contextlib import contextmanager

import anyio
import anyio.lowlevel

__all__ = ["VirtualClock", "idle", "settle"]

START_MS = 1_700_000_000_000


async def settle(turns: int = 60) -> None:
    """Let the other tasks run on until they wait for something."""
    for _ in range(turns):
        await anyio.lowlevel.checkpoint()


_idle: list[object] = []


async def idle() -> None:
    """Let the other tasks run on until each waits for a timer or an event. Only under asyncio, without threads."""
    ready: Sized = getattr(asyncio.get_running_loop(), "_ready")  # noqa: B009 - a detail of asyncio's own loop
    _idle.append(ready)
    try:
        for _ in range(100_000):
            if len(ready) < len(_idle):  # only others that wait for the same are left
                return
            await anyio.lowlevel.checkpoint()
    finally:
        _idle.pop()
    raise AssertionError("tasks run on for ever")


class VirtualClock:
    """Time for tests: :meth:`advance` moves it from timer to timer and lets tasks run in between.

    Where nobody waits, ``now`` (seconds) may be set as well. ``settle`` lets the tasks run: :func:`idle` is faster.
    """

    def __init__(self, seed: int = 0, *, settle: Callable[[], Awaitable[None]] = settle) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self._settle = settle
        self._order = itertools.count()
        self._timers: list[tuple[float, int, Callable[[], object]]] = []

    def time_ms(self) -> int:
        return START_MS + round(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await anyio.lowlevel.checkpoint()
            return
        woken = anyio.Event()
        timer = self._call_at(self.now + seconds, woken.set)
        try:
            await woken.wait()
        finally:
            self._forget(timer)

    @contextmanager
    def move_on_after(self, seconds: float) -> Iterator[anyio.CancelScope]:
        with anyio.CancelScope() as scope:
            if seconds <= 0:
                scope.cancel()
            timer = self._call_at(self.now + seconds, scope.cancel)
            try:
                yield scope
            finally:
                self._forget(timer)

    @contextmanager
    def deadline(self, seconds: float) -> Iterator[anyio.CancelScope]:
        with self.move_on_after(seconds) as scope:
            yield scope
        if scope.cancelled_caught:
            raise TimeoutError

    def uuid(self) -> str:
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    async def advance(self, seconds: float) -> None:
        """Move the time by so much; what is due on the way runs at its own time."""
        end = self.now + seconds
        await self._settle()
        while self._timers and self._timers[0][0] <= end:
            when, _, call = heapq.heappop(self._timers)
            self.now = max(self.now, when)
            call()
            if not self._timers or self._timers[0][0] > self.now:
                await self._settle()
        self.now = end
        await self._settle()

    async def run(self, function: Callable[[], Awaitable[None]]) -> None:
        """Return when the function has ended; the time goes on to the next timer whenever all tasks wait."""
        ended = False

        async def run() -> None:
            nonlocal ended
            await function()
            ended = True

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            while True:
                await self._settle()
                if ended:
                    return
                if not self._timers:
                    raise AssertionError("all tasks wait for ever")
                self.now = max(self.now, self._timers[0][0])
                while self._timers and self._timers[0][0] <= self.now:
                    heapq.heappop(self._timers)[2]()

    def _call_at(self, when: float, call: Callable[[], object]) -> tuple[float, int, Callable[[], object]]:
        timer = (when, next(self._order), call)
        heapq.heappush(self._timers, timer)
        return timer

    def _forget(self, timer: tuple[float, int, Callable[[], object]]) -> None:
        if timer in self._timers:
            self._timers.remove(timer)
            heapq.heapify(self._timers)
