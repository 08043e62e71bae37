"""The session under spark-submit, beside what files and variables say, and after the end of its Java process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyspark

from tests.support.spark.topics import wait_for

pytestmark = pytest.mark.spark

STEPS = Path(__file__).parents[2] / "support" / "spark" / "session_steps.py"
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
QUICK = "-XX:TieredStopAtLevel=1"  # Java's second compiler only pays in longer runs than these


def run(folder: Path, steps: str, *submit: str, **environment: str) -> list[Any]:
    """What the program notes; with ``submit``, which are options of spark-submit, it is run by that."""
    notes = folder / "notes"
    command = [str(SUBMIT), *submit] if submit else [sys.executable]
    variables = {**os.environ, "PYSPARK_PYTHON": sys.executable, **environment}
    subprocess.run([*command, str(STEPS), str(notes), steps], cwd=folder, env=variables, timeout=300, check=not submit)
    if submit:  # what it had started may outlive it
        wait_for(lambda: {"left", "error"} & json.loads(notes.read_text().splitlines()[-1]).keys())
    return [json.loads(line) for line in notes.read_text().splitlines()]


def test_a_session_whose_java_was_killed_or_that_was_stopped_is_made_anew(tmp_path: Path) -> None:
    written = json.dumps({"spark.driver.extraJavaOptions": QUICK, "spark.ui.showConsoleProgress": "true"})
    used = {"rows": [0, 2, 4, 6], "alive": True}
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    before, killed, after, ended, last, _, left = run(
        tmp_path,
        "use,kill_java,use,stop_in_java,use,kill_java",
        WRITTEN_CONF=written,
        SPARK_LOCAL_DIRS=str(temporary),
    )
    assert before == after == last == used
    assert killed["alive"] is ended["alive"] is False
    assert list(temporary.iterdir()) == []  # what a killed process leaves would fill the disk some day
    assert [name for name in left["left"] if not name.startswith("AnyIO worker")] == ["MainThread"]


def test_what_files_and_variables_say_is_not_overruled(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.sql.shuffle.partitions 77\n"
        f"spark.driver.extraJavaOptions {QUICK} -Dsaid=file\n"
        "spark.sql.session.timeZone Europe/Berlin\n"
    )
    (noted, _) = run(
        tmp_path,
        "settings",
        SPARK_CONF_DIR=str(tmp_path),
        PYSPARK_SUBMIT_ARGS="--master local[3] --name mine pyspark-shell",
        WRITTEN_CONF=json.dumps(
            {"spark.sql.session.timeZone": "Asia/Tokyo", "spark.hadoop.fs.s3a.secret.key": "hunter2"}
        ),
    )
    conf = noted["conf"]
    assert conf["spark.master"] == "local[3]"
    assert conf["spark.app.name"] == "mine"
    assert conf["spark.sql.shuffle.partitions"] == "77"
    assert conf["spark.sql.session.timeZone"] == "Asia/Tokyo"  # written for this application
    assert conf["spark.driver.host"] == "127.0.0.1"  # said by nobody
    assert "-Dsaid=file" in noted["java"]
    assert "-Xss16m" in noted["java"]
    # What is secret counts, and is no argument of the Java process, which all users of the machine see.
    assert conf["spark.hadoop.fs.s3a.secret.key"] == noted["hadoop"] == "hunter2"
    if noted["command line"] is not None:
        assert "spark.sql.session.timeZone=Asia/Tokyo" in noted["command line"]
        assert "hunter2" not in " ".join(noted["command line"])


def test_under_spark_submit_its_settings_hold_and_a_dead_java_is_final(tmp_path: Path) -> None:
    noted, _, error = run(
        tmp_path,
        "settings,kill_java,use",
        *("--master", "local[3]", "--conf", "spark.sql.shuffle.partitions=200"),
        *("--driver-java-options", f"{QUICK} -Xss8m", "--name", "submitted"),
    )
    conf = noted["conf"]
    assert conf["spark.master"] == "local[3]"
    assert conf["spark.app.name"] == "submitted"
    assert conf["spark.sql.shuffle.partitions"] == "200"
    assert conf["spark.driver.host"] == "127.0.0.1"
    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert "-Xss8m" in noted["java"]
    assert error["error"].startswith("SessionLostError: the Java process that spark-submit has started is gone")
