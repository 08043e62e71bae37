"""Row C36 of the catalogue of failures: acknowledgements of Apache's brokers that are weaker than what was asked for.

Such a message is stored, so it is raised by default, with its result, and returned where the settings accept it. A
master that waits for slaves and has none answers SLAVE_NOT_AVAILABLE by 4.9.7; 5.x waits for as many copies as
``inSyncReplicas`` says, and answers FLUSH_SLAVE_TIMEOUT. (With its default of one copy it waits for none.)
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from rocketbox.client import Admin, Producer, ProducerOptions
from rocketbox.errors import NotDurableError
from rocketbox.message import Message, SendResult, SendStatus
from tests.conformance.apache import EACH_VERSION, ApacheServers, apache_broker, apache_servers
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.apache, pytest.mark.anyio]

SLAVES: dict[str, Any] = {"slaveTimeout": 300, "inSyncReplicas": 2}  # 4.9.7 knows of no such number
RAISES = ProducerOptions(send_message_timeout=12.0)
RETURNS = ProducerOptions(send_message_timeout=12.0, accept_weak_ack=True)


@pytest.fixture(scope="module", params=EACH_VERSION)
def master(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheServers]:
    """A broker that waits for slaves; the first test finds it alone."""
    folder = tmp_path_factory.mktemp("master")
    with apache_servers(folder, request.param, keeps_store=False, brokerRole="SYNC_MASTER", **SLAVES) as servers:
        yield servers


async def statuses(servers: ApacheServers, topic: str) -> tuple[SendStatus, SendStatus]:
    """Of a message whose weak acknowledgement was raised, and of one where it was returned; both are stored."""
    async with (
        Admin(name_server=servers.name_server) as admin,
        Producer(f"raises-{topic}", name_server=servers.name_server, options=RAISES) as raising,
        Producer(f"returns-{topic}", name_server=servers.name_server, options=RETURNS) as returning,
    ):
        returned = await returning.send(Message(topic, b"returned", tag="A", keys=["k"]))
        with pytest.raises(NotDurableError, match=r"is stored with [A-Z_]+ only; sending it again would") as caught:
            await raising.send(Message(topic, b"raised", tag="A", keys=["k"]))
        unasked = await raising.send(Message(topic, b"asks for no wait", wait_store_ok=False))
        assert unasked.status is SendStatus.SEND_OK
        raised = caught.value.result
        assert f"{raised.msg_id} is stored with {raised.status.name} only" in str(caught.value)
        for result, body in ((returned, b"returned"), (raised, b"raised")):
            found = await admin.view(result.offset_msg_id)
            assert (found.body, found.tag, found.keys, found.msg_id) == (body, "A", ("k",), result.msg_id)
        ends = [await admin.max_offset(queue) for queue in await admin.queues(topic)]
        with anyio.fail_after(PATIENCE):
            while sum(ends) < 3:  # Apache's brokers fill their queues later
                ends = [await admin.max_offset(queue) for queue in await admin.queues(topic)]
        assert sum(ends) == 3, "none was sent twice"
        return raised.status, returned.status


@pytest.mark.smoke
async def test_a_master_that_misses_its_slaves_has_stored_what_it_says_so_of(master: ApacheServers, topic: str) -> None:
    weak = SendStatus.SLAVE_NOT_AVAILABLE if master.version == "4.9.7" else SendStatus.FLUSH_SLAVE_TIMEOUT
    assert await statuses(master, topic) == (weak, weak)


async def sent_until(servers: ApacheServers, topic: str, status: SendStatus) -> SendResult:
    """The first result with a status of messages that are sent one after another."""
    async with Producer(f"p-{topic}", name_server=servers.name_server, options=RETURNS) as producer:
        with anyio.fail_after(PATIENCE):
            while (result := await producer.send(Message(topic, b"until"))).status is not status:
                pass
    return result


async def test_a_slave_that_stands_still_is_waited_for_as_long_as_the_master_is_set_to(
    master: ApacheServers, topic: str, tmp_path: Path
) -> None:
    slave = apache_broker(
        tmp_path, master.name_server, master.version, keeps_store=False, brokerRole="SLAVE", brokerId=1
    )
    with slave as servers:
        await sent_until(master, f"{topic}-first", SendStatus.SEND_OK)
        servers.broker_process.send_signal(signal.SIGSTOP)
        try:
            late = SendStatus.FLUSH_SLAVE_TIMEOUT
            assert await statuses(master, topic) == (late, late)
        finally:
            servers.broker_process.send_signal(signal.SIGCONT)
        await sent_until(master, f"{topic}-last", SendStatus.SEND_OK)


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_a_disk_that_takes_longer_than_the_broker_waits(version: str, topic: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": 0}
    with apache_servers(tmp_path, version, keeps_store=False, **settings) as servers:
        result = await sent_until(servers, topic, SendStatus.FLUSH_DISK_TIMEOUT)
        async with Admin(name_server=servers.name_server) as admin:
            assert (await admin.view(result.offset_msg_id)).msg_id == result.msg_id
        async with Producer(f"raises-{topic}", name_server=servers.name_server, options=RAISES) as raising:

            async def send_on() -> None:
                while True:  # the disk may have been quicker
                    await raising.send(Message(topic, b"raised"))

            with pytest.raises(NotDurableError, match="is stored with FLUSH_DISK_TIMEOUT only"):
                await send_on()
