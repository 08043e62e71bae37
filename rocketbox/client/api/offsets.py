"""Offsets of queues and of groups (codes 14, 15, 29, 30, 31).

Source: Apache RocketMQ 5.x ``MQClientAPIImpl.queryConsumerOffset``, ``updateConsumerOffset``, ``getMinOffset``,
``getMaxOffset``, ``searchOffset``.
"""

from __future__ import annotations

from rocketbox.client.api.answers import ask
from rocketbox.message import MessageQueue
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import (
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from rocketbox.remoting.client import RemotingClient

__all__ = ["max_offset", "min_offset", "query_consumer_offset", "search_offset", "update_consumer_offset"]


async def query_consumer_offset(
    remoting: RemotingClient, address: str, group: str, queue: MessageQueue, *, timeout: float
) -> int | None:
    """Where the group goes on in the queue; None when the broker has nothing stored."""
    header = QueryConsumerOffsetRequestHeader(
        consumer_group=remoting.namespace.wrap(group),
        topic=remoting.namespace.wrap(queue.topic),
        queue_id=queue.queue_id,
        bname=queue.broker_name,
    )
    command = RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, header.encode())
    answer = await ask(remoting, address, command, timeout=timeout, also=(ResponseCode.QUERY_NOT_FOUND,))
    return None if answer.code == ResponseCode.QUERY_NOT_FOUND else _offset(answer)


async def update_consumer_offset(
    remoting: RemotingClient, address: str, group: str, queue: MessageQueue, offset: int, *, timeout: float
) -> None:
    """Store where the group goes on in the queue, and return when the broker has it (Java sends this one-way)."""
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=remoting.namespace.wrap(group),
        topic=remoting.namespace.wrap(queue.topic),
        queue_id=queue.queue_id,
        commit_offset=offset,
        bname=queue.broker_name,
    )
    await ask(
        remoting, address, RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header.encode()), timeout=timeout
    )


async def min_offset(remoting: RemotingClient, address: str, queue: MessageQueue, *, timeout: float) -> int:
    """The offset of the queue's oldest message; 0 for a queue that the broker does not know."""
    topic = remoting.namespace.wrap(queue.topic)
    header = GetMinOffsetRequestHeader(topic=topic, queue_id=queue.queue_id, bname=queue.broker_name)
    command = RemotingCommand.request(RequestCode.GET_MIN_OFFSET, header.encode())
    return _offset(await ask(remoting, address, command, timeout=timeout))


async def max_offset(remoting: RemotingClient, address: str, queue: MessageQueue, *, timeout: float) -> int:
    """The offset that the queue's next message will get; 0 for a queue that the broker does not know."""
    topic = remoting.namespace.wrap(queue.topic)
    header = GetMaxOffsetRequestHeader(topic=topic, queue_id=queue.queue_id, bname=queue.broker_name)
    command = RemotingCommand.request(RequestCode.GET_MAX_OFFSET, header.encode())
    return _offset(await ask(remoting, address, command, timeout=timeout))


async def search_offset(
    remoting: RemotingClient, address: str, queue: MessageQueue, timestamp_ms: int, *, timeout: float
) -> int:
    """The offset of the queue's first message stored then or later; behind the last one when all are older."""
    header = SearchOffsetRequestHeader(
        topic=remoting.namespace.wrap(queue.topic),
        queue_id=queue.queue_id,
        timestamp=timestamp_ms,
        bname=queue.broker_name,
    )
    command = RemotingCommand.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header.encode())
    return _offset(await ask(remoting, address, command, timeout=timeout))


def _offset(answer: RemotingCommand) -> int:
    return OffsetResponseHeader.decode(answer.ext_fields).offset
