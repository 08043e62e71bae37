"""Asking, and what an answer that says no becomes.

Who may do what is refused with code 16 by 5.x servers, and with code 1 and an exception's name by ACL 1.0 of 4.x. Code
16 also stands for topics, groups and brokers that take or give no messages; only the words tell the two apart.

Source: Apache RocketMQ 5.x ``MQClientAPIImpl`` (``MQBrokerException`` for every code that is not the expected one),
``AuthenticationException``, ``AuthorizationException``; 4.9.7 ``PlainPermissionManager`` (``AclException``).
"""

from __future__ import annotations

from rocketbox.errors import AccessDeniedError, BrokerError
from rocketbox.protocol.codes import ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.client import RemotingClient

__all__ = ["ask", "refusal"]

_OF_THE_TOPIC_OR_BROKER = (  # for everybody, whoever asks
    "is forbidden", "group no permission",
    " is the most (",  # a limit of the embedded broker, with its setting
)  # fmt: skip


def refusal(answer: RemotingCommand, address: str) -> BrokerError:
    """The error that an answer of address stands for; AccessDeniedError when it is about who asked."""
    remark = answer.remark or ""
    denied = answer.code == ResponseCode.NO_PERMISSION and not any(words in remark for words in _OF_THE_TOPIC_OR_BROKER)
    denied |= answer.code == ResponseCode.SYSTEM_ERROR and "AclException" in remark
    return (AccessDeniedError if denied else BrokerError)(answer.code, answer.remark, address)


async def ask(
    remoting: RemotingClient, address: str, command: RemotingCommand, *, timeout: float, also: tuple[int, ...] = ()
) -> RemotingCommand:
    """The answer to command, whose code is 0 or one of also.

    Raises BrokerError for any other code, RemotingError when no answer came.
    """
    answer = await remoting.request(address, command, timeout=timeout)
    if answer.code != 0 and answer.code not in also:
        raise refusal(answer, address)
    return answer
