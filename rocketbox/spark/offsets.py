"""Offsets of a topic as Spark keeps them, and how a range of them becomes tasks. Pure: no client, no Spark.

An offset is ``{"topic": {"broker": {"0": 5}}}`` with sorted keys: Spark compares the text, and the same numbers in
another order would make it run empty batches for ever. A number is the next offset to read; ends are exclusive.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rocketbox.message import MessageQueue

__all__ = ["QueueOffsets", "QueueRange", "from_spark", "limit_rows", "pack", "parse_starting_offsets", "to_spark"]

QueueOffsets = dict[MessageQueue, int]


@dataclass(frozen=True)
class QueueRange:
    """Offsets ``start`` (included) to ``end`` (not included) of one queue."""

    queue: MessageQueue
    start: int
    end: int


def to_spark(offsets: Mapping[MessageQueue, int]) -> dict[str, dict[str, dict[str, int]]]:
    """The dictionary that goes into Spark's offset log, keys in one order."""
    result: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        result.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return result


def from_spark(value: Mapping[str, Mapping[str, Mapping[str, int]]]) -> QueueOffsets:
    """The offsets in Spark's dictionary."""
    return {
        MessageQueue(topic, broker, int(queue_id)): int(offset)
        for topic, brokers in value.items()
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    }


def parse_starting_offsets(
    text: str, option: str = "startingOffsets", words: Sequence[str] = ("earliest", "latest", "group")
) -> QueueOffsets:
    """Offsets written by a user as JSON in Spark's form; -2 is the beginning and -1 the end of a queue.

    Raises ValueError that says what is wrong, and which words could have stood there as well.
    """
    try:
        return from_spark(json.loads(text))
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            f"option {option} must be {', '.join(words)} or JSON such as "
            f'{{"topic": {{"broker-a": {{"0": 23}}}}}}; {text!r} is none of them ({error})'
        ) from error


def limit_rows(start: QueueOffsets, latest: QueueOffsets, most: int) -> QueueOffsets:
    """Ends between ``start`` and ``latest`` that add up to at most ``most`` rows, shared in proportion to the backlog.

    Each queue with a backlog moves by at least one row as long as ``most`` allows it, so that none starves.
    """
    backlog = {queue: max(0, end - start[queue]) for queue, end in latest.items()}
    total = sum(backlog.values())
    if total <= most:
        return dict(latest)
    ends = {queue: start[queue] for queue in latest}
    left = most
    # The smallest backlogs first: what a rounded-up share takes too much is taken from the largest.
    waiting = sorted((queue for queue in latest if backlog[queue]), key=lambda queue: (backlog[queue], queue))
    for queue in waiting:
        share = min(backlog[queue], max(1, most * backlog[queue] // total), left)
        ends[queue] += share
        left -= share
    for queue in reversed(waiting):
        extra = min(left, latest[queue] - ends[queue])
        ends[queue] += extra
        left -= extra
    return ends


def pack(ranges: Iterable[QueueRange], rows_per_task: int, most_tasks: int) -> list[list[QueueRange]]:
    """Divide ranges into at most ``most_tasks`` tasks of about ``rows_per_task`` rows, at least one if there are rows.

    Small queues share a task and large ones are split: a task costs some 25 ms, whatever it reads.
    """
    ranges = [piece for piece in ranges if piece.end > piece.start]
    total = sum(piece.end - piece.start for piece in ranges)
    if not total:
        return []
    tasks = max(1, min(most_tasks, -(-total // rows_per_task)))
    size = -(-total // tasks)
    packed: list[list[QueueRange]] = [[]]
    room = size
    for piece in ranges:
        start = piece.start
        while start < piece.end:
            if room == 0:
                packed.append([])
                room = size
            end = min(piece.end, start + room)
            packed[-1].append(QueueRange(piece.queue, start, end))
            room -= end - start
            start = end
    return packed
