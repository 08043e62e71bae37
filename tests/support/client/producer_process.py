"""A producer in a process of its own that never ends its transactions. It is there to be killed.

``python -m tests.support.client.producer_process NAME_SERVER GROUP TOPIC BOOK BODY...`` begins a transaction for each
body and prints ``begun``. The work of every second one was done by then: its id is a line of the file BOOK.
"""

from __future__ import annotations

import os
import sys
from contextlib import AsyncExitStack

import anyio

from rocketbox.client import Producer
from rocketbox.message import LocalTransactionState, Message, MessageExt


async def cannot_tell(message: MessageExt) -> LocalTransactionState:
    return LocalTransactionState.UNKNOWN


def write_down(book: str, done: list[str]) -> None:
    with open(book, "w") as lines:
        lines.writelines(f"{each}\n" for each in done)
        lines.flush()
        os.fsync(lines.fileno())


async def begin(*arguments: str) -> None:
    name_server, group, topic, book, *bodies = arguments
    async with (
        Producer(group, name_server=name_server, transaction_checker=cannot_tell) as producer,
        AsyncExitStack() as blocks,
    ):
        begun = [
            await blocks.enter_async_context(producer.transaction(Message(topic, body.encode()))) for body in bodies
        ]
        write_down(book, [transaction.transaction_id for transaction in begun[::2]])
        print("begun", flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(begin, *sys.argv[1:])
