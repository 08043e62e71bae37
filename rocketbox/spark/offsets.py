"""Ranges of offsets, and how they become the tasks of a job. Pure: no client, no Spark.

A number is the next offset to read; ends are exclusive. What Spark's checkpoint keeps is ``checkpoint``'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rocketbox.message import MessageQueue

__all__ = ["QueueOffsets", "QueueRange", "in_words", "pack"]

QueueOffsets = dict[MessageQueue, int]


@dataclass(frozen=True)
class QueueRange:
    """Offsets ``start`` (included) to ``end`` (not included) of one queue."""

    queue: MessageQueue
    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)


def in_words(queue: MessageQueue) -> str:
    """A queue as texts for people name it: ``orders broker-a/3``."""
    return f"{queue.topic} {queue.broker_name}/{queue.queue_id}"


def pack(ranges: Iterable[QueueRange], rows_per_task: int, most_tasks: int | None = None) -> list[list[QueueRange]]:
    """Divide ranges into tasks of about ``rows_per_task`` rows, at most ``most_tasks``, at least one if there are rows.

    Small queues share a task and large ones are split: a task costs some 25 ms, whatever it reads.
    """
    ranges = [piece for piece in ranges if piece]
    total = sum(map(len, ranges))
    if not total:
        return []
    tasks = -(-total // rows_per_task)
    if most_tasks is not None:
        tasks = max(1, min(most_tasks, tasks))
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
