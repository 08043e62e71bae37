"""The name server's tables: registration, routes, slaves, silence, closed connections."""

from __future__ import annotations

import pytest

from rocketbox.nameserver.route_info import RegisterResult, RouteInfoManager
from rocketbox.protocol.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigSerializeWrapper
from rocketbox.protocol.headers import RegisterBrokerRequestHeader, UnregisterBrokerRequestHeader
from tests.clocks import VirtualClock


def header(
    name: str = "a", address: str = "10.0.0.1:10911", broker_id: int = 0, expiry: int | None = None
) -> RegisterBrokerRequestHeader:
    return RegisterBrokerRequestHeader(
        broker_name=name,
        broker_addr=address,
        cluster_name="C",
        ha_server_addr=address.replace("10911", "10912"),
        broker_id=broker_id,
        heartbeat_timeout_millis=expiry,
    )


def body(*topics: str, version: int = 1, queues: int = 4, state: int = 0) -> RegisterBrokerBody:
    table = {topic: TopicConfig(topic, queues, queues) for topic in topics}
    return RegisterBrokerBody(TopicConfigSerializeWrapper(table, DataVersion(state, 1, version)))


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def routes(clock: VirtualClock) -> RouteInfoManager:
    return RouteInfoManager(clock)


def queues_of(routes: RouteInfoManager, topic: str) -> dict[str, int]:
    route = routes.route(topic)
    return {} if route is None else {queues.broker_name: queues.write_queue_nums for queues in route.queue_datas}


def test_a_topic_has_the_queues_of_all_its_brokers(routes: RouteInfoManager) -> None:
    routes.register(header("a"), body("t", "u"), "connection a")
    routes.register(header("b", "10.0.0.2:10911"), body("t", "v", queues=2), "connection b")
    assert queues_of(routes, "t") == {"a": 4, "b": 2}
    assert queues_of(routes, "u") == {"a": 4}
    route = routes.route("t")
    assert route is not None
    assert [(broker.broker_name, dict(broker.broker_addrs)) for broker in route.broker_datas] == [
        ("a", {0: "10.0.0.1:10911"}),
        ("b", {0: "10.0.0.2:10911"}),
    ]
    assert routes.clusters() == {"C": {"a", "b"}}
    assert routes.route("missing") is None


def test_a_change_may_come_as_one_topic_and_keeps_the_others(routes: RouteInfoManager) -> None:
    routes.register(header(), body("t", "u"), "connection")
    routes.register(header(), body("new", version=2), "connection")
    assert {topic for topic in ("t", "u", "new") if routes.route(topic)} == {"t", "u", "new"}


def test_a_first_registration_of_one_topic_is_refused_and_leaves_nothing(routes: RouteInfoManager) -> None:
    assert routes.register(header(), body("t"), "connection") is None
    assert routes.route("t") is None
    assert routes.clusters() == {}


def test_the_same_version_changes_nothing(routes: RouteInfoManager) -> None:
    routes.register(header(), body("t", "u"), "connection")
    routes.register(header(), body("t", "u", queues=9), "connection")
    assert queues_of(routes, "t") == {"a": 4}
    routes.register(header(), body("t", "u", queues=9, version=2), "connection")
    assert queues_of(routes, "t") == {"a": 9}


def test_a_closed_connection_takes_its_broker_along(routes: RouteInfoManager) -> None:
    routes.register(header("a"), body("t", "u"), "connection a")
    routes.register(header("b", "10.0.0.2:10911"), body("t", "v"), "connection b")
    routes.on_close("connection a")
    assert queues_of(routes, "t") == {"b": 4}
    assert routes.route("u") is None
    assert routes.clusters() == {"C": {"b"}}


def test_a_connection_that_was_replaced_takes_nothing_along(routes: RouteInfoManager) -> None:
    routes.register(header(), body("t", "u"), "old")
    routes.register(header(), body("t", "u"), "new")
    routes.on_close("old")
    assert routes.route("t") is not None


def test_a_silent_broker_is_dropped_after_its_time(routes: RouteInfoManager, clock: VirtualClock) -> None:
    routes.register(header("a"), body("t", "u"), "connection a")
    routes.register(header("b", "10.0.0.2:10911", expiry=10_000), body("t", "v"), "connection b")
    clock.now = 10
    assert routes.expire() == []
    clock.now = 10.1
    assert routes.expire() == ["connection b"]
    assert queues_of(routes, "t") == {"a": 4}
    clock.now = 100
    routes.register(header("a"), body("t", "u"), "connection a")
    clock.now = 220
    assert routes.expire() == []
    clock.now = 220.1
    assert routes.expire() == ["connection a"]
    assert routes.route("t") is None


def test_a_broker_unregisters(routes: RouteInfoManager) -> None:
    routes.register(header(), body("t", "u"), "connection")
    routes.unregister(
        UnregisterBrokerRequestHeader(broker_name="a", broker_addr="10.0.0.1:10911", cluster_name="C", broker_id=0)
    )
    assert routes.route("t") is None
    assert routes.expire() == []


def test_a_slave_is_told_its_master_and_keeps_the_name_alive(routes: RouteInfoManager) -> None:
    routes.register(header(), body("t", "u"), "master")
    told = routes.register(header(address="10.0.0.9:10911", broker_id=1), body("t", "u"), "slave")
    assert told == RegisterResult("10.0.0.1:10911", "10.0.0.1:10912")
    route = routes.route("t")
    assert route is not None
    assert dict(route.broker_datas[0].broker_addrs) == {0: "10.0.0.1:10911", 1: "10.0.0.9:10911"}
    routes.on_close("master")
    route = routes.route("t")
    assert route is not None
    assert dict(route.broker_datas[0].broker_addrs) == {1: "10.0.0.9:10911"}


def test_a_slave_that_becomes_master_is_listed_once(routes: RouteInfoManager) -> None:
    routes.register(header(broker_id=1), body("t", "u"), "connection")
    routes.register(header(broker_id=0), body("t", "u"), "connection")
    route = routes.route("t")
    assert route is not None
    assert dict(route.broker_datas[0].broker_addrs) == {0: "10.0.0.1:10911"}


def test_an_older_broker_does_not_push_a_newer_one_out(routes: RouteInfoManager) -> None:
    routes.register(header(address="10.0.0.1:10911"), body("t", "u", state=5), "new")
    routes.register(header(address="10.0.0.2:10911"), body("t", "u", state=4), "old")
    route = routes.route("t")
    assert route is not None
    assert dict(route.broker_datas[0].broker_addrs) == {0: "10.0.0.1:10911"}
