"""Which queues are read: those of named topics, of topics that match a pattern, or named queues.

Source: Apache Spark 4.3.0, ``ConsumerStrategy`` of its Kafka source (subscribe, subscribePattern, assign).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from rocketbox.errors import NoRouteError, RocketBoxError
from rocketbox.message import MessageQueue
from rocketbox.protocol.codes import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPIC_PREFIX, PermName, is_system_topic

if TYPE_CHECKING:
    from rocketbox.client import Admin  # options are read without loading the client

__all__ = ["NOT_READABLE", "Found", "MissingTopicError", "Selection", "assigned_queues", "unreadable_at"]


NOT_READABLE = "no queue that may be read (by its permission, or readQueueNums)"


class MissingTopicError(RocketBoxError):
    """What was to be read is not there."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}; {fix}")


class Found(NamedTuple):
    """What there is of a selection now."""

    queues: list[MessageQueue]
    missing: list[str]
    """What should be there and is not, in words."""
    closed: list[str]
    """The topics that a pattern means, and of which no queue may be read."""


@dataclass(frozen=True)
class Selection:
    """The queues of a read: one of the three is given."""

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    assigned: tuple[MessageQueue, ...] = ()

    @cached_property
    def _assigned(self) -> frozenset[MessageQueue]:
        """For thousands of queues."""
        return frozenset(self.assigned)

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"topics that match {self.pattern.pattern!r}"
        names = self.topics or tuple(dict.fromkeys(queue.topic for queue in self.assigned))
        return f"topic {names[0]}" if len(names) == 1 else f"topics {', '.join(names)}"

    def has(self, queue: MessageQueue) -> bool:
        """Whether a queue would be read if it were there."""
        if self.pattern is not None:
            return self._matches(queue.topic)
        return queue in self._assigned if self.assigned else queue.topic in self.topics

    async def queues(self, admin: Admin, is_read: Callable[[str], bool] | None = None) -> Found:
        """The queues that are there now, and what is not; of topics of a pattern only those that ``is_read`` takes."""
        matching: list[str] = []
        if self.pattern is not None:
            matching = [name for name in await topic_names(admin) if self._matches(name)]
            names = matching if is_read is None else list(filter(is_read, matching))
        else:
            names = sorted({*self.topics, *(queue.topic for queue in self.assigned)})
        found: list[MessageQueue] = []
        missing: list[str] = []
        closed: list[str] = []
        for name in names:
            try:
                readable = await admin.queues(name)
            except NoRouteError:
                if self.pattern is None:
                    missing.append(f"topic {name} does not exist")
                continue
            if not readable:
                closed.append(name)
            found += readable
        if self.pattern is None:
            missing += [f"topic {name} has {NOT_READABLE}" for name in closed]
            closed = []
        if self.assigned:
            there, topics = frozenset(found), {queue.topic for queue in found}
            absent = [queue for queue in self.assigned if queue not in there and queue.topic in topics]
            missing += [f"topic {q.topic} has no queue {q.broker_name}/{q.queue_id}" for q in absent]
            found = [queue for queue in self.assigned if queue in there]
        if self.pattern is not None and not found and len(names) == len(matching):
            none = f"no topic matches {self.pattern.pattern!r}"
            missing.append(f"{none} but {', '.join(closed)}, with {NOT_READABLE}" if closed else none)
        return Found(sorted(found), missing, closed)

    def _matches(self, topic: str) -> bool:
        assert self.pattern is not None
        return self.pattern.fullmatch(topic) is not None and not is_internal(topic)


def unreadable_at(brokers: Mapping[str, Any]) -> list[str]:
    """The brokers that do not let a topic be read, of what ``Admin.queues_on_brokers`` says of it."""
    return sorted(name for name, queues in brokers.items() if not queues.perm & PermName.READ)


def is_internal(topic: str) -> bool:
    """Whether a topic is RocketMQ's own or a group's, which no pattern means: retries, dead letters, system topics."""
    return (
        topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        or topic.lower().startswith(SYSTEM_TOPIC_PREFIX)  # RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC of 5.5 is not in its list
        or is_system_topic(topic)
    )


async def topic_names(admin: Admin) -> Collection[str]:
    """The topics of all clusters that the name server knows, but those that are brokers' and clusters' own names."""
    info = await admin.cluster()
    own = {*info.clusters, *info.brokers} | {f"{cluster}_REPLY_TOPIC" for cluster in info.clusters}
    return [name for name in await admin.topic_names() if name not in own]


def assigned_queues(text: str) -> tuple[MessageQueue, ...]:
    """The queues that ``{"topic": {"broker-a": [0, 1]}}`` names. Raises ValueError for anything else."""
    try:
        queues = []
        for topic, brokers in json.loads(text).items():
            for broker, numbers in brokers.items():
                for number in numbers:
                    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                        raise ValueError(f"{number!r} is no number of a queue")
                    queues.append(MessageQueue(topic, broker, number))
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            f'option assign must be JSON such as {{"topic": {{"broker-a": [0, 1]}}}}; {text!r} is not ({error})'
        ) from error
    if not queues:
        raise ValueError(f"option assign names no queue: {text!r}")
    return tuple(sorted(set(queues)))
