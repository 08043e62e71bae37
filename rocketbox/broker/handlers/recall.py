"""Recalls (370): a message that waits for a time of its own is not delivered.

What recalls it is stored where it waits, as Apache's brokers do, and answered when it is durable and surely comes
before that message. Whether there is such a message is not looked at: a second recall is answered as the first.

Source: Apache RocketMQ 5.3 ``RecallMessageProcessor``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from rocketbox.broker.context import BrokerContext
from rocketbox.broker.durable_replies import code_of, flush_failed
from rocketbox.broker.handlers.born_host import born_host
from rocketbox.broker.limits import LimitError
from rocketbox.broker.put_stage import PutOrigin
from rocketbox.broker.store.putting import PutResult
from rocketbox.broker.timer_messages import recalled_key
from rocketbox.errors import InvalidMessageError, StoreError
from rocketbox.protocol.codes import TIMER_TOPIC, PermName, RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import RecallMessageRequestHeader
from rocketbox.protocol.recall_handles import RecallHandle, decode_recall_handle
from rocketbox.protocol.stored_message import StoredMessage
from rocketbox.remoting.connection import Connection, RequestHandler
from rocketbox.waiters import Waiter

__all__ = ["RecallHandler"]

TAG = "_RECALL_TAG_"
ARRIVAL_TIMEOUT = 5.0  # seconds until what is durable is readable; after an error it is read again from the log


class RecallHandler:
    """Answers code 370."""

    def __init__(self, context: BrokerContext) -> None:
        options = context.options
        self._options = options
        self._most_ms = options.store.timer_max_delay_sec * 1000
        self._topics = context.topics
        self._store = context.store
        self._puts = context.puts
        self._timers = context.timers
        self._clock = context.clock
        self._replies = context.replies
        self._fields = {"MSG_REGION": options.region_id}

    def codes(self) -> Mapping[int, RequestHandler]:
        return {RequestCode.RECALL_MESSAGE: self.handle}

    def handle(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Store what recalls a message, and answer when it is certain that it comes in time."""
        header = RecallMessageRequestHeader.decode(request.ext_fields)
        refusal = self._refusal(header)
        if refusal is not None:
            return self._answer(*refusal)
        try:
            handle = decode_recall_handle(header.recall_handle)
        except ValueError as error:
            return self._answer(ResponseCode.ILLEGAL_OPERATION, str(error))
        now = self._clock.time_ms()
        if header.topic != handle.topic:
            return self._answer(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != self._options.broker_name:
            return self._answer(
                ResponseCode.ILLEGAL_OPERATION,
                f"recall failed, the message waits at broker {handle.broker_name}, and this is "
                f"{self._options.broker_name}",
            )
        if not 0 < handle.time_ms - now <= self._most_ms:
            return self._answer(
                ResponseCode.ILLEGAL_OPERATION,
                "recall failed, timestamp invalid: the time of the message is over, or further away than any may be",
            )
        try:
            stored, result = self._puts.put_telling(self._message(connection, header, handle, now), PutOrigin.SEND)
        except InvalidMessageError as error:
            return self._answer(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {error}")
        except LimitError as error:
            return self._answer(error.code, str(error))
        except StoreError as error:
            return self._answer(code_of(error), str(error))
        assert stored.topic == TIMER_TOPIC  # its time is to come
        self._replies.waiting += 1
        return self._answer_in_time(handle, result, self._timers.expect_recall(result.queue_offset))

    def _refusal(self, header: RecallMessageRequestHeader) -> tuple[ResponseCode, str] | None:
        if not self._options.recall_message_enable:
            return ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden (recallMessageEnable is false)"
        if not self._options.broker_permission & PermName.WRITE:
            return ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available"
        if self._replies.is_full:
            return ResponseCode.SYSTEM_BUSY, "recall failed, the broker is busy; ask it again"
        if self._topics.get(header.topic) is None:
            return ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist"
        return None

    async def _answer_in_time(self, handle: RecallHandle, result: PutResult, in_time: Waiter) -> RemotingCommand:
        try:
            await self._store.durable(result.end_offset)
            with self._clock.deadline(ARRIVAL_TIMEOUT):
                came_in_time = await in_time
                had_come = came_in_time and await self._timers.has_come(handle.topic, handle.msg_id, handle.time_ms)
        except (StoreError, TimeoutError) as error:
            answer = flush_failed(error, self._answer(ResponseCode.SUCCESS, None))
            if answer.code == ResponseCode.FLUSH_DISK_TIMEOUT:  # who is told "done" must be able to rely on it
                text = f"recall failed, it is not known whether it comes in time: {error}"
                return self._answer(ResponseCode.SYSTEM_BUSY, text)
            return answer
        finally:
            self._replies.waiting -= 1
            self._timers.forget_recall(result.queue_offset)
        if not came_in_time:
            return self._answer(ResponseCode.ILLEGAL_OPERATION, "recall failed, the message is being delivered")
        if had_come:
            return self._answer(
                ResponseCode.ILLEGAL_OPERATION, "recall failed, the message came before the broker's clock was put back"
            )
        return self._answer(ResponseCode.SUCCESS, None, msgId=handle.msg_id)

    def _message(
        self, connection: Connection, header: RecallMessageRequestHeader, handle: RecallHandle, now: int
    ) -> StoredMessage:
        """What is stored, with the time of the message that it recalls."""
        key = recalled_key(handle.topic, handle.msg_id.encode()).decode()
        properties = {
            "TIMER_DEL_UNIQKEY": key,
            "UNIQ_KEY": handle.msg_id,
            "TIMER_DELIVER_MS": str(handle.time_ms),
            "BORN_TIMESTAMP": str(now),
            "PGROUP": header.producer_group or "",
            "TAGS": TAG,
        }
        if any(sign in value for value in properties.values() for sign in "\x01\x02"):
            raise InvalidMessageError("its handle or group holds a control character")
        text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items() if value]).encode()
        return StoredMessage(handle.topic, 0, b"0", text, born_timestamp_ms=now, born_host=born_host(connection))

    def _answer(self, code: ResponseCode, remark: str | None, **more: str) -> RemotingCommand:
        return RemotingCommand.response(code, remark, {**self._fields, **more})
