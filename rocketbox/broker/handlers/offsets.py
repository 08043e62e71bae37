"""Offsets: committed ones (14, 15), the ends of a queue (30, 31), and the one of a time (29).

Source: Apache RocketMQ 5.x ``ConsumerManageProcessor``, ``AdminBrokerProcessor``.
"""

from __future__ import annotations

from collections.abc import Mapping

from rocketbox.broker.context import BrokerContext
from rocketbox.broker.handlers.refused import Refused, check_committer
from rocketbox.broker.limits import LimitError
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import (
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rocketbox.remoting.connection import Connection, RequestHandler

__all__ = ["OffsetHandler"]


class OffsetHandler:
    """Answers questions about offsets."""

    def __init__(self, context: BrokerContext) -> None:
        self._topics = context.topics
        self._groups = context.groups
        self._offsets = context.offsets
        self._store = context.store

    def codes(self) -> Mapping[int, RequestHandler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_MAX_OFFSET: self.maximum,
            RequestCode.GET_MIN_OFFSET: self.minimum,
        }

    def query(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """The committed offset (14); the first for a queue that still has its first message, or never had one; else 22.

        Apache 5.5.0 answers 22 for an empty queue: the client then starts at the end it asks for later, and what is
        stored in between is never consumed.
        """
        header = QueryConsumerOffsetRequestHeader.decode(request.ext_fields)
        offset = self._offsets.get(header.consumer_group, header.topic, header.queue_id)
        if offset is not None and offset >= 0:
            return _offset(offset)
        if (
            header.set_zero_if_not_found is not False
            and self._topics.get(header.topic) is not None
            and (first := self._store.min_offset(header.topic, header.queue_id))
            <= self._store.first_offset(header.topic, header.queue_id)
        ):
            return _offset(max(0, first))
        return RemotingCommand.response(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")

    def update(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Commit an offset (15)."""
        header = UpdateConsumerOffsetRequestHeader.decode(request.ext_fields)
        try:
            check_committer(header.consumer_group)
            if self._groups.find(header.consumer_group, connection.remote_address) is None:
                return RemotingCommand.response(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {header.consumer_group}"
                )
            topic = self._topics.get(header.topic)
            if topic is None:
                return RemotingCommand.response(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!")
            queues = max(topic.read_queue_nums, topic.write_queue_nums)
            if (  # a topic may have had more queues, and consumers may yet be behind them
                not 0 <= header.queue_id < queues
                and self._offsets.get(header.consumer_group, header.topic, header.queue_id) is None
            ):
                return RemotingCommand.response(
                    ResponseCode.INVALID_PARAMETER,
                    f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] has {queues} queues",
                )
            self._offsets.commit(
                header.consumer_group, header.topic, header.queue_id, header.commit_offset, connection.remote_address
            )
        except Refused as refused:
            return refused.response()
        except LimitError as error:
            return RemotingCommand.response(error.code, str(error))
        return RemotingCommand.response()

    async def search(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """The offset of a time (29)."""
        header = SearchOffsetRequestHeader.decode(request.ext_fields)
        upper = (header.boundary_type or "").upper() == "UPPER"
        return _offset(
            await self._store.find_offset_by_time(header.topic, header.queue_id, header.timestamp, upper=upper)
        )

    def maximum(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """The next offset to be written (30); 0 for an unknown queue."""
        header = GetMaxOffsetRequestHeader.decode(request.ext_fields)
        return _offset(max(0, self._store.max_offset(header.topic, header.queue_id)))

    def minimum(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """The first offset there is (31); 0 for an unknown queue."""
        header = GetMinOffsetRequestHeader.decode(request.ext_fields)
        return _offset(max(0, self._store.min_offset(header.topic, header.queue_id)))


def _offset(offset: int) -> RemotingCommand:
    return RemotingCommand.response(ext_fields={"offset": str(offset)})
