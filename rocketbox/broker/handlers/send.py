"""Sends: one message (10, 310) or a batch (320, or any with the batch mark), checked, stored, answered when durable.

This is the broker's hot path: one pass over the header, no task for a message; the answer is written by the store's
callback after the flush that covers the message. Transactions and timer messages are refused.

Source: Apache RocketMQ 5.x ``SendMessageProcessor``, ``AbstractSendMessageProcessor``, ``TopicValidator``,
``HookUtils``.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Awaitable, Mapping
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
from rocketbox.errors import InvalidMessageError, RemotingError, StoreFailedError
from rocketbox.message import Property
from rocketbox.protocol.bodies import TopicConfig
from rocketbox.protocol.codes import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SEND_FORBIDDEN_TOPICS,
    VERSION_3_4_9,
    MessageSysFlag,
    PermName,
    RequestCode,
    ResponseCode,
    dlq_topic,
)
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.ids import UniqIdGenerator
from rocketbox.protocol.stored_message import StoredMessage, decode_batch
from rocketbox.protocol.tags import MAX_TOPIC_CHARACTERS, is_valid_name
from rocketbox.remoting.connection import Connection

__all__ = ["SendHandler", "parse_address"]

_log = logging.getLogger(__name__)

MAX_GROUP_TOPIC_CHARACTERS = 255  # of %RETRY% and %DLQ% topics

DLQ_QUEUES = 1

_TIMER_PROPERTIES = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
_REPLACED_PROPERTIES = frozenset(  # what the broker itself writes; a message sent again brings the old ones along
    {Property.MSG_REGION, Property.TRACE_ON, Property.CLUSTER, Property.POP_CK, Property.CRC32}
)
_BORN_HOST = "broker.born_host"  # attribute of a connection


class _Names(NamedTuple):
    """What the fields of a send header are called."""

    group: str
    topic: str
    default_topic: str
    default_queues: str
    queue_id: str
    sys_flag: str
    born: str
    flag: str
    properties: str
    reconsume_times: str
    max_reconsume_times: str
    batch: str


_V1 = _Names(
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag",
    "properties", "reconsumeTimes", "maxReconsumeTimes", "batch",
)  # fmt: skip
_V2 = _Names("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "l", "m")


class _Refused(Exception):  # noqa: N818 - ends the checks, never leaves this module
    """What a send is answered that is not stored."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        self.code = code
        self.remark = remark
        super().__init__(remark)


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
        self._options = options
        self._topics = topics
        self._groups = groups
        self._locks = locks
        self._registration = registration
        self._store = store
        self._replies = replies
        self._delay_levels = len(options.store.delay_level_ms)
        self._clock = clock
        self._uniq_ids = UniqIdGenerator(clock.time_ms, clock.random)
        self._max_message_size = options.store.max_message_size
        self._answer_fields = {
            Property.MSG_REGION: options.region_id,
            Property.TRACE_ON: "true" if options.trace_on else "false",
        }
        self._added = (
            f"{Property.MSG_REGION}\x01{options.region_id}\x02"
            f"{Property.TRACE_ON}\x01{self._answer_fields[Property.TRACE_ON]}\x02"
            f"{Property.CLUSTER}\x01{options.broker_cluster_name}\x02"
        )

    def handle(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Store what was sent; the answer follows when it is durable."""
        try:
            if self._replies.is_full:
                raise _Refused(
                    ResponseCode.SYSTEM_BUSY,
                    f"[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, {self._replies.waiting} sends "
                    "wait for the disk (sendThreadPoolQueueCapacity)",
                )
            names = _V1 if request.code == RequestCode.SEND_MESSAGE else _V2
            return self._send(connection, request, request.ext_fields, names)
        except _Refused as refused:
            return self._refusal(refused.code, refused.remark)
        except InvalidMessageError as error:
            return self._refusal(ResponseCode.MESSAGE_ILLEGAL, str(error))
        except StoreFailedError as error:
            return self._refusal(ResponseCode.SERVICE_NOT_AVAILABLE, f"the store accepts no more writes: {error}")

    def _send(
        self, connection: Connection, request: RemotingCommand, fields: Mapping[str, str], names: _Names
    ) -> Awaitable[RemotingCommand | None] | None:
        topic = fields.get(names.topic, "")
        config = self._topics.get(topic)
        if config is None or topic in SEND_FORBIDDEN_TOPICS:
            config = self._new_topic(topic, fields, names)
        queue_id = _number(fields, names.queue_id, -1)
        if queue_id >= max(config.read_queue_nums, config.write_queue_nums):
            raise _Refused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, {config} Producer: {connection.remote_address}",
            )
        if not request.body:
            raise _Refused(ResponseCode.SYSTEM_ERROR, "the message body is empty")
        if queue_id < 0:
            queue_id = self._clock.random.randrange(max(1, config.write_queue_nums))
        properties = fields.get(names.properties, "")
        wait = "WAIT\x01false" not in properties
        if fields.get(names.batch) == "true":
            result, uniq_key = self._put_batch(connection, request, topic, queue_id, properties)
            where = queue_id
        else:
            result, uniq_key, where = self._put_single(connection, request, fields, names, config, queue_id, properties)
        answer = {
            "msgId": result.msg_id,
            "queueId": str(where),
            "queueOffset": str(result.queue_offset),
            **self._answer_fields,
        }
        if uniq_key:
            answer["transactionId"] = uniq_key
        response = RemotingCommand.response(ResponseCode.SUCCESS, None, answer)
        if self._registration.is_pending(topic) and not request.is_oneway:
            return self._replies.answer_when_known(topic, response, result.end_offset if wait else None)
        if wait:
            self._replies.answer(connection, request, response, result.end_offset)
        elif not request.is_oneway:
            connection.reply(request, response)
        return None

    # --- the two kinds ---

    def _put_single(
        self,
        connection: Connection,
        request: RemotingCommand,
        fields: Mapping[str, str],
        names: _Names,
        config: TopicConfig,
        queue_id: int,
        properties: str,
    ) -> tuple[PutResult, str | None, int]:
        """Put one message; its UNIQ_KEY and the queue that the answer names come back beside the result."""
        topic = config.topic_name
        if len(request.body) > self._max_message_size:
            raise _Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal, its body has {len(request.body)} bytes; {self._max_message_size} is the most",
            )
        sys_flag = _number(fields, names.sys_flag, 0)
        if config.topic_filter_type == "MULTI_TAG":
            sys_flag |= MessageSysFlag.MULTI_TAGS
        reconsume_times = _number(fields, names.reconsume_times, 0)
        if (
            "MSG_REGION\x01" in properties
            or "CLUSTER\x01" in properties
            or "TRACE_ON\x01" in properties
            or "POP_CK\x01" in properties
            or "__CRC32#\x01" in properties
        ):
            properties = remove_properties(properties, _REPLACED_PROPERTIES)
        elif properties and properties[-1] != "\x02":
            properties += "\x02"
        if topic.startswith(RETRY_PREFIX):
            topic, queue_id, properties = self._redirect_retry(
                request, fields, names, topic, queue_id, properties, reconsume_times
            )
        uniq_key = find_property(properties, Property.UNIQ_KEY)
        if uniq_key is None:
            uniq_key = self._uniq_ids.next()
            properties = add_property(properties, Property.UNIQ_KEY, uniq_key)
        properties += self._added
        where = queue_id
        level = 0
        if "DELAY\x01" in properties:
            level = min(_level(properties), self._delay_levels)
        if "TRAN_MSG\x01true" in properties and not (reconsume_times > 0 and level > 0):
            raise _Refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._options.broker_name}] sending transaction message is forbidden",
            )
        if level > 0:
            if "TIMER_" in properties:
                properties = remove_properties(properties, _TIMER_PROPERTIES)
            topic, queue_id, properties = park(topic, queue_id, properties, level)
        elif "TIMER_" in properties and any(find_property(properties, name) is not None for name in _TIMER_PROPERTIES):
            raise _Refused(
                ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false"
            )
        record = StoredMessage(
            topic=topic,
            queue_id=queue_id,
            body=request.body,
            properties=properties.encode(),
            flag=_number(fields, names.flag, 0),
            sys_flag=sys_flag,
            born_timestamp_ms=_number(fields, names.born, 0),
            born_host=_born_host(connection),
            reconsume_times=reconsume_times,
        )
        return self._store.put(record), uniq_key, where

    def _put_batch(
        self, connection: Connection, request: RemotingCommand, topic: str, queue_id: int, properties: str
    ) -> tuple[PutResult, str | None]:
        """Put all messages of a batch, each with exactly the properties it came with (as 5.5.0 does)."""
        if len(topic) > MAX_TOPIC_CHARACTERS or topic.startswith(RETRY_PREFIX):
            raise _Refused(ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support the topic {topic}")
        for name in (Property.DELAY, Property.TRAN_MSG):
            if (find_property(properties, name) or "0") not in {"0", "false"}:
                raise _Refused(ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support messages with {name}")
        if len(request.body) > self._max_message_size:
            raise _Refused(
                ResponseCode.SYSTEM_ERROR,
                f"message body size exceeded: {len(request.body)} bytes; {self._max_message_size} is the most",
            )
        fields = request.ext_fields
        names = _V1 if request.code == RequestCode.SEND_MESSAGE else _V2
        try:
            elements = decode_batch(request.body)
        except RemotingError as error:
            raise _Refused(ResponseCode.SYSTEM_ERROR, f"the batch cannot be read: {error}") from error
        born, host, sys_flag = (
            _number(fields, names.born, 0),
            _born_host(connection),
            _number(fields, names.sys_flag, 0),
        )
        result = self._store.put_batch(
            [
                StoredMessage(
                    topic=topic,
                    queue_id=queue_id,
                    body=element.body,
                    properties=element.properties,
                    flag=element.flag,
                    sys_flag=sys_flag,
                    born_timestamp_ms=born,
                    born_host=host,
                )
                for element in elements
            ]
        )
        return result, find_property(properties, Property.UNIQ_KEY)

    # --- what is not the common case ---

    def _new_topic(self, topic: str, fields: Mapping[str, str], names: _Names) -> TopicConfig:
        """The topic, made now if that is allowed; also says why a topic is none."""
        known = self._topics.get(topic)
        if known is not None and known.order and not self._options.broker_permission & PermName.WRITE:
            raise _Refused(
                ResponseCode.NO_PERMISSION, f"the broker[{self._options.broker_name}] sending message is forbidden"
            )
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
        made = self._topics.create_for_send(
            topic, fields.get(names.default_topic, ""), _number(fields, names.default_queues, 4)
        )
        if made is None and topic.startswith(RETRY_PREFIX):
            made = self._topics.create_for_group(topic, 1)
        if made is None:
            raise _Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
        _log.info("topic %s is new, with %d queues", topic, made.write_queue_nums)
        return made

    def _redirect_retry(
        self,
        request: RemotingCommand,
        fields: Mapping[str, str],
        names: _Names,
        topic: str,
        queue_id: int,
        properties: str,
        reconsume_times: int,
    ) -> tuple[str, int, str]:
        """A message a consumer sends to its retry topic; given up, it goes to the dead-letter topic instead.

        It is given up after the most retries, and when the group consumes in order: then only given-up ones are sent.
        """
        name = topic[len(RETRY_PREFIX) :]
        group = self._groups.find(name)
        if group is None:
            raise _Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}")
        most = group.retry_max_times
        if request.version >= VERSION_3_4_9:
            most = _number(fields, names.max_reconsume_times, most)
        if reconsume_times <= most and not self._locks.is_locked(name):
            return topic, queue_id, properties
        dead = self._topics.create_for_group(dlq_topic(name), DLQ_QUEUES)
        return dead.topic_name, 0, set_property(properties, Property.DELAY, "-1")

    def _refusal(self, code: ResponseCode, remark: str) -> RemotingCommand:
        return RemotingCommand.response(code, remark, self._answer_fields)


def _number(fields: Mapping[str, str], name: str, default: int) -> int:
    value = fields.get(name)
    if value is None:
        return default
    try:
        return int(value)
    except ValueError as error:
        raise _Refused(ResponseCode.SYSTEM_ERROR, f"the header field {name} is {value!r}, not a number") from error


def _level(properties: str) -> int:
    value = find_property(properties, Property.DELAY)
    try:
        return int(value or 0)
    except ValueError as error:
        raise _Refused(ResponseCode.MESSAGE_ILLEGAL, f"the delay level is {value!r}, not a number") from error


def _born_host(connection: Connection) -> tuple[bytes, int]:
    host = connection.attributes.get(_BORN_HOST)
    if host is None:
        host = connection.attributes[_BORN_HOST] = parse_address(connection.remote_address)
    found: tuple[bytes, int] = host
    return found
