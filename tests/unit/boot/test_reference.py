"""The keys of settings as Markdown tables: each key with what it takes, its default and its meaning."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, SecretStr
from typer.testing import CliRunner

from rocketbox.boot.reference import markdown_reference, markdown_table
from rocketbox.boot.units import DataSize, Duration
from rocketbox.cli.app import app
from tests.support.framework.settings_models import Colour


class Fee(BaseModel):
    amount: float = Field(gt=0, description="in the currency of <branch> | bank")


class Till(BaseModel):
    """A till of `bank.tills.<name>`, in the folder <till>."""

    open_: bool = True


class Account(BaseModel):
    number: int = Field(ge=1, le=9999, description="the account at the bank")
    max_wait: Duration = Field(default=timedelta(seconds=90), gt=timedelta(0))
    limit: DataSize = 4 << 20
    floor: int = -1
    password: SecretStr = SecretStr("hunter2")
    colour: Colour = Colour.BLUE
    carriers: list[str] = []
    rates: dict[str, float] = {}
    grid: list[list[int]] = []
    shares: list[dict[str, float]] = []
    anything: Any = None


class Bank(Account):
    """The bank, as a user declares it.

    Not of the reference.
    """

    fees: list[Fee] = []
    tills: dict[str, Till] = {}
    partners: dict[str, Account] = Field(default_factory=dict, description="other banks")


LINES = markdown_reference({"bank": Bank}).splitlines()


@pytest.mark.parametrize(
    "line",
    [
        "## `bank`",
        "The bank, as a user declares it.",
        "| `bank.number` | a whole number, from 1, up to 9999 | required | the account at the bank |",
        "| `bank.max-wait` | a time, above 0s | `1m30s` |  |",
        "| `bank.limit` | a size | `4MB` |  |",
        "| `bank.floor` | a whole number | `-1` |  |",
        "| `bank.password` | secret text |  |  |",
        "| `bank.colour` | `DEEP_RED`, `BLUE` | `BLUE` |  |",
        "| `bank.carriers` | a list: text |  |  |",
        "| `bank.rates.<name>` | a number |  |  |",
        "| `bank.grid[]` | a list: a whole number |  |  |",
        "| `bank.shares[].<name>` | a number |  |  |",
        "| `bank.anything` | a value |  |  |",
        "## `bank.fees[]`",
        r"| `bank.fees[].amount` | a number, above 0 | required | in the currency of \<branch> \| bank |",
        "## `bank.tills.<name>`",
        r"A till of `bank.tills.<name>`, in the folder \<till>.",
        "| `bank.tills.<name>.open` | true or false | `true` |  |",
        "| `bank.partners.<name>.<key>` | the keys of `bank` but `fees`, `tills`, `partners` |  | other banks |",
    ],
)
def test_each_key_has_its_line(line: str) -> None:
    assert line in LINES


def test_neither_secrets_nor_the_rest_of_a_docstring_are_shown() -> None:
    text = "\n".join(LINES)
    assert "hunter2" not in text
    assert "Not of the reference" not in text


def test_every_line_of_a_table_has_as_many_cells() -> None:
    table = [line.replace(r"\|", "") for line in LINES if line.startswith("|")]
    assert len(table) > 20
    assert {line.count("|") for line in table} == {5}


def test_a_model_without_keys_of_its_own_has_no_heading() -> None:
    class Nothing(BaseModel):
        """Nothing."""

    assert "nothing" not in markdown_reference({"nothing": Nothing})


def test_a_table_escapes_what_would_end_a_cell() -> None:
    assert markdown_table(("a", "b"), [("x|y", "z")]) == "| a | b |\n| --- | --- |\n| x\\|y | z |"


def test_the_command_writes_the_keys_of_an_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "bank_of_reference.py").write_text(
        "from pydantic import BaseModel\nfrom rocketbox import RocketBox, configuration_properties\n"
        "app = RocketBox('bank', scan=[__name__])\n"
        "@configuration_properties('bank')\nclass Bank(BaseModel):\n    account: int = 3\n"
    )
    result = CliRunner().invoke(app, ["schema", "bank_of_reference:app", "--format", "markdown"])
    assert result.exit_code == 0
    assert "\n| `bank.account` | a whole number | `3` |  |\n" in result.output
    assert "\n| `rocketmq.producer.group` | text |" in result.output


@pytest.mark.parametrize("target", [[], ["bank_of_reference:app"]], ids=["without an application", "with one"])
def test_the_command_refuses_other_options_and_shows_no_value_of_them(target: list[str]) -> None:
    result = CliRunner().invoke(app, ["schema", *target, "--rocketmq.producer.secret-key=hunter2"])
    assert result.exit_code == 2
    assert "secret-key" in result.output
    assert "hunter2" not in result.output
