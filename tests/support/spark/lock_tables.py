"""Scripted brokers that give locks as the embedded one does, for tests of leases."""

from __future__ import annotations

from rocketbox.broker.locks import QueueLocks
from rocketbox.clock import Clock
from rocketbox.protocol.bodies import decode_lock_batch_request, encode_lock_batch_response
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.connection import Connection
from tests.support.client.scripted_cluster import Answer, ClusterBroker

__all__ = ["LockTable"]


class LockTable:
    """The table of locks of one broker, as the embedded one has it."""

    def __init__(self, clock: Clock, broker: ClusterBroker) -> None:
        self._clock = clock
        self.broker = broker
        self.silent = False
        self.forget()
        broker.scripts[RequestCode.LOCK_BATCH_MQ] = self._lock
        broker.scripts[RequestCode.UNLOCK_BATCH_MQ] = self._unlock

    def forget(self) -> None:
        """What a restart of the broker does."""
        self._table = QueueLocks(self._clock)

    def holds_any(self, group: str) -> bool:
        return self._table.is_locked(group)

    async def _never(self) -> RemotingCommand | None:
        await self._clock.sleep(3600)
        return None

    def _lock(self, _: Connection, request: RemotingCommand) -> Answer:
        if self.silent:
            return self._never()
        body = decode_lock_batch_request(request.body)
        given = self._table.lock(body.consumer_group, body.client_id, body.mq_set)
        return RemotingCommand.response(body=encode_lock_batch_response(given))

    def _unlock(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        body = decode_lock_batch_request(request.body)
        self._table.unlock(body.consumer_group, body.client_id, body.mq_set)
        return RemotingCommand.response()
