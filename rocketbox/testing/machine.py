"""The machine that a harness gives to a service: virtual time, a network and a disk in memory, and the real servers.

The servers' blocking functions run in the loop, each in a turn of its own; those of the service have their threads, for
they are the user's and may block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rocketbox.blocking import blocking_in_loop
from rocketbox.clock import Clock
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.protocol.registration_bodies import TopicConfig
from rocketbox.remoting.network import Network
from rocketbox.storage.file_system import Storage

__all__ = ["CLIENT", "EMBEDDED", "HarnessServers"]

QUEUES = 4  # of a topic that the service names
EMBEDDED: Mapping[str, Any] = {
    "host": "127.0.0.1",
    "port": 0,
    "name-server-port": 0,
    "data-dir": "/harness",
    "flush-disk-type": "SYNC_FLUSH",
    "mapped-file-size-commit-log": "16MB",
    "mapped-file-size-consume-queue": 20_000,
    "max-hash-slot-num": 1000,
    "max-index-num": 4000,
    "allocate-ahead": 0,
    # What has to be done now and then is done seldom: hours may pass in a test.
    "flush-interval-consume-queue": "10m",
    "clean-resource-interval": "10m",
    "sync-flush-timeout": "60s",
    "register-name-server-period": "60s",
}
"""Settings of the servers: files that are quick to make, in memory; ports of a network that is nobody else's."""

CLIENT: Mapping[str, Any] = {
    "persist_consumer_offset_interval": 60.0,
    "heartbeat_broker_interval": 60.0,
    "poll_name_server_interval": 60.0,
    "broker_suspend_max_time": 110.0,  # a broker that heard nothing for 120 s would take the client for dead
}
"""Options of the service's clients, for the same reason."""


class HarnessServers(EmbeddedServers):
    """Name server and broker in the loop of the harness; ``topics()`` are there before anybody connects."""

    def __init__(
        self,
        options: EmbeddedOptions,
        *,
        clock: Clock,
        network: Network,
        storage: Storage,
        call_soon: Callable[[Callable[[], object]], object],
        topics: Callable[[], Sequence[str]],
        started: Callable[[EmbeddedServers], object],
    ) -> None:
        super().__init__(options, clock=clock, network=network, storage=storage)
        self._call_soon = call_soon
        self._topics = topics
        self._tell = started

    async def __aenter__(self) -> Self:
        with blocking_in_loop(self._call_soon):
            await super().__aenter__()
            made = [
                TopicConfig(topic, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
                for topic in self._topics()
                if self.broker.topics.get(topic) is None
            ]
            await self.broker.make_topics(made)
        self._tell(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        with blocking_in_loop(self._call_soon):
            return await super().__aexit__(kind, error, trace)
