"""Spark's standalone cluster at work on topics while executors and drivers are killed, and what its sinks then hold.

A listener, a stream and a batch job by spark-submit, each into parquet that a batch which comes again overwrites. At
moments that the seed decides an executor is killed, or the driver, which is then submitted again; meanwhile more is
sent. In the end each message must be there once, by broker, queue and offset. Last the same with a listener on
``local-cluster``, whose executors are children of the driver's Java process.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.process_tree import end_at_once
from tests.support.spark.standalone import Job, Standalone, rows_in
from tests.support.spark.topics import Broker, rows_of

__all__ = ["ClusterResult", "run_cluster"]

MODES = ("listener", "stream", "batch")
FIRST_ROWS, MORE_ROWS = 12_000, 4_000
MOST_RUNS = 10  # of a job without any kill between them: then it does not get on
LONGEST_PAUSE = 8.0  # seconds from kill to kill


@dataclass
class ClusterResult:
    """What a run came to; ``happened`` is called for each kill."""

    happened: Callable[[], object] = lambda: None
    executors: int = 0
    drivers: int = 0
    failed: int = 0
    rows: int = 0
    missing: int = 0
    extra: int = 0
    seen: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def run_cluster(
    folder: Path, executors: int, drivers: int, *, chance: random.Random, happened: Callable[[], object]
) -> ClusterResult:
    """Kill so many of each, shared by the kinds of jobs."""
    result = ClusterResult(happened)
    runs = len(MODES) + 1
    left = [[total // runs + (number < total % runs) for total in (executors, drivers)] for number in range(runs)]
    with Broker(folder / "store") as broker:
        with Standalone(folder) as cluster:
            for mode, its in zip(MODES, left[:-1], strict=True):
                _run(folder, broker, cluster, mode, its, chance, result)
        _run(folder, broker, None, "listener", left[-1], chance, result)
    result.seen.append(
        f"{result.executors} executors and {result.drivers} drivers; {result.failed} jobs failed by it and were "
        "submitted again"
    )
    return result


def _run(
    folder: Path,
    broker: Broker,
    cluster: Standalone | None,
    mode: str,
    left: list[int],
    chance: random.Random,
    result: ClusterResult,
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
    result.missing += missing.total()
    result.extra += extra.total()
    result.wrong += [f"{name}: {rows.total()} rows {what}, such as {next(iter(rows))}"
                     for what, rows in (("missing", missing), ("extra", extra)) if rows]  # fmt: skip
    if runs == MOST_RUNS:
        result.wrong.append(f"{name}: it did not end within {MOST_RUNS} runs")
    shutil.rmtree(own / "lake", ignore_errors=True)


def _kill_while_it_runs(
    job: Job, cluster: Standalone | None, left: list[int], chance: random.Random, result: ClusterResult
) -> bool:
    """Whether anything was killed; returns when the job has ended, or its driver was killed."""
    killed = False
    until = time.monotonic() + chance.random() * LONGEST_PAUSE
    while job.process.poll() is None:
        time.sleep(0.1)
        if not job.notes or time.monotonic() < until:
            continue
        until = time.monotonic() + chance.random() * LONGEST_PAUSE
        if left[1] and (not left[0] or chance.random() < 0.5):
            job.kill()
            left[1] -= 1
            result.drivers += 1
            result.happened()
            return True
        if left[0] and (running := sorted(cluster.executors() if cluster else job.executors())):
            end_at_once(running[chance.randrange(len(running))])
            left[0] -= 1
            result.executors += 1
            result.happened()
            killed = True
    return killed
