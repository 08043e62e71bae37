"""Sends: one message (10, 310) or a batch (320, or any with the batch mark), checked, stored, answered when durable.

This is the broker's hot path: one pass over header and property text, no mapping of either, no task for a message; the
answer is written by the store's callback after the flush that covers the message. Half messages of transactions go by
``half_messages``. What is ordinary goes by ``send_runs``, many at once. What else is not the common case stands in
``send_rules``, the answers in ``send_answers``.

Source: Apache RocketMQ 5.x ``SendMessageProcessor``, ``AbstractSendMessageProcessor``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial

from rocketbox.broker.askers import ASKS_FOR_REPLY
from rocketbox.broker.context import BrokerContext
from rocketbox.broker.durable_replies import code_of
from rocketbox.broker.handlers.born_host import born_host
from rocketbox.broker.handlers.refused import Refused, TopicNotWrittenError
from rocketbox.broker.handlers.send_answers import SendAnswers
from rocketbox.broker.handlers.send_rules import SendRules
from rocketbox.broker.handlers.send_runs import SendRuns
from rocketbox.broker.limits import LimitError
from rocketbox.broker.property_shapes import PropertyShapes
from rocketbox.broker.property_text import add_property, find_property, remove_properties
from rocketbox.broker.put_stage import PutOrigin
from rocketbox.broker.timer_messages import recall_handle_of
from rocketbox.errors import InvalidMessageError, StoreBusyError, StoreError, StoreFailedError
from rocketbox.protocol.codes import (
    RETRY_PREFIX,
    MessageSysFlag,
    RequestCode,
    ResponseCode,
)
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import HeaderError
from rocketbox.protocol.ids import UniqIdGenerator
from rocketbox.protocol.registration_bodies import TopicConfig
from rocketbox.protocol.send_frames import SendHead, SendReader
from rocketbox.protocol.stored_message import StoredMessage
from rocketbox.remoting.connection import Connection, RequestHandler, RunHandler

__all__ = ["SendHandler"]

_REPLACED_PROPERTIES = frozenset(  # what the broker itself writes; a message sent again brings the old ones along
    {b"MSG_REGION", b"TRACE_ON", b"CLUSTER", b"POP_CK", b"__CRC32#"}
)


class SendHandler:
    """Answers sends."""

    def __init__(self, context: BrokerContext) -> None:
        options = context.options
        self._context = context
        self._broker_name = options.broker_name
        self._topics = context.topics
        self._puts = context.puts
        self._halves = context.halves
        self._replies = context.replies
        self._clock = context.clock
        self._uniq_ids = UniqIdGenerator(context.clock.random)
        self._reader = SendReader()
        self._rules = SendRules(context)
        trace = "true" if options.trace_on else "false"
        self._answer_fields = {"MSG_REGION": options.region_id, "TRACE_ON": trace}
        self._answers = SendAnswers(context, self._answer_fields)
        self._added = (
            f"MSG_REGION\x01{options.region_id}\x02TRACE_ON\x01{trace}\x02CLUSTER\x01{options.broker_cluster_name}\x02"
        ).encode()

    def codes(self) -> Mapping[int, RequestHandler]:
        return {
            RequestCode.SEND_MESSAGE: self.handle,
            RequestCode.SEND_MESSAGE_V2: self.handle,
            RequestCode.SEND_BATCH_MESSAGE: self.handle,
        }

    def runs(self) -> Mapping[int, RunHandler]:
        """What takes many requests at once; none when a step before the store wants to see all messages."""
        looks_at = self._puts.looks_at
        if looks_at is None:
            return {}
        special = _REPLACED_PROPERTIES | {b"TRAN_MSG"} | looks_at
        if self._context.access is not None:
            special |= {ASKS_FOR_REPLY}
        shapes = PropertyShapes(special, (b"TIMER_",))
        return SendRuns(self._context, self._reader, shapes, self._answers, self._added).runs()

    def handle(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Store what was sent; the answer follows when it is durable."""
        try:
            return self._send(connection, request)
        except Refused as refused:
            code, remark = refused.code, refused.remark
        except HeaderError as error:
            code, remark = ResponseCode.SYSTEM_ERROR, str(error)
        except InvalidMessageError as error:
            code, remark = ResponseCode.MESSAGE_ILLEGAL, str(error)
        except LimitError as error:
            code, remark = error.code, str(error)
        except TopicNotWrittenError as new:
            return self._replies.again_when_written(
                self._topics, new.topic, partial(self.handle, connection, request),
                ResponseCode.SERVICE_NOT_AVAILABLE, self._answer_fields,
            )  # fmt: skip
        except StoreFailedError as error:
            code, remark = ResponseCode.SERVICE_NOT_AVAILABLE, f"the store accepts no more writes: {error}"
        except StoreBusyError as error:
            code = ResponseCode.SYSTEM_BUSY
            remark = f"[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, {error}"
        except StoreError as error:
            code, remark = code_of(error), str(error)
        return RemotingCommand.response(code, remark, self._answer_fields)

    def _send(self, connection: Connection, request: RemotingCommand) -> Awaitable[RemotingCommand | None] | None:
        self._rules.check_room()
        head, born, properties = self._reader.read(request)
        config, queue_id = self._rules.place(head, request, connection)
        # The quick look first; a property whose name ends so, or another value that begins so, must not do without it.
        wait = b"WAIT\x01false" not in properties or find_property(properties, b"WAIT") != b"false"
        if head.batch:
            return self._send_batch(connection, request, head, born, queue_id, properties, wait)
        return self._send_single(connection, request, head, born, config, queue_id, properties, wait)

    def _send_single(
        self,
        connection: Connection,
        request: RemotingCommand,
        head: SendHead,
        born: int,
        config: TopicConfig,
        queue_id: int,
        properties: bytes,
        wait: bool,
    ) -> Awaitable[RemotingCommand | None] | None:
        rules = self._rules
        rules.check_size(request.body)
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
            topic, queue_id, properties = rules.redirect_retry(request, head, queue_id, properties, connection)
        else:  # what a consumer sends to be retried is no request of its own
            self._note_asker(connection, request, properties)
        uniq_key = find_property(properties, b"UNIQ_KEY")
        if uniq_key is None:
            uniq_key = self._uniq_ids.next(self._clock.time_ms()).encode()
            properties = add_property(properties, b"UNIQ_KEY", uniq_key)
        properties += self._added
        is_half = b"TRAN_MSG\x01true" in properties and rules.is_half(head, properties)
        multi_tags = int(MessageSysFlag.MULTI_TAGS) if config.topic_filter_type == "MULTI_TAG" else 0
        message = StoredMessage(
            topic,
            queue_id,
            request.body,
            properties,
            head.flag,
            head.sys_flag | multi_tags,
            born,
            born_host(connection),
            head.reconsume_times,
        )
        if is_half:
            result = self._halves.put(message, uniq_key, connection.remote_address)
        elif b"TIMER_DEL" in properties:
            stored, result = self._puts.put_telling(message, PutOrigin.SEND)
            handle = recall_handle_of(stored, self._broker_name)
            if handle is not None:
                return self._answers.answer_parked(connection, request, result, topic, queue_id, uniq_key, handle)
        else:
            result = self._puts.put(message, PutOrigin.SEND)
        return self._answers.answer(connection, request, result, topic, queue_id, uniq_key, wait=wait)

    def _note_asker(self, connection: Connection, request: RemotingCommand, properties: bytes) -> None:
        """Remember whose request a message is, if it is one."""
        if self._context.access is not None and ASKS_FOR_REPLY in properties:
            user = self._context.access.user_of(connection, request)
            self._context.askers.note(properties, None if user is None else user.name)

    def _send_batch(
        self,
        connection: Connection,
        request: RemotingCommand,
        head: SendHead,
        born: int,
        queue_id: int,
        properties: bytes,
        wait: bool,
    ) -> Awaitable[RemotingCommand | None] | None:
        """Put all messages of a batch, each with exactly the properties it came with (as 5.5.0 does)."""
        topic = head.topic
        elements = self._rules.read_batch(topic, properties, request.body)
        for element in elements:
            self._note_asker(connection, request, element.properties)
        host = born_host(connection)
        result = self._puts.put_batch(
            [
                StoredMessage(
                    topic, queue_id, element.body, element.properties, element.flag, head.sys_flag, born, host
                )
                for element in elements
            ]
        )
        uniq_key = find_property(properties, b"UNIQ_KEY")
        return self._answers.answer(connection, request, result, topic, queue_id, uniq_key, wait=wait)
