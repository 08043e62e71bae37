"""The limit of what is dead-lettered because its payload cannot be read: so many a minute, then the group is paused.

Source: own design (one bad deploy must not empty a backlog into the dead-letter queue).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

import anyio

from rocketbox.clock import Clock
from rocketbox.errors import RetryLater

__all__ = ["InvalidLimit"]

LIMIT_WINDOW = 60.0  # seconds over which invalid payloads are counted


class InvalidLimit:
    """Counts what is to be dead-lettered; above ``limit`` a minute it closes, and that is held until it opens.

    One bad deploy must not empty a whole backlog into the dead-letter queue. ``on_closed`` is told once per closing;
    ``held()`` stands around the time in which a payload is held, in the task of its call.
    """

    def __init__(
        self,
        limit: int,
        clock: Clock,
        on_closed: Callable[[], None],
        held: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.limit = limit
        self.closed = False
        self._clock = clock
        self._on_closed = on_closed
        self._held = held
        self._times: deque[float] = deque()
        self._changed = anyio.Event()
        self._given_back = 0  # how often what was held then went back
        self._abandoned = False

    async def pass_one(self) -> None:
        """Return when one more may be dead-lettered; RetryLater when it goes back to the broker before that."""
        before = self._given_back
        while not self._admit():
            if not self._abandoned:
                with self._held():
                    await self._changed.wait()
            if self._abandoned or self._given_back != before:
                raise RetryLater(timedelta(seconds=10))

    def open(self) -> None:
        """Let the held ones go on, and count anew."""
        self.closed = False
        self._times.clear()
        self._wake()

    def give_back(self) -> None:
        """What is held now goes back to the broker, from the loop's next turn on; what comes then is held as before."""
        self._given_back += 1
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
