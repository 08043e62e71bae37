"""The end of coroutines by force: of what has gone on although it was cancelled, and would go on in the next test.

A coroutine is closed as if its task did it. Where that waits for other tasks (``await``, ``gather``, a task group),
these come first: who waits for them hears of their end as ever, and mostly comes to its own by that.

Code that catches whatever is raised in it, and goes on, is ended at a line that no ``try`` surrounds. If there is none,
it is left where it stands: its task counts as cancelled for all who wait for it, and never runs again.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import inspect
from asyncio import tasks as asyncio_tasks
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from enum import Enum, auto
from types import CodeType, FrameType
from typing import Any

from rocketbox.testing.loop_turns import (
    is_in_thread_of_anyios,
    is_users_frame,
    tasks_waited_for,
    with_contexts,
)
from rocketbox.testing.raised_within import raise_at

__all__ = ["Force", "ForcedEnd", "leave_behind", "unheard_steps"]

MOST_CLOSINGS = 10  # of one task: it may try so often to do what it is closed in
MOST_AWAITS = 100  # at which a generator is ended, one after the other: it may wait in a ``finally``
MOST_LINES = 50  # at which one that catches all is tried to be ended
STEP_OF_A_DONE_TASK = "_step(): already done"
STEP_OF_A_CLOSED_ONE = "cannot reuse already awaited coroutine"


class Force(Enum):
    """What became of it."""

    NEEDLESS = auto()  # it waits for a thread of anyio's, and ends when that does
    TAKEN = auto()
    IGNORED = auto()  # by something inside of it, which catches whatever is raised


class ForcedEnd:
    """Ends what goes on, in one round after the other. ``context_of(task)`` is the context that a task runs in."""

    def __init__(self, context_of: Callable[[asyncio.Task[Any]], Context]) -> None:
        self._context_of = context_of
        self._closings = Counter[asyncio.Task[Any]]()  # how often each was closed: one may be long in ending
        self._lines: dict[tuple[CodeType, int], int] = {}
        """Of code that catches all, and where it waits: which line from there ends it, counted from 1; 0: none does."""

    def end(
        self,
        task: asyncio.Task[Any],
        awaited: Any,
        among: Container[asyncio.Task[Any]],
        ended: set[asyncio.Task[Any]],
    ) -> Force:
        """End what a task is at, or what those are at that it waits for.

        ``awaited`` is the coroutine that is looked at instead of the task's whole one. Tasks that are not ``among``
        these are somebody else's, and are left alone. ``ended`` are those that were ended so in this round, and have
        not had a turn of the loop since; who waits for them is left alone as well.
        """
        force = Force.NEEDLESS
        for each, parts in list(self._innermost(task, awaited, among, ended, set())):
            outermost = parts[0]
            ended.add(each)
            self._closings[each] += 1
            is_too_often = self._closings[each] > MOST_CLOSINGS
            if force is Force.NEEDLESS and not is_in_thread_of_anyios(outermost.code):
                force = Force.TAKEN
            with _as_task(each):
                _close(parts)
                for part in (*([outermost] if is_too_often else []), *reversed(parts[1:])):
                    if part.is_suspended and self._break_off(part):
                        force = Force.IGNORED
            if is_too_often and outermost.is_suspended:
                leave_behind(each)
            elif is_too_often and each.get_coro() in (outermost.code, outermost.step):
                _count_as_cancelled(each)  # nothing of it is left
            elif each is not task or awaited is None:
                each.cancel()  # what it waits for may never come now
                each.add_done_callback(_hear)
        return force

    def _innermost(
        self,
        task: asyncio.Task[Any],
        awaited: Any,
        among: Container[asyncio.Task[Any]],
        ended: set[asyncio.Task[Any]],
        seen: set[asyncio.Task[Any]],
    ) -> Iterator[tuple[asyncio.Task[Any], list[_Part]]]:
        """The tasks with code of the user's own that wait for no other one of these, each with what it is at."""
        if task in ended or task in seen:
            return
        seen.add(task)
        work = task.get_coro() if awaited is None else awaited
        found = False
        for other in tasks_waited_for(task, work):
            found = found or other in ended
            for each in self._innermost(other, None, among, ended, seen) if other in among else ():
                found = True
                yield each
        if not found and not task.done() and (parts := _parts_of(task, work, self._context_of(task))):
            yield task, parts

    def _break_off(self, part: _Part) -> bool:
        """End what has ignored that, as far as it can be; whether it, or what it awaits meanwhile, catches whatever is
        raised in it."""
        if inspect.isasyncgen(part.code):  # the loop would ask it again to close itself, and say that it runs
            getattr(asyncio.get_running_loop(), "_asyncgens", set()).discard(part.code)
        frame, is_stubborn = part.frame, False
        known = self._lines.get((frame.f_code, frame.f_lasti))
        for number in _numbers(known, at_lines=is_users_frame(frame)):
            inner = list(_parts(part.code, part.context))[1:]
            for each in reversed(inner):
                if each.is_suspended and self._break_off(each):
                    is_stubborn = True
            if any(each.is_suspended for each in inner):
                break  # nothing comes through to it
            here = frame.f_code, frame.f_lasti
            lines = _throw_at(number, part)
            if not part.is_suspended:
                if number:
                    self._lines[here] = number
                return is_stubborn or number > 0
            if number not in (0, known) and lines < number:  # it waits again, and all of its lines were tried
                self._lines[here] = 0
                break
        _keep(part.code)
        return True


@dataclass(frozen=True, eq=False)
class _Part:
    """A coroutine or a generator that a task is at, or one of those that these await."""

    code: Any
    frame: FrameType
    context: Context
    step: Any  # of an asynchronous generator: what its next value is awaited by

    @property
    def is_suspended(self) -> bool:
        """Whether it stands at an ``await``."""
        if inspect.isasyncgen(self.code):
            return self.code.ag_await is not None
        if inspect.isgenerator(self.code):
            return inspect.getgeneratorstate(self.code) == inspect.GEN_SUSPENDED
        return inspect.getcoroutinestate(self.code) == inspect.CORO_SUSPENDED

    @property
    def awaits(self) -> Any:
        names = ("cr_await", "ag_await", "gi_yieldfrom")
        return next((found for name in names if (found := getattr(self.code, name, None)) is not None), None)

    def throw(self, error: BaseException) -> None:
        self.context.run(self.code.throw if self.step is None else self.step.throw, error)


def _parts_of(task: asyncio.Task[Any], work: Any, context: Context) -> list[_Part]:
    """What a task is at which runs in this context: of ``work``, or of what that awaits, the outermost that is the
    user's own, and all that this awaits in its turn."""
    whole = list(_parts(task.get_coro(), context))
    at = next((number for number, part in enumerate(whole) if part.code is work), None)
    parts = list(_parts(work, context)) if at is None else whole[at:]
    outermost = next((number for number, part in enumerate(parts) if is_users_frame(part.frame)), len(parts))
    return parts[outermost:]


def _parts(awaited: Any, context: Context) -> Iterator[_Part]:
    by = awaited
    for code, frame, its_context in with_contexts(awaited, context):
        part = _Part(code, frame, its_context, by if inspect.isasyncgen(code) else None)
        by = part.awaits
        yield part


def _close(parts: Sequence[_Part]) -> None:
    """Close the first of them, which closes the others. It may ignore that, or raise what nobody would hear."""
    for part in reversed(parts):
        if part.step is not None:  # by the end of what awaits it a generator is left as it is
            with suppress(BaseException):
                for _ in range(MOST_AWAITS):
                    part.throw(GeneratorExit())
    if parts[0].step is None:
        with suppress(BaseException):
            parts[0].context.run(parts[0].code.close)


def _numbers(known: int | None, *, at_lines: bool) -> Sequence[int]:
    """At which of its lines code is tried to be ended, one after the other; 0: plainly. One may be known to do."""
    if known == 0:
        return ()
    lines = range(1, MOST_LINES + 1) if at_lines else ()
    return (*[0] * MOST_CLOSINGS, *lines) if known is None else (known, *lines)


def _throw_at(number: int, part: _Part) -> int:
    """Throw an exception into it, and one more at that line, if it is not 0; how many lines it has come to then."""
    for awaited in gc.get_referents(part.awaits):
        if hasattr(awaited, "_children"):  # what asyncio.gather returns: nobody else hears of that
            awaited.add_done_callback(_hear)
    if number:
        return raise_at(number, part.frame, part.throw)
    with suppress(BaseException):
        part.throw(GeneratorExit())
    return 0


def _keep(left: object) -> None:
    """For good: Python closes the coroutine that nobody has any more, at the end of the process too. One that ignores
    it is told of as an error, and where no loop runs it may never come to its next ``await``."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(left))


def leave_behind(task: asyncio.Task[Any]) -> None:
    """Have a task count as cancelled and never run again."""
    _count_as_cancelled(task)
    _keep(task)


def _count_as_cancelled(task: asyncio.Task[Any]) -> None:
    """For all who wait for it; what it waits for itself wakes it no more."""
    future: Any = getattr(task, "_fut_waiter", None)
    for callback, _ in list(getattr(future, "_callbacks", None) or ()):
        if any(other is task for other in gc.get_referents(callback)):
            future.remove_done_callback(callback)
    as_future: Any = next(kind for kind in type(task).__mro__ if kind.__name__ == "Future")  # C's, or Python's own
    as_future.cancel(task)  # as a task it would let its coroutine know


@contextmanager
def unheard_steps() -> Iterator[None]:
    """The loop says nothing of the step that a task had before it when it was left behind, or its coroutine closed."""
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, asyncio.InvalidStateError) and STEP_OF_A_DONE_TASK in str(error):
            return
        if isinstance(error, RuntimeError) and str(error) == STEP_OF_A_CLOSED_ONE:
            return
        if before is None:
            loop.default_exception_handler(context)
        else:
            before(loop, context)

    loop.set_exception_handler(handle)
    try:
        yield
    finally:
        loop.set_exception_handler(before)


@contextmanager
def _as_task(task: asyncio.Task[Any]) -> Iterator[None]:
    """Be that task: scopes of anyio's are left by who entered them."""
    here = asyncio.current_task()
    assert here is not None
    loop = task.get_loop()
    asyncio_tasks._leave_task(loop, here)
    asyncio_tasks._enter_task(loop, task)
    try:
        yield
    finally:
        asyncio_tasks._leave_task(loop, task)
        asyncio_tasks._enter_task(loop, here)


def _hear(ended: asyncio.Future[Any]) -> None:
    """Hear of the error of what nobody else may hear of, as its coroutine, or that which awaited it, was closed."""
    if not ended.cancelled():
        ended.exception()
