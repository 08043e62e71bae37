"""Our client beside Apache's Java client, on the same Apache broker in the same run: CPU time for each message.

The clients take turns on one core, the broker has the other; what counts is the client's user and system time, all of
its threads. Bodies of 1 KiB with a tag and a key, asynchronous flush. All loads of the Java client run in one process,
which does nothing while it is not its turn. A first round is not counted: it warms the broker up, and Java until its
compiler has settled. Each goal is a ratio of two loads of the same round; the gate is what ours may cost beside the
bare peer, which needs no Java. A goal is met when the median of these ratios is.

Where other work runs on the machine all CPU times grow, those of short rounds more than others: the ratio of the
smallest of many rounds is shown beside the median. It decides nothing.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table

from tests.benchmarks.apache import measured_apache
from tests.benchmarks.processes import cpu_seconds, pinned
from tests.conformance.apache import ApacheServers, missing
from tests.conformance.java_load import JavaLoads
from tests.conformance.java_program import build

__all__ = [
    "CLIENTS",
    "GATES",
    "GOALS",
    "Goal",
    "clients_to_run",
    "measure_clients",
    "steps_of_clients",
    "tables_of_clients",
]

JAVA_SEND, JAVA_ONE_WAY, JAVA_CONSUME = "java send, 256 in flight", "java one-way", "java push consume"
SEND, BARE_SEND = "send, 256 in flight", "send, 256 in flight (bare peer)"
ONE_WAY, BARE_ONE_WAY = "one-way", "one-way (bare peer)"
BATCH = "batch of 32, one at a time"
BATCHES = "batch of 32, 8 in flight"
CONSUME, CONSUME_DEF = "push consume", "push consume, def handler"
WARM_UP = {JAVA_SEND: 150_000, JAVA_ONE_WAY: 300_000, JAVA_CONSUME: 200_000}
"""Messages until the compiler of the Java process has settled: what comes before costs two to three times as much."""
JAVA_BEGINS = 5_000  # messages of each load of Java that are not counted: its client has just been made and connects
WARM_UP_SHARE = 4  # the part of a round's messages that the broker is warmed up with by each of our own loads
SECONDS = 300


@dataclass(frozen=True)
class Goal:
    """What ``load`` may cost at most, in multiples of ``beside``."""

    load: str
    beside: str
    most: float


GOALS = (
    Goal(SEND, JAVA_SEND, 0.9),
    Goal(ONE_WAY, JAVA_ONE_WAY, 0.6),
    Goal("send_many", SEND, 0.7),
    Goal(BATCH, BARE_SEND, 0.8),
    Goal(BATCHES, BARE_SEND, 0.8),
    Goal(CONSUME, JAVA_CONSUME, 1.0),
    Goal(CONSUME_DEF, JAVA_CONSUME, 1.0),
)
GATES = (
    Goal(SEND, BARE_SEND, 2.0),
    Goal("send_many", BARE_SEND, 2.0),
    Goal(BATCH, BARE_SEND, 2.0),
    Goal(BATCHES, BARE_SEND, 2.0),
    Goal(ONE_WAY, BARE_ONE_WAY, 2.0),
)
CLIENTS = tuple(dict.fromkeys(load for goal in (*GOALS, *GATES) for load in (goal.beside, goal.load)))
CONSUMES = (JAVA_CONSUME, CONSUME, CONSUME_DEF)


def clients_to_run(only: str) -> list[str]:
    """The loads whose goals hold the text in one of their names, and what they are compared with."""
    goals = [goal for goal in (*GOALS, *GATES) if only in f"clients: {goal.load} beside {goal.beside}"]
    return [load for load in CLIENTS if any(load in (goal.load, goal.beside) for goal in goals)]


def steps_of_clients(names: Sequence[str], rounds: int) -> int:
    """How often :func:`measure_clients` tells that something begins."""
    return len(names) * (rounds + 1) + any(name in CONSUMES for name in names)


def _java(java: JavaLoads) -> float:
    """CPU microseconds for each message of the load that has begun, its warm-up left out."""
    java.wait_until_warm()
    before = cpu_seconds(java.process.pid)
    result = java.result()
    used = cpu_seconds(java.process.pid) - before
    java.wait_until_idle()  # what it does at its end would disturb whose turn is next
    if result["failures"]:
        raise RuntimeError(f"{result['failures']:.0f} of {result['messages']:.0f} messages of the Java load failed")
    return used / result["messages"] * 1e6


def _ours(name: str, servers: ApacheServers, topic: str, messages: int, *, filled: bool = False) -> float:
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.scenario", name, f"--topic={topic}", f"--messages={messages}"]
        + [f"--name-server={servers.name_server}", f"--broker={servers.broker}"]
        + (["--cpu=0"] if (os.cpu_count() or 1) > 1 else [])
        + (["--filled"] if filled else []),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr}")
    result = json.loads(done.stdout.splitlines()[-1])
    return float(result["cpu"] / result["messages"] * 1e6)


def measure_clients(
    names: Sequence[str], rounds: int, messages: int, directory: str | None, begins: Callable[[str], None]
) -> dict[str, list[float]]:
    """CPU microseconds for each message of each load, round by round; the first round is not counted."""
    if what := missing():
        print(f"the Java client is not measured: this machine has no {what}", file=sys.stderr)
        return {}
    build()
    results: dict[str, list[float]] = {name: [] for name in names}
    with measured_apache(directory) as servers, JavaLoads(prefix=pinned(0)) as java:
        filled = f"filled-{uuid.uuid4().hex[:12]}"
        if any(name in CONSUMES for name in names):
            begins("clients: messages to consume")
            _ours("fill", servers, filled, JAVA_BEGINS + max(WARM_UP[JAVA_CONSUME], messages))
        for number in range(rounds + 1):
            for name in names:
                begins(f"clients: {name}")
                size = messages if number else WARM_UP.get(name, messages // WARM_UP_SHARE)
                cost = _cost(name, servers, java, size, filled)
                if number:
                    results[name].append(cost)
    return results


def _cost(name: str, servers: ApacheServers, java: JavaLoads, messages: int, filled: str) -> float:
    topic = f"clients-{uuid.uuid4().hex[:12]}"
    name_server = servers.name_server
    if name == JAVA_SEND:
        java.produce(name_server, topic, messages, warm_up=JAVA_BEGINS)
        return _java(java)
    if name == JAVA_ONE_WAY:
        java.send_one_way(name_server, topic, messages, warm_up=JAVA_BEGINS)
        return _java(java)
    if name == JAVA_CONSUME:
        java.consume(name_server, filled, messages, warm_up=JAVA_BEGINS, group=topic)
        return _java(java)
    if name in CONSUMES:
        return _ours(name, servers, filled, messages, filled=True)
    return _ours(name, servers, topic, messages)


def tables_of_clients(results: dict[str, list[float]], title: str) -> list[Table]:
    """What each load cost, and what became of goals and gates."""
    costs = Table(title=title)
    for column in ("load", "client CPU us", "min..max"):
        costs.add_column(column, justify="left" if column == "load" else "right")
    for name, each in results.items():
        costs.add_row(name, f"{statistics.median(each):.1f}", f"{min(each):.1f}..{max(each):.1f}")
    ratios = Table(title="CPU time in multiples of another load of the same round")
    for column in ("load", "beside", "median", "of the smallest", "at most", ""):
        ratios.add_column(column, justify="left" if column in ("load", "beside") else "right")
    for goal, kind in [*((goal, "goal") for goal in GOALS), *((goal, "gate") for goal in GATES)]:
        if goal.load in results and goal.beside in results:
            pairs = zip(results[goal.load], results[goal.beside], strict=True)
            median = statistics.median(ours / theirs for ours, theirs in pairs)
            smallest = min(results[goal.load]) / min(results[goal.beside])
            met = "met" if median <= goal.most else "missed"
            ratios.add_row(
                goal.load, goal.beside, f"{median:.2f}", f"{smallest:.2f}", f"{goal.most:g}", f"{kind} {met}"
            )
    return [costs, ratios]
