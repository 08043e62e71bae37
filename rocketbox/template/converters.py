"""Payloads to bodies and back: what the template sends and what a listener is handed.

Holds the protocol and the one built-in converter (JSON by pydantic, text and bytes as they are). How a payload
becomes a message, with its keys and properties, is the template's business.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Protocol, Union, get_args, get_origin, runtime_checkable

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import PydanticSerializationError

from rocketbox.errors import InvalidMessageError
from rocketbox.safe_repr import one_line
from rocketbox.template.non_finite import has_no_place_for_them, where_an_iterator_is, where_written_as_null
from rocketbox.template.typed_dicts import readable_by_pydantic

__all__ = [
    "JsonMessageConverter",
    "MessageConverter",
    "PayloadError",
    "describe_validation_error",
    "lost_number",
    "unwritable_as_json",
]

Reader = Callable[[bytes], Any]
Writer = Callable[[Any], bytes]

PROBLEMS_TOLD = 10
MANY_PROBLEMS = 10_000


class PayloadError(InvalidMessageError):
    """A payload has no body of its own, or a body cannot be read as the type that was asked for.

    The text says which field and why, never the values: they are the user's data.
    """


@runtime_checkable
class MessageConverter(Protocol):
    """Two-way: what ``to_body`` writes, ``from_body`` reads back for the same type."""

    def to_body(self, payload: Any) -> bytes:
        """The body of a message that carries payload; PayloadError when it has none."""

    def from_body(self, body: bytes, type_: Any) -> Any:
        """The body as a value of ``type_`` (a class, a union, ``list[...]``); PayloadError when it is none."""

    def check(self, type_: Any) -> None:
        """Raise PayloadError, at start, for a type that this converter can never read."""


class JsonMessageConverter:
    """``bytes`` and ``str`` (UTF-8) as they are; all else as JSON, by pydantic's ``TypeAdapter``.

    Pydantic models, dataclasses, TypedDicts, dicts and unions of them are validated when read. Models are written
    by their aliases, so that they can be read again. NaN and the infinities, which JSON has not, are refused unless the
    payload's config says ``ser_json_inf_nan``.
    """

    def __init__(self) -> None:
        self._writers: dict[Any, Writer] = {}
        self._readers: dict[Any, Reader] = {}

    def to_body(self, payload: Any) -> bytes:
        if isinstance(payload, bytes | bytearray | memoryview):
            return bytes(payload)
        if isinstance(payload, str):
            try:
                return payload.encode()
            except UnicodeEncodeError as error:
                raise PayloadError(f"the text has no UTF-8: {error.reason} at {error.start}") from None
        if payload is None:
            raise PayloadError("None is no payload: a message needs a body; send an empty dict, or do not send")
        kind = type(payload)
        try:
            return (self._writers.get(kind) or self._writer(kind))(payload)
        except (PydanticSchemaGenerationError, PydanticUserError, PydanticSerializationError) as error:
            raise unwritable_as_json(kind, error) from error

    def from_body(self, body: bytes, type_: Any) -> Any:
        try:
            reader = self._readers[type_]
        except (KeyError, TypeError):  # TypeError: an Annotated with unhashable metadata, which is not kept
            reader = self._reader(type_)
        return reader(body)

    def check(self, type_: Any) -> None:
        self._reader(type_)

    def build_reader(self, type_: Any) -> Reader:
        """A function from a body to a value of ``type_``; PayloadError for a type that can never be read."""
        return _build_reader(type_)

    def _writer(self, type_: Any) -> Writer:
        writer = self._writers[type_] = _build_writer(TypeAdapter[Any](type_))
        return writer

    def _reader(self, type_: Any) -> Reader:
        # Built once for each type: a TypeAdapter costs about 0.6 ms, reading by it a few microseconds.
        reader = self.build_reader(type_)
        try:
            self._readers[type_] = reader
        except TypeError:
            return reader
        return reader


def unwritable_as_json(kind: type, error: Exception) -> PayloadError:
    """What is wrong with a payload that JSON has no words for."""
    return PayloadError(
        f"a payload of type {kind.__qualname__} cannot be written as JSON: {_first_line(error)}; "
        "send a pydantic model, a dataclass, a dict, str or bytes"
    )


def _build_writer(adapter: TypeAdapter[Any]) -> Writer:
    """A function from a payload to its JSON, by the adapter of its type.

    It raises PydanticSerializationError, and PayloadError for a number that would be ``null`` in the body. Whatever it
    raises, the payload must not be written again: iterators in it have been read, and would be empty.
    """

    def write(payload: Any) -> bytes:
        body = adapter.dump_json(payload, by_alias=True)
        if b"null" in body:
            _refuse_lost_numbers(adapter, payload, body)
        return body

    def write_without_such_numbers(payload: Any) -> bytes:
        # Most payloads of most types are so, and some null is in many of them: the check takes longer than the writing.
        try:
            return adapter.dump_json(payload, by_alias=True, warnings="error")
        except PydanticSerializationError as error:  # something in it is not of its field's type, and may be anything
            where = where_an_iterator_is(adapter.dump_python(payload, by_alias=True, warnings="none"))
            if where is not None:
                raise PayloadError(
                    f"a payload of type {type(payload).__qualname__} has an iterator{f' in {where}' if where else ''}, "
                    "where its type says something else, and it has been read now, which can be done once; send a list"
                ) from error
            return write(payload)

    return write_without_such_numbers if has_no_place_for_them(adapter.core_schema) else write


def _refuse_lost_numbers(adapter: TypeAdapter[Any], payload: Any, body: bytes) -> None:
    """Raise PayloadError for NaN or an infinity of a payload that is ``null`` in its body, unless that is asked for."""
    where = where_written_as_null(adapter.dump_python(payload, by_alias=True), body)
    if where is not None:
        kind = type(payload)
        config = getattr(kind, "model_config", None) or getattr(kind, "__pydantic_config__", None) or {}
        if config.get("ser_json_inf_nan") != "null":
            raise lost_number(kind, where)


def lost_number(kind: type, where: str) -> PayloadError:
    """What is wrong with a payload that has a number which JSON has not."""
    return PayloadError(
        f"a payload of type {kind.__qualname__} has NaN or an infinity{f' in {where}' if where else ''}, and JSON has "
        "no such number: send None, have the model's config say ser_json_inf_nan ('strings' can be read again, 'null' "
        "sends null), or take another format, such as MessagePack"
    )


def _build_reader(type_: Any) -> Reader:
    if type_ is bytes:
        return bytes
    if type_ is str:
        return _read_text
    if get_origin(type_) in (Union, types.UnionType) and {str, bytes} & set(get_args(type_)):
        return _read_union(type_)
    try:
        validate = TypeAdapter[Any](readable_by_pydantic(type_)).validate_json
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise PayloadError(f"no body can be read as {_name(type_)}: {_first_line(error)}") from error

    def read(body: bytes) -> Any:
        try:
            return validate(body)
        except ValidationError as error:
            raise PayloadError(
                f"a body of {len(body)} bytes is no {_name(type_)}: {describe_validation_error(error)}"
            ) from None  # the original's text repeats the body

    return read


def _read_text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise PayloadError(f"a body of {len(body)} bytes is no UTF-8 text: {error.reason} at {error.start}") from None


def _read_union(type_: Any) -> Reader:
    """``Departure | str``: what is no JSON of the other members is the text (or the bytes) itself."""
    members = get_args(type_)
    structured = tuple(member for member in members if member not in (str, bytes, type(None)))
    readers: list[Reader] = [_build_reader(Union[structured])] if structured else []  # noqa: UP007 - from a tuple
    readers += [_read_text] if str in members else []
    readers += [bytes] if bytes in members else []

    def read(body: bytes) -> Any:
        for reader in readers[:-1]:
            try:
                return reader(body)
            except PayloadError:
                continue
        return readers[-1](body)

    return read


def describe_validation_error(error: ValidationError) -> str:
    """Where and why, without the values that were rejected: of many problems the first, and cut where it is long."""
    count = error.error_count()
    if count > MANY_PROBLEMS:  # pydantic makes a dict of each of them, and a body may have a million
        return f"{count} problems, too many to tell of"
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    told = "; ".join(_describe(problem) for problem in problems[:PROBLEMS_TOLD])
    return told if count <= PROBLEMS_TOLD else f"{told}; and {count - PROBLEMS_TOLD} more problems"


def _describe(problem: Any) -> str:
    # The one text of pydantic's that repeats a value.
    what = "Input tag is none of the expected tags" if problem["type"] == "union_tag_invalid" else problem["msg"]
    where = ".".join(_cut(str(step), 100) for step in problem["loc"])  # names of fields, also those of the body
    return one_line(_cut(f"{_cut(where, 500)}: {what}" if where else what, 1_000))


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}..."


def _name(type_: Any) -> str:
    return type_.__qualname__ if isinstance(type_, type) and not get_args(type_) else str(type_)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
