"""Message trace: what a client tells of the way of a message, as Apache's trace topic holds it.

A trace message's body is records one after another, as UTF-8. A record is fields with 0x01 between them and 0x02 behind
the last; its first field is its kind::

    Pub             time, region, group, topic, msg_id, tags, keys, store_host, body bytes, cost ms, type, offset id, ok
    SubBefore       time, region, group, request_id, msg_id, retries, keys
    SubAfter        request_id, msg_id, cost ms, ok, keys, code, time, group; in a cloud "" for the last two
    EndTransaction  time, region, group, topic, msg_id, tags, keys, store_host, type, transaction_id, state, from_check
    Recall          time, region, group, topic, msg_id, ok

What is not there is the text ``null``. A separator within a field, which consumed messages may hold, becomes a space:
Apache's reader would give up the whole message.

Source: Apache RocketMQ 5.5 ``TraceDataEncoder``, ``TraceConstants``, ``TraceView``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, TypeAlias

from rocketbox.errors import RemoteProtocolError
from rocketbox.message import LocalTransactionState

__all__ = [
    "CLOUD_TRACE_TOPIC_PREFIX",
    "ConsumeCode",
    "EndTransactionRecord",
    "PubRecord",
    "RecallRecord",
    "SubAfterRecord",
    "SubBeforeRecord",
    "TraceRecord",
    "TracedType",
    "decode_trace_records",
    "without_separators",
]

CLOUD_TRACE_TOPIC_PREFIX = "rmq_sys_TRACE_DATA_"
"""Of the topic to which trace is sent in a cloud; the region stands behind it."""

_FIELD = "\x01"
_END = "\x02"
_NULL = "null"
_SEPARATORS = str.maketrans({_FIELD: " ", _END: " "})
_MOST_INT = 2**31 - 1  # Java reads costs and sizes as int
_STATES = {
    LocalTransactionState.COMMIT: "COMMIT_MESSAGE",
    LocalTransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    LocalTransactionState.UNKNOWN: "UNKNOW",  # Apache's spelling
}
_STATES_BY_NAME = {name: state for state, name in _STATES.items()}


class TracedType(IntEnum):
    """What kind of message a record is of (Apache's ``MessageType``)."""

    NORMAL = 0
    HALF = 1
    """The half message of a transaction."""
    COMMIT = 2
    """The end of a transaction, whichever it is."""
    DELAY = 3
    ORDER = 4


class ConsumeCode(IntEnum):
    """How the call of a handler has ended (Apache's ``ConsumeReturnType``)."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4
    """It has said that the message comes back."""


def _join(*fields: object) -> str:
    return _FIELD.join([_text(field) for field in fields]) + _END


def without_separators(text: str) -> str:
    """The text with a space in the place of each 0x01 and 0x02."""
    return text.translate(_SEPARATORS) if _FIELD in text or _END in text else text


def _text(field: object) -> str:
    if isinstance(field, str):
        return without_separators(field)
    if field is None:
        return _NULL
    if field is True or field is False:
        return "true" if field else "false"
    return str(int(field))  # type: ignore[call-overload] # an IntEnum's own str may be its name


@dataclass(frozen=True, slots=True, kw_only=True)
class PubRecord:
    """A message was sent. ``store_host`` is the broker's address, ``cost_ms`` what the send took with all its tries."""

    kind: ClassVar[str] = "Pub"

    timestamp_ms: int
    region_id: str
    group: str
    topic: str
    msg_id: str
    tags: str | None
    keys: str | None
    store_host: str | None
    body_length: int
    cost_ms: int
    type: TracedType
    offset_msg_id: str | None
    success: bool

    def encode(self, *, cloud: bool = False) -> str:
        return _join(
            self.kind, self.timestamp_ms, self.region_id, self.group, self.topic, self.msg_id, self.tags, self.keys,
            self.store_host, self.body_length, min(self.cost_ms, _MOST_INT), self.type, self.offset_msg_id,
            self.success,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SubBeforeRecord:
    """A handler is being called with a message. ``request_id`` is that of the call."""

    kind: ClassVar[str] = "SubBefore"

    timestamp_ms: int
    region_id: str
    group: str
    request_id: str
    msg_id: str
    retry_times: int
    keys: str | None

    def encode(self, *, cloud: bool = False) -> str:
        return _join(
            self.kind, self.timestamp_ms, self.region_id, self.group, self.request_id, self.msg_id, self.retry_times,
            self.keys,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SubAfterRecord:
    """A handler's call has ended. ``cost_ms`` is the message's part of its time; ``region_id`` is not in the record."""

    kind: ClassVar[str] = "SubAfter"

    timestamp_ms: int
    region_id: str
    group: str
    request_id: str
    msg_id: str
    cost_ms: int
    success: bool
    keys: str | None
    code: ConsumeCode

    def encode(self, *, cloud: bool = False) -> str:
        begin = (self.kind, self.request_id, self.msg_id, min(self.cost_ms, _MOST_INT), self.success, self.keys)
        if cloud:
            return _join(*begin, self.code, "")
        return _join(*begin, self.code, self.timestamp_ms, self.group)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionRecord:
    """A broker is told how a transaction has ended; ``from_check``: because it has asked."""

    kind: ClassVar[str] = "EndTransaction"

    timestamp_ms: int
    region_id: str
    group: str
    topic: str
    msg_id: str
    tags: str | None
    keys: str | None
    store_host: str | None
    transaction_id: str | None
    state: LocalTransactionState
    from_check: bool

    def encode(self, *, cloud: bool = False) -> str:
        return _join(
            self.kind, self.timestamp_ms, self.region_id, self.group, self.topic, self.msg_id, self.tags,
            self.keys, self.store_host, TracedType.COMMIT, self.transaction_id, _STATES[self.state], self.from_check,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallRecord:
    """A message that waited for its time was called back, or that was refused."""

    kind: ClassVar[str] = "Recall"

    timestamp_ms: int
    region_id: str
    group: str
    topic: str
    msg_id: str
    success: bool
    keys: ClassVar[str | None] = None

    def encode(self, *, cloud: bool = False) -> str:
        return _join(
            self.kind, self.timestamp_ms, self.region_id, self.group, self.topic, self.msg_id, self.success
        )  # fmt: skip


TraceRecord: TypeAlias = PubRecord | SubBeforeRecord | SubAfterRecord | EndTransactionRecord | RecallRecord


def decode_trace_records(body: bytes) -> list[TraceRecord]:
    """The records of a trace message; kinds that are not known are left out, as Apache's reader does.

    What a kind of record does not say is its field's empty value: region and, from a cloud, group and time of
    SubAfter. Raises RemoteProtocolError for a record that is not as its kind has to be.
    """
    found: list[TraceRecord] = []
    for line in body.decode("utf-8", "replace").split(_END):
        kind, *fields = line.split(_FIELD)
        read = _READERS.get(kind)
        if read is None:
            continue
        try:
            found.append(read(fields))
        except (ValueError, IndexError, KeyError) as error:
            raise RemoteProtocolError(f"a trace record is garbled: {line[:200]!r}") from error
    return found


def _or_none(field: str) -> str | None:
    return None if field == _NULL else field


def _is_true(field: str) -> bool:
    return field.lower() == "true"


def _read_pub(fields: list[str]) -> TraceRecord:
    has_offset_id = len(fields) > 12
    return PubRecord(
        timestamp_ms=int(fields[0]), region_id=fields[1], group=fields[2], topic=fields[3], msg_id=fields[4],
        tags=_or_none(fields[5]), keys=_or_none(fields[6]), store_host=_or_none(fields[7]),
        body_length=int(fields[8]), cost_ms=int(fields[9]), type=TracedType(int(fields[10])),
        offset_msg_id=_or_none(fields[11]) if has_offset_id else None,
        success=_is_true(fields[12] if has_offset_id else fields[11]),
    )  # fmt: skip


def _read_sub_before(fields: list[str]) -> TraceRecord:
    return SubBeforeRecord(
        timestamp_ms=int(fields[0]), region_id=fields[1], group=fields[2], request_id=fields[3], msg_id=fields[4],
        retry_times=int(fields[5]), keys=_or_none(fields[6]),
    )  # fmt: skip


def _read_sub_after(fields: list[str]) -> TraceRecord:
    is_timed = len(fields) > 7
    return SubAfterRecord(
        timestamp_ms=int(fields[6]) if is_timed else 0, region_id="", group=fields[7] if is_timed else "",
        request_id=fields[0], msg_id=fields[1], cost_ms=int(fields[2]), success=_is_true(fields[3]),
        keys=_or_none(fields[4]), code=ConsumeCode(int(fields[5])),
    )  # fmt: skip


def _read_end_transaction(fields: list[str]) -> TraceRecord:
    return EndTransactionRecord(
        timestamp_ms=int(fields[0]), region_id=fields[1], group=fields[2], topic=fields[3], msg_id=fields[4],
        tags=_or_none(fields[5]), keys=_or_none(fields[6]), store_host=_or_none(fields[7]),
        transaction_id=_or_none(fields[9]), state=_STATES_BY_NAME[fields[10]], from_check=_is_true(fields[11]),
    )  # fmt: skip


def _read_recall(fields: list[str]) -> TraceRecord:
    return RecallRecord(
        timestamp_ms=int(fields[0]), region_id=fields[1], group=fields[2], topic=fields[3], msg_id=fields[4],
        success=_is_true(fields[5]),
    )  # fmt: skip


_READERS = {
    "Pub": _read_pub,
    "SubBefore": _read_sub_before,
    "SubAfter": _read_sub_after,
    "EndTransaction": _read_end_transaction,
    "Recall": _read_recall,
}
