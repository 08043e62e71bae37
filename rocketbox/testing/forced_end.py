"""The end of coroutines by force: of what has gone on although it was cancelled, and would go on in the next test.

A coroutine is closed as if its task did it. Where that waits for other tasks (``await``, ``gather``, a task group),
these come first: who waits for them hears of their end as ever, and mostly comes to its own by that.

Nothing ends code that catches whatever is raised in it, and goes on. It is left where it stands: its task counts as
cancelled for all who wait for it, and never runs again.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import inspect
from asyncio import tasks as asyncio_tasks
from collections import Counter
from collections.abc import Callable, Container, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from enum import Enum, auto
from typing import Any

from rocketbox.testing.loop_turns import (
    awaited_by,
    is_in_thread_of_anyios,
    tasks_waited_for,
    users_coroutine,
    with_contexts,
)

__all__ = ["Force", "end_by_force", "leave_behind", "unheard_steps"]

MOST_CLOSINGS = 10  # of one task: it may try so often to do what it is closed in
MOST_AWAITS = 100  # at which a generator is ended, one after the other: it may wait in a ``finally``
STEP_OF_A_GENERATOR = frozenset({"async_generator_asend", "async_generator_athrow"})
STEP_OF_A_DONE_TASK = "_step(): already done"


class Force(Enum):
    """What became of it."""

    NEEDLESS = auto()  # it waits for a thread of anyio's, and ends when that does
    TAKEN = auto()
    IGNORED = auto()  # by something inside of it, which was left where it stands


def end_by_force(
    task: asyncio.Task[Any],
    awaited: Any,
    among: Container[asyncio.Task[Any]],
    ended: set[asyncio.Task[Any]],
    closings: Counter[asyncio.Task[Any]],
    context_of: Callable[[asyncio.Task[Any]], Context],
) -> Force:
    """End what a task is at, or what those are at that it waits for; one that has ignored it too often is left behind.

    ``awaited`` is the coroutine that is looked at instead of the task's whole one. Tasks that are not ``among`` these
    are somebody else's, and are left alone. ``ended`` are those that were ended so just before, and have not had a turn
    of the loop since; who waits for them is left alone as well. ``closings`` counts how often each was ended so.
    ``context_of`` gives the context that a task runs in.
    """
    force = Force.NEEDLESS
    for each, coroutine in list(_innermost(task, awaited, among, ended, set())):
        ended.add(each)
        closings[each] += 1
        if closings[each] > MOST_CLOSINGS:
            leave_behind(each)
            force = Force.IGNORED
            continue
        if force is Force.NEEDLESS and not is_in_thread_of_anyios(coroutine):
            force = Force.TAKEN
        inside = [inner for inner, _ in awaited_by(coroutine)]
        with suppress(BaseException):  # it has ignored even that, or raises what nobody would hear
            _close_in(each, coroutine, _context_in(each, coroutine, context_of(each)))
        for inner in inside:
            if inner is not coroutine and _is_suspended(inner):
                force = Force.IGNORED
                _keep(inner)
        if each is not task or awaited is None:
            each.cancel()  # what it waits for may never come now
            each.add_done_callback(_hear)
    return force


def _is_suspended(awaited: Any) -> bool:
    """Whether a coroutine or a generator stands at an ``await``."""
    if inspect.isasyncgen(awaited):
        return awaited.ag_await is not None
    if inspect.isgenerator(awaited):
        return inspect.getgeneratorstate(awaited) == inspect.GEN_SUSPENDED
    return inspect.iscoroutine(awaited) and inspect.getcoroutinestate(awaited) == inspect.CORO_SUSPENDED


def _keep(left: object) -> None:
    """For good: Python closes the coroutine that nobody has any more, at the end of the process too. One that ignores
    it is told of as an error, and where no loop runs it may never come to its next ``await``."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(left))


def leave_behind(task: asyncio.Task[Any]) -> None:
    """Have a task count as cancelled and never run again."""
    future: Any = getattr(task, "_fut_waiter", None)
    for callback, _ in list(getattr(future, "_callbacks", None) or ()):
        if any(other is task for other in gc.get_referents(callback)):
            future.remove_done_callback(callback)
    as_future: Any = next(kind for kind in type(task).__mro__ if kind.__name__ == "Future")  # C's, or Python's own
    as_future.cancel(task)  # as a task it would let its coroutine know
    _keep(task)


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
    """The tasks that wait for no other one, each with the outermost coroutine of the user's own in it."""
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
    if not found and not task.done() and (coroutine := users_coroutine(work)) is not None:
        yield task, coroutine


def _context_in(task: asyncio.Task[Any], coroutine: Any, context: Context) -> Context:
    """That in which a coroutine runs which a task in this context is at: a handler has one of its own."""
    found = (its_own for each, _, its_own in with_contexts(task.get_coro(), context) if each is coroutine)
    return next(found, context)


def _close_in(task: asyncio.Task[Any], coroutine: Coroutine[Any, Any, Any], context: Context) -> None:
    """Close a coroutine that a task is at, as if the task did it: scopes of anyio's, and values of context variables,
    are left by who entered them."""
    here = asyncio.current_task()
    assert here is not None
    loop = task.get_loop()
    asyncio_tasks._leave_task(loop, here)
    asyncio_tasks._enter_task(loop, task)
    try:
        for step, its_context in reversed(list(_steps_of_generators(coroutine, context))):
            with suppress(BaseException):  # by the end of the coroutine a generator is left as it is
                for _ in range(MOST_AWAITS):
                    its_context.run(step.throw, GeneratorExit())
        context.run(coroutine.close)
    finally:
        asyncio_tasks._leave_task(loop, task)
        asyncio_tasks._enter_task(loop, here)


def _steps_of_generators(coroutine: Any, context: Context) -> Iterator[tuple[Any, Context]]:
    """What the code awaits that iterates over asynchronous generators, the outermost first, each with its context."""
    for each, _, its_context in with_contexts(coroutine, context):
        if inspect.iscoroutine(each) or inspect.isasyncgen(each):
            inner = each.cr_await if inspect.iscoroutine(each) else each.ag_await
            if type(inner).__name__ in STEP_OF_A_GENERATOR:
                yield inner, its_context


def _hear(task: asyncio.Task[Any]) -> None:
    """Hear of the error of a task whose coroutine was closed, which nobody else may do."""
    if not task.cancelled():
        task.exception()
