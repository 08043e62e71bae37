"""How far the query of a listener has read, and who hears of it: health, the watch of the topic, and the brokers.

It is known from the checkpoint when a query starts and when it has ended, and from what Spark tells behind each batch;
while another driver reads on, it is not known. The group on the brokers follows at once (``mirror``).
"""

from __future__ import annotations

from collections.abc import Mapping

from rocketbox.client import Admin
from rocketbox.clock import Clock
from rocketbox.message import MessageQueue
from rocketbox.spark.mirror import Following, GroupMirror
from rocketbox.spark.query_progress import BatchProgress, lag_of
from rocketbox.spark.topic_watch import TopicWatch

__all__ = ["QueryPosition"]


class QueryPosition:
    """Where the queries of ``group``'s listener are, one after another. ``watch`` is of the topic that they read."""

    def __init__(self, group: str, admin: Admin, watch: TopicWatch, clock: Clock) -> None:
        self.has_moved = False
        """Whether a query has committed a batch since this was set to False."""
        self._watch = watch
        self._following = Following(GroupMirror(group, clock), admin, clock)
        self._last: BatchProgress | None = None
        self._read: Mapping[MessageQueue, int] | None = None

    async def run(self) -> None:
        """Let the group on the brokers follow, for ever."""
        await self._following.run()

    def begins(self, read: Mapping[MessageQueue, int] | None) -> None:
        """A query is about to start, which has read up to here; None: that is not known."""
        self._read = read
        self.tell()

    def moves(self, progress: BatchProgress) -> None:
        """The query has committed a batch. Called on a thread of Spark's: others hear of it by :meth:`tell`."""
        self._last = progress
        self.has_moved = True
        if progress.end:
            self._read = progress.end

    def tell(self) -> None:
        """Let all who follow hear of what has come since."""
        self._watch.read = self._read
        if self._read is not None:
            self._following.up_to(self._read)

    async def ends(self, read: Mapping[MessageQueue, int] | None) -> None:
        """The query has ended here: return when the group was told."""
        self._read = read
        self.tell()
        await self._following.step()

    def forget(self) -> None:
        """Another driver may read on."""
        self._last = self._read = None
        self.tell()

    def shown(self) -> dict[str, object]:
        """What health shows: numbers of the last batch, and what is left to read."""
        shown: dict[str, object] = {}
        if (last := self._last) is not None:
            shown |= {"rows": last.rows, "rows_per_second": last.rows_per_second, "batch_seconds": last.seconds}
        if (read := self._read) is not None:
            lag = lag_of(self._watch.ends, read)
            shown |= {"lag": sum(lag.values()), "lag_by_queue": lag}
        return shown
