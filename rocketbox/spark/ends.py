"""Where the queues of a stream end now, asked a bounded number of times, and what becomes of those that do not answer.

A poll costs one request for each queue; routes are asked for every five seconds (each second while a topic is missing),
the topics of a pattern every half a minute. While nothing new comes, polls slow down to one a second. A broker that
does not answer is left out of polls for a while, so that the others need not wait for it each time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection

from rocketbox.client import Admin
from rocketbox.clock import Clock
from rocketbox.errors import ClientError, RocketBoxError
from rocketbox.message import MessageQueue
from rocketbox.rare_log import RareLog
from rocketbox.spark.asking import ask_each
from rocketbox.spark.loss import SETTLE, SETTLE_PAUSE
from rocketbox.spark.offsets import QueueOffsets
from rocketbox.spark.selection import NOT_READABLE, MissingTopicError, Selection
from rocketbox.spark.worker_client import UNREACHABLE, gather, may_pass

__all__ = ["Ends", "SilenceError"]

_log = logging.getLogger(__name__)

ROUTES_FOR = 5.0  # seconds
PATTERN_FOR = 30.0
MISSING_FOR = 1.0
SILENCE = 180.0  # seconds without any answer after which a stream says so
FIRST_ABSENCE, LONGEST_ABSENCE = 1.0, 15.0  # seconds for which a broker that does not answer is left out
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0  # seconds between two polls that bring nothing
IDLE_SHARE = 0.1  # such a pause is this share of the time in which nothing has come


class SilenceError(RocketBoxError):
    """No broker, or no name server, has answered for long."""

    def __init__(self, what: str, name_server: str, seconds: float, error: Exception) -> None:
        super().__init__(
            f"nothing of {what} (name server {name_server}) has answered for {seconds:.0f} s; the last error: {error}"
        )


class Ends:
    """The ends of a selection's queues, as a stream asks for them again and again."""

    def __init__(
        self, selection: Selection, name_server: str, clock: Clock, *, waits_for_topic: bool, absence_level: int
    ) -> None:
        self._selection = selection
        self._name_server = name_server
        self._clock = clock
        self._waits_for_topic = waits_for_topic
        self._level = absence_level
        self._queues: list[MessageQueue] = []
        self._complete = self._was_complete = False
        self._asked_at = -math.inf
        self._silent_since: float | None = None
        self._polled_at = -math.inf
        self._idle_since: float | None = None
        self._told = RareLog(_log, period=60.0)
        self._absences: dict[str, tuple[float, float]] = {}  # by broker: until when it is left out, and for how long
        self.seen = False
        """Whether there was a queue once: then a topic without a route is no missing one, its brokers are away."""
        self.away: frozenset[MessageQueue] = frozenset()
        """The queues that did not answer last."""
        self.last: QueueOffsets = {}
        """What was answered last, for each queue."""

    async def ask(self, admin: Admin, *, patient: bool = True) -> QueueOffsets:
        """The end of each queue that answers.

        Raises MissingTopicError where a missing topic is not waited for, and SilenceError when nothing has answered for
        SILENCE seconds; what the client raises when it is not ``patient`` and no name server answers.
        """
        self._polled_at = self._clock.monotonic()
        try:
            queues = await self._known_queues(admin)
        except UNREACHABLE as error:
            if not patient or not may_pass(error):
                raise
            if not self._queues:
                self._silence(error)
                return {}
            queues = self._queues  # without a name server these can still be read
        if self.seen and not queues:
            self._silence(MissingTopicError("no queue of it has a route", "its brokers may be away"))
            return {}
        ends, failed = await ask_each(admin.max_offset, self._present(queues))
        self._note_absences(ends, failed)
        self.away = frozenset(queues) - ends.keys()
        self.last |= ends
        if failed:
            self._asked_at = -math.inf  # the broker may have moved
            why = failed[min(failed)]
            brokers = sorted({queue.broker_name for queue in self.away})
            self._told.tell(
                self._level, self._clock.monotonic(), "away",
                "%d of %d queues of %s are not read: broker %s does not answer: %s",
                len(self.away), len(queues), self._selection, ", ".join(brokers), why,
            )  # fmt: skip
            if not ends:
                self._silence(why)
                return {}
        elif not self.away:
            self._told.over("away")
        self._silent_since = None
        self.seen = self.seen or bool(ends)
        return ends

    async def ask_all(self, admin: Admin) -> QueueOffsets:
        """The end of each queue there is; raises what the client raises when one does not answer.

        Also where a topic has none: its brokers may be away, or known to the name server in a moment. A pattern may
        match no topic yet.
        """
        self._asked_at = -math.inf
        queues = await self._known_queues(admin)
        if not queues and self._selection.pattern is None:
            raise ClientError(
                f"no queue of {self._selection} that may be read has a route at name server {self._name_server}: the "
                "topic does not exist, or its brokers are away"
            )
        self.last = await gather(admin.max_offset, queues)
        self.seen = self.seen or bool(self.last)
        return self.last

    async def has_lost_queues(self, admin: Admin) -> bool:
        """Whether queues that are asked for have left the route, or do within seconds.

        A name server hears of a topic's queues and permission a moment after their broker keeps to them.
        """
        known, since = frozenset(self._queues), self._clock.monotonic()
        while True:
            try:
                left = not known.issubset((await self._selection.queues(admin)).queues)
            except UNREACHABLE:  # no name server answers now
                left = False
            if left or self._clock.monotonic() - since >= SETTLE:
                break
            await self._clock.sleep(SETTLE_PAUSE)
        self._asked_at = -math.inf
        return left

    @property
    def complete(self) -> bool:
        """Whether nothing was missing, and all queues have answered."""
        return self._complete and not self.away

    async def wait(self) -> None:
        """Wait until the next poll is due, the longer the longer ago :meth:`moved` was."""
        now = self._clock.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        pause = min(max(FIRST_PAUSE, IDLE_SHARE * (now - self._idle_since)), LONGEST_PAUSE)
        await self._clock.sleep(max(0.0, self._polled_at + pause - now))

    def moved(self) -> None:
        """Something new was there: the next poll comes soon."""
        self._idle_since = None

    def _present(self, queues: list[MessageQueue]) -> list[MessageQueue]:
        """The queues that are asked now; all of them where each would be left out."""
        now = self._clock.monotonic()
        present = [queue for queue in queues if self._absences.get(queue.broker_name, (now, 0.0))[0] <= now]
        return present or queues

    def _note_absences(self, ends: Collection[MessageQueue], failed: Collection[MessageQueue]) -> None:
        for name in {queue.broker_name for queue in ends}:
            self._absences.pop(name, None)
        now = self._clock.monotonic()
        for name in {queue.broker_name for queue in failed} - {queue.broker_name for queue in ends}:
            _, before = self._absences.get(name, (now, 0.0))
            absence = min(max(FIRST_ABSENCE, 2 * before), LONGEST_ABSENCE)
            self._absences[name] = (now + absence, absence)

    async def _known_queues(self, admin: Admin) -> list[MessageQueue]:
        fresh_for = MISSING_FOR if not self._complete else PATTERN_FOR if self._selection.pattern else ROUTES_FOR
        if self._clock.monotonic() - self._asked_at < fresh_for:
            return self._queues
        queues, missing, closed = await self._selection.queues(admin)
        if missing and not self._waits_for_topic and not self._was_complete:
            raise MissingTopicError(
                f"{'; '.join(missing)} at name server {self._name_server}", "create it, or say missingTopic=wait"
            )
        if missing:
            self._told.tell(
                self._level, self._clock.monotonic(), "missing",
                "%s at name server %s; it is asked for each second", "; ".join(missing), self._name_server,
            )  # fmt: skip
        else:
            self._told.over("missing")
        if closed:
            self._told.tell(
                logging.WARNING, self._clock.monotonic(), "closed",
                "%s: %s %s %s; read when there is one", self._selection, ", ".join(closed),
                "has" if len(closed) == 1 else "have", NOT_READABLE,
            )  # fmt: skip
        else:
            self._told.over("closed")
        self._complete = not missing
        self._was_complete = self._was_complete or self._complete
        self._queues = queues
        self._asked_at = self._clock.monotonic()
        return self._queues

    def _silence(self, error: Exception) -> None:
        now = self._clock.monotonic()
        if self._silent_since is None:
            self._silent_since = now
        if now - self._silent_since >= SILENCE:
            raise SilenceError(str(self._selection), self._name_server, now - self._silent_since, error) from error
        self._told.tell(self._level, now, "silent", "where %s ends is not known: %s", self._selection, error)
