"""Blocking functions: on threads of a worker pool or of anyio's, so that the event loop goes on meanwhile.

The worker pool collects completions and brings them back into the loop by one wake-up for many of them;
``anyio.to_thread.run_sync`` costs about 43 us a call, this under 1 us.

:func:`blocking_in_loop` has all blocking functions run in the loop instead, each when its argument says: a simulation
has no threads, whose order no seed decides.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from rocketbox.calls_from_threads import threads_waiting_for_loops
from rocketbox.errors import NotStartedError
from rocketbox.loops import at_interpreter_end, call_soon_from_thread, outside_of_loops, threads_of_this_loop
from rocketbox.waiters import Waiter, make_waiter

__all__ = [
    "BorrowedThreads",
    "Job",
    "WorkerPool",
    "blocking_in_loop",
    "look_blocking",
    "run_blocking",
    "run_briefly",
    "threads_in_use",
]

_log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")
Later = Callable[[Callable[[], object]], object]

_later: contextvars.ContextVar[Later | None] = contextvars.ContextVar("later", default=None)
SHORT_WORK = 8  # threads at most for short work
LAST_STEPS = 0.05  # seconds at most, mostly some microseconds: of a thread that has ended all of its work
_of_short_work: RunVar[anyio.CapacityLimiter] = RunVar("rocketbox_short_work")
_in_use: contextvars.ContextVar[list[WorkerPool | BorrowedThreads] | None] = contextvars.ContextVar(
    "in_use", default=None
)


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


class BorrowedThreads:
    """Those of anyio's that functions run in now, each until who awaits it knows of its end."""

    name = "rocketbox"

    def __init__(self) -> None:
        self._of_functions: list[Sequence[int]] = []
        """The thread of each function, none before one has begun it."""

    @contextmanager
    def borrowed(self, threads: Sequence[int]) -> Iterator[None]:
        """A function runs in a thread inside, whose ident is put into ``threads`` when it begins."""
        self._of_functions.append(threads)
        try:
            yield
        finally:
            self._of_functions[:] = (each for each in self._of_functions if each is not threads)

    @property
    def goes_on_by_itself(self) -> bool:
        """Whether a function runs, or waits for a thread, which does not wait for what it has called in a loop."""
        waiting = threads_waiting_for_loops()
        return any(waiting.isdisjoint(threads) for threads in self._of_functions)

    @property
    def busy_threads(self) -> list[int]:
        """Their idents."""
        return [ident for threads in self._of_functions for ident in threads]


@contextmanager
def threads_in_use() -> Iterator[list[WorkerPool | BorrowedThreads]]:
    """The threads of all that is started inside, or by tasks that are: those of pools that run, and anyio's."""
    in_use: list[WorkerPool | BorrowedThreads] = [BorrowedThreads()]
    token = _in_use.set(in_use)
    try:
        yield in_use
    finally:
        _in_use.reset(token)


def _borrowed(threads: Sequence[int]) -> AbstractContextManager[None]:
    """A function runs inside in one of anyio's threads: told to who looks at them, if anybody does."""
    for each in _in_use.get() or ():
        if isinstance(each, BorrowedThreads):
            return each.borrowed(threads)
    return nullcontext()


async def run_blocking(function: Callable[..., ResultT], *args: Any) -> ResultT:
    """The result of ``function(*args)``, which runs in one of anyio's threads; for what is called seldom.

    A cancellation waits for its end, so that nothing is written behind the back of who cancelled it.
    """
    later = _later.get()
    if later is None:
        return await _in_a_thread(function, args)
    waiter = make_waiter()
    job = _Call(waiter, function, args)

    def do() -> None:
        _do(job)
        job.ended()

    later(do)
    with anyio.CancelScope(shield=True):
        result: ResultT = await waiter
    return result


async def run_briefly(function: Callable[..., ResultT], *args: Any) -> ResultT:
    """As :func:`run_blocking`, for short work of rocketbox's own which others wait for, who may hold all threads that
    anyio gives away at once: it has some of its own.
    """
    if _later.get() is not None:
        return await run_blocking(function, *args)
    try:
        limiter = _of_short_work.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(SHORT_WORK)
        _of_short_work.set(limiter)
    return await _in_a_thread(function, args, limiter)


async def look_blocking(function: Callable[..., ResultT], *args: Any) -> ResultT:
    """As :func:`run_blocking`, for what only looks: a cancellation does not wait for its end, which is for nobody."""
    threads: list[int] = []  # as in _in_a_thread
    if _later.get() is not None:
        return await run_blocking(function, *args)

    def run() -> ResultT:
        threads.append(threading.get_ident())
        return function(*args)

    with _borrowed(threads):
        return await anyio.to_thread.run_sync(run, abandon_on_cancel=True)


async def _in_a_thread(
    function: Callable[..., ResultT], args: Sequence[Any], limiter: anyio.CapacityLimiter | None = None
) -> ResultT:
    call_soon = call_soon_from_thread()
    claim = threading.Lock()  # of who is first: the thread that begins, or a cancellation before it
    ended = anyio.Event()
    threads: list[int] = []  # the one that has begun; looked at by who has virtual time

    def run() -> ResultT:
        if not claim.acquire(blocking=False):
            raise RuntimeError("cancelled before it began")  # for nobody
        threads.append(threading.get_ident())
        try:
            return function(*args)
        finally:
            with suppress(RuntimeError):  # the loop may be gone
                call_soon(ended.set)

    cancelled = anyio.get_cancelled_exc_class()
    with _borrowed(threads):
        try:
            return await anyio.to_thread.run_sync(run, limiter=limiter)
        except RuntimeError as error:
            if not at_interpreter_end(error) or not claim.acquire(blocking=False):
                raise
            return function(*args)  # nobody else does it any more
        except cancelled:  # a task's own cancel(), as asyncio.timeout() calls it, comes through anyio's shield
            if not claim.acquire(blocking=False):
                with anyio.CancelScope(shield=True):
                    while not ended.is_set():
                        with suppress(cancelled):  # it may be cancelled more than once
                            await ended.wait()
            raise


class Job(ABC):
    """Something for a thread of a pool to do: :meth:`run` is called in the thread, :meth:`ended` in the loop later.

    Until a thread begins it, ``given_up`` keeps it from being begun; it does not end then. ``failure`` is what it
    raised.
    """

    __slots__ = ("failure", "given_up", "result")

    def __init__(self) -> None:
        self.given_up = False
        self.result: Any = None
        self.failure: BaseException | None = None

    @abstractmethod
    def run(self) -> Any:
        """Do it; in the thread."""

    @abstractmethod
    def ended(self) -> None:
        """Take ``result`` or ``failure``; in the loop."""


class _Call(Job):
    """A function that a task awaits."""

    __slots__ = ("_args", "_context", "_function", "_waiter")

    def __init__(self, waiter: Waiter, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        super().__init__()
        self._waiter = waiter
        self._function = function
        self._args = args
        self._context = outside_of_loops()

    def run(self) -> Any:
        return self._context.run(self._function, *self._args)

    def ended(self) -> None:
        _hand_over(self._waiter, self.result, self.failure)


class WorkerPool:
    """Threads for blocking functions. ``async with WorkerPool(20, "desk") as pool: await pool.run(function, ...)``.

    At most ``threads`` functions run at once; others wait in line. Each runs in a copy of the caller's context, and may
    call into the loop by ``anyio.from_thread.run``.
    Cancelling the awaiting task leaves a function that runs running to its end, its result is dropped; one that does
    not run yet is never begun. Leaving the block waits for the functions that already run and drops those that do not
    (NotStartedError for who awaits them); cancelling that wait leaves them to their threads, which do not keep the
    process alive. A stop that must come through shields the wait and bounds it.

    There is one line, and each thread takes one job of it at a time, so none waits for a slow one while a thread is
    idle. One idle thread is woken for a whole line, and wakes the next one before it begins, if there is more: quick
    functions are done by the first one before the second has run, slow ones let it run at once. Likewise who has ended
    a job and takes the next one leaves it to the thread that was just woken to tell the loop; where there is none, it
    does so itself.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._count = threads
        self._name = name
        self._jobs: deque[Job] = deque()
        self._finished: deque[Job] = deque()
        self._idle: deque[threading.Lock] = deque()  # each thread that has nothing to do waits for its own
        self._waking = False  # a thread was woken and has not run yet: it looks at the line, and at what is finished
        self._wake_pending = False
        self._threads: list[threading.Thread] = []
        self._call_soon: Callable[[Callable[[], object]], object] | None = None
        self._in_loop: Callable[[], AbstractContextManager[None]]
        self._later: Later | None = None
        self._stopping = False
        self._alive = 0
        self._lacking = False  # of threads, and that has been logged
        self._ended = anyio.Event()
        self._listed_in: list[WorkerPool | BorrowedThreads] | None = None
        self.context = contextvars.Context()
        """That in which the pool was started, without its loop: for jobs that bring none of their own."""
        self.on_delivered: Callable[[], object] = _nothing
        """Called in the loop after some jobs have ended there."""

    async def __aenter__(self) -> Self:
        self._call_soon = call_soon_from_thread()
        self._in_loop = threads_of_this_loop()
        self._later = _later.get()
        self.context = outside_of_loops()
        self._listed_in = _in_use.get()
        if self._listed_in is not None:
            self._listed_in.append(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True  # before idle threads are woken: one that is about to wait looks at it once more
        while self._idle:
            self._wake()
        self._begin_in_loop()  # drops what waits
        while self._alive:  # not by joining: a thread that waits in join() would itself keep the process alive
            self._ended = anyio.Event()
            await self._ended.wait()
        for thread in self._threads:  # each has told of its end, and has its last steps before it
            thread.join(LAST_STEPS)
            if thread.is_alive():  # what it kept for itself takes its time to end: nobody waits for that
                break
        if self._listed_in is not None:
            self._listed_in.remove(self)

    @property
    def name(self) -> str:
        return self._name

    @property
    def at_work(self) -> bool:
        """Whether a function runs in a thread, or waits for one, or has ended and the loop does not know it yet."""
        return bool(self._jobs or self._finished) or len(self._idle) < len(self._threads)

    @property
    def goes_on_by_itself(self) -> bool:
        """Whether it is at work, and not all of that waits for what its threads have called in a loop."""
        if self._finished or (self._jobs and len(self._threads) - len(self._idle) < self._count):
            return True
        waiting = threads_waiting_for_loops()
        waits = sum(thread.ident in waiting for thread in self._threads)
        return len(self._threads) - len(self._idle) > waits

    @property
    def busy_threads(self) -> list[int]:
        """The idents of its threads, while some of them are at work."""
        return [thread.ident for thread in self._threads if thread.ident is not None] if self.at_work else []

    async def run(self, function: Callable[..., ResultT], *args: Any) -> ResultT:
        """The result of ``function(*args)``, which runs in a thread of the pool; raises what it raises."""
        waiter = make_waiter()
        job = _Call(waiter, function, args)
        self.put((job,))
        try:
            result: ResultT = await waiter
        finally:
            job.given_up = True  # means something only when this was cancelled
        return result

    def put(self, jobs: Sequence[Job]) -> None:
        """Put jobs into the line, in their order. Raises NotStartedError before the start and after the end."""
        if self._call_soon is None or self._stopping:
            raise self._closed()
        self._jobs.extend(jobs)
        if self._later is not None:
            self._begin_in_loop()
            return
        if len(self._threads) < self._count:
            self._start_threads(min(len(jobs), self._count - len(self._threads)))
        if not self._waking and self._idle:
            self._wake()

    def take_back(self, kind: type[Job]) -> list[Job]:
        """Take all jobs of a kind out of the line: no thread has begun them, and none will."""
        taken: deque[Job] = deque()
        while self._jobs:
            try:
                taken.appendleft(self._jobs.pop())
            except IndexError:  # a thread was faster
                break
        others = [job for job in taken if not isinstance(job, kind)]
        if others:
            self.put(others)
        return [job for job in taken if isinstance(job, kind)]

    def _closed(self) -> NotStartedError:
        return NotStartedError(f"worker pool {self._name}")

    def _start_threads(self, count: int) -> None:
        """Start some more. Where the system gives none, the others do the work; where there are none, it fails."""
        for _ in range(count):
            thread = threading.Thread(
                target=self._live, name=f"{self._name}-{len(self._threads)}", daemon=True
            )  # daemon: a function that never returns must not keep the process alive after a stop that timed out
            try:
                thread.start()
            except RuntimeError as error:
                self._lack_threads(error)
                return
            self._threads.append(thread)
            self._alive += 1
        self._lacking = False

    def _lack_threads(self, error: RuntimeError) -> None:
        if not self._lacking and not at_interpreter_end(error):
            self._lacking = True
            _log.warning(
                "worker pool %s has %d of %d threads, and cannot start more (%s): raise the limit of processes or "
                "memory; it is tried again with what comes next",
                self._name, len(self._threads), self._count, error,
            )  # fmt: skip
        if self._threads:
            return
        while self._jobs:
            job = self._jobs.popleft()
            if not job.given_up:
                job.failure = RuntimeError(f"worker pool {self._name} has no thread: {error}")
                self._finished.append(job)
        self._tell_of_finished()

    # --- in a thread -------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        with self._in_loop():  # anyio.from_thread.run() works in functions
            self._work()

    def _work(self) -> None:
        jobs, finished = self._jobs, self._finished
        awake = threading.Lock()
        awake.acquire()
        while True:
            try:
                job = jobs.popleft()
            except IndexError:
                if not self._tell_of_finished():
                    return
                if self._stopping:
                    break
                self._wait_for_work(awake)
                if not self._tell_of_finished():
                    return
                continue
            if not self._waking:
                if jobs and self._idle:
                    self._wake()
                if finished and not self._waking and not self._tell_of_finished():
                    return  # the job, too, is nobody's any more
            if job.given_up:
                continue
            if self._stopping:
                job.failure = self._closed()
            else:
                _do(job)
            finished.append(job)
        self._tell_loop(self._thread_ended)

    def _wait_for_work(self, awake: threading.Lock) -> None:
        idle = self._idle
        idle.append(awake)
        if self._jobs or self._stopping:  # put there before this thread could be woken for it
            try:
                idle.remove(awake)
            except ValueError:
                pass  # woken meanwhile
            else:
                return
        awake.acquire()
        self._waking = False

    def _wake(self) -> None:
        """Wake one idle thread, if there is one. Called in the loop, too."""
        try:
            awake = self._idle.pop()
        except IndexError:
            return
        self._waking = True  # only now, that a thread is sure to run and to take it back
        awake.release()

    def _tell_of_finished(self) -> bool:
        """Have the loop fetch what is finished; whether there is a loop."""
        if not self._finished or self._wake_pending:
            return True
        self._wake_pending = True  # a race here costs one wake-up too many, never one too few
        return self._tell_loop(self._deliver)

    def _tell_loop(self, callback: Callable[[], object]) -> bool:
        assert self._call_soon is not None
        try:
            self._call_soon(callback)
        except RuntimeError:
            _log.debug("the loop of worker pool %s is gone; a result is dropped", self._name)
            return False
        return True

    # --- in the loop -------------------------------------------------------------------------------------------------

    def _begin_in_loop(self) -> None:
        """Without threads: as many functions are under way as there would be threads."""
        while self._later is not None and self._alive < self._count and self._jobs:
            job = self._jobs.popleft()
            if job.given_up:
                continue
            if self._stopping:
                job.failure = self._closed()
                job.ended()
                continue
            self._alive += 1
            self._later(partial(self._end_in_loop, job))

    def _end_in_loop(self, job: Job) -> None:
        _do(job)
        self._finished.append(job)
        self._deliver()
        self._thread_ended()
        self._begin_in_loop()

    def _thread_ended(self) -> None:
        self._alive -= 1
        self._ended.set()

    def _deliver(self) -> None:
        self._wake_pending = False  # before emptying, so that a completion added meanwhile wakes again
        finished = self._finished
        while finished:
            finished.popleft().ended()
        self.on_delivered()


def _nothing() -> None:
    pass


def _do(job: Job) -> None:
    try:
        job.result = job.run()
    except (StopIteration, GeneratorExit, KeyboardInterrupt) as error:
        # They would end the coroutine that awaits, or the process: the last one comes from no keyboard here.
        job.failure = RuntimeError(f"the function raised {type(error).__name__}")
        job.failure.__cause__ = error
    except BaseException as error:  # whatever it is belongs to who awaits it
        job.failure = error


def _hand_over(waiter: Waiter, result: Any, error: BaseException | None) -> None:
    if waiter.done():  # cancelled meanwhile
        return
    if error is not None:
        waiter.set_exception(error)
    else:
        waiter.set_result(result)
