"""How the service of a harness comes to its end, whatever goes on in it.

It is asked to stop, as in production, and whoever waits in real time has some for it:

    handlers             a second; then the service cancels them, and they have a second to clean up
    hooks, background    the patience of the harness; then virtual time passes all the same, and so the time that a
    tasks, beans         stop has, at the end of which the service gives them up. That is told
    other tasks          of the service are cancelled when it has stopped, and have a second
    threads              that handlers have started, and that would keep the loop or the process from ending, have the
                         patience of the harness. Who goes on then is told

A coroutine that goes on behind that is ended by force, and named: nothing of it comes into the next test, or keeps the
event loop from being closed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rocketbox.testing.errors import HarnessError, StuckError
from rocketbox.testing.forced_end import end_by_force
from rocketbox.testing.loop_turns import LoopTurns, real_wait
from rocketbox.testing.observer import Observer
from rocketbox.testing.pace import Pace
from rocketbox.testing.real_world import RealPace
from rocketbox.testing.under_way import GoesOn

__all__ = ["PATIENCE_AT_THE_END", "ServiceEnd"]

PATIENCE_AT_THE_END = 1.0  # seconds of real time
LONGEST_STOP = 600.0  # seconds of virtual time in which a service stops, whatever goes on in real time
LONGEST_REAL_STOP = 30.0  # seconds in which it stops on a real broker: a stop gives up after 20 s
PAUSE = 0.005  # seconds of real time between two looks
MOST_ROUNDS = 10  # of ending by force: who waited for what was ended may go on in spite of that
ROUND = 1.0  # seconds of virtual time after each


class ServiceEnd:
    """The end of the service ``name`` that runs in the task ``host``."""

    def __init__(
        self,
        name: str,
        host: Any,
        pace: Pace | RealPace,
        turns: LoopTurns,
        seen: Observer,
        background: Callable[[], Sequence[Any]],
    ) -> None:
        self._name = name
        self._host = host
        self._pace = pace
        self._turns = turns
        self._seen = seen
        self._going = seen.under_way
        self._background = background  # tasks of it
        self._patience = pace.patience
        self._longest = LONGEST_STOP if isinstance(pace, Pace) else LONGEST_REAL_STOP
        self._forced: list[str] = []
        self._late: tuple[str, ...] = ()
        self._is_cut_off = False

    async def come(self, *, started: bool, in_short: bool) -> None:
        """Return when it has stopped. ``in_short``: the test is told something else, so that threads are not waited for
        any longer than tasks."""
        pace, stopped = self._pace, self._host.done
        if not started:
            self._cut_off()  # it does not hear of the end yet
        pace.patience = min(self._patience, PATIENCE_AT_THE_END)
        with suppress(StuckError):
            await self._until(stopped)
        if self._going.running:
            pace.regardless = True
            await self._end_handlers()
            pace.regardless = False
        pace.patience = self._patience
        try:
            await self._until(stopped)
        except StuckError as error:
            self._late = error.waits
        pace.regardless = True
        if not await self._until(stopped):
            self._cut_off()
            await self._until(stopped)
        await self._force(self._stuck)
        await self._end_tasks()
        await self._end_threads(min(self._patience, PATIENCE_AT_THE_END) if in_short else self._patience)

    def error(self) -> HarnessError | None:
        """What is wrong with how it ended; None: that is for the service to say."""
        failed = self._host.exception() if self._host.done() and not self._host.cancelled() else None
        cause = None if self._is_cut_off else failed
        error: HarnessError | None = None
        if self._forced:
            error = HarnessError(
                "it went on although it was cancelled at the end, and was ended by force: "
                f"{'; '.join(self._forced)}. In production it would hold up the stop of the service: have it raise the "
                "CancelledError that it catches again, or clean up in less time"
            )
        elif self._late or not self._host.done() or self._host.cancelled():
            error = StuckError(self._late or [f"the stop of {self._name}"], self._patience)
        if error is not None:
            error.__cause__ = cause
        return error

    async def _until(self, done: Callable[[], bool]) -> bool:
        return await self._pace.until(done, self._longest, quietly=True)

    def _cut_off(self) -> None:
        self._is_cut_off = True
        self._host.cancel()

    # --- what is left ------------------------------------------------------------------------------------------------

    async def _end_handlers(self) -> None:
        def ended() -> bool:
            return self._host.done() or not self._going.running

        self._going.leave_threads_of_handlers()
        await self._until(ended)
        await self._clean_up(ended)  # by now the service has cancelled them
        await self._force(lambda: self._going.handlers)
        await self._until(ended)

    def _stuck(self) -> list[GoesOn]:
        """Background tasks and hooks, where the stop has not come to its end."""
        if self._host.done():
            return []
        return [self._told(task) for task in self._own_tasks()]

    def _own_tasks(self) -> list[Any]:
        return [task for task in (self._host, *self._background()) if not task.done()]

    def _left(self) -> list[Any]:
        return list(dict.fromkeys([*self._own_tasks(), *self._going.tasks_left]))

    def _told(self, task: Any) -> GoesOn:
        return GoesOn(task, None, task.get_name() if task in self._own_tasks() else self._going.told(task))

    async def _end_tasks(self) -> None:
        """As the end of a process does."""
        self._going.cancel_timers()

        def ended() -> bool:
            return not self._left()

        for task in self._left():
            task.cancel()
        await self._until(ended)
        await self._clean_up(ended)
        await self._force(lambda: [self._told(task) for task in self._left()])

    async def _end_threads(self, patience: float) -> None:
        end = self._turns.real_time() + patience
        while (left := self._going.threads_left) and self._turns.real_time() < end:
            await self._turns.pause(PAUSE)
        if left:
            self._late = (*self._late, *map(str, left))
            self._turns.leave_threads()

    async def _clean_up(self, ended: Callable[[], bool]) -> None:
        """Let real time pass, in which somebody who was cancelled has done what he has to do then."""
        end = self._turns.real_time() + PATIENCE_AT_THE_END
        while not ended() and self._turns.real_time() < end:
            await self._turns.pause(PAUSE)

    async def _force(self, left: Callable[[], list[GoesOn]]) -> None:
        named = set[str]()
        for _ in range(MOST_ROUNDS):
            going_on, ended = left(), set[Any]()
            for each in going_on:
                where = real_wait(each.task, each.awaited) or "a send"
                if end_by_force(each.task, each.awaited, ended) and each.what not in named:
                    named.add(each.what)
                    self._forced.append(f"{each.what} at {where}")
            if not going_on:
                break
            await self._pace.until(lambda: not left(), ROUND, quietly=True)
        if named:
            told = "; ".join(self._forced[-len(named) :])
            self._seen.note(f"ended by force, for it went on although it was cancelled: {told}")
