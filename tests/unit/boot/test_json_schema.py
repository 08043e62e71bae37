"""The JSON Schema of settings: it takes what the settings take, refuses what they refuse, and explains each key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, Field, SecretStr
from typer.testing import CliRunner

from rocketbox.autoconfigure.properties import RocketBoxProperties, RocketMQProperties
from rocketbox.boot.json_schema import json_schema
from rocketbox.boot.root_settings import load_settings
from rocketbox.boot.units import DataSize, Duration, DurationWithUnit
from rocketbox.cli.app import app
from rocketbox.errors import ConfigurationError
from tests.support.framework.json_schema_checker import accepts
from tests.support.framework.settings_models import Colour
from tests.support.golden import golden

GOLDEN = Path(__file__).parents[2] / "data" / "settings" / "schema.json"


class Branch(BaseModel):
    """A branch of the bank."""

    city: str
    open_: bool = True


class Bank(BaseModel):
    """The bank, as a user declares it.

    Not of the schema.
    """

    account: int = Field(ge=1, le=9999, description="the account at the bank")
    max_wait: Duration = timedelta(seconds=90)
    hold: DurationWithUnit | None = None
    limit: DataSize = 4 << 20
    rate: float = Field(default=0.5, gt=0)
    password: SecretStr = SecretStr("hunter2")
    colour: Colour = Colour.BLUE
    branches: list[Branch] = []
    fees: dict[str, float] = {}
    carriers: list[str] = []
    anything: Any = None


MODELS: dict[str, type[BaseModel]] = {"rocketmq": RocketMQProperties, "rocketbox": RocketBoxProperties, "bank": Bank}
SCHEMA = json_schema(MODELS)


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def is_loaded(text: str) -> bool:
    Path("rocketbox.yaml").write_text(text)
    environ = {"A": "1", **({} if "account" in text else {"BANK_ACCOUNT": "1"})}
    try:
        load_settings(MODELS, file=Path("rocketbox.yaml"), environ=environ)
    except ConfigurationError:
        return False
    return True


def test_the_schema_of_a_users_model() -> None:
    text = json.dumps(json_schema({"bank": Bank})["properties"]["bank"], indent=2) + "\n"
    assert text == golden(GOLDEN, text)
    assert "hunter2" not in text


RIGHT = """
rocketmq: {name-server: 'a:9876;b:9876', startup: RETRY, enabled: true}
rocketmq: {name-server: '${NS:embedded}', producer: {send-message-timeout: '${A}', retry-next-server: '${T:true}'}}
rocketmq: {producer: {group: 7, send-message-timeout: 3000, max-message-size: 512KB, retry-times-when-send-failed: 0}}
rocketmq: {producer: {send-message-timeout: 1m30s}}
rocketmq: {producer: {send-message-timeout: PT3S, max-message-size: 1000}}
rocketmq: {producer: {group: no}}
rocketmq: {producer: }
rocketmq: {consumer: {consume-timeout: 15m, listeners: {desk: {concurrency: 3, departures: false}}}}
rocketmq: {consumer: {consume-mode: orderly, listeners: {desk: {on-invalid: dead_letter, topic: a}}}}
rocketmq: {clusters: {audit: {name-server: 'c:1', producer: {group: x}}}}
rocketmq.producer.group: x
rocketmq: {producer.group: x}
rocketbox: {config: {import: optional:a.yaml}, profiles: {active: 'a,b', group: {a: [c]}}}
rocketbox: {config: {import: ['optional:a.yaml'], activate: {on-profile: '!default'}}}
rocketbox: {embedded: {port: 0, mapped-file-size-commit-log: 1MB}, logging: {level: {rocketbox: debug, a.b: INFO}}}
rocketbox: {logging: {level: {rocketbox: {client: debug}}}, spark: {conf: {spark.ui.enabled: false}}}
bank: {account: 7, hold: 15m, limit: 4194304, rate: 0.25, colour: deep-red, carriers: 'LH,AF', anything: [1]}
bank: {account: '7', branches: [{city: Bonn, open: false}], fees: {a: 1, b: 2.5}, unknown: 3}
bank: {account: '${A}', max-wait: '${A}s', rate: ~, colour: ~}
other: {whatever: [1, {a: b}]}
""".strip().splitlines()

WRONG = """
rocketmq: {nam-server: a}
rocketmq: {startup: never}
rocketmq: {enabled: maybe}
rocketmq: {producer: {send-message-timeout: soon}}
rocketmq: {producer: {max-message-size: 3 apples}}
rocketmq: {producer: {retry-times-when-send-failed: -1}}
rocketmq: {producer: [a]}
rocketmq: {producer: {group: [a]}}
rocketmq: {consumer: {consume-timeout: 15}}
rocketmq: {consumer: {listeners: {desk: {consume-timeout: '15'}}}}
rocketmq: {consumer: {listeners: {desk: {consume-mode: sorted}}}}
rocketmq: {clusters: {audit: {clusters: {}}}}
rocketbox: {embedded: {port: 70000}}
rocketbox: {imports: a.yaml}
rocketbox: {config: {imports: a.yaml}}
rocketbox: {logging: {level: {rocketbox: loud}}}
bank: {account: many}
bank: {account: 0}
bank: {account: 7.5}
bank: {account: 7, rate: 0}
bank: {account: 7, colour: green}
bank: {account: 7, carriers: {a: b}}
bank: {account: 7, branches: [{city: Bonn, open: 7}]}
""".strip().splitlines()


@pytest.mark.parametrize("text", RIGHT)
def test_what_the_settings_take_is_right(text: str) -> None:
    assert is_loaded(text)
    assert accepts(SCHEMA, yaml.safe_load(text))


@pytest.mark.parametrize("text", WRONG)
def test_what_the_settings_refuse_is_wrong(text: str) -> None:
    assert not is_loaded(text)
    assert not accepts(SCHEMA, yaml.safe_load(text))


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, inner in node.get("properties", {}).items():
        if "properties" in inner:
            yield from leaves(inner, f"{path}.{name}")
        else:
            yield f"{path}.{name}".removeprefix("."), inner


def test_every_key_of_ours_is_described() -> None:
    keys = dict(leaves(SCHEMA))
    assert [key for key, node in keys.items() if not key.startswith("bank") and "description" not in node] == []
    assert keys["rocketmq.producer.send-message-timeout"]["default"] == "3s"
    assert keys["rocketmq.producer.max-message-size"]["default"] == "4MB"
    assert "PT3S" in keys["rocketmq.producer.send-message-timeout"]["description"]
    assert keys["rocketmq.consumer.consume-timeout"]["description"].startswith(
        "a message that is held longer comes back; orderly queues wait for it (default 15m)"
    )


# --- the command ---------------------------------------------------------------------------------------------------


def test_the_command_writes_the_schema_of_an_application_even_when_its_settings_are_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(Path.cwd()))
    Path("rocketbox.yaml").write_text("rocketmq: {nam-server: x}\n")
    Path("desk_of_schema.py").write_text(
        "from pydantic import BaseModel\nfrom rocketbox import RocketBox, configuration_properties\n"
        "app = RocketBox('desk', scan=[__name__])\n"
        "@configuration_properties('desk.front')\nclass Desk(BaseModel):\n    seats: int\n"
    )
    result = CliRunner().invoke(app, ["schema", "desk_of_schema:app", "--output", "settings.json"])
    assert (result.exit_code, result.output) == (0, "")
    schema = json.loads(Path("settings.json").read_text())
    assert schema["properties"]["desk"]["properties"]["front"]["properties"]["seats"]["description"] == "required"
    assert schema["properties"].keys() == {"rocketmq", "rocketbox", "desk"}


def test_without_an_application_the_keys_of_rocketbox_are_printed() -> None:
    result = CliRunner().invoke(app, ["schema"])
    assert json.loads(result.output)["properties"].keys() == {"rocketmq", "rocketbox"}


def test_a_file_that_cannot_be_written_is_told() -> None:
    result = CliRunner().invoke(app, ["schema", "--output", "nowhere/schema.json"])
    assert result.exit_code == 1
    assert "nowhere/schema.json cannot be written: No such file or directory" in result.output
