"""Messages that a consumer gives back (36): stored again for a later retry, or as dead letters.

Source: Apache RocketMQ 5.x ``AbstractSendMessageProcessor.consumerSendMsgBack``. Unlike there, which topic it comes
from (RETRY_TOPIC, by which consumers choose its handler) is not what its sender has written into it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial

from rocketbox.access.resources import Action, topic_need
from rocketbox.broker.context import BrokerContext
from rocketbox.broker.durable_replies import code_of
from rocketbox.broker.handlers.refused import TopicNotWrittenError
from rocketbox.broker.handlers.send_rules import DLQ_QUEUES
from rocketbox.broker.limits import LimitError
from rocketbox.broker.property_text import add_property, find_property, remove_properties, set_property
from rocketbox.broker.put_stage import PutOrigin
from rocketbox.broker.unparking import record_of
from rocketbox.errors import InvalidMessageError, StoreError
from rocketbox.protocol.codes import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    VERSION_3_4_9,
    PermName,
    RequestCode,
    ResponseCode,
    dlq_topic,
    retry_topic,
)
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import ConsumerSendMsgBackRequestHeader
from rocketbox.protocol.stored_message import decode_message
from rocketbox.remoting.connection import Connection, RequestHandler

__all__ = ["SendBackHandler"]

MOST_TIMES = 2**31 - 1  # that a record can say; a sender may have written as many
FIRST_RETRY_LEVEL = 3  # the delay of the first retry, 10 s; each further one is a level later


class _NotInMemoryError(Exception):
    """The message must be read from a file."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        super().__init__(offset)


class SendBackHandler:
    """Answers code 36. Acknowledged when durable: the consumer forgets the message then (Apache does not wait)."""

    def __init__(self, context: BrokerContext) -> None:
        self._options = context.options
        self._refusal = context.refusal
        self._topics = context.topics
        self._groups = context.groups
        self._registration = context.registration
        self._store = context.store
        self._puts = context.puts
        self._replies = context.replies
        self._random = context.clock.random

    def codes(self) -> Mapping[int, RequestHandler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.handle}

    def handle(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Store the message again under the group's retry topic, or its dead-letter topic."""
        return self._take(connection, request, None)

    def _take(
        self, connection: Connection, request: RemotingCommand, record: bytes | None
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Answer; ``record`` is the message once it was read from a file."""
        try:
            return self._send_back(connection, request, record)
        except _NotInMemoryError as cold:
            return self._send_back_from_disk(connection, request, cold.offset)
        except LimitError as error:
            return RemotingCommand.response(error.code, str(error))
        except TopicNotWrittenError as new:
            return self._replies.again_when_written(
                self._topics, new.topic, partial(self.handle, connection, request), ResponseCode.SYSTEM_ERROR
            )

    async def _send_back_from_disk(
        self, connection: Connection, request: RemotingCommand, offset: int
    ) -> RemotingCommand | None:
        """Take a message that must be read from a file first."""
        record = await self._store.read_message(offset)
        if record is None:
            return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}")
        answer = self._take(connection, request, record)
        return await answer if isinstance(answer, Awaitable) else answer

    def _send_back(
        self, connection: Connection, request: RemotingCommand, record: bytes | None
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        header = ConsumerSendMsgBackRequestHeader.decode(request.ext_fields)
        group = self._groups.find(header.group, connection.remote_address)
        if group is None:
            return RemotingCommand.response(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {header.group}"
            )
        if not self._options.broker_permission & PermName.WRITE:
            return RemotingCommand.response(
                ResponseCode.NO_PERMISSION, f"the broker[{self._options.broker_name}] sending message is forbidden"
            )
        if group.retry_queue_nums <= 0:
            return RemotingCommand.response()
        client = connection.remote_address
        topic = self._topics.create_for_group(retry_topic(header.group), group.retry_queue_nums, by=client)
        if not topic.perm & PermName.WRITE:
            return RemotingCommand.response(
                ResponseCode.NO_PERMISSION, f"the topic[{topic.topic_name}] sending message is forbidden"
            )
        record = record or self._store.read_from_memory(header.offset)
        if record is None:
            raise _NotInMemoryError(header.offset)
        message = decode_message(record, decompress=False)[0]
        # Who names the place of any message would have it in his own group's retry topic.
        refusal = self._refusal(connection, request, (topic_need(message.topic, Action.SUB),))
        if refusal is not None:
            return refusal
        most = group.retry_max_times
        if request.version >= VERSION_3_4_9 and header.max_reconsume_times is not None:
            most = header.max_reconsume_times
        queue_id = self._random.randrange(max(1, topic.write_queue_nums))
        properties = self._properties(message.raw_properties, message.topic, message.offset_msg_id)
        name = topic.topic_name
        if message.reconsume_times >= most or header.delay_level < 0:
            name = dlq_topic(header.group)
            self._topics.create_for_group(name, DLQ_QUEUES, by=connection.remote_address)
            queue_id, level = 0, 0
        else:
            level = header.delay_level or min(FIRST_RETRY_LEVEL + message.reconsume_times, MOST_TIMES)
        if not self._topics.is_written(name):
            raise TopicNotWrittenError(name)
        properties = set_property(properties, b"DELAY", b"%d" % level)
        again = record_of(message, name, queue_id, properties, min(message.reconsume_times + 1, MOST_TIMES))
        try:
            result = self._puts.put(again, PutOrigin.SEND_BACK)
        except InvalidMessageError as error:
            return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, f"MESSAGE_ILLEGAL: {error}")
        except StoreError as error:  # Apache's code for all of them; the consumer keeps the message and tries again
            return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, f"{code_of(error).name}: {error}")
        response = RemotingCommand.response()
        if self._registration.is_pending(name) and not request.is_oneway:
            return self._replies.answer_when_known(name, response, result.end_offset)
        self._replies.answer(connection, request, response, result.end_offset)
        return None

    @staticmethod
    def _properties(text: bytes, topic: str, offset_msg_id: str) -> bytes:
        """The message's properties with where it came from, and without what the store writes anew."""
        text = remove_properties(text, (b"__CRC32#", b"WAIT"))
        said = find_property(text, b"RETRY_TOPIC")
        if said is None or not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):  # there no sender has written it
            text = set_property(text, b"RETRY_TOPIC", topic.encode())
        if find_property(text, b"ORIGIN_MESSAGE_ID") is None:
            text = add_property(text, b"ORIGIN_MESSAGE_ID", offset_msg_id.encode())
        return add_property(text, b"WAIT", b"false")
