"""kill -9 at seeded moments: nothing acknowledged is missing, nothing never sent is there, offsets have no gap."""

from __future__ import annotations

import random
from pathlib import Path

import anyio
import pytest

from rocketbox.client import Admin, Producer, ProducerOptions
from rocketbox.errors import RocketBoxError
from rocketbox.message import Message, MessageExt
from tests.broker_process import BrokerProcess

KILLS = 20
SENDERS = 16
TOPIC = "ledger"


class Ledger:
    """What was sent, and which of it the broker acknowledged with which offset."""

    def __init__(self) -> None:
        self.sent: set[bytes] = set()
        self.acknowledged: dict[bytes, tuple[int, int]] = {}  # body -> (queue id, queue offset)


async def send_until_killed(broker: BrokerProcess, ledger: Ledger, enough: int) -> None:
    """Send from 16 tasks; kill the broker as soon as ``enough`` sends more have been acknowledged."""
    target = len(ledger.acknowledged) + enough
    options = ProducerOptions(retry_times_when_send_failed=0, send_message_timeout=5.0)

    async def send(producer: Producer, sender: int) -> None:
        while broker.process.poll() is None:
            body = b"%d from sender %d " % (len(ledger.sent), sender)
            body += b"." * random.Random(body).randrange(3_000)
            ledger.sent.add(body)
            try:
                result = await producer.send(Message(TOPIC, body, keys=(f"k{len(ledger.sent)}",)))
            except RocketBoxError:
                return
            ledger.acknowledged[body] = (result.queue.queue_id, result.queue_offset)
            if len(ledger.acknowledged) >= target and broker.process.poll() is None:
                broker.process.kill()

    async with (
        Producer("ledger", name_server=broker.name_server, options=options) as producer,
        anyio.create_task_group() as group,
    ):
        for sender in range(SENDERS):
            group.start_soon(send, producer, sender)
    broker.kill()


async def read_all(name_server: str) -> list[list[MessageExt]]:
    """Every message of every queue, in the order of its queue."""
    queues = []
    async with Admin(name_server=name_server) as admin:
        for queue in await admin.queues(TOPIC):
            messages: list[MessageExt] = []
            offset, end = await admin.min_offset(queue), await admin.max_offset(queue)
            while offset < end:
                result = await admin.pull(queue, offset, 32)
                messages += result.messages
                assert result.next_begin_offset > offset
                offset = result.next_begin_offset
            queues.append(messages)
    return queues


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_nothing_acknowledged_is_lost_when_the_broker_is_killed(tmp_path: Path) -> None:
    chance = random.Random(20130101)
    ledger = Ledger()
    arguments = ("--mapped-file-size-commit-log=4194304",)  # small files, so that kills meet the roll as well
    for kill in range(KILLS + 1):
        with BrokerProcess(tmp_path / "store", *arguments) as broker:
            queues = await read_all(broker.name_server) if kill else []
            found = {message.body: message for messages in queues for message in messages}
            assert ledger.acknowledged.keys() - found.keys() == set(), f"acknowledged and lost before start {kill}"
            assert found.keys() - ledger.sent == set(), f"never sent, and there at start {kill}"
            for messages in queues:
                assert [message.queue_offset for message in messages] == list(range(len(messages)))
            for body, place in ledger.acknowledged.items():
                assert (found[body].queue_id, found[body].queue_offset) == place
            if kill < KILLS:
                await send_until_killed(broker, ledger, chance.randrange(1, 400))
    assert len(ledger.acknowledged) > KILLS
