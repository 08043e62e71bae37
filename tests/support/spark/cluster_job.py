"""A program for spark-submit: a listener, a stream or a batch job that writes a topic's messages to parquet.

``cluster_job.py name_server topic folder notes mode``: mode is ``listener``, ``stream`` or ``batch``. Each batch is
noted when it begins, with the executors that there are, and what the batch has of the configuration. With ``copy`` two
tasks write them to a topic that has ``-copy`` at the end of its name, and nothing is noted.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import anyio
from pyspark.sql import DataFrame, SparkSession

from rocketbox import RocketBox, SparkBatch, rocketmq_spark_listener

__all__ = ["app", "to_lake"]

_, NAME_SERVER, TOPIC, FOLDER, NOTES, MODE = sys.argv
ROWS, OF_A_TASK = 2_000, 400
SINK = Path(FOLDER) / "lake"
CHECKPOINT = str(Path(FOLDER) / "my jürgen app" / "checkpoint")

app = RocketBox("cluster-job", scan=[__name__])


def write(rows: DataFrame, folder: str, batch_id: int) -> None:
    context = rows.sparkSession.sparkContext
    executors = len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1  # one of them is the driver
    with Path(NOTES).open("a") as output:
        output.write(json.dumps([batch_id, executors, rows.rdd.getNumPartitions()]) + "\n")
    columns = rows.select("broker_name", "queue_id", "queue_offset")
    columns.write.mode("overwrite").parquet(str(SINK / folder))


@rocketmq_spark_listener(
    topic=TOPIC,
    consumer_group="lake",
    trigger="available_now",
    max_messages=ROWS,
    rows_per_partition=OF_A_TASK,
    checkpoint=CHECKPOINT,
)
def to_lake(rows: DataFrame, batch: SparkBatch) -> None:
    write(rows, f"query={batch.query_id}/batch={batch.id}", batch.id)


async def listen() -> None:
    async with app.started(arguments=[f"--rocketmq.name-server={NAME_SERVER}"]):
        container = app.listeners["lake"]
        await container.wait()
        state = container.state()
        assert state.ready, state


def read(kind: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    options = {"nameServer": NAME_SERVER, "topic": TOPIC, "rowsPerPartition": str(OF_A_TASK)}
    if kind == "copy":
        bodies = spark.read.format("rocketmq").options(**options).load().select("body").coalesce(2)
        said = {"nameServer": NAME_SERVER, "topic": f"{TOPIC}-copy", "maxInFlight": "4"}
        bodies.write.format("rocketmq").mode("append").options(**said).save()
        return
    if kind == "batch":
        write(spark.read.format("rocketmq").options(**options).load(), "all", 0)
        return
    stream = spark.readStream.format("rocketmq").options(**options, maxOffsetsPerTrigger=str(ROWS)).load()
    query = (
        stream.writeStream.foreachBatch(lambda rows, batch_id: write(rows, f"batch={batch_id}", batch_id))
        .option("checkpointLocation", f"file:{CHECKPOINT}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    if MODE == "listener":
        anyio.run(partial(listen))
    else:
        read(MODE)
