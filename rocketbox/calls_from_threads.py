"""Coroutine functions that threads have called in a loop, and wait for: the hand-off under blocking interfaces.

Calls of many threads come into the loop together, by one wake-up for all that are waiting then; a portal of anyio's
takes a wake-up, a task group's task and a future for each, three times the processor time (benchmark "blocking sends").
A thread waits for a lock of its own, which the loop releases.

What a call ends with is its caller's: the result, the error, or ClientStateError when the loop's side is closed
meanwhile. The close waits a while for what has begun, and what it then cancels may have been carried out.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import anyio

from rocketbox.clock import Clock
from rocketbox.errors import ClientStateError, ForkedError, NotStartedError
from rocketbox.loops import call_soon_from_thread, in_event_loop, spawner

__all__ = ["CallsFromThreads", "threads_waiting_for_loops"]

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

PATIENCE_AT_THE_END = 3.0  # seconds for calls that have begun; Apache's send timeout

_waiting: set[int] = set()


def threads_waiting_for_loops() -> set[int]:
    """The idents of the threads that wait for a call of theirs now: who has virtual time lets it pass for them."""
    return _waiting


class _Call:
    """One call: what is to be called, who waits for it, and how it has ended."""

    __slots__ = (
        *("what", "function", "context", "thread", "cancel_task"),
        *("begun", "cancelled", "given_up"),
        *("done", "result", "error"),
    )

    def __init__(self, what: str, function: Callable[[], Awaitable[Any]]) -> None:
        self.what = what
        self.function = function
        self.context = contextvars.copy_context()
        self.thread = threading.get_ident()
        self.done = threading.Lock()
        self.done.acquire()
        self.result: Any = None
        self.error: BaseException | None = None
        self.cancel_task: Callable[[], object]
        self.begun = self.cancelled = self.given_up = False

    def cancel(self) -> None:
        """Carry it out no further; in the loop. A task that is cancelled before it begins would not even tell so."""
        self.cancelled = True
        if self.begun:
            self.cancel_task()

    def end(self) -> None:
        """Let its caller go on; in the loop, so that who looks there sees that nobody waits any more."""
        if not self.given_up:
            _waiting.discard(self.thread)
        self.done.release()


class CallsFromThreads:
    """``async with CallsFromThreads("client", clock) as calls:``; then any thread, ``calls.call("send", function)``.

    ``name()`` is whose they are, for errors.
    """

    def __init__(self, name: Callable[[], str], clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()  # of the line and of whether it is open: none comes into a line that is closed
        self._is_open = False
        self._line: deque[_Call] = deque()
        self.under_way: set[_Call] = set()
        """Those that have begun."""
        self._wake_pending = False
        self._process = 0
        self._spawn: Callable[[Callable[[], Coroutine[Any, Any, None]], contextvars.Context], Callable[[], object]]
        self._call_soon: Callable[[Callable[[], object]], object]
        self._all_ended: anyio.Event | None = None

    # --- in the loop -------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._spawn = spawner()
        self._call_soon = call_soon_from_thread()
        self._process = os.getpid()
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Take no more calls, refuse those that have not begun, and wait a while for those that have."""
        with self._lock:
            self._is_open = False
        while self._line:
            call = self._line.popleft()
            call.error = self._closed(call.what)
            call.end()
        with anyio.CancelScope(shield=True):
            try:
                with self._clock.move_on_after(PATIENCE_AT_THE_END):
                    await self._until_all_ended()
            finally:
                for call in self.under_way:
                    call.cancel()
            await self._until_all_ended()

    async def _until_all_ended(self) -> None:
        while self.under_way:
            self._all_ended = anyio.Event()
            await self._all_ended.wait()

    def _begin(self) -> None:
        self._wake_pending = False  # before the line is looked at: who comes meanwhile wakes once more
        line, under_way, spawn = self._line, self.under_way, self._spawn
        while line:
            call = line.popleft()
            if call.given_up:
                continue
            under_way.add(call)
            call.cancel_task = spawn(partial(self._run, call), call.context)

    async def _run(self, call: _Call) -> None:
        call.begun = True
        try:
            if call.cancelled:
                call.error = self._cut_short(call.what)
            else:
                call.result = await call.function()
        except (anyio.get_cancelled_exc_class(), GeneratorExit):
            call.error = self._cut_short(call.what)
            raise
        except BaseException as error:  # whatever it is, such as sys.exit() in a user's selector, is its caller's
            call.error = error
        finally:
            self.under_way.discard(call)
            call.end()
            if self._all_ended is not None and not self.under_way:
                self._all_ended.set()

    # --- in threads --------------------------------------------------------------------------------------------------

    def call(self, what: str, function: Callable[P, Awaitable[ResultT]], *args: P.args, **kwargs: P.kwargs) -> ResultT:
        """The result of a coroutine function, which runs in the loop and in the caller's context variables.

        ``what`` is the call's name, for errors. Raises what it raises; NotStartedError, and nothing was done;
        ForkedError; ClientStateError where an event loop runs, which the wait would stop, and when the loop's side is
        closed before it has ended.
        """
        self.check(what)
        call = _Call(what, partial(function, *args, **kwargs))
        _waiting.add(call.thread)
        try:
            self._put(call)
            call.done.acquire()
        except BaseException:  # KeyboardInterrupt above all, in the main thread
            self._give_up(call)
            raise
        error = call.error
        if error is not None:
            try:
                raise error
            finally:
                del error, call  # which would hold this frame, by its traceback
        result: ResultT = call.result
        return result

    def check(self, what: str) -> None:
        """Raise what a call would, where it cannot be made at all."""
        if in_event_loop():
            raise ClientStateError(
                f"{what}() would block the event loop that runs in this thread; write await "
                f"{what.replace('.blocking', '')}() there, or call it in a thread: anyio.to_thread.run_sync"
            )
        if self._process != os.getpid() and self._process:  # before the lock, which a fork may have left locked
            raise ForkedError(self._name(), self._process)
        if not self._is_open:
            raise self._closed(what)

    def hand_over(self, what: str, function: Callable[P, Awaitable[object]], *args: P.args, **kwargs: P.kwargs) -> None:
        """Have a coroutine function called, and wait for nothing; what it raises is lost. Raises as :meth:`call`."""
        self.check(what)
        self._put(_Call(what, partial(function, *args, **kwargs)))

    def _put(self, call: _Call) -> None:
        with self._lock:
            if not self._is_open:
                raise self._closed(call.what)
            self._line.append(call)
        if not self._wake_pending:
            self._wake_pending = True  # a race here costs one wake-up too many, never one too few
            try:
                self._call_soon(self._begin)
            except RuntimeError as error:  # the loop was closed with this still open
                self._is_open = False
                raise self._closed(call.what) from error

    def _give_up(self, call: _Call) -> None:
        call.given_up = True
        _waiting.discard(call.thread)
        try:
            self._call_soon(partial(self._cancel, call))
        except RuntimeError:  # the loop is gone
            return

    def _cancel(self, call: _Call) -> None:
        if call in self.under_way:
            call.cancel()

    def _closed(self, what: str) -> NotStartedError:
        return NotStartedError(self._name(), f"{what}() was not carried out")

    def _cut_short(self, what: str) -> ClientStateError:
        return ClientStateError(f"{self._name()} was closed while {what}() was under way: it may have been carried out")
