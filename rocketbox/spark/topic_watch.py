"""What a listener's own client sees of its topic: whether it is there, which brokers are away, and how far they are.

Spark asks its source in other processes, which wait patiently and tell nobody: so the listener looks for itself every
10 s. What is wrong is in its log and in readiness within 30 s, once, and once when it is over.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from rocketbox.client import Admin
from rocketbox.clock import Clock
from rocketbox.errors import NoRouteError, RemotingError, RocketBoxError
from rocketbox.message import MessageQueue
from rocketbox.rare_log import RareLog
from rocketbox.spark.worker_client import gather

__all__ = ["TopicWatch"]

_log = logging.getLogger(__name__)

INTERVAL = 10.0  # seconds between two looks
REMIND = 60.0  # seconds between two lines about a topic that does not exist
MISSING_INTERVAL = 1.0  # seconds between two looks for one


class TopicWatch:
    """Looks at ``topic`` for the listener of ``group``; ``trouble`` is None while all is well."""

    def __init__(self, admin: Admin, group: str, topic: str, clock: Clock) -> None:
        self.trouble: str | None = None
        self.ends: Mapping[MessageQueue, int] = {}
        """The offset that the next message of each queue will get; that of a broker which is away is the last known."""
        self.read: Mapping[MessageQueue, int] | None = None
        """Up to where each queue was read, as the listener knows it; None: it does not."""
        self._admin = admin
        self._group = group
        self._topic = topic
        self._clock = clock
        self._queues: list[MessageQueue] = []
        self._unknown: frozenset[str] = frozenset()
        """Brokers that have read queues, and that were never seen in the route: nobody knows what is unread there."""

    async def until_there(self) -> bool:
        """Return when the topic exists; whether that was so as soon as a name server has answered."""
        missing, told, silence = False, -REMIND, RareLog(_log, REMIND)
        waits: str | None = None
        while True:
            try:
                self._queues = await self._admin.queues(self._topic)
                break
            except NoRouteError:
                now = self._clock.monotonic()
                if now - told >= REMIND:
                    told = now
                    what = "still no route for topic %s" if missing else "topic %s does not exist yet"
                    _log.warning(f"Spark listener %s: {what}; it is asked for each second", self._group, self._topic)
                missing, waits = True, f"waits for topic {self._topic}, which no name server knows yet"
            except RemotingError as error:
                waits = f"waits for a name server, to ask it for topic {self._topic}: {error}"
                silence.tell(
                    logging.WARNING, self._clock.monotonic(), "silent", "Spark listener %s %s", self._group, waits
                )
            self.trouble = waits
            await self._clock.sleep(MISSING_INTERVAL)
        if waits is not None:
            self.trouble = None
            _log.info("Spark listener %s: topic %s is there now", self._group, self._topic)
        return not missing

    async def watch(self) -> None:
        """Look at it for ever."""
        while True:
            trouble = await self.look()
            if trouble is not None and self.trouble is None:
                _log.warning("Spark listener %s: %s", self._group, trouble)
            elif trouble is None and self.trouble is not None:
                _log.warning("Spark listener %s: topic %s can be read again", self._group, self._topic)
            self.trouble = trouble
            await self._clock.sleep(INTERVAL)

    async def look(self) -> str | None:
        """What keeps the topic from being read now; None: nothing."""
        try:
            self._queues = await self._admin.queues(self._topic)
        except RocketBoxError as error:
            return f"the queues of topic {self._topic} cannot be asked for: {error}"
        ends: dict[MessageQueue, int] = {}
        unread = self._unread()
        there = {queue.broker_name for queue in self._queues}  # what these have no more, the source judges
        self._tell_unknown(there)
        left = {queue: end for queue, end in unread.items() if queue.broker_name not in there}
        away = dict.fromkeys((queue.broker_name for queue in left), "it has left the route")

        async def ask(queue: MessageQueue) -> None:
            if queue.broker_name in away:
                return  # it is not asked for the rest of its queues
            try:
                ends[queue] = await self._admin.max_offset(queue)
            except RocketBoxError as error:
                away.setdefault(queue.broker_name, str(error))

        await gather(ask, self._queues)
        self.ends = {queue: ends.get(queue, self.ends.get(queue, 0)) for queue in self._queues} | unread
        if not away:
            return None
        told = "; ".join(f"{broker}: {why}" for broker, why in sorted(away.items()))
        count = sum(end - (self.read or {})[queue] for queue, end in left.items())
        rest = f"; {count} messages of queues that have left the route are not read yet" if left else ""
        return f"topic {self._topic} cannot be read from {len(away)} of its brokers ({told}){rest}"

    def _tell_unknown(self, there: Collection[str]) -> None:
        """Tell once of brokers that are away since before this process: they may be so for ever, with all read."""
        seen = {queue.broker_name for queue in self.ends}
        unknown = frozenset(queue.broker_name for queue in self.read or {}) - seen - frozenset(there)
        if new := sorted(unknown - self._unknown):
            _log.warning(
                "Spark listener %s: topic %s was read from broker %s before, which has no route now; whether it holds "
                "messages that are not read is not known, and the rest is read on without it",
                self._group, self._topic, ", ".join(new),
            )  # fmt: skip
        self._unknown |= unknown

    def _unread(self) -> dict[MessageQueue, int]:
        """The ends of queues that are not in the route any more, and were not read up to there."""
        read, there = self.read or {}, frozenset(self._queues)
        return {queue: end for queue, end in self.ends.items() if queue not in there and read.get(queue, end) < end}
