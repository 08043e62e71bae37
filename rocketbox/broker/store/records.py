"""What the store itself reads of records: whether one is whole, and what queues and index need to know of it.

Reading a record as a message is left to ``protocol.stored_message``. The layout stands there and in ``commit_log``.

Source: Apache RocketMQ 5.x ``CommitLog.checkMessageAndReturnSize``, ``MessageExtEncoder`` (property CRC).
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import NamedTuple

__all__ = [
    "BEGIN_V4",
    "BLANK_MAGIC",
    "CHECKSUM_BYTES",
    "CHECKSUM_NAME",
    "MAGICS",
    "MIN_RECORD_BYTES",
    "NO_CHECKSUM",
    "ParsedRecord",
    "Place",
    "RecordKeys",
    "V6_HOSTS",
    "check_record",
    "checksum_text",
    "find_keys",
    "find_property",
    "has_topic",
    "has_whole_properties",
    "is_sound",
    "length_mismatch",
    "parse_record",
    "seems_damaged",
    "sound_records",
    "store_timestamp_of",
    "topic_fields",
]

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGICS = frozenset({MAGIC_V1, MAGIC_V2})
BLANK_MAGIC = 0xCBD43194
MIN_RECORD_BYTES = 91  # with IPv4 hosts, and no body, topic or properties
BORNHOST_V6 = 0x10
STOREHOST_V6 = 0x20
V6_HOSTS = BORNHOST_V6 | STOREHOST_V6
MAX_BEHIND_BODY = 2 + 32_767 + 2 + 32_767  # topic and properties
CHECKSUM_NAME = b"__CRC32#\x01"
CHECKSUM_BYTES = len(CHECKSUM_NAME) + 10 + 1
SECTOR = 512  # what a disk writes whole or not at all
_PROPERTIES = re.compile(rb"(?:[^\x01\x02]+\x01[^\x02]*\x02)*")
NO_CHECKSUM = "the record is whole, but has no checksum, which those before it have"
_NEAR = 3  # so many wrong bytes in the text around a checksum still mean that there is one, damaged

_HEAD = struct.Struct(">IIIiiqqiq")  # up to and including the born time
BEGIN_V4 = struct.Struct(">II4xi4xqqi44xi")
"""Size, magic, queue id, queue offset, physical offset, sysFlag, and the length of the body if both hosts are IPv4."""
_TIME = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_SHORT = struct.Struct(">h")


Place = tuple[int, int, int]
"""What an entry of a queue says of its record: physical offset, size, and its own number."""


class ParsedRecord(NamedTuple):
    """What queues and index take from a record."""

    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    stored: int
    properties: bytes


def parse_record(record: bytes) -> ParsedRecord:
    """Raises ValueError or struct.error when the lengths in the record do not fit each other."""
    size, magic, _, queue_id, _, queue_offset, _, sys_flag, _ = _HEAD.unpack_from(record)
    position = _HEAD.size + (20 if sys_flag & BORNHOST_V6 else 8)
    (store_timestamp,) = _TIME.unpack_from(record, position)
    position += 8 + (20 if sys_flag & STOREHOST_V6 else 8) + 4 + 8
    (length,) = _LENGTH.unpack_from(record, position)
    position += 4 + length
    if length < 0 or position >= size:
        raise ValueError(f"a body of {length} bytes does not fit in")
    if magic == MAGIC_V1:
        topic_length = record[position]
        position += 1
    else:
        (topic_length,) = _SHORT.unpack_from(record, position)
        position += 2
    topic = record[position : position + topic_length]
    position += topic_length
    (length,) = _SHORT.unpack_from(record, position)
    position += 2
    if topic_length < 0 or length < 0 or position + length != size or size != len(record):
        raise ValueError(f"lengths of topic ({topic_length}) and properties ({length}) do not add up to {size} bytes")
    return ParsedRecord(topic.decode(), queue_id, queue_offset, sys_flag, store_timestamp, record[position:])


def has_topic(record: bytes, fields: dict[int, bytes]) -> bool:
    """Whether a whole record is of the topic that :func:`topic_fields` was asked for."""
    _, magic, _, _, _, flag, length = BEGIN_V4.unpack_from(record)
    position = BEGIN_V4.size
    if flag & V6_HOSTS:
        position = body_position(record)
        if position > len(record) - _LENGTH.size:
            return False
        (length,) = _LENGTH.unpack_from(record, position)
        position += _LENGTH.size
    return length >= 0 and record.startswith(fields[magic], position + length)


def topic_fields(topic: str) -> dict[int, bytes]:
    """How a topic stands in records with its length, by their magic number; half a character stands in none."""
    text = topic.encode("utf-8", "surrogatepass")
    return {MAGIC_V1: (b"%c" % (len(text) & 0xFF)) + text, MAGIC_V2: _SHORT.pack(len(text)) + text}


def store_timestamp_of(record: bytes) -> int:
    """Store time (epoch ms) of a record, of which the first 76 bytes are enough."""
    sys_flag = _HEAD.unpack_from(record)[7]
    timestamp: int = _TIME.unpack_from(record, _HEAD.size + (20 if sys_flag & BORNHOST_V6 else 8))[0]
    return timestamp


def body_position(record: bytes) -> int:
    """Where the length of the body stands."""
    sys_flag = _HEAD.unpack_from(record)[7]
    return _HEAD.size + (20 if sys_flag & BORNHOST_V6 else 8) + 8 + (20 if sys_flag & STOREHOST_V6 else 8) + 4 + 8


def check_record(record: bytes, offset: int, *, needs_checksum: bool = False) -> str | None:
    """What is wrong with the bytes of a record at that physical offset; None when it is whole.

    With a property CRC every byte is covered. A record without one, as Apache's brokers write them, is whole when the
    checksum of its body is right, its lengths add up, and topic and properties neither end with zeros nor lack a
    sector.
    Of one that ``needs_checksum`` NO_CHECKSUM says so: it may be another broker's, or end with other, older bytes.
    """
    (own_offset,) = _TIME.unpack_from(record, 28)
    if own_offset != offset:
        return f"the record there says that it belongs at offset {own_offset}"
    if record.startswith(CHECKSUM_NAME, len(record) - CHECKSUM_BYTES):
        if not record.endswith(checksum_text(zlib.crc32(memoryview(record)[:-CHECKSUM_BYTES]))):
            return "the checksum of the record is not that of its bytes"
        return None
    if _is_near(
        record[-CHECKSUM_BYTES:]
    ):  # without this, a flipped bit in the name would make the record one without a checksum
        return "the checksum of the record is damaged"
    try:
        properties = parse_record(record).properties
    except (ValueError, struct.error, IndexError) as error:
        return str(error)
    position = body_position(record)
    (length,) = _LENGTH.unpack_from(record, position)
    end_of_body = position + 4 + length
    if zlib.crc32(memoryview(record)[position + 4 : end_of_body]) & 0x7FFFFFFF != _HEAD.unpack_from(record)[2]:
        return "the checksum of the body is not that of its bytes"
    start_of_properties = len(record) - len(properties)
    for name, start, end in (
        ("topic", end_of_body + (1 if record[7] == MAGIC_V1 & 0xFF else 2), start_of_properties - 2),
        ("properties", start_of_properties, len(record)),
    ):
        if _lacks_a_sector(record, start, end, offset):
            return f"the {name} are cut off" if name == "properties" else f"the {name} is cut off"
    return NO_CHECKSUM if needs_checksum else None


def checksum_text(crc: int) -> bytes:
    """How a checksum stands behind its name: ten digits, the last one first, and the end of the property."""
    return (b"\x02%010d" % (crc & 0x7FFFFFFF))[::-1]


def is_sound(record: bytes, offset: int) -> bool:
    """Whether :func:`check_record` finds nothing wrong with a record that belongs at that offset."""
    if record.startswith(CHECKSUM_NAME, len(record) - CHECKSUM_BYTES):
        return record.endswith(checksum_text(zlib.crc32(memoryview(record)[:-CHECKSUM_BYTES])))
    return check_record(record, offset) is None


def sound_records(data: bytes, offset: int) -> tuple[list[tuple[int, bytes]], int]:
    """The records with which the bytes from a physical offset on begin, each with its own, and where the next begins.

    Up to the first that is damaged, or not whole in ``data``. Each is checked as by :func:`check_record`.
    """
    found: list[tuple[int, bytes]] = []
    unpack = BEGIN_V4.unpack_from
    position, end, last = 0, len(data), len(data) - MIN_RECORD_BYTES
    while position <= last:
        size, magic, _, _, physical, _, _ = unpack(data, position)
        behind = position + size
        if magic not in MAGICS or size < MIN_RECORD_BYTES or behind > end or physical != offset + position:
            break
        record = data[position:behind]
        if not is_sound(record, physical):
            break
        found.append((physical, record))
        position = behind
    return found, offset + position


def _is_near(trailer: bytes) -> bool:
    wrong = sum(a != b for a, b in zip(trailer, CHECKSUM_NAME, strict=False)) + (trailer[-1] != 2)
    return wrong <= _NEAR


def seems_damaged(record: bytes, properties: bytes) -> bool:
    """Whether :func:`check_record` may refuse a whole record without a checksum, for what its sender has put into it.

    Such a one is stored with a checksum, whatever the settings say: else the next start would take it for damage.
    """
    return b"\0" in properties or _is_near(record[-CHECKSUM_BYTES:])


def has_whole_properties(record: bytes) -> bool:
    """Whether the properties of a record have RocketMQ's form up to their last byte, as 5.x writes them."""
    properties = parse_record(record).properties
    return properties.endswith(b"\x02") and _PROPERTIES.fullmatch(properties) is not None


def _lacks_a_sector(record: bytes, start: int, end: int, offset: int) -> bool:
    """Whether bytes [start, end) of the record at ``offset`` end with a zero, or are all zero in one disk sector."""
    if record.find(b"\0", start, end) < 0:
        return False
    if record[end - 1] == 0:
        return True
    while start < end:
        border = min(end, start + SECTOR - (offset + start) % SECTOR)
        if not record[start:border].strip(b"\0"):
            return True
        start = border
    return False


def length_mismatch(head: bytes, size: int) -> str | None:
    """Why a record that begins so cannot have ``size`` bytes; None if it can. Asked before the rest is read."""
    position = body_position(head)
    (length,) = _LENGTH.unpack_from(head, position)
    if length < 0 or not 0 <= size - position - 4 - length <= MAX_BEHIND_BODY:
        return f"a record of {size} bytes cannot have a body of {length}"
    return None


def find_property(properties: bytes, name: bytes) -> bytes | None:
    """The value of a property in the text of all; None when it is not there or empty."""
    sign = b"\x02" + name + b"\x01"
    start = properties.rfind(sign)
    if start >= 0:
        start += len(sign)
    elif properties.startswith(sign[1:]):
        start = len(sign) - 1
    else:
        return None
    end = properties.find(b"\x02", start)
    return (properties[start:] if end < 0 else properties[start:end]) or None


RecordKeys = tuple[bytes | None, bytes | None, bytes | None]
"""The properties TAGS, KEYS and UNIQ_KEY, each None when it is not there or empty."""


def find_keys(properties: bytes) -> RecordKeys:
    """The properties TAGS, KEYS and UNIQ_KEY. Written out, as each message passes here (benchmark "store append")."""
    text = b"\x02" + properties
    find, find_last = text.find, text.rfind
    tags = keys = unique = None
    if (start := find_last(b"\x02TAGS\x01")) >= 0:
        end = find(b"\x02", start + 6)
        tags = (text[start + 6 :] if end < 0 else text[start + 6 : end]) or None
    if (start := find_last(b"\x02KEYS\x01")) >= 0:
        end = find(b"\x02", start + 6)
        keys = (text[start + 6 :] if end < 0 else text[start + 6 : end]) or None
    if (start := find_last(b"\x02UNIQ_KEY\x01")) >= 0:
        end = find(b"\x02", start + 10)
        unique = (text[start + 10 :] if end < 0 else text[start + 10 : end]) or None
    return tags, keys, unique
