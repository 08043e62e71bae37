"""Tags, subscriptions, and the names of topics and groups: Java's hash, the expressions, what is legal.

Source: Apache RocketMQ 5.x ``FilterAPI``, ``SubscriptionData``, ``TopicValidator``, ``Validators``, Java's
``String.hashCode`` (Java SE 17).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rocketbox.errors import InvalidMessageError
from rocketbox.message import SelectorType

__all__ = [
    "MAX_GROUP_CHARACTERS",
    "MAX_TOPIC_CHARACTERS",
    "SubscriptionData",
    "is_valid_name",
    "java_string_hash",
    "parse_subscription",
    "tags_code",
]

MAX_TOPIC_CHARACTERS = 127
MAX_GROUP_CHARACTERS = 120
ALL_TAGS = "*"
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")


def java_string_hash(text: str) -> int:
    """Java's ``String.hashCode``: h = 31 h + unit over the UTF-16 code units, as a signed 32-bit number."""
    value = 0
    if text.isascii():
        for character in text.encode():
            value = (31 * value + character) & 0xFFFF_FFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for index in range(0, len(units), 2):
            value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFF_FFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def tags_code(tag: str | None) -> int:
    """What a consume queue holds of a message's tag: its hash, 0 without a tag."""
    return java_string_hash(tag) if tag else 0


def is_valid_name(name: str) -> bool:
    """Whether a topic or group consists of letters, digits, ``%``, ``|``, ``_`` and ``-`` only."""
    return _LEGAL.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """What a group wants of a topic. ``code_set`` are the hashes of ``tags_set``; both are empty for all messages.

    ``sub_version`` is the time in ms it was made: brokers keep the newest.
    """

    topic: str
    sub_string: str
    tags_set: tuple[str, ...] = ()
    code_set: tuple[int, ...] = ()
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


def parse_subscription(
    topic: str, expression: str | None, selector_type: SelectorType | str = SelectorType.TAG
) -> SubscriptionData:
    """The subscription that ``expression`` means: tags joined by ``||``, ``*`` for all, or SQL92.

    Raises InvalidMessageError when it holds no tag, or when there is no SQL.
    """
    kind = selector_type.value if isinstance(selector_type, SelectorType) else selector_type
    if kind != SelectorType.TAG.value:
        if not expression:
            raise InvalidMessageError(f"the {kind} selector of topic {topic!r} is empty")
        return SubscriptionData(topic, expression, expression_type=kind)
    if expression in (None, "", ALL_TAGS):
        return SubscriptionData(topic, ALL_TAGS)
    assert expression is not None
    tags = dict.fromkeys(tag for part in expression.split("||") if (tag := part.strip()))
    if not tags:
        raise InvalidMessageError(
            f"the selector {expression!r} of topic {topic!r} names no tag; write 'A || B', or '*'"
        )
    codes = dict.fromkeys(java_string_hash(tag) for tag in tags)
    return SubscriptionData(topic, expression, tuple(tags), tuple(codes))
