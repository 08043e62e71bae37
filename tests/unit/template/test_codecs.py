"""Formats of bodies besides JSON: chosen by content type or by type, there and back, and what is none."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, TypedDict
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from rocketbox import (
    AvroCodec,
    CodecMessageConverter,
    JsonMessageConverter,
    MessagePackCodec,
    PayloadCodec,
    PayloadError,
    body_memory,
)
from rocketbox.client import Producer
from rocketbox.template import RocketMQTemplate
from rocketbox.template.codecs import StructCodec
from rocketbox.template.content_types import read_payload, write_payload

MESSAGE_PACK, PROTOBUF, AVRO = "application/msgpack", "application/x-protobuf", "application/avro"


class Terminal(Enum):
    NORTH = "north"


class Departure(BaseModel):
    flight: str
    at: datetime
    fee: Decimal = Decimal("12.50")
    id: UUID = UUID(int=7)
    terminal: Terminal = Terminal.NORTH
    photo: bytes = b"\xff\x00"
    legs: list[int] = []


class Gate(TypedDict):
    number: int


@dataclass
class Seat:
    row: int
    letter: str


DEPARTURE = Departure(flight="UA1545", at=datetime(2026, 11, 23, 12, 30, tzinfo=UTC), legs=[1, -(2**63)])
SCHEMA = {
    "type": "record",
    "name": "Seat",
    "fields": [{"name": "row", "type": "int"}, {"name": "letter", "type": "string"}],
}


def there_and_back(
    converter: CodecMessageConverter, payload: Any, type_: Any, content_type: str | None = None
) -> tuple[bytes, Any]:
    body, said = write_payload(converter, payload, content_type)
    return body, read_payload(converter, body, type_, content_type or said)


@pytest.fixture
def converter() -> CodecMessageConverter:
    return CodecMessageConverter()


@pytest.fixture
def template(converter: CodecMessageConverter) -> RocketMQTemplate:
    return RocketMQTemplate(Producer("desk", name_server="127.0.0.1:1"), converter=converter)  # never entered


# --- JSON, text and bytes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload", [DEPARTURE.model_copy(update={"photo": b"a"}), Seat(1, "A"), {"a": [1]}, [1, 2], "text", b"\xff\x00"]
)
def test_what_no_codec_is_for_is_as_it_was_and_says_no_content_type(
    converter: CodecMessageConverter, payload: Any
) -> None:
    assert write_payload(converter, payload, None) == (JsonMessageConverter().to_body(payload), None)
    assert there_and_back(converter, payload, type(payload))[1] == payload


@pytest.mark.parametrize(
    "content_type", ["application/json", "text/plain;charset=UTF-8", "application/vnd.desk+json", "image/png"]
)
def test_content_types_of_others_leave_it_to_the_type(converter: CodecMessageConverter, content_type: str) -> None:
    assert read_payload(converter, b'{"row": 1, "letter": "A"}', Seat, content_type) == Seat(1, "A")
    assert read_payload(converter, b'"a"', str, content_type) == '"a"'
    assert read_payload(converter, b"\xff", bytes, content_type) == b"\xff"


@pytest.mark.parametrize("content_type", [MESSAGE_PACK, PROTOBUF, "image/png", "application/json"])
def test_bytes_are_the_body_whatever_is_said_of_them(converter: CodecMessageConverter, content_type: str) -> None:
    assert write_payload(converter, b"\xc1\xff", content_type) == (b"\xc1\xff", None)
    assert read_payload(converter, b"\xc1\xff", bytes, content_type) == b"\xc1\xff"


def test_a_content_type_that_no_codec_has_is_refused_for_what_must_be_written(converter: CodecMessageConverter) -> None:
    with pytest.raises(
        PayloadError, match=r"no codec writes 'image/png'.*there are application/json, application/msgpack"
    ):
        write_payload(converter, {"a": 1}, "image/png")
    assert write_payload(converter, "<svg/>", "image/svg+xml") == (b"<svg/>", None)


def test_json_that_comes_for_a_type_of_protobufs_is_told_in_words(converter: CodecMessageConverter) -> None:
    wrappers = pytest.importorskip("google.protobuf.wrappers_pb2")
    with pytest.raises(PayloadError, match="its body is JSON, and a StringValue is read from application/x-protobuf"):
        read_payload(converter, b"{}", wrappers.StringValue, "application/json")


def test_an_own_converter_has_its_own_format() -> None:
    class Upper(JsonMessageConverter):
        def to_body(self, payload: Any) -> bytes:
            return super().to_body(payload).upper()

    assert write_payload(Upper(), "a", MESSAGE_PACK) == (b"A", None)
    assert read_payload(Upper(), b"A", str, MESSAGE_PACK) == "A"


# --- MessagePack -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "type_"),
    [
        (DEPARTURE, Departure),
        (Seat(1, "A"), Seat),
        (Gate(number=3), Gate),
        ({"a": [1, 2.5, None, b"\xff"]}, dict),
        ([DEPARTURE], list[Departure]),
        ("text", str),
    ],
)
def test_message_pack_there_and_back(converter: CodecMessageConverter, payload: Any, type_: Any) -> None:
    msgpack = pytest.importorskip("msgpack")
    body, read = there_and_back(converter, payload, type_, MESSAGE_PACK)
    assert read == payload
    assert isinstance(msgpack.unpackb(body, strict_map_key=False), dict | list | str)


def test_a_send_says_its_content_type_in_the_header(template: RocketMQTemplate) -> None:
    pytest.importorskip("msgpack")
    message = template.to_message("departures", {"a": 1}, headers={"contentType": MESSAGE_PACK})
    assert message.body == b"\x81\xa1a\x01"
    assert message.properties == {"contentType": MESSAGE_PACK}
    assert template.to_message("departures", {"a": 1}).properties == {}


def test_a_default_content_type_is_said_of_each_message() -> None:
    pytest.importorskip("msgpack")
    converter = CodecMessageConverter(content_type=MESSAGE_PACK)
    assert write_payload(converter, {"a": 1}, None) == (b"\x81\xa1a\x01", MESSAGE_PACK)
    assert write_payload(converter, "text", None) == (b"text", None)
    assert write_payload(converter, {"a": 1}, "application/json") == (b'{"a":1}', None)


@given(st.binary(max_size=200))
def test_whatever_stands_in_a_body_of_message_pack_is_a_value_or_a_payload_error(body: bytes) -> None:
    pytest.importorskip("msgpack")
    try:
        value = MessagePackCodec().reader(dict)(body)
    except PayloadError:
        return
    assert isinstance(value, dict)


def test_a_time_of_message_packs_own_kind_is_read_as_one() -> None:
    """Other clients may write it; ours writes text."""
    msgpack = pytest.importorskip("msgpack")
    body = msgpack.packb({"at": msgpack.Timestamp(1, 500_000_000)})
    assert MessagePackCodec().reader(dict[str, datetime])(body) == {"at": datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)}
    with pytest.raises(PayloadError):  # a year that there is not
        MessagePackCodec().reader(dict)(msgpack.packb({"at": msgpack.Timestamp(2**60)}))


def test_a_nest_without_end_is_a_payload_error() -> None:
    pytest.importorskip("msgpack")
    with pytest.raises(PayloadError):
        MessagePackCodec().reader(list)(b"\x91" * 100_000)


@pytest.mark.parametrize("part", [b"\x80", b"\x90"], ids=["maps", "arrays"])
def test_a_body_of_many_small_parts_is_a_payload_error_before_it_fills_the_memory(
    part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("msgpack")
    monkeypatch.setattr(body_memory, "MOST_MEMORY", 1 << 20)
    read = MessagePackCodec().reader(list)
    assert len(read(b"\xdd" + (5_000).to_bytes(4) + part * 5_000)) == 5_000
    with pytest.raises(PayloadError, match="its records, arrays and maps would take more than 1 MiB of memory"):
        read(b"\xdd" + (50_000).to_bytes(4) + part * 50_000)


@pytest.mark.parametrize(
    "part", [b"\x80", b"\x90", b"\x81\x91\x01\x01"], ids=["maps", "arrays", "maps with keys that are arrays"]
)
def test_a_body_of_many_small_parts_for_a_struct_is_a_payload_error_before_it_fills_the_memory(
    part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    msgspec = pytest.importorskip("msgspec")
    pytest.importorskip("msgpack")
    monkeypatch.setattr(body_memory, "MOST_MEMORY", 1 << 20)
    struct = msgspec.defstruct("Parts", [("parts", list[Any] if part[0] == 0x90 else list[dict[tuple[int, ...], int]])])
    read = MessagePackCodec().reader(struct)

    def body(count: int) -> bytes:
        return b"\x81\xa5parts\xdd" + count.to_bytes(4) + part * count

    assert len(read(body(2_500)).parts) == 2_500
    with pytest.raises(PayloadError, match="its records, arrays and maps would take more than 1 MiB of memory"):
        read(body(50_000))


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, converter: CodecMessageConverter) -> None:
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(PayloadError, match=r"pip install 'rocketbox\[msgpack\]'"):
        write_payload(converter, {"a": 1}, MESSAGE_PACK)


# --- msgspec ---------------------------------------------------------------------------------------------------------


def test_a_struct_with_a_number_that_json_has_not_is_refused_and_in_message_pack_it_is_sent() -> None:
    msgspec = pytest.importorskip("msgspec")
    leg = msgspec.defstruct("Leg", [("miles", list[float]), ("gate", str | None, None)])
    assert StructCodec().write(leg([1.0])) == b'{"miles":[1.0],"gate":null}'
    with pytest.raises(PayloadError, match=r"type Leg has NaN or an infinity in miles\.1"):
        StructCodec().write(leg([1.0, float("nan")]))
    packed = MessagePackCodec()
    assert packed.reader(leg)(packed.write(leg([float("inf")]))) == leg([float("inf")])


def test_structs_are_written_in_json_and_in_message_pack(converter: CodecMessageConverter) -> None:
    msgspec = pytest.importorskip("msgspec")
    bag = msgspec.defstruct("Bag", [("number", int), ("at", datetime)])
    payload = bag(7, datetime(2026, 11, 23, tzinfo=UTC))
    body, read = there_and_back(converter, payload, bag)
    assert (body, read) == (b'{"number":7,"at":"2026-11-23T00:00:00Z"}', payload)
    body, read = there_and_back(converter, payload, bag, MESSAGE_PACK)
    assert body.startswith(b"\x82\xa6number\x07")
    assert read == payload
    converter.check(bag)
    with pytest.raises(PayloadError, match=r"Expected `int`, got `str` - at `\$.number`"):
        converter.from_body(b'{"number":"secret","at":"2026-11-23T00:00:00Z"}', bag)
    with pytest.raises(PayloadError, match="is no Bag"):
        converter.from_body(b"{", bag)


@pytest.mark.parametrize("content_type", ["application/json", MESSAGE_PACK])
def test_a_struct_that_a_format_has_no_words_for_is_a_payload_error(content_type: str) -> None:
    msgspec = pytest.importorskip("msgspec")
    node = msgspec.defstruct("Node", [("value", Any)])
    itself = node(None)
    itself.value = itself
    for payload in (node(object()), itself):
        with pytest.raises(PayloadError, match=f"a payload of type Node cannot be written as {content_type}: "):
            write_payload(CodecMessageConverter(), payload, content_type)
    if content_type == MESSAGE_PACK:
        with pytest.raises(PayloadError, match="serialize ints"):
            write_payload(CodecMessageConverter(), node(2**70), content_type)


def test_the_error_of_a_struct_repeats_no_value(converter: CodecMessageConverter) -> None:
    msgspec = pytest.importorskip("msgspec")
    flight = msgspec.defstruct("Flight", [("terminal", Terminal)])
    with pytest.raises(PayloadError, match=r"is no Flight: Invalid enum value - at `\$\.terminal`$"):
        converter.from_body(b'{"terminal":"4711 - at `"}', flight)


def test_avro_drops_no_field_that_its_schema_has_not() -> None:
    pytest.importorskip("fastavro")
    without_letter = {"type": "record", "name": "Seat", "fields": SCHEMA["fields"][:1]}
    with pytest.raises(PayloadError, match=r"a payload of type Seat cannot be written as application/avro: .*letter"):
        write_payload(CodecMessageConverter([AvroCodec({Seat: without_letter})]), Seat(12, "A"), None)


# --- Protobuf --------------------------------------------------------------------------------------------------------


def test_messages_of_protobuf_are_told_by_their_type(template: RocketMQTemplate) -> None:
    wrappers = pytest.importorskip("google.protobuf.wrappers_pb2")
    message = template.to_message("departures", wrappers.StringValue(value="UA1545"))
    assert message.body == b"\n\x06UA1545"
    assert message.properties == {"contentType": PROTOBUF}
    converter = template.converter
    assert read_payload(converter, message.body, wrappers.StringValue, PROTOBUF).value == "UA1545"
    assert read_payload(converter, message.body, wrappers.StringValue, None).value == "UA1545"
    converter.check(wrappers.StringValue)
    with pytest.raises(PayloadError, match="a body of 1 bytes is no application/x-protobuf of StringValue"):
        read_payload(converter, b"\n", wrappers.StringValue, PROTOBUF)
    with pytest.raises(PayloadError, match="set a field"):
        write_payload(converter, wrappers.StringValue(), None)
    with pytest.raises(PayloadError, match="cannot be written as JSON"):
        write_payload(converter, wrappers.StringValue(value="a"), "application/json")
    with pytest.raises(PayloadError, match="a class that protoc has made"):
        write_payload(converter, {"a": 1}, PROTOBUF)
    with pytest.raises(PayloadError, match=r"no body of application/x-protobuf can be read as Seat"):
        read_payload(converter, message.body, Seat, PROTOBUF)


# --- Avro ------------------------------------------------------------------------------------------------------------


def test_types_with_a_schema_are_written_in_avro() -> None:
    pytest.importorskip("fastavro")
    converter = CodecMessageConverter([AvroCodec({Seat: SCHEMA})])
    body, said = write_payload(converter, Seat(3, "A"), None)
    assert (body, said) == (b"\x06\x02A", AVRO)
    assert read_payload(converter, body, Seat, AVRO) == Seat(3, "A")
    assert write_payload(converter, Seat(3, "A"), "application/json") == (b'{"row":3,"letter":"A"}', None)
    assert read_payload(converter, b'{"row":3,"letter":"A"}', Seat, "application/json") == Seat(3, "A")
    for wrong in (b"\x06", b"", b"\x06\x02AA", b"\x06\x03"):
        with pytest.raises(PayloadError):
            read_payload(converter, wrong, Seat, AVRO)
    with pytest.raises(PayloadError, match=r"there is no Avro schema of dict: AvroCodec\(\{dict: schema\}\)"):
        write_payload(converter, {"a": 1}, AVRO)


class Cabin(Enum):
    FIRST = "first"
    LAST = "last"


@dataclass
class Meal:
    cabin: Cabin
    of_others: list[Cabin]
    by_cabin: dict[Cabin, Cabin | None]


def test_an_enum_is_written_in_avro_by_its_value_wherever_it_stands() -> None:
    pytest.importorskip("fastavro")

    cabin: dict[str, Any] = {"type": "enum", "name": "Cabin", "symbols": ["first", "last"]}
    fields = [
        {"name": "cabin", "type": cabin},
        {"name": "of_others", "type": {"type": "array", "items": "string"}},
        {"name": "by_cabin", "type": {"type": "map", "values": ["null", "Cabin"]}},
    ]
    converter = CodecMessageConverter([AvroCodec({Meal: {"type": "record", "name": "Meal", "fields": fields}})])
    meal = Meal(Cabin.LAST, [Cabin.FIRST, Cabin.LAST], {Cabin.FIRST: None, Cabin.LAST: Cabin.FIRST})
    body, said = write_payload(converter, meal, None)
    assert body.startswith(b"\x02\x04\x0afirst\x08last\x00")
    assert read_payload(converter, body, Meal, said) == meal
    endless: list[Any] = []
    endless.append(endless)
    with pytest.warns(UserWarning, match="Expected `enum`"), pytest.raises(PayloadError):
        write_payload(converter, Meal(Cabin.LAST, endless, {}), None)
    cabin["symbols"] = ["first"]
    fewer = CodecMessageConverter([AvroCodec({Meal: {"type": "record", "name": "Meal", "fields": fields}})])
    with pytest.raises(PayloadError, match=r"Meal\.cabin is a str that is no enum of the schema"):
        write_payload(fewer, meal, None)


# --- a codec of one's own --------------------------------------------------------------------------------------------


def test_a_send_that_says_json_of_a_type_with_a_schema_changes_nothing_for_those_behind_it() -> None:
    pytest.importorskip("fastavro")
    converter = CodecMessageConverter([AvroCodec({Seat: SCHEMA})])
    before = write_payload(converter, Seat(12, "A"), None)
    body, _ = write_payload(converter, Seat(12, "A"), "application/json")
    assert body == b'{"row":12,"letter":"A"}'
    assert write_payload(converter, Seat(12, "A"), None) == before == (before[0], "application/avro")


class Reversed(PayloadCodec):
    content_type = "application/x-reversed"

    def write(self, payload: Any) -> bytes:
        return str(payload)[::-1].encode()

    def reader(self, type_: Any) -> Any:
        return lambda body: type_(body.decode()[::-1])


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("Application/X", "write it in lower case, without parameters"),
        ("application/x; v=1", "write it in lower case, without parameters"),
        ("", "write it in lower case, without parameters"),
        ("application/json", r"which is written and read without one: let its is_of\(\) say of which types"),
        ("application/x+json", r"which is written and read without one: let its is_of\(\) say of which types"),
        ("application/x-reversed", "OneMore and Reversed are both codecs of application/x-reversed"),
    ],
)
def test_a_codec_that_would_never_be_asked_is_refused(said: str, why: str) -> None:
    class OneMore(Reversed):
        content_type = said

    OneMore.__qualname__ = "OneMore"
    with pytest.raises(PayloadError, match=why):
        CodecMessageConverter([OneMore(), Reversed()])


def test_two_beans_of_avro_are_refused_and_their_types_not_written_as_json() -> None:
    pytest.importorskip("fastavro")
    with pytest.raises(PayloadError, match="AvroCodec and AvroCodec are both codecs of application/avro"):
        CodecMessageConverter([AvroCodec({Seat: SCHEMA}), AvroCodec({Departure: "string"})])


def test_a_codec_of_ones_own_is_known_by_its_content_type() -> None:
    converter = CodecMessageConverter([Reversed()])
    assert there_and_back(converter, 123, int, "Application/X-Reversed; v=1") == (b"321", 123)
