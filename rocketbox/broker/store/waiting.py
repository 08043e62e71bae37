"""Senders who wait until the commit log is safe up to where their message ends.

When that is, and what prevents it, is left to ``log_writer``; here is who is told, in order, or that it takes too
long.

Source: Apache RocketMQ 5.5 ``CommitLog.GroupCommitRequest``, ``FlushDiskWatcher``.
"""

from __future__ import annotations

import logging
from bisect import bisect_right, insort
from collections.abc import Callable
from operator import itemgetter

from rocketbox.clock import Clock

__all__ = ["DurableCallback", "DurableWaiters"]

_log = logging.getLogger(__name__)

DurableCallback = Callable[[BaseException | None], None]
"""Called with None when it is durable, else with what prevents it."""


class DurableWaiters:
    """Callbacks by the end of their message; each is called once, with a TimeoutError after ``timeout_ms``."""

    def __bool__(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def __init__(self, clock: Clock, timeout_ms: int) -> None:
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._waiting: list[tuple[int, float, DurableCallback]] = []  # (end, deadline, callback) by end

    def add(self, end_offset: int, callback: DurableCallback) -> None:
        entry = (end_offset, self._clock.monotonic() + self._timeout_ms / 1000, callback)
        if not self._waiting or self._waiting[-1][0] <= end_offset:
            self._waiting.append(entry)
        else:
            insort(self._waiting, entry, key=itemgetter(0))

    def release(self, end: int) -> None:
        """Tell those whose message ends at or before ``end`` that it is durable."""
        waiting = self._waiting
        if waiting and waiting[-1][0] <= end:
            self._waiting = []
            ready = waiting
        else:
            count = 0
            while count < len(waiting) and waiting[count][0] <= end:
                count += 1
            ready = waiting[:count]
            del waiting[:count]
        for _, _, callback in ready:
            _call(callback, None)

    async def sweep(self) -> None:
        """Tell those who wait too long for a sync that does not end; runs until it is cancelled."""
        interval = self._timeout_ms / 10_000
        while True:
            await self._clock.sleep(interval)
            now = self._clock.monotonic()
            late = [entry for entry in self._waiting if entry[1] <= now]
            if late:
                self._waiting = [entry for entry in self._waiting if entry[1] > now]
                for _, _, callback in late:
                    _call(callback, TimeoutError(f"no sync within {self._timeout_ms} ms"))

    def fail(self, error: BaseException, behind: int = -1) -> None:
        """Tell those whose message ends behind an offset (all, if none is given) that it will never be durable."""
        waiting = self._waiting
        kept = bisect_right(waiting, behind, key=itemgetter(0))
        self._waiting = waiting[:kept]
        for _, _, callback in waiting[kept:]:
            _call(callback, error)


def _call(callback: DurableCallback, error: BaseException | None) -> None:
    try:
        callback(error)
    except Exception:
        _log.exception("telling a sender of its flush failed")
