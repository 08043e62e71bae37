"""``rocketbox spark reset`` asks the brokers whether a driver on another machine runs the query."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

pytest.importorskip("pyspark")

from rocketbox.cli.app import app
from rocketbox.client import ClientOptions, MQClientInstance
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


def reset(name: str) -> int:
    with pytest.raises(SystemExit) as ended:
        app(["spark", "reset", name, "--group", "lake", "--yes"])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("said", ["", "namespace: team", "consumer.namespace: team"])
async def test_a_query_that_runs_on_another_machine_keeps_its_checkpoint(
    service: ServiceMaker, broker: Broker, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], said: str
) -> None:
    whole, options = (f"team%{topic}", ClientOptions(namespace="team")) if said else (topic, ClientOptions())
    await anyio.to_thread.run_sync(broker.send, whole, rows_of(0, 1))
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
