"""Golden files are compared, written anew when that is asked for, and never in CI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.golden import golden

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def outside_of_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "REWRITE_GOLDEN"):
        monkeypatch.delenv(name, raising=False)


def test_a_golden_file_is_written_only_when_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "text.txt"
    file.write_text("right")
    assert golden(file, "new") == "right"
    monkeypatch.setenv("REWRITE_GOLDEN", "")
    assert golden(file, "new") == "right"
    monkeypatch.setenv("REWRITE_GOLDEN", "1")
    assert golden(file, "new") == file.read_text() == "new"


def test_a_run_of_ci_that_would_rewrite_golden_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.support.golden import pytest_sessionstart\n")
    (tmp_path / "test_it.py").write_text("def test_it(): ...\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    for variables, status in (({}, 0), ({"CI": "true"}, 0), ({"CI": "true", "REWRITE_GOLDEN": "1"}, 4)):
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables},
            capture_output=True,
            text=True,
        )
        assert done.returncode == status, done.stdout + done.stderr
    assert "REWRITE_GOLDEN is set: golden files would be taken for right as they come out" in done.stderr


def test_the_run_of_ci_says_that_it_is_one() -> None:
    before, _, after = (ROOT / ".ci" / "run").read_text().partition("export CI=true")
    assert "\nstage " not in before
    assert "\nstage test" in after
