"""An application with a Spark listener: what its health and readiness say, what goes on beside it, and its stop."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from rocketbox import RocketBox
from rocketbox.management.health import Health, HealthStatus
from tests.support.framework.services import Service, ServiceMaker
from tests.support.spark.listeners import send, until
from tests.support.spark.topics import Broker

pytestmark = [pytest.mark.spark, pytest.mark.anyio]

SOURCE = """
import json

from pyspark.sql import DataFrame
from rocketbox import RocketBox, bean, rocketmq_listener, rocketmq_spark_listener

app = RocketBox("desk", scan=[__name__])
billed, lake = [], []

@rocketmq_listener(topic="TOPIC", consumer_group="bill_TOPIC")
def bill(order: dict[str, int]) -> None:
    billed.append(order["row"])

@bean
class Lake:
    rows = lake

    @rocketmq_spark_listener(topic="TOPIC", consumer_group="lake_TOPIC", OPTIONS)
    def fill(self, rows: DataFrame) -> None:
        self.rows.extend(json.loads(bytes(row.body))["row"] for row in rows.select("body").collect())
"""


SCHEMA = (
    r"Spark listener Lake\.fill: schema 'row bigint name string' is no DDL of Spark: \[PARSE_SYNTAX_ERROR\] .* "
    r"\(service_\d+\.py:\d+\): write it as 'id bigint, item string'$"
)
FILE_SYSTEM = 'No FileSystem for scheme "nosuch"'


def desk(service: ServiceMaker, broker: Broker, topic: str, options: str, more: str = "") -> ModuleType:
    settings = f"rocketmq: {{name-server: '{broker.name_server}'}}\n{more}"
    return service(SOURCE.replace("TOPIC", topic).replace("OPTIONS", options), settings)


def shown(app: RocketBox, group: str) -> Health:
    return app.health().components["listeners"].components[group]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        pytest.param('schema="row bigint name string"', SCHEMA, id="schema"),
        pytest.param('checkpoint="nosuch://host/lake"', FILE_SYSTEM, id="file_system"),
    ],
)
async def test_what_spark_refuses_leaves_the_service_up_and_not_ready_and_its_other_listeners_at_work(
    service: ServiceMaker, spark: SparkSession, broker: Broker, topic: str, options: str, why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    topic = "".join(letter if letter.isalnum() else "_" for letter in topic)
    await send(broker, topic, 0, 3)
    module = desk(service, broker, topic, options)
    group = f"lake_{topic}"
    async with module.app as app:
        await until(lambda: shown(app, group).details["status"] == "failed")
        health = app.health()
        assert not app.is_ready
        assert not health.ready
        failed = shown(app, group)
        assert failed.status is HealthStatus.DOWN
        (reason,) = failed.reasons
        assert re.search(f"its query cannot run: .*{why}", reason), reason
        assert app.not_ready_because == list(health.reasons) == [reason]
        await until(lambda: len(module.billed) == 3)
        await send(broker, topic, 3, 6)
        await until(lambda: len(module.billed) == 6)
        plain = shown(app, f"bill_{topic}")
        assert (plain.status, plain.details["status"]) == (HealthStatus.UP, "running")
        assert shown(app, group).details["status"] == "failed", "nothing begins it again"
    assert sorted(module.billed) == [0, 1, 2, 3, 4, 5]
    assert module.lake == []
    assert caplog.text.count(f"Spark listener {group} does not run, everything else does") == 1
    assert not spark.streams.active


async def test_health_of_an_application_has_the_numbers_of_its_spark_listener(
    service: ServiceMaker, spark: SparkSession, broker: Broker, topic: str
) -> None:
    await send(broker, topic, 0, 5)
    module = desk(service, broker, topic, 'max_messages=5, trigger="0s"')
    async with module.app as app:
        await until(lambda: shown(app, f"lake_{topic}").details.get("lag") == 0)
        assert app.is_ready
        details = dict(shown(app, f"lake_{topic}").details)
        assert (details["status"], details["state"], details["batch"], details["rows"]) == ("running", "running", 0, 5)
        assert details["lag_by_queue"] == {f"broker-a/{number}": 0 for number in range(4)}
        per_second, seconds = details["rows_per_second"], details["batch_seconds"]
        assert isinstance(per_second, float)
        assert isinstance(seconds, float)
        assert per_second > 0
        assert seconds > 0
        # What a probe or an exporter gets, as it is written.
        told = app.health().as_dict()["components"]["listeners"]["components"][f"lake_{topic}"]
        assert told == {"status": "UP", "details": details}
    assert sorted(module.lake) == [0, 1, 2, 3, 4]


async def test_a_session_that_is_there_already_is_used_as_it_is_and_left_so(
    service: ServiceMaker, spark: SparkSession, broker: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As one of a notebook, or of a program that runs the application beside other work."""
    await send(broker, topic, 0, 4)
    conf = "rocketbox.spark.conf: {spark.sql.shuffle.partitions: '77', spark.master: 'local[9]'}\n"
    module = desk(service, broker, topic, 'trigger="available_now"', conf)
    own = {"spark.sql.session.timeZone": "Europe/Berlin", "spark.sql.streaming.stopTimeout": None}
    before = spark.conf.getAll
    try:
        set_all(spark, own)
        said, variables = spark.conf.getAll, dict(os.environ)
        async with module.app as app:
            await until(lambda: shown(app, f"lake_{topic}").details["status"] == "finished")
            assert sorted(module.lake) == [0, 1, 2, 3]
        assert spark.conf.getAll == said
        assert dict(os.environ) == variables
    finally:
        set_all(spark, {name: before.get(name) for name in own})
    assert SparkSession.builder.getOrCreate() is spark
    assert spark.range(3).count() == 3, "it lives on"
    assert levels_of_queries(spark, "OFF", "ERROR") == ["OFF", "ERROR"], "what it logs is still the user's to say"
    assert not spark.streams.active
    (told,) = [text for text in caplog.messages if "there is a SparkSession already, which keeps what it has" in text]
    assert "spark.master, " in told
    assert "spark.sql.shuffle.partitions" in told


def levels_of_queries(spark: SparkSession, *levels: str) -> list[str]:
    """At which level Spark logs what ends queries, where all of it is to log at these; then all is as before."""
    log4j: Any = spark.sparkContext._jvm.org.apache.logging.log4j.LogManager  # type: ignore[union-attr]  # it runs
    name = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
    before = log4j.getRootLogger().getLevel().toString()
    found = []
    for level in levels:
        spark.sparkContext.setLogLevel(level)
        found.append(log4j.getLogger(name).getLevel().toString())
    spark.sparkContext.setLogLevel(before)
    return found


def set_all(spark: SparkSession, settings: Mapping[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


HANGS = """
import threading

from pyspark.sql import DataFrame
from rocketbox import RocketBox, rocketmq_spark_listener

app = RocketBox("desk", scan=[__name__])

@rocketmq_spark_listener(topic="orders", consumer_group="lake", trigger="0s")
def to_lake(rows: DataFrame) -> None:
    print(f"AT WORK {rows.count()}", flush=True)
    threading.Event().wait()  # it hangs here
"""


def test_a_service_whose_function_hangs_in_spark_ends_within_its_time_and_names_the_line(
    broker: Broker, tmp_path: Path
) -> None:
    broker.send("orders", [{"row": 0}, {"row": 1}])
    (tmp_path / "desk.py").write_text(HANGS.lstrip())
    (tmp_path / "rocketbox.yaml").write_text(
        f"rocketmq: {{name-server: '{broker.name_server}'}}\n"
        "rocketbox:\n"
        "  shutdown: {timeout: 6s}\n"
        "  spark: {conf: {spark.driver.extraJavaOptions: '-XX:TieredStopAtLevel=1'}}\n"
    )
    running = Service(tmp_path, "run", "desk:app")
    running.wait_for("AT WORK 2")
    running.process.send_signal(signal.SIGTERM)
    # 3 where a busy machine needs all of the time, whose end nothing outlives (``test_stopping_hard``)
    assert running.finish() in (0, 3), running.output
    line = HANGS.lstrip().splitlines().index("    threading.Event().wait()  # it hangs here") + 1
    place = f"{re.escape(str(tmp_path))}/desk.py:{line} in to_lake"
    told = re.search(
        rf"batch 0 of Spark listener lake has not ended within ([\d.]+) s, it is at {place}", running.output
    )
    assert told is not None, running.output
    assert 0 < float(told[1]) < 4.5, "its part of the 6 s"
    assert re.search(rf"the query of Spark listener lake does not stop, .* \(at {place}\)", running.output)


GOES_ON = """
from pyspark.sql import DataFrame
from rocketbox import RocketBox, rocketmq_spark_listener
from rocketbox.spark import topic_watch

topic_watch.INTERVAL = 0.5  # seconds between two looks
look = topic_watch.TopicWatch.look

async def look_and_say(watch):
    found = await look(watch)
    if found is not None:
        print("AWAY", flush=True)
    return found

topic_watch.TopicWatch.look = look_and_say
app = RocketBox("desk", scan=[__name__])

@rocketmq_spark_listener(topic="orders", consumer_group="lake", trigger="0s")
def to_lake(rows: DataFrame) -> None:
    print(f"READ {rows.count()}", flush=True)
"""


def test_servers_that_are_away_are_told_once_by_the_application_and_not_by_sparks_processes(tmp_path: Path) -> None:
    (tmp_path / "desk.py").write_text(GOES_ON.lstrip())
    with Broker(tmp_path / "store") as servers:
        servers.send("orders", [{"row": 0}, {"row": 1}])
        (tmp_path / "rocketbox.yaml").write_text(
            f"rocketmq: {{name-server: '{servers.name_server}'}}\n"
            "rocketbox.spark.conf: {spark.driver.extraJavaOptions: '-XX:TieredStopAtLevel=1'}\n"
        )
        again = Broker(tmp_path / "store", **servers.ports)
        running = Service(tmp_path, "run", "desk:app")
        running.wait_for("READ 2")
    running.wait_for("AWAY", times=8)  # by then Spark's processes have asked in vain as well
    with again:
        running.wait_for("topic orders can be read again")
        again.send("orders", [{"row": 2}])
        running.wait_for("READ 1")
        running.process.send_signal(signal.SIGTERM)
        assert running.finish() in (0, 3), running.output
    told = [line for line in running.output.splitlines() if "rocketbox.spark.topic_watch" in line]
    assert len(told) == 2, told
    assert re.search(
        "WARNING .* (topic orders cannot be read from|queues of topic orders cannot be asked for)", told[0]
    )
    assert "[spark worker" not in running.output
