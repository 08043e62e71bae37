"""A consumer in a process of its own whose handlers never end. It is there to be killed.

``python -m tests.support.client.consumer_process NAME_SERVER GROUP TOPIC`` prints ``ready`` when it is a member of the
group, and then ``begun BODY`` when a handler has a message. A new group begins where its queues end, with ``first``
behind TOPIC where they begin.
"""

from __future__ import annotations

import sys

import anyio

from rocketbox.client import ConsumerOptions, PushConsumer
from rocketbox.message import ConsumeFromWhere, MessageExt


async def consume(name_server: str, group: str, topic: str, where: str) -> None:
    is_member = anyio.Event()

    async def hang(batch: list[MessageExt]) -> None:
        await is_member.wait()
        for message in batch:
            print("begun", message.body.decode(), flush=True)
        await anyio.sleep_forever()

    options = ConsumerOptions(consume_from_where=ConsumeFromWhere[f"{where.upper()}_OFFSET"])
    async with PushConsumer(group, name_server=name_server, options=options) as consumer:
        await consumer.subscribe(topic, "*", hang)
        print("ready", flush=True)
        is_member.set()
        await anyio.sleep_forever()


if __name__ == "__main__":
    _, name_server, group, topic, where = [*sys.argv, "last"][:5]
    anyio.run(consume, name_server, group, topic, where)
