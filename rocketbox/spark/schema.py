"""Spark types for the models that describe JSON bodies: pydantic models, dataclasses, TypedDicts, or Spark's own DDL.

``int`` is ``bigint``, ``float`` is ``double``, ``Decimal`` is ``decimal(38,18)``, ``datetime`` is ``timestamp``; an
enum or ``Literal`` has the type of its values, ``list[T]`` is an array, ``dict[str, T]`` a map, a model in another a
struct.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import types
import typing
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pyspark.sql import types as t

__all__ = ["SchemaError", "body_schema"]

SIMPLE: Mapping[Any, t.DataType] = {
    str: t.StringType(),
    int: t.LongType(),
    float: t.DoubleType(),
    bool: t.BooleanType(),
    bytes: t.BinaryType(),
    decimal.Decimal: t.DecimalType(38, 18),
    datetime.datetime: t.TimestampType(),
    datetime.date: t.DateType(),
    uuid.UUID: t.StringType(),
}


class SchemaError(TypeError):
    """A type that has no counterpart in Spark."""


def body_schema(schema: Any) -> tuple[t.StructType, dict[str, str]]:
    """The struct of a JSON body, and for each of its JSON names the name of the column.

    ``schema`` is a pydantic model, dataclass, TypedDict, StructType, or DDL text such as ``"id bigint, item string"``.
    DDL needs a running session. Raises SchemaError naming the field that cannot be read by Spark.
    """
    if isinstance(schema, str):
        schema = t.StructType.fromDDL(schema)
    if isinstance(schema, t.StructType):
        return schema, {name: name for name in schema.names}
    fields = _fields(schema)
    if fields is None:
        raise SchemaError(
            f"a schema must be a pydantic model, dataclass, TypedDict, StructType or DDL text, not {schema!r}"
        )
    return _struct(schema, fields), {json_name: name for name, (json_name, _) in fields.items()}


def _fields(model: Any) -> dict[str, tuple[str, Any]] | None:
    """For each field its name in JSON and its type; None when ``model`` has no fields."""
    if hasattr(model, "model_fields"):  # pydantic
        names = {}
        for name, field in model.model_fields.items():
            alias = field.validation_alias if isinstance(field.validation_alias, str) else field.alias
            names[name] = (alias or name, field.annotation)
        return names
    if dataclasses.is_dataclass(model) or typing.is_typeddict(model):
        return {name: (name, hint) for name, hint in typing.get_type_hints(model).items()}
    return None


def _struct(model: Any, fields: Mapping[str, tuple[str, Any]]) -> t.StructType:
    result = t.StructType()
    for name, (json_name, hint) in fields.items():
        try:
            result = result.add(json_name, _type(hint), nullable=True)  # a body may lack any field
        except SchemaError as error:
            raise SchemaError(f"{getattr(model, '__name__', model)}.{name}: {error}") from None
    return result


def _type(hint: Any) -> t.DataType:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return _one({type(value) for value in arguments}, hint)
    if origin in (Union, types.UnionType):
        return _one({argument for argument in arguments if argument is not type(None)}, hint)
    if origin in (list, tuple, set, frozenset):
        return t.ArrayType(_one(set(arguments) - {Ellipsis}, hint))
    if origin is dict and arguments[0] is str:
        return t.MapType(t.StringType(), _type(arguments[1]))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _one({type(member.value) for member in hint}, hint)
    if hint in SIMPLE:
        return SIMPLE[hint]
    if (fields := _fields(hint)) is not None:
        return _struct(hint, fields)
    raise SchemaError(f"Spark has no type for {hint!r}; use str and convert it in the handler")


def _one(choices: set[Any], hint: Any) -> t.DataType:
    kinds = {_type(choice) for choice in choices}
    if len(kinds) != 1:
        raise SchemaError(f"Spark has no type for {hint!r}, which may be of several; use str and convert it")
    return kinds.pop()
