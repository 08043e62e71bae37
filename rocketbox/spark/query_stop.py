"""Stopping a listener's query on purpose: its batch may end, Spark commits that, the query stops; all in bounded time.

A function that does not end is left behind with its query: the batch is not committed, but the function still runs, and
may write. Until it has ended no other query of the listener may start, and nobody else may have its lease.
"""

from __future__ import annotations

import logging

from anyio.from_thread import BlockingPortal
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rocketbox.blocking import WorkerPool
from rocketbox.clock import Clock
from rocketbox.spark.batches import BatchRunner
from rocketbox.spark.query import in_words, is_active, stop_query

__all__ = ["QueryStop"]

_log = logging.getLogger(__name__)

COMMIT_POLL = 0.02  # seconds; a stop waits for Spark to commit the last batch
LONGEST_RESERVE = 2.0  # seconds of a stop that are kept for Spark's part of it; a quarter of it at most
NO_ANSWER = 1.0  # seconds beyond that time, in which Java says that a function does not end


class QueryStop:
    """Stops the queries of one listener, whose batches ``batches`` runs; ``portal`` runs a function that is awaited.

    ``threads`` are for questions to Spark, which block.
    """

    def __init__(
        self,
        group: str,
        batches: BatchRunner,
        *,
        portal: BlockingPortal | None,
        threads: WorkerPool,
        clock: Clock,
    ) -> None:
        self._group = group
        self._batches = batches
        self._portal = portal
        self._threads = threads
        self._clock = clock
        self._left_behind: tuple[SparkSession, StreamingQuery] | None = None
        self.java_answers = True
        """False: a stop has found that its Java process hangs, and it has answered nothing since."""

    @property
    def has_left_one_behind(self) -> bool:
        """Whether a function, as far as it is known, still runs in a query that was stopped."""
        return self._left_behind is not None

    async def has_ended(self) -> bool:
        """Whether no query that was stopped runs any more: Spark runs no second one of its name."""
        if self._left_behind is not None:
            runs = await self._threads.run(is_active, *self._left_behind)
            self.java_answers = True
            if not runs:
                self._left_behind = None
        return self._left_behind is None

    async def drain(self, session: SparkSession, query: StreamingQuery, timeout: float) -> None:
        """Let the batch that runs end and be committed, and stop the query, all within ``timeout`` seconds."""
        until = self._clock.monotonic() + timeout
        await self.drain_function(timeout - min(LONGEST_RESERVE, timeout / 4))
        with self._clock.move_on_after(until - self._clock.monotonic()):
            while await self._threads.run(self._commits, query):
                await self._clock.sleep(COMMIT_POLL)
        await self.stop(session, query, until - self._clock.monotonic())
        if self.java_answers:
            await self._threads.run(self._batches.take_back)

    async def drain_function(self, timeout: float) -> None:
        """Return when the function has ended, or ``timeout`` seconds are over."""
        has_ended = False
        with self._clock.move_on_after(timeout):  # threads may be held by a Java process that does not answer
            has_ended = await self._threads.run(self._batches.idle.wait, timeout)
        if not has_ended:
            place = self._batches.hangs_at()
            _log.warning(
                "batch %d of Spark listener %s has not ended within %.1f s%s; it is not committed and comes again",
                self._batches.attempt[0], self._group, timeout, f", it is at {place}" if place else "",
            )  # fmt: skip
            if self._portal is not None and self._batches.cancel():
                await self._portal.stop(cancel_remaining=True)  # it ends by that

    def _commits(self, query: StreamingQuery) -> bool:
        """Whether Spark has yet to write down that the last batch is done; stopped before, it would come again."""
        if not self._batches.idle.is_set() or not query.isActive:
            return False
        progress, done = query.lastProgress, self._batches.done
        return done >= 0 and (progress is None or progress["batchId"] < done)

    async def is_between_batches(self, query: StreamingQuery) -> bool:
        """Whether no batch runs, and the last one is committed."""
        return self._batches.idle.is_set() and not await self._threads.run(self._commits, query)

    async def stop(self, session: SparkSession, query: StreamingQuery, timeout: float = LONGEST_RESERVE) -> None:
        """Stop the query now; a function that has not ended ``timeout`` seconds later is left behind.

        So is a query of which a Java process that hangs does not say whether it has stopped.
        """
        try:
            with self._clock.move_on_after(max(timeout, LONGEST_RESERVE) + NO_ANSWER) as answer:
                await self._threads.run(stop_query, session, query, timeout)
            if answer.cancelled_caught:
                self._left_behind = (session, query)
                self.java_answers = False
                _log.warning(
                    "the query of Spark listener %s is left to itself: its Java process does not answer", self._group
                )
        except Exception as error:
            self._left_behind = (session, query)
            place = self._batches.hangs_at()
            _log.warning(
                "the query of Spark listener %s does not stop, since its function does not end%s: %s",
                self._group, f" (at {place})" if place else "", in_words(error),
            )  # fmt: skip
