"""Supervised tasks: each one is owned, named, restarted with backoff, and visible in health. Nothing dies silently.

A :class:`Supervisor` is an async context manager around one anyio task group; leaving it cancels what still runs,
so no task outlives its owner. Its tasks are shielded from what is cancelled further out: a user may cancel a scope
around a client at any moment. Then the owner alone hears of it, and ends its tasks in the right order, with
connections and writers at hand until the last commit is done.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup

from rocketbox.clock import Clock
from rocketbox.errors import NotStartedError
from rocketbox.own_failures import as_failure
from rocketbox.safe_repr import safe_repr

__all__ = ["SupervisedTask", "Supervisor", "TaskHealth", "TaskState", "ended_most"]

_log = logging.getLogger(__name__)

FIRST_BACKOFF = 0.1  # seconds until a failed task is started again; doubles up to LONGEST_BACKOFF
LONGEST_BACKOFF = 30.0
FAILED_IN_HEALTH = 8  # tasks that failed for good; there may be one for each request of a day
HEALTHY_AFTER = 60.0  # a task that ran this long before it failed starts again at FIRST_BACKOFF


class TaskState(Enum):
    RUNNING = "running"
    WAITING = "waiting to restart"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class TaskHealth:
    """What health shows of one task."""

    name: str
    state: TaskState
    restarts: int
    error: str | None


class SupervisedTask:
    """A task of a supervisor: cancel it, or wait for its end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = TaskState.RUNNING
        self.restarts = 0
        self.error: BaseException | None = None
        self._scope = anyio.CancelScope(shield=True)
        self._has_ended = False
        self._end: anyio.Event | None = None  # of most tasks nobody waits for the end, and an event is not cheap

    def cancel(self) -> None:
        """Ask the task to end; :meth:`wait` returns when it has."""
        self._scope.cancel()

    @property
    def ending(self) -> bool:
        """Whether it was cancelled and goes on all the same: it cleans up, or swallows that."""
        return self._scope.cancel_called and not self._has_ended

    async def wait(self) -> None:
        """Return when the task has ended, however it ended; at once, if it has."""
        if self._has_ended:
            return
        if self._end is None:
            self._end = anyio.Event()
        await self._end.wait()

    def _ended(self) -> None:
        self._has_ended = True
        if self._end is not None:
            self._end.set()

    def health(self) -> TaskHealth:
        return TaskHealth(self.name, self.state, self.restarts, safe_repr(self.error) if self.error else None)


class Supervisor:
    """Owns tasks. ``async with Supervisor("client", clock) as tasks: tasks.start("heartbeat", beat)``."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self._clock = clock
        self._group: TaskGroup | None = None
        self._tasks: dict[int, SupervisedTask] = {}
        self._failed: deque[TaskHealth] = deque(maxlen=FAILED_IN_HEALTH)

    async def __aenter__(self) -> Self:
        group = anyio.create_task_group()
        await group.__aenter__()
        self._group = group
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        group, self._group = self._group, None
        assert group is not None
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        with anyio.CancelScope(shield=True):
            for task in tasks:
                await task.wait()
        # Our tasks keep their errors to themselves. The group is neither cancelled nor told what ends the body: it
        # would wrap an error, and raise a cancellation of its own past a shield when what is around that is cancelled.
        await group.__aexit__(None, None, None)
        return False

    def start(
        self, name: str, function: Callable[..., Awaitable[Any]], *args: Any, restart: bool = True
    ) -> SupervisedTask:
        """Run ``function(*args)`` as a task of this supervisor.

        When it raises: with ``restart`` it is logged and run again after a backoff of 0.1 s to 30 s; without, it is
        logged and shown in health as failed. Returning normally ends it. What it raises that is no Exception, a
        cancellation by nobody but itself among it, is a failure too: it would end the owner and all other tasks. Who
        cancels it as a task of asyncio's ends it alone, which is logged.
        """
        if self._group is None:
            raise NotStartedError(f"supervisor {self.name}")
        task = SupervisedTask(name)
        self._tasks[id(task)] = task
        self._group.start_soon(self._run, task, function, args, restart, name=f"{self.name}: {name}")
        return task

    def health(self) -> list[TaskHealth]:
        """The tasks that run or wait to run again, and the last few of those that have failed for good."""
        return [*(task.health() for task in self._tasks.values()), *self._failed]

    async def _run(
        self, task: SupervisedTask, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...], restart: bool
    ) -> None:
        backoff = FIRST_BACKOFF
        try:
            with task._scope:
                while True:
                    started = self._clock.monotonic()
                    task.state = TaskState.RUNNING
                    try:
                        await function(*args)
                    except BaseException as error:
                        failure = _failure_of(error)
                        if failure is None:
                            raise
                        task.error = failure
                        if not restart:
                            task.state = TaskState.FAILED
                            _log.exception("task %s of %s failed", task.name, self.name)
                            return
                        if self._clock.monotonic() - started >= HEALTHY_AFTER:
                            backoff = FIRST_BACKOFF
                        _log.exception("task %s of %s failed; again in %.1f s", task.name, self.name, backoff)
                    else:
                        task.state = TaskState.FINISHED
                        return
                    task.state = TaskState.WAITING
                    task.restarts += 1
                    await self._clock.sleep(backoff)
                    backoff = min(backoff * 2, LONGEST_BACKOFF)
        except anyio.get_cancelled_exc_class():
            # As a task, and not by its scope: by code of a user's that it has called, or with all tasks of a loop that
            # ends. The group would cancel all others for it, and the owner.
            _log.warning("task %s of %s was cancelled from outside of rocketbox, and has ended", task.name, self.name)
        finally:
            if task.state in (TaskState.RUNNING, TaskState.WAITING):
                task.state = TaskState.CANCELLED
            self._tasks.pop(id(task), None)
            if task.state is TaskState.FAILED:
                self._failed.append(task.health())
            task._ended()


def _failure_of(error: BaseException) -> Exception | None:
    """What the task failed with; None: it is cancelled, and holds nothing of that, which would hold its frame."""
    failure = as_failure(error, hosted=True)
    return failure if isinstance(failure, Exception) else None


async def ended_most(tasks: Sequence[SupervisedTask], patience: float, clock: Clock) -> None:
    """Return when all of tasks have ended, or ``patience`` seconds after the first one has."""
    if not tasks:
        return
    first = anyio.Event()

    async def wait_for(task: SupervisedTask) -> None:
        await task.wait()
        first.set()

    async with anyio.create_task_group() as waits:
        for task in tasks:
            waits.start_soon(wait_for, task)
        await first.wait()
        with clock.move_on_after(patience):
            for task in tasks:
                await task.wait()
        waits.cancel_scope.cancel()
