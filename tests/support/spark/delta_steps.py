"""What a Delta table does with batches that are written by hand, in a session with Delta Lake; one step, as JSON.

``python -m tests.support.spark.delta_steps FOLDER CONF STEP ...``: CONF are the session's settings as JSON, STEP is the
name of a function here, behind which its further arguments come. The last line that is printed is what it gives back.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql import SparkSession

from rocketbox.spark.batch import SparkBatch
from rocketbox.spark.session import create_session
from tests.support.spark.listeners import MINUTES
from tests.support.spark.topics import wait_for

__all__ = ["main"]

QUERY, OTHER = str(UUID(int=1)), str(UUID(int=2))


def batch_of(spark: SparkSession, number: int, query: str = QUERY) -> SparkBatch:
    return SparkBatch(id=number, query_id=query, topic="t", group="g", attempt=1, spark=spark)


def numbers(spark: SparkSession, table: Path) -> list[int]:
    return sorted(row.id for row in spark.read.format("delta").load(str(table)).collect())


def two_at_once(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Two attempts at the batch that makes a table, and two at the one behind it."""
    table = folder / "table"
    return {
        "making it": _race(spark, table, 0, folder / "of the first"),
        "behind that": _race(spark, table, 1, folder / "of the second"),
        "numbers": numbers(spark, table),
    }


def _race(spark: SparkSession, table: Path, number: int, folder: Path) -> dict[str, Any]:
    """The first of two attempts waits in its only task until the second one is done; then the batch comes again."""
    waits, goes_on = folder / "waits", folder / "goes on"
    folder.mkdir()
    rows = spark.range(10 * number, 10 * number + 10, 1, 1)

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waits.touch()
        wait_for(goes_on.exists)
        yield from batches

    with ThreadPoolExecutor(1) as threads:
        paused = rows.mapInArrow(slowly, "id bigint")
        first = threads.submit(batch_of(spark, number).write, paused, table, "delta")
        wait_for(waits.exists, MINUTES, unless=lambda: first.done() and first.exception())
        try:
            second = batch_of(spark, number).write(rows, table, "delta")
        finally:
            goes_on.touch()
        error = first.exception()
    again = batch_of(spark, number).write(rows, table, "delta")
    return {"first": str(error) if error else first.result(), "second": second, "again": again}


def log_cut_off(spark: SparkSession, folder: Path, form: str) -> dict[str, Any]:
    """What is known of batches whose commits have gone from the log, as after a month; ``form`` is the checkpoint's."""
    table = folder / "table"
    log = table / "_delta_log"
    if form != "classic":
        spark.conf.set("spark.databricks.delta.checkpointV2.topLevelFileFormat", form)
    policy = "classic" if form == "classic" else "v2"
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id bigint) USING delta "
        f"TBLPROPERTIES ('delta.checkpointInterval' = '2', 'delta.checkpointPolicy' = '{policy}')"
    )
    for number in range(2):  # commits 1 and 2, the last one with a checkpoint
        batch_of(spark, number).write(spark.range(10 * number, 10 * number + 3), table, "delta")
    too_old = [each for each in log.iterdir() if each.is_file()]
    for number in range(2):  # commits 3 and 4
        batch_of(spark, number, OTHER).write(spark.range(100 + number, 101 + number), table, "delta")
    for each in too_old:
        if each.name != "_last_checkpoint":  # which is a new one meanwhile
            each.unlink()
    names = sorted(each.name for each in log.iterdir() if each.name[0].isdigit())
    done = [[batch_of(spark, number, query).already_done(table) for number in range(3)] for query in (QUERY, OTHER)]
    return {
        "log": [name for name in names if not name.endswith(".crc")],
        "done": done[0],
        "other": done[1],
        "again": [
            batch_of(spark, 1).write(spark.range(10, 13), table, "delta"),
            batch_of(spark, 2).write(spark.range(20, 23), table, "delta"),
        ],
        "numbers": numbers(spark, table),
    }


def kinds(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """A batch without rows, one that brings a column, and one for a table with partitions of its own."""
    empty, wider, parts = folder / "empty", folder / "wider ü", folder / "parts"
    batch_of(spark, 0).write(spark.range(0), empty, "delta")
    batch_of(spark, 0).write(spark.range(2), wider, "delta")
    more = spark.range(2, 4).selectExpr("id", "id * 2 AS double")
    batch_of(spark, 1).write(more, wider, "delta", mergeSchema=True)
    halves = spark.range(4).selectExpr("id", "id % 2 AS odd")
    batch_of(spark, 0).write(halves, parts, "delta", partition_by=["odd"])
    batch_of(spark, 1).write(halves.selectExpr("id + 4 AS id", "odd"), parts, "delta")
    again = [
        batch_of(spark, 0).write(spark.range(0), empty, "delta"),
        batch_of(spark, 1).write(more, wider, "delta", mergeSchema=True),
        batch_of(spark, 0).write(halves, parts, "delta", partition_by=["odd"]),
    ]
    return {
        "done": [batch_of(spark, 0).already_done(empty), batch_of(spark, 1).already_done(empty)],
        "again": again,
        "empty": numbers(spark, empty),
        "wider": numbers(spark, wider),
        "columns": spark.read.format("delta").load(str(wider)).columns,
        "parts": numbers(spark, parts),
        "folders": sorted(each.name for each in parts.iterdir() if each.name != "_delta_log"),
    }


def forgotten(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """A batch that comes again when its table has forgotten its transaction; one that others' commits follow."""
    table = folder / "table"
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id bigint) USING delta TBLPROPERTIES "
        "('delta.setTransactionRetentionDuration' = 'interval 0 seconds', 'delta.checkpointInterval' = '2')"
    )
    written = [batch_of(spark, 0).write(spark.range(3), table, "delta")]
    for number in range(4):
        batch_of(spark, number, OTHER).write(spark.range(10 + number, 11 + number), table, "delta")
    written += [batch_of(spark, 0).write(spark.range(3), table, "delta")]
    return {"written": written, "numbers": numbers(spark, table)}


STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    each.__name__: each for each in (two_at_once, log_cut_off, kinds, forgotten)
}


def main(folder: str, conf: str, step: str, *arguments: str) -> None:
    spark = create_session("delta steps", json.loads(conf))
    try:
        print(json.dumps(STEPS[step](spark, Path(folder), *arguments)))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
