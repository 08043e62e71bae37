"""How the service of a harness comes to its end, whatever goes on in it.

It is asked to stop, as in production, and whoever waits in real time has some for it:

    handlers             a second; then the service cancels them, and they have a second to clean up
    hooks, background    the patience of the harness; then virtual time passes all the same, and so the time that a
    tasks, beans         stop has, at the end of which the service gives them up. That is told
    tasks of handlers    that go on are cancelled when it has stopped, and have a second; in a loop of the harness's own
                         all others as well, which in one of the test's may serve what is around several tests
    threads              that handlers have started, and for which the loop or the process would wait at its end, have
                         the patience of the harness. Who goes on then is told

A coroutine that goes on behind that is ended by force, also one that catches whatever is raised in it. They are
named: nothing of them comes into the next test, or keeps the event loop from being closed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rocketbox.testing.errors import HarnessError, StuckError, note
from rocketbox.testing.forced_end import Force, ForcedEnd, leave_behind, unheard_steps
from rocketbox.testing.loop_turns import LoopTurns, RealWait, ThreadCall, real_wait, users_line
from rocketbox.testing.observer import Observer
from rocketbox.testing.pace import Looks, Pace
from rocketbox.testing.real_world import RealPace
from rocketbox.testing.under_way import GoesOn

__all__ = ["PATIENCE_AT_THE_END", "ServiceEnd"]

PATIENCE_AT_THE_END = 1.0  # seconds of real time
LONGEST_STOP = 600.0  # seconds of virtual time in which a service stops, whatever goes on in real time
LONGEST_REAL_STOP = 30.0  # seconds in which it stops on a real broker: a stop gives up after 20 s
PAUSE = 0.005  # seconds of real time between two looks
MOST_ROUNDS = 10  # of ending: who waited for what has ended may go on in spite of that, or begin something else
MOST_ROUNDS_OF_FORCE = 26  # who waited for what is ended so may be such a one as well
ROUNDS_FROM_WITHIN = 13  # of these; then who begins anew what it waits for is ended before that
ROUND = 1.0  # seconds of virtual time after each
MOST_TOLD = 20  # of those that have gone on
FEW_TURNS = 10  # of the loop, in which is called what waits for the end of a task


def _some(told: Sequence[str]) -> str:
    """All of it for people; of very much the first."""
    more = f"; and {len(told) - MOST_TOLD} others" if len(told) > MOST_TOLD else ""
    return "; ".join(told[:MOST_TOLD]) + more


class ServiceEnd:
    """The end of the service ``name`` that runs in the task ``host``.

    ``background()`` are its background tasks; ``is_own_loop`` says that the loop is closed behind it.
    """

    def __init__(
        self,
        name: str,
        host: Any,
        pace: Pace | RealPace,
        turns: LoopTurns,
        seen: Observer,
        background: Callable[[], Sequence[Any]],
        *,
        is_own_loop: bool,
    ) -> None:
        self._name = name
        self._host = host
        self._pace = pace
        self._turns = turns
        self._seen = seen
        self._going = seen.under_way
        self._background = background
        self._is_own_loop = is_own_loop
        self._patience = pace.patience
        self._longest = LONGEST_STOP if isinstance(pace, Pace) else LONGEST_REAL_STOP
        self._forced: dict[object, str] = {}  # what, and where it was, by its task
        self._stubborn: dict[object, str] = {}
        self._late: list[HarnessError] = []
        self._is_cut_off = False
        self.errors: list[HarnessError] = []
        """What was wrong with the stop, or with what has gone on behind it."""

    async def come(self, *, started: bool, in_short: bool) -> None:
        """Return when it has stopped.

        ``in_short``: the test is told something else, so that threads have no more time than tasks.
        """
        pace, stopped = self._pace, self._host.done
        pace.waits.break_off()
        if not started:
            self._cut_off()  # it does not hear of the end yet
        pace.patience = min(self._patience, PATIENCE_AT_THE_END)
        with suppress(StuckError):
            await self._until(stopped)
        if self._going.running:
            self._seen.untold.close()
            pace.regardless = True
            await self._end_handlers()
            pace.regardless = False
        pace.patience = self._patience
        try:
            await self._until(stopped)
        except StuckError as error:
            self._late.append(error)
        pace.regardless = True
        if not await self._until(stopped):
            self._cut_off()
            await self._until(stopped)
        await self._force(lambda: self._told(self._own_tasks()))
        is_known = self._late or self._forced or self._stubborn
        if started and not is_known and (not stopped() or self._host.cancelled()):
            self._late.append(StuckError([f"the stop of {self._name}"], self._patience))
        await self._end_tasks()
        await self._end_threads(min(self._patience, PATIENCE_AT_THE_END) if in_short else self._patience)
        await self._end_tasks()  # what threads have left in the loop
        self._tell()

    def _tell(self) -> None:
        if left := self._left():
            self._late.append(
                HarnessError(
                    f"{_some([each.what for each in self._told(left)])} goes on although all tasks were cancelled at "
                    "the end: have who begins it again do so no more when the service stops"
                )
            )
        self.errors += self._late
        self._tell_of(
            self._stubborn,
            "ended by force, for it catches whatever ends it",
            "it catches whatever ends it, and was ended by force",
            "write 'except Exception:' there in place of 'except:' or 'except BaseException:'",
        )
        self._tell_of(
            self._forced,
            "ended by force, for it went on although it was cancelled",
            "it went on although it was cancelled at the end, and was ended by force",
            "have it raise the CancelledError that it catches again, or clean up in less time",
        )
        for error in self._late:
            self._seen.note(f"at the end: {error}")

    def _tell_of(self, found: Mapping[object, str], noted: str, fault: str, mend: str) -> None:
        """Before all other errors."""
        if found:
            told = _some(list(dict.fromkeys(found.values())))
            self._seen.note(f"{noted}: {told}")
            self.errors.insert(
                0, HarnessError(f"{fault}: {told}. In production it would hold up the stop of the service: {mend}")
            )

    async def _until(self, done: Callable[[], bool]) -> bool:
        return await self._pace.until(done, self._longest, quietly=True)

    def _cut_off(self) -> None:
        self._is_cut_off = True
        self._host.cancel()

    @property
    def failure(self) -> BaseException | None:
        """What the service itself has failed with; None too where it had to be cut off, which fails by that."""
        if self._is_cut_off or not self._host.done() or self._host.cancelled():
            return None
        failed: BaseException | None = self._host.exception()
        return failed

    # --- what is left ------------------------------------------------------------------------------------------------

    async def _end_handlers(self) -> None:
        def ended() -> bool:
            return self._host.done() or not self._going.running

        self._going.leave_threads_of_handlers()
        await self._until(ended)
        await self._in_real_time(ended, PATIENCE_AT_THE_END)  # by now the service has cancelled them
        await self._force(lambda: self._going.handlers)
        await self._until(ended)

    def _own_tasks(self) -> list[Any]:
        """Hooks and background tasks, where the stop has not come to its end."""
        return [task for task in (self._host, *self._background()) if not task.done()]

    def _left(self) -> list[Any]:
        left = self._going.tasks if self._is_own_loop else self._going.tasks_of_handlers
        return list(dict.fromkeys([*self._own_tasks(), *(task for task in left if not task.done())]))

    def _told(self, tasks: Sequence[Any]) -> list[GoesOn]:
        own = self._own_tasks()
        return [GoesOn(task, None, task.get_name() if task in own else self._going.told(task)) for task in tasks]

    async def _end_tasks(self) -> None:
        """As the end of a process does. How a task fails that is cancelled here says nothing."""
        await self._end_timers()
        self._hear_of_lost_tasks()  # that have failed by themselves
        heard = len(self._seen.of_hooks)
        await self._cancel_tasks()
        self._hear_of_lost_tasks()
        del self._seen.of_hooks[heard:]

    def _hear_of_lost_tasks(self) -> None:
        if self._is_own_loop:
            self._going.let_go_of_lost_tasks()

    async def _cancel_tasks(self) -> None:
        """What others begin when they end comes in a round of its own."""
        cancelled = set[Any]()
        for _ in range(MOST_ROUNDS):
            left = [task for task in self._left() if task not in cancelled]
            if not left:
                break
            cancelled.update(left)
            await self._cancel(left)
            await self._end_timers()

    async def _end_timers(self) -> None:
        await self._turns.until_idle(FEW_TURNS)  # who waits for the end of what was cancelled is called
        self._going.cancel_timers()

    async def _cancel(self, tasks: Sequence[Any]) -> None:
        def left() -> list[Any]:
            return [task for task in tasks if not task.done()]

        for task in tasks:
            task.cancel()
        await self._until(lambda: not left())
        await self._in_real_time(lambda: not left(), PATIENCE_AT_THE_END)
        await self._force(lambda: self._told(left()))

    async def _end_threads(self, patience: float) -> None:
        given = {each.of for each in self._going.in_threads_of_service}  # who polls by them gives others meanwhile

        def left() -> list[RealWait]:
            of_service = [each for each in self._going.in_threads_of_service if each.of in given]
            return [*self._going.threads_left, *of_service]

        if not await self._in_real_time(lambda: not left(), patience):
            self._late.append(StuckError([str(each) for each in left()], patience))
            note(
                self._late[-1],
                "The end of the event loop, or of the process, waits for it: have the stop let it return",
            )
            if any(isinstance(each.of, ThreadCall) and each.of.is_in_default_executor for each in left()):
                self._turns.leave_threads()

    async def _in_real_time(self, done: Callable[[], bool], patience: float) -> bool:
        """Let so much real time pass, in which somebody who was cancelled does what he has to do then; whether it is so
        far."""
        looks = Looks(self._turns.real_time, patience)
        while not done() and looks.look() < patience:
            await self._turns.until_idle(FEW_TURNS)
            await self._turns.pause(min(PAUSE, looks.longest))
        return done()

    async def _force(self, left: Callable[[], list[GoesOn]]) -> None:
        forced = ForcedEnd(self._going.context_of)
        for number in range(MOST_ROUNDS_OF_FORCE):
            going_on, ended = left(), set[Any]()
            if not going_on:
                return
            is_from_within, heard = number < ROUNDS_FROM_WITHIN, len(self._seen.of_hooks)
            among = {*self._going.tasks, *self._own_tasks()} if is_from_within else set()
            is_last = number == MOST_ROUNDS_OF_FORCE - 1
            for each in going_on:
                where = real_wait(each.task, each.awaited) or users_line(each.work) or "its own code"
                told = f"{each.what} at {where}"
                is_host = each.task is self._host  # it comes to one hook after another
                key = (each.task, where.rpartition(" in ")[2]) if is_host else each.task
                if is_last and not is_host:  # all at once, so that nobody begins another
                    leave_behind(each.task)
                    force = Force.IGNORED
                else:
                    force = forced.end(each.task, each.awaited, among, ended if is_from_within else set())
                if force is Force.IGNORED:
                    self._stubborn.setdefault(key, self._forced.pop(key, told))
                elif force is Force.TAKEN and key not in self._stubborn:
                    self._forced.setdefault(key, told)
            with unheard_steps():
                await self._pace.until(lambda: not left(), ROUND, quietly=True)
                await self._turns.until_idle(FEW_TURNS)
            del self._seen.of_hooks[heard:]  # how somebody fails who is ended so says nothing
