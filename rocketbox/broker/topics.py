"""The broker's topics: how many queues each has and what may be done with them.

Holds the table, the topics every broker has, the rules by which topics come into being, and the form on disk
(``topics.json``); telling the name servers is ``registration``'s part (``on_change``).

Source: Apache RocketMQ 5.x ``TopicConfigManager``, ``TopicValidator``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping

from rocketbox.broker.options import BrokerOptions
from rocketbox.clock import Clock
from rocketbox.errors import StoreCorruptError, StoreError
from rocketbox.message import DELAY_LEVELS
from rocketbox.protocol.bodies import DataVersion, TopicConfig, loads_loose
from rocketbox.protocol.codes import SCHEDULE_TOPIC, TBW102, PermName

__all__ = ["READ_WRITE", "TopicTable", "built_in_topics"]

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
        _topic("rmq_sys_wheel_timer", 1),
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

    When one comes or changes, the version goes up, ``persist`` is called with the new text, then ``on_change`` with
    the topic.
    """

    def __init__(
        self,
        options: BrokerOptions,
        clock: Clock,
        persist: Callable[[str], None],
        on_change: Callable[[TopicConfig], None],
        delay_levels: int = len(DELAY_LEVELS.split()),
    ) -> None:
        self._options = options
        self._clock = clock
        self._persist = persist
        self._on_change = on_change
        self._topics = built_in_topics(options, delay_levels)
        self._built_in = frozenset(self._topics)
        self.version = DataVersion(timestamp=clock.time_ms())

    def get(self, topic: str) -> TopicConfig | None:
        return self._topics.get(topic)

    def all(self) -> Mapping[str, TopicConfig]:
        """Every topic by name (read only)."""
        return self._topics

    def create_for_send(self, topic: str, default_topic: str, queues: int) -> TopicConfig | None:
        """Make a topic somebody sends to, after the pattern of ``default_topic``; None when that is not allowed.

        It gets ``queues`` queues, at most as many as the pattern has, and the pattern's permissions without the right
        to be a pattern itself.
        """
        pattern = self._topics.get(default_topic)
        if pattern is None or not pattern.perm & PermName.INHERIT:
            return None
        if default_topic == TBW102 and not self._options.auto_create_topic_enable:
            return None
        queues = max(0, min(queues, pattern.write_queue_nums))
        made = dataclasses.replace(
            pattern,
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=pattern.perm & ~PermName.INHERIT,
            order=False,
            attributes={},
        )
        self.put(made)
        return made

    def create_for_group(self, topic: str, queues: int, *, order: bool = False) -> TopicConfig:
        """The retry or dead-letter topic of a group, made now if it is not there."""
        known = self._topics.get(topic)
        if known is None:
            known = dataclasses.replace(_topic(topic, queues), order=order)
            self.put(known)
        return known

    def put(self, topic: TopicConfig) -> None:
        """Add or replace a topic; raises StoreError, and changes nothing, when that cannot be written down."""
        topics, version = self._topics, self.version
        self._topics = {**topics, topic.topic_name: topic}
        self.version = version.next(self._clock.time_ms())
        try:
            self._persist(self.encode())
        except OSError as error:  # a message of a topic that is forgotten by the next start would not be found
            self._topics, self.version = topics, version
            raise StoreError(
                f"topic {topic.topic_name} could not be written to topics.json ({error}); see that the disk of "
                f"{self._options.store_path_root_dir} has room and works, then try again"
            ) from error
        self._on_change(topic)

    def encode(self) -> str:
        """The text of ``topics.json``."""
        values = {
            "dataVersion": self.version.to_json(),
            "topicConfigTable": {name: topic.to_json() for name, topic in self._topics.items()},
        }
        return json.dumps(values, indent="\t", sort_keys=True)

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
                self._topics[name] = topic
        self.version = version
