"""A clock that moves only when a test says so."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import anyio.lowlevel

from rocketbox.clock import RealClock


class VirtualClock(RealClock):
    """Begins at 1,700,000,000,000 ms; :meth:`advance` moves it and wakes who slept so long."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self.now = 0.0
        self._sleepers: list[tuple[float, anyio.Event]] = []
        self._scopes: list[tuple[float, anyio.CancelScope]] = []

    def time_ms(self) -> int:
        return 1_700_000_000_000 + round(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        event = anyio.Event()
        self._sleepers.append((self.now + seconds, event))
        await event.wait()

    @contextmanager
    def move_on_after(self, seconds: float) -> Iterator[anyio.CancelScope]:
        with anyio.CancelScope() as scope:
            entry = (self.now + seconds, scope)
            self._scopes.append(entry)
            try:
                yield scope
            finally:
                self._scopes.remove(entry)

    async def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass, and all that is due then run."""
        self.now += seconds
        for due, event in list(self._sleepers):
            if due <= self.now:
                self._sleepers.remove((due, event))
                event.set()
        for due, scope in list(self._scopes):
            if due <= self.now:
                scope.cancel()
        await settle()


async def settle() -> None:
    """Let every task that can run do so."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
