"""The owner of virtual time in a harness: how it is known that nothing is left to do now, and who moves time on.

Layers, from below:

    VirtualClock   timers; it stands still by itself
    LoopTurns      whether the loop has anything left to run; what a task waits for
    Pace           settles: waits, without moving time, until nothing can go on but by time; then moves to a next timer
    Harness        says how far: drain (not at all, but for handlers that wait for time), advance, until something is so

Nothing is left to do now when the loop has nothing ready and nothing goes on in real time. Frames in flight, storage
calls and woken timers are all callbacks or tasks of the loop, for network and disk are in memory and the servers'
blocking functions run in the loop; so the first holds for all of them together. What goes on in real time is told by
``real_waits``: handlers, scheduled functions, tasks that handlers have started, threads. While one of them waits for
anything but rocketbox, time stands still and the machine's own passes; when that brings nothing forward for
``patience`` seconds, StuckError names each of them and its line. So it is with one that never waits, but asks in each
turn of the loop (``await asyncio.sleep(0)``): the loop is never idle then. Where something is brought forward without
end, as by two handlers that send to each other, or one of those that are waited for never ends, however much goes on
beside it, it comes after some times ``patience``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from math import inf
from typing import TypeVar

import anyio

from rocketbox.testing.errors import EndlessError, FrozenTimeError, HarnessError, StuckError, UnendingError
from rocketbox.testing.loop_turns import MOST_TURNS, LoopTurns, RealWait
from rocketbox.testing.virtual_clock import VirtualClock

__all__ = ["BrokenOffError", "Looks", "Pace", "Waits"]

SHORTEST_PAUSE, LONGEST_PAUSE = 0.0002, 0.01  # seconds of real time between two looks
LONGEST_LOOK = 0.25  # seconds of real time that count between two looks
FEWEST_LOOKS = 20  # in which nothing has gone on, whatever else the machine does meanwhile
FEWEST_TURNS = 100  # of the loop, likewise, while it has something to run: a send alone takes some
FEW_TURNS = 100  # of the loop, between two moves of time, when it moves whatever goes on
FEWEST_STEPS = 10  # looks that have seen something go on, before it is called endless
ENDLESS = 10  # times patience, in which something is always brought forward, or waited for, and no time moves
LONGEST = 10  # times as long as that, where much of it is real time that what goes on takes
NEVER_WAITS = "a task of this event loop never waits for anything, and runs again in each turn"

Done = Callable[[], bool]
ResultT = TypeVar("ResultT")


class BrokenOffError(HarnessError):
    """The harness has come to its end while somebody waited for a verb of it."""

    def __init__(self) -> None:
        super().__init__(
            "the harness has come to its end while a verb of it, such as drain() or advance(), or a send, was still "
            "awaited: await it to its end inside of 'async with', or 'with'"
        )


class Waits:
    """Whoever waits for a pace, until all of that is broken off.

    Code of the service goes on then, for it is stopped itself; but who breaks that off has the first turn.
    """

    def __init__(self, is_in_service: Callable[[], bool]) -> None:
        self._is_in_service = is_in_service
        self._scopes: set[anyio.CancelScope] = set()

    async def wait(self, work: Callable[[], Awaitable[ResultT]], done: Done = lambda: False) -> ResultT:
        """What ``work()`` returns, which is begun anew where it was broken off and that is no matter: it is ``done()``,
        or the service's. Raises BrokenOffError."""
        while True:
            with anyio.CancelScope() as scope:
                self._scopes.add(scope)
                try:
                    return await work()
                finally:
                    self._scopes.discard(scope)
            if not done() and not self._is_in_service():
                raise BrokenOffError

    def break_off(self) -> None:
        """Have all who wait now get BrokenOffError."""
        for scope in list(self._scopes):
            scope.cancel()


class Pace:
    """Moves ``clock`` in the loop of ``turns``.

    ``progress()`` is something that changes with whatever is done, ``latest()`` is what was done last, in words;
    ``is_in_service()`` says whether the code that asks is that of the service.
    """

    def __init__(
        self,
        clock: VirtualClock,
        turns: LoopTurns,
        real_waits: Callable[[], Iterable[RealWait]],
        progress: Callable[[], object],
        latest: Callable[[], Sequence[str]],
        patience: float,
        is_in_service: Callable[[], bool] = lambda: False,
    ) -> None:
        self.clock = clock
        self.turns = turns
        self.patience = patience
        self.regardless = False
        """Whether time moves whatever still goes on in real time."""
        self.waits = Waits(is_in_service)
        self._real_waits = real_waits
        self._progress = progress
        self._latest = latest
        self._turn = anyio.Lock()  # two who look whether the loop is idle would keep each other from seeing it

    async def settle(self) -> None:
        """Return when nothing can go on without time. Raises StuckError."""

        async def work() -> None:
            async with self._turn:
                await self._settle()

        await self.waits.wait(work)

    async def advance(self, seconds: float) -> None:
        """Move time by so much; what is due on the way runs at its own time. Raises StuckError."""
        end = self.clock.monotonic() + seconds

        async def work() -> None:
            async with self._turn:
                while True:
                    await self._settle()
                    due = self.clock.next_timer(end)
                    if due is None:
                        break
                    self.clock.move_to(due)
                self.clock.move_to(end)
                await self._settle()

        await self.waits.wait(work)

    async def until(self, done: Done, within: float = inf, *, busy_within: float = 0.0, quietly: bool = False) -> bool:
        """Move time until ``done()``, at most by ``within`` seconds; whether it is so. Raises StuckError.

        The loop may be busy for ``busy_within`` seconds of real time before that is called endless, however little the
        patience is. ``quietly`` is for a pace in real time, which says of others that it waits.
        """
        end = self.clock.monotonic() + within

        async def work() -> bool:
            while not done():
                async with self._turn:
                    if done():  # while others had their turn
                        break
                    if await self._settle(done, busy_within):
                        break
                    due = self.clock.next_timer(end)
                    if due is None:
                        return False
                    self.clock.move_to(due)
            return True

        return await self.waits.wait(work, done)

    async def _settle(self, done: Done | None = None, busy_within: float = 0.0) -> bool:
        """Whether it is ``done()`` now."""
        turns, patience = self.turns, self.patience
        endless = max(ENDLESS * patience, busy_within)
        longest = LONGEST * endless
        most_turns = FEW_TURNS if self.regardless else MOST_TURNS
        looks = Looks(turns.real_time, patience)
        quiet = changed = since = rested = now = 0.0  # when it was so last, by looks
        mark, pause, paused, made, steps = self._progress(), SHORTEST_PAUSE, 0.0, 0, 0
        first_seen: dict[object, float] = {}  # of each that is waited for, and of what it comes from
        while True:
            turned = await turns.until_idle(most_turns, looks.longest)
            idle, progress = turns.is_idle, self._progress()
            before, now = now, looks.look() if idle else looks.look_busy(turned)
            since += min(paused, now - before)  # somebody's own work went on, which mostly has an end by itself
            made, paused = made + turned, 0.0
            goes_on = mark != progress
            if goes_on:
                mark, changed, quiet, pause, steps = progress, now, now, SHORTEST_PAUSE, steps + 1
            if idle:
                made, rested = 0, now
            elif made < most_turns and now - since < endless:
                if now - rested > ENDLESS * patience and done is not None and done():
                    return True
                quiet = now
                continue  # it may come to rest soon
            waits = list(self._real_waits())
            idle = idle and turns.is_idle  # a thread may have asked for something and ended since
            is_done = done is not None and done()
            if (idle and not waits) or self.regardless or is_done:
                return is_done
            oldest, seen = None, now
            for wait in waits:
                for each in (wait.of, wait.root):
                    if each is not None and (first := first_seen.setdefault(each, now)) < seen:
                        oldest, seen = wait, first
            if oldest is not None and now - seen > endless:
                raise UnendingError([str(oldest)], now - seen)
            told = [str(each) for each in waits] or [NEVER_WAITS]
            if now - quiet > patience:
                raise StuckError(told, patience)
            if now - since > endless:
                if now - changed > patience:
                    raise StuckError(told, now - changed)
                if goes_on and steps >= FEWEST_STEPS:  # and not what has just come to a stop, on a slow machine
                    if oldest is not None and now - seen > endless / 2:  # it is one, and not one after the other
                        raise UnendingError([str(oldest)], now - seen)
                    raise EndlessError(self._latest() or told, now - since)
            if now > longest and goes_on:
                raise EndlessError(self._latest() or told, now)
            if idle:
                if turns.time_stands_still:
                    raise FrozenTimeError(told)
                paused = await turns.pause(pause)
                pause = min(pause * 2, LONGEST_PAUSE, looks.longest)


class Looks:
    """Real time, as far as somebody has looked what goes on: of the time between two looks no more counts than so much,
    and than so much for each turn that a busy loop has made.

    For in the rest of it nobody could see whether anything did: a debugger has stopped the process, or the machine had
    no time for it. ``within`` is after how long something is given up. All are in seconds.
    """

    def __init__(self, real_time: Callable[[], float], within: float) -> None:
        self.time = 0.0
        self.longest = min(LONGEST_LOOK, within / FEWEST_LOOKS)
        self._turn = within / FEWEST_TURNS
        self._real_time = real_time
        self._last = real_time()

    def look(self) -> float:
        """What time it is now."""
        return self._look(self.longest)

    def look_busy(self, turns: int) -> float:
        """What time it is when the loop still has something to run, after so many turns."""
        return self._look(min(self.longest, turns * self._turn))

    def _look(self, longest: float) -> float:
        now = self._real_time()
        self.time += min(now - self._last, longest)
        self._last = now
        return self.time
