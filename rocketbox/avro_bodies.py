"""Values in Avro's binary encoding and back, of one schema: what hostile bodies and wrong values come to.

``fastavro`` reads and writes by C, which has no limit of depth: some 5,000 levels of a schema that contains itself,
a byte each, end the process. Such schemas are read and written by its Python twin, which ends with RecursionError.
That one puts a number together byte by byte, however many there are, which takes hours for some MB: it is cut.
A count of items that take no bytes is no evidence of them: seven bytes would be 10^12 nulls. No schema may have them.

Source: Avro 1.11, "Binary Encoding", without a container; fastavro 1.13 ``_read_py``, ``_write_py``.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["AvroBodies"]

PLAIN = ("read", "write", "validation")
DECIMAL = "decimal-within-precision"
NAMED = ("record", "error", "enum", "fixed")
LONGEST_NUMBER = 1024
"""Bytes of which each says that another one of its number follows; in truth they are ten at most."""


class AvroBodies:
    """The bodies of one schema.

    Raises ValueError for a schema with an array of items that take no bytes, and what ``fastavro`` raises for what is
    no schema; ImportError where it is not installed.
    """

    def __init__(self, schema: Any) -> None:
        library: Any = import_module("fastavro")
        self._schema = library.parse_schema(schema)
        readers = import_module("fastavro.read").LOGICAL_READERS  # where fastavro takes logical types of others
        for kind in ("bytes", "fixed"):
            readers[f"{kind}-{DECIMAL}"] = _decimal_reader(readers[f"{kind}-decimal"])
        self._schema_of_bodies = library.parse_schema(_with_own_decimals(schema))
        known: dict[str, Any] = {}
        contains_itself = _contains_itself(self._schema, (), known)
        _refuse_items_without_bytes(self._schema, known)
        reading, writing, validation = ("_read_py", "_write_py", "_validation_py") if contains_itself else PLAIN
        self._opened = _EndingNumbers if contains_itself else io.BytesIO
        self._read = import_module(f"fastavro.{reading}").schemaless_reader
        self._write = import_module(f"fastavro.{writing}").schemaless_writer
        self._validate = import_module(f"fastavro.{validation}").validate
        self._wrong: Any = import_module("fastavro.validation").ValidationError

    def read(self, body: bytes) -> tuple[Any, bool]:
        """The value, and whether bytes are left after it. Raises whatever the first wrong byte leads to."""
        rest = self._opened(body)
        value = self._read(rest, self._schema_of_bodies, None)
        return value, bool(rest.read(1))

    def write(self, value: Any) -> bytes:
        """The body for a value. Raises ValueError, and whatever else the first wrong field leads to."""
        try:  # the writer itself makes 3 of 3.7, and an int of 2 ** 40, which no other reader takes
            self._validate(value, self._schema, raise_errors=True)
        except self._wrong as error:
            raise ValueError(_what_is_wrong(error.errors)) from None
        written = io.BytesIO()
        self._write(written, self._schema, value, strict_allow_default=True)  # drops nothing silently
        return written.getvalue()


class _EndingNumbers(io.BytesIO):
    """A body in which no number goes on for ever: numbers are read byte by byte, all but the last from 0x80 on."""

    _bytes_of_number = 0

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        self._bytes_of_number = self._bytes_of_number + 1 if size == 1 and found >= b"\x80" else 0
        if self._bytes_of_number > LONGEST_NUMBER:
            raise ValueError("a number in it does not end")
        return found


def _with_own_decimals(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_with_own_decimals(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    parts = {name: _with_own_decimals(schema[name]) for name in ("type", "items", "values", "fields") if name in schema}
    own = {"logicalType": DECIMAL} if schema.get("logicalType") == "decimal" else {}
    return {**schema, **parts, **own}


def _decimal_reader(read: Callable[..., Any]) -> Callable[..., Any]:
    """One that refuses what its precision does not hold; by itself fastavro rounds that, and takes hours for 4 MB."""

    def read_decimal(data: bytes, writer_schema: Any = None, reader_schema: Any = None) -> Any:
        if abs(int.from_bytes(data, signed=True)) >= 10 ** writer_schema["precision"]:
            raise ValueError("a decimal is longer than its precision")
        return read(data, writer_schema, reader_schema)

    return read_decimal


def _contains_itself(schema: Any, around: tuple[str, ...], known: dict[str, Any]) -> bool:
    """Whether a named type stands in its own fields; ``known`` is given the named types on the way."""
    if isinstance(schema, str):
        return schema in around
    if isinstance(schema, list):
        found = [_contains_itself(each, around, known) for each in schema]  # all of them: each may name types
        return any(found)
    kind = schema["type"]
    if kind in NAMED:
        known[schema["name"]] = schema
    if kind in ("record", "error"):
        inside = (*around, schema["name"])
        found = [_contains_itself(field["type"], inside, known) for field in schema["fields"]]
        return any(found)
    return _contains_itself(_part(schema), around, known)


def _part(schema: Mapping[str, Any]) -> Any:
    """What an array, a map or a type with attributes is of."""
    return {"array": schema.get("items"), "map": schema.get("values"), "enum": "int", "fixed": "bytes"}.get(
        schema["type"] if isinstance(schema["type"], str) else "", schema["type"]
    )


def _refuse_items_without_bytes(schema: Any, known: Mapping[str, Any]) -> None:
    if isinstance(schema, list):
        for each in schema:
            _refuse_items_without_bytes(each, known)
    elif isinstance(schema, Mapping):
        if schema["type"] == "array" and _takes_no_bytes(schema["items"], (), known):
            raise ValueError(
                "an array whose items take no bytes (null, a record without fields, a fixed of size 0) cannot be told "
                "from a body that only says it has many; let them have a field, or send their number"
            )
        if schema["type"] in ("record", "error"):
            for field in schema["fields"]:
                _refuse_items_without_bytes(field["type"], known)
        else:
            _refuse_items_without_bytes(_part(schema), known)


def _takes_no_bytes(schema: Any, around: tuple[str, ...], known: Mapping[str, Any]) -> bool:
    if isinstance(schema, list):
        return False  # which of them it is takes one
    if isinstance(schema, str):
        return schema == "null" or (
            schema in known and schema not in around and _takes_no_bytes(known[schema], around, known)
        )
    kind = schema["type"]
    if kind == "fixed":
        return bool(schema["size"] == 0)
    if kind in ("record", "error"):
        inside = (*around, schema["name"])
        return all(_takes_no_bytes(field["type"], inside, known) for field in schema["fields"])
    return not isinstance(kind, list) and kind not in ("array", "map", "enum") and _takes_no_bytes(kind, around, known)


def _what_is_wrong(errors: tuple[Any, ...]) -> str:
    """Which field, and why, without its value."""
    if not errors:
        return "it is not what the schema says"
    first = errors[0]
    kind = first.schema.get("type") if isinstance(first.schema, Mapping) else first.schema
    wanted = kind if isinstance(kind, str) else "union"
    return f"{first.field or 'it'} is a {type(first.datum).__name__} that is no {wanted} of the schema"
