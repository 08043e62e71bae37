"""Spark types for models of JSON bodies."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from typing import Any, Literal, TypedDict

import pytest
from pydantic import BaseModel, Field

pytest.importorskip("pyspark")

from pyspark.sql.types import LongType, StructField, StructType

from rocketbox.spark.schema import SchemaError, body_schema

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
    schema, names = body_schema(Order)
    assert schema.simpleString() == (
        "struct<orderNumber:bigint,placed:timestamp,kind:string,state:string,"
        "lines:array<struct<item:string,price:double>>,labels:map<string,string>>"
    )
    assert names["orderNumber"] == "number"


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (Point, "struct<x:double,y:double>"),
        (Named, "struct<name:string>"),
        (StructType([StructField("id", LongType())]), "struct<id:bigint>"),
    ],
)
def test_other_ways_to_say_a_schema(schema: Any, expected: str) -> None:
    assert body_schema(schema)[0].simpleString() == expected


class Wrong(BaseModel):
    inner: list[complex]


class Mixed(BaseModel):
    value: int | str


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Wrong, r"Wrong\.inner: Spark has no type for"),
        (Mixed, r"Mixed\.value: .* several"),
        (int, "must be a pydantic"),
    ],
)
def test_a_type_that_spark_does_not_have_is_named(model: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        body_schema(model)
