"""What the answer to a send means (codes 310, 320 and their like); the request is ``protocol.prepared_sends``'s.

Source: Apache RocketMQ 5.x ``MQClientAPIImpl.processSendResponse``.
"""

from __future__ import annotations

from rocketbox.client.api.answers import refusal
from rocketbox.message import SendResult, SendStatus
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.acl import Credentials

__all__ = ["send_result"]

_STATUS = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
}


def send_result(
    answer: RemotingCommand,
    address: str,
    topic: str,
    broker_name: str,
    msg_id: str,
    credentials: Credentials | None = None,
) -> SendResult:
    """What the broker did. Raises BrokerError when it did not store; ``credentials`` are those of the client.

    A status other than SEND_OK is a result: the message is stored.
    """
    status = _STATUS.get(answer.code)
    if status is None:
        raise refusal(answer, address, RequestCode.SEND_MESSAGE_V2, {"topic": topic}, credentials)
    return SendResult(status, msg_id, topic, broker_name, answer)
