"""Spark types for the models that describe JSON bodies: pydantic models, dataclasses, TypedDicts, or Spark's own DDL.

What each Python type becomes is a table in ``docs/reference/spark-types.md``. What no column of Spark can hold (a model
that refers to itself, a body that is no object, a field of several types) is refused with the name of the field.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import types
import typing
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

import pydantic
from pyspark.sql import types as t

__all__ = ["BodySchema", "SchemaError", "body_schema"]

SIMPLE: Mapping[Any, t.DataType] = {
    str: t.StringType(),
    int: t.LongType(),
    float: t.DoubleType(),
    bool: t.BooleanType(),
    bytes: t.StringType(),  # pydantic writes them as UTF-8; Spark's binary would be read as base64
    datetime.datetime: t.TimestampType(),
    datetime.date: t.DateType(),
    uuid.UUID: t.StringType(),
    pydantic.AwareDatetime: t.TimestampType(),
    pydantic.PastDatetime: t.TimestampType(),
    pydantic.FutureDatetime: t.TimestampType(),
    pydantic.NaiveDatetime: t.TimestampNTZType(),
    pydantic.PastDate: t.DateType(),
    pydantic.FutureDate: t.DateType(),
}
DIGITS, PLACES = 38, 18  # of a Decimal that says nothing of its own
LIST_LIKE = (list, tuple, set, frozenset)
NAME = "name"  # in a field's metadata: its name in Python


class SchemaError(TypeError):
    """A type that has no counterpart in Spark."""


@dataclass(frozen=True)
class BodySchema:
    """A body's shape twice: ``json`` with the names that it has there, ``columns`` with those of the model.

    A field, element or value that is not nullable is one that a body must have.
    """

    json: t.StructType
    columns: t.StructType


def body_schema(schema: Any) -> BodySchema:
    """The shape of the JSON bodies that ``schema`` describes.

    ``schema`` is a pydantic model, dataclass, TypedDict, StructType, or DDL text such as ``"id bigint, item string"``.
    DDL needs a running session. Raises SchemaError naming the field that cannot be read by Spark.
    """
    if isinstance(schema, str):
        schema = t.StructType.fromDDL(schema)
    if isinstance(schema, t.StructType):
        return BodySchema(schema, schema)
    if not _is_model(schema):
        raise SchemaError(
            f"a schema must be a pydantic model, dataclass, TypedDict, StructType or DDL text, not {schema!r}"
        )
    json = _struct(schema, ())
    return BodySchema(json, _renamed(json))


@dataclass(frozen=True)
class _Field:
    name: str
    json_name: str
    hint: Any
    required: bool
    metadata: Sequence[Any] = ()


def _is_model(hint: Any) -> bool:
    return isinstance(hint, type) and (
        hasattr(hint, "model_fields") or dataclasses.is_dataclass(hint) or typing.is_typeddict(hint)
    )


def _fields(model: Any) -> Iterator[_Field]:
    # Of pydantic: those of a model, or of one of its dataclasses.
    known = getattr(model, "model_fields", None) or getattr(model, "__pydantic_fields__", None)
    if known is not None:
        for name, field in known.items():
            yield _Field(name, _json_name(model, name, field), field.annotation, field.is_required(), field.metadata)
        return
    hints = typing.get_type_hints(model, include_extras=True)
    if typing.is_typeddict(model):
        for name, hint in hints.items():
            required = name in model.__required_keys__
            if (origin := get_origin(hint)) in (typing.Required, typing.NotRequired):
                required = origin is typing.Required  # __required_keys__ does not see it in annotations that are text
                (hint,) = get_args(hint)
            yield _Field(name, name, hint, required)
        return
    for each in dataclasses.fields(model):
        required = each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
        yield _Field(each.name, each.name, hints[each.name], required)


def _json_name(model: Any, name: str, field: Any) -> str:
    alias = field.validation_alias
    if alias is not None and not isinstance(alias, str):
        raise SchemaError(
            f"{model.__name__}.{name}: its validation_alias {alias!r} is of several places in a body, and a column has "
            "one; use a single name"
        )
    return alias or field.alias or name


def _struct(model: Any, within: tuple[Any, ...]) -> t.StructType:
    name = model.__name__
    if isinstance(model, type) and issubclass(model, pydantic.RootModel):
        raise SchemaError(
            f"{name} is a RootModel, whose JSON has no fields to make columns of; write the type itself in the model "
            "above it, or leave schema= out and use from_json"
        )
    if model in within:
        path = " -> ".join(each.__name__ for each in (*within[within.index(model) :], model))
        raise SchemaError(
            f"{path} refers to itself, and a column of Spark has a fixed depth; use str for that field, which keeps "
            "its JSON as text"
        )
    result = t.StructType()
    for field in _fields(model):
        try:
            kind = _type(field.hint, (*within, model), field.metadata)
        except SchemaError as error:
            raise SchemaError(f"{name}.{field.name}: {error}") from None
        nullable = not field.required or _takes_none(field.hint)
        result = result.add(t.StructField(field.json_name, kind, nullable, {NAME: field.name}))
    for names in (result.names, [each.metadata[NAME] for each in result]):
        lower = [each.lower() for each in names]
        if twice := [each for each in names if lower.count(each.lower()) > 1]:
            raise SchemaError(f"{name} has the fields {' and '.join(twice)}, which are one name to Spark; rename one")
    return result


def _takes_none(hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _takes_none(arguments[0])
    if origin is Literal:
        return None in arguments
    return (
        hint is None
        or hint is type(None)
        or (origin in (Union, types.UnionType) and any(_takes_none(argument) for argument in arguments))
    )


def _type(hint: Any, within: tuple[Any, ...], metadata: Sequence[Any] = ()) -> t.DataType:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _type(arguments[0], within, (*metadata, *arguments[1:]))
    if isinstance(hint, NewType):
        return _type(hint.__supertype__, within, metadata)
    if isinstance(getattr(hint, "__value__", None), type) or type(hint).__name__ == "TypeAliasType":
        return _type(hint.__value__, within, metadata)
    if origin is Literal:
        return _one({type(value) for value in arguments if value is not None}, hint, within)
    if origin in (Union, types.UnionType):
        return _one([argument for argument in arguments if argument is not type(None)], hint, within, metadata)
    if origin in LIST_LIKE:
        elements = [argument for argument in arguments if argument is not Ellipsis]
        return t.ArrayType(_one(elements, hint, within), any(map(_takes_none, elements)))
    if origin is dict and arguments[0] is str:
        return t.MapType(t.StringType(), _type(arguments[1], within), _takes_none(arguments[1]))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _one({type(member.value) for member in hint}, hint, within)
    if hint is decimal.Decimal:
        return _decimal(metadata)
    try:
        if hint in SIMPLE:
            return SIMPLE[hint]
    except TypeError:  # not hashable
        pass
    if _is_model(hint):
        return _struct(hint, within)
    raise SchemaError(f"Spark has no type for {hint!r}; use str and convert it in the handler")


def _one(choices: Any, hint: Any, within: tuple[Any, ...], metadata: Sequence[Any] = ()) -> t.DataType:
    kinds: list[t.DataType] = []
    for choice in choices:
        kind = _type(choice, within, metadata)
        if kind not in kinds:
            kinds.append(kind)
    if len(kinds) != 1:
        raise SchemaError(f"Spark has no type for {hint!r}, which may be of several; use str and convert it")
    return kinds[0]


def _decimal(metadata: Sequence[Any]) -> t.DecimalType:
    """With the digits that the field says (pydantic's ``max_digits`` and ``decimal_places``)."""
    digits = places = None
    for each in metadata:
        for part in (each, *getattr(each, "metadata", ())):
            digits = getattr(part, "max_digits", None) or digits
            places = getattr(part, "decimal_places", None) if places is None else places
    if digits is not None and digits > DIGITS:
        raise SchemaError(f"max_digits is {digits}, and Spark's decimals have {DIGITS} at most; use str")
    if places is None:
        return t.DecimalType(DIGITS, PLACES)
    return t.DecimalType(digits or DIGITS, places)


def _renamed(kind: Any) -> Any:
    """The same type, its structs with the names of the model."""
    if isinstance(kind, t.StructType):
        return t.StructType(
            [t.StructField(each.metadata[NAME], _renamed(each.dataType), each.nullable) for each in kind]
        )
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_renamed(kind.elementType), kind.containsNull)
    if isinstance(kind, t.MapType):
        return t.MapType(kind.keyType, _renamed(kind.valueType), kind.valueContainsNull)
    return kind
