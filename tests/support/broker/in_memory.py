"""A whole broker without disk, sockets or name servers, and a client for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rocketbox.broker.broker import Broker
from rocketbox.broker.options import read_broker_options
from rocketbox.clock import Clock, RealClock
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.network import MemoryNetwork
from rocketbox.storage.file_system import Storage
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.broker.wire import SMALL_FILES, Wire
from tests.support.clocks import START_MS

HASTE = 100


class HastyClock(RealClock):
    """Time that runs a hundred times as fast: a delay of a second is over in 10 ms."""

    def time_ms(self) -> int:
        return START_MS + round(super().monotonic() * 1000 * HASTE)

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / HASTE)


class BrokerWire(Wire):
    """A client of one broker alone."""

    def __init__(self, broker: Broker, client: RemotingClient, network: MemoryNetwork) -> None:
        self.running = broker
        self.client = client
        self.network = network

    @property
    def broker_address(self) -> str:
        return self.running.address


@asynccontextmanager
async def broker_in_memory(
    *,
    storage: Storage | None = None,
    clock: Clock | None = None,
    settings: dict[str, object] | None = None,
    **arguments: Any,
) -> AsyncIterator[BrokerWire]:
    """``settings`` are Apache's by name; ``arguments`` go to the broker as they are."""
    network, clock = MemoryNetwork(), clock or RealClock()
    options = read_broker_options(
        {**SMALL_FILES, **(settings or {})}, store_path_root_dir=Path("/store"), listen_port=0
    )
    async with (
        Broker(
            options, name_servers=[], clock=clock, network=network, storage=storage or MemoryStorage(), **arguments
        ) as broker,
        RemotingClient(clock=clock, network=network) as client,
    ):
        yield BrokerWire(broker, client, network)
