"""Blocking functions: on threads of a worker pool or of anyio's, so that the event loop goes on meanwhile.

The worker pool collects completions and brings them back into the loop by one wake-up for many of them;
``anyio.to_thread.run_sync`` costs about 43 us a call, this under 1 us.

:func:`blocking_in_loop` has all blocking functions run in the loop instead, each when its argument says: a simulation
has no threads, whose order no seed decides.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import anyio.to_thread

from rocketbox.errors import NotStartedError
from rocketbox.loops import call_soon_from_thread, outside_of_loops
from rocketbox.waiters import Waiter, make_waiter

__all__ = ["WorkerPool", "blocking_in_loop", "run_blocking"]

_log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")
Later = Callable[[Callable[[], object]], object]

_later: contextvars.ContextVar[Later | None] = contextvars.ContextVar("later", default=None)


@contextmanager
def blocking_in_loop(later: Later) -> Iterator[None]:
    """Blocking functions of the tasks and pools that are started inside run in the loop, each as ``later`` calls it.

    ``later(call)`` is to return at once and to have ``call`` called in the loop after the time that it is to take.
    """
    token = _later.set(later)
    try:
        yield
    finally:
        _later.reset(token)


async def run_blocking(function: Callable[..., ResultT], *args: Any) -> ResultT:
    """The result of ``function(*args)``, which runs in one of anyio's threads; for what is called seldom.

    A cancellation waits for its end, so that nothing is written behind the back of who cancelled it.
    """
    later = _later.get()
    if later is None:
        return await anyio.to_thread.run_sync(function, *args)
    waiter = make_waiter()
    later(lambda: _hand_over(waiter, *_outcome(partial(function, *args))))
    with anyio.CancelScope(shield=True):
        result: ResultT = await waiter
    return result


class _Job:
    """One function in the pool's line. Its thread looks at ``given_up`` before it begins."""

    __slots__ = ("call", "given_up", "waiter")

    def __init__(self, waiter: Waiter, call: Callable[[], Any]) -> None:
        self.waiter = waiter
        self.call = call
        self.given_up = False


class WorkerPool:
    """Threads for blocking functions. ``async with WorkerPool(20, "desk") as pool: await pool.run(function, ...)``.

    At most ``threads`` functions run at once; others wait in line. Each runs in a copy of the caller's context.
    Cancelling the awaiting task leaves a function that runs running to its end, its result is dropped; one that does
    not run yet is never begun. Leaving the block waits for the functions that already run and drops those that do not
    (NotStartedError for who awaits them); cancelling that wait leaves them to their threads, which do not keep the
    process alive. A stop that must come through shields the wait and bounds it.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._count = threads
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._finished: deque[tuple[Waiter, Any, BaseException | None]] = deque()
        self._wake_pending = False
        self._threads: list[threading.Thread] = []
        self._call_soon: Callable[[Callable[[], object]], object] | None = None
        self._later: Later | None = None
        self._stopping = False
        self._alive = 0
        self._ended = anyio.Event()

    async def __aenter__(self) -> Self:
        self._call_soon = call_soon_from_thread()
        self._later = _later.get()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        for _ in self._threads:
            self._jobs.put(None)
        self._begin_in_loop()  # drops what waits
        while self._alive:  # not by joining: a thread that waits in join() would itself keep the process alive
            self._ended = anyio.Event()
            await self._ended.wait()

    async def run(self, function: Callable[..., ResultT], *args: Any) -> ResultT:
        """The result of ``function(*args)``, which runs in a thread of the pool; raises what it raises."""
        if self._call_soon is None or self._stopping:
            raise self._closed()
        waiter = make_waiter()
        context = outside_of_loops()
        job = _Job(waiter, lambda: context.run(function, *args))
        self._jobs.put(job)
        if self._later is not None:
            self._begin_in_loop()
        elif len(self._threads) < self._count:
            self._start_thread()
        try:
            result: ResultT = await waiter
        finally:
            job.given_up = True  # means something only when this was cancelled
        return result

    def _closed(self) -> NotStartedError:
        return NotStartedError(f"worker pool {self._name}")

    def _start_thread(self) -> None:
        thread = threading.Thread(
            target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True
        )  # daemon: a function that never returns must not keep the process alive after a stop that timed out
        self._threads.append(thread)
        self._alive += 1
        thread.start()

    def _work(self) -> None:
        assert self._call_soon is not None
        while (job := self._jobs.get()) is not None:
            if job.given_up:
                continue
            result, failure = (None, self._closed()) if self._stopping else _outcome(job.call)
            self._finished.append((job.waiter, result, failure))
            if not self._wake_pending:  # a race here costs one wake-up too many, never one too few
                self._wake_pending = True
                if not self._tell_loop(self._deliver):
                    return
        self._tell_loop(self._thread_ended)

    def _begin_in_loop(self) -> None:
        """Without threads: as many functions are under way as there would be threads."""
        while self._later is not None and self._alive < self._count and not self._jobs.empty():
            job = self._jobs.get_nowait()
            if job is None or job.given_up:
                continue
            if self._stopping:
                _hand_over(job.waiter, None, self._closed())
                continue
            self._alive += 1
            self._later(partial(self._end_in_loop, job))

    def _end_in_loop(self, job: _Job) -> None:
        _hand_over(job.waiter, *_outcome(job.call))
        self._thread_ended()
        self._begin_in_loop()

    def _tell_loop(self, callback: Callable[[], object]) -> bool:
        assert self._call_soon is not None
        try:
            self._call_soon(callback)
        except RuntimeError:
            _log.debug("the loop of worker pool %s is gone; a result is dropped", self._name)
            return False
        return True

    def _thread_ended(self) -> None:
        self._alive -= 1
        self._ended.set()

    def _deliver(self) -> None:
        self._wake_pending = False  # before emptying, so that a completion added meanwhile wakes again
        while self._finished:
            _hand_over(*self._finished.popleft())


def _hand_over(waiter: Waiter, result: Any, error: BaseException | None) -> None:
    if waiter.done():  # cancelled meanwhile
        return
    if error is not None:
        waiter.set_exception(error)
    else:
        waiter.set_result(result)


def _outcome(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except StopIteration as error:  # no future takes it, for it would end the coroutine that awaits
        replaced = RuntimeError("the function raised StopIteration")
        replaced.__cause__ = error
        return None, replaced
    except BaseException as error:  # whatever it is belongs to the awaiting task
        return None, error
