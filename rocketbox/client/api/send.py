"""Sending one message or batch to one broker (codes 310 and 320), and what its answer means.

Source: Apache RocketMQ 5.x ``MQClientAPIImpl.sendMessage``, ``processSendResponse``.
"""

from __future__ import annotations

from rocketbox.errors import BrokerError
from rocketbox.message import SendResult, SendStatus
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import SendMessageRequestHeader, SendTemplate
from rocketbox.remoting.client import RemotingClient

__all__ = ["send_by_template", "send_message", "send_message_one_way"]

_STATUS = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
}


async def send_message(
    remoting: RemotingClient,
    address: str,
    header: SendMessageRequestHeader,
    body: bytes,
    *,
    msg_id: str,
    timeout: float,
) -> SendResult:
    """Send and return what the broker did. Raises BrokerError when it did not store, RemotingError without an answer.

    A status other than SEND_OK is a result: the message is stored.
    """
    answer = await remoting.request(address, _command(header, body), timeout=timeout)
    return _result(answer, address, header.topic, header.bname or "", msg_id)


async def send_by_template(
    remoting: RemotingClient,
    address: str,
    template: SendTemplate,
    topic: str,
    broker_name: str,
    msg_id: str,
    born_ms: int,
    properties: bytes,
    body: bytes,
    flag: int,
    timeout: float,
) -> SendResult:
    """The same for a plain message, with the header's bytes prepared for topic and queue.

    Fast path: saves 4 us of 11 a message against a header dataclass and its dict (benchmark "send, 256 in flight").
    """
    answer = await remoting.request_frame(
        address,
        lambda opaque: template.encode_frame(opaque, born_ms, properties, body, flag, 0),
        timeout=timeout,
    )
    return _result(answer, address, topic, broker_name, msg_id)


async def send_message_one_way(
    remoting: RemotingClient, address: str, header: SendMessageRequestHeader, body: bytes, *, timeout: float
) -> None:
    """Send without an answer; timeout is for the connection. Raises ConnectError without one: nothing was sent."""
    await remoting.send_oneway(address, _command(header, body), timeout=timeout)


def _command(header: SendMessageRequestHeader, body: bytes) -> RemotingCommand:
    code = RequestCode.SEND_BATCH_MESSAGE if header.batch else RequestCode.SEND_MESSAGE_V2
    return RemotingCommand.request(code, header.encode_v2(), body)


def _result(answer: RemotingCommand, address: str, topic: str, broker_name: str, msg_id: str) -> SendResult:
    status = _STATUS.get(answer.code)
    if status is None:
        raise BrokerError(answer.code, answer.remark, address)
    return SendResult(status, msg_id, topic, broker_name, answer)
