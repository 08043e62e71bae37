"""What opening a store costs: after kill -9, when queues and index lack all that is in the log; after a clean stop."""

from __future__ import annotations

import multiprocessing
import os

import anyio

from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import FlushDiskType, StoreOptions
from rocketbox.protocol.stored_message import StoredMessage

__all__ = ["fill_and_die", "open_once"]

QUEUES = 8
NEVER = 10**9


async def _fill(directory: str, messages: int) -> None:
    options = StoreOptions(
        flush_disk_type=FlushDiskType.ASYNC_FLUSH,
        flush_interval_consume_queue=NEVER,  # so that the checkpoint covers nothing
        flush_interval_index=NEVER,
    )
    async with MessageStore(directory, options) as store:
        for number in range(messages):
            properties = b"UNIQ_KEY\x01%032X\x02KEYS\x01k%d\x02WAIT\x01true\x02TAGS\x01t%d\x02" % (
                number, number, number % 3,
            )  # fmt: skip
            end = store.put(StoredMessage("bench", number % QUEUES, b"x" * 1024, properties)).end_offset
            if number % 256 == 255 or number == messages - 1:
                await store.durable(end)
        os._exit(0)


def _die(directory: str, messages: int) -> None:
    anyio.run(_fill, directory, messages)


async def fill_and_die(directory: str, messages: int) -> None:
    """Have a process put messages of 1 KiB and end without stopping its store, none of them in queues or index."""
    process = multiprocessing.get_context("spawn").Process(target=_die, args=(directory, messages))
    process.start()
    await anyio.to_thread.run_sync(process.join)
    assert process.exitcode == 0


async def open_once(directory: str) -> int:
    """Open and stop it; returns how many records were read."""
    async with MessageStore(directory) as store:
        assert store.report is not None
        return store.report.records
