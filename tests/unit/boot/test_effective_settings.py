"""What ``rocketbox config`` prints: the whole text, held by golden files, with every secret masked."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel, Field, SecretStr
from typer.testing import CliRunner

from rocketbox.boot.effective import explain, format_value, render_tree
from rocketbox.boot.settings import Settings
from rocketbox.boot.units import Duration
from rocketbox.cli.app import app
from rocketbox.durations import format_duration, parse_duration
from rocketbox.errors import ConfigurationError
from rocketbox.sizes import format_size, parse_data_size
from tests.support.framework.settings_models import MODELS, load
from tests.support.golden import golden

GOLDEN = Path(__file__).parents[2] / "data" / "settings"
CANARY = "hunter2-of-the-bank"


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Account(BaseModel):
    name: str
    password: SecretStr


class Bank(BaseModel):
    """The bank, as a user declares it."""

    url: str = ""
    timeout: Duration = Field(default=timedelta(seconds=90), description="how long to wait for the bank")
    token: str = "nobody"
    pin: SecretStr | None = None
    accounts: list[Account] = []


def everything() -> Settings:
    """Something from each source, and the canary in each place that it can come in by."""
    files = {
        "rocketbox-prod.yaml": "desk: {threshold-minutes: 2}\nrocketmq: {producer: {send-message-timeout: 5s}}\n",
        "shared.yaml": "desk: {threshold-minutes: 3, levels: {a.b: 'x: y', '': no}}\n",
        ".env": f"BANK_TOKEN={CANARY}-1\nDESK_THRESHOLD_MINUTES=4\n",
        "secrets/bank.url": f"https://{CANARY}-2",
        "secrets/other": f"{CANARY}-3",
    }
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    text = (
        "rocketbox.config.import: [shared.yaml, configtree:secrets]\n"
        "rocketmq: {name-server: '${NS:embedded}', producer: {group: desk, secret-key: " + CANARY + "-4}}\n"
        "bank:\n"
        f"  accounts: [{{name: a, password: {CANARY}-5}}]\n"
        f"  pin: {CANARY}-6\n"
        "lake: {uri: 'db://${bank.pin}@${other}', nothing: }\n"
        "---\n"
        "rocketbox.config.activate.on-profile: prod\n"
        "desk: {carriers: [LH, AF]}\n"
    )
    return load(
        text,
        {"DESK_THRESHOLD_MINUTES": "5", "BANK_PIN": f"{CANARY}-7"},
        models={**MODELS, "bank": Bank},
        profiles=["prod"],
        env_file=Path(".env"),
        arguments=["--desk.colour=deep-red", f"--bank.token={CANARY}-8"],
        overrides={"desk.ratio": 0.5, "desk.maybe": None},
    )


def test_the_tree_has_every_key_with_its_value_and_all_places_and_no_secret() -> None:
    text = render_tree(everything())
    assert f"{text}\n" == golden(GOLDEN / "tree.txt", f"{text}\n")
    assert CANARY not in text


def test_the_tree_can_be_read_as_yaml_where_nothing_is_masked() -> None:
    tree = yaml.safe_load(render_tree(load("desk: {levels: {a: 'x: #y', b: '', c: '- d'}}\n")))
    assert tree["desk"]["levels"] == {"a": "x: #y", "b": "", "c": "- d"}
    assert tree["rocketmq"]["producer"]["max-message-size"] == "4MB"


@pytest.mark.parametrize(
    ("name", "key"),
    [("explain_key", "desk.thresholdMinutes"), ("explain_group", "bank"), ("explain_undeclared", "lake.uri")],
)
def test_a_key_is_explained_with_winner_losers_and_default(name: str, key: str) -> None:
    text = explain(everything(), key)
    assert f"{text}\n" == golden(GOLDEN / f"{name}.txt", f"{text}\n")
    assert CANARY not in text


def said_everywhere() -> Settings:
    """Two keys, one of them a secret, in every source that there is; the number is the rank of the source."""

    def said(rank: int) -> str:
        return f"desk: {{threshold-minutes: {rank}}}\nbank: {{token: {CANARY}-{rank}}}\n"

    on_prod = "---\nrocketbox.config.activate.on-profile: prod\n"
    files = {
        "rocketbox-prod.yaml": said(3) + on_prod + said(4),
        "shared.yaml": said(5) + on_prod + said(6),
        "shared-prod.yaml": said(7),
        "secrets/desk.threshold-minutes": "8\n",
        "secrets/bank/token": f"{CANARY}-8\n",
        ".env": f"DESK_THRESHOLD_MINUTES=9\nBANK_TOKEN={CANARY}-9\n",
    }
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    return load(
        "rocketbox.config.import: [shared.yaml, configtree:secrets]\n" + said(1) + on_prod + said(2),
        {"DESK_THRESHOLD_MINUTES": "10", "BANK_TOKEN": f"{CANARY}-10"},
        models={**MODELS, "bank": Bank},
        profiles=["prod"],
        env_file=Path(".env"),
        arguments=["--desk.threshold-minutes=11", f"--bank.token={CANARY}-11"],
        overrides={"desk.threshold-minutes": 12, "bank.token": SecretStr(f"{CANARY}-12")},
    )


def test_a_key_of_every_source_is_explained_in_their_order() -> None:
    settings = said_everywhere()
    assert settings.get("desk").threshold_minutes == 12
    assert settings.get("bank").token == f"{CANARY}-12"
    tree = "\n".join(line for line in render_tree(settings).splitlines() if " over " in line)
    text = "\n\n".join([explain(settings, "desk.threshold-minutes"), explain(settings, "bank.token"), tree])
    assert f"{text}\n" == golden(GOLDEN / "every_source.txt", f"{text}\n")
    assert CANARY not in text


def test_a_key_that_is_not_set_is_explained_and_an_unknown_one_is_refused() -> None:
    assert explain(load(), "rocketmq.name-server") == "rocketmq.name-server: not set\n  takes text"
    with pytest.raises(ConfigurationError, match=r"did you mean rocketmq\.name-server\?"):
        explain(load(), "rocketmq.name-servr")


# --- the command ---------------------------------------------------------------------------------------------------


def test_the_command_prints_the_settings_of_rocketbox_without_an_application() -> None:
    Path("rocketbox.yaml").write_text("rocketmq: {name-server: 'a:1', producer: {group: desk}}\n")
    result = CliRunner().invoke(app, ["config", "--explain", "rocketmq.producer.group", "--rocketmq.producer.group=x"])
    assert (result.exit_code, result.output) == (
        0,
        "rocketmq.producer.group: x\n"
        "  the producer group; switches producer and template on\n"
        "  takes text\n"
        "  from argument --rocketmq.producer.group\n"
        "  over desk from rocketbox.yaml:1:50\n",
    )
    result = CliRunner().invoke(app, ["config"])
    assert result.output.startswith("# files: rocketbox.yaml\n# profiles: default\nrocketmq:\n  name-server: a:1 ")


def test_the_command_knows_the_keys_of_an_application(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path.cwd()))
    Path("desk_of_config.py").write_text(
        "from pydantic import BaseModel\nfrom rocketbox import RocketBox, configuration_properties\n"
        "app = RocketBox('desk', scan=[__name__])\n"
        "@configuration_properties('desk')\nclass Desk(BaseModel):\n    seats: int = 3\n"
    )
    result = CliRunner().invoke(app, ["config", "desk_of_config:app", "--explain", "desk", "--desk.seats=4"])
    assert (result.exit_code, result.output) == (
        0,
        "desk.seats: 4\n  takes a whole number\n  from argument --desk.seats\n  over 3 by default\n",
    )


def test_the_command_says_what_is_wrong() -> None:
    result = CliRunner().invoke(app, ["config", "--rocketmq.startup=never"])
    assert result.exit_code == 1
    assert "rocketmq.startup is 'never', and must be one of fail, retry" in result.output


# --- times and sizes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["0s", "3s", "500ms", "1m30s", "15m", "1d2h3m4s5ms", "-3s"])
def test_times_are_written_as_they_are_read(text: str) -> None:
    assert format_duration(parse_duration(text)) == text


@pytest.mark.parametrize("text", ["0", "1000", "4MB", "1536KB", "3GB", "1TB"])
def test_sizes_are_written_as_they_are_read(text: str) -> None:
    assert format_size(parse_data_size(text)) == text


@pytest.mark.parametrize(
    ("value", "text"), [(-1, "-1"), (-0.5, "-0.5"), ("*", '"*"'), ("- a", '"- a"'), ("-", '"-"'), ("a: b", '"a: b"')]
)
def test_values_are_in_quotes_only_where_yaml_needs_them(value: object, text: str) -> None:
    assert format_value(value) == text
