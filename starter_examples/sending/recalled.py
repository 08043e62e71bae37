"""Messages that wait for their time, and one that is recalled before it. ``rocketbox run
starter_examples.sending.recalled:app``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from rocketbox import RocketBox, RocketMQTemplate, rocketmq_listener

__all__ = ["Order", "app", "remind", "take_order"]

app = RocketBox("recalled", scan=[__name__])


@dataclass
class Order:
    number: int


@rocketmq_listener(topic="reminders", consumer_group="reminders")
async def remind(order: Order) -> None:
    print("order", order.number, "is not paid yet", flush=True)


async def take_order(order: Order, template: RocketMQTemplate) -> str | None:
    """Have somebody reminded of an order that is not paid; what the reminder is recalled by."""
    result = await template.send("reminders", order, delay=timedelta(seconds=4), keys=str(order.number))
    return result.recall_handle


@app.on_startup
async def take_orders(template: RocketMQTemplate) -> None:
    await take_order(Order(1), template)
    handle = await take_order(Order(2), template)
    await template.recall(handle)  # it is paid: when this returns, the reminder never comes
    print("order 2 is paid", flush=True)
