"""Whether a broker delivers a message at the time that it says: from RocketMQ 5.0 on.

The version is that of the broker's last answer to a heartbeat over the connection that is there; where it has answered
none yet, one is sent first.

Source: Apache RocketMQ ``MQVersion``; 4.9.7 keeps timer properties, and delivers at once.
"""

from __future__ import annotations

from rocketbox.client.instance import MQClientInstance
from rocketbox.errors import ConnectError, InvalidMessageError
from rocketbox.protocol.codes import VERSION_5_0_0

__all__ = ["OlderBrokerError", "check_takes_timers"]


class OlderBrokerError(InvalidMessageError):
    """A broker would deliver a message at once that has a time of delivery; it was not sent to it."""


async def check_takes_timers(instance: MQClientInstance, address: str, broker_name: str, topic: str) -> None:
    """Return when it is certain that a broker delivers at the time that a message says.

    Raises OlderBrokerError for one that is too old, ConnectError when that cannot be found out now: nothing was
    sent.
    """
    version = await instance.broker_version(address)
    if version is None:
        raise ConnectError(
            address, f"it is not known whether broker {broker_name} is new enough for a time of delivery: it answered "
            "no heartbeat; nothing was sent"
        )  # fmt: skip
    if version < VERSION_5_0_0:
        raise OlderBrokerError(
            f"the message to {topic!r} has a time of delivery, and broker {broker_name} ({address}) is older than "
            "RocketMQ 5.0: it would deliver at once. Nothing was sent; take a delay that is one of RocketMQ's levels"
        )
