"""A name server of the embedded pair and peers that are not its broker: whose name it is, who may take it back when."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import anyio
import pytest

from rocketbox.access.addresses import source_match
from rocketbox.clock import RealClock
from rocketbox.nameserver.name_server import NameServer, NameServerOptions, _may_take_over
from rocketbox.protocol import admin_bodies
from rocketbox.protocol.admin_bodies import decode_topic_list
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand, encode_command
from rocketbox.protocol.headers import RegisterBrokerRequestHeader, UnregisterBrokerRequestHeader
from rocketbox.protocol.registration_bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    encode_register_broker,
)
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.connection import Connection
from rocketbox.remoting.network import MemoryNetwork
from rocketbox.remoting.server import RemotingServer
from tests.support.broker.wire import embedded
from tests.support.clocks import VirtualClock
from tests.support.remoting.by_hand import Peer, RecordingDriver
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio


def registration(address: str, *topics: str) -> RemotingCommand:
    header = RegisterBrokerRequestHeader(
        broker_name="broker-a", broker_addr=address, cluster_name="DefaultCluster", broker_id=0
    )
    table = {topic: TopicConfig(topic, 1, 1) for topic in topics}
    body = encode_register_broker(RegisterBrokerBody(TopicConfigSerializeWrapper(table, DataVersion())))
    return RemotingCommand.request(RequestCode.REGISTER_BROKER, header.encode(), body)


async def test_a_stranger_neither_redirects_nor_removes_the_embedded_broker(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire, RemotingClient(clock=RealClock()) as stranger:
        name_server, broker = wire.servers.name_server_address, wire.servers.broker_address
        before = await wire.route("TBW102")
        for address in ("6.6.6.6:10911", broker):
            answer = await stranger.request(name_server, registration(address, "TBW102", "more"), timeout=PATIENCE)
            assert answer.code == 1
            assert f"broker broker-a is registered at {broker} over another connection" in (answer.remark or "")
        goodbye = {"brokerName": "broker-a", "brokerAddr": broker, "clusterName": "DefaultCluster", "brokerId": "0"}
        answer = await stranger.request(
            name_server, RemotingCommand.request(RequestCode.UNREGISTER_BROKER, goodbye), timeout=PATIENCE
        )
        assert answer.code == 1
        assert await wire.route("TBW102") == before
        assert await wire.route("more") is None


async def test_the_settings_of_the_embedded_servers_reach_the_name_server(tmp_path: Path) -> None:
    async with embedded(
        tmp_path,
        max_registered_topics=20,
        max_registered_brokers=1,
        max_connections=7,
        max_connections_per_address=5,
        max_registered_entries=50,
        max_registered_entries_per_connection=40,
    ) as wire:
        other = RegisterBrokerRequestHeader(
            broker_name="broker-b", broker_addr="10.0.0.2:10911", cluster_name="C", broker_id=0
        )
        answer = await wire.name_server(RequestCode.REGISTER_BROKER, other.encode(), registration("", "t", "u").body)
        assert answer.remark == "1 brokers are registered, which is the most here"
        names = wire.servers.name_server
        limits = names.routes.limits
        assert (names.server.connection_limit, names.server.address_limit, limits.max_topics) == (7, 5, 20)
        assert (limits.max_entries, limits.max_entries_per_connection) == (50, 40)


async def test_a_broker_of_a_closed_connection_may_come_back_from_anywhere() -> None:
    clock, network = VirtualClock(), MemoryNetwork()
    async with NameServer(NameServerOptions(host="names", port=0), clock=clock, network=network) as names:
        for address in ("10.0.0.1:10911", "10.0.0.2:10911"):
            async with RemotingClient(clock=clock, network=network) as client:
                answer = await client.request(names.address, registration(address, "t", "u"), timeout=5)
                assert answer.code == 0
                route = names.routes.route("t")
                assert route is not None
                assert dict(route.broker_datas[0].broker_addrs) == {0: address}


async def test_a_machine_that_was_started_again_takes_its_brokers_place() -> None:
    server = RemotingServer({}, host="", port=0, clock=VirtualClock())

    def connection(host: str) -> Connection:
        return server._opened(RecordingDriver(), ("10.0.0.9", 9876), (host, 40_000))

    holder = connection("10.0.0.1")
    assert _may_take_over(holder, connection("10.0.0.1"))
    assert not _may_take_over(holder, connection("10.0.0.2"))
    local = connection("127.0.0.1")
    assert not _may_take_over(local, connection("127.0.0.1")), "of a process of this machine we hear when it ends"
    local.abort()
    assert _may_take_over(local, connection("127.0.0.1"))


@pytest.mark.parametrize(
    ("sources", "taken"),
    [
        (None, {"127.0.0.1", "127.9.9.9", "::1", "10.0.0.9"}),
        (("10.0.0.1", "10.1.0.0/16"), {"127.0.0.1", "127.9.9.9", "::1", "10.0.0.9", "10.0.0.1", "10.1.255.255"}),
        ((), {"127.0.0.1", "127.9.9.9", "::1", "10.0.0.9"}),
    ],
)
async def test_brokers_register_from_this_machine_or_where_settings_say(
    sources: tuple[str, ...] | None, taken: set[str]
) -> None:
    """This machine is 10.0.0.9 here; everybody may ask for routes."""
    matches = None if sources is None else tuple(map(source_match, sources))
    name_server = NameServer(NameServerOptions(registration_sources=matches), clock=VirtualClock())
    server = RemotingServer({}, host="", port=0, clock=VirtualClock())
    found = set()
    for host in ("127.0.0.1", "127.9.9.9", "::1", "10.0.0.9", "10.0.0.1", "10.0.0.10", "10.1.255.255", "unknown"):
        connection = server._opened(RecordingDriver(), ("10.0.0.9", 9876), (host, 40_000))
        answers = [
            name_server._guard(connection, RemotingCommand.request(code))
            for code in (RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER)
        ]
        if answers == [None, None]:
            found.add(host)
        else:
            assert [answer and answer.code for answer in answers] == [16, 16]
        route = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        assert name_server._guard(connection, route) is None
    assert found == taken


async def answer_to(peer: Peer) -> RemotingCommand:
    """The one that comes."""
    answers: list[RemotingCommand] = []

    def has_come() -> bool:
        answers.extend(peer.read())
        return bool(answers)

    await until(has_come, "an answer")
    (answer,) = answers
    return answer


async def test_the_addresses_of_the_settings_are_those_from_which_brokers_register(tmp_path: Path) -> None:
    with_addresses = embedded(tmp_path, registration_addresses="10.0.0.7, 10.1.0.0/16")
    async with with_addresses as wire, AsyncExitStack() as stack:
        for number, (host, is_taken) in enumerate(
            [("10.0.0.7", True), ("10.1.200.3", True), ("10.0.0.8", False), ("10.2.0.1", False), ("6.6.6.6", False)]
        ):
            peer = Peer(wire.servers.name_server.server, 40_000, host)
            stack.callback(peer.connection.lost, "the end of it")
            header = RegisterBrokerRequestHeader(
                broker_name=f"broker-{number}", broker_addr=f"{host}:10911", cluster_name="C", broker_id=0
            )
            topic = f"topic-{number}"
            body = registration("", topic, "more").body
            peer.send(encode_command(RemotingCommand.request(RequestCode.REGISTER_BROKER, header.encode(), body), 1))
            answer = await answer_to(peer)
            if is_taken:
                assert answer.code == 0, answer.remark
                route = await wire.route(topic)
                assert route is not None
                assert [each["brokerAddrs"] for each in route["brokerDatas"]] == [{"0": f"{host}:10911"}]
            else:
                remark = "brokers may not register here from that address; see registration-addresses"
                assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, remark)
                assert await wire.route(topic) is None


TOPICS = [f"topic-{number:05}" for number in range(5_000)]


async def test_others_are_answered_while_a_large_registration_is_taken_in() -> None:
    clock, network = VirtualClock(), MemoryNetwork()
    order: list[str] = []
    async with (
        NameServer(NameServerOptions(host="names", port=0), clock=clock, network=network) as names,
        RemotingClient(clock=clock, network=network) as broker,
        RemotingClient(clock=clock, network=network) as client,
    ):
        question = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPICS[-1]})
        await client.request(names.address, question, timeout=5)

        async def register() -> None:
            answer = await broker.request(names.address, registration("10.0.0.1:10911", *TOPICS), timeout=5)
            order.append(f"registered {answer.code}")

        async with anyio.create_task_group() as group:
            group.start_soon(register)
            answered = 0
            while not order:
                await client.request(names.address, question, timeout=5)
                answered += 1
        assert order == ["registered 0"]
        assert answered > 5, answered
        route = names.routes.route(TOPICS[-1])
        assert route is not None
        assert route.queue_datas[0].write_queue_nums == 1


async def test_others_are_answered_while_a_long_list_of_topics_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_bodies, "NAMES_OF_A_STEP", 20)
    clock, network = VirtualClock(), MemoryNetwork()
    many = [f"topic-{number:05}" for number in range(2_000)]
    async with (
        NameServer(NameServerOptions(host="names", port=0), clock=clock, network=network) as names,
        RemotingClient(clock=clock, network=network) as broker,
        RemotingClient(clock=clock, network=network) as client,
    ):
        question = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": many[-1]})
        assert (await broker.request(names.address, registration("10.0.0.1:1", *many), timeout=5)).code == 0
        await client.request(names.address, question, timeout=5)
        lists: list[list[str]] = []

        async def ask_for_all() -> None:
            command = RemotingCommand.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            lists.append(decode_topic_list((await broker.request(names.address, command, timeout=5)).body))

        async with anyio.create_task_group() as group:
            group.start_soon(ask_for_all)
            answered = 0
            while not lists:
                assert (await client.request(names.address, question, timeout=5)).code == 0
                answered += 1
        assert lists == [many]
        assert answered > 5, answered


async def test_a_goodbye_behind_a_large_registration_is_the_last_word() -> None:
    clock, network = VirtualClock(), MemoryNetwork()
    goodbye = UnregisterBrokerRequestHeader(
        broker_name="broker-a", broker_addr="10.0.0.1:10911", cluster_name="DefaultCluster", broker_id=0
    )
    async with (
        NameServer(NameServerOptions(host="names", port=0), clock=clock, network=network) as names,
        RemotingClient(clock=clock, network=network) as broker,
    ):
        answers: list[int] = []

        async def ask(request: RemotingCommand) -> None:
            answers.append((await broker.request(names.address, request, timeout=5)).code)

        async with anyio.create_task_group() as group:
            for request in (
                registration("10.0.0.1:10911", *TOPICS),
                RemotingCommand.request(RequestCode.UNREGISTER_BROKER, goodbye.encode()),
            ):
                group.start_soon(ask, request)
                for _ in range(20):  # so that it is sent before the next
                    await anyio.lowlevel.checkpoint()
        assert answers == [0, 0]
        assert names.routes.route(TOPICS[0]) is None
        assert names.routes.clusters() == {}


async def test_a_broker_that_leaves_while_its_large_registration_is_taken_in_is_not_registered() -> None:
    clock, network = VirtualClock(), MemoryNetwork()
    async with (
        NameServer(NameServerOptions(host="names", port=0), clock=clock, network=network) as names,
        RemotingClient(clock=clock, network=network) as client,
    ):
        async with RemotingClient(clock=clock, network=network) as broker, anyio.create_task_group() as group:
            group.start_soon(partial(broker.request, names.address, registration("10.0.0.1:10911", *TOPICS), timeout=5))
            with anyio.fail_after(PATIENCE):
                while not any(connection.attributes for connection in names.server.connections):
                    await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        question = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPICS[0]})
        for _ in range(300):
            assert (await client.request(names.address, question, timeout=5)).code == 17
        assert (names.routes.clusters(), names.routes.entries) == ({}, 0)
