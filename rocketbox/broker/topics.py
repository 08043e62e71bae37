"""The broker's topics: how many queues each has and what may be done with them.

Holds the table, the topics every broker has, the rules by which topics come into being, and the form on disk
(``topics.json``); telling the name servers is ``registration``'s part (``on_change``).

Source: Apache RocketMQ 5.x ``TopicConfigManager``, ``TopicValidator``.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TypeVar

from rocketbox.broker.limits import LimitError, NameBudget
from rocketbox.broker.options import BrokerOptions
from rocketbox.broker.persister import TableFile
from rocketbox.broker.table_text import encode_entry, table_pieces
from rocketbox.clock import Clock
from rocketbox.errors import StoreCorruptError
from rocketbox.message import DELAY_LEVELS
from rocketbox.protocol.codes import SCHEDULE_TOPIC, TBW102, TIMER_TOPIC, PermName
from rocketbox.protocol.loose_json import loads_loose
from rocketbox.protocol.registration_bodies import DataVersion, TopicConfig

__all__ = ["READ_WRITE", "TopicTable", "built_in_topics"]

ResultT = TypeVar("ResultT")

_log = logging.getLogger(__name__)

READ_WRITE = int(PermName.READ | PermName.WRITE)
INHERITABLE = int(PermName.READ | PermName.WRITE | PermName.INHERIT)
SCHEDULE_QUEUES = 18  # one for each of Apache's delay levels; more when messageDelayLevel names more


def built_in_topics(options: BrokerOptions, delay_levels: int = len(DELAY_LEVELS.split())) -> dict[str, TopicConfig]:
    """The topics a broker makes for itself (``TopicConfigManager.init``)."""
    cluster = options.broker_cluster_name
    topics = [
        _topic("SELF_TEST_TOPIC", 1),
        _topic("BenchmarkTest", 1024),
        _topic(cluster, 16, INHERITABLE if options.cluster_topic_enable else int(PermName.INHERIT)),
        _topic(options.broker_name, 1, INHERITABLE if options.broker_topic_enable else int(PermName.INHERIT)),
        _topic("OFFSET_MOVED_EVENT", 1),
        _topic(SCHEDULE_TOPIC, max(SCHEDULE_QUEUES, delay_levels)),
        _topic(f"{cluster}_REPLY_TOPIC", 1),
        _topic(f"rmq_sys_REVIVE_LOG_{cluster}", 8),
        _topic(f"rmq_sys_SYNC_BROKER_MEMBER_{options.broker_name}", 1, int(PermName.INHERIT)),
        _topic("RMQ_SYS_TRANS_HALF_TOPIC", 1),
        _topic("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1),
        _topic(TIMER_TOPIC, 1),
    ]
    if options.auto_create_topic_enable:
        topics.append(_topic(TBW102, options.default_topic_queue_nums, INHERITABLE))
    if options.trace_topic_enable:
        topics.append(_topic("RMQ_SYS_TRACE_TOPIC", 1))
    return {topic.topic_name: topic for topic in topics}


def _topic(name: str, queues: int, perm: int = READ_WRITE) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)


class TopicTable:
    """All topics of the broker.

    When one comes or changes, the version goes up, ``file`` is marked, then ``on_change`` is called with the topic. A
    new one is known at once; no message of it is taken before it :meth:`is_written`, or the next start would not find
    it.
    """

    def __init__(
        self,
        options: BrokerOptions,
        clock: Clock,
        file: TableFile,
        on_change: Callable[[TopicConfig], None],
        delay_levels: int = len(DELAY_LEVELS.split()),
        names: NameBudget | None = None,
    ) -> None:
        self._options = options
        self._clock = clock
        self._file = file
        self._on_change = on_change
        self._names = names
        self._topics = built_in_topics(options, delay_levels)
        self._built_in = frozenset(self._topics)
        self._texts: dict[str, bytes] = {}  # entries of the file
        self._unwritten: dict[str, int] = {}  # new topics, and the change of the file that brings them
        self.queues = sum(map(_queues, self._topics.values()))
        """How many queues all topics have."""
        self.refused = 0
        """How many topics were not made because of a limit."""
        self.version = DataVersion(timestamp=clock.time_ms())

    def get(self, topic: str) -> TopicConfig | None:
        return self._topics.get(topic)

    def all(self) -> Mapping[str, TopicConfig]:
        """Every topic by name (read only); it changes with the table."""
        return self._topics

    def is_built_in(self, topic: str) -> bool:
        """Whether the broker made the topic for itself; such a topic follows the settings, and is not deleted."""
        return topic in self._built_in

    def create_for_send(self, topic: str, default_topic: str, queues: int, by: str = "") -> TopicConfig | None:
        """Make a topic somebody sends to, after the pattern of ``default_topic``; None when that is not allowed.

        It gets ``queues`` queues, at least one and at most as many as the pattern has, and the pattern's permissions
        without the right to be a pattern itself. ``by`` is the sender's address. Raises LimitError.
        """
        pattern = self._topics.get(default_topic)
        if pattern is None or not pattern.perm & PermName.INHERIT:
            return None
        if default_topic == TBW102 and not self._options.auto_create_topic_enable:
            return None
        queues = max(1, min(queues, pattern.write_queue_nums))
        made = dataclasses.replace(
            pattern,
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=int(pattern.perm & ~PermName.INHERIT),
            order=False,
            attributes={},
        )
        self._make(made, by)
        return made

    def create_for_group(self, topic: str, queues: int, *, order: bool = False, by: str = "") -> TopicConfig:
        """The retry or dead-letter topic of a group, made now if it is not there. Raises LimitError."""
        known = self._topics.get(topic)
        if known is None:
            known = dataclasses.replace(_topic(topic, max(1, queues)), order=order)
            self._make(known, by)
        return known

    def put(self, topic: TopicConfig) -> int:
        """Add or replace a topic; the change of the file, for :meth:`change_written`. Raises LimitError."""
        name = topic.topic_name
        known = self._topics.get(name)
        self._check_limits(topic, known)
        self._topics[name] = topic
        self.queues += _queues(topic) - (_queues(known) if known is not None else 0)
        self._texts.pop(name, None)
        change = self._changed()
        if known is None:
            self._unwritten[name] = change
        self._on_change(topic)
        return change

    def delete(self, topic: str) -> int:
        """Forget a topic (nothing, if there is none); the change of the file, for :meth:`change_written`."""
        known = self._topics.pop(topic, None)
        if known is None:
            return self._file.marked
        self.queues -= _queues(known)
        self._texts.pop(topic, None)
        self._unwritten.pop(topic, None)
        return self._changed()

    def is_written(self, topic: str) -> bool:
        """Whether the next start will know the topic."""
        if not self._unwritten:
            return True
        change = self._unwritten.get(topic)
        if change is None:
            return True
        if not self._file.is_written(change):
            return False
        del self._unwritten[topic]
        return True

    @property
    def last_change(self) -> int:
        """The newest change of the file, for :meth:`change_written`."""
        return self._file.marked

    async def change_written(self, change: int) -> None:
        """Return when a change is on the disk. Raises StoreError when it cannot be written down."""
        await self._file.written(change)

    def in_turn(self, topic: str, handle: Callable[[], ResultT]) -> Awaitable[ResultT]:
        """What ``handle`` returns, called when the next start will know the topic, in the order of these calls.

        Raises StoreError, when awaited, if the topic cannot be written down.
        """
        return self._file.in_turn(0 if self.is_written(topic) else self._unwritten[topic], handle)

    def _make(self, topic: TopicConfig, by: str) -> None:
        """Put a topic that is made because somebody named it."""
        self._check_limits(topic, None)
        if self._names is not None:
            self._names.take(by)
        self.put(topic)

    def _check_limits(self, topic: TopicConfig, known: TopicConfig | None) -> None:
        options, name = self._options, topic.topic_name
        queues = _queues(topic)
        before = 0 if known is None else _queues(known)
        limit: LimitError | None = None
        if queues > before and queues > options.max_queues_per_topic and name not in self._built_in:
            limit = LimitError(
                f"topic {name} would have {queues} queues", options.max_queues_per_topic, "max-queues-per-topic"
            )
        elif queues > before and self.queues + queues - before > options.max_queues:
            limit = LimitError(
                f"topic {name} would bring the broker to {self.queues + queues - before} queues",
                options.max_queues, "max-queues",
            )  # fmt: skip
        elif known is None and len(self._topics) >= options.max_topics:
            limit = LimitError(
                f"topic {name} cannot be made, there are {len(self._topics)}", options.max_topics, "max-topics"
            )
        if limit is not None:
            self.refused += 1
            raise limit

    def _changed(self) -> int:
        self.version = self.version.next(self._clock.time_ms())
        return self._file.mark()

    def pieces(self) -> Iterator[bytes]:
        """The text of ``topics.json``."""
        return table_pieces(
            [("dataVersion", self.version.to_json())], [("topicConfigTable", list(self._topics), self._text)]
        )

    def _text(self, name: str) -> bytes | None:
        text = self._texts.get(name)
        if text is None and (topic := self._topics.get(name)) is not None:
            text = self._texts[name] = encode_entry(name, topic.to_json())
        return text

    def load(self, text: str, file: str = "topics.json") -> None:
        """Add what a file holds, ours or Apache's; the topics every broker has follow the settings, not the file.

        Raises StoreCorruptError when it is not such a file.
        """
        try:
            values = loads_loose(text)
            topics = {
                name: TopicConfig.from_json({"topicName": name, **topic})
                for name, topic in values.get("topicConfigTable", {}).items()
            }
            version = DataVersion.from_json(values.get("dataVersion") or {})
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise StoreCorruptError(file, 0, f"not a table of topics ({error})") from error
        if not self._options.auto_create_topic_enable:
            topics.pop(TBW102, None)
        for name, topic in topics.items():
            if name not in self._built_in:
                self._topics[name] = topic if _queues(topic) > 0 else self._with_a_queue(topic)
        self._texts.clear()
        self.queues = sum(map(_queues, self._topics.values()))
        self.version = version

    @staticmethod
    def _with_a_queue(topic: TopicConfig) -> TopicConfig:
        """A topic without queues takes nothing and gives nothing: nobody wants that, it was made by mistake."""
        _log.warning("topic %s has no queues; it has one now", topic.topic_name)
        return dataclasses.replace(topic, read_queue_nums=1, write_queue_nums=1)


def _queues(topic: TopicConfig) -> int:
    return max(topic.read_queue_nums, topic.write_queue_nums)
