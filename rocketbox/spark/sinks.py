"""Micro-batches in sinks, each once: files by a folder for each batch, Delta tables by the transaction of each batch.

A batch is known by its query's id and its own, which stay the same when it comes again, and so do its rows. Files are
written to a folder of the batch, over whatever an attempt before has left there; Spark puts ``_SUCCESS`` into it last,
by which a whole batch is known. Delta keeps ``txnAppId`` and ``txnVersion`` with each commit and skips one that it has.

Source: Apache Spark 4.3.0 ``FileOutputCommitter`` (``_SUCCESS``); the Delta transaction log protocol (``txn`` actions,
checkpoints in parquet); Delta Lake's "idempotent table writes in foreachBatch".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from rocketbox.spark.batch import SparkBatch

__all__ = ["folder_of", "is_done", "write_once"]

FILES = ("parquet", "orc", "json", "csv", "avro", "text", "xml")
DELTA = "delta"
QUERY, BATCH = "query", "batch"
SUCCESS, DELTA_LOG = "_SUCCESS", "_delta_log"


def folder_of(batch: SparkBatch, path: str) -> str:
    """Where files of the batch stand."""
    return f"{path.rstrip('/')}/{QUERY}={batch.query_id}/{BATCH}={batch.id}"


def is_done(batch: SparkBatch, path: str) -> bool:
    """Whether the batch stands at path as a whole: in a folder of files, or in the log of a Delta table."""
    if _exists(batch, f"{path.rstrip('/')}/{DELTA_LOG}"):
        return _is_in_delta(batch, path)
    return _exists(batch, f"{folder_of(batch, path)}/{SUCCESS}")


def write_once(
    batch: SparkBatch,
    frame: DataFrame,
    path: str,
    kind: str,
    partition_by: Sequence[str],
    options: Mapping[str, Any],
) -> bool:
    """See :meth:`SparkBatch.write`."""
    kind = kind.lower()
    if kind not in (*FILES, DELTA):
        raise ValueError(
            f"batch.write does not know how the format {kind!r} keeps a batch once; it knows {', '.join(FILES)} and "
            f"{DELTA}. Write with frame.write, and let the sink overwrite or skip by batch.query_id and batch.id"
        )
    if wrong := [name for name in options if name.lower() in ("txnappid", "txnversion", "path")]:
        raise ValueError(f"batch.write sets {wrong[0]} itself, by the batch; leave it out")
    if kind != DELTA and (taken := {QUERY, BATCH} & {name.lower() for name in frame.columns}):
        raise ValueError(
            f"the frame has a column {min(taken)!r}, and batch.write keeps batches in folders {QUERY}=.../{BATCH}=..., "
            "which are columns to who reads them; rename it"
        )
    key = path.rstrip("/")
    if key in batch.written:
        raise ValueError(
            f"batch {batch.id} was written to {path} by this call already: a second write would replace it, or be "
            "skipped; write the union of both frames, or to another path"
        )
    writer = frame.write.format(kind).partitionBy(*partition_by).options(**options)
    if kind == DELTA:
        # Delta itself skips a transaction that it has, also when its log can no longer tell.
        done = is_done(batch, path)
        writer.mode("append").option("txnAppId", batch.query_id).option("txnVersion", batch.id).save(path)
        batch.written.add(key)
        return not done
    done = _exists(batch, f"{folder_of(batch, path)}/{SUCCESS}")
    if not done:
        writer.mode("overwrite").save(folder_of(batch, path))
    batch.written.add(key)
    return not done


def _exists(batch: SparkBatch, path: str) -> bool:
    """Whether something is there, on whichever file system Spark means by the path."""
    context = batch.spark.sparkContext
    java: Any = context._jvm
    place = java.org.apache.hadoop.fs.Path(path)
    configuration = context._jsc.hadoopConfiguration()
    return bool(place.getFileSystem(configuration).exists(place))


def _is_in_delta(batch: SparkBatch, path: str) -> bool:
    """Whether the table's log, in its commits or its checkpoint, has the batch's transaction or a later one."""
    log = f"{path.rstrip('/')}/{DELTA_LOG}"
    txn = "txn struct<appId:string,version:bigint>"
    reader = batch.spark.read.schema(txn)
    found = reader.json(f"{log}/*.json")
    if _has_checkpoint(batch, log):
        found = found.union(reader.parquet(f"{log}/*.checkpoint*.parquet"))
    ours = (f.col("txn.appId") == batch.query_id) & (f.col("txn.version") >= batch.id)
    return found.where(ours).head() is not None


def _has_checkpoint(batch: SparkBatch, log: str) -> bool:
    context = batch.spark.sparkContext
    java: Any = context._jvm
    pattern = java.org.apache.hadoop.fs.Path(f"{log}/*.checkpoint*.parquet")
    configuration = context._jsc.hadoopConfiguration()
    return bool(pattern.getFileSystem(configuration).globStatus(pattern))
