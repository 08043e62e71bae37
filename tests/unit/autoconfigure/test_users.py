"""Which clients a cluster has: by whose keys are said where, and what is told of them."""

from __future__ import annotations

import itertools
from contextlib import AsyncExitStack, nullcontext
from types import ModuleType

import pytest
from typer.testing import CliRunner

from rocketbox.autoconfigure.assembly import Assembly
from rocketbox.autoconfigure.rocketmq import _expect_an_answer
from rocketbox.autoconfigure.service import of_cluster
from rocketbox.autoconfigure.users import ClientInstances, ClusterClients
from rocketbox.boot.marks import Phase
from rocketbox.cli.app import app as cli
from rocketbox.client import ClientOptions, Credentials, MQClientInstance, Producer
from rocketbox.client.local_offsets import default_offset_dir
from rocketbox.errors import ConfigurationError
from rocketbox.listeners.options import GroupOptions, consumer_options
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.clocks import VirtualClock
from tests.support.framework.services import ServiceMaker

HEAD = """
from rocketbox import RocketBox, rocketmq_listener
app = RocketBox("desk", scan=[__name__])
"""

LISTENER = """
@rocketmq_listener(topic="departures", consumer_group="{group}"{more})
async def on_{group}(body: bytes) -> None: ...
"""

BASE = "rocketmq.name-server: ns:9876\nrocketmq.producer.group: flights\n"
SECRET = "hunter2"


def listener(group: str = "board", **more: str) -> str:
    return LISTENER.format(group=group, more="".join(f", {name}={value!r}" for name, value in more.items()))


def keys(section: str, user: str) -> str:
    return f"rocketmq.{section}: {{access-key: {user}, secret-key: {SECRET}-of-{user}}}\n"


def module_of(service: ServiceMaker, text: str, source: str) -> ModuleType:
    return service(HEAD + source, text)


def clients_of(service: ServiceMaker, text: str, source: str, cluster: str = "") -> ClusterClients:
    assembly = module_of(service, text, source).app.look()
    assert isinstance(assembly, Assembly)
    assert assembly.findings == []
    return assembly.clients.clusters[cluster]


def names(clients: ClusterClients) -> list[str | None]:
    credentials = [client.user.credentials for client in clients.clients]
    return [each.access_key if isinstance(each, Credentials) else None for each in credentials]


PLACES = {  # whose: the user that is said there; the cluster's is written as two keys of their own
    "cluster": "common",
    "producer": "publisher",
    "consumer": "subscriber",
    "decorator": "decorated",
    "listeners.board": "boarding",
}


@pytest.mark.parametrize("places", [
    combination for size in range(6) for combination in itertools.combinations(PLACES, size)
])  # fmt: skip
def test_who_is_who_for_all_places_of_keys(service: ServiceMaker, places: tuple[str, ...]) -> None:
    """The whole table: each combination of places that say keys, each a user of its own."""
    text = BASE
    if "cluster" in places:
        text += f"rocketmq.access-key: common\nrocketmq.secret-key: {SECRET}-of-common\n"
    for section in ("producer", "consumer"):
        if section in places:
            text += keys(section, PLACES[section])
    if "listeners.board" in places:
        text += keys("consumer.listeners.board", "boarding")
    said = {"access_key": "decorated", "secret_key": f"{SECRET}-of-decorated"} if "decorator" in places else {}
    clients = clients_of(service, text, listener("board", **said) + listener("audit"))

    def first(*order: str) -> str | None:
        return next((PLACES[place] for place in order if place in places), None)

    expected = {
        "producer": first("producer", "cluster"),
        "board": first("listeners.board", "decorator", "consumer", "cluster"),
        "audit": first("consumer", "cluster"),
    }
    assert names(clients) == list(dict.fromkeys(expected.values())), "one client for each user, the producer's first"
    for who, client in (("producer", clients.producer), *clients.groups.items()):
        user = expected[who]
        assert client in clients.clients
        assert client.user.credentials == (
            None if user is None else Credentials(access_key=user, secret_key=f"{SECRET}-of-{user}")
        )


def test_equal_keys_in_all_places_are_one_client(service: ServiceMaker) -> None:
    text = BASE + "".join(keys(section, "one") for section in ("producer", "consumer", "consumer.listeners.board"))
    text += f"rocketmq.access-key: one\nrocketmq.secret-key: {SECRET}-of-one\n"
    clients = clients_of(service, text, listener(access_key="one", secret_key=f"{SECRET}-of-one"))
    assert names(clients) == ["one"]
    assert clients.clients[0].used_by == ("producer group flights", "listener group board")


def test_another_secret_of_the_same_user_is_another_client(service: ServiceMaker) -> None:
    text = BASE + keys("producer", "one") + f"rocketmq.consumer: {{access-key: one, secret-key: {SECRET}-rotated}}\n"
    assert len(clients_of(service, text, listener()).clients) == 2


def test_the_token_goes_with_the_clusters_keys_alone(service: ServiceMaker) -> None:
    text = BASE + "rocketmq.access-key: lent\nrocketmq.secret-key: hunter2\nrocketmq.security-token: until-noon\n"
    text += keys("consumer", "own")
    producer, consumer = clients_of(service, text, listener()).clients
    assert producer.user.credentials == Credentials(
        access_key="lent", secret_key="hunter2", security_token="until-noon"
    )
    assert isinstance(consumer.user.credentials, Credentials)
    assert consumer.user.credentials.security_token is None


@pytest.mark.parametrize(
    ("text", "source", "user"),
    [
        (keys("consumer", "subscriber"), "", "subscriber"),
        (keys("pull-consumer", "puller") + keys("consumer", "subscriber"), "", "subscriber"),
        (keys("consumer", "subscriber"), listener(), "subscriber"),
        (keys("producer", "publisher") + keys("consumer", "subscriber"), listener(), "subscriber"),
        (keys("producer", "publisher"), "", "publisher"),
    ],
)
def test_a_cluster_without_a_producer_has_the_client_of_who_uses_it(
    service: ServiceMaker, text: str, source: str, user: str
) -> None:
    assert names(clients_of(service, "rocketmq.name-server: ns:9876\n" + text, source)) == [user]


def test_further_clusters_have_users_of_their_own(service: ServiceMaker) -> None:
    text = BASE + keys("producer", "publisher")
    text += "rocketmq.clusters.audit: {name-server: a:1, access-key: auditor, secret-key: hunter2, producer.group: a}\n"
    source = listener() + listener("trail", cluster="audit")
    assert names(clients_of(service, text, source)) == ["publisher", None]
    assert names(clients_of(service, text, source, "audit")) == ["auditor"]


# --- names of clients -------------------------------------------------------------------------------------------------


def test_two_users_may_have_two_names_and_not_one(service: ServiceMaker) -> None:
    text = BASE + keys("producer", "publisher") + keys("consumer", "subscriber")
    two = text + "rocketmq.producer.instance-name: out\nrocketmq.consumer.instance-name: in\n"
    assert [client.instance_name for client in clients_of(service, two, listener()).clients] == ["out", "in"]
    one = text + "rocketmq.producer.instance-name: gate\nrocketmq.consumer.instance-name: gate\n"
    (finding,) = module_of(service, one, listener()).app.look().findings
    assert finding.what == (
        "rocketmq.producer.instance-name and rocketmq.consumer.instance-name is gate for 2 clients, since there are as "
        "many users (signs as publ..., used by producer group flights; signs as subs..., used by listener group board)"
    )
    assert finding.fix.startswith("leave it out")
    alone = text + "rocketmq.producer.instance-name: gate\n"
    assert [client.instance_name for client in clients_of(service, alone, listener()).clients] == ["gate", "DEFAULT"]


def test_two_groups_with_keys_of_their_own_cannot_have_one_name(service: ServiceMaker) -> None:
    text = BASE + keys("consumer", "subscriber") + "rocketmq.consumer.instance-name: gate\n"
    source = listener() + listener("audit", access_key="auditor", secret_key="hunter3")
    (finding,) = module_of(service, text, source).app.look().findings
    assert finding.what.startswith("rocketmq.consumer.instance-name is gate for 2 clients")


@pytest.mark.parametrize(("address", "name", "refused"), [
    ("ns:9876", "gate", True),
    ("ns:9876", "exit", False),
    ("other:9876", "gate", False),
    ("ns:9876", "DEFAULT", False),
])  # fmt: skip
def test_one_cluster_under_two_names_has_clients_of_two_names(
    service: ServiceMaker, address: str, name: str, refused: bool
) -> None:
    text = BASE + "rocketmq.producer.instance-name: gate\n"
    text += f"rocketmq.clusters.audit: {{name-server: '{address}', producer: {{group: a, instance-name: {name}}}}}\n"
    told = [finding.what for finding in module_of(service, text, "").app.look().findings]
    assert told == (
        [
            "rocketmq.producer.instance-name and rocketmq.clusters.audit.producer.instance-name are both gate, and the "
            "name server is the same"
        ]
        if refused
        else []
    )


@pytest.mark.parametrize(("cluster", "folder"), [("audit", "cluster-audit"), ("../eu", "cluster-..%2Feu")])
def test_what_broadcasting_groups_of_a_further_cluster_consumed_is_kept_apart(cluster: str, folder: str) -> None:
    assert consumer_options(GroupOptions()).local_offset_dir is None, "where Java's clients have it"
    assert consumer_options(GroupOptions(), cluster=cluster).local_offset_dir == default_offset_dir() / folder


# --- what is built, and told ------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_each_user_gets_a_client_of_its_own_and_all_end_together(service: ServiceMaker) -> None:
    text = BASE + "rocketmq.startup: retry\n" + keys("producer", "publisher") + keys("consumer", "subscriber")
    text += "rocketmq.clusters.audit: {name-server: a:1, startup: retry, producer.group: a}\n"
    assembly = module_of(service, text, listener() + listener("trail", cluster="audit")).app.look()
    async with AsyncExitStack() as stack:
        await assembly.container.start(Phase.CLIENT, stack)
        main: ClientInstances = assembly.container.resolve(of_cluster(ClientInstances, None))
        audit: ClientInstances = assembly.container.resolve(of_cluster(ClientInstances, "audit"))
        first = assembly.container.resolve(MQClientInstance)
        producer = assembly.container.resolve(Producer)
        assert producer.instance is main.producer is first
        instances = [first, main.group("board"), audit.producer]
        assert audit.group("trail") is audit.producer
        assert len({instance.client_id for instance in instances}) == 3
        assert len({id(instance.routes) for instance in instances}) == 3
        signed = [instance.remoting.credentials for instance in instances]
        assert [each and each.access_key for each in signed] == [
            "publisher", "subscriber", None,
        ]  # fmt: skip
        assert first.cached_bytes is main.group("board").cached_bytes is audit.producer.cached_bytes
    assert [instance.running for instance in instances] == [False] * 3


def test_the_clients_are_told_by_check_and_no_key_is(service: ServiceMaker) -> None:
    text = BASE + keys("producer", "publisher") + keys("consumer", "subscriber")
    module = module_of(service, text, listener())
    output = CliRunner().invoke(cli, ["check", f"{module.__name__}:app"]).output
    assert output.splitlines()[:2] == [
        "client: name server ns:9876, signs as publ..., used by producer group flights",
        "client: name server ns:9876, signs as subs..., used by listener group board",
    ]
    assert SECRET not in output
    assert "publisher" not in output


def test_users_whose_keys_begin_alike_are_told_apart(service: ServiceMaker) -> None:
    text = BASE + keys("producer", "flight-out") + keys("consumer", "flight-in")
    lines = list(module_of(service, text, listener()).app.look().describe_clients())
    assert lines == [
        "client: name server ns:9876, signs as flig... (key 1 of 2 that begin so), used by producer group flights",
        "client: name server ns:9876, signs as flig... (key 2 of 2 that begin so), used by listener group board",
    ]
    same = BASE + keys("producer", "flight-out") + keys("consumer", "flight-out")
    source = listener() + listener("audit", namespace="team")
    assert "begin so" not in "".join(module_of(service, same, source).app.look().describe_clients())


def test_one_client_that_signs_nothing_is_not_worth_a_line(service: ServiceMaker) -> None:
    assert list(module_of(service, BASE, listener()).app.look().describe_clients()) == []


SPARK = """
from pyspark.sql import DataFrame
from rocketbox import rocketmq_spark_listener

@rocketmq_spark_listener(topic="departures", consumer_group="lake")
def to_lake(departures: DataFrame) -> None: ...
"""


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("rocketmq.access-key: common\nrocketmq.secret-key: hunter2\n", "signs as com..."),
        (keys("consumer", "subscriber"), "signs as subs..."),
        (keys("consumer", "subscriber") + keys("consumer.listeners.lake", "boarding"), "signs as boar..."),
        (
            keys("consumer", "subscriber") + "rocketmq.consumer.listeners.lake.credentials-file: lake.yaml\n",
            "signs with the keys in lake.yaml",
        ),
    ],
)
def test_a_spark_listener_is_the_user_of_its_group_and_keys_stay_on_this_machine(
    service: ServiceMaker, text: str, user: str
) -> None:
    pytest.importorskip("pyspark")
    clients = clients_of(service, BASE + text, SPARK)
    assert str(clients.groups["lake"].user) == user
    elsewhere = "rocketbox.spark: {conf: {spark.master: 'spark://cluster:7077'}, checkpoint: /mnt/lake}\n"
    findings = module_of(service, BASE + text + elsewhere, SPARK).app.look().findings
    if "keys in" in user:
        assert findings == []
        return
    (finding,) = findings
    assert "group 'lake' of a Spark listener has keys from the settings or a bean" in finding.what
    assert "say rocketmq.credentials-file" in str(finding.fix)
    assert (finding.where or "").endswith(".py:7")


@pytest.mark.parametrize("remark", ["No default permission for topic:TBW102", "no matched policies."])
@pytest.mark.anyio
async def test_a_name_server_that_takes_the_keys_answers_whatever_they_may(service: ServiceMaker, remark: str) -> None:
    """What is asked for is any topic, to which nobody needs a right."""
    assembly = module_of(service, BASE, listener()).app.look()
    code, keys = ResponseCode.NO_PERMISSION, Credentials(access_key="publisher", secret_key="secret")
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.name_server.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _, request: RemotingCommand.response(
            code, remark
        )
        for options, is_refused in ((ClientOptions(credentials=keys), False), (ClientOptions(), True)):
            address, clock, network = cluster.name_server.address, cluster.clock, cluster.network
            async with MQClientInstance(address, options=options, clock=clock, network=network) as instance:
                with pytest.raises(ConfigurationError) if is_refused else nullcontext():
                    await _expect_an_answer(instance, "rocketmq.name-server", assembly.service)


@pytest.mark.anyio
async def test_a_start_says_who_is_denied_access_and_why(service: ServiceMaker) -> None:
    assembly = module_of(service, BASE, listener()).app.look()
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.name_server.scripts[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _, request: RemotingCommand.response(
            ResponseCode.NO_PERMISSION, "User:publisher is not found."
        )
        address = cluster.name_server.address
        async with MQClientInstance(address, clock=cluster.clock, network=cluster.network) as instance:
            with pytest.raises(ConfigurationError, match=r"User:publ\.\.\. is not found") as caught:
                await _expect_an_answer(instance, "rocketmq.name-server", assembly.service)
    (finding,) = caught.value.findings
    assert finding.where is not None
    assert finding.where.endswith("rocketbox.yaml:1:23")
