"""Names, remarks and ids with line breaks and what terminals obey: whoever asks the broker for something begins no line
of its log by that, and wipes none out."""

from __future__ import annotations

import json
import logging
import re

import anyio
import pytest

from rocketbox.errors import RemotingError
from rocketbox.protocol.codes import RequestCode as C
from rocketbox.protocol.command import RemotingCommand
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.broker.in_memory import BrokerWire, broker_in_memory
from tests.support.broker.open_transactions import open_transactions
from tests.support.clocks import VirtualClock, settle
from tests.support.store.store_tools import WAITING
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

CLEARS = "\x1b[2J\x00\x08\x7f\x9b2J\x85"  # what terminals obey, some of it in one character
FORGED = f"\n2026-11-23 00:00:00,000 ERROR rocketbox: forged{CLEARS}"
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")
NAMES = (
    "topic", "a", "b", "i", "consumerGroup", "group", "groupName", "producerGroup", "key", "clientID", "clientId",
    "username", "subject", "brokerName", "brokerAddr", "clusterName", "msgId", "originMsgId", "originTopic",
    "recallHandle", "transactionId", "bname",
)  # fmt: skip


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the broker's loggers have said, each record with its traceback; no line is forged, and none is an order."""
    formatter = logging.Formatter("%(message)s")
    texts = [formatter.format(record) for record in caplog.records if record.name.startswith("rocketbox.")]
    for text in texts:
        assert not [line for line in text.splitlines() if line.startswith("2026-11-23")], text
        assert not CONTROLS.search(text), ascii(text)
    return texts


async def test_the_deletion_of_a_topic_and_of_a_group_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with broker_in_memory() as wire:
        assert (await wire.broker(C.DELETE_TOPIC_IN_BROKER, {"topic": f"x{FORGED}"})).code == 0
        assert (await wire.broker(C.DELETE_SUBSCRIPTIONGROUP, {"groupName": f"y{FORGED}"})).code == 0
    lines = [line for text in told(caplog) for line in text.splitlines() if "was deleted" in line]
    shown = repr(FORGED)[1:-1]
    assert [line.partition(" was deleted")[0] for line in lines] == [f"topic x{shown}", f"group y{shown}"]


async def test_what_clients_say_of_themselves_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    subscription = {"topic": f"t{FORGED}", "subString": f"*{FORGED}", "expressionType": "TAG"}
    consumer = {
        "groupName": f"g{FORGED}", "consumeType": f"x{FORGED}", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [subscription],
    }  # fmt: skip
    heartbeat = {
        "clientID": f"c{FORGED}", "producerDataSet": [{"groupName": f"p{FORGED}"}], "consumerDataSet": [consumer],
    }  # fmt: skip
    async with broker_in_memory() as wire:
        await wire.broker(C.HEART_BEAT, {}, json.dumps(heartbeat).encode())
        await wire.broker(C.UNREGISTER_CLIENT, {"clientID": f"c{FORGED}", "consumerGroup": f"g{FORGED}"})
        for state in (0, 8, 12, 99):
            fields = {
                "producerGroup": f"p{FORGED}", "tranStateTableOffset": "0", "commitLogOffset": "0",
                "msgId": f"m{FORGED}", "fromTransactionCheck": "false", "commitOrRollback": str(state),
            }  # fmt: skip
            command = RemotingCommand(C.END_TRANSACTION, remark=f"r{FORGED}", ext_fields=fields)
            await wire.client.request(wire.broker_address, command, timeout=PATIENCE)
        await wire.send("plain", properties=f"UNIQ_KEY\x01u{FORGED}\x02KEYS\x01k{FORGED}\x02DELAY\x01z{FORGED}\x02")
    assert told(caplog)


async def test_no_request_begins_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    fields = dict.fromkeys(NAMES, f"v{FORGED}") | {"queueId": "0", "offset": "0", "queueOffset": "0"}

    async def ask(wire: BrokerWire, code: C) -> None:
        command = RemotingCommand(code, remark=f"r{FORGED}", ext_fields=fields, body=f'{{"x{FORGED}"'.encode())
        try:
            await wire.client.request(wire.broker_address, command, timeout=1)
        except RemotingError:
            silent.append(code)

    silent: list[C] = []
    async with broker_in_memory() as wire, anyio.create_task_group() as tasks:
        for code in C:
            tasks.start_soon(ask, wire, code)
    assert len(silent) < 10
    assert len(told(caplog)) > 10


async def test_the_id_of_a_transaction_begins_no_line(caplog: pytest.LogCaptureFixture) -> None:
    """Its sender chooses it."""
    clock = VirtualClock()
    async with open_transactions(MemoryStorage(), WAITING, clock=clock, transaction_check_max=1) as run:
        run.members.all.clear()
        for number in range(2):
            await run.store.durable(run.begin(f"t{number}{FORGED}{'x' * 10_000}", body=b"x"))
        await settle()
        for _ in range(2):
            clock.now += 60
            await run.checks.round()
        await run.store.durable(run.begin(f"t2{FORGED}{'x' * 10_000}", body=b"x"))
        await settle()
        await run.store.delete_topic("orders")
        (half,) = run.halves.due(float("inf"))
        run.halves.commit(half, run.read(half.log_offset))
    texts = [text for text in told(caplog) if "transaction t" in text]
    assert ["is connected" in texts[0], "given up" in texts[1], "its message dropped" in texts[2]] == [True] * 3
    assert max(map(len, texts)) < 2_000
