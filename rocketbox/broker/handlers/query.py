"""Messages by key (12) and by their place in the commit log (33).

Source: Apache RocketMQ 5.x ``QueryMessageProcessor``.
"""

from __future__ import annotations

from collections.abc import Mapping

from rocketbox.access.resources import Action, topic_need
from rocketbox.broker.context import BrokerContext
from rocketbox.message import MAX_PROPERTIES_BYTES
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import QueryMessageRequestHeader, QueryMessageResponseHeader, ViewMessageRequestHeader
from rocketbox.protocol.stored_message import decode_message
from rocketbox.remoting.connection import Connection, RequestHandler

__all__ = ["QueryHandler"]

UNIQUE_KEY_RESULTS = 32


class QueryHandler:
    """Answers queries for messages."""

    def __init__(self, context: BrokerContext) -> None:
        self._store = context.store
        self._refusal = context.refusal

    def codes(self) -> Mapping[int, RequestHandler]:
        return {RequestCode.QUERY_MESSAGE: self.by_key, RequestCode.VIEW_MESSAGE_BY_ID: self.view}

    async def by_key(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """The messages of a topic with a key, oldest first; 22 when there is none."""
        header = QueryMessageRequestHeader.decode(request.ext_fields)
        fields = QueryMessageResponseHeader(index_last_update_timestamp=0, index_last_update_phyoffset=0).encode()
        for what, text in (("topic", header.topic), ("key", header.key)):
            size = len(text.encode("utf-8", "replace"))
            if size > MAX_PROPERTIES_BYTES:  # its hash alone would keep the loop
                remark = f"no message has a {what} of {size} bytes; {MAX_PROPERTIES_BYTES} is the most"
                return RemotingCommand.response(ResponseCode.QUERY_NOT_FOUND, remark, fields)
        found = await self._store.query_keys(
            header.topic,
            header.key,
            UNIQUE_KEY_RESULTS if header.unique_key_query else header.max_num,
            header.begin_timestamp,
            header.end_timestamp,
        )
        if found.records:
            return RemotingCommand.response(ext_fields=fields, body=b"".join(reversed(found.records)))
        remark = "can not find message, maybe time range not correct"
        if not found.is_complete:
            remark = f"no message among the newest {found.looked_at} entries of the index (maxIndexSearchSteps)"
        return RemotingCommand.response(ResponseCode.QUERY_NOT_FOUND, remark, fields)

    async def view(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """The message that begins at an offset of the commit log; 1 when none does, or its topic was deleted."""
        header = ViewMessageRequestHeader.decode(request.ext_fields)
        record = await self._store.read_message(header.offset)
        if record is None:
            return RemotingCommand.response(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}"
            )
        topic = decode_message(bytes(record), decompress=False)[0].topic
        refusal = self._refusal(connection, request, (topic_need(topic, Action.GET, Action.SUB),))
        return RemotingCommand.response(body=bytes(record)) if refusal is None else refusal
