"""The attributes of topics: which there are, and how a request changes them.

Only those are taken that are honoured or change nothing here: a topic that should be compacted, and then is not, would
be worse than a refusal.

Source: Apache RocketMQ 5.x ``TopicAttributes``, ``AttributeParser``, ``AttributeUtil``, ``TopicMessageType``.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["change_attributes"]

ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    # What sort of messages a topic is for: Apache's proxy looks at it, brokers do not.
    "message.type": ("DELAY", "FIFO", "LITE", "MIXED", "NORMAL", "PRIORITY", "TRANSACTION", "UNSPECIFIED"),
    "queue.type": ("SimpleCQ",),
    "cleanup.policy": ("DELETE",),
}
UNCHANGEABLE = frozenset({"queue.type", "cleanup.policy"})


def change_attributes(current: Mapping[str, str] | None, changes: str) -> dict[str, str]:
    """The attributes after ``+name=value,-name``; current None: of a topic that is being made.

    Raises ValueError, in Apache's words, when a change is not understood or not possible.
    """
    result = dict(current or {})
    seen: set[str] = set()
    for change in filter(None, changes.split(",")):
        written, equals, value = change.partition("=")
        sign, name = written[:1], written[1:]
        if sign not in {"+", "-"} or not name or (sign == "+") != bool(equals):
            raise ValueError(f"add/alter attribute format is wrong: {written}")
        if name in seen:
            raise ValueError(f"alter duplication key. key: {name}")
        seen.add(name)
        if name not in ATTRIBUTES:
            raise ValueError(f"unsupported key: {name}")
        if sign == "-":
            if current is None:
                raise ValueError(f"only add attribute is supported while creating topic. key: {name}")
            if name not in current:
                raise ValueError(f"attempt to delete a nonexistent key: {name}")
            del result[name]
            continue
        if current is not None and name in UNCHANGEABLE:
            raise ValueError(f"attempt to update an unchangeable attribute. key: {name}")
        if value not in ATTRIBUTES[name]:
            raise ValueError(f"value is not in set: [{', '.join(ATTRIBUTES[name])}]")
        result[name] = value
    return result
