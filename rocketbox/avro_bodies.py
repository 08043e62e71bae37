"""Values in Avro's binary encoding and back, of one schema: what hostile bodies and wrong values come to.

``fastavro`` reads and writes by C, which has no limit of depth: some 5,000 levels of a schema that contains itself,
a byte each, end the process. Such schemas are read and written by its Python twin, which ends with RecursionError.
That one puts a number together byte by byte, however many there are, which takes hours for some MB: it is cut.
Both take a negative place of an enum's symbol or a union's type as Python does, from the end: it is an error here.
A count of items that take no bytes is no evidence of them: seven bytes would be 10^12 nulls. No schema may have them.
Records, arrays and maps take much more memory than bytes: what they may take is counted (``body_memory``).
What is written of logical types is read once before it is taken: a number may stand for no date, a text for no UUID.
A double that a float does not hold would be infinite.

Source: Avro 1.11, "Binary Encoding", without a container; fastavro 1.13 ``_read_py``, ``_write_py``.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from math import inf
from typing import Any

from rocketbox.body_memory import BodyMemory, BodyTooLargeError

__all__ = ["AvroBodies"]

PLAIN = ("read", "write", "validation")
DECIMAL = "decimal-within-precision"
NAMED = ("record", "error", "enum", "fixed")
PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
CONTAINERS = ("record", "error", "array", "map")
NAMED_BY_PARSER, PARSED = "__named_schemas", "__fastavro_parsed"
"""Where a record that fastavro has parsed holds the named types that were known then, and what says that it is one."""
COUNTED, OWN_TYPE = "counted-in-memory", "logicalTypeOfItsOwn"
THE_BODY = "the_body_that_rocketbox_reads"
INFINITE_FLOATS = (b"\x00\x00\x80\x7f", b"\x00\x00\x80\xff")
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
        for kind in CONTAINERS:
            readers[f"{kind}-{COUNTED}"] = _counting_reader(kind, readers)
        known: dict[str, Any] = {}
        _collect_named(self._schema, _named_elsewhere(self._schema), known)
        for each in (self._schema, *known.values()):
            _refuse_items_without_bytes(each, known)
        parts = list(_all_parts(self._schema, known))
        self._has_logical = any(isinstance(part, Mapping) and "logicalType" in part for part in parts)
        self._has_float = "float" in parts
        contains_itself = _contains_itself(known)
        counted = _uses_names(self._schema)
        own = {name: _for_bodies(each, counted) for name, each in known.items()}
        self._schema_of_bodies = _in_a_record(_for_bodies(self._schema, counted), own)
        reading, writing, validation = ("_read_py", "_write_py", "_validation_py") if contains_itself else PLAIN
        self._opened = _EndingNumbers if contains_itself else io.BytesIO
        self._read = import_module(f"fastavro.{reading}").schemaless_reader
        self._write = import_module(f"fastavro.{writing}").schemaless_writer
        self._validate = import_module(f"fastavro.{validation}").validate
        self._wrong: Any = import_module("fastavro.validation").ValidationError

    def read(self, body: bytes) -> tuple[Any, bool]:
        """The value, and whether bytes are left after it.

        Raises BodyTooLargeError, and whatever the first wrong byte leads to.
        """
        _being_read.counted = BodyMemory().counted
        rest = self._opened(body)
        value = self._read(rest, self._schema_of_bodies, None)[THE_BODY]
        return value, bool(rest.read(1))

    def write(self, value: Any) -> bytes:
        """The body for a value. Raises ValueError, and whatever else the first wrong field leads to."""
        try:  # the writer itself makes 3 of 3.7, and an int of 2 ** 40, which no other reader takes
            self._validate(value, self._schema, raise_errors=True)
        except self._wrong as error:
            raise ValueError(_what_is_wrong(error.errors)) from None
        written = io.BytesIO()
        self._write(written, self._schema, value, strict_allow_default=True)  # drops nothing silently
        body = written.getvalue()
        if self._has_logical or (self._has_float and any(text in body for text in INFINITE_FLOATS)):
            self._check_written(body, value)
        return body

    def _check_written(self, body: bytes, value: Any) -> None:
        """Raise ValueError when readers of a body cannot have what was written."""
        try:
            found, _ = self.read(body)
        except BodyTooLargeError:  # for the readers here: it is a limit, and others may have more
            return
        except Exception as error:  # of whichever reader; its text may repeat the value
            kind = type(error).__name__
            raise ValueError(f"a value of it is none of its logical type, and could not be read ({kind})") from None
        if self._has_float and _infinite_in(found) > _infinite_in(value):
            raise ValueError("a number of it is too large for a float of the schema, and would be infinite")


def _infinite_in(value: Any) -> int:
    """How many numbers of a value are infinite."""
    if isinstance(value, float):
        return value in (inf, -inf)
    if isinstance(value, Mapping):
        return sum(map(_infinite_in, value.values()))
    return sum(map(_infinite_in, value)) if isinstance(value, list | tuple) else 0


def _all_parts(schema: Any, known: Mapping[str, Any]) -> Iterator[Any]:
    """The types of which a parsed schema is made, with those that it uses by their names."""
    waiting = [schema, *known.values()]
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, Mapping):
            waiting += _parts(part)


def _in_a_record(schema: Any, named: Mapping[str, Any]) -> Any:
    """A record of it alone, whose body is the same: of records alone fastavro knows that they were parsed before."""
    fields = [{"name": THE_BODY, "type": schema}]
    return {"type": "record", "name": THE_BODY, "fields": fields, PARSED: True, NAMED_BY_PARSER: dict(named)}


def _for_bodies(schema: Any, counted: bool) -> Any:
    """A parsed schema, as bodies are read by it."""
    return _with_own_places(_with_own_types(schema, counted))


def _with_own_places(schema: Any) -> Any:
    """A parsed schema where no place is negative: what a body counts, from the first on, is told by its number.

    A dictionary has no item from its end. The one of a union says its type, which fastavro takes from a list itself.
    """
    if isinstance(schema, list):
        return {"type": "union", **dict(enumerate(map(_with_own_places, schema)))}
    if not isinstance(schema, Mapping):
        return schema
    own = {name: _with_own_places(schema[name]) for name in ("type", "items", "values") if name in schema}
    if "symbols" in schema:
        own["symbols"] = dict(enumerate(schema["symbols"]))
    if "fields" in schema:
        own["fields"] = [_with_own_places(field) for field in schema["fields"]]
    return {**schema, **own}


class _EndingNumbers(io.BytesIO):
    """A body in which no number goes on for ever: numbers are read byte by byte, all but the last from 0x80 on."""

    _bytes_of_number = 0

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        self._bytes_of_number = self._bytes_of_number + 1 if size == 1 and found >= b"\x80" else 0
        if self._bytes_of_number > LONGEST_NUMBER:
            raise ValueError("a number in it does not end")
        return found


class _BeingRead(threading.local):
    """The body that a thread reads: fastavro tells readers of logical types nothing of it."""

    counted: Callable[[Any], Any]


_being_read = _BeingRead()


def _with_own_types(schema: Any, counted: bool) -> Any:
    """The schema with logical types of ours, whose readers are below.

    Containers are ``counted`` that are items of others, or may be: what comes once in a body is not, for counting takes
    as long as reading two fields.
    """
    if isinstance(schema, list):
        return [_with_own_types(each, counted) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    parts = {name: _with_own_types(schema[name], counted) for name in ("type", "fields") if name in schema}
    parts |= {name: _with_own_types(schema[name], True) for name in ("items", "values") if name in schema}
    logical = schema.get("logicalType")
    own: dict[str, Any] = {"logicalType": DECIMAL} if logical == "decimal" else {}
    if counted and schema.get("type") in CONTAINERS:
        own = {"logicalType": COUNTED, OWN_TYPE: logical}
    return {**schema, **parts, **own}


def _uses_names(schema: Any) -> bool:
    """Whether a type of the schema, as it was parsed, is used by its name: also within arrays, perhaps."""
    if isinstance(schema, str):
        return schema not in PRIMITIVES
    if isinstance(schema, list):
        return any(map(_uses_names, schema))
    if schema["type"] in ("record", "error"):
        return any(_uses_names(field["type"]) for field in schema["fields"])
    return _uses_names(_part(schema))


def _counting_reader(kind: str, readers: Mapping[str, Any]) -> Callable[..., Any]:
    """One that counts a container, and then does what a reader of its own logical type does."""

    def read_container(data: Any, writer_schema: Any = None, reader_schema: Any = None) -> Any:
        _being_read.counted(data)
        if (logical := writer_schema[OWN_TYPE]) is None or (own := readers.get(f"{kind}-{logical}")) is None:
            return data
        return own(data, writer_schema, reader_schema)

    return read_container


def _decimal_reader(read: Callable[..., Any]) -> Callable[..., Any]:
    """One that refuses what its precision does not hold; by itself fastavro rounds that, and takes hours for 4 MB."""

    def read_decimal(data: bytes, writer_schema: Any = None, reader_schema: Any = None) -> Any:
        if abs(int.from_bytes(data, signed=True)) >= 10 ** writer_schema["precision"]:
            raise ValueError("a decimal is longer than its precision")
        return read(data, writer_schema, reader_schema)

    return read_decimal


def _named_elsewhere(schema: Any) -> Mapping[str, Any]:
    """The named types that were known when a schema was parsed, of itself and of others."""
    parts = schema if isinstance(schema, list) else [schema]
    return {name: each for part in parts if isinstance(part, Mapping) for name, each in _named_with(part).items()}


def _named_with(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    named: Mapping[str, Any] = schema.get(NAMED_BY_PARSER, {})
    return named


def _collect_named(schema: Any, elsewhere: Mapping[str, Any], known: dict[str, Any]) -> None:
    """Give ``known`` the named types that a parsed schema has or uses."""
    if isinstance(schema, str):
        if schema in elsewhere and schema not in known:
            _collect_named(elsewhere[schema], elsewhere, known)
    elif isinstance(schema, list):
        for each in schema:
            _collect_named(each, elsewhere, known)
    else:
        if schema["type"] in NAMED:
            known[schema["name"]] = schema
        for part in _parts(schema):
            _collect_named(part, elsewhere, known)


def _contains_itself(known: Mapping[str, Any]) -> bool:
    """Whether a named type stands in its own fields, or in those of types in them."""
    uses = {name: {used for part in _parts(each) for used in _names_in(part)} for name, each in known.items()}
    while ends := [name for name, used in uses.items() if not used & uses.keys()]:
        for name in ends:
            del uses[name]
    return bool(uses)


def _names_in(schema: Any) -> set[str]:
    """The named types that stand in a schema, but for those within them."""
    if isinstance(schema, str):
        return {schema}
    if isinstance(schema, list):
        return {name for each in schema for name in _names_in(each)}
    if schema["type"] in NAMED:
        return {schema["name"]}
    return _names_in(_part(schema))


def _parts(schema: Mapping[str, Any]) -> list[Any]:
    """The types of a record's fields, or what another type is of."""
    if schema["type"] in ("record", "error"):
        return [field["type"] for field in schema["fields"]]
    return [_part(schema)]


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
