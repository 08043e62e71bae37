"""Many messages in few requests, and many in one call. ``rocketbox run starter_examples.sending.batches:app``."""

from __future__ import annotations

from dataclasses import dataclass

from rocketbox import RocketBox, RocketMQTemplate, rocketmq_listener

__all__ = ["Reading", "add_up", "app"]

app = RocketBox("batches", scan=[__name__])


@dataclass
class Reading:
    sensor: int
    value: float


@rocketmq_listener(topic="readings", consumer_group="sums", consume_message_batch_max_size=50)
async def add_up(readings: list[Reading]) -> None:
    print("read", len(readings), "in one call, at most 50", flush=True)


@app.on_startup
async def measure(template: RocketMQTemplate) -> None:
    readings = [Reading(sensor, sensor / 10) for sensor in range(200)]
    results = await template.send_batch("readings", readings)  # one request: all are stored, or none
    print("stored", len(results), "in", len({result.queue for result in results}), "queue", flush=True)
