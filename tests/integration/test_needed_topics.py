"""Topics as settings: made or looked at before anything sends or listens, and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rocketbox.autoconfigure import topics
from rocketbox.client import Admin, MQClientInstance, needed_topics
from rocketbox.client.needed_topics import TopicState
from rocketbox.client.options import TopicOptions
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.errors import ConfigurationError
from rocketbox.protocol.codes import PermName
from tests.support.framework.services import SETTINGS, ServiceMaker
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

SERVICE = """
from rocketbox import RocketBox, rocketmq_listener

app = RocketBox("desk", scan=[__name__])

@rocketmq_listener(topic="payments", consumer_group="desk")
async def on_payment(body: bytes) -> None: ...
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # what is special here is the same on each loop


def options(folder: Path, **broker: str) -> EmbeddedOptions:
    own = {"mapped-file-size-commit-log": "1MB", **broker}
    return EmbeddedOptions(data_dir=folder / "elsewhere", port=0, name_server_port=0, broker=own)


async def test_a_listener_is_ready_at_once_on_a_topic_that_nobody_has_sent_to(service: ServiceMaker) -> None:
    topics = "rocketmq.topics:\n  payments: {queues: 12}\n  refunds: {}\n"
    module = service(SERVICE, SETTINGS + topics + "rocketbox.embedded.auto-create-topic-enable: false\n")
    async with module.app as app:
        assert app.is_ready, "without a send, and without a look for its route a second later"
        await app.template.send("refunds", b"x")
        async with Admin(instance=app.get(MQClientInstance)) as admin:
            assert len(await admin.queues("payments")) == 12
            assert len(await admin.queues("refunds")) == 8


async def test_a_topic_is_made_as_the_settings_say(service: ServiceMaker) -> None:
    topics = """
    rocketmq.topics.payments:
      queues: 3
      perm: READ
      order: true
      attributes: {message.type: FIFO}
    """
    module = service(SERVICE, SETTINGS + "\n".join(line[4:] for line in topics.splitlines()) + "\n")
    async with module.app as app, Admin(instance=app.get(MQClientInstance)) as admin:
        (found,) = [each for each in await admin.topics() if each.name == "payments"]
        (config,) = found.brokers.values()
    assert (config.read_queue_nums, config.write_queue_nums, config.perm, config.order) == (3, 3, 4, True)
    assert dict(config.attributes) == {"message.type": "FIFO"}


async def test_a_topic_that_is_there_is_never_changed_and_a_difference_is_told(
    service: ServiceMaker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        EmbeddedServers(options(tmp_path)) as servers,
        Admin(name_server=servers.name_server_address) as admin,
    ):
        await admin.create_topic("payments", queues=4, perm=PermName.READ | PermName.WRITE)
        settings = f"rocketmq.name-server: {servers.name_server_address}\nrocketmq.topics.payments.queues: 12\n"
        module = service(SERVICE, settings)
        with caplog.at_level(logging.WARNING):
            async with module.app:
                assert len(await admin.queues("payments")) == 4
    assert (
        "rocketmq.topics.payments.queues is 12, and on broker-a it is 4 (rocketbox.yaml:2:34): a topic that is there "
        "is not changed"
    ) in caplog.text


async def test_the_same_settings_again_are_no_difference(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    topics = "rocketmq.topics.payments: {queues: 3, perm: read-write, order: false, attributes: {message.type: FIFO}}\n"
    module = service(SERVICE, SETTINGS + topics)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            async with module.app:
                pass
    assert caplog.text.count("topic payments is made on broker-a") == 1
    assert "is not changed" not in caplog.text


async def test_check_refuses_what_is_missing_or_otherwise_and_makes_nothing(
    service: ServiceMaker, tmp_path: Path
) -> None:
    async with (
        EmbeddedServers(options(tmp_path)) as servers,
        Admin(name_server=servers.name_server_address) as admin,
    ):
        await admin.create_topic("payments", queues=4)
        settings = f"""
rocketmq:
  name-server: {servers.name_server_address}
  topics-mode: check
  topics: {{payments: {{queues: 12, attributes: {{message.type: FIFO}}}}, refunds: {{}}}}
"""
        with pytest.raises(ConfigurationError) as caught:
            async with service(SERVICE, settings).app:
                pass
        assert [(each.what, each.where, each.fix) for each in caught.value.findings] == [
            (
                "rocketmq.topics.payments.queues is 12, and on broker-a it is 4",
                "rocketbox.yaml:4:31",
                "change the topic or the key, or let rocketmq.topics-mode be ignore",
            ),
            (
                "rocketmq.topics.payments.attributes.message.type is FIFO, and on broker-a it is not set",
                "rocketbox.yaml:4:62",
                "change the topic or the key, or let rocketmq.topics-mode be ignore",
            ),
            (
                "rocketmq.topics.refunds: there is no topic refunds on broker-a",
                "rocketbox.yaml:4:79",
                "create it, or let rocketmq.topics-mode be create",
            ),
        ]
        assert "refunds" not in {each.name for each in await admin.topics()}


async def test_ignore_asks_for_nothing(service: ServiceMaker) -> None:
    settings = SETTINGS + "rocketmq.topics.payments: {queues: 3}\nrocketmq.topics-mode: ignore\n"
    async with service(SERVICE, settings).app as app, Admin(instance=app.get(MQClientInstance)) as admin:
        assert "payments" not in {each.name for each in await admin.topics()}


async def test_each_cluster_has_its_own_topics(service: ServiceMaker, tmp_path: Path) -> None:
    async with EmbeddedServers(options(tmp_path)) as servers:
        more = f"rocketmq.clusters.audit: {{name-server: '{servers.name_server_address}', topics.audits.queues: 2}}\n"
        async with service(SERVICE, SETTINGS + more).app as app:
            async with Admin(name_server=servers.name_server_address) as audit:
                assert len(await audit.queues("audits")) == 2
            async with Admin(instance=app.get(MQClientInstance)) as main:
                assert "audits" not in {each.name for each in await main.topics()}


async def test_a_broker_that_refuses_ends_the_start_with_what_to_do(service: ServiceMaker) -> None:
    settings = SETTINGS + "rocketmq.topics.payments: {queues: 50}\nrocketbox.embedded.max-queues-per-topic: 20\n"
    with pytest.raises(ConfigurationError) as caught:
        async with service(SERVICE, settings).app:
            pass
    (finding,) = caught.value.findings
    assert finding.what.startswith("rocketmq.topics.payments: topic payments cannot be made: ")
    assert "20" in finding.what
    assert "denies access" not in finding.what, "it is no matter of keys"
    assert finding.fix == "write at most 20, or let max-queues-per-topic of the broker be more"


async def test_with_retry_they_are_made_when_the_servers_answer(
    service: ServiceMaker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with EmbeddedServers(options(tmp_path)) as servers:
        address = servers.name_server_address
    settings = f"rocketmq: {{name-server: '{address}', startup: retry, topics.payments.queues: 3}}\n"
    again = EmbeddedOptions(
        data_dir=tmp_path / "elsewhere", port=0, name_server_port=int(address.rpartition(":")[2]),
        broker={"mapped-file-size-commit-log": "1MB"},
    )  # fmt: skip
    async with service(SERVICE, settings).app as app:
        assert "are looked after when the servers answer" in caplog.text
        async with EmbeddedServers(again):
            await until(lambda: app.is_ready)
            async with Admin(name_server=address) as admin:
                assert len(await admin.queues("payments")) == 3
            assert app.health().components["topics"].details == {"made": ["payments"]}


@pytest.mark.parametrize("startup", ["fail", "retry"])
async def test_brokers_that_are_not_known_end_the_start_or_are_waited_for(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture, startup: str
) -> None:
    settings = SETTINGS + f"rocketmq.startup: {startup}\nrocketmq.topics.payments.cluster: elsewhere\n"
    app = service(SERVICE, settings).app
    if startup == "retry":
        async with app:
            health = app.health().components["topics"]
            assert (health.works, app.is_ready) == (False, False)
            assert "topics below rocketmq.topics wait for the servers: there is no cluster" in health.reasons[0]
        assert "are looked after when the servers answer: there is no cluster 'elsewhere'" in caplog.text
        return
    with pytest.raises(ConfigurationError) as caught:
        async with app:
            pass
    (finding,) = caught.value.findings
    assert finding.what.startswith("rocketmq.topics.payments: topic payments cannot be made: there is no cluster")
    assert finding.fix == "see that its brokers run and are known; rocketmq.topics.payments.cluster names their cluster"


async def test_a_misspelt_cluster_is_told_with_the_one_that_is_meant(service: ServiceMaker) -> None:
    with pytest.raises(ConfigurationError) as caught:
        async with service(SERVICE, SETTINGS + "rocketmq.topics.payments.cluster: DefaultClustr\n").app:
            pass
    (finding,) = caught.value.findings
    assert "there is no cluster 'DefaultClustr'; the name server knows DefaultCluster" in finding.what
    assert finding.fix == "did you mean rocketmq.topics.payments.cluster: DefaultCluster?"


async def test_a_cluster_with_nearly_the_name_of_another_is_waited_for_while_other_topics_are_made(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    settings = SETTINGS.replace("rocketmq:", "rocketbox.embedded.broker-cluster-name: prod-a\nrocketmq:", 1)
    topics = "rocketmq.startup: retry\nrocketmq.topics: {payments: {cluster: prod-b}, refunds: {cluster: prod-a}}\n"
    async with service(SERVICE, settings + topics).app as app:
        (reason,) = app.health().components["topics"].reasons
        assert "there is no cluster 'prod-b'; the name server knows prod-a (did you mean prod-a?)" in reason
        async with Admin(instance=app.get(MQClientInstance)) as admin:
            assert len(await admin.queues("refunds")) == 8
    assert "(did you mean prod-a?)" in caplog.text


async def test_a_topic_that_was_looked_after_is_left_alone_while_another_is_waited_for(
    service: ServiceMaker, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "RETRY_PAUSE", 0.01)
    asked: list[str] = []

    async def find_topic(admin: Admin, name: str, needed: TopicOptions) -> TopicState:
        asked.append(name)
        return await needed_topics.find_topic(admin, name, needed)

    monkeypatch.setattr(topics, "find_topic", find_topic)
    async with EmbeddedServers(options(tmp_path)) as servers:
        async with Admin(name_server=servers.name_server_address) as admin:
            await admin.create_topic("refunds", queues=4)
        settings = f"rocketmq: {{name-server: '{servers.name_server_address}', startup: retry, producer.group: desk}}\n"
        needed = "rocketmq.topics: {payments: {cluster: elsewhere}, refunds: {queues: 3}}\n"
        async with service(SERVICE, settings + needed).app:
            await until(lambda: asked.count("payments") > 2)
    assert asked.count("refunds") == 1
    assert caplog.text.count("a topic that is there is not changed") == 1


async def test_health_says_for_what_the_topics_wait_now(
    service: ServiceMaker, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "RETRY_PAUSE", 0.05)
    async with EmbeddedServers(options(tmp_path)) as servers:
        address = servers.name_server_address
    settings = f"rocketmq: {{name-server: '{address}', startup: retry, topics.payments.cluster: elsewhere}}\n"
    again = EmbeddedOptions(
        data_dir=tmp_path / "elsewhere", port=0, name_server_port=int(address.rpartition(":")[2]),
        broker={"mapped-file-size-commit-log": "1MB"},
    )  # fmt: skip

    def reason() -> str:
        return str(app.health().components["topics"].reasons[0])

    async with service(SERVICE, settings).app as app:
        assert "there is no cluster" not in reason()
        async with EmbeddedServers(again):
            await until(lambda: "wait for the servers: there is no cluster 'elsewhere'" in reason())
            lines = [each.message for each in caplog.records]  # another reason comes when the servers have gone
    told = [each for each in lines if "are looked after when the servers answer" in each]
    assert len(told) == len({each.partition(": ")[2][:20] for each in told}) >= 2, "each reason once, not each second"


async def test_a_name_that_is_none_is_told_before_the_start(service: ServiceMaker) -> None:
    settings = SETTINGS + "rocketmq.topics: {bad topic: {}, SCHEDULE_TOPIC_XXXX: {}}\n"
    found = service(SERVICE, settings).app.look().findings
    assert [finding.what.partition(":")[0] for finding in found] == [
        "rocketmq.topics.bad topic",
        "rocketmq.topics.SCHEDULE_TOPIC_XXXX",
    ]
    assert all(finding.where for finding in found)


async def test_an_option_of_a_topic_has_its_bounds(service: ServiceMaker) -> None:
    with pytest.raises(ConfigurationError) as caught:
        service(SERVICE, SETTINGS + "rocketmq.topics.payments: {queues: 0, quues: 1}\n").app.look()
    assert [finding.what for finding in caught.value.findings] == [
        "unknown key rocketmq.topics.payments.quues",
        "rocketmq.topics.payments.queues is '0', and must be 1 or more",
    ]
