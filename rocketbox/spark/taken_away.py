"""Queues that a stream has begun to read and that its topic has no more, while they hold messages it has not read.

Whoever gives a topic fewer queues to read takes those messages away: brokers keep them, and refuse to give them out. A
broker that is only away has left the route with all of its queues: it may come back, and its log and health tell of it.
So a queue counts as taken away when its broker is there with others of the topic, and still is some seconds later: a
broker that starts may tell of its queues by and by. Where a batch of it is planned, it is enough that the master of its
broker is there: the topic was deleted, and the batch would be tried for ever. A topic that may not be read there, by
its permission, has all of its queues and messages: none of them is taken away, and the batch is tried until it may.

Source: Apache RocketMQ 5.x ``PullMessageProcessor`` (a queue from ``readQueueNums`` on is refused),
``DefaultMessageStore.getMaxOffsetInQueue`` (its end is told all the same).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from rocketbox.client import Admin
from rocketbox.clock import Clock
from rocketbox.errors import RocketBoxError
from rocketbox.message import MessageQueue
from rocketbox.rare_log import RareLog
from rocketbox.spark.asking import ask_each
from rocketbox.spark.checkpoint import StreamOffset
from rocketbox.spark.loss import SETTLE
from rocketbox.spark.offsets import QueueRange, in_words
from rocketbox.spark.selection import Selection, unreadable_at

__all__ = ["QueuesTakenError", "TakenAway", "taken_of"]

_log = logging.getLogger(__name__)

LOOK_AGAIN = 10.0  # seconds between two looks at queues that are not there


class QueuesTakenError(RocketBoxError):
    """Queues hold messages that were not read, and their topic has them no more; ``unread`` says how many each has."""

    def __init__(self, unread: Mapping[MessageQueue, int]) -> None:
        self.unread = unread
        super().__init__(
            f"{told(unread)}. Give the topic as many queues to read as it had (mqadmin updateTopic -r), until they are "
            "read; failOnDataLoss=false (fail_on_data_loss of a listener) goes on without them",
        )


class TakenAway:
    """Looks for them, now and then. ``fails``: whether they are an error, else they are told."""

    def __init__(self, selection: Selection, clock: Clock, *, fails: bool) -> None:
        self._selection = selection
        self._clock = clock
        self._fails = fails
        self._looked_at = -math.inf
        self._told = RareLog(_log, period=60.0)

    async def look(self, admin: Admin, start: StreamOffset, present: Mapping[MessageQueue, int]) -> None:
        """Look at the queues of ``start`` that are not ``present``. Raises QueuesTakenError."""
        now = self._clock.monotonic()
        if now - self._looked_at < LOOK_AGAIN or not (gone := _gone(start.queues, present)):
            return
        self._looked_at = now
        if not await self._unread(admin, start, gone):
            return
        await self._clock.sleep(SETTLE)
        found = await self._selection.queues(admin)
        if unread := await self._unread(admin, start, _gone(start.queues, found.queues)):
            self._judge(unread)

    async def left_of(self, admin: Admin, ranges: Sequence[QueueRange]) -> list[QueueRange]:
        """What a batch that is planned can still read of these ranges: not queues that were taken away since.

        Raises QueuesTakenError, and what the client raises.
        """
        by_queue = {each.queue: each for each in ranges}

        async def queues() -> Collection[MessageQueue]:
            return (await self._selection.queues(admin)).queues

        gone = await taken_of(admin, by_queue, queues, self._clock)
        if unread := {queue: len(by_queue[queue]) for queue in gone if by_queue[queue]}:
            self._judge(unread)
        return [each for each in ranges if each.queue not in gone]

    def _judge(self, unread: Mapping[MessageQueue, int]) -> None:
        if self._fails:
            raise QueuesTakenError(unread)
        self._told.tell(
            logging.WARNING, self._clock.monotonic(), "taken",
            "%s; it goes on without them, as failOnDataLoss=false allows", told(unread),
        )  # fmt: skip

    async def _unread(self, admin: Admin, start: StreamOffset, gone: list[MessageQueue]) -> dict[MessageQueue, int]:
        ends, _ = await ask_each(admin.max_offset, gone)  # one that does not answer is asked again later
        unread = {queue: end - start.queues[queue].next for queue, end in ends.items()}
        return {queue: count for queue, count in unread.items() if count > 0}


async def taken_of(
    admin: Admin,
    wanted: Collection[MessageQueue],
    queues: Callable[[], Awaitable[Collection[MessageQueue]]],
    clock: Clock,
) -> list[MessageQueue]:
    """Those of the queues of a batch that were taken away, as ``queues()`` says now, and still some seconds later.

    Not those of a topic that may not be read for now, by its permission: reading them is refused until it may.
    Raises what the client raises when name servers do not answer.
    """

    async def look() -> list[MessageQueue]:
        present = frozenset(await queues())
        absent = [queue for queue in wanted if queue not in present]
        if not absent:
            return []
        gone = _gone(absent, present, (await admin.cluster()).masters())
        closed = {topic: unreadable_at(await admin.queues_on_brokers(topic)) for topic in {each.topic for each in gone}}
        return [queue for queue in gone if queue.broker_name not in closed[queue.topic]]

    gone = await look()
    if gone:
        await clock.sleep(SETTLE)
        gone = await look()
    return gone


def told(unread: Mapping[MessageQueue, int]) -> str:
    """Which queues were taken away, and with how many messages."""
    each = ", ".join(f"{in_words(queue)} ({count})" for queue, count in sorted(unread.items())[:5])
    more = f" and {len(unread) - 5} more" if len(unread) > 5 else ""
    return f"unread messages were taken away with their queues, which the topic has no more: {each}{more}"


def _gone(
    wanted: Iterable[MessageQueue], present: Collection[MessageQueue], brokers: Collection[str] = ()
) -> list[MessageQueue]:
    """The queues of a stream that are not there, while others of their topic and broker are, or one of ``brokers``."""
    there = frozenset(present)
    places = {(queue.topic, queue.broker_name) for queue in there}
    return [
        queue
        for queue in wanted
        if queue not in there and (queue.broker_name in brokers or (queue.topic, queue.broker_name) in places)
    ]
