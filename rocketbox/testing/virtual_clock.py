"""The clock of a harness: its time stands still until somebody moves it, from one timer to the next.

What moves it, and when it may, is ``pace``'s part. Sleeping and deadlines are timers in one heap; one that nobody needs
any more stays there, passed over, until its time comes.
"""

from __future__ import annotations

import heapq
import itertools
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf

import anyio
import anyio.lowlevel

from rocketbox.clock import chances_of

__all__ = ["VirtualClock"]

BEGIN = 1_000.0  # seconds on the monotonic clock: a time of 0 might be taken for "never"
DIGITS = 6  # behind the point of a second: sums of seconds are not exact, and 1499.9999999999995 is 1500
SAME_TIME = 1e-6  # seconds: 0.1 and 1.237 after each other are 1.3370000000000002, and whoever waits for 1.337 sees it
MOST_DEAD = 1_000  # timers that nobody waits for, before the heap is made anew without them


class _Timer:
    """What is called when its time comes, unless nobody waits for it any more."""

    __slots__ = ("call", "when")

    def __init__(self, when: float, call: Callable[[], object]) -> None:
        self.when = when
        self.call: Callable[[], object] | None = call


class VirtualClock:
    """A :class:`~rocketbox.clock.Clock` whose time is moved by :meth:`move_to`. Its chances are those of a seed.

    It is ``start_ms`` on the wall and ``begin`` seconds on the monotonic clock when it is made.
    """

    def __init__(self, start_ms: int, seed: int = 0, *, begin: float = BEGIN) -> None:
        self.random = chances_of(seed)
        self._start_ms = start_ms
        self._now = self._made = self._counted = begin
        self._order = itertools.count()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._dead = 0

    def time_ms(self) -> int:
        return self._start_ms + round((self._now - self._made) * 1000)

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await anyio.lowlevel.checkpoint()
            return
        woken = anyio.Event()
        timer = self.call_at(self._now + seconds, woken.set)
        try:
            await woken.wait()
        finally:
            self._forget(timer)

    @contextmanager
    def move_on_after(self, seconds: float) -> Iterator[anyio.CancelScope]:
        with anyio.CancelScope() as scope:
            if seconds <= 0:
                scope.cancel()
            timer = self.call_at(self._now + seconds, scope.cancel)
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

    def secret(self) -> str:
        """The same in each run with the same seed, as all that this clock gives."""
        return f"{self.random.getrandbits(256):064x}"

    # --- for who moves it --------------------------------------------------------------------------------------------

    @property
    def passed(self) -> float:
        """Seconds since the clock was made, or since :meth:`count_anew`, to the microsecond."""
        return round(self._now - self._counted, DIGITS)

    def count_anew(self) -> None:
        """Let what has passed begin at 0 again; the time of day goes on."""
        self._counted = self._now

    def call_at(self, when: float, call: Callable[[], object]) -> _Timer:
        """Call it as soon as it is ``when`` on the monotonic clock, before any task has a step."""
        timer = _Timer(when, call)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def next_timer(self, until: float = inf) -> float | None:
        """When the next thing is due, on the monotonic clock; None: nobody waits for any time up to ``until``.

        Sums of seconds are not exact, so what is due at the same time but for that is due by ``until``.
        """
        timers = self._timers
        while timers and timers[0][2].call is None:
            heapq.heappop(timers)
            self._dead -= 1
        return timers[0][0] if timers and timers[0][0] <= until + SAME_TIME else None

    def move_to(self, when: float) -> None:
        """Make it ``when``, which is not behind the next timer, and call what is due."""
        self._now = max(self._now, when)
        while (due := self.next_timer()) is not None and due <= self._now:
            timer = heapq.heappop(self._timers)[2]
            call, timer.call = timer.call, None
            assert call is not None
            call()

    def _forget(self, timer: _Timer) -> None:
        if timer.call is None:
            return
        timer.call = None
        self._dead += 1
        if self._dead > MOST_DEAD:
            self._timers = [entry for entry in self._timers if entry[2].call is not None]
            heapq.heapify(self._timers)
            self._dead = 0
