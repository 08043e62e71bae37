"""Deleting a topic: one at a time, and meanwhile nothing is put into it.

What a deletion leaves behind is in ``deleted_topics``, how queues and their files go in ``derived_writer``.

Source: compare Apache RocketMQ 5.x ``DefaultMessageStore.deleteTopics``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from rocketbox.blocking import WorkerPool
from rocketbox.broker.store.commit_log import CommitLog
from rocketbox.broker.store.derived_writer import DerivedWriter
from rocketbox.broker.store.dispatch import Derived
from rocketbox.errors import StoreError

__all__ = ["TopicDeletion"]


class TopicDeletion:
    """The deletions of one store. ``topics`` are those that must not be put into now."""

    def __init__(self, log: CommitLog, derived: Derived, durable: Callable[[int], Awaitable[None]]) -> None:
        self.topics: set[str] = set()
        self._log = log
        self._derived = derived
        self._durable = durable
        self._one_at_a_time = anyio.Lock()
        self._at_work: str | None = None

    def check(self, topic: str) -> None:
        """Raise StoreError for a topic that is being deleted."""
        if topic in self.topics:
            raise StoreError(f"topic {topic} is being deleted; send again when that is done")

    async def delete(self, topic: str, writer: DerivedWriter, pool: WorkerPool, check_open: Callable[[], None]) -> None:
        """Delete a topic; ``check_open``, called when it is its turn, raises when the store takes nothing.

        Raises StoreError, OSError when it was not possible: then nothing is deleted, or the topic stays in ``topics``
        until the store has removed its files and calls :meth:`files_gone`.
        """
        async with self._one_at_a_time:
            check_open()
            self.topics.add(topic)
            self._at_work = topic
            end = self._log.end
            try:
                await self._durable(end)  # what is not may be taken back, and its place be given to another record
                begins = self._derived.begins_after(topic)
                with anyio.CancelScope(shield=True):
                    await pool.run(self._derived.deleted.add, topic, end, begins, self._log.start)
                await writer.delete_queues(pool, topic)
            finally:
                self._at_work = None
                if not writer.is_deleting(topic):
                    self.topics.discard(topic)

    def files_gone(self, topic: str) -> None:
        """The files of a deleted topic are gone; it may be stored again, unless its next deletion has begun."""
        if topic != self._at_work:
            self.topics.discard(topic)
