"""A send's header cut where its time and properties stand, g and i of a V2 header: what lies around them is the same
in all sends of one producer to one queue.

The cuts are found by bytes, and bytes that look like a name may be part of a value. So who believes them looks once
at what lies around, whole entries of a binary header (:func:`read_entries`), or in JSON the only fields of these names
(:func:`are_sure_in_json`): the same pieces mean the same in any other header then. What they mean is the business of
``send_frames`` and of access control's ``signed_sends``.

Source: Apache RocketMQ 5.x ``SendMessageRequestHeaderV2``, ``RocketMQSerializable``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from json.decoder import scanstring  # type: ignore[attr-defined]  # the types leave out the reader of one string
from typing import Final

__all__ = [
    "BORN",
    "BORN_DIGITS",
    "EXT_AT",
    "PROPERTIES",
    "Around",
    "SendPieces",
    "are_sure_in_json",
    "cut_binary",
    "cut_json",
    "read_entries",
]

EXT_AT: Final = 21  # where the entries begin in a binary header without a remark; their size stands before them
_REMARK_SIZE = slice(13, 17)
BORN: Final = b"\x00\x01g\x00\x00\x00\x0d"  # the name g and a value of 13 digits: ms of the years 2001 to 2286
BORN_DIGITS: Final = 13
PROPERTIES: Final = b"\x00\x01i"  # the name i
_JSON_BORN = b',"g":"'
_JSON_PROPERTIES = b'","i":"'

_SIZE = struct.Struct(">I")
_SHORT = struct.Struct(">H")

Around = tuple[bytes, bytes, bytes]
"""What lies before the time, between both, and behind the properties."""
SendPieces = tuple[bytes, bytes, Around, int]
"""The digits of the time, the property text (UTF-8), what lies around, and where in the header its last part begins."""


def cut_binary(header: bytes) -> SendPieces | None:
    """The pieces of a binary header with its fields in the usual order, g before i; None for any other."""
    born_at = header.find(BORN, EXT_AT)
    born_end = born_at + len(BORN) + BORN_DIGITS
    properties_at = header.find(PROPERTIES, born_end)
    start = properties_at + len(PROPERTIES) + 4
    if born_at < 0 or properties_at < 0 or start > len(header) or any(header[_REMARK_SIZE]):
        return None
    end = start + _SIZE.unpack_from(header, start - 4)[0]
    born = header[born_end - BORN_DIGITS : born_end]
    if end > len(header) or not born.isdigit():
        return None
    return born, header[start:end], (header[EXT_AT:born_at], header[born_end:properties_at], header[end:]), end


def cut_json(header: bytes) -> SendPieces | None:
    """The pieces of a JSON header whose end has the form that Java writes, without the opaque and what follows it.

    None for any other order, and for headers with other bytes than ASCII.
    """
    born_at = header.find(_JSON_BORN) + len(_JSON_BORN)
    born_end = born_at + BORN_DIGITS
    start = header.find(_JSON_PROPERTIES, born_end) + len(_JSON_PROPERTIES)
    tail_at = header.rfind(b',"flag":')  # behind it: the opaque, of each request another
    if not len(_JSON_BORN) <= born_at < born_end < start < tail_at or not header.isascii():
        return None
    try:
        text, length = scanstring(header[start:tail_at].decode("ascii"), 0)
    except ValueError:
        return None
    born, end = header[born_at:born_end], start + length - 1
    if not born.isdigit() or header.find(b'"remark"', tail_at) >= 0:
        return None
    return born, text.encode("utf-8", "replace"), (header[:born_at], header[born_end:start], header[end:tail_at]), end


def read_entries(pieces: Iterable[bytes]) -> list[tuple[str, str]] | None:
    """Names and values of pieces of a binary header, in their order; None unless each piece is whole entries.

    Empty values are Java's null, and left out.
    """
    entries: list[tuple[str, str]] = []
    try:
        for piece in pieces:
            at, size = 0, len(piece)
            while at < size:
                name_end = at + 2 + _SHORT.unpack_from(piece, at)[0]
                value_end = name_end + 4 + _SIZE.unpack_from(piece, name_end)[0]
                if value_end > size:
                    return None
                if value_end > name_end + 4:
                    value = piece[name_end + 4 : value_end].decode("utf-8", "replace")
                    entries.append((piece[at + 2 : name_end].decode(), value))
                at = value_end
    except (struct.error, UnicodeDecodeError):
        return None
    return entries


def are_sure_in_json(around: Around) -> bool:
    """Whether any other digits and any other text may stand between these pieces, and mean the two fields.

    So where the cuts are the only values of their names, and of fields of the header itself: a name written with
    escapes, or an object among the values, could hold them as well.
    """
    rest = b"".join(around)
    return b"\\" not in rest and rest.count(b"{") == 2 and rest.count(b'"g":') == rest.count(b'"i":') == 1
