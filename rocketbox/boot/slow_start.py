"""Says what a slow start waits for: the bean, hook or listeners that it is at, after 2 s, 4 s, 8 s and so on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rocketbox.clock import Clock

__all__ = ["SlowStart"]

_log = logging.getLogger(__name__)

PATIENCE = 2.0  # seconds at one thing until it is named; doubles each time


@dataclass
class _Step:
    what: str
    since: float
    told_after: float = PATIENCE


class SlowStart:
    """``with slow_start.at("bean desk (desk.py:7)"):`` around each thing that the start waits for.

    :meth:`watch` is a task beside it. Code that blocks the event loop stops it as well: that is named by the watchdog.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._step: _Step | None = None

    @contextmanager
    def at(self, what: str) -> Iterator[None]:
        """The start waits for this inside of the block."""
        self._step = _Step(what, self._clock.monotonic())
        try:
            yield
        finally:
            self._step = None

    async def watch(self) -> None:
        """Name what takes long, until it is cancelled."""
        while True:
            step = self._step
            if step is None:
                await self._clock.sleep(PATIENCE)
                continue
            left = step.since + step.told_after - self._clock.monotonic()
            if left > 0:
                await self._clock.sleep(left)
            else:
                _log.info("%s is still starting: it has waited %g s for %s", self._name, step.told_after, step.what)
                step.told_after *= 2
