"""Messages as users see them, what a send returns, and the property text that travels with a message.

:class:`Message` goes out, :class:`MessageExt` comes in. MessageExt and SendResult decode on first access: most of
their fields are never looked at.

Source: Apache RocketMQ 5.x ``Message``, ``MessageExt``, ``MessageConst``, ``MessageDecoder`` (property text, message
ids), ``MessageClientExt`` (which id is the visible one).
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, Protocol

from rocketbox.errors import InvalidMessageError, RemoteProtocolError
from rocketbox.safe_repr import also_when_unmade, one_line

__all__ = [
    "DELAY_LEVELS",
    "DELAY_LEVEL_SECONDS",
    "LocalTransactionState",
    "Compression",
    "ConsumeFromWhere",
    "ConsumeMode",
    "Message",
    "MessageExt",
    "QUEUE_OFFSET_FIELD",
    "MessageModel",
    "MessageQueue",
    "Property",
    "SelectorType",
    "SendResult",
    "SendStatus",
    "decode_properties",
    "encode_properties",
    "format_offset_msg_id",
]

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
MAX_PROPERTIES_BYTES = 32_767  # a signed 16-bit length in the stored record


class ConsumeMode(Enum):
    """How a group's handler is called: many messages at once, or one queue after its own order."""

    CONCURRENTLY = "CONCURRENTLY"
    ORDERLY = "ORDERLY"


class MessageModel(Enum):
    """Whether the members of a group share the messages or each gets all of them."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class SelectorType(Enum):
    """The language of ``selector_expression``."""

    TAG = "TAG"
    SQL92 = "SQL92"


class ConsumeFromWhere(Enum):
    """Where a group begins that has no offset yet."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class Compression(Enum):
    """How a body is compressed on its way and in the store; NONE: not at all.

    ZLIB is read by every version of Apache's client, the other two by those from 5.0 on. LZ4 and ZSTD need
    ``rocketbox[lz4]`` and ``rocketbox[zstd]``, where the message is sent and where it is consumed.
    """

    NONE = "NONE"
    ZLIB = "ZLIB"
    LZ4 = "LZ4"
    ZSTD = "ZSTD"


class SendStatus(Enum):
    """How safely the broker holds a message; anything but SEND_OK is stored, yet weaker than asked."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


class LocalTransactionState(Enum):
    """What became of the work that a transactional message goes with; the value is what brokers are told."""

    COMMIT = 8
    """It was done: consumers get the message."""
    ROLLBACK = 12
    """It was not done, and never will be: nobody gets the message."""
    UNKNOWN = 0
    """It is not known yet: the broker asks again."""


class Property:
    """Names of the properties RocketMQ itself puts on messages (Apache's ``MessageConst``)."""

    KEYS = "KEYS"
    TAGS = "TAGS"
    WAIT = "WAIT"
    DELAY = "DELAY"
    RETRY_TOPIC = "RETRY_TOPIC"
    DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
    REAL_TOPIC = "REAL_TOPIC"
    REAL_QID = "REAL_QID"
    TRAN_MSG = "TRAN_MSG"
    PGROUP = "PGROUP"
    MIN_OFFSET = "MIN_OFFSET"
    MAX_OFFSET = "MAX_OFFSET"
    ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
    RECONSUME_TIME = "RECONSUME_TIME"
    MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
    MSG_REGION = "MSG_REGION"
    TRACE_ON = "TRACE_ON"
    UNIQ_KEY = "UNIQ_KEY"
    CONSUME_START_TIME = "CONSUME_START_TIME"
    CLUSTER = "CLUSTER"
    POP_CK = "POP_CK"
    INSTANCE_ID = "INSTANCE_ID"
    CRC32 = "__CRC32#"
    TRANSACTION_ID = "__transactionId__"
    SHARDING_KEY = "__SHARDINGKEY"


RESERVED_PROPERTIES = frozenset(
    "KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID "
    "TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG ORIGIN_MESSAGE_ID RECONSUME_TIME MAX_RECONSUME_TIMES MSG_REGION TRACE_ON "
    "UNIQ_KEY EXTEND_UNIQ_INFO CONSUME_START_TIME DUP_INFO TRAN_PREPARED_QUEUE_OFFSET INSTANCE_ID CORRELATION_ID "
    "REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE POP_CK POP_CK_OFFSET 1ST_POP_TIME "
    "INNER_MULTI_QUEUE_OFFSET __BORNHOST BORN_TIMESTAMP TIMER_DELAY_SEC TIMER_DELAY_MS TIMER_DELIVER_MS "
    "TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __CRC32# "
    "DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID ORIGIN_GROUP _SYS_MSG_PRIORITY_ __LITE_TOPIC".split()
)
"""Names that ``Message.properties`` may not use (Apache's ``MessageConst.STRING_HASH_SET``)."""


DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's delay levels 1..18 as Apache's ``messageDelayLevel`` writes them (a broker may be set otherwise)."""

DELAY_LEVEL_SECONDS = tuple(int(level[:-1]) * {"s": 1, "m": 60, "h": 3600}[level[-1]] for level in DELAY_LEVELS.split())
"""The same in seconds; level n is at index n - 1."""


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on one broker."""

    topic: str
    broker_name: str
    queue_id: int


@dataclass(frozen=True, slots=True, init=False)
class Message:
    """A message to send.

    ``body`` is 1 to 4,194,304 bytes. ``keys`` are words by which the message can be found; ``tag`` is what consumers
    select by. ``hash_key`` picks the queue (``abs(hash % n)`` of Java's String.hashCode), so that messages of one key
    keep their order, and travels with the message (``__SHARDINGKEY``). ``delay_level`` 1..18 is one of RocketMQ's
    delays (1s 5s 10s 30s 1m .. 2h). ``wait_store_ok`` False lets a broker acknowledge before its flush. ``compression``
    compresses the body whatever its size is, or NONE leaves it as it is; None: the producer decides.

    ``delay`` (a timedelta, to the millisecond) and ``deliver_at`` (a datetime with a time zone) take brokers from
    RocketMQ 5.0 on, unless the delay is just one of the levels; a message has one of the three.
    """

    topic: str
    body: bytes
    tag: str | None
    keys: tuple[str, ...] | list[str]
    properties: Mapping[str, str]
    hash_key: str | None
    delay_level: int
    flag: int
    wait_store_ok: bool
    compression: Compression | None
    delay: timedelta | None
    deliver_at: datetime | None

    def __init__(
        self,
        topic: str,
        body: bytes,
        tag: str | None = None,
        keys: tuple[str, ...] | list[str] = (),
        properties: Mapping[str, str] | None = None,
        hash_key: str | None = None,
        delay_level: int = 0,
        flag: int = 0,
        wait_store_ok: bool = True,
        compression: Compression | None = None,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
    ) -> None:
        # A frozen dataclass' own __init__ asks object.__setattr__ for each field. Its slots, set themselves, take six
        # tenths of the time, which was a seventh of a one-way send (benchmark "one-way").
        _set_topic(self, topic)
        _set_body(self, body)
        _set_tag(self, tag)
        _set_keys(self, keys)
        _set_properties(self, {} if properties is None else properties)
        _set_hash_key(self, hash_key)
        _set_delay_level(self, delay_level)
        _set_flag(self, flag)
        _set_wait_store_ok(self, wait_store_ok)
        _set_compression(self, compression)
        _set_delay(self, delay)
        _set_deliver_at(self, deliver_at)


(
    _set_topic, _set_body, _set_tag, _set_keys, _set_properties, _set_hash_key, _set_delay_level, _set_flag,
    _set_wait_store_ok, _set_compression, _set_delay, _set_deliver_at,
) = (Message.__dict__[slot.name].__set__ for slot in fields(Message))  # fmt: skip


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """``name 0x01 value 0x02`` for each pair, as UTF-8 (Apache's ``MessageDecoder.messageProperties2String``).

    Raises InvalidMessageError for a name or value that holds one of the two separators, which cannot be escaped.
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    if text.count("\x01") != len(properties) or text.count("\x02") != len(properties):
        for name, value in properties.items():
            if any(separator in part for part in (name, value) for separator in "\x01\x02"):
                raise InvalidMessageError(f"property {name!r} holds a control character (0x01 or 0x02)")
    return text.encode()


def decode_properties(data: bytes) -> dict[str, str]:
    """The pairs of a property text; the last 0x02 may be missing, pairs without a name or a value are dropped."""
    properties: dict[str, str] = {}
    for pair in data.decode("utf-8", "replace").split("\x02"):
        name, separator, value = pair.partition("\x01")
        if separator and name and value:
            properties[name] = value
    return properties


def format_offset_msg_id(ip: bytes, port: int, commit_log_offset: int) -> str:
    """Upper-case hex of ip (4 or 16 bytes), port (4, as Java's int) and commit-log offset (8): 32 or 56 characters."""
    address = ip + (port & 0xFFFF_FFFF).to_bytes(4, "big")
    return (address + commit_log_offset.to_bytes(8, "big", signed=True)).hex().upper()


def _format_host(ip: bytes, port: int) -> str:
    if len(ip) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, ip)}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, ip)}]:{port}"


QUEUE_OFFSET_FIELD: Final = 5
"""Where a message's queue offset stands in MessageExt.fields; reading it there saves a call per message."""


class MessageExt:
    """A message that came from a broker.

    ``fields`` are the numbers of the stored record in its order: 0 total size, 1 magic, 2 body CRC, 3 queue id,
    4 flag, 5 queue offset, 6 commit-log offset, 7 sys flag, 8 born time, 9 born ip, 10 born port, 11 store time,
    12 store ip, 13 store port, 14 reconsume times, 15 prepared transaction offset, 16 body length
    (``rocketbox.protocol.stored_message`` reads them). All else is decoded when it is asked for.
    """

    __slots__ = (
        "_properties",
        "body",
        "broker_name",
        "fields",
        "raw_properties",
        "received_body",
        "reconsume_times",
        "topic",
    )

    def __init__(
        self, fields: tuple[Any, ...], body: bytes, topic: str, raw_properties: bytes, broker_name: str = ""
    ) -> None:
        self.fields = fields
        self.body = body
        self.received_body = body
        """What ``body`` was before a handler replaced it: what is sent back if that fails."""
        self.topic = topic
        self.broker_name = broker_name
        times: int = fields[14]
        self.reconsume_times = times if times > 0 else 0  # what it is sent with is anything that its sender writes
        self.raw_properties = raw_properties
        """The property text as it was stored."""
        self._properties: dict[str, str] | None = None

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, RocketMQ's own and the sender's (read-only)."""
        return MappingProxyType(self._decoded())

    def _decoded(self) -> dict[str, str]:
        if self._properties is None:
            self._properties = decode_properties(self.raw_properties)
        return self._properties

    def set_property(self, name: str, value: str) -> None:
        """Put a property on this copy of the message; the broker's is not touched."""
        self._decoded()[name] = value

    @property
    def tag(self) -> str | None:
        return self._decoded().get(Property.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._decoded().get(Property.KEYS, "").split())

    @property
    def store_size(self) -> int:
        """Bytes of the record in the commit log."""
        return int(self.fields[0])

    @property
    def body_crc(self) -> int:
        return int(self.fields[2])

    @property
    def queue_id(self) -> int:
        return int(self.fields[3])

    @property
    def flag(self) -> int:
        return int(self.fields[4])

    @property
    def queue_offset(self) -> int:
        return int(self.fields[QUEUE_OFFSET_FIELD])

    @property
    def commit_log_offset(self) -> int:
        return int(self.fields[6])

    @property
    def sys_flag(self) -> int:
        return int(self.fields[7])

    @property
    def born_timestamp_ms(self) -> int:
        return int(self.fields[8])

    @property
    def born_host(self) -> str:
        return _format_host(self.fields[9], self.fields[10])

    @property
    def store_timestamp_ms(self) -> int:
        return int(self.fields[11])

    @property
    def store_host(self) -> str:
        """``ip:port`` of the broker that stored the message."""
        return _format_host(self.fields[12], self.fields[13])

    @property
    def prepared_transaction_offset(self) -> int:
        return int(self.fields[15])

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    @property
    def offset_msg_id(self) -> str:
        """The id made of the broker's address and the commit-log offset."""
        return format_offset_msg_id(self.fields[12], self.fields[13], self.fields[6])

    @property
    def msg_id(self) -> str:
        """The id its sender gave it (UNIQ_KEY), the same over all retries; else the offset id."""
        return self._decoded().get(Property.UNIQ_KEY) or self.offset_msg_id

    @property
    def transaction_id(self) -> str | None:
        """The id of the transaction that the message is or was of; of most messages it says no more than ``msg_id``."""
        properties = self._decoded()
        return properties.get(Property.TRANSACTION_ID) or properties.get(Property.UNIQ_KEY)

    @also_when_unmade
    def __repr__(self) -> str:
        return (
            f"MessageExt({self.topic!r}, queue={self.broker_name}/{self.queue_id}, offset={self.queue_offset}, "
            f"msg_id={one_line(self.msg_id)}, {len(self.body)} bytes)"
        )


class _HasExtFields(Protocol):
    @property
    def ext_fields(self) -> Mapping[str, str]: ...


class SendResult:
    """What a broker answered about a message that was sent; fields are parsed from its answer when they are asked for.

    They raise RemoteProtocolError where it is garbled or does not have them; the message is stored all the same.
    """

    __slots__ = ("_response", "broker_name", "msg_id", "status", "topic")

    def __init__(self, status: SendStatus, msg_id: str, topic: str, broker_name: str, response: _HasExtFields) -> None:
        self.status = status
        self.msg_id = msg_id
        self.topic = topic
        self.broker_name = broker_name
        self._response = response

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self._number("queueId"))

    @property
    def queue_offset(self) -> int:
        """The message's place in its queue; for a delayed message, in the queue where it is parked."""
        return self._number("queueOffset")

    @property
    def offset_msg_id(self) -> str:
        """The broker's id of the record."""
        return self._field("msgId")

    @property
    def ext_fields(self) -> Mapping[str, str]:
        """All fields of the broker's answer, as it sent them."""
        return self._response.ext_fields

    @property
    def transaction_id(self) -> str | None:
        return self._response.ext_fields.get("transactionId")

    @property
    def recall_handle(self) -> str | None:
        """By what the message can be recalled before its time (``Producer.recall``); None: it cannot.

        Messages with a ``deliver_at``, or a ``delay`` that is no level, have one, where the broker tells it (5.3 on).
        """
        return self._response.ext_fields.get("recallHandle") or None

    @property
    def region_id(self) -> str:
        return self._response.ext_fields.get("MSG_REGION", "DefaultRegion")

    @property
    def trace_on(self) -> bool:
        return self._response.ext_fields.get("TRACE_ON", "true").lower() != "false"

    @also_when_unmade
    def __repr__(self) -> str:
        try:
            place = f"queue={self.queue}, offset={self.queue_offset}"
        except RemoteProtocolError as error:
            place = str(error)
        return f"SendResult({self.status.name}, msg_id={self.msg_id}, {place})"

    def _field(self, name: str) -> str:
        value = self._response.ext_fields.get(name)
        if value is None:
            raise RemoteProtocolError(f"{self.broker_name} did not tell the {name} of message {self.msg_id}")
        return value

    def _number(self, name: str) -> int:
        text = self._field(name)
        try:
            return int(text)
        except ValueError as error:
            told = f"{self.broker_name} told {text[:20]!r} as the {name} of message {self.msg_id}"
            raise RemoteProtocolError(told) from error
