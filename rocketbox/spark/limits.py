"""How much of a backlog one micro-batch takes: rows and bytes at most, rows at least. Pure: no client, no Spark.

Source: Apache Spark 4.3.0, ``KafkaMicroBatchStream`` (rate limit in proportion to the backlog; ``minOffsetsPerTrigger``
with ``maxTriggerDelay``).
"""

from __future__ import annotations

from collections.abc import Mapping

from rocketbox.message import MessageQueue
from rocketbox.spark.offsets import QueueOffsets

__all__ = ["FewRows", "limit_bytes", "limit_rows"]


def limit_rows(start: Mapping[MessageQueue, int], latest: Mapping[MessageQueue, int], most: int) -> QueueOffsets:
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


def limit_bytes(
    start: Mapping[MessageQueue, int],
    latest: Mapping[MessageQueue, int],
    row_bytes: Mapping[MessageQueue, float],
    most: int,
) -> QueueOffsets:
    """The same by bytes, a queue's rows being of ``row_bytes`` each; at least one row, however large it is.

    Where one row of each queue fits, each moves by at least one; else those with the smallest backlogs go first.
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
