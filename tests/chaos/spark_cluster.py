"""Spark's standalone cluster at work on topics while executors and drivers are killed, and what its sinks then hold.

A listener, a stream and a batch job by spark-submit, each into parquet that a batch which comes again overwrites. At
moments that the seed decides an executor is killed, or the driver, which is then submitted again; meanwhile more is
sent. In the end each message must be there once, by broker, queue and offset. Last a listener on ``local-cluster``.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.spark.standalone import Job, Standalone, rows_in
from tests.integration.spark.topics import Broker, rows_of

__all__ = ["SparkResult", "run_spark"]

MODES = ("listener", "stream", "batch")
FIRST_ROWS, MORE_ROWS = 12_000, 4_000
MOST_RUNS = 10  # of a job without any kill between them: then it does not get on
LONGEST_PAUSE = 8.0  # seconds from kill to kill


@dataclass
class SparkResult:
    """What a run came to."""

    executors: int = 0
    drivers: int = 0
    failed: int = 0
    rows: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.executors} executors and {self.drivers} drivers killed, {self.failed} jobs failed by it and were "
            f"submitted again, {self.rows} messages: {len(self.wrong)} things wrong"
        )


def run_spark(
    folder: Path, kills: int, *, seed: int = 0, say: Callable[[str], object] = lambda text: None
) -> SparkResult:
    """Kill so many executors and so many drivers, shared by the kinds of jobs. A batch job's driver is not killed."""
    chance, result = random.Random(seed), SparkResult()
    with Broker(folder / "store") as broker, Standalone(folder) as cluster:
        for number, mode in enumerate(MODES):
            executors = kills // len(MODES) + (number < kills % len(MODES))
            drivers = 0 if mode == "batch" else kills // 2 + (number < kills % 2)
            _run(folder, broker, cluster, mode, [executors, drivers], chance, result, say)
        _run(folder, broker, None, "listener", [0, 0], chance, result, say)
    return result


def _run(
    folder: Path,
    broker: Broker,
    cluster: Standalone | None,
    mode: str,
    left: list[int],
    chance: random.Random,
    result: SparkResult,
    say: Callable[[str], object],
) -> None:
    """One kind of job until it was killed often enough and has done all; ``left`` are executors and drivers to kill."""
    name = f"{mode} on {'a cluster' if cluster else 'local-cluster'}"
    topic, own = name.replace(" ", "-"), folder / name
    own.mkdir()
    expected: Counter[tuple[str, int, int]] = Counter()
    master = cluster.master if cluster else "local-cluster[2,1,1024]"
    sent = runs = 0
    while runs < MOST_RUNS:
        if not sent or any(left):
            count = MORE_ROWS if sent else FIRST_ROWS
            results = broker.send(topic, rows_of(sent, sent + count))
            expected.update((each.queue.broker_name, each.queue.queue_id, each.queue_offset) for each in results)
            sent += count
        with Job(master, own, broker.name_server, topic, mode) as job:
            killed = _kill_while_it_runs(job, cluster, left, chance, result)
            status = job.process.poll()
        runs = 0 if killed else runs + 1
        if status == 0 and not any(left):
            break
        result.failed += status not in (0, None)
    result.rows += sent
    found = rows_in(own / "lake")
    missing, extra = expected - found, found - expected
    say(f"{name}: {sent} messages, {missing.total()} missing, {extra.total()} extra")
    result.wrong += [f"{name}: {rows.total()} rows {what}, such as {next(iter(rows))}"
                     for what, rows in (("missing", missing), ("extra", extra)) if rows]  # fmt: skip
    if runs == MOST_RUNS:
        result.wrong.append(f"{name}: it did not end within {MOST_RUNS} runs")
    shutil.rmtree(own / "lake", ignore_errors=True)


def _kill_while_it_runs(
    job: Job, cluster: Standalone | None, left: list[int], chance: random.Random, result: SparkResult
) -> bool:
    """Whether anything was killed; returns when the job has ended, or its driver was killed."""
    killed = False
    until = time.monotonic() + chance.random() * LONGEST_PAUSE
    while job.process.poll() is None:
        time.sleep(0.1)
        if cluster is None or not job.notes or time.monotonic() < until:
            continue
        until = time.monotonic() + chance.random() * LONGEST_PAUSE
        if left[1] and (not left[0] or chance.random() < 0.5):
            job.kill()
            left[1] -= 1
            result.drivers += 1
            return True
        if left[0] and (running := cluster.executors()):
            cluster.kill_executor(chance.randrange(len(running)))
            left[0] -= 1
            result.executors += 1
            killed = True
    return killed
