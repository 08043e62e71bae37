"""``make test`` fails, and ends, when a process that runs tests crashes and when a test hangs."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")

ROOT = Path(__file__).parents[2]
MANY = """
import os, time
import pytest

@pytest.mark.parametrize("number", range(6))
def test_before(number): ...

def test_that_ends_it(): {what}

@pytest.mark.parametrize("number", range(6))
def test_after(number): ...
"""


def make_test(folder: Path, what: str, *variables: str) -> str:
    """What ``make test`` prints of a file of tests; it must fail."""
    (folder / "test_many.py").write_text(MANY.format(what=what))
    # Without what the make and the pytest around this test were told.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MAKE"))}
    command = ["make", "--dry-run", "test", "WORKERS=1", "ARGS=", *variables]
    shown = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout
    options = [word for word in shlex.split(shown.splitlines()[-1]) if not word.startswith("tests/")][1:]
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # it starts sooner
    done = subprocess.run(
        [sys.executable, *options, "-p", "xdist", "-p", "no:cacheprovider", "test_many.py"],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3 * PATIENCE,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    return done.stdout


def test_a_process_that_crashes_fails_the_run(tmp_path: Path) -> None:
    said = make_test(tmp_path, "os._exit(0)")
    assert "crashed while running 'test_many.py::test_that_ends_it'" in said


def test_a_test_that_hangs_is_shown_with_its_line_and_fails_the_run(tmp_path: Path) -> None:
    said = make_test(tmp_path, "time.sleep(3600)", "LIMIT=1")
    assert "crashed while running 'test_many.py::test_that_ends_it'" in said
    assert "in test_that_ends_it" in said
