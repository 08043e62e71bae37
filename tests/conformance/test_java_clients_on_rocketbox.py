"""Apache's own Java clients, newest and oldest, on ``rocketbox broker``: what is sent is consumed and committed."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from rocketbox.client import Admin
from tests.broker_process import BrokerProcess
from tests.conformance.apache import EACH_VERSION
from tests.conformance.java_load import JavaLoads

pytestmark = [pytest.mark.apache, pytest.mark.smoke]

MESSAGES = 20_000
WARM_UP = 1000
SECONDS = 180


@pytest.mark.parametrize("version", EACH_VERSION)
def test_java_clients_send_and_consume_on_the_embedded_broker(version: str, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store") as broker, JavaLoads(version=version) as java:
        java.produce(broker.name_server, "Java", MESSAGES, warm_up=WARM_UP)
        sent = java.result()
        assert (sent["messages"], sent["failures"]) == (MESSAGES, 0)
        java.wait_until_idle()
        java.consume(broker.name_server, "Java", MESSAGES, warm_up=WARM_UP, group="java")
        consumed = java.result()
        assert (consumed["messages"], consumed["failures"]) == (MESSAGES, 0)
        assert anyio.run(all_committed, broker.name_server)


async def all_committed(name_server: str) -> bool:
    """Whether the group's committed offsets reach the number of messages; the Java client commits as it stops."""
    async with Admin(name_server=name_server) as admin:
        queues = await admin.queues("Java")
        with anyio.move_on_after(SECONDS):
            while True:
                committed = [await admin.committed("java", queue) or 0 for queue in queues]
                if sum(committed) == 1 + WARM_UP + MESSAGES:  # the first of all makes the topic
                    assert committed == [await admin.max_offset(queue) for queue in queues]
                    return True
                await anyio.sleep(0.5)  # what another process does offers no event to wait for
    return False
