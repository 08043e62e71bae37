"""What is written on the command line: options, settings, and what is misspelt; and the help."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rocketbox import __version__
from rocketbox.cli.app import app
from rocketbox.cli.broker import read_secrets
from rocketbox.errors import ConfigurationError

COMMANDS = ("run", "check", "config", "conditions", "schema", "broker", "new")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "desk:app", "--relaod"], "did you mean --reload?"),
        (["run", "--relaod", "desk:app"], "did you mean --reload?"),
        (["config", "--explian"], "did you mean --explain?"),
        (["run", "desk:app", "--worker=4"], "did you mean --workers?"),
        (["run", "desk:app", "--confg=x.yaml"], "did you mean --config?"),
        (["check", "desk:app", "--profiles=late"], "did you mean --profile?"),
        (["conditions", "desk:app", "--debgu"], "did you mean --debug?"),
        (["check", "desk:app", "--reload"], "--reload is neither an option of rocketbox check nor a setting"),
        (["run", "desk:app", "--chidl"], "settings are written --KEY=VALUE"),  # what is hidden is not recommended
    ],
)
def test_an_option_that_is_misspelt_is_not_taken_for_a_setting(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(app, arguments, prog_name="rocketbox")
    assert result.exit_code == 1
    assert says in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--authentication-enabled", "--tls-server-key-password", "planted-1"],
            "--authentication-enabled has no value",
        ),
        (["--acl-enable=true", "planted-1"], "the argument behind --acl-enable is not a setting"),
        (["--tls-server-key-password:planted-1"], "--tls-server-key-password is followed by a colon or a space"),
        (["--tls-server-key-password planted-1"], "--tls-server-key-password is followed by a colon or a space"),
        (["planted-1"], "the argument behind the command is not a setting"),
    ],
)
def test_a_value_that_has_lost_its_setting_is_not_told(tmp_path: Path, arguments: list[str], says: str) -> None:
    """It may be a password: a switch without a value would have taken the next setting's name for its own."""
    command = ["broker", "--data-dir", str(tmp_path / "data"), *arguments]
    result = CliRunner().invoke(app, command, prog_name="rocketbox")
    assert result.exit_code == 1
    assert says in result.output
    assert "planted-1" not in result.output


def test_the_version_is_that_of_the_package() -> None:
    result = CliRunner().invoke(app, ["--version"], prog_name="rocketbox")
    assert (result.exit_code, result.output) == (0, f"rocketbox {__version__}\n")
    assert __version__ == version("rocketbox")


def test_all_options_that_are_misspelt_are_told_together() -> None:
    result = CliRunner().invoke(app, ["run", "desk:app", "--relaod", "--worker=4"], prog_name="rocketbox")
    assert "1. --relaod" in result.output
    assert "2. --worker " in result.output


@pytest.mark.parametrize("setting", ["--stage=late", "--rocketmq.enabled=false"])
@pytest.mark.parametrize("first", [False, True])
def test_settings_may_stand_before_and_behind_the_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, first: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["check", *([setting, "nowhere:app"] if first else ["nowhere:app", setting])]
    result = CliRunner().invoke(app, arguments, prog_name="rocketbox")
    assert result.exit_code == 1
    assert "module nowhere cannot be imported" in result.output
    assert "neither an option" not in result.output


@pytest.mark.parametrize("arguments", [["check", "nowhere:app"], ["config"]])
@pytest.mark.parametrize("first", [False, True])
def test_a_value_apart_from_its_key_is_not_taken_for_an_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], first: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    command, *application = arguments
    setting = ["--rocketmq.producer.secret-key", "hunter2"]
    result = CliRunner().invoke(app, [command, *setting, *application] if first else [command, *application, *setting])
    assert result.exit_code == 1
    assert "hunter2" not in result.output
    said = "module nowhere cannot be" if application else "the value of --rocketmq.producer.secret-key is an argument"
    assert said in result.output


@pytest.mark.parametrize("command", ["run", "check", "conditions"])
def test_an_address_behind_its_key_is_not_taken_for_the_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [command, "--rocketmq.name-server", "ns1:9876", "nowhere:app"])
    assert result.exit_code == 1
    assert "module nowhere cannot be imported" in result.output
    assert "ns1" not in result.output


def test_an_application_behind_a_key_without_a_value_is_taken_for_that_value() -> None:
    result = CliRunner().invoke(app, ["check", "--desk.late", "nowhere:app"], prog_name="rocketbox")
    assert result.exit_code == 1
    assert "no application is named" in result.output
    assert "what stands behind --desk.late is taken for its value" in result.output


@pytest.mark.parametrize(
    ("written", "right"),
    [
        ("app.py", "write app:app"),
        ("app.py:desk", "write app:desk"),
        ("./app.py", "write app:app"),
        ("shop/app.py", "write shop.app:app"),
        ("shop/app:desk", "write shop.app:desk"),
        ("/srv/shop/app.py", "start in /srv/shop, and write app:app"),
        ("../app.py", "start in .., and write app:app"),
    ],
)
@pytest.mark.parametrize("command", [["run"], ["run", "--reload"], ["check"], ["config"], ["schema"]])
def test_the_name_of_a_file_is_refused_with_what_to_write(command: list[str], written: str, right: str) -> None:
    result = CliRunner().invoke(app, [*command, written], prog_name="rocketbox")
    assert result.exit_code == 1
    assert "is the name of a file" in result.output
    assert right in result.output


def test_a_command_without_an_application_says_so() -> None:
    result = CliRunner().invoke(app, ["check", "--rocketmq.enabled", "desk"], prog_name="rocketbox")
    assert result.exit_code == 1
    assert "no application is named" in result.output
    assert "write rocketbox check MODULE:APP; settings are written --KEY=VALUE" in result.output


@pytest.mark.parametrize("workers", ["0", "-1", "many"])
def test_the_number_of_workers_is_checked(workers: str) -> None:
    result = CliRunner().invoke(app, ["run", "desk:app", f"--workers={workers}"], prog_name="rocketbox")
    assert result.exit_code == 2
    assert "--workers" in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_explains_each_option(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], prog_name="rocketbox", env={"COLUMNS": "120", "TERM": "dumb"})
    assert result.exit_code == 0
    assert "--KEY=VALUE" in result.output or command in ("schema", "new")
    assert "--child" not in result.output
    boxes = [line.strip("│* ") for line in result.output.splitlines() if line.startswith("│")]
    options = [line.split() for line in boxes if line.startswith("--")]
    assert options
    assert [words for words in options if len(words) < 4] == []  # name, type, and some words


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_tells_its_exit_codes(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], prog_name="rocketbox", env={"COLUMNS": "120", "TERM": "dumb"})
    assert "Status" in result.output


def test_a_reader_that_has_seen_enough_is_no_failed_start() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "rocketbox", "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as schema:
        assert schema.stdout is not None
        assert schema.stderr is not None
        schema.stdout.close()  # as head does
        assert schema.stderr.read() == ""
    assert schema.returncode == 1


def test_secrets_of_a_broker_stand_in_files(tmp_path: Path) -> None:
    (tmp_path / "rocketbox.embedded.init-authentication-user").write_text('{"username":"u","password":"p"}\n')
    (tmp_path / "tls-server-key-password").write_text(" of the key ")
    (tmp_path / "..data").mkdir()  # as Kubernetes mounts them
    assert read_secrets(tmp_path) == {
        "init-authentication-user": '{"username":"u","password":"p"}',
        "tls-server-key-password": " of the key ",
    }
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigurationError, match="is no file with a secret in it"):
        read_secrets(tmp_path)
    (tmp_path / "folder").rmdir()
    (tmp_path / "folder").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="is not UTF-8"):
        read_secrets(tmp_path)
    with pytest.raises(ConfigurationError, match="cannot be read: No such file or directory"):
        read_secrets(tmp_path / "nowhere")
