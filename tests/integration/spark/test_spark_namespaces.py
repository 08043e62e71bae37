"""Spark in a namespace: its processes ask for wrapped names, and rows have plain ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from rocketbox.broker.broker import Broker as OneBroker
from rocketbox.broker.extensions import BrokerExtensions
from rocketbox.client import Admin, ClientOptions, MQClientInstance, Producer
from rocketbox.message import Message
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.namespaces import Namespace
from rocketbox.remoting.connection import Connection
from rocketbox.spark.lease import lease_group
from rocketbox.spark.listener import SparkListenerState
from rocketbox.spark.query_options import OnFailedBatch
from tests.support.client.consuming import dead_letters
from tests.support.spark.listeners import group_of, spark_listener
from tests.support.spark.topics import Broker

pytestmark = [pytest.mark.spark, pytest.mark.anyio]

TEAM, TEAM_V2 = ClientOptions(namespace="team"), ClientOptions(namespace_v2="team")


@pytest.mark.parametrize("team", [TEAM, TEAM_V2], ids=["before names", "in a header"])
async def test_a_listener_reads_and_gives_up_in_its_namespace(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path, team: ClientOptions
) -> None:
    """Servers know the names of one in a header as users do."""
    seen: list[tuple[str, bytes]] = []
    group = group_of(topic)

    def handle(rows: DataFrame) -> None:
        seen.extend((row.topic, bytes(row.body)) for row in rows.select("topic", "body").collect())
        raise ValueError("never")

    async with (
        MQClientInstance(broker.name_server, options=team) as instance,
        Producer("p", instance=instance) as producer,
    ):
        whole = Namespace(team.namespace or "").wrap
        for body in (b"1", b"2"):
            await producer.send(Message(topic, body))
        listener = spark_listener(
            handle, instance, topic, tmp_path, trigger="available_now", max_batch_attempts=1,
            on_failed_batch=OnFailedBatch.DEAD_LETTER,
        )  # fmt: skip
        async with listener:
            await listener.wait()
            assert listener.status is SparkListenerState.FINISHED, listener.error
        assert sorted(seen) == [(topic, b"1"), (topic, b"2")]
        admin = Admin(instance=instance)
        letters = await dead_letters(admin, group)
        assert sorted(letter.body for letter in letters) == [b"1", b"2"]
        assert {letter.properties["RETRY_TOPIC"] for letter in letters} == {topic}
        committed = {queue: await admin.committed(group, queue) for queue in await admin.queues(topic)}
    async with Admin(broker.name_server) as outside:
        names = await outside.topic_names()
        used = {topic, f"%RETRY%{group}", f"%DLQ%{group}"}
        assert {whole(name) for name in used} <= set(names)
        assert {name for name in names if topic in name or group in name} == {whole(name) for name in used}
        queues = await outside.queues(whole(topic))
        assert [await outside.committed(whole(group), queue) for queue in queues] == list(committed.values())
        assert sum(offset or 0 for offset in committed.values()) == 2
        (letter, *_) = await dead_letters(outside, whole(group))
        assert letter.properties["RETRY_TOPIC"] == letter.properties["DLQ_ORIGIN_TOPIC"] == whole(topic)
        assert lease_group(group) not in {each.name for each in await outside.groups()}


class OfTeam:
    """Serves those who say in each request that they are in the namespace, as the servers of vendors may."""

    def __init__(self) -> None:
        self.codes: set[int] = set()

    def before(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        self.codes.add(request.code)
        if (request.ext_fields.get("nsd"), request.ext_fields.get("ns")) == ("true", "team"):
            return None
        return RemotingCommand.response(ResponseCode.NO_PERMISSION, "of which namespace?")

    def after(self, connection: Connection, request: RemotingCommand, code: int, frame_bytes: int) -> None: ...


async def test_a_frame_is_written_and_read_in_a_namespace_v2(
    spark: SparkSession, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = OfTeam()
    monkeypatch.setattr("rocketbox.embedded.Broker", partial(OneBroker, extensions=BrokerExtensions(hooks=(hook,))))
    with Broker(tmp_path) as broker:
        said = {"nameServer": broker.name_server, "topic": topic}

        def read(**others: str) -> list[tuple[str, str]]:
            frame = spark.read.format("rocketmq").options(**said, **others).load()
            rows = frame.selectExpr("topic", "cast(body as string) text").collect()
            return sorted((row.topic, row.text) for row in rows)

        def work() -> None:
            frame = spark.createDataFrame([("a",), ("b",)], "body string")
            frame.write.format("rocketmq").mode("append").options(**said, namespaceV2="team").save()
            assert read(namespaceV2="team") == [(topic, "a"), (topic, "b")]
            with pytest.raises(PySparkException, match=r"of which namespace\?"):
                read()

        await anyio.to_thread.run_sync(work)
    assert {RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE} <= hook.codes


async def test_a_frame_is_written_and_read_in_a_namespace(spark: SparkSession, broker: Broker, topic: str) -> None:
    def options(namespace: str | None = "team", **others: Any) -> dict[str, Any]:
        said = {} if namespace is None else {"namespace": namespace}
        return {"nameServer": broker.name_server, "topic": topic, **said, **others}

    def read(**others: Any) -> list[tuple[str, str]]:
        frame = spark.read.format("rocketmq").options(**options(**others)).load()
        return sorted((row.topic, row.text) for row in frame.selectExpr("topic", "cast(body as string) text").collect())

    def work() -> None:
        frame = spark.createDataFrame([("a",), ("b",)], "body string")
        frame.write.format("rocketmq").mode("append").options(**options()).save()
        assert read() == [(topic, "a"), (topic, "b")]
        assert read(namespace=None, topic=f"team%{topic}") == [(f"team%{topic}", "a"), (f"team%{topic}", "b")]
        with pytest.raises(PySparkException, match="does not exist"):
            read(namespace="other")

    await anyio.to_thread.run_sync(work)
