"""What is under way in a service that is tested: calls of handlers, what they have started, and sends.

Some of it waits for virtual time, the rest goes on in real time: ``pace`` moves no time while any of that does. What
has come of it all is seen by ``observer``.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any
from weakref import WeakSet, ref

from rocketbox.blocking import BorrowedThreads, WorkerPool
from rocketbox.testing.loop_turns import (
    RealWait,
    ThreadCall,
    is_call_of_ours,
    is_of_library,
    is_ours,
    is_users_own,
    is_users_own_code,
    line_of_thread,
    pools_waited_for,
    real_wait,
)
from rocketbox.testing.promises import Work, holder_of, is_held_by
from rocketbox.testing.records import Call
from rocketbox.testing.started import StartedThread, TimerCall

__all__ = [
    "GoesOn",
    "UnderWay",
    "call_for_thread",
    "in_service",
    "in_thread_of_pool",
    "submitted_to_pool",
    "thread_started",
]

OF_SERVICE = "a hook or a background task"
_call: ContextVar[_Running | None] = ContextVar("call of a handler", default=None)
_service: ContextVar[UnderWay | None] = ContextVar("service under test", default=None)


@dataclass(frozen=True, eq=False)
class GoesOn:
    """A task that has not ended, and what it is, for people; ``awaited`` is what is looked at instead of all of it."""

    task: Any
    awaited: Any
    what: str

    @property
    def work(self) -> Any:
        """The coroutine that is looked at."""
        return self.task.get_coro() if self.awaited is None else self.awaited


@dataclass(eq=False)
class _Running:
    """A call that has begun: the task it runs in, what that awaits of it, and the tasks and calls in threads that it
    has started.

    That of a scheduled function has no :class:`Call`: its task is waited for by itself, what it has started is here.
    """

    under_way: UnderWay
    call: Call | None
    task: Any
    who: str
    awaited: Any = None
    ended: bool = False
    is_held: bool = False
    """Whether it waits until its group goes on, which too many unreadable payloads have paused."""
    started: set[Any] = field(default_factory=set)
    threads: set[ThreadCall | StartedThread | TimerCall] = field(default_factory=set)
    """What goes on by itself; threads add to it as well."""
    of_ours: WeakSet[Any] = field(default_factory=WeakSet)
    """Tasks of rocketbox's own code that it has started, such as a send: they wait for virtual time."""


class UnderWay:
    """Of one harness."""

    def __init__(self) -> None:
        self.threads: list[WorkerPool | BorrowedThreads] = []
        """Those in which functions run that rocketbox calls."""
        self._left_alone: list[WorkerPool | BorrowedThreads] = []
        self.others: list[Any] = []
        """Further tasks that may wait for something else than virtual time."""
        self.ending: Callable[[], Sequence[Any]] = tuple
        """Gives those that were cancelled at the stop, and clean up."""
        self.sending: dict[object, Any] = {}
        """The task of each send that is none of a handler's; middleware may take real time meanwhile, and so may a
        thread that compresses what is sent."""
        self.tasks = WeakSet[Any]()
        """All that code of the service has made, its hooks and background tasks too."""
        self.ended = 0
        """How much has ended so far: it grows with whatever does."""
        self._running: dict[Call, _Running] = {}
        self._asked: dict[Any, tuple[str, object]] = {}  # transaction listeners, by the task that asks one
        self._failed: list[ref[Any]] = []  # tasks of handlers whose exceptions nobody had asked for when they ended
        self._left: set[_Running] = set()  # calls that have ended, and tasks of theirs have not; scheduled functions
        self._in_threads_of_service = set[ref[ThreadCall]]()  # of the loop and of anyio; threads add to it

    @property
    def running(self) -> list[Call]:
        """Calls of handlers that have not ended."""
        return list(self._running)

    @property
    def running_now(self) -> list[Call]:
        """Those of them that are not held: nobody waits for these, as for what a paused group has not taken."""
        return [call for call, running in self._running.items() if not running.is_held]

    @property
    def at_work(self) -> list[str]:
        """What has not ended of handlers that are not held, their tasks and threads included."""
        found = [f"handler {call.name}" for call in self.running_now]
        for running in self._left:
            found += [_task_of(task, running.who) for task in list(running.started)]
            found += [
                f"{call.what} that {running.who} has started" for call in list(running.threads) if call.waits_for_loop
            ]
        return found

    @property
    def current_call(self) -> Call | None:
        """The call of a handler whose code this is, if it is one's, and has not ended."""
        running = self._in_call_of
        return None if running is None or running.ended else running.call

    @property
    def call_of_this(self) -> Call | None:
        """The call of a handler that this code belongs to, also when that has ended."""
        running = self._in_call_of
        return None if running is None else running.call

    @property
    def is_in_a_call(self) -> bool:
        """Whether this is code that a handler's call has started, or its own."""
        running = self._in_call_of
        return running is not None and running.call is not None

    def is_in_service(self) -> bool:
        """Whether this is code that the service has started."""
        return _service.get() is self

    @property
    def _in_call_of(self) -> _Running | None:
        """In whose context this is; a handler may have code called that runs in the loop of another harness."""
        running = _call.get()
        return running if running is not None and running.under_way is self else None

    @contextmanager
    def call(self, call: Call, task: Any) -> Iterator[Callable[[Any], Any]]:
        """A call of a handler is under way, in a task; what is yielded is to be given what that awaits of it."""
        running = self._running[call] = _Running(self, call, task, f"handler {call.name}")
        token = _call.set(running)

        def awaiting(awaited: Any) -> Any:
            running.awaited = awaited
            return awaited

        try:
            yield awaiting
        finally:
            _call.reset(token)
            del self._running[call]
            running.ended = True
            running.awaited = running.task = None
            if running.started or running.threads:
                self._left.add(running)

    @contextmanager
    def held(self) -> Iterator[None]:
        """The call whose code this is waits until its group goes on, which too many unreadable payloads have paused."""
        running = self._in_call_of
        if running is None:
            yield
            return
        running.is_held = True
        try:
            yield
        finally:
            running.is_held = False

    @contextmanager
    def scheduled(self, what: str) -> Iterator[None]:
        """A scheduled function is called: what it starts is waited for as what a handler starts."""
        running = _Running(self, None, None, what)
        self._left.add(running)
        token = _call.set(running)
        try:
            yield
        finally:
            _call.reset(token)
            running.ended = True
            self._look_whether_all_ended(running)

    @contextmanager
    def asking(self, what: str, task: Any) -> Iterator[None]:
        """A transaction listener is asked, in a task of the client's: it is waited for as a handler is."""
        self._asked[task] = what, object()
        try:
            yield
        finally:
            del self._asked[task]
            self.ended += 1

    def task_started(self, task: Any) -> None:
        """A task was made: by a handler, if it is in the context of one and is not rocketbox's own."""
        running = self._in_call_of
        if running is not None or self.is_in_service():
            self.tasks.add(task)
        if running is None:
            return
        if is_ours(task) and not is_call_of_ours(task, sys._getframe(1)):
            running.of_ours.add(task)
            return
        running.started.add(task)
        self._goes_on(running)
        task.add_done_callback(lambda ended: self._task_ended(running, ended))

    def _task_ended(self, running: _Running, task: Any) -> None:
        running.started.discard(task)
        if getattr(task, "_log_traceback", False):  # a detail of asyncio's: nobody has asked what it has raised
            self._failed.append(ref(task))
        self.ended += 1
        self._look_whether_all_ended(running)

    def let_go_of_lost_tasks(self) -> None:
        """Have the loop tell of each task of a handler that has failed and that nobody can await any more: of one that
        refers to itself, as a task group does, it tells when the collector finds it."""
        self._failed = [each for each in self._failed if getattr(each(), "_log_traceback", False)]
        if self._failed:
            gc.collect()

    def called_in_thread(self, call: ThreadCall) -> None:
        """A call was given to a thread of the loop, or of a pool by way of it: by a handler if this is the context of
        one, or by a hook or a background task."""
        if (running := self._in_call_of) is not None:
            running.threads.add(call)
        elif self.is_in_service() and call.is_in_default_executor:
            self.called_by_service(call)

    def called_by_service(self, call: ThreadCall) -> None:
        """A hook or a background task has given a call to a thread. Any thread."""
        self._in_threads_of_service.add(ref(call, self._in_threads_of_service.discard))

    def timer_set(self, function: Callable[..., object]) -> TimerCall | None:
        """A timer of the loop is to call a function: what it calls instead, where a handler has set it."""
        running = self._in_call_of
        if running is None or not is_users_own(function):
            return None
        call = TimerCall(function)
        running.threads.add(call)
        self._goes_on(running)
        return call

    def _goes_on(self, running: _Running) -> None:
        """It has started something: a thread of its may do so long after it has ended."""
        if running.ended:
            self._left.add(running)

    def _look_whether_all_ended(self, running: _Running) -> None:
        if ended := [call for call in list(running.threads) if not call.goes_on]:
            self.ended += 1
            running.threads.difference_update(ended)
        if running.ended and not running.started and not running.threads:
            self._left.discard(running)

    @property
    def sends(self) -> list[str]:
        """Those of nobody whom ``drain`` waits for by itself, for people."""
        return [f"a send in {task.get_name()!r}" for task in self.sending.values()]

    @property
    def handlers(self) -> list[GoesOn]:
        """Those whose calls have not ended, and whose tasks run."""
        running = [(call, each) for call, each in self._running.items() if not each.task.done()]
        return [GoesOn(each.task, each.awaited, f"{each.who}, for {call.told_keys},") for call, each in running]

    @property
    def tasks_of_handlers(self) -> list[Any]:
        """What handlers have started, and scheduled functions, that goes on; and who asks a transaction listener."""
        return [*(task for running in self._calls for task in running.started), *self._asked]

    @property
    def threads_left(self) -> list[RealWait]:
        """What goes on in threads, by handlers, and keeps the event loop or the process from coming to its end."""
        return [
            _wait_of(call, running)
            for running in self._calls
            for call in list(running.threads)
            if call.keeps_from_ending and call.goes_on
        ]

    @property
    def in_threads_of_service(self) -> list[RealWait]:
        """What hooks and background tasks have given to threads of the loop and of anyio: the loop or the process waits
        for it at its end. A pool of their own may be closed later, by whoever has made it."""
        return [
            RealWait(f"a thread that {OF_SERVICE} has started{_in_task(call.task)}", call.line, call)
            for each in list(self._in_threads_of_service)
            if (call := each()) is not None and call.goes_on
        ]

    def leave_threads_of_handlers(self) -> None:
        """Wait no more for threads in which handlers run now: a function in one cannot be cancelled."""
        for running in self._running.values():
            self._left_alone += [pool for pool in pools_waited_for(running.awaited) if pool not in self._left_alone]

    def cancel_timers(self) -> None:
        """Timers of handlers call nobody any more."""
        for running in self._calls:
            for call in list(running.threads):
                if isinstance(call, TimerCall):
                    call.cancel()

    def told(self, task: Any) -> str:
        """What a task is, for people."""
        if task in self._asked:
            return self._asked[task][0]
        owner = self._owner(task)
        return _task_of(task, OF_SERVICE if owner is None else owner.who)

    def context_of(self, task: Any) -> Context:
        """The context in which a task runs; Python 3.11 does not tell it: one with what is known here of it."""
        if sys.version_info >= (3, 12):
            return task.get_context()  # type: ignore[no-any-return]
        context, owner = copy_context(), self._owner(task)
        context.run(_service.set, self)
        context.run(_call.set, owner)
        return context

    def _owner(self, task: Any) -> _Running | None:
        """The call in which a task runs, or that has started it."""
        return next((each for each in self._calls if each.task is task or task in each.started), None)

    @property
    def _calls(self) -> list[_Running]:
        """Those that have not ended, and those that have left something which goes on."""
        return [*self._running.values(), *self._left]

    def real_waits(self) -> Iterator[RealWait]:
        """What waits now for something else than virtual time."""
        at_work = self._calls
        for running in at_work:
            self._look_whether_all_ended(running)
        works = list(self._works(at_work))
        waits = [(work, real_wait(work.task, work.awaited)) for work in works]
        # What one of these holds comes when time has passed.
        in_virtual_time = [work.task for work, where in waits if where is None and work.may_hold]
        in_virtual_time += [task for running in at_work for task in running.of_ours if not task.done()]
        for work, where in waits:
            if where is not None and not is_held_by(in_virtual_time, work.task, work.awaited):
                holder, time_moves = holder_of(work, works)
                if not holder:
                    holder, time_moves = holder_of(work, self._works_of_service(works))
                if not time_moves:
                    yield RealWait(work.what, where + holder, work.of, work.root, _hint_for(work))
        for running in at_work:
            for call in list(running.threads):
                if not call.waits_for_loop:
                    yield _wait_of(call, running)
        for threads in self.threads:
            if threads.goes_on_by_itself and threads not in self._left_alone:
                frames = sys._current_frames()
                lines = [line for each in threads.busy_threads if (line := line_of_thread(frames.get(each)))]
                yield RealWait(f"a thread of {threads.name}", ", ".join(lines))

    def _works_of_service(self, known: Sequence[Work]) -> list[Work]:
        """Hooks, background tasks and tasks of theirs, which nobody waits for."""
        waited_for = {work.task for work in known}
        left = [task for task in self.tasks if not task.done() and task not in waited_for]
        return [Work(task, None, told, told, task) for task in left for told in [f"task {_name_of(task)}"]]

    def _works(self, at_work: Sequence[_Running]) -> Iterator[Work]:
        """All that somebody waits for, each task once."""
        for running in at_work:
            call, told = running.call, running.who
            if call is not None:
                told += f", attempt {call.attempt}, for {call.told_keys}"
            if call is not None and not running.ended:
                yield Work(running.task, running.awaited, told, told, running)
            for task in running.started:
                who = f"task {_name_of(task)} of {told}"
                yield Work(task, None, _task_of(task, running.who), who, task, root=running)
        for task, (what, asking) in self._asked.items():
            yield Work(task, None, what, what, asking)
        others = dict.fromkeys([*self.others, *self.ending()])
        senders = set(self.sending.values())
        for task in others:
            if not task.done():
                yield Work(task, None, task.get_name(), task.get_name(), task, may_hold=task in senders)
        for (send, task), what in zip(self.sending.items(), self.sends, strict=True):
            if task not in self._asked and task not in others:
                yield Work(task, None, what, what, send)


def _wait_of(call: ThreadCall | StartedThread | TimerCall, running: _Running) -> RealWait:
    began = "set" if isinstance(call, TimerCall) else "started"
    return RealWait(f"{call.what} that {running.who} has {began}", call.line, call, running)


def _hint_for(work: Work) -> str:
    """What to do about a task that may be there to stay: a library keeps it as long as its client lives."""
    if work.awaited is not None or not is_of_library(work.task):
        return ""
    return "it is code of a library: if its client keeps it, have a bean or a startup hook open that client"


def _name_of(task: Any) -> str:
    """A task's name; with a factory of tasks Python 3.13.0 to 3.13.2 calls one 'None' that has none."""
    name = task.get_name()
    return repr(name if name != "None" else getattr(task.get_coro(), "__qualname__", name))


def _in_task(task: Any) -> str:
    return "" if task is None else f" in task {_name_of(task)}"


def _task_of(task: Any, who: str) -> str:
    """A task that somebody has started, for people."""
    return f"task {_name_of(task)}, which {who} has started,"


def in_service(under_way: UnderWay) -> None:
    """This task, and all that is made by it from now on, belongs to the service."""
    _service.set(under_way)


def thread_started(thread: threading.Thread, starter: FrameType) -> StartedThread | None:
    """A thread is about to start: by a handler, if this is the context of one; what it starts itself is so as well."""
    running = _call.get()
    if running is None or not StartedThread.is_meant(thread, starter):
        return None
    run = thread.run

    def run_for_handler() -> None:
        _call.set(running)
        run()

    vars(thread)["run"] = run_for_handler
    started = StartedThread(thread)
    running.threads.add(started)
    return started


def submitted_to_pool(function: Callable[..., Any], who: FrameType, is_of_anyio: bool) -> ThreadCall | None:
    """A function is given to a pool of threads: what is called instead, where a handler gives it, or to a thread of
    anyio whatever of the service does.

    It, or who gives it, is the user's own: what a library gives to a pool of its own may be there to stay.
    """
    is_of_service = _call.get() is not None or (is_of_anyio and _service.get() is not None)
    is_meant = is_of_service and (is_users_own(function) or is_users_own_code(who.f_code))
    return call_for_thread(function) if is_meant else None


def call_for_thread(function: Callable[..., Any]) -> ThreadCall:
    """What is called instead of a function that is given to a thread: what that starts itself is the handler's, too,
    where one gives it."""
    running = _call.get()
    return ThreadCall(function) if running is None else ThreadCall(function, partial(_as_part_of, running))


@contextmanager
def _as_part_of(running: _Running) -> Iterator[None]:
    token = _call.set(running)
    try:
        yield
    finally:
        _call.reset(token)


def in_thread_of_pool(call: ThreadCall) -> None:
    """A pool has it."""
    if (running := _call.get()) is not None:
        running.threads.add(call)
    elif (under_way := _service.get()) is not None:
        under_way.called_by_service(call)
