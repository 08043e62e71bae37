"""The end of a process that runs a service: what signals do, and the limit of the stop, whatever its code does.

The first SIGTERM or SIGINT asks for the stop, the second ends the process, and so does a stop that takes too long. All
of it is done by a thread: the loop may be blocked, and the main thread may be in a call into C, which lets no handler
of Python run. Such a thread hears of signals by ``signal.set_wakeup_fd``, for what writes there is C. Where the loop,
or a library, has put a descriptor of its own there it is served as well; where one puts it there later, the handler,
which runs in the main thread, sees to it.

What the thread cannot help against is a call into C that keeps the interpreter lock (GIL) and never ends. There SIGKILL
is left, which a parent process and Kubernetes send.
"""

from __future__ import annotations

import _thread
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Self

from rocketbox.clock import RealClock
from rocketbox.frames import awaited_frames, in_debugger, inside, place_of_frame, stack_text, users_frame
from rocketbox.loops import call_soon_from_thread, coroutines_from_thread
from rocketbox.watchdog import frames_outside

__all__ = ["STOP_CUT_SHORT", "STOP_SIGNALS", "StopGuard"]

_log = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
STOP_CUT_SHORT = 3  # the exit code of a stop that took longer than it may; 128 + n is a second signal n
GRACE = 1.0  # seconds beyond the limit: until then what was cancelled at the limit may end by itself
ECHO = 0.2  # seconds in which a signal is the first one once more: `timeout` and wrappers send it to process and group
LAST_WORDS = 0.5  # seconds that a log record may take: somebody may hold the lock of its handler for ever
DEBUGGED = 1.0  # seconds until a stop that somebody looks at in a debugger is looked at again


class StopGuard:
    """``with StopGuard("desk") as guard:`` around the loop, in the main thread; ``guard.attach(stop)`` inside of it.

    From then on the first signal calls ``stop`` in the loop, and the second ends the process with 128 + its number;
    before, the first does. One that comes within 0.2 s of the first is its echo, and no second one. ``patient`` takes a
    second signal for the first one once more: in a process whose parent kills it when it shall end at once.
    ``before_end`` is called before a second signal ends the process, and must be quick.

    :meth:`limit` says how long the stop may take, from a signal or :meth:`begin` on. The limit holds to the end of the
    process if what is around the block does nothing else: threads that are no daemons have no more time.
    """

    def __init__(self, name: str, *, patient: bool = False, before_end: Callable[[], object] | None = None) -> None:
        self.name = name
        self.began: float | None = None
        """When the stop was asked for, on the monotonic clock."""
        self._patient = patient
        self._before_end = before_end
        self._clock = RealClock()
        self._stop: Callable[[], object] | None = None
        self._call_soon: Callable[[Callable[[], object]], object] | None = None
        self._coroutines: Callable[[], list[Coroutine[Any, Any, Any]]] = list
        self._loop_thread = 0
        self._outside = 0
        self._limit: float | None = None
        self._lock = threading.Lock()
        self._asked_at: float | None = None
        self._left = False
        self._others: dict[int, socket.socket] = {}  # what else wants to hear of signals, by its descriptor

    def __enter__(self) -> Self:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._fd = self._ours.fileno()
        self._earlier = {number: signal.signal(number, self._handled) for number in STOP_SIGNALS}
        self._earlier_fd = signal.set_wakeup_fd(self._fd, warn_on_full_buffer=False)
        threading.Thread(target=self._run, name="rocketbox-stop", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop = None
        current = signal.set_wakeup_fd(self._earlier_fd, warn_on_full_buffer=False)
        if current not in (self._fd, -1):  # somebody's who stays
            signal.set_wakeup_fd(current, warn_on_full_buffer=False)
        for number, earlier in self._earlier.items():
            if signal.getsignal(number) == self._handled:
                signal.signal(number, signal.SIG_DFL if earlier is None else earlier)
        self._left = True
        self._wake()

    def attach(self, stop: Callable[[], object]) -> None:
        """From now on the first signal calls ``stop`` in the loop that runs here."""
        self._stop = stop
        self._call_soon = call_soon_from_thread()
        self._coroutines = coroutines_from_thread()
        self._loop_thread = threading.get_ident()
        self._outside = frames_outside(sys._getframe(1))
        self._take_wakeup_fd()  # loops put their own there when they begin to run
        if self._asked_at is not None:
            stop()

    def limit(self, seconds: float) -> None:
        """The stop may take so long."""
        self._limit = seconds

    def begin(self) -> None:
        """The stop has been asked for: its time runs. May be called in any thread, and more than once."""
        with self._lock:
            if self.began is not None:
                return
            self.began = self._clock.monotonic()
        self._wake()

    # --- in the main thread ------------------------------------------------------------------------------------------

    def _handled(self, number: int, frame: FrameType | None) -> None:
        if self._take_wakeup_fd():
            self._wake(number)  # it was told somebody else

    def _take_wakeup_fd(self) -> bool:
        """Have signals told to the thread; whether they were told to somebody else, who hears of them from now on."""
        earlier = signal.set_wakeup_fd(self._fd, warn_on_full_buffer=False)
        if earlier == self._fd:
            return False
        if earlier not in self._others and earlier != -1:
            with suppress(OSError):  # a copy: the descriptor may be closed, and its number be another file's
                self._others[earlier] = socket.socket(fileno=os.dup(earlier))
        return True

    # --- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with self._ours, self._theirs:
            self._listen()
            for other in self._others.values():
                other.close()

    def _listen(self) -> None:
        while True:
            left = self._time_left()
            if self._left and left is None:
                return
            self._theirs.settimeout(left)
            try:
                numbers = self._theirs.recv(256)
            except TimeoutError:
                if self._is_over():
                    return
                continue
            for number in filter(None, numbers):
                for other in [*self._others.values()]:
                    with suppress(OSError):
                        other.send(bytes([number]))
                if number in STOP_SIGNALS:
                    self._came(signal.Signals(number))

    def _came(self, number: signal.Signals) -> None:
        now = self._clock.monotonic()
        if self._left or (self._asked_at is not None and (self._patient or now < self._asked_at + ECHO)):
            return
        if self._stop is None and not self._patient and self._asked_at is None:
            self._end(128 + number, f"{number.name}: {self.name} ends")  # there is nothing to be stopped yet
        if self._asked_at is not None:
            if self._before_end is not None:
                self._before_end()
            self._end(128 + number, f"{number.name} again: {self.name} ends at once, without a stop in order")
        self._asked_at = now
        _say(logging.INFO, f"{number.name}: {self.name} stops; once more ends it at once")
        self.begin()
        stop, call_soon = self._stop, self._call_soon
        if stop is not None and call_soon is not None:
            with suppress(RuntimeError):  # the loop has just ended
                call_soon(stop)

    def _time_left(self) -> float | None:
        if self.began is None or self._limit is None:
            return None
        return max(self.began + self._limit + GRACE - self._clock.monotonic(), 0.001)

    def _is_over(self) -> bool:
        """The time is up: end the process, if it is still about its stop; whether there is nothing to be done."""
        if self._left and threading.main_thread().is_alive():
            return True  # the program goes on
        frame = sys._current_frames().get(self._loop_thread)
        if frame is not None and in_debugger(frame):
            assert self._limit is not None
            self._limit += DEBUGGED
            return False
        self._end(
            STOP_CUT_SHORT,
            f"{self.name}: the stop has not ended within {self._limit:g} s, and the process ends: {self._held_up_by()}",
            logging.ERROR,
        )
        return True

    def _held_up_by(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)
        frames = [] if frame is None else inside(frame, self._outside)
        if (found := users_frame(frames)) is not None:
            return f"{place_of_frame(found)} holds it up\n{stack_text(frames)}"
        with suppress(RuntimeError, ValueError):  # it goes on meanwhile
            for coroutine in self._coroutines():
                waits = awaited_frames(coroutine)
                if (found := users_frame(waits)) is not None:
                    return f"{place_of_frame(found)} holds it up, by what it awaits\n{stack_text(waits)}"
        for thread in threading.enumerate():
            if thread is threading.main_thread() or thread.daemon or thread.ident is None:
                continue
            frame = sys._current_frames().get(thread.ident)
            if frame is not None and (found := users_frame(inside(frame, 0))) is not None:
                return f"thread {thread.name} is no daemon, and still at {place_of_frame(found)}"
        return f"it waits for rocketbox's own code\n{stack_text(frames)}" if frames else "nobody knows for what"

    def _wake(self, number: int = 0) -> None:
        with suppress(OSError):  # it is full: the thread is awake
            self._ours.send(bytes([number]))

    def _end(self, status: int, words: str, level: int = logging.ERROR) -> None:
        if not _say(level, words, last=True):
            with suppress(OSError):
                os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"{words}\n".encode())
        os._exit(status)


def _say(level: int, words: str, *, last: bool = False) -> bool:
    """Log in a thread of its own, and wait a moment for that; whether it was done.

    Who holds the lock of logging, or of a stream, may hang.
    """
    done = threading.Event()
    try:
        _thread.start_new_thread(partial(_say_now, level, words, last, done), ())
    except RuntimeError:  # no thread can be started any more
        return False
    return done.wait(LAST_WORDS)


def _say_now(level: int, words: str, last: bool, done: threading.Event) -> None:
    _log.log(level, "%s", words)
    if last:
        logging.shutdown()
    done.set()
