"""What a handler starts that goes on by itself: threads, calls in pools of threads, and timers of the event loop.

Seen is what must come to an end, and is the user's own doing: a thread that nobody has made a daemon, or a function
that a pool calls, where the function or who hands it over is the user's own code; and a function of the user's that a
timer calls. A daemon may be meant to go on for ever, and so may what a library keeps, such as the connections of a
pool: nobody can tell. Threads that a ``def`` handler starts are daemons if nobody says anything else, since its own
thread is one.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

import anyio
from anyio._backends._asyncio import AsyncIOBackend

from rocketbox.calls_from_threads import threads_waiting_for_loops
from rocketbox.hints import place_of
from rocketbox.testing.loop_turns import ThreadCall, is_users_own, is_users_own_code, line_of_thread

__all__ = ["StartedThread", "TimerCall", "telling_of_threads"]

Started = Callable[[threading.Thread, FrameType], "StartedThread | None"]
Submitted = Callable[[Callable[..., Any], FrameType, bool], ThreadCall | None]

OF_POOLS = (os.path.dirname(futures.__file__) + os.sep, os.path.dirname(anyio.__file__) + os.sep)
INHERITED = "_rocketbox_inherited_daemon"  # of a thread: nobody said that it is a daemon, but who made it is one


class StartedThread:
    """A ``threading.Thread`` that was started."""

    what = "a thread"

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread
        self.has_begun = False
        """``start()`` has returned. Before, Python may know the thread's number and not yet call it alive."""
        self.has_failed = False
        """It could not be started."""

    @property
    def keeps_from_ending(self) -> bool:
        """Whether the process waits for it at its end, or would do so if the main thread had started it."""
        return not self._thread.daemon or hasattr(self._thread, INHERITED)

    @staticmethod
    def is_meant(thread: threading.Thread, starter: FrameType) -> bool:
        """Whether it is one that comes to an end, of the user's own code, or given by it what it is to run."""
        if thread.daemon and not getattr(thread, INHERITED, False):
            return False
        return is_users_own(_run_by(thread)) or (type(thread) is threading.Thread and is_users_own_code(starter.f_code))

    @property
    def goes_on(self) -> bool:
        return not self.has_failed and (not self.has_begun or self._thread.is_alive())

    @property
    def waits_for_loop(self) -> bool:
        """Whether it waits for what it has called in the loop, by the blocking template."""
        return self._thread.ident in threads_waiting_for_loops()

    @property
    def line(self) -> str:
        """Where it is; of a ``threading.Timer`` whose time has not come, what that calls."""
        line = line_of_thread(sys._current_frames().get(self._thread.ident or 0))
        return place_of(_run_by(self._thread)) if not line and isinstance(self._thread, threading.Timer) else line


def _run_by(thread: threading.Thread) -> Any:
    """What a thread runs; None where that has ended."""
    if isinstance(thread, threading.Timer):
        return thread.function
    return getattr(thread, "_target", None) if type(thread).run is threading.Thread.run else thread.run


class TimerCall:
    """What ``loop.call_later(...)`` is to call, unless ``handle`` is cancelled."""

    what = "a timer"
    waits_for_loop = keeps_from_ending = False

    def __init__(self, function: Callable[..., object]) -> None:
        self.handle: Any = None  # of the loop
        self._function = function
        self._has_ended = False

    def __call__(self, *args: Any) -> None:
        try:
            self._function(*args)
        finally:
            self._has_ended = True

    def cancel(self) -> None:
        """Have it call nobody."""
        self._has_ended = True
        if self.handle is not None:
            self.handle.cancel()

    @property
    def goes_on(self) -> bool:
        return not self._has_ended and not (self.handle is not None and self.handle.cancelled())

    @property
    def line(self) -> str:
        """What it calls."""
        return place_of(self._function)


class _Taps:
    """What stands around three methods and a property of Python's, and a method of anyio's, while a harness runs.

    There is no other place that hears of them. Whatever somebody puts around one of them meanwhile, and keeps, passes
    it over afterwards.
    """

    def __init__(self, started: Started, submitted: Submitted, in_thread: Callable[[ThreadCall], object]) -> None:
        self._is_on = True
        self._put: list[tuple[Any, str, Any, Any]] = []
        init, start = threading.Thread.__init__, threading.Thread.start
        submit: Callable[..., Future[Any]] = ThreadPoolExecutor.submit

        @functools.wraps(init)
        def made(thread: threading.Thread, *args: Any, **named: Any) -> None:
            init(thread, *args, **named)
            if self._is_on and named.get("daemon") is None and thread.daemon:
                setattr(thread, INHERITED, True)

        @functools.wraps(start)
        def tell_and_start(thread: threading.Thread) -> None:
            told = started(thread, sys._getframe(1)) if self._is_on else None
            try:
                start(thread)
            except BaseException:  # the machine has no thread left, or it was started before
                if told is not None:
                    told.has_failed = True
                raise
            if told is not None:
                told.has_begun = True

        @functools.wraps(submit)
        def submit_and_tell(
            pool: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **named: Any
        ) -> Future[Any]:
            call = submitted(function, _who_hands_over(sys._getframe(1)), False) if self._is_on else None
            if call is None:
                return submit(pool, function, *args, **named)
            call.future = future = submit(pool, call, *args, **named)
            in_thread(call)
            return future

        daemon: Any = threading.Thread.daemon

        def said(thread: threading.Thread, is_daemon: bool) -> None:
            daemon.fset(thread, is_daemon)
            vars(thread).pop(INHERITED, None)

        self._wrap(threading.Thread, "__init__", made)
        self._wrap(threading.Thread, "daemon", property(daemon.fget, said, doc=daemon.__doc__))
        self._wrap(threading.Thread, "start", tell_and_start)
        self._wrap(ThreadPoolExecutor, "submit", submit_and_tell)

        run_in_thread = AsyncIOBackend.run_sync_in_worker_thread.__func__  # type: ignore[attr-defined]

        @functools.wraps(run_in_thread)
        def run_and_tell(backend: Any, function: Callable[..., Any], args: Any, **named: Any) -> Any:
            call = submitted(function, _who_hands_over(sys._getframe(1)), True) if self._is_on else None
            if call is None:
                return run_in_thread(backend, function, args, **named)
            in_thread(call)
            return call.awaited(run_in_thread(backend, call, args, **named))

        self._wrap(AsyncIOBackend, "run_sync_in_worker_thread", classmethod(run_and_tell))  # type: ignore[arg-type]

    def _wrap(self, owner: Any, name: str, wrapper: Any) -> None:
        self._put.append((owner, name, vars(owner)[name], wrapper))
        setattr(owner, name, wrapper)

    def take_away(self) -> None:
        """Let them be what they were, but for those that somebody has put something around."""
        self._is_on = False
        for owner, name, former, wrapper in self._put:
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, former)


def _who_hands_over(frame: FrameType) -> FrameType:
    """Who calls ``submit``, or ``map``, which does; or ``anyio.to_thread.run_sync``."""
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OF_POOLS):
        frame = frame.f_back
    return frame


_guard = threading.Lock()
_users = 0  # how many ask for the taps
_taps: _Taps | None = None


@contextmanager
def telling_of_threads(
    started: Started, submitted: Submitted, in_thread: Callable[[ThreadCall], object]
) -> Iterator[None]:
    """``started`` is called with each thread of the process that is about to start, by who starts it.

    ``submitted`` is called with each function that is given to a pool of threads, by who gives it; what it returns is
    called instead, and ``in_thread`` is told of it then. The first two are given the frame of who does it as well, and
    ``submitted`` whether it is for a thread of anyio's, which are there for all of the process.
    However often it is to be told, it is told once: all who ask give the same functions.
    """
    global _taps, _users
    with _guard:
        _users += 1
        if _taps is None:
            _taps = _Taps(started, submitted, in_thread)
    try:
        yield
    finally:
        with _guard:
            _users -= 1
            if not _users and _taps is not None:
                _taps.take_away()
                _taps = None
