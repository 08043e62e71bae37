"""When a member asks which queues it should have: at once when it must, soon when something changed, and regularly.

What a round does is in ``assignment``, how queues are shared in ``allocation``.

Source: Apache RocketMQ 5.x ``RebalanceService`` (the same in 4.9.7). Unlike there a round follows a change within
0.2 s, not 1 s, however shortly before the last one was: who takes queues over waits for their owner to hear of it, and
that wait has to be short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rocketbox.clock import Clock
from rocketbox.waiters import Waiter, make_waiter

__all__ = ["AFTER_A_CHANGE", "Rebalancer"]

AFTER_A_CHANGE = 0.2  # seconds between the starts of two rounds, however often the group changes
AFTER_A_FAILURE = 1.0  # seconds between them when one did not get all that it wanted


class Rebalancer:
    """Runs rounds of rebalancing: at once when it must, soon when something changed, and every 20 s in any case."""

    def __init__(self, begin_round: Callable[[], None], interval: float, clock: Clock) -> None:
        """``begin_round`` begins one round; what then fails asks for another one with :meth:`again`."""
        self._begin_round = begin_round
        self._interval = interval
        self._clock = clock
        self._began = float("-inf")  # the last round; on the monotonic clock, as the next line
        self._due = float("inf")
        self._ended = False
        self._awaited: list[Waiter] = []
        self._sleeper: Waiter | None = None

    def wake(self) -> None:
        """Something changed: have a round now, or 0.2 s after the start of the last one."""
        self._have_one_at(self._began + AFTER_A_CHANGE)

    def again(self, after: float = AFTER_A_FAILURE) -> None:
        """The last round did not get all that it wanted: have another one a second after its start, or ``after``."""
        self._have_one_at(self._began + max(after, AFTER_A_FAILURE))

    async def now(self) -> None:
        """Return when a round has begun after this call; it does not wait its turn."""
        if self._ended:
            return
        waiter = make_waiter()
        self._awaited.append(waiter)
        self._end_sleep()
        await waiter

    def end(self) -> None:
        """There will be no more rounds: who waits for one goes on."""
        self._ended = True
        _set_all(self._awaited)

    async def run(self) -> None:
        """Rounds for ever, the first one when something asks for it."""
        self._have_one_at(self._clock.monotonic() + self._interval)
        while True:
            await self._sleep_until_due()
            self._began = self._clock.monotonic()
            self._due = self._began + self._interval
            awaited, self._awaited = self._awaited, []
            try:
                self._begin_round()
            finally:
                _set_all(awaited)

    def _have_one_at(self, due: float) -> None:
        if due < self._due:
            self._due = due
            self._end_sleep()

    async def _sleep_until_due(self) -> None:
        while not self._awaited and (rest := self._due - self._clock.monotonic()) > 0:
            self._sleeper = make_waiter()
            try:
                with self._clock.move_on_after(rest) as time_is_up:
                    await self._sleeper
            finally:
                self._sleeper = None
            if time_is_up.cancelled_caught:
                return

    def _end_sleep(self) -> None:
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)


def _set_all(waiters: Iterable[Waiter]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
