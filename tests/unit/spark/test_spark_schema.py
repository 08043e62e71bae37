"""Spark types for models of JSON bodies."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
from typing import Annotated, Any, Literal, NewType, NotRequired, TypedDict

import pytest
from pydantic import AliasChoices, BaseModel, Field, RootModel
from pydantic.dataclasses import dataclass as pydantic_dataclass

pytest.importorskip("pyspark")

from pyspark.sql.types import LongType, StructField, StructType

from rocketbox.spark.schema import SchemaError, body_schema
from tests.support.spark.body_models import PlainTypes

pytestmark = pytest.mark.spark


class Kind(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Line(BaseModel):
    item: str
    price: float | None


class Order(BaseModel):
    number: int = Field(alias="orderNumber")
    placed: datetime.datetime
    kind: Kind
    state: Literal["new", "paid"]
    lines: list[Line]
    labels: dict[str, str] = {}


@dataclasses.dataclass
class Point:
    x: float
    y: float


class Named(TypedDict):
    name: str


def test_a_pydantic_model_becomes_a_struct_by_its_json_names() -> None:
    schema = body_schema(Order)
    assert schema.json.simpleString() == (
        "struct<orderNumber:bigint,placed:timestamp,kind:string,state:string,"
        "lines:array<struct<item:string,price:double>>,labels:map<string,string>>"
    )
    assert schema.columns.names == ["number", "placed", "kind", "state", "lines", "labels"]


class Every(PlainTypes):
    size: NewType("Size", int)  # type: ignore[valid-type]  # one as it stands in a user's module
    level: enum.IntEnum("Level", "LOW HIGH")  # type: ignore[valid-type]
    maybe: Literal["a", None]
    pair: tuple[int, ...]
    words: set[str]
    counts: dict[str, list[int | None]]


def test_each_type_has_its_counterpart() -> None:
    fields = {each.name: each.dataType.simpleString() for each in body_schema(Every).json}
    assert fields == {
        "text": "string", "number": "bigint", "real": "double", "flag": "boolean", "raw": "string", "day": "date",
        "at": "timestamp", "aware": "timestamp", "naive": "timestamp_ntz", "id": "string", "amount": "decimal(38,18)",
        "price": "decimal(10,2)", "size": "bigint", "level": "bigint", "maybe": "string", "pair": "array<bigint>",
        "words": "array<string>", "counts": "map<string,array<bigint>>",
    }  # fmt: skip


class Nested(BaseModel):
    inner: Line = Field(alias="theLine")
    optional: int | None
    defaulted: int = 5
    many: list[int]
    some: list[int | None]
    by_name: dict[str, Line]


def test_what_a_body_must_have_is_not_nullable() -> None:
    schema = body_schema(Nested)
    nullable = {each.name: each.nullable for each in schema.json}
    assert nullable == {
        "theLine": False, "optional": True, "defaulted": True, "many": False, "some": False, "by_name": False,
    }  # fmt: skip
    kinds: dict[str, Any] = {each.name: each.dataType for each in schema.json}
    assert kinds["theLine"]["price"].nullable
    assert not kinds["theLine"]["item"].nullable
    assert (kinds["many"].containsNull, kinds["some"].containsNull) == (False, True)
    assert not kinds["by_name"].valueContainsNull


@dataclasses.dataclass
class Defaults:
    x: int
    y: int = 0
    z: list[int] = dataclasses.field(default_factory=list)


class Partly(TypedDict):
    x: int
    y: NotRequired[int]


@pydantic_dataclass
class Aliased:
    x: int = Field(alias="theX")


@pytest.mark.parametrize(
    ("schema", "expected", "needed"),
    [
        (Point, "struct<x:double,y:double>", ["x", "y"]),
        (Named, "struct<name:string>", ["name"]),
        (Defaults, "struct<x:bigint,y:bigint,z:array<bigint>>", ["x"]),
        (Partly, "struct<x:bigint,y:bigint>", ["x"]),
        (Aliased, "struct<theX:bigint>", ["theX"]),
        (StructType([StructField("id", LongType())]), "struct<id:bigint>", []),
        (StructType([StructField("id", LongType(), False)]), "struct<id:bigint>", ["id"]),
    ],
)
def test_other_ways_to_say_a_schema(schema: Any, expected: str, needed: list[str]) -> None:
    found = body_schema(schema).json
    assert found.simpleString() == expected
    assert [each.name for each in found if not each.nullable] == needed


class Wrong(BaseModel):
    inner: list[complex]


class Mixed(BaseModel):
    value: int | str


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


class Wood(BaseModel):
    tree: Tree


@dataclasses.dataclass
class Chain:
    next: Chain | None


class Words(RootModel[list[str]]):
    pass


class Text(BaseModel):
    words: Words


class Several(BaseModel):
    x: int = Field(validation_alias=AliasChoices("a", "b"))


class Twice(BaseModel):
    name: str
    Name: str


class Wide(BaseModel):
    amount: Annotated[decimal.Decimal, Field(max_digits=40)]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Wrong, r"Wrong\.inner: Spark has no type for"),
        (Mixed, r"Mixed\.value: .* several"),
        (int, "must be a pydantic"),
        (Tree, r"Tree\.children: Tree -> Tree refers to itself"),
        (Wood, r"Wood\.tree: Tree\.children: Tree -> Tree refers to itself.*use str"),
        (Chain, r"Chain\.next: Chain -> Chain refers to itself"),
        (Words, "Words is a RootModel"),
        (Text, r"Text\.words: Words is a RootModel"),
        (Several, r"Several\.x: its validation_alias .* several places"),
        (Twice, "Twice has the fields name and Name, which are one name to Spark"),
        (Wide, r"Wide\.amount: max_digits is 40"),
    ],
)
def test_a_type_that_spark_does_not_have_is_named(model: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        body_schema(model)
