"""A service of two groups: what the one answers to a departure is an alert to the other. For tests of the harness."""

from __future__ import annotations

__all__ = ["DESK_AND_TOWER"]

DESK_AND_TOWER = """
from rocketbox import Reject, RocketBox, bean, rocketmq_listener, send_to
from rocketbox.client import Credentials, CredentialsProvider

app = RocketBox("desk", scan=[__name__])
seen = []

@rocketmq_listener(topic="departures", consumer_group="desk")
@send_to("alerts")
async def depart(flight: str) -> str:
    if flight == "bad":
        raise Reject("no flight")
    return flight

@rocketmq_listener(topic="alerts", consumer_group="tower")
async def alert(flight: str) -> None:
    seen.append(flight)
"""
