"""The name server's tables: registration, routes, slaves, silence, closed connections."""

from __future__ import annotations

import dataclasses
from math import inf

import pytest

from rocketbox.nameserver.route_info import (
    RegisterResult,
    RegistrationRefusedError,
    RouteInfoManager,
    RouteLimits,
)
from rocketbox.protocol.admin_bodies import decode_cluster_info, encode_cluster_info
from rocketbox.protocol.headers import RegisterBrokerRequestHeader, UnregisterBrokerRequestHeader
from rocketbox.protocol.registration_bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from tests.support.clocks import VirtualClock


def header(
    name: str = "a",
    address: str = "10.0.0.1:10911",
    broker_id: int = 0,
    expiry: int | None = None,
    cluster: str = "C",
) -> RegisterBrokerRequestHeader:
    return RegisterBrokerRequestHeader(
        broker_name=name,
        broker_addr=address,
        cluster_name=cluster,
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


def test_a_connection_that_was_replaced_takes_nothing_along(clock: VirtualClock) -> None:
    routes = RouteInfoManager(clock, may_take_over=lambda holder, newcomer: (holder, newcomer) == ("old", "new"))
    routes.register(header(), body("t", "u"), "old")
    routes.register(header(), body("t", "u"), "new")
    routes.on_close("old")
    assert routes.route("t") is not None


def test_a_silent_broker_is_dropped_after_its_time(routes: RouteInfoManager, clock: VirtualClock) -> None:
    routes.register(header("a"), body("t", "u"), "connection a")
    routes.register(header("b", "10.0.0.2:10911", expiry=10_000), body("t", "v"), "connection b")
    assert routes.first_expiry() == routes.expiry_of(header("b", "10.0.0.2:10911")) == 10
    clock.now = 10
    assert routes.expire() == []
    clock.now = 10.1
    assert routes.expire() == ["connection b"]
    assert queues_of(routes, "t") == {"a": 4}
    assert routes.expiry_of(header("b", "10.0.0.2:10911")) == inf
    assert routes.first_expiry() == 120
    clock.now = 100
    routes.register(header("a"), body("t", "u"), "connection a")
    assert routes.first_expiry() == 220
    clock.now = 220
    assert routes.expire() == []
    clock.now = 220.1
    assert routes.expire() == ["connection a"]
    assert routes.first_expiry() == inf
    assert routes.route("t") is None


def test_a_broker_unregisters(routes: RouteInfoManager) -> None:
    routes.register(header(), body("t", "u"), "connection")
    routes.unregister(
        UnregisterBrokerRequestHeader(broker_name="a", broker_addr="10.0.0.1:10911", cluster_name="C", broker_id=0),
        "connection",
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
    routes.register(header(address="10.0.0.1:10911"), body("t", "u", state=5), "both")
    routes.register(header(address="10.0.0.2:10911"), body("t", "u", state=4), "both")
    route = routes.route("t")
    assert route is not None
    assert dict(route.broker_datas[0].broker_addrs) == {0: "10.0.0.1:10911"}


@pytest.mark.parametrize(
    "foreign",
    [
        header(address="6.6.6.6:10911"),  # the name, at another address
        header(),  # both
        header(name="evil"),  # the address, under another name
        header(broker_id=7),  # the master's address as a slave's, which would be no master any more
    ],
)
def test_a_brokers_name_and_address_are_not_anothers_to_register(
    routes: RouteInfoManager, foreign: RegisterBrokerRequestHeader
) -> None:
    routes.register(header(), body("t", "u"), "its own")
    with pytest.raises(RegistrationRefusedError, match=r"broker a is registered at 10.0.0.1:10911 over another"):
        routes.register(foreign, body("t", "u", state=99, queues=1, version=9), "another")
    route = routes.route("t")
    assert route is not None
    assert dict(route.broker_datas[0].broker_addrs) == {0: "10.0.0.1:10911"}
    assert queues_of(routes, "t") == {"a": 4}
    assert routes.clusters() == {"C": {"a"}}
    routes.on_close("another")
    assert routes.route("t") is not None
    routes.on_close("its own")
    routes.register(foreign, body("t", "u"), "another")
    assert routes.route("t") is not None or foreign.broker_id != 0


def test_a_brokers_name_is_free_when_it_is_silent_for_its_time(routes: RouteInfoManager, clock: VirtualClock) -> None:
    routes.register(header(), body("t", "u"), "its own")
    clock.now = 121
    routes.expire()
    routes.register(header(address="10.0.0.2:10911"), body("t", "u"), "another")
    route = routes.route("t")
    assert route is not None
    assert dict(route.broker_datas[0].broker_addrs) == {0: "10.0.0.2:10911"}


def test_a_broker_is_not_anothers_to_unregister(routes: RouteInfoManager) -> None:
    routes.register(header(), body("t", "u"), "its own")
    goodbye = UnregisterBrokerRequestHeader(
        broker_name="a", broker_addr="10.0.0.1:10911", cluster_name="C", broker_id=0
    )
    with pytest.raises(RegistrationRefusedError, match=r"broker a at 10.0.0.1:10911 is registered over another"):
        routes.unregister(goodbye, "another")
    assert routes.route("t") is not None
    routes.unregister(dataclasses.replace(goodbye, broker_addr="10.0.0.9:1"), "another")  # nobody's: nothing happens
    assert routes.route("t") is not None


def test_a_broker_that_changes_its_cluster_leaves_the_old_one(routes: RouteInfoManager) -> None:
    routes.register(header("a"), body("t", "u"), "a")
    routes.register(header("b", "10.0.0.2:10911"), body("t", "u"), "b")
    routes.register(dataclasses.replace(header("a"), cluster_name="D"), body("t", "u"), "a")
    assert routes.clusters() == {"C": {"b"}, "D": {"a"}}
    route = routes.route("t")
    assert route is not None
    assert [(broker.broker_name, broker.cluster) for broker in route.broker_datas] == [("a", "D"), ("b", "C")]
    routes.on_close("a")
    assert routes.clusters() == {"C": {"b"}}
    assert queues_of(routes, "t") == {"b": 4}


def test_a_broker_that_changes_its_name_leaves_the_old_one(routes: RouteInfoManager) -> None:
    routes.register(header("a"), body("t", "u"), "connection")
    routes.register(header("b"), body("t", "u"), "connection")
    assert routes.clusters() == {"C": {"b"}}
    assert queues_of(routes, "t") == {"b": 4}


def test_what_can_be_registered_is_bounded(clock: VirtualClock) -> None:
    routes = RouteInfoManager(clock, RouteLimits(max_brokers=2, max_topics=5, max_name_bytes=20, max_queues=16))
    routes.register(header("a"), body("t", "u"), "a")
    routes.register(header("b", "10.0.0.2:10911"), body("t", "v", "w"), "b")
    for refused, topics, says in (
        (header("c", "10.0.0.3:10911"), body("t", "u"), "2 brokers are registered, which is the most here"),
        (header("a"), body("x", "y", version=2), "4 topics are registered and 2 more would be; 5 are the most"),
        (header("a" * 21), body("t", "u"), "the name of a broker has more than 20 bytes"),
        (header("d\nforged"), body("t", "u"), "the name of a broker has characters that cannot be printed"),
        (header("d", "10.0.0.3:1\nforged"), body("t", "u"), "the broker's address has characters that cannot be"),
        (header("d", cluster="C\nforged"), body("t", "u"), "the name of a cluster has characters that cannot be"),
        (header("a"), body("t" * 21, "u"), "the name of a topic has more than 20 bytes"),
        (header("a"), body("t", "u", queues=17), "topic t has 17 queues to read and 17 to write; 0 to 16 are allowed"),
        (header("a"), body("t", "u", queues=-1), "topic t has -1 queues to read and -1 to write; 0 to 16 are allowed"),
    ):
        with pytest.raises(RegistrationRefusedError, match=says):
            routes.register(refused, topics, "a")
    routes.register(header("a"), body("t", "u", "v", "w", "x", version=2), "a")
    assert routes.route("x") is not None


def test_the_clusters_and_brokers_are_told_as_apache_tells_them(routes: RouteInfoManager) -> None:
    routes.register(header("b", "10.0.0.2:10911"), body("t", "v"), "two")
    routes.register(header("a", "10.0.0.1:10911"), body("t", "v"), "one")
    info = routes.cluster_info()
    assert encode_cluster_info(info).decode() == (
        '{"brokerAddrTable":{"a":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"a","cluster":"C",'
        '"enableActingMaster":false},"b":{"brokerAddrs":{0:"10.0.0.2:10911"},"brokerName":"b","cluster":"C",'
        '"enableActingMaster":false}},"clusterAddrTable":{"C":["a","b"]}}'
    )
    assert decode_cluster_info(encode_cluster_info(info)) == info
    assert info.masters() == info.masters("C") == {"a": "10.0.0.1:10911", "b": "10.0.0.2:10911"}
    assert info.masters("D") == {}


def test_a_deleted_topic_has_no_route_until_a_broker_registers_it_again(routes: RouteInfoManager) -> None:
    routes.register(header(), body("t", "u"), "one")
    assert sorted(routes.topics()) == ["t", "u"]
    routes.delete_topic("t", None)
    routes.delete_topic("nowhere", None)
    assert routes.route("t") is None
    assert routes.topics() == ["u"]
    routes.register(header(), body("t", "u", version=2), "one")
    assert routes.route("t") is not None


def test_a_topic_is_deleted_in_one_cluster_alone(routes: RouteInfoManager) -> None:
    routes.register(header("a", "10.0.0.1:10911"), body("t", "v"), "one")
    other = dataclasses.replace(header("b", "10.0.0.2:10911"), cluster_name="D")
    routes.register(other, body("t", "v"), "two")
    routes.delete_topic("t", "D")
    route = routes.route("t")
    assert route is not None
    assert [queues.broker_name for queues in route.queue_datas] == ["a"]
    routes.delete_topic("t", "E")
    assert routes.route("t") is not None
    routes.delete_topic("t", "C")
    assert routes.route("t") is None


def test_a_broker_that_leaves_under_another_name_leaves_nothing_behind(routes: RouteInfoManager) -> None:
    routes.register(header("a"), body("t", "u"), "connection")
    leaving = UnregisterBrokerRequestHeader(
        broker_name="b", broker_addr="10.0.0.1:10911", cluster_name="C", broker_id=7
    )
    routes.unregister(leaving, "connection")
    routes.on_close("connection")
    assert routes.route("t") is None
    assert routes.clusters() == {}
    assert routes.topics() == []


def test_topics_at_brokers_are_limited_for_all_and_for_each_connection(clock: VirtualClock) -> None:
    routes = RouteInfoManager(clock, RouteLimits(max_entries=6, max_entries_per_connection=4))
    routes.register(header("a"), body("t", "u"), "one")
    routes.register(header("b", "10.0.0.2:10911"), body("t", "u"), "one")
    with pytest.raises(RegistrationRefusedError, match=r"brokers of this connection have 4 topics .* 1 more .* 4 are"):
        routes.register(header("b", "10.0.0.2:10911"), body("t", "u", "v", version=2), "one")
    routes.register(header("b", "10.0.0.2:10911"), body("t", "u", version=3, queues=2), "one")
    routes.register(header("c", "10.0.0.3:10911"), body("t", "u"), "two")
    with pytest.raises(RegistrationRefusedError, match=r"all brokers have 6 topics registered, counted .* 2 more"):
        routes.register(header("d", "10.0.0.4:10911"), body("t", "u"), "three")
    assert queues_of(routes, "t") == {"a": 4, "b": 2, "c": 4}
    routes.on_close("one")
    assert (routes.entries, queues_of(routes, "t"), routes.topics()) == (2, {"c": 4}, ["t", "u"])
    routes.delete_topic("t", None)
    routes.on_close("two")
    assert (routes.entries, routes.topics()) == (0, [])
