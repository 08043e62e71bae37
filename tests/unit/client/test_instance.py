"""The client instance: which heartbeats, routes and goodbyes go out, and when."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest

from rocketbox.client.admin import Admin
from rocketbox.client.instance import MQClientInstance
from rocketbox.client.options import ClientOptions
from rocketbox.client.producer import Producer
from rocketbox.client.push_consumer import PushConsumer
from rocketbox.client.routes import TopicRoute
from rocketbox.errors import (
    BrokerError,
    ClientError,
    ClientStateError,
    ConfigurationError,
    ForkedError,
    InvalidGroupError,
    NoNameServerError,
    NoRouteError,
    NotStartedError,
    RemotingError,
)
from rocketbox.message import Message, MessageExt, MessageQueue
from rocketbox.protocol.bodies import ConsumerData
from rocketbox.protocol.codes import TBW102, RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.tags import SubscriptionData
from rocketbox.remoting.acl import Credentials
from rocketbox.remoting.connection import Connection
from rocketbox.remoting.name_server_addresses import parse_name_servers
from tests.support.client.scripted_cluster import Answer, ScriptedCluster, ScriptedNameServer
from tests.support.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio


class Publisher:
    """A producer that sends nothing."""

    def __init__(self, group: str) -> None:
        self.group = group

    def topics_in_use(self) -> set[str]:
        return set()

    def check_transaction(self, connection: Connection, request: RemotingCommand, message: MessageExt) -> None:
        raise AssertionError("it has no transactions")


class Member:
    """A consumer that notes what it is told."""

    def __init__(self, group: str, *topics: str) -> None:
        self.group = group
        self.version = 1
        self.told: list[str] = []
        self.persisted = 0
        self._topics = set(topics)

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            subscription_data_set=(SubscriptionData("T", "*", sub_version=self.version),),
        )

    def topics(self) -> set[str]:
        return self._topics

    def on_route_changed(self, topic: str, route: TopicRoute) -> None:
        self.told.append(f"{topic}: {len(route.subscribe_queues)}")

    def on_ids_changed(self) -> None:
        self.told.append("ids")

    def has_offsets_to_persist(self) -> bool:
        return True

    async def persist_offsets(self) -> None:
        self.persisted += 1


def instance_of(cluster: ScriptedCluster, **options: Any) -> MQClientInstance:
    return MQClientInstance(
        cluster.name_server.address,
        options=ClientOptions(client_ip="192.0.2.7", **options),
        clock=cluster.clock,
        network=cluster.network,
    )


def heartbeats(cluster: ScriptedCluster, broker: str = "broker-a") -> list[Any]:
    return [json.loads(request.body) for request in cluster.brokers[broker].requested(RequestCode.HEART_BEAT)]


# --- identity -----------------------------------------------------------------------------------------------------


async def test_client_ids_are_unique_and_name_address_process_and_unit() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        async with instance_of(cluster) as one, instance_of(cluster) as other:
            assert one.client_id != other.client_id
            assert one.client_id.startswith("192.0.2.7@")
            assert "#" in one.client_id
        async with instance_of(cluster, instance_name="inst1", unit_name="unitX") as named:
            assert named.client_id == "192.0.2.7@inst1@unitX"
        bracketed = MQClientInstance("ns:1", options=ClientOptions(client_ip="2001:db8::7", instance_name="i"))
        async with bracketed:
            assert bracketed.client_id == "[2001:db8::7]@i"
            assert len(bracketed.identity.unique_ids.next(1_700_000_000_000)) == 56


def in_a_fork(act: Callable[[], str]) -> str:
    """What act returns in a fork of this process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, act().encode())
        except BaseException as error:
            os.write(writer, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        told = pipe.read().decode()
    os.waitpid(child, 0)
    return told


async def test_two_clients_of_one_id_are_refused_unless_they_are_one_instance() -> None:
    """Brokers would take them for one member of a group, and each of the two would consume all queues of both."""
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, ScriptedCluster(clock) as elsewhere:
        async with instance_of(cluster, instance_name="desk") as first:
            second = instance_of(cluster, instance_name="desk")
            with pytest.raises(ClientStateError) as refused:
                await second.__aenter__()
            assert str(refused.value).count(f"{__file__}:") == 2, "both places"
            assert "192.0.2.7@desk" in str(refused.value)
            assert "instance=" in str(refused.value)
            async with (
                instance_of(elsewhere, instance_name="desk"),
                instance_of(cluster, instance_name="other"),
                instance_of(cluster),
                instance_of(cluster),
                Producer("P", instance=first),
                Producer("Q", instance=first),
            ):
                pass
        async with instance_of(cluster, instance_name="desk"):  # when the first one has ended
            pass


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forks_that_start_what_was_made_before_have_ids_of_their_own() -> None:
    producer = Producer("P", name_server="127.0.0.1:9", client_options=ClientOptions(client_ip="192.0.2.7"))

    async def started() -> str:
        async with producer:
            identity = producer.instance.identity
            chance = producer.instance.clock.random.getrandbits(64)
            return f"{identity.client_id} {identity.unique_ids.next(1_700_000_000_000)} {chance}"

    told = [in_a_fork(lambda: anyio.run(started)).split() for _ in range(2)]
    for one, other in zip(*told, strict=True):
        assert one != other
    assert {client_id.partition("@")[0] for client_id, _, _ in told} == {"192.0.2.7"}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_client_that_was_started_before_a_fork_says_what_to_do_instead() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster, instance_of(cluster) as instance:
        cluster.add_topic("T")
        async with Producer("P", instance=instance) as producer:
            await producer.send(Message("T", b"x"))
            uses: list[Callable[[], Coroutine[Any, Any, object]]] = [
                lambda: producer.send(Message("T", b"x")),
                lambda: producer.send_one_way(Message("T", b"x")),
                lambda: producer.send_many([Message("T", b"x")]),
                lambda: producer.send_batch([Message("T", b"x")]),
                lambda: instance.route("T", refresh=True),
                lambda: instance.heartbeat_now(),
                lambda: instance.remoting.request("broker-a:10911", RemotingCommand.request(34), timeout=1),
            ]

            def use_all() -> str:
                told = []
                for use in uses:
                    try:
                        use().send(None)  # raises before it waits for anything
                    except ForkedError as error:
                        told.append(str(error))
                return "\n".join(told)

            told = in_a_fork(use_all).splitlines()
            assert len(told) == len(uses)
            for each in told:
                assert f"was started in process {os.getpid()}" in each
                assert "start it after the fork" in each
            assert (await producer.send(Message("T", b"x"))).queue_offset >= 0, "the parent goes on"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_fork_tells_each_of_two_running_clients_and_the_one_that_runs_alone_later() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as one, ScriptedCluster(clock) as other, instance_of(other) as second:
        one.add_topic("T")
        other.add_topic("T")
        async with instance_of(one) as first:

            def states() -> str:
                told = []
                for instance in (first, second):
                    try:
                        instance.check_running()
                        told.append("runs")
                    except ForkedError:
                        told.append("forked")
                    except NotStartedError:
                        told.append("ended")
                return " ".join(told)

            assert in_a_fork(states) == "forked forked"
            assert states() == "runs runs", "the parent goes on"
            assert (await first.route("T")).topic == (await second.route("T")).topic == "T"
        assert in_a_fork(states) == "ended forked"
        assert states() == "ended runs"
        async with Producer("P", instance=second) as producer:
            await producer.send(Message("T", b"x"))


def test_identity_is_asked_for_after_the_start() -> None:
    with pytest.raises(NotStartedError, match=r"ns:1, not started"):
        _ = MQClientInstance("ns:1").client_id


@pytest.mark.parametrize("make", [partial(Producer, "P"), partial(PushConsumer, "G"), Admin])
def test_name_server_or_instance_is_one_rule_for_all(make: Callable[..., object]) -> None:
    with pytest.raises(ClientStateError, match="needs either name_server= or instance="):
        make()
    with pytest.raises(ClientStateError, match="needs either name_server= or instance="):
        make(name_server="ns:1", instance=MQClientInstance("ns:1"))
    with pytest.raises(ClientStateError, match="give clock= to that MQClientInstance"):
        make(instance=MQClientInstance("ns:1"), clock=VirtualClock())


async def test_instance_runs_once() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        instance = instance_of(cluster)
        with pytest.raises(NotStartedError):
            await instance.heartbeat_now()
        async with instance:
            assert "running" in repr(instance)
        assert "closed" in repr(instance)
        with pytest.raises(ClientStateError, match="before"):
            async with instance:
                pass


# --- name servers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", ("a:1",)),
        (" a:1 ; b:2;", ("a:1", "b:2")),
        ("a:1,b:2,a:1", ("a:1", "b:2")),
        ("http://a:1", ("a:1",)),
        (["a:1", "[::1]:2"], ("a:1", "[::1]:2")),
    ],
)
def test_name_server_lists(text: str | list[str], addresses: tuple[str, ...]) -> None:
    assert parse_name_servers(text) == addresses


@pytest.mark.parametrize(
    "text", ["", " ; ", "host", "host:", ":9876", "host:port", "host:0", "host:65536", "host:987\u00b2", "a host:1"]
)
def test_bad_name_server_is_named_with_its_setting(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"rocketmq\.name-server"):
        MQClientInstance(text)


async def test_second_name_server_answers_for_a_dead_one_and_is_kept() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, anyio.create_task_group() as tasks:
        other = ScriptedNameServer(clock, cluster.network, "ns2")
        await other.start(tasks)
        for topic in "ABCD":
            cluster.add_topic(topic)
        other.routes = cluster.name_server.routes
        instance = MQClientInstance(
            "ns:9876;ns2:9876", options=ClientOptions(client_ip="192.0.2.7"), clock=clock, network=cluster.network
        )
        async with instance:
            await instance.route("A")
            kept, left = sorted((cluster.name_server, other), key=lambda server: -len(server.requests))
            assert len(left.requests) == 0
            assert instance.name_servers[0] == kept.address
            await kept.stop()
            await instance.route("B")
            await instance.route("C")
            assert instance.name_servers[0] == left.address
            assert left.asked("B") == left.asked("C") == 1
            await left.stop()
            with pytest.raises(NoNameServerError, match=r"no name server answers: .*; ") as caught:
                await instance.route("D")
            assert caught.value.failures.keys() == {kept.address, left.address}


async def test_silent_name_server_leaves_time_for_the_other_one() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, anyio.create_task_group() as tasks:
        other = ScriptedNameServer(clock, cluster.network, "ns2")
        await other.start(tasks)
        cluster.add_topic("A")
        for server in (cluster.name_server, other):
            server.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda *_: None
        answering = cluster.name_server
        instance = MQClientInstance(
            "ns:9876;ns2:9876", options=ClientOptions(client_ip="192.0.2.7"), clock=clock, network=cluster.network
        )
        async with instance:
            if instance.name_servers[0] == answering.address:
                answering = other
                other.routes = cluster.name_server.routes
            answering.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC] = answering._route
            found: list[TopicRoute] = []

            async def ask() -> None:
                found.append(await instance.route("A"))

            tasks.start_soon(ask)
            await clock.advance(1.7)  # half of the 3 s, and a sweep
            assert found
            assert instance.name_servers[0] == answering.address
        tasks.cancel_scope.cancel()


# --- name servers that disagree -----------------------------------------------------------------------------------


@asynccontextmanager
async def two_name_servers(
    clock: VirtualClock, cluster: ScriptedCluster
) -> AsyncIterator[tuple[MQClientInstance, ScriptedNameServer, ScriptedNameServer]]:
    """A client, the name server that it asks first, and the other one."""
    async with anyio.create_task_group() as tasks:
        other = ScriptedNameServer(clock, cluster.network, "ns2")
        await other.start(tasks)
        async with MQClientInstance(
            "ns:9876;ns2:9876", options=ClientOptions(client_ip="192.0.2.7"), clock=clock, network=cluster.network
        ) as instance:
            servers = (cluster.name_server, other)
            yield instance, *(servers if instance.name_servers[0] == servers[0].address else servers[::-1])
        tasks.cancel_scope.cancel()


async def test_what_one_name_server_does_not_know_the_other_is_asked_for() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, two_name_servers(clock, cluster) as (instance, first, second):
        second.routes["T"] = cluster.route(queues=3)
        assert len((await instance.route("T")).publish_queues) == 3
        async with Producer("P", instance=instance) as producer:  # which would make it anew, as the template topic is
            first.routes[TBW102] = cluster.route(queues=8)
            second.routes["U"] = cluster.route(queues=1)
            assert (await producer.send(Message("U", b"x"))).queue.queue_id == 0
            assert first.asked(TBW102) == 0
        assert instance.name_servers[0] == first.address, "it has answered, and is kept"
        assert await instance.find_route("V") is None
        assert first.asked("V") == second.asked("V") == 1


async def test_what_one_name_server_refuses_the_other_is_asked_for_and_from_then_on() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, two_name_servers(clock, cluster) as (instance, first, second):
        second.routes["T"] = cluster.route(queues=3)
        clusters: dict[str, dict[str, list[str]]] = {"brokerAddrTable": {}, "clusterAddrTable": {"DefaultCluster": []}}
        for server in (first, second):
            await server.stop()
        for code in (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO):
            first.scripts[code] = lambda *_: RemotingCommand.response(ResponseCode.SYSTEM_ERROR, "not ready")
        second.scripts[RequestCode.GET_BROKER_CLUSTER_INFO] = lambda *_: RemotingCommand.response(
            body=json.dumps(clusters).encode()
        )
        for server in (first, second):
            await cluster.restart(server)
        assert "DefaultCluster" in (await instance.cluster_info()).clusters
        assert len((await instance.route("T")).publish_queues) == 3
        assert len(first.requests) == 1
        assert await instance.find_route("V") is None, "who knows no route has told more than who refuses"
        assert instance.name_servers[0] == second.address


async def test_what_all_name_servers_refuse_is_told_as_one_of_them_did() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, two_name_servers(clock, cluster) as (instance, first, second):
        for server in (first, second):
            server.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda *_: RemotingCommand.response(
                ResponseCode.SYSTEM_ERROR, "not ready"
            )
        with pytest.raises(BrokerError, match="not ready"):
            await instance.route("T")


async def test_silent_name_server_takes_little_time_from_what_no_other_knows() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, two_name_servers(clock, cluster) as (instance, _, second):
        await second.stop()
        second.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda *_: None
        await cluster.restart(second)
        found: list[TopicRoute | None] = []

        async def ask() -> None:
            found.append(await instance.find_route("T"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await clock.advance(0.6)  # 0.3 s, and a sweep
            assert found == [None]


async def test_broker_whose_old_address_one_name_server_still_tells_is_found_by_the_other() -> None:
    clock = VirtualClock()
    async with (
        ScriptedCluster(clock, ("broker-a", "moved")) as cluster,
        two_name_servers(clock, cluster) as (instance, first, second),
    ):
        old, new = (cluster.route(queues=1, brokers=["broker-a"]) for _ in range(2))
        new["brokerDatas"][0]["brokerAddrs"] = {"0": cluster.brokers["moved"].address}
        first.routes["T"], second.routes["T"] = old, new
        async with Producer("P", instance=instance) as producer:
            await producer.send(Message("T", b"at the old one"))
            await cluster.brokers["broker-a"].stop()
            results = []

            async def send() -> None:
                results.append(await producer.send(Message("T", b"at the new one")))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                await clock.advance(3.5)
            assert [result.broker_name for result in results] == ["broker-a"]
            assert len(cluster.brokers["moved"].sends) == 1
            await clock.advance(120)
            assert instance.broker_address("broker-a") == cluster.brokers["moved"].address, "and stays so"


async def test_who_cannot_pull_asks_another_name_server_and_only_one_however_many_queues_that_are() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, two_name_servers(clock, cluster) as (instance, first, second):
        first.routes["T"], second.routes["T"] = cluster.route(queues=1), cluster.route(queues=2)
        assert len((await instance.route("T")).subscribe_queues) == 1
        for _ in range(4):
            route = await instance.refresh_route("T")
            assert route is not None
            assert len(route.subscribe_queues) == 2
        assert first.asked("T") == 1


async def test_name_server_that_does_not_answer_is_no_alternative() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, two_name_servers(clock, cluster) as (instance, first, second):
        await second.stop()
        first.routes["T"] = cluster.route(queues=1)
        await instance.route("T")
        assert await instance.find_route("V") is None
        for _ in range(5):
            instance.suspect_route("T")
            await clock.advance(1.5)
            assert instance.name_servers[0] == first.address
        assert first.asked("T") >= 5


async def test_two_clients_of_one_process_share_nothing_but_the_process() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as one, ScriptedCluster(clock, ("broker-a", "broker-b")) as other:
        one.add_topic("T", queues=1)
        other.add_topic("T", queues=5)
        async with instance_of(one) as first:
            async with instance_of(other) as second, Producer("P", instance=second) as producer:
                async with Producer("P", instance=first) as of_first:  # the same group, in another cluster
                    assert len((await first.route("T")).publish_queues) == 1
                    assert len((await second.route("T")).publish_queues) == 10
                    assert set(first.broker_names) == {"broker-a"}
                    assert first.broker_address("broker-a") == second.broker_address("broker-a")
                    await of_first.send(Message("T", b"for one"))
                await producer.send(Message("T", b"for the other"))
                assert [request.body for request in one.broker.sends] == [b"for one"]
                assert [r.body for broker in other.brokers.values() for r in broker.sends] == [b"for the other"]
                assert first.client_id != second.client_id
            assert first.running
            async with Producer("P", instance=first) as of_first:
                await of_first.send(Message("T", b"still here"))
            assert len(one.broker.sends) == 2


# --- routes -------------------------------------------------------------------------------------------------------


class SlowProvider:
    """Keys that take a moment: so long a client starts."""

    async def credentials(self) -> Credentials:
        await settle()
        return Credentials(access_key="user", secret_key="12345678")


async def test_of_clients_with_one_id_that_start_at_the_same_time_one_starts() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        started, refused = 0, list[str]()
        over = anyio.Event()

        async def start() -> None:
            nonlocal started
            try:
                async with instance_of(cluster, instance_name="desk", credentials=SlowProvider()):
                    started += 1
                    await over.wait()
            except ClientStateError as error:
                refused.append(str(error))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(start)
            await settle(200)
            assert started == 1
            assert ["are both 192.0.2.7@desk" in each for each in refused] == [True, True]
            over.set()
        async with instance_of(cluster, instance_name="desk"):  # nothing of those that were refused is left
            pass


async def test_route_is_asked_for_once_and_kept() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster, instance_of(cluster) as instance:
        cluster.add_topic("T")
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(instance.route, "T")
        assert cluster.name_server.asked("T") == 1
        assert await instance.route("T") is instance.cached_route("T")
        assert cluster.name_server.asked("T") == 1
        await instance.route("T", refresh=True)
        assert cluster.name_server.asked("T") == 2


async def test_cancelled_asker_does_not_spoil_it_for_others() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, instance_of(cluster) as instance:
        cluster.add_topic("T")
        found: list[TopicRoute] = []

        async def ask() -> None:
            found.append(await instance.route("T"))

        async with anyio.create_task_group() as first, anyio.create_task_group() as second:
            first.start_soon(ask)
            await anyio.lowlevel.checkpoint()
            second.start_soon(ask)
            first.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await settle(40)
        async with anyio.create_task_group() as third:
            third.start_soon(ask)
        assert len(found) == 1
        assert cluster.name_server.asked("T") == 1


async def test_unknown_topic_has_no_route() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster, instance_of(cluster) as instance:
        assert await instance.find_route("T") is None
        with pytest.raises(NoRouteError, match="ns:9876"):
            await instance.route("T")


async def test_missing_route_of_a_subscribed_topic_is_asked_for_every_second() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, instance_of(cluster) as instance:
        member = Member("G", "T", "%RETRY%G")
        cluster.add_topic("T", queues=3)
        instance.register_consumer("G", member)
        await instance.route("T")
        await clock.advance(5.5)
        assert cluster.name_server.asked("%RETRY%G") == 5
        assert cluster.name_server.asked("T") == 1
        cluster.add_topic("%RETRY%G", queues=1)
        await clock.advance(5)
        assert cluster.name_server.asked("%RETRY%G") == 6
        assert [told for told in member.told if told != "ids"] == ["T: 3", "%RETRY%G: 1"]
        await clock.advance(25)
        assert cluster.name_server.asked("%RETRY%G") == 7
        assert cluster.name_server.asked("T") == 2


async def test_changed_route_is_told_to_those_who_subscribe_to_it() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, instance_of(cluster) as instance:
        one, other = Member("G", "T"), Member("H", "U")
        instance.register_consumer("G", one)
        instance.register_consumer("H", other)
        cluster.add_topic("T", queues=2)
        cluster.add_topic("U", queues=1)
        await clock.advance(1)
        before, others = instance.routes.version("T"), instance.routes.version("U")
        await clock.advance(30)
        assert instance.routes.version("T") == before, "an unchanged route changes nothing"
        cluster.add_topic("T", queues=5)
        await clock.advance(30)
        assert [told for told in one.told if told != "ids"] == ["T: 2", "T: 5"]
        assert instance.routes.version("T") != before
        assert instance.routes.version("U") == others, "what was prepared for another topic stays right"
        assert [told for told in other.told if told != "ids"] == ["U: 1"]


async def test_topic_that_lost_its_route_keeps_the_last_one() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, instance_of(cluster) as instance:
        cluster.add_topic("T")
        route = await instance.route("T")
        del cluster.name_server.routes["T"]
        assert await instance.route("T", refresh=True) is route


async def test_dead_name_server_does_not_end_the_asking() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, instance_of(cluster) as instance:
        instance.register_consumer("G", Member("G", "T"))
        await cluster.name_server.stop()
        await clock.advance(10)
        cluster.add_topic("T")
        await cluster.restart(cluster.name_server)
        await clock.advance(1.1)
        assert instance.cached_route("T") is not None


async def test_one_topic_that_is_refused_does_not_keep_routes_from_others() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, instance_of(cluster) as instance:
        answer = cluster.name_server.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC]

        def refuse_one(connection: Connection, request: RemotingCommand) -> Answer:
            if request.ext_fields["topic"] == "A":
                return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, "not this one")
            if request.ext_fields["topic"] == "B":
                return RemotingCommand.response(body=b"no route at all")
            return answer(connection, request)

        cluster.name_server.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC] = refuse_one
        cluster.add_topic("T")
        instance.register_consumer("G", Member("G", "A", "B", "T"))
        await clock.advance(3)
        assert instance.cached_route("T") is not None


# --- brokers ------------------------------------------------------------------------------------------------------


async def test_addresses_come_from_the_routes() -> None:
    async with ScriptedCluster(VirtualClock(), ["broker-a", "broker-b"]) as cluster, instance_of(cluster) as instance:
        route = cluster.route(brokers=["broker-a", "broker-b"])
        route["brokerDatas"][0]["brokerAddrs"] = {"0": "broker-a:10911", "2": "slave-2:1", "3": "slave-3:1"}
        route["brokerDatas"][1]["brokerAddrs"] = {"1": "slave-1:1"}
        cluster.name_server.routes["T"] = route
        await instance.route("T")
        assert instance.broker_address("broker-a") == "broker-a:10911"
        assert instance.broker_address("broker-b", master=False) == "slave-1:1"
        with pytest.raises(ClientError, match="no master of broker 'broker-b'"):
            instance.broker_address("broker-b")
        with pytest.raises(ClientError, match="no address of broker 'nobody'"):
            instance.broker_address("nobody")
        assert instance.broker_addresses(masters_only=True) == ["broker-a:10911"]
        assert instance.broker_names == ["broker-a", "broker-b"]
        queue = MessageQueue("T", "broker-a", 0)
        assert await instance.pull_address(queue) == "broker-a:10911"
        assert await instance.pull_address(queue, 3) == "slave-3:1"
        assert await instance.pull_address(queue, 1) == "slave-2:1"
        assert await instance.pull_address(queue, 9) == "broker-a:10911"


async def test_broker_that_moved_keeps_its_new_address_whatever_else_changes() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, ["broker-a", "broker-b"]) as cluster, instance_of(cluster) as instance:
        instance.register_consumer("G", Member("G", "Elsewhere", "T", "WasDeleted"))
        cluster.add_topic("Elsewhere", brokers=["broker-b"])
        cluster.add_topic("T", brokers=["broker-a"])
        cluster.add_topic("WasDeleted", brokers=["broker-a"])
        await clock.advance(1)
        assert instance.broker_address("broker-a") == "broker-a:10911"
        moved = cluster.route(brokers=["broker-a"])
        moved["brokerDatas"][0]["brokerAddrs"]["0"] = "moved:10911"
        del cluster.name_server.routes["WasDeleted"]
        cluster.name_server.routes["T"] = moved
        await clock.advance(31)
        assert instance.broker_address("broker-a") == "moved:10911"
        cluster.add_topic("Elsewhere", queues=5, brokers=["broker-b"])
        await clock.advance(31)
        assert instance.broker_address("broker-a") == "moved:10911"


async def test_confirmed_route_wins_over_one_that_was_read_later_and_not_confirmed() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, instance_of(cluster) as instance:
        cluster.add_topic("T")
        await instance.route("T")
        moved = cluster.route()
        moved["brokerDatas"][0]["brokerAddrs"]["0"] = "moved:10911"
        cluster.name_server.routes["U"] = moved
        await clock.advance(1)
        await instance.route("U")
        assert instance.broker_address("broker-a") == "moved:10911"
        await clock.advance(1)
        await instance.route("T", refresh=True)  # back again: unchanged since it was read, and confirmed last
        assert instance.broker_address("broker-a") == "broker-a:10911"


async def test_route_that_nobody_uses_and_no_name_server_knows_goes() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, ["broker-a", "broker-b"]) as cluster, instance_of(cluster) as instance:
        instance.register_consumer("G", Member("G", "T", "Kept"))
        cluster.add_topic("T", brokers=["broker-a"])
        cluster.add_topic("Kept", brokers=["broker-a"])
        cluster.add_topic("Gone", brokers=["broker-b"])
        await instance.route("Gone")
        await clock.advance(1)
        del cluster.name_server.routes["Gone"], cluster.name_server.routes["Kept"]
        await clock.advance(31)
        assert instance.cached_route("Gone") is not None, "a name server may just have been started"
        clock.now += 120
        await clock.advance(2)
        assert instance.cached_route("Gone") is None
        assert instance.cached_route("Kept") is not None, "somebody uses it"
        assert instance.broker_addresses() == ["broker-a:10911"]
        asked = cluster.name_server.asked("Gone")
        await clock.advance(31)
        assert cluster.name_server.asked("Gone") == asked


async def test_broker_that_is_in_no_route_any_more_is_dropped() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, ["broker-a", "broker-b"]) as cluster, instance_of(cluster) as instance:
        instance.register_producer("P", Publisher("P"))
        cluster.add_topic("T")
        await instance.route("T")
        await settle(40)
        assert instance.remoting.connected("broker-b:10911")
        cluster.add_topic("T", brokers=["broker-a"])
        await instance.route("T", refresh=True)
        await settle(40)
        assert instance.broker_addresses() == ["broker-a:10911"]
        assert not instance.remoting.connected("broker-b:10911")


# --- heartbeats ---------------------------------------------------------------------------------------------------


async def test_heartbeat_names_producers_and_consumers() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, instance_of(cluster) as instance:
        cluster.add_topic("T")
        instance.register_producer("P", Publisher("P"))
        instance.register_consumer("G", Member("G", "T"))
        await instance.route("T")
        await instance.heartbeat_now()
        beat = heartbeats(cluster)[-1]
        assert beat["clientID"] == instance.client_id
        assert {entry["groupName"] for entry in beat["producerDataSet"]} == {"P", "CLIENT_INNER_PRODUCER"}
        (consumer,) = beat["consumerDataSet"]
        assert consumer["groupName"] == "G"
        assert consumer["subscriptionDataSet"][0]["topic"] == "T"


async def test_broker_is_beaten_as_soon_as_it_is_known_and_then_every_30_seconds() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, instance_of(cluster) as instance:
        cluster.add_topic("T")
        instance.register_producer("P", Publisher("P"))
        await clock.advance(10)
        assert heartbeats(cluster) == []
        await instance.route("T")
        await settle(40)
        assert len(heartbeats(cluster)) == 1
        await clock.advance(90)
        assert len(heartbeats(cluster)) == 4


async def test_instance_without_groups_sends_no_heartbeat() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, instance_of(cluster) as instance:
        cluster.add_topic("T")
        await instance.route("T")
        await clock.advance(61)
        assert heartbeats(cluster) == []


async def test_heartbeats_asked_for_during_a_round_are_one_more_round() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, instance_of(cluster) as instance:
        cluster.add_topic("T")
        member = Member("G", "T")
        instance.register_consumer("G", member)
        await instance.route("T")
        await settle(40)
        held: list[tuple[Any, RemotingCommand]] = []
        cluster.broker.scripts[RequestCode.HEART_BEAT] = lambda connection, request: held.append((connection, request))
        before = len(heartbeats(cluster))
        instance.request_heartbeat()
        await settle(40)
        assert len(held) == 1
        member.version = 2
        for _ in range(5):
            instance.request_heartbeat()
        done = anyio.Event()

        async def now() -> None:
            await instance.heartbeat_now()
            done.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(now)
            await settle(40)
            assert len(held) == 1
            assert not done.is_set()
            held[0][0].reply(held[0][1], RemotingCommand.response())
            await settle(40)
            assert len(held) == 2
            assert not done.is_set()
            held[1][0].reply(held[1][1], RemotingCommand.response())
            await settle(40)
            assert done.is_set()
        assert len(heartbeats(cluster)) == before + 2
        versions = [beat["consumerDataSet"][0]["subscriptionDataSet"][0]["subVersion"] for beat in heartbeats(cluster)]
        assert versions[-2:] == [1, 2]


async def test_silent_broker_does_not_keep_heartbeats_from_others() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, ["broker-a", "broker-b"]) as cluster, instance_of(cluster) as instance:
        cluster.brokers["broker-a"].scripts[RequestCode.HEART_BEAT] = lambda *_: None
        cluster.add_topic("T")
        instance.register_producer("P", Publisher("P"))
        await instance.route("T")
        await settle(40)
        assert len(heartbeats(cluster, "broker-b")) == 1


async def test_what_is_asked_for_while_a_silent_broker_is_waited_for_goes_to_the_others_at_once() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, ["broker-a", "broker-b"]) as cluster, instance_of(cluster) as instance:
        cluster.brokers["broker-a"].scripts[RequestCode.HEART_BEAT] = lambda *_: None
        cluster.add_topic("T")
        instance.register_consumer("G", Member("G", "T"))
        await instance.route("T")
        await settle(40)
        instance.request_heartbeat()
        await settle(40)
        assert len(heartbeats(cluster, "broker-b")) == 2
        assert len(heartbeats(cluster, "broker-a")) == 1


async def test_one_broker_may_be_told_without_waiting_for_the_others() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, ["broker-a", "broker-b"]) as cluster, instance_of(cluster) as instance:
        cluster.brokers["broker-a"].scripts[RequestCode.HEART_BEAT] = lambda *_: None
        cluster.add_topic("T")
        instance.register_consumer("G", Member("G", "T"))
        await instance.route("T")
        ended: dict[str, float] = {}

        async def beat(name: str, **how: Any) -> None:
            await instance.heartbeat_now(**how)
            ended[name] = clock.now

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(beat, "the healthy one", broker_name="broker-b"))
            tasks.start_soon(partial(beat, "all"))
            await clock.advance(7)
        assert ended["the healthy one"] < 0.1
        assert 3 <= ended["all"] <= 6.5


async def test_half_open_link_is_noticed_within_20_seconds() -> None:
    clock = VirtualClock()
    pull = RemotingCommand.request(RequestCode.PULL_MESSAGE)
    cluster = ScriptedCluster(clock)
    cluster.broker.scripts[RequestCode.PULL_MESSAGE] = lambda *_: None
    async with cluster, instance_of(cluster) as instance, anyio.create_task_group() as tasks:
        instance.register_consumer("G", Member("G", "T"))
        cluster.add_topic("T")
        await clock.advance(2)
        failed_at: list[float] = []

        async def wait_for_messages() -> None:
            with pytest.raises(RemotingError):
                await instance.remoting.request("broker-a:10911", pull, timeout=30)
            failed_at.append(clock.now)

        began = clock.now
        tasks.start_soon(wait_for_messages)
        await settle(40)
        cluster.broker.scripts[RequestCode.HEART_BEAT] = lambda *_: None  # from here on nothing comes back
        await clock.advance(20)
        assert failed_at, "still waiting"
        assert failed_at[0] - began <= 20


async def test_link_on_which_a_pull_waits_is_asked_and_goes_on() -> None:
    clock = VirtualClock()
    pull = RemotingCommand.request(RequestCode.PULL_MESSAGE)
    cluster = ScriptedCluster(clock)
    cluster.broker.scripts[RequestCode.PULL_MESSAGE] = lambda *_: None
    async with (
        cluster,
        instance_of(cluster, heartbeat_broker_interval=1000) as instance,
        anyio.create_task_group() as tasks,
    ):
        instance.register_consumer("G", Member("G", "T"))
        cluster.add_topic("T")
        await clock.advance(20)
        before = len(heartbeats(cluster))
        tasks.start_soon(lambda: instance.remoting.request("broker-a:10911", pull, timeout=60))
        await clock.advance(14)
        assert len(heartbeats(cluster)) == before, "an idle link is not asked at once when something is awaited"
        await clock.advance(20)
        assert len(heartbeats(cluster)) == before + 2, "one after each 15 s of silence"
        assert instance.remoting.connected("broker-a:10911")
        tasks.cancel_scope.cancel()


async def test_new_connection_brings_a_heartbeat_and_then_a_rebalance() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, instance_of(cluster) as instance:
        cluster.add_topic("T")
        member = Member("G", "T")
        instance.register_consumer("G", member)
        await instance.route("T")
        await settle(40)
        assert len(heartbeats(cluster)) == 1
        assert member.told == ["T: 4", "ids"]
        await cluster.broker.stop()
        await cluster.restart(cluster.broker)
        member.told.clear()
        request = RemotingCommand.request(RequestCode.UNREGISTER_CLIENT)
        await instance.remoting.request(cluster.broker.address, request, timeout=1)
        await settle(40)
        assert len(heartbeats(cluster)) == 2
        assert member.told == ["ids"]


async def test_only_masters_hear_of_producers() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, ["broker-a", "slave"]) as cluster, instance_of(cluster) as instance:
        route = cluster.route(brokers=["broker-a"])
        route["brokerDatas"][0]["brokerAddrs"]["1"] = cluster.brokers["slave"].address
        cluster.name_server.routes["T"] = route
        instance.register_producer("P", Publisher("P"))
        await instance.route("T")
        await instance.heartbeat_now()
        assert heartbeats(cluster, "slave") == []
        instance.register_consumer("G", Member("G", "T"))
        await instance.heartbeat_now()
        assert len(heartbeats(cluster, "slave")) == 1


# --- groups -------------------------------------------------------------------------------------------------------


async def test_group_is_used_once_in_each_role() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster, instance_of(cluster) as instance:
        instance.register_producer("G", Publisher("G"))
        instance.register_consumer("G", Member("G"))
        with pytest.raises(InvalidGroupError, match="producer group 'G' is in use"):
            instance.register_producer("G", Publisher("G"))
        with pytest.raises(InvalidGroupError, match="consumer group 'G' is in use"):
            instance.register_consumer("G", Member("G"))
        await instance.unregister_producer("G")
        await instance.unregister_consumer("G")
        instance.register_producer("G", Publisher("G"))
        instance.register_consumer("G", Member("G"))


async def test_members_are_told_when_others_come_or_go() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, instance_of(cluster) as instance:
        cluster.add_topic("T")
        one, other = Member("G", "T"), Member("H", "T")
        instance.register_consumer("G", one)
        instance.register_consumer("H", other)
        await instance.route("T")
        await settle(40)
        one.told.clear()
        other.told.clear()
        (connection,) = cluster.broker.connections
        for group in ("G", "unknown"):
            fields = {"consumerGroup": group}
            connection.send_oneway(RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields))
        await settle(40)
        assert (one.told, other.told) == (["ids"], [])


@pytest.mark.parametrize(
    ("code", "words"),
    [(220, "stop the group"), (221, "ask the brokers"), (307, "health"), (309, "send it to")],
)
async def test_what_no_member_does_yet_is_refused_with_what_to_do_instead(code: int, words: str) -> None:
    async with ScriptedCluster(VirtualClock()) as cluster, instance_of(cluster) as instance:
        cluster.add_topic("T")
        instance.register_consumer("G", Member("G", "T"))
        await instance.route("T")
        await settle(40)
        (connection,) = cluster.broker.connections
        answer = await connection.request(RemotingCommand.request(code, {"consumerGroup": "G"}), timeout=3)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark is not None
        assert words in answer.remark
        notice = RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "nobody"})
        answer = await connection.request(notice, timeout=3)
        assert answer.remark == "no consumer of group 'nobody' runs here"


async def test_offsets_are_persisted_each_second() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock) as cluster, instance_of(cluster) as instance:
        member = Member("G")
        instance.register_consumer("G", member)
        await clock.advance(3.5)
        assert member.persisted == 3


async def test_closing_says_goodbye_for_groups_that_are_left() -> None:
    async with ScriptedCluster(VirtualClock(), ["broker-a", "broker-b"]) as cluster:
        cluster.add_topic("T")
        async with instance_of(cluster) as instance:
            await instance.route("T")
            instance.register_consumer("G", Member("G", "T"))
            instance.register_producer("P", Publisher("P"))
            await settle(40)
        for broker in cluster.brokers.values():
            goodbyes = [request.ext_fields for request in broker.requested(RequestCode.UNREGISTER_CLIENT)]
            assert [fields.get("consumerGroup") or fields["producerGroup"] for fields in goodbyes] == [
                "G", "P", "CLIENT_INNER_PRODUCER",
            ]  # fmt: skip


async def test_goodbye_is_not_said_to_brokers_that_are_gone_and_is_bounded_by_silent_ones() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, ["broker-a", "broker-b"]) as cluster, anyio.create_task_group() as tasks:
        cluster.add_topic("T")
        left = anyio.Event()

        async def use() -> None:
            async with instance_of(cluster) as instance:
                for group in "ABCDEF":
                    instance.register_producer(group, Publisher(group))
                await instance.route("T")
                await instance.heartbeat_now()
                await cluster.brokers["broker-a"].stop()
            left.set()

        cluster.brokers["broker-b"].scripts[RequestCode.UNREGISTER_CLIENT] = lambda *_: None
        tasks.start_soon(use)
        await clock.advance(3.5)
        assert left.is_set()
