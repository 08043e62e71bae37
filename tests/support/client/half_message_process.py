"""A producer in a process of its own that stores a half message and neither commits it nor rolls it back.

``python -m tests.support.client.half_message_process NAME_SERVER GROUP TOPIC BODY`` prints the id of the transaction as
soon as the broker has the half message. It is there to be killed.
"""

from __future__ import annotations

import sys

import anyio

from rocketbox.client import Producer, ProducerOptions
from rocketbox.message import LocalTransactionState, Message, MessageExt

SEND = ProducerOptions(send_message_timeout=12.0)  # a busy broker on two cores may need it


async def cannot_tell(message: MessageExt) -> LocalTransactionState:
    return LocalTransactionState.UNKNOWN


async def begin(name_server: str, group: str, topic: str, body: str) -> None:
    async with (
        Producer(group, name_server=name_server, options=SEND, transaction_checker=cannot_tell) as producer,
        producer.transaction(Message(topic, body.encode(), tag="A", keys=["k"])) as transaction,
    ):
        print(transaction.transaction_id, flush=True)
        await anyio.sleep_forever()  # the work


if __name__ == "__main__":
    _, name_server, group, topic, body = sys.argv
    anyio.run(begin, name_server, group, topic, body)
