"""The answers to sends that were stored: written at once, given when the message is durable and its topic announced.

Source: Apache RocketMQ 5.x ``SendMessageProcessor.handlePutMessageResult``.
"""

from __future__ import annotations

from collections.abc import Awaitable

from rocketbox.broker.context import BrokerContext
from rocketbox.broker.store.message_store import PutResult
from rocketbox.message import format_offset_msg_id
from rocketbox.protocol.command import RemotingCommand, decode_command
from rocketbox.protocol.send_frames import SendReplyTemplate
from rocketbox.remoting.connection import Connection

__all__ = ["SendAnswers"]


class SendAnswers:
    """Writes answers from a template; ``fields`` are those that every one has."""

    def __init__(self, context: BrokerContext, fields: dict[str, str]) -> None:
        self._registration = context.registration
        self._replies = context.replies
        self._template = SendReplyTemplate(fields)
        self._host: tuple[bytes, int] = (b"", 0)
        self._host_of_ids = ""

    def answer(
        self,
        connection: Connection,
        request: RemotingCommand,
        result: PutResult,
        topic: str,
        queue_id: int,
        uniq_key: bytes | None,
        *,
        wait: bool,
    ) -> Awaitable[RemotingCommand | None] | None:
        """Answer a send that was put, for the topic and queue its sender knows.

        ``wait``: when it is durable, else when it is written.
        """
        request.body = b""  # it is in the record: what waits for the disk is not kept twice
        frame = self._template.encode(request, self._msg_id(result), queue_id, result.queue_offset, uniq_key)
        if self._registration.is_pending(topic) and not request.is_oneway:
            answer = decode_command(frame[4:])
            return self._replies.answer_when_known(topic, answer, result.end_offset, wait=wait)
        self._replies.answer_frame(connection, request, frame, result.end_offset, wait=wait)
        return None

    def _msg_id(self, result: PutResult) -> str:
        if len(result.offsets) > 1:
            return result.msg_id
        if result.store_host is not self._host:
            self._host = result.store_host
            self._host_of_ids = format_offset_msg_id(*self._host, 0)[:-16]
        return f"{self._host_of_ids}{result.commit_log_offset:016X}"
