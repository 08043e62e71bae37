"""``rocketbox new``: what it makes is checked, tested, type-checked and run as its user would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.framework.services import Service


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    service = Service(home, "new", "night-desk-2")
    assert service.finish() == 0, service.output
    assert "  night_desk_2/app.py\n" in service.output
    assert "  cd night-desk-2\n  rocketbox run night_desk_2.app:app --reload\n  pytest\n" in service.output
    return home / "night-desk-2"


def run(folder: Path, *command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env={**os.environ, "PYTEST_PLUGINS": "rocketbox.testing.plugin"},  # where rocketbox is found by its path
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_nothing_is_wrong_with_it(folder: Path) -> None:
    service = Service(folder, "check", "night_desk_2.app:app")
    assert service.finish() == 0, service.output
    assert "night-desk-2: nothing is wrong" in service.output
    assert "warning" not in service.output


def test_it_runs_at_once_and_stops_in_order(folder: Path) -> None:
    free_ports = {"ROCKETBOX_EMBEDDED_PORT": "0", "ROCKETBOX_EMBEDDED_NAME_SERVER_PORT": "0"}
    service = Service(folder, "run", "night_desk_2.app:app", environment=free_ports)
    service.wait_for("night-desk-2 is ready")
    service.wait_for("sold lamp for 10.00")
    service.process.send_signal(signal.SIGTERM)
    assert service.finish() == 0, service.output
    assert (folder / ".rocketbox" / "night-desk-2" / "store").is_dir()


def test_its_tests_pass(folder: Path) -> None:
    run(folder, "pytest", "-q", "-W", "error")


def test_its_tests_pass_side_by_side(folder: Path) -> None:
    run(folder, "pytest", "-q", "-W", "error", "-n", "2")


def test_its_test_of_a_broker_in_memory_is_skipped_on_a_real_one(folder: Path) -> None:
    run(folder, "pytest", "-q", "-W", "error", "-k", "twice", "--rocketbox-name-server=127.0.0.1:1")


def test_it_has_no_findings_of_ruff_and_of_mypy_strict(folder: Path) -> None:
    run(folder, "ruff", "check", ".")
    run(folder, "ruff", "format", "--check", ".")
    run(folder, "mypy", "--strict")


def test_no_placeholder_is_left(folder: Path) -> None:
    texts = [file.read_text() for file in folder.rglob("*") if file.suffix in (".py", ".toml", ".md", ".yaml")]
    assert len(texts) >= 6
    assert not [text for text in texts if "$name" in text or "$package" in text or "$version" in text]
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == "night-desk-2"
    assert project["dependencies"][0].startswith("rocketbox>=0.")
