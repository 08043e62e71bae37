"""A program with one Spark listener, for tests that kill it: each batch is noted in a file when its function begins.

``python -m tests.support.spark.spark_service name_server topic checkpoint notes hang_in``: hang_in is the id of the
batch in which the function never returns, or -1. The first note holds the number of the Java process.
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
from rocketbox.spark.batch import SparkBatch
from rocketbox.spark.session import SparkRuntime
from tests.support.spark.listeners import rows_in, spark_listener

__all__ = ["main"]


async def main(name_server: str, topic: str, checkpoint: str, notes: str, hang_in: str) -> None:
    def note(value: object) -> None:
        with Path(notes).open("a") as output:
            output.write(json.dumps(value) + "\n")

    def handle(rows: DataFrame, batch: SparkBatch) -> None:
        note([batch.id, batch.query_id, rows_in(rows)])
        if batch.id == int(hang_in):
            threading.Event().wait()

    conf = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    async with MQClientInstance(name_server) as instance, SparkRuntime("killed", conf) as runtime:
        spark = await runtime.session()
        note(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
        container = spark_listener(
            handle,
            instance,
            topic,
            checkpoint,
            runtime=runtime,
            group="killed",
            trigger="available_now",
            max_messages=10,
        )
        async with container:
            await container.wait()


if __name__ == "__main__":
    _, *arguments = sys.argv
    anyio.run(partial(main, *arguments))
