"""Formats of bodies besides JSON in Spark: MessagePack, Avro, Protobuf, by the option ``bodyFormat``.

A body that is read becomes JSON text, which all that follows knows: ``from_json``, the schema of a listener. Binary
values are base64 in it, as Spark reads them; times are ISO 8601, decimals text, enums of Protobuf their names, and a
number that JSON does not have is the text ``"NaN"`` or ``"Infinity"``. A value that is written becomes a body of the
format, and its message says so in the property ``contentType``, as the codecs of ``template.codecs`` do.

Spark's own ``from_avro`` and ``from_protobuf`` need packages of Java; these need a library of Python in Spark's
processes. ``avroSchema``, ``messageName`` and ``descFilePath`` are what Spark calls them there.

Source: the formats' own: msgpack's specification, Avro 1.11 (binary encoding without a container), Protocol Buffers'
wire format and its JSON mapping (of which numbers of 64 bits are left numbers: Spark reads no text as one).
"""

from __future__ import annotations

import base64
import datetime
import json
import math
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final

from rocketbox.avro_bodies import AvroBodies
from rocketbox.body_memory import BodyMemory, BodyTooLargeError
from rocketbox.spark.option_values import OptionValues, SourceOption

__all__ = ["CONTENT_TYPE", "READ_FORMAT_OPTIONS", "WRITE_FORMAT_OPTIONS", "BodyFormat", "body_format_of", "is_foreign"]

CONTENT_TYPE: Final = "contentType"
"""The property in which a message says what its body is."""
JSON: Final = "application/json"
_OF_FORMATS = (
    SourceOption("avroSchema", "For `bodyFormat=avro`: the schema of all bodies, as JSON."),
    SourceOption("messageName", "For `bodyFormat=protobuf`: the full name of the message, such as `shop.Order`."),
    SourceOption(
        "descFilePath",
        "For `bodyFormat=protobuf`: a file on the driver's machine with its descriptor, which `protoc "
        "--include_imports --descriptor_set_out=FILE` writes.",
    ),
)
READ_FORMAT_OPTIONS = (
    SourceOption(
        "bodyFormat",
        "What bodies are: `json` (or whatever else they are: they stay as they are), `messagepack`, `avro` or "
        "`protobuf`. Of the others `body` is JSON text, or null where a body is none, and `_error` says why; so is "
        "one of more than 16 MiB, or of which more than 64 MiB of JSON would come, or "
        "whose records, arrays and maps would take more than 256 MiB of memory. A message that says that "
        "it is JSON (property `contentType`) is left as it is.",
        "`json`",
    ),
    *_OF_FORMATS,
)
WRITE_FORMAT_OPTIONS = (
    SourceOption(
        "bodyFormat",
        "What `value` or `jsonColumns` become: `json`, `messagepack`, `avro` or `protobuf`; the property `contentType` "
        "says so, but for JSON.",
        "`json`",
    ),
    *_OF_FORMATS,
)
NEEDED = {"avro": ("avroSchema",), "protobuf": ("messageName", "descFilePath")}
LARGEST = 16 * 1024 * 1024
"""Bytes of a body (unpacked): a value of Python's takes up to 200 bytes for each of them."""
LONGEST_JSON = 64 * 1024 * 1024
"""Bytes of JSON text for a body: an empty part of a Protobuf message takes two, and has all its fields in JSON."""
WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


class BodyFormat(ABC):
    """One format; it is pickled to Spark's processes, and loads its library there."""

    content_type: ClassVar[str]

    def to_json(self, body: bytes, content_type: str | None) -> bytes:
        """The JSON text of a body, whose message says ``content_type``. Raises ValueError: the body is none."""
        said = "" if content_type is None else content_type.partition(";")[0].strip().lower()
        if said == JSON or said.endswith("+json"):
            return body
        if said != self.content_type and said in _CONTENT_TYPES:
            raise ValueError(f"its content type is {said}, and the option bodyFormat says {self.content_type}")
        try:
            if len(body) > LARGEST:
                raise _WrongBodyError(f"it has more than {LARGEST >> 20} MiB, and would fill the memory")
            text = _json_text(self.read(body))
            if len(text) > LONGEST_JSON:
                raise _too_long()
            return text
        except Exception as error:  # the library's own, RecursionError: a body may hold anything
            in_words = isinstance(error, _WrongBodyError | BodyTooLargeError)
            told = f": {error}" if in_words else f" ({type(error).__name__})"
            raise ValueError(f"its body of {len(body)} bytes is no {self.content_type}{told}") from None

    def to_body(self, value: Any) -> bytes:
        """The body for a value. Raises ValueError: it has none."""
        try:
            body = self.write(value)
        except Exception as error:  # whatever the library finds wrong with it
            raise ValueError(f"it is no {self.content_type}: {str(error).partition(chr(10))[0]}") from None
        if not body:
            raise ValueError(f"it has no bytes in {self.content_type}, and a message needs a body")
        return body

    @abstractmethod
    def read(self, body: bytes) -> Any:
        """What a body says, as values that JSON has, times, decimals and bytes."""

    @abstractmethod
    def write(self, value: Any) -> bytes:
        """The body for a value."""


class MessagePackFormat(BodyFormat):
    """MessagePack, in which whatever has no type there is as in JSON."""

    content_type = "application/msgpack"

    def __init__(self) -> None:
        self._msgpack = _library("msgpack", "msgpack", "messagepack")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def read(self, body: bytes) -> Any:
        counted = BodyMemory().counted
        return self._msgpack.unpackb(
            body, strict_map_key=False, timestamp=3, ext_hook=_unknown_extension, list_hook=counted, object_hook=counted
        )

    def write(self, value: Any) -> bytes:
        body: bytes = self._msgpack.packb(value)
        return body


class AvroFormat(BodyFormat):
    """Avro of one schema, which is not in the bodies."""

    content_type = "application/avro"

    def __init__(self, schema: str) -> None:
        self._text = schema
        _library("fastavro", "avro", "avro")
        try:
            self._bodies = AvroBodies(json.loads(schema))
        except Exception as error:  # SchemaParseException, KeyError and others, by what is wrong
            why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise ValueError(f"option avroSchema is no schema of Avro in JSON ({why})") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._text,)

    def read(self, body: bytes) -> Any:
        value, is_longer = self._bodies.read(body)
        if is_longer:
            raise _WrongBodyError("it is longer than its schema says")
        return value

    def write(self, value: Any) -> bytes:
        return self._bodies.write(value)


class ProtobufFormat(BodyFormat):
    """Messages of one type, of which the descriptors of its files are known.

    Maps are read and written by their keys: the library has them in an order that is another one in each process.
    """

    content_type = "application/x-protobuf"

    def __init__(self, name: str, descriptors: bytes) -> None:
        self._made_of = name, descriptors
        _library("google.protobuf", "protobuf", "protobuf")
        self._json = import_module("google.protobuf.json_format")
        try:
            files = import_module("google.protobuf.descriptor_pb2").FileDescriptorSet.FromString(descriptors).file
            pool = import_module("google.protobuf.descriptor_pool").DescriptorPool()
            for file in files:
                pool.Add(file)
            found = pool.FindMessageTypeByName(name)
        except KeyError as error:
            raise ValueError(f"option descFilePath has no message {name}, which messageName names: {error}") from None
        except Exception as error:  # DecodeError, TypeError: a file that another one imports is not there
            why = str(error).partition("\n")[0]
            raise ValueError(f"option descFilePath is no set of descriptors with all that they import: {why}") from None
        self._pool = pool
        self._type = import_module("google.protobuf.message_factory").GetMessageClass(found)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._made_of

    def read(self, body: bytes) -> Any:
        return self._plain(self._type.FromString(body), _Room())

    def write(self, value: Any) -> bytes:
        message = self._json.ParseDict(value, self._type(), descriptor_pool=self._pool)
        body: bytes = message.SerializeToString(deterministic=True)  # a row that is sent again has the same DEDUP_KEY
        return body

    def _plain(self, message: Any, room: _Room) -> Any:
        kind = message.DESCRIPTOR
        if kind.full_name in WRAPPERS:
            return message.value
        if kind.full_name.startswith("google.protobuf."):  # a time, a duration, a struct: text or values in JSON
            return _by_keys(self._json.MessageToDict(message, descriptor_pool=self._pool))
        room.take(len("{},"))
        found = {}
        for field in kind.fields:
            if not field.has_presence or message.HasField(field.name):
                room.take(len(field.name) + len('"":0,'))
                found[field.name] = self._field(field, getattr(message, field.name), room)
        return room.counted(found)

    def _field(self, field: Any, value: Any, room: _Room) -> Any:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            of = field.message_type.fields_by_name["value"]
            return room.counted({_key(key): self._one(of, value[key], room) for key in sorted(value)})
        if _is_repeated(field):
            return room.counted([self._one(field, each, room) for each in value])
        return self._one(field, value, room)

    def _one(self, field: Any, value: Any, room: _Room) -> Any:
        if field.message_type is not None:
            return self._plain(value, room)
        if field.enum_type is not None:
            known = field.enum_type.values_by_number.get(value)
            return value if known is None else known.name
        return value


_CONTENT_TYPES = {kind.content_type for kind in (MessagePackFormat, AvroFormat, ProtobufFormat)}


def body_format_of(values: OptionValues) -> BodyFormat | None:
    """What the options of a read or a write say; None: bodies are JSON, or left as they are.

    Raises ValueError naming the option and what would be right, and where a library is not installed.
    """
    name = values.word("bodyFormat", ("json", "messagepack", "avro", "protobuf")) or "json"
    needed = NEEDED.get(name, ())
    for option in ("avroSchema", "messageName", "descFilePath"):
        if option in values and option not in needed:
            others = next(each for each, options in NEEDED.items() if option in options)
            raise ValueError(f"option {option} is for bodyFormat={others}, and bodyFormat is {name}")
        if option in needed and option not in values:
            raise ValueError(f"option bodyFormat is {name}, which needs the option {option}")
    if name == "messagepack":
        return MessagePackFormat()
    if name == "avro":
        return AvroFormat(values.text("avroSchema") or "")
    if name == "protobuf":
        path = values.text("descFilePath") or ""
        try:
            descriptors = Path(path).read_bytes()
        except OSError as error:
            raise ValueError(f"option descFilePath is {path!r}, which cannot be read: {error.strerror}") from None
        return ProtobufFormat(values.text("messageName") or "", descriptors)
    return None


def is_foreign(options: Mapping[str, str]) -> bool:
    """Whether these options of a read have bodies become something else than they are."""
    return any(name.lower() == "bodyformat" and text.strip().lower() != "json" for name, text in options.items())


class _WrongBodyError(ValueError):
    """What is wrong with a body, in words that repeat nothing of it."""


class _Room:
    """For what becomes of a body, in JSON and in memory, which ends before it fills that."""

    def __init__(self) -> None:
        self._left = LONGEST_JSON
        self.counted = BodyMemory().counted

    def take(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise _too_long()


def _too_long() -> _WrongBodyError:
    return _WrongBodyError(f"its JSON has more than {LONGEST_JSON >> 20} MiB")


def _library(name: str, extra: str, format_: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ValueError(
            f"option bodyFormat is {format_}, which needs a library in each of Spark's processes: "
            f"pip install 'rocketbox[{extra}]'"
        ) from None


def _is_repeated(field: Any) -> bool:
    repeated: bool | None = getattr(field, "is_repeated", None)  # since Protobuf 6.31, which warns of label
    return bool(field.label == field.LABEL_REPEATED) if repeated is None else repeated


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _by_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _by_keys(value[key]) for key in sorted(value)}
    return list(map(_by_keys, value)) if isinstance(value, list) else value


def _unknown_extension(code: int, data: bytes) -> Any:
    raise _WrongBodyError(f"it has a value of the extension type {code}, which only its sender knows")


def _json_text(value: Any) -> bytes:
    try:
        text = _dumps(value)
    except ValueError:  # JSON has no NaN
        text = _dumps(_numbers_as_text(value))
    return text.encode()


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_as_json)


def _numbers_as_text(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _numbers_as_text(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_numbers_as_text(each) for each in value]
    return value


def _as_json(value: Any) -> str:
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, uuid.UUID):
        return str(value)
    raise _WrongBodyError(f"it has a {type(value).__name__}, which JSON has not")
