"""Recalling a message that waits for its time of delivery (code 370).

Source: Apache RocketMQ 5.3 ``MQClientAPIImpl.recallMessage``.
"""

from __future__ import annotations

from rocketbox.client.api.answers import ask
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import RecallMessageRequestHeader, RecallMessageResponseHeader
from rocketbox.protocol.recall_handles import RecallHandle, encode_recall_handle
from rocketbox.remoting.client import RemotingClient

__all__ = ["recall_message"]


async def recall_message(
    remoting: RemotingClient, address: str, group: str, handle: RecallHandle, *, timeout: float
) -> str:
    """Have a broker not deliver a message; its msg_id. The handle's topic is named as servers know it.

    Raises BrokerError: 604 when it is too late, or the handle is not one of that broker, 16 when recalls are switched
    off there, 3 for one that is older than 5.3.
    """
    header = RecallMessageRequestHeader(
        producer_group=remoting.namespace.wrap(group),
        topic=handle.topic,
        recall_handle=encode_recall_handle(handle),
        bname=handle.broker_name,
    )
    command = RemotingCommand.request(RequestCode.RECALL_MESSAGE, header.encode())
    answer = await ask(remoting, address, command, timeout=timeout)
    return RecallMessageResponseHeader.decode(answer.ext_fields).msg_id
