"""The fields of requests and answers: ext fields to typed values and back.

A header's ``encode()`` gives the ext fields under Apache's names, None values left out; ``decode()`` reads them and
raises HeaderError for a required field that is missing or one that is garbled. Unknown fields are ignored. Sends are
written and read faster by ``prepared_sends`` and ``send_frames``.

Source: Apache RocketMQ 5.x, the header classes of the same names, ``TopicRequestHeader`` and ``RpcRequestHeader``
(``bname``), ``CommandCustomHeader``.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from rocketbox.errors import RemotingError
from rocketbox.protocol.codes import TBW102

__all__ = [
    "CheckTransactionStateRequestHeader",
    "ConsumerSendMsgBackRequestHeader",
    "CreateTopicRequestHeader",
    "DeleteSubscriptionGroupRequestHeader",
    "DeleteTopicRequestHeader",
    "EndTransactionRequestHeader",
    "GetConsumerListByGroupRequestHeader",
    "GetMaxOffsetRequestHeader",
    "GetMinOffsetRequestHeader",
    "GetRouteInfoRequestHeader",
    "HeaderError",
    "NotifyConsumerIdsChangedRequestHeader",
    "OffsetResponseHeader",
    "PagedListRequestHeader",
    "PullMessageRequestHeader",
    "PullMessageResponseHeader",
    "QueryConsumerOffsetRequestHeader",
    "QueryMessageRequestHeader",
    "QueryMessageResponseHeader",
    "RecallMessageRequestHeader",
    "RecallMessageResponseHeader",
    "RegisterBrokerRequestHeader",
    "RegisterBrokerResponseHeader",
    "ReplyMessageRequestHeader",
    "SearchOffsetRequestHeader",
    "SendMessageRequestHeader",
    "SendMessageResponseHeader",
    "UnregisterBrokerRequestHeader",
    "UnregisterClientRequestHeader",
    "UpdateConsumerOffsetRequestHeader",
    "ViewMessageRequestHeader",
]


SHOWN_CHARACTERS = 100  # of a value that cannot be read


class HeaderError(RemotingError):
    """A field of a header is missing or garbled: what its sender meant cannot be known."""

    def __init__(self, header: str, field: str, value: str | None) -> None:
        self.header = header
        self.field = field
        self.value = value
        if value is not None and len(value) > SHOWN_CHARACTERS:  # by whoever sent it: it goes into answers and logs
            shown = f"{value[:SHOWN_CHARACTERS]!r}... ({len(value)} characters)"
        else:
            shown = repr(value)
        found = "is missing" if value is None else f"is {shown}"
        super().__init__(f"{header}: field {field} {found}")


def _read_int(text: str) -> int:
    number = int(text)
    if not -(2**63) <= number < 2**63 or not text.lstrip("+-").isascii():
        raise ValueError(text)
    return number


def _read_bool(text: str) -> bool:
    return text.lower() == "true"  # as Java's Boolean.parseBoolean: anything else is false


def _write(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


_READERS: dict[type, Callable[[str], Any]] = {int: _read_int, str: str, bool: _read_bool}


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    wire: str
    read: Callable[[str], Any]
    default: Any


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


_fields: dict[type[Any], tuple[_Field, ...]] = {}


def _fields_of(cls: type[Any]) -> tuple[_Field, ...]:
    known = _fields.get(cls)
    if known is None:
        hints = typing.get_type_hints(cls)
        fields = []
        for field in dataclasses.fields(cls):
            (kind,) = set(typing.get_args(hints[field.name]) or (hints[field.name],)) - {type(None)}
            wire = cls._WIRE.get(field.name) or _camel(field.name)
            fields.append(_Field(field.name, wire, _READERS[kind], field.default))
        known = _fields[cls] = tuple(fields)
    return known


def _decode_fields(cls: type[Any], ext_fields: Mapping[str, str], wires: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in _fields_of(cls):
        wire = wires.get(field.name, field.wire)
        text = ext_fields.get(wire)
        if text is None:
            if field.default is dataclasses.MISSING:
                raise HeaderError(cls.__name__, wire, None)
            continue
        try:
            values[field.name] = field.read(text)
        except ValueError:
            raise HeaderError(cls.__name__, wire, text) from None
    return values


class _Header:
    """Reads and writes the fields of a dataclass; a name differs from Apache's only by its case and underscores."""

    __slots__ = ()
    _WIRE: ClassVar[Mapping[str, str]] = {}  # names that are not the camel case of ours

    def encode(self) -> dict[str, str]:
        """The ext fields, in the order of the class; None values are left out."""
        return {
            field.wire: _write(value)
            for field in _fields_of(type(self))
            if (value := getattr(self, field.name)) is not None
        }

    @classmethod
    def decode(cls, ext_fields: Mapping[str, str]) -> Self:
        """The header in ext fields. Raises HeaderError."""
        return cls(**_decode_fields(cls, ext_fields, {}))


# The one-letter names of SendMessageRequestHeaderV2.
_V2 = {
    "producer_group": "a", "topic": "b", "default_topic": "c", "default_topic_queue_nums": "d", "queue_id": "e",
    "sys_flag": "f", "born_timestamp": "g", "flag": "h", "properties": "i", "reconsume_times": "j", "unit_mode": "k",
    "max_reconsume_times": "l", "batch": "m", "bname": "n",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageRequestHeader(_Header):
    """Codes 10, 324 (long names) and 310, 320, 325 (one-letter names). ``queue_id`` below 0 lets the broker choose.

    ``born_timestamp`` is in ms. ``properties`` is the property text; ``max_reconsume_times`` is for retry topics only.
    """

    producer_group: str
    topic: str
    default_topic: str = TBW102
    default_topic_queue_nums: int = 4
    queue_id: int
    sys_flag: int = 0
    born_timestamp: int
    flag: int = 0
    properties: str | None = None
    reconsume_times: int | None = 0
    unit_mode: bool | None = False
    batch: bool | None = False
    max_reconsume_times: int | None = None
    bname: str | None = None

    def encode_v2(self) -> dict[str, str]:
        """The ext fields by their one-letter names, as codes 310 and 320 carry them."""
        return {_V2[name]: _write(value) for name in _V2 if (value := getattr(self, name)) is not None}

    @classmethod
    def decode_v2(cls, ext_fields: Mapping[str, str]) -> Self:
        """The header in ext fields by their one-letter names; long ones beside them count for nothing.

        Which names count is said by the code alone: who asks what a request may reads the same. Raises HeaderError.
        """
        return cls(**_decode_fields(cls, ext_fields, _V2))


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageResponseHeader(_Header):
    """The answer to a send; ``msg_id`` is the offset id, of a batch several joined by commas."""

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyMessageRequestHeader(_Header):
    """Code 326, from the broker to the client that asked: the send of the reply by its long names, and where it came
    from. The hosts are ``ip:port``, both timestamps are in ms.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool | None = None
    born_host: str
    store_host: str
    store_timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PullMessageRequestHeader(_Header):
    """Codes 11 and 361. ``sys_flag`` holds PullSysFlag; the hold time is in ms, ``sub_version`` too."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int
    suspend_timeout_millis: int
    subscription: str | None = None
    sub_version: int
    expression_type: str | None = None
    max_msg_bytes: int | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullMessageResponseHeader(_Header):
    """The answer to a pull; the last four are of 5.x only."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None
    forbidden_type: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessageRequestHeader(_Header):
    """Code 12, messages by key; times in ms. ``unique_key_query``: the key is a UNIQ_KEY."""

    _WIRE: ClassVar[Mapping[str, str]] = {"unique_key_query": "_UNIQUE_KEY_QUERY"}

    topic: str
    key: str
    max_num: int
    begin_timestamp: int
    end_timestamp: int
    unique_key_query: bool | None = None
    index_type: str | None = None
    last_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMessageResponseHeader(_Header):
    """The answer to code 12: how far the index has come."""

    index_last_update_timestamp: int
    index_last_update_phyoffset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewMessageRequestHeader(_Header):
    """Code 33: the record at a commit-log offset."""

    offset: int
    topic: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumerOffsetRequestHeader(_Header):
    """Code 14."""

    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConsumerOffsetRequestHeader(_Header):
    """Code 15."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOffsetRequestHeader(_Header):
    """Code 29: the offset by store time (ms)."""

    topic: str
    queue_id: int
    timestamp: int
    boundary_type: str | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMaxOffsetRequestHeader(_Header):
    """Code 30."""

    topic: str
    queue_id: int
    committed: bool | None = True
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMinOffsetRequestHeader(_Header):
    """Code 31."""

    topic: str
    queue_id: int
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetResponseHeader(_Header):
    """The answer to codes 14, 29, 30 and 31."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterClientRequestHeader(_Header):
    """Code 35."""

    _WIRE: ClassVar[Mapping[str, str]] = {"client_id": "clientID"}

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSendMsgBackRequestHeader(_Header):
    """Code 36. ``offset`` is the commit-log offset; ``delay_level`` 0 lets the broker choose, -1 means dead letter."""

    offset: int
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = False
    max_reconsume_times: int | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionRequestHeader(_Header):
    """Code 37. The offsets are those of the half message: in its queue, and in the commit log.

    ``commit_or_rollback`` is 8 (commit), 12 (roll back) or 0 (not known). 4.9 sends no topic and broker.
    """

    topic: str | None = None
    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: int
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTransactionStateRequestHeader(_Header):
    """Code 39, from the broker to a producer; the offsets are to be sent back. 4.9 sends no topic and broker."""

    topic: str | None = None
    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallMessageRequestHeader(_Header):
    """Code 370. ``recall_handle`` is the text that the send was answered with."""

    topic: str
    recall_handle: str
    producer_group: str | None = None
    bname: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallMessageResponseHeader(_Header):
    """The answer to code 370. ``msg_id`` is the recalled message's UNIQ_KEY."""

    msg_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerListByGroupRequestHeader(_Header):
    """Code 38."""

    consumer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyConsumerIdsChangedRequestHeader(_Header):
    """Code 40, from the broker to each member of a group."""

    consumer_group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRouteInfoRequestHeader(_Header):
    """Code 105."""

    topic: str
    accept_standard_json_only: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRequestHeader(_Header):
    """Code 103. ``body_crc32`` 0 is unchecked, else CRC-32 of the body & 0x7FFFFFFF.

    ``ha_server_addr`` is empty where nothing listens for slaves; Apache's name server wants it to be there, and a
    binary header cannot say that a text is empty, so such a broker registers in JSON.
    """

    _WIRE: ClassVar[Mapping[str, str]] = {"body_crc32": "bodyCrc32"}

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int
    ha_server_addr: str = ""
    heartbeat_timeout_millis: int | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerResponseHeader(_Header):
    """The answer to code 103; a slave is told its master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRequestHeader(_Header):
    """Code 104."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopicRequestHeader(_Header):
    """Code 17. ``attributes`` are changes: ``+name=value`` and ``-name``, separated by commas."""

    topic: str
    default_topic: str = TBW102
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str
    topic_sys_flag: int | None = None
    order: bool = False
    attributes: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicRequestHeader(_Header):
    """Codes 215 (of a broker) and 216 (of a name server, which may be told the cluster)."""

    topic: str = ""
    cluster_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedListRequestHeader(_Header):
    """Codes 21 and 201: from which topic or group on, and how many; ``data_version`` is JSON."""

    topic_seq: int = 0
    max_topic_num: int | None = None
    group_seq: int = 0
    max_group_num: int | None = None
    data_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSubscriptionGroupRequestHeader(_Header):
    """Code 207."""

    group_name: str
    clean_offset: bool = False
