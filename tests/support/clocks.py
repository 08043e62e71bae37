"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sized

import anyio
import anyio.lowlevel

from rocketbox.testing import virtual_clock

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


class VirtualClock(virtual_clock.VirtualClock):
    """Time for tests: :meth:`advance` moves it from timer to timer and lets tasks run in between.

    Where nobody waits, ``now`` (seconds) may be set as well. ``settle`` lets the tasks run: :func:`idle` is faster.
    ``wall_is_ahead`` (seconds) sets the time of day alone, as somebody who sets a clock does, or a machine that sleeps.
    """

    def __init__(self, seed: int = 0, *, settle: Callable[[], Awaitable[None]] = settle) -> None:
        super().__init__(START_MS, seed, begin=0.0)
        self.wall_is_ahead = 0.0
        self._settle = settle

    def time_ms(self) -> int:
        return super().time_ms() + round(self.wall_is_ahead * 1000)

    @property
    def now(self) -> float:
        return self._now

    @now.setter
    def now(self, seconds: float) -> None:
        self._now = seconds

    async def advance(self, seconds: float) -> None:
        """Move the time by so much; what is due on the way runs at its own time."""
        end = self._now + seconds
        await self._settle()
        while (due := self.next_timer(end)) is not None:
            self.move_to(due)
            await self._settle()
        self.move_to(end)
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
                due = self.next_timer()
                if due is None:
                    raise AssertionError("all tasks wait for ever")
                self.move_to(due)
