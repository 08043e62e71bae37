"""Which batches a Delta table has: what its log says of their transactions.

Read are the newest checkpoint that is whole and the commits behind it, as Delta reads a table: some ten files, however
long the log is. A checkpoint holds the last transaction of each query; with ``delta.setTransactionRetentionDuration``
the table forgets those that are older, and the commits before it are read as well, as long as they are kept.

Source: the Delta transaction log protocol (names of commits and checkpoints; ``txn`` and ``metaData`` actions; those of
form 2 may be JSON, and their sidecars hold neither).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped] # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from rocketbox.spark.hadoop_files import exists, names_in

__all__ = ["has_log", "has_transaction"]

LOG = "_delta_log"
COMMIT = re.compile(r"(\d+)\.json")
CHECKPOINT = re.compile(
    r"(?P<version>\d+)\.checkpoint(\.(?P<part>\d+)\.(?P<parts>\d+)|\.(?P<id>[-0-9a-fA-F]{36}))?\.(json|parquet)"
)
ACTIONS = "txn struct<appId:string,version:bigint>, metaData struct<configuration:map<string,string>>"
FORGETS = "delta.setTransactionRetentionDuration"
GLOB_SIGNS = re.compile(r"([{}\[\]*?\\])")
LOOKS = 3  # at a log from which files are removed meanwhile


def has_log(spark: SparkSession, table: str) -> bool:
    """Whether a Delta table is there."""
    return exists(spark, _log_of(table))


def has_transaction(spark: SparkSession, table: str, query_id: str, batch_id: int) -> bool:
    """Whether the log of a table says that it has a batch of a query, or a later one."""
    for look in range(1, LOOKS + 1):
        names = names_in(spark, _log_of(table))
        try:
            return _says(spark, table, names, query_id, batch_id)
        except (PySparkException, Py4JJavaError):
            if look == LOOKS or not set(names) - set(names_in(spark, _log_of(table))):
                raise
    raise AssertionError("the last look returns or raises")


def _says(spark: SparkSession, table: str, names: Sequence[str], query_id: str, batch_id: int) -> bool:
    version, checkpoint = _newest_checkpoint(names)
    commits = {name: int(match[1]) for name in names if (match := COMMIT.fullmatch(name))}
    ours, forgets = f.col("txn.appId") == query_id, f.col("metaData.configuration").getItem(FORGETS).isNotNull()
    has_it = f.coalesce(ours & (f.col("txn.version") >= batch_id), f.lit(False))

    def found_in(read: Iterable[str]) -> list[bool]:
        """Whether it is in these files, and for each time that they say of the table that it forgets: False."""
        found: list[bool] = []
        for rows in _actions_in(spark, table, sorted(read)):
            found += [row.has_it for row in rows.where(has_it | forgets).select(has_it.alias("has_it")).collect()]
        return found

    found = found_in([*checkpoint, *(name for name, number in commits.items() if number > version)])
    if found and not any(found):
        found += found_in(name for name, number in commits.items() if number <= version)
    return any(found)


def _newest_checkpoint(names: Iterable[str]) -> tuple[int, list[str]]:
    """The version of the newest checkpoint that is whole, and its files; -1 where there is none."""
    found: dict[tuple[int, int, str], dict[int, str]] = defaultdict(dict)  # by version, number of parts and id
    for name in names:
        if match := CHECKPOINT.fullmatch(name):
            form = int(match["version"]), int(match["parts"] or 1), match["id"] or ""
            found[form][int(match["part"] or 1)] = name
    whole = [(form, parts) for form, parts in found.items() if len(parts) == form[1]]
    if not whole:
        return -1, []
    (version, *_), parts = max(whole, key=lambda each: each[0])
    return version, list(parts.values())


def _actions_in(spark: SparkSession, table: str, names: Sequence[str]) -> list[DataFrame]:
    folder = GLOB_SIGNS.sub(r"\\\1", _log_of(table))  # Spark takes what it reads for a pattern
    lines = [f"{folder}/{name}" for name in names if name.endswith(".json")]
    columns = [f"{folder}/{name}" for name in names if name.endswith(".parquet")]
    reader = spark.read.schema(ACTIONS)
    return [*([reader.json(lines)] if lines else []), *([reader.parquet(*columns)] if columns else [])]


def _log_of(table: str) -> str:
    return f"{table.rstrip('/')}/{LOG}"
