"""``frame.write`` and ``frame.writeStream`` with ``format("rocketmq")`` on the embedded broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped] # it has no types
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as f
from pyspark.sql import types as t

from rocketbox.client import Admin, PushConsumer
from rocketbox.spark.outgoing import DEDUP_KEY
from rocketbox.spark.servers import Servers
from rocketbox.spark.session import create_session, make_active
from rocketbox.spark.worker_client import ClientThread
from rocketbox.spark.writing import WriteError, plan_write
from tests.support.client.consuming import Seen
from tests.support.spark.broker_beside_process import broker_beside
from tests.support.spark.topics import Broker, dedup_keys, rows_of, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark


def write(frame: DataFrame, broker: Broker, mode: str = "append", **options: Any) -> None:
    frame.write.format("rocketmq").mode(mode).options(nameServer=broker.name_server, **options).save()


def read(spark: SparkSession, broker: Broker, topic: str) -> list[Row]:
    rows = spark.read.format("rocketmq").options(nameServer=broker.name_server, topic=topic).load().collect()
    return sorted(rows, key=lambda row: bytes(row.body))


def test_one_client_of_a_process_asks_and_sends(broker: Broker) -> None:
    thread = ClientThread(Servers(broker.name_server))
    try:

        async def instance(producer: Any) -> Any:
            return producer.instance

        first, second = thread.send("one", instance).result(), thread.send("two", instance).result()
        assert first is second
        assert thread.send("one", instance).result() is first
    finally:
        thread.close()
    assert not first.running


def test_each_row_is_a_message_with_a_key_of_its_own(spark: SparkSession, broker: Broker, topic: str) -> None:
    frame = (
        spark.range(300)
        .repartition(3)
        .selectExpr(
            "format_string('%03d', id) AS body",
            "if(id % 2 = 0, 'even', null) AS tag",
            "array('k', cast(id AS string)) AS keys",
            "map('number', cast(id AS string)) AS properties",
        )
    )
    write(frame, broker, topic=topic, maxInFlight=40)
    rows = read(spark, broker, topic)
    assert [bytes(row.body).decode() for row in rows] == [f"{number:03d}" for number in range(300)]
    for number, row in enumerate(rows):
        assert row.tag == (None if number % 2 else "even")
        assert row["keys"] == ["k", str(number)]
        assert row.properties["number"] == str(number)
    keys = [row.properties[DEDUP_KEY].split("/") for row in rows]
    assert len({tuple(key) for key in keys}) == 300
    assert {key[2] for key in keys} == {"0", "1", "2"}
    assert len({(key[0], key[1]) for key in keys}) == 1


def test_a_copied_topic_and_json_columns(spark: SparkSession, broker: Broker, topic: str) -> None:
    write(spark.range(5).selectExpr("id AS row", "'x' AS name"), broker, topic=topic, jsonColumns="*")
    rows = read(spark, broker, topic)
    assert [json.loads(bytes(row.body)) for row in rows] == [{"row": number, "name": "x"} for number in range(5)]
    source = spark.read.format("rocketmq").options(nameServer=broker.name_server, topic=topic).load()
    kept = source.select("body", "tag", "keys", "properties")
    write(kept, broker, topic=f"{topic}-copy", reservedProperties="drop")
    assert [row.body for row in read(spark, broker, f"{topic}-copy")] == [row.body for row in rows]


def test_rows_of_one_hash_key_keep_their_order_in_one_queue(spark: SparkSession, broker: Broker, topic: str) -> None:
    frame = spark.range(0, 200, 1, 1).selectExpr(
        "format_string('%03d', id) AS body", "concat('key', id % 5) AS hash_key"
    )
    write(frame, broker, topic=topic, maxInFlight=30)
    rows = read(spark, broker, topic)
    for key in range(5):
        mine = [row for row in rows if int(bytes(row.body)) % 5 == key]
        assert len({row.queue_id for row in mine}) == 1
        offsets = [row.queue_offset for row in mine]
        assert offsets == sorted(offsets)
        assert len(offsets) == 40


@pytest.mark.anyio
async def test_rows_come_to_consumers_as_late_as_their_level_says_each_by_its_own_or_all_by_the_option(
    spark: SparkSession, broker: Broker, topic: str
) -> None:
    own, all_of_them = f"{topic}_own", f"{topic}_all"
    rows = ("elt(id + 1, 'null', 'none', 'late') AS body", "IF(id = 0, NULL, CAST(id - 1 AS INT)) AS delay_level")

    def send() -> None:
        make_active(spark)  # in this thread
        write(spark.range(0, 3, 1, 1).selectExpr(*rows), broker, topic=own)
        write(spark.range(0, 2, 1, 1).selectExpr("concat('all ', id) AS body"), broker, topic=all_of_them, delayLevel=1)

    for each in (own, all_of_them):
        await anyio.to_thread.run_sync(broker.set_queues, each, 2)
    seen = Seen()
    async with PushConsumer("late", name_server=broker.name_server) as consumer:
        for each in (own, all_of_them):
            await consumer.subscribe(each, "*", seen)
        await anyio.to_thread.run_sync(send)
        await seen.all_of([b"null", b"none", b"late", b"all 0", b"all 1"])
    plain, late, told = [b"none", b"null"], [b"all 0", b"all 1", b"late"], seen.messages
    assert sorted(seen.bodies) == sorted(plain + late)
    assert {message.body for message in told if message.topic == all_of_them} == {b"all 0", b"all 1"}
    assert sorted(message.body for message in told if "REAL_TOPIC" in message.properties) == late
    waits = [
        message.store_timestamp_ms - message.born_timestamp_ms  # it comes into its topic when it is due
        for message in told if message.body in late
    ]  # fmt: skip
    assert all(1000 <= wait < 60_000 for wait in waits), waits


@pytest.mark.parametrize(
    ("mode", "columns", "options", "text"),
    [
        ("overwrite", "'b' AS body", {}, "a topic can only be appended to"),
        ("append", "id", {}, "column 'id' is no part of a message"),
        ("append", "'b' AS body", {"acks": "all"}, "has no option 'acks'"),
        ("append", "'b' AS body", {"delayLevel": "99"}, "option delayLevel is 99; RocketMQ has the levels 1"),
        ("append", "'b' AS body", {"producerGroup": " "}, "option producerGroup is blank; leave it out"),
        ("append", "'b' AS body", {"tag": "a|b"}, r"option tag: tag 'a\|b' holds '\|', which separates tags"),
    ],
)
def test_a_wrong_write_is_refused_before_a_row_is_sent(
    spark: SparkSession, broker: Broker, topic: str, mode: str, columns: str, options: dict[str, str], text: str
) -> None:
    broker.set_queues(topic, 2)
    never = f.udf(lambda _: 1 // 0, "string")  # no row is made: Spark plans the write only
    frame = spark.range(3).selectExpr(columns)
    frame = frame.select(*(never(f.col(name)).alias(name) for name in frame.columns))
    with pytest.raises(PySparkException, match=text):
        write(frame, broker, mode, topic=topic, **options)
    assert set(broker.ends(topic).values()) == {0}


def test_the_mode_must_be_said(spark: SparkSession, broker: Broker, topic: str) -> None:
    with pytest.raises(AnalysisException, match="Append"):
        write(spark.range(3).selectExpr("'b' AS body"), broker, "error", topic=topic)


def test_a_row_that_cannot_be_sent_is_named_with_its_place(spark: SparkSession, broker: Broker, topic: str) -> None:
    frame = spark.range(0, 20, 1, 2).selectExpr("if(id = 17, null, 'b') AS body")
    with pytest.raises(
        PySparkException, match=r"row 7 of partition 1 \([^)]*/0/1/7\) was not written: its body is null"
    ):
        write(frame, broker, topic=topic)
    frame = spark.range(0, 20, 1, 2).selectExpr("'b' AS body", "if(id = 3, 'a|b', 'c') AS tag")
    with pytest.raises(PySparkException, match=r"row 3 of partition 0 .* tag 'a\|b' holds"):
        write(frame, broker, topic=topic)


def test_a_broker_that_is_away_is_named(spark: SparkSession) -> None:
    frame = spark.range(0, 1, 1, 1).selectExpr("'b' AS body")
    with pytest.raises(PySparkException, match=r"row 0 of partition 0 .*127\.0\.0\.1:1\b"):
        frame.write.format("rocketmq").mode("append").options(
            nameServer="127.0.0.1:1", topic="t", sendTimeout="200ms"
        ).save()


def test_another_attempt_sends_the_same_rows_under_the_same_keys(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    mark = tmp_path / "failed"

    def last_row_fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            bodies = batch.column(0).to_pylist()
            if not mark.exists():
                mark.touch()
                bodies[-1] = None
            yield pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.string())})

    frame = spark.range(0, 100, 1, 1).selectExpr("format_string('%03d', id) AS body")
    frame = frame.mapInArrow(last_row_fails_once, "body string")
    write(frame, broker, topic=topic, maxInFlight=10)
    rows = read(spark, broker, topic)
    assert len(rows) > 100  # those of the first attempt, and all
    by_key = {row.properties[DEDUP_KEY]: bytes(row.body) for row in rows}
    assert sorted(by_key.values()) == [b"%03d" % number for number in range(100)]


def test_a_stream_is_written_with_its_query_and_batch_in_the_keys(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.send(topic, rows_of(0, 30))
    source = (
        spark.readStream.format("rocketmq")
        .options(nameServer=broker.name_server, topic=topic, maxOffsetsPerTrigger=10)
        .load()
        .select("body", f.lit("copied").alias("tag"))
    )
    query = (
        source.writeStream.format("rocketmq")
        .options(nameServer=broker.name_server, topic=f"{topic}-copy")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    rows = read(spark, broker, f"{topic}-copy")
    assert sorted(json.loads(bytes(row.body))["row"] for row in rows) == list(range(30))
    keys = [row.properties[DEDUP_KEY].split("/") for row in rows]
    assert {key[0] for key in keys} == {query.id}
    assert {key[1] for key in keys} == {"0", "1", "2"}
    assert len({tuple(key) for key in keys}) == 30


def test_a_stream_of_whole_results_is_refused(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.send(topic, rows_of(0, 3))
    source = spark.readStream.format("rocketmq").options(nameServer=broker.name_server, topic=topic).load()
    counted = source.groupBy("queue_id").count().selectExpr("cast(count AS string) AS body")
    query = (
        counted.writeStream.format("rocketmq")
        .options(nameServer=broker.name_server, topic=f"{topic}-copy")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .outputMode("complete")
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(PySparkException, match="can only be appended to"):
        query.awaitTermination()


def test_a_thread_that_did_not_make_the_session_may_write(spark: SparkSession, broker: Broker, topic: str) -> None:
    """Spark looks for a data source in the session of the thread, which a new thread of Java does not have."""
    spark._jvm.SparkSession.clearActiveSession()  # type: ignore[union-attr]
    session = create_session("another thread's", {})
    write(session.range(0, 2, 1, 1).selectExpr("format_string('%d', id) AS body"), broker, topic=topic)
    assert sorted(bytes(row.body) for row in read(spark, broker, topic)) == [b"0", b"1"]


def test_a_thread_of_ones_own_may_write_once_it_has_made_a_frame(
    spark: SparkSession, broker: Broker, topic: str
) -> None:
    frame = spark.range(0, 2, 1, 1).selectExpr("format_string('%d', id) AS body")

    def work() -> None:
        with pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):
            write(frame, broker, topic=topic)
        spark.createDataFrame([(1,)], "number int")
        write(frame, broker, topic=topic)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(work).result()
    assert sorted(bytes(row.body) for row in read(spark, broker, topic)) == [b"0", b"1"]


def test_the_rows_of_a_broker_that_is_killed_are_told_and_come_again_under_the_same_keys(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    """No session is needed: this is what a task does."""
    fields = [t.StructField("body", t.BinaryType()), t.StructField("hash_key", t.StringType())]
    options = {"nameServer": broker.name_server, "topic": topic, "maxInFlight": "20", "sendTimeout": "500ms"}
    task = plan_write({**options, "writeId": "once"}, t.StructType(fields), overwrite=False)

    def rows(behind_the_half: Callable[[], None] | None = None) -> Iterator[pa.RecordBatch]:
        for first in range(0, 200, 10):
            if first == 100 and behind_the_half is not None:
                behind_the_half()
            numbers = range(first, first + 10)
            bodies, keys = [b"%d" % number for number in numbers], [f"k{number % 10}" for number in numbers]
            yield pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary()), "hash_key": keys})

    def has_two(admin: Admin) -> Any:
        return admin.queues_on_brokers(topic)

    def kill() -> None:
        process.kill()
        process.wait()

    with broker_beside(tmp_path / "b", "broker-b", broker.name_server) as (process, address):
        broker.ask(lambda admin: admin.create_topic(topic, queues=2))
        wait_for(lambda: len(broker.ask(has_two)) == 2)
        with pytest.raises(WriteError) as caught:
            task.run(rows(kill))
    error = caught.value
    assert 80 <= error.row < 200
    assert str(error).startswith(f"row {error.row} of partition 0 (once/0/0/{error.row}) was not written: ")
    assert f"broker-b ({address})" in str(error)
    assert "rows of this attempt are stored; another attempt sends them again, with the same DEDUP_KEY" in str(error)
    port = int(address.rpartition(":")[2])
    with broker_beside(tmp_path / "b", "broker-b", broker.name_server, port):
        wait_for(lambda: len(broker.ask(has_two)) == 2)
        assert task.run(rows()).rows == 200
        found = broker.messages_of(topic)
    keys = dedup_keys(found)
    assert sorted(map(int, keys)) == list(range(200))
    assert {len(of_row) for of_row in keys.values()} == {1}
    assert len(found) > 200
