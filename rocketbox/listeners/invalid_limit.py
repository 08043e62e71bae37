"""The limit of what is dead-lettered because its payload cannot be read: so many a minute, then the group is paused.

Source: own design (one bad deploy must not empty a backlog into the dead-letter queue).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import timedelta

import anyio

from rocketbox.clock import Clock
from rocketbox.errors import RetryLater

__all__ = ["InvalidLimit"]

LIMIT_WINDOW = 60.0  # seconds over which invalid payloads are counted


class InvalidLimit:
    """Counts what is to be dead-lettered; above ``limit`` a minute it closes, and that is held until it opens.

    One bad deploy must not empty a whole backlog into the dead-letter queue. ``on_closed`` is told once per closing.
    """

    def __init__(self, limit: int, clock: Clock, on_closed: Callable[[], None]) -> None:
        self.limit = limit
        self.closed = False
        self._clock = clock
        self._on_closed = on_closed
        self._times: deque[float] = deque()
        self._changed = anyio.Event()
        self._abandoned = False

    async def pass_one(self) -> None:
        """Return when one more may be dead-lettered; RetryLater when the container stops before that."""
        while not self._admit():
            if not self._abandoned:
                await self._changed.wait()
            if self._abandoned:
                raise RetryLater(timedelta(seconds=10))

    def open(self) -> None:
        """Let the held ones go on, and count anew."""
        self.closed = False
        self._times.clear()
        self._wake()

    def abandon(self) -> None:
        """The container stops: what is held goes back to the broker."""
        self._abandoned = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _admit(self) -> bool:
        if self.closed:
            return False
        now = self._clock.monotonic()
        while self._times and self._times[0] <= now - LIMIT_WINDOW:
            self._times.popleft()
        if len(self._times) >= self.limit:
            self.closed = True
            self._on_closed()
            return False
        self._times.append(now)
        return True
