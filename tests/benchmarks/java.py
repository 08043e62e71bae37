"""Apache's Java client on our broker and on Apache's, in the same rounds: the broker's CPU time for each message.

Both brokers are pinned to one core, the client to the other, and both flush asynchronously; the broker that is not
measured waits. Bodies of 1 KiB with a tag and a key, 256 sends in flight, then a push consumer of a new group that
reads the same messages from the first offset. What is counted of a process is user and system time of all its threads,
of ours with the name server in it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from tests.benchmarks.apache import measured_apache
from tests.benchmarks.processes import cpu_seconds, pinned
from tests.conformance.apache import NEWEST, missing
from tests.conformance.java_load import JavaLoads
from tests.conformance.java_program import build
from tests.support.broker.broker_process import BrokerProcess

__all__ = ["JAVA", "SHARE", "Cost", "loads_of", "measure_java", "profile_of", "table_of_java"]

SEND = "java client: send, 256 in flight"
CONSUME = "java client: push consume"
JAVA = (SEND, CONSUME)
SHARE = 3  # messages of a round, in multiples of what is asked for: a round must outlast the sampling of CPU time
WARM_UP = 10_000
FIRST_WARM_UP = 150_000  # so long it takes until the compiler of the broker's JVM has settled


@dataclass
class Cost:
    """What one load cost a broker."""

    messages: int
    seconds: float
    broker_cpu: float

    @property
    def microseconds(self) -> float:
        return self.broker_cpu / self.messages * 1e6


@dataclass
class _Broker:
    name: str
    name_server: str
    pid: int


@contextlib.contextmanager
def _ours(directory: str | None, command: list[str]) -> Iterator[_Broker]:
    with (
        tempfile.TemporaryDirectory(dir=directory) as folder,
        BrokerProcess(Path(folder), "--flush-disk-type=ASYNC_FLUSH", command=command) as broker,
    ):
        yield _Broker("rocketbox", broker.name_server, broker.process.pid)


@contextlib.contextmanager
def _apache(directory: str | None) -> Iterator[_Broker]:
    with measured_apache(directory) as servers:
        yield _Broker(f"Apache {NEWEST}", servers.name_server, servers.broker_process.pid)


def _send(broker: _Broker, topic: str, messages: int, warm_up: int, warm: Callable[[], None] = lambda: None) -> Cost:
    with JavaLoads(prefix=pinned(0)) as java:
        java.produce(broker.name_server, topic, messages, warm_up=warm_up)
        return _cost(java, broker, warm)


def _consume(broker: _Broker, topic: str, messages: int, warm_up: int, warm: Callable[[], None] = lambda: None) -> Cost:
    with JavaLoads(prefix=pinned(0)) as java:
        java.consume(broker.name_server, topic, messages, warm_up=warm_up, group=topic)
        return _cost(java, broker, warm)


def _cost(java: JavaLoads, broker: _Broker, warm: Callable[[], None]) -> Cost:
    java.wait_until_warm()
    warm()
    before = cpu_seconds(broker.pid)
    result = java.result()
    cost = Cost(round(result["messages"]), result["seconds"], cpu_seconds(broker.pid) - before)
    if result["failures"]:
        raise RuntimeError(f"{result['failures']:.0f} of {cost.messages} messages of the Java load failed")
    return cost


def loads_of(names: list[str]) -> int:
    """How many loads a broker gets in a round: what is consumed has to be sent first."""
    return 2 if CONSUME in names else 1


def measure_java(
    names: list[str], rounds: int, messages: int, directory: str | None, begins: Callable[[str], None]
) -> dict[tuple[str, str], list[Cost]]:
    """What each of ``names`` cost each broker, by (name, broker); a first round warms both up and is not counted."""
    if what := missing():
        print(f"the Java client is not measured: this machine has no {what}", file=sys.stderr)
        return {}
    build()
    results: dict[tuple[str, str], list[Cost]] = {}
    rocketbox = str(Path(sys.executable).with_name("rocketbox"))
    with _ours(directory, [*pinned(1), rocketbox]) as ours, _apache(directory) as apache:
        for number in range(rounds + 1):
            for broker in (ours, apache):
                topic = f"java-{uuid.uuid4().hex[:12]}"
                warm_up = WARM_UP if number else FIRST_WARM_UP
                begins(f"{SEND}, {broker.name}")
                costs = {SEND: _send(broker, topic, messages, warm_up)}
                if CONSUME in names:
                    begins(f"{CONSUME}, {broker.name}")
                    costs[CONSUME] = _consume(broker, topic, messages, warm_up)
                if number:
                    for name in names:
                        results.setdefault((name, broker.name), []).append(costs[name])
    return results


def table_of_java(results: dict[tuple[str, str], list[Cost]], title: str) -> Table:
    """A line for each load and broker with the medians, and what ours costs as a multiple of Apache's."""
    table = Table(title=title)
    for column in ("Java client", "broker", "messages/s", "broker CPU us", "min..max", "ours : Apache"):
        table.add_column(column, justify="left" if column in ("Java client", "broker") else "right")
    for (name, broker), costs in results.items():
        each = sorted(cost.microseconds for cost in costs)
        rate = statistics.median(cost.messages / cost.seconds for cost in costs)
        ratio = ""
        if broker == "rocketbox":
            (theirs,) = [found for (of, by), found in results.items() if of == name and by != broker]
            ratio = f"{statistics.median(each) / statistics.median(cost.microseconds for cost in theirs):.2f}"
        table.add_row(
            name.removeprefix("java client: "), broker, f"{rate:,.0f}", f"{statistics.median(each):.1f}",
            f"{each[0]:.1f}..{each[-1]:.1f}", ratio,
        )  # fmt: skip
    return table


def profile_of(what: str, messages: int, directory: str | None) -> str:
    """Where our broker's CPU time goes while the Java client sends, or consumes: a table of functions."""
    build()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "profile")
        command = [*pinned(1), sys.executable, "-m", "tests.benchmarks.sampled", str(path)]
        with _ours(directory, command) as broker:

            def forget() -> None:
                os.kill(broker.pid, signal.SIGUSR1)

            cost = _send(broker, "profile", messages, WARM_UP, forget)
            if what == CONSUME:
                cost = _consume(broker, "profile", messages, 1, forget)
        return f"{what}: {cost.microseconds:.1f} us broker CPU a message, with the profiler\n{path.read_text()}"
