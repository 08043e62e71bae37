"""The secret that is planted for the whole test run is seen wherever a test shows it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

TESTS = """
import logging, os, subprocess, sys

SECRET = os.environ["ROCKETBOX_SPARK_CONF_SPARK_ROCKETBOX_CANARY_PASSWORD"]

def test_stdout():
    print("it is", SECRET)

def test_stderr():
    print("it is", SECRET, file=sys.stderr)

def test_log():
    logging.getLogger("rocketbox.client").debug("it is %s", SECRET)

def test_capsys(capsys):
    print("it is", SECRET)
    assert capsys.readouterr().out

def test_process():
    program = f"print('it is', {SECRET!r})"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout

def test_failure():
    assert SECRET == ""

def test_quiet(capsys):
    print("nothing")
    assert capsys.readouterr().out
"""


def test_a_test_that_shows_the_secret_fails(tmp_path: Path) -> None:
    file = tmp_path / "test_leaks.py"
    file.write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.canary", "-p", "no:cacheprovider", "-c", os.devnull]
    with (tmp_path / "output").open("w+") as output:  # a file: what comes through a pipe is looked through here as well
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # hypothesis alone takes half of the start
        status = subprocess.call([*command, "-q", "-rfEp", str(file)], cwd=ROOT, env=environment, stdout=output)
        output.seek(0)
        verdicts = re.findall(r"^(PASSED|FAILED|ERROR) \S*::(\w+)", output.read(), re.MULTILINE)
    assert status == 1
    by_verdict = {verdict: {name for said, name in verdicts if said == verdict} for verdict in ("FAILED", "ERROR")}
    assert by_verdict == {
        "FAILED": {"test_capsys", "test_process", "test_failure"},
        "ERROR": {"test_stdout", "test_stderr", "test_log"},  # at their teardown, when all of them is captured
    }
    assert ("PASSED", "test_quiet") in verdicts
