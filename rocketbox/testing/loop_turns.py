"""What the event loop of a harness is at: whether anything is left to run in it, and what a task waits for.

Only under asyncio. A task waits for rocketbox when the innermost code of its await is rocketbox's own: a send that is
not answered, a sleep on the clock. Only time that is moved can end that. Whatever else it waits for (a sleep of the
user's own, a socket, a thread, a lock) goes on in real time, and must not see the virtual one move; where a task waits
for others, by ``await``, ``gather``, ``wait``, ``shield`` or a task group, these are looked at. Where all code of an
await is of Python's own libraries (``create_task(asyncio.sleep(1))``), it goes on in real time as well.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import os
import sys
import sysconfig
import threading
from asyncio import runners, taskgroups
from asyncio import tasks as asyncio_tasks
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence, Sized
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context
from math import inf
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import anyio

from rocketbox.blocking import WorkerPool, _in_a_thread, look_blocking
from rocketbox.calls_from_threads import threads_waiting_for_loops
from rocketbox.client.consume import _resumed
from rocketbox.clock import RealClock
from rocketbox.loops import in_event_loop
from rocketbox.remoting.host_names import LookUps
from rocketbox.testing.errors import HarnessError

__all__ = [
    "MOST_TURNS",
    "LoopTurns",
    "RealWait",
    "ThreadCall",
    "awaited_by",
    "frames_of",
    "is_call_of_ours",
    "is_of_library",
    "is_in_thread_of_anyios",
    "is_ours",
    "is_users_frame",
    "is_users_own",
    "is_users_own_code",
    "line_of_thread",
    "pools_waited_for",
    "real_wait",
    "tasks_waited_for",
    "users_line",
    "waits_for_rocketbox",
    "with_contexts",
]

OWN = str(Path(__file__).resolve().parents[1]) + os.sep
ANYIO = str(Path(anyio.__file__).parent) + os.sep
LIBRARIES = (sysconfig.get_path("stdlib") + os.sep, sysconfig.get_path("platstdlib") + os.sep, ANYIO)
SITE = os.sep + "site-packages" + os.sep
FRAMES = ("cr_frame", "gi_frame", "ag_frame")
SHIELDS = "shield.<locals>._outer_done_callback"
WRAPS = "_chain_future.<locals>._call_check_cancel"
WAITS_FOR_ONE = frozenset({asyncio.wait_for.__code__, asyncio_tasks._cancel_and_wait.__code__})  # type: ignore[attr-defined]
LEAVES_A_GROUP = frozenset({"__aexit__", "_aexit"})
DRIVES_BY_HAND = frozenset({_resumed.__code__})  # it passes on what the handler waits for
IN_THREADS = frozenset({WorkerPool.run.__code__, _in_a_thread.__code__, look_blocking.__code__, LookUps.find.__code__})
IN_A_THREAD = "run_sync_in_worker_thread"  # of anyio's backend
TELL_OF_AN_END = frozenset({Future.set_result.__code__, Future.set_exception.__code__})
CALLS_BACK = asyncio.Handle._run.__code__
MAKES_TASKS = frozenset({__file__, str(Path(__file__).with_name("under_way.py"))})
ResultT = TypeVar("ResultT")
MOST_TURNS = 10_000  # of the loop, without rest, before one looks what goes on


class RealWait:
    """Something that goes on in real time: what it is, and where it waits.

    ``of`` is the same as long as it is one call, task or thread; None: several may follow each other. ``root`` is the
    call of a handler that it comes from, which is the same also where what that has started starts others in turn.
    ``hint`` is what to do where it never ends.
    """

    def __init__(
        self, what: str, where: str, of: object | None = None, root: object | None = None, hint: str = ""
    ) -> None:
        self.what = what
        self.where = where
        self.of = of
        self.root = root
        self.hint = hint

    def __str__(self) -> str:
        told = f"{self.what} waits at {self.where}" if self.where else self.what
        return f"{told} ({self.hint})" if self.hint else told


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # in a thread
        return None


class ThreadCall:
    """A call in a thread of an executor, which goes on when who awaited it is cancelled.

    The function is called inside of ``around()``, in the thread.
    """

    what = "a thread"
    keeps_from_ending = True
    """The process waits for it at its end."""

    def __init__(
        self, function: Callable[..., Any], around: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> None:
        self._future: asyncio.Future[Any] | Future[Any] | None = None
        self._function = function
        self._around = around
        self._guard = threading.Lock()
        self._thread: int | None = None
        self._is_given_up = False
        self._has_ended = False
        self.is_in_default_executor = False
        """Whether the loop waits for it when it is closed."""
        self.task = _current_task()
        """Which task has it called."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        with self._guard:
            if self._is_given_up:  # nobody awaits it, and nobody waits for its end
                return None
            self._thread = threading.get_ident()
        try:
            with self._around():
                return self._function(*args, **named)
        finally:
            self._has_ended = True

    @property
    def future(self) -> asyncio.Future[Any] | Future[Any] | None:
        """What is done when it has ended, or is not awaited any more."""
        return self._future

    @future.setter
    def future(self, future: asyncio.Future[Any] | Future[Any]) -> None:
        self._future = future
        _calls[future] = self

    async def awaited(self, work: Awaitable[ResultT]) -> ResultT:
        """The result of what calls it in a thread; code that looks at tasks knows by this frame what is waited for."""
        self.future = awaited = Future[Any]()  # it goes on before its thread has begun it as well
        try:
            return await work
        finally:
            awaited.cancel()

    @property
    def goes_on(self) -> bool:
        """Whether it has not ended; what is cancelled before a thread begins it is never begun."""
        if self._future is not None and not self._future.done():
            return True
        with self._guard:  # a thread may have taken it just before it was cancelled, and begin it just now
            self._is_given_up = self._thread is None and self._future is not None
            if self._thread is None:
                return False
        return not self._has_ended or self._tells_of_its_end()

    def _tells_of_its_end(self) -> bool:
        """Whether its thread is in what was to be called when it has ended (``add_done_callback``)."""
        frame = sys._current_frames().get(self._thread or 0)
        while frame is not None:
            if frame.f_code in TELL_OF_AN_END and frame.f_locals.get("self") is self._future:
                return True
            frame = frame.f_back
        return False

    @property
    def waits_for_loop(self) -> bool:
        """Whether its thread waits for what it has called in the loop, by the blocking template."""
        return not self._has_ended and self._thread in threads_waiting_for_loops()

    @property
    def line(self) -> str:
        """Where it is."""
        return "" if self._thread is None else line_of_thread(sys._current_frames().get(self._thread))


_calls: WeakKeyDictionary[Any, ThreadCall] = WeakKeyDictionary()  # by the future of each


class _Entry:
    """One call that was asked for; its handle is not known before the loop has it, and a thread may be slow to say."""

    __slots__ = ("handle",)

    def __init__(self) -> None:
        self.handle: asyncio.Handle | None = None


class _NextCalls:
    """What a loop is to call in its next turns, for one that does not show it (uvloop): calls are noted as they come
    and go."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Any = loop
        self._waiting: set[_Entry] = set()

    def __len__(self) -> int:
        for entry in list(self._waiting):
            if entry.handle is not None and entry.handle.cancelled():
                self._waiting.discard(entry)
        return len(self._waiting)

    def watch(self) -> None:
        self._loop.call_soon = self._noting(self._loop.call_soon)
        self._loop.call_soon_threadsafe = self._noting(self._loop.call_soon_threadsafe)

    def unwatch(self) -> None:
        del self._loop.call_soon
        del self._loop.call_soon_threadsafe

    def _noting(self, call_soon: Callable[..., asyncio.Handle]) -> Callable[..., asyncio.Handle]:
        waiting = self._waiting

        def noting(callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
            entry = _Entry()

            def call() -> None:
                waiting.discard(entry)
                callback(*args)

            waiting.add(entry)
            entry.handle = handle = call_soon(call, context=context)
            return handle

        return noting


class LoopTurns:
    """The turns of the loop that runs here, between :meth:`watch` and :meth:`unwatch`."""

    def __init__(self) -> None:
        try:
            self.loop = asyncio.get_running_loop()
        except RuntimeError as error:
            if in_event_loop():
                raise HarnessError(
                    "a harness runs in an event loop of asyncio or uvloop, and this is one of trio: let the tests run "
                    'under asyncio, with anyio\'s plugin by a fixture anyio_backend that returns "asyncio"'
                ) from error
            raise HarnessError(
                "a harness runs in an event loop of asyncio or uvloop, and there is none here: in a plain function "
                "write 'with Harness(app) as harness:', and harness.blocking.send(...)"
            ) from error
        self._real = RealClock()
        self._former: Any = None
        self._started: Callable[[asyncio.Task[Any]], object] = lambda task: None
        self._put: dict[str, Any] = {}
        self._lost: Any = None  # hears of lost errors
        self._former_handler: Any = None
        self._before: dict[str, Any] = {}  # what somebody else had put there
        ready: Sized | None = getattr(self.loop, "_ready", None)  # a detail of asyncio's own loops
        self._noted = _NextCalls(self.loop) if ready is None else None
        self._next: Sized = self._noted if ready is None else ready  # type: ignore[assignment]  # one of the two

    async def until_idle(self, turns: int, seconds: float = inf) -> int:
        """Return when nothing is left that the loop could run now, and after so many turns or seconds of real time; how
        many turns it were.

        Never idle is a loop in which somebody polls: ``while not done: await asyncio.sleep(0)``.
        """
        real_time = self._real.monotonic
        end = real_time() + seconds
        for made in range(turns):
            if not self._next:
                return made
            await asyncio.sleep(0)
            if real_time() > end:
                return made + 1
        return turns

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left that the loop could run now, beside who asks."""
        return not self._next

    async def pause(self, seconds: float) -> float:
        """Let real time pass; how much it was."""
        began = self.real_time()
        if self.time_stands_still:
            threading.Event().wait(seconds)  # no timer of the loop would ever be due
            seconds = 0.0
        await self._real.sleep(seconds)
        return self.real_time() - began

    def real_time(self) -> float:
        return self._real.monotonic()

    @property
    def time_stands_still(self) -> bool:
        """Whether the loop's own time does while the machine's passes: no timer of it would be due."""
        if type(self.loop).time is not asyncio.BaseEventLoop.time:  # uvloop's, which changes from turn to turn
            return False
        before, began = self.loop.time(), self.real_time()
        while self.real_time() == began:
            pass
        return self.loop.time() == before

    def is_here(self) -> bool:
        """Whether this is code of that loop."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    @staticmethod
    def current_task() -> asyncio.Task[Any] | None:
        return asyncio.current_task()

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """A task that belongs to no task group, and so may be waited for in any other task; it begins in the next turn,
        also where the loop's tasks begin at once (``asyncio.eager_task_factory``).
        """
        task = asyncio.Task(work, loop=self.loop, name=name)
        self._started(task)
        return task

    async def see_through(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Return when it has ended, however often this task is cancelled meanwhile; that is raised then."""
        task, cancelled = self.start(work, name), None
        with anyio.CancelScope(shield=True):
            while not task.done():
                try:
                    await asyncio.wait([task])
                except asyncio.CancelledError as error:
                    cancelled = error
            if cancelled is not None:
                raise cancelled
            await task

    @staticmethod
    async def end(task: asyncio.Task[Any]) -> None:
        """Cancel a task, and return when it has ended."""
        task.cancel()
        await asyncio.wait([task])

    def leave_threads(self) -> None:
        """Let the loop not wait for functions that go on in its threads, when it is closed."""
        self.loop.set_default_executor(ThreadPoolExecutor(thread_name_prefix="asyncio"))

    def call_soon(self, call: Callable[[], object]) -> None:
        """Have it called in the next turn."""
        self.loop.call_soon(call)

    def tasks_called(self, beginning: str) -> list[asyncio.Task[Any]]:
        """The tasks of the loop whose names begin so."""
        return [task for task in asyncio.all_tasks(self.loop) if task.get_name().startswith(beginning)]

    def watch(
        self,
        started: Callable[[asyncio.Task[Any]], object],
        for_thread: Callable[[Callable[..., Any]], ThreadCall],
        in_thread: Callable[[ThreadCall], object],
        timer: Callable[[Callable[..., object]], Any],
    ) -> None:
        """Begin.

        ``started`` is called with each task that is made from now on, in the context of who makes it. Of what is given
        to a thread (``asyncio.to_thread``) ``for_thread`` makes what is called instead, and ``in_thread`` is told of
        that when it is given. ``timer`` is called with what a timer is to call, and returns what it calls instead,
        whose ``handle`` is set then; None: nothing else.
        """
        if self._noted is not None:
            self._noted.watch()
        self._started = started
        get_task_factory, set_task_factory = self.loop.get_task_factory, self.loop.set_task_factory
        tells: Any = None

        def tell(task: asyncio.Task[Any]) -> None:
            self._started(task)

        def set_factory(factory: Any) -> None:
            nonlocal tells
            if factory is not tells or tells is None:
                self._former = factory  # which stays when the harness has ended
                tells = _telling_of_tasks(factory, tell)
            set_task_factory(tells)

        def get_factory() -> Any:
            """The service's own; of an eager one, by whose code anyio knows it, what is around that."""
            return tells if _is_eager(self._former) else self._former

        set_factory(get_task_factory())
        run_in_executor = self.loop.run_in_executor

        def run(executor: Executor | None, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
            if executor is not None and not isinstance(executor, ThreadPoolExecutor):
                return run_in_executor(executor, func, *args)
            call = for_thread(func)
            call.is_in_default_executor = executor is None
            call.future = future = run_in_executor(executor, call, *args)
            in_thread(call)
            return future

        self._put = {
            "run_in_executor": run,
            "set_task_factory": set_factory,
            "get_task_factory": get_factory,
            "call_at": _telling_of_timers(self.loop.call_at, timer, "when"),
            "call_later": _telling_of_timers(self.loop.call_later, timer, "delay"),
        }
        own = vars(self.loop)
        self._before = {name: own[name] for name in self._put if name in own}
        own.update(self._put)

    def hear_of_lost_errors(self, heard: Callable[[str, Exception], object]) -> None:
        """Have ``heard`` called, until :meth:`unwatch`, with what nobody else hears of but the log: of whom, and what a
        task has raised that nobody awaits, or a callback of the loop.

        For a loop of the harness's own. Of the loop of an async test, who runs the test may hear of them.
        """
        before = self.loop.get_exception_handler()

        def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            if before is None:
                loop.default_exception_handler(context)
            else:
                before(loop, context)
            if isinstance(error := context.get("exception"), Exception):
                of = context.get("task", context.get("future"))
                named = f"task {of.get_name()!r}, which nobody has awaited," if isinstance(of, asyncio.Task) else ""
                heard(named or "a callback of the event loop", error)

        self._lost, self._former_handler = handle, before
        self.loop.set_exception_handler(handle)

    def unwatch(self) -> None:
        if self._lost is not None and self.loop.get_exception_handler() is self._lost:
            self.loop.set_exception_handler(self._former_handler)
        own = vars(self.loop)
        for name, put in self._put.items():
            if own.get(name) is put:  # else somebody has put something around it, and keeps it
                del own[name]
                own.update({name: self._before[name]} if name in self._before else {})
        self.loop.set_task_factory(self._former)
        self._started = lambda task: None
        if self._noted is not None:
            self._noted.unwatch()


def _is_eager(factory: Any) -> bool:
    """Whether a factory of tasks is one of asyncio's eager ones."""
    return sys.version_info >= (3, 12) and getattr(factory, "__code__", None) is asyncio.eager_task_factory.__code__


def _telling_of_tasks(former: Any, started: Callable[[asyncio.Task[Any]], object]) -> Any:
    """A factory of tasks as the former one, which tells of each that it has made."""
    if sys.version_info >= (3, 12) and _is_eager(former):
        # anyio knows the loop's factory by its code, and has its own tasks made by what is in it: they must not begin
        # before it knows of them.
        construct = former.__closure__[0].cell_contents

        def construct_and_tell(work: Any, **options: Any) -> Any:
            task = construct(work, **options)
            if not task.done():  # Python 3.12.1 crashes when a task that has ended so is asked for its coroutine
                started(task)
            return task

        return asyncio.create_eager_task_factory(construct_and_tell)

    def make(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> Any:
        task: Any = asyncio.Task(work, loop=loop, **options) if former is None else former(loop, work, **options)
        started(task)
        return task

    return make


def _telling_of_timers(
    set_timer: Callable[..., asyncio.TimerHandle], timer: Callable[[Callable[..., object]], Any], when: str
) -> Callable[..., asyncio.TimerHandle]:
    """``when`` is what asyncio calls the first parameter, which may be given by its name."""

    def set_and_tell(*given: Any, context: Context | None = None, **named: Any) -> asyncio.TimerHandle:
        beginning = [*given[:2], *(named.pop(name) for name in (when, "callback")[len(given) :] if name in named)]
        if named or len(beginning) < 2:
            return set_timer(*given, context=context, **named)  # as wrong as it is
        at, callback = beginning
        call = timer(callback)
        if call is None:
            return set_timer(at, callback, *given[2:], context=context)
        try:
            call.handle = set_timer(at, call, *given[2:], context=context)
        except BaseException:  # as wrong as that is
            call.cancel()
            raise
        return call.handle  # type: ignore[no-any-return]  # as it is

    return set_and_tell


def real_wait(task: asyncio.Task[Any] | None, awaited: Awaitable[Any] | None = None) -> str | None:
    """Where a task waits for what goes on in real time; None where it waits for rocketbox, and so for virtual time.

    ``awaited`` is the coroutine that is looked at instead of the task's whole one.
    """
    return _real_wait(task, awaited, set())


def _real_wait(waiting: Any, awaited: Any, seen: set[int]) -> str | None:
    """Of a task; where another future is waited for, nothing is known but that: an empty text."""
    if waiting is None or id(waiting) in seen or waiting.done():
        return None
    seen.add(id(waiting))
    frames: list[FrameType] = []
    if isinstance(waiting, asyncio.Task):
        frames = frames_of(waiting.get_coro() if awaited is None else awaited)
        waiting = getattr(waiting, "_fut_waiter", None)
    if waiting is not None and (call := _calls.get(waiting)) is not None and call.waits_for_loop:
        return None
    if (others := _waited_for(waiting, frames)) is not None:
        found = [where for each in others if (where := _real_wait(each, None, seen)) is not None]
        if not found:
            return None
        if told := list(filter(None, found)):  # a line of Python's own says little
            users = [*filter(_is_users, told), *(_line_of(each) for each in reversed(frames) if is_users_frame(each))]
            return (users or told)[0]
    for frame in reversed(frames):
        if frame.f_code in IN_THREADS:
            return "a worker thread" if _goes_on_by_itself(frame) else None
        if frame.f_code is ThreadCall.awaited.__code__:
            if frame.f_locals["self"].waits_for_loop:
                return None
            continue
        if frame.f_code.co_filename.startswith(OWN):
            return None
        if _is_users(frame.f_code.co_filename):
            return _line_of(_users_own(frames, frame))
    return _line_of(frames[-1]) if frames else ""


def _users_own(frames: Sequence[FrameType], innermost: FrameType) -> FrameType:
    """The innermost that is of the user's own code, and not of a library that it calls; else that one."""
    own = (frame for frame in reversed(frames[: frames.index(innermost) + 1]) if is_users_own_code(frame.f_code))
    return next(own, innermost)


def _goes_on_by_itself(frame: FrameType) -> bool:
    """Whether what is awaited of a thread does not itself wait for what it has called in a loop."""
    if frame.f_code is WorkerPool.run.__code__:
        pool: WorkerPool = frame.f_locals["self"]
        return pool.goes_on_by_itself
    if frame.f_code is LookUps.find.__code__:
        return True
    return not threads_waiting_for_loops().intersection(frame.f_locals["threads"])


def _waited_for(future: Any, frames: list[FrameType]) -> list[Any] | None:
    """The tasks and futures that a task waits for, whose innermost code is ``frames``; None where it knows of none.

    ``future`` is what it is at: one of them, that of a ``gather`` or a ``shield``, or one that only says that those
    of ``asyncio.wait``, ``asyncio.wait_for`` (Python 3.11) or a task group have ended.
    """
    if isinstance(future, asyncio.Task):
        return [future]
    if (children := getattr(future, "_children", None)) is not None:  # of asyncio.gather
        return list(children)
    for callback, _ in getattr(future, "_callbacks", None) or ():
        name = getattr(callback, "__qualname__", "")
        if name in (SHIELDS, WRAPS):
            return [inspect.getclosurevars(callback).nonlocals["inner" if name == SHIELDS else "source"]]
    if not frames:
        return None
    code, known = frames[-1].f_code, frames[-1].f_locals
    if code in WAITS_FOR_ONE and asyncio.isfuture(known["fut"]):
        return [known["fut"]]
    if code is asyncio_tasks._wait.__code__:  # type: ignore[attr-defined]
        return list(known["fs"])
    if code.co_name in LEAVES_A_GROUP and code.co_filename.startswith((taskgroups.__file__, ANYIO)):
        tasks = getattr(known.get("self"), "_tasks", None)
        return None if tasks is None else list(tasks)
    return None


def tasks_waited_for(task: asyncio.Task[Any], awaited: Any) -> list[asyncio.Task[Any]]:
    """The tasks that a task waits for, which runs this coroutine."""
    left, found = _waited_for(getattr(task, "_fut_waiter", None), frames_of(awaited)) or [], list[asyncio.Task[Any]]()
    seen = set[int]()
    while left:
        future = left.pop()
        if id(future) in seen:
            continue
        seen.add(id(future))
        if isinstance(future, asyncio.Task):
            found.append(future)
        else:  # that of a gather, or of a shield
            left += _waited_for(future, []) or []
    return found


def _line_of(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _is_users(file: str) -> bool:
    """Whether code is the user's, or of a library that the user has chosen: neither Python's own nor anyio's."""
    return not file.startswith(ANYIO) and (SITE in file or not file.startswith(LIBRARIES))


def is_users_frame(frame: FrameType) -> bool:
    """Whether code is the user's or of a library that the user has chosen, and not rocketbox's own."""
    name = frame.f_code.co_filename
    return _is_users(name) and not name.startswith(OWN)


def waits_for_rocketbox(awaited: Awaitable[Any] | None) -> bool:
    """Whether the innermost code of a coroutine, beside libraries, is rocketbox's own."""
    files = [frame.f_code.co_filename for frame in reversed(frames_of(awaited))]
    return next((name.startswith(OWN) for name in files if not name.startswith(LIBRARIES) or SITE in name), False)


def frames_of(awaited: Any) -> list[FrameType]:
    """The frames of a coroutine and of all that it awaits, the outermost first."""
    return [frame for _, frame in awaited_by(awaited)]


def with_contexts(awaited: Any, context: Context) -> Iterator[tuple[Any, FrameType, Context]]:
    """A coroutine that runs in that context and all that it awaits, each with its frame and the context it runs in."""
    for each, frame in awaited_by(awaited):
        yield each, frame, context
        if frame.f_code in DRIVES_BY_HAND:
            context = frame.f_locals["context"]


def awaited_by(awaited: Any) -> list[tuple[Any, FrameType]]:
    """A coroutine and all that it awaits, each with its frame."""
    found: list[tuple[Any, FrameType]] = []
    seen: set[int] = set()  # an object may lead back to what awaits it
    while awaited is not None and id(awaited) not in seen:
        seen.add(id(awaited))
        frame: FrameType | None = _first_of(awaited, *FRAMES)
        inner = None
        if frame is not None:
            found.append((awaited, frame))
            if frame.f_code in DRIVES_BY_HAND:
                inner = frame.f_locals.get("handling")
        else:  # a step of an asynchronous generator, or what __await__() of a coroutine is: they do not say of what
            inner = next((each for each in gc.get_referents(awaited) if _first_of(each, *FRAMES) is not None), None)
        awaited = inner if inner is not None else _first_of(awaited, "cr_await", "gi_yieldfrom", "ag_await")
    return found


def _first_of(awaited: Any, *names: str) -> Any:
    return next((found for name in names if (found := getattr(awaited, name, None)) is not None), None)


def is_ours(task: Any) -> bool:
    """Whether a task that has not run yet is one of rocketbox's own, or of anyio's, which keep something in order."""
    return (work := _work_of(task)) is None or _is_code_of_ours(work)


def is_call_of_ours(task: Any, made_at: FrameType | None) -> bool:
    """Whether a task that was made in this frame is one of the user's own whose whole work is rocketbox's, as that of
    ``asyncio.create_task(template.send(...))``, or of ``run_coroutine_threadsafe``, which the loop makes."""
    if (work := _work_of(task)) is None or not _is_code_of_ours(work):
        return False
    while made_at is not None and made_at.f_code is not CALLS_BACK and made_at.f_code.co_filename != runners.__file__:
        name = made_at.f_code.co_filename
        if name not in MAKES_TASKS and (name.startswith(OWN) or _is_users(name)):
            return is_users_frame(made_at)
        made_at = made_at.f_back
    return True


def is_of_library(task: Any) -> bool:
    """Whether a task runs code of a library, and none of the user's own."""
    frames = frames_of(task.get_coro())
    return (
        bool(frames)
        and SITE in frames[0].f_code.co_filename
        and not any(is_users_own_code(frame.f_code) for frame in frames)
    )


def _work_of(task: Any) -> Any:
    """The coroutine of a task that has not run yet, or the function that makes it; of anyio's, what it runs inside.
    None: nobody knows."""
    work = task.get_coro()
    frame = getattr(work, "cr_frame", None)
    if frame is not None and frame.f_code.co_filename.startswith(ANYIO):  # of a task group, or of from_thread.run
        inner = frame.f_locals
        return inner.get("coro") or getattr(inner.get("self"), "_coro", None) or inner.get("func")
    return work


def _is_code_of_ours(work: Any) -> bool:
    code = getattr(work, "cr_code", None) or _code_of(work)
    return code is not None and code.co_filename.startswith(OWN)


def _code_of(function: Any) -> CodeType | None:
    while isinstance(function, functools.partial):
        function = function.func
    code: CodeType | None = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None and callable(function) and not inspect.isroutine(function):
        code = getattr(type(function).__call__, "__code__", None)
    return code


def is_users_own(function: Any) -> bool:
    """Whether a function is the user's, and neither of a library nor rocketbox's own."""
    code = _code_of(function)
    return code is not None and is_users_own_code(code)


def is_users_own_code(code: CodeType) -> bool:
    """Whether it is the user's, and neither of a library nor rocketbox's own."""
    return SITE not in code.co_filename and not code.co_filename.startswith((OWN, *LIBRARIES))


def is_in_thread_of_anyios(awaited: Any) -> bool:
    """Whether a coroutine waits for a thread of anyio's, which no cancellation gives up unless it is asked for that."""
    frames = frames_of(awaited)
    return bool(frames) and frames[-1].f_code.co_filename.startswith(ANYIO) and frames[-1].f_code.co_name == IN_A_THREAD


def pools_waited_for(awaited: Any) -> list[WorkerPool]:
    """Those of rocketbox's pools of threads that a coroutine waits for."""
    return [frame.f_locals["self"] for frame in frames_of(awaited) if frame.f_code is WorkerPool.run.__code__]


def users_line(awaited: Any) -> str | None:
    """Where the innermost code of the user's own is, among a coroutine and all that it awaits."""
    return next((_line_of(frame) for frame in reversed(frames_of(awaited)) if is_users_frame(frame)), None)


def line_of_thread(frame: FrameType | None) -> str:
    """The innermost line of a thread that is not of a library."""
    while frame is not None:
        if is_users_frame(frame):
            return _line_of(frame)
        frame = frame.f_back
    return ""
