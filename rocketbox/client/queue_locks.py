"""The locks of an orderly group: a broker gives each queue to one member at a time.

A lock is refreshed every 20 s, counts here for 30 s and at the broker for 60 s, so that a member which is cut off stops
before another one begins.

Source: Apache RocketMQ 5.x ``RebalanceImpl.lock``, ``lockAll``, ``unlock``, ``unlockAll``.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable

from rocketbox.client.api.groups import lock_queues, unlock_queues
from rocketbox.client.instance import MQClientInstance
from rocketbox.client.process_queue import ProcessQueue
from rocketbox.errors import RocketBoxError
from rocketbox.message import MessageQueue

__all__ = ["QueueLocks"]

_log = logging.getLogger(__name__)

REFRESH_INTERVAL = 20.0  # seconds
LOCK_TIMEOUT = 1.0


class QueueLocks:
    """Locks and unlocks a group's queues at their brokers; ``ProcessQueue.locked_at`` says what is held."""

    def __init__(self, group: str, instance: MQClientInstance) -> None:
        self._group = group
        self._instance = instance
        self._asked_for: set[MessageQueue] = set()  # locked, or perhaps locked: an answer may have been lost

    async def lock(self, *queues: ProcessQueue) -> bool:
        """Whether all of queues are locked now. A broker that cannot be asked changes nothing."""
        by_broker: dict[str, list[ProcessQueue]] = defaultdict(list)
        for queue in queues:
            by_broker[queue.queue.broker_name].append(queue)
        return all([await self._lock_at(name, some) for name, some in by_broker.items()])

    async def _lock_at(self, broker_name: str, queues: list[ProcessQueue]) -> bool:
        instance = self._instance
        now = instance.clock.monotonic()  # from before the request: the broker's 60 s begin later
        self._asked_for.update(queue.queue for queue in queues)
        try:
            locked = await lock_queues(
                instance.remoting,
                instance.broker_address(broker_name),
                self._group,
                instance.client_id,
                [queue.queue for queue in queues],
                timeout=LOCK_TIMEOUT,
            )
        except RocketBoxError as error:
            _log.warning("group %s: cannot lock queues at %s: %s", self._group, broker_name, error)
            return False
        for queue in queues:
            queue.locked_at = now if queue.queue in locked else None
        return all(queue.locked_at is not None for queue in queues)

    async def unlock(self, *queues: ProcessQueue) -> None:
        """Give queues back; where the broker cannot be told, the locks run out after 60 s."""
        for queue in queues:
            queue.locked_at = None
        await self._unlock([queue.queue for queue in queues])

    async def unlock_all(self) -> None:
        """Give back whatever was ever asked for."""
        await self._unlock(self._asked_for)

    async def _unlock(self, queues: Iterable[MessageQueue]) -> None:
        instance = self._instance
        by_broker: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            by_broker[queue.broker_name].append(queue)
        for broker_name, some in by_broker.items():
            self._asked_for.difference_update(some)
            try:
                await unlock_queues(
                    instance.remoting,
                    instance.broker_address(broker_name),
                    self._group,
                    instance.client_id,
                    some,
                    timeout=LOCK_TIMEOUT,
                )
            except RocketBoxError as error:
                _log.warning("group %s: cannot unlock queues at %s: %s", self._group, broker_name, error)

    async def keep(self, queues: Callable[[], Iterable[ProcessQueue]], lost: Callable[[], None]) -> None:
        """Refresh the locks of what queues returns, for ever, and call lost when one is another member's now.

        A lock that ran out is not taken again here: another member may have had the queue since, and be further in it.
        """
        clock = self._instance.clock
        while True:
            await clock.sleep(REFRESH_INTERVAL)
            now = clock.monotonic()
            held = list(queues())
            locked = [queue for queue in held if queue.lock_holds(now)]
            if not await self.lock(*locked) or len(locked) < len(held):
                lost()
