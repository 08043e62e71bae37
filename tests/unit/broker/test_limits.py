"""What peers can make a broker's tables hold: how much, and what they are told beyond that."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketbox.broker.clients import ClientChannel, ConsumerTable, ProducerTable
from rocketbox.broker.groups import GroupTable
from rocketbox.broker.limits import MOST_ADDRESSES, LimitError, NameBudget
from rocketbox.broker.locks import QueueLocks
from rocketbox.broker.offsets import OffsetTable
from rocketbox.broker.options import BrokerOptions
from rocketbox.broker.topics import TopicTable
from rocketbox.message import ConsumeFromWhere, MessageModel, MessageQueue
from rocketbox.protocol.codes import ResponseCode
from rocketbox.protocol.group_config import SubscriptionGroupConfig
from rocketbox.protocol.registration_bodies import TopicConfig
from rocketbox.protocol.tags import SubscriptionData
from tests.support.broker.table_tools import saved, table_file
from tests.support.clocks import VirtualClock


def topic_table(clock: VirtualClock | None = None, names: NameBudget | None = None, **limits: int) -> TopicTable:
    options = BrokerOptions(store_path_root_dir=Path("store"), **limits)  # type: ignore[arg-type]
    return TopicTable(options, clock or VirtualClock(), table_file(), lambda topic: None, names=names)


def test_one_topic_too_many_is_refused_and_the_others_go_on() -> None:
    there = len(topic_table().all())
    topics = topic_table(max_topics=there + 2)
    topics.create_for_send("a", "TBW102", 4)
    topics.create_for_group("%RETRY%g", 1)
    with pytest.raises(LimitError, match=rf"there are {there + 2}; {there + 2} is the most \(max-topics\)"):
        topics.create_for_send("b", "TBW102", 4)
    assert topics.get("b") is None
    assert topics.refused == 1
    assert topics.create_for_group("%RETRY%g", 1).topic_name == "%RETRY%g"
    topics.put(TopicConfig("a", 2, 2))
    topics.delete("a")
    topics.put(TopicConfig("b"))


def test_queues_are_limited_for_each_topic_and_in_all() -> None:
    there = topic_table().queues
    topics = topic_table(max_queues_per_topic=16, max_queues=there + 20)
    with pytest.raises(LimitError, match=r"17 queues; 16 is the most \(max-queues-per-topic\)"):
        topics.put(TopicConfig("t", 4, 17))
    topics.put(TopicConfig("t", 4, 16))
    with pytest.raises(LimitError, match=rf"{there + 24} queues; {there + 20} is the most \(max-queues\)"):
        topics.put(TopicConfig("u", 8, 8))
    topics.put(TopicConfig("t", 4, 8))
    topics.put(TopicConfig("u", 8, 8))
    assert topics.queues == there + 16
    topics.delete("u")
    assert topics.queues == there + 8


def test_what_is_in_the_file_is_beyond_no_limit() -> None:
    topics = topic_table(max_topics=1, max_queues=1, max_queues_per_topic=1)
    topics.load('{"topicConfigTable":{"T":{"readQueueNums":2000,"writeQueueNums":2000,"perm":6}}}')
    known = topics.get("T")
    assert known is not None
    topics.put(TopicConfig("T", 1999, 1999))


@pytest.mark.parametrize("queues", [0, -1, -(2**31)])
def test_a_topic_made_by_sending_has_at_least_one_queue(queues: int) -> None:
    made = topic_table().create_for_send("t", "TBW102", queues)
    assert made is not None
    assert (made.read_queue_nums, made.write_queue_nums) == (1, 1)
    assert topic_table().create_for_group("%RETRY%g", queues).write_queue_nums == 1


def test_a_topic_without_queues_in_the_file_has_one() -> None:
    topics = topic_table()
    topics.load('{"topicConfigTable":{"T":{"readQueueNums":0,"writeQueueNums":0,"perm":6}}}')
    known = topics.get("T")
    assert known is not None
    assert (known.read_queue_nums, known.write_queue_nums) == (1, 1)
    assert saved(topics)["topicConfigTable"]["T"]["readQueueNums"] == 1


def test_one_group_too_many_is_refused_and_the_others_go_on() -> None:
    there = len(GroupTable(VirtualClock(), table_file()).all())
    groups = GroupTable(VirtualClock(), table_file(), most=there + 1)
    groups.find("g")
    with pytest.raises(LimitError, match=rf"{there + 1} is the most \(max-groups\)") as refused:
        groups.find("h", "10.0.0.1:5")
    assert refused.value.code == ResponseCode.NO_PERMISSION
    assert groups.get("h") is None
    assert groups.refused == 1
    assert groups.find("g") is not None
    groups.put(SubscriptionGroupConfig("g", retry_max_times=1))
    groups.delete("g")
    assert groups.find("h") is not None


def test_one_offset_too_many_is_refused_and_the_others_go_on() -> None:
    offsets = OffsetTable(VirtualClock(), table_file(), most=2)
    offsets.commit("g", "t", 0, 1)
    offsets.commit("g", "t", -7, 2**63 - 1)
    for queue_id, group in ((2, "g"), (0, "h")):
        with pytest.raises(LimitError, match=r"2 is the most \(max-offsets\)"):
            offsets.commit(group, "t", queue_id, 1)
    offsets.commit("g", "t", 0, 5)
    assert (offsets.get("g", "t", 0), len(offsets), offsets.refused) == (5, 2, 2)
    offsets.delete_topic("t")
    assert len(offsets) == 0
    offsets.commit("h", "u", 0, 1)
    assert saved(offsets)["groupTopicMap"] == {"h": ["u"]}


def test_one_address_makes_a_part_of_the_offsets_and_others_find_room() -> None:
    offsets = OffsetTable(VirtualClock(), table_file(), most=4, most_for_each_address=2)
    offsets.commit("g", "t", 0, 1, "10.0.0.1:5")
    offsets.commit("g", "u", 0, 1, "10.0.0.1:6")
    with pytest.raises(LimitError, match=r"^2 of .* kept .* at 10\.0\.0\.1; 2 is the most \(max-offsets-per-address\)"):
        offsets.commit("g", "t", 1, 1, "10.0.0.1:7")
    offsets.commit("g", "t", 1, 1, "10.0.0.2:5")
    offsets.commit("g", "t", 1, 2, "10.0.0.1:7")
    offsets.delete_topic("t")
    offsets.commit("g", "v", 0, 1, "10.0.0.1:7")
    offsets.commit("g", "v", 1, 1, "10.0.0.2:7")
    offsets.commit("g", "v", 2, 1, "10.0.0.2:8")
    offsets.delete_group("g")
    assert len(offsets) == 0
    assert offsets.addresses == 0


def test_one_connection_leaves_room_for_offsets_that_others_of_its_address_make() -> None:
    offsets = OffsetTable(VirtualClock(), table_file(), most=100, most_for_each_address=8)
    for queue_id in range(4):
        offsets.commit("g", "t", queue_id, 1, "127.0.0.1:1")
    with pytest.raises(LimitError, match=r"^4 of .* connection of 127\.0\.0\.1:1, half .* \(max-offsets-per-address\)"):
        offsets.commit("g", "t", 4, 1, "127.0.0.1:1")
    offsets.commit("g", "t", 0, 2, "127.0.0.1:1")
    for queue_id in range(2):
        offsets.commit("h", "t", queue_id, 1, "127.0.0.1:2")
    with pytest.raises(LimitError, match="2 is the most"):
        offsets.commit("h", "t", 2, 1, "127.0.0.1:2")
    offsets.delete_group("g")
    offsets.commit("h", "t", 2, 1, "127.0.0.1:2")
    offsets.delete_topic("t")
    assert (len(offsets), offsets.addresses) == (0, 0)


def test_one_connection_leaves_names_for_others_of_its_address() -> None:
    clock = VirtualClock()
    names = NameBudget(60, 10, clock)
    for _ in range(5):
        names.take("127.0.0.1:1")
    with pytest.raises(LimitError, match=r"127\.0\.0\.1:1 .*30 is the most \(auto-create-names-per-minute\)"):
        names.take("127.0.0.1:1")
    for _ in range(5):
        names.take("127.0.0.1:2")
    with pytest.raises(LimitError, match=r"127\.0\.0\.1 .*60 is the most"):
        names.take("127.0.0.1:3")
    clock.now += 2
    names.take("127.0.0.1:1")
    with pytest.raises(LimitError):
        names.take("127.0.0.1:1")
    names.take("127.0.0.1:3")


def test_an_address_has_a_burst_of_names_and_then_so_many_a_minute() -> None:
    clock = VirtualClock()
    names = NameBudget(60, 10, clock)
    groups = GroupTable(clock, table_file(), names=names)
    for number in range(10):
        groups.find(f"g{number}", f"10.0.0.1:{1233 + number % 2}")
    with pytest.raises(LimitError, match=r"10\.0\.0\.1 .*60 is the most \(auto-create-names-per-minute\)") as refused:
        groups.find("one-more", "10.0.0.1:1235")
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    assert groups.find("g3", "10.0.0.1:1234") is not None  # it is there
    assert groups.find("h", "10.0.0.2:1234") is not None
    assert groups.find("of-the-broker-itself") is not None
    clock.now += 1
    assert groups.find("one-more", "10.0.0.1:1236") is not None
    with pytest.raises(LimitError):
        groups.find("two-more", "10.0.0.1:1234")
    assert names.refused == 2


def test_topics_and_groups_come_from_one_budget() -> None:
    clock = VirtualClock()
    names = NameBudget(60, 2, clock)
    topics = topic_table(clock, names)
    GroupTable(clock, table_file(), names=names).find("g", "[::1]:5")
    topics.create_for_group("%RETRY%g", 1, by="[::1]:6")
    with pytest.raises(LimitError):
        topics.create_for_send("t", "TBW102", 1, "[::1]:5")
    assert topics.get("t") is None
    assert topics.create_for_send("t", "TBW102", 1, "[::2]:5") is not None


def test_addresses_are_forgotten_when_there_are_too_many() -> None:
    names = NameBudget(1, 1, VirtualClock())
    for number in range(MOST_ADDRESSES + 100):
        names.take(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}:1")
    assert len(names) == MOST_ADDRESSES


# --- clients and locks ---


class Consumers:
    def __init__(self, **limits: int) -> None:
        self.clock = VirtualClock()
        self.table: ConsumerTable[str] = ConsumerTable(self.clock, lambda group: None, **limits)

    def beat(self, group: str, connection: str, subscriptions: int = 1) -> None:
        self.table.register(
            group,
            connection,
            ClientChannel("client", 3, 479, self.clock.monotonic()),
            consume_type="CONSUME_PASSIVELY",
            message_model=MessageModel.CLUSTERING,
            consume_from_where=ConsumeFromWhere.LAST_OFFSET,
            subscriptions=[SubscriptionData(f"t{number}", "*") for number in range(subscriptions)],
        )


def test_a_connection_is_in_so_many_groups_and_no_more() -> None:
    consumers = Consumers(most_groups=2)
    consumers.beat("a", "one")
    consumers.beat("b", "one")
    with pytest.raises(LimitError, match=r"in 2 consumer groups; 2 is the most \(max-groups-per-connection\)"):
        consumers.beat("c", "one")
    assert consumers.table.group("c") is None
    consumers.beat("a", "one")
    consumers.beat("c", "another")
    consumers.table.unregister("a", "client", "one")
    consumers.beat("c", "one")


def test_a_group_has_so_many_subscriptions_and_no_more() -> None:
    consumers = Consumers(most_subscriptions=3)
    consumers.beat("g", "one", 3)
    with pytest.raises(LimitError, match=r"4 subscriptions; 3 is the most \(max-subscriptions-per-group\)"):
        consumers.beat("g", "one", 4)
    group = consumers.table.group("g")
    assert group is not None
    assert len(group.subscriptions) == 3


def test_subscriptions_of_all_groups_have_so_many_bytes_and_no_more() -> None:
    consumers = Consumers(most_subscription_bytes=64_000)
    consumers.beat("first", "one", 2)
    bytes_of_one = consumers.table.subscription_bytes
    assert 200 < bytes_of_one < 1_000
    with pytest.raises(
        LimitError, match=r"subscriptions of group large have \d+ bytes; 1000 is the most \(a 64th of max-subscr"
    ):
        consumers.beat("large", "one", 20)
    number = 0
    while consumers.table.subscription_bytes + bytes_of_one <= 64_000:
        consumers.beat(f"group{number}", "one", 2)
        number += 1
    assert number >= 60_000 // bytes_of_one
    with pytest.raises(LimitError, match=r"groups have \d+ bytes; 64000 is the most \(max-subscription-bytes\)"):
        consumers.beat(f"group{number}", "one", 3)
    consumers.beat("first", "one", 1)
    assert consumers.table.group(f"group{number}") is None
    assert consumers.table.subscription_bytes <= 64_000
    consumers.table.on_close("one")
    assert consumers.table.subscription_bytes == 0


def test_producer_groups_are_limited_for_each_connection_and_in_all() -> None:
    clock = VirtualClock()
    producers: ProducerTable[str] = ProducerTable(clock, most=3, most_groups=2)
    channel = ClientChannel("client", 3, 479, clock.monotonic())
    producers.register("a", "one", channel)
    producers.register("b", "one", channel)
    with pytest.raises(LimitError, match=r"in 2 producer groups; 2 is the most"):
        producers.register("c", "one", channel)
    producers.register("c", "another", channel)
    with pytest.raises(LimitError, match=r"3 is the most \(max-groups\)"):
        producers.register("d", "another", channel)
    assert producers.channels("d") == {}
    producers.on_close("one")
    producers.register("d", "another", channel)


class Connection:
    """Counts how often it is looked for."""

    looked_for = 0

    def __hash__(self) -> int:
        Connection.looked_for += 1
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def test_closing_a_connection_costs_what_it_had() -> None:
    clock = VirtualClock()
    consumers: ConsumerTable[Connection] = ConsumerTable(clock, lambda group: None)
    producers: ProducerTable[Connection] = ProducerTable(clock)
    channel = ClientChannel("client", 3, 479, 0.0)
    connections = [Connection() for _ in range(20)]
    for connection in connections:
        for number in range(200):
            producers.register(f"{id(connection)}-{number}", connection, channel)
            consumers.register(
                f"{id(connection)}-{number}",
                connection,
                channel,
                consume_type="",
                message_model=None,
                consume_from_where=None,
                subscriptions=None,
            )
    Connection.looked_for = 0
    late = Connection()
    producers.register("late", late, channel)
    consumers.on_close(late)
    producers.on_close(late)
    assert Connection.looked_for < 50
    Connection.looked_for = 0
    consumers.expire()
    producers.expire()
    assert Connection.looked_for < 50
    clock.now = 121
    assert set(consumers.expire()) == set(connections)
    assert set(producers.expire()) == set(connections)
    assert len(consumers.memberships) == len(producers.memberships) == 0


def test_locks_are_limited() -> None:
    clock = VirtualClock()
    locks = QueueLocks(clock, most=2)
    queues = [MessageQueue("t", "b", number) for number in range(3)]
    locks.lock("g", "a", queues[:2])
    with pytest.raises(LimitError, match=r"2 queues are locked; 2 is the most \(max-locked-queues\)"):
        locks.lock("h", "a", queues)
    assert locks.lock("g", "a", queues[:2]) == queues[:2]
    locks.unlock("g", "a", queues[:1])
    assert locks.lock("h", "a", queues[:1]) == queues[:1]
    assert (len(locks), locks.refused) == (2, 1)
    clock.now = 61
    locks.expire()
    assert len(locks) == 0
