"""Transactions of a simulation: clients that begin them, what their work came to, and what consumers may see of it.

Each is sent once, without a further try, and its work is noted here as in a database before a broker is told. So a
message may be readable at most once, and only when its work was done before; and it must be, however the client or the
broker ended meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

import anyio

from rocketbox.client import Producer
from rocketbox.errors import RocketBoxError
from rocketbox.message import LocalTransactionState, Message, MessageExt
from rocketbox.protocol.codes import TRANS_CHECK_MAX_TIME_TOPIC
from tests.simulation.arrivals import COMMITTED, Arrivals
from tests.simulation.cluster import CHECK_EVERY, MOST_CHECKS, SimulatedBroker
from tests.simulation.history import AT_ONCE, History

__all__ = ["Transactions"]

COMMIT, ROLLBACK, UNKNOWN = (
    LocalTransactionState.COMMIT,
    LocalTransactionState.ROLLBACK,
    LocalTransactionState.UNKNOWN,
)
LONGEST_UNKNOWN = 20.0  # seconds until a database says how a work that was interrupted has ended
CHECKED_WITHIN = 3 * CHECK_EVERY + AT_ONCE  # seconds behind the last fault in which one is checked that is due
GIVEN_UP_WITHIN = (MOST_CHECKS + 3) * CHECK_EVERY


class _Undone(Exception):  # noqa: N818 - the work's own
    """The work was not done."""


@dataclass
class _Work:
    """What a transaction goes with. ``state`` counts from ``since`` on; ``stored`` is when its half was acknowledged,
    ``ended`` when the broker was told of the end, or 0."""

    body: str
    state: LocalTransactionState = UNKNOWN
    since: float = 0.0
    stored: float = 0.0
    ended: float = 0.0
    broker: str = ""


class Transactions:
    """``quiet_at``: from then on there are no faults, and works are known at once."""

    def __init__(self, chance: random.Random, history: History, arrivals: Arrivals, quiet_at: float) -> None:
        self._random = chance
        self._history = history
        self._arrivals = arrivals
        self._quiet_at = quiet_at
        self._works: dict[str, _Work] = {}
        arrivals.told[COMMITTED] = self._arrived
        arrivals.told[TRANS_CHECK_MAX_TIME_TOPIC] = self._given_up

    # --- clients -----------------------------------------------------------------------------------------------------

    async def run(
        self, producer: Producer, stream: str, is_on: Callable[[], bool],
        pause: Callable[[float, float], Coroutine[None, None, None]],
    ) -> None:  # fmt: skip
        """Begin and end transactions."""
        number = 0
        while is_on():
            work = self._works[f"{stream}-{number}"] = _Work(f"{stream}-{number}")
            number += 1
            way = self._random.random()
            try:
                if way < 0.1:
                    with anyio.CancelScope() as scope:  # the client says nothing, and the broker has to ask
                        await self._one(producer, work, way, scope)
                else:
                    await self._one(producer, work, way)
            except _Undone:
                pass
            except RocketBoxError as error:  # there is no half that somebody knows of, and the work is not done
                work.state, work.since = ROLLBACK, self._history.now()
                self._history.trace(f"{work.body} failed: {type(error).__name__}")
            await pause(3.0, 20.0)

    async def _one(self, producer: Producer, work: _Work, way: float, scope: anyio.CancelScope | None = None) -> None:
        now = self._history.now
        async with producer.transaction(Message(COMMITTED, work.body.encode())) as transaction:
            work.broker, work.stored = transaction.result.broker_name, now()
            self._history.trace(f"half of {work.body} {work.broker}")
            await asyncio.sleep(self._random.uniform(0.0, 2.0) if way < 0.5 else 0.0)
            done = self._random.random() < 0.6
            if way < 0.3 and now() < self._quiet_at:
                if way < 0.25 or now() > self._quiet_at - GIVEN_UP_WITHIN:  # else it is never known
                    work.state = COMMIT if done else ROLLBACK
                    work.since = now() + self._random.uniform(0.0, LONGEST_UNKNOWN)
                if scope is not None:
                    scope.cancel()
                    await asyncio.sleep(0)
                transaction.unknown()
                return
            work.state, work.since = (COMMIT if done else ROLLBACK), now()
            if not done:
                raise _Undone
            work.ended = now()

    def check(self, message: MessageExt) -> LocalTransactionState:
        """The checker of all producers: they have one database."""
        work = self._works[message.body.decode()]
        state = work.state if self._history.now() >= work.since else UNKNOWN
        self._history.trace(f"checked {work.body} {state.name}")
        return state

    # --- what must never be ------------------------------------------------------------------------------------------

    def _arrived(self, body: str, broker: SimulatedBroker) -> None:
        work = self._works[body]
        if work.state is not COMMIT or self._history.now() < work.since:
            self._history.violate(f"{body} can be read on {broker.name}, and its work was not done: {work}")
        elif (count := len(self._committed(body))) > 1:
            self._history.violate(f"{body} was committed {count} times: {self._committed(body)}")

    def _given_up(self, body: str, broker: SimulatedBroker) -> None:
        if self._works[body].state is not UNKNOWN:
            self._history.violate(f"{body} was given up by {broker.name}: {self._works[body]}")

    def _committed(self, body: str) -> list[object]:
        return [each for each in self._arrivals.of(body) if self._works[body].state is COMMIT]

    def check_all(self, *, at_rest: bool) -> None:
        """Whether all that was done can be read in time; in the end no transaction is open."""
        for work in self._works.values():
            if work.state is COMMIT and work.stored and not self._history.is_lost(work.broker, work.stored):
                self._check_done(work, at_rest=at_rest)

    def _check_done(self, work: _Work, *, at_rest: bool) -> None:
        told = work.ended + AT_ONCE if work.ended else max(work.since, work.stored) + CHECKED_WITHIN
        due, why = self._history.kept_until(told, {work.broker, COMMITTED})
        if why != "nothing":
            due += CHECKED_WITHIN
        came = self._arrivals.of(work.body)
        if came and came[0].at <= due:
            return
        if came or at_rest or self._history.now() > due:
            when = f"at {came[0].at:.3f} s" if came else "never"
            self._history.violate(
                f"{work} was done, and came {when}: due at {due:.3f} s, and what may have kept it until then is: {why}"
            )

    def check_open(self, broker: SimulatedBroker) -> None:
        """At rest none is open."""
        if broker.running is not None and len(broker.running.halves):
            self._history.violate(f"{len(broker.running.halves)} transactions are open on {broker.name}")
