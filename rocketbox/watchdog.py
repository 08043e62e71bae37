"""The watchdog of the event loop: names the line that blocks it, and says that the application is ill if it goes on.

A thread asks the loop four times a second to show that it turns; what holds the loop up is found in the frames of the
loop's thread. All of an application waits for code that blocks its loop, so such code belongs in a ``def`` handler.

The thread looks at itself as well. When it comes late although the process did not use that time (a laptop that slept,
SIGSTOP, a machine without time to give), nobody has blocked anything. When the process did use it, some code held the
interpreter lock (GIL), as one long call into C does, and loop and thread waited together.
"""

from __future__ import annotations

import inspect
import logging
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

from rocketbox.clock import Clock, RealClock
from rocketbox.frames import in_debugger, inside, outwards, place_of_frame, stack_text, users_frame
from rocketbox.loops import call_soon_from_thread

__all__ = ["DOWN_AFTER", "WARN_AFTER", "LoopWatchdog", "frames_outside"]

_log = logging.getLogger(__name__)

WARN_AFTER = 1.0  # seconds without a turn of the loop until the line is named
DOWN_AFTER = 20.0  # seconds until health is down
LOOKS = 4  # in WARN_AFTER: each costs the loop one wake-up, some 20 us
RUN_SHARE = 0.2  # of the time in which the thread did not run; with less of the processor the process stood still


class LoopWatchdog:
    """``async with LoopWatchdog(clock) as watchdog:`` watches the loop that enters it.

    Warns once a block after ``warn_after`` seconds, with the place and a short stack, and says when it is over; after
    ``down_after`` seconds ``healthy`` is False until the loop turns again. Time in which the process itself did not
    run does not count, nor does the time that somebody spends in a debugger. Any other clock than the machine's own
    stands still at times that no thread can know: under such a one nothing is watched.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        warn_after: float = WARN_AFTER,
        down_after: float = DOWN_AFTER,
        cpu_time: Callable[[], float] = time.process_time,
    ) -> None:
        self.warn_after = warn_after
        self.down_after = down_after
        self.interval = warn_after / LOOKS
        self._clock = clock
        self._cpu_time = cpu_time
        self._thread: threading.Thread | None = None
        self._end = threading.Event()
        self._call_soon: Callable[[Callable[[], object]], object] = _no_loop
        self._loop_thread = 0
        self._outside = 0  # outermost frames of the loop's thread that are not run by the loop: they run it
        # written by the loop
        self._turned = True
        self._turned_at = 0.0
        # written by the thread
        self._since = 0.0  # the loop has not turned since, as far as it was looked at
        self._looked_at = 0.0
        self._cpu_at_look = 0.0
        self._blocked_for = 0.0
        self._warned = self._down = False

    async def __aenter__(self) -> Self:
        if isinstance(self._clock, RealClock):
            self.watch(threading.get_ident(), call_soon_from_thread())
            self._end.clear()
            self._thread = threading.Thread(target=self._run, name="rocketbox-watchdog", daemon=True)
            self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join(self.interval)  # it ends at once, unless its log record waits for somebody
            self._thread = None
        self._turned = True

    @property
    def blocked_for(self) -> float:
        """Seconds for which the loop has not turned, at the last look; 0 when it turns."""
        return 0.0 if self._turned else self._blocked_for

    @property
    def healthy(self) -> bool:
        """Whether the loop has turned within ``down_after`` seconds."""
        return self.blocked_for < self.down_after

    def watch(self, loop_thread: int, call_soon: Callable[[Callable[[], object]], object]) -> None:
        """Look from now on at the loop of that thread (its ident), which is reached by ``call_soon``."""
        self._loop_thread = loop_thread
        self._call_soon = call_soon
        self._turned = True
        self._turned_at = self._since = self._looked_at = self._clock.monotonic()
        self._cpu_at_look = self._cpu_time()
        self._warned = self._down = False

    def look(self) -> bool:
        """Look once, ``interval`` seconds after the last time; False when the loop has ended."""
        now, cpu = self._clock.monotonic(), self._cpu_time()
        late = now - self._looked_at - self.interval
        lost = late if late > self.interval else 0.0  # what only came a little late says nothing
        was_run = cpu - self._cpu_at_look > lost * RUN_SHARE
        looked_at, self._looked_at, self._cpu_at_look = self._looked_at, now, cpu
        ask = self._turned
        if not was_run:  # what was lost after the loop had turned is nothing of the time before
            self._since += min(lost, max(self._turned_at - looked_at, 0.0)) if ask else lost
        if ask:
            self._over(self._turned_at - self._since)
            self._since = max(now - lost, self._turned_at) if was_run else now
            self._blocked_for = 0.0
            self._turned = False
        self._judge(now)
        if ask:  # behind the look at the frames: this call can give the interpreter lock back to the loop's thread
            try:
                self._call_soon(self._turn)
            except RuntimeError:  # from a closed asyncio loop, and from a trio run that is over
                return False
        return True

    # --- in the loop -------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        if not self._outside:
            # trio calls back from a task of its own, three calls deep; asyncio from the loop itself.
            self._outside = frames_outside(sys._getframe(1), within=4)
        self._turned_at = self._clock.monotonic()
        self._turned = True

    # --- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        there = True
        while there and not self._end.wait(self.interval):
            there = self.look()

    def _judge(self, now: float) -> None:
        blocked_for = now - self._since
        if blocked_for < self.warn_after:
            return
        frame = sys._current_frames().get(self._loop_thread)
        if frame is not None and in_debugger(frame):
            self._since = now
            return
        self._blocked_for = blocked_for
        if not self._warned:
            self._warned = True
            _log.warning("%s", _explain(frame, self._outside, blocked_for))
        if blocked_for >= self.down_after and not self._down:
            self._down = True
            _log.error("the event loop has not turned for %.1f s: health is down until it does", blocked_for)

    def _over(self, blocked_for: float) -> None:
        if self._warned:
            _log.warning("the event loop turns again, after %.1f s", blocked_for)
        elif blocked_for >= self.warn_after:
            _log.warning("the event loop did not turn for %.1f s; it was over before its place was seen", blocked_for)
        self._warned = self._down = False


def frames_outside(frame: FrameType, *, within: int | None = None) -> int:
    """How many outermost frames around this one run the loop, and are not run by it.

    A coroutine is looked for in the innermost ``within`` frames; what is behind the last one found is outside.
    """
    frames = list(outwards(frame))
    coroutines = [n for n, each in enumerate(frames[:within], 1) if each.f_code.co_flags & inspect.CO_COROUTINE]
    return len(frames) - (coroutines[-1] if coroutines else 0)


def _explain(frame: FrameType | None, outside: int, blocked_for: float) -> str:
    frames = inside(frame, outside) if frame is not None else []
    found = users_frame(frames)
    if found is None:
        return (
            f"the event loop has not turned for {blocked_for:.1f} s, and now it runs no code of the application's: "
            "a call, perhaps in another thread, has held the interpreter lock (GIL), or rocketbox itself blocks"
            + (f"\n{stack_text(frames)}" if frames else "")
        )
    return (
        f"the event loop has not turned for {blocked_for:.1f} s: {place_of_frame(found)} blocks it, and with it all "
        "listeners and sends; blocking code belongs in a def handler, or in anyio.to_thread.run_sync\n"
        f"{stack_text(frames)}"
    )


def _no_loop(callback: Callable[[], object]) -> None:
    raise RuntimeError("no loop is watched")
