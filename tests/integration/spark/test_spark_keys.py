"""Spark's processes sign their requests, and no key is in what Spark shows."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
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
from rocketbox.client import Admin, ClientOptions, Credentials, MQClientInstance, Producer
from rocketbox.message import Message
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.connection import Connection
from rocketbox.spark.handed_keys import handed_keys
from rocketbox.spark.listener import SparkListenerState
from rocketbox.spark.query_options import OnFailedBatch
from tests.support.client.consuming import dead_letters
from tests.support.spark.listeners import group_of, spark_listener
from tests.support.spark.topics import Broker

pytestmark = [pytest.mark.spark, pytest.mark.anyio]

FIRST = Credentials(access_key="lake-user", secret_key="hunter2-first")
SECOND = Credentials(access_key="lake-user", secret_key="hunter2-second")


class Keys:
    """Lets in who signs with ``taken``."""

    def __init__(self) -> None:
        self.taken = FIRST

    def before(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        fields = dict(request.ext_fields)
        signature, user = fields.pop("Signature", ""), fields.get("AccessKey")
        values = "".join(fields[name] for name in sorted(fields)).encode() + request.body
        right = base64.b64encode(hmac.digest(self.taken.secret_key.encode(), values, hashlib.sha1)).decode()
        if user == self.taken.access_key and signature == right:
            return None
        return RemotingCommand.response(16, "check signature failed.")

    def after(self, connection: Connection, request: RemotingCommand, code: int, frame_bytes: int) -> None:
        pass


@pytest.fixture
def keys() -> Keys:
    return Keys()


@pytest.fixture
def signed(keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A broker that looks at signatures."""
    hooked = partial(OneBroker, extensions=BrokerExtensions(hooks=(keys,)))
    monkeypatch.setattr("rocketbox.embedded.Broker", hooked)
    with Broker(tmp_path / "signed") as running:
        yield running


def contents(folder: Path) -> str:
    return "".join(file.read_text("utf-8", "replace") for file in folder.rglob("*") if file.is_file())


async def test_a_listener_reads_and_gives_up_as_its_user_and_its_plan_shows_no_key(
    spark: SparkSession, signed: Broker, topic: str, tmp_path: Path
) -> None:
    seen: list[bytes] = []
    shown: list[str] = []

    def handle(rows: DataFrame) -> None:
        seen.extend(bytes(row.body) for row in rows.select("body").collect())
        shown.append(rows._jdf.queryExecution().toString())
        shown.extend(str(query.lastProgress) for query in rows.sparkSession.streams.active)
        raise ValueError("never")

    options = ClientOptions(credentials=FIRST)
    async with MQClientInstance(signed.name_server, options=options) as user, Producer("p", instance=user) as producer:
        await producer.send(Message(topic, b"1"))
        with handed_keys(user) as file:
            listener = spark_listener(
                handle, user, topic, tmp_path / "checkpoint", trigger="available_now", max_batch_attempts=1,
                on_failed_batch=OnFailedBatch.DEAD_LETTER, credentials_file=file,
            )  # fmt: skip
            async with listener:
                await listener.wait()
                assert listener.status is SparkListenerState.FINISHED, listener.error
        assert seen == [b"1"]
        letters = await dead_letters(Admin(instance=user), group_of(topic))
        assert [letter.body for letter in letters] == [b"1"]
    conf = json.dumps(spark.sparkContext.getConf().getAll())
    files = contents(tmp_path / "checkpoint")
    for text in (*shown, conf, files):
        assert "hunter2" not in text
        assert "lake-user" not in text


async def test_frames_are_written_and_read_with_keys_from_a_file_that_changes(
    spark: SparkSession, signed: Broker, keys: Keys, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "keys.yaml"
    told: dict[str, Any] = {"nameServer": signed.name_server, "topic": topic, "credentialsFile": str(file)}

    def read(**options: Any) -> list[str]:
        frame = spark.read.format("rocketmq").options(**{**told, **options}).load()
        return sorted(row.text for row in frame.selectExpr("cast(body as string) text").collect())

    def work() -> None:
        file.write_text(f"accessKey: lake-user\nsecretKey: {FIRST.secret_key}\n")
        frame = spark.createDataFrame([("a",), ("b",)], "body string")
        frame.write.format("rocketmq").mode("append").options(**told).save()
        assert read() == ["a", "b"]
        with pytest.raises(PySparkException, match="Spark shows options, so keys go in a file") as caught:
            read(secretKey="hunter2")
        wrong = tmp_path / "wrong.yaml"
        wrong.write_text("accessKey: lake-user\nsecretKey: hunter2-wrong\n")
        with pytest.raises(PySparkException, match=r"the keys of user lake\.\.\. are not taken") as caught:
            read(credentialsFile=str(wrong))
        assert "hunter2" not in str(caught.value)
        keys.taken = SECOND
        file.write_text(f"accessKey: lake-user\nsecretKey: {SECOND.secret_key}\n")

    await anyio.to_thread.run_sync(work)
    with anyio.fail_after(60):
        while True:
            await anyio.sleep(1.5)
            try:
                assert await anyio.to_thread.run_sync(read) == ["a", "b"]
            except PySparkException:
                continue
            break
