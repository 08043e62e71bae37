"""The answers to sends that were stored: written at once, given when the message is durable and its topic announced.

Source: Apache RocketMQ 5.x ``SendMessageProcessor.handlePutMessageResult``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from rocketbox.broker.context import BrokerContext
from rocketbox.broker.store.putting import PutResult, RunResult
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
        self._host_of_ids = b""

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
        self._replies.answer_frames(connection, [request], [frame], result.end_offset, wait=wait)
        return None

    def answer_parked(
        self,
        connection: Connection,
        request: RemotingCommand,
        result: PutResult,
        topic: str,
        queue_id: int,
        uniq_key: bytes,
        recall_handle: str,
    ) -> Awaitable[RemotingCommand | None] | None:
        """Answer the send of a message that can be recalled, when it is durable."""
        request.body = b""
        frame = self._template.encode(request, self._msg_id(result), queue_id, result.queue_offset, uniq_key)
        answer = decode_command(frame[4:])
        answer.ext_fields = {**answer.ext_fields, "recallHandle": recall_handle}
        if self._registration.is_pending(topic) and not request.is_oneway:
            return self._replies.answer_when_known(topic, answer, result.end_offset)
        self._replies.answer(connection, request, answer, result.end_offset)
        return None

    def answer_run(
        self,
        connection: Connection,
        sent: Sequence[tuple[RemotingCommand, int, bytes]],
        result: RunResult,
    ) -> None:
        """Answer sends of one run when they are durable: request, queue and unique id of each, and where it was put.

        Their topics are known everywhere.
        """
        encode, prefix = self._template.encode, self._prefix(result.store_host)
        frames = []
        for (request, queue_id, uniq_key), (offset, queue_offset) in zip(sent, result.places, strict=True):
            request.body = b""
            frames.append(encode(request, b"%b%016X" % (prefix, offset), queue_id, queue_offset, uniq_key))
        self._replies.answer_frames(connection, [request for request, _, _ in sent], frames, result.end_offset)

    def _msg_id(self, result: PutResult) -> bytes:
        if len(result.offsets) > 1:
            return result.msg_id.encode()
        return b"%b%016X" % (self._prefix(result.store_host), result.commit_log_offset)

    def _prefix(self, host: tuple[bytes, int]) -> bytes:
        """What the ids of all messages have in front that a broker of that address stores."""
        if host is not self._host:
            self._host = host
            self._host_of_ids = format_offset_msg_id(*host, 0)[:-16].encode()
        return self._host_of_ids
