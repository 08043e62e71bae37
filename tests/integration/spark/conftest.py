"""One SparkSession and one embedded broker for all tests of Spark in a pytest process: each takes seconds to start."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import pytest

from rocketbox.client import Admin, Producer
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers, ServersInThread
from rocketbox.message import Message, MessageQueue, SendResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ResultT = TypeVar("ResultT")


@pytest.fixture(params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Spark tests are slow: those that say so also run under trio."""
    backend: str = request.param
    return backend


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session of this process; skips where pyspark or Java is missing, and says which."""
    pytest.importorskip("pyspark")
    from rocketbox.spark.session import JavaNotFoundError, create_session

    try:
        session = create_session("rocketbox tests", {"spark.sql.shuffle.partitions": "1"})
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    yield session
    session.stop()


class Broker:
    """The embedded servers, and what a test does with them in one line."""

    def __init__(self, folder: Path, **ports: int) -> None:
        self.options = EmbeddedOptions(data_dir=folder, **{"port": 0, "name_server_port": 0, **ports})
        self.servers: ServersInThread | None = None

    def __enter__(self) -> Broker:
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
            Message(
                topic, json.dumps(row).encode(), tag=tag(number), keys=(f"k{number}",), properties={"run": "1"}
            )
            for number, row in enumerate(rows)
        ]

        async def send() -> list[SendResult]:
            async with Producer("spark-tests", name_server=self.name_server) as producer:
                return await producer.send_many(messages)

        return anyio.run(send)

    def committed(self, topic: str, group: str) -> dict[MessageQueue, int | None]:
        """The group's offset of each queue."""
        return anyio.run(partial(self._of_queues, topic, lambda admin: lambda queue: admin.committed(group, queue)))

    def ends(self, topic: str) -> dict[MessageQueue, int | None]:
        """The end of each queue."""
        return anyio.run(partial(self._of_queues, topic, lambda admin: admin.max_offset))

    async def _of_queues(self, topic: str, what: Callable[[Admin], Any]) -> dict[MessageQueue, int | None]:
        async with Admin(name_server=self.name_server) as admin:
            return {queue: await what(admin)(queue) for queue in await admin.queues(topic)}


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    return "".join(letter if letter.isalnum() else "_" for letter in request.node.name)[:100]
