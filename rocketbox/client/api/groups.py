"""A client and its groups at a broker: heartbeat, goodbye, members, queue locks, send-back (34, 35, 36, 38, 41, 42).

Source: Apache RocketMQ 5.x ``MQClientAPIImpl.sendHeartbeat``, ``unregisterClient``, ``getConsumerIdListByGroup``,
``lockBatchMQ``, ``unlockBatchMQ``, ``consumerSendMessageBack``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rocketbox.client.api.answers import ask
from rocketbox.message import MessageExt, MessageQueue
from rocketbox.protocol.bodies import (
    HeartbeatData,
    LockBatchRequestBody,
    consumer_list_in_steps,
    encode_heartbeat,
    encode_lock_batch_request,
    locked_queues_in_steps,
)
from rocketbox.protocol.codes import VERSION_5_0_0, RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    GetConsumerListByGroupRequestHeader,
    UnregisterClientRequestHeader,
)
from rocketbox.protocol.namespaces import Namespace
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.turns import read_in_turns

__all__ = [
    "HeartbeatAnswer",
    "consumer_ids",
    "lock_queues",
    "send_message_back",
    "send_heartbeat",
    "unlock_queues",
    "unregister_client",
]


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """``version`` is an MQVersion ordinal. ``is_broker``: a broker has certainly answered it itself, one before 5.0 or
    from 5.1 on, and not Apache's proxy, which came with 5.0 and answers some requests before a broker has them."""

    version: int
    is_broker: bool


async def send_heartbeat(
    remoting: RemotingClient, address: str, data: HeartbeatData, *, timeout: float
) -> HeartbeatAnswer:
    """Tell a broker which groups this client is a member of; what it says of itself."""
    wrap = remoting.namespace.wrap
    if remoting.namespace:
        data = replace(
            data,
            producer_data_set=tuple(replace(each, group_name=wrap(each.group_name)) for each in data.producer_data_set),
            consumer_data_set=tuple(
                replace(
                    each,
                    group_name=wrap(each.group_name),
                    subscription_data_set=tuple(
                        replace(of_topic, topic=wrap(of_topic.topic)) for of_topic in each.subscription_data_set
                    ),
                )
                for each in data.consumer_data_set
            ),
        )
    command = RemotingCommand.request(RequestCode.HEART_BEAT, body=encode_heartbeat(data))
    answer = await ask(remoting, address, command, timeout=timeout)
    is_broker = answer.version < VERSION_5_0_0 or answer.ext_fields.get("IS_SUPPORT_HEART_BEAT_V2") == "true"
    return HeartbeatAnswer(answer.version, is_broker)


async def unregister_client(
    remoting: RemotingClient,
    address: str,
    *,
    client_id: str,
    producer_group: str | None = None,
    consumer_group: str | None = None,
    timeout: float,
) -> None:
    """Tell a broker that this client leaves a group."""
    wrap = remoting.namespace.wrap
    header = UnregisterClientRequestHeader(
        client_id=client_id,
        producer_group=producer_group and wrap(producer_group),
        consumer_group=consumer_group and wrap(consumer_group),
    )
    command = RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, header.encode())
    await ask(remoting, address, command, timeout=timeout)


async def consumer_ids(remoting: RemotingClient, address: str, group: str, *, timeout: float) -> list[str]:
    """The client ids of the group's members that the broker knows; without any it answers code 1 (BrokerError)."""
    header = GetConsumerListByGroupRequestHeader(consumer_group=remoting.namespace.wrap(group))
    command = RemotingCommand.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header.encode())
    answer = await ask(remoting, address, command, timeout=timeout)
    return await read_in_turns(consumer_list_in_steps(answer.body))


async def lock_queues(
    remoting: RemotingClient,
    address: str,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    *,
    timeout: float,
) -> set[MessageQueue]:
    """Those of queues that this client holds now, for 60 s; the others are held by another member."""
    command = _lock_request(remoting.namespace, RequestCode.LOCK_BATCH_MQ, group, client_id, queues)
    answer = await ask(remoting, address, command, timeout=timeout)
    locked = await read_in_turns(locked_queues_in_steps(answer.body))
    unwrap = remoting.namespace.unwrap
    return {replace(queue, topic=unwrap(queue.topic)) for queue in locked} if remoting.namespace else set(locked)


async def unlock_queues(
    remoting: RemotingClient,
    address: str,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    *,
    timeout: float,
) -> None:
    """Give queues back to the other members."""
    command = _lock_request(remoting.namespace, RequestCode.UNLOCK_BATCH_MQ, group, client_id, queues)
    await ask(remoting, address, command, timeout=timeout)


def _lock_request(
    namespace: Namespace, code: RequestCode, group: str, client_id: str, queues: Iterable[MessageQueue]
) -> RemotingCommand:
    wrapped = tuple(replace(queue, topic=namespace.wrap(queue.topic)) for queue in queues)
    named = LockBatchRequestBody(consumer_group=namespace.wrap(group), client_id=client_id, mq_set=wrapped)
    return RemotingCommand.request(code, body=encode_lock_batch_request(named))


async def send_message_back(
    remoting: RemotingClient,
    address: str,
    group: str,
    message: MessageExt,
    *,
    delay_level: int,
    max_reconsume_times: int,
    broker_name: str | None = None,
    timeout: float,
) -> None:
    """Let the broker that stored message put it into the group's retry topic (delay_level 0: the delay grows with each
    return) or, with -1 or after max_reconsume_times returns, into its dead-letter topic.
    """
    header = ConsumerSendMsgBackRequestHeader(
        offset=message.commit_log_offset,
        group=remoting.namespace.wrap(group),
        delay_level=delay_level,
        origin_msg_id=message.msg_id,
        origin_topic=remoting.namespace.wrap(message.topic),
        unit_mode=False,
        max_reconsume_times=max_reconsume_times,
        bname=broker_name or message.broker_name,
    )
    command = RemotingCommand.request(RequestCode.CONSUMER_SEND_MSG_BACK, header.encode())
    await ask(remoting, address, command, timeout=timeout)
