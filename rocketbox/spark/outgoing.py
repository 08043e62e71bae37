"""Rows as messages: which column of a written frame is which part of a message, and the messages of a record batch.

A plan is made once, where Spark plans the write, and refuses what is not clear: each column is a part of a message, is
said to become JSON, or is said to be left out. What is wrong with one row is its own :class:`RowError`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t

from rocketbox.message import RESERVED_PROPERTIES, Message
from rocketbox.spark.body_formats import CONTENT_TYPE, AvroFormat, BodyFormat, MessagePackFormat, ProtobufFormat
from rocketbox.spark.json_values import (
    Convert,
    base64_form,
    binary_form,
    column_values,
    encode_json,
    json_form,
    plain_form,
    struct_names,
)
from rocketbox.spark.write_options import WriteOptions, wrong_level

__all__ = ["DEDUP_KEY", "OutgoingPlan", "RowError", "digest_of"]

DEDUP_KEY = "DEDUP_KEY"
"""The property by which a consumer knows a message that it has had already."""

WORDS = t.ArrayType(t.StringType())
MAP = t.MapType(t.StringType(), t.StringType())
PARTS: Mapping[str, tuple[tuple[type[t.DataType], ...], str]] = {
    "body": ((t.BinaryType, t.StringType), "binary or string"),
    "value": ((t.StructType, t.MapType, t.ArrayType), "a struct, map or array, which becomes JSON"),
    "topic": ((t.StringType,), "string"),
    "tag": ((t.StringType,), "string"),
    "keys": ((t.StringType, t.ArrayType), "string (words separated by spaces) or array<string>"),
    "properties": ((t.MapType,), "map<string,string>"),
    "delay_level": ((t.IntegralType,), "int"),
    "hash_key": ((t.StringType,), "string"),
}
"""The columns that are parts of a message, with their types."""
MEANT = {
    "tags": "tag", "key": "keys", "headers": "properties", "sharding_key": "hash_key", "delay": "delay_level",
    "partition": "hash_key", "payload": "body", "data": "body", "delaylevel": "delay_level", "hashkey": "hash_key",
}  # fmt: skip
FORMS: Mapping[type[BodyFormat], Callable[[t.DataType, str], Convert | None]] = {
    MessagePackFormat: binary_form, AvroFormat: plain_form, ProtobufFormat: base64_form,
}  # fmt: skip
"""What a format takes values as."""
BY_OPTION = {"topic": "topic", "tag": "tag", "delay_level": "delayLevel", "hash_key": "hashKey"}


class RowError(ValueError):
    """A row that cannot become a message; ``row`` is its number in the record batch."""

    def __init__(self, row: int, what: str) -> None:
        self.row = row
        super().__init__(what)


class OutgoingPlan:
    """How rows of ``schema`` become messages. Raises ValueError naming the column and what would be right."""

    def __init__(self, schema: t.StructType, options: WriteOptions) -> None:
        self._options = options
        self._format = options.body_format
        self._form = json_form if self._format is None else FORMS[type(self._format)]
        self._encode = encode_json if self._format is None else self._format.to_body
        self._what = "JSON" if self._format is None else self._format.content_type
        self._columns: dict[str, int] = {}
        self._json: list[tuple[str, int, Convert | None]] = []
        ignored = {name.lower() for name in options.ignore_columns}
        if missing := ignored - {name.lower() for name in schema.names}:
            raise ValueError(f"option ignoreColumns names {min(missing)!r}, and the frame has no such column")
        left = {
            name: index for index, name in enumerate(schema.names) if name.lower() not in ignored
        }  # fmt: skip
        self._take_json(schema, left)
        for name, index in left.items():
            self._take(name, index, schema.fields[index].dataType)
        self._check_payload()
        self._check_once()
        self._value: Convert | None = None
        if "value" in self._columns:
            self._value = self._form(schema.fields[self._columns["value"]].dataType, "value")
        self._text_keys = "keys" in self._columns and isinstance(
            schema.fields[self._columns["keys"]].dataType, t.StringType
        )

    def _take_json(self, schema: t.StructType, left: dict[str, int]) -> None:
        names = self._options.json_columns
        if names is None:
            return
        if names == ("*",):
            names = tuple(name for name in left if name.lower() not in PARTS)
        struct_names(t.StructType([schema.fields[left[name]] for name in names if name in left]), "option jsonColumns")
        for name in names:
            if name not in left:
                raise ValueError(f"option jsonColumns names {name!r}, and the frame has no such column to write")
            index = left.pop(name)
            self._json.append((name, index, self._form(schema.fields[index].dataType, name)))
        if not self._json:
            raise ValueError(
                "option jsonColumns is *, and all columns of the frame are parts of messages; leave it out"
            )

    def _take(self, name: str, index: int, kind: t.DataType) -> None:
        part = name.lower()
        if part not in PARTS:
            hint = f"did you mean {MEANT[part]}? " if part in MEANT else ""
            raise ValueError(
                f"column {name!r} is no part of a message ({', '.join(PARTS)}). {hint}Name it in the option "
                "jsonColumns (several with commas, * is all such columns) to write it as a field of a JSON body, or in "
                "ignoreColumns to leave it out"
            )
        kinds, words = PARTS[part]
        right = isinstance(kind, kinds)
        if isinstance(kind, t.ArrayType) and part == "keys":
            right = isinstance(kind.elementType, t.StringType)
        if part == "properties":
            right = right and kind.simpleString() == MAP.simpleString()
        if not right:
            raise ValueError(f"column {name} is {kind.simpleString()}; it must be {words}")
        if part in self._columns:
            raise ValueError(f"the frame has the column {part} twice; rename or drop one")
        self._columns[part] = index

    def _check_payload(self) -> None:
        given: list[str] = [name for name in ("body", "value") if name in self._columns]
        if self._json:
            given.append("jsonColumns")
        if not given:
            raise ValueError(
                "the frame has no payload: name a column body (binary or string), or value (a struct, written as "
                "JSON), or say with the option jsonColumns which columns become fields of a JSON body"
            )
        if len(given) > 1:
            raise ValueError(f"the payload is not clear: there are {' and '.join(given)}; keep one of them")
        if self._format is not None and given == ["body"]:
            raise ValueError(
                "option bodyFormat says what value or jsonColumns become, and the payload is the column body, which "
                "stays as it is; leave the option out"
            )

    def _check_once(self) -> None:
        for part, option in BY_OPTION.items():
            said = {
                "topic": self._options.topic, "tag": self._options.tag, "hash_key": self._options.hash_key,
                "delay_level": self._options.delay_level or None,
            }[part]  # fmt: skip
            if said is not None and part in self._columns:
                raise ValueError(
                    f"the frame has the column {part}, and the option {option} is {said!r}: drop the column, name it "
                    "in ignoreColumns, or leave the option out"
                )
        if "topic" not in self._columns and self._options.topic is None:
            raise ValueError("no row has a topic: give the option topic, or a column topic")

    def messages(self, batch: pa.RecordBatch, key_of: Callable[[int, str], str]) -> Iterator[Message | RowError]:
        """One for each row; ``key_of(row, digest)`` is the row's DEDUP_KEY."""
        options = self._options
        count = batch.num_rows
        bodies = self._bodies(batch)
        nothing = [None] * count
        columns = {
            part: column_values(batch.column(index))
            for part, index in self._columns.items()
            if part not in ("body", "value")
        }
        topics = columns.get("topic") or [options.topic] * count
        tags = columns.get("tag") or [options.tag] * count
        levels = columns.get("delay_level") or [options.delay_level] * count
        hash_keys = columns.get("hash_key") or [options.hash_key] * count
        all_keys, all_properties = columns.get("keys") or nothing, columns.get("properties") or nothing
        for row in range(count):
            try:
                body = next(bodies)
                if isinstance(body, ValueError):
                    raise body
                for part, values in columns.items():
                    if isinstance(values[row], ValueError):
                        raise ValueError(f"its {part} cannot be sent: {values[row]}")
                if topics[row] is None:
                    raise ValueError("its topic is null")
                if (level := levels[row] or 0) and (why := wrong_level(level)) is not None:
                    raise ValueError(f"its delay_level is {level}; {why}")
                keys = self._keys(all_keys[row])
                properties = self._properties(all_properties[row])
                message = Message(topics[row], body, tags[row], keys, properties, hash_keys[row], level)
                if self._format is not None:
                    properties[CONTENT_TYPE] = self._format.content_type
                properties[DEDUP_KEY] = key_of(row, digest_of(message))
            except ValueError as error:
                yield RowError(row, str(error))
            else:
                yield message

    def _bodies(self, batch: pa.RecordBatch) -> Iterator[bytes | ValueError]:
        if (index := self._columns.get("body")) is not None:
            for body in batch.column(index).cast(pa.binary()).to_pylist():
                yield ValueError("its body is null; RocketMQ has no message without a body") if body is None else body
            return
        if (index := self._columns.get("value")) is not None:
            convert = self._value or _as_it_is
            for value in column_values(batch.column(index)):
                if value is None:
                    yield ValueError("its value is null; RocketMQ has no message without a body")
                elif isinstance(value, ValueError):
                    yield ValueError(f"its value has no {self._what}: {value}")
                else:
                    yield self._body(convert(value))
            return
        columns = [
            (name, column_values(batch.column(index)), convert or _as_it_is) for name, index, convert in self._json
        ]  # fmt: skip
        for row in range(batch.num_rows):
            wrong = [(name, values[row]) for name, values, _ in columns if isinstance(values[row], ValueError)]
            if wrong:
                name, error = wrong[0]
                yield ValueError(f"its column {name} has no {self._what}: {error}")
            else:
                yield self._body({name: convert(values[row]) for name, values, convert in columns})

    def _body(self, value: Any) -> bytes | ValueError:
        try:
            return self._encode(value)
        except ValueError as error:
            return ValueError(f"its value has no {self._what}: {error}")

    def _keys(self, keys: Any) -> tuple[str, ...]:
        if keys is None:
            return ()
        return tuple(keys.split()) if self._text_keys else tuple(key for key in keys if key is not None)

    def _properties(self, pairs: Any) -> dict[str, str]:
        """Those that are not null. Raises ValueError for a name of RocketMQ's, unless such ones are to be dropped."""
        properties = {name: value for name, value in pairs or () if value is not None}
        reserved = [name for name in properties if name in RESERVED_PROPERTIES or name == DEDUP_KEY]
        if reserved and not self._options.drop_reserved:
            raise ValueError(
                f"its property {reserved[0]} is a name of RocketMQ's own; the option reservedProperties=drop leaves "
                "such properties out, as a copy of read messages needs it"
            )
        for name in reserved:
            del properties[name]
        return properties


def _as_it_is(value: Any) -> Any:
    return value


def digest_of(message: Message) -> str:
    """16 hexadecimal digits of all that the message says: another message with the same row number has others."""
    parts = (message.topic, message.tag, *message.keys, "", *sorted(message.properties.items()), message.hash_key)
    digest = hashlib.blake2b(repr((*parts, message.delay_level)).encode("utf-8", "surrogatepass"), digest_size=8)
    digest.update(message.body)
    return digest.hexdigest()
