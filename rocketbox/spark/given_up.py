"""What of a batch that is given up can still go to the dead letters: its messages, read anew by its offsets.

The frame that the listener's function was given is not enough: it may lack columns that a dead letter needs, and where
a broker has deleted some of its messages meanwhile, or its topic has fewer queues to read, reading it fails each time.
So it is looked up what is still there; what is not is told with its offsets.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from rocketbox.client import Admin
from rocketbox.clock import Clock
from rocketbox.errors import NoRouteError
from rocketbox.message import MessageQueue
from rocketbox.spark.offsets import QueueRange, in_words
from rocketbox.spark.servers import Servers
from rocketbox.spark.taken_away import taken_of
from rocketbox.spark.worker_client import gather

__all__ = ["Remains", "frame_of", "remains_of"]

MOST_NAMED = 5  # queues whose lost offsets are told one by one


@dataclass(frozen=True)
class Remains:
    """The offsets of a batch: those whose messages are still there, and those that are gone."""

    there: tuple[QueueRange, ...]
    gone: tuple[QueueRange, ...]

    def gone_in_words(self) -> str:
        """What is gone, with numbers; nothing when all is there."""
        if not self.gone:
            return ""
        places = [
            f"{in_words(piece.queue)} {piece.start}" + (f" to {piece.end - 1}" if len(piece) > 1 else "")
            for piece in self.gone[:MOST_NAMED]
        ]
        if (more := len(self.gone) - MOST_NAMED) > 0:
            places.append(f"those of {more} more queues")
        count = sum(map(len, self.gone))
        return f"{count} of its offsets were deleted meanwhile, or taken away with their queues, and are lost: " + (
            ", ".join(places)
        )


async def remains_of(admin: Admin, ranges: Sequence[QueueRange], clock: Clock) -> Remains:
    """What can still be read of ranges. Raises what the client raises when a broker does not answer."""
    wanted = [piece.queue for piece in ranges if piece]

    async def of(topic: str) -> list[MessageQueue]:
        try:
            return await admin.queues(topic)
        except NoRouteError:  # it was deleted, or its brokers are away
            return []

    async def queues() -> list[MessageQueue]:
        found = await gather(of, {queue.topic for queue in wanted})
        return [queue for each in found.values() for queue in each]

    taken = frozenset(await taken_of(admin, wanted, queues, clock))
    ends = await gather(lambda queue: _ends(admin, queue), [queue for queue in wanted if queue not in taken])
    there: list[QueueRange] = []
    gone: list[QueueRange] = []
    for piece in filter(None, ranges):
        first, end = ends.get(piece.queue, (piece.end, piece.end))
        start = min(max(piece.start, first), piece.end)
        stop = max(start, min(piece.end, end))
        there.append(QueueRange(piece.queue, start, stop))
        gone += [QueueRange(piece.queue, piece.start, start), QueueRange(piece.queue, stop, piece.end)]
    return Remains(tuple(filter(None, there)), tuple(filter(None, gone)))


async def _ends(admin: Admin, queue: MessageQueue) -> tuple[int, int]:
    return await admin.min_offset(queue), await admin.max_offset(queue)


def frame_of(session: SparkSession, ranges: Sequence[QueueRange], servers: Servers, tags: str) -> DataFrame:
    """The messages of these ranges with all their columns; one that is deleted only now is left out."""
    assigned: dict[str, dict[str, list[int]]] = {}
    starts: dict[str, dict[str, dict[str, int]]] = {}
    ends: dict[str, dict[str, dict[str, int]]] = {}
    for piece in ranges:
        topic, broker, number = piece.queue.topic, piece.queue.broker_name, piece.queue.queue_id
        assigned.setdefault(topic, {}).setdefault(broker, []).append(number)
        for places, offset in ((starts, piece.start), (ends, piece.end)):
            places.setdefault(topic, {}).setdefault(broker, {})[str(number)] = offset
    return (
        session.read.format("rocketmq")
        .options(**servers.told())
        .option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .option("tags", tags)
        .option("failOnDataLoss", "false")
        .load()
    )
