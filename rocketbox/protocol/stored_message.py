"""Messages as brokers store them, and elements of a batch: bytes to values and back.

A stored record, big-endian, with IPv4 hosts (20 bytes instead of 8 for a host with the sysFlag's V6 bit)::

    totalSize i32, magic i32, bodyCRC i32, queueId i32, flag i32, queueOffset i64, physicalOffset i64, sysFlag i32,
    bornTimestamp i64, bornHost ip 4 + port i32, storeTimestamp i64, storeHost ip 4 + port i32, reconsumeTimes i32,
    preparedTransactionOffset i64, body i32 + n, topic u8 + n (magic v2: i16 + n), properties i16 + n

An element of a batch: ``totalSize i32, magic i32 (0), bodyCRC i32 (0), flag i32, body i32 + n, properties i16 + n``.

The properties of a record may end with a checksum of all before it: ``__CRC32#``, 0x01, ten decimal digits with the
least significant first, 0x02.

Source: Apache RocketMQ 5.x ``MessageDecoder``, ``MessageVersion``, ``MessageExtEncoder``, ``CommitLog`` (property CRC).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rocketbox.errors import InvalidMessageError, RemoteProtocolError
from rocketbox.message import MAX_PROPERTIES_BYTES, MessageExt
from rocketbox.protocol.codes import MessageSysFlag
from rocketbox.protocol.compression import MAX_BODY_BYTES, unpack

__all__ = [
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "BatchElement",
    "BatchTooLongError",
    "RecordTemplate",
    "StoredMessage",
    "decode_batch",
    "decode_message",
    "decode_messages",
    "decode_some_messages",
    "encode_batch",
    "encode_stored_message",
]

MAGIC_V1 = -626_843_481  # 0xDAA320A7: the topic's length is one byte
MAGIC_V2 = -626_843_477  # 0xDAA320AB: the topic's length is two bytes
MAGIC_BLANK = -875_286_124  # 0xCBD43194: fills the end of a commit-log file

# Everything up to and including the body's length, both hosts IPv4: read with one call, the common case.
_HEAD_V4 = struct.Struct(">iIIiiqqiq4siq4siiqi")  # unsigned magic: the first field compared
_FIXED = struct.Struct(">iiIiiqqiq")
_UNSIGNED_V1 = MAGIC_V1 & 0xFFFF_FFFF
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_SHORT = struct.Struct(">h")
_TAIL = struct.Struct(">iq")
_TWO_INTS = struct.Struct(">ii")
_HOSTS_V4 = struct.Struct(">4siq4si")  # born host, store time, store host
_HEAD_LIKE = struct.Struct(">iII8sqqiq24s12si")  # as _HEAD_V4, in which neighbours that seldom change are one
_ELEMENT = struct.Struct(">iiiii")
V6_FLAGS = int(MessageSysFlag.BORNHOST_V6 | MessageSysFlag.STOREHOST_V6)
COMPRESSED = int(MessageSysFlag.COMPRESSED)
_OFFSET = struct.Struct(">20xq")  # of a record: the queue offset
INNER_BATCH = int(MessageSysFlag.NEED_UNWRAP | MessageSysFlag.INNER_BATCH)
MOST_IN_AN_INNER_BATCH = (1 << 15) - 1  # messages: Apache's BatchConsumeQueue has 2 bytes for their number
SHORTEST_TOPIC_OF_V2 = 128  # bytes; shorter topics are written as v1
MAX_TOPICS_KEPT = 1000
CHECKSUM_NAME = b"__CRC32#\x01"
CHECKSUM_BYTES = len(CHECKSUM_NAME) + 10 + 1

Host = tuple[bytes, int]  # ip (4 or 16 bytes) and port


@dataclass(slots=True)  # a value, and not frozen: one is made for each send, in a tenth of the time ("store append")
class StoredMessage:
    """What a broker stores of a message; ``body`` as it came, compressed or not, ``properties`` as encoded text.

    Times are milliseconds since the epoch, hosts (ip of 4 or 16 bytes, port). Nobody changes one that has been made.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: Host = (b"\x7f\x00\x00\x01", 0)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    queue_offset: int = 0
    commit_log_offset: int = 0
    store_timestamp_ms: int = 0
    store_host: Host = (b"\x7f\x00\x00\x01", 0)


@dataclass(frozen=True, slots=True)
class BatchElement:
    """One message of a batch, its properties as encoded text."""

    flag: int
    body: bytes
    properties: bytes


Place = tuple[int, int, int, Host]
"""What storing adds to a message: queue offset, commit-log offset, store time (epoch ms) and store host."""


def encode_stored_message(message: StoredMessage, *, property_crc: bool = False, place: Place | None = None) -> bytes:
    """The record of a message; with ``property_crc`` its properties end with a checksum of the whole record.

    ``place`` stands for the message's own four fields of that kind: a store need not copy the message to set them. The
    sysFlag's two V6 bits are set by the hosts. Raises InvalidMessageError when the topic or the properties are too
    long for their length fields.
    """
    queue_offset, commit_log_offset, store_timestamp_ms, (store_ip, store_port) = place or (
        message.queue_offset,
        message.commit_log_offset,
        message.store_timestamp_ms,
        message.store_host,
    )
    properties = message.properties
    if property_crc and properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    properties_size = len(properties) + (CHECKSUM_BYTES if property_crc else 0)
    if properties_size > MAX_PROPERTIES_BYTES:
        raise InvalidMessageError(
            f"properties of {properties_size} bytes; {MAX_PROPERTIES_BYTES} is the most RocketMQ can store"
        )
    topic = _topics.get(message.topic) or _encoded_topic(message.topic)
    body = message.body
    born_ip, born_port = message.born_host
    size = 82 + len(born_ip) + len(store_ip) + len(body) + len(topic) + properties_size
    magic = MAGIC_V1 if len(topic) <= SHORTEST_TOPIC_OF_V2 else MAGIC_V2
    crc = zlib.crc32(body) & 0x7FFF_FFFF
    if len(born_ip) == len(store_ip) == 4:
        head = _HEAD_V4.pack(
            size, magic & 0xFFFF_FFFF, crc, message.queue_id, message.flag, queue_offset,
            commit_log_offset, message.sys_flag & ~V6_FLAGS, message.born_timestamp_ms, born_ip, born_port,
            store_timestamp_ms, store_ip, store_port, message.reconsume_times,
            message.prepared_transaction_offset, len(body),
        )  # fmt: skip
    else:
        sys_flag = message.sys_flag & ~V6_FLAGS
        if len(born_ip) == 16:
            sys_flag |= MessageSysFlag.BORNHOST_V6
        if len(store_ip) == 16:
            sys_flag |= MessageSysFlag.STOREHOST_V6
        head = b"".join(
            (
                _FIXED.pack(
                    size, magic, crc, message.queue_id, message.flag, queue_offset, commit_log_offset,
                    sys_flag, message.born_timestamp_ms,
                ),
                born_ip, _I32.pack(born_port), _I64.pack(store_timestamp_ms), store_ip, _I32.pack(store_port),
                _TAIL.pack(message.reconsume_times, message.prepared_transaction_offset), _I32.pack(len(body)),
            )
        )  # fmt: skip
    if property_crc:
        # The checksum goes over the pieces: the body is copied once, into the record ("store append": 1 us of 5).
        tail = b"".join((topic, _SHORT.pack(properties_size), properties))
        digits = b"%010d" % (zlib.crc32(tail, zlib.crc32(body, zlib.crc32(head))) & 0x7FFF_FFFF)
        record = b"".join((head, body, tail, CHECKSUM_NAME, digits[::-1], b"\x02"))
    else:
        record = b"".join((head, body, topic, _SHORT.pack(properties_size), properties))
    assert len(record) == size
    return record


class RecordTemplate:
    """Writes the records of messages that are as a given one in all but places, times, body and properties.

    They are byte for byte those of ``encode_stored_message`` with ``property_crc``, for hosts with IPv4 and properties
    that are empty or end with 0x02. Fast path: 1.6 us of 2.6 (benchmark "java client: send, 256 in flight").
    """

    __slots__ = ("_behind", "_magic", "_queue_and_flag", "_sys_flag", "_topic", "bytes_beside")

    def __init__(self, message: StoredMessage) -> None:
        """Raises struct.error when a number is out of its range, InvalidMessageError for a topic that is too long."""
        self._topic = topic = _topics.get(message.topic) or _encoded_topic(message.topic)
        self._magic = (MAGIC_V1 if len(topic) <= SHORTEST_TOPIC_OF_V2 else MAGIC_V2) & 0xFFFF_FFFF
        self._queue_and_flag = _TWO_INTS.pack(message.queue_id, message.flag)
        self._sys_flag = message.sys_flag & ~V6_FLAGS
        self._behind = _TAIL.pack(message.reconsume_times, message.prepared_transaction_offset)
        self.bytes_beside = _HEAD_V4.size + len(self._topic) + _SHORT.size + CHECKSUM_BYTES
        """Of a record, beside body and properties."""

    @staticmethod
    def hosts(born_host: Host, store_timestamp_ms: int, store_host: Host) -> bytes:
        """What :meth:`encode` takes as ``hosts``. Raises struct.error."""
        return _HOSTS_V4.pack(*born_host, store_timestamp_ms, *store_host)

    def encode(
        self, queue_offset: int, commit_log_offset: int, born_timestamp_ms: int, hosts: bytes, body: bytes,
        properties: bytes,
    ) -> bytes:  # fmt: skip
        """The record, of ``bytes_beside`` and the two. The properties with their checksum must fit: 32,767 bytes."""
        size = len(body)
        head = _HEAD_LIKE.pack(
            self.bytes_beside + size + len(properties), self._magic, zlib.crc32(body) & 0x7FFF_FFFF,
            self._queue_and_flag, queue_offset, commit_log_offset, self._sys_flag, born_timestamp_ms, hosts,
            self._behind, size,
        )  # fmt: skip
        tail = b"%b%b%b" % (self._topic, _SHORT.pack(len(properties) + CHECKSUM_BYTES), properties)
        digits = b"%010d" % (zlib.crc32(tail, zlib.crc32(body, zlib.crc32(head))) & 0x7FFF_FFFF)
        return b"".join((head, body, tail, CHECKSUM_NAME, digits[::-1], b"\x02"))


_topics: dict[str, bytes] = {}  # what _encoded_topic has answered


def _encoded_topic(topic: str) -> bytes:
    """The topic with its length before it, as a record holds it. Raises InvalidMessageError when it is too long."""
    text = topic.encode()
    if len(text) > MAX_PROPERTIES_BYTES:
        raise InvalidMessageError(f"a topic of {len(text)} bytes cannot be stored")
    if len(text) >= SHORTEST_TOPIC_OF_V2:
        return _SHORT.pack(len(text)) + text
    if len(_topics) >= MAX_TOPICS_KEPT:
        _topics.clear()
    encoded = _topics[topic] = bytes((len(text),)) + text
    return encoded


def decode_messages(
    buffer: bytes,
    broker_name: str = "",
    *,
    decompress: bool = True,
    max_body_bytes: int = MAX_BODY_BYTES,
    below: int | None = None,
) -> list[MessageExt]:
    """The messages in a buffer of records back to back, as pulls and queries answer.

    Compressed bodies are unpacked, to at most ``max_body_bytes`` each, unless ``decompress`` is False. ``below`` is as
    for :func:`decode_some_messages`. Raises RemoteProtocolError when the buffer is anything else.
    """
    return _decode(buffer, broker_name, decompress, max_body_bytes, None, below)[0]


def decode_some_messages(
    buffer: bytes, broker_name: str = "", *, max_body_bytes: int = MAX_BODY_BYTES, below: int | None = None
) -> tuple[list[MessageExt], bool]:
    """As many of the messages in a buffer as unpack to little more than ``max_body_bytes``, and whether that is all.

    There is one at least, if the buffer has any. Kilobytes may hold many bodies that claim to be as large as may be.
    ``below`` is the queue offset behind all of them, if it is known: no inner batch takes what lies there.
    """
    return _decode(buffer, broker_name, True, max_body_bytes, max_body_bytes, below)


def _decode(
    buffer: bytes, broker_name: str, decompress: bool, max_body_bytes: int, room: int | None, below: int | None
) -> tuple[list[MessageExt], bool]:
    """The messages, and whether there was ``room`` for all that they unpack to."""
    messages: list[MessageExt] = []
    batches: list[tuple[int, int, MessageExt]] = []  # where they begin among the messages, their number, the record
    append = messages.append
    position, end = 0, len(buffer)
    unpack = _HEAD_V4.unpack_from
    topic_bytes, topic = b"", ""
    while position < end:
        # The fast path: v1, IPv4 hosts, nothing to unpack. It gains 2 us of 3 (benchmark "push consume").
        if end - position > 91:
            fields = unpack(buffer, position)
            if fields[1] == _UNSIGNED_V1 and not fields[7] & (V6_FLAGS | COMPRESSED | INNER_BATCH):
                body_start = position + 88
                body_end = body_start + fields[16]
                if fields[16] >= 0 and body_end < end:
                    topic_end = body_end + 1 + buffer[body_end]
                    if topic_end + 2 <= end:
                        properties_end = topic_end + 2 + (buffer[topic_end] << 8 | buffer[topic_end + 1])
                        if properties_end == position + fields[0] <= end:
                            raw = buffer[body_end + 1 : topic_end]
                            if raw != topic_bytes:
                                topic_bytes, topic = raw, _text(raw)
                            append(
                                MessageExt(
                                    fields, buffer[body_start:body_end], topic, buffer[topic_end + 2 : properties_end],
                                    broker_name,
                                )
                            )  # fmt: skip
                            position = properties_end
                            continue
        message, position = decode_message(
            buffer, position, broker_name=broker_name, decompress=decompress, max_body_bytes=max_body_bytes
        )
        if decompress and message.sys_flag & INNER_BATCH == INNER_BATCH:
            unwrapped = _unwrap(message) or [message]
            batches.append((len(messages), len(unwrapped), message))
            messages += unwrapped
        else:
            append(message)
        if room is not None:  # what is taken by the fast path is no larger than it came
            room -= len(message.body)
            if room <= 0 and position < end:
                with suppress(struct.error):  # what is no record there is found when it is read
                    below = _OFFSET.unpack_from(buffer, position)[0]
                break
    if batches:
        _wrap_again(messages, batches, below)
    return messages, position >= end


def _wrap_again(messages: list[MessageExt], batches: list[tuple[int, int, MessageExt]], below: int | None) -> None:
    """Take for one message what has not the places that its messages would have, before the next one or ``below``.

    Brokers before 5.0 look at no flags, so anybody who may send can say that his message is a batch. To consume its
    messages would be to pass over those of others that have their places.
    """
    for start, count, record in reversed(batches):
        behind = messages[start + count].queue_offset if start + count < len(messages) else below
        if behind is not None and record.queue_offset + count > behind:
            messages[start : start + count] = [record]


def decode_message(
    buffer: bytes,
    offset: int = 0,
    *,
    broker_name: str = "",
    decompress: bool = True,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> tuple[MessageExt, int]:
    """The message whose record begins at ``offset``, and where the next one begins.

    A compressed body is unpacked unless ``decompress`` is False. Raises RemoteProtocolError when there is no whole
    record, or its body cannot be unpacked into ``max_body_bytes``; CodecMissingError when nothing here can read it.
    """
    buffer = bytes(buffer)
    end = len(buffer)
    try:
        total, magic, crc, queue_id, flag, queue_offset, physical, sys_flag, born = _FIXED.unpack_from(buffer, offset)
        if magic not in (MAGIC_V1, MAGIC_V2):
            raise RemoteProtocolError(f"no message at byte {offset}: magic {magic & 0xFFFFFFFF:#010x}")
        position = offset + _FIXED.size
        born_ip, born_port, position = _host(buffer, position, bool(sys_flag & MessageSysFlag.BORNHOST_V6))
        (stored,) = _I64.unpack_from(buffer, position)
        store_ip, store_port, position = _host(buffer, position + 8, bool(sys_flag & MessageSysFlag.STOREHOST_V6))
        reconsume_times, prepared = _TAIL.unpack_from(buffer, position)
        (body_size,) = _I32.unpack_from(buffer, position + 12)
        position += 16
        body, position = _take(buffer, position, body_size, end)
        if magic == MAGIC_V1:
            topic_size = buffer[position]
            position += 1
        else:
            (topic_size,) = _SHORT.unpack_from(buffer, position)
            position += 2
        topic, position = _take(buffer, position, topic_size, end)
        (properties_size,) = _SHORT.unpack_from(buffer, position)
        properties, position = _take(buffer, position + 2, properties_size, end)
    except (struct.error, IndexError):
        raise RemoteProtocolError(f"the message at byte {offset} of {end} is cut off") from None
    if position != offset + total:
        raise RemoteProtocolError(f"the message at byte {offset} says {total} bytes and has {position - offset}")
    if decompress and sys_flag & COMPRESSED:
        body = unpack(body, sys_flag, max_body_bytes)
        sys_flag &= ~COMPRESSED
    fields: tuple[Any, ...] = (
        total, magic, crc, queue_id, flag, queue_offset, physical, sys_flag, born, born_ip, born_port, stored, store_ip,
        store_port, reconsume_times, prepared, len(body),
    )  # fmt: skip
    return MessageExt(fields, body, _text(topic), properties, broker_name), position


def _host(buffer: bytes, position: int, v6: bool) -> tuple[bytes, int, int]:
    after_ip = position + (16 if v6 else 4)
    (port,) = _I32.unpack_from(buffer, after_ip)
    return buffer[position:after_ip], port, after_ip + 4


def _take(buffer: bytes, position: int, size: int, end: int) -> tuple[bytes, int]:
    if size < 0 or position + size > end:
        raise RemoteProtocolError(f"a field of {size} bytes at byte {position} of {end}")
    return buffer[position : position + size], position + size


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"a topic is not UTF-8: {error}") from None


def _unwrap(outer: MessageExt) -> list[MessageExt]:
    """The messages of an inner batch: the record's own data, with the flag, properties and body of each element.

    None of them, when there are more than any true one has: they take many times the room of what they were read from.
    """
    try:
        elements = decode_batch(outer.body, MOST_IN_AN_INNER_BATCH)
    except BatchTooLongError:
        return []
    messages = []
    for index, element in enumerate(elements):
        fields = list(outer.fields)
        fields[4], fields[5], fields[16] = element.flag, outer.queue_offset + index, len(element.body)
        messages.append(MessageExt(tuple(fields), element.body, outer.topic, element.properties, outer.broker_name))
    return messages


def encode_batch(elements: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """The body of a batch; elements are (flag, body, properties as encoded text).

    Raises InvalidMessageError when the properties of one are too long.
    """
    parts: list[bytes] = []
    head, length = _ELEMENT.pack, _SHORT.pack
    fixed = _ELEMENT.size + _SHORT.size
    for flag, body, properties in elements:
        body_size, size = len(body), len(properties)
        if size > MAX_PROPERTIES_BYTES:
            raise InvalidMessageError(f"properties of {size} bytes; {MAX_PROPERTIES_BYTES} is the most")
        parts += (head(fixed + body_size + size, 0, 0, flag, body_size), body, length(size), properties)
    return b"".join(parts)


class BatchTooLongError(RemoteProtocolError):
    """A batch has more messages than are taken."""

    def __init__(self, most: int) -> None:
        self.most = most
        super().__init__(f"a batch has more than {most} messages")


def decode_batch(body: bytes, most: int | None = None) -> list[BatchElement]:
    """The elements of a batch. Raises RemoteProtocolError when the body is none; BatchTooLongError beyond ``most``."""
    elements: list[BatchElement] = []
    position, end = 0, len(body)
    while position < end:
        start = position
        if len(elements) == most:
            raise BatchTooLongError(most)
        try:
            size, _, _, flag, body_size = _ELEMENT.unpack_from(body, position)
            content, position = _take(body, position + _ELEMENT.size, body_size, end)
            (properties_size,) = _SHORT.unpack_from(body, position)
            properties, position = _take(body, position + 2, properties_size, end)
        except struct.error:
            raise RemoteProtocolError(f"the element at byte {start} of a batch of {end} is cut off") from None
        if position - start != size:
            raise RemoteProtocolError(f"an element of a batch says {size} bytes and has {position - start}")
        elements.append(BatchElement(flag, bytes(content), bytes(properties)))
    return elements
