"""Senders who wait until the commit log is safe up to where their message ends.

When that is, and what prevents it, is left to ``log_writer``; here is who is told, in order, or that it takes too
long. Those of one group commit who are told by the same function are told together: a call for each of a hundred
answers cost more than writing them (benchmark "java client: send, 256 in flight").

Source: Apache RocketMQ 5.5 ``CommitLog.GroupCommitRequest``, ``FlushDiskWatcher``.
"""

from __future__ import annotations

import logging
from bisect import bisect_right, insort
from collections.abc import Callable
from itertools import groupby
from math import inf
from operator import itemgetter
from typing import Any

from rocketbox.clock import Clock

__all__ = ["DurableCallback", "DurableWaiters", "Told", "call_each"]

_log = logging.getLogger(__name__)

DurableCallback = Callable[[BaseException | None], None]
"""Called with None when it is durable, else with what prevents it."""

Told = Callable[[list[Any], BaseException | None], None]
"""Called with what was given for each message, in the order of the log, and None or what prevents it."""

_Entry = tuple[int, float, Told, Any]  # end, deadline, who is told, what
_told_of: Callable[[_Entry], Told] = itemgetter(2)


class DurableWaiters:
    """Who waits, by the end of their message; each is told once, with a TimeoutError after ``timeout_ms``."""

    def __init__(self, clock: Clock, timeout_ms: int) -> None:
        self._clock = clock
        self._monotonic = clock.monotonic
        self._timeout_ms = timeout_ms
        self._timeout = timeout_ms / 1000
        self._waiting: list[_Entry] = []  # by end

    def __bool__(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def add(self, told: Told, end_offset: int, what: Any) -> None:
        """Have ``told`` called with ``what``, and with what else it is to be told then."""
        entry = (end_offset, self._monotonic() + self._timeout, told, what)
        if not self._waiting or self._waiting[-1][0] <= end_offset:
            self._waiting.append(entry)
        else:
            insort(self._waiting, entry, key=itemgetter(0))

    def release(self, end: int) -> None:
        """Tell those whose message ends at or before ``end`` that it is durable."""
        waiting = self._waiting
        if not waiting:
            return
        if waiting[-1][0] <= end:
            self._waiting = []
            ready = waiting
        else:
            count = bisect_right(waiting, end, key=itemgetter(0))
            ready = waiting[:count]
            del waiting[:count]
        _tell(ready, None)

    async def sweep(self) -> None:
        """Tell those who wait too long for a sync that does not end; runs until it is cancelled."""
        interval = self._timeout / 10
        while True:
            # Who comes during the sleep waits for the whole time as well.
            next_deadline = min((entry[1] for entry in self._waiting), default=inf)
            await self._clock.sleep(min(self._timeout, max(interval, next_deadline - self._monotonic())))
            now = self._monotonic()
            late = [entry for entry in self._waiting if entry[1] <= now]
            if late:
                self._waiting = [entry for entry in self._waiting if entry[1] > now]
                _tell(late, TimeoutError(f"no sync within {self._timeout_ms} ms"))

    def fail(self, error: BaseException, behind: int = -1) -> None:
        """Tell those whose message ends behind an offset (all, if none is given) that it will never be durable."""
        waiting = self._waiting
        kept = bisect_right(waiting, behind, key=itemgetter(0))
        self._waiting = waiting[:kept]
        _tell(waiting[kept:], error)


def _tell(ready: list[_Entry], error: BaseException | None) -> None:
    """Tell each its own; what one raises is logged and keeps nobody else from being told."""
    for told, entries in groupby(ready, _told_of):
        try:
            told([entry[3] for entry in entries], error)
        except Exception:
            _log.exception("telling senders of their flush failed")


def call_each(callbacks: list[DurableCallback], error: BaseException | None) -> None:
    """For those who have a function of their own called: :data:`Told` with callbacks."""
    for callback in callbacks:
        try:
            callback(error)
        except Exception:
            _log.exception("telling a sender of its flush failed")
