"""Spark's own standalone cluster for tests: a master and two workers as processes, from the files of pyspark.

Executors are processes of the workers; they find rocketbox by the variables that the workers are started with, as on a
machine where it is installed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import pyspark

from tests.support.process_tree import command_of, descendants_of, end_at_once, parents
from tests.support.spark.topics import wait_for
from tests.support.waiting import PATIENCE

__all__ = ["Job", "Standalone", "rows_in"]

HOME = Path(pyspark.__file__).parent
PROGRAM = Path(__file__).with_name("cluster_job.py")
START_SECONDS = 4 * PATIENCE  # three Java processes, on a machine that may have much else to do
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
QUICK = "-XX:TieredStopAtLevel=1"  # Java's second compiler only pays in longer runs than these


class Standalone:
    """A cluster with ``workers`` of one core each; ``master`` is its address."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self.master = ""
        self._size = workers
        self._workers: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._stack = stack
            self._start("master.Master")
            log = self.folder / "master.Master-0.log"
            wait_for(lambda: re.search(r"spark://127\.0\.0\.1:\d+", log.read_text()), START_SECONDS)
            self.master = re.findall(r"spark://127\.0\.0\.1:\d+", log.read_text())[0]
            for _ in range(self._size):
                self._workers.append(
                    self._start("worker.Worker", self.master, "--cores", "1", "--memory", "1G", "-d", str(self.folder))
                )
            wait_for(lambda: log.read_text().count("Registering worker") == self._size, START_SECONDS)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start(self, class_: str, *arguments: str) -> subprocess.Popen[bytes]:
        number = len(self._workers)
        output = self._stack.enter_context((self.folder / f"{class_}-{number}.log").open("wb"))
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{class_}"]
        command += [*arguments, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        process = self._stack.enter_context(
            subprocess.Popen(
                command,
                env={**os.environ, "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        )
        self._stack.callback(process.kill)
        return process

    def executors(self) -> list[int]:
        """The processes of the executors that run now."""
        workers = {worker.pid for worker in self._workers}
        return [number for number, parent in parents().items() if parent in workers]

    def kill_executors(self) -> None:
        """End all that run now at once."""
        for number in self.executors():
            end_at_once(number)

    def kill_executor(self, which: int = 0) -> int:
        """End one of them at once, and return its number."""
        number = sorted(self.executors())[which]
        end_at_once(number)
        return number


class Job:
    """A run of ``cluster_job.py`` by spark-submit on ``master``; ``notes`` is what it has said so far."""

    def __init__(self, master: str, folder: Path, name_server: str, topic: str, mode: str, *conf: str) -> None:
        self.notes_file = folder / f"notes-{time.monotonic_ns()}"
        self.notes_file.touch()
        settings = [
            f"spark.driver.extraJavaOptions={QUICK}",
            f"spark.executor.extraJavaOptions={QUICK}",
            "spark.driver.host=127.0.0.1",
            "spark.driver.bindAddress=127.0.0.1",
            "spark.executor.memory=512m",
            "spark.ui.enabled=false",
            "spark.log.level=ERROR",
            "spark.scheduler.minRegisteredResourcesRatio=1.0",
            *conf,
        ]
        command = [str(HOME / "bin" / "spark-submit"), "--master", master]
        command += [part for each in settings for part in ("--conf", each)]
        command += [str(PROGRAM), name_server, topic, str(folder), str(self.notes_file), mode]
        variables = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        self.process = subprocess.Popen(command, cwd=folder, env=variables, start_new_session=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self.process.wait(60)

    @property
    def notes(self) -> list[Any]:
        return [json.loads(line) for line in self.notes_file.read_text().splitlines()]

    def wait_for_notes(self, count: int) -> None:
        wait_for(lambda: len(self.notes) >= count, 5 * PATIENCE, unless=lambda: self.process.poll() and "it ended")

    def executors(self) -> list[int]:
        """On ``local-cluster``: the processes of the executors, which the driver's Java process has started."""
        return [each for each in descendants_of(self.process.pid) if EXECUTOR in command_of(each)]

    def kill(self) -> None:
        """End the driver at once: the Java process of spark-submit, and the Python of the program."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def wait(self) -> None:
        assert self.process.wait(10 * PATIENCE) == 0


def rows_in(folder: Path) -> Counter[tuple[str, int, int]]:
    """How often each row is in what a job has written, by broker, queue and offset."""
    import pyarrow.parquet as pq

    rows: Counter[tuple[str, int, int]] = Counter()
    files: Sequence[Path] = [
        file
        for file in sorted(folder.glob("**/*.parquet"))
        if not any(part.startswith(("_", ".")) for part in file.relative_to(folder).parts)  # as readers of Spark do
    ]
    for file in files:
        table = pq.ParquetFile(file).read(["broker_name", "queue_id", "queue_offset"])
        rows.update(zip(*(column.to_pylist() for column in table.columns), strict=True))
    return rows
