"""A consumer in a process of its own whose handlers never end. It is there to be killed.

``python -m tests.support.client.consumer_process NAME_SERVER GROUP TOPIC`` prints ``ready`` when it is a member of the
group.
"""

from __future__ import annotations

import sys

import anyio

from rocketbox.client import PushConsumer
from rocketbox.message import MessageExt


async def hang(batch: list[MessageExt]) -> None:
    await anyio.sleep_forever()


async def consume(name_server: str, group: str, topic: str) -> None:
    async with PushConsumer(group, name_server=name_server) as consumer:
        await consumer.subscribe(topic, "*", hang)
        print("ready", flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    _, name_server, group, topic = sys.argv
    anyio.run(consume, name_server, group, topic)
