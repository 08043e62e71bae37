"""A message that came, as one to send: what belongs to it goes along, what belongs to its first way does not.

Source: own design; Apache RocketMQ 5.x ``MessageExt`` is a ``Message`` with all of its properties, and sends UNIQ_KEY,
retries and delays of the first way once more.
"""

from __future__ import annotations

from rocketbox.message import RESERVED_PROPERTIES, Message, MessageExt, Property
from rocketbox.protocol.request_reply import ERROR_CLASS, TAKES_ERRORS

__all__ = ["as_message"]

OF_ITS_FIRST_WAY = RESERVED_PROPERTIES | {
    *(Property.TRANSACTION_ID, "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS"),
    *("TIMER_ROLL_LABEL", "INNER_NUM", "INNER_BASE", "INNER_MULTI_DISPATCH"),
    "TRACE_CONTEXT",
    *(TAKES_ERRORS, ERROR_CLASS),
    Property.SHARDING_KEY,  # said by the hash key
}


def as_message(message: MessageExt) -> Message:
    """Topic, body, tag, keys, flag, hash key and the sender's own properties; it is given an id of its own."""
    properties = message.properties
    own = {name: value for name, value in properties.items() if name not in OF_ITS_FIRST_WAY}
    return Message(
        message.topic,
        message.body,
        tag=message.tag,
        keys=message.keys,
        properties=own,
        hash_key=properties.get(Property.SHARDING_KEY),
        flag=message.flag,
    )
