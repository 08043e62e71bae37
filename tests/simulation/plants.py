"""Faults that are planted in the product, to see that the simulation finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rocketbox.client.process_queue import ProcessQueue
from rocketbox.client.queue_locks import QueueLocks
from rocketbox.message import MessageQueue

__all__ = ["PLANTS"]


def _commit_ahead() -> None:
    """What is held in memory counts as consumed."""
    ProcessQueue.commit_offset = property(lambda self: self.pulled_to)  # type: ignore[method-assign, assignment]


def _refused_lock() -> None:
    """A member takes a queue whose lock another one has."""
    lock = QueueLocks.lock

    async def take_all(self: QueueLocks, broker_name: str, queues: Sequence[MessageQueue]) -> set[MessageQueue]:
        await lock(self, broker_name, queues)
        return set(queues)

    QueueLocks.lock = take_all  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[], Any]] = {"commit ahead": _commit_ahead, "refused lock": _refused_lock}
