"""Open transactions in a directory that goes to a real Apache broker and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from rocketbox.client import Admin, Producer, ProducerOptions
from rocketbox.message import LocalTransactionState, Message, MessageExt
from tests.conformance.apache import EACH_VERSION, apache_servers
from tests.support.broker.broker_process import BrokerProcess

pytestmark = pytest.mark.apache

TOPIC = "TakenOver"
SECONDS = 60.0
SEND = ProducerOptions(send_message_timeout=12.0)


async def bodies(name_server: str) -> list[str]:
    """All messages of the topic that consumers may get, in no order."""
    found = []
    async with Admin(name_server=name_server) as admin:
        for queue in await admin.queues(TOPIC):
            offset, end = await admin.min_offset(queue), await admin.max_offset(queue)
            while offset < end:
                pulled = await admin.pull(queue, offset)
                found += [message.body.decode() for message in pulled.messages]
                offset = pulled.next_begin_offset
    return sorted(found)


async def asked_about(name_server: str, last: str) -> list[str]:
    """The messages that a producer is asked about, up to the last one, each of which it commits.

    Brokers look at transactions in their order: by then it is decided whether to ask about those before.
    """
    asked: list[str] = []

    async def check(message: MessageExt) -> LocalTransactionState:
        asked.append(message.body.decode())
        return LocalTransactionState.COMMIT

    async with Producer("book", name_server=name_server, options=SEND, transaction_checker=check):
        with anyio.fail_after(SECONDS):
            while last not in asked or not set(asked) <= set(await bodies(name_server)):
                await anyio.sleep(0.2)
    return asked


async def begin_and_end(name_server: str, who: str) -> None:
    """One transaction that stays open, one that is committed, one that is rolled back, one that stays open."""

    async def check(message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    async with Producer("book", name_server=name_server, options=SEND, transaction_checker=check) as producer:
        await producer.transaction(Message(TOPIC, f"{who}, open".encode())).begin()
        async with producer.transaction(Message(TOPIC, f"{who}, committed".encode())):
            pass
        async with producer.transaction(Message(TOPIC, f"{who}, rolled back".encode())) as transaction:
            transaction.rollback()
        await producer.transaction(Message(TOPIC, f"{who}, open too".encode())).begin()


@pytest.mark.parametrize("version", EACH_VERSION)
@pytest.mark.parametrize("ours", ["killed", "stopped"])
def test_a_transaction_ends_once_whoever_has_begun_it(tmp_path: Path, version: str, ours: str) -> None:
    with BrokerProcess(tmp_path / "store", "--transaction-time-out=3600000") as broker:
        anyio.run(begin_and_end, broker.name_server, "ours")
        if ours == "killed":
            broker.kill()
    often: dict[str, Any] = {"transactionTimeOut": 4000, "transactionCheckInterval": 3000}
    often["transactionOpBatchInterval"] = 100  # how often Apache's 5.x writes which transactions have ended
    with apache_servers(tmp_path, version, **often) as apache:
        assert anyio.run(asked_about, apache.name_server, "ours, open too") == ["ours, open", "ours, open too"]
        anyio.run(begin_and_end, apache.name_server, "Apache's")
        anyio.run(anyio.sleep, 1)
    soon = ("--transaction-time-out=1000", "--transaction-check-interval=500")
    with BrokerProcess(tmp_path / "store", *soon) as broker:
        asked = anyio.run(asked_about, broker.name_server, "Apache's, open too")
        assert asked == ["Apache's, open", "Apache's, open too"]
        committed = [f"{who}, {what}" for who in ("Apache's", "ours") for what in ("committed", "open", "open too")]
        assert anyio.run(bodies, broker.name_server) == committed
