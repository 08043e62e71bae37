"""The mirror of a stream's progress: its group's offsets on the brokers, so that tools show the true lag.

What counts is Spark's checkpoint. The mirror only goes forward: a query that begins anew, or goes on from an older
checkpoint, leaves a group where it is until it is ahead of that. By the group's retry topic tools find the brokers that
know its offsets: the mirror makes it, on the brokers that it commits to.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import anyio

from rocketbox.client import Admin
from rocketbox.clock import Clock
from rocketbox.errors import BrokerError, ClientError, RocketBoxError
from rocketbox.message import MessageQueue
from rocketbox.protocol.codes import ResponseCode, retry_topic
from rocketbox.rare_log import RareLog
from rocketbox.spark.asking import ask_each
from rocketbox.spark.group_topics import make_group_topic

__all__ = ["ABSENCE", "Following", "GroupMirror"]

_log = logging.getLogger(__name__)

ABSENCE = 15.0  # seconds for which a stream's source leaves a broker out that does not answer
AGAIN = 5.0  # seconds until what was not mirrored is tried again


class GroupMirror:
    """Commits offsets of batches that are done; a failure costs the mirror a moment, never the query.

    A broker that does not answer is left out for ``absence`` seconds, for whom batches wait while it is asked.
    """

    def __init__(self, group: str, clock: Clock, *, absence: float = 0.0) -> None:
        self._group = group
        self._clock = clock
        self._absence = absence
        self._away: dict[str, float] = {}  # by broker: until when it is left out
        self._mirrored: dict[MessageQueue, int] = {}
        self._found_on: set[str] = set()  # brokers that have the retry topic
        self._told = RareLog(_log, period=60.0)

    def behind(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Those of the offsets that the group has not been told yet."""
        return {queue: offset for queue, offset in offsets.items() if offset != self._mirrored.get(queue)}

    async def follow(self, admin: Admin, offsets: Mapping[MessageQueue, int]) -> None:
        """Let the group go on at ``offsets``, at each queue that it has not gone beyond already."""
        now = self._clock.monotonic()
        behind = self.behind(offsets)
        moved = {queue: offset for queue, offset in behind.items() if self._away.get(queue.broker_name, now) <= now}

        async def commit(queue: MessageQueue) -> None:
            committed = await admin.committed(self._group, queue)
            if committed is None or committed < moved[queue]:
                await self._commit(admin, queue, moved[queue])

        try:
            done, failed = await ask_each(commit, moved)
        except RocketBoxError as refusal:  # which will not pass
            done, failed = {}, dict.fromkeys(moved, refusal)
        self._mirrored |= {queue: moved[queue] for queue in done}
        until = self._clock.monotonic() + self._absence
        self._away |= dict.fromkeys({each.broker_name for each in failed} - {each.broker_name for each in done}, until)
        # A broker without an address has left the route, perhaps for ever: who asks for routes tells that once.
        if told := {each: why for each, why in failed.items() if not isinstance(why, ClientError)}:
            queue, error = min(told.items())
            self._told.tell(
                logging.WARNING, self._clock.monotonic(), "failed",
                "the offsets of group %s were not mirrored in %d queues yet, such as %s: %s",
                self._group, len(told), queue, error,
            )  # fmt: skip
        elif done and len(moved) == len(behind):
            self._told.over("failed")
        if brokers := {queue.broker_name for queue in done} - self._found_on:
            await self._let_tools_find(admin, brokers)

    async def _let_tools_find(self, admin: Admin, brokers: set[str]) -> None:
        topic = retry_topic(self._group)
        try:
            await make_group_topic(admin, topic, brokers)
        except RocketBoxError as error:
            self._told.tell(
                logging.WARNING, self._clock.monotonic(), "unseen",
                "topic %s could not be made, so that mqadmin consumerProgress does not find group %s: %s",
                topic, self._group, error,
            )  # fmt: skip
        else:
            self._found_on |= brokers

    async def _commit(self, admin: Admin, queue: MessageQueue, offset: int) -> None:
        try:
            await admin.commit(self._group, queue, offset)
        except BrokerError as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            # Apache 5.5 takes no offsets of a group that it does not know; it makes one that pulls, if it may.
            await admin.pull(queue, offset, 1, group=self._group)
            await admin.commit(self._group, queue, offset)


class Following:
    """A group that follows a query at once, whenever that has done a batch: a stream's source hears of it only when it
    plans the next one, which is a trigger's pause later. One step after another: two at once could go backwards."""

    def __init__(self, mirror: GroupMirror, admin: Admin, clock: Clock) -> None:
        self._mirror = mirror
        self._admin = admin
        self._clock = clock
        self._steps = anyio.Lock()
        self._offsets: Mapping[MessageQueue, int] = {}
        self._news = anyio.Event()

    def up_to(self, offsets: Mapping[MessageQueue, int]) -> None:
        """All before these offsets is done."""
        if offsets is not self._offsets:
            self._offsets = offsets
            self._news.set()

    async def run(self) -> None:
        """Follow for ever; what a broker does not take is tried again."""
        while True:
            self._news = anyio.Event()
            await self.step()
            with self._clock.move_on_after(AGAIN if self._mirror.behind(self._offsets) else math.inf):
                await self._news.wait()

    async def step(self) -> None:
        """Return when the group was told of what is done."""
        async with self._steps:
            await self._mirror.follow(self._admin, self._offsets)
