"""Bodies in Avro that are to do harm, values that a schema does not hold, and schemas that are refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from importlib import import_module
from math import inf
from typing import Any
from uuid import UUID

import pytest

pytest.importorskip("fastavro")

from rocketbox import body_memory
from rocketbox.avro_bodies import AvroBodies
from rocketbox.body_memory import BodyTooLargeError

NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "row", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
}
SEAT = {
    "type": "record",
    "name": "shop.Seat",
    "fields": [{"name": "row", "type": "int"}, {"name": "fee", "type": "double", "default": 0.0}],
}


def an_array_of(items: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Many", "fields": [{"name": "items", "type": {"type": "array", "items": items}}]}


def test_a_schema_that_contains_itself_is_read_there_and_back() -> None:
    value = {"row": 1, "next": {"row": 2, "next": None}}
    bodies = AvroBodies(NODE)
    assert bodies.read(bodies.write(value)) == (value, False)


def parsed_with(*schemas: Any) -> Any:
    """The last of them, as ``fastavro`` parses it where it knows the others by their names alone."""
    named: dict[str, Any] = {}
    return [import_module("fastavro").parse_schema(schema, named) for schema in schemas][-1]


@pytest.mark.parametrize("union", [False, True], ids=["alone", "in a union"])
def test_a_schema_may_be_parsed_with_types_of_others(union: bool) -> None:
    inner = {
        "type": "record",
        "name": "shop.Inner",
        "fields": [{"name": "x", "type": ["null", "int"]}, {"name": "side", "type": SIDE}],
    }
    fields = [
        {"name": "one", "type": "shop.Inner"},
        {"name": "more", "type": {"type": "array", "items": "shop.Inner"}},
        {"name": "side", "type": "shop.Side"},
    ]
    outer = parsed_with(inner, {"type": "record", "name": "mail.Outer", "fields": fields})
    bodies = AvroBodies(["null", outer] if union else outer)
    value = {
        "one": {"x": 1, "side": "LEFT"},
        "more": [{"x": None, "side": "LEFT"}, {"x": 3, "side": "RIGHT"}],
        "side": "RIGHT",
    }
    body = bodies.write(value)
    assert bodies.read(body) == (value, False)
    with pytest.raises(KeyError, match="-1"):
        bodies.read(body[:-1] + b"\x01")


def test_types_of_others_have_the_same_limits() -> None:
    """One of them that contains itself would end the process, and one without bytes fill the memory."""
    outer = {"type": "record", "name": "Outer", "fields": [{"name": "node", "type": "Node"}]}
    bodies = AvroBodies(parsed_with(NODE, outer))
    with pytest.raises(RecursionError):
        bodies.read(b"\x02\x02" * 100_000 + b"\x02\x00")
    empty = {"type": "record", "name": "Empty", "fields": []}
    with pytest.raises(ValueError, match="an array whose items take no bytes"):
        AvroBodies(parsed_with(empty, an_array_of("Empty")))
    with pytest.raises(ValueError, match="an array whose items take no bytes"):
        AvroBodies(
            parsed_with(
                empty,
                {**an_array_of("Empty"), "name": "Empties"},
                {**outer, "fields": [{"name": "all", "type": "Empties"}]},
            )
        )


def test_a_deep_body_is_an_error_and_does_not_end_the_process() -> None:
    for depth in (5_000, 500_000):
        with pytest.raises(RecursionError):
            AvroBodies(NODE).read(b"\x02\x02" * depth + b"\x02\x00")


def test_a_number_that_does_not_end_is_cut_in_a_schema_that_contains_itself() -> None:
    """Put together whole, that of a body of 4 MB takes twenty minutes."""
    for endless in (b"\xff" * 100_000, b"\x02\x02" + b"\x80" * 100_000 + b"\x01"):
        with pytest.raises(ValueError, match="a number in it does not end"):
            AvroBodies(NODE).read(endless)
    long = {
        "type": "record",
        "name": "L",
        "fields": [{"name": "n", "type": "long"}, {"name": "l", "type": ["null", "L"]}],
    }
    bodies, value = AvroBodies(long), {"n": -(2**63), "l": {"n": 2**63 - 1, "l": None}}
    assert bodies.read(bodies.write(value)) == (value, False)


def test_a_deep_value_is_an_error_and_does_not_end_the_process() -> None:
    value: dict[str, Any] | None = None
    for _ in range(20_000):
        value = {"row": 1, "next": value}
    with pytest.raises(RecursionError):
        AvroBodies(NODE).write(value)


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "fixed", "name": "Nothing", "size": 0},
        {"type": "record", "name": "Nothing", "fields": [{"name": "none", "type": "null"}]},
    ],
)
def test_an_array_whose_items_take_no_bytes_is_refused(items: Any) -> None:
    for schema in (an_array_of(items), ["null", {"type": "map", "values": an_array_of(items)}]):
        with pytest.raises(ValueError, match="an array whose items take no bytes"):
            AvroBodies(schema)


@pytest.mark.parametrize(
    ("items", "values"),
    [
        ("long", [1, -(2**63)]),
        (["null", "string"], [None, "A"]),
        ({"type": "enum", "name": "Side", "symbols": ["LEFT", "RIGHT"]}, ["RIGHT"]),
        ({"type": "array", "items": "bytes"}, [[b"\xff"], []]),
        ({"type": "fixed", "name": "Pair", "size": 2}, [b"ab"]),
        (SEAT, [{"row": 1, "fee": 2.5}]),
    ],
)
def test_other_arrays_are_read_there_and_back(items: Any, values: list[Any]) -> None:
    bodies = AvroBodies(an_array_of(items))
    assert bodies.read(bodies.write({"items": values})) == ({"items": values}, False)


@pytest.mark.parametrize("row", [3.7, 2**40, 2**80, True, "secret", None])
def test_a_value_that_a_field_does_not_hold_is_refused_without_it(row: Any) -> None:
    with pytest.raises(ValueError, match=r"^shop\.Seat\.row is a \w+ that is no int of the schema$"):
        AvroBodies(SEAT).write({"row": row})


def test_what_is_left_of_a_body_is_told() -> None:
    assert AvroBodies("int").read(b"\x02\x00") == (1, True)


@pytest.mark.parametrize(
    "kind", [{"type": "bytes"}, {"type": "fixed", "name": "Money", "size": 16}], ids=["bytes", "fixed"]
)
def test_a_decimal_longer_than_its_precision_is_refused_and_not_rounded(kind: dict[str, Any]) -> None:
    money = {**kind, "logicalType": "decimal", "precision": 4, "scale": 2}
    bodies = AvroBodies(["null", {"type": "record", "name": "Fee", "fields": [{"name": "fee", "type": money}]}])
    for fee in (Decimal("99.99"), Decimal("-99.99"), Decimal("0.00")):
        assert bodies.read(bodies.write({"fee": fee})) == ({"fee": fee}, False)
    number = (1_234_567).to_bytes(16, signed=True)
    with pytest.raises(ValueError, match="a decimal is longer than its precision"):
        bodies.read(b"\x02" + (b"\x20" if kind["type"] == "bytes" else b"") + number)


def test_a_long_decimal_is_refused_at_once() -> None:
    bodies = AvroBodies({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2})
    with pytest.raises(ValueError, match="a decimal is longer than its precision"):  # 42 s, where it is read
        bodies.read(b"\xc0\xcf\x24" + b"\x7f" * 300_000)


FLAG = {"type": "record", "name": "Flag", "fields": [{"name": "on", "type": "boolean"}]}
TREE = {"type": "record", "name": "Tree", "fields": [{"name": "of", "type": {"type": "array", "items": "Tree"}}]}


@pytest.mark.parametrize(
    ("items", "item"),
    [
        (FLAG, {"on": False}),
        ({"type": "array", "items": "int"}, []),
        ({"type": "map", "values": FLAG}, {}),
        (["null", {**FLAG, "logicalType": "switch"}], {"on": True}),
        ({"type": "record", "name": "Two", "fields": [{"name": "a", "type": FLAG}]}, {"a": {"on": True}}),
        (TREE, {"of": []}),
    ],
    ids=["records", "arrays", "maps", "of a logical type", "within others", "of a schema that contains itself"],
)
def test_a_body_of_many_small_parts_is_refused_before_it_fills_the_memory(
    items: Any, item: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 MB of records of one byte each take 0.8 GB."""
    monkeypatch.setattr(body_memory, "MOST_MEMORY", 1 << 20)
    bodies = AvroBodies(an_array_of(items))
    few = {"items": [item] * 1_500}
    for _ in range(5):
        assert bodies.read(bodies.write(few)) == (few, False), "each body has all of the room"
    body = bodies.write({"items": [item] * 20_000})
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLargeError, match="its records, arrays and maps would take more than 1 MiB"):
            bodies.read(body)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("parse", [import_module("fastavro").parse_schema, dict], ids=["parsed before", "as written"])
def test_types_that_are_used_by_their_names_have_the_same_limits(
    parse: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_memory, "MOST_MEMORY", 1 << 20)
    money = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    fee = {"type": "record", "name": "Fee", "fields": [{"name": "fee", "type": money}]}
    fields = [{"name": "first", "type": fee}, {"name": "more", "type": {"type": "array", "items": "Fee"}}]
    bodies = AvroBodies(parse({"type": "record", "name": "Fees", "fields": fields}))
    value = {"first": {"fee": Decimal("1.00")}, "more": [{"fee": Decimal("99.99")}]}
    assert bodies.read(bodies.write(value)) == (value, False)
    with pytest.raises(ValueError, match="a decimal is longer than its precision"):
        bodies.read(b"\x02\x01" + b"\x02\x06\x7f\xff\xff\x00")
    with pytest.raises(BodyTooLargeError):
        bodies.read(b"\x02\x01" + b"\xc0\xb8\x02" + b"\x02\x01" * 20_000 + b"\x00")


SIDE = {"type": "enum", "name": "Side", "symbols": ["LEFT", "RIGHT"]}
ROW = {
    "type": "record",
    "name": "Row",
    "fields": [{"name": "sides", "type": {"type": "map", "values": SIDE}}, {"name": "last", "type": "Side"}],
}


@pytest.mark.parametrize(
    ("schema", "body", "place", "value"),
    [
        (SIDE, b"\x02", 0, "RIGHT"),
        (["null", "int"], b"\x02\x06", 0, 3),
        (an_array_of(SIDE), b"\x02\x02\x00", 1, {"items": ["RIGHT"]}),
        (an_array_of(["null", "int"]), b"\x02\x02\x06\x00", 1, {"items": [3]}),
        ([an_array_of(SIDE), "Side"], b"\x02\x02", 1, "RIGHT"),
        (ROW, b"\x02\x02A\x00\x00\x02", 3, {"sides": {"A": "LEFT"}, "last": "RIGHT"}),
        (ROW, b"\x02\x02A\x00\x00\x02", 5, {"sides": {"A": "LEFT"}, "last": "RIGHT"}),
        (NODE, b"\x02\x02\x04\x00", 1, {"row": 1, "next": {"row": 2, "next": None}}),
    ],
)
def test_a_negative_place_of_a_symbol_or_a_type_is_an_error(schema: Any, body: bytes, place: int, value: Any) -> None:
    """As an index of Python's it would be one from the end: another value than was meant, without a word."""
    bodies = AvroBodies(schema)
    assert bodies.read(body) == (value, False)
    for wrong in (b"\x01", b"\x03"):
        with pytest.raises(KeyError, match=r"^-\d$"):
            bodies.read(body[:place] + wrong + body[place + 1 :])
    with pytest.raises(LookupError):
        bodies.read(body[:place] + b"\x14" + body[place + 1 :])


def one_field(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "One", "fields": [{"name": "it", "type": kind}]}


@pytest.mark.parametrize("nullable", [False, True], ids=["alone", "in a union"])
@pytest.mark.parametrize(
    ("kind", "logical", "wrong", "right"),
    [
        ("int", "date", 2**31 - 1, date(1, 1, 1)),
        ("int", "time-millis", 86_400_000, time(23, 59, 59, 999_000)),
        ("long", "timestamp-millis", 2**62, datetime(9999, 12, 31, tzinfo=UTC)),
        ("string", "uuid", "no uuid", UUID(int=7)),
    ],
)
def test_a_value_that_no_reader_would_get_is_not_written(
    kind: str, logical: str, wrong: Any, right: Any, nullable: bool
) -> None:
    type_ = {"type": kind, "logicalType": logical}
    bodies = AvroBodies(one_field(["null", type_] if nullable else type_))
    with pytest.raises(ValueError, match="a value of it is none of its logical type, and could not be read"):
        bodies.write({"it": wrong})
    assert bodies.read(bodies.write({"it": right})) == ({"it": right}, False)


@pytest.mark.parametrize("schema", ["float", ["null", "float"], {"type": "array", "items": "float"}, {"type": "float"}])
def test_a_number_that_would_be_infinite_as_a_float_is_not_written(schema: Any) -> None:
    bodies = AvroBodies(one_field(schema))
    many = isinstance(schema, dict) and schema["type"] == "array"
    for wrong in (1e300, -1e300):
        with pytest.raises(ValueError, match="too large for a float of the schema"):
            bodies.write({"it": [wrong] if many else wrong})
    for right in (1.5, inf, -inf):
        value = {"it": [right] if many else right}
        assert bodies.read(bodies.write(value)) == (value, False)
