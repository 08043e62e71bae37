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

from collections.abc import Callable, Iterable, Sequence
from math import inf

import anyio

from rocketbox.testing.errors import EndlessError, FrozenTimeError, StuckError, UnendingError
from rocketbox.testing.loop_turns import MOST_TURNS, LoopTurns, RealWait
from rocketbox.testing.virtual_clock import VirtualClock

__all__ = ["Pace"]

SHORTEST_PAUSE, LONGEST_PAUSE = 0.0002, 0.01  # seconds of real time between two looks
FEW_TURNS = 100  # of the loop, between two moves of time, when it moves whatever goes on
ENDLESS = 10  # times patience, in which something is always brought forward, or waited for, and no time moves
NEVER_WAITS = "a task of this event loop never waits for anything, and runs again in each turn"


Done = Callable[[], bool]


class Pace:
    """Moves ``clock`` in the loop of ``turns``.

    ``progress()`` is something that changes with whatever is done, ``latest()`` is what was done last, in words.
    """

    def __init__(
        self,
        clock: VirtualClock,
        turns: LoopTurns,
        real_waits: Callable[[], Iterable[RealWait]],
        progress: Callable[[], object],
        latest: Callable[[], Sequence[str]],
        patience: float,
    ) -> None:
        self.clock = clock
        self.turns = turns
        self.patience = patience
        self.regardless = False
        """Whether time moves whatever still goes on in real time."""
        self._real_waits = real_waits
        self._progress = progress
        self._latest = latest
        self._turn = anyio.Lock()  # two who look whether the loop is idle would keep each other from seeing it

    async def settle(self) -> None:
        """Return when nothing can go on without time. Raises StuckError."""
        async with self._turn:
            await self._settle()

    async def advance(self, seconds: float) -> None:
        """Move time by so much; what is due on the way runs at its own time. Raises StuckError."""
        end = self.clock.monotonic() + seconds
        async with self._turn:
            while True:
                await self._settle()
                due = self.clock.next_timer(end)
                if due is None:
                    break
                self.clock.move_to(due)
            self.clock.move_to(end)
            await self._settle()

    async def until(self, done: Done, within: float = inf, *, quietly: bool = False) -> bool:
        """Move time until ``done()``, at most by ``within`` seconds; whether it is so. Raises StuckError.

        ``quietly`` is for a pace in real time, which says of others that it waits.
        """
        end = self.clock.monotonic() + within
        while not done():
            async with self._turn:
                if done():  # while others had their turn
                    break
                await self._settle(done)
                if done():
                    break
                due = self.clock.next_timer(end)
                if due is None:
                    return False
                self.clock.move_to(due)
        return True

    async def _settle(self, done: Done | None = None) -> None:
        turns = self.turns
        since = turns.real_time()
        began, mark, pause = since, None, SHORTEST_PAUSE
        first_seen: dict[object, float] = {}  # of each that is waited for
        while True:
            idle = await self._until_idle(since, done)
            waits = list(self._real_waits())
            idle = idle and turns.is_idle  # a thread may have asked for something and ended since
            if (idle and not waits) or self.regardless or (done is not None and done()):
                return
            now, progress = turns.real_time(), self._progress()
            self._check_ends(since, now)
            longest = ENDLESS * self.patience
            for wait in waits:
                if wait.of is not None and now - first_seen.setdefault(wait.of, now) > longest:
                    raise UnendingError([str(wait)], now - first_seen[wait.of])
            if mark != progress:
                began, mark, pause = now, progress, SHORTEST_PAUSE
            elif now - began > self.patience:
                raise StuckError([str(each) for each in waits] or [NEVER_WAITS], self.patience)
            if idle:
                if turns.time_stands_still:
                    raise FrozenTimeError([str(each) for each in waits])
                await turns.pause(pause)
                since += turns.real_time() - now  # in which somebody's own work went on, which has an end by itself
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _until_idle(self, since: float, done: Done | None) -> bool:
        """Whether the loop is idle, which is not looked at for longer than so many turns.

        Where it goes on for long beside what is ``done()``, that is enough.
        """
        left = FEW_TURNS if self.regardless else MOST_TURNS
        while left > 0:
            left -= await self.turns.until_idle(left)
            if self.turns.is_idle:
                return True
            now = self.turns.real_time()
            if self._is_endless(since, now) and done is not None and done():
                break
            if not self.regardless:
                self._check_ends(since, now)
        return False

    def _is_endless(self, since: float, now: float) -> bool:
        return now - since > ENDLESS * self.patience

    def _check_ends(self, since: float, now: float) -> None:
        if self._is_endless(since, now):
            raise EndlessError(
                self._latest() or [str(each) for each in self._real_waits()] or [NEVER_WAITS], now - since
            )
