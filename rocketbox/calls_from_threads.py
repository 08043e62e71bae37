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
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import anyio

from rocketbox.clock import Clock
from rocketbox.errors import ClientStateError, ForkedError, NotStartedError
from rocketbox.loops import call_soon_from_thread, context_of_callbacks, in_event_loop, spawner

__all__ = ["Call", "CallsFromThreads", "threads_waiting_for_loops"]

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

PATIENCE_AT_THE_END = 3.0  # seconds for calls that have begun; Apache's send timeout

_waiting: set[int] = set()


def threads_waiting_for_loops() -> set[int]:
    """The idents of the threads that wait for a call of theirs now: who has virtual time lets it pass for them."""
    return _waiting


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
        self.tell()

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


class UnderWay:
    """The calls that have begun."""

    def __init__(self, name: Callable[[], str]) -> None:
        self.name = name
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
        # Of the line and of whether it is open: none comes into a line that is closed. A handler of signals may call
        # while the thread that it interrupts is inside.
        self._lock = threading.RLock()
        self._is_open = False
        self._line: deque[Call] = deque()
        self.under_way = UnderWay(name)
        self._wake_pending = False
        self._process = 0
        self._spawn: Spawn
        self._call_soon: Callable[[Callable[[], object]], object]
        self._wake: Callable[[], object]

    # --- in the loop -------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._spawn = spawner()
        self._call_soon = call_soon_from_thread()
        self._wake = partial(context_of_callbacks().run, self._begin)  # not in that of a thread, where no loop runs
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
            call.tell()
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
        line, under_way = self._line, self.under_way
        while line:
            call = line.popleft()
            if not call.given_up:
                call.under_way = under_way
                under_way.calls.add(call)
                call.begin()

    # --- in threads --------------------------------------------------------------------------------------------------

    def call(self, what: str, function: Callable[P, Awaitable[ResultT]], *args: P.args, **kwargs: P.kwargs) -> ResultT:
        """The result of a coroutine function, which runs in the loop and in the caller's context variables.

        ``what`` is the call's name, for errors. Raises what it raises; NotStartedError, and nothing was done;
        ForkedError; ClientStateError where an event loop runs, which the wait would stop, and when the loop's side is
        closed before it has ended.
        """
        self.check(what)
        result: ResultT = self.wait_for(_Awaited(what, self._spawn, partial(function, *args, **kwargs)))
        return result

    def wait_for(self, call: Call) -> Any:
        """The result of a call, once it is done in the loop; what :meth:`check` would raise was asked before."""
        _waiting.add(call.thread)
        try:
            self._put(call)
            call.done.acquire()
        except BaseException:  # KeyboardInterrupt above all, in the main thread
            self._give_up(call)
            raise
        error, call.error = call.error, None  # the error's traceback holds the call: not the other way round, too
        if error is not None:
            try:
                raise error
            finally:
                del error, call  # which would hold this frame, by its traceback
        return call.result

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
        call = _Awaited(what, self._spawn, partial(function, *args, **kwargs))
        call.thread = 0  # none waits
        self._put(call)

    def _put(self, call: Call) -> None:
        with self._lock:
            if not self._is_open:
                raise self._closed(call.what)
            self._line.append(call)
        if not self._wake_pending:
            try:
                self._wake_pending = True  # a race here costs one wake-up too many, never one too few
                self._call_soon(self._wake)
            except RuntimeError as error:  # the loop was closed with this still open
                self._is_open = False
                raise self._closed(call.what) from error
            except BaseException:  # KeyboardInterrupt, and others may rely on this to have woken the loop
                self._call_soon(self._wake)
                raise

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
