"""A broker for tests of Spark, which are no coroutines: embedded servers in a thread, and sends that block."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import anyio

from rocketbox.client import Admin, Producer
from rocketbox.clock import RealClock
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers, ServersInThread
from rocketbox.message import Message, MessageQueue, SendResult
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.client import RemotingClient
from tests.waiting import PATIENCE

__all__ = ["Broker", "rows_of", "wait_for"]

ResultT = TypeVar("ResultT")


def rows_of(start: int, end: int) -> list[dict[str, int]]:
    return [{"row": number} for number in range(start, end)]


def wait_for(what: Callable[[], Any], seconds: float = PATIENCE, *, unless: Callable[[], Any] = lambda: None) -> None:
    """Return when ``what()`` is true; fail after ``seconds``, or when ``unless()`` says what went wrong."""
    until = time.monotonic() + seconds
    while not what():
        assert not (wrong := unless()), wrong
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.05)


class Broker:
    """The embedded servers, and what a test does with them in one line."""

    def __init__(self, folder: Path, port: int = 0, name_server_port: int = 0) -> None:
        self.options = EmbeddedOptions(data_dir=folder, port=port, name_server_port=name_server_port)
        self.servers: ServersInThread | None = None

    def __enter__(self) -> Self:
        self.servers = EmbeddedServers.in_thread(self.options).__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        assert self.servers is not None
        self.servers.__exit__(None, None, None)

    @property
    def name_server(self) -> str:
        assert self.servers is not None
        return self.servers.name_server_address

    @property
    def ports(self) -> dict[str, int]:
        """To start again at the same addresses."""
        assert self.servers is not None
        addresses = {"port": self.servers.broker_address, "name_server_port": self.servers.name_server_address}
        return {name: int(address.rpartition(":")[2]) for name, address in addresses.items()}

    def send(
        self, topic: str, rows: Sequence[Mapping[str, Any]], tag: Callable[[int], str | None] = lambda _: None
    ) -> list[SendResult]:
        """One message for each row, its body as JSON; results in the same order."""
        messages = [
            Message(topic, json.dumps(row).encode(), tag=tag(number), keys=(f"k{number}",), properties={"run": "1"})
            for number, row in enumerate(rows)
        ]

        async def send() -> list[SendResult]:
            async with Producer("spark-tests", name_server=self.name_server) as producer:
                return await producer.send_many(messages)

        return anyio.run(send)

    def send_messages(self, messages: Sequence[Message], queue: MessageQueue) -> None:
        """Messages as they are, all to one queue."""

        async def send() -> None:
            async with Admin(name_server=self.name_server) as admin:
                await admin.create_topic(queue.topic, queues=4)
            async with Producer("spark-tests", name_server=self.name_server) as producer:
                for message in messages:
                    await producer.send(message, queue=queue)

        anyio.run(send)

    def ask(self, function: Callable[[Admin], Awaitable[ResultT]]) -> ResultT:
        """The result of ``function(admin)``."""

        async def ask() -> ResultT:
            async with Admin(name_server=self.name_server) as admin:
                return await function(admin)

        return anyio.run(ask)

    def send_by_hand(self, topic: str, body: bytes, **fields: object) -> None:
        """A message with fields of its header that no producer would write, by the letters they have there."""

        async def send() -> None:
            async with RemotingClient(clock=RealClock()) as remoting:
                header = {
                    "a": "group", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1_700_000_000_000, "h": 0,
                    "j": 0, "k": "false", "m": "false", **fields,
                }  # fmt: skip
                words = {name: str(value) for name, value in header.items()}
                command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, words, body)
                assert self.servers is not None
                answer = await remoting.request(self.servers.broker_address, command, timeout=PATIENCE)
                assert answer.code == 0, answer.remark

        anyio.run(send)

    def committed(self, topic: str, group: str) -> dict[MessageQueue, int | None]:
        """The group's offset of each queue."""
        return anyio.run(partial(self._of_queues, topic, lambda admin: lambda queue: admin.committed(group, queue)))

    def ends(self, topic: str) -> dict[MessageQueue, int | None]:
        """The end of each queue."""
        return anyio.run(partial(self._of_queues, topic, lambda admin: admin.max_offset))

    async def _of_queues(self, topic: str, what: Callable[[Admin], Any]) -> dict[MessageQueue, int | None]:
        async with Admin(name_server=self.name_server) as admin:
            return {queue: await what(admin)(queue) for queue in await admin.queues(topic)}
