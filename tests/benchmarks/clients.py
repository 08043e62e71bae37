"""Our client beside Apache's Java client, on the same Apache broker in the same run: CPU time for each message.

The clients take turns on one core, the broker has the other; what counts is the client's user and system time, all of
its threads. Bodies of 1 KiB with a tag and a key, asynchronous flush. All loads of the Java client run in one process,
which does nothing while it is not its turn. A first round is not counted: it warms the broker up, and Java until its
compiler has settled. Each goal is a ratio of two loads of the same round; the gate is what ours may cost beside the
bare peer, which needs no Java. A goal is met when the median of these ratios is.

Beside it stands messense's ``rocketmq`` of PyPI, Python over the C++ client, in the same rounds (``messense``); where
it cannot be installed its loads are left out. Transactions and requests have no goal: they are shown per second. What
each feature adds to a send is measured by the client alone (``client_cost``), whose peer costs nothing.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from tests.benchmarks.apache import measured_apache
from tests.benchmarks.client_cost import FEATURES, PLAIN
from tests.benchmarks.messense import MESSENSE, measure_messense, package
from tests.benchmarks.processes import cpu_seconds, pinned
from tests.benchmarks.run import BATCH as BATCH_SIZE
from tests.conformance.apache import ApacheServers, missing
from tests.conformance.java_load import JavaLoads
from tests.conformance.java_program import build

__all__ = [
    "CLIENTS",
    "GATES",
    "GOALS",
    "Goal",
    "clients_to_run",
    "FEATURE_PRICES",
    "Cost",
    "measure_clients",
    "measure_features",
    "steps_of_clients",
    "table_of_features",
    "tables_of_clients",
]

JAVA_SEND, JAVA_ONE_WAY, JAVA_CONSUME = "java send, 256 in flight", "java one-way", "java push consume"
SEND, BARE_SEND = "send, 256 in flight", "send, 256 in flight (bare peer)"
ONE_WAY, BARE_ONE_WAY = "one-way", "one-way (bare peer)"
BATCH = "batch of 32, one at a time"
BATCHES = "batch of 32, 8 in flight"
CONSUME, CONSUME_DEF = "push consume", "push consume, def handler"
BLOCKING, BLOCKING_64, JAVA_BLOCKING = "blocking sends", "blocking sends, 64 threads", "java blocking sends, 64 threads"
TRANSACTIONS, JAVA_TRANSACTIONS = "transactions, 64 in flight", "java transactions, 64 threads"
REQUESTS, JAVA_REQUESTS = "requests, 64 in flight", "java requests, 64 threads"
JAVA_IN_THREADS = {JAVA_BLOCKING: "blocking", JAVA_TRANSACTIONS: "transactions", JAVA_REQUESTS: "requests"}
FEATURE_PRICES = "clients: price of each feature"
WARM_UP = {
    JAVA_SEND: 150_000, JAVA_ONE_WAY: 300_000, JAVA_CONSUME: 200_000, JAVA_BLOCKING: 150_000,
    JAVA_TRANSACTIONS: 60_000, JAVA_REQUESTS: 60_000,
}  # fmt: skip
"""Messages until the compiler of the Java process has settled: what comes before costs two to three times as much."""
JAVA_BEGINS = 5_000  # messages of each load of Java that are not counted: its client has just been made and connects
SHARES = {
    BLOCKING: 0.5, BLOCKING_64: 0.5, JAVA_BLOCKING: 0.5, TRANSACTIONS: 0.25, JAVA_TRANSACTIONS: 0.25, REQUESTS: 0.25,
    JAVA_REQUESTS: 0.25, "messense send, 8 threads": 0.5, "messense send, 20 threads": 0.5, "messense one-way": 0.5,
}  # fmt: skip
"""The part of a round's messages that loads have which take long for each."""
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
    Goal(SEND, "messense send, 8 threads", 0.2),
    Goal(ONE_WAY, "messense one-way", 0.1),
    Goal(BATCH, "messense batch of 32", 0.4),
    Goal(BLOCKING, "messense send, 20 threads", 0.4),
    Goal(BLOCKING_64, JAVA_BLOCKING, 1.0),
)
RATES = ((TRANSACTIONS, JAVA_TRANSACTIONS), (REQUESTS, JAVA_REQUESTS))
"""Ours beside Java's: shown per second."""
GATES = (
    Goal(SEND, BARE_SEND, 2.0),
    Goal("send_many", BARE_SEND, 2.0),
    Goal(BATCH, BARE_SEND, 2.0),
    Goal(BATCHES, BARE_SEND, 2.0),
    Goal(ONE_WAY, BARE_ONE_WAY, 2.0),
)
PAIRS = (*((goal.load, goal.beside) for goal in (*GOALS, *GATES)), *RATES)
CLIENTS = tuple(dict.fromkeys(load for ours, theirs in PAIRS for load in (theirs, ours)))
CONSUMES = (JAVA_CONSUME, CONSUME, CONSUME_DEF)


def clients_to_run(only: str) -> list[str]:
    """The loads whose goals hold the text in one of their names, and what they are compared with."""
    wanted = {load for pair in PAIRS if only in f"clients: {' beside '.join(pair)}" for load in pair}
    return [load for load in CLIENTS if load in wanted]


def steps_of_clients(names: Sequence[str], rounds: int) -> int:
    """How often :func:`measure_clients` tells that something begins."""
    return len(names) * (rounds + 1) + any(name in CONSUMES for name in names)


@dataclass(frozen=True)
class Cost:
    """What a load cost: CPU microseconds for each message, and how many there were in a second."""

    microseconds: float
    per_second: float


def _java(java: JavaLoads) -> Cost:
    """What the load costs that has begun, its warm-up left out."""
    java.wait_until_warm()
    before = cpu_seconds(java.process.pid)
    result = java.result()
    used = cpu_seconds(java.process.pid) - before
    java.wait_until_idle()  # what it does at its end would disturb whose turn is next
    if result["failures"]:
        raise RuntimeError(f"{result['failures']:.0f} of {result['messages']:.0f} messages of the Java load failed")
    return Cost(used / result["messages"] * 1e6, result["messages"] / result["seconds"])


def _cost_of(result: Mapping[str, float]) -> Cost:
    return Cost(result["cpu"] / result["messages"] * 1e6, result["messages"] / result["seconds"])


def _ours(name: str, servers: ApacheServers, topic: str, messages: int, *, filled: bool = False) -> Cost:
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
    return _cost_of(json.loads(done.stdout.splitlines()[-1]))


def measure_clients(
    names: Sequence[str], rounds: int, messages: int, directory: str | None, begins: Callable[[str], None]
) -> dict[str, list[Cost]]:
    """What each load cost, round by round; the first round is not counted."""
    if what := missing():
        print(f"the Java client is not measured: this machine has no {what}", file=sys.stderr)
        return {}
    build()
    neighbour = package() if any(name in MESSENSE for name in names) else None
    if neighbour is None:
        names = [name for name in names if name not in MESSENSE]
    results: dict[str, list[Cost]] = {name: [] for name in names}
    with measured_apache(directory) as servers, JavaLoads(prefix=pinned(0)) as java:
        filled = f"filled-{uuid.uuid4().hex[:12]}"
        if any(name in CONSUMES for name in names):
            begins("clients: messages to consume")
            _ours("fill", servers, filled, JAVA_BEGINS + max(WARM_UP[JAVA_CONSUME], messages))
        for number in range(rounds + 1):
            for name in names:
                begins(f"clients: {name}")
                share = max(BATCH_SIZE, round(messages * SHARES.get(name, 1.0)) // BATCH_SIZE * BATCH_SIZE)
                size = share if number else WARM_UP.get(name, max(BATCH_SIZE, share // WARM_UP_SHARE))
                cost = _cost(name, servers, java, size, filled, neighbour or "")
                if number:
                    results[name].append(cost)
    return results


def _cost(name: str, servers: ApacheServers, java: JavaLoads, messages: int, filled: str, neighbour: str) -> Cost:
    topic = f"clients-{uuid.uuid4().hex[:12]}"
    name_server = servers.name_server
    if name in MESSENSE:
        return _cost_of(measure_messense(name, neighbour, name_server, topic, messages, messages // WARM_UP_SHARE))
    if name in JAVA_IN_THREADS:
        java.send_from_threads(JAVA_IN_THREADS[name], name_server, topic, messages, warm_up=JAVA_BEGINS)
        return _java(java)
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


def tables_of_clients(results: dict[str, list[Cost]], title: str) -> list[Table]:
    """What each load cost, what became of goals and gates, and what was done per second beside the Java client."""
    costs = Table(title=title)
    for column in ("load", "client CPU us", "min..max", "messages/s"):
        costs.add_column(column, justify="left" if column == "load" else "right")
    used = {name: [cost.microseconds for cost in each] for name, each in results.items()}
    rates = {name: [cost.per_second for cost in each] for name, each in results.items()}
    for name, each in used.items():
        rate = f"{statistics.median(rates[name]):,.0f}"
        costs.add_row(name, f"{statistics.median(each):.1f}", f"{min(each):.1f}..{max(each):.1f}", rate)
    ratios = Table(title="CPU time in multiples of another load of the same round")
    for column in ("load", "beside", "median", "of the smallest", "at most", ""):
        ratios.add_column(column, justify="left" if column in ("load", "beside") else "right")
    for goal, kind in [*((goal, "goal") for goal in GOALS), *((goal, "gate") for goal in GATES)]:
        if goal.load in results and goal.beside in results:
            median = _ratio(used[goal.load], used[goal.beside])
            smallest = min(used[goal.load]) / min(used[goal.beside])
            met = "met" if median <= goal.most else "missed"
            ratios.add_row(
                goal.load, goal.beside, f"{median:.2f}", f"{smallest:.2f}", f"{goal.most:g}", f"{kind} {met}"
            )
    per_second = Table(title="messages per second in multiples of another load of the same round")
    for column in ("load", "beside", "median"):
        per_second.add_column(column, justify="right" if column == "median" else "left")
    for ours, theirs in RATES:
        if ours in results and theirs in results:
            per_second.add_row(ours, theirs, f"{_ratio(rates[ours], rates[theirs]):.2f}")
    return [costs, ratios, *([per_second] if per_second.rows else [])]


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def measure_features(rounds: int) -> dict[str, list[float]]:
    """CPU microseconds of the client alone for a send, and for one with each feature, round by round."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.client_cost", "--json", f"--rounds={rounds}", f"--only={PLAIN}"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{FEATURE_PRICES} failed:\n{done.stderr}")
    results: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return results


def table_of_features(results: dict[str, list[float]], title: str) -> Table:
    """What each adds to a plain send of the same round."""
    table = Table(title=title)
    for column in ("a send", "client CPU us", "more than a plain one, us"):
        table.add_column(column, justify="left" if column == "a send" else "right")
    plain = results[PLAIN]
    table.add_row("plain, 256 in flight", f"{statistics.median(plain):.2f}", "")
    for name in FEATURES:
        more = statistics.median(one - other for one, other in zip(results[name], plain, strict=True))
        said = name.removeprefix(PLAIN).removeprefix(", ")
        table.add_row(said, f"{statistics.median(results[name]):.2f}", f"{more:+.2f}")
    return table
