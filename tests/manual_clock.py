"""A clock that stands still until a test moves it: waits of hours take no time, and end in the order of their ends."""

from __future__ import annotations

import heapq
import itertools
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import anyio
from anyio.lowlevel import checkpoint

__all__ = ["ManualClock", "settle"]

START_MS = 1_700_000_000_000


async def settle(turns: int = 60) -> None:
    """Let everything run that can run without time passing."""
    for _ in range(turns):
        await checkpoint()


class ManualClock:
    """A Clock of which the test says how late it is."""

    def __init__(self, seed: int = 1) -> None:
        self.random = random.Random(seed)
        self._now = 0.0
        self._order = itertools.count()
        self._waits: list[tuple[float, int, Callable[[], object]]] = []

    def time_ms(self) -> int:
        return START_MS + int(self._now * 1000)

    def monotonic(self) -> float:
        return self._now

    def uuid(self) -> str:
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await checkpoint()
            return
        due = anyio.Event()
        self._call_after(seconds, due.set)
        await due.wait()

    @contextmanager
    def _scope(self, seconds: float) -> Iterator[anyio.CancelScope]:
        with anyio.CancelScope() as scope:
            if seconds <= 0:
                scope.cancel()
            else:
                self._call_after(seconds, scope.cancel)
            yield scope

    def move_on_after(self, seconds: float) -> AbstractContextManager[anyio.CancelScope]:
        return self._scope(seconds)

    @contextmanager
    def deadline(self, seconds: float) -> Iterator[anyio.CancelScope]:
        with self._scope(seconds) as scope:
            yield scope
        if scope.cancelled_caught:
            raise TimeoutError

    def _call_after(self, seconds: float, callback: Callable[[], object]) -> None:
        heapq.heappush(self._waits, (self._now + seconds, next(self._order), callback))

    async def advance(self, seconds: float) -> None:
        """Let seconds pass: each wait that ends in them ends at its time, and what follows from it happens."""
        await settle()
        end = self._now + seconds
        while self._waits and self._waits[0][0] <= end:
            due, _, callback = heapq.heappop(self._waits)
            self._now = max(self._now, due)
            callback()
            await settle()
        self._now = end
        await settle()
