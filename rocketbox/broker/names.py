"""Which names topics and groups may have, and what a peer is told that uses another one.

Source: Apache RocketMQ 5.x ``TopicValidator``, ``Validators``.
"""

from __future__ import annotations

from rocketbox.protocol.codes import DLQ_PREFIX, RETRY_PREFIX
from rocketbox.protocol.tags import MAX_GROUP_CHARACTERS, MAX_TOPIC_CHARACTERS, is_valid_name

__all__ = ["group_name_problem", "topic_name_problem"]

MAX_GROUP_TOPIC_CHARACTERS = 255  # of %RETRY% and %DLQ% topics


def topic_name_problem(topic: str) -> str | None:
    """What is wrong with a topic's name, in Apache's words."""
    longest = MAX_GROUP_TOPIC_CHARACTERS if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else MAX_TOPIC_CHARACTERS
    return _problem("topic", topic, longest)


def group_name_problem(group: str) -> str | None:
    """What is wrong with a group's name, in Apache's words."""
    return _problem("group", group, MAX_GROUP_CHARACTERS)


def _problem(kind: str, name: str, longest: int) -> str | None:
    if not name.strip():
        return f"The specified {kind} is blank."
    if len(name) > longest:
        return f"The specified {kind}: {name[:longest]}..., is longer than {kind} max length: {longest}"
    if not is_valid_name(name):
        return f"The specified {kind}: {name}, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return None
