"""What a handler starts that goes on by itself: threads, and timers of the event loop.

Seen is what must come to an end, and is the user's own code: a thread that is no daemon, whose end the process waits
for, and a function of the user's that a timer calls. A daemon may be meant to go on for ever, and so may what a library
keeps, such as the connections of a pool: nobody can tell.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rocketbox.hints import place_of
from rocketbox.testing.loop_turns import is_users_own, line_of_thread

__all__ = ["StartedThread", "TimerCall", "telling_of_threads"]


class StartedThread:
    """A ``threading.Thread`` that was started."""

    what = "a thread"

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    @staticmethod
    def is_meant(thread: threading.Thread) -> bool:
        """Whether it is one that comes to an end, of the user's own code."""
        if isinstance(thread, threading.Timer):
            runs: Any = thread.function
        elif type(thread).run is threading.Thread.run:
            runs = getattr(thread, "_target", None)
        else:
            runs = thread.run
        return not thread.daemon and is_users_own(runs)

    @property
    def goes_on(self) -> bool:
        return self._thread.ident is None or self._thread.is_alive()

    @property
    def line(self) -> str:
        """Where it is."""
        return line_of_thread(sys._current_frames().get(self._thread.ident or 0))


class TimerCall:
    """What ``loop.call_later(...)`` is to call, unless ``handle`` is cancelled."""

    what = "a timer"

    def __init__(self, function: Callable[..., object]) -> None:
        self.handle: Any = None  # of the loop
        self._function = function
        self._has_ended = False

    def __call__(self, *args: Any) -> None:
        try:
            self._function(*args)
        finally:
            self._has_ended = True

    @property
    def goes_on(self) -> bool:
        return not self._has_ended and not (self.handle is not None and self.handle.cancelled())

    @property
    def line(self) -> str:
        """What it calls."""
        return place_of(self._function)


_told: list[Callable[[threading.Thread], object]] = []
_original_start = threading.Thread.start


def _start(self: threading.Thread) -> None:
    for tell in dict.fromkeys(_told):
        tell(self)
    _original_start(self)


@contextmanager
def telling_of_threads(tell: Callable[[threading.Thread], object]) -> Iterator[None]:
    """``tell`` is called with each thread of the process that is about to start, by who starts it; once, however often
    it is to be told."""
    global _original_start
    if not _told and threading.Thread.start is not _start:
        _original_start = threading.Thread.start
        threading.Thread.start = _start  # type: ignore[method-assign]  # there is no other place that hears of them
    _told.append(tell)
    try:
        yield
    finally:
        _told.remove(tell)
        if not _told and threading.Thread.start is _start:  # else somebody has put something around it, and keeps it
            threading.Thread.start = _original_start  # type: ignore[method-assign]
