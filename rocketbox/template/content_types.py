"""Which format a body has: by the content type that is said, else by the payload's type, else JSON, text or bytes.

The content type stands in the property ``contentType``, as in messages of rocketmq-spring, whose values for JSON and
text change nothing here: JSON, text and bytes are told apart by the type that they are wanted as. Only the content
types of codecs decide by themselves. Bytes are never read or written in any format: they are the body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pydantic_core import PydanticSerializationError

from rocketbox.message import MessageExt
from rocketbox.template.codecs import MessagePackCodec, PayloadCodec, ProtobufCodec, Reader, StructCodec
from rocketbox.template.converters import JsonMessageConverter, MessageConverter, PayloadError, unwritable_as_json
from rocketbox.template.spring_headers import CONTENT_TYPE

__all__ = [
    "NAMES_CONTENT_TYPE",
    "CodecMessageConverter",
    "content_type_of",
    "read_payload",
    "spring_content_type",
    "write_payload",
]

JSON: Final = "application/json"
NAMES_CONTENT_TYPE: Final = CONTENT_TYPE.encode() + b"\x01"
"""What is in the property text of a message that names one."""


def content_type_of(message: MessageExt) -> str | None:
    """What a message says of its body's format; of most messages nothing, and their properties stay unread."""
    return message.properties.get(CONTENT_TYPE) if NAMES_CONTENT_TYPE in message.raw_properties else None


def write_payload(converter: MessageConverter, payload: Any, content_type: str | None) -> tuple[bytes, str | None]:
    """The body, and the content type that is to be said of it; an own converter has a format of its own."""
    encode = getattr(converter, "encode", None)
    if encode is None:
        return converter.to_body(payload), None
    written: tuple[bytes, str | None] = encode(payload, content_type)
    return written


def read_payload(converter: MessageConverter, body: bytes, type_: Any, content_type: str | None) -> Any:
    """The body as a value of a type; an own converter has a format of its own."""
    decode = getattr(converter, "decode", None) if content_type is not None else None
    return converter.from_body(body, type_) if decode is None else decode(body, type_, content_type)


class CodecMessageConverter(JsonMessageConverter):
    """JSON, text and bytes as :class:`JsonMessageConverter`, and the formats of codecs.

    MessagePack, Protobuf and msgspec's structs are there by themselves, with their packages; ``codecs`` are further
    ones, and take the place of those of the same content type. ``content_type`` is what payloads are written in that
    are neither text nor bytes nor of a codec's own types, where a send does not say it. Raises PayloadError for two
    codecs of one content type, and for one that would never be asked.
    """

    def __init__(self, codecs: Sequence[PayloadCodec] = (), *, content_type: str = JSON) -> None:
        super().__init__()
        _refuse_unreachable(codecs)
        own: list[PayloadCodec] = [MessagePackCodec(), ProtobufCodec()]
        self._by_content_type = {codec.content_type: codec for codec in [*own, *codecs]}
        self._of_types = (StructCodec(), *self._by_content_type.values())
        self._by_type: dict[Any, PayloadCodec | None] = {}
        self._codec_readers: dict[tuple[str, Any], Reader] = {}
        self._default = None if _is_json(_essence(content_type)) else self._codec(_essence(content_type))

    def to_body(self, payload: Any) -> bytes:
        return self.encode(payload, None)[0]

    def encode(self, payload: Any, content_type: str | None) -> tuple[bytes, str | None]:
        """The body, and the content type to say of it: None where the reader's type says enough, or it is said already.

        Raises PayloadError for a content type that no codec has, unless the payload is text or bytes.
        """
        kind = type(payload)
        if (
            content_type is None
            and self._default is None
            and (write := self._writers.get(kind)) is not None
            and self._by_type.get(kind, self) is None  # a codec's may have been sent as JSON, where that was said
        ):
            try:
                return write(payload), None
            except PydanticSerializationError as error:
                raise unwritable_as_json(kind, error) from error
        if isinstance(payload, bytes | bytearray | memoryview):
            return bytes(payload), None
        if content_type is None:
            codec = self._codec_of(kind)
            if codec is None and not isinstance(payload, str):
                codec = self._default
        else:
            essence = _essence(content_type)
            if _is_json(essence):
                codec = self._struct_codec(kind)
            elif isinstance(payload, str) and essence not in self._by_content_type:
                codec = None
            else:
                codec = self._codec(essence)
        if codec is None:
            return super().to_body(payload), None
        said = content_type is not None or codec.content_type == JSON
        return codec.write(payload), None if said else codec.content_type

    def decode(self, body: bytes, type_: Any, content_type: str | None) -> Any:
        """The body as a value of a type, in the format that the content type names, if it is one of a codec or JSON."""
        essence = "" if content_type is None or type_ is bytes else _essence(content_type)
        if not _is_json(essence) and essence not in self._by_content_type:
            return self.from_body(body, type_)
        place = JSON if _is_json(essence) else essence
        try:
            reader = self._codec_readers[place, type_]
        except KeyError:
            reader = self._codec_readers[place, type_] = self._reader_of(place, type_)
        except TypeError:  # an Annotated with unhashable metadata, which is not kept
            reader = self._reader_of(place, type_)
        return reader(body)

    def build_reader(self, type_: Any) -> Reader:
        codec = self._codec_of(type_)
        return super().build_reader(type_) if codec is None else codec.reader(type_)

    def _reader_of(self, content_type: str, type_: Any) -> Reader:
        codec = self._struct_codec(type_) if content_type == JSON else self._by_content_type[content_type]
        if codec is not None:
            return codec.reader(type_)
        try:
            return super().build_reader(type_)
        except PayloadError:
            if (own := self._codec_of(type_)) is None:
                raise
            told = f"the message says that its body is JSON, and a {type_.__qualname__} is read from {own.content_type}"
            raise PayloadError(told) from None

    def _struct_codec(self, type_: Any) -> PayloadCodec | None:
        """The codec that has a JSON of its own for a type."""
        codec = self._codec_of(type_)
        return codec if codec is not None and codec.content_type == JSON else None

    def _codec(self, essence: str) -> PayloadCodec:
        codec = self._by_content_type.get(essence)
        if codec is None:
            known = ", ".join(sorted([JSON, *self._by_content_type]))
            raise PayloadError(
                f"no codec writes {essence!r}, which is said to be the content type; there are {known}. Send bytes or "
                "text of that type, or make a bean of a codec for it"
            )
        return codec

    def _codec_of(self, type_: Any) -> PayloadCodec | None:
        """The codec whose own type it is."""
        try:
            return self._by_type[type_]
        except KeyError:
            found = next((codec for codec in self._of_types if codec.is_of(type_)), None)
            self._by_type[type_] = found
            return found
        except TypeError:  # an Annotated with unhashable metadata
            return None


def _refuse_unreachable(codecs: Sequence[PayloadCodec]) -> None:
    """Raise PayloadError for a codec that would never be asked, and its types be written as something else."""
    names: dict[str, str] = {}
    for codec in codecs:
        name, said = type(codec).__qualname__, codec.content_type
        if said != _essence(said) or not said:
            raise PayloadError(f"{name}.content_type is {said!r}; write it in lower case, without parameters")
        if _is_json(said) and type(codec).is_of is PayloadCodec.is_of:
            raise PayloadError(
                f"{name} is a codec of {said}, which is written and read without one: let its is_of() say of which "
                "types, or make a bean of a MessageConverter"
            )
        if said in names:
            raise PayloadError(
                f"{names[said]} and {name} are both codecs of {said}, and a body could be of either: make one of them "
                "that has all types"
            )
        names[said] = name


def spring_content_type(payload: object, content_type: str | None) -> str:
    """What rocketmq-spring says of such a payload."""
    if content_type is not None:
        return content_type
    if isinstance(payload, bytes | bytearray | memoryview):
        return "application/octet-stream"
    return "text/plain;charset=UTF-8" if isinstance(payload, str) else JSON


def _essence(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _is_json(essence: str) -> bool:
    return essence == JSON or essence.endswith("+json")
