"""Tells those who deliver parked messages of what arrives in their topics, and looks at all else but once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rocketbox.broker.store.dispatcher import Arrival, ArrivalCallback

__all__ = ["ParkedArrivals"]


class ParkedArrivals:
    """A callback of the store; ``takers`` by topic are each called with those of theirs, at least one."""

    def __init__(self, takers: Mapping[str, ArrivalCallback]) -> None:
        self._takers = takers

    def __call__(self, arrived: Sequence[Arrival]) -> None:
        takers = self._takers
        parked = [arrival for arrival in arrived if arrival[0] in takers]
        if parked:
            for topic, taker in takers.items():
                of_topic = [arrival for arrival in parked if arrival[0] == topic]
                if of_topic:
                    taker(of_topic)
