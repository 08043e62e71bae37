"""The locks of an orderly group: a broker gives each queue to one member at a time.

Only the requests; when a lock is taken, refreshed and given back is decided in ``assignment``. A lock counts here for
30 s after its last confirmation and at the broker for 60 s, so that a member which is cut off stops before another one
begins.

Source: Apache RocketMQ 5.x ``RebalanceImpl.lock``, ``lockAll``, ``unlock``, ``unlockAll``. Unlike there a queue that
goes to another member is unlocked by a request that is answered, and that is made once more when it fails (and then
each second, by ``assignment``): a lost one would let the next owner wait for 60 s.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence

import anyio

from rocketbox.client.api.groups import lock_queues, unlock_queues
from rocketbox.client.instance import MQClientInstance
from rocketbox.errors import AccessDeniedError, RocketBoxError
from rocketbox.message import MessageQueue
from rocketbox.rare_log import RareLog

__all__ = ["QueueLocks"]

_log = logging.getLogger(__name__)

LOCK_TIMEOUT = 1.0  # seconds
UNLOCK_TIMEOUT = 0.7  # for each of two tries, so that both are over within 2 s: a time limit may be 0.2 s late
UNLOCK_AGAIN = 0.1  # seconds from a failure to the second try


class QueueLocks:
    """Locks and unlocks queues of a group at their brokers."""

    def __init__(self, group: str, instance: MQClientInstance) -> None:
        self._group = group
        self._instance = instance
        self._asked_for: set[MessageQueue] = set()  # locked, or perhaps locked: an answer may have been lost
        self._told = RareLog(_log)

    async def lock(self, broker_name: str, queues: Sequence[MessageQueue]) -> set[MessageQueue]:
        """Those of a broker's queues that are locked now; the others are another member's. Raises RocketBoxError."""
        instance = self._instance
        self._asked_for.update(queues)
        given = await lock_queues(
            instance.remoting,
            instance.broker_address(broker_name),
            self._group,
            instance.client_id,
            queues,
            timeout=LOCK_TIMEOUT,
        )
        self._asked_for.update(given)  # some may have been given back meanwhile, but before this was carried out
        return given

    def perhaps_has(self, queue: MessageQueue) -> bool:
        """Whether the lock of queue was asked for, and not given back since."""
        return queue in self._asked_for

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give queues back, within 2 s; where a broker cannot be told, :meth:`perhaps_has` says so."""
        by_broker: dict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            by_broker[queue.broker_name].append(queue)
        async with anyio.create_task_group() as tasks:  # side by side: a silent broker leaves time for the others
            for broker_name, some in by_broker.items():
                tasks.start_soon(self._unlock_at, broker_name, some)

    async def unlock_all(self) -> None:
        """Give back whatever was ever asked for."""
        await self.unlock(list(self._asked_for))

    async def _unlock_at(self, broker_name: str, queues: Sequence[MessageQueue]) -> None:
        self._asked_for.difference_update(queues)
        given_back = False
        try:
            try:
                await self._ask_to_unlock(broker_name, queues)
            except AccessDeniedError as error:  # as often as it is tried; the locks end in 60 s
                _log.debug("group %s: cannot unlock queues at %s: %s", self._group, broker_name, error)
            except RocketBoxError:
                await self._instance.clock.sleep(UNLOCK_AGAIN)
                await self._ask_to_unlock(broker_name, queues)
            given_back = True
        except RocketBoxError as error:
            self._told.tell(
                logging.WARNING, self._instance.clock.monotonic(), broker_name,
                "group %s: cannot unlock queues at %s: %s", self._group, broker_name, error,
            )  # fmt: skip
        finally:
            if not given_back:
                self._asked_for.update(queues)  # to be tried again

    async def _ask_to_unlock(self, broker_name: str, queues: Sequence[MessageQueue]) -> None:
        instance = self._instance
        await unlock_queues(
            instance.remoting,
            instance.broker_address(broker_name),
            self._group,
            instance.client_id,
            queues,
            timeout=UNLOCK_TIMEOUT,
        )
