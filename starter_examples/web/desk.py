"""What both web applications send to."""

from __future__ import annotations

from pydantic import BaseModel

from rocketbox import RocketBox, rocketmq_listener

__all__ = ["Departure", "app", "on_departure"]

app = RocketBox("web-desk", scan=[__name__])


class Departure(BaseModel):
    flight: str


@rocketmq_listener(topic="departures", consumer_group="desk")
async def on_departure(departure: Departure) -> None:
    print("departed", departure.flight, flush=True)
