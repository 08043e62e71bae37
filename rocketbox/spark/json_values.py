"""Values of Spark as JSON, by their types: what a written row's ``value`` or JSON columns become.

As pydantic writes them, so that a listener's model reads them: a decimal is text (a JSON number would lose digits), a
timestamp is ISO 8601 with ``Z``, without a zone for ``timestamp_ntz``, a date is ``2026-01-31``; a null is ``null``.
Binary, intervals, variants and maps whose keys are no text have no JSON that all readers agree on: they are refused.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from pyspark.sql import types as t

__all__ = ["encode_json", "json_form"]

Convert = Callable[[Any], Any]
AS_IT_IS = (t.StringType, t.CharType, t.VarcharType, t.BooleanType, t.IntegralType, t.FractionalType, t.NullType)


def encode_json(value: Any) -> bytes:
    """The UTF-8 text. Raises ValueError for a number that JSON does not have (NaN, infinity)."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def json_form(kind: t.DataType, name: str) -> Convert | None:
    """What makes JSON's form of a value as Arrow gives it to Python; None: it is that already.

    ``name`` is the column, for the ValueError that says what cannot be written, and what to do.
    """
    if isinstance(kind, t.DecimalType):
        return _decimal
    if isinstance(kind, AS_IT_IS):
        return None
    if isinstance(kind, t.TimestampType):
        return _timestamp
    if isinstance(kind, t.TimestampNTZType | t.DateType):
        return _iso
    if isinstance(kind, t.ArrayType):
        return _array(json_form(kind.elementType, f"{name}[]"))
    if isinstance(kind, t.MapType):
        if not isinstance(kind.keyType, t.StringType):
            raise ValueError(f"column {name} is a map with keys of {kind.keyType.simpleString()}; JSON's are text")
        return _map(json_form(kind.valueType, f"{name}[]"))
    if isinstance(kind, t.StructType):
        return _struct(struct_names(kind, name), [json_form(each.dataType, f"{name}.{each.name}") for each in kind])
    what = f"column {name} is {kind.simpleString()}, which has no JSON that all readers agree on"
    how = "as text (cast(.. as string)) or as base64(..)" if isinstance(kind, t.BinaryType) else "as text"
    raise ValueError(f"{what}; write it {how}")


def struct_names(kind: t.StructType, name: str) -> list[str]:
    """The names of a struct's fields. Raises ValueError when two are the same."""
    names = kind.fieldNames()
    if twice := {each for each in names if names.count(each) > 1}:
        raise ValueError(f"{name} has {min(twice)} twice, and a JSON object has each name once; rename one")
    return names


def _decimal(value: Decimal | None) -> str | None:
    return None if value is None else format(value, "f")


def _timestamp(value: datetime.datetime | None) -> str | None:
    return None if value is None else value.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")


def _iso(value: datetime.date | None) -> str | None:
    return None if value is None else value.isoformat()


def _array(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda values: None if values is None else [convert(value) for value in values]


def _map(convert: Convert | None) -> Convert:
    if convert is None:
        return lambda pairs: None if pairs is None else dict(pairs)
    return lambda pairs: None if pairs is None else {key: convert(value) for key, value in pairs}


def _struct(names: Sequence[str], converts: Sequence[Convert | None]) -> Convert | None:
    changed = [(name, convert) for name, convert in zip(names, converts, strict=True) if convert is not None]
    if not changed:
        return None

    def convert_struct(value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None:
            for name, convert in changed:
                value[name] = convert(value[name])
        return value

    return convert_struct
