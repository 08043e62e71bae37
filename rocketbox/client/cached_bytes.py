"""The bytes of all messages that were pulled and are not consumed yet, of all consumers that share one budget.

Beside the limits of each queue and topic, which alone would let a process with many queues hold gigabytes. A queue that
holds nothing may always have one message, so that slow handlers of one group stop no other.

Source: own design; Apache RocketMQ 5.x has limits per queue and topic only.
"""

from __future__ import annotations

from collections.abc import Callable

from rocketbox.client.options import MAX_CACHED_BYTES

__all__ = ["CachedBytes"]


class CachedBytes:
    """``total`` bytes are held of ``limit``; what waits for room is woken when there is some."""

    def __init__(self, limit: int = MAX_CACHED_BYTES) -> None:
        self.limit = limit
        self.total = 0
        self._waiting: dict[object, Callable[[], None]] = {}

    @property
    def full(self) -> bool:
        return self.total >= self.limit

    def add(self, size: int) -> None:
        self.total += size

    def free(self, size: int) -> None:
        self.total -= size
        if self._waiting and self.total < self.limit:
            for wake in list(self._waiting.values()):
                wake()

    def wait(self, who: object, wake: Callable[[], None]) -> None:
        """Call wake whenever there is room, until :meth:`leave`."""
        self._waiting[who] = wake

    def leave(self, who: object) -> None:
        self._waiting.pop(who, None)
