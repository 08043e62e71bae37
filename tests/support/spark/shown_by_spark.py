"""A program that reads and writes with secrets of every kind, and keeps all that Spark shows meanwhile.

``python shown_by_spark.py folder secrets.json``: the secrets by their kinds, see ``SECRETS`` in the test. A listener, a
stream, a batch read and a write go to an embedded broker over TLS with access control; behind them a read whose keys
are refused. ``folder/events`` has Spark's event log, ``folder/pages`` the pages of its UI; what the processes log, the
driver's at DEBUG, goes to stdout and stderr.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import anyio
import anyio.to_thread
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from rocketbox.client import ClientOptions, Credentials, MQClientInstance, TlsOptions
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.spark.handed_keys import handed_keys
from rocketbox.spark.listener import SparkListenerState
from rocketbox.spark.session import SparkRuntime
from tests.support.certificates import authority, certificate, write
from tests.support.spark.listeners import spark_listener

__all__ = ["main"]

PAGES = (
    "environment/", "jobs/", "stages/", "executors/", "storage/", "SQL/", "StreamingQuery/",
    "api/v1/applications/{app}/environment", "api/v1/applications/{app}/jobs", "api/v1/applications/{app}/stages",
    "api/v1/applications/{app}/sql?details=true&planDescription=true&length=1000",
)  # fmt: skip


def main(folder: Path, secrets: dict[str, str]) -> None:
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    for chatty in ("py4j", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.INFO)
    ca, _ = write(folder, "ca", authority())
    cert, key = write(folder, "server", certificate())
    own_cert, own_key = write(folder, "client", certificate("client"))
    user = {"username": "admin-user", "password": secrets["access control"]}
    broker = {
        "tls-server-cert-path": str(cert), "tls-server-key-path": str(key), "tls-server-trust-cert-path": str(ca),
        "tls-server-need-client-auth": "require",
        "authentication-enabled": "true", "init-authentication-user": json.dumps(user),
    }  # fmt: skip
    options = EmbeddedOptions(data_dir=folder / "store", port=0, name_server_port=0, broker=broker)
    with EmbeddedServers.in_thread(options) as servers:
        anyio.run(use, folder, secrets, servers.name_server_address, (ca, own_cert, own_key))


async def use(folder: Path, secrets: dict[str, str], name_server: str, files: tuple[Path, Path, Path]) -> None:
    ca, cert, key = files
    keys = Credentials(access_key="admin-user", secret_key=secrets["access control"], security_token=secrets["token"])
    tls = TlsOptions(ca_file=ca, cert_file=cert, key_file=key)
    conf = {
        "spark.ui.enabled": "true", "spark.ui.port": "0", "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false", "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.hadoop.fs.s3a.secret.key": secrets["a setting of Spark"],
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.sql.shuffle.partitions": "1",
    }  # fmt: skip
    (folder / "events").mkdir()
    client = ClientOptions(credentials=keys, tls_enable=True, tls=tls)
    async with SparkRuntime("shown", conf) as runtime, MQClientInstance(name_server, options=client) as instance:
        spark = await runtime.session()
        spark.sparkContext.setLogLevel("INFO")
        with handed_keys(instance) as file:
            told = {
                "nameServer": name_server, "tlsEnable": "true", "tlsCaFile": str(ca), "tlsCertFile": str(cert),
                "tlsKeyFile": str(key), "credentialsFile": str(file), "topic": "t",
            }  # fmt: skip
            await anyio.to_thread.run_sync(write_read_and_stream, spark, told, folder)
            listener = spark_listener(
                count, instance, "t", folder / "listener",
                runtime=runtime, trigger="available_now", starting_offsets="earliest", credentials_file=file,
            )  # fmt: skip
            async with listener:
                await listener.wait()
                assert listener.status is SparkListenerState.FINISHED, listener.error
        await anyio.to_thread.run_sync(be_refused, spark, told, folder, secrets["refused"])
        await anyio.to_thread.run_sync(fetch_pages, spark, folder)


def count(rows: DataFrame) -> None:
    assert rows.count() == 4


def write_read_and_stream(spark: SparkSession, told: dict[str, str], folder: Path) -> None:
    frame = spark.createDataFrame([(str(number),) for number in range(4)], "body string")
    frame.write.format("rocketmq").mode("append").options(**told).save()
    assert spark.read.format("rocketmq").options(**told).load().count() == 4
    seen: list[int] = []
    stream = spark.readStream.format("rocketmq").options(**told, group="g", commitOffsets="true").load()
    writer = stream.writeStream.foreachBatch(lambda rows, _: seen.append(rows.count()))
    writer.option("checkpointLocation", str(folder / "stream")).trigger(availableNow=True).start().awaitTermination()
    assert seen == [4]


def be_refused(spark: SparkSession, told: dict[str, str], folder: Path, secret: str) -> None:
    wrong = folder / "wrong.json"
    wrong.write_text(json.dumps({"accessKey": "admin-user", "secretKey": secret}))
    refused: tuple[Callable[[], Any], ...] = (
        spark.read.format("rocketmq").options(**{**told, "credentialsFile": str(wrong)}).load().count,
        spark.createDataFrame([("1",)], "body string").write.format("rocketmq").mode("append")
        .options(**{**told, "credentialsFile": str(wrong)}).save,
        lambda: spark.read.format("rocketmq").options(**told, secretKey=secret).load().count(),
    )  # fmt: skip
    for action in refused:
        try:
            action()
        except PySparkException as error:
            print("refused:", error)
        else:
            raise AssertionError("it was not refused")


def fetch_pages(spark: SparkSession, folder: Path) -> None:
    context = spark.sparkContext
    pages = folder / "pages"
    pages.mkdir()

    def fetch(path: str) -> str:
        with urlopen(f"{context.uiWebUrl}/{path}") as answer:
            text: str = answer.read().decode()
        (pages / f"{len(list(pages.iterdir()))}.txt").write_text(f"{path}\n{text}")
        return text

    for path in PAGES:
        text = fetch(path.format(app=context.applicationId))
    for plan in json.loads(text):
        fetch(f"SQL/execution/?id={plan['id']}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
