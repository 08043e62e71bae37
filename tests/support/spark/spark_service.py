"""A program with one Spark listener, for tests that kill it: each batch is noted in a file when its function begins.

``python spark_service.py name_server topic checkpoint notes hang_in``: hang_in is the id of the batch in which the
function never returns, or -1. The first note holds the number of the Java process.
"""

from __future__ import annotations

import json
import sys
import threading
from functools import partial
from pathlib import Path

import anyio
from pyspark.sql import DataFrame

from rocketbox.client import MQClientInstance
from rocketbox.clock import RealClock
from rocketbox.spark.batch import SparkBatch
from rocketbox.spark.listener import SparkListenerContainer, SparkListenerOptions, read_spark_signature
from rocketbox.spark.session import SparkRuntime

__all__ = ["main"]


async def main(name_server: str, topic: str, checkpoint: str, notes: str, hang_in: str) -> None:
    def note(value: object) -> None:
        with Path(notes).open("a") as output:
            output.write(json.dumps(value) + "\n")

    def handle(rows: DataFrame, batch: SparkBatch) -> None:
        note([batch.id, batch.query_id, sorted(json.loads(bytes(row.body))["row"] for row in rows.collect())])
        if batch.id == int(hang_in):
            threading.Event().wait()

    options = SparkListenerOptions(
        topic=topic,
        group="killed",
        checkpoint=checkpoint,
        trigger="available_now",
        max_messages=10,
    )
    conf = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    async with MQClientInstance(name_server) as instance, SparkRuntime("killed", conf) as runtime:
        spark = await runtime.session()
        note(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
        container = SparkListenerContainer(
            options,
            read_spark_signature(handle),
            runtime=runtime,
            instance=instance,
            provider=lambda hint: lambda: None,
            clock=RealClock(),
        )
        async with container:
            await container.wait()


if __name__ == "__main__":
    _, *arguments = sys.argv
    anyio.run(partial(main, *arguments))
