"""What servers refuse to a consumer group: told once, shown in health, and asked again more and more rarely.

Many tasks ask for one group, for each queue and each second. When its user lacks a permission, or its keys are not
taken, all of them are refused until an administrator gives it. So each of them asks here how long to leave the servers
alone with what it does: 1, 2, 4, 8 and then 10 seconds. Log and health say what is missing, in the words of
``AccessDeniedError.missing``, and that it is there again. New keys end all waits.

Source: own design; Apache RocketMQ 5.x asks again every 3 s for each queue, and logs each time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio

from rocketbox.clock import Clock
from rocketbox.errors import AccessDeniedError

__all__ = ["Refusals"]

_log = logging.getLogger(__name__)

FIRST_WAIT = 1.0  # seconds
LONGEST_WAIT = 10.0
FORGOTTEN_AFTER = 60.0  # seconds in which nobody does it: its queue is another member's now, or all is committed


class _Refused:
    """One thing that is done for a group, and was refused; until when it is left, on the monotonic clock."""

    __slots__ = ("missing", "times", "until")

    def __init__(self) -> None:
        self.missing = ""
        self.times = 0
        self.until = float("-inf")


class Refusals:
    """Those of one group. ``look_for_keys`` is called when its keys are not taken."""

    def __init__(self, group: str, clock: Clock, look_for_keys: Callable[[], None]) -> None:
        self._group = group
        self._clock = clock
        self._look_for_keys = look_for_keys
        self._refused: dict[str, _Refused] = {}  # by what is done
        self._told: set[str] = set()
        self._forgiven = anyio.Event()

    def __bool__(self) -> bool:
        """Whether anything is refused."""
        return bool(self.missing)

    @property
    def missing(self) -> tuple[str, ...]:
        """What is missing, each once."""
        since = self._clock.monotonic() - FORGOTTEN_AFTER
        return tuple(dict.fromkeys(each.missing for each in self._refused.values() if each.until > since))

    def refused(self, doing: str, error: AccessDeniedError) -> float:
        """Note that ``doing`` something was refused; the seconds to leave it."""
        now = self._clock.monotonic()
        each = self._refused.setdefault(doing, _Refused())
        each.missing = error.missing
        self._tell_of_what_is_over()
        if now >= each.until:  # else others do the same beside it, and were asked before that was known
            wait = min(FIRST_WAIT * 2 ** min(each.times, 10), LONGEST_WAIT)
            each.until = now + wait * self._clock.random.uniform(0.9, 1.1)
            each.times += 1
            if error.wrong_keys:
                self._look_for_keys()
        if each.missing not in self._told:
            self._told.add(each.missing)
            _log.warning("group %s: %s is refused, and asked for again: %s", self._group, doing, error)
        return each.until - now

    def allowed(self, doing: str) -> None:
        """It was not refused this time."""
        if self._refused.pop(doing, None) is not None:
            self._tell_of_what_is_over()

    def rest(self, doing: str) -> float:
        """The seconds for which it is to be left alone; 0: none."""
        each = self._refused.get(doing)
        return 0.0 if each is None else max(0.0, each.until - self._clock.monotonic())

    async def pause(self, doing: str) -> None:
        """Wait as long, or until there are new keys."""
        with self._clock.move_on_after(self.rest(doing)):
            await self._forgiven.wait()

    def forgive(self) -> None:
        """The keys are others now: ask for all of it again."""
        for each in self._refused.values():
            each.until, each.times = self._clock.monotonic(), 0
        forgiven, self._forgiven = self._forgiven, anyio.Event()
        forgiven.set()

    def _tell_of_what_is_over(self) -> None:
        for missing in sorted(self._told.difference(self.missing)):
            self._told.remove(missing)
            _log.info("group %s: no longer refused: %s", self._group, missing)
