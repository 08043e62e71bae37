"""What ``rocketbox doctor`` looks at: each thing that Spark needs, and what to do when it is not right."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import tomllib
from pathlib import Path

import pytest

from rocketbox.spark import environment
from rocketbox.spark.environment import LIBRARIES, Look, look_at_spark

PLAIN = {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}


def looks(environ: dict[str, str] | None = None, **written: str) -> list[Look]:
    conf = {name.replace("_", "."): value for name, value in written.items()}
    return list(look_at_spark({**PLAIN, **(environ or {})}, conf))


def wrong(environ: dict[str, str] | None = None, **written: str) -> str:
    (found,) = [each for each in looks(environ, **written) if each.fix is not None]
    return f"{found.what} -> {found.fix}"


def test_a_machine_that_has_all_is_right() -> None:
    pytest.importorskip("pyspark")
    assert [each for each in looks() if each.fix is not None] == []


def test_versions_are_those_of_the_extra() -> None:
    project = tomllib.loads(Path(__file__).parents[3].joinpath("pyproject.toml").read_text())["project"]
    told = []
    for name, (least, below) in LIBRARIES.items():
        text = f"{name}>={'.'.join(map(str, least))}"
        told.append(text + (f",<{'.'.join(map(str, below))}" if below else ""))
    assert sorted(told) == sorted(project["optional-dependencies"]["spark"])


def test_without_java_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (found,) = [each for each in look_at_spark({"PATH": str(tmp_path)}) if "Java" in each.what]
    assert "no java on the PATH" in found.what
    assert "rocketbox[spark-jre]" in str(found.fix)


@pytest.mark.parametrize(
    ("version", "fix"),
    [("4.1.4", "pip install 'pyspark>=4.2,<5'"), ("5.0.0", "pip install 'pyspark>=4.2,<5'"), ("4.2.0.dev1", None)],
)
def test_a_library_of_another_version_is_told(monkeypatch: pytest.MonkeyPatch, version: str, fix: str | None) -> None:
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version if name == "pyspark" else real(name))
    (found,) = [each for each in looks() if each.what.startswith("pyspark ")]
    assert (found.what, found.fix) == (f"pyspark {version}", fix)


def test_the_python_of_the_workers_must_run_and_be_of_this_version(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    assert "which does not run" in wrong({"PYSPARK_PYTHON": "/nowhere/python"})
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho '[[3, 8], {}]'\n")
    other.chmod(0o755)
    assert f"Python 3.8, and this one is {sys.version_info[0]}." in wrong({"PYSPARK_PYTHON": str(other)})
    mine = f"[{sys.version_info[0]}, {sys.version_info[1]}]"
    other.write_text(f'#!/bin/sh\necho \'[{mine}, {{"rocketbox": null, "pyarrow": "1"}}]\'\n')
    assert "which has no rocketbox -> unset it" in wrong(spark_pyspark_python=str(other))
    elsewhere = looks({"PYSPARK_PYTHON": "./environment/bin/python"}, spark_master="yarn")
    assert "PYSPARK_PYTHON is ./environment/bin/python, which the machines of the cluster must have" in [
        each.what for each in elsewhere
    ]


def test_a_driver_that_does_not_fit_into_memory_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    assert "spark.driver.memory 9000g" in wrong(spark_driver_memory="9000g")
    assert "spark.driver.memory is 'much'" in wrong(spark_driver_memory="much")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    4194304 kB\n")
    assert environment._available(tmp_path) == 4 << 30
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{2 << 30}\n")
    (tmp_path / "sys/fs/cgroup/memory.current").write_text(f"{1 << 30}\n")
    assert environment._available(tmp_path) == 1 << 30
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert environment._available(tmp_path) == 4 << 30


def test_spark_connect_is_told() -> None:
    pytest.importorskip("pyspark")
    assert wrong({"SPARK_REMOTE": "sc://head"}).startswith("SPARK_REMOTE asks for Spark Connect")
