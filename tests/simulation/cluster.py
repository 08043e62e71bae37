"""Name servers, brokers and clients of a simulation, each on a host of its own, started and ended as it wants."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from rocketbox.access.addresses import source_match
from rocketbox.broker.broker import Broker
from rocketbox.broker.extensions import BrokerExtensions
from rocketbox.broker.options import read_broker_options
from rocketbox.broker.store.dispatcher import Arrival
from rocketbox.clock import RealClock
from rocketbox.nameserver.name_server import NameServer, NameServerOptions
from rocketbox.protocol.bodies import BrokerData
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import PullMessageResponseHeader
from rocketbox.remoting.connection import Connection
from tests.simulation.network import Host, SimulatedNetwork
from tests.support.broker.wire import SMALL_FILES
from tests.support.clocks import START_MS
from tests.support.store.machine_disk import Disk

__all__ = [
    "CHECK_EVERY",
    "MOST_CHECKS",
    "HostClock",
    "Process",
    "PullRules",
    "SimulatedBroker",
    "SimulatedNameServer",
    "epoch_ms",
]

LEVELS = " ".join(f"{seconds}s" for seconds in range(1, 19))  # delays, short enough for ten minutes
CHECK_EVERY, MOST_CHECKS = 4.0, 40  # of transactions: seconds between two checks, and how many there are
BUSY_PULLS = 150  # of one group and queue in a window: more is a loop that does not wait
WINDOW = 10.0
BROKERS = (source_match("10.0.0.0/8"),)  # from where they register, those that move as well


class HostClock(RealClock):
    """Waits on the loop's time; the time of day of each host may jump (``ahead_ms``)."""

    def __init__(self, seed: int) -> None:
        super().__init__(random.Random(seed))
        self.ahead_ms = 0
        self.jumps = 0
        self._loop = asyncio.get_running_loop()

    def time_ms(self) -> int:
        return epoch_ms(self._loop) + self.ahead_ms

    def jump(self, by_ms: int) -> None:
        """Show another time from now on."""
        self.ahead_ms += by_ms
        self.jumps += 1

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        """As asyncio's, without looking up which loop runs here: there are tens of thousands in a simulation."""
        woken = self._loop.create_future()
        timer = self._loop.call_later(max(0.0, seconds), _wake, woken)
        try:
            await woken
        finally:
            timer.cancel()


def epoch_ms(loop: asyncio.AbstractEventLoop | None = None) -> int:
    """The time of day that is right, in epoch milliseconds."""
    return START_MS + round((loop or asyncio.get_running_loop()).time() * 1000)


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


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
        self._server: NameServer | None = None

    @property
    def running(self) -> bool:
        return self._process is not None

    def brokers(self) -> list[BrokerData]:
        """Those that it knows; none while it is down."""
        return [] if self._server is None else list(self._server.routes.cluster_info().brokers.values())

    async def start(self) -> None:
        options = NameServerOptions(host=self.host, port=9876, registration_sources=BROKERS)
        self._process = Process(lambda: NameServer(options, clock=self.clock, network=self._network.host(self.host)))
        self._server = await self._process.start()

    async def stop(self) -> None:
        if self._process is not None:
            process, self._process, self._server = self._process, None, None
            await process.stop()


class PullRules:
    """What a broker answers some pulls instead of messages, and how many pulls it gets; a hook of the broker.

    ``resets`` are offsets by (group, topic, queue id): Apache's brokers answer the next pull after an offset was reset
    so. ``stuck`` are groups whose every pull is sent to the offset that it asks for, until that time.
    """

    def __init__(self, now: Callable[[], float], busy: Callable[[str], object]) -> None:
        self.resets: dict[tuple[str, str, int], int] = {}
        self.stuck: dict[str, float] = {}
        self._now = now
        self._busy = busy
        self._window = 0.0
        self._pulls: Counter[tuple[str, str, int, str]] = Counter()

    def before(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        if request.code != RequestCode.PULL_MESSAGE:
            return None
        fields = request.ext_fields  # to decode the whole header once more would double what a pull costs here
        group, topic, queue_id = fields["consumerGroup"], fields["topic"], int(fields["queueId"])
        self._count((group, topic, queue_id, connection.remote_address))
        offset = self.resets.pop((group, topic, queue_id), None)
        if offset is None and self.stuck.get(group, 0.0) > self._now():
            offset = int(fields["queueOffset"])
        if offset is None:
            return None
        moved = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=offset, min_offset=0, max_offset=offset, topic_sys_flag=0,
            group_sys_flag=0,
        )  # fmt: skip
        return RemotingCommand.response(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", moved.encode())

    def after(self, connection: Connection, request: RemotingCommand, code: int, frame_bytes: int) -> None:
        """Nothing to do."""

    def _count(self, who: tuple[str, str, int, str]) -> None:
        if self._now() >= self._window + WINDOW:
            self._window = self._now()
            self._pulls.clear()
        self._pulls[who] += 1
        if self._pulls[who] == BUSY_PULLS:
            self._busy(f"{who[0]} pulled {who[1]}/{who[2]} {BUSY_PULLS} times within {WINDOW:g} s")


class SimulatedBroker:
    """A broker and its disk, which outlives it. ``running`` is None while it is down."""

    def __init__(
        self, network: SimulatedNetwork, number: int, name_servers: Sequence[str], seed: int, *, flush: str,
        rules: PullRules,
    ) -> None:  # fmt: skip
        self.name = f"broker-{number}"
        self.host = f"10.0.1.{number}"
        self.clock = HostClock(seed)
        self.flush = flush
        self.rules = rules
        self.running: Broker | None = None
        self.busy = False
        """A fault is at work on it: one at a time."""
        self.arrived: Callable[[SimulatedBroker, Sequence[Arrival]], object] = lambda broker, arrived: None
        """Told of messages that can be read."""
        self._network = network
        self._name_servers = tuple(name_servers)
        self._disk = Disk()
        self._process: Process | None = None
        self._broker: Broker | None = None  # which is heard
        self._mine: Host | None = None
        self._moves = 0
        self._dying: list[Awaitable[None]] = []

    async def start(self) -> None:
        host = self._mine = self._network.host(self.host)
        options = read_broker_options(
            {
                **SMALL_FILES, "broker-name": self.name, "message-delay-level": LEVELS, "flush-disk-type": self.flush,
                "transaction-time-out": 2_000, "transaction-check-interval": round(CHECK_EVERY * 1000),
                "transaction-check-max": MOST_CHECKS,
            },
            store_path_root_dir=Path("/store"), bind_address=self.host, listen_port=10911,
        )  # fmt: skip
        broker = Broker(
            options, name_servers=self._name_servers, clock=self.clock, network=host, storage=self._disk,
            extensions=BrokerExtensions(hooks=[self.rules]),
        )  # fmt: skip

        def tell(arrived: Sequence[Arrival]) -> None:
            if self._broker is broker:
                self.arrived(self, arrived)

        self._broker = broker
        broker.store.on_arrival.append(tell)
        self._process = Process(lambda: broker)
        self.running = await self._process.start()

    async def stop(self) -> None:
        """As a service manager stops it."""
        if self._process is not None:
            process, self._process, self.running = self._process, None, None
            await process.stop()

    def kill(self, *, power: bool = False) -> None:
        """As ``kill -9``: from now on it says and writes nothing. With ``power`` the whole machine ends."""
        if self._process is not None and self._mine is not None:
            process, self._process, self.running = self._process, None, None
            self._broker = None
            self._disk = self._disk.after_a_power_failure() if power else self._disk.after_a_kill()
            self._mine.die()
            self._dying.append(asyncio.create_task(process.stop()))

    def move(self) -> None:
        """It will be started with its disk on another machine, at another address."""
        self._moves += 1
        self.host = f"10.{self._moves}.1.{self.name.rpartition('-')[2]}"

    async def gone(self) -> None:
        """Return when nothing of those that were killed runs on, unheard, in this process."""
        for task in self._dying:
            await task
        self._dying.clear()
