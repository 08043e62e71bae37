"""Micro-batches in sinks: each row once, however often a batch comes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from rocketbox.spark import delta_log, hadoop_files, sinks
from rocketbox.spark.batch import SparkBatch
from rocketbox.spark.checkpoint import CheckpointError
from tests.support.spark.topics import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

QUERY = str(UUID(int=1))


def batch_of(spark: SparkSession, number: int = 0, query: str = QUERY, **more: Any) -> SparkBatch:
    return SparkBatch(id=number, query_id=query, topic="t", group="g", attempt=1, spark=spark, **more)


def numbers(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row.id for row in spark.read.parquet(str(path)).collect())


def test_a_batch_that_comes_again_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a lake ü"
    first = batch_of(spark)
    assert not first.already_done(path)
    assert first.write(spark.range(5), path)
    assert first.already_done(path)
    assert not batch_of(spark).write(spark.range(5), path)  # after a crash between the write and the commit
    assert batch_of(spark, 1).write(spark.range(5, 7), f"{path}/")
    assert batch_of(spark, 0, str(UUID(int=2))).write(spark.range(7, 8), path)  # another query
    assert numbers(spark, path) == list(range(8))
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_batch_that_was_planned_anew_with_other_offsets_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """As by a checkpoint that was restored from a copy: to take it for done would lose what it has beyond the first."""
    one = {"t broker-a/0": (300, 305)}
    first = batch_of(spark, extent=one)
    assert first.write(spark.range(5), tmp_path)
    assert batch_of(spark, extent=one).already_done(tmp_path)
    assert not batch_of(spark, extent=one).write(spark.range(5), tmp_path)
    assert not batch_of(spark).write(spark.range(5), tmp_path), "of which it is not known what it has read"
    for other, text in (
        (
            {"t broker-a/0": (300, 307)},
            "with offsets 300 to 304 of t broker-a/0, and the query has planned it with offs",
        ),
        (
            {**one, "t broker-a/1": (0, 2)},
            "with nothing of t broker-a/1, and the query has planned it with offsets 0 to",
        ),
        (
            {"t broker-b/0": (0, 5)},
            "with offsets 300 to 304 of t broker-a/0, and the query has planned it with nothing",
        ),
    ):
        again = batch_of(spark, extent=other)
        with pytest.raises(CheckpointError, match=text):
            again.write(spark.range(7), tmp_path)
        with pytest.raises(CheckpointError, match="the checkpoint is older than what was written by it"):
            again.already_done(tmp_path)
    assert numbers(spark, tmp_path) == list(range(5))
    (tmp_path / f"query={QUERY}" / "batch=0").rename(tmp_path.parent / "aside")
    assert again.write(spark.range(7), tmp_path), "as the error says"
    assert numbers(spark, tmp_path) == list(range(7))


def test_what_a_crash_has_left_of_a_batch_is_replaced(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / f"query={QUERY}" / "batch=0"
    spark.range(100, 103).write.parquet(str(folder))
    (folder / "_SUCCESS").unlink()  # it was killed before it was done
    batch = batch_of(spark)
    assert not batch.already_done(tmp_path)
    assert batch.write(spark.range(3), tmp_path)
    assert numbers(spark, tmp_path) == [0, 1, 2]


def test_two_attempts_that_write_a_batch_at_once_leave_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    """As a driver that was paused beyond its lease, and wakes up while another one has taken its batch over."""
    lake, waits, goes_on = tmp_path / "lake", tmp_path / "waits", tmp_path / "goes on"

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = list(batches)
        if any(10 in batch.column("id").to_pylist() for batch in found):  # of the second of two tasks
            waits.touch()
            wait_for(goes_on.exists)
        yield from found

    paused = spark.range(0, 20, 1, 2).mapInArrow(slowly, "id bigint")
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(batch_of(spark).write, paused, lake)
        wait_for(waits.exists)
        try:
            second = batch_of(spark).write(spark.range(0, 20, 1, 2), lake)
        finally:
            goes_on.touch()
        assert (first.result(), second) == (False, True)
    assert numbers(spark, lake) == list(range(20))
    assert [each.name for each in (lake / f"query={QUERY}").iterdir()] == ["batch=0"]


class FilesOfHadoop:
    """A file system, of which a test does some calls in another way."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


def test_of_two_attempts_that_are_whole_at_once_the_first_counts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"query={QUERY}" / "batch=0"
    seen: list[list[int]] = []

    class Late(FilesOfHadoop):
        """A file system on which the other attempt is quicker by a moment."""

        def rename(self, draft: Any, place: Any) -> Any:
            spark.range(3).write.parquet(str(folder))
            result = self._files.rename(draft, place)
            seen.append(numbers(spark, tmp_path))
            return result

    found = hadoop_files.place_of
    monkeypatch.setattr(sinks, "place_of", lambda *of: (Late(found(*of)[0]), found(*of)[1]))
    assert not batch_of(spark).write(spark.range(3), tmp_path)
    monkeypatch.undo()
    assert seen == [[0, 1, 2]], "nor do readers see the second one before it is taken away"
    assert {each.name for each in folder.iterdir() if not each.name.startswith((".", "part-"))} == {"_SUCCESS"}


def test_what_a_crash_has_left_is_not_taken_for_what_another_attempt_puts_there_meanwhile(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"query={QUERY}" / "batch=0"
    folder.mkdir(parents=True)
    (folder / "part-of-a-crash.parquet").write_bytes(b"cut off")

    class Early(FilesOfHadoop):
        """A file system on which another attempt has put its folder in the place of what was left, a moment before."""

        def rename(self, draft: Any, place: Any) -> Any:
            if (folder / "part-of-a-crash.parquet").exists():
                spark.range(3).write.mode("overwrite").parquet(str(folder))
            return self._files.rename(draft, place)

        def delete(self, place: Any, deep: bool) -> Any:
            if (folder / "part-of-a-crash.parquet").exists() and str(place.toUri().getPath()) == str(folder):
                spark.range(3).write.mode("overwrite").parquet(str(folder))
            return self._files.delete(place, deep)

    found = hadoop_files.place_of
    monkeypatch.setattr(sinks, "place_of", lambda *of: (Early(found(*of)[0]), found(*of)[1]))
    assert not batch_of(spark).write(spark.range(5), tmp_path)
    monkeypatch.undo()
    assert numbers(spark, tmp_path) == [0, 1, 2]
    assert [each.name for each in folder.parent.iterdir()] == ["batch=0"]


def test_a_session_that_overwrites_single_partitions_leaves_none_of_a_crash(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / f"query={QUERY}" / "batch=0"
    spark.range(100, 103).selectExpr("id", "id % 2 + 5 AS kind").write.partitionBy("kind").parquet(str(folder))
    (folder / "_SUCCESS").unlink()
    batch, name = batch_of(spark), "spark.sql.sources.partitionOverwriteMode"
    spark.conf.set(name, "dynamic")
    try:
        batch.write(spark.range(3).selectExpr("id", "id % 2 AS kind"), tmp_path, partition_by=["kind"])
    finally:
        spark.conf.unset(name)
    assert numbers(spark, tmp_path) == [0, 1, 2]
    assert batch.already_done(tmp_path)


def test_options_and_partitions_go_to_the_files(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(4).selectExpr("id", "id % 2 AS odd")
    batch_of(spark).write(frame, tmp_path / "json", format="JSON", partition_by=["odd"], compression="gzip")
    files = {each.parent.name for each in (tmp_path / "json").rglob("*.json.gz")}
    assert files == {"odd=0", "odd=1"}
    named_alone = frame.withColumnsRenamed({"id": "d", "odd": "od"})
    batch_of(spark).write(named_alone.selectExpr("*", "1 AS o"), tmp_path / "parquet", partition_by="od")
    assert {each.parent.name for each in (tmp_path / "parquet").rglob("*.parquet")} == {"od=0", "od=1"}


def test_a_second_write_to_one_place_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    batch = batch_of(spark)
    batch.write(spark.range(1), tmp_path / "a")
    batch.write(spark.range(1), tmp_path / "b")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    again = [
        f"{tmp_path}/link",
        f"{tmp_path / 'a'}/",
        f"file:{tmp_path}/a",
        f"file://{tmp_path}/a//",
        f"{tmp_path}/b/../a",
        f"{tmp_path}/./a",
    ]
    for path in again:
        with pytest.raises(ValueError, match=r"was written to .* by this call already"):
            batch.write(spark.range(2), path)
    assert numbers(spark, tmp_path / "a") == [0]


def test_two_frames_for_one_place_at_once_are_refused_and_a_write_that_failed_may_come_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    batch, lake, waits, goes_on = batch_of(spark), tmp_path / "lake", tmp_path / "waits", tmp_path / "goes on"

    def fails_slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waits.touch()
        wait_for(goes_on.exists)
        raise ValueError("no rows today")

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(batch.write, spark.range(0, 3, 1, 1).mapInArrow(fails_slowly, "id bigint"), lake)
        wait_for(waits.exists)
        try:
            with pytest.raises(ValueError, match="or is being written"):
                batch.write(spark.range(5), lake)
        finally:
            goes_on.touch()
        assert "no rows today" in str(first.exception())
    assert batch.write(spark.range(5), lake)
    assert numbers(spark, lake) == list(range(5))


def test_neither_files_in_a_delta_table_nor_the_name_of_a_table_are_taken(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(ValueError, match="is a Delta table, whose readers do not see other files; write orc to"):
        batch_of(spark).write(spark.range(1), tmp_path, "orc")
    spark.sql(f"CREATE TABLE counted (id bigint) USING parquet LOCATION '{tmp_path}/counted'")
    try:
        with pytest.raises(ValueError, match=r"default\.counted is the name of a table, and batch.write takes a path"):
            batch_of(spark).write(spark.range(1), "default.counted")
    finally:
        spark.sql("DROP TABLE counted")


@pytest.mark.parametrize("name", ["my-output", "a b", "a.b.c.d", "counted"])
def test_a_relative_path_without_a_slash_is_a_folder_here(
    spark: SparkSession, name: str, request: pytest.FixtureRequest
) -> None:
    here = Path(spark.sparkContext._jvm.java.lang.System.getProperty("user.dir"))  # type: ignore[union-attr]
    request.addfinalizer(lambda: shutil.rmtree(here / name, ignore_errors=True))
    assert batch_of(spark).write(spark.range(3), name)
    assert numbers(spark, here / name) == [0, 1, 2]


@pytest.mark.parametrize(
    ("columns", "kind", "options", "text"),
    [
        ("id", "jdbc", {}, "does not know how the format 'jdbc' keeps a batch once"),
        ("id AS batch", "parquet", {}, "the frame has a column 'batch'"),
        ("id", "delta", {"txnVersion": 1}, "sets txnVersion itself"),
        ("id", "orc", {"PartitionOverwriteMode": "dynamic"}, "sets PartitionOverwriteMode itself"),
        ("id", "json", {"mode": "overwrite"}, "adds a batch to what is there, and mode asks for something else"),
        ("id", "delta", {"replaceWhere": "id > 1"}, "and replaceWhere asks for something else"),
        ("id", "delta", {"overwriteSchema": True}, "and overwriteSchema asks for something else"),
        ("id", "parquet", {"partitionBy": "id"}, r"partition_by=\[...\]; partitionBy is no option"),
    ],
)
def test_a_write_that_would_not_be_once_is_refused(
    spark: SparkSession, tmp_path: Path, columns: str, kind: str, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        batch_of(spark).write(spark.range(1).selectExpr(columns), tmp_path, kind, **options)


def test_a_delta_table_without_delta_lake_is_refused_with_what_it_needs(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"Spark {spark.version} of this service has no Delta Lake"):
        batch_of(spark).write(spark.range(1), tmp_path, "delta")
    assert list(tmp_path.iterdir()) == []


class Told(WriterCommitMessage):
    pass


class DeltaLike(DataSource):
    """Writes down the options that a Delta table would get."""

    @classmethod
    def name(cls) -> str:
        return "delta"

    def schema(self) -> str:
        return "id bigint"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return DeltaLikeWriter(dict(self.options), overwrite)


class DeltaLikeWriter(DataSourceArrowWriter):
    def __init__(self, options: dict[str, str], overwrite: bool) -> None:
        self.options = {**options, "overwrite": str(overwrite)}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Told:
        rows = sum(batch.num_rows for batch in iterator)
        if rows:
            Path(self.options["path"], "told.json").write_text(json.dumps({**self.options, "rows": rows}))
        return Told()


def write_delta(batch: SparkBatch, frame: DataFrame, path: Path) -> tuple[bool, dict[str, Any]]:
    batch.spark.dataSource.register(DeltaLike)
    written = batch.write(frame, path, "delta", mergeSchema=True)
    told: dict[str, Any] = json.loads((path / "told.json").read_text())
    return written, {name.lower(): value for name, value in told.items()}


def test_a_delta_table_gets_the_batch_as_its_transaction(spark: SparkSession, tmp_path: Path) -> None:
    written, told = write_delta(batch_of(spark, 7), spark.range(0, 3, 1, 1), tmp_path)
    assert written
    assert (told["txnappid"], told["txnversion"], told["overwrite"]) == (QUERY, "7", "False")
    assert (told["mergeschema"], told["rows"]) == ("true", 3)


def test_a_delta_log_tells_which_batches_it_has(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    action = {"txn": {"appId": QUERY, "version": 7, "lastUpdated": 1}}
    (log / f"{3:020}.json").write_text(f"{json.dumps({'commitInfo': {}})}\n{json.dumps(action)}\n")
    assert batch_of(spark, 7).already_done(tmp_path)
    assert batch_of(spark, 6).already_done(tmp_path)
    assert not batch_of(spark, 8).already_done(tmp_path)
    assert not batch_of(spark, 7, str(UUID(int=2))).already_done(tmp_path)
    write_checkpoint(spark, log / f"{8:020}.checkpoint.parquet", QUERY, 9)
    assert batch_of(spark, 8).already_done(tmp_path)
    assert not batch_of(spark, 10).already_done(tmp_path)
    of_form_two = log / f"{9:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    actions = [{"checkpointMetadata": {"version": 9}}, {"txn": {"appId": QUERY, "version": 11}}]
    of_form_two.write_text("\n".join(map(json.dumps, actions)))
    assert batch_of(spark, 11).already_done(tmp_path)
    assert not batch_of(spark, 12).already_done(tmp_path)


def write_checkpoint(spark: SparkSession, file: Path, query: str, version: int, configuration: str = "map()") -> None:
    txn = f"named_struct('appId', '{query}', 'version', {version}L) AS txn"
    table = f"named_struct('configuration', CAST({configuration} AS map<string,string>)) AS metaData"
    draft = file.with_name("draft")
    spark.range(1, numPartitions=1).selectExpr(txn, table, "1 AS protocol").write.parquet(str(draft))
    (written,) = draft.glob("*.parquet")
    written.rename(file)
    shutil.rmtree(draft)


@pytest.mark.parametrize("forgets", [False, True])
def test_of_a_delta_log_the_newest_checkpoint_and_what_is_behind_it_are_read(
    spark: SparkSession, tmp_path: Path, forgets: bool
) -> None:
    """More is read of a table alone that forgets old transactions."""
    table = tmp_path / "a, b [c]" / "table, 1"
    log, other, later = table / "_delta_log", str(UUID(int=2)), str(UUID(int=3))
    log.mkdir(parents=True)
    for number in range(20):
        actions = [{"txn": {"appId": other, "version": number}}]
        (log / f"{number:020}.json").write_text("\n".join(map(json.dumps, actions)))
    forgetting = "map('delta.setTransactionRetentionDuration', 'interval 1 days')" if forgets else "map()"
    write_checkpoint(spark, log / f"{19:020}.checkpoint.parquet", QUERY, 4, forgetting)
    write_checkpoint(spark, log / f"{21:020}.checkpoint.{1:010}.{2:010}.parquet", QUERY, 9)  # not whole
    for number in (20, 21):
        (log / f"{number:020}.json").write_text(json.dumps({"txn": {"appId": later, "version": number}}))

    def done(query: str, number: int) -> bool:
        return batch_of(spark, number, query).already_done(table)

    assert [done(QUERY, 4), done(QUERY, 5)] == [True, False]
    assert [done(later, 20), done(later, 21), done(later, 22)] == [True, True, False]
    assert [done(other, 19), done(other, 20)] == [forgets, False]


def test_a_commit_that_is_removed_while_a_delta_log_is_read_does_no_harm(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "_delta_log"
    log.mkdir()
    for number in range(3):
        (log / f"{number:020}.json").write_text(json.dumps({"txn": {"appId": QUERY, "version": number}}))
    listed = hadoop_files.names_in

    def then_removed(*of: Any) -> list[str]:
        names = listed(*of)
        if (first := log / f"{0:020}.json").exists():
            write_checkpoint(spark, log / f"{1:020}.checkpoint.parquet", QUERY, 1)
            first.unlink()
        return names

    monkeypatch.setattr(delta_log, "names_in", then_removed)
    assert batch_of(spark, 2).already_done(tmp_path)


def test_a_delta_table_whose_first_commit_was_cut_off_has_no_batch_yet(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "a [new] {table}" / "_delta_log"
    log.mkdir(parents=True)
    assert not batch_of(spark, 0).already_done(log.parent)
    (log / f"{0:020}.json").write_text(json.dumps({"txn": {"appId": QUERY, "version": 0}}))
    assert batch_of(spark, 0).already_done(log.parent)
    assert not batch_of(spark, 1).already_done(log.parent)
