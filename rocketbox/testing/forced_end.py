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
from types import FrameType
from typing import Any

from rocketbox.testing.loop_turns import (
    is_in_thread_of_anyios,
    is_users_frame,
    tasks_waited_for,
    with_contexts,
)
from rocketbox.testing.raised_within import raise_within

__all__ = ["Force", "end_by_force", "leave_behind", "unheard_steps"]

MOST_CLOSINGS = 10  # of one task: it may try so often to do what it is closed in
MOST_AWAITS = 100  # at which a generator is ended, one after the other: it may wait in a ``finally``
STEP_OF_A_DONE_TASK = "_step(): already done"


class Force(Enum):
    """What became of it."""

    NEEDLESS = auto()  # it waits for a thread of anyio's, and ends when that does
    TAKEN = auto()
    IGNORED = auto()  # by something inside of it, which catches whatever is raised


def end_by_force(
    task: asyncio.Task[Any],
    awaited: Any,
    among: Container[asyncio.Task[Any]],
    ended: set[asyncio.Task[Any]],
    closings: Counter[asyncio.Task[Any]],
    context_of: Callable[[asyncio.Task[Any]], Context],
) -> Force:
    """End what a task is at, or what those are at that it waits for.

    ``awaited`` is the coroutine that is looked at instead of the task's whole one. Tasks that are not ``among`` these
    are somebody else's, and are left alone. ``ended`` are those that were ended so just before, and have not had a turn
    of the loop since; who waits for them is left alone as well. ``closings`` counts how often each was ended so: one
    that has gone on too often is broken off, or left behind.
    ``context_of`` gives the context that a task runs in.
    """
    force = Force.NEEDLESS
    for each, work in list(_innermost(task, awaited, among, ended, set())):
        parts = _parts_of(each, work, context_of(each))
        if not parts:
            continue
        ended.add(each)
        closings[each] += 1
        if force is Force.NEEDLESS and not is_in_thread_of_anyios(parts[0].code):
            force = Force.TAKEN
        with _as_task(each):
            _close(parts)
            going_on = [part for part in parts[1:] if part.is_suspended]
            if closings[each] > MOST_CLOSINGS:
                going_on += _parts_of(each, work, context_of(each))
            for part in reversed(going_on):
                if _break_off(part):
                    force = Force.IGNORED
        if closings[each] > MOST_CLOSINGS and parts[0].is_suspended:
            leave_behind(each)
        elif not parts[0].is_suspended and each.get_coro() in (parts[0].code, parts[0].step):
            _count_as_cancelled(each)  # nothing of it is left
        elif each is not task or awaited is None:
            each.cancel()  # what it waits for may never come now
            each.add_done_callback(_hear)
    return force


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


def _break_off(part: _Part) -> bool:
    """End what has ignored that; whether it, or what it awaits meanwhile, catches whatever is raised in it."""
    is_stubborn = False

    def throw(error: BaseException) -> None:
        nonlocal is_stubborn
        for inner in reversed(list(_parts(part.code, part.context))[1:]):
            is_stubborn = _break_off(inner) or is_stubborn
        for awaited in gc.get_referents(part.awaits):
            if asyncio.isfuture(awaited):
                awaited.add_done_callback(_hear)
        part.throw(error)

    for _ in range(MOST_CLOSINGS):
        if not part.is_suspended:
            return is_stubborn
        with suppress(BaseException):
            throw(GeneratorExit())
    if not part.is_suspended:
        return is_stubborn
    if not is_users_frame(part.frame) or not raise_within(part.frame, throw, lambda: not part.is_suspended):
        _keep(part.code)
    if inspect.isasyncgen(part.code):  # the loop would ask it again to close itself, and say that it runs
        getattr(asyncio.get_running_loop(), "_asyncgens", set()).discard(part.code)
    return True


def _keep(left: object) -> None:
    """For good: Python closes the coroutine that nobody has any more, at the end of the process too. One that ignores
    it is told of as an error, and where no loop runs it may never come to its next ``await``."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(left))


def leave_behind(task: asyncio.Task[Any]) -> None:
    """Have a task count as cancelled and never run again."""
    _count_as_cancelled(task)
    _keep(task)


def _count_as_cancelled(task: asyncio.Task[Any]) -> None:
    future: Any = getattr(task, "_fut_waiter", None)
    for callback, _ in list(getattr(future, "_callbacks", None) or ()):
        if any(other is task for other in gc.get_referents(callback)):
            future.remove_done_callback(callback)
    as_future: Any = next(kind for kind in type(task).__mro__ if kind.__name__ == "Future")  # C's, or Python's own
    as_future.cancel(task)  # as a task it would let its coroutine know


@contextmanager
def unheard_steps() -> Iterator[None]:
    """The loop says nothing of the step that a task had before it when it was left behind."""
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, asyncio.InvalidStateError) and STEP_OF_A_DONE_TASK in str(error):
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


def _innermost(
    task: asyncio.Task[Any],
    awaited: Any,
    among: Container[asyncio.Task[Any]],
    ended: set[asyncio.Task[Any]],
    seen: set[asyncio.Task[Any]],
) -> Iterator[tuple[asyncio.Task[Any], Any]]:
    """The tasks that wait for no other one, each with what is looked at in it."""
    if task in ended or task in seen:
        return
    seen.add(task)
    work = task.get_coro() if awaited is None else awaited
    found = False
    for other in tasks_waited_for(task, work):
        found = found or other in ended
        for each in _innermost(other, None, among, ended, seen) if other in among else ():
            found = True
            yield each
    if not found and not task.done():
        yield task, work


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
