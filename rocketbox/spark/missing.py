"""Offsets of a queue for which a broker has no message, though nothing was filtered: told once for each queue.

They are no loss that a reader could fail for: a broker whose store was repaired, or a topic that is compacted, goes on
without them for good.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from rocketbox.message import MessageQueue
from rocketbox.spark.offsets import in_words
from rocketbox.spark.record_columns import plain_offsets

__all__ = ["MissingOffsets"]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Gap:
    count: int
    first: int
    last: int


class MissingOffsets:
    """Counts them, for one task."""

    def __init__(self) -> None:
        self._gaps: dict[MessageQueue, _Gap] = {}

    def note(self, queue: MessageQueue, data: bytes, starts: Sequence[int], start: int, end: int) -> None:
        """A pull from ``start``, which goes on at ``end`` or behind, has brought these records."""
        offsets = plain_offsets(data, starts)
        if offsets is None:
            return
        there = {offset for offset in offsets if start <= offset < end}
        if not (count := end - start - len(there)):
            return
        first = next(offset for offset in range(start, end) if offset not in there)
        last = next(offset for offset in range(end - 1, start - 1, -1) if offset not in there)
        gap = self._gaps.setdefault(queue, _Gap(0, first, last))
        gap.count, gap.first, gap.last = gap.count + count, min(gap.first, first), max(gap.last, last)

    def tell(self) -> None:
        for queue, gap in sorted(self._gaps.items()):
            _log.warning(
                "%s has no message at %d of its offsets, from %d to %d: damaged and taken out, or compacted",
                in_words(queue), gap.count, gap.first, gap.last,
            )  # fmt: skip
