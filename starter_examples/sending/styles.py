"""The ways to send, from the safest to the cheapest. ``rocketbox run starter_examples.sending.styles:app``."""

from __future__ import annotations

from pydantic import BaseModel

from rocketbox import MessageExt, RocketBox, RocketMQTemplate, rocketmq_listener

__all__ = ["Departure", "app", "archive", "on_departure"]

app = RocketBox("styles", scan=[__name__])


class Departure(BaseModel):
    flight: str


@rocketmq_listener(topic="departures", consumer_group="desk", selector_expression="UA || AA")
async def on_departure(message: MessageExt, template: RocketMQTemplate) -> None:
    """Sends each message on as it came: body, tag, keys, headers."""
    await template.send("archive", message)


@rocketmq_listener(topic="archive", consumer_group="archive")
async def archive(departure: Departure, message: MessageExt) -> None:
    print("archived", message.tag, departure.flight, "of", message.properties.get("airport", "nowhere"), flush=True)


@app.on_startup
async def send_in_every_way(template: RocketMQTemplate) -> None:
    # Stored when this returns; tag, keys and headers go with it.
    await template.send("departures:UA", Departure(flight="UA1545"), keys="UA1545", headers={"airport": "JFK"})
    # Each on its own, many under way at once.
    await template.send_many("departures:AA", [Departure(flight=f"AA{number}") for number in (1141, 1142)])
    # Written, and no answer awaited: it may be lost.
    await template.send_one_way("departures:AA", {"flight": "AA1143"})
    # What no listener of this service selects.
    await template.send("departures:B6", b'{"flight": "B6725"}')
