"""The machine that a harness gives to a service: virtual time, a network and disks in memory, and the real servers.

Each cluster of the service has servers of its own (``memory_cluster``), whose blocking functions run in the loop; those
of the service have their threads, for they are the user's and may block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from rocketbox.embedded import EmbeddedOptions
from rocketbox.local_servers import LocalServers, ServersHealth
from rocketbox.testing.memory_cluster import MemoryCluster

__all__ = ["CLIENT", "CONSUMER", "EMBEDDED", "HarnessServers"]

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

CONSUMER: Mapping[str, Any] = {"rebalance_interval": 60.0}
"""Options of its listeners: when a group changes it shares its queues anew at once, here as anywhere."""


class HarnessServers(LocalServers):
    """The servers of all clusters, each made by ``cluster(name, options)``.

    ``clusters`` are the names of further ones, each with that of the cluster that it is the same as: None, which is
    the main one, another, or itself.
    """

    def __init__(
        self,
        options: EmbeddedOptions,
        *,
        clusters: Mapping[str, str | None],
        cluster: Callable[[str | None, EmbeddedOptions], MemoryCluster],
    ) -> None:
        self._options = options
        self._clusters = clusters
        self._make = cluster
        self._main = cluster(None, options)
        self._others: dict[str, MemoryCluster] = {}
        self._stack = AsyncExitStack()

    def cluster(self, name: str | None) -> MemoryCluster:
        """The cluster of that name; KeyError for none."""
        return self._others[name] if name else self._main

    @property
    def name_server_address(self) -> str:
        return self._main.name_server_address

    @property
    def broker_address(self) -> str:
        return self._main.broker_address

    @property
    def health(self) -> ServersHealth:
        return self._main.health if self._main.runs else ServersHealth("its broker is stopped", "its broker is stopped")

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._main)
            for name, same_as in self._clusters.items():
                if same_as != name:
                    self._others[name] = self.cluster(same_as)
                    continue
                options = replace(
                    self._options,
                    data_dir=self._options.data_dir / name,
                    broker={**self._options.broker, "broker-cluster-name": name, "broker-name": f"broker-{name}"},
                )
                self._others[name] = await stack.enter_async_context(self._make(name, options))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)
