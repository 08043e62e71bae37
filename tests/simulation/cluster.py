"""Name servers, brokers and clients of a simulation, each on a host of its own, started and ended as it wants."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from rocketbox.broker.broker import Broker
from rocketbox.broker.options import read_broker_options
from rocketbox.clock import RealClock
from rocketbox.nameserver.name_server import NameServer, NameServerOptions
from rocketbox.storage.memory_storage import MemoryStorage
from tests.clocks import START_MS
from tests.integration.wire import SMALL_FILES
from tests.simulation.network import Host, SimulatedNetwork

__all__ = ["HostClock", "Process", "SimulatedBroker", "SimulatedNameServer"]

LEVELS = " ".join(f"{seconds}s" for seconds in range(1, 19))  # delays, short enough for ten minutes


class HostClock(RealClock):
    """Waits on the loop's time; the time of day of each host may jump (``ahead_ms``)."""

    def __init__(self, seed: int) -> None:
        super().__init__(random.Random(seed))
        self.ahead_ms = 0
        self._loop = asyncio.get_running_loop()

    def time_ms(self) -> int:
        return START_MS + round(self._loop.time() * 1000) + self.ahead_ms

    def monotonic(self) -> float:
        return self._loop.time()


class Process:
    """Runs a context manager in a task of its own, from :meth:`start` to :meth:`stop`."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._make = make
        self._stop = asyncio.Event()
        self._started: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())

    async def start(self) -> Any:
        """What entering it gave."""
        return await asyncio.shield(self._started)

    async def stop(self) -> None:
        self._stop.set()
        await self._task

    async def _run(self) -> None:
        try:
            async with self._make() as entered:
                self._started.set_result(entered)
                await self._stop.wait()
        except Exception as error:
            if self._started.done():
                raise
            self._started.set_exception(error)


class SimulatedNameServer:
    """``await start()``, ``await stop()``, and again."""

    def __init__(self, network: SimulatedNetwork, number: int, seed: int) -> None:
        self.host = f"10.0.0.{number}"
        self.address = f"{self.host}:9876"
        self.clock = HostClock(seed)
        self._network = network
        self._process: Process | None = None

    async def start(self) -> None:
        options = NameServerOptions(host=self.host, port=9876)
        self._process = Process(lambda: NameServer(options, clock=self.clock, network=self._network.host(self.host)))
        await self._process.start()

    async def stop(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            await process.stop()


class SimulatedBroker:
    """A broker and its disk, which outlives it. ``running`` is None while it is down."""

    def __init__(self, network: SimulatedNetwork, number: int, name_servers: Sequence[str], seed: int) -> None:
        self.name = f"broker-{number}"
        self.host = f"10.0.1.{number}"
        self.clock = HostClock(seed)
        self.running: Broker | None = None
        self._network = network
        self._name_servers = tuple(name_servers)
        self._storage = MemoryStorage()
        self._process: Process | None = None
        self._mine: Host | None = None
        self._dying: list[Awaitable[None]] = []
        self._options = read_broker_options(
            {**SMALL_FILES, "broker-name": self.name, "message-delay-level": LEVELS},
            store_path_root_dir=Path("/store"), bind_address=self.host, listen_port=10911,
        )  # fmt: skip

    async def start(self) -> None:
        host = self._mine = self._network.host(self.host)
        self._process = Process(
            lambda: Broker(
                self._options, name_servers=self._name_servers, clock=self.clock, network=host, storage=self._storage
            )
        )
        self.running = await self._process.start()

    async def stop(self) -> None:
        """As a service manager stops it."""
        if self._process is not None:
            process, self._process, self.running = self._process, None, None
            await process.stop()

    def kill(self) -> None:
        """As ``kill -9``: from now on it says and writes nothing. The disk has what it wrote."""
        if self._process is not None and self._mine is not None:
            process, self._process, self.running = self._process, None, None
            self._storage = self._storage.copy()
            self._mine.die()
            self._dying.append(asyncio.create_task(process.stop()))

    async def gone(self) -> None:
        """Return when nothing of those that were killed runs on, unheard, in this process."""
        for task in self._dying:
            await task
        self._dying.clear()
