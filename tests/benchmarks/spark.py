"""The Spark source: decoding alone, a task without Spark, and whole reads, micro-batches and writes in a session.

Beside the path by columns stands the one by single messages that it has replaced, frozen (``spark_rows``), and the same
rows from parquet. A task and the broker have a processor each; a session has both.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path

from rich.table import Table

from tests.benchmarks.processes import cpu_seconds, pinned
from tests.support.broker.broker_process import BrokerProcess

__all__ = ["SPARK", "Figures", "measure_spark", "table_of_spark"]

ROOT = Path(__file__).parents[2]
SECONDS = 1200
ROWS_OF_ONE_MESSAGE = 6.25  # 400,000 rows where other benchmarks have 64,000 messages
# The parts of spark_work, which is imported by the processes of its own alone: it needs numpy and pyarrow.
SPARK = ["spark decode", "spark source", "spark memory", "spark session"]
WITHOUT_SERVERS = ("spark decode",)
BASE = {
    "decode": "decode, row path",
    "source": "source, row path",
    "batch read": "batch read into noop, row path",
    "the same": "batch read into noop, row path",
}

Figures = dict[str, float]


def measure_spark(
    names: list[str], rounds: int, messages: int, directory: str | None, begins: Callable[[str], None]
) -> dict[str, list[Figures]]:
    """The figures of each round by name; ``begins`` is told each part that begins."""
    results: dict[str, list[Figures]] = {}
    rows = round(messages * ROWS_OF_ONE_MESSAGE)
    needed = [name for name in names if name not in WITHOUT_SERVERS]
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        for name in names:
            if name in WITHOUT_SERVERS:
                for _ in range(rounds):
                    begins(name)
                    _run(name, rows, folder, results)
        if not needed:
            return results
        rocketbox = str(Path(sys.executable).with_name("rocketbox"))
        with BrokerProcess(
            Path(folder, "store"), "--flush-disk-type=ASYNC_FLUSH", command=[*pinned(1), rocketbox]
        ) as broker:
            topic = f"spark-{uuid.uuid4().hex[:12]}"
            begins("spark: filling the topic")
            _child("fill", rows, folder, broker.name_server, topic)
            for number in range(rounds):
                for name in needed:
                    begins(name)
                    scratch = Path(folder, f"{name}-{number}".replace(" ", "-"))
                    scratch.mkdir()
                    _run(name, rows, str(scratch), results, broker, topic)
    return results


def _run(
    name: str,
    rows: int,
    folder: str,
    results: dict[str, list[Figures]],
    broker: BrokerProcess | None = None,
    topic: str = "",
) -> None:
    before = cpu_seconds(broker.process.pid) if broker else 0.0
    lines = _child(name, rows, folder, broker.name_server if broker else "", topic)
    for line in lines:
        figures = json.loads(line)
        results.setdefault(figures.pop("name"), []).append(figures)
    if broker and name == "spark source":
        used = cpu_seconds(broker.process.pid) - before
        results.setdefault("source, broker CPU of all three", []).append({"rows": 3 * rows, "cpu": used})


def _child(part: str, rows: int, folder: str, name_server: str, topic: str) -> list[str]:
    alone = [] if part == "spark session" else pinned(0)
    command = [*alone, sys.executable, "-m", "tests.benchmarks.spark_work", part, f"--rows={rows}"]
    command += [f"--directory={folder}", f"--name-server={name_server}", f"--topic={topic}"]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{part} failed:\n{done.stderr}")
    return [line for line in done.stdout.splitlines() if line.startswith("{")]


def table_of_spark(results: dict[str, list[Figures]], title: str) -> Table:
    """A line for each figure with its medians, and how many times as fast as the row path it is."""
    table = Table(title=title)
    for column in ("Spark", "rows/s", ": row path", "CPU us a row", "p50 or median, ms", "p95, ms", "MiB"):
        table.add_column(column, justify="left" if column == "Spark" else "right")

    def median(name: str, value: Callable[[Figures], float]) -> float:
        return statistics.median(value(figures) for figures in results[name])

    def rate(name: str) -> float:
        return median(name, lambda figures: figures["rows"] / figures["seconds"])

    def shown(name: str, key: str) -> str:
        return f"{median(name, itemgetter(key)):,.0f}" if key in results[name][0] else ""

    for name, (first, *_) in results.items():
        timed = "seconds" in first
        base = next((of for start, of in BASE.items() if timed and name.startswith(start) and of in results), name)
        table.add_row(
            name,
            f"{rate(name):,.0f}" if timed else "",
            f"{rate(name) / rate(base):.1f}" if base != name else "",
            f"{median(name, lambda one: one['cpu'] / one['rows'] * 1e6):.1f}" if "cpu" in first else "",
            shown(name, "p50_ms") or shown(name, "median_ms"),
            shown(name, "p95_ms"),
            shown(name, "mebibytes"),
        )
    return table
