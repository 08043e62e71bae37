"""Apache's own Java clients, newest and oldest, on ``rocketbox broker``: what is sent is consumed and committed."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from rocketbox.client import Admin
from tests.conformance.apache import EACH_VERSION
from tests.conformance.java_load import JavaLoads
from tests.support.broker.broker_process import BrokerProcess

pytestmark = [pytest.mark.apache, pytest.mark.smoke]

MESSAGES = 20_000
WARM_UP = 1000
ALL = 1 + WARM_UP + MESSAGES  # the first of all makes the topic
SECONDS = 60


@pytest.mark.parametrize("version", EACH_VERSION)
def test_java_clients_send_and_consume_on_the_embedded_broker(version: str, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store") as broker, JavaLoads(version=version) as java:
        java.produce(broker.name_server, "Java", MESSAGES, warm_up=WARM_UP)
        sent = java.result()
        assert (sent["messages"], sent["failures"]) == (MESSAGES, 0)
        java.wait_until_idle()
        java.consume(broker.name_server, "Java", MESSAGES, warm_up=ALL - MESSAGES, group="java")
        consumed = java.result()
        assert (consumed["messages"], consumed["failures"]) == (MESSAGES, 0)
        java.wait_until_idle()  # the Java client stops behind the last message, and commits then
        committed, ends = anyio.run(what_is_committed, broker.name_server)
        assert committed == ends
        assert sum(committed) == ALL


async def what_is_committed(name_server: str) -> tuple[list[int], list[int]]:
    """The group's committed offsets, as soon as they reach all messages (or what they are when it is late)."""
    async with Admin(name_server=name_server) as admin:
        queues = await admin.queues("Java")
        ends = [await admin.max_offset(queue) for queue in queues]
        committed: list[int] = []
        with anyio.move_on_after(SECONDS):
            while committed != ends:
                await anyio.sleep(0.1)  # Java commits one-way, which offers no event to wait for
                committed = [await admin.committed("java", queue) or 0 for queue in queues]
    return committed, ends
