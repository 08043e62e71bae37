"""``spark.read.format("rocketmq")`` on the embedded broker."""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException, PySparkException

from rocketbox.spark.source import SCHEMA
from tests.support.spark.topics import Broker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def read(spark: SparkSession, broker: Broker, topic: str, **options: Any) -> DataFrame:
    return spark.read.format("rocketmq").options(nameServer=broker.name_server, topic=topic, **options).load()


def bodies(frame: DataFrame) -> list[int]:
    return sorted(json.loads(bytes(row.body))["row"] for row in frame.select("body").collect())


def test_each_message_is_a_row_with_all_its_columns(spark: SparkSession, broker: Broker, topic: str) -> None:
    before = datetime.datetime.now(datetime.UTC)
    sent = broker.send(topic, [{"row": number} for number in range(10)], lambda number: "A" if number % 2 else None)
    frame = read(spark, broker, topic)
    columns = SCHEMA.replace("timestamp_ltz", "timestamp")
    assert frame.schema.simpleString() == "struct<" + columns.replace(", ", ",").replace(" ", ":") + ">"
    rows = {json.loads(bytes(row["body"]))["row"]: row for row in frame.toArrow().to_pylist()}
    assert sorted(rows) == list(range(10))
    for number, result in enumerate(sent):
        row = rows[number]
        assert row["topic"] == topic
        assert (row["broker_name"], row["queue_id"]) == (result.queue.broker_name, result.queue.queue_id)
        assert row["queue_offset"] == result.queue_offset
        assert row["msg_id"] == result.msg_id
        assert row["tag"] == ("A" if number % 2 else None)
        assert row["keys"] == [f"k{number}"]
        properties = dict(row["properties"])
        assert properties["run"] == "1"
        assert properties["KEYS"] == f"k{number}"
        assert before - datetime.timedelta(seconds=1) < row["born_timestamp"] <= row["store_timestamp"]
        assert row["reconsume_times"] == 0


def test_times_are_moments_whatever_the_session_takes_timestamp_for(
    spark: SparkSession, broker: Broker, topic: str
) -> None:
    broker.send(topic, [{"row": 0}])
    (expected,) = read(spark, broker, topic).toArrow().to_pylist()
    conf = "spark.sql.timestampType"
    spark.conf.set(conf, "TIMESTAMP_NTZ")
    try:
        frame = read(spark, broker, topic)
        assert frame.schema["born_timestamp"].dataType.simpleString() == "timestamp"
        assert frame.toArrow().to_pylist() == [expected]
    finally:
        spark.conf.unset(conf)


def test_a_read_delivers_the_columns_that_it_names(spark: SparkSession, broker: Broker, topic: str) -> None:
    broker.send(topic, [{"row": number} for number in range(10)])
    frame = read(spark, broker, topic, columns="queue_offset, body")
    assert frame.schema.simpleString() == "struct<queue_offset:bigint,body:binary>"
    assert bodies(frame) == list(range(10))
    assert "properties" not in read(spark, broker, topic, includeProperties=False).columns


def test_messages_that_cannot_be_read_are_rows_that_say_why(spark: SparkSession, broker: Broker, topic: str) -> None:
    broker.send(topic, [{"row": number} for number in range(8)])
    broker.send_by_hand(topic, b"sent in another age", g=2**62)
    broker.send_by_hand(topic, b"no zlib", f=1)
    broker.send(topic, [{"row": number} for number in range(8, 16)])
    rows = read(spark, broker, topic).toArrow().to_pylist()
    assert sorted(json.loads(row["body"])["row"] for row in rows if row["body"]) == list(range(16))
    age, packed = sorted((row for row in rows if row["body"] is None), key=lambda row: row["queue_offset"])
    assert f"the born timestamp {2**62}" in age["_error"]
    assert "a body compressed with ZLIB cannot be read" in packed["_error"]
    assert [row["_error"] for row in rows if row["body"]] == [None] * 16
    assert read(spark, broker, topic).where("_error IS NOT NULL").count() == 2


def test_sql_reads_a_topic_by_its_tags(spark: SparkSession, broker: Broker, topic: str) -> None:
    broker.send(topic, [{"row": number} for number in range(30)], lambda number: "ABC"[number % 3])
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW tagged USING rocketmq "
        f"OPTIONS (nameServer '{broker.name_server}', topic '{topic}', tags 'A || C')"
    )
    counted = spark.sql("SELECT tag, count(*) AS n FROM tagged GROUP BY tag ORDER BY tag").collect()
    assert [tuple(row) for row in counted] == [("A", 10), ("C", 10)]


def test_a_read_begins_and_ends_where_it_is_told(spark: SparkSession, broker: Broker, topic: str) -> None:
    sent = broker.send(topic, [{"row": number} for number in range(40)])
    places = {number: (str(result.queue.queue_id), result.queue_offset) for number, result in enumerate(sent)}
    start = {"0": 3, "1": -1, "2": -2}  # queue 3 is not named: from its beginning
    end = {"0": 5, "2": 4}  # queues 1 and 3: to their ends
    frame = read(
        spark,
        broker,
        topic,
        startingOffsets=json.dumps({topic: {"broker-a": start}}),
        endingOffsets=json.dumps({topic: {"broker-a": end}}),
    )
    expected = [
        number
        for number, (queue, offset) in places.items()
        if start.get(queue, 0) != -1 and max(0, start.get(queue, 0)) <= offset < end.get(queue, 1000)
    ]
    assert bodies(frame) == expected
    assert len(expected) == 2 + 4 + 10
    assert read(spark, broker, topic, startingOffsets="latest").count() == 0


def test_small_queues_share_a_task_and_large_reads_are_split(spark: SparkSession, broker: Broker, topic: str) -> None:
    broker.send(topic, [{"row": number} for number in range(100)])
    assert read(spark, broker, topic).rdd.getNumPartitions() == 1
    split = read(spark, broker, topic, rowsPerPartition=10, maxPartitions=7)
    assert split.rdd.getNumPartitions() == 7
    many = read(spark, broker, topic, rowsPerPartition=10)
    assert many.rdd.getNumPartitions() == 10, "as many as the rows need, however few processors the driver has"
    assert bodies(split) == list(range(100))


def test_a_topic_that_does_not_exist_is_an_error(spark: SparkSession, broker: Broker, topic: str) -> None:
    with pytest.raises(AnalysisException, match=f"topic {topic} does not exist at name server"):
        read(spark, broker, topic).count()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tag": "A"}, "has no option 'tag'; did you mean tags?"),
        ({"failOnDataLoss": "no"}, "option failOnDataLoss is 'no'; it must be true or false"),
        ({"maxOffsetsPerTrigger": "5"}, "option maxOffsetsPerTrigger is for streaming reads"),
        ({"startingOffsets": '{"%s": {"broker-a": {"9": 1}}}'}, "names queues that the topic does not have"),
        ({"endingOffsets": '{"%s": {"broker-a": {"0": 99}}}'}, "endingOffsets has offset 99 for"),
    ],
)
def test_a_wrong_option_is_told(
    spark: SparkSession, broker: Broker, topic: str, options: dict[str, str], text: str
) -> None:
    broker.send(topic, [{"row": 1}])
    options = {name: value.replace("%s", topic) for name, value in options.items()}
    with pytest.raises(AnalysisException) as failure:
        read(spark, broker, topic, **options).count()
    assert text in str(failure.value)


def test_a_schema_of_the_users_own_is_refused(spark: SparkSession, broker: Broker, topic: str) -> None:
    reader = spark.read.format("rocketmq").options(nameServer=broker.name_server, topic=topic).schema("row bigint")
    with pytest.raises(AnalysisException, match=r"leave \.schema\(\) out"):
        reader.load().count()


def test_a_name_server_that_is_not_there_is_told_at_once(spark: SparkSession) -> None:
    frame = spark.read.format("rocketmq").options(nameServer="127.0.0.1:1", topic="t").load()
    with pytest.raises(PySparkException, match=r"ConnectError: .*127\.0\.0\.1:1"):
        frame.count()


FILTERS_ARE_PUSHED = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushes_filters(spark: SparkSession) -> Iterator[None]:
    """A session that pushes filters, as none does that rocketbox makes: uses of one frame would share them."""
    assert spark.conf.get(FILTERS_ARE_PUSHED) == "false"
    spark.conf.set(FILTERS_ARE_PUSHED, "true")
    yield
    spark.conf.unset(FILTERS_ARE_PUSHED)


@pytest.mark.usefixtures("pushes_filters")
def test_filters_are_pushed_where_spark_does_it(spark: SparkSession, broker: Broker, topic: str) -> None:
    sent = broker.send(topic, [{"row": number} for number in range(16)], lambda number: "AB"[number % 2])
    expected = [
        number
        for number, result in enumerate(sent)
        if result.queue.queue_id == 1 and result.queue_offset < 3 and number % 2 == 0
    ]

    def filtered() -> DataFrame:
        rows = read(spark, broker, topic, rowsPerPartition=1, pushFilters="true")
        return rows.where("queue_id = 1 AND queue_offset < 3 AND tag = 'A'")

    assert filtered().rdd.getNumPartitions() == 3, "three offsets are read"
    assert bodies(filtered()) == expected
    spark.conf.set(FILTERS_ARE_PUSHED, "false")
    assert filtered().rdd.getNumPartitions() == 16, "all rows are read, and Spark throws most of them away"
    assert bodies(filtered()) == expected


@pytest.mark.usefixtures("pushes_filters")
def test_uses_of_one_frame_do_not_get_each_others_filters(spark: SparkSession, broker: Broker, topic: str) -> None:
    """Spark plans one reader for all of them, which has taken the filters of one."""
    sent = broker.send(topic, [{"row": number} for number in range(16)], lambda number: "AB"[number % 2])

    def rows(wanted: Callable[[int, int], bool]) -> list[int]:
        places = [(result.queue.queue_id, result.queue_offset) for result in sent]
        return [number for number, place in enumerate(places) if wanted(*place)]

    frame = read(spark, broker, topic)
    assert bodies(frame.where("queue_id = 1")) == rows(lambda queue, _: queue == 1)
    assert bodies(frame) == list(range(16))
    assert bodies(frame.where("queue_id = 2 AND tag = 'A'")) == [
        number for number in rows(lambda queue, _: queue == 2) if number % 2 == 0
    ]
    assert bodies(frame.where("queue_offset = 0").union(frame.where("queue_offset >= 2"))) == rows(
        lambda _, offset: offset != 1
    )


def test_times_say_where_a_read_begins_and_ends(spark: SparkSession, broker: Broker, topic: str) -> None:
    broker.send(topic, [{"row": number} for number in range(20)])
    stored = [row.store_timestamp for row in read(spark, broker, topic).select("store_timestamp").collect()]
    end = max(stored).replace(tzinfo=datetime.UTC) if max(stored).tzinfo is None else max(stored)
    later = f"{int(end.timestamp() * 1000) + 1}ms"
    assert bodies(read(spark, broker, topic, endingOffsets=later)) == list(range(20))
    assert read(spark, broker, topic, startingOffsets=later).count() == 0
    assert bodies(read(spark, broker, topic, startingOffsets="2020-01-01T00:00:00Z")) == list(range(20))


def test_topics_are_read_by_list_pattern_and_queue(spark: SparkSession, broker: Broker, topic: str) -> None:
    broker.send(f"{topic}_a", [{"row": number} for number in range(8)])
    broker.send(f"{topic}_b", [{"row": number} for number in range(8, 16)])
    source = spark.read.format("rocketmq").option("nameServer", broker.name_server)
    assert bodies(source.option("topic", f"{topic}_a, {topic}_b").load()) == list(range(16))
    pattern = spark.read.format("rocketmq").options(nameServer=broker.name_server, topicPattern=f"{topic}_[ab]")
    assert bodies(pattern.load()) == list(range(16))
    queues = json.dumps({f"{topic}_a": {"broker-a": [0]}, f"{topic}_b": {"broker-a": [1, 2]}})
    assigned = spark.read.format("rocketmq").options(nameServer=broker.name_server, assign=queues).load()
    found = {(row.topic, row.queue_id) for row in assigned.select("topic", "queue_id").collect()}
    assert found == {(f"{topic}_a", 0), (f"{topic}_b", 1), (f"{topic}_b", 2)}
