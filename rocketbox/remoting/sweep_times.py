"""When a client or server next looks at its connections: soon after something of them may be due, and not before.

What a sweep does is the connection's part, and when it may have to do something next, which each tells. What comes up
between two sweeps and may be due before the next one is told by :meth:`SweepTimes.by`; the others cost nothing.

Source: none; Apache RocketMQ looks each second (``NettyRemotingAbstract.scanResponseTable``).
"""

from __future__ import annotations

from math import inf
from typing import Final

import anyio

from rocketbox.clock import Clock

__all__ = ["IDLE_SWEEP_INTERVAL", "SweepTimes"]

IDLE_SWEEP_INTERVAL: Final = 1.0  # seconds between two looks at what has no deadline: half a frame, a busy peer
LONGEST: Final = 3600.0  # seconds between two sweeps, where nothing is due at all


class SweepTimes:
    """``await times.next(due)`` in the task that sweeps; ``times.by(deadline)`` from whoever has a short one."""

    def __init__(self, clock: Clock, interval: float) -> None:
        self._clock = clock
        self._interval = interval
        self.due = inf
        """When the next sweep is, so far."""
        self._sleep: anyio.CancelScope | None = None

    def by(self, deadline: float) -> None:
        """Have the sweep that comes at deadline or soon after it."""
        if deadline < self.due:
            self.due = deadline
            if self._sleep is not None:
                self._sleep.cancel()

    async def next(self, due: float = inf) -> float:
        """Return when it is time, and what time it is.

        That is at ``due``, or what :meth:`by` has said meanwhile, but at least ``sweep_interval`` from now.
        """
        now = self._clock.monotonic()
        earliest = now + self._interval
        self.due = min(self.due, due, now + LONGEST)
        try:
            while (left := max(self.due, earliest) - now) > 0:
                with anyio.CancelScope() as self._sleep:  # a time limit of an event's wait costs four times as much
                    await self._clock.sleep(left)
                now = self._clock.monotonic()
        finally:
            self._sleep = None
        self.due = inf  # the sweep finds out what is next, and :meth:`by` what comes up meanwhile
        return now
