"""The background tasks and scheduled functions of one run of an application, and how they are.

Both are supervised: nothing dies silently. A background task that fails is started again, with backoff; a scheduled
function that fails is called again when its time comes. What is called, and with what, is handed in.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rocketbox.clock import Clock
from rocketbox.own_failures import failures_only
from rocketbox.safe_repr import safe_repr
from rocketbox.tasks import SupervisedTask, Supervisor, TaskHealth, TaskState

__all__ = ["BackgroundWork", "ScheduledHealth"]

_log = logging.getLogger(__name__)

Call = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class ScheduledHealth:
    """What health shows of one scheduled function.

    ``runs`` that have begun, ``failures`` among them, times ``skipped`` because it still ran, seconds for which it is
    ``running_for`` now, and the ``error`` of the last run, if that failed.
    """

    name: str
    interval: float
    runs: int
    failures: int
    skipped: int
    running_for: float | None
    error: str | None


class _Schedule:
    def __init__(self, name: str, interval: float, call: Call) -> None:
        self.name = name
        self.interval = interval
        self.call = call
        self.runs = self.failures = self.skipped = 0
        self.running_since: float | None = None
        self.error: Exception | None = None
        self.task: SupervisedTask


class BackgroundWork:
    """``async with BackgroundWork("desk", clock) as work: work.start("refresh", refresh)``.

    Leaving cancels what runs, the last that was started first, and each when the one before it has ended.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self._clock = clock
        self._supervisor = Supervisor(name, clock)
        self._tasks: list[SupervisedTask] = []
        self._schedules: list[_Schedule] = []
        self._draining = False

    async def __aenter__(self) -> Self:
        await self._supervisor.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._draining = True
        try:
            for task in reversed(self._tasks):
                task.cancel()
                await task.wait()
        finally:
            await self._supervisor.__aexit__(kind, error, trace)
        return False

    def start(self, name: str, call: Call) -> None:
        """Run a background task until it returns or the work ends."""
        self._tasks.append(self._supervisor.start(name, _heard, call))

    def repeat(self, name: str, interval: float, call: Call) -> None:
        """Call a function every ``interval`` seconds, for the first time after one of them."""
        schedule = _Schedule(name, interval, call)
        schedule.task = self._supervisor.start(name, self._repeat, schedule)
        self._schedules.append(schedule)
        self._tasks.append(schedule.task)

    async def drain(self, timeout: float) -> None:
        """Begin no more runs of scheduled functions, and give those that run ``timeout`` seconds to end."""
        self._draining = True
        for schedule in self._schedules:
            if schedule.running_since is None:
                schedule.task.cancel()
        with self._clock.move_on_after(timeout):
            for schedule in self._schedules:
                await schedule.task.wait()
        late = [schedule.name for schedule in self._schedules if schedule.running_since is not None]
        if late:
            _log.warning("still running after %g s, and cancelled: %s", timeout, ", ".join(late))

    @property
    def tasks(self) -> list[TaskHealth]:
        """The background tasks, also those that have ended."""
        scheduled = {id(schedule.task) for schedule in self._schedules}
        return [task.health() for task in self._tasks if id(task) not in scheduled]

    @property
    def ending(self) -> list[str]:
        """The names of all that was cancelled and goes on."""
        return [task.name for task in self._tasks if task.ending]

    @property
    def schedules(self) -> list[ScheduledHealth]:
        now = self._clock.monotonic()
        return [
            ScheduledHealth(
                each.name,
                each.interval,
                each.runs,
                each.failures,
                each.skipped,
                None if each.running_since is None else now - each.running_since,
                safe_repr(each.error) if each.error is not None else None,
            )
            for each in self._schedules
        ]

    def problems(self) -> list[str]:
        """Why the work is not done as it should be: background tasks that failed and wait to start again."""
        return [
            f"{task.name} failed and waits to start again: {task.error}"
            for task in self.tasks
            if task.state is TaskState.WAITING
        ]

    async def _repeat(self, schedule: _Schedule) -> None:
        due = self._clock.monotonic() + schedule.interval
        while not self._draining:
            await self._clock.sleep(max(due - self._clock.monotonic(), 0.0))
            schedule.running_since = self._clock.monotonic()
            schedule.runs += 1
            try:
                await _heard(schedule.call)
            except Exception as error:
                schedule.error = error
                schedule.failures += 1
                _log.exception(
                    "%s failed, %d of %d runs so far; the next one comes all the same",
                    schedule.name,
                    schedule.failures,
                    schedule.runs,
                )
            else:
                schedule.error = None
            finally:
                schedule.running_since = None
            late = self._clock.monotonic() - due
            missed = int(late // schedule.interval)
            schedule.skipped += missed
            due += (missed + 1) * schedule.interval


async def _heard(call: Call) -> None:
    """Call; what would end the task or the process is a failure: a cancellation of its own, ``sys.exit``."""
    with failures_only():
        await call()
