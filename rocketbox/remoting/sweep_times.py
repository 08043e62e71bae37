"""When a client or server next looks at its connections: soon after the nearest deadline, and now and then if none is.

What a sweep does is the connection's part. Requests call :meth:`SweepTimes.by` only when theirs may come before the
next sweep of an idle client, so the others cost nothing.

Source: none; Apache RocketMQ looks each second (``NettyRemotingAbstract.scanResponseTable``).
"""

from __future__ import annotations

from math import inf
from typing import Final

import anyio

from rocketbox.clock import Clock

__all__ = ["IDLE_SWEEP_INTERVAL", "SweepTimes"]

IDLE_SWEEP_INTERVAL: Final = 1.0  # seconds; what is silent or idle is noticed so late, deadlines are not


class SweepTimes:
    """``await times.next(due)`` in the task that sweeps; ``times.by(deadline)`` from whoever has a short one."""

    def __init__(self, clock: Clock, interval: float) -> None:
        self._clock = clock
        self._interval = interval
        self._due = inf
        self._sleep: anyio.CancelScope | None = None

    def by(self, deadline: float) -> None:
        """Have the sweep that comes at deadline or soon after it."""
        if deadline < self._due:
            self._due = deadline
            if self._sleep is not None:
                self._sleep.cancel()

    async def next(self, due: float = inf) -> float:
        """Return when it is time, and what time it is.

        That is at ``due``, but at least ``sweep_interval`` and at most IDLE_SWEEP_INTERVAL from now.
        """
        now = self._clock.monotonic()
        earliest = now + self._interval
        self._due = min(due, now + max(self._interval, IDLE_SWEEP_INTERVAL))
        try:
            while (left := max(self._due, earliest) - now) > 0:
                with anyio.CancelScope() as self._sleep:  # a time limit of an event's wait costs four times as much
                    await self._clock.sleep(left)
                now = self._clock.monotonic()
        finally:
            self._sleep = None
        return now
