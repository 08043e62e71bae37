"""Sends: one message (10, 310) or a batch (320, or any with the batch mark), checked, stored, answered when durable.

This is the broker's hot path: one pass over header and property text, no mapping of either, no task for a message; the
answer is written by the store's callback after the flush that covers the message. Transactions and timer messages are
refused.

Source: Apache RocketMQ 5.x ``SendMessageProcessor``, ``AbstractSendMessageProcessor``, ``TopicValidator``,
``HookUtils``.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Awaitable
from typing import NamedTuple

from rocketbox.broker.delay import park
from rocketbox.broker.groups import GroupTable
from rocketbox.broker.handlers.durable import DurableReplies
from rocketbox.broker.locks import QueueLocks
from rocketbox.broker.options import BrokerOptions
from rocketbox.broker.property_text import add_property, find_property, remove_properties, set_property
from rocketbox.broker.registration import Registration
from rocketbox.broker.store.message_store import MessageStore, PutResult
from rocketbox.broker.topics import TopicTable
from rocketbox.clock import Clock
from rocketbox.errors import InvalidMessageError, RemotingError, StoreError, StoreFailedError
from rocketbox.message import format_offset_msg_id
from rocketbox.protocol.bodies import TopicConfig
from rocketbox.protocol.codes import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SEND_FORBIDDEN_TOPICS,
    VERSION_3_4_9,
    MessageSysFlag,
    PermName,
    ResponseCode,
    dlq_topic,
)
from rocketbox.protocol.command import RemotingCommand, decode_command
from rocketbox.protocol.headers import HeaderError
from rocketbox.protocol.ids import UniqIdGenerator
from rocketbox.protocol.send_frames import SendHead, SendReader, SendReplyTemplate
from rocketbox.protocol.stored_message import StoredMessage, decode_batch
from rocketbox.protocol.tags import MAX_TOPIC_CHARACTERS, is_valid_name
from rocketbox.remoting.connection import Connection

__all__ = ["SendHandler", "parse_address"]

_log = logging.getLogger(__name__)

MAX_GROUP_TOPIC_CHARACTERS = 255  # of %RETRY% and %DLQ% topics
DLQ_QUEUES = 1

_TIMER_PROPERTIES = (b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS")
_REPLACED_PROPERTIES = frozenset(  # what the broker itself writes; a message sent again brings the old ones along
    {b"MSG_REGION", b"TRACE_ON", b"CLUSTER", b"POP_CK", b"__CRC32#"}
)
_BORN_HOST = "broker.born_host"  # attribute of a connection


class _Refused(Exception):  # noqa: N818 - ends the checks, never leaves this module
    """What a send is answered that is not stored."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        self.code = code
        self.remark = remark
        super().__init__(remark)


class _Stored(NamedTuple):
    """A send that is in the store: the topic and queue its sender is told (a delayed one is parked elsewhere)."""

    result: PutResult
    topic: str
    queue_id: int
    uniq_key: bytes | None


def parse_address(address: str) -> tuple[bytes, int]:
    """IP (4 or 16 bytes) and port of ``ip:port`` or ``[ip]:port``; an address that is no IP is 0.0.0.0."""
    host, _, port = address.rpartition(":")
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).packed, int(port)
    except ValueError:
        return bytes(4), 0


class SendHandler:
    """Answers sends. :meth:`handle` is the request handler of codes 10, 310 and 320."""

    def __init__(
        self,
        options: BrokerOptions,
        topics: TopicTable,
        groups: GroupTable,
        locks: QueueLocks,
        registration: Registration,
        store: MessageStore,
        replies: DurableReplies,
        *,
        clock: Clock,
    ) -> None:
        self._broker_name = options.broker_name
        self._writable = bool(options.broker_permission & PermName.WRITE)
        self._delay_levels = len(options.store.delay_level_ms)
        self._max_message_size = options.store.max_message_size
        self._topics = topics
        self._groups = groups
        self._locks = locks
        self._registration = registration
        self._store = store
        self._replies = replies
        self._clock = clock
        self._uniq_ids = UniqIdGenerator(clock.time_ms, clock.random)
        self._reader = SendReader()
        trace = "true" if options.trace_on else "false"
        self._answer_fields = {"MSG_REGION": options.region_id, "TRACE_ON": trace}
        self._template = SendReplyTemplate(self._answer_fields)
        self._added = (
            f"MSG_REGION\x01{options.region_id}\x02TRACE_ON\x01{trace}\x02CLUSTER\x01{options.broker_cluster_name}\x02"
        ).encode()
        self._host: tuple[bytes, int] = (b"", 0)
        self._host_of_ids = ""

    def handle(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Store what was sent; the answer follows when it is durable."""
        try:
            return self._send(connection, request)
        except _Refused as refused:
            code, remark = refused.code, refused.remark
        except HeaderError as error:
            code, remark = ResponseCode.SYSTEM_ERROR, str(error)
        except InvalidMessageError as error:
            code, remark = ResponseCode.MESSAGE_ILLEGAL, str(error)
        except StoreFailedError as error:
            code, remark = ResponseCode.SERVICE_NOT_AVAILABLE, f"the store accepts no more writes: {error}"
        except StoreError as error:
            code, remark = ResponseCode.SERVICE_NOT_AVAILABLE, str(error)
        return RemotingCommand.response(code, remark, self._answer_fields)

    def _send(
        self, connection: Connection, request: RemotingCommand
    ) -> Awaitable[RemotingCommand | None] | RemotingCommand | None:
        if self._replies.is_full:
            raise _Refused(
                ResponseCode.SYSTEM_BUSY,
                f"[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, {self._replies.waiting} sends "
                "wait for the disk (sendThreadPoolQueueCapacity)",
            )
        head, born, properties = self._reader.read(request)
        config = self._topics.get(head.topic)
        if config is None or head.topic in SEND_FORBIDDEN_TOPICS:
            config = self._new_topic(head)
        if config.order and not self._writable:
            raise _Refused(ResponseCode.NO_PERMISSION, f"the broker[{self._broker_name}] sending message is forbidden")
        queue_id = head.queue_id
        if queue_id >= config.read_queue_nums and queue_id >= config.write_queue_nums:
            raise _Refused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, {config} Producer: {connection.remote_address}",
            )
        if not request.body:
            raise _Refused(ResponseCode.SYSTEM_ERROR, "the message body is empty")
        if queue_id < 0:
            queue_id = self._clock.random.randrange(max(1, config.write_queue_nums))
        if head.batch:
            stored = self._put_batch(connection, request, head, born, queue_id, properties)
        else:
            stored = self._put_single(connection, request, head, born, config, queue_id, properties)
        result = stored.result
        frame = self._template.encode(
            request, self._msg_id(result), stored.queue_id, result.queue_offset, stored.uniq_key
        )
        # The quick look first; a property whose name ends so, or another value that begins so, must not do without it.
        wait = b"WAIT\x01false" not in properties or find_property(properties, b"WAIT") != b"false"
        if self._registration.is_pending(stored.topic) and not request.is_oneway:
            answer = decode_command(frame[4:])
            return self._replies.answer_when_known(stored.topic, answer, result.end_offset if wait else None)
        if wait:
            self._replies.answer_frame(connection, request, frame, result.end_offset)
        else:
            connection.reply_frame(request, frame)
        return None

    def _msg_id(self, result: PutResult) -> str:
        if len(result.offsets) > 1:
            return result.msg_id
        if result.store_host is not self._host:
            self._host = result.store_host
            self._host_of_ids = format_offset_msg_id(*self._host, 0)[:-16]
        return f"{self._host_of_ids}{result.commit_log_offset:016X}"

    # --- the two kinds ---

    def _put_single(
        self,
        connection: Connection,
        request: RemotingCommand,
        head: SendHead,
        born: int,
        config: TopicConfig,
        queue_id: int,
        properties: bytes,
    ) -> _Stored:
        if len(request.body) > self._max_message_size:
            raise _Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal, its body has {len(request.body)} bytes; {self._max_message_size} is the most",
            )
        if (
            b"MSG_REGION\x01" in properties
            or b"CLUSTER\x01" in properties
            or b"TRACE_ON\x01" in properties
            or b"POP_CK\x01" in properties
            or b"__CRC32#\x01" in properties
        ):
            properties = remove_properties(properties, _REPLACED_PROPERTIES)
        elif properties and properties[-1] != 2:
            properties += b"\x02"
        topic = head.topic
        if topic.startswith(RETRY_PREFIX):
            topic, queue_id, properties = self._redirect_retry(request, head, queue_id, properties)
        uniq_key = find_property(properties, b"UNIQ_KEY")
        if uniq_key is None:
            uniq_key = self._uniq_ids.next().encode()
            properties = add_property(properties, b"UNIQ_KEY", uniq_key)
        properties += self._added
        level = self._level(properties) if b"DELAY\x01" in properties else 0
        if (
            b"TRAN_MSG\x01true" in properties
            and find_property(properties, b"TRAN_MSG") == b"true"
            and not (head.reconsume_times > 0 and level > 0)
        ):
            raise _Refused(
                ResponseCode.NO_PERMISSION, f"the broker[{self._broker_name}] sending transaction message is forbidden"
            )
        if b"TIMER_" in properties:
            properties = self._without_timer(properties, level)
        stored_topic, stored_queue = topic, queue_id
        if level > 0:
            stored_topic, stored_queue, properties = park(topic, queue_id, properties, level)
        multi_tags = int(MessageSysFlag.MULTI_TAGS) if config.topic_filter_type == "MULTI_TAG" else 0
        message = StoredMessage(
            stored_topic,
            stored_queue,
            request.body,
            properties,
            head.flag,
            head.sys_flag | multi_tags,
            born,
            _born_host(connection),
            head.reconsume_times,
        )
        return _Stored(self._store.put(message), topic, queue_id, uniq_key)

    def _put_batch(
        self,
        connection: Connection,
        request: RemotingCommand,
        head: SendHead,
        born: int,
        queue_id: int,
        properties: bytes,
    ) -> _Stored:
        """Put all messages of a batch, each with exactly the properties it came with (as 5.5.0 does)."""
        topic, body = head.topic, request.body
        if len(topic) > MAX_TOPIC_CHARACTERS or topic.startswith(RETRY_PREFIX):
            raise _Refused(ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support the topic {topic}")
        for name in (b"DELAY", b"TRAN_MSG"):
            if (find_property(properties, name) or b"0") not in {b"0", b"false"}:
                raise _Refused(
                    ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support messages with {name.decode()}"
                )
        if len(body) > self._max_message_size:
            raise _Refused(
                ResponseCode.SYSTEM_ERROR,
                f"message body size exceeded: {len(body)} bytes; {self._max_message_size} is the most",
            )
        try:
            elements = decode_batch(body)
        except RemotingError as error:
            raise _Refused(ResponseCode.SYSTEM_ERROR, f"the batch cannot be read: {error}") from error
        host = _born_host(connection)
        messages = [
            StoredMessage(topic, queue_id, element.body, element.properties, element.flag, head.sys_flag, born, host)
            for element in elements
        ]
        return _Stored(self._store.put_batch(messages), topic, queue_id, find_property(properties, b"UNIQ_KEY"))

    # --- what is not the common case ---

    def _new_topic(self, head: SendHead) -> TopicConfig:
        """The topic, made now if that is allowed."""
        topic = head.topic
        longest = MAX_GROUP_TOPIC_CHARACTERS if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else MAX_TOPIC_CHARACTERS
        if not topic.strip():
            raise _Refused(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
        if not is_valid_name(topic):
            raise _Refused(
                ResponseCode.INVALID_PARAMETER,
                "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
            )
        if len(topic) > longest:
            raise _Refused(
                ResponseCode.INVALID_PARAMETER, f"The specified topic is longer than topic max length {longest}."
            )
        if topic in SEND_FORBIDDEN_TOPICS:
            raise _Refused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        made = self._topics.create_for_send(topic, head.default_topic, head.default_topic_queue_nums)
        if made is None and topic.startswith(RETRY_PREFIX):
            made = self._topics.create_for_group(topic, 1)
        if made is None:
            raise _Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
        _log.info("topic %s is new, with %d queues", topic, made.write_queue_nums)
        return made

    def _redirect_retry(
        self, request: RemotingCommand, head: SendHead, queue_id: int, properties: bytes
    ) -> tuple[str, int, bytes]:
        """A message a consumer sends to its retry topic; given up, it goes to the dead-letter topic instead.

        It is given up after the most retries, and when the group consumes in order: then only given-up ones are sent.
        """
        name = head.topic[len(RETRY_PREFIX) :]
        group = self._groups.find(name)
        if group is None:
            raise _Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}")
        most = group.retry_max_times
        if request.version >= VERSION_3_4_9 and head.max_reconsume_times is not None:
            most = head.max_reconsume_times
        if head.reconsume_times <= most and not self._locks.is_locked(name):
            return head.topic, queue_id, properties
        dead = self._topics.create_for_group(dlq_topic(name), DLQ_QUEUES)
        return dead.topic_name, 0, set_property(properties, b"DELAY", b"-1")

    def _level(self, properties: bytes) -> int:
        value = find_property(properties, b"DELAY") or b"0"
        try:
            return min(int(value), self._delay_levels)
        except ValueError as error:
            raise _Refused(ResponseCode.MESSAGE_ILLEGAL, f"the delay level is {value!r}, not a number") from error

    @staticmethod
    def _without_timer(properties: bytes, level: int) -> bytes:
        """A delay level wins over a timer; a timer alone is refused."""
        if level <= 0 and any(find_property(properties, name) is not None for name in _TIMER_PROPERTIES):
            raise _Refused(
                ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false"
            )
        return remove_properties(properties, _TIMER_PROPERTIES)


def _born_host(connection: Connection) -> tuple[bytes, int]:
    host = connection.attributes.get(_BORN_HOST)
    if host is None:
        host = connection.attributes[_BORN_HOST] = parse_address(connection.remote_address)
    found: tuple[bytes, int] = host
    return found
