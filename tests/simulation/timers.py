"""Timer messages of a simulation: clients that send and recall them, and when they may come.

Each is sent once, without a further try. It may come once, and a second time only where its broker was killed soon
after; never before its time, and never when a recall has succeeded.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from rocketbox.client import Producer
from rocketbox.errors import RocketBoxError
from rocketbox.message import Message
from tests.simulation.arrivals import TIMED, Arrivals
from tests.simulation.cluster import SimulatedBroker, epoch_ms
from tests.simulation.history import AT_ONCE, History

__all__ = ["Timers"]

SHORTEST_MS, LONGEST_MS = 51, 90_001
ROUNDING = 0.002  # seconds: times of day are whole milliseconds
COPIED = 12.0  # seconds in which it is on the disk what was delivered: ten, and the writing


@dataclass
class _Timed:
    """``due`` is its time (seconds); ``exact`` whether it was sent with a time of day. ``jumps`` are those of the
    clock of its broker when it was stored, ``ahead`` whether that was wrong then."""

    body: str
    sent: float
    due: float
    exact: bool
    stored: float = 0.0
    broker: str = ""
    jumps: int = 0
    ahead: bool = False
    recalled: float = 0.0
    recalling: bool = False


class Timers:
    """``brokers`` by name."""

    def __init__(
        self, chance: random.Random, history: History, arrivals: Arrivals, brokers: dict[str, SimulatedBroker]
    ) -> None:
        self._random = chance
        self._history = history
        self._arrivals = arrivals
        self._brokers = brokers
        self._all: dict[str, _Timed] = {}
        arrivals.told[TIMED] = self._arrived

    # --- clients -----------------------------------------------------------------------------------------------------

    async def run(
        self, producer: Producer, stream: str, is_on: Callable[[], bool],
        pause: Callable[[float, float], Coroutine[None, None, None]],
    ) -> None:  # fmt: skip
        """Send messages for later, and recall some of them."""
        number = 0
        recalls: list[asyncio.Task[None]] = []
        while is_on():
            delay_ms = round(SHORTEST_MS * math.exp(self._random.uniform(0.0, math.log(LONGEST_MS / SHORTEST_MS))))
            delay_ms += delay_ms % 1000 == 0  # none that is a level
            now, exact = self._history.now(), self._random.random() < 0.4
            timed = _Timed(f"{stream}-{number}", now, now + delay_ms / 1000, exact)
            self._all[timed.body] = timed
            number += 1
            if exact:
                at = datetime.fromtimestamp((epoch_ms() + delay_ms) / 1000, UTC)
                message = Message(TIMED, timed.body.encode(), deliver_at=at)
            else:
                message = Message(TIMED, timed.body.encode(), delay=timedelta(milliseconds=delay_ms))
            try:
                result = await producer.send(message)
            except RocketBoxError as error:
                self._history.trace(f"{timed.body} failed: {type(error).__name__}")
            else:
                clock = self._brokers[result.broker_name].clock
                timed.jumps, timed.ahead = clock.jumps, clock.ahead_ms != 0
                timed.broker, timed.stored = result.broker_name, self._history.now()
                self._history.trace(f"waits {timed.body} {timed.broker} until {timed.due:.3f} s")
                if self._random.random() < 0.3:
                    recalls.append(asyncio.create_task(self._recall(producer, timed, result.recall_handle)))
            await pause(2.0, 15.0)
        await asyncio.gather(*recalls)

    async def _recall(self, producer: Producer, timed: _Timed, handle: str | None) -> None:
        await asyncio.sleep(self._random.random() * (timed.due - timed.sent) * 1.1)
        timed.recalling = True
        try:
            await producer.recall(handle)
        except RocketBoxError as error:
            self._history.trace(f"recall of {timed.body} failed: {type(error).__name__} {error}")
            if self._is_calm(timed) and self._history.now() < timed.due - AT_ONCE:
                self._history.violate(f"{timed} was not recalled in time, and no fault explains it: {error}")
            return
        timed.recalled = self._history.now()
        self._history.trace(f"recalled {timed.body}")
        if came := self._arrivals.of(timed.body):
            self._history.violate(f"{timed} was recalled, and had come before: {came}")

    # --- what must never be ------------------------------------------------------------------------------------------

    def _arrived(self, body: str, broker: SimulatedBroker) -> None:
        timed, now = self._all[body], self._history.now()
        before = self._arrivals.of(body)[:-1]
        if timed.recalled and not self._history.is_lost(timed.broker, timed.recalled):
            self._history.violate(f"{timed} was recalled, and comes")
        if now < timed.due - ROUNDING and not self._has_other_time(timed, broker):
            self._history.violate(f"{timed} comes before its time")
        if before and not any(
            before[-1].at <= killed <= before[-1].at + COPIED for killed in self._history.kills[broker.name]
        ):
            self._history.violate(f"{timed} comes again, first at {before[-1].at:.3f} s, and no kill explains it")

    def _has_other_time(self, timed: _Timed, broker: SimulatedBroker) -> bool:
        """Whether the broker's clock says something else than its sender's."""
        return not timed.stored or broker.clock.jumps != timed.jumps or (timed.exact and timed.ahead)

    def _is_calm(self, timed: _Timed) -> bool:
        return self._history.is_calm(timed.sent, {timed.broker, TIMED}) and not self._has_other_time(
            timed, self._brokers[timed.broker]
        )

    def check_all(self, *, at_rest: bool) -> None:
        """Whether all that were stored, and not recalled, have come in time."""
        for timed in self._all.values():
            if timed.stored and not timed.recalling and not self._history.is_lost(timed.broker, timed.stored):
                self._check_came(timed, at_rest=at_rest)

    def _check_came(self, timed: _Timed, *, at_rest: bool) -> None:
        has_other = self._has_other_time(timed, self._brokers[timed.broker])
        if has_other and (timed.exact or not at_rest):
            return
        # A delay begins when the message is stored, which is some time between the send and its answer.
        latest = max(timed.due, timed.stored) if timed.exact else timed.due + timed.stored - timed.sent
        due, why = self._history.kept_until(latest + AT_ONCE, {timed.broker, TIMED})
        came = self._arrivals.of(timed.body)
        if came and (has_other or came[0].at <= due):
            return
        if self._history.now() > due and (at_rest or self._history.now() > due + AT_ONCE):
            when = f"at {came[0].at:.3f} s" if came else "never"
            self._history.violate(
                f"{timed} came {when}: due at {due:.3f} s, and what may have kept it until then is: {why}"
            )
