"""Settings: every source in its place of the order, every spelling, every type, every value with its origin."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from rocketbox.boot.root_settings import load_settings
from rocketbox.boot.settings_file import find_settings_file
from rocketbox.errors import ConfigurationError
from tests.support.framework.settings_models import LISTENERS, MODELS, Colour, Desk, RocketMQ, load, refused


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# --- sources and their order ---------------------------------------------------------------------------------------


def test_without_any_source_the_defaults_hold() -> None:
    settings = load_settings(MODELS, environ={})
    assert settings.get("rocketmq") == RocketMQ()
    assert settings.get("desk") == Desk()
    assert settings.value("rocketmq.producer.send-message-timeout") == timedelta(seconds=3)
    assert settings.text("rocketmq.producer.send-message-timeout") is None
    assert not settings.has("rocketmq.producer")
    assert settings.origin("rocketmq.producer.group") is None


def test_each_source_beats_the_ones_below_it() -> None:
    Path("rocketbox-prod.yaml").write_text("desk: {threshold-minutes: 3}\n")
    Path(".env").write_text("\n# a comment\nDESK_THRESHOLD_MINUTES=4\n")
    text = (
        "rocketbox.profiles.active: prod\n"
        "desk: {threshold-minutes: 1}\n"
        "---\n"
        "rocketbox.config.activate.on-profile: prod\n"
        "desk: {threshold-minutes: 2}\n"
    )
    options: dict[str, Any] = {
        "overrides": {"desk.threshold-minutes": 7},
        "arguments": ["--desk.threshold-minutes=6"],
        "environ": {"DESK_THRESHOLD_MINUTES": "5"},
        "env_file": Path(".env"),
    }
    settings = load(text, **options)
    assert settings.profiles == ("prod",)
    assert settings.files == (Path("rocketbox.yaml"), Path("rocketbox-prod.yaml"))
    assert [(said.text, str(said.origin)) for said in settings.explain("desk.thresholdMinutes")] == [
        ("7", "override desk.threshold-minutes"),
        ("6", "argument --desk.threshold-minutes"),
        ("5", "environment variable DESK_THRESHOLD_MINUTES"),
        ("4", ".env:3"),
        ("3", "rocketbox-prod.yaml:1:27"),
        ("2", "rocketbox.yaml:5:27"),
        ("1", "rocketbox.yaml:2:27"),
    ]
    for expected in (7, 6, 5, 4):
        assert load(text, **options).get("desk").threshold_minutes == expected
        options.pop(next(iter(options)))
    assert load(text).get("desk").threshold_minutes == 3
    Path("rocketbox-prod.yaml").unlink()
    assert load(text).get("desk").threshold_minutes == 2


def test_sources_are_merged_key_by_key() -> None:
    Path("rocketbox-dev.yaml").write_text(
        "rocketmq: {producer: {retry-times: 5}, consumer: {listeners: {audit: {}}}}\n"
    )
    settings = load(
        "rocketmq: {name-server: 'a:1', producer: {group: g}, consumer: {listeners: {desk: {concurrency: 3}}}}\n",
        profiles=["dev"],
    )
    rocketmq = settings.get("rocketmq")
    assert (rocketmq.name_server, rocketmq.producer.group, rocketmq.producer.retry_times) == ("a:1", "g", 5)
    assert rocketmq.consumer.listeners["desk"].concurrency == 3


def test_an_empty_heading_takes_nothing_away_and_a_null_goes_back_to_the_default() -> None:
    Path("rocketbox-dev.yaml").write_text("rocketmq:\n  producer:\ndesk: {threshold-minutes: ~, maybe: }\n")
    settings = load("rocketmq: {producer: {group: g}}\ndesk: {threshold-minutes: 1}\n", profiles=["dev"])
    assert settings.get("rocketmq").producer.group == "g"
    assert settings.get("desk").threshold_minutes == 60
    assert settings.get("desk").maybe is None


@pytest.mark.parametrize(
    ("active", "names"),
    [("", "base !prod"), ("dev", "base dev !prod"), ("prod", "base prod"), ("prod,eu", "base prod prod&eu")],
)
def test_documents_count_by_their_profiles(active: str, names: str) -> None:
    documents = ["desk: {levels: {base: x}}"]
    for expression in ("dev", "prod", "!prod", "prod & eu"):
        name = expression.replace(" ", "")
        documents.append(
            f"rocketbox: {{config: {{activate: {{on-profile: '{expression}'}}}}}}\ndesk: {{levels: {{'{name}': x}}}}"
        )
    environ = {"ROCKETBOX_PROFILES_ACTIVE": active} if active else {}
    settings = load("\n---\n".join(documents), environ)
    assert list(settings.get("desk").levels) == names.split()
    assert settings.profiles == (tuple(active.split(",")) if active else ("default",))


def test_profiles_come_from_the_argument_first_and_bring_their_groups() -> None:
    text = "rocketbox: {profiles: {active: ['${WHICH:dev}'], group: {prod: [eu, audit]}}}\n"
    assert load(text).profiles == ("dev",)
    assert load(text, {"WHICH": "test"}).profiles == ("test",)
    assert load(text, profiles=["prod"]).profiles == ("prod", "eu", "audit")
    assert load(text, arguments=["--rocketbox.profiles.active=a,b"]).profiles == ("a", "b")


def test_the_default_profile_can_be_named_and_counts_only_when_none_is_active() -> None:
    Path("rocketbox-local.yaml").write_text("desk: {threshold-minutes: 1}\n")
    Path("rocketbox-default.yaml").write_text("desk: {threshold-minutes: 2}\n")
    named = "rocketbox.profiles.default: local\n"
    assert (load(named).profiles, load(named).get("desk").threshold_minutes) == (("local",), 1)
    assert (load().profiles, load().get("desk").threshold_minutes) == (("default",), 2)
    assert load(named, profiles=["prod"]).get("desk").threshold_minutes == 60


def test_of_several_profiles_the_later_one_wins() -> None:
    for number, name in enumerate(("eu", "prod"), 1):
        Path(f"rocketbox-{name}.yaml").write_text(f"desk: {{threshold-minutes: {number}}}\n")
    assert load(profiles=["eu", "prod"]).get("desk").threshold_minutes == 2
    assert load(profiles=["prod", "eu"]).get("desk").threshold_minutes == 1


def test_groups_bring_groups_and_a_circle_of_them_ends() -> None:
    text = "rocketbox.profiles.group: {prod: [eu, metrics], eu: [gdpr, prod]}\n"
    assert load(text, profiles=["prod"]).profiles == ("prod", "eu", "gdpr", "metrics")
    Path("rocketbox-gdpr.yaml").write_text("desk: {threshold-minutes: 1}\n")
    assert load(text, profiles=["prod"]).get("desk").threshold_minutes == 1


@pytest.mark.parametrize("written", ["'prod, !eu'", "[prod, '!eu']"])
@pytest.mark.parametrize(("active", "counts"), [("prod,eu", True), ("test", True), ("eu", False)])
def test_a_document_of_several_profiles_counts_for_any_of_them(written: str, active: str, counts: bool) -> None:
    text = f"---\nrocketbox.config.activate.on-profile: {written}\ndesk: {{threshold-minutes: 1}}\n"
    settings = load(text, arguments=[f"--rocketbox.profiles.active={active}"])
    assert settings.get("desk").threshold_minutes == (1 if counts else 60)


def test_a_document_without_profile_wins_over_the_one_before_it_and_loses_to_those_with_one() -> None:
    text = (
        "desk: {threshold-minutes: 1}\n---\n"
        "rocketbox.config.activate.on-profile: prod\ndesk: {threshold-minutes: 2}\n---\n"
        "desk: {threshold-minutes: 3}\n"
    )
    assert load(text).get("desk").threshold_minutes == 3
    assert load(text, profiles=["prod"]).get("desk").threshold_minutes == 2


def test_the_settings_file_is_looked_for_in_order(tmp_path: Path) -> None:
    module = tmp_path / "pkg" / "app.py"
    files = [tmp_path / "pkg" / "rocketbox.yaml", tmp_path / "config" / "rocketbox.yaml", tmp_path / "rocketbox.yaml"]
    assert find_settings_file(environ={}, beside=module) is None
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("")
        assert find_settings_file(environ={}, beside=module) == file
    (tmp_path / "env.yaml").write_text("")
    (tmp_path / "named.yaml").write_text("")
    environ = {"ROCKETBOX_CONFIG": "env.yaml"}
    assert find_settings_file(environ=environ) == tmp_path / "env.yaml"
    assert find_settings_file("named.yaml", environ=environ) == tmp_path / "named.yaml"
    with pytest.raises(ConfigurationError, match=r"no\.yaml does not exist\n    where: ROCKETBOX_CONFIG"):
        find_settings_file(environ={"ROCKETBOX_CONFIG": "no.yaml"})


# --- spellings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["send-message-timeout", "send_message_timeout", "sendMessageTimeout"])
def test_keys_are_taken_in_every_spelling(key: str) -> None:
    settings = load(f"rocketmq: {{producer: {{{key}: 1s}}}}\n")
    assert settings.get("rocketmq").producer.send_message_timeout == timedelta(seconds=1)
    assert settings.value(f"rocketmq.producer.{key}") == timedelta(seconds=1)
    assert load(arguments=[f"--rocketmq.producer.{key}=2s"]).text("rocketmq.producer.send-message-timeout") == "2s"


@pytest.mark.parametrize("name", ["ROCKETMQ_NAME_SERVER", "ROCKETMQ_NAMESERVER", "ROCKETMQ__NAME_SERVER"])
def test_variables_are_taken_in_every_spelling(name: str) -> None:
    settings = load(environ={name: "ns:9876"})
    assert settings.get("rocketmq").name_server == "ns:9876"
    assert str(settings.origin("rocketmq.name-server")) == f"environment variable {name}"


@pytest.mark.parametrize(
    ("name", "value", "key", "expected"),
    [
        ("ROCKETMQ_PRODUCER_SEND_MESSAGE_TIMEOUT", "5000", "rocketmq.producer.send-message-timeout", timedelta(0, 5)),
        ("ROCKETMQ_PRODUCER_SENDMESSAGETIMEOUT", "5s", "rocketmq.producer.send-message-timeout", timedelta(0, 5)),
        ("ROCKETMQ_CONSUMER_LISTENERS_DESK_CONCURRENCY", "8", f"{LISTENERS}.desk.concurrency", 8),
        ("ROCKETMQ_CONSUMER_LISTENERS_FRONT_DESK_PULL_BATCH_SIZE", "8", f"{LISTENERS}.front-desk.pull-batch-size", 8),
        ("ROCKETMQ_CONSUMER_LISTENERS_AUDITDESK_CONCURRENCY", "8", f"{LISTENERS}.AuditDesk.concurrency", 8),
        ("DESK_LEVELS_ROCKETBOX_CLIENT", "debug", "desk.levels.[rocketbox.client]", "debug"),
        ("DESK_CARRIERS", "UA, AA", "desk.carriers", ["UA", "AA"]),
        ("DESK_MAYBE", "", "desk.maybe", None),
    ],
)
def test_variables_reach_every_known_leaf(name: str, value: str, key: str, expected: object) -> None:
    text = "rocketmq: {consumer: {listeners: {AuditDesk: {pull-batch-size: 2}}}}\n"
    assert load(text, {name: value}).value(key) == expected


def test_variables_of_others_do_not_disturb() -> None:
    settings = load(
        environ={
            "ROCKETMQ_SERVICE_HOST": "10.0.0.1",
            "ROCKETMQ_PORT": "tcp://10.0.0.1:9876",
            "ROCKETMQ_HOME": "/opt/rocketmq",
            "ROCKETMQ_PRODUCER": "x",
            "ROCKETMQ_CONSUMER_LISTENERS_DESK_UNKNOWN": "x",
            "DESK": "x",
        }
    )
    assert settings.get("rocketmq") == RocketMQ()


def test_two_variables_for_one_key_must_agree() -> None:
    assert refused(environ={"ROCKETMQ_NAME_SERVER": "a:1", "ROCKETMQ_NAMESERVER": "b:1"}) == [
        "ROCKETMQ_NAMESERVER and ROCKETMQ_NAME_SERVER both set rocketmq.name-server, to different values\n"
        "    where: environment variable ROCKETMQ_NAME_SERVER\n"
        "    fix:   unset one of the two"
    ]


# --- types ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("rocketmq.name-server", "no", "no"),
        ("rocketmq.name-server", "0123", "0123"),
        ("rocketmq.name-server", "12:30", "12:30"),
        ("rocketmq.name-server", "1.10", "1.10"),
        ("rocketmq.name-server", "'null'", "null"),
        ("rocketmq.name-server", "null", None),
        ("rocketmq.name-server", "''", ""),
        ("rocketmq.enabled", "no", False),
        ("rocketmq.enabled", "True", True),
        ("rocketmq.producer.send-message-timeout", "3000", timedelta(seconds=3)),
        ("rocketmq.producer.send-message-timeout", "'3000'", timedelta(seconds=3)),
        ("rocketmq.producer.send-message-timeout", "3s", timedelta(seconds=3)),
        ("rocketmq.producer.send-message-timeout", "500ms", timedelta(milliseconds=500)),
        ("rocketmq.producer.send-message-timeout", "PT3S", timedelta(seconds=3)),
        ("rocketmq.producer.send-message-timeout", "1m30s", timedelta(seconds=90)),
        ("rocketmq.producer.max-message-size", "4MB", 4 << 20),
        ("rocketmq.producer.max-message-size", "4096", 4096),
        ("desk.pause", "2s", timedelta(seconds=2)),
        ("desk.colour", "deep-red", Colour.DEEP_RED),
        ("desk.colour", "DEEP_RED", Colour.DEEP_RED),
        ("desk.mode", "FAST_LANE", "fast-lane"),
        ("desk.carriers", "UA,AA", ["UA", "AA"]),
        ("desk.carriers", "[UA, no, 0123]", ["UA", "no", "0123"]),
        ("desk.levels", "{a.b: no, c: {d: 1}}", {"a.b": "no", "c.d": "1"}),
        ("desk.ratio", "1e-3", 0.001),
        ("desk.maybe", "", None),
        ("desk.anything", "[1, 'no', true, 1.5, x, {a: [~]}]", [1, "no", True, 1.5, "x", {"a": [None]}]),
        ("desk.anything", "{a: {b: 1}}", {"a": {"b": 1}}),
        ("desk.path", "no", Path("no")),
    ],
)
def test_text_becomes_what_the_type_says(key: str, text: str, expected: object) -> None:
    value = load(f"{key}: {text}\n").value(key)
    assert value == expected
    assert type(value) is type(expected) or isinstance(expected, Path)


def test_keys_that_yaml_readers_take_for_something_else_are_text() -> None:
    settings = load("desk: {levels: {no: a, on: b, 0123: c, 12:30: d, 1.10: e, ~: f, null: g}}\n")
    assert settings.get("desk").levels == dict(
        zip(("no", "on", "0123", "12:30", "1.10", "~", "null"), "abcdefg", strict=True)
    )


@pytest.mark.parametrize(
    ("written", "text"), [("no", "false"), ("Off", "false"), ("0", "false"), ("'yes'", "true"), ("TRUE", "true")]
)
def test_a_truth_value_is_the_same_text_for_conditions_however_it_is_written(written: str, text: str) -> None:
    assert load(f"rocketmq.enabled: {written}\n").text("rocketmq.enabled") == text
    assert load(environ={"ROCKETMQ_ENABLED": written.strip("'")}).text("rocketmq.enabled") == text
    assert load(overrides={"rocketmq.enabled": text == "true"}).text("rocketmq.enabled") == text


def test_items_of_a_list_know_where_they_were_written() -> None:
    (finding,) = refused("desk:\n  carriers:\n    - UA\n    - {a: b}\n")
    assert "rocketbox.yaml:4:7" in finding
    settings = load("desk:\n  carriers:\n    - UA\n")
    assert str(settings.origin("desk.carriers")) == "rocketbox.yaml:3:5"


def test_overrides_may_be_values() -> None:
    settings = load(overrides={"rocketmq": {"producer": {"send-message-timeout": timedelta(9)}}, "desk.maybe": None})
    assert settings.get("rocketmq").producer.send_message_timeout == timedelta(9)
    assert settings.get("desk").maybe is None


def test_extra_keys_are_taken_where_the_model_takes_them() -> None:
    listener = load("rocketmq.consumer.listeners.desk: {departures: false, concurrency: 3}\n").value(
        "rocketmq.consumer.listeners.desk"
    )
    assert listener.model_extra == {"departures": False}
    assert load("rocketmq.consumer.listeners.desk.departures: false\n").names("rocketmq.consumer.listeners") == ["desk"]


def test_every_value_knows_where_it_was_written() -> None:
    settings = load("rocketmq:\n  producer:\n    group:   front\n    send-message-timeout: 3s\n")
    assert str(settings.origin("rocketmq.producer.group")) == "rocketbox.yaml:3:14"
    assert str(settings.origin("rocketmq.producer")) == "rocketbox.yaml:3:14"
    assert settings.has("rocketmq.producer")


def test_a_prefix_may_stand_below_another() -> None:
    class Inner(BaseModel):
        limit: int = 1

    models = {**MODELS, "rocketmq.custom": Inner, "deep.er": Inner}
    settings = load("rocketmq: {name-server: 'a:1', custom: {limit: 2}}\ndeep: {er: {limit: 3}}\n", models=models)
    assert settings.get("rocketmq.custom").limit == 2
    assert settings.get("deep.er").limit == 3
    assert settings.value("rocketmq.custom.limit") == 2
    assert settings.get("rocketmq").name_server == "a:1"
    assert refused("rocketmq: {custom: {limit: 2}}\n")[0].startswith("unknown key rocketmq.custom\n")


# --- placeholders --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${NS}", "from-env"),
        ("${NONE:embedded}", "embedded"),
        ("${NONE:127.0.0.1:9876}", "127.0.0.1:9876"),
        ("${NONE:}", ""),
        ("${NONE:${ALSO_NONE:${app.host}}}", "example"),
        ("${app.host}:${app.port}", "example:0123"),
        ("${${WHICH}.host}", "example"),
        ("\\${NS}", "${NS}"),
        ("$NS and {NS}", "$NS and {NS}"),
        ("${NONE:{a}}", "{a}"),
        ("${RAW}", "${NS}"),
        ("${app.carriers}", "UA,AA"),
        ("${rocketmq.producer.retry-times}", "4"),
        ("${rocketmq.producer.retryTimes}", "4"),
    ],
)
def test_placeholders_are_replaced(text: str, expected: str) -> None:
    settings = load(
        f"rocketmq: {{name-server: '{text}', producer: {{retry-times: 4}}}}\n"
        "app: {host: example, port: 0123, carriers: [UA, AA]}\n",
        {"NS": "from-env", "WHICH": "app", "RAW": "${NS}"},
    )
    assert settings.get("rocketmq").name_server == expected
    assert settings.resolve(text, subject="topic of listener x") == expected


def test_placeholders_count_in_typed_values_and_lists() -> None:
    settings = load(
        "desk: {threshold-minutes: '${MINUTES:45}', carriers: ['${A:x}', y], pause: '${P:3s}'}\n", {"MINUTES": "30"}
    )
    desk = settings.get("desk")
    assert (desk.threshold_minutes, desk.carriers, desk.pause) == (30, ["x", "y"], timedelta(seconds=3))
    assert load("desk: {carriers: '${LIST:a,b}'}\n").get("desk").carriers == ["a", "b"]


def test_an_argument_stands_above_a_variable_of_its_name() -> None:
    settings = load("rocketmq.name-server: ${NS:x}\n", {"NS": "variable"}, arguments=["--NS=argument"])
    assert settings.get("rocketmq").name_server == "argument"


def test_a_missing_placeholder_is_refused() -> None:
    assert refused("rocketmq:\n  name-server: ${NAMESRV}\n") == [
        "rocketmq.name-server needs ${NAMESRV}, and nothing has that name\n"
        "    where: rocketbox.yaml:2:16\n"
        "    fix:   set the environment variable or key NAMESRV, or write a default: ${NAMESRV:...}"
    ]


def test_a_missing_placeholder_behind_others_is_refused_with_the_chain() -> None:
    assert refused("rocketmq:\n  name-server: ${app.ns}\napp: {ns: '${app.host}:9876', host: '${HOST}'}\n")[0] == (
        "rocketmq.name-server -> ${app.ns} (rocketbox.yaml:3:11) -> ${app.host} (rocketbox.yaml:3:37) needs ${HOST}, "
        "and nothing has that name\n"
        "    where: rocketbox.yaml:2:16\n"
        "    fix:   set the environment variable or key HOST, or write a default: ${HOST:...}"
    )


def test_a_circle_of_placeholders_is_refused_once() -> None:
    assert refused("rocketmq:\n  name-server: ${app.ns}\napp: {ns: '${rocketmq.nameServer}'}\n") == [
        "rocketmq.name-server -> ${app.ns} (rocketbox.yaml:3:11) -> ${rocketmq.nameServer} goes in a circle\n"
        "    where: rocketbox.yaml:2:16\n"
        "    fix:   give one of them a value of its own"
    ]


def test_an_open_placeholder_is_refused() -> None:
    assert refused("rocketmq.name-server: ${NS\n", {"NS": "x"}) == [
        "rocketmq.name-server has a ${ that is never closed\n"
        "    where: rocketbox.yaml:1:23\n"
        "    fix:   close it with }, or write \\${ for a plain ${"
    ]


def test_a_missing_placeholder_of_a_decorator_is_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load().resolve("${TOPIC}", subject="topic of listener on_departure", where="app.py:12")
    assert str(caught.value.findings[0]).startswith(
        "topic of listener on_departure needs ${TOPIC}, and nothing has that name\n    where: app.py:12\n"
    )


class Gate(BaseModel):
    rows: int = 3


class Gates(BaseModel):
    gates: dict[str, Gate] = {}
    first: Gate | None = None


@pytest.mark.parametrize("nothing", ["{}", "", "null"])
def test_a_name_with_nothing_below_it_is_there_with_defaults(tmp_path: Path, nothing: str) -> None:
    file = tmp_path / "rocketbox.yaml"
    file.write_text(f"desk:\n  gates:\n    a: {nothing}\n    b: {{rows: 5}}\n  first: {nothing}\n")
    settings = load_settings({"desk": Gates}, file=file, environ={})
    assert settings.get("desk") == Gates(gates={"a": Gate(), "b": Gate(rows=5)})
    assert str(settings.origin("desk.gates.a")).startswith("rocketbox.yaml:3:")


def test_a_name_with_nothing_below_it_takes_nothing_from_another_source(tmp_path: Path) -> None:
    file = tmp_path / "rocketbox.yaml"
    file.write_text("desk.gates.a.rows: 5\n---\nrocketbox.config.activate.on-profile: p\ndesk.gates: {a: {}}\n")
    settings = load_settings({"desk": Gates}, file=file, environ={}, profiles=["p"])
    assert settings.get("desk") == Gates(gates={"a": Gate(rows=5)})


def test_none_as_an_override_is_nothing_written_as_it_is_in_yaml() -> None:
    settings = load("desk: {limit: 3}\n", overrides={"other.key": None, "desk": {"maybe": None}})
    assert (settings.text("other.key"), settings.has("other.key")) == (None, False)
    assert settings.get("desk").maybe is None
