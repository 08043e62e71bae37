"""Looking at what a broker has stored (code 33).

Source: Apache RocketMQ 5.x ``MQClientAPIImpl.viewMessage``.
"""

from __future__ import annotations

from rocketbox.client.api.answers import ask
from rocketbox.client.api.stored_names import unwrap_names
from rocketbox.errors import RemoteProtocolError
from rocketbox.message import MessageExt
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.compression import MAX_BODY_BYTES
from rocketbox.protocol.headers import ViewMessageRequestHeader
from rocketbox.protocol.stored_message import decode_message
from rocketbox.remoting.client import RemotingClient

__all__ = ["view_message"]


async def view_message(
    remoting: RemotingClient,
    address: str,
    commit_log_offset: int,
    *,
    timeout: float,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> MessageExt:
    """The message stored at commit_log_offset. Raises BrokerError (code 1) when there is none.

    A broker trusts the offset and may return any bytes: RemoteProtocolError when they are no message of that offset.
    """
    header = ViewMessageRequestHeader(offset=commit_log_offset)
    command = RemotingCommand.request(RequestCode.VIEW_MESSAGE_BY_ID, header.encode())
    answer = await ask(remoting, address, command, timeout=timeout)
    message, _ = decode_message(answer.body, max_body_bytes=max_body_bytes)
    if message.commit_log_offset != commit_log_offset:
        raise RemoteProtocolError(
            f"{address} returned the message at offset {message.commit_log_offset} instead of {commit_log_offset}"
        )
    unwrap_names((message,), remoting.namespace)
    return message
