"""Bodies in Avro that are to do harm, values that a schema does not hold, and schemas that are refused."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("fastavro")

from rocketbox.avro_bodies import AvroBodies

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
