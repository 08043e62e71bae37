"""``make bench``: every scenario in turn, several rounds, medians; client and broker on a processor each.

The broker is ``rocketbox broker`` with ASYNC_FLUSH, or the servers named by ``--name-server`` and ``--broker`` (an
Apache cluster of one). CPU per message is the client process' own; the broker's is shown where the broker is ours.
The scenarios of the store alone have neither: theirs is the CPU of the process that holds the store. The starts of a
whole service (``start``) bring their own servers.
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
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.benchmarks.scenario import SCENARIOS
from tests.benchmarks.start import STARTS, measure_starts, table_of
from tests.broker_process import BrokerProcess

__all__ = ["main"]

SECONDS = 300


def cpu_seconds(pid: int) -> float:
    """User and system time of another process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def servers(arguments: argparse.Namespace, *, needed: bool) -> Iterator[tuple[str, str, int | None]]:
    """(name server, broker, the broker's process id if it is ours)"""
    if arguments.name_server or not needed:
        yield arguments.name_server, arguments.broker, None
        return
    with (
        tempfile.TemporaryDirectory(dir=arguments.directory) as folder,
        BrokerProcess(Path(folder), f"--flush-disk-type={arguments.flush_disk_type}") as broker,
    ):
        if (os.cpu_count() or 1) > 1:
            os.sched_setaffinity(broker.process.pid, {1})
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
    parser.add_argument("--flush-disk-type", default="ASYNC_FLUSH", choices=["ASYNC_FLUSH", "SYNC_FLUSH"])
    parser.add_argument(
        "--directory", help="where to write, to measure another disk (the directory for temporary files)"
    )
    parser.add_argument("--name-server", default="", help="measure on running servers instead of our own")
    parser.add_argument("--broker", default="", help="the broker's address beside --name-server")
    arguments = parser.parse_args()
    if bool(arguments.name_server) != bool(arguments.broker):
        parser.error("--name-server and --broker go together")
    names = [name for name in SCENARIOS if arguments.only in name]
    starts = [] if arguments.name_server else [name for name in STARTS if arguments.only in name]
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    needed = any(SCENARIOS[name].needs_servers for name in names)
    with (
        servers(arguments, needed=needed) as (name_server, broker, pid),
        Progress(console=Console(stderr=True)) as progress,
    ):
        bar = progress.add_task("measuring", total=(len(names) + len(starts)) * (arguments.rounds + 1))
        for round_number in range(arguments.rounds + 1):
            for name in names:
                progress.update(bar, description=name)
                scenario = SCENARIOS[name]
                messages = max(32, round(arguments.messages * scenario.share) // 32 * 32)
                before = cpu_seconds(pid) if pid else 0.0
                done = subprocess.run(
                    [sys.executable, "-m", "tests.benchmarks.scenario", name, f"--topic=bench-{uuid.uuid4().hex[:12]}"]
                    + [f"--name-server={name_server}", f"--broker={broker}", f"--messages={messages}"]
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
                if round_number:  # the first round warms files, caches and the processor up
                    results[name].append(result)
                progress.advance(bar)

        def begins(name: str) -> None:
            progress.update(bar, description=name, advance=1)

        started = measure_starts(starts, arguments.rounds, arguments.directory, begins) if starts else {}
    title = f"{machine()}, Python {platform.python_version()}, median of {arguments.rounds} rounds"
    if results:
        Console(width=120).print(table_of_scenarios(results, title))
    if started:
        Console(width=120).print(table_of(started, title))


def table_of_scenarios(results: dict[str, list[dict[str, float]]], title: str) -> Table:
    """A line for each scenario, with the medians of its rounds."""
    table = Table(title=title)
    for column in ("scenario", "messages/s", "client CPU us", "min..max", "p50 us", "broker CPU us"):
        table.add_column(column, justify="left" if column == "scenario" else "right")
    for name, rounds in results.items():
        rate = statistics.median(result["messages"] / result["seconds"] for result in rounds)
        costs = sorted(result["cpu"] / result["messages"] * 1e6 for result in rounds)
        p50 = f"{statistics.median(result['p50_us'] for result in rounds):.0f}" if "p50_us" in rounds[0] else ""
        of_broker = (
            f"{statistics.median(result['broker_cpu'] / result['messages'] * 1e6 for result in rounds):.1f}"
            if "broker_cpu" in rounds[0] and name != "push consume"  # there the broker takes the messages in as well
            else ""
        )
        table.add_row(
            name, f"{rate:,.0f}", f"{statistics.median(costs):.1f}", f"{costs[0]:.1f}..{costs[-1]:.1f}", p50, of_broker
        )
    return table


if __name__ == "__main__":
    main()
