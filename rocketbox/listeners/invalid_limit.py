"""The limit of what is dead-lettered because its payload cannot be read: so many a minute, then the group is paused.

What is held then has not been tried: when the group stops, or its queue goes to another member, nothing of its call
begins, and it never becomes a dead letter by that. While it is held no ``consume-timeout`` runs.

Source: own design (one bad deploy must not empty a backlog into the dead-letter queue).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import anyio

from rocketbox.client.workers import Handling, in_hand
from rocketbox.clock import Clock

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

    async def pass_one(self) -> bool:
        """Return True when one more may be dead-lettered, and False where it goes back to its queue before that: all
        messages of its call that have not begun do then."""
        if self._admit():
            return True
        before, handling = self._given_back, in_hand()
        if self._abandoned or (handling is not None and not handling.may_begin()):
            return False
        with self._held(), self._waiting(handling):
            while True:
                await self._changed.wait()
                gone = handling is not None and not handling.may_begin()
                if gone or self._abandoned or self._given_back != before:
                    return False
                if self._admit():
                    return True

    def open(self) -> None:
        """Let the held ones go on, and count anew."""
        self.closed = False
        self._times.clear()
        self._wake()

    def give_back(self) -> None:
        """What is held now goes back to its queue, from the loop's next turn on; what comes then is held as before."""
        self._given_back += 1
        self._wake()

    def abandon(self) -> None:
        """The container stops: what is held goes back to its queue."""
        self._abandoned = True
        self._wake()

    @contextmanager
    def _waiting(self, handling: Handling | None) -> Iterator[None]:
        """It waits in the block for what its handler needs, and is woken when its queue goes to another member."""
        if handling is None or handling.queue is None:
            yield
            return
        closed = handling.queue.on_closed
        closed.append(self._wake)
        handling.wait_in_line(self._clock.monotonic())
        try:
            yield
        finally:
            handling.leave_line(self._clock.monotonic())
            closed.remove(self._wake)

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
