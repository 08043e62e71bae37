"""``make test`` keeps groups of tests together, and fails, and ends, when a process that runs them crashes or hangs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE

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


def clean_environment() -> dict[str, str]:
    """Without what the make and the pytest around this test were told, and without plugins: it starts sooner."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MAKE"))}
    return {**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}


def make_test(folder: Path, what: str, *variables: str) -> str:
    """What ``make test`` prints of a file of tests; it must fail."""
    (folder / "test_many.py").write_text(MANY.format(what=what))
    environment = clean_environment()
    command = ["make", "--dry-run", "test", "WORKERS=1", "ARGS=", *variables]
    shown = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout
    options = [word for word in shlex.split(shown.splitlines()[-1]) if not word.startswith("tests/")][1:]
    done = subprocess.run(
        [sys.executable, *options, "-p", "xdist", "-p", "no:cacheprovider", "test_many.py"],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3 * PATIENCE,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    return done.stdout


TOLD = """
import os
import pytest

@pytest.mark.parametrize("number", range(12))
def test_where(number):
    print("runs in", os.environ["PYTEST_XDIST_WORKER"])
"""


@pytest.mark.parametrize(("file", "processes"), [("spark/test_told.py", 1), ("test_told.py", 2)])
def test_a_group_stays_in_one_process(tmp_path: Path, file: str, processes: int) -> None:
    told = tmp_path / "tests" / "integration" / file
    told.parent.mkdir(parents=True)
    told.write_text(TOLD)
    done = subprocess.run(
        [sys.executable, *"-m pytest -n 2 --dist=loadgroup --no-loadscope-reorder -rA".split(),
         *"-p xdist -p tests.support.side_by_side -p no:cacheprovider --rootdir=. tests".split()],
        cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, text=True, timeout=3 * PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert len(set(re.findall(r"runs in \w+", done.stdout))) == processes, done.stdout


def test_a_process_that_crashes_fails_the_run(tmp_path: Path) -> None:
    said = make_test(tmp_path, "os._exit(0)")
    assert "crashed while running 'test_many.py::test_that_ends_it'" in said


def test_a_test_that_hangs_is_shown_with_its_line_and_fails_the_run(tmp_path: Path) -> None:
    said = make_test(tmp_path, "time.sleep(3600)", "LIMIT=1")
    assert "crashed while running 'test_many.py::test_that_ends_it'" in said
    assert "in test_that_ends_it" in said
