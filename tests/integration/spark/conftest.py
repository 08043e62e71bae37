"""One SparkSession and one embedded broker for all tests of Spark in a pytest process: each takes seconds to start."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING
from zlib import crc32

import pytest

from rocketbox.client import MQClientInstance
from tests.support.spark.topics import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what has another mark than asked for
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever asks for the session needs Java, whether the test says so or not."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Spark tests are slow: those that say so also run under trio."""
    backend: str = request.param
    return backend


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session of this process; skips where pyspark or Java is missing, and says which."""
    pytest.importorskip("pyspark")
    from rocketbox.spark.java import JavaNotFoundError
    from rocketbox.spark.session import create_session

    # Java's second compiler only pays in longer runs than these.
    conf = {"spark.sql.shuffle.partitions": "1", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    try:
        session = create_session("rocketbox tests", conf)
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[MQClientInstance]:
    """A client of the broker, for listeners."""
    async with MQClientInstance(broker.name_server) as instance:
        yield instance


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, also where names of tests are longer than that of a topic, and equal up to there."""
    name = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)
    return name if len(name) <= 40 else f"{name[:31]}_{crc32(request.node.nodeid.encode()):08x}"
