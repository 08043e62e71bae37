"""Forgetting clients: those whose connection closed, and those that send no heartbeat any more.

Source: Apache RocketMQ 5.x ``ClientHousekeepingService``.
"""

from __future__ import annotations

import logging

from rocketbox.broker.clients import ConsumerTable, ProducerTable
from rocketbox.broker.locks import QueueLocks
from rocketbox.clock import Clock
from rocketbox.remoting.connection import Connection

__all__ = ["ClientHousekeeping"]

_log = logging.getLogger(__name__)

CLIENT_SCAN_INTERVAL = 10.0  # seconds between two looks, at least


class ClientHousekeeping:
    """Keeps the tables of clients free of those that are gone. :meth:`run` is its task."""

    def __init__(
        self,
        consumers: ConsumerTable[Connection],
        producers: ProducerTable[Connection],
        locks: QueueLocks,
        clock: Clock,
    ) -> None:
        self._consumers = consumers
        self._producers = producers
        self._locks = locks
        self._clock = clock

    def connection_closed(self, connection: Connection) -> None:
        """A client is gone; its groups' other members are told."""
        self._producers.on_close(connection)
        self._consumers.on_close(connection)

    async def run(self) -> None:
        """Drop the silent ones and the locks nobody renews, for ever."""
        while True:
            # Whoever comes meanwhile has the whole time as well.
            first = min(each.first_expiry() for each in (self._locks, self._consumers, self._producers))
            await self._clock.sleep(max(CLIENT_SCAN_INTERVAL, first - self._clock.monotonic()))
            self._locks.expire()
            for connection in {*self._consumers.expire(), *self._producers.expire()}:
                _log.warning("the client at %s sent no heartbeat and is dropped", connection.remote_address)
                connection.close("no heartbeat")
