"""The headers of rocketmq-spring: what a handler may ask of a message by them, and those that it puts on each message.

Source: rocketmq-spring 2.3 ``RocketMQHeaders``, ``RocketMQUtil.convertToSpringMessage``; Spring Messaging
``MessageHeaders``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from rocketbox.message import MessageExt, Property

__all__ = ["CONTENT_TYPE", "ID", "OF_THE_MESSAGE", "TIMESTAMP"]

ID: Final = "id"
TIMESTAMP: Final = "timestamp"
CONTENT_TYPE: Final = "contentType"


def _property(name: str) -> Callable[[MessageExt], str | None]:
    return lambda message: message.properties.get(name)


OF_THE_MESSAGE: Mapping[str, Callable[[MessageExt], str | None]] = MappingProxyType(
    {
        "rocketmq_KEYS": _property(Property.KEYS),
        "rocketmq_TAGS": _property(Property.TAGS),
        "rocketmq_TOPIC": lambda message: message.topic,
        "rocketmq_MESSAGE_ID": lambda message: message.msg_id,
        "rocketmq_BORN_TIMESTAMP": lambda message: str(message.born_timestamp_ms),
        "rocketmq_BORN_HOST": lambda message: message.born_host.rpartition(":")[0].strip("[]"),
        "rocketmq_FLAG": lambda message: str(message.flag),
        "rocketmq_QUEUE_ID": lambda message: str(message.queue_id),
        "rocketmq_SYS_FLAG": lambda message: str(message.sys_flag),
        "rocketmq_TRANSACTION_ID": lambda message: message.transaction_id,
        "rocketmq_DELAY": _property(Property.DELAY),
        "rocketmq_WAIT": _property(Property.WAIT),
    }
)
"""What is no property of the sender's, by the names that rocketmq-spring gives it; as text, and None where it is not
there."""
