"""Brokers that a producer stays away from for a while, because they did not answer, or slowly.

A producer has one of two memories. Its own short one, the default: a broker that failed is left alone, the longer the
more often it failed, and then tried with one message, while the others go on elsewhere. And Apache's table
(``rocketmq.producer.send-latency-fault-enable``), which knows of every send how long it took.

Where all brokers of a topic are to be avoided none is: a message has to go somewhere.

Source: Apache RocketMQ 5.x ``MQFaultStrategy``, ``LatencyFaultToleranceImpl`` (without its detector, which is off by
default); the short memory is our own.
"""

from __future__ import annotations

import bisect
from collections.abc import Sized
from typing import Protocol

__all__ = ["BrokerFaults", "LatencyTable", "ShortMemory"]

QUICK = 0.5  # seconds; a failure that takes longer costs a send its share of the time
AWAY_AFTER_QUICK_FAILURE = (1.0, 2.0)  # seconds, after the first one and at most: each further one doubles the time
AWAY_AFTER_SLOW_FAILURE = (5.0, 30.0)
HOLD_DURING_A_TRIAL = 3.0  # seconds in which one message tries a broker again, and no other one does

# Apache's table: from so many seconds on, so many seconds away.
LATENCIES = (0.05, 0.1, 0.55, 1.8, 3.0, 5.0, 15.0)
AWAY = (0.0, 0.0, 2.0, 5.0, 6.0, 10.0, 30.0)
LATENCY_OF_A_FAILURE = 10.0


class BrokerFaults(Protocol):
    """What is known of brokers, by name; times are the clock's monotonic seconds."""

    measures: bool
    """Whether it wants to know how long each send took."""

    @property
    def known(self) -> Sized:
        """The brokers of which there is something to be known; asked for with each send, so it is no method."""

    def avoids(self, broker_name: str, now: float) -> bool:
        """Whether messages should go elsewhere now."""

    def chosen(self, broker_name: str, now: float) -> None:
        """A message goes there now."""

    def succeeded(self, broker_name: str, now: float, seconds: float) -> None:
        """A broker has acknowledged; ``seconds`` is 0 where nobody measures."""

    def failed(self, broker_name: str, now: float, seconds: float) -> None:
        """A send there came to nothing, after so long, that may come to something elsewhere."""


class _Fault:
    __slots__ = ("away", "on_trial", "until")

    def __init__(self) -> None:
        self.away = 0.0
        self.until = 0.0
        self.on_trial = True


class ShortMemory:
    """Brokers that failed, until one of their sends succeeds."""

    measures = False

    def __init__(self) -> None:
        self.known: dict[str, _Fault] = {}

    def avoids(self, broker_name: str, now: float) -> bool:
        fault = self.known.get(broker_name)
        return fault is not None and now < fault.until

    def chosen(self, broker_name: str, now: float) -> None:
        fault = self.known.get(broker_name)
        if fault is not None and fault.until <= now:
            fault.on_trial = True
            fault.until = now + HOLD_DURING_A_TRIAL

    def succeeded(self, broker_name: str, now: float, seconds: float) -> None:
        self.known.pop(broker_name, None)

    def failed(self, broker_name: str, now: float, seconds: float) -> None:
        fault = self.known.setdefault(broker_name, _Fault())
        if not fault.on_trial:
            return  # one of many that were under way when it failed: all of them are one failure
        first, most = AWAY_AFTER_QUICK_FAILURE if seconds < QUICK else AWAY_AFTER_SLOW_FAILURE
        fault.away = min(max(2 * fault.away, first), most)
        fault.until = now + fault.away
        fault.on_trial = False


class LatencyTable:
    """Apache's fault table: until when each broker is unavailable, by how long its sends took."""

    measures = True

    def __init__(self) -> None:
        self.known: dict[str, float] = {}

    def avoids(self, broker_name: str, now: float) -> bool:
        return now < self.known.get(broker_name, 0.0)

    def chosen(self, broker_name: str, now: float) -> None:
        pass

    def succeeded(self, broker_name: str, now: float, seconds: float) -> None:
        self._update(broker_name, now, seconds)

    def failed(self, broker_name: str, now: float, seconds: float) -> None:
        self._update(broker_name, now, LATENCY_OF_A_FAILURE)

    def _update(self, broker_name: str, now: float, seconds: float) -> None:
        at = bisect.bisect_right(LATENCIES, seconds) - 1
        if at >= 0 and AWAY[at]:
            self.known[broker_name] = max(now + AWAY[at], self.known.get(broker_name, 0.0))
