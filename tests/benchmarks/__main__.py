"""``make bench``: every scenario in turn, several rounds, medians; client and broker on a processor each.

The broker is ``rocketbox broker``, first with SYNC_FLUSH, the default, then with ASYNC_FLUSH, or the servers named by
``--name-server`` and ``--broker`` (an Apache cluster of one). CPU per message is the client process' own; the broker's
is shown where the broker is ours. The scenarios of the store alone have neither: theirs is the CPU of the process that
holds the store. The starts of a whole service (``start``), tests in the harness (``harness``), sends among hostile
peers (``hostile``), the Spark source (``spark``), and Apache's Java client on our broker and on Apache's (``java``)
bring their own servers, as does our client beside Java's and the C++ one's on Apache's broker (``clients``);
``--profile`` shows what our broker does meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.benchmarks.clients import (
    FEATURE_PRICES,
    clients_to_run,
    measure_clients,
    measure_features,
    steps_of_clients,
    table_of_features,
    tables_of_clients,
)
from tests.benchmarks.harness import HARNESS, measure_harness, table_of_harness
from tests.benchmarks.hostile import HOSTILE, measure_hostile, table_of_hostile
from tests.benchmarks.java import JAVA, SHARE, loads_of, measure_java, profile_of, table_of_java
from tests.benchmarks.processes import cpu_seconds, pinned
from tests.benchmarks.scenario import SCENARIOS
from tests.benchmarks.spark import SPARK, measure_spark, table_of_spark
from tests.benchmarks.start import STARTS, measure_starts, table_of
from tests.support.broker.broker_process import BrokerProcess
from tests.support.certificates import authority, certificate, write

__all__ = ["main"]

SECONDS = 300
ROUNDS_OF_FEATURES = 8  # for each of the other rounds: theirs are short
FLUSH_TYPES = ["SYNC_FLUSH", "ASYNC_FLUSH"]


@contextlib.contextmanager
def servers(
    arguments: argparse.Namespace, flush_disk_type: str, tls: Path | None, *, needed: bool
) -> Iterator[tuple[str, str, int | None]]:
    """(name server, broker, the broker's process id if it is ours); with the files in ``tls`` for those who want TLS"""
    if arguments.name_server or not needed:
        yield arguments.name_server, arguments.broker, None
        return
    files = {} if tls is None else {"cert": tls / "server.pem", "key": tls / "server-key.pem"}
    with (
        tempfile.TemporaryDirectory(dir=arguments.directory) as folder,
        BrokerProcess(
            Path(folder),
            f"--flush-disk-type={flush_disk_type}",
            *(f"--tls-server-{what}-path={path}" for what, path in files.items()),
            *(["--tls-server-mode=permissive"] if files else []),
            command=[*pinned(1), str(Path(sys.executable).with_name("rocketbox"))],
        ) as broker,
    ):
        yield broker.name_server, broker.broker, broker.process.pid


def machine() -> str:
    """The processor, as the figures mean nothing without it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.partition(': ')[2]}, {os.cpu_count()} cores"
    return f"{platform.machine()}, {os.cpu_count()} cores"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds over all scenarios (5)")
    parser.add_argument("--messages", type=int, default=64_000, help="messages of a scenario (64,000)")
    parser.add_argument("--only", default="", help="scenarios whose name holds this text")
    parser.add_argument("--flush-disk-type", choices=FLUSH_TYPES, help="only this one (both)")
    parser.add_argument(
        "--directory", help="where to write, to measure another disk (the directory for temporary files)"
    )
    parser.add_argument("--name-server", default="", help="measure on running servers instead of our own")
    parser.add_argument("--broker", default="", help="the broker's address beside --name-server")
    parser.add_argument(
        "--profile", action="store_true", help="also show where our broker's time goes under the Java client's loads"
    )
    arguments = parser.parse_args()
    if bool(arguments.name_server) != bool(arguments.broker):
        parser.error("--name-server and --broker go together")
    tables: list[Table | str] = []
    try:
        measure_all(arguments, tables)
    finally:  # what was measured before something failed is worth its minutes too
        for table in filter(None, tables):
            Console(width=120).print(table, highlight=False)


def measure_all(arguments: argparse.Namespace, tables: list[Table | str]) -> None:
    """Measure what the arguments choose; each table goes into tables when it is whole."""
    own = not arguments.name_server
    names = [name for name in SCENARIOS if arguments.only in name and (own or not SCENARIOS[name].tls)]
    starts = [name for name in STARTS if own and arguments.only in name]
    harness = [name for name in HARNESS if own and arguments.only in name]
    hostile = [name for name in HOSTILE if own and arguments.only in name]
    java = [name for name in JAVA if own and arguments.only in name]
    clients = clients_to_run(arguments.only) if own else []
    features = own and arguments.only in FEATURE_PRICES
    spark = [name for name in SPARK if own and arguments.only in name]
    flush_types = [arguments.flush_disk_type] if arguments.flush_disk_type else FLUSH_TYPES if own else FLUSH_TYPES[:1]
    title = f"{machine()}, Python {platform.python_version()}, median of {arguments.rounds} rounds"
    with Progress(console=Console(stderr=True)) as progress:
        # What needs no servers says itself how it flushes: it is measured once, beside the last of the brokers.
        runs = [
            (kind, [name for name in names if SCENARIOS[name].needs_servers or kind == flush_types[-1]])
            for kind in flush_types
        ]
        total = (
            sum(len(of_kind) for _, of_kind in runs)
            + len(starts)
            + len(hostile)
            + len(harness)
            + (2 * loads_of(java) if java else 0)
        )
        bar = progress.add_task(
            "measuring",
            total=total * (arguments.rounds + 1)
            + steps_of_clients(clients, arguments.rounds)
            + features
            + len(spark) * arguments.rounds,
        )

        def begins(name: str) -> None:
            progress.update(bar, description=name, advance=1)

        by_kind: dict[str, dict[str, list[dict[str, float]]]] = {}
        try:
            for kind, of_kind in runs:
                if of_kind:
                    of_this = by_kind.setdefault(kind if own else arguments.broker, {})
                    for tls in (False, True):
                        if alike := [name for name in of_kind if SCENARIOS[name].tls is tls]:
                            of_this |= measure(arguments, alike, kind, begins)
        finally:
            tables.append(table_of_scenarios(by_kind, title) if by_kind else "")
            tables.append(group_commit(by_kind.get("SYNC_FLUSH", {})))
        if java:
            messages = SHARE * arguments.messages
            if found := measure_java(java, arguments.rounds, messages, arguments.directory, begins):
                tables.append(table_of_java(found, f"ASYNC_FLUSH, {title}"))
            if found and arguments.profile:
                tables += [profile_of(name, messages, arguments.directory) for name in java]
        if clients and (
            of_clients := measure_clients(clients, arguments.rounds, arguments.messages, arguments.directory, begins)
        ):
            tables += tables_of_clients(of_clients, f"Apache's broker, ASYNC_FLUSH, {title}")
        if features:
            begins(FEATURE_PRICES)
            rounds = ROUNDS_OF_FEATURES * arguments.rounds
            prices = f"{machine()}, Python {platform.python_version()}, the client alone, median of {rounds} rounds"
            tables.append(table_of_features(measure_features(rounds), prices))
        if spark:
            of_spark = measure_spark(spark, arguments.rounds, arguments.messages, arguments.directory, begins)
            tables.append(table_of_spark(of_spark, f"the Spark source, ASYNC_FLUSH, {title}"))
        if hostile:
            measured = measure_hostile(hostile, arguments.rounds, arguments.directory, begins)
            tables.append(table_of_hostile(measured, title))
        if harness:
            tables.append(
                table_of_harness(measure_harness(harness, arguments.rounds, arguments.directory, begins), title)
            )
        if starts:
            tables.append(table_of(measure_starts(starts, arguments.rounds, arguments.directory, begins), title))


def made_in(folder: str) -> Path:
    """The folder, with certificates in it."""
    for name, made in (("ca", authority()), ("server", certificate())):
        write(Path(folder), name, made)
    return Path(folder)


def measure(
    arguments: argparse.Namespace, names: list[str], kind: str, begins: Callable[[str], None]
) -> dict[str, list[dict[str, float]]]:
    """The rounds of each scenario, but for the first, which warms files, caches and the processor up."""
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    needed = any(SCENARIOS[name].needs_servers for name in names)
    with (
        tempfile.TemporaryDirectory() as certificates,
        servers(arguments, kind, made_in(certificates) if SCENARIOS[names[0]].tls else None, needed=needed) as (
            name_server,
            broker,
            pid,
        ),
    ):
        for round_number in range(arguments.rounds + 1):
            for name in names:
                begins(f"{kind}: {name}")
                scenario = SCENARIOS[name]
                messages = max(32, round(arguments.messages * scenario.share) // 32 * 32)
                before = cpu_seconds(pid) if pid else 0.0
                done = subprocess.run(
                    [sys.executable, "-m", "tests.benchmarks.scenario", name, f"--topic=bench-{uuid.uuid4().hex[:12]}"]
                    + [f"--name-server={name_server}", f"--broker={broker}", f"--messages={messages}"]
                    + [f"--ca-file={certificates}/ca.pem"]
                    + ([f"--directory={arguments.directory}"] if arguments.directory else [])
                    + (["--cpu=0"] if (os.cpu_count() or 1) > 1 else []),
                    capture_output=True,
                    text=True,
                    timeout=SECONDS,
                    check=False,
                )
                if done.returncode:
                    sys.exit(f"{name} failed:\n{done.stderr}")
                result = json.loads(done.stdout.splitlines()[-1])
                if pid and scenario.needs_servers:
                    result["broker_cpu"] = cpu_seconds(pid) - before
                if round_number:
                    results[name].append(result)
    return results


def group_commit(results: dict[str, list[dict[str, float]]]) -> str:
    """What 100 sends in flight gain over one, both with a sync before each answer."""
    if not {"send, 100 in flight", "send, one at a time"} <= results.keys():
        return ""
    many, one = (
        statistics.median(result["messages"] / result["seconds"] for result in results[name])
        for name in ("send, 100 in flight", "send, one at a time")
    )
    return f"100 in flight : one in flight, each synced before its answer: {many / one:.1f}\n"


def table_of_scenarios(by_kind: dict[str, dict[str, list[dict[str, float]]]], title: str) -> Table:
    """For each scenario a line for each kind of broker, beside each other, with the medians of the rounds."""
    table = Table(title=title)
    for column in ("scenario", "broker", "messages/s", "client CPU us", "min..max", "p50 us", "broker CPU us"):
        table.add_column(column, justify="left" if column in ("scenario", "broker") else "right")
    for name in dict.fromkeys(name for results in by_kind.values() for name in results):
        for kind, results in by_kind.items():
            if rounds := results.get(name):
                table.add_row(name, kind if SCENARIOS[name].needs_servers else "", *cells_of(name, rounds))
    return table


def cells_of(name: str, rounds: list[dict[str, float]]) -> tuple[str, ...]:
    """Messages/s, the client's CPU and its range, p50 and the broker's CPU; empty where there is none."""
    rate = statistics.median(result["messages"] / result["seconds"] for result in rounds)
    costs = sorted(result["cpu"] / result["messages"] * 1e6 for result in rounds)
    p50 = f"{statistics.median(result['p50_us'] for result in rounds):.0f}" if "p50_us" in rounds[0] else ""
    of_broker = (
        f"{statistics.median(result['broker_cpu'] / result['messages'] * 1e6 for result in rounds):.1f}"
        if "broker_cpu" in rounds[0] and name != "push consume"  # there the broker takes the messages in as well
        else ""
    )
    return f"{rate:,.0f}", f"{statistics.median(costs):.1f}", f"{costs[0]:.1f}..{costs[-1]:.1f}", p50, of_broker


if __name__ == "__main__":
    main()
