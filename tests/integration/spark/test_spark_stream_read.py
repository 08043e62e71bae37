"""``spark.readStream.format("rocketmq")`` on the embedded broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException

from tests.support.spark.topics import Broker, rows_of, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark


class Sink:
    """Collects what the batches hold, by their id; raises in a batch when told to."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[int]]] = []
        self.fail_in: int | None = None

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        found = sorted(json.loads(bytes(row.body))["row"] for row in rows.select("body").collect())
        self.batches.append((batch_id, found))
        if batch_id == self.fail_in:
            raise ArithmeticError("the sink is full")

    @property
    def rows(self) -> list[int]:
        return [row for _, batch in self.batches for row in batch]


def start(spark: SparkSession, broker: Broker, topic: str, sink: Sink, folder: Path, **options: Any) -> StreamingQuery:
    """A query with these options of the source; ``now=True`` reads what there is."""
    now = options.pop("now", False)
    frame = spark.readStream.format("rocketmq").options(nameServer=broker.name_server, topic=topic, **options).load()
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(folder / "checkpoint"))
    return (writer.trigger(availableNow=True) if now else writer.trigger(processingTime="0 seconds")).start()


def ended(query: StreamingQuery) -> Callable[[], Any]:
    """For wait_for: what ended the query, if anything did."""
    return lambda: not query.isActive and (query.exception() or "it has ended")


def test_available_now_reads_what_there_is_in_limited_batches_and_mirrors_all_of_it(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.send(topic, rows_of(0, 100))
    sink = Sink()
    mirrored = {"group": "now", "commitOffsets": True}
    query = start(spark, broker, topic, sink, tmp_path, now=True, maxOffsetsPerTrigger=30, **mirrored)
    query.awaitTermination(120)
    assert [len(batch) for _, batch in sink.batches] == [30, 30, 30, 10]
    assert sorted(sink.rows) == list(range(100))
    assert broker.committed(topic, "now") == broker.ends(topic)
    # Again from the checkpoint: only what is new, and without anything new no batch.
    broker.send(topic, rows_of(100, 105))
    for _ in range(2):
        start(spark, broker, topic, sink, tmp_path, now=True, **mirrored).awaitTermination(120)
    assert [len(batch) for _, batch in sink.batches[4:]] == [5]


def test_the_mirror_shows_no_lag_while_the_topic_is_idle(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.send(topic, rows_of(0, 10))
    sink = Sink()
    query = start(spark, broker, topic, sink, tmp_path, group="idle", commitOffsets=True)
    wait_for(lambda: len(sink.rows) == 10, unless=ended(query))
    wait_for(lambda: broker.committed(topic, "idle") == broker.ends(topic), unless=ended(query))
    batches = len(sink.batches)
    time.sleep(1.5)
    assert len(sink.batches) == batches == 1  # equal offsets are equal text: no empty batches
    query.stop()


def test_a_repeated_first_batch_of_latest_reads_the_same(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.send(topic, rows_of(0, 5))
    sink = Sink()
    sink.fail_in = 0
    query = start(spark, broker, topic, sink, tmp_path, startingOffsets="latest")
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        query.awaitTermination(120)
    broker.send(topic, rows_of(5, 11))
    sink.fail_in = None
    query = start(spark, broker, topic, sink, tmp_path, startingOffsets="latest")
    wait_for(lambda: sink.rows.count(10), unless=ended(query))
    query.stop()
    assert sink.batches[:2] == [(0, []), (0, [])], "the end was the beginning, and is again"
    assert sorted(sink.rows) == list(range(5, 11))


def test_a_batch_that_comes_again_has_its_rows_although_the_filter_was_changed(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.send(topic, rows_of(0, 10), lambda number: "A" if number < 4 else "B")
    sink = Sink()
    sink.fail_in = 0
    query = start(spark, broker, topic, sink, tmp_path, now=True, tags="A")
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        query.awaitTermination(120)
    broker.send(topic, rows_of(10, 20), lambda number: "A" if number < 4 else "B")
    sink.fail_in = None
    start(spark, broker, topic, sink, tmp_path, now=True, tags="B").awaitTermination(120)
    assert sink.batches == [(0, [0, 1, 2, 3]), (0, [0, 1, 2, 3]), (1, list(range(14, 20)))]


def test_a_checkpoint_of_another_cluster_of_the_same_names_is_refused(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.send(topic, rows_of(0, 40))
    sink = Sink()
    start(spark, broker, topic, sink, tmp_path, now=True).awaitTermination(120)
    assert len(sink.rows) == 40
    with Broker(tmp_path / "another") as other:
        other.send(topic, rows_of(0, 60))
        query = start(spark, other, topic, sink, tmp_path, now=True)
        with pytest.raises(
            StreamingQueryException, match=r"CheckpointError: the checkpoint is not of what name server"
        ):
            query.awaitTermination(120)
    assert len(sink.rows) == 40, "nothing was read"


def test_a_checkpoint_of_the_earlier_form_is_refused(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.send(topic, rows_of(0, 8))
    start(spark, broker, topic, Sink(), tmp_path, now=True).awaitTermination(120)
    for number in ("0",):
        log = tmp_path / "checkpoint" / "offsets" / number
        *head, _ = log.read_text().splitlines()
        log.write_text("\n".join([*head, json.dumps({topic: {"broker-a": {"0": 2}}})]))
        (log.parent / f".{number}.crc").unlink(missing_ok=True)
    query = start(spark, broker, topic, Sink(), tmp_path, now=True)
    with pytest.raises(StreamingQueryException, match="written by an earlier rocketbox"):
        query.awaitTermination(120)


def test_a_group_goes_on_where_it_has_committed(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.send(topic, rows_of(0, 8))
    mirrored = {"group": "goes-on", "commitOffsets": True}
    start(spark, broker, topic, Sink(), tmp_path / "first", now=True, **mirrored).awaitTermination(120)
    broker.send(topic, rows_of(8, 12))
    sink = Sink()
    start(spark, broker, topic, sink, tmp_path / "second", now=True, group="goes-on").awaitTermination(120)
    assert sink.rows == [8, 9, 10, 11]


def test_streams_of_one_group_each_read_all_and_the_group_stands_where_the_foremost_does(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    """Only listeners have a lease."""
    broker.send(topic, rows_of(0, 8))
    mirrored = {"group": "two-streams", "commitOffsets": True, "startingOffsets": "earliest"}
    one, other, sinks = tmp_path / "one", tmp_path / "other", (Sink(), Sink())
    start(spark, broker, topic, sinks[0], one, now=True, **mirrored).awaitTermination(120)
    start(spark, broker, topic, sinks[1], other, now=True, maxOffsetsPerTrigger=4, **mirrored).awaitTermination(120)
    assert [sorted(sink.rows) for sink in sinks] == [list(range(8))] * 2
    broker.send(topic, rows_of(8, 12))
    start(spark, broker, topic, sinks[1], other, now=True, **mirrored).awaitTermination(120)
    foremost = broker.ends(topic)
    assert broker.committed(topic, "two-streams") == foremost
    broker.send(topic, rows_of(12, 16))
    query = start(spark, broker, topic, sinks[0], one, maxOffsetsPerTrigger=2, **mirrored)
    wait_for(lambda: 8 < len(sinks[0].rows) < 12, unless=ended(query))
    assert all(n is not None and n >= (foremost[q] or 0) for q, n in broker.committed(topic, "two-streams").items())
    wait_for(lambda: len(sinks[0].rows) == 16, unless=ended(query))
    query.stop()
    assert [sorted(sink.rows) for sink in sinks] == [list(range(16)), list(range(12))]


def test_a_second_query_with_a_checkpoint_ends_the_first_one_and_goes_on_from_it(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    """That is Spark's own rule (spark.sql.streaming.stopActiveRunOnRestart)."""
    broker.send(topic, rows_of(0, 8))
    sinks = Sink(), Sink()
    first = start(spark, broker, topic, sinks[0], tmp_path)
    wait_for(lambda: first.lastProgress and len(sinks[0].rows) == 8, unless=ended(first))
    second = start(spark, broker, topic, sinks[1], tmp_path)
    assert not first.isActive
    broker.send(topic, rows_of(8, 12))
    wait_for(lambda: len(sinks[1].rows) == 4, unless=ended(second))
    second.stop()
    assert [sorted(sink.rows) for sink in sinks] == [list(range(8)), list(range(8, 12))]


def test_a_topic_that_comes_later_is_read_from_its_beginning(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    sink = Sink()
    options = {"startingOffsets": "latest", "maxOffsetsPerTrigger": 4}
    query = start(spark, broker, topic, sink, tmp_path, **options)
    wait_for(lambda: sink.batches, unless=ended(query))
    broker.send(topic, rows_of(0, 10))
    wait_for(lambda: len(sink.rows) == 10, unless=ended(query))
    query.stop()
    assert sorted(sink.rows) == list(range(10))


def test_what_a_filter_leaves_out_is_no_loss(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.send(topic, rows_of(0, 400), lambda number: "A" if number % 50 == 7 else "B")
    sink = Sink()
    options = {"tags": "A", "maxOffsetsPerTrigger": 150, "group": "filtered", "commitOffsets": True}
    query = start(spark, broker, topic, sink, tmp_path, now=True, **options)
    query.awaitTermination(120)
    assert sorted(sink.rows) == list(range(7, 400, 50))
    assert broker.committed(topic, "filtered") == broker.ends(topic)


def test_a_query_survives_a_restart_of_the_broker(spark: SparkSession, topic: str, tmp_path: Path) -> None:
    with Broker(tmp_path / "store") as broker:
        ports = broker.ports
        broker.send(topic, rows_of(0, 10))
        sink = Sink()
        query = start(spark, broker, topic, sink, tmp_path, group="survivor", commitOffsets=True)
        wait_for(lambda: len(sink.rows) == 10, unless=ended(query))
    time.sleep(1)
    assert query.isActive
    with Broker(tmp_path / "store", **ports) as broker:
        broker.send(topic, rows_of(10, 20))
        wait_for(lambda: len(sink.rows) == 20, unless=ended(query))
        wait_for(lambda: broker.committed(topic, "survivor") == broker.ends(topic), unless=ended(query))
        query.stop()
    assert sorted(sink.rows) == list(range(20))


def test_a_topic_made_anew_is_refused(spark: SparkSession, topic: str, tmp_path: Path) -> None:
    with Broker(tmp_path / "store") as broker:
        ports = broker.ports
        broker.send(topic, rows_of(0, 40))
        start(spark, broker, topic, Sink(), tmp_path, now=True).awaitTermination(120)
    with Broker(tmp_path / "another store", **ports) as broker:
        broker.send(topic, rows_of(40, 44))
        query = start(spark, broker, topic, Sink(), tmp_path, failOnDataLoss=False)
        with pytest.raises(StreamingQueryException, match=r"was read up to offset 10, and the queue ends at 1"):
            query.awaitTermination(120)


@pytest.mark.parametrize(
    "limit",
    [
        {"maxBytesPerTrigger": "6KB"},
        {"maxOffsetsPerTrigger": 40, "maxBytesPerTrigger": "1MB", "minOffsetsPerTrigger": 5},
    ],
    ids=lambda limit: "+".join(limit),
)
def test_available_now_ends_with_each_limit(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path, limit: dict[str, Any]
) -> None:
    topic = "".join(letter if letter.isalnum() else "_" for letter in topic)
    broker.send(topic, rows_of(0, 100))
    sink = Sink()
    start(spark, broker, topic, sink, tmp_path, now=True, **limit).awaitTermination(120)
    assert sorted(sink.rows) == list(range(100))
    assert max(len(batch) for _, batch in sink.batches) <= limit.get("maxOffsetsPerTrigger", 100)
    if "maxBytesPerTrigger" in limit and len(limit) == 1:
        assert len(sink.batches) > 1
