"""Members of groups: who joined, whose topics changed, who is told, who is dropped."""

from __future__ import annotations

from rocketbox.broker.clients import ClientChannel, ConsumerGroup, ConsumerTable, ProducerTable
from rocketbox.message import ConsumeFromWhere, MessageModel
from rocketbox.protocol.tags import SubscriptionData, parse_subscription
from tests.support.clocks import VirtualClock


class Table:
    """A consumer table with a note of whom it told."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.told: list[list[str]] = []
        self.consumers: ConsumerTable[str] = ConsumerTable(self.clock, self._note)

    def _note(self, group: ConsumerGroup[str]) -> None:
        self.told.append(group.client_ids())

    def beat(self, client: str, *topics: str, model: MessageModel = MessageModel.CLUSTERING, version: int = 1) -> bool:
        subscriptions = [SubscriptionData(topic, "*", sub_version=version) for topic in topics or ("t",)]
        return self.register(client, subscriptions, model)

    def register(
        self, client: str, subscriptions: list[SubscriptionData] | None, model: MessageModel = MessageModel.CLUSTERING
    ) -> bool:
        return self.consumers.register(
            "g",
            f"connection of {client}",
            ClientChannel(client, 3, 479, self.clock.monotonic()),
            consume_type="CONSUME_PASSIVELY",
            message_model=model,
            consume_from_where=ConsumeFromWhere.LAST_OFFSET,
            subscriptions=subscriptions,
        )

    def topics(self) -> set[str]:
        group = self.consumers.group("g")
        return set() if group is None else set(group.subscriptions)


def test_each_new_member_is_told_of_with_all_others() -> None:
    table = Table()
    assert table.beat("a")
    assert table.beat("b")
    assert not table.beat("a")
    assert table.told == [["a"], ["a", "b"]]


def test_topics_that_come_or_go_are_a_change_and_newer_versions_are_not() -> None:
    table = Table()
    table.beat("a", "t")
    assert table.beat("a", "t", "u")
    assert table.topics() == {"t", "u"}
    assert table.beat("a", "u")
    assert table.topics() == {"u"}
    assert not table.register("a", [SubscriptionData("u", "A", sub_version=9)])
    group = table.consumers.group("g")
    assert group is not None
    assert group.subscriptions["u"].sub_string == "A"
    assert not table.register("a", [SubscriptionData("u", "B", sub_version=8)])
    assert group.subscriptions["u"].sub_string == "A"


def test_a_beat_without_subscriptions_keeps_them() -> None:
    table = Table()
    table.beat("a", "t")
    assert not table.register("a", None)
    assert table.topics() == {"t"}


def test_broadcasting_members_are_not_told() -> None:
    table = Table()
    assert table.beat("a", model=MessageModel.BROADCASTING)
    assert table.told == []


def test_those_who_stay_are_told_of_those_who_leave() -> None:
    table = Table()
    table.beat("a")
    table.beat("b")
    table.consumers.unregister("g", "somebody else", "connection of a")
    assert len(table.told) == 2
    table.consumers.unregister("g", "a", "connection of a")
    assert table.told[2:] == [["b"]]
    table.consumers.on_close("connection of b")
    assert table.told[3:] == []
    assert table.consumers.group("g") is None


def test_a_closed_connection_leaves_all_its_groups() -> None:
    table = Table()
    table.beat("a")
    table.beat("b")
    table.consumers.on_close("connection of a")
    assert table.told[-1] == ["b"]


def test_silent_members_are_dropped_after_120_seconds() -> None:
    table = Table()
    assert table.consumers.first_expiry() == 120, "of one that comes now"
    table.beat("a")
    table.clock.now = 60
    table.beat("b")
    assert table.consumers.first_expiry() == 120
    table.clock.now = 120
    assert table.consumers.expire() == []
    table.clock.now = 120.1
    assert table.consumers.expire() == ["connection of a"]
    assert table.told[-1] == ["b"]


def test_producers_come_and_go() -> None:
    clock = VirtualClock()
    producers: ProducerTable[str] = ProducerTable(clock)
    producers.register("p", "one", ClientChannel("a", 3, 479, 0.0))
    producers.register("p", "two", ClientChannel("b", 3, 479, 50.0))
    producers.unregister("p", "b", "one")
    assert set(producers.channels("p")) == {"one", "two"}
    clock.now = 121
    assert producers.first_expiry() == 120
    assert producers.expire() == ["one"]
    assert producers.first_expiry() == 170
    producers.on_close("two")
    assert producers.channels("p") == {}


def test_a_subscription_keeps_the_hashes_of_its_tags() -> None:
    table = Table()
    table.register("a", [parse_subscription("t", "A || B")])
    group = table.consumers.group("g")
    assert group is not None
    assert set(group.subscriptions["t"].code_set) == {65, 66}
