"""Rows as messages: which column is what, what is refused, and JSON bodies."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from rocketbox.message import Message
from rocketbox.spark.outgoing import DEDUP_KEY, OutgoingPlan, RowError
from rocketbox.spark.write_options import WriteOptions

pytestmark = pytest.mark.spark

TEXT, NUMBER = t.StringType(), t.IntegerType()
LINE = t.StructType([t.StructField("item", TEXT), t.StructField("price", t.DecimalType(10, 2))])


def struct(**columns: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


def plan(schema: t.StructType, **options: str) -> OutgoingPlan:
    return OutgoingPlan(schema, WriteOptions({"nameServer": "127.0.0.1:9876", **options}))


def outcome(schema: t.StructType, rows: list[dict[str, Any]], **options: str) -> list[Message | RowError]:
    batch = pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(schema, timezone="UTC"))
    return list(plan(schema, **options).messages(batch, lambda row, digest: f"q/1/0/{row}/{digest}"))


def messages(schema: t.StructType, rows: list[dict[str, Any]], **options: str) -> list[Message]:
    found = outcome(schema, rows, **options)
    assert all(isinstance(each, Message) for each in found), found
    return [each for each in found if isinstance(each, Message)]


def test_each_column_is_its_part_of_the_message() -> None:
    schema = struct(
        body=t.BinaryType(), topic=TEXT, tag=TEXT, keys=t.ArrayType(TEXT), properties=t.MapType(TEXT, TEXT),
        delay_level=NUMBER, hash_key=TEXT,
    )  # fmt: skip
    full = {
        "body": b"\xff\x00", "topic": "t", "tag": "A", "keys": ["a", None, "b"],
        "properties": [("x", "1"), ("y", None)], "delay_level": 3, "hash_key": "h",
    }  # fmt: skip
    bare = {**dict.fromkeys(full), "body": b"b", "topic": "t"}
    first, second = messages(schema, [full, bare])
    key = first.properties[DEDUP_KEY]
    assert first == Message("t", b"\xff\x00", "A", ("a", "b"), {"x": "1", DEDUP_KEY: key}, "h", 3)
    assert key.startswith("q/1/0/0/")
    assert second == Message("t", b"b", properties={DEDUP_KEY: second.properties[DEDUP_KEY]})


def test_options_speak_for_all_rows() -> None:
    schema = struct(body=TEXT, keys=TEXT)
    found = messages(schema, [{"body": "ü", "keys": "a b"}], topic="t", tag="A", hashKey="h", delayLevel="2")
    assert found[0].body == "ü".encode()
    assert (found[0].tag, found[0].hash_key, found[0].delay_level, found[0].keys) == ("A", "h", 2, ("a", "b"))


def test_a_struct_or_named_columns_become_json_as_pydantic_writes_it() -> None:
    value = t.StructType(
        [
            t.StructField("at", t.TimestampType()),
            t.StructField("local", t.TimestampNTZType()),
            t.StructField("day", t.DateType()),
            t.StructField("lines", t.ArrayType(LINE)),
            t.StructField("labels", t.MapType(TEXT, NUMBER)),
            t.StructField("ok", t.BooleanType()),
            t.StructField("none", TEXT),
        ]
    )
    row = {
        "at": datetime.datetime(2026, 1, 31, 12, 0, 0, 5, datetime.UTC),
        "local": datetime.datetime(2026, 1, 31, 12),  # noqa: DTZ001 - without a zone
        "day": datetime.date(2026, 1, 31),
        "lines": [{"item": "ü", "price": Decimal("1.50")}, None],
        "labels": [("x", 1)],
        "ok": True,
        "none": None,
    }
    expected = {
        "at": "2026-01-31T12:00:00.000005Z",
        "local": "2026-01-31T12:00:00",
        "day": "2026-01-31",
        "lines": [{"item": "ü", "price": "1.50"}, None],
        "labels": {"x": 1},
        "ok": True,
        "none": None,
    }
    (whole,) = messages(struct(value=value), [{"value": row}], topic="t")
    assert json.loads(whole.body) == expected
    (parts,) = messages(
        t.StructType([*value.fields, t.StructField("tag", TEXT)]), [{**row, "tag": "A"}], topic="t", jsonColumns="*"
    )
    assert json.loads(parts.body) == expected
    assert parts.tag == "A"
    (one,) = messages(value, [row], topic="t", jsonColumns="day", ignoreColumns="at,local,lines,labels,ok,none")
    assert one.body == b'{"day":"2026-01-31"}'


@pytest.mark.parametrize(
    ("schema", "options", "text"),
    [
        (struct(row=NUMBER), {"topic": "t"}, "column 'row' is no part of a message"),
        (struct(body=TEXT, tags=TEXT), {"topic": "t"}, "did you mean tag?"),
        (struct(tag=TEXT), {"topic": "t"}, "the frame has no payload"),
        (struct(body=TEXT, value=LINE), {"topic": "t"}, "there are body and value; keep one"),
        (struct(body=TEXT, x=TEXT), {"topic": "t", "jsonColumns": "x"}, "there are body and jsonColumns"),
        (struct(body=TEXT), {"topic": "t", "jsonColumns": "*"}, "leave it out"),
        (struct(body=TEXT), {}, "no row has a topic"),
        (struct(body=TEXT, topic=TEXT), {"topic": "t"}, "has the column topic, and the option topic is 't'"),
        (struct(body=TEXT, delay_level=NUMBER), {"topic": "t", "delayLevel": "1"}, "and the option delayLevel is 1"),
        (struct(body=NUMBER), {"topic": "t"}, "column body is int; it must be binary or string"),
        (struct(value=TEXT), {"topic": "t"}, "column value is string; it must be a struct"),
        (struct(body=TEXT, keys=t.ArrayType(NUMBER)), {"topic": "t"}, "column keys is array<int>"),
        (struct(body=TEXT, properties=t.MapType(TEXT, NUMBER)), {"topic": "t"}, "it must be map<string,string>"),
        (struct(x=t.BinaryType()), {"topic": "t", "jsonColumns": "x"}, r"base64\(\.\.\)"),
        (struct(x=t.MapType(NUMBER, TEXT)), {"topic": "t", "jsonColumns": "x"}, "a map with keys of int"),
        (struct(x=TEXT), {"topic": "t", "jsonColumns": "y"}, "jsonColumns names 'y'"),
        (struct(body=TEXT), {"topic": "t", "ignoreColumns": "y"}, "ignoreColumns names 'y'"),
        (
            struct(value=t.StructType([t.StructField("a", TEXT), t.StructField("a", TEXT)])),
            {"topic": "t"},
            "value has a twice",
        ),
        (t.StructType([t.StructField("body", TEXT), t.StructField("BODY", TEXT)]), {"topic": "t"}, "body twice"),
    ],
)
def test_what_is_not_clear_is_refused_before_anything_is_sent(
    schema: t.StructType, options: dict[str, str], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        plan(schema, **options)


def test_a_row_that_cannot_be_a_message_is_named_and_the_others_are_not_touched() -> None:
    schema = struct(body=TEXT, topic=TEXT, properties=t.MapType(TEXT, TEXT))
    rows: list[dict[str, Any]] = [
        {"body": None, "topic": "t", "properties": None},
        {"body": "b", "topic": None, "properties": None},
        {"body": "b", "topic": "t", "properties": [("KEYS", "k")]},
        {"body": "b", "topic": "t", "properties": [(DEDUP_KEY, "k")]},
        {"body": "b", "topic": "t", "properties": None},
    ]
    *wrong, right = outcome(schema, rows)
    texts = ["its body is null", "its topic is null", "its property KEYS is a name", "its property DEDUP_KEY is a name"]
    for row, (error, text) in enumerate(zip(wrong, texts, strict=True)):
        assert isinstance(error, RowError)
        assert error.row == row
        assert text in str(error)
    assert isinstance(right, Message)
    copied = messages(schema, [rows[2]], reservedProperties="drop")
    assert [*copied[0].properties] == [DEDUP_KEY]


@pytest.mark.parametrize("level", [-1, 19, 99])
def test_a_delay_level_that_there_is_none_of_is_a_wrong_row_and_the_others_are_not(level: int) -> None:
    """Brokers would take it for their longest, or for none."""
    rows: list[dict[str, Any]] = [{"body": "b", "delay_level": each} for each in (18, level, 0, None, 1)]
    found = outcome(struct(body=TEXT, delay_level=NUMBER), rows, topic="t")
    wrong = found.pop(1)
    assert isinstance(wrong, RowError)
    assert (wrong.row, str(wrong)) == (
        1,
        f"its delay_level is {level}; RocketMQ has the levels 1 (1 s) to 18 (2 h); leave it out for a message that is "
        "not delayed",
    )
    assert [each.delay_level for each in found if isinstance(each, Message)] == [18, 0, 0, 1]


def test_a_number_without_json_is_a_wrong_row() -> None:
    schema = struct(x=t.DoubleType())
    wrong, right = outcome(schema, [{"x": float("nan")}, {"x": 1.5}], topic="t", jsonColumns="x")
    assert "its value has no JSON" in str(wrong)
    assert isinstance(right, Message)


AT = t.StructType([t.StructField("at", t.TimestampType())])


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "+05:00", "GMT+5", "UTC+01:00", "Z"])
def test_times_are_written_in_utc_whatever_the_zone_of_the_session(zone: str) -> None:
    times = pa.array([1_769_860_800_000_000, None], pa.timestamp("us", tz=zone))
    structs = pa.StructArray.from_arrays([times], ["at"])
    lists = pa.ListArray.from_arrays([0, 1, 2], structs)
    maps = pa.MapArray.from_arrays([0, 1, 2], ["k", "k"], lists)
    kinds: dict[str, tuple[t.DataType, Any]] = {
        "at": (t.TimestampType(), times),
        "lines": (t.ArrayType(AT), lists),
        "by_name": (t.MapType(TEXT, t.ArrayType(AT)), maps),
    }
    whole = pa.StructArray.from_arrays([array for _, array in kinds.values()], list(kinds))
    told, nothing = "2026-01-31T12:00:00Z", None
    expected = [
        {"at": at, "lines": [{"at": at}], "by_name": {"k": [{"at": at}]}} for at in (told, nothing)
    ]  # fmt: skip
    schema = struct(**{name: kind for name, (kind, _) in kinds.items()})
    columns = pa.RecordBatch.from_arrays([array for _, array in kinds.values()], list(kinds))
    for batch, of, options in (
        (columns, schema, {"jsonColumns": "*"}),
        (pa.RecordBatch.from_arrays([whole], ["value"]), struct(value=schema), {}),
    ):
        found = list(plan(of, topic="t", **options).messages(batch, lambda row, digest: digest))
        assert [json.loads(each.body) for each in found if isinstance(each, Message)] == expected


def test_a_time_that_python_cannot_show_is_a_wrong_row_and_the_others_are_not() -> None:
    microseconds = [0, 10**18, 253_402_300_799_999_999, -62_135_596_800_000_000, 253_402_300_800_000_000]
    times = pa.array(microseconds, pa.timestamp("us", tz="America/New_York"))
    days = pa.array([0, 0, 0, 10**7, 0], pa.int32()).cast(pa.date32())
    wanted = ["1970-01-01T00:00:00Z", None, "9999-12-31T23:59:59.999999Z", None, None]
    kinds = {"at": t.TimestampType(), "day": t.DateType()}
    columns = pa.RecordBatch.from_arrays([times, days], list(kinds))
    structs = pa.RecordBatch.from_arrays([pa.StructArray.from_arrays([times, days], list(kinds))], ["value"])
    for batch, schema, options in (
        (columns, struct(**kinds), {"jsonColumns": "*"}),
        (structs, struct(value=struct(**kinds)), {}),
    ):
        found = list(plan(schema, topic="t", **options).messages(batch, lambda row, digest: digest))
        assert [json.loads(each.body)["at"] if isinstance(each, Message) else None for each in found] == wanted
        wrong = [each for each in found if isinstance(each, RowError)]
        assert [each.row for each in wrong] == [1, 3, 4]
        assert all("is outside of the years 1 to 9999" in str(each) for each in wrong)


@pytest.mark.parametrize("part", ["topic", "tag", "keys", "hash_key", "properties", "value"])
def test_a_text_that_is_not_utf_8_is_a_wrong_row_and_the_others_are_not(part: str) -> None:
    """A string of Spark may hold any bytes: it makes one of binary by a cast."""
    texts = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"\xffb", b"c"], pa.binary()).buffers())
    kind: t.DataType = t.StringType()
    values: pa.Array = texts
    if part == "properties":
        kind = t.MapType(kind, kind)
        values = pa.MapArray.from_arrays([0, 1, 2, 3], pa.array(["p"] * 3), texts)
    elif part == "value":
        kind = struct(x=kind)
        values = pa.StructArray.from_arrays([texts], ["x"])
    schema, columns = struct(**{part: kind}), [values]
    if part != "value":
        schema, columns = schema.add("body", t.StringType()), [values, texts]
    batch = pa.RecordBatch.from_arrays(columns, schema.names)
    options = {} if part == "topic" else {"topic": "t"}
    found = list(plan(schema, **options).messages(batch, lambda row, digest: digest))
    assert [isinstance(each, Message) for each in found] == [True, False, True]
    assert isinstance(found[1], RowError)
    assert found[1].row == 1
    assert f"its {part} " in str(found[1])
    assert "a text in it is not UTF-8" in str(found[1])


def test_a_body_of_text_is_sent_as_the_bytes_that_it_is() -> None:
    texts = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"], pa.binary()).buffers())
    batch = pa.RecordBatch.from_arrays([texts], ["body"])
    (found,) = plan(struct(body=t.StringType()), topic="t").messages(batch, lambda row, digest: digest)
    assert isinstance(found, Message)
    assert found.body == b"\xff"


def test_rows_with_one_number_and_another_content_have_other_keys() -> None:
    schema = struct(body=TEXT, tag=TEXT)
    rows = [{"body": "a", "tag": "T"}, {"body": "a", "tag": "U"}, {"body": "b", "tag": "T"}, {"body": "a", "tag": "T"}]
    digests = [each.properties[DEDUP_KEY].rpartition("/")[2] for each in messages(schema, rows, topic="t")]
    assert digests[0] == digests[3]
    assert len(set(digests)) == 3
