"""Texts that a peer may choose, and that are kept: each has an end, and the answer says which."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rocketbox.protocol.codes import RequestCode, ResponseCode
from tests.unit.broker.in_memory import broker_in_memory

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
