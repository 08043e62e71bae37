"""Micro-batches in sinks, each once: files by a folder for each batch, Delta tables by the transaction of each batch.

A batch is known by its query's id and its own, which stay the same when it comes again, and so do its rows. Files are
written to a folder of the batch; Spark puts ``_SUCCESS`` into it last, by which a whole batch is known. Two attempts
may write at the same time: a driver that was paused beyond its lease, or its Java process, goes on with the batch that
another one has taken over. Spark's jobs in one folder would take over one another's files, so where a folder is renamed
in one step each attempt writes to a folder of its own, which no reader looks into, and gives it the batch's name when
it is whole; the first one counts. Elsewhere (object stores) it writes over whatever was left in the batch's folder.
A folder also says which offsets its batch has read (``_offsets``): a checkpoint that is older than the sink, such as
one that was restored from a copy, has Spark plan other batches under the same ids, and what they have beyond those that
stand there would be lost. Delta keeps ``txnAppId`` and ``txnVersion`` with each commit and skips one that it has; what
its log says of that is ``delta_log``'s part.

Source: Apache Spark 4.3.0 ``FileOutputCommitter`` (``_SUCCESS``), ``HadoopFSUtils.shouldFilterOutPathName`` (``_``);
Apache Hadoop 3.4 ``FileSystem.rename`` (into a folder that is there, not over it); Delta Lake's "idempotent table
writes in foreachBatch".
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped] # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter

from rocketbox.clock import RealClock
from rocketbox.safe_repr import safe_str
from rocketbox.spark.checkpoint import RESET, CheckpointError
from rocketbox.spark.delta_log import has_log, has_transaction
from rocketbox.spark.hadoop_files import exists, place_of, qualified

if TYPE_CHECKING:
    from rocketbox.spark.batch import SparkBatch

__all__ = ["folder_of", "is_done", "write_once"]

FILES = ("parquet", "orc", "json", "csv", "avro", "text", "xml")
DELTA = "delta"
QUERY, BATCH = "query", "batch"
SUCCESS, OFFSETS = "_SUCCESS", "_offsets"
WHOLE_FOLDER = {"partitionOverwriteMode": "static", "mapreduce.fileoutputcommitter.marksuccessfuljobs": "true"}
"""Whatever session and cluster say: all that stands in a batch's folder is replaced, and a whole one is marked."""
BY_THE_BATCH = {"txnappid", "txnversion", "path", *map(str.lower, WHOLE_FOLDER)}
"""Options, in small letters, that are set by the batch, or mean nothing beside that."""
NOT_AN_APPEND = {"mode", "savemode", "replacewhere", "replaceon", "replaceusing", "overwriteschema"}
RENAMES_AT_ONCE = frozenset({"file", "hdfs", "viewfs", "webhdfs", "swebhdfs"})
"""Schemes of file systems that rename a folder in one step, or not at all."""
_adding = threading.Lock()  # to what a call has written


def folder_of(batch: SparkBatch, path: str) -> str:
    """Where files of the batch stand."""
    return f"{path.rstrip('/')}/{QUERY}={batch.query_id}/{BATCH}={batch.id}"


def is_done(batch: SparkBatch, path: str) -> bool:
    """Whether the batch stands at path as a whole: in a folder of files, or in the log of a Delta table.

    Raises CheckpointError where files of other offsets stand there under its id.
    """
    if has_log(batch.spark, path):
        return has_transaction(batch.spark, path, batch.query_id, batch.id)
    return _stands(batch, folder_of(batch, path))


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
    _check(batch, frame, path, kind, options)
    columns = [partition_by] if isinstance(partition_by, str) else partition_by
    writer = frame.write.format(kind).partitionBy(*columns).options(**options)
    key = qualified(batch.spark, path)
    with _adding:
        if key in batch.written:
            raise ValueError(
                f"batch {batch.id} was written to {path} by this call already, or is being written: a second write "
                "would replace it, or be skipped; write the union of both frames, or to another path"
            )
        batch.written.add(key)
    try:
        if kind == DELTA:
            return _write_delta(batch, writer, path)
        return _write_files(batch, writer.options(**WHOLE_FOLDER), path)
    except BaseException:
        batch.written.discard(key)
        raise


def _check(batch: SparkBatch, frame: DataFrame, path: str, kind: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError for a write that would not be once, or not what it says."""
    if kind not in (*FILES, DELTA):
        raise ValueError(
            f"batch.write does not know how the format {kind!r} keeps a batch once; it knows {', '.join(FILES)} and "
            f"{DELTA}. Write with frame.write, and let the sink overwrite or skip by batch.query_id and batch.id"
        )
    if wrong := [name for name in options if name.lower() in BY_THE_BATCH]:
        raise ValueError(f"batch.write sets {wrong[0]} itself, by the batch; leave it out")
    if wrong := [name for name in options if name.lower() in NOT_AN_APPEND]:
        raise ValueError(
            f"batch.write adds a batch to what is there, and {wrong[0]} asks for something else; leave it out, or "
            "write with frame.write, which may lose rows or have them twice when a batch comes again"
        )
    if wrong := [name for name in options if name.lower() == "partitionby"]:
        raise ValueError(f"batch.write is told columns to partition by as partition_by=[...]; {wrong[0]} is no option")
    if "/" not in path and _is_table(batch, path):
        raise ValueError(
            f"{path} is the name of a table, and batch.write takes a path: give the table's location, or ./{path} for "
            "a folder here"
        )
    if kind != DELTA and (taken := {QUERY, BATCH} & {name.lower() for name in frame.columns}):
        raise ValueError(
            f"the frame has a column {min(taken)!r}, and batch.write keeps batches in folders {QUERY}=.../{BATCH}=..., "
            "which are columns to who reads them; rename it"
        )
    if kind != DELTA and has_log(batch.spark, path):
        raise ValueError(f"{path} is a Delta table, whose readers do not see other files; write {kind} to another path")


def _is_table(batch: SparkBatch, name: str) -> bool:
    try:
        return batch.spark.catalog.tableExists(name)
    except PySparkException:  # it cannot be the name of one
        return False


def _write_files(batch: SparkBatch, writer: DataFrameWriter, path: str) -> bool:
    """Whether the batch's folder is of this write."""
    folder = folder_of(batch, path)
    files, _ = place_of(batch.spark, folder)
    done = _stands(batch, folder)
    if files.getUri().getScheme() not in RENAMES_AT_ONCE:
        if not done:
            writer.mode("overwrite").save(folder)
            _note_offsets(batch, folder)
        return not done
    drafts = f"{path.rstrip('/')}/{QUERY}={batch.query_id}/_{BATCH}-{batch.id}"
    if not done:
        draft = f"{drafts}/_{RealClock().uuid()}"  # a name that no reader looks at, wherever a rename puts it
        writer.mode("error").save(draft)
        _note_offsets(batch, draft)
        done = not _put(batch, draft, folder)
    files.delete(place_of(batch.spark, drafts)[1], True)  # also what attempts have left that were killed
    return not done


def _put(batch: SparkBatch, draft: str, folder: str) -> bool:
    """Give a whole draft the name of the batch's folder; False when another attempt has done so meanwhile."""
    files, place = place_of(batch.spark, folder)
    left = files.exists(place)  # asked before: what comes from now on is whole
    if _stands(batch, folder):
        return False
    if left:  # part of a batch, from a version that wrote it in its place
        aside = f"{draft}-left"
        if files.rename(place, place_of(batch.spark, aside)[1]) and exists(batch.spark, f"{aside}/{SUCCESS}"):
            _give_name(batch, aside, folder)  # another attempt has put it there since
            return False
    return _give_name(batch, draft, folder)


def _give_name(batch: SparkBatch, draft: str, folder: str) -> bool:
    """Rename what is whole to the batch's folder; False where there is one already."""
    files, place = place_of(batch.spark, folder)
    renamed = files.rename(place_of(batch.spark, draft)[1], place)
    nested = place_of(batch.spark, f"{folder}/{draft.rpartition('/')[2]}")[1]
    if files.exists(nested):
        files.delete(nested, True)
        return False
    if not renamed:
        raise OSError(f"{draft} could not be renamed to {folder}")
    return True


def _stands(batch: SparkBatch, folder: str) -> bool:
    """Whether a write to the folder has ended. Raises CheckpointError when that was of other offsets."""
    if not exists(batch.spark, f"{folder}/{SUCCESS}"):
        return False
    there = _noted_offsets(batch, folder)
    if there and batch.extent and there != batch.extent:
        raise _other_offsets(batch, folder, there)
    return True


def _other_offsets(batch: SparkBatch, folder: str, there: Mapping[str, tuple[int, int]]) -> CheckpointError:
    queue = min(name for name in {*there, *batch.extent} if there.get(name) != batch.extent.get(name))

    def told(extent: Mapping[str, tuple[int, int]]) -> str:
        return f"offsets {extent[queue][0]} to {extent[queue][1] - 1}" if queue in extent else "nothing"

    return CheckpointError(
        f"batch {batch.id} stands at {folder} with {told(there)} of {queue}, and the query has planned it with "
        f"{told(batch.extent)}: the checkpoint is older than what was written by it, such as one that was restored "
        "from a copy. Nothing was written, since messages would be skipped. Move the folders of this batch and of all "
        f"later ones of the query away: they are written anew; or begin with another checkpoint ({RESET})"
    )


def _note_offsets(batch: SparkBatch, folder: str) -> None:
    """Say in a folder that is whole which offsets its batch has read, where that is known."""
    if batch.extent:
        files, place = place_of(batch.spark, f"{folder}/{OFFSETS}")
        output = files.create(place, True)
        try:
            output.write(json.dumps(dict(batch.extent)).encode())
        finally:
            output.close()


def _noted_offsets(batch: SparkBatch, folder: str) -> dict[str, tuple[int, int]]:
    """What :func:`_note_offsets` has said; nothing where it has said nothing, or was cut short."""
    files, place = place_of(batch.spark, f"{folder}/{OFFSETS}")
    if not files.exists(place):
        return {}
    java: Any = batch.spark.sparkContext._jvm
    stream = files.open(place)
    try:
        found = json.loads(str(java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")))
        return {str(queue): (int(start), int(end)) for queue, (start, end) in found.items()}
    except (ValueError, TypeError, AttributeError, Py4JJavaError):
        return {}
    finally:
        stream.close()


def _write_delta(batch: SparkBatch, writer: DataFrameWriter, path: str) -> bool:
    """Whether the batch came into the table by this write."""

    def has_it() -> bool:
        return has_log(batch.spark, path) and has_transaction(batch.spark, path, batch.query_id, batch.id)

    if has_it():
        return False  # not left to Delta, which forgets transactions where a table says so
    try:
        # Delta itself skips a transaction that it has, also when its log can no longer tell.
        _append_to_delta(batch, writer, path)
    except (PySparkException, Py4JJavaError):
        # Of two attempts at once Delta refuses the one that commits last; it is none the worse for that.
        if not has_it():
            raise
        return False
    return True


def _append_to_delta(batch: SparkBatch, writer: DataFrameWriter, path: str) -> None:
    try:
        writer.mode("append").option("txnAppId", batch.query_id).option("txnVersion", batch.id).save(path)
    except (PySparkException, Py4JJavaError) as error:
        if "DATA_SOURCE_NOT_FOUND" not in safe_str(error):
            raise
        raise ValueError(
            f"batch.write cannot write a Delta table: Spark {batch.spark.version} of this service has no Delta Lake. "
            f"Give it the package io.delta:delta-spark_{_minor(batch.spark.version)}_2.13 by rocketbox.spark.conf "
            "(spark.jars.packages, spark.sql.extensions, spark.sql.catalog.spark_catalog), or write files"
        ) from None


def _minor(version: str) -> str:
    """As Delta's packages name the Spark that they are made for."""
    return ".".join(version.split(".")[:2])
