"""Bodies in MessagePack, Avro and Protobuf, as rows and from rows: beside what the codecs of listeners make of them."""

from __future__ import annotations

import datetime
import json
import re
import sys
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("msgpack")
pytest.importorskip("fastavro")
pytest.importorskip("google.protobuf")

import pyarrow as pa
from pydantic import BaseModel
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from rocketbox import AvroCodec, CodecMessageConverter, MessagePackCodec, ProtobufCodec, body_memory
from rocketbox.avro_bodies import AvroBodies
from rocketbox.message import Message, MessageQueue, encode_properties
from rocketbox.protocol.stored_message import StoredMessage, encode_stored_message
from rocketbox.spark import body_formats, record_columns
from rocketbox.spark.options import SourceOptions
from rocketbox.spark.outgoing import OutgoingPlan, RowError
from rocketbox.spark.record_columns import Pulled, RecordDecoder, record_starts
from rocketbox.spark.write_options import WriteOptions
from rocketbox.template.content_types import write_payload
from tests.support.spark.order_descriptors import MESSAGE, order_class, order_descriptors

pytestmark = pytest.mark.spark

ValueT = TypeVar("ValueT")
msgpack: Any = import_module("msgpack")  # which says nothing of its types
NOON = datetime.datetime(2026, 11, 23, 12, 30, 0, 250_000, tzinfo=datetime.UTC)
SEAT = {
    "type": "record",
    "name": "Seat",
    "fields": [
        {"name": "row", "type": "long"},
        {"name": "letter", "type": ["null", "string"], "default": None},
        {"name": "fee", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "photo", "type": "bytes"},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "speed", "type": "double"},
    ],
}


class Seat(BaseModel):
    row: int
    letter: str | None
    fee: Decimal
    at: datetime.datetime
    photo: bytes
    counts: dict[str, int]
    speed: float


SEAT_12 = Seat(row=12, letter=None, fee=Decimal("9.50"), at=NOON, photo=b"\xff\0", counts={"legs": 2}, speed=0.5)
SEAT_JSON = {
    "row": 12, "letter": None, "fee": "9.50", "at": "2026-11-23T12:30:00.250000Z", "photo": "/wA=",
    "counts": {"legs": 2}, "speed": 0.5,
}  # fmt: skip


@pytest.fixture(scope="module")
def descriptors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("descriptors") / "shop.desc"
    path.write_bytes(order_descriptors())
    return path


def to_a_process(value: ValueT) -> ValueT:
    """It as one of Spark's processes gets it."""
    serializer: Any = CloudPickleSerializer
    found: ValueT = serializer().loads(serializer().dumps(value))
    return found


def rows(bodies: list[bytes | tuple[bytes, str]], **options: str) -> list[dict[str, Any]]:
    """What a read makes of messages with these bodies; of a pair the second one is the content type that is said."""
    source = SourceOptions({"nameServer": "127.0.0.1:9876", "topic": "orders", **options})
    source = to_a_process(source)  # as it comes to Spark's processes
    data = b""
    for offset, each in enumerate(bodies):
        body, said = each if isinstance(each, tuple) else (each, None)
        properties = encode_properties({} if said is None else {"contentType": said}).replace(b"%ff", b"\xff")
        record = StoredMessage(topic="orders", queue_id=0, body=body, properties=properties, queue_offset=offset)
        data += encode_stored_message(record)
    decoder = RecordDecoder(("body", "queue_offset", "_error"), body_format=source.body_format)
    pulled = Pulled(MessageQueue("orders", "broker-a", 0), 0, len(bodies), data, record_starts(data))
    batches = list(decoder.record_batches([pulled]))
    assert all(batch.schema == decoder.schema for batch in batches)
    return [{**row, "batch": number} for number, batch in enumerate(batches) for row in batch.to_pylist()]


def read(body: bytes | tuple[bytes, str], **options: str) -> Any:
    (row,) = rows([body], **options)
    assert row["_error"] is None
    return json.loads(row["body"], parse_constant=pytest.fail)


def error_of(body: bytes | tuple[bytes, str], **options: str) -> str:
    (row,) = rows([body], **options)
    assert row["body"] is None
    return str(row["_error"])


def sent(schema: t.StructType, row: dict[str, Any], **options: str) -> Message | RowError:
    plan = OutgoingPlan(schema, WriteOptions({"nameServer": "127.0.0.1:9876", "topic": "orders", **options}))
    plan = to_a_process(plan)
    batch = pa.RecordBatch.from_pylist([row], schema=to_arrow_schema(schema, timezone="UTC"))
    (message,) = plan.messages(batch, lambda row, digest: str(row))
    return message


# --- MessagePack -----------------------------------------------------------------------------------------------------


def test_what_a_template_writes_in_messagepack_is_json() -> None:
    body, said = write_payload(CodecMessageConverter(), SEAT_12, MessagePackCodec.content_type)
    assert said is None
    assert read(body, bodyFormat="MessagePack") == {**SEAT_JSON, "at": "2026-11-23T12:30:00.250000Z"}


def test_what_json_has_not_is_text_or_none() -> None:
    infinite = {"high": float("inf"), "low": [float("-inf")], "no": float("nan"), 7: True}
    assert read(msgpack.packb(infinite), bodyFormat="messagepack") == {
        "high": "Infinity", "low": ["-Infinity"], "no": "NaN", "7": True,
    }  # fmt: skip
    assert read(msgpack.packb({"at": NOON}, datetime=True), bodyFormat="messagepack") == {"at": SEAT_JSON["at"]}
    extension = msgpack.packb({"at": msgpack.ExtType(5, b"12")})
    assert "a value of the extension type 5" in error_of(extension, bodyFormat="messagepack")
    for body in (b"", b"\xc1", b"\x81", msgpack.packb({b"\xff": 1}), b"\x91" * 3000 + b"\x01", b"\xa1\xff", b"12"):
        assert f"its body of {len(body)} bytes is no application/msgpack" in error_of(body, bodyFormat="messagepack")


def test_a_message_may_say_its_format_itself() -> None:
    packed = msgpack.packb({"number": 1})
    found = rows(
        [packed, (b'{"number": 2}', "application/json;charset=UTF-8"), (packed, "application/msgpack"),
         (packed, "application/vnd.desk"), (packed, "application/avro")],
        bodyFormat="messagepack",
    )  # fmt: skip
    assert [row["body"] for row in found] == [
        b'{"number":1}', b'{"number": 2}', b'{"number":1}', b'{"number":1}', None,
    ]  # fmt: skip
    assert found[4]["_error"] == (
        "its content type is application/avro, and the option bodyFormat says application/msgpack"
    )


def test_without_a_format_bodies_stay_as_they_are() -> None:
    packed = msgpack.packb({"number": 1})
    assert [row["body"] for row in rows([packed, (packed, "application/msgpack")])] == [packed, packed]
    assert [row["body"] for row in rows([packed], bodyFormat="json")] == [packed]


def test_columns_become_a_body_that_a_listener_reads() -> None:
    kinds = {
        "row": t.LongType(), "letter": t.StringType(), "fee": t.DecimalType(6, 2), "at": t.TimestampType(),
        "photo": t.BinaryType(), "counts": t.MapType(t.StringType(), t.LongType()), "speed": t.DoubleType(),
    }  # fmt: skip
    schema = t.StructType([t.StructField(name, kind) for name, kind in kinds.items()])
    row = {**SEAT_12.model_dump(), "counts": [("legs", 2)]}
    message = sent(schema, row, bodyFormat="messagepack", jsonColumns="*")
    assert isinstance(message, Message)
    assert message.properties["contentType"] == "application/msgpack"
    assert CodecMessageConverter().decode(message.body, Seat, "application/msgpack") == SEAT_12
    message = sent(schema, row, bodyFormat="avro", avroSchema=json.dumps(SEAT), jsonColumns="*")
    assert isinstance(message, Message)
    assert message.properties["contentType"] == "application/avro"
    assert CodecMessageConverter([AvroCodec({Seat: SEAT})]).decode(message.body, Seat, "application/avro") == SEAT_12


# --- Avro ------------------------------------------------------------------------------------------------------------


def test_avro_is_json_with_its_logical_types_as_text() -> None:
    body, said = write_payload(CodecMessageConverter([AvroCodec({Seat: SEAT})]), SEAT_12, None)
    assert said == "application/avro"
    options = {"bodyFormat": "avro", "avroSchema": json.dumps(SEAT)}
    assert read(body, **options) == SEAT_JSON
    assert error_of(body + b"1", **options).endswith("is no application/avro: it is longer than its schema says")
    assert error_of(body[:-1], **options).endswith("is no application/avro (EOFError)")


def test_a_row_that_avro_has_no_place_for_is_an_error() -> None:
    schema = t.StructType([t.StructField("row", t.LongType()), t.StructField("gate", t.StringType())])
    row_alone = {"type": "record", "name": "Row", "fields": [{"name": "row", "type": "long"}]}
    for wrong in ({"row": 1, "gate": "B7"}, {"row": None, "gate": None}):
        found = sent(schema, wrong, bodyFormat="avro", avroSchema=json.dumps(row_alone), jsonColumns="*")
        assert isinstance(found, RowError), found
        assert "its value has no application/avro" in str(found)


# --- Protobuf --------------------------------------------------------------------------------------------------------


def test_a_deep_body_of_avro_is_an_error_and_does_not_end_the_process() -> None:
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    error = error_of(b"\x02" * 100_000 + b"\x00", bodyFormat="avro", avroSchema=json.dumps(node))
    assert error == "its body of 100001 bytes is no application/avro (RecursionError)"


def test_protobuf_is_json_by_its_descriptor(descriptors: Path) -> None:
    order: Any = order_class()(number=2**53 + 1, price=float("inf"), photo=b"\xff\0", state=1, counts={True: 2})
    order.at.FromDatetime(NOON)
    order.limit.value = 7
    order.lines.add(item="ticket")
    options = {"bodyFormat": "protobuf", "messageName": MESSAGE, "descFilePath": str(descriptors)}
    body = ProtobufCodec().write(order)
    assert read(body, **options) == {
        "number": 2**53 + 1, "price": "Infinity", "photo": "/wA=", "state": "PAID",
        "at": "2026-11-23T12:30:00.250Z", "limit": 7, "lines": [{"item": "ticket"}], "counts": {"true": 2},
    }  # fmt: skip
    order.Clear()
    order.floor, order.state = 0, 9
    assert read(order.SerializeToString(), **options) == {
        "number": 0, "price": 0.0, "photo": "", "state": 9, "lines": [], "counts": {}, "floor": 0,
    }  # fmt: skip
    assert "its body of 1 bytes is no application/x-protobuf (DecodeError)" in error_of(b"\n", **options)


def test_a_row_becomes_a_message_of_protobuf(descriptors: Path) -> None:
    line = t.ArrayType(t.StructType([t.StructField("item", t.StringType())]))
    kinds = {
        "number": t.LongType(), "photo": t.BinaryType(), "at": t.TimestampType(), "lines": line,
        "state": t.StringType(),
    }  # fmt: skip
    value = t.StructType([t.StructField(name, kind) for name, kind in kinds.items()])
    schema = t.StructType([t.StructField("value", value)])
    options = {"bodyFormat": "protobuf", "messageName": MESSAGE, "descFilePath": str(descriptors)}
    row = {"number": 5, "photo": b"\xff\0", "at": NOON, "lines": [{"item": "ticket"}], "state": "PAID"}
    message = sent(schema, {"value": row}, **options)
    assert isinstance(message, Message)
    assert message.properties["contentType"] == ProtobufCodec.content_type
    order: Any = order_class().FromString(message.body)
    assert (order.number, order.photo, order.state, order.lines[0].item) == (5, b"\xff\0", 1, "ticket")
    assert order.at.ToDatetime(datetime.UTC) == NOON
    for wrong in ({"state": "LOST"}, dict.fromkeys(row)):
        found = sent(schema, {"value": {**row, **wrong}}, **options)
        assert isinstance(found, RowError), found
        assert "its value has no application/x-protobuf" in str(found)
    unknown = t.StructType([t.StructField("value", t.StructType([t.StructField("gate", t.StringType())]))])
    assert isinstance(sent(unknown, {"value": {"gate": "B7"}}, **options), RowError)


def test_an_empty_part_of_a_body_that_becomes_much_json_does_not_fill_the_memory(
    descriptors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_formats, "LONGEST_JSON", 2000)
    options = {"bodyFormat": "protobuf", "messageName": MESSAGE, "descFilePath": str(descriptors)}
    order: Any = order_class()()
    for _ in range(100):
        order.lines.add(item="")
    assert len(read(order.SerializeToString(), **options)["lines"]) == 100
    for _ in range(100):
        order.lines.add(item="")
    body = order.SerializeToString()
    assert error_of(body, **options) == (
        f"its body of {len(body)} bytes is no application/x-protobuf: its JSON has more than 0 MiB"
    )
    made = SourceOptions({"nameServer": "n:1", "topic": "t", **options}).body_format
    assert made is not None
    monkeypatch.setattr(
        body_formats, "_json_text", lambda value: pytest.fail("all of it was made before it was refused")
    )
    with pytest.raises(ValueError, match="its JSON has more than"):
        made.to_json(body, None)


@pytest.mark.parametrize("kind", ["maps", "arrays", "avro", "protobuf"])
def test_a_body_of_many_small_parts_does_not_fill_the_memory(
    kind: str, descriptors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_memory, "MOST_MEMORY", 1 << 20)
    flag = {"type": "record", "name": "Flag", "fields": [{"name": "on", "type": "boolean"}]}
    options = {
        "avro": {"bodyFormat": "avro", "avroSchema": json.dumps({"type": "array", "items": flag})},
        "protobuf": {"bodyFormat": "protobuf", "messageName": MESSAGE, "descFilePath": str(descriptors)},
    }.get(kind, {"bodyFormat": "messagepack"})

    def body(parts: int) -> bytes:
        if kind == "avro":
            return AvroBodies(json.loads(options["avroSchema"])).write([{"on": True}] * parts)
        if kind == "protobuf":
            order: Any = order_class()()
            for _ in range(parts):
                order.lines.add()
            return bytes(order.SerializeToString())
        return bytes(msgpack.packb([{} if kind == "maps" else []] * parts))

    assert read(body(1_000), **options)
    assert "its records, arrays and maps would take more than 1 MiB of memory" in error_of(body(30_000), **options)


def test_a_body_that_is_long_unpacked_and_json_that_is_too_long_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_formats, "LARGEST", 100)
    monkeypatch.setattr(body_formats, "LONGEST_JSON", 400)
    assert read(msgpack.packb([True] * 79), bodyFormat="messagepack") == [True] * 79
    assert "JSON has more than 0 MiB" in error_of(msgpack.packb([True] * 80), bodyFormat="messagepack")
    assert "it has more than 0 MiB, and would fill" in error_of(msgpack.packb([1] * 120), bodyFormat="messagepack")


def test_rows_whose_json_is_longer_than_a_record_batch_come_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_columns, "BYTES_PER_RECORD_BATCH", 100)
    bodies: list[bytes | tuple[bytes, str]] = [msgpack.packb([None] * number) for number in range(40)]
    bodies[7] = bodies[30] = b"\xc1"
    bodies[9] = msgpack.packb(1), "text/%ff"  # no UTF-8
    found = rows(bodies, bodyFormat="messagepack")
    assert [row["queue_offset"] for row in found] == list(range(40))
    assert [row["queue_offset"] for row in found if row["_error"]] == [7, 30]
    texts = [None if row["body"] is None else json.loads(row["body"]) for row in found]
    assert texts[9] == 1
    assert [text for number, text in enumerate(texts) if number not in (7, 9, 30)] == [
        [None] * number for number in range(40) if number not in (7, 9, 30)
    ]
    assert max(row["batch"] for row in found) > 20


def test_maps_of_protobuf_are_read_and_written_by_their_keys(tmp_path: Path) -> None:
    """In the order of the library, another one in each process, a row that is sent again would be another message."""
    from google.protobuf import descriptor_pb2, struct_pb2

    files = descriptor_pb2.FileDescriptorSet()
    struct_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(name="stock.proto", package="shop", dependency=["google/protobuf/struct.proto"])
    stock = file.message_type.add(name="Stock")
    entry = stock.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate((("key", kinds.TYPE_STRING), ("value", kinds.TYPE_INT64)), 1):
        entry.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    for number, (name, of, label) in enumerate(
        (
            ("counts", ".shop.Stock.CountsEntry", kinds.LABEL_REPEATED),
            ("more", ".google.protobuf.Struct", kinds.LABEL_OPTIONAL),
        ),
        1,
    ):
        stock.field.add(name=name, number=number, type=kinds.TYPE_MESSAGE, label=label, type_name=of)
    path = tmp_path / "stock.desc"
    path.write_bytes(files.SerializeToString())
    options = {"bodyFormat": "protobuf", "messageName": "shop.Stock", "descFilePath": str(path)}
    names = [f"k{number}" for number in range(8)]
    text = t.StringType()
    schema = t.StructType(
        [
            t.StructField("counts", t.MapType(text, t.LongType())),
            t.StructField("more", t.MapType(text, t.ArrayType(t.MapType(text, text)))),
        ]
    )
    value = {
        "counts": [(name, 1) for name in reversed(names)],
        "more": [("list", [[(name, "x") for name in reversed(names)]])],
    }
    message = sent(t.StructType([t.StructField("value", schema)]), {"value": value}, **options)
    assert isinstance(message, Message)
    assert [name.decode() for name in re.findall(rb"k\d", message.body)] == [*names, *names]
    found = read(message.body, **options)
    assert (list(found["counts"]), list(found["more"]["list"][0])) == (names, names)


# --- what is said wrongly --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"bodyFormat": "yaml"}, "option bodyFormat is 'yaml'; it must be json or messagepack or avro or protobuf"),
        ({"bodyFormat": "avro"}, "option bodyFormat is avro, which needs the option avroSchema"),
        ({"bodyFormat": "avro", "avroSchema": "{"}, "option avroSchema is no schema of Avro in JSON (JSONDecodeError:"),
        ({"bodyFormat": "avro", "avroSchema": '{"type": "seat"}'}, "option avroSchema is no schema of Avro in JSON ("),
        ({"avroSchema": '"string"'}, "option avroSchema is for bodyFormat=avro, and bodyFormat is json"),
        ({"bodyFormat": "protobuf", "messageName": "a"}, "needs the option descFilePath"),
        (
            {"bodyFormat": "protobuf", "messageName": "a", "descFilePath": "no.desc"},
            "option descFilePath is 'no.desc', which cannot be read: No such file",
        ),
        (
            {"bodyFormat": "protobuf", "messageName": "shop.Bill", "descFilePath": "{path}"},
            "has no message shop.Bill, which messageName names",
        ),
        (
            {"bodyFormat": "protobuf", "messageName": "shop.Bill", "descFilePath": __file__},
            "option descFilePath is no set of descriptors with all that they import",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, str], error: str, descriptors: Path) -> None:
    options = {name: text.replace("{path}", str(descriptors)) for name, text in options.items()}
    for read_or_write in (SourceOptions, WriteOptions):
        with pytest.raises(ValueError, match=re.escape(error)):
            read_or_write({"nameServer": "127.0.0.1:9876", "topic": "orders", **options})


def test_a_body_that_is_bytes_already_takes_no_format() -> None:
    schema = t.StructType([t.StructField("body", t.BinaryType())])
    with pytest.raises(ValueError, match="the payload is the column body, which stays as it is"):
        sent(schema, {"body": b"a"}, bodyFormat="messagepack")


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(ValueError, match=r"needs a library in each of Spark's processes: pip install .*\[msgpack\]"):
        rows([], bodyFormat="messagepack")
