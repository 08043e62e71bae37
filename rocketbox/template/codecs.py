"""Formats of bodies besides JSON, text and bytes: MessagePack, Avro, Protobuf, and msgspec's structs in JSON.

A codec writes and reads one format; which one a message has is ``content_types``' business. The libraries are loaded
when a codec is made or first asked for a type that needs one.

Source: the formats' own: msgpack's specification, Avro 1.11 (binary encoding without a container, so that both sides
need the schema), Protocol Buffers' wire format.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum
from importlib import import_module
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from rocketbox.avro_bodies import AvroBodies
from rocketbox.body_memory import BodyMemory, BodyTooLargeError, may_be_too_large
from rocketbox.template.converters import PayloadError, describe_validation_error, lost_number
from rocketbox.template.non_finite import where_written_as_null
from rocketbox.template.typed_dicts import readable_by_pydantic

__all__ = ["AvroCodec", "MessagePackCodec", "PayloadCodec", "ProtobufCodec", "StructCodec", "is_library_type"]

Reader = Callable[[bytes], Any]


class PayloadCodec(ABC):
    """One format of bodies. A bean of this kind is known to the template and to listeners by its content type."""

    content_type: str
    """As ``application/msgpack``: lower case, without parameters; each codec of an application has one of its own."""

    def is_of(self, type_: Any) -> bool:
        """Whether values of a type are in this format even where no content type says so: of most they are not."""
        return False

    @abstractmethod
    def write(self, payload: Any) -> bytes:
        """The body that carries payload; PayloadError when there is none in this format."""

    @abstractmethod
    def reader(self, type_: Any) -> Reader:
        """A function from a body to a value of ``type_``, which raises PayloadError for what is none.

        Raises PayloadError, at start, for a type that can never be read.
        """


def is_library_type(type_: Any) -> bool:
    """Whether it is a class of messages by Protobuf, or a struct of msgspec's: a payload that names its library."""
    return _is_message(type_) or _is_struct(type_)


def _is_message(type_: Any) -> bool:
    loaded = sys.modules.get("google.protobuf.message")
    return loaded is not None and isinstance(type_, type) and issubclass(type_, loaded.Message)


def _is_struct(type_: Any) -> bool:
    loaded = sys.modules.get("msgspec")
    return loaded is not None and isinstance(type_, type) and issubclass(type_, loaded.Struct)


def _library(name: str, extra: str, content_type: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise PayloadError(f"{content_type} needs the package {extra}: pip install 'rocketbox[{extra}]'") from None


class _AsData:
    """Payloads as plain data and back, by pydantic: for formats that know numbers, text, bytes, lists and maps."""

    def __init__(self) -> None:
        self._adapters: dict[Any, TypeAdapter[Any]] = {}

    def dump(self, payload: Any, content_type: str) -> Any:
        if payload is None:
            raise PayloadError("None is no payload: a message needs a body; send an empty dict, or do not send")
        kind = type(payload)
        try:
            adapter = self._adapters.get(kind)
            if adapter is None:
                adapter = self._adapters[kind] = TypeAdapter[Any](kind)
            return adapter.dump_python(payload, by_alias=True)
        except (PydanticSchemaGenerationError, PydanticUserError, PydanticSerializationError) as error:
            raise unwritable(payload, content_type, error) from error

    def validator(self, type_: Any, content_type: str) -> Callable[[Any], Any]:
        try:
            validate = TypeAdapter[Any](readable_by_pydantic(type_)).validate_python
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            raise unreadable_type(type_, content_type, error) from error

        def read(data: Any) -> Any:
            try:
                return validate(data)
            except ValidationError as error:
                raise PayloadError(f"a body is no {_name(type_)}: {describe_validation_error(error)}") from None

        return read


def unwritable(payload: object, content_type: str, error: Exception) -> PayloadError:
    """What is wrong with a payload that a format has no words for."""
    kind = type(payload).__qualname__
    return PayloadError(f"a payload of type {kind} cannot be written as {content_type}: {_first_line(error)}")


def unreadable_type(type_: Any, content_type: str, error: Exception) -> PayloadError:
    """What is wrong with a type that no body of a format can become."""
    return PayloadError(f"no body of {content_type} can be read as {_name(type_)}: {_first_line(error)}")


def _unreadable(body: bytes, content_type: str, error: Exception) -> PayloadError:
    # Without the error's text, which may repeat the body, but for what it takes in memory.
    why = str(error) if isinstance(error, BodyTooLargeError) else type(error).__name__
    return PayloadError(f"a body of {len(body)} bytes is no {content_type}: {why}")


class MessagePackCodec(PayloadCodec):
    """MessagePack, for what JSON is for: times and the like are text in it, bytes stay bytes. Structs by msgspec."""

    content_type = "application/msgpack"

    def __init__(self) -> None:
        self._data = _AsData()

    def write(self, payload: Any) -> bytes:
        if _is_struct(type(payload)):
            return _write_struct(import_module("msgspec").msgpack, payload, self.content_type)
        msgpack = _library("msgpack", "msgpack", self.content_type)
        data = self._data.dump(payload, self.content_type)
        try:
            packed: bytes = msgpack.packb(data, default=to_jsonable_python)
        except (TypeError, ValueError, OverflowError, PydanticSerializationError) as error:
            raise unwritable(payload, self.content_type, error) from error
        return packed

    def reader(self, type_: Any) -> Reader:
        if _is_struct(type_):
            read_struct = _struct_reader(import_module("msgspec").msgpack, type_, self.content_type)

            def read_counted(body: bytes) -> Any:
                if may_be_too_large(body):
                    self._count(body)
                return read_struct(body)

            return read_counted
        validate = self._data.validator(type_, self.content_type)

        def read(body: bytes) -> Any:
            msgpack = _library("msgpack", "msgpack", self.content_type)
            try:
                counted = BodyMemory().counted
                data = msgpack.unpackb(  # times as datetimes
                    body, strict_map_key=False, timestamp=3, list_hook=counted, object_hook=counted
                )
            except Exception as error:  # its own, ValueError, RecursionError: a body may hold anything
                raise _unreadable(body, self.content_type, error) from None
            return validate(data)

        return read

    def _count(self, body: bytes) -> None:
        """Raise PayloadError for a body that would take too much memory: msgspec calls nothing that could count it.

        Where msgpack is not installed nothing is counted.
        """
        try:
            msgpack = import_module("msgpack")
        except ImportError:
            return
        counted = BodyMemory().counted

        def counted_map(pairs: list[tuple[Any, Any]]) -> Any:
            try:
                return counted(dict(pairs))
            except TypeError:  # keys that no dict takes, but a struct's field may
                return counted(pairs)

        try:
            msgpack.unpackb(body, raw=True, strict_map_key=False, list_hook=counted, object_pairs_hook=counted_map)
        except Exception as error:  # as above
            raise _unreadable(body, self.content_type, error) from None


class StructCodec(PayloadCodec):
    """``msgspec.Struct`` in JSON, by msgspec."""

    content_type = "application/json"

    def is_of(self, type_: Any) -> bool:
        return _is_struct(type_)

    def write(self, payload: Any) -> bytes:
        body = _write_struct(import_module("msgspec").json, payload, self.content_type)
        if b"null" in body:
            where = where_written_as_null(import_module("msgspec").to_builtins(payload), body)
            if where is not None:
                raise lost_number(type(payload), where)
        return body

    def reader(self, type_: Any) -> Reader:
        return _struct_reader(import_module("msgspec").json, type_, self.content_type)


def _write_struct(library: Any, payload: Any, content_type: str) -> bytes:
    try:
        body: bytes = library.encode(payload)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise unwritable(payload, content_type, error) from error
    return body


def _struct_reader(library: Any, type_: Any, content_type: str) -> Reader:
    try:
        decode = library.Decoder(type_).decode
    except TypeError as error:
        raise unreadable_type(type_, content_type, error) from error

    def read(body: bytes) -> Any:
        try:
            return decode(body)
        except Exception as error:  # msgspec's own say which field; a body may hold anything
            where = type(error).__name__
            if where == "ValidationError":
                where = re.sub(r"^(Invalid (?:enum )?value) .* (- at `[^`]*`)$", r"\1 \2", _first_line(error))[:1_000]
            raise PayloadError(f"a body of {len(body)} bytes is no {_name(type_)}: {where}") from None

    return read


class ProtobufCodec(PayloadCodec):
    """Protobuf: payloads of classes that ``protoc`` has made, in their wire format."""

    content_type = "application/x-protobuf"

    def is_of(self, type_: Any) -> bool:
        return _is_message(type_)

    def write(self, payload: Any) -> bytes:
        if not _is_message(type(payload)):
            raise PayloadError(
                f"a payload of type {type(payload).__qualname__} cannot be written as {self.content_type}: send a "
                "message of a class that protoc has made"
            )
        try:
            body: bytes = payload.SerializeToString()
        except Exception as error:  # EncodeError of whichever implementation: a required field is missing
            raise unwritable(payload, self.content_type, error) from error
        if not body:
            raise PayloadError(
                f"a {type(payload).__qualname__} of defaults alone has no bytes in {self.content_type}, and a message "
                "needs a body: set a field"
            )
        return body

    def reader(self, type_: Any) -> Reader:
        if not _is_message(type_):
            fix = TypeError("take the class that protoc has made, or bytes")
            raise unreadable_type(type_, self.content_type, fix)

        def read(body: bytes) -> Any:
            try:
                return type_.FromString(body)
            except Exception as error:  # DecodeError of whichever implementation
                raise _unreadable(body, f"{self.content_type} of {_name(type_)}", error) from None

        return read


class AvroCodec(PayloadCodec):
    """Avro, by fastavro: ``AvroCodec({Departure: schema})`` as a bean, with the schema of each type as a dict.

    Bodies are in the binary encoding alone, without schema or container, as most Java services write them: who reads
    has the schema that was written with. Raises ValueError for a schema with an array of items that take no bytes.
    """

    content_type = "application/avro"

    def __init__(self, schemas: Mapping[Any, Any]) -> None:
        _library("fastavro", "avro", self.content_type)
        self._bodies = {type_: AvroBodies(schema) for type_, schema in schemas.items()}
        self._data = _AsData()

    def is_of(self, type_: Any) -> bool:
        return _is_hashable(type_) and type_ in self._bodies

    def write(self, payload: Any) -> bytes:
        bodies, data = self._bodies_of(type(payload)), self._data.dump(payload, self.content_type)
        try:
            return bodies.write(_with_values_of_enums(data))
        except Exception as error:  # fastavro raises what the first wrong field does: KeyError, ValueError, TypeError
            raise unwritable(payload, self.content_type, error) from error

    def reader(self, type_: Any) -> Reader:
        bodies, validate = self._bodies_of(type_), self._data.validator(type_, self.content_type)

        def read(body: bytes) -> Any:
            try:
                data, is_longer = bodies.read(body)
            except Exception as error:  # as above, EOFError, RecursionError
                raise _unreadable(body, self.content_type, error) from None
            if is_longer:
                raise PayloadError(f"a body of {len(body)} bytes is longer than its Avro schema says")
            return validate(data)

        return read

    def _bodies_of(self, type_: Any) -> AvroBodies:
        if not self.is_of(type_):
            raise PayloadError(f"there is no Avro schema of {_name(type_)}: AvroCodec({{{_name(type_)}: schema}})")
        return self._bodies[type_]


def _with_values_of_enums(data: Any) -> Any:
    """Plain data of pydantic's, with the value of each Enum member in its place: no schema has members of Python's."""
    if isinstance(data, Enum):
        return data.value
    if isinstance(data, dict):
        return {_with_values_of_enums(key): _with_values_of_enums(value) for key, value in data.items()}
    if isinstance(data, list):
        return list(map(_with_values_of_enums, data))
    return tuple(map(_with_values_of_enums, data)) if isinstance(data, tuple) else data


def _is_hashable(type_: Any) -> bool:
    try:
        hash(type_)
    except TypeError:
        return False
    return True


def _name(type_: Any) -> str:
    return type_.__qualname__ if isinstance(type_, type) and not get_args(type_) else str(type_)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
