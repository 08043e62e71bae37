"""A service of several clusters in the harness, and real addresses, none of which is reached from it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from rocketbox.client import MQClientInstance
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.errors import ConfigurationError, ConnectError, RequestTimeoutError
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.storage.memory_storage import MemoryStorage
from rocketbox.testing import Harness, HarnessError, Outcome
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

SOURCE = """
from rocketbox import RocketBox, RocketMQTemplate, bean, rocketmq_listener, send_to
from rocketbox.client import MQClientInstance

app = RocketBox("desk", scan=[__name__])
seen, elsewhere = [], None

@rocketmq_listener(topic="departures", consumer_group="desk")
async def depart(flight: str, template: RocketMQTemplate) -> None:
    seen.append(("main", flight))
    await template.send("records", flight, cluster="audit")

@rocketmq_listener(topic="records", consumer_group="desk", cluster="audit", max_reconsume_times=0)
@send_to("late")
async def record(flight: str) -> str:
    seen.append(("audit", flight))
    return f"recorded {flight}"

@rocketmq_listener(topic="stocks", consumer_group="stock", cluster="second")
def stock(item: str) -> None:
    seen.append(("second", item))

@rocketmq_listener(topic="asks", consumer_group="asks")
async def ask(name_server: str) -> None:
    async with MQClientInstance(name_server) as instance:
        await instance.find_route("departures")
"""

TWO_DESKS = """
from rocketbox import RocketBox, rocketmq_listener

app = RocketBox("desk", scan=[__name__])

@rocketmq_listener(topic="departures", consumer_group="desk")
async def depart(flight: str) -> None: ...

@rocketmq_listener(topic="records", consumer_group="desk", cluster="audit")
async def record(flight: str) -> None: ...
"""

SETTINGS = """
rocketmq:
  name-server: ns1.example:9876;ns2.example:9876
  producer: {group: desk}
  clusters:
    audit: {name-server: "ns3.example:9876", producer: {group: desk}}
    second: {name-server: "ns2.example:9876;ns1.example:9876", producer: {group: desk-2}}
    unused: {name-server: "false"}
"""


@pytest.fixture
def desk(service: ServiceMaker) -> ModuleType:
    return service(SOURCE, SETTINGS)


async def test_each_cluster_has_servers_of_its_own_under_one_time(desk: ModuleType) -> None:
    async with Harness(desk.app) as harness:
        await harness.send("departures", "UA1")
        await harness.drain()
        assert desk.seen == [("main", "UA1"), ("audit", "UA1")]
        for topic in ("records", "late"):
            assert len(harness.sent(topic)) == 0
        assert harness.sent("records", cluster="audit").one(str) == "UA1"
        assert harness.sent("late", cluster="audit").one(str) == "recorded UA1"
        await harness.send("departures", "UA2", cluster="audit")  # a topic of that name: nobody listens there
        await harness.drain()
        assert len(harness.calls("depart")) == 1
        assert [each.end for each in harness.offsets("desk", cluster="audit")] == [1]
        assert "audit/records" in harness.log
        await harness.redeliver(harness.calls("record")[0])
        await harness.redeliver(harness.sent("records", cluster="audit")[0])
        (again, *_) = await harness.consumed("desk", 3, cluster="audit")
        assert again.cluster == "audit"
        assert desk.seen.count(("audit", "UA1")) == 3
        await harness.redeliver(again.messages[0])
        await harness.consumed("desk", 4, cluster="audit")
        assert desk.seen.count(("audit", "UA1")) == 4
        assert len(harness.calls("depart")) == 1


async def test_groups_of_one_name_in_two_clusters_are_two(desk: ModuleType) -> None:
    async with Harness(desk.app) as harness:
        harness.handler("record").fails(error=OSError("closed"))
        await harness.send("records", "UA1", cluster="audit")
        await harness.drain()
        assert harness.dead_letters("desk") == []
        (letter,) = harness.dead_letters("desk", cluster="audit")
        assert (letter.cluster, str(letter.why)) == ("audit", "closed")
        with harness.freeze("desk", cluster="audit"):
            await harness.send("departures", "UA2")
            await harness.drain()
            assert desk.seen == [("main", "UA2")]
        await harness.drain()
        assert desk.seen == [("main", "UA2"), ("audit", "UA2")]


async def test_faults_are_those_of_one_cluster(desk: ModuleType) -> None:
    async with Harness(desk.app, failures="keep") as harness:
        await harness.send("departures", "UA1")
        with harness.cluster("audit").broker.silence():
            await harness.drain()
            assert isinstance(harness.calls("depart")[0].error, RequestTimeoutError)
            assert desk.seen == [("main", "UA1")]
        with harness.cluster("audit").disk.full():
            await harness.advance("15s")
        assert [call.outcome for call in harness.calls("depart")] == [Outcome.COMES_BACK] * 2
        async with harness.cluster("audit").broker.stopped():
            await harness.send("stocks", "lamp")
            await harness.drain()
            assert ("second", "lamp") in desk.seen
        await harness.advance("10m")
        assert ("audit", "UA1") in desk.seen
        assert "the broker of cluster audit falls silent" in harness.log
        assert "the disk of cluster audit is full" in harness.log


async def test_clusters_with_the_same_servers_are_one(desk: ModuleType) -> None:
    async with Harness(desk.app) as harness:
        await harness.send("stocks", "lamp")  # to the main cluster
        await harness.send("stocks", "cup", cluster="second")
        await harness.drain()
        assert desk.seen == [("second", "lamp"), ("second", "cup")]
        assert len(harness.sent("stocks")) == len(harness.sent("stocks", cluster="second")) == 2
        assert sum(each.end for each in harness.offsets("stock", cluster="second")) == 2


async def test_without_rocketmq_there_is_no_broker(desk: ModuleType) -> None:
    async with Harness(desk.app, settings={"rocketmq.enabled": False}) as harness:
        with pytest.raises(HarnessError, match=r"desk runs without RocketMQ \(rocketmq\.enabled is false\)"):
            harness.broker.silence()


async def test_what_is_in_no_cluster_is_told(desk: ModuleType) -> None:
    async with Harness(desk.app) as harness:
        with pytest.raises(
            HarnessError, match=r"'night' is no cluster of desk .* its further clusters are: audit, sec"
        ):
            harness.cluster("night")
        with pytest.raises(HarnessError, match=r"'stock' is no group of desk; its groups are: desk, asks .*'second'"):
            harness.offsets("stock")
        with pytest.raises(HarnessError, match="'stock' is no group of cluster audit; its groups are: desk"):
            harness.dead_letters("stock", cluster="audit")


def test_several_clusters_in_a_plain_function(desk: ModuleType) -> None:
    with Harness(desk.app) as harness:
        harness.blocking.send("records", "UA1", cluster="audit")
        harness.blocking.consumed("desk", cluster="audit")
        assert harness.sent("late", cluster="audit").one(str) == "recorded UA1"


# --- real addresses --------------------------------------------------------------------------------------------------


@pytest.fixture
def real_server() -> Iterator[str]:
    """Somebody who listens, and must not be connected to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(BlockingIOError):
            server.accept()


async def test_a_client_that_a_service_makes_itself_reaches_no_real_address(desk: ModuleType, real_server: str) -> None:
    async with Harness(desk.app) as harness:
        await harness.send("asks", real_server)
        with pytest.raises(ConnectError, match="no real address is reached from a test's harness"):
            await harness.drain()


async def test_neither_does_the_network_of_the_service(desk: ModuleType, real_server: str) -> None:
    async with Harness(desk.app) as harness:
        remoting = harness.app.get(MQClientInstance).remoting
        with pytest.raises(ConnectError, match="--rocketbox-name-server=host:port"):
            await remoting.request(real_server, RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC), timeout=3)


async def test_outside_of_the_service_the_network_is_what_it_was(desk: ModuleType) -> None:
    options = EmbeddedOptions(data_dir=Path("/store"), port=0, name_server_port=0)
    async with Harness(desk.app) as harness:
        assert harness.app.is_ready
        async with (
            EmbeddedServers(options, storage=MemoryStorage()) as servers,
            MQClientInstance(servers.name_server_address) as instance,
        ):
            assert await instance.find_route("departures") is None


@pytest.mark.parametrize(
    "settings",
    [
        {"rocketmq.name-server": "ns1.example:9876"},
        {"rocketmq": {"nameServer": "ns1.example:9876"}},
        {"rocketmq.clusters": {"audit": {"name_server": "ns1.example:9876"}}},
        {"rocketmq.name-server": False},
    ],
)
async def test_an_address_in_the_settings_of_a_test_is_refused(settings: dict[str, object], desk: ModuleType) -> None:
    told = (
        r"settings= says rocketmq\.(clusters\.audit\.)?name-server: .* no real address .* Harness\(name_server=\.\.\.\)"
    )
    with pytest.raises(HarnessError, match=told):
        Harness(desk.app, settings=settings)


@pytest.mark.parametrize(("main", "shared"), [({"nameServer": "Embedded"}, 1), ({}, 0)])
async def test_embedded_in_the_settings_of_a_test_is_one_cluster_as_anywhere(
    main: dict[str, object], shared: int, desk: ModuleType
) -> None:
    # Two groups of one name that take different topics would lose messages where they meet in one cluster.
    one_of_its_name = {"listeners": {"desk": {"enabled": False}}}
    clusters = {"audit": {"name-server": "embedded"}}
    settings = {"rocketmq": {**main, "consumer": one_of_its_name, "clusters": clusters}}
    async with Harness(desk.app, settings=settings) as harness:
        await harness.send("records", "UA1", cluster="audit")
        await harness.drain()
        assert desk.seen == [("audit", "UA1")]
        assert len(harness.sent("records")) == shared


@pytest.mark.parametrize("main", ["ns1.example:9876", None])
async def test_embedded_in_the_settings_of_a_test_is_another_cluster_than_the_service_s_own_main_one(
    main: str | None, service: ServiceMaker
) -> None:
    said = f"rocketmq: {{name-server: {main}, producer: {{group: desk}}}}" if main else "rocketmq.producer.group: desk"
    desk = service(TWO_DESKS, said)
    one = {"group": "desk", "instance-name": "one"}
    settings = {"rocketmq.producer": one, "rocketmq.clusters.audit": {"name-server": "embedded", "producer": one}}
    async with Harness(desk.app, settings=settings) as harness:
        await harness.send("records", "UA1", cluster="audit")
        await harness.drain()
        assert [call.payload for call in harness.calls("record")] == ["UA1"]
        assert harness.calls("depart") == []
        assert len(harness.sent("records")) == 0


@pytest.mark.parametrize("said", ["embedded", "ns1.example:9876"])
async def test_one_group_in_two_clusters_that_are_one_is_refused_as_in_production(
    said: str, service: ServiceMaker
) -> None:
    desk = service(
        TWO_DESKS,
        f"rocketmq: {{name-server: {said}, producer: {{group: desk}}, clusters: {{audit: {{name-server: {said}}}}}}}",
    )
    with pytest.raises(ConfigurationError, match=f"are one group, for both have the name server {said}"):
        async with Harness(desk.app):
            pass
