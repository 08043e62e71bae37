"""The keys of rocketbox from every source: variables of every spelling, other programs' variables, decorators."""

from __future__ import annotations

import dataclasses
import typing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rocketbox.autoconfigure.assembly import Assembly
from rocketbox.autoconfigure.embedded import embedded_options
from rocketbox.autoconfigure.listening import candidate_of
from rocketbox.autoconfigure.loading import Launch
from rocketbox.boot.root_settings import load_settings
from rocketbox.embedded import EmbeddedOptions
from rocketbox.errors import ConfigurationError
from rocketbox.marks import rocketmq_listener, rocketmq_spark_listener, send_to
from tests.support.framework.own_keys import MODELS, SCHEMA, own_keys
from tests.support.framework.services import ServiceMaker

PATHS = [path for path, _ in own_keys()]


# --- variables --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dash", "dot"),
    [("_", "_"), ("", "_"), ("_", "__"), ("", "__")],
    ids=["NAME_SERVER", "NAMESERVER", "ROCKETMQ__NAME_SERVER", "ROCKETMQ__NAMESERVER"],
)
def test_every_key_has_its_variable_in_every_spelling(dash: str, dot: str) -> None:
    for path in PATHS:
        name = dot.join(part.replace("-", dash).replace(".", "_").upper() for part in path)
        assert SCHEMA.locate_variable(name, lambda path: ()) == path, name


SERVICE = """
from rocketbox import RocketBox, rocketmq_listener

app = RocketBox("flight-desk", scan=[__name__])

@rocketmq_listener(topic="departures", consumer_group="desk")
async def on_departure(flight: str) -> None: ...

@rocketmq_listener(topic="departures", consumer_group="Night_desk")
async def at_night(flight: str) -> None: ...

@rocketmq_listener(topic="audits", consumer_group="desk", cluster="audit")
async def on_audit(flight: str) -> None: ...
"""

KUBERNETES = {
    "ROCKETMQ_SERVICE_HOST": "10.0.0.1",
    "ROCKETMQ_SERVICE_PORT": "9876",
    "ROCKETMQ_PORT": "tcp://10.0.0.1:9876",
    "ROCKETMQ_PORT_9876_TCP": "tcp://10.0.0.1:9876",
    "ROCKETMQ_PORT_9876_TCP_ADDR": "10.0.0.1",
    "ROCKETMQ_NAME_SERVER_SERVICE_HOST": "10.0.0.1",
    "ROCKETMQ_NAME_SERVER_PORT": "tcp://10.0.0.1:9876",
    "ROCKETMQ_CONSUMER_SERVICE_HOST": "10.0.0.1",
    "ROCKETMQ_HOME": "/opt/rocketmq",
    "ROCKETMQ_CONFIG": "x",
    "ROCKETBOX_SERVICE_HOST": "10.0.0.2",
    "ROCKETBOX_EMBEDDED_SERVICE_HOST": "10.0.0.2",
    "ROCKETBOX_EMBEDDED_PORT": "tcp://10.0.0.2:10911",
    "ROCKETBOX_EMBEDDED_NAME_SERVER_PORT": "udp://10.0.0.2:9876",
}


def look(service: ServiceMaker, settings: str = "") -> Assembly:
    assembly: Assembly = service(SERVICE, settings).app.look()
    return assembly


def test_variables_reach_clusters_and_listeners_by_their_names(
    service: ServiceMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "ROCKETMQ_NAME_SERVER": "ns:9876",
        "ROCKETMQ_CONSUMER_LISTENERS_DESK_CONCURRENCY": "3",
        "ROCKETMQ_CONSUMER_LISTENERS_NIGHT_DESK_CONCURRENCY": "4",
        "ROCKETMQ_CLUSTERS_AUDIT_NAMESERVER": "audit-ns:9876",
        "ROCKETMQ_CLUSTERS_AUDIT_CONSUMER_LISTENERS_DESK_CONCURRENCY": "5",
        "ROCKETMQ_CLUSTERS_AUDIT_PULL_CONSUMER_TOPIC": "audits",
    }.items():
        monkeypatch.setenv(name, value)
    assembly = look(service)
    assert (assembly.findings, [each.what for each in assembly.warnings if "no effect" in each.what]) == ([], [])
    said = {(plan.cluster, plan.group): plan for plan in assembly.plans}
    assert {key: plan.options.concurrency for key, plan in said.items()} == {
        (None, "desk"): 3,
        (None, "Night_desk"): 4,
        ("audit", "desk"): 5,
    }
    assert said[None, "Night_desk"].origins["concurrency"] == (
        "environment variable ROCKETMQ_CONSUMER_LISTENERS_NIGHT_DESK_CONCURRENCY"
    )
    assert assembly.rocketmq.clusters["audit"].name_server == "audit-ns:9876"
    assert assembly.rocketmq.clusters["audit"].pull_consumer.topic == "audits"


def test_a_variable_adds_to_the_group_that_the_file_names(
    service: ServiceMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKETMQ_CONSUMER_LISTENERS_NIGHT_DESK_CONCURRENCY", "4")
    settings = """
        rocketmq:
          name-server: ns:9876
          clusters.audit.name-server: ns:9876
          consumer.listeners.Night_desk: {pull-batch-size: 7, concurrency: 9}
    """
    (plan,) = [plan for plan in look(service, settings).plans if plan.group == "Night_desk"]
    assert (plan.options.concurrency, plan.options.pull_batch_size) == (4, 7)


def test_a_group_that_is_like_two_is_neither(service: ServiceMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_CONSUMER_LISTENERS_DESK_OF_NIGHT_CONCURRENCY", "4")
    more = SERVICE.replace("Night_desk", "desk_of_night").replace('"desk"', '"DeskOfNight"', 1)
    settings = "rocketmq: {name-server: ns:9876, clusters.audit.name-server: ns:9876}\n"
    assembly: Assembly = service(more, settings).app.look()
    assert {plan.options.concurrency for plan in assembly.plans} == {20}
    (warning,) = [each.what for each in assembly.warnings if "no effect" in each.what]
    assert warning.startswith("rocketmq.consumer.listeners.desk-of-night has no effect")


def test_variables_of_kubernetes_and_of_rocketmq_itself_do_not_disturb(tmp_path: Path) -> None:
    settings = load_settings(MODELS, environ=KUBERNETES)
    assert dict(settings.winners) == {}
    assert settings.warnings == ()


# --- placeholders in decorators ---------------------------------------------------------------------------------------


def _takes_text(hint: Any) -> bool:
    return str in (hint, *typing.get_args(hint))


def test_placeholders_count_in_every_text_and_time_of_a_listener() -> None:
    values = {"on_invalid": "skip", "secret_key": "s", "access_key": "a", "consume_timestamp": "20260131120000"}
    hints = typing.get_type_hints(rocketmq_listener)
    texts = [name for name, hint in hints.items() if _takes_text(hint)]
    times = [name for name, hint in hints.items() if timedelta in typing.get_args(hint)]
    assert set(times) <= set(texts)
    mark = rocketmq_listener(**{name: f"${{{name}}}" for name in texts})  # type: ignore[arg-type]
    reply = send_to("${topic}:${tag}", cluster="${cluster}")

    def resolve(text: str, subject: str, where: str) -> str:
        name = text.removeprefix("${").removesuffix("}")
        return "3s" if name in times else values.get(name, text.replace("${", "<").replace("}", ">"))

    async def handler(body: bytes) -> None: ...

    candidate = candidate_of(handler, mark, (reply,), resolve_text=resolve)
    assert candidate.declared.values.keys() == set(texts)
    assert "${" not in str(candidate.declared.values)
    assert {candidate.declared.values[name] for name in times} == {3.0}
    assert candidate.replies == (send_to("<topic>:<tag>", cluster="<cluster>"),)


SPARK = """
from pyspark.sql import DataFrame
from rocketbox import RocketBox, rocketmq_spark_listener

app = RocketBox("flight-desk", scan=[__name__])

@rocketmq_spark_listener(OPTIONS)
def to_lake(rows: DataFrame) -> None: ...
"""


def test_placeholders_count_in_every_text_and_time_of_a_spark_listener(service: ServiceMaker) -> None:
    hints = typing.get_type_hints(rocketmq_spark_listener)
    texts = [field.name for field in dataclasses.fields(rocketmq_spark_listener) if _takes_text(hints[field.name])]
    texts.remove("namespace_v2")  # there is one namespace or the other
    values = {
        "trigger": "10s", "cluster": "audit", "starting_offsets": "earliest", "as_": "spark", "on_invalid": "skip",
        "on_failed_batch": "dead-letter",
    }  # fmt: skip
    options = ", ".join([f"{name}='${{lake.{name}}}'" for name in texts] + ["max_batch_attempts=3"])
    lake = "".join(f"  {name}: {values.get(name, f'the-{name}')}\n" for name in texts)
    settings = f"rocketmq: {{name-server: ns:9876, clusters.audit.name-server: ns:9876}}\nlake:\n{lake}"
    assembly = service(SPARK.replace("OPTIONS", options), settings).app.look()
    assert assembly.findings == []
    (plan,) = assembly.plans
    assert (plan.cluster, plan.trigger, plan.options["starting_offsets"]) == (
        "audit",
        timedelta(seconds=10),
        "earliest",
    )
    assert (plan.topic, plan.group, plan.checkpoint) == ("the-topic", "the-consumer_group", "the-checkpoint")
    assert "${" not in str(plan)


def test_every_placeholder_of_a_decorator_that_cannot_be_is_told(service: ServiceMaker) -> None:
    source = SPARK.replace("OPTIONS", "topic='${one}', consumer_group='${two}', trigger='${three}'")
    listener = "@rocketmq_listener(topic='${four}', consume_timeout='${five}')\n@send_to('${six}', '${seven}')\n"
    source += "from rocketbox import rocketmq_listener, send_to\n" + listener
    module = service(source + "async def handler(body: bytes) -> bytes: ...\n", "rocketmq.name-server: ns:9876\n")
    texts = [finding.what for finding in module.app.look().findings]
    for name, subject in (
        ("four", "topic of listener handler"),
        ("five", "consume_timeout of listener handler"),
        ("six", "send_to of handler"),
        ("seven", "send_to of handler"),
        ("one", "topic of Spark listener to_lake"),
        ("two", "consumer_group of Spark listener to_lake"),
        ("three", "trigger of Spark listener to_lake"),
    ):
        assert f"{subject} needs ${{{name}}}, and nothing has that name" in texts
    assert len(texts) == 7


def test_placeholders_of_a_decorator_that_go_in_a_circle_are_told_with_the_chain(service: ServiceMaker) -> None:
    source = SERVICE.replace('topic="audits"', 'topic="${desk.topic}"')
    settings = """
        rocketmq: {name-server: ns:9876, clusters.audit.name-server: ns:9876}
        desk: {topic: '${desk.name}', name: 'x-${desk.topic}'}
    """
    texts = [finding.what for finding in service(source, settings).app._look(Launch()).findings]
    (circle,) = [text for text in texts if text.startswith("topic of listener on_audit -> ${desk.topic} (rocketbox.")]
    assert circle.endswith(" -> ${desk.topic} goes in a circle")
    settings = settings.replace("'x-${desk.topic}'", "'x-${NOBODY}'")
    texts = [finding.what for finding in service(source, settings).app._look(Launch()).findings]
    (missing,) = [text for text in texts if text.startswith("topic of listener on_audit -> ${desk.topic} (rocketbox.")]
    assert missing.endswith(" -> ${desk.name} (rocketbox.yaml:2:37) needs ${NOBODY}, and nothing has that name")


# --- times of listeners need a unit -----------------------------------------------------------------------------------

TIMES = [name for name, hint in typing.get_type_hints(rocketmq_listener).items() if timedelta in typing.get_args(hint)]


@pytest.mark.parametrize("option", TIMES)
@pytest.mark.parametrize("above", ["consumer", "consumer.listeners.desk", "clusters.audit.consumer.listeners.desk"])
def test_a_time_of_a_listener_needs_a_unit_in_settings(tmp_path: Path, option: str, above: str) -> None:
    file = tmp_path / "rocketbox.yaml"
    key = f"rocketmq.{above}.{option.replace('_', '-')}"
    for text in ("15", "'15'", "1.5"):
        file.write_text(f"{key}: {text}\n")
        with pytest.raises(ConfigurationError) as caught:
            load_settings(MODELS, file=file, environ={})
        (finding,) = caught.value.findings
        assert finding.what.startswith(f"{key} is ")
        assert "a time with its unit" in finding.what
    file.write_text(f"{key}: 1s500ms\n")
    assert load_settings(MODELS, file=file, environ={}).value(key) == timedelta(seconds=1.5)


@pytest.mark.parametrize("option", TIMES)
@pytest.mark.parametrize("value", ["15", "${minutes}", 15])
def test_a_time_of_a_listener_needs_a_unit_in_its_decorator(option: str, value: Any) -> None:
    async def handler(body: bytes) -> None: ...

    mark = rocketmq_listener(**{option: value})
    with pytest.raises(ConfigurationError) as caught:
        candidate_of(handler, mark, (), resolve_text=lambda text, subject, where: "15")
    (finding,) = caught.value.findings
    assert finding.what.startswith(f"{option} of listener ")
    assert "unit" in str(finding)


@pytest.mark.parametrize("value", ["'15'", "'${minutes}'", "15"])
def test_the_trigger_of_a_spark_listener_needs_a_unit(service: ServiceMaker, value: str) -> None:
    source = SPARK.replace("OPTIONS", f"topic='t', consumer_group='lake', trigger={value}")
    assembly = service(source, "rocketmq.name-server: ns:9876\nminutes: 15\n").app.look()
    (finding,) = assembly.findings
    assert finding.what.startswith("trigger of Spark listener to_lake is ")
    assert finding.fix == "or write available_now"
    assert "15 has no unit; write a time such as" in finding.what


# --- keys that no model names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EmbeddedOptions.broker_settings())
def test_every_setting_of_apaches_broker_has_its_variable(name: str) -> None:
    for dash in ("_", ""):
        variable = "ROCKETBOX_EMBEDDED_" + name.replace("-", dash).upper()
        assert SCHEMA.locate_variable(variable, lambda path: ()) == ("rocketbox", "embedded", name)


def test_a_variable_sets_apaches_setting_of_the_embedded_broker(
    service: ServiceMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCKETBOX_EMBEDDED_MAPPED_FILE_SIZE_COMMIT_LOG", "2MB")
    assembly = look(service, "rocketmq: {name-server: embedded, clusters.audit.name-server: ns:9876}\n")
    options = embedded_options(assembly.rocketbox.embedded, assembly.service).broker_options()
    assert options.store.mapped_file_size_commit_log == 2 << 20


def test_a_topic_switch_that_a_variable_cannot_name_is_told() -> None:
    settings = load_settings(MODELS, environ={"ROCKETMQ_CONSUMER_LISTENERS_DESK_DEPARTURES": "false"})
    (warning,) = settings.warnings
    assert warning.what == (
        "the variable ROCKETMQ_CONSUMER_LISTENERS_DESK_DEPARTURES sets nothing: "
        "rocketmq.consumer.listeners has no such key that a variable can name"
    )
    assert warning.where == "environment variable ROCKETMQ_CONSUMER_LISTENERS_DESK_DEPARTURES"
    assert warning.fix == "write rocketmq.consumer.listeners.<name>.<key>: false in a file, or as an argument"


@pytest.mark.parametrize("numbers", ["1", "0 2"])
def test_entries_of_a_list_are_numbered_without_gaps(numbers: str) -> None:
    environ = {f"ROCKETBOX_AUTOCONFIGURE_EXCLUDE_{number}": "x" for number in numbers.split()}
    with pytest.raises(ConfigurationError) as caught:
        load_settings(MODELS, environ=environ)
    (finding,) = caught.value.findings
    missing = "0" if numbers == "1" else "1"
    assert f"rocketbox.autoconfigure.exclude, and entry {missing} is set by no variable" in finding.what
    assert finding.fix == "number the entries from 0 on, without gaps"


def test_a_list_is_said_whole_or_by_its_entries() -> None:
    environ = {"ROCKETBOX_AUTOCONFIGURE_EXCLUDE": "x", "ROCKETBOX_AUTOCONFIGURE_EXCLUDE_0": "y"}
    with pytest.raises(ConfigurationError) as caught:
        load_settings(MODELS, environ=environ)
    (finding,) = caught.value.findings
    assert finding.what == (
        "ROCKETBOX_AUTOCONFIGURE_EXCLUDE and ROCKETBOX_AUTOCONFIGURE_EXCLUDE_0 both set rocketbox.autoconfigure.exclude"
    )
