"""A look at a message of a queue as it is stored, by who wants to know when it was, or how large, not what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketbox.errors import RemoteProtocolError
from rocketbox.message import MessageQueue

if TYPE_CHECKING:
    from rocketbox.client import Admin, PullResult  # options are read without loading the client

__all__ = ["look_at", "row_bytes"]

SAMPLE = 32  # messages that a queue's row size is reckoned from


async def look_at(admin: Admin, queue: MessageQueue, offset: int) -> PullResult | None:
    """What a pull for the message at an offset brings; None where the record there is damaged.

    That one is read as a row with its error, so it must not end a stream that only looks at it.
    """
    try:
        return await admin.pull(queue, offset, 1, decompress=False)
    except RemoteProtocolError:
        return None


async def row_bytes(admin: Admin, queue: MessageQueue, offset: int) -> float:
    """The mean size of the next messages of a queue, as they are stored, whole or damaged.

    Where the first of them were deleted, of those behind: what is there may be all that is left.
    """
    result = await admin.pull_records(queue, offset, SAMPLE)
    if not result.records and result.next_begin_offset > offset:
        offset = result.next_begin_offset
        result = await admin.pull_records(queue, offset, SAMPLE)
    covered = min(SAMPLE, result.next_begin_offset - offset)
    return len(result.records) / max(1, covered) or 1.0
