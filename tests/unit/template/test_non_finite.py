"""Which payloads are asked for numbers that JSON has not: all that may hold one, and no others, for it takes time."""

from __future__ import annotations

import dataclasses
import enum
import math
import re
import warnings
from collections import deque
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID

import pytest
from pydantic import (
    AfterValidator,
    AnyUrl,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    RootModel,
    SerializeAsAny,
    TypeAdapter,
    WrapSerializer,
    WrapValidator,
    computed_field,
    create_model,
    field_serializer,
    model_serializer,
)
from pydantic_core import core_schema
from typing_extensions import TypedDict

from rocketbox.template import CodecMessageConverter, PayloadError
from rocketbox.template.non_finite import has_no_place_for_them, where_written_as_null

NAN = math.nan
T = TypeVar("T")


class Line(BaseModel):
    sku: str
    note: str | None = None


class Order(BaseModel):
    number: int
    note: str | None = None
    lines: list[Line] = []
    after: Order | None = None


@dataclasses.dataclass
class Gate:
    name: str
    line: Line | None = None


class Seat(TypedDict):
    row: int


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Page(BaseModel, Generic[T]):
    items: list[T]


class Weighed(Line):
    kilos: float | None = None


class Open(Line):
    model_config = ConfigDict(extra="allow")


class Polymorphic(Line):
    model_config = ConfigDict(polymorphic_serialization=True)  # type: ignore[typeddict-unknown-key,unused-ignore]


class PolymorphicWeighed(Polymorphic):
    kilos: float | None = None


@dataclasses.dataclass
class Scale:
    kilos: float | None = None


class Heights(TypedDict):
    metres: float


class OpenSeat(TypedDict):
    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    row: int


class Grade(enum.Enum):
    BEST = 1.5
    NONE = math.nan


class Found(enum.Enum):
    ONE = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        member = object.__new__(cls)
        member._value_ = value  # type: ignore[assignment]
        member._name_ = "OTHER"
        return member


class Point(NamedTuple):
    metres: float


class Computed(BaseModel):
    @computed_field  # type: ignore[prop-decorator]
    @property
    def ratio(self) -> float:
        return NAN


class OwnField(BaseModel):
    row: int = 1

    @field_serializer("row")
    def as_float(self, value: int) -> float:
        return NAN


class OwnModel(BaseModel):
    row: int = 1

    @model_serializer
    def as_dict(self) -> dict[str, Any]:
        return {"row": NAN}


class OwnType:
    """A type that says itself how pydantic is to write it."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(lambda value: NAN)
        return core_schema.is_instance_schema(cls, serialization=written)


SURELY_WITHOUT = [
    int, str, bool, None, bytes, date, time, datetime, timedelta, UUID, Colour, Level,
    Line, Order, Gate, Seat, list[int], set[int], frozenset[int], tuple[int, str], tuple[int, ...], dict[str, int],
    dict[str, list[Line]], int | str, int | None, Line | Gate, Page[int], Page[Line], RootModel[list[int]],
    Annotated[int, AfterValidator(lambda value: value)], Annotated[int, BeforeValidator(lambda value: value)],
    Annotated[int, WrapValidator(lambda value, handler: handler(value))], Annotated[int, Field(ge=1)],
]  # fmt: skip

NOT_VALIDATED: list[Any] = [
    NAN, math.inf, [NAN], (1, "a", NAN), {"x": NAN}, {"row": NAN}, {NAN}, deque([NAN]),
    Weighed(sku="a", kilos=NAN),
    Line.model_construct(sku=NAN), Gate(NAN), Gate("a", Line.model_construct(sku="a", note=NAN)),  # type: ignore[arg-type]
    Order.model_construct(number=1, after=Order.model_construct(number=NAN)), Page[int].model_construct(items=[NAN]),
    RootModel[list[int]].model_construct([NAN]), Point(NAN), Grade.NONE, OwnModel(), Computed(),  # type: ignore[list-item]
]  # fmt: skip


def field_of(type_: Any) -> Any:
    """A model with a field that may be None and one of the type, so that there is a null in its JSON anyway."""
    return create_model("Payload", left_out=(int | None, None), value=(type_, ...))


def name_of(type_: object) -> str:
    """Without addresses of functions, which differ between processes that are to run the same tests."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(type_))


@pytest.mark.parametrize("type_", SURELY_WITHOUT, ids=name_of)
def test_a_type_that_has_no_place_for_such_a_number_is_not_searched(type_: Any) -> None:
    assert has_no_place_for_them(TypeAdapter(field_of(type_)).core_schema)


@pytest.mark.parametrize("type_", [*SURELY_WITHOUT, AnyUrl, Literal["a"], Literal[1, None]], ids=name_of)
def test_a_number_that_json_has_not_is_refused_where_the_type_has_no_place_for_it(type_: Any) -> None:
    """What is constructed or assigned without validation, as in every dataclass, may be of any type."""
    adapter = TypeAdapter(field_of(type_))
    converter = CodecMessageConverter()
    refused = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # pydantic's, of values that are not of the type
        for value in NOT_VALIDATED:
            payload = field_of(type_).model_construct(value=value)
            written = adapter.dump_python(payload, by_alias=True), adapter.dump_json(payload, by_alias=True)
            if where_written_as_null(*written) is not None:
                refused += 1
                for _ in range(2):
                    with pytest.raises(PayloadError, match="NaN or an infinity in value"):
                        converter.encode(payload, None)
    assert refused > 5


def test_a_wrong_number_in_a_dataclass_is_refused() -> None:
    converter = CodecMessageConverter()
    assert converter.encode(Gate("a"), None)[0] == b'{"name":"a","line":null}'
    for _ in range(2):
        with (
            pytest.warns(UserWarning, match="Expected `str`"),
            pytest.raises(PayloadError, match="NaN or an infinity in name"),
        ):
            converter.encode(Gate(NAN), None)  # type: ignore[arg-type]


WITH_A_PLACE: list[tuple[Any, Any]] = [
    (float, NAN),
    (float | None, -math.inf),
    (int | float, NAN),
    (Any, {"x": [NAN]}),
    (object, NAN),
    (dict, {"x": NAN}),
    (list, [NAN]),
    (tuple, (NAN,)),
    (dict[str, Any], {"x": NAN}),
    (dict[str, float], {"x": NAN}),
    (list[list[float]], [[], [NAN]]),
    (set[float], {NAN}),
    (frozenset[float], frozenset({NAN})),
    (tuple[int, float], (1, NAN)),
    (tuple[float, ...], (1.0, NAN)),
    (deque[float], deque([NAN])),
    (Weighed, Weighed(sku="a", kilos=NAN)),
    (Line | Weighed, Weighed(sku="a", kilos=NAN)),
    (Scale, Scale(NAN)),
    (Gate | Scale, Scale(NAN)),
    (Heights, {"metres": NAN}),
    (OpenSeat, {"row": 1, "metres": NAN}),
    (Point, Point(NAN)),
    (Grade, Grade.NONE),
    (Literal[Grade.NONE], Grade.NONE),
    (Found, Found(NAN)),
    (Page[float], Page[float](items=[NAN])),
    (Page[Any], Page[Any](items=[NAN])),
    (Page, Page(items=[NAN])),
    (RootModel[list[float]], RootModel[list[float]]([NAN])),
    (SerializeAsAny[Line], Weighed(sku="a", kilos=NAN)),
    (list[SerializeAsAny[Line]], [Weighed(sku="a", kilos=NAN)]),
    (Open, Open(sku="a", kilos=NAN)),  # type: ignore[call-arg]
    (Computed, Computed()),
    (OwnField, OwnField()),
    (OwnModel, OwnModel()),
    (OwnType, OwnType()),
    (Annotated[int, PlainSerializer(lambda value: NAN)], 1),
    (Annotated[int, WrapSerializer(lambda value, handler: NAN)], 1),
]


@pytest.mark.parametrize(("type_", "value"), WITH_A_PLACE)
def test_a_type_that_has_a_place_for_such_a_number_is_searched(type_: Any, value: Any) -> None:
    model = field_of(type_)
    converter = CodecMessageConverter()
    assert not has_no_place_for_them(TypeAdapter(model).core_schema)
    for _ in range(2):
        with pytest.raises(PayloadError, match="NaN or an infinity in value"):
            converter.encode(model.model_construct(value=value), None)


@pytest.mark.parametrize(
    "type_", [Decimal, Fraction, complex, Literal["a"], Annotated[int, PlainValidator(int)]], ids=name_of
)
def test_a_type_that_is_not_surely_without_such_numbers_is_searched(type_: Any) -> None:
    assert not has_no_place_for_them(TypeAdapter(field_of(type_)).core_schema)


def test_what_a_subclass_adds_is_written_only_where_the_type_says_so_and_then_searched() -> None:
    converter = CodecMessageConverter()
    for value in (Weighed(sku="a", kilos=NAN), Open(sku="a", kilos=NAN)):  # type: ignore[call-arg]
        body = converter.encode(field_of(Line)(value=value), None)[0]
        assert body == b'{"left_out":null,"value":{"sku":"a","note":null}}'
    payload = field_of(Polymorphic).model_construct(value=PolymorphicWeighed(sku="a", kilos=NAN))
    if b"kilos" in TypeAdapter(type(payload)).dump_json(payload):  # versions of pydantic that know it
        with pytest.raises(PayloadError, match=r"NaN or an infinity in value\.kilos"):
            converter.encode(payload, None)
