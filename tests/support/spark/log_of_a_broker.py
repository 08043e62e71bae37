"""A broker's queues in memory, which answer pulls as brokers do, and a clock on which nobody waits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

import anyio

from rocketbox.client import Admin, PulledRecords, PullStatus
from rocketbox.clock import RealClock
from rocketbox.errors import RocketBoxError
from rocketbox.message import MessageQueue
from rocketbox.protocol.codes import MASTER_ID
from rocketbox.protocol.stored_message import StoredMessage, encode_stored_message

__all__ = ["QUEUE", "LogOfABroker", "Queue", "StillClock", "record"]

QUEUE = MessageQueue("orders", "broker-a", 0)
SCANNED = 800  # units of a queue that a broker looks at for one pull with a filter


class StillClock(RealClock):
    """Sleeps without waiting, and notes for how long it should have been."""

    def __init__(self) -> None:
        super().__init__(Random(1))
        self.slept = 0.0

    def monotonic(self) -> float:
        return self.slept

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds
        await anyio.lowlevel.checkpoint()


def record(offset: int, size: int = 10, tag: str = "A", queue_id: int = 0) -> bytes:
    return encode_stored_message(
        StoredMessage(
            topic="orders",
            queue_id=queue_id,
            body=b"%d " % offset + b"x" * size,
            properties=b"TAGS\x01%s\x02" % tag.encode(),
            queue_offset=offset,
            born_timestamp_ms=1_795_000_000_000,
            store_timestamp_ms=1_795_000_000_000,
        )
    )


@dataclass
class Queue:
    """The messages of a queue: its offsets from ``first`` to before ``end`` have one or, as gaps, none."""

    records: Mapping[int, bytes]
    first: int
    end: int
    tags: Mapping[int, str] = field(default_factory=dict)
    """Of messages that do not have the tag A."""

    def __post_init__(self) -> None:
        self.offsets = sorted(self.records)


class LogOfABroker(Admin):
    """Answers pulls from queues. ``failures`` are raised first, one for each pull."""

    def __init__(
        self,
        queues: Mapping[MessageQueue, Queue],
        failures: Iterable[RocketBoxError] = (),
        *,
        most: int = 32,
        most_bytes: int = 256 << 10,
        scanned: int = SCANNED,
        chance: Random | None = None,
    ) -> None:
        self.logs = dict(queues)
        self.failures = list(failures)
        self.most = most
        self.most_bytes = most_bytes
        self.scanned = scanned
        self.chance = chance
        self.pulls: list[tuple[MessageQueue, int]] = []
        self.asked_for: list[int] = []
        self.brokers: list[int] = []
        self.suggests = MASTER_ID
        self.in_flight = self.most_in_flight = self.messages = 0

    async def queues(self, topic: str) -> list[MessageQueue]:
        return [queue for queue in self.logs if queue.topic == topic]

    async def min_offset(self, queue: MessageQueue) -> int:
        return self.logs[queue].first

    async def max_offset(self, queue: MessageQueue) -> int:
        return self.logs[queue].end

    async def pull_records(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int = 32,
        expression: str = "*",
        *,
        broker_id: int = MASTER_ID,
    ) -> PulledRecords:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            for _ in range(self.chance.randrange(6) if self.chance else 1):
                await anyio.lowlevel.checkpoint()
            self.brokers.append(broker_id)
            if self.failures:
                raise self.failures.pop(0)
            self.pulls.append((queue, offset))
            self.asked_for.append(max_messages)
            return self._answer(self.logs[queue], offset, max_messages, expression)
        finally:
            self.in_flight -= 1

    def _answer(self, queue: Queue, offset: int, max_messages: int, expression: str) -> PulledRecords:
        bounds = (queue.first, queue.end)
        if offset < queue.first:
            return PulledRecords(PullStatus.OFFSET_ILLEGAL, queue.first, *bounds)
        if offset >= queue.end:
            status = PullStatus.NO_NEW_MSG if offset == queue.end else PullStatus.OFFSET_ILLEGAL
            return PulledRecords(status, queue.end, *bounds)
        most = min(self.most, max_messages)
        scanned_to = min(queue.end, offset + (self.scanned if expression != "*" else most))
        found: list[bytes] = []
        size, reached = 0, scanned_to
        index = bisect_left(queue.offsets, offset)
        for number in queue.offsets[index:]:
            if number >= scanned_to:
                break
            if expression != "*" and queue.tags.get(number, "A") not in expression:
                continue
            data = queue.records[number]
            if found and (len(found) == most or size + len(data) > self.most_bytes):
                reached = number
                break
            found.append(data)
            size += len(data)
        if not found:
            return PulledRecords(PullStatus.NO_MATCHED_MSG, reached, *bounds)
        self.messages += len(found)
        return PulledRecords(PullStatus.FOUND, reached, *bounds, b"".join(found), self.suggests)
