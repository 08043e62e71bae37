"""Settings that are wrong: the exact words, with key, value, place and what would be right; all of them at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel, Field, SecretStr

from rocketbox.boot import yaml_documents
from rocketbox.boot.root_settings import load_settings
from rocketbox.errors import ConfigurationError
from tests.support.framework.settings_models import MODELS, Desk, RocketMQ, load, refused


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# --- how values are shown -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", ["", "-"])
def test_a_number_of_many_digits_is_cut_and_its_length_told(sign: str) -> None:
    (text,) = refused(f"desk: {{threshold-minutes: {sign}{'1234567890' * 500}}}\n")
    what = text.partition("\n")[0]
    assert what.startswith("desk.threshold-minutes is '12345678901234567890...', a number of 5000 digits")
    assert len(what) < 200


# --- what is refused -----------------------------------------------------------------------------------------------


def test_an_unknown_key_is_refused_with_what_was_probably_meant() -> None:
    assert refused("rocketmq:\n  producer:\n    send-message-timeot: 5\n") == [
        "unknown key rocketmq.producer.send-message-timeot\n"
        "    where: rocketbox.yaml:3:5\n"
        "    fix:   did you mean rocketmq.producer.send-message-timeout?"
    ]


def test_an_unknown_key_that_is_like_none_is_refused_with_those_that_there_are() -> None:
    assert refused("rocketmq: {consumer: {zzz: {a: 1, b: 2}}}\n") == [
        "unknown key rocketmq.consumer.zzz\n"
        "    where: rocketbox.yaml:1:23\n"
        "    fix:   rocketmq.consumer takes: listeners"
    ]


@pytest.mark.parametrize(
    "argument", ["--rocketmq.nam-server=x", "--desk.treshold-minutes=1", "--rocketmg.name-server=x"]
)
def test_an_unknown_argument_is_refused(argument: str) -> None:
    (text,) = refused(arguments=[argument])
    assert text.startswith("unknown key ")
    assert f"where: argument {argument.partition('=')[0]}\n" in text
    assert "did you mean" in text


def test_an_override_that_would_set_nothing_is_refused() -> None:
    assert refused(overrides={"desk": Desk(threshold_minutes=5)}) == [
        "desk takes keys below it, and is given a Desk\n"
        "    where: override desk\n"
        "    fix:   write its keys: 'desk.threshold-minutes': ..."
    ]
    assert refused(overrides={"DESK_THRESHOLD_MINUTES": 5}) == [
        "DESK_THRESHOLD_MINUTES is how a variable of the environment is named\n"
        "    where: override DESK_THRESHOLD_MINUTES\n"
        "    fix:   write desk.threshold-minutes"
    ]
    (finding,) = refused(arguments=["--DESK_THRESHOLD_MINUTES=5"])
    assert finding.endswith("fix:   write desk.threshold-minutes")
    (finding,) = refused(overrides={5: 1})
    assert finding.startswith("the key 5 of an override is no text\n")


def test_a_list_in_json_is_refused_where_it_would_be_taken_apart_at_its_commas() -> None:
    assert refused(environ={"DESK_CARRIERS": '["UA", "LH"]'}) == [
        "desk.carriers is a list in JSON, and would be taken apart at its commas\n"
        "    where: environment variable DESK_CARRIERS\n"
        "    fix:   write the entries with commas between them and nothing around"
    ]
    assert load(environ={"DESK_CARRIERS": "[UA],[LH]"}).get("desk").carriers == ["[UA]", "[LH]"]


def test_an_argument_that_is_no_setting_is_refused() -> None:
    assert refused(arguments=["desk"]) == [
        "the argument 'desk' is no setting\n    where: the command line\n    fix:   write --key=value"
    ]


def test_a_value_apart_from_its_argument_is_refused_and_not_shown() -> None:
    assert refused(arguments=["--rocketmq.producer.secret-key", "hunter2"]) == [
        "the value of --rocketmq.producer.secret-key is an argument of its own\n"
        "    where: the command line\n"
        "    fix:   write --rocketmq.producer.secret-key=value"
    ]
    (finding,) = refused(arguments=["rocketmq.producer.secret-key=hunter2"])
    assert finding.startswith("the argument 'rocketmq.producer.secret-key' is no setting\n")


def test_the_further_words_of_a_value_without_quotes_are_not_shown() -> None:
    (finding,) = refused(arguments=["--rocketmq.producer.secret-key=two", "hunter2"])
    assert finding.startswith("an argument behind --rocketmq.producer.secret-key is no setting\n")
    assert "hunter2" not in finding
    assert finding.endswith("with quotes around a value of several words")


def test_unknown_keys_of_users_are_told_and_not_refused() -> None:
    settings = load("desk: {treshold-minutes: 1}\nrocketmqq: {a: 1}\nother: {b: no}\n")
    assert [finding.what for finding in settings.warnings] == [
        "unknown key desk.treshold-minutes",
        "unknown key rocketmqq",
    ]
    assert settings.text("other.b") == "no"
    assert settings.value("other.b") == "no"


def test_unknown_keys_in_a_list_are_told_and_not_refused() -> None:
    class Gate(BaseModel):
        name: str = ""

    class Gates(BaseModel):
        gates: list[Gate] = []

    settings = load("airport:\n  gates:\n    - {name: a}\n    - {nam: b}\n", models={"airport": Gates})
    assert settings.get("airport") == Gates(gates=[Gate(name="a"), Gate()])
    (warning,) = settings.warnings
    assert warning.what.startswith("unknown key airport.gates")
    assert warning.where == "rocketbox.yaml:4:8"
    assert str(warning.fix).endswith(".name?")


def test_a_wrong_type_is_refused_with_key_value_place_and_what_is_expected() -> None:
    assert refused(
        "rocketmq:\n  enabled: maybe\n  producer:\n    send-message-timeout: soon\n    retry-times: many\n"
        "    max-message-size: 3 apples\n"
        "desk: {colour: green, mode: x, ratio: y, carriers: {a: b}, maybe: [1]}\n"
    ) == [
        "desk.carriers takes a list, and keys are written below it\n"
        "    where: rocketbox.yaml:7:42\n"
        "    fix:   write desk.carriers: [..., ...]",
        "desk.maybe takes a whole number, and a list is written there\n"
        "    where: rocketbox.yaml:7:67\n"
        "    fix:   write a whole number, such as 3",
        "rocketmq.enabled is 'maybe', and must be true or false\n"
        "    where: rocketbox.yaml:2:12\n"
        "    fix:   write true or false",
        "rocketmq.producer.send-message-timeout is 'soon', and must be a time\n"
        "    where: rocketbox.yaml:4:27\n"
        "    fix:   write 3000 (milliseconds), 3s, 500ms, 1m30s or PT3S",
        "rocketmq.producer.retry-times is 'many', and must be a whole number\n"
        "    where: rocketbox.yaml:5:18\n"
        "    fix:   write a whole number, such as 3",
        "rocketmq.producer.max-message-size is '3 apples', and must be a size\n"
        "    where: rocketbox.yaml:6:23\n"
        "    fix:   write 4194304 (bytes), 512KB or 4MB (1024-based)",
        "desk.colour is 'green', and must be one of DEEP_RED, BLUE\n"
        "    where: rocketbox.yaml:7:16\n"
        "    fix:   write one of DEEP_RED, BLUE",
        "desk.mode is 'x', and must be one of fast-lane, slow\n"
        "    where: rocketbox.yaml:7:29\n"
        "    fix:   write one of fast-lane, slow",
        "desk.ratio is 'y', and must be a number\n"
        "    where: rocketbox.yaml:7:39\n"
        "    fix:   write a number, such as 0.5",
    ]


def test_a_value_out_of_its_bounds_is_refused() -> None:
    assert refused(environ={"ROCKETMQ_PRODUCER_RETRY_TIMES": "-1"}) == [
        "rocketmq.producer.retry-times is '-1', and must be greater than or equal to 0\n"
        "    where: environment variable ROCKETMQ_PRODUCER_RETRY_TIMES\n"
        "    fix:   write a whole number that is greater than or equal to 0"
    ]


def test_a_time_that_needs_a_unit_is_refused_without_one() -> None:
    assert refused("rocketmq.consumer.listeners.desk.consume-timeout: 15\n") == [
        "rocketmq.consumer.listeners.desk.consume-timeout is '15', and must be a time with its unit\n"
        "    where: rocketbox.yaml:1:51\n"
        "    fix:   write 15m, 30s, 500ms, 1m30s or PT3S"
    ]


def test_a_number_that_looks_octal_is_refused() -> None:
    assert refused("desk: {threshold-minutes: 045}\n") == [
        "desk.threshold-minutes is 045, which some readers of YAML take for an octal number\n"
        "    where: rocketbox.yaml:1:27\n"
        "    fix:   write it without the 0"
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("no", "desk.anything is no, which some readers of YAML take for false"),
        ("0123", "desk.anything is 0123, which readers of YAML take for different numbers"),
        ("12:30", "desk.anything is 12:30, which readers of YAML take for different numbers"),
    ],
)
def test_what_readers_of_yaml_disagree_on_is_refused_where_no_type_says(text: str, what: str) -> None:
    (finding,) = refused(f"desk: {{anything: {text}}}\n")
    assert finding.startswith(what + "\n    where: rocketbox.yaml:1:18\n")


def test_a_single_value_in_place_of_a_group_and_the_other_way_round() -> None:
    assert refused("rocketmq: {producer: x, name-server: {host: a}}\n") == [
        "rocketmq.name-server takes text, and keys are written below it\n"
        "    where: rocketbox.yaml:1:25\n"
        "    fix:   write rocketmq.name-server: ...",
        "rocketmq.producer takes keys below it, and a single value is written there\n"
        "    where: rocketbox.yaml:1:22\n"
        "    fix:   rocketmq.producer takes: group, max-message-size, retry-next-server, retry-times, secret-key, "
        "send-message-timeout",
    ]


def test_a_required_key_that_is_missing() -> None:
    class Mail(BaseModel):
        host: str
        port: int = 25

    assert refused("mail:\n  port: 26\n", models={"mail": Mail}) == [
        "mail.host is required and not set\n"
        "    where: beside rocketbox.yaml:2:9\n"
        "    fix:   set it in rocketbox.yaml, or as MAIL_HOST in the environment"
    ]


def test_what_refers_to_an_unresolved_placeholder_is_told_once_and_is_not_missing_or_wrong_besides() -> None:
    class Mail(BaseModel):
        host: str
        sender: str
        ports: list[int] = []

    text = "mail: {host: '${HOST}', sender: '${mail.host}', ports: [1, '${mail.host}', x]}\n"
    (told,) = refused(text, models={"mail": Mail})
    assert told.startswith("mail.host needs ${HOST}, and nothing has that name\n")


def test_a_group_is_not_missing_when_all_that_is_written_in_it_is_refused() -> None:
    class Server(BaseModel):
        host: str

    class Mail(BaseModel):
        server: Server

    (told,) = refused("mail: {server: {host: '${HOST}'}}\n", models={"mail": Mail})
    assert told.startswith("mail.server.host needs ${HOST}, and nothing has that name\n")
    (missing,) = refused("mail: {server: {}}\n", models={"mail": Mail})
    assert missing.startswith("mail.server is required and not set\n")


def test_a_secret_is_shown_nowhere() -> None:
    class Login(BaseModel):
        password: int = 0
        key: SecretStr = Field(default=SecretStr(""), max_length=3)

    (first, second) = refused("login: {password: hunter2, key: hunter22}\n", models={"login": Login})
    assert first.startswith("login.password is ******, and must be a whole number\n")
    assert second.startswith("login.key is ******, which is not allowed\n")
    settings = load("rocketmq.producer.secret-key: hunter2\n")
    assert settings.secrets == {"hunter2"}
    assert "hunter2" not in repr(settings) + repr(vars(settings))
    assert [said.text for said in settings.explain("rocketmq.producer.secret-key")] == ["******"]


def test_a_class_that_is_no_model_is_refused() -> None:
    class Plain:
        pass

    with pytest.raises(ConfigurationError, match=r"the class .*Plain of prefix plain is no pydantic model"):
        load(models={"plain": Plain})


def test_a_model_with_two_keys_of_one_name_is_refused() -> None:
    class Twins(BaseModel):
        ab_c: int = 1
        a_bc: int = 2

    with pytest.raises(ConfigurationError, match="two keys that are one in every spelling: ab-c and a-bc"):
        load(models={"twins": Twins})


def test_everything_that_is_wrong_comes_together() -> None:
    texts = refused(
        "rocketmq: {nameserfer: x, producer: {retry-times: many}, name-server: '${NONE}'}\n", arguments=["oops"]
    )
    assert len(texts) == 4


# --- files ---------------------------------------------------------------------------------------------------------


def test_a_key_that_is_written_twice_is_refused_with_both_lines() -> None:
    assert refused("rocketmq:\n  producer: {group: a}\n  enabled: true\n  producer: {group: b}\n") == [
        "rocketmq.producer is written twice, first at rocketbox.yaml:2:3\n"
        "    where: rocketbox.yaml:4:3\n"
        "    fix:   keep one of the two"
    ]


def test_a_key_that_is_written_in_two_spellings_is_refused() -> None:
    assert refused("rocketmq:\n  name-server: a\n  nameServer: b\n") == [
        "rocketmq.name-server is written twice, first at rocketbox.yaml:2:3\n"
        "    where: rocketbox.yaml:3:3\n"
        "    fix:   keep one of the two"
    ]


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (
            "rocketmq:\n\tname-server: a\n",
            "rocketbox.yaml has a tab where YAML takes spaces only\n    where: rocketbox.yaml:2:1\n"
            "    fix:   indent with spaces",
        ),
        (
            "rocketmq: {name-server: a\n",
            "rocketbox.yaml is not valid YAML: while parsing a flow mapping expected ',' or '}', but got "
            "'<stream end>'\n    where: rocketbox.yaml:2:1\n    fix:   correct this line or the one before it",
        ),
        (
            "rocketmq: {name-server: !!python/object/apply:os.system [ls]}\n",
            "the tag !!python/object/apply:os.system is not allowed in settings\n    where: rocketbox.yaml:1:25\n"
            "    fix:   leave !!python/object/apply:os.system out",
        ),
        (
            "a: &a [x, *a]\n",
            "the aliases of this file (*name) stand for too much, or for themselves\n    where: rocketbox.yaml:1:8\n"
            "    fix:   write the values out instead of repeating them with * and &",
        ),
        (
            "- a\n",
            "settings begin with a key\n    where: rocketbox.yaml:1:1\n    fix:   write key: value",
        ),
        (
            "? [a, b]\n: c\n",
            "a key that is no text is not allowed in settings\n    where: rocketbox.yaml:1:3\n"
            "    fix:   write a plain key",
        ),
    ],
)
def test_a_file_that_is_no_settings_is_refused_with_its_line(text: str, finding: str) -> None:
    assert refused(text) == [finding]


def test_an_alias_bomb_is_refused_at_once() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    (finding,) = refused("\n".join(lines))
    assert finding.startswith("the aliases of this file (*name) stand for too much, or for themselves\n")


def test_an_empty_entry_of_a_list_is_refused_where_it_stands() -> None:
    class Mail(BaseModel):
        ports: list[int] = []
        servers: list[RocketMQ] = []

    text = "mail:\n  ports: [25, ~, x]\n  servers:\n  - name-server: a\n  -\n"
    assert refused(text, models={"mail": Mail}) == [
        "mail.ports[1] is empty\n    where: rocketbox.yaml:2:15\n    fix:   write a value, or take this entry out",
        "mail.servers[1] is empty\n    where: rocketbox.yaml:5:4\n    fix:   write a value, or take this entry out",
    ]


@pytest.mark.parametrize("name", ["a/b", "a\\b", "../a", "a" * 300])
def test_a_profile_that_no_file_can_be_named_after_is_refused(name: str) -> None:
    what = f"the profile {name!r} has a name that no file can have"
    fix = "use letters, digits and dashes"
    text = f"rocketbox.profiles.active: [good, '{name}']\n"
    assert refused(text) == [f"{what}\n    where: rocketbox.yaml:1:28\n    fix:   {fix}"]
    assert refused("a: b\n", profiles=[name]) == [f"{what}\n    where: --profile\n    fix:   {fix}"]


def test_groups_that_merge_each_other_are_refused() -> None:
    (finding,) = refused("a: &a {<<: &b {<<: *a}}\n")
    assert finding.startswith("the aliases of this file (*name) stand for too much, or for themselves\n")


@pytest.mark.parametrize("text", ["a:\n  " + "[" * 2000, "a:\n  " + "{b: " * 2000, "a:\n" + "- " * 2000 + "x"])
def test_what_is_too_deep_to_be_read_is_refused_with_its_line(text: str) -> None:
    (finding,) = refused(text)
    assert finding.startswith("rocketbox.yaml has more than 50 groups or lists inside of each other\n")
    assert "where: rocketbox.yaml:2:" in finding


def test_a_character_that_yaml_does_not_take_is_refused_with_its_line() -> None:
    assert refused("a: b\nc: d\x07\n") == [
        "rocketbox.yaml is not valid YAML: special characters are not allowed\n"
        "    where: rocketbox.yaml:2:5\n"
        "    fix:   take this character out"
    ]


def test_a_number_of_too_many_digits_is_refused() -> None:
    (finding,) = refused(f"desk.threshold-minutes: {'9' * 5000}\ndesk.anything: {'9' * 5000}\n")
    assert finding.startswith("desk.threshold-minutes is '999")


@pytest.mark.parametrize("kind", ["lists", "groups", "merges"])
def test_a_bomb_of_10_kb_costs_no_more_nodes_than_a_file_may_have(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["a0: &a0 [x]" if kind == "lists" else "a0: &a0 {x: y}"]
    for level in range(1, 40):
        aliases = [f"*a{level - 1}"] * 40
        if kind == "groups":
            inner = ", ".join(f"k{number}: {alias}" for number, alias in enumerate(aliases))
        else:
            inner = ", ".join(aliases)
        written = {"lists": f"[{inner}]", "groups": f"{{{inner}}}", "merges": f"{{<<: [{inner}]}}"}[kind]
        lines.append(f"a{level}: &a{level} {written}")
    text = "\n".join(lines)[:10_000].rpartition("\n")[0]
    assert len(text) > 8_000
    seen = 0
    count = yaml_documents._Reader.count

    def counting(self: yaml_documents._Reader, node: yaml.Node, depth: int) -> bool:
        nonlocal seen
        seen += 1
        return count(self, node, depth)

    monkeypatch.setattr(yaml_documents._Reader, "count", counting)
    (finding,) = refused(text)
    assert finding.startswith("the aliases of this file (*name) stand for too much, or for themselves\n")
    assert seen < 1.1 * yaml_documents.MAX_NODES


def test_merges_and_anchors_work() -> None:
    settings = load(
        "base: &base {concurrency: 3, pull-batch-size: 4}\n"
        "rocketmq.consumer.listeners.desk:\n"
        "  <<: *base\n"
        "  concurrency: 5\n"
    )
    listener = settings.get("rocketmq").consumer.listeners["desk"]
    assert (listener.concurrency, listener.pull_batch_size) == (5, 4)


def test_files_that_cannot_be_read_say_why() -> None:
    def of(file: Path) -> str:
        with pytest.raises(ConfigurationError) as caught:
            load_settings(MODELS, file=file, environ={})
        (finding,) = caught.value.findings
        return finding.what

    Path("bytes.yaml").write_bytes(b"a: \xff")
    Path("folder.yaml").mkdir()
    assert of(Path("bytes.yaml")) == "bytes.yaml is not UTF-8: byte 3"
    assert of(Path("folder.yaml")) == "folder.yaml is a directory"
    assert of(Path("none.yaml")) == "none.yaml cannot be read: No such file or directory"
    Path("bom.yaml").write_bytes("desk: {threshold-minutes: 5}\n".encode("utf-8-sig"))
    assert load_settings(MODELS, file=Path("bom.yaml"), environ={}).get("desk").threshold_minutes == 5


def test_an_env_file_with_a_broken_line_is_refused() -> None:
    Path(".env").write_text("A=1\nthis is no assignment\n")
    assert refused(env_file=Path(".env")) == [
        ".env has a line that is no assignment\n    where: .env:2\n    fix:   write NAME=value"
    ]
