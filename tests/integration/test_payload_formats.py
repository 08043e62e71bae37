"""Payloads in other formats than JSON, headers of rocketmq-spring and messages sent on, in a whole service."""

from __future__ import annotations

from types import ModuleType

import pytest

from rocketbox.testing import Harness
from tests.support.framework.services import ServiceMaker

pytest.importorskip("msgpack")
pytest.importorskip("msgspec")
pytest.importorskip("fastavro")
pytest.importorskip("google.protobuf.wrappers_pb2")

pytestmark = pytest.mark.anyio

SETTINGS = """
rocketmq:
  name-server: embedded
  producer: {group: desk, default-destination: "departures:UA", spring-headers: true}
"""
DESK = """
    from __future__ import annotations

    from dataclasses import dataclass
    from datetime import datetime
    from typing import Annotated, Any

    import msgspec
    from google.protobuf.wrappers_pb2 import StringValue
    from pydantic import BaseModel
    from rocketbox import (
        AvroCodec, Header, MessageExt, RocketBox, RocketMQTemplate, bean, rocketmq_listener, send_to,
    )

    class Departure(BaseModel):
        flight: str
        photo: bytes = b""

    class Bag(msgspec.Struct):
        number: int

    @dataclass
    class Seat:
        row: int
        letter: str

    seen: list[Any] = []

    @bean
    def avro() -> AvroCodec:
        fields = [{"name": "row", "type": "int"}, {"name": "letter", "type": "string"}]
        return AvroCodec({Seat: {"type": "record", "name": "Seat", "fields": fields}})

    @rocketmq_listener(topic="departures", consumer_group="desk")
    async def on_departure(
        departure: Departure,
        keys: Annotated[str | None, Header("rocketmq_KEYS")],
        tag: Annotated[str | None, Header("rocketmq_TAGS")],
        topic: Annotated[str, Header("rocketmq_TOPIC")],
        born: Annotated[datetime, Header("rocketmq_BORN_TIMESTAMP")],
        host: Annotated[str, Header("rocketmq_BORN_HOST")],
        queue: Annotated[int, Header("rocketmq_QUEUE_ID")],
        content_type: Annotated[str, Header("contentType")],
        message: MessageExt,
        template: RocketMQTemplate,
    ) -> None:
        seen.append((departure, keys, tag, topic, born.year > 2000, host, queue == message.queue_id, content_type))
        await template.send("later:seen", message)

    @rocketmq_listener(topic="later", consumer_group="later")
    async def later(departure: Departure, message: MessageExt) -> None:
        seen.append((departure, message.tag, message.keys, message.properties["airport"]))

    @rocketmq_listener(topic="names", consumer_group="names")
    @send_to("bags")
    async def on_name(name: StringValue) -> Bag:
        seen.append(name.value)
        return Bag(number=len(name.value))

    @rocketmq_listener(topic="bags", consumer_group="bags")
    async def on_bag(bag: Bag) -> None:
        seen.append(bag)

    @rocketmq_listener(topic="seats", consumer_group="seats")
    async def on_seats(seats: list[Seat]) -> None:
        seen.extend(seats)

    @rocketmq_listener(topic="asks", consumer_group="asks")
    async def ask(name: StringValue) -> StringValue:
        return StringValue(value=name.value * 2)

    app = RocketBox("desk", scan=[__name__])
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def desk(service: ServiceMaker) -> ModuleType:
    return service(DESK, SETTINGS)


async def test_message_pack_headers_of_spring_and_a_message_that_is_sent_on(desk: ModuleType) -> None:
    async with Harness(desk.app) as harness:
        departure = desk.Departure(flight="UA1", photo=b"\xff\x00")
        headers = {"contentType": "application/msgpack", "airport": "JFK"}
        await harness.app.template.send(None, departure, keys=["a", "b"], headers=headers)
        await harness.drain()
        host = "127.0.0.1"
        came = (departure, "a b", "UA", "departures", True, host, True, "application/msgpack")
        assert desk.seen == [came, (departure, "seen", ("a", "b"), "JFK")]
        sent = harness.sent("departures").one(desk.Departure)
        assert sent == departure


async def test_protobuf_structs_and_avro_are_told_by_their_types(desk: ModuleType) -> None:
    async with Harness(desk.app) as harness:
        template = harness.app.template
        await template.send("names", desk.StringValue(value="UA1545"))
        await template.send("seats", desk.Seat(1, "A"))
        await harness.drain()
        assert sorted(map(str, desk.seen)) == ["Bag(number=6)", "Seat(row=1, letter='A')", "UA1545"]
        assert [sent.body for sent in harness.sent("seats")] == [b"\x02\x02A"]
        answer = await template.send_and_receive("asks", desk.StringValue(value="ab"), desk.StringValue)
        assert answer.value == "abab"
