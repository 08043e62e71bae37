"""A group whose members live on one clock and one scripted broker, for tests that move time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from rocketbox.client import ClientOptions, ConsumerOptions, PushConsumer
from rocketbox.message import ConsumeFromWhere, MessageExt, MessageQueue
from rocketbox.protocol.codes import ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.client import RpcHook
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.clocks import VirtualClock, idle

__all__ = ["Group", "busy", "queues_of"]


class Group:
    """A clock that a test moves, a broker with the topic T and the group's retry topic, and as many members."""

    def __init__(self, queues: int = 1, *, seed: int = 0) -> None:
        self.clock = VirtualClock(seed, settle=idle)
        self.broker = ScriptedBroker(self.clock)
        self.broker.topics = {"T": queues, "%RETRY%g": 1}
        self.broker.announces = True
        self.came: list[tuple[str, bytes]] = []  # member, body
        self.hooks: tuple[RpcHook, ...] = ()

    @asynccontextmanager
    async def member(
        self, name: str = "c1", *, seconds: Callable[[bytes], float] = lambda body: 0.0, **options: object
    ) -> AsyncIterator[PushConsumer]:
        """A member whose handlers take so long for a message."""
        options.setdefault("consume_from_where", ConsumeFromWhere.FIRST_OFFSET)
        consumer = PushConsumer(
            "g",
            name_server=self.broker.address,
            options=ConsumerOptions(**options),  # type: ignore[arg-type] # options of many types
            client_options=ClientOptions(client_ip="10.0.0.9", instance_name=name, hooks=self.hooks),
            clock=self.clock,
            network=self.broker.network,
        )

        async def handle(batch: list[MessageExt]) -> None:
            for message in batch:
                self.came.append((name, message.body))
                if wait := seconds(message.body):
                    await self.clock.sleep(wait)

        async with anyio.create_task_group() as tasks:
            async with consumer:
                tasks.start_soon(consumer.subscribe, "T", "*", handle)
                await self.clock.advance(0.001)
                try:
                    yield consumer
                finally:
                    tasks.start_soon(self._let_time_pass)  # the end of a member takes some, and nobody else moves it
            tasks.cancel_scope.cancel()

    async def _let_time_pass(self) -> None:
        while True:
            await self.clock.advance(0.1)

    def another_joins(self) -> None:
        """A member that is not here; it sorts before all that are, so of two queues it takes the first."""
        self.broker.other_members = ["10.0.0.9@c0"]
        self.broker.notify("g")

    def another_leaves(self) -> None:
        """It goes again."""
        self.broker.other_members = []
        self.broker.notify("g")

    async def has(self, consumer: PushConsumer, queues: int) -> None:
        """Return when consumer has so many queues of T."""
        await self.until(lambda: len(queues_of(consumer)) == queues, 5)

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.came]

    async def until(self, condition: Callable[[], bool], seconds: float, *, step: float = 0.05) -> float:
        """When condition became true; fails when that took longer than seconds."""
        end = self.clock.now + seconds
        while not condition():
            assert self.clock.now < end, f"not within {seconds:g} s"
            await self.clock.advance(step)
        return self.clock.now


def queues_of(consumer: PushConsumer, topic: str = "T") -> list[MessageQueue]:
    return [state.queue for state in consumer.state().queues if state.queue.topic == topic]


def busy(request: RemotingCommand) -> RemotingCommand:
    return RemotingCommand.response(ResponseCode.SYSTEM_BUSY, "busy")
