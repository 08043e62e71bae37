"""Which event loop runs here: its name, its options, and how what is outside of its tasks reaches it.

The one module, with ``waiters`` and the asyncio driver of ``remoting``, that looks below anyio.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar

import anyio
from anyio._core._eventloop import claim_worker_thread, get_async_backend, threadlocals
from anyio.abc import AsyncBackend

_library: contextvars.ContextVar[str | None] | None
try:
    from sniffio import current_async_library_cvar
except ImportError:  # then anyio looks at asyncio itself
    _library = None
else:
    _library = current_async_library_cvar

__all__ = [
    "HomeLoop",
    "at_interpreter_end",
    "call_soon_from_thread",
    "callbacks_in_asyncio",
    "context_of_callbacks",
    "coroutines_from_thread",
    "in_event_loop",
    "is_cancelled",
    "loop_name",
    "loop_options",
    "is_coroutine_function",
    "mark_coroutine_function",
    "never_closed",
    "outside_of_loops",
    "run_loop",
    "spawner",
    "threads_of_this_loop",
]

ResultT = TypeVar("ResultT")


def in_event_loop() -> bool:
    """Whether an event loop runs in this thread, which a blocking call would stop."""
    if asyncio._get_running_loop() is not None:
        return True
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())


def is_cancelled(*, as_task: bool = False) -> bool:
    """Whether a scope around what runs here is cancelled; ``as_task``: or its task is (asyncio)."""
    if anyio.current_effective_deadline() == -math.inf:
        return True
    try:
        task = asyncio.current_task() if as_task else None
    except RuntimeError:  # no loop of asyncio's
        return False
    return task is not None and task.cancelling() > 0


class HomeLoop:
    """The event loop in which something was started, and the only one in which it may be used.

    Fast path: who has it compares ``thread``, which is 0 without a loop, with ``threading.get_ident()`` before each
    use, calls ``runs``, and asks :meth:`is_here` where either says no. That takes 0.08 us, of which 0.05 are for loops
    that take turns in one thread; a look at the loop that runs takes 0.17 (a send takes 10 us).
    """

    __slots__ = ("_loop", "name", "runs", "thread")

    def __init__(self) -> None:
        self._loop: object | None = None
        self.thread = 0
        """Where the loop was seen to run last."""
        self.name = ""
        """That of the thread in which it was started."""
        self.runs: Callable[[], bool] = bool
        """Whether the loop runs now, wherever; one that stands still lets another one run in its thread."""

    def begin(self) -> None:
        """It is the loop that runs here, from now on."""
        self._loop = loop = _loop_here()
        self.runs = loop.is_running if isinstance(loop, asyncio.AbstractEventLoop) else _always
        self.thread, self.name = threading.get_ident(), threading.current_thread().name

    def end(self) -> None:
        """There is none any more."""
        self._loop, self.thread = None, 0

    def is_here(self) -> bool:
        """Whether it is the loop that runs here; another thread may run it later than the one that began."""
        if self._loop is None or self.is_other():
            return False
        self.thread = threading.get_ident()
        return True

    def is_over(self) -> bool:
        """Whether it will never run again; of trio's it is not known."""
        return isinstance(self._loop, asyncio.AbstractEventLoop) and self._loop.is_closed()

    def is_other(self) -> bool:
        """Whether another loop runs here than the one that it is: asked exactly, also where that one is closed."""
        return self._loop is not None and _loop_here() is not self._loop


def _always() -> bool:
    return True


def _loop_here() -> object | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        trio = sys.modules.get("trio")
        return trio.lowlevel.current_trio_token() if trio is not None and trio.lowlevel.in_trio_run() else None


def never_closed() -> tuple[type, ...]:
    """Types of objects that must be neither entered nor closed by who has them: locks, scopes, event loops."""
    kinds = [asyncio.Lock, asyncio.Semaphore, asyncio.Condition, asyncio.Barrier, asyncio.AbstractEventLoop]
    kinds += [anyio.ResourceGuard, anyio.CancelScope]
    trio: Any = sys.modules.get("trio")
    for library in (anyio, trio):
        if library is not None:
            kinds += [library.Lock, library.Semaphore, library.Condition, library.CapacityLimiter]
    if trio is not None:
        kinds += [trio.StrictFIFOLock, trio.CancelScope]
    return tuple(kinds)


def loop_options() -> dict[str, Any]:
    """``backend_options`` for ``anyio.run``: uvloop where it is installed.

    A send that is awaited takes a sixth less processor time under it, consuming a twentieth (benchmarks "send, one at
    a time" and "push consume").
    """
    return {"use_uvloop": True} if sys.platform != "win32" and find_spec("uvloop") is not None else {}


def run_loop(function: Callable[[], Awaitable[ResultT]], **options: Any) -> ResultT:
    """``anyio.run`` for a loop in a thread, which may come to its end together with the interpreter.

    Closing a loop takes a thread, for what was called in threads of its own, and newer Pythons start none at their end.
    By then the function has done all of its work.
    """
    results: list[ResultT] = []

    async def main() -> None:
        results.append(await function())

    try:
        anyio.run(main, backend_options=options)
    except RuntimeError as error:
        if not results or not at_interpreter_end(error):
            raise
    return results[0]


def at_interpreter_end(error: RuntimeError) -> bool:
    """Whether a thread could not be started because the interpreter ends: newer Pythons start none then."""
    return "interpreter shutdown" in str(error)


def loop_name() -> str:
    """What runs here: ``asyncio``, ``uvloop``, ``trio``, or the package of whatever loop it is."""
    try:
        return type(asyncio.get_running_loop()).__module__.partition(".")[0]
    except RuntimeError:
        return "trio"


@contextmanager
def callbacks_in_asyncio() -> Iterator[None]:
    """What the loop calls back, of the transports that are made inside, may use anyio.

    Where sniffio is installed anyio asks it which loop runs, and outside of tasks sniffio knows only what it was told:
    ``anyio.run`` tells it, ``asyncio.run`` and web servers do not.
    """
    if _library is None:
        yield
        return
    token = _library.set("asyncio")
    try:
        yield
    finally:
        _library.reset(token)


def context_of_callbacks() -> contextvars.Context:
    """A copy of the caller's context in which callbacks of the loop that runs here may use anyio.

    For what the loop calls outside of tasks and transports, see :func:`callbacks_in_asyncio`.
    """
    context = contextvars.copy_context()
    if _library is not None and asyncio._get_running_loop() is not None:
        context.run(_library.set, "asyncio")
    return context


def mark_coroutine_function(function: Callable[..., Any]) -> None:
    """Let a plain function that returns coroutines be taken for a coroutine function: by mocks and web frameworks.

    Python 3.11 has no public mark; its asyncio, which both ask there, knows one.
    """
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(function)
    else:
        function._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]


def is_coroutine_function(function: object) -> bool:
    """Whether calls of it are coroutines: of an ``async def``, or of one that is marked as such."""
    return (
        inspect.iscoroutinefunction(function) if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction(function)
    )


def call_soon_from_thread() -> Callable[[Callable[[], object]], object]:
    """A function which, called from any thread, runs its argument in the loop that runs here, soon.

    Not in the context of the thread, in which no loop runs, but in one of this loop.
    """
    try:
        call_soon = asyncio.get_running_loop().call_soon_threadsafe
        return partial(call_soon, context=context_of_callbacks())
    except RuntimeError:
        import trio.lowlevel  # only trio is left; it is a dependency of tests, not of the library

        return trio.lowlevel.current_trio_token().run_sync_soon


def threads_of_this_loop() -> Callable[[], AbstractContextManager[None]]:
    """What a thread enters to be one of the loop that runs here: ``anyio.from_thread`` calls into it from there then.

    For threads that anyio has not started itself, which it has no public way to tell it of. Not under trio, whose own
    calls from threads know trio's own threads only.
    """
    backend = get_async_backend()
    return partial(_of_loop, backend, backend.current_token())


@contextmanager
def _of_loop(backend: type[AsyncBackend], token: object) -> Iterator[None]:
    with claim_worker_thread(backend, token):
        threadlocals.current_cancel_scope = None  # of who awaits the thread's work: it is not cancelled by that
        try:
            yield
        finally:
            del threadlocals.current_cancel_scope


def spawner() -> Callable[[Callable[[], Coroutine[Any, Any, None]], contextvars.Context], Callable[[], object]]:
    """A function which runs a coroutine function as a task of the loop that runs here, and returns what cancels it.

    It is called in the loop, in a callback as well, with the context that the task is to have. Whoever calls it owns
    the task: it holds what is returned until the task ends, and sees to it that it raises nothing. A task group's
    ``start_soon`` takes twice as long, and knows no loop where callbacks have the context of a thread (benchmark
    "blocking sends").
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _spawn_in_trio

    def spawn(function: Callable[[], Coroutine[Any, Any, None]], context: contextvars.Context) -> Callable[[], object]:
        return loop.create_task(function(), context=context).cancel

    return spawn


def _spawn_in_trio(
    function: Callable[[], Coroutine[Any, Any, None]], context: contextvars.Context
) -> Callable[[], object]:
    import trio  # as above

    scope = trio.CancelScope()

    async def run() -> None:
        with scope:
            await function()

    trio.lowlevel.spawn_system_task(run, context=context)
    return scope.cancel


def coroutines_from_thread() -> Callable[[], list[Coroutine[Any, Any, Any]]]:
    """A function which, called from any thread, lists what the tasks of the loop that runs here are made of.

    That of the task which runs here comes first. Under trio there are none.
    """
    try:
        loop, here = asyncio.get_running_loop(), asyncio.current_task()
    except RuntimeError:
        return list

    def coroutines() -> list[Coroutine[Any, Any, Any]]:
        tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task is not here)
        return [each for task in tasks if isinstance(each := task.get_coro(), Coroutine)]

    return coroutines


def outside_of_loops() -> contextvars.Context:
    """A copy of the caller's context in which no loop runs: a function in a thread may start one of its own."""
    context = contextvars.copy_context()
    if _library is not None:
        context.run(_library.set, None)
    return context
