"""The desk that answers, and what asks it. ``python -m starter_examples.punctuality UA AA ZZ``.

A listener answers a request by what it returns; what it raises is a ReplyError for who has asked.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from rocketbox import RocketBox, RocketMQTemplate, bean, rocketmq_listener
from starter_examples.flight_desk.data import read_airlines, read_departures

__all__ = ["Departures", "Punctuality", "UnknownCarrier", "app", "ask"]

app = RocketBox("punctuality")


@dataclass(frozen=True)
class Punctuality:
    """How late an airline's departures from New York were in January 2013."""

    airline: str
    departures: int
    mean_delay_minutes: float


class UnknownCarrier(Exception):  # noqa: N818 - what the caller is told
    """No airline has that code."""


class Departures:
    """The delays of all departures, by carrier."""

    def __init__(self) -> None:
        self.airlines = read_airlines()
        self.delays: dict[str, list[int]] = {}
        for departure in read_departures():
            if departure.delay_minutes is not None:
                self.delays.setdefault(departure.carrier, []).append(departure.delay_minutes)


@bean
def departures() -> Departures:
    return Departures()


@rocketmq_listener(topic="punctuality", consumer_group="statistics")
async def how_punctual(carrier: str, departures: Departures) -> Punctuality:
    delays = departures.delays.get(carrier)
    if delays is None:
        raise UnknownCarrier(f"nobody of the name {carrier!r} flew from New York")
    return Punctuality(departures.airlines[carrier], len(delays), round(statistics.fmean(delays), 1))


async def ask(template: RocketMQTemplate, carrier: str) -> Punctuality:
    """What the desk answers. Raises ReplyError when it has failed, ReplyTimeoutError when it says nothing."""
    return await template.send_and_receive("punctuality", carrier, Punctuality, keys=carrier, timeout="10s")
