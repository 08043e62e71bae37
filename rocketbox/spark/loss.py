"""Offsets that should be read and are gone: an error, or a gap that is told and gone over.

A broker that has just started may not have its queues ready, and a replica may lag: nothing counts as gone before it
was asked for ``SETTLE`` seconds.
"""

from __future__ import annotations

import logging

from rocketbox.errors import RocketBoxError
from rocketbox.message import MessageQueue
from rocketbox.spark.offsets import in_words

__all__ = ["DELETED_BY_NOW", "SETTLE", "SETTLE_PAUSE", "DataLossError", "data_loss"]

_log = logging.getLogger(__name__)

SETTLE, SETTLE_PAUSE = 5.0, 0.5  # seconds
DELETED_BY_NOW = 30.0  # seconds after which a broker's queues begin where its log does: Apache's cleans both each 10 s


class DataLossError(RocketBoxError):
    """Offsets ``wanted`` to ``end`` (not included) should be read, and the queue goes on at ``found`` only."""

    def __init__(self, queue: MessageQueue, wanted: int, end: int, *, found: int) -> None:
        self.queue = queue
        self.wanted = wanted
        self.end = end
        self.found = found
        super().__init__(
            f"{gap_in_words(queue, wanted, end, found=found)}: messages were deleted before they were read. "
            "failOnDataLoss=false (fail_on_data_loss of a listener) goes on behind them; a longer retention of the "
            "broker, or more of the reader, keeps it from coming again"
        )


def gap_in_words(queue: MessageQueue, wanted: int, end: int, *, found: int) -> str:
    where = f"its first message is {found}" if found >= end else f"the queue ends at {found}"
    last = f" to {end - 1}" if end - 1 > wanted else ""
    return f"{in_words(queue)}: offsets {wanted}{last} ({end - wanted} in all) are gone, {where}"


def data_loss(fail: bool, queue: MessageQueue, wanted: int, end: int, *, found: int) -> None:
    """Raise DataLossError, or tell the gap where loss is allowed."""
    if fail:
        raise DataLossError(queue, wanted, end, found=found)
    _log.warning("%s: skipped, as failOnDataLoss=false allows", gap_in_words(queue, wanted, end, found=found))
