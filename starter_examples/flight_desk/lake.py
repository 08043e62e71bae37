"""The data lake: departures arrive as DataFrames and are kept as parquet. The only module with Spark in it."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from rocketbox import SparkBatch, configuration_properties, rocketmq_spark_listener
from starter_examples.flight_desk.data import read_airlines
from starter_examples.flight_desk.ledger import Ledger
from starter_examples.flight_desk.model import Departure

__all__ = ["LakeProperties", "faults", "mean_delays", "rows_of_run", "to_lake"]

PLACE = ("broker_name", "queue_id", "queue_offset")


@configuration_properties("lake")
class LakeProperties(BaseModel):
    """Where the parquet files go, by ``lake.*`` in the YAML."""

    path: Path = Path("lake")


@rocketmq_spark_listener(topic="departures", consumer_group="lake", schema=Departure, trigger="1s", max_messages=50_000)
def to_lake(departures: DataFrame, batch: SparkBatch, properties: LakeProperties, ledger: Ledger) -> None:
    """Keep one micro-batch, with the place of each message. One that comes again after a crash is kept once."""
    message = departures["message"]
    rows = departures.select(
        *Departure.model_fields,
        *(message[name].alias(name) for name in PLACE),
        message["properties"]["run"].alias("run"),
    )
    path = properties.path.absolute()
    batch.write(rows, path)
    kept = batch.spark.read.parquet(str(path / f"query={batch.query_id}" / f"batch={batch.id}"))
    ledger.saw_in_lake(kept.where(f.col("run") == ledger.run).count())


def rows_of_run(spark: SparkSession, path: Path, run: str) -> DataFrame:
    """The departures of one run, each row of the data once: the job sends one again when its broker was away."""
    return spark.read.parquet(str(path.absolute())).where(f.col("run") == run).dropDuplicates(["row"])


def faults(spark: SparkSession, path: Path) -> tuple[int, int]:
    """Messages that the listener has left out, and those that it has kept twice, over all runs.

    By their places: offsets of a queue follow one another, whatever was sent twice and whoever was killed.
    """
    queues = (
        spark.read.parquet(str(path.absolute()))
        .groupBy("query", "broker_name", "queue_id")
        .agg(
            f.count("*").alias("rows"),
            f.countDistinct("queue_offset").alias("places"),
            (f.max("queue_offset") - f.min("queue_offset") + 1).alias("span"),
        )
        .agg(f.sum(f.col("span") - f.col("places")), f.sum(f.col("rows") - f.col("places")))
    )
    left_out, twice = queues.first() or (0, 0)
    return left_out or 0, twice or 0


def mean_delays(departures: DataFrame) -> list[tuple[str, str, int, float]]:
    """(carrier, airline, departures with a delay, mean delay in minutes), the latest airline first."""
    airlines = departures.sparkSession.createDataFrame(
        sorted(read_airlines().items()), "carrier string, airline string"
    )
    table = (
        departures.where(f.col("delay_minutes").isNotNull())
        .groupBy("carrier")
        .agg(f.count("*").alias("departures"), f.avg("delay_minutes").alias("mean_delay"))
        .join(airlines, "carrier", "left")
        .orderBy(f.desc("mean_delay"))
    )
    return [(row.carrier, row.airline, row.departures, row.mean_delay) for row in table.collect()]
