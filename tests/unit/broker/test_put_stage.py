"""What passes the stage before the store: every message once, as its transforms have made it."""

from __future__ import annotations

import dataclasses

import anyio
import pytest

from rocketbox.broker.extensions import BrokerExtensions
from rocketbox.broker.property_text import find_property
from rocketbox.broker.put_stage import PutOrigin
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.stored_message import StoredMessage
from tests.support.broker.in_memory import BrokerWire, HastyClock, broker_in_memory
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio


class Quarantine:
    """A toy transform: what has the property SUSPECT is stored under another topic; it notes all it has seen."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bytes, PutOrigin]] = []

    def __call__(self, message: StoredMessage, origin: PutOrigin) -> StoredMessage:
        self.seen.append((message.topic, message.body, origin))
        if find_property(message.properties, b"SUSPECT") is None:
            return message
        return dataclasses.replace(message, topic="quarantine", queue_id=0)


async def bodies(wire: BrokerWire, topic: str, queue: int = 0) -> list[bytes]:
    return [message.body for message in await wire.messages(topic, queue=queue)]


async def make(wire: BrokerWire, topic: str) -> None:
    """A topic that holds one message in queue 3."""
    assert (await wire.send(topic, b"first", queue=3)).code == 0


async def test_a_transform_decides_where_a_send_is_stored_and_its_sender_is_told_his_own_queue() -> None:
    quarantine = Quarantine()
    async with broker_in_memory(extensions=BrokerExtensions(put_transforms=[quarantine])) as wire:
        await make(wire, "quarantine")
        answer = await wire.send("t", b"bad", queue=2, properties="SUSPECT\x01yes\x02")
        assert (answer.code, answer.ext_fields["queueId"]) == (0, "2")
        assert (await wire.send("t", b"good", queue=2)).code == 0
        assert await bodies(wire, "t", 2) == [b"good"]
        assert await bodies(wire, "quarantine") == [b"bad"]
    assert quarantine.seen[1:] == [("t", b"bad", PutOrigin.SEND), ("t", b"good", PutOrigin.SEND)]


async def test_delayed_messages_pass_once_when_sent_and_once_when_delivered() -> None:
    quarantine = Quarantine()
    async with broker_in_memory(extensions=BrokerExtensions(put_transforms=[quarantine]), clock=HastyClock()) as wire:
        assert (await wire.send("t", b"later", queue=1, properties="DELAY\x011\x02")).code == 0
        found = await wire.pull("t", queue=1, suspend_ms=5000)
        assert found.code == 0
        assert await bodies(wire, "t", 1) == [b"later"]
    assert quarantine.seen == [("t", b"later", PutOrigin.SEND), ("t", b"later", PutOrigin.DELIVERY)]


async def test_what_a_consumer_gives_back_passes_too() -> None:
    quarantine = Quarantine()
    async with broker_in_memory(extensions=BrokerExtensions(put_transforms=[quarantine]), clock=HastyClock()) as wire:
        sent = await wire.send("t", b"again")
        offset = int(sent.ext_fields["msgId"][-16:], 16)
        fields = {"group": "g", "offset": offset, "delayLevel": 1, "originTopic": "t", "maxReconsumeTimes": 16}
        assert (await wire.broker(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
        with anyio.fail_after(PATIENCE):
            assert (await wire.pull("%RETRY%g", group="g", suspend_ms=5000)).code == 0
    assert [(topic, origin) for topic, _, origin in quarantine.seen] == [
        ("t", PutOrigin.SEND),
        ("%RETRY%g", PutOrigin.SEND_BACK),
        ("%RETRY%g", PutOrigin.DELIVERY),
    ]


def batch(*properties: bytes) -> bytes:
    """The body of a batch of one-byte messages."""
    elements = []
    for text in properties:
        size = 4 + 4 + 4 + 4 + 4 + 1 + 2 + len(text)
        elements.append(
            size.to_bytes(4, "big") + bytes(12) + (1).to_bytes(4, "big") + b"x" + len(text).to_bytes(2, "big") + text
        )
    return b"".join(elements)


async def test_the_messages_of_a_batch_pass_one_by_one_and_move_together_or_not_at_all() -> None:
    quarantine = Quarantine()
    suspect = b"SUSPECT\x01yes\x02"
    async with broker_in_memory(extensions=BrokerExtensions(put_transforms=[quarantine])) as wire:
        await make(wire, "quarantine")
        await make(wire, "t")
        del quarantine.seen[:]
        assert (await wire.send("t", batch(suspect, suspect), m="true")).code == 0
        assert await bodies(wire, "quarantine") == [b"x", b"x"]
        refused = await wire.send("t", batch(suspect, b""), m="true")
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert "different queues" in str(refused.remark)
        assert await bodies(wire, "t") == []
        assert await bodies(wire, "quarantine") == [b"x", b"x"]
    assert [origin for _, _, origin in quarantine.seen] == [PutOrigin.BATCH] * 4
