"""Signed sends, without a mapping of their fields: where the signature stands, and what the digest begins with.

Of one producer's sends to one queue all values but time, properties and signature are the same, and so is the state of
the digest behind those that sort before the time: it is copied for each send. What is found is cut out of the header,
so that what comes behind sees headers that are alike again (``send_frames``). Only headers of the common form go this
way; the first of each form is read in full, and believed when the pieces say the same.

Fast path: checking costs 6 us a send instead of 14, and what reads it behind this 0.2 instead of 2.

Source: Apache RocketMQ 5.x ``SendMessageRequestHeaderV2``, ``AclUtils``.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from hmac import compare_digest
from typing import Final

from rocketbox.access.accounts import Account
from rocketbox.access.resources import Need
from rocketbox.protocol.command import JSON, ROCKETMQ, RemotingCommand
from rocketbox.protocol.kept_heads import MAX_KEY
from rocketbox.protocol.send_pieces import EXT_AT, Around, are_sure_in_json, cut_binary, cut_json, read_entries
from rocketbox.remoting.signing import SIGNATURE, SIGNATURE_CHARACTERS

__all__ = ["MOST_SHAPES", "CutSend", "SendForm", "SendShape", "cut_send"]

_SIZE = struct.Struct(">I")
_EXT_SIZE_AT = EXT_AT - 4
_SIGNATURE = b"\x00\x09Signature\x00\x00\x00\x1c"
_SIGNATURE_ENTRY = len(_SIGNATURE) + SIGNATURE_CHARACTERS
_JSON_SIGNATURE = b'"Signature":"'
MOST_SHAPES: Final = 4_096  # kept, each about 1 KiB

SendForm = tuple[int, Around]
"""What all sends of one form have alike: the serialization, and what lies around time and properties."""


@dataclass(slots=True)
class CutSend:
    """A send's header in pieces."""

    form: SendForm
    born: bytes
    properties: bytes
    signature: bytes
    header: bytes
    """Without the signature."""


@dataclass(frozen=True, slots=True)
class SendShape:
    """Of all sends of one form: who signs them, what they need, and what is signed beside time, properties and body."""

    account: Account
    access_key: str
    needs: tuple[Need, ...]
    digest: hashlib._Hash
    behind_time: bytes
    behind_properties: bytes

    def is_signed(self, cut: CutSend, body: bytes) -> bool:
        """Whether the signature is the account's."""
        digest = self.digest.copy()
        digest.update(b"%b%b%b%b%b" % (cut.born, self.behind_time, cut.properties, self.behind_properties, body))
        return compare_digest(self.account.key.finish(digest), cut.signature)

    @classmethod
    def of(cls, cut: CutSend, fields: Mapping[str, str], account: Account, needs: tuple[Need, ...]) -> SendShape | None:
        """That of a request which was read in full and is signed; None if the pieces do not say all that it says."""
        if sum(map(len, cut.form[1])) > MAX_KEY or not _say_the_same(cut, fields):
            return None
        names = sorted(name for name in fields if name != SIGNATURE)
        if "i" not in names or not "".join(names).isascii():  # an empty value of a binary header is left out
            return None
        born_at, properties_at = names.index("g"), names.index("i")
        digest = account.key.begin()
        digest.update(_values(fields, names[:born_at]))
        return cls(
            account,
            account.name,
            needs,
            digest,
            _values(fields, names[born_at + 1 : properties_at]),
            _values(fields, names[properties_at + 1 :]),
        )


def cut_send(request: RemotingCommand) -> CutSend | None:
    """The pieces of a send with a V2 header of the common form, with a signature; None for any other."""
    header = request.raw_header
    if header is None:
        return None
    return _cut_binary(header) if request.serialization == ROCKETMQ else _cut_json(header)


def _cut_binary(header: bytes) -> CutSend | None:
    at = header.find(_SIGNATURE, EXT_AT)
    end = at + _SIGNATURE_ENTRY
    if at < 0 or end > len(header):
        return None
    signature = header[at + len(_SIGNATURE) : end]
    size = _SIZE.unpack_from(header, _EXT_SIZE_AT)[0] - _SIGNATURE_ENTRY
    if size < 0:
        return None
    header = b"".join((header[:_EXT_SIZE_AT], _SIZE.pack(size), header[EXT_AT:at], header[end:]))
    pieces = cut_binary(header)
    if pieces is None:
        return None
    born, properties, around, _ = pieces
    return CutSend((int(ROCKETMQ), around), born, properties, signature, header)


def _cut_json(header: bytes) -> CutSend | None:
    at = header.find(_JSON_SIGNATURE)
    start = at + len(_JSON_SIGNATURE)
    end = start + SIGNATURE_CHARACTERS
    if at < 0 or header[end : end + 1] != b'"':
        return None
    signature = header[start:end]
    if header[end + 1 : end + 2] == b",":
        header = header[:at] + header[end + 2 :]
    elif header[at - 1 : at] == b",":
        header = header[: at - 1] + header[end + 1 :]
    else:
        return None
    pieces = cut_json(header)
    if pieces is None:
        return None
    born, properties, around, _ = pieces
    return CutSend((int(JSON), around), born, properties, signature, header)


def _say_the_same(cut: CutSend, fields: Mapping[str, str]) -> bool:
    """Whether the values that were cut are those of the fields, and would be in any other header of these pieces.

    Of a binary header each name may stand there once; of a JSON header the signature's not again.
    """
    wanted = {name: value for name, value in fields.items() if name != SIGNATURE}
    if (
        fields.get(SIGNATURE, "").encode("utf-8", "replace") != cut.signature
        or wanted.pop("g", "").encode("utf-8", "replace") != cut.born
        or wanted.pop("i", "").encode("utf-8", "replace") != cut.properties
    ):
        return False
    kind, around = cut.form
    if kind == ROCKETMQ:
        entries = read_entries(around)
        if entries is None:
            return False
        named = [(name, value) for name, value in entries if name]  # what is nameless is nobody's field
        return len(named) == len(wanted) and dict(named) == wanted
    return are_sure_in_json(around) and not any(b'"Signature":' in piece for piece in around)


def _values(fields: Mapping[str, str], names: list[str]) -> bytes:
    return "".join([fields[name] for name in names]).encode("utf-8", "replace")
