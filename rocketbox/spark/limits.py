"""How much of a backlog one micro-batch takes: rows and bytes at most, rows at least. Pure: no client, no Spark.

Source: Apache Spark 4.3.0, ``KafkaMicroBatchStream`` (rate limit in proportion to the backlog; ``minOffsetsPerTrigger``
with ``maxTriggerDelay``).
"""

from __future__ import annotations

from collections.abc import Mapping

from rocketbox.message import MessageQueue
from rocketbox.spark.offsets import QueueOffsets

__all__ = ["FewRows", "Turns", "limit_bytes", "limit_rows"]


class Turns:
    """For how many batches each queue had a backlog and did not move: where not all can move, who waits longest does.

    Otherwise queues that are never empty would keep others from being read, for ever.
    """

    def __init__(self) -> None:
        self._missed: dict[MessageQueue, int] = {}

    def missed(self, queue: MessageQueue) -> int:
        return self._missed.get(queue, 0)

    def note(
        self, start: Mapping[MessageQueue, int], latest: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int]
    ) -> None:
        """A batch was planned from ``start`` to ``ends``."""
        self._missed = {
            queue: self.missed(queue) + 1 for queue, end in latest.items() if end > start[queue] == ends[queue]
        }


def limit_rows(
    start: Mapping[MessageQueue, int], latest: Mapping[MessageQueue, int], most: int, turns: Turns
) -> QueueOffsets:
    """Ends between ``start`` and ``latest`` that add up to at most ``most`` rows, shared in proportion to the backlog.

    Each queue with a backlog moves by at least one row; where ``most`` does not allow that, they take ``turns``.
    """
    backlog = {queue: max(0, end - start[queue]) for queue, end in latest.items()}
    total = sum(backlog.values())
    if total <= most:
        return dict(latest)
    ends = {queue: start[queue] for queue in latest}
    waiting = sorted((queue for queue in latest if backlog[queue]), key=lambda queue: (backlog[queue], queue))
    if most < len(waiting):
        return ends | {queue: ends[queue] + 1 for queue in sorted(waiting, key=turns.missed, reverse=True)[:most]}
    left = shared = most - len(waiting)
    for queue in waiting:
        share = shared * (backlog[queue] - 1) // (total - len(waiting))
        ends[queue] += 1 + share
        left -= share
    for queue in reversed(waiting):  # what is left by rounding, to the largest
        extra = min(left, latest[queue] - ends[queue])
        ends[queue] += extra
        left -= extra
    return ends


def limit_bytes(
    start: Mapping[MessageQueue, int],
    latest: Mapping[MessageQueue, int],
    row_bytes: Mapping[MessageQueue, float],
    most: int,
    turns: Turns,
) -> QueueOffsets:
    """The same by bytes, a queue's rows being of ``row_bytes`` each; at least one row, however large it is.

    A row that is larger than ``most`` is a batch of its own.
    """
    backlog = {queue: max(0, end - start[queue]) for queue, end in latest.items()}
    total = sum(rows * row_bytes[queue] for queue, rows in backlog.items() if rows)
    if total <= most:
        return dict(latest)
    ends = {queue: start[queue] for queue in latest}
    waiting = sorted((queue for queue in latest if backlog[queue]), key=lambda queue: (backlog[queue], queue))
    left, first = float(most), 0
    if (one_of_each := sum(row_bytes[queue] for queue in waiting)) <= most:
        left, first = most - one_of_each, 1
    else:
        waiting.sort(key=turns.missed, reverse=True)
        if turns.missed(waiting[0]) and row_bytes[waiting[0]] > most:
            return ends | {waiting[0]: ends[waiting[0]] + 1}
    shared = left
    for queue in waiting:
        each = row_bytes[queue]
        share = max(1 - first, int(shared * (backlog[queue] * each / total) // each))
        rows = min(backlog[queue] - first, share, int(left // each))
        ends[queue] += first + rows
        left -= rows * each
    if not any(ends[queue] > start[queue] for queue in waiting):
        smallest = min(waiting, key=lambda queue: (row_bytes[queue], queue))
        ends[smallest] += 1
    return ends


class FewRows:
    """Whether a micro-batch is to wait for more rows: fewer than ``least``, and ``longest_wait`` seconds not over.

    The first one of a process does not wait.
    """

    def __init__(self, least: int, longest_wait: float) -> None:
        self._least = least
        self._longest_wait = longest_wait
        self._last: float | None = None

    def waits(self, rows: int, now: float) -> bool:
        """``now`` is a monotonic time. A batch of so many rows that does not wait counts as the last one."""
        if rows < self._least and self._last is not None and now - self._last < self._longest_wait:
            return True
        self._last = now
        return False
