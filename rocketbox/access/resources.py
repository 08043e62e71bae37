"""What a right is about: topics, groups and the cluster, and the actions on them.

A retry topic is never a resource of its own, it is its group. A dead-letter topic is a topic that, where nothing is
said of it, is its group too, to be read and written; a right to every topic says nothing of what can be read there,
which may be of any. To make or delete it takes the right to the topic. Topics in which a broker puts messages of all
others aside are nobody's: rights to every topic, or to a prefix, are none to these. Nor are they to read a topic of
replies, where copies of everybody's lie.

Source: Apache RocketMQ 5.x ``ResourceType``, ``Action``, ``Resource``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rocketbox.protocol.codes import DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC, UNDELIVERED_TOPIC
from rocketbox.protocol.request_reply import REPLY_TOPIC_SUFFIX
from rocketbox.protocol.tags import is_valid_name

__all__ = ["ADMINISTRATION", "Action", "Kind", "Need", "group_need", "name_problem", "topic_need"]


class Kind(Enum):
    """Of a resource; the value is how it is written (``Topic:orders``)."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"


class Action(Enum):
    """What is done with a resource; the value is how it is written."""

    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


ADMINISTRATION: Final = frozenset({Action.CREATE, Action.UPDATE, Action.DELETE})

OF_ALL_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        UNDELIVERED_TOPIC,
        TIMER_TOPIC,
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
"""Topics that hold messages of all others: delayed ones, those of consumers that try again, halves of transactions."""


@dataclass(frozen=True, slots=True)
class Need:
    """One thing a request needs: any of the actions on a resource, named literally.

    ``group`` is that of a dead-letter topic, whose rights count (SUB) where nothing is said of the topic itself.
    """

    kind: Kind
    name: str
    actions: tuple[Action, ...]
    group: str | None = None
    by_name: bool = False
    """Whether only rights count that name this very resource: who may read every topic but one would read that here."""
    always: bool = False
    """Whether it is asked for even where a signature is all that anything else takes."""

    @property
    def reads(self) -> bool:
        """Whether it is about what messages say."""
        return _reads(self.actions)

    @property
    def resource(self) -> str:
        """As messages show it: ``Topic:orders``."""
        return f"{self.kind.value}:{self.name}"


def topic_need(topic: str, *actions: Action, of_group: tuple[Action, ...] | None = None) -> Need:
    """Of a topic; of a retry topic that of its group (``of_group`` instead of the actions, where it is said)."""
    if topic.startswith(RETRY_PREFIX):
        return Need(Kind.GROUP, topic[len(RETRY_PREFIX) :], of_group or actions)
    is_of_group = topic.startswith(DLQ_PREFIX) and ADMINISTRATION.isdisjoint(actions)
    group = topic[len(DLQ_PREFIX) :] if is_of_group else None
    by_name = topic in OF_ALL_TOPICS or (_reads(actions) and topic.endswith(REPLY_TOPIC_SUFFIX))
    return Need(Kind.TOPIC, topic, actions, group, by_name=by_name)


def _reads(actions: Collection[Action]) -> bool:
    return Action.SUB in actions and Action.PUB not in actions


def group_need(group: str, *actions: Action) -> Need:
    """Of a group; its retry topic's name stands for it as well."""
    return Need(Kind.GROUP, group.removeprefix(RETRY_PREFIX), actions)


def name_problem(kind: Kind, name: str) -> tuple[str, str] | None:
    """Why a right to this name, or to all that begins so, would never count, and what to do; None when it would."""
    if kind is Kind.CLUSTER:
        return None
    if name.startswith(RETRY_PREFIX):
        return "a retry topic, of which the right to its group counts", "name the group, without %RETRY%"
    if not is_valid_name(name):
        return f"what no {kind.value.lower()} can be called", "names have letters, digits, %, |, _ and - alone"
    return None
