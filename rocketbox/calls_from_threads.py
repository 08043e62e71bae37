"""Coroutine functions that threads have called in a loop, and wait for: the hand-off under blocking interfaces.

Calls of many threads come into the loop together, by one wake-up for all that are waiting then; anyio's own way takes a
wake-up, a task with a scope and a future for each, 1.6 times the processor time (benchmark "blocking sends").
A thread waits for a lock of its own, which the loop releases.

What a call ends with is its caller's: the result, the error, or ClientStateError when the loop's side is closed
meanwhile. The close waits a while for what has begun, and what it then cancels may have been carried out.
"""

from __future__ import annotations

import contextvars
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from types import FrameType, TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import anyio

from rocketbox.clock import Clock
from rocketbox.errors import ClientStateError, ForkedError, NotStartedError
from rocketbox.loops import HomeLoop, call_soon_from_thread, context_of_callbacks, in_event_loop, spawner

__all__ = ["Call", "CallsFromThreads", "Wakes", "result_of", "threads_waiting_for_loops"]

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

PATIENCE_AT_THE_END = 3.0  # seconds for calls that have begun; Apache's send timeout
LOOK_FOR_SIGNALS = 0.25
"""Seconds after which the main thread, where signals are handled, looks for those that came just before it slept.

Python looks for signals, and then has the system wait for a lock. One that comes between the two ends no wait: Ctrl-C
would be lost, on a busy machine once in some thousand times.
"""

LOOK_AROUND = 1.0
"""Seconds after which any other thread looks for what is to wake it, and may be there no more.

A loop that was closed with the client open, because nobody has left its ``async with``, wakes nobody. Nor does a thread
that was about to wake the loop, or the next thread, while it is held up by a finalizer: the collector of garbage calls
those in the midst of anything, and one that logs, where the log is sent, calls here itself, or waits for who does.
"""

RESULT = Future.result.__code__
WAIT_IN_RESULT = 3  # the innermost frames of a thread that is in it: one of a condition is inside
CHAINED = "_chain_future.<locals>._call_check_cancel"

NOBODY = 0
"""In place of a thread's ident: none waits."""
_main_thread = threading.main_thread().ident
_process = os.getpid()  # kept, for asking is a call of the system

_waiting: set[int] = set()


def _after_fork() -> None:
    global _main_thread, _process
    _main_thread, _process = threading.get_ident(), os.getpid()  # the thread that forks is the main one of the child


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def threads_waiting_for_loops() -> set[int]:
    """The idents of the threads that wait for a call of theirs now: who has virtual time lets it pass for them.

    A thread may call by anyio's or asyncio's own means as well (``anyio.from_thread.run``, ``run_coroutine_threadsafe``
    and ``result()``). They note that nowhere, so it is read from where each thread is.
    """
    return _waiting | {ident for ident, frame in sys._current_frames().items() if _waits_for_task(frame)}


def _waits_for_task(frame: FrameType | None) -> bool:
    """Whether a thread is in ``result()`` of the future of a loop's task, which has not ended."""
    for _ in range(WAIT_IN_RESULT):
        if frame is None:
            break
        if frame.f_code is RESULT:
            future = frame.f_locals.get("self")  # it is forgotten on the way out
            return future is not None and not future.done() and any(map(_ends_a_task, future._done_callbacks))
        frame = frame.f_back
    return False


def _ends_a_task(callback: Any) -> bool:
    """Whether it is what asyncio has a future call that stands for a task, to cancel the task with the future."""
    return getattr(callback, "__qualname__", "") == CHAINED


def result_of(future: Future[ResultT]) -> ResultT:
    """What a future of another thread ends with. In the main thread a signal is handled, whenever it comes."""
    while True:
        try:
            return future.result(LOOK_FOR_SIGNALS if threading.get_ident() == _main_thread else None)
        except TimeoutError:
            if future.done():  # with this error, or meanwhile
                return future.result()


class Call(ABC):
    """Something for the loop to do, for which a thread waits: what it is, who waits, and how it has ended.

    :meth:`begin` is called in the loop, and sees to it that :meth:`end` is, however it ends, once. ``under_way`` is
    where it stands between the two.
    """

    __slots__ = ("done", "error", "given_up", "result", "thread", "under_way", "what")

    under_way: UnderWay

    def __init__(self, what: str) -> None:
        self.what = what
        self.thread = threading.get_ident()
        self.done = threading.Lock()
        self.done.acquire()
        self.result: Any = None
        self.error: BaseException | None = None
        self.given_up = False

    @abstractmethod
    def begin(self) -> None:
        """Do it, in the loop; raises nothing."""

    @abstractmethod
    def cancel(self) -> None:
        """Do it no further, in the loop: whoever waits is told, or is there no more."""

    def end(self) -> None:
        """Let its caller go on; in the loop, so that who looks there sees that nobody waits any more."""
        self.under_way.remove(self)
        if not self.given_up:
            _waiting.discard(self.thread)
            self.under_way.wakes.wake(self)

    def tell(self) -> None:
        """Let the caller go on of what was never begun."""
        if not self.given_up:
            _waiting.discard(self.thread)
        self.done.release()

    def cut_short(self) -> ClientStateError:
        """What the caller is told of a call that the close has ended."""
        return ClientStateError(
            f"{self.under_way.name()} was closed while {self.what}() was under way: it may have been carried out"
        )


class Wakes:
    """Wakes the threads whose calls have ended, one by one: each that wakes wakes the next one, before all else.

    Woken all at once, each would first have to wait for the interpreter's lock, which the loop holds still. On one core
    that is half of what a call's way there and back takes (benchmark "blocking sends").

    The main thread is woken at once, and wakes nobody: a handler of signals may raise there at any moment, also when it
    has taken the next one out of the line and not woken it yet.
    """

    def __init__(self) -> None:
        self._line: deque[Call] = deque()
        self._waking = False  # a thread was woken and has not run yet: it wakes the next one

    def wake(self, call: Call) -> None:
        """Let the thread of a call go on, soon; in the loop."""
        if call.thread in (_main_thread, NOBODY):
            call.done.release()
            return
        self._line.append(call)
        if not self._waking:
            self._next()

    def go_on(self, call: Call) -> None:
        """Wake the next one; in the thread of ``call``, which has woken, or waits no longer for another reason."""
        if call.thread == _main_thread:
            return
        self._waking = False  # before the line is looked at: what comes meanwhile is woken twice rather than never
        if self._line:
            self._next()

    def _next(self) -> None:
        while True:
            try:
                call = self._line.popleft()
            except IndexError:
                return
            if not call.given_up:  # else nobody would wake
                break
        self._waking = True
        call.done.release()


class UnderWay:
    """The calls that have begun."""

    def __init__(self, name: Callable[[], str]) -> None:
        self.name = name
        self.wakes = Wakes()
        self.calls: set[Call] = set()
        self._all_ended: anyio.Event | None = None

    def __len__(self) -> int:
        return len(self.calls)

    def remove(self, call: Call) -> None:
        self.calls.discard(call)
        if self._all_ended is not None and not self.calls:
            self._all_ended.set()

    async def until_none(self) -> None:
        while self.calls:
            self._all_ended = anyio.Event()
            await self._all_ended.wait()


Spawn = Callable[[Callable[[], Coroutine[Any, Any, None]], contextvars.Context], Callable[[], object]]


class _Awaited(Call):
    """A coroutine function, which runs as a task in the context variables of its caller."""

    __slots__ = ("begun", "cancel_task", "cancelled", "context", "function", "spawn")

    def __init__(self, what: str, spawn: Spawn, function: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(what)
        self.spawn = spawn
        self.function = function
        self.context = contextvars.copy_context()
        self.cancel_task: Callable[[], object]
        self.begun = self.cancelled = False

    def begin(self) -> None:
        self.cancel_task = self.spawn(self._run, self.context)

    def cancel(self) -> None:
        self.cancelled = True
        if self.begun:  # a task that is cancelled before it begins would never tell of its end
            self.cancel_task()

    async def _run(self) -> None:
        self.begun = True
        try:
            if self.cancelled:
                self.error = self.cut_short()
            else:
                self.result = await self.function()
        except (anyio.get_cancelled_exc_class(), GeneratorExit):
            self.error = self.cut_short()
            raise
        except BaseException as error:  # whatever it is, such as sys.exit() in a user's selector, is its caller's
            self.error = error
        finally:
            self.end()


class CallsFromThreads:
    """``async with CallsFromThreads("client", clock) as calls:``; then any thread, ``calls.call("send", function)``.

    ``name()`` is whose they are, for errors.
    """

    def __init__(self, name: Callable[[], str], clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._is_open = False
        self._line: deque[Call] = deque()
        self.under_way = UnderWay(name)
        self._wake_pending = False
        self._process = 0
        self._home = HomeLoop()
        self._spawn: Spawn
        self._call_soon: Callable[[Callable[[], object]], object]
        self._wake: Callable[[], object]

    # --- in the loop -------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._home.begin()
        self._spawn = spawner()
        self._call_soon = call_soon_from_thread()
        self._wake = partial(context_of_callbacks().run, self._begin)  # not in that of a thread, where no loop runs
        self._process = _process
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Take no more calls, refuse those that have not begun, and wait a while for those that have."""
        self._is_open = False  # before the line is looked at: what comes meanwhile is taken out by its thread, or here
        while (call := self._next()) is not None:
            self._refuse(call)
        with anyio.CancelScope(shield=True):
            try:
                with self._clock.move_on_after(PATIENCE_AT_THE_END):
                    await self.under_way.until_none()
            finally:
                for call in list(self.under_way.calls):
                    call.cancel()
            await self.under_way.until_none()

    def _begin(self) -> None:
        self._wake_pending = False  # before the line is looked at: who comes meanwhile wakes once more
        under_way = self.under_way
        while (call := self._next()) is not None:
            if not self._is_open:
                self._refuse(call)
            elif not call.given_up:
                call.under_way = under_way
                under_way.calls.add(call)
                call.begin()

    def _next(self) -> Call | None:
        try:
            return self._line.popleft()
        except IndexError:
            return None

    def _refuse(self, call: Call) -> None:
        call.error = self._closed(call.what)
        call.tell()

    # --- in threads --------------------------------------------------------------------------------------------------

    def call(self, what: str, function: Callable[P, Awaitable[ResultT]], *args: P.args, **kwargs: P.kwargs) -> ResultT:
        """The result of a coroutine function, which runs in the loop and in the caller's context variables.

        ``what`` is the call's name, for errors. Raises what it raises; NotStartedError, and nothing was done;
        ForkedError; ClientStateError where an event loop runs, which the wait would stop, in the thread of the client's
        own loop while that stands still, and when the loop's side is closed before it has ended.
        """
        self.check(what)
        result: ResultT = self.wait_for(_Awaited(what, self._spawn, partial(function, *args, **kwargs)))
        return result

    def wait_for(self, call: Call) -> Any:
        """The result of a call, once it is done in the loop; what :meth:`check` would raise was asked before."""
        _waiting.add(call.thread)
        try:
            self._put(call)
            seconds = LOOK_FOR_SIGNALS if call.thread == _main_thread else LOOK_AROUND
            while not call.done.acquire(timeout=seconds):
                self._look_around(call)
        except BaseException:  # KeyboardInterrupt above all, in the main thread
            self._give_up(call)
            raise
        finally:
            self.under_way.wakes.go_on(call)
        error, call.error = call.error, None  # the error's traceback holds the call: not the other way round, too
        if error is not None:
            try:
                raise error
            finally:
                del error, call  # which would hold this frame, by its traceback
        return call.result

    def _look_around(self, call: Call) -> None:
        """Do what others may have been kept from. Raises ClientStateError where nobody will do it any more."""
        if self._home.is_over():
            raise ClientStateError(
                f"the event loop of {self._name()} has ended while {call.what}() was under way: it may have been "
                "carried out; leave the client's 'async with' before the loop ends"
            )
        self.under_way.wakes.go_on(call)
        if self._line:
            self._wake_loop(call)

    def check(self, what: str) -> None:
        """Raise what a call would, where it cannot be made at all."""
        self._check_open(what)
        if self._home.thread == threading.get_ident() and not self._home.runs():
            raise ClientStateError(
                f"{what}() would wait for ever: the event loop of {self._name()} was begun in this thread, and does "
                f"not run now; let it run {what.replace('.blocking', '')}(), or have another thread run the loop"
            )

    def _check_open(self, what: str) -> None:
        if in_event_loop():
            raise ClientStateError(
                f"{what}() would block the event loop that runs in this thread; write await "
                f"{what.replace('.blocking', '')}() there, or call it in a thread: anyio.to_thread.run_sync"
            )
        if self._process != _process and self._process:
            raise ForkedError(self._name(), self._process)
        if not self._is_open:
            raise self._closed(what)

    def hand_over(self, what: str, function: Callable[P, Awaitable[object]], *args: P.args, **kwargs: P.kwargs) -> None:
        """Have a coroutine function called, and wait for nothing; what it raises is lost. Raises as :meth:`call`."""
        self._check_open(what)
        call = _Awaited(what, self._spawn, partial(function, *args, **kwargs))
        call.thread = NOBODY
        self._put(call)

    def _put(self, call: Call) -> None:
        # Without a lock: a handler of signals may interrupt the main thread here, and wait for other threads that call.
        self._line.append(call)
        if not self._is_open:
            try:
                self._line.remove(call)
            except ValueError:  # the loop has taken it, or the close
                return
            raise self._closed(call.what)
        if threading.get_ident() == _main_thread:
            # Nobody relies on it: a handler of signals may interrupt it here, and call as well, or wait for other
            # threads that call. That is a wake-up too many at most for each call, for it waits for what it calls.
            self._wake_loop(call)
        elif not self._wake_pending:
            try:
                self._wake_pending = True  # a race here costs one wake-up too many, never one too few
                self._wake_loop(call)
            except BaseException:  # such as libraries of time limits raise; others may rely on this to have woken it
                self._wake_pending = False  # they do so themselves, should another one interrupt this
                if self._is_open:
                    self._call_soon(self._wake)
                raise

    def _wake_loop(self, call: Call) -> None:
        try:
            self._call_soon(self._wake)
        except RuntimeError as error:  # the loop was closed with this still open
            self._is_open = False
            raise self._closed(call.what) from error

    def _give_up(self, call: Call) -> None:
        call.given_up = True
        _waiting.discard(call.thread)
        try:
            self._call_soon(partial(self._cancel, call))
        except RuntimeError:  # the loop is gone
            return

    def _cancel(self, call: Call) -> None:
        if call in self.under_way.calls:
            call.cancel()

    def _closed(self, what: str) -> NotStartedError:
        return NotStartedError(self._name(), f"{what}() was not carried out")
