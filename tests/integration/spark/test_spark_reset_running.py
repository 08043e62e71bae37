"""``rocketbox spark reset`` asks the brokers whether a driver on another machine runs the query."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

pytest.importorskip("pyspark")

from rocketbox.cli.app import app
from rocketbox.client import ClientOptions, MQClientInstance
from rocketbox.clock import RealClock
from rocketbox.protocol.codes import MASTER_ID, RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import RegisterBrokerRequestHeader
from rocketbox.protocol.namespaces import Namespace
from rocketbox.protocol.registration_bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
    encode_register_broker,
)
from rocketbox.remoting.client import RemotingClient
from rocketbox.spark.lease import Lease
from tests.support.framework.services import ServiceMaker
from tests.support.spark.topics import Broker, rows_of

pytestmark = pytest.mark.anyio

SOURCE = """
from pyspark.sql import DataFrame
from rocketbox import RocketBox, rocketmq_spark_listener

app = RocketBox("flight-desk", scan=[__name__])

@rocketmq_spark_listener(topic="TOPIC", consumer_group="lake", checkpoint="lake")
def to_lake(rows: DataFrame) -> None: ...
"""


KEYS = """
from collections.abc import AsyncIterator
from pathlib import Path
from rocketbox import bean, configuration_properties
from rocketbox.client import Credentials, CredentialsProvider
from pydantic import BaseModel

@configuration_properties("vault")
class VaultProperties(BaseModel):
    key: str = "lake-user"

class Vault(CredentialsProvider):
    def __init__(self, properties: VaultProperties) -> None:
        self.key = properties.key

    async def credentials(self) -> Credentials:
        return Credentials(access_key=self.key, secret_key="secret-of-the-lake")

@bean
async def vault(properties: VaultProperties) -> AsyncIterator[CredentialsProvider]:
    Path("events").write_text("opened")
    yield Vault(properties)
    Path("events").write_text("opened closed")

@bean
def other() -> int:
    raise AssertionError("nobody has asked for this one")
"""


def reset(name: str) -> int:
    with pytest.raises(SystemExit) as ended:
        app(["spark", "reset", name, "--group", "lake", "--yes"])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ("", ClientOptions()),
        ("namespace: team", ClientOptions(namespace="team")),
        ("consumer.namespace: team", ClientOptions(namespace="team")),
        ("namespace-v2: team", ClientOptions(namespace_v2="team")),
    ],
    ids=["in none", "in one", "of the consumers", "in a header"],
)
async def test_a_query_that_runs_on_another_machine_keeps_its_checkpoint(
    service: ServiceMaker, broker: Broker, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], said: str,
    options: ClientOptions,
) -> None:  # fmt: skip
    await anyio.to_thread.run_sync(broker.send, Namespace(options.namespace or "").wrap(topic), rows_of(0, 1))
    settings = f"rocketmq.name-server: {broker.name_server}\n" + (f"rocketmq.{said}\n" if said else "")
    name = service(SOURCE.replace("TOPIC", topic), settings).__name__
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "metadata").write_text(json.dumps({"id": "6f1b"}))
    async with MQClientInstance(broker.name_server, options=options) as instance:
        lease = Lease(instance, "lake", topic, holder="another machine")
        assert (await lease.take()).held
        assert await anyio.to_thread.run_sync(reset, name) == 1
        told = capsys.readouterr().err
        assert f"a query of group lake for topic {topic} runs: another driver holds its lock" in told
        assert "or, where it was killed, wait: the lease of one that is dead ends within 60 s" in " ".join(told.split())
        await lease.release()
        assert await anyio.to_thread.run_sync(reset, name) == 0
    assert not (tmp_path / "lake" / "metadata").exists()


async def test_the_brokers_are_asked_with_the_keys_of_a_bean(
    service: ServiceMaker, broker: Broker, topic: str, tmp_path: Path
) -> None:
    """It is started for that, and closed; no other bean is."""
    await anyio.to_thread.run_sync(broker.send, topic, rows_of(0, 1))
    name = service(SOURCE.replace("TOPIC", topic) + KEYS, f"rocketmq.name-server: {broker.name_server}\n").__name__
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "metadata").write_text(json.dumps({"id": "6f1b"}))
    assert await anyio.to_thread.run_sync(reset, name) == 0
    assert (tmp_path / "events").read_text() == "opened closed"


async def test_a_query_keeps_its_checkpoint_while_a_broker_does_not_say_who_has_its_lease(
    service: ServiceMaker, broker: Broker, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It holds the lease by the other broker, which was not asked any more."""
    await anyio.to_thread.run_sync(broker.send, topic, rows_of(0, 1))
    name = service(SOURCE.replace("TOPIC", topic), f"rocketmq.name-server: {broker.name_server}\n").__name__
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "metadata").write_text(json.dumps({"id": "6f1b"}))
    async with MQClientInstance(broker.name_server) as instance, RemotingClient(clock=RealClock()) as dead:
        lease = Lease(instance, "lake", topic, holder="another machine")
        assert (await lease.take()).held
        header = RegisterBrokerRequestHeader(
            broker_name="a-dead-one", broker_addr="127.0.0.1:1", cluster_name="DefaultCluster", broker_id=MASTER_ID
        )
        topics = TopicConfigSerializeWrapper(
            {each: TopicConfig(topic_name=each) for each in (topic, "a-dead-one")}, DataVersion()
        )
        told = encode_register_broker(RegisterBrokerBody(topics))
        request = RemotingCommand.request(RequestCode.REGISTER_BROKER, header.encode(), told)
        assert (await dead.request(broker.name_server, request, timeout=10)).code == 0
        assert await anyio.to_thread.run_sync(reset, name) == 1
        told_user = " ".join(capsys.readouterr().err.split())
        assert "broker a-dead-one does not give its lock" in told_user
        assert "where none runs on any machine, name its folder by --checkpoint" in told_user
        await lease.release()
    assert (tmp_path / "lake" / "metadata").exists()
