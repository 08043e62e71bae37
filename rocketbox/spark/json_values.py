"""Values of Spark as JSON, by their types: what a written row's ``value`` or JSON columns become.

As pydantic writes them, so that a listener's model reads them: a decimal is text (a JSON number would lose digits), a
timestamp is ISO 8601 with ``Z``, without a zone for ``timestamp_ntz``, a date is ``2026-01-31``; a null is ``null``.
Binary, intervals, variants and maps whose keys are no text have no JSON that all readers agree on: they are refused.
"""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t

__all__ = ["base64_form", "binary_form", "column_values", "encode_json", "json_form", "plain_form"]

Convert = Callable[[Any], Any]
Leaf = Callable[[t.DataType, str], Convert | None]
AS_IT_IS = (t.StringType, t.CharType, t.VarcharType, t.BooleanType, t.IntegralType, t.FractionalType, t.NullType)


def encode_json(value: Any) -> bytes:
    """The UTF-8 text. Raises ValueError for a number that JSON does not have (NaN, infinity)."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def column_values(column: Any) -> list[Any]:
    """The values of an Arrow column for :func:`json_form`; a ValueError in the place of one that Python has not.

    Python has no times outside of the years 1 to 9999, and no text that is not UTF-8.
    """
    # Spark's times are in the zone of the session, which it may write as Python's libraries do not (GMT+5).
    kind = _in_utc(column.type)
    column = column if kind == column.type else column.cast(kind)
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        values = [_value_or_error(each) for each in column]
    return values


def _value_or_error(value: Any) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:  # a string of Spark may hold any bytes
        return ValueError("a text in it is not UTF-8")
    except (OverflowError, ValueError):
        return ValueError("a time in it is outside of the years 1 to 9999")


def _in_utc(kind: Any) -> Any:
    """The same type of Arrow, its times with a zone in UTC."""
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, tz="UTC")
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_in_utc(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_in_utc(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    return kind


def json_form(kind: t.DataType, name: str) -> Convert | None:
    """What makes JSON's form of a value as Arrow gives it to Python; None: it is that already.

    ``name`` is the column, for the ValueError that says what cannot be written, and what to do.
    """
    return _form(kind, name, _json_leaf)


def binary_form(kind: t.DataType, name: str) -> Convert | None:
    """As :func:`json_form`, for a format that has bytes."""
    return _form(kind, name, lambda kind, name: None if isinstance(kind, t.BinaryType) else _json_leaf(kind, name))


def base64_form(kind: t.DataType, name: str) -> Convert | None:
    """As :func:`json_form`, with bytes as base64."""
    return _form(kind, name, lambda kind, name: _base64 if isinstance(kind, t.BinaryType) else _json_leaf(kind, name))


def plain_form(kind: t.DataType, name: str) -> Convert | None:
    """Python's own types for all, for a format that has times and decimals."""
    return _form(kind, name, lambda kind, name: None)


def _json_leaf(kind: t.DataType, name: str) -> Convert | None:
    if isinstance(kind, t.DecimalType):
        return _decimal
    if isinstance(kind, AS_IT_IS):
        return None
    if isinstance(kind, t.TimestampType):
        return _timestamp
    if isinstance(kind, t.TimestampNTZType | t.DateType):
        return _iso
    what = f"column {name} is {kind.simpleString()}, which has no JSON that all readers agree on"
    how = "as text (cast(.. as string)) or as base64(..)" if isinstance(kind, t.BinaryType) else "as text"
    raise ValueError(f"{what}; write it {how}")


def _form(kind: t.DataType, name: str, leaf: Leaf) -> Convert | None:
    if isinstance(kind, t.ArrayType):
        return _array(_form(kind.elementType, f"{name}[]", leaf))
    if isinstance(kind, t.MapType):
        if not isinstance(kind.keyType, t.StringType):
            raise ValueError(f"column {name} is a map with keys of {kind.keyType.simpleString()}; JSON's are text")
        return _map(_form(kind.valueType, f"{name}[]", leaf))
    if isinstance(kind, t.StructType):
        converts = [_form(each.dataType, f"{name}.{each.name}", leaf) for each in kind]
        return _struct(struct_names(kind, name), converts)
    return leaf(kind, name)


def struct_names(kind: t.StructType, name: str) -> list[str]:
    """The names of a struct's fields. Raises ValueError when two are the same."""
    names = kind.fieldNames()
    if twice := {each for each in names if names.count(each) > 1}:
        raise ValueError(f"{name} has {min(twice)} twice, and a JSON object has each name once; rename one")
    return names


def _decimal(value: Decimal | None) -> str | None:
    return None if value is None else format(value, "f")


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


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
