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

__all__ = ["LakeProperties", "mean_delays", "rows_of_run", "to_lake"]


@configuration_properties("lake")
class LakeProperties(BaseModel):
    """Where the parquet files go, by ``lake.*`` in the YAML."""

    path: Path = Path("lake")


@rocketmq_spark_listener(topic="departures", consumer_group="lake", schema=Departure, trigger="1s", max_messages=50_000)
def to_lake(departures: DataFrame, batch: SparkBatch, properties: LakeProperties, ledger: Ledger) -> None:
    """Keep one micro-batch. A batch that comes again after a crash overwrites its own folder: each row once."""
    folder = str(properties.path.absolute() / f"query={batch.query_id}" / f"batch={batch.id}")
    rows = departures.select("*", departures["message"]["properties"]["run"].alias("run")).drop("message")
    rows.write.mode("overwrite").parquet(folder)
    ledger.saw_in_lake(batch.spark.read.parquet(folder).where(f.col("run") == ledger.run).count())


def rows_of_run(spark: SparkSession, path: Path, run: str) -> DataFrame:
    """The departures of one run, each row of the data once however often it was delivered."""
    return spark.read.parquet(str(path.absolute())).where(f.col("run") == run).dropDuplicates(["row"])


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
