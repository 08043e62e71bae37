"""Spark on the embedded broker and on Apache's: a topic written, read, copied as a stream, and dead letters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from rocketbox.spark.outgoing import DEDUP_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.apache, pytest.mark.spark, pytest.mark.smoke]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    from rocketbox.spark.java import JavaNotFoundError
    from rocketbox.spark.session import create_session

    try:
        session = create_session("conformance", {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
    except JavaNotFoundError as error:
        pytest.skip(str(error))
    yield session
    session.stop()


def write(frame: DataFrame, name_server: str, **options: Any) -> None:
    frame.write.format("rocketmq").mode("append").options(nameServer=name_server, sendTimeout="12s", **options).save()


def read(spark: SparkSession, name_server: str, topic: str) -> DataFrame:
    return spark.read.format("rocketmq").options(nameServer=name_server, topic=topic).load()


def test_spark_writes_and_reads_topics(spark: SparkSession, name_server: str, topic: str, tmp_path: Path) -> None:
    rows = spark.range(0, 500, 1, 3).selectExpr(
        "id AS row", "concat('T', id % 2) AS tag", "array('k', cast(id AS string)) AS keys",
        "map('number', cast(id AS string)) AS properties", "if(id % 10 = 0, 'one', null) AS hash_key",
    )  # fmt: skip
    write(rows, name_server, topic=topic, jsonColumns="row")
    found = sorted(read(spark, name_server, topic).collect(), key=lambda row: json.loads(bytes(row.body))["row"])
    assert [json.loads(bytes(row.body))["row"] for row in found] == list(range(500))
    assert [(row.tag, row["keys"], row.properties["number"]) for row in found] == [
        (f"T{number % 2}", ["k", str(number)], str(number)) for number in range(500)
    ]
    assert len({row.properties[DEDUP_KEY] for row in found}) == 500
    keyed = [row for row in found if json.loads(bytes(row.body))["row"] % 10 == 0]
    assert len({(row.broker_name, row.queue_id) for row in keyed}) == 1

    source = spark.readStream.format("rocketmq").options(
        nameServer=name_server, topic=topic, tags="T1", maxOffsetsPerTrigger=200
    )
    query = (
        source.load()
        .select("body", "tag")
        .writeStream.format("rocketmq")
        .options(nameServer=name_server, topic=f"{topic}-copy", sendTimeout="12s")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    copied = read(spark, name_server, f"{topic}-copy").collect()
    assert sorted(json.loads(bytes(row.body))["row"] for row in copied) == list(range(1, 500, 2))
    assert {row.properties[DEDUP_KEY].split("/")[0] for row in copied} == {query.id}

    letters = read(spark, name_server, topic).where("tag = 'T0'").limit(3).selectExpr("*", "'late' AS reason")
    write(letters, name_server, deadLettersOf=f"g{topic}")
    dead = read(spark, name_server, f"%DLQ%g{topic}").collect()
    assert [row.properties["DLQ_REASON"] for row in dead] == ["late"] * 3
    assert {row.properties["DLQ_ORIGIN_TOPIC"] for row in dead} == {topic}
    assert {row.msg_id for row in dead} <= {row.msg_id for row in found}
