"""What a send may do, and where it leads: its queue, new topics, retries that become dead letters, what is refused.

All that sends and replies are refused for alike stands in :meth:`SendRules.place`. Ordinary messages that come together
go by ``send_runs``, which asks nothing here but for what is not ordinary.

Source: Apache RocketMQ 5.x ``AbstractSendMessageProcessor``, ``SendMessageProcessor.handleRetryAndDLQ``,
``TopicValidator``, ``HookUtils``.
"""

from __future__ import annotations

import logging

from rocketbox.broker.context import BrokerContext
from rocketbox.broker.delay_levels import read_level
from rocketbox.broker.handlers.refused import Refused, TopicNotWrittenError
from rocketbox.broker.names import topic_name_problem
from rocketbox.broker.property_text import find_property, set_property
from rocketbox.broker.timer_messages import TIMER_PROPERTIES
from rocketbox.errors import RemotingError
from rocketbox.protocol.codes import (
    RETRY_PREFIX,
    SEND_FORBIDDEN_TOPICS,
    VERSION_3_4_9,
    MessageSysFlag,
    PermName,
    ResponseCode,
    dlq_topic,
)
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.registration_bodies import TopicConfig
from rocketbox.protocol.send_frames import SendHead
from rocketbox.protocol.stored_message import BatchElement, BatchTooLongError, decode_batch
from rocketbox.protocol.tags import MAX_TOPIC_CHARACTERS
from rocketbox.remoting.connection import Connection

__all__ = ["DLQ_QUEUES", "INNER_BATCH", "MOST_IN_BATCH", "SendRules"]

_log = logging.getLogger(__name__)

DLQ_QUEUES = 1
INNER_BATCH = int(MessageSysFlag.INNER_BATCH)
MOST_IN_BATCH = 65_536  # the answer names each, by 57 bytes at most, and a peer reads no header of more than 4 MiB


class SendRules:
    """The rules for one broker; each method raises Refused with what the sender is answered."""

    def __init__(self, context: BrokerContext) -> None:
        self._broker_name = context.options.broker_name
        self._writable = bool(context.options.broker_permission & PermName.WRITE)
        self._rejects_halves = context.options.reject_transaction_message
        self._max_message_size = context.options.store.max_message_size
        self._topics = context.topics
        self._groups = context.groups
        self._locks = context.locks
        self._replies = context.replies
        self._random = context.clock.random

    def check_room(self) -> None:
        """Refuse all while too many wait for the disk."""
        if self._replies.is_full:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, {self._replies.waiting} sends "
                "wait for the disk (sendThreadPoolQueueCapacity)",
            )

    def place(self, head: SendHead, request: RemotingCommand, connection: Connection) -> tuple[TopicConfig, int]:
        """The topic of a message, made now if that is allowed, and its queue; any where it says none (-1).

        Raises LimitError when there are too many topics, TopicNotWrittenError for one that is not written yet.
        """
        topic, queue_id = head.topic, head.queue_id
        if head.sys_flag & INNER_BATCH:  # who consumes it would take the places of those behind it for consumed
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message says to be an inner batch, and no topic here has batches in its queues; send it without "
                f"{int(MessageSysFlag.INNER_BATCH)} in its system flags",
            )
        config = self._topics.get(topic)
        if config is None or topic in SEND_FORBIDDEN_TOPICS:
            config = self.new_topic(head, connection.remote_address)
        if not self._topics.is_written(topic):
            raise TopicNotWrittenError(topic)
        if config.order and not self._writable:
            raise Refused(ResponseCode.NO_PERMISSION, f"the broker[{self._broker_name}] sending message is forbidden")
        if queue_id >= config.read_queue_nums and queue_id >= config.write_queue_nums:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, {config} Producer: {connection.remote_address}",
            )
        if not request.body:
            raise Refused(ResponseCode.SYSTEM_ERROR, "the message body is empty")
        if queue_id < 0:
            queue_id = self._random.randrange(max(1, config.write_queue_nums))
        return config, queue_id

    def new_topic(self, head: SendHead, sender: str) -> TopicConfig:
        """The topic, made now if that is allowed. Raises LimitError when there are too many."""
        topic = head.topic
        problem = topic_name_problem(topic)
        if problem is not None:
            raise Refused(ResponseCode.INVALID_PARAMETER, problem)
        if topic in SEND_FORBIDDEN_TOPICS:
            raise Refused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        made = self._topics.create_for_send(topic, head.default_topic, head.default_topic_queue_nums, sender)
        if made is None and topic.startswith(RETRY_PREFIX):
            made = self._topics.create_for_group(topic, 1, by=sender)
        if made is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
        _log.info("topic %s is new, with %d queues", topic, made.write_queue_nums)
        return made

    def redirect_retry(
        self, request: RemotingCommand, head: SendHead, queue_id: int, properties: bytes, connection: Connection
    ) -> tuple[str, int, bytes]:
        """A message a consumer sends to its retry topic; given up, it goes to the dead-letter topic instead.

        It is given up after the most retries, and when the group consumes in order: then only given-up ones are sent.
        """
        name = head.topic[len(RETRY_PREFIX) :]
        group = self._groups.find(name, connection.remote_address)
        if group is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}")
        most = group.retry_max_times
        if request.version >= VERSION_3_4_9 and head.max_reconsume_times is not None:
            most = head.max_reconsume_times
        if head.reconsume_times <= most and not self._locks.is_locked(name):
            return head.topic, queue_id, properties
        dead = self._topics.create_for_group(dlq_topic(name), DLQ_QUEUES, by=connection.remote_address)
        if not self._topics.is_written(dead.topic_name):
            raise TopicNotWrittenError(dead.topic_name)
        return dead.topic_name, 0, set_property(properties, b"DELAY", b"-1")

    def is_half(self, head: SendHead, properties: bytes) -> bool:
        """Whether it is a half message; a retry with a delay level may still carry the mark of one."""
        if find_property(properties, b"TRAN_MSG") != b"true":
            return False
        level = read_level(properties)
        if head.reconsume_times > 0 and level > 0:
            return False
        if self._rejects_halves:
            raise Refused(
                ResponseCode.NO_PERMISSION, f"the broker[{self._broker_name}] sending transaction message is forbidden"
            )
        if level > 0 or any(find_property(properties, name) is not None for name in TIMER_PROPERTIES):
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                "a half message has no delay: send it without one",
            )
        return True

    def check_size(self, body: bytes) -> None:
        """Refuse a single message that is too large."""
        if len(body) > self._max_message_size:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal, its body has {len(body)} bytes; {self._max_message_size} is the most",
            )

    def read_batch(self, topic: str, properties: bytes, body: bytes) -> list[BatchElement]:
        """The messages of a batch."""
        if len(topic) > MAX_TOPIC_CHARACTERS or topic.startswith(RETRY_PREFIX):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support the topic {topic}")
        for name in (b"DELAY", b"TRAN_MSG"):
            if (find_property(properties, name) or b"0") not in {b"0", b"false"}:
                raise Refused(
                    ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support messages with {name.decode()}"
                )
        if any(find_property(properties, name) is not None for name in TIMER_PROPERTIES):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "batch request does not support timer messages")
        if len(body) > self._max_message_size:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"message body size exceeded: {len(body)} bytes; {self._max_message_size} is the most",
            )
        try:
            return decode_batch(body, MOST_IN_BATCH)
        except BatchTooLongError as error:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL, f"a batch has more than {error.most} messages; send it in parts"
            ) from error
        except RemotingError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the batch cannot be read: {error}") from error
