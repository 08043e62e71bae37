"""Texts that a peer may choose, and that are kept: each has an end, and the answer says which."""

from __future__ import annotations

import gc
import json
import tracemalloc
from typing import Any

import pytest

from rocketbox.broker.handlers.send_rules import MOST_IN_BATCH
from rocketbox.clock import RealClock
from rocketbox.message import format_offset_msg_id
from rocketbox.protocol.codes import RequestCode, ResponseCode, SerializeType
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.framing import MAX_HEADER_BYTES
from rocketbox.protocol.stored_message import encode_batch
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.options import RemotingOptions
from tests.support.broker.in_memory import broker_in_memory
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

LONG = "x" * 50_000


def beat(**values: Any) -> bytes:
    return json.dumps({"clientID": "c", "producerDataSet": [], "consumerDataSet": [], **values}).encode()


def locks(**values: Any) -> bytes:
    queue = {"topic": values.pop("topic", "t"), "brokerName": values.pop("broker", "b"), "queueId": 0}
    return json.dumps({"consumerGroup": "g", "clientId": "c", "mqSet": [queue], **values}).encode()


@pytest.mark.parametrize(
    ("code", "body", "told"),
    [
        (34, beat(clientID=LONG, producerDataSet=[{"groupName": "g"}]), "client id has 50000 characters; 1024 is"),
        (34, beat(producerDataSet=[{"groupName": LONG}]), "name of a group has 50000 characters; 255 is the most"),
        (
            34,
            beat(consumerDataSet=[{"groupName": "g", "consumeType": LONG, "subscriptionDataSet": []}]),
            "consume type has 50000 characters; 255 is the most",
        ),
        (41, locks(clientId=LONG), "client id has 50000 characters; 1024 is the most"),
        (41, locks(consumerGroup=LONG), "name of a group has 50000 characters; 255 is the most"),
        (41, locks(topic=LONG), "name of a topic has 50000 characters; 255 is the most"),
        (41, locks(broker=LONG), "name of a broker has 50000 characters; 255 is the most"),
    ],
)
async def test_what_a_client_says_of_itself_is_not_kept_at_any_length(code: int, body: bytes, told: str) -> None:
    async with broker_in_memory() as wire:
        answer = await wire.broker(code, body=body)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert told in str(answer.remark)
        broker = wire.running
        assert len(broker.locks) == len(broker.consumers.memberships) == len(broker.producers.memberships) == 0


async def test_a_batch_of_more_messages_than_an_answer_can_name_is_refused_and_not_stored() -> None:
    settings: dict[str, object] = {"max-message-size": "4MB", "mapped-file-size-commit-log": "16MB"}
    async with broker_in_memory(settings=settings) as wire:
        answer = await wire.send("t", encode_batch([(0, b"b", b"")] * (MOST_IN_BATCH + 1)), m="true")
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert f"more than {MOST_IN_BATCH} messages" in str(answer.remark)
        assert (await wire.send("t", b"one")).ext_fields["queueOffset"] == "0"
    ids_of_the_largest = ",".join([format_offset_msg_id(bytes(16), 10_911, 2**62)] * MOST_IN_BATCH)
    assert len(ids_of_the_largest) + 1_000 < MAX_HEADER_BYTES


QUERY = {"topic": "t", "key": "k", "maxNum": 5, "beginTimestamp": 0, "endTimestamp": 2**62}


@pytest.mark.parametrize("name", ["topic", "key"])
async def test_a_query_for_a_key_that_no_message_can_have_is_answered_so_and_leaves_nothing(name: str) -> None:
    async with broker_in_memory() as wire:
        await wire.broker(RequestCode.QUERY_MESSAGE, QUERY)
        tracemalloc.start()
        try:
            answer = await wire.broker(RequestCode.QUERY_MESSAGE, {**QUERY, name: "x" * 300_000})
            size, answered = len(answer.remark or ""), answer.code
            del answer
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert answered == ResponseCode.QUERY_NOT_FOUND
        assert size < 200
        assert held < 1_000_000
        again = await wire.broker(RequestCode.QUERY_MESSAGE, {**QUERY, name: "x" * 300_000})
        assert "300000 bytes" in str(again.remark)


@pytest.mark.parametrize("name", ["topic", "key"])
async def test_a_query_with_half_a_character_finds_nothing(name: str) -> None:
    async with broker_in_memory() as wire:
        header = RemotingCommand.request(
            RequestCode.QUERY_MESSAGE, {k: str(v) for k, v in QUERY.items()} | {name: "\ud800"}
        )
        address, json_only = wire.broker_address, RemotingOptions(serialization=SerializeType.JSON)
        async with RemotingClient(clock=RealClock(), network=wire.network, options=json_only) as client:
            answer = await client.request(address, header, timeout=PATIENCE)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        assert wire.running.server.counters.failed_requests == 0


async def test_codes_that_nobody_knows_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with broker_in_memory(settings={"max-request-bytes": 1024}) as wire:
        caplog.clear()
        for code in range(20_000, 20_300):
            answer = await wire.broker(code, body=bytes(2_000))
            assert "1024 is the most here" in str(answer.remark)
        assert wire.running.server.counters.bodies_refused == 300
        assert len(caplog.records) == 1
        await wire.broker(RequestCode.UPDATE_CONSUMER_OFFSET, body=bytes(2_000))
        assert len(caplog.records) == 2
