"""The mirror of a stream's progress: its group's offsets on the brokers, so that tools show the true lag.

What counts is Spark's checkpoint. The mirror only goes forward: a query that begins anew, or goes on from an older
checkpoint, leaves a group where it is until it is ahead of that.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from rocketbox.client import Admin
from rocketbox.clock import Clock
from rocketbox.errors import BrokerError
from rocketbox.message import MessageQueue
from rocketbox.protocol.codes import ResponseCode
from rocketbox.rare_log import RareLog
from rocketbox.spark.asking import ask_each

__all__ = ["GroupMirror"]

_log = logging.getLogger(__name__)


class GroupMirror:
    """Commits offsets of batches that are done; a failure costs the mirror a moment, never the query."""

    def __init__(self, group: str, clock: Clock) -> None:
        self._group = group
        self._clock = clock
        self._mirrored: dict[MessageQueue, int] = {}
        self._told = RareLog(_log, period=60.0)

    def behind(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Those of the offsets that the group has not been told yet."""
        return {queue: offset for queue, offset in offsets.items() if offset != self._mirrored.get(queue)}

    async def follow(self, admin: Admin, offsets: Mapping[MessageQueue, int]) -> None:
        """Let the group go on at ``offsets``, at each queue that it has not gone beyond already."""
        moved = self.behind(offsets)

        async def commit(queue: MessageQueue) -> None:
            committed = await admin.committed(self._group, queue)
            if committed is None or committed < moved[queue]:
                await self._commit(admin, queue, moved[queue])

        done, failed = await ask_each(commit, moved)
        self._mirrored |= {queue: moved[queue] for queue in done}
        if failed:
            queue, error = min(failed.items())
            self._told.tell(
                logging.WARNING, self._clock.monotonic(), "failed",
                "the offsets of group %s were not mirrored in %d queues yet, such as %s: %s",
                self._group, len(failed), queue, error,
            )  # fmt: skip
        elif done:
            self._told.over("failed")

    async def _commit(self, admin: Admin, queue: MessageQueue, offset: int) -> None:
        try:
            await admin.commit(self._group, queue, offset)
        except BrokerError as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            # Apache 5.5 takes no offsets of a group that it does not know; it makes one that pulls, if it may.
            await admin.pull(queue, offset, 1, group=self._group)
            await admin.commit(self._group, queue, offset)
