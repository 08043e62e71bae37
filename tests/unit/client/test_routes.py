"""From route data to queues and addresses."""

from __future__ import annotations

from rocketbox.client.routes import broker_table, default_route, make_route, same_route_data
from rocketbox.message import MessageQueue
from rocketbox.protocol.bodies import BrokerData, QueueData, TopicRouteData


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


def test_newest_route_decides_about_an_address() -> None:
    old = make_route("A", data([broker("a", {0: "old:1"}), broker("b")], [queues("a")]))
    new = make_route("B", data([broker("a", {0: "new:1"})], [queues("a")]))
    assert broker_table({"A": old, "B": new}, newest=new) == {"a": {0: "new:1"}, "b": {0: "b:10911"}}
    assert broker_table({"B": new, "A": old}, newest=new)["a"] == {0: "new:1"}
