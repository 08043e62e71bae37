"""Pulls as a broker reads and answers them, without a mapping of their fields.

Of one consumer's pulls of one queue all header fields but the two offsets are the same bytes again and again: what they
mean is looked up. The answer that brings messages is written from prepared pieces, and its records are copied once.
Other answers, and all that is not the common form, go by ``headers`` and ``command``; both ways give the same values
and the same bytes.

Fast path: reading and answering a pull of 32 messages cost 4 us instead of 23 by mappings (benchmark "java client: push
consume").

Source: Apache RocketMQ 5.x ``PullMessageRequestHeader``, ``PullMessageResponseHeader``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rocketbox.protocol.codes import CLIENT_VERSION, LanguageCode, SerializeType
from rocketbox.protocol.command import JSON, RESPONSE_FLAG, RemotingCommand, decode_parts, encode_ext_fields
from rocketbox.protocol.headers import HeaderError, PullMessageRequestHeader
from rocketbox.protocol.kept_heads import keep_head

__all__ = ["PullHead", "PullReader", "PullReplyTemplate"]


ROCKETMQ: Final = int(SerializeType.ROCKETMQ)
_QUEUE_OFFSET = "queueOffset"
_COMMIT_OFFSET = "commitOffset"
_QUEUE_OFFSET_JSON = b'"queueOffset":"'
_COMMIT_OFFSET_JSON = b'"commitOffset":"'
_NAMES = (
    "consumerGroup", "topic", "queueId", "maxMsgNums", "sysFlag", "suspendTimeoutMillis", "subscription", "subVersion",
    "expressionType", "maxMsgBytes",
)  # fmt: skip
_MOST_DIGITS = 18  # of an offset that needs no closer look: it fits into a long

_TWO_SIZES = struct.Struct(">II")
_SIZE = struct.Struct(">I")
_FRAME_HEAD = struct.Struct(">IIhBhiiI")  # frame, type + header, code, language, version, opaque, flag, remark
_BEFORE = encode_ext_fields({"suggestWhichBrokerId": "0"})
_BEHIND = encode_ext_fields({"topicSysFlag": "0", "groupSysFlag": "0"})
_LENGTHS_BYTES = 4 + 4  # of those, what is in front of the header


@dataclass(frozen=True, slots=True)
class PullHead:
    """What a pull says beside its two offsets (``PullMessageRequestHeader``)."""

    consumer_group: str
    topic: str
    queue_id: int
    max_msg_nums: int
    sys_flag: int
    suspend_timeout_millis: int
    subscription: str | None
    sub_version: int
    expression_type: str | None


_JsonKey = tuple[bytes, bytes, bytes, bytes]
"""What stands before, between and behind the two offsets, up to the opaque, and behind that."""


class PullReader:
    """Reads the headers of codes 11 and 361."""

    def __init__(self) -> None:
        self._by_bytes: dict[_JsonKey, PullHead] = {}
        self._by_fields: dict[tuple[str | None, ...], PullHead] = {}

    @property
    def remembered(self) -> int:
        """How many different headers are kept."""
        return len(self._by_bytes) + len(self._by_fields)

    def read(self, request: RemotingCommand) -> tuple[PullHead, int, int]:
        """Head, queue offset and commit offset of a pull. Raises HeaderError for what is missing or garbled."""
        header = request.raw_header
        if header is not None and request.serialization == JSON:
            found = self._read_json(header)
            if found is not None:
                return found
        fields = request.ext_fields
        key = tuple([fields.get(name) for name in _NAMES])
        head = self._by_fields.get(key)
        offset, commit_offset = fields.get(_QUEUE_OFFSET, ""), fields.get(_COMMIT_OFFSET, "")
        if head is not None and _is_plain(offset) and _is_plain(commit_offset):
            return head, int(offset), int(commit_offset)
        decoded = PullMessageRequestHeader.decode(fields)
        head = _head_of(decoded)
        keep_head(self._by_fields, key, head)
        return head, decoded.queue_offset, decoded.commit_offset

    def _read_json(self, header: bytes) -> tuple[PullHead, int, int] | None:
        """The same from a JSON header of which nothing is parsed yet, so its end has the form that Java writes.

        None for one that is not known, and may not become so: its offsets are no plain numbers, or more than that.
        """
        offset_at = header.find(_QUEUE_OFFSET_JSON) + len(_QUEUE_OFFSET_JSON)
        commit_at = header.find(_COMMIT_OFFSET_JSON) + len(_COMMIT_OFFSET_JSON)
        offset_end, commit_end = header.find(b'"', offset_at), header.find(b'"', commit_at)
        opaque_at = header.rfind(b'"opaque":') + len(b'"opaque":')
        rest = header[header.find(b",", opaque_at) :]
        offset, commit_offset = header[offset_at:offset_end], header[commit_at:commit_end]
        if not (_is_plain(offset) and _is_plain(commit_offset)):
            return None
        if offset_end < commit_at and commit_end < opaque_at:
            key = header[:offset_at], header[offset_end:commit_at], header[commit_end:opaque_at], rest
        elif commit_end < offset_at and offset_end < opaque_at:
            key = header[:commit_at], header[commit_end:offset_at], header[offset_end:opaque_at], rest
        else:
            return None
        head = self._by_bytes.get(key)
        if head is None:
            head = _head_of_json(header, key, int(offset), int(commit_offset))
            if head is None:
                return None
            keep_head(self._by_bytes, key, head)
        return head, int(offset), int(commit_offset)


def _is_plain(digits: str | bytes) -> bool:
    return 0 < len(digits) <= _MOST_DIGITS and digits.isdigit() and digits.isascii()


def _head_of(header: PullMessageRequestHeader) -> PullHead:
    return PullHead(
        header.consumer_group,
        header.topic,
        header.queue_id,
        header.max_msg_nums,
        header.sys_flag,
        header.suspend_timeout_millis,
        header.subscription,
        header.sub_version,
        header.expression_type,
    )


def _head_of_json(header: bytes, key: _JsonKey, offset: int, commit_offset: int) -> PullHead | None:
    """The head of a JSON header cut into pieces; None if others with the same pieces might mean something else.

    Where the cuts are the only values of their names, and of fields of the header itself, any other digits may stand
    there. A name written with escapes, an object among the values, or a name a second time, could hold them as well.
    """
    pieces = b"".join(key)
    if (
        b"\\" in pieces
        or pieces.count(b"{") != 2
        or pieces.count(_QUEUE_OFFSET_JSON[:-1]) != 1
        or pieces.count(_COMMIT_OFFSET_JSON[:-1]) != 1
        or not header.isascii()
    ):
        return None
    try:
        decoded = PullMessageRequestHeader.decode(decode_parts(JSON, header, b"").ext_fields)
    except HeaderError:
        return None  # the way that asks for names tells what is wrong
    is_read = decoded.queue_offset == offset and decoded.commit_offset == commit_offset
    return _head_of(decoded) if is_read else None


class PullReplyTemplate:
    """Writes the answers to pulls that bring messages, with a remark that is the same in all of them.

    The broker to ask next time (``suggestWhichBrokerId``) is this one, and the flags of topic and group are 0.
    """

    def __init__(self, remark: str, *, language: int = LanguageCode.PYTHON, version: int = CLIENT_VERSION) -> None:
        self._language = int(language)
        self._version = version
        self._remark = remark.encode()
        self._json = (
            '{"code":0,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"%d","minOffset":"%d","maxOffset":"%d",'
            f'"topicSysFlag":"0","groupSysFlag":"0"}},"flag":{RESPONSE_FLAG},"language":"{LanguageCode(language).name}",'
            f'"opaque":%d,"remark":{json.dumps(remark).replace("%", "%%")},"serializeTypeCurrentRPC":"JSON",'
            f'"version":{version}}}'
        ).encode()

    def encode(
        self, request: RemotingCommand, next_begin_offset: int, min_offset: int, max_offset: int,
        records: Sequence[bytes], size: int,
    ) -> bytes:  # fmt: skip
        """The whole frame of the answer to request, code 0, in its serialization; the records have ``size`` bytes."""
        if request.serialization == ROCKETMQ:
            head = self._binary_head(request.opaque, next_begin_offset, min_offset, max_offset, size)
            return b"".join((head, *records))
        header = self._json % (next_begin_offset, min_offset, max_offset, request.opaque)
        return b"".join((_TWO_SIZES.pack(4 + len(header) + size, len(header)), header, *records))

    def _binary_head(self, opaque: int, next_begin_offset: int, min_offset: int, max_offset: int, size: int) -> bytes:
        next_begin, least, most = b"%d" % next_begin_offset, b"%d" % min_offset, b"%d" % max_offset
        bytes_of, remark = _SIZE.pack, self._remark
        ext = b"%b\x00\x0fnextBeginOffset%b%b\x00\x09minOffset%b%b\x00\x09maxOffset%b%b%b" % (
            _BEFORE, bytes_of(len(next_begin)), next_begin, bytes_of(len(least)), least, bytes_of(len(most)), most,
            _BEHIND,
        )  # fmt: skip
        header_size = _FRAME_HEAD.size - _LENGTHS_BYTES + len(remark) + 4 + len(ext)
        head = _FRAME_HEAD.pack(
            4 + header_size + size, ROCKETMQ << 24 | header_size, 0, self._language, self._version, opaque,
            RESPONSE_FLAG, len(remark),
        )  # fmt: skip
        return b"".join((head, remark, bytes_of(len(ext)), ext))
