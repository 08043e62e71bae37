"""One cluster in memory: a name server, and a broker that can be stopped and started again beside it.

Their blocking functions run in the loop of the harness, each in a turn of its own. The broker lives in a task of its
own, for whoever stops it is another one than whoever has started it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Self

import anyio

from rocketbox.blocking import blocking_in_loop
from rocketbox.broker.options import BrokerOptions
from rocketbox.clock import Clock
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.errors import NotStartedError
from rocketbox.protocol.registration_bodies import TopicConfig
from rocketbox.remoting.network import format_address, parse_address
from rocketbox.storage.file_system import DiskUsage
from rocketbox.storage.memory_storage import MemoryStorage
from rocketbox.testing.loop_turns import LoopTurns
from rocketbox.testing.memory_network import HarnessNetwork

__all__ = ["MemoryCluster"]

QUEUES = 4  # of a topic that the service names
FULL = DiskUsage(used=1 << 40, free=0)


class MemoryCluster(EmbeddedServers):
    """The servers of the cluster ``name``; None: the main one. ``topics()`` are there before anybody connects.

    ``broker_started(cluster)`` is called whenever its broker has begun, which is another one each time.
    """

    def __init__(
        self,
        name: str | None,
        options: EmbeddedOptions,
        *,
        clock: Clock,
        network: HarnessNetwork,
        turns: LoopTurns,
        topics: Callable[[], Sequence[str]],
        broker_started: Callable[[MemoryCluster], object],
    ) -> None:
        self.name = name
        self.memory = MemoryStorage()
        super().__init__(options, clock=clock, network=network, storage=self.memory)
        self.network = network
        self._turns = turns
        self._topics = topics
        self._tell = broker_started
        self._at: BrokerOptions | None = None
        """What the broker is started with: from the second time on at the address that it had."""
        self._stop = anyio.Event()
        self._task: Any = None
        self._ended = anyio.Event()  # of the broker that was last
        self._ended.set()

    async def __aenter__(self) -> Self:
        with blocking_in_loop(self._turns.call_soon):
            return await super().__aenter__()

    async def _run_broker(self, stack: AsyncExitStack, options: BrokerOptions) -> None:
        # Pulls share the loop's time with sends, and that is real: in virtual time they would wait until it moves.
        self._at = replace(options, read_pause=0.0)
        await self.start_broker()
        stack.push_async_callback(self.stop_broker)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the broker, also while it is stopped."""
        if self._at is None or not self._at.listen_port:
            raise NotStartedError("the broker of the harness")
        return self._at.bind_address, self._at.listen_port

    @property
    def broker_address(self) -> str:
        return format_address(self.address)

    @property
    def runs(self) -> bool:
        """Whether the broker does."""
        return self._task is not None

    async def start_broker(self) -> None:
        """Start it on what it has stored. Raises what its start raises."""
        await self._ended.wait()  # who has stopped it may have been cancelled meanwhile
        begun, self._stop, self._ended = anyio.Event(), anyio.Event(), anyio.Event()
        self._task = self._turns.start(self._live(begun), f"broker of {self.name or 'the harness'}")
        try:
            await begun.wait()
        except BaseException:  # who is cancelled here is not asked to stop it
            task, self._task = self._task, None
            await self._turns.see_through(self._turns.end(task), "end of a broker that was to start")
            self._ended.set()  # also where it never began
            raise
        if self._broker is None:
            task, self._task = self._task, None
            await task

    async def stop_broker(self) -> None:
        """Stop it in order; what it has acknowledged stays."""
        task, self._task = self._task, None
        self._stop.set()
        if task is not None:
            await task

    async def _live(self, begun: anyio.Event) -> None:
        try:
            with blocking_in_loop(self._turns.call_soon):
                async with AsyncExitStack() as stack:
                    await self._start_at(stack)
                    begun.set()
                    await self._stop.wait()
                    self._broker = None
        finally:
            self._broker = None
            begun.set()
            self._ended.set()

    async def _start_at(self, stack: AsyncExitStack) -> None:
        assert self._at is not None
        await super()._run_broker(stack, self._at)
        host, port = parse_address(self.broker.server.address)
        self._at = replace(self._at, bind_address=host, listen_port=port)
        self.judge_disk()
        self._tell(self)
        await self.broker.make_topics(
            TopicConfig(topic, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
            for topic in self._topics()
            if self.broker.topics.get(topic) is None
        )

    # --- its disk ----------------------------------------------------------------------------------------------------

    @property
    def disk_is_full(self) -> bool:
        return self.memory.free_space == FULL.free

    def set_disk(self, usage: DiskUsage) -> None:
        """Let the disk be used so, from now on."""
        self.memory.used_space, self.memory.free_space = usage.used, usage.free
        self.judge_disk()

    def judge_disk(self) -> None:
        """Have the broker see how its disk is used; it would look in intervals."""
        if self._broker is not None:
            self._broker.store.judge_disk(DiskUsage(self.memory.used_space, self.memory.free_space))
