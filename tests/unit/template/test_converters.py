"""Payload to body and back: each type that a handler may take, and what an unreadable body says."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from rocketbox.template import CodecMessageConverter, JsonMessageConverter, PayloadError


class Departure(BaseModel):
    flight: str
    delay_minutes: int | None = Field(default=None, alias="delayMinutes")


class Arrival(BaseModel):
    airport: str


@dataclasses.dataclass
class Gate:
    name: str
    at: datetime


class Seat(TypedDict):
    row: int
    letter: str


class Landed(BaseModel):
    kind: Literal["landed"]


class Diverted(BaseModel):
    kind: Literal["diverted"]
    to: str


converter = JsonMessageConverter()


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Departure, Departure(flight="UA1545", delayMinutes=2)),
        (Gate, Gate("B7", datetime(2013, 1, 1, 5, 15, tzinfo=UTC))),
        (Seat, {"row": 12, "letter": "C"}),
        (dict, {"a": [1, None, {"b": True}]}),
        (dict[str, int], {"x": 1}),
        (list[Departure], [Departure(flight="AA1", delayMinutes=None)]),
        (Departure | Arrival, Arrival(airport="JFK")),
        (Departure | str, "not JSON at all"),
        (bytes | Departure, b"\xff\x00"),
        (Annotated[Landed | Diverted, Field(discriminator="kind")], Diverted(kind="diverted", to="EWR")),
        (str, "Zürich ✈"),
        (bytes, b"\x00\xff"),
    ],
)
def test_what_is_written_is_read_back(type_: Any, value: Any) -> None:
    assert converter.from_body(converter.to_body(value), type_) == value


def test_text_and_bytes_are_the_body_itself() -> None:
    assert converter.to_body("späť") == "späť".encode()
    assert converter.to_body(bytearray(b"ab")) == b"ab"
    assert converter.from_body(b'"quoted"', str) == '"quoted"'


def test_models_are_written_by_alias_as_compact_json() -> None:
    assert converter.to_body(Departure(flight="UA1", delayMinutes=3)) == b'{"flight":"UA1","delayMinutes":3}'


@given(st.dictionaries(st.text(), st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text())))
def test_any_dict_of_json_values_comes_back(value: dict[str, Any]) -> None:
    assert converter.from_body(converter.to_body(value), dict) == value


@pytest.mark.parametrize(
    ("body", "type_", "says"),
    [
        (b"{", Departure, "is no Departure: Invalid JSON"),
        (b'{"flight": 7}', Departure, "flight: Input should be a valid string"),
        (b"{}", Departure | Arrival, "Field required"),
        (b"\xff", str, "no UTF-8 text"),
        (b"[1]", dict, "should be an object"),
    ],
)
def test_an_unreadable_body_says_what_and_where(body: bytes, type_: Any, says: str) -> None:
    with pytest.raises(PayloadError) as caught:
        converter.from_body(body, type_)
    assert says in str(caught.value)


def test_an_error_does_not_repeat_the_users_data() -> None:
    with pytest.raises(PayloadError) as caught:
        converter.from_body(b'{"flight": {"secret": "4711-0815"}}', Departure)
    assert "4711" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_payload_without_a_body_is_refused() -> None:
    with pytest.raises(PayloadError, match="None is no payload"):
        converter.to_body(None)
    with pytest.raises(PayloadError, match="cannot be written as JSON"):
        converter.to_body(object())


def test_a_type_that_no_body_can_be_is_found_before_a_message_comes() -> None:
    with pytest.raises(PayloadError, match="no body can be read as"):
        converter.check(type("Plain", (), {}))


def test_a_body_with_a_million_problems_has_a_short_error() -> None:
    with pytest.raises(PayloadError, match=r"is no list.int.: 1000001 problems, too many to tell of") as caught:
        converter.from_body(b'["a"' + b',"a"' * 1_000_000 + b"]", list[int])
    assert len(str(caught.value)) < 200
    with pytest.raises(PayloadError, match=r"9: Input should be a valid integer[^;]*; and 90 more problems$"):
        converter.from_body(b'["a"' + b',"a"' * 99 + b"]", list[int])


def test_a_long_name_in_a_body_is_cut_in_its_error() -> None:
    with pytest.raises(PayloadError, match=r"k{100}\.\.\.: Input should be a valid integer") as caught:
        converter.from_body(b'{"' + b"k" * 3_000_000 + b'":"a"}', dict[str, int])
    assert len(str(caught.value)) < 300


def test_a_name_in_a_body_begins_no_line_of_an_error() -> None:
    with pytest.raises(PayloadError, match=r"k\\nERROR forged: Input should be a valid integer") as caught:
        converter.from_body(b'{"k\\nERROR forged":"a"}', dict[str, int])
    assert "\n" not in str(caught.value)


def test_the_error_of_a_tagged_union_repeats_no_value() -> None:
    with pytest.raises(PayloadError, match="Input tag is none of the expected tags") as caught:
        converter.from_body(b'{"kind":"4711"}', Annotated[Landed | Diverted, Field(discriminator="kind")])
    assert "4711" not in str(caught.value)


def test_text_without_utf_8_is_a_payload_error() -> None:
    with pytest.raises(PayloadError, match="the text has no UTF-8: surrogates not allowed at 1"):
        converter.to_body("a\ud800")


class Leg(BaseModel):
    miles: float | None = None
    extra: Any = None


@dataclasses.dataclass
class Flight:
    legs: list[Leg]
    by_gate: dict[int, tuple[float, ...]]


@pytest.mark.parametrize(
    ("payload", "where"),
    [
        ({"a": None, "b": [1.0, math.nan]}, "in b.1"),
        ([math.inf], "in 0"),
        ({"legs": {1: -math.inf}}, "in legs.1"),
        (Leg(miles=math.nan), "in miles"),
        (Leg(extra={"x": math.inf}), "in extra.x"),
        (Flight([Leg(), Leg(miles=math.inf)], {}), "in legs.1.miles"),
        (Flight([Leg()], {7: (1.0, math.nan)}), "in by_gate.7.1"),
        ({"tags": {math.nan}}, "in tags.0"),
        (math.nan, "has NaN or an infinity, and"),
    ],
)
def test_a_number_that_json_has_not_is_refused_and_named(payload: Any, where: str) -> None:
    with pytest.raises(PayloadError, match=r"NaN or an infinity.*JSON has no such number.*ser_json_inf_nan") as told:
        JsonMessageConverter().to_body(payload)
    assert where in str(told.value)


@pytest.mark.parametrize(
    ("before", "payload"), [({"a": 1.0}, {"a": math.nan}), (Leg(miles=1.0), Leg(miles=math.inf)), ([1.0], [-math.inf])]
)
def test_a_number_that_json_has_not_is_refused_behind_payloads_of_the_same_type_too(before: Any, payload: Any) -> None:
    converter = CodecMessageConverter()
    for _ in range(2):
        assert b"null" not in converter.encode(before, None)[0].replace(b'"extra":null', b"")
        with pytest.raises(PayloadError, match=r"NaN or an infinity.*JSON has no such number"):
            converter.encode(payload, None)


def rows_of_a_database() -> Iterator[int]:
    yield 1
    raise ConnectionError("the database is gone")


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (lambda: (row for row in [1, object(), 3]), "Unable to serialize unknown type"),
        (lambda: map(str, ["a", "\ud800", "c"]), "surrogates not allowed"),
        (rows_of_a_database, "the database is gone"),
    ],
    ids=["of no JSON", "of no UTF-8", "that fails"],
)
def test_a_payload_with_an_iterator_that_cannot_be_written_is_not_sent_with_the_rest_of_it(
    rows: Callable[[], Iterator[Any]], why: str
) -> None:
    converter = CodecMessageConverter()
    for _ in range(2):  # a type that is known goes another way
        with pytest.raises(PayloadError, match=f"a payload of type dict cannot be written as JSON: .*{why}"):
            converter.encode({"rows": rows()}, None)
        assert converter.encode({"rows": iter([1, 2])}, None)[0] == b'{"rows":[1,2]}'


def test_an_iterator_where_its_type_says_a_list_is_written_whole_or_refused() -> None:
    @dataclasses.dataclass
    class Report:
        names: list[str]
        left_out: str | None = None

    converter = CodecMessageConverter()
    for _ in range(2):
        with pytest.raises(PayloadError, match=r"a payload of type .*Report has an iterator in names.*send a list"):
            converter.encode(Report(map(str, [1, 2])), None)  # type: ignore[arg-type]
    assert converter.encode(Report(["1", "2"]), None)[0] == b'{"names":["1","2"],"left_out":null}'


def test_what_the_payloads_config_says_of_numbers_that_json_has_not_is_done() -> None:
    class AsText(BaseModel):
        model_config = ConfigDict(ser_json_inf_nan="strings")
        miles: float
        left_out: int | None = None

    class AsConstant(AsText):
        model_config = ConfigDict(ser_json_inf_nan="constants")

    class AsNull(AsText):
        model_config = ConfigDict(ser_json_inf_nan="null")

    converter = JsonMessageConverter()
    assert converter.to_body(AsText(miles=math.inf)) == b'{"miles":"Infinity","left_out":null}'
    assert converter.from_body(converter.to_body(AsText(miles=-math.inf)), AsText).miles == -math.inf
    assert converter.to_body(AsConstant(miles=math.nan)) == b'{"miles":NaN,"left_out":null}'
    assert converter.to_body(AsNull(miles=math.nan)) == b'{"miles":null,"left_out":null}'
    assert converter.to_body([AsText(miles=math.inf), None]) == b'[{"miles":"Infinity","left_out":null},null]'
    assert converter.to_body({"text": "null", "none": None, "decimal": Decimal("NaN")}) == (
        b'{"text":"null","none":null,"decimal":"NaN"}'
    )
