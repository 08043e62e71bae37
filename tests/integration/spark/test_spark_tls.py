"""Spark's processes over TLS: a listener tells its tasks what its client has, a source or sink is told itself."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.to_thread
import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from rocketbox.client import Admin, ClientOptions, MQClientInstance, Producer, TlsOptions
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.message import Message
from rocketbox.spark.listener import SparkListenerState
from rocketbox.spark.query_options import OnFailedBatch
from tests.support.certificates import authority, certificate, write
from tests.support.client.consuming import dead_letters
from tests.support.spark.listeners import group_of, spark_listener

pytestmark = [pytest.mark.spark, pytest.mark.anyio]


class Secured:
    """Files and settings of both sides; clients have to show a certificate."""

    def __init__(self, folder: Path) -> None:
        self.ca, _ = write(folder, "ca", authority())
        cert, key = write(folder, "server", certificate())
        self.cert, self.key = write(folder, "client", certificate("client"))
        self.client = ClientOptions(
            tls_enable=True, tls=TlsOptions(ca_file=self.ca, cert_file=self.cert, key_file=self.key)
        )
        self.servers = EmbeddedServers.in_thread(
            EmbeddedOptions(
                data_dir=folder / "store", port=0, name_server_port=0,
                broker={
                    "tls-server-cert-path": str(cert), "tls-server-key-path": str(key),
                    "tls-server-trust-cert-path": str(self.ca), "tls-server-need-client-auth": "require",
                },
            )
        )  # fmt: skip

    def options(self, **others: str) -> dict[str, str]:
        files = {"tlsCaFile": str(self.ca), "tlsCertFile": str(self.cert), "tlsKeyFile": str(self.key)}
        return {"nameServer": self.servers.name_server_address, "tlsEnable": "true", **files, **others}


async def test_a_listener_reads_and_gives_up_over_tls(spark: SparkSession, topic: str, tmp_path: Path) -> None:
    secured, seen = Secured(tmp_path), list[bytes]()

    def handle(rows: DataFrame) -> None:
        seen.extend(bytes(row.body) for row in rows.select("body").collect())
        raise ValueError("never")

    async with (
        secured.servers as servers,
        MQClientInstance(servers.name_server_address, options=secured.client) as client,
        Producer("p", instance=client) as producer,
    ):
        for body in (b"1", b"2"):
            await producer.send(Message(topic, body))
        listener = spark_listener(
            handle, client, topic, tmp_path / "listener", trigger="available_now", max_batch_attempts=1,
            on_failed_batch=OnFailedBatch.DEAD_LETTER,
        )  # fmt: skip
        async with listener:
            await listener.wait()
            assert listener.status is SparkListenerState.FINISHED, listener.error
        assert sorted(seen) == [b"1", b"2"]
        letters = await dead_letters(Admin(instance=client), group_of(topic))
        assert sorted(letter.body for letter in letters) == [b"1", b"2"]


async def test_a_frame_is_written_and_read_over_tls(spark: SparkSession, topic: str, tmp_path: Path) -> None:
    secured = Secured(tmp_path)

    def work() -> None:
        frame = spark.createDataFrame([("a",), ("b",)], "body string")
        frame.write.format("rocketmq").mode("append").options(**secured.options(topic=topic)).save()
        assert read(secured.options(topic=topic)) == ["a", "b"]
        others = (
            ({"tlsCaFile": str(tmp_path / "nothing.pem")}, "option tlsCaFile is .* there is no such file"),
            ({"tlsServerName": "x.example"}, "for another name than x.example"),
        )
        for wrong, said in others:
            with pytest.raises(PySparkException, match=said):
                read(secured.options(topic=topic, **wrong))
        alone = {"nameServer": "127.0.0.1:1", "topic": topic, "tlsCaFile": str(secured.ca)}
        with pytest.raises(PySparkException, match="option tlsCaFile is given and tlsEnable is not"):
            read(alone)

    def read(options: dict[str, str]) -> list[str]:
        frame = spark.read.format("rocketmq").options(**options).load()
        return sorted(row.text for row in frame.selectExpr("cast(body as string) text").collect())

    async with secured.servers:
        await anyio.to_thread.run_sync(work)
