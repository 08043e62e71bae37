"""The options of a Spark listener: decorator, settings, defaults; and what a look finds wrong before Spark starts."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark")

from rocketbox.autoconfigure.assembly import Assembly
from rocketbox.autoconfigure.properties import SPARK_SHARES
from rocketbox.errors import Finding
from rocketbox.listeners.options import LISTENER_OPTIONS
from rocketbox.marks import rocketmq_spark_listener
from rocketbox.spark.listener_source import rows_of_a_task, source_options
from rocketbox.spark.query_options import QUERY_OPTIONS, OnFailedBatch, RowForm
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.spark

SOURCE = """
from pyspark.sql import DataFrame
from rocketbox import RocketBox, rocketmq_listener, rocketmq_spark_listener

app = RocketBox("flight-desk", scan=[__name__])

@rocketmq_spark_listener(topic="departures", consumer_group="lake"MORE)
def to_lake(rows: DataFrame) -> None: ...
"""
NS = "rocketmq.name-server: ns:9876\n"


def look(service: ServiceMaker, more: str = "", settings: str = NS, rest: str = "") -> Assembly:
    source = SOURCE.replace("MORE", f", {more}" if more else "") + rest
    assembly: Assembly = service(source, settings).app.look()
    return assembly


def finding_of(assembly: Assembly) -> Finding:
    (finding,) = assembly.findings
    return finding


def test_the_decorator_has_what_is_declared() -> None:
    declared = {**{name: LISTENER_OPTIONS[name] for name in SPARK_SHARES}, **QUERY_OPTIONS}
    hints = typing.get_type_hints(rocketmq_spark_listener)
    assert {field.name for field in dataclasses.fields(rocketmq_spark_listener)} == declared.keys()
    assert all(field.default is None for field in dataclasses.fields(rocketmq_spark_listener)), "None: not said"
    for name, option in declared.items():
        if name in ("as_", "on_failed_batch", "on_invalid"):  # what they may be is written as text
            assert hints[name] == str | None
        elif name not in ("schema", "trigger", "options"):
            assert hints[name] == option.kind | None, name
    assert hints["trigger"] == timedelta | str | None
    assert hints["options"] == Mapping[str, str] | None


SAID: Mapping[str, tuple[Any, str]] = {
    "trigger": (timedelta(seconds=20), "20s"),
    "max_messages": (7, "7"),
    "starting_offsets": ("earliest", "earliest"),
    "checkpoint": ("/data/lake", "/data/lake"),
    "as_": (RowForm.SPARK, "spark"),
    "fail_on_data_loss": (False, "false"),
    "rows_per_partition": (50, "50"),
    "max_batch_attempts": (3, "3"),
    "on_failed_batch": (OnFailedBatch.DEAD_LETTER, "dead-letter"),
    "persist": (True, "true"),
    "options": ({"maxBytesPerTrigger": "64MB"}, "{maxBytesPerTrigger: 64MB}"),
}


def test_settings_say_every_option_of_a_group_and_win_over_its_decorator(service: ServiceMaker) -> None:
    assert SAID.keys() == {name for name, option in QUERY_OPTIONS.items() if option.key is not None}
    said = ", ".join(f"{QUERY_OPTIONS[name].key}: {text}" for name, (_, text) in SAID.items())
    settings = f"rocketmq:\n  name-server: ns:9876\n  consumer.listeners.lake: {{{said}}}\n"
    assembly = look(service, "trigger='1m', max_messages=1, starting_offsets='latest', checkpoint='x'", settings)
    assert assembly.findings == []
    (plan,) = assembly.plans
    assert plan.trigger == timedelta(seconds=20)
    assert plan.checkpoint == "/data/lake"
    values = {name: value for name, (value, _) in SAID.items() if name != "trigger"}
    assert {name: plan.options[name] for name in values} == values
    options = plan.listener_options()  # what its query is started with
    assert options.source_options == {"failOnDataLoss": "false", "rowsPerPartition": "50", "maxBytesPerTrigger": "64MB"}
    of_the_source = {"fail_on_data_loss", "rows_per_partition", "options"}
    to_the_query = {name: value for name, (value, _) in SAID.items() if name not in of_the_source}
    assert {name: getattr(options, name) for name in to_the_query} == to_the_query


def test_the_decorator_says_every_option_and_wins_over_the_default(service: ServiceMaker) -> None:
    more = ", ".join(
        f"{name}={text if name == 'trigger' else repr(getattr(value, 'value', value))}"
        for name, (value, text) in SAID.items()
    )
    (plan,) = look(service, more.replace("trigger=20s", "trigger='20s'")).plans
    assert plan.trigger == timedelta(seconds=20)
    assert plan.options["options"] == {"maxBytesPerTrigger": "64MB"}
    (plan,) = look(service).plans
    assert plan.trigger == timedelta(seconds=1)
    assert (plan.options["max_messages"], plan.options["starting_offsets"]) == (100_000, "group")
    assert plan.checkpoint == ".rocketbox/flight-desk/spark/lake"


def test_the_data_source_is_told_what_a_listener_says() -> None:
    values = {"fail_on_data_loss": False, "rows_per_partition": 50, "options": {"maxPartitions": "3"}}
    assert source_options(values) == {"failOnDataLoss": "false", "rowsPerPartition": "50", "maxPartitions": "3"}


def test_a_full_batch_gives_each_core_of_the_cluster_some_rows() -> None:
    assert rows_of_a_task(100_000, 2) == rows_of_a_task(None, 200) == 20_000
    assert rows_of_a_task(100_000, 20) == 5_000
    assert rows_of_a_task(100_001, 20) == 5_001
    assert rows_of_a_task(100_000, 200) == rows_of_a_task(1, 1) == 2_000


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ("options={'maxBytePerTrigger': '64MB'}", "options of {}: the data source rocketmq has no option"),
        ("options={'tags': 'A'}", "options of {}: a listener says tags by selector_expression"),
        ("options={'commitOffsets': 'false'}", "options of {}: a listener has no commitOffsets"),
        ("options={'endingOffsets': 'latest'}", "options of {}: option endingOffsets is for batch reads"),
        ("options=['x']", "options of {} is ['x'], and must be a dict of names and text"),
        ("starting_offsets='yesterday'", "starting_offsets of {}: "),
        ("max_messages=0", "max_messages of {} is 0, and must be 1 or more"),
        ("rows_per_partition='many'", "rows_per_partition of {} is 'many', and must be a whole number"),
        ("checkpoint=''", "checkpoint of {} is empty"),
        (
            "on_invalid='dead-letter', options={'columns': 'body, _error'}",
            "options of {}: on_invalid dead-letter needs topic, broker_name, queue_id, queue_offset, properties, which",
        ),
        (
            "on_invalid='fail', options={'columns': 'body, topic, broker_name, queue_id, queue_offset'}",
            "options of {}: on_invalid fail needs _error, which",
        ),
        ("on_invalid='skip', options={'columns': 'body'}", "options of {}: on_invalid skip needs _error, which"),
        ("schema='row bigint', options={'columns': 'topic'}", "options of {}: a schema needs body, _error, which"),
        ("schema='row bigint', options={'columns': 'body'}", "options of {}: a schema needs _error, which"),
        ("options={'columns': 'queue_offset, body'}", "options of {}: body needs _error, which"),
        ("on_failed_batch='dead-letter'", "on_failed_batch of {}: it is for a batch that has used up max_batch_att"),
    ],
)
def test_an_option_that_cannot_be_is_found_at_a_look(service: ServiceMaker, more: str, what: str) -> None:
    finding = finding_of(look(service, more))
    assert finding.what.startswith(what.format("Spark listener to_lake"))
    assert "service_" in str(finding.where)


def test_a_name_that_no_topic_or_group_has_is_found_at_a_look(service: ServiceMaker) -> None:
    """Of a topic that cannot be it would be said for ever that it is not there yet."""
    listeners = SOURCE.replace("MORE", "")
    for old, new, what, fix in (
        ("departures", "departures,arrivals", "topic 'departures,arrivals' is no name of a topic", "once for each"),
        ("lake", "my lake", "consumer group 'my lake' holds a character that is not allowed", "another consumer group"),
    ):
        finding = finding_of(service(listeners.replace(f'"{old}"', f'"{new}"'), NS).app.look())
        assert what in finding.what
        assert fix in str(finding.fix)


def test_an_option_of_settings_that_cannot_be_is_told_with_its_place(service: ServiceMaker) -> None:
    settings = NS + "rocketmq.consumer.listeners.lake.starting-offsets: yesterday\n"
    assert str(finding_of(look(service, settings=settings)).where).startswith("rocketbox.yaml:2:")


def test_options_of_another_kind_of_listeners_are_refused(service: ServiceMaker) -> None:
    plain = '\n@rocketmq_listener(topic="t", consumer_group="desk")\nasync def handle(body: bytes) -> None: ...\n'
    settings = NS + "rocketmq.consumer.listeners.lake.concurrency: 3\nrocketmq.consumer.listeners.desk.trigger: 3s\n"
    one, other = look(service, settings=settings, rest=plain).findings
    assert one.what == (
        "rocketmq.consumer.listeners.lake.concurrency is no option of @rocketmq_spark_listener, which the listeners of "
        "that group have"
    )
    assert str(one.where).startswith("rocketbox.yaml:2:")
    assert "max-messages" in str(one.fix)
    assert other.what.startswith("rocketmq.consumer.listeners.desk.trigger is no option of @rocketmq_listener")


def test_a_schema_that_cannot_be_columns_is_found_at_a_look(service: ServiceMaker) -> None:
    rest = "\nfrom pydantic import BaseModel\n\nclass Odd(BaseModel):\n    value: complex\n"
    rest += '\n@rocketmq_spark_listener(topic="t", consumer_group="odd", schema=Odd)\n'
    rest += "def odd(rows: DataFrame) -> None: ...\n"
    finding = finding_of(look(service, rest=rest))
    assert finding.what.startswith("Spark listener odd: Odd.value")


def test_a_group_is_not_shared_with_plain_listeners(service: ServiceMaker) -> None:
    """Spark's offsets would be committed over messages that the plain one has not processed."""
    plain = (
        '\n@rocketmq_listener(topic="departures", consumer_group="lake")\nasync def handle(body: bytes) -> None: ...\n'
    )
    finding = finding_of(look(service, rest=plain))
    assert finding.what == ("group 'lake' has listeners of two kinds: @rocketmq_listener and @rocketmq_spark_listener")
    assert str(finding.where).count("service_") == 2


def test_two_listeners_do_not_keep_their_progress_in_one_checkpoint(service: ServiceMaker) -> None:
    second = (
        '\n@rocketmq_spark_listener(topic="alerts", consumer_group="lake")\ndef more(rows: DataFrame) -> None: ...\n'
    )
    finding = finding_of(look(service, rest=second))
    assert finding.what.startswith("two Spark listeners would keep their progress in one checkpoint, .rocketbox/")
    assert str(finding.where).count("service_") == 2
    settings = "rocketmq: {name-server: ns:9876, clusters.audit.name-server: ns:9876}\n"
    elsewhere = second.replace('"lake"', '"lake", cluster="audit"')
    assembly = look(service, settings=settings, rest=elsewhere)
    assert assembly.findings == []
    assert [plan.checkpoint for plan in assembly.plans] == [
        ".rocketbox/flight-desk/spark/lake",
        ".rocketbox/flight-desk/spark/cluster-audit/lake",
    ]


def test_two_listeners_of_one_group_do_not_read_one_topic(service: ServiceMaker) -> None:
    """The second one would stand by for ever, for the first one's lease."""
    second = (
        '\n@rocketmq_spark_listener(topic="departures", consumer_group="lake", checkpoint="elsewhere")\n'
        "def more(rows: DataFrame) -> None: ...\n"
    )
    finding = finding_of(look(service, rest=second))
    assert finding.what.startswith("two Spark listeners of group 'lake' would read topic 'departures'")
    assert str(finding.where).count("service_") == 2


def test_queries_of_one_group_and_topic_in_two_clusters_have_names_of_their_own(service: ServiceMaker) -> None:
    """Spark starts no second query of a name."""
    settings = "rocketmq: {name-server: ns:9876, clusters.audit.name-server: ns:9877}\n"
    second = (
        '\n@rocketmq_spark_listener(topic="departures", consumer_group="lake", cluster="audit")\n'
        "def to_audit(rows: DataFrame) -> None: ...\n"
    )
    assembly = look(service, settings=settings, rest=second)
    assert assembly.findings == []
    names = [plan.listener_options().query_name for plan in assembly.plans]
    assert names == ["lake.departures", "audit.lake.departures"]


EMBEDDED = "rocketmq.name-server: embedded\nrocketbox.spark.conf: {spark.master: 'MASTER'}\n"


def test_executors_elsewhere_cannot_reach_embedded_servers(service: ServiceMaker) -> None:
    finding = finding_of(look(service, settings=EMBEDDED.replace("MASTER", "spark://head:7077")))
    assert finding.what == (
        "rocketmq.name-server is embedded, and the executors of Spark listener to_lake, at spark://head:7077, cannot "
        "reach servers inside of this process"
    )
    for master, warnings in (("local[4]", 0), ("local-cluster[2,1,1024]", 1)):
        assembly = look(service, settings=EMBEDDED.replace("MASTER", master))
        assert assembly.findings == []
        assert sum("local-cluster" in each.what for each in assembly.warnings) == warnings


def test_what_spark_submit_would_say_counts_as_well(service: ServiceMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master yarn pyspark-shell")
    assert "at yarn, cannot reach" in finding_of(look(service, settings="rocketmq.name-server: embedded\n")).what


def test_a_checkpoint_whose_file_system_nobody_brings_is_a_warning(service: ServiceMaker) -> None:
    assembly = look(service, "checkpoint='s3a://bucket/lake'")
    (warning,) = [each for each in assembly.warnings if "checkpoint" in each.what]
    assert warning.what.endswith("s3a://bucket/lake, and pyspark brings no file system for s3a")
    assert "hadoop-aws" in str(warning.fix)
    settings = NS + "rocketbox.spark.conf: {spark.jars.packages: 'org.apache.hadoop:hadoop-aws:3.4.1'}\n"
    for more, with_settings in (("checkpoint='hdfs://nn/x'", NS), ("checkpoint='s3a://bucket/lake'", settings)):
        assembly = look(service, more, with_settings)
        assert not [each for each in assembly.warnings if "checkpoint" in each.what]


def test_a_callable_object_is_a_listener_as_a_function_is(service: ServiceMaker) -> None:
    rest = """
class Lake:
    def __call__(self, rows: DataFrame) -> None: ...

to_other_lake = rocketmq_spark_listener(topic="arrivals", consumer_group="arrivals")(Lake())
"""
    assembly = look(service, rest=rest)
    assert assembly.findings == []
    lines = [line for plan in assembly.plans for line in plan.describe()]
    assert [line.partition(" (")[0] for line in lines] == ["Spark listener to_lake", "Spark listener Lake"]


METHOD = """
class Lake:
    @rocketmq_spark_listener(topic="orders", consumer_group="depth")
    def deepen(PARAMETERS) -> None: ...
"""


def test_a_method_of_what_is_no_bean_is_a_finding_that_says_what_to_do(service: ServiceMaker) -> None:
    assembly = look(service, rest=METHOD.replace("PARAMETERS", "self, rows: DataFrame"))
    found = finding_of(assembly)
    assert found.what == "Spark listener Lake.deepen is a method of Lake, and there is no such bean"
    assert found.fix == "mark the class @bean"
    assert found.where is not None
    assert found.where.endswith(".py:10")


def test_listeners_of_a_bean_that_is_left_out_are_off(service: ServiceMaker) -> None:
    method = METHOD.replace("PARAMETERS", "self, rows: DataFrame").replace(
        "class Lake", "from rocketbox import bean, on_profile\n@bean(on_profile('prod'))\nclass Lake"
    )
    assembly = look(service, rest=method)
    assert assembly.findings == []
    assert [plan.group for plan in assembly.plans] == ["lake"]
    (off,) = [each.what for each in assembly.off]
    assert "Spark listener Lake.deepen is off: it needs a bean of type Lake" in off
    assert "was not built because profile prod is not active" in off
    on = look(service, settings=f"{NS}rocketbox.profiles.active: prod\n", rest=method)
    assert on.findings == on.off == []
    assert sorted(plan.group for plan in on.plans) == ["depth", "lake"]


@pytest.mark.parametrize(
    ("parameters", "what"),
    [
        ("self", "it takes no parameters, and the first one gets the DataFrame"),
        ("self, rows: int", "its first parameter 'rows' is not a DataFrame but <class 'int'>"),
    ],
)
def test_self_is_no_parameter_of_a_method_that_gets_something(
    service: ServiceMaker, parameters: str, what: str
) -> None:
    method = METHOD.replace("PARAMETERS", parameters).replace(
        "class Lake", "from rocketbox import bean\n@bean\nclass Lake"
    )
    found = finding_of(look(service, rest=method))
    assert found.what == f"Spark listener Lake.deepen: {what}"
    assert found.fix == "write it as def name(self, rows: DataFrame, batch: SparkBatch, ...beans by their type)"
