"""Payloads in every format, as Apache's Java client reads them and sends them on, and as we read them again."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from rocketbox import AvroCodec, CodecMessageConverter
from rocketbox.client import ConsumerOptions, Producer, PushConsumer
from rocketbox.message import ConsumeFromWhere, MessageExt
from rocketbox.template import RocketMQTemplate
from rocketbox.template.content_types import content_type_of, read_payload
from tests.conformance.apache import EACH_VERSION
from tests.conformance.java_exchange import SMALL_AND_QUICK
from tests.conformance.java_program import JavaProgram
from tests.support.broker.broker_process import BrokerProcess
from tests.support.waiting import until

for library in ("msgpack", "fastavro", "google.protobuf", "msgspec"):
    pytest.importorskip(library)

pytestmark = [pytest.mark.apache, pytest.mark.anyio]

SEAT = {"type": "record", "name": "Seat", "fields": [{"name": "row", "type": "long"}, {"name": "at", "type": "string"}]}


class Departure(BaseModel):
    flight: str
    at: datetime
    photo: bytes


class Seat(BaseModel):
    row: int
    at: str


def payloads() -> dict[str, tuple[Any, Any, str | None]]:
    """By key: the payload, the type that it is read as, and the content type that the send says."""
    from google.protobuf.wrappers_pb2 import StringValue
    from msgspec import defstruct

    gate = defstruct("Gate", [("number", int), ("name", str)])
    departure = Departure(flight="UA1545", at=datetime(2026, 11, 23, 12, tzinfo=UTC), photo=b"a")
    return {
        "json": (departure, Departure, None),
        "messagepack": (departure.model_copy(update={"photo": b"\xff\0"}), Departure, "application/msgpack"),
        "avro": (Seat(row=2**40, at="größe"), Seat, None),
        "protobuf": (StringValue(value="UA\0 größe"), StringValue, None),
        "struct": (gate(7, "B"), gate, None),
        "text": ("größe \U0001f6eb", str, None),
        "bytes": (bytes(range(256)), bytes, None),
    }


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_java_reads_and_sends_each_format_byte_for_byte(version: str, tmp_path: Path) -> None:
    sent, converter = payloads(), CodecMessageConverter([AvroCodec({Seat: SEAT})])
    bodies: dict[str, tuple[bytes, str | None]] = {}
    echoed: dict[str, MessageExt] = {}

    async def take(messages: list[MessageExt]) -> None:
        echoed.update({message.keys[0]: message for message in messages})

    first = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    with BrokerProcess(tmp_path / "store") as broker:
        async with Producer("desk", name_server=broker.name_server) as producer:
            template = RocketMQTemplate(producer, converter=converter)
            for key, (payload, _, content_type) in sent.items():
                headers = {} if content_type is None else {"contentType": content_type}
                await template.send("T", payload, keys=key, headers=headers)
                bodies[key] = converter.encode(payload, content_type)
        arguments = (broker.name_server, "T", "echoes", "java", str(len(sent)))
        with JavaProgram("rocketbox.Echo", *arguments, options=SMALL_AND_QUICK, version=version) as java:
            told = java.told.read().splitlines()
            assert told[-1:] == ["done"], (told, java.errors)
        async with PushConsumer("desk", name_server=broker.name_server, options=first) as consumer:
            await consumer.subscribe("echoes", "*", take)
            await until(lambda: len(echoed) == len(sent))
    seen = sorted(line.removeprefix("> ") for line in told[:-1])
    assert seen == sorted(f"{sent[key][2] or said or 'null'} {body.hex()}" for key, (body, said) in bodies.items())
    for key, message in echoed.items():
        assert message.body == bodies[key][0], key
        payload, type_, _ = sent[key]
        assert read_payload(converter, message.body, type_, content_type_of(message)) == payload, key
