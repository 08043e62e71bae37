"""When a member asks which queues it should have: at once when it must, soon when something changed, and regularly.

What a round does is in ``assignment``, how queues are shared in ``allocation``.

Source: Apache RocketMQ 5.x ``RebalanceService`` (the same in 4.9.7).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

from rocketbox.clock import Clock
from rocketbox.errors import RocketBoxError
from rocketbox.handoff import Waiter, make_waiter

__all__ = ["Rebalancer"]

_log = logging.getLogger(__name__)

UNBALANCED_INTERVAL = 1.0  # seconds until the next round when one did not get all that it wanted
SHORTEST_INTERVAL = 1.0  # seconds between the starts of two rounds, however often they are asked for


class Rebalancer:
    """Runs rounds of rebalancing: at once when it must, soon when something changed, and every 20 s in any case."""

    def __init__(self, balance: Callable[[], Awaitable[bool]], interval: float, clock: Clock) -> None:
        """``balance`` is one round; it returns whether this member now has all it should have."""
        self._balance = balance
        self._interval = interval
        self._clock = clock
        self._wanted = False
        self._ended = False
        self._awaited: list[Waiter] = []
        self._sleeper: Waiter | None = None

    def wake(self) -> None:
        """Have a round soon: now, or a second after the start of the last one."""
        self._wanted = True
        self._end_sleep()

    async def now(self) -> None:
        """Return when a round that began after this call has ended, whatever came out; it does not wait its turn."""
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
        await self._sleep(self._interval)
        while True:
            started = self._clock.monotonic()
            self._wanted = False
            awaited, self._awaited = self._awaited, []
            balanced = False
            try:
                balanced = await self._balance()
            except RocketBoxError as error:
                _log.warning("a rebalance failed, it is tried again: %s", error)
            finally:
                _set_all(awaited)
            await self._sleep(self._interval if balanced else UNBALANCED_INTERVAL)
            rest = started + SHORTEST_INTERVAL - self._clock.monotonic()
            if rest > 0:
                self._wanted = False  # what asked is served by the round after this pause
                await self._sleep(rest, for_waiters_only=True)

    async def _sleep(self, seconds: float, *, for_waiters_only: bool = False) -> None:
        end = self._clock.monotonic() + seconds
        while not self._awaited and (for_waiters_only or not self._wanted):
            rest = end - self._clock.monotonic()
            if rest <= 0:
                return
            self._sleeper = make_waiter()
            try:
                with self._clock.move_on_after(rest):
                    await self._sleeper
            finally:
                self._sleeper = None

    def _end_sleep(self) -> None:
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)


def _set_all(waiters: Iterable[Waiter]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
