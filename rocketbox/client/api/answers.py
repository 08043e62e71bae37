"""Asking, and what an answer that says no becomes.

Source: Apache RocketMQ 5.x ``MQClientAPIImpl`` (``MQBrokerException`` for every code that is not the expected one).
"""

from __future__ import annotations

from rocketbox.errors import BrokerError
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.client import RemotingClient

__all__ = ["ask"]


async def ask(
    remoting: RemotingClient, address: str, command: RemotingCommand, *, timeout: float, also: tuple[int, ...] = ()
) -> RemotingCommand:
    """The answer to command, whose code is 0 or one of also.

    Raises BrokerError for any other code, RemotingError when no answer came.
    """
    answer = await remoting.request(address, command, timeout=timeout)
    if answer.code != 0 and answer.code not in also:
        raise BrokerError(answer.code, answer.remark, address)
    return answer
