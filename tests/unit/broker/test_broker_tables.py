"""Topics, groups and offsets: the rules by which they come into being, and their texts on disk, Apache's included."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketbox.broker.groups import GroupTable
from rocketbox.broker.offsets import OffsetTable
from rocketbox.broker.options import BrokerOptions
from rocketbox.broker.topics import TopicTable
from rocketbox.errors import StoreCorruptError
from rocketbox.protocol.group_config import SubscriptionGroupConfig
from rocketbox.protocol.registration_bodies import TopicConfig
from tests.support.broker.table_tools import saved, table_file, text_of
from tests.support.clocks import VirtualClock


class Topics:
    """A table of topics with notes of what it wrote and told."""

    def __init__(self, options: BrokerOptions | None = None) -> None:
        self.file = table_file()
        self.changed: list[TopicConfig] = []
        self.table = TopicTable(
            options or BrokerOptions(store_path_root_dir=Path("store")),
            VirtualClock(),
            self.file,
            self.changed.append,
        )


def test_a_broker_has_apaches_own_topics() -> None:
    topics = Topics().table
    expected = {
        "TBW102": (8, 7), "BenchmarkTest": (1024, 6), "SELF_TEST_TOPIC": (1, 6), "DefaultCluster": (16, 7),
        "broker-a": (1, 7), "OFFSET_MOVED_EVENT": (1, 6), "SCHEDULE_TOPIC_XXXX": (18, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 6), "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
    }  # fmt: skip
    for name, (queues, perm) in expected.items():
        topic = topics.get(name)
        assert topic is not None, name
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (queues, queues, perm)
    assert topics.get("RMQ_SYS_TRACE_TOPIC") is None


def test_settings_decide_about_those_topics() -> None:
    options = BrokerOptions(
        store_path_root_dir=Path("store"),
        auto_create_topic_enable=False,
        trace_topic_enable=True,
        cluster_topic_enable=False,
        broker_topic_enable=False,
        broker_cluster_name="C",
        broker_name="b",
    )
    topics = Topics(options).table
    assert topics.get("TBW102") is None
    assert topics.get("RMQ_SYS_TRACE_TOPIC") is not None
    for name in ("C", "b"):
        topic = topics.get(name)
        assert topic is not None
        assert topic.perm == 1


def test_a_topic_made_by_sending_follows_its_pattern() -> None:
    topics = Topics()
    version = topics.table.version
    made = topics.table.create_for_send("t", "TBW102", 4)
    assert made == TopicConfig("t", 4, 4, 6)
    assert topics.table.get("t") == made
    assert topics.changed == [made]
    assert saved(topics.table)["topicConfigTable"]["t"]["writeQueueNums"] == 4
    assert topics.table.version.counter == version.counter + 1
    assert topics.table.create_for_send("u", "TBW102", 100) == TopicConfig("u", 8, 8, 6)
    assert topics.table.create_for_send("v", "BenchmarkTest", 4) is None
    assert topics.table.create_for_send("v", "missing", 4) is None


def test_a_groups_topic_is_made_once() -> None:
    topics = Topics()
    first = topics.table.create_for_group("%RETRY%g", 1)
    assert topics.table.create_for_group("%RETRY%g", 5) is first
    assert len(topics.changed) == 1


def test_topics_survive_as_text() -> None:
    first, second = Topics(), Topics()
    first.table.create_for_send("t", "TBW102", 3)
    second.table.load(text_of(first.table))
    assert second.table.get("t") == TopicConfig("t", 3, 3, 6)
    assert second.table.version == first.table.version


def test_topics_of_an_old_apache_broker_are_read() -> None:
    text = """{"dataVersion":{"counter":3,"timestamp":1700000000000},
     "topicConfigTable":{"T":{"order":true,"perm":4,"readQueueNums":2,"topicFilterType":"MULTI_TAG","topicName":"T",
      "topicSysFlag":0,"writeQueueNums":1},"TBW102":{"perm":7,"readQueueNums":99,"topicName":"TBW102",
      "writeQueueNums":99}}}"""
    topics = Topics().table
    topics.load(text)
    assert topics.get("T") == TopicConfig("T", 2, 1, 4, "MULTI_TAG", order=True)
    pattern = topics.get("TBW102")
    assert pattern is not None
    assert pattern.write_queue_nums == 8  # by the settings, not by the file
    assert topics.version.counter == 3


def test_a_topic_made_by_hand_keeps_what_apache_wrote() -> None:
    topics = Topics()
    topics.table.load('{"topicConfigTable":{"T":{"attributes":{"message.type":"FIFO"},"perm":6}}}')
    topics.table.create_for_send("t", "TBW102", 3)
    assert saved(topics.table)["topicConfigTable"]["T"]["attributes"] == {"message.type": "FIFO"}


@pytest.mark.parametrize("text", ["[]", '{"topicConfigTable":[1]}', '{"topicConfigTable":{"T":{"perm":"x"}}}', "{"])
def test_what_is_no_table_of_topics_is_refused(text: str) -> None:
    with pytest.raises(StoreCorruptError, match=r"topics\.json"):
        Topics().table.load(text)


def test_groups_are_made_when_somebody_asks() -> None:
    file = table_file()
    groups = GroupTable(VirtualClock(), file)
    assert groups.find("g") == SubscriptionGroupConfig("g")
    assert file.marked == 1
    groups.find("g")
    assert file.marked == 1
    assert groups.find("not legal") is None
    assert groups.find("") is None
    assert groups.find("x" * 121) is None
    assert groups.find("x" * 120) is not None
    assert groups.find("TOOLS_CONSUMER") is not None


def test_groups_are_not_made_when_that_is_switched_off() -> None:
    groups = GroupTable(VirtualClock(), table_file(), auto_create=False)
    assert groups.find("g") is None
    groups.put(SubscriptionGroupConfig("g", retry_max_times=3))
    found = groups.find("g")
    assert found is not None
    assert found.retry_max_times == 3


def test_groups_survive_as_text_with_what_we_do_not_use() -> None:
    groups = GroupTable(VirtualClock(), table_file())
    groups.load(
        """{"dataVersion":{"counter":7,"stateVersion":0,"timestamp":1},"forbiddenTable":{"g":{"t":4}},
        "subscriptionGroupTable":{"g":{"groupName":"g","retryMaxTimes":2,"consumeEnable":false,"brokerId":5,
        "groupRetryPolicy":{"type":"EXPONENTIAL"},"attributes":{"a":"b"}}}}"""
    )
    group = groups.find("g")
    assert group is not None
    assert (group.retry_max_times, group.consume_enable, group.retry_queue_nums) == (2, False, 1)
    groups.put(group)
    written = saved(groups)
    assert written["forbiddenTable"] == {"g": {"t": 4}}
    assert written["subscriptionGroupTable"]["g"]["groupRetryPolicy"] == {"type": "EXPONENTIAL"}
    assert written["subscriptionGroupTable"]["g"]["brokerId"] == 5
    assert written["dataVersion"]["counter"] == 8


def test_offsets_are_kept_by_group_topic_and_queue() -> None:
    file = table_file()
    offsets = OffsetTable(VirtualClock(), file)
    assert offsets.get("g", "t", 0) is None
    offsets.commit("g", "t", 0, 12)
    offsets.commit("g", "t", 1, 10)
    offsets.commit("h", "t", 0, 3)
    offsets.commit("g", "%RETRY%g", 0, 0)
    assert offsets.get("g", "t", 0) == 12
    assert file.marked == 4
    written = saved(offsets)
    assert written["offsetTable"] == {"t@g": {"0": 12, "1": 10}, "t@h": {"0": 3}, "%RETRY%g@g": {"0": 0}}
    assert written["groupTopicMap"] == {"g": ["t", "%RETRY%g"], "h": ["t"]}


def test_offsets_of_an_apache_broker_are_read() -> None:
    offsets = OffsetTable(VirtualClock(), table_file())
    offsets.load('{"offsetTable":{"t@g":{0:12,1:10}},"pullOffsetTable":{"t@g":{0:13}}}')
    assert offsets.get("g", "t", 1) == 10
    assert saved(offsets)["pullOffsetTable"] == {"t@g": {"0": 13}}
    with pytest.raises(StoreCorruptError):
        offsets.load('{"offsetTable":{"t@g":{"a":1}}}')
