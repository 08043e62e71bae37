"""From route data to queues and addresses."""

from __future__ import annotations

import pytest

from rocketbox.client.route_table import RouteTable
from rocketbox.client.routes import default_route, make_route, same_route_data
from rocketbox.errors import RemoteProtocolError
from rocketbox.message import MessageQueue
from rocketbox.protocol.bodies import (
    BrokerData,
    QueueData,
    TopicRouteData,
    decode_topic_route,
    encode_topic_route,
)

FORGED = "\n2026-11-23 00:00:00,000 ERROR rocketbox: forged"


def broker(name: str, addresses: dict[int, str] | None = None) -> BrokerData:
    return BrokerData(cluster="c", broker_name=name, broker_addrs=addresses or {0: f"{name}:10911"})


def queues(name: str, *, read: int = 2, write: int = 2, perm: int = 6) -> QueueData:
    return QueueData(broker_name=name, read_queue_nums=read, write_queue_nums=write, perm=perm)


def data(brokers: list[BrokerData], queue_datas: list[QueueData], order: str | None = None) -> TopicRouteData:
    return TopicRouteData(queue_datas=tuple(queue_datas), broker_datas=tuple(brokers), order_topic_conf=order)


def test_queues_are_sorted_by_broker_and_counted_by_kind() -> None:
    route = make_route("T", data([broker("b"), broker("a")], [queues("b", read=3, write=1), queues("a")]))
    assert route.publish_queues == (MessageQueue("T", "a", 0), MessageQueue("T", "a", 1), MessageQueue("T", "b", 0))
    assert [queue.queue_id for queue in route.subscribe_queues] == [0, 1, 0, 1, 2]
    assert route.broker_names == ["a", "b"]


def test_permissions_are_honoured() -> None:
    route = make_route("T", data([broker("a"), broker("b")], [queues("a", perm=4), queues("b", perm=2)]))
    assert {queue.broker_name for queue in route.publish_queues} == {"b"}
    assert {queue.broker_name for queue in route.subscribe_queues} == {"a"}


def test_broker_without_master_is_read_but_not_written() -> None:
    route = make_route("T", data([broker("a", {1: "a:10921"})], [queues("a")]))
    assert route.publish_queues == ()
    assert len(route.subscribe_queues) == 2


def test_queues_of_a_broker_that_is_not_listed_are_not_written() -> None:
    assert make_route("T", data([broker("a")], [queues("gone")])).publish_queues == ()


def test_order_configuration_decides_the_publish_queues() -> None:
    route = make_route("T", data([broker("a"), broker("b")], [queues("a"), queues("b")], order="b:1;a:2"))
    assert route.ordered
    assert route.publish_queues == (MessageQueue("T", "b", 0), MessageQueue("T", "a", 0), MessageQueue("T", "a", 1))


def test_default_route_takes_at_most_as_many_queues_as_asked() -> None:
    template = make_route("TBW102", data([broker("a"), broker("b")], [queues("a", read=8, write=8), queues("b")]))
    route = default_route("T", template, 4)
    assert [(queue.topic, queue.broker_name) for queue in route.publish_queues] == [("T", "a")] * 4 + [("T", "b")] * 2


def test_order_of_a_route_does_not_matter() -> None:
    one = data([broker("a"), broker("b")], [queues("a"), queues("b")])
    assert same_route_data(one, data([broker("b"), broker("a")], [queues("b"), queues("a")]))
    assert not same_route_data(one, data([broker("a"), broker("b")], [queues("a"), queues("b", perm=4)]))


def at(name: str, address: str) -> TopicRouteData:
    return data([broker(name, {0: address})], [queues(name)])


def test_answer_that_was_asked_for_earlier_does_not_bring_an_old_address_back() -> None:
    table = RouteTable()
    assert table.confirm("T", at("a", "new:1"), asked_at=2.0)
    assert table.confirm("U", at("a", "old:1"), asked_at=1.0)
    assert table.brokers == {"a": {0: "new:1"}}


def test_version_of_a_topic_changes_with_its_route_and_with_the_addresses_of_its_brokers() -> None:
    table = RouteTable()
    assert table.version("T") == 0
    table.confirm("T", at("a", "a:1"), asked_at=1.0)
    table.confirm("U", at("a", "a:1"), asked_at=1.0)
    table.confirm("V", at("b", "b:1"), asked_at=1.0)
    before = [table.version(topic) for topic in "TUV"]
    assert not table.confirm("T", at("a", "a:1"), asked_at=2.0)
    assert [table.version(topic) for topic in "TUV"] == before
    table.confirm("T", at("a", "a:2"), asked_at=3.0)
    after = [table.version(topic) for topic in "TUV"]
    assert [old != new for old, new in zip(before, after, strict=True)] == [True, True, False]


def test_last_route_that_names_a_broker_stays_while_the_brokers_are_wanted() -> None:
    table = RouteTable()
    for topic, name in (("T", "a"), ("U", "a"), ("V", "b")):
        table.confirm(topic, at(name, f"{name}:1"), asked_at=1.0)
    table.use("U", 5.0)
    assert table.forget_unused((), 700.0, keep_brokers=True) == ["T"]
    assert sorted(table.brokers) == ["a", "b"]
    assert sorted(table.forget_unused((), 701.0, keep_brokers=False)) == ["U", "V"]
    assert table.brokers == {}
    assert table.version("U") == 0


@pytest.mark.parametrize(
    ("brokers", "queue_datas", "order", "what"),
    [
        ([broker("a")], [queues("a", write=1 << 40)], None, "1099511627776 queues"),
        ([broker("a")], [queues("a", read=1 << 40)], None, "1099511627776 queues"),
        ([broker("a")], [queues(f"a{number}", read=16_385) for number in range(4)], None, "65540 queues"),
        ([broker("a")], [queues("a", read=-1)], None, "-1 queues"),
        ([broker("a")], [queues("a")], "a:999999999", "999999999 queues"),
        ([broker("a", {n: f"10.0.0.1:{n}" for n in range(10_001)})], [queues("a")], None, "10001 machines"),
        ([broker("a", {0: f"10.0.0.1:1{FORGED}"})], [queues("a")], None, "cannot be printed"),
        ([broker(f"a{FORGED}")], [queues("a")], None, "cannot be printed"),
        ([broker("a")], [queues(f"a{FORGED}")], None, "cannot be printed"),
        ([broker("a", {0: "10.0.0.1\x1b[2J:1"})], [queues("a")], None, "cannot be printed"),
        ([broker("a", {0: "10.0.0.1\x9b2J:1"})], [queues("a")], None, "cannot be printed"),
        ([broker("a\x00")], [queues("a")], None, "cannot be printed"),
        ([broker("a")], [queues("a\x7f")], None, "cannot be printed"),
        ([broker("a" * 1001)], [queues("a")], None, "more than 1000 characters"),
    ],
)
def test_a_route_that_no_cluster_has_is_none(
    brokers: list[BrokerData], queue_datas: list[QueueData], order: str | None, what: str
) -> None:
    """A name server that is somebody else's neither fills the memory of its clients nor writes their log."""
    with pytest.raises(RemoteProtocolError, match=what) as caught:
        decode_topic_route(encode_topic_route(data(brokers, queue_datas, order)))
    assert str(caught.value).isprintable()


def test_a_route_that_would_be_read_for_seconds_is_none() -> None:
    """In the loop, which stands still meanwhile: keys without quotes, as Java writes numbers, are slow to read."""
    body = b"{" + b",".join(b"%d:1" % number for number in range(250_000)) + b"}"
    with pytest.raises(RemoteProtocolError, match="and 2097152 is the most"):
        decode_topic_route(body)


def test_an_ordered_topic_of_many_brokers_is_read() -> None:
    order = ";".join(["a:4", " ", "b: 2 ", "c:\u00b2", "d:x", "e", ":3", "f:9999999999"])
    names = [broker(name) for name in "ab"]
    route = make_route("T", decode_topic_route(encode_topic_route(data(names, [queues("a")], order))))
    assert [(queue.broker_name, queue.queue_id) for queue in route.publish_queues] == [
        *(("a", number) for number in range(4)), ("b", 0), ("b", 1),
    ]  # fmt: skip
