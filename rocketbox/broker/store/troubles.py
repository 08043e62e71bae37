"""Errors that are being retried: told once when they begin, once when they are over, and shown in health meanwhile.

What is retried, and when, is left to those who report it: the store's writers, the tables, retention.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace

from rocketbox.clock import Clock

__all__ = ["Trouble", "Troubles"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Trouble:
    """One thing that does not work now. ``error`` is the newest, ``count`` how often it failed since ``since_ms``."""

    what: str
    error: str
    since_ms: int
    count: int


class Troubles:
    """What does not work now, by what it is. Any thread may report."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._current: dict[str, Trouble] = {}
        self._guard = threading.Lock()

    @property
    def current(self) -> list[Trouble]:
        """What does not work now, the oldest first."""
        with self._guard:
            return list(self._current.values())

    def begin(self, what: str, error: BaseException | str) -> None:
        """``what`` (``writing queues and index``) failed and will be tried again. Logged the first time only."""
        text = str(error) or repr(error)
        with self._guard:
            known = self._current.get(what)
            if known is None:
                self._current[what] = Trouble(what, text, self._clock.time_ms(), 1)
            else:
                self._current[what] = replace(known, error=text, count=known.count + 1)
        if known is None:
            unforeseen = None if isinstance(error, OSError | str) else error
            _log.error("%s failed, and is tried again: %s", what, text, exc_info=unforeseen)

    def end(self, what: str) -> None:
        """``what`` works. Cheap, and silent, when it was no trouble."""
        if what not in self._current:
            return
        with self._guard:
            over = self._current.pop(what, None)
        if over is not None:
            seconds = (self._clock.time_ms() - over.since_ms) / 1000
            _log.warning("%s works again, after %d failures in %.1f s", what, over.count, seconds)
