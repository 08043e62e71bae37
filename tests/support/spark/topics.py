"""A broker for tests of Spark, which are no coroutines: embedded servers in a thread, and sends that block."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self, TypedDict, TypeVar

import anyio
from anyio.from_thread import start_blocking_portal

from rocketbox.broker.broker import Broker as OneBroker
from rocketbox.broker.options import read_broker_options
from rocketbox.client import Admin, Producer, ProducerOptions
from rocketbox.client.api.topics import put_topic
from rocketbox.clock import RealClock
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers, ServersInThread
from rocketbox.message import Message, MessageExt, MessageQueue, SendResult
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.registration_bodies import TopicConfig
from rocketbox.remoting.client import RemotingClient
from tests.support.waiting import PATIENCE

__all__ = ["Broker", "BrokerBeside", "dedup_keys", "rows_of", "send_rows", "wait_for"]

ResultT = TypeVar("ResultT")


def rows_of(start: int, end: int) -> list[dict[str, int]]:
    return [{"row": number} for number in range(start, end)]


def dedup_keys(messages: Iterable[MessageExt]) -> dict[bytes, set[str]]:
    """Under which keys each body was sent, by the body."""
    from rocketbox.spark.outgoing import DEDUP_KEY  # without pyspark tests are skipped, and this module is loaded

    keys: dict[bytes, set[str]] = {}
    for message in messages:
        keys.setdefault(message.body, set()).add(message.properties[DEDUP_KEY])
    return keys


def wait_for(what: Callable[[], Any], seconds: float = PATIENCE, *, unless: Callable[[], Any] = lambda: None) -> None:
    """Return when ``what()`` is true; fail after ``seconds``, or when ``unless()`` says what went wrong."""
    until = time.monotonic() + seconds
    while not what():
        assert not (wrong := unless()), wrong
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.05)


def send_rows(
    name_server: str, topic: str, rows: Sequence[Mapping[str, Any]], tag: Callable[[int], str | None] = lambda _: None
) -> list[SendResult]:
    """One message for each row, its body as JSON; results in the same order."""
    messages = [
        Message(topic, json.dumps(row).encode(), tag=tag(number), keys=(f"k{number}",), properties={"run": "1"})
        for number, row in enumerate(rows)
    ]

    async def send() -> list[SendResult]:
        options = ProducerOptions(send_message_timeout=PATIENCE)  # what was not acknowledged may be there all the same
        async with Producer("spark-tests", name_server=name_server, options=options) as producer:
            return await producer.send_many(messages)

    return anyio.run(send)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


class Ports(TypedDict):
    """Where servers listen."""

    port: int
    name_server_port: int


class Broker:
    """The embedded servers, and what a test does with them in one line; ``settings`` are further ones of the broker."""

    def __init__(
        self, folder: Path, port: int = 0, name_server_port: int = 0, settings: Mapping[str, object] | None = None
    ) -> None:
        self.options = EmbeddedOptions(
            data_dir=folder,
            port=port,
            name_server_port=name_server_port,
            broker={"allocate-ahead": 0, **(settings or {})},  # no room that is reserved: a suite starts hundreds
        )
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
    def ports(self) -> Ports:
        """To start again at the same addresses."""
        assert self.servers is not None
        broker, name_server = self.servers.broker_address, self.servers.name_server_address
        return Ports(port=_port(broker), name_server_port=_port(name_server))

    def send(
        self, topic: str, rows: Sequence[Mapping[str, Any]], tag: Callable[[int], str | None] = lambda _: None
    ) -> list[SendResult]:
        """As ``send_rows``."""
        return send_rows(self.name_server, topic, rows, tag)

    def send_messages(self, messages: Sequence[Message], queue: MessageQueue) -> None:
        """Messages as they are, all to one queue."""

        async def send() -> None:
            async with Admin(name_server=self.name_server) as admin:
                await admin.create_topic(queue.topic, queues=4)
            async with Producer("spark-tests", name_server=self.name_server) as producer:
                for message in messages:
                    await producer.send(message, queue=queue)

        anyio.run(send)

    def set_queues(self, topic: str, reads: int, writes: int | None = None) -> None:
        """Make a topic, or change it: so many queues to read from, and so many (or as many) to write to."""
        config = TopicConfig(topic_name=topic, read_queue_nums=reads, write_queue_nums=writes or reads)

        async def put() -> None:
            async with RemotingClient(clock=RealClock()) as remoting:
                assert self.servers is not None
                await put_topic(remoting, self.servers.broker_address, config, timeout=PATIENCE)

        anyio.run(put)

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

    def messages_of(self, topic: str) -> list[MessageExt]:
        """All messages of a topic, queue by queue."""

        async def pull(admin: Admin) -> list[MessageExt]:
            found: list[MessageExt] = []
            for queue in await admin.queues(topic):
                offset, end = 0, await admin.max_offset(queue)
                while offset < end:
                    result = await admin.pull(queue, offset)
                    found += result.messages
                    offset = result.next_begin_offset
            return found

        return self.ask(pull)

    def committed(self, topic: str, group: str) -> dict[MessageQueue, int | None]:
        """The group's offset of each queue."""
        return anyio.run(partial(self._of_queues, topic, lambda admin: lambda queue: admin.committed(group, queue)))

    def ends(self, topic: str) -> dict[MessageQueue, int | None]:
        """The end of each queue."""
        return anyio.run(partial(self._of_queues, topic, lambda admin: admin.max_offset))

    async def _of_queues(self, topic: str, what: Callable[[Admin], Any]) -> dict[MessageQueue, int | None]:
        async with Admin(name_server=self.name_server) as admin:
            return {queue: await what(admin)(queue) for queue in await admin.queues(topic)}


class BrokerBeside:
    """A broker called ``name`` in a thread of its own, at the name server of another one."""

    def __init__(self, folder: Path, name: str, name_server: str) -> None:
        self._options = read_broker_options(
            {"broker-name": name, "allocate-ahead": 0},
            prefix="",
            places={},
            store_path_root_dir=folder,
            bind_address="127.0.0.1",
            listen_port=0,
        )
        self._name_server = name_server
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())
            broker = OneBroker(self._options, name_servers=[self._name_server])
            stack.enter_context(portal.wrap_async_context_manager(broker))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self.stop()

    def stop(self) -> None:
        """Go away in order; once is enough."""
        self._stack.close()
