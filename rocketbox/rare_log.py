"""A log that events which may come in thousands do not fill: one line of a kind, then how many more there were.

Source: own design; Apache RocketMQ 5.x logs each with its stack trace.
"""

from __future__ import annotations

import logging
import math
from typing import Any

__all__ = ["RareLog"]

PERIOD = 10.0  # seconds between two lines of one kind


class RareLog:
    """A log in which one kind of event has a line at once and then one in ``period`` seconds, with the number left out.

    Kinds are few and ours: each is kept, so nothing that a peer chooses may be part of one.
    """

    def __init__(self, logger: logging.Logger, period: float = PERIOD) -> None:
        self._logger = logger
        self._period = period
        self._kinds: dict[Any, tuple[float, int]] = {}  # time of the last line, left out since

    def tell(
        self, level: int, now: float, kind: Any, text: str, *values: object, error: BaseException | None = None
    ) -> bool:
        """Log text % values, unless a line of this kind was written a moment ago; ``now`` is a monotonic time.

        Whether it was logged comes back.
        """
        told, left_out = self._kinds.get(kind, (-math.inf, 0))
        if now - told < self._period:
            self._kinds[kind] = (told, left_out + 1)
            return False
        self._kinds[kind] = (now, 0)
        if left_out:
            text, values = f"{text} (and %d more like it)", (*values, left_out)
        self._logger.log(level, text, *values, exc_info=error)
        return True

    def over(self, kind: Any) -> None:
        """It is well again: the next event of this kind has a line at once."""
        self._kinds.pop(kind, None)
