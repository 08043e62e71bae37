"""Messages of one key keep their order. ``rocketbox run starter_examples.sending.ordered:app``."""

from __future__ import annotations

from dataclasses import dataclass

from rocketbox import ConsumeMode, RocketBox, RocketMQTemplate, rocketmq_listener

__all__ = ["Step", "app", "follow"]

app = RocketBox("ordered", scan=[__name__])
STEPS = ("placed", "paid", "packed", "sent")


@dataclass
class Step:
    order: int
    name: str


@rocketmq_listener(topic="steps", consumer_group="follow", consume_mode=ConsumeMode.ORDERLY)
async def follow(step: Step) -> None:
    """One step of an order after another; steps of other orders at the same time."""
    print("order", step.order, step.name, flush=True)


@app.on_startup
async def take_steps(template: RocketMQTemplate) -> None:
    for name in STEPS:
        for order in (1, 2, 3):
            # One queue for each order, and the next step when this one is stored.
            await template.send("steps", Step(order, name), hash_key=str(order))
