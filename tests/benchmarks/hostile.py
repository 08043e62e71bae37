"""A healthy client's sends while others harm the broker: how much later its slowest hundredth comes.

The client sends one message after another, undisturbed and then beside each kind of hostile peers, which are a process
of their own: connections that say nothing, the same dripping bytes of a frame, peers that ask for large pulls and never
read, connections that come and go. A run without disturbance stands before each of them: what a machine does by itself
changes within a minute.

``python -m tests.benchmarks.hostile KIND --broker ADDRESS --topic TOPIC`` is the hostile process; it says "ready" when
all its peers are there.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio
from rich.table import Table

from rocketbox.client import Producer
from rocketbox.message import Message
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand, encode_command
from rocketbox.remoting.descriptors import raise_descriptor_limit
from tests.benchmarks.processes import pinned
from tests.support.broker.broker_process import BrokerProcess

__all__ = ["HOSTILE", "measure_hostile", "table_of_hostile"]

GOAL = 2.0  # p99 beside hostile peers, as a multiple of p99 undisturbed
SENDS = 4_000
SLOW_CONNECTIONS = 1_000
DEAF_PEERS = 100
PULLS = 60  # of each deaf peer, for 256 KiB each
ACCEPTED_AFTER = 1.0  # seconds, by then the broker has taken them all: how they come is the flood's row
DRIPS_PER_SECOND = 1_000  # bytes, of all slow connections together
CONNECTIONS_PER_SECOND = 200  # of the flood
HALF_FRAME = encode_command(RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, {"b": "T"}, bytes(60_000)), 1)


def _connected(broker: str) -> socket.socket:
    host, _, port = broker.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.settimeout(None)
    return connection


def _told() -> None:
    print("ready", flush=True)


def slow(broker: str, topic: str) -> None:
    """Connections that say nothing after the first bytes of a frame."""
    connections = [_connected(broker) for _ in range(SLOW_CONNECTIONS)]
    for connection in connections:
        connection.sendall(HALF_FRAME[:5])
    time.sleep(ACCEPTED_AFTER)
    _told()
    while True:
        time.sleep(1)


def dripping(broker: str, topic: str) -> None:
    """The same, a byte now and then; those that are given up come again."""
    connections = [_connected(broker) for _ in range(SLOW_CONNECTIONS)]
    places = [0] * SLOW_CONNECTIONS
    time.sleep(ACCEPTED_AFTER)
    _told()
    while True:
        for number in range(SLOW_CONNECTIONS):
            try:
                connections[number].sendall(HALF_FRAME[places[number] : places[number] + 1])
                places[number] += 1
            except OSError:
                connections[number].close()
                connections[number], places[number] = _connected(broker), 0
            time.sleep(1 / DRIPS_PER_SECOND)


def deaf(broker: str, topic: str) -> None:
    """Peers that ask for large pulls and never read; those that are given up come again."""
    fields = {
        "consumerGroup": "deaf", "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    pulls = b"".join(
        encode_command(RemotingCommand.request(RequestCode.PULL_MESSAGE, fields), number) for number in range(PULLS)
    )
    connections = [_connected(broker) for _ in range(DEAF_PEERS)]
    _told()
    for connection in connections:
        connection.sendall(pulls)
    while True:
        time.sleep(0.1)
        for number, connection in enumerate(connections):
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):  # the broker has reset it
                connection.close()
                connections[number] = _connected(broker)
                connections[number].sendall(pulls)


def flood(broker: str, topic: str) -> None:
    """Connections that come and go, as fast as the broker takes them up to a bound."""
    _told()
    while True:
        with contextlib.suppress(OSError):
            _connected(broker).close()
        time.sleep(1 / CONNECTIONS_PER_SECOND)


HOSTILE: dict[str, Callable[[str, str], None]] = {
    f"{SLOW_CONNECTIONS:,} slow connections": slow,
    f"{SLOW_CONNECTIONS:,} dripping connections": dripping,
    f"{DEAF_PEERS} peers that never read": deaf,
    f"{CONNECTIONS_PER_SECOND} connections a second": flood,
}


@dataclass(frozen=True)
class Latencies:
    """Of one run of sends, in microseconds."""

    p50: float
    p99: float


@dataclass(frozen=True)
class Measured:
    """Undisturbed, and right after it beside hostile peers."""

    alone: Latencies
    beside: Latencies


async def _send(producer: Producer, topic: str, count: int) -> Latencies:
    taken = []
    for _ in range(count):
        before = time.perf_counter()
        await producer.send(Message(topic, bytes(1024)))
        taken.append((time.perf_counter() - before) * 1e6)
    cuts = statistics.quantiles(taken, n=100)
    return Latencies(cuts[49], cuts[98])


@contextlib.contextmanager
def _hostile(name: str, broker: str, topic: str) -> Iterator[None]:
    command = [*pinned(0), sys.executable, "-m", "tests.benchmarks.hostile", name]
    with subprocess.Popen(
        [*command, f"--broker={broker}", f"--topic={topic}"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", f"{name}: the peers did not come to the broker"
            yield
        finally:
            process.kill()


async def _measure(name: str, servers: BrokerProcess, sends: int) -> Measured:
    async with Producer("bench", name_server=servers.name_server) as producer:
        for _ in range(32):
            await producer.send(Message("large", bytes(200_000)))
        await _send(producer, "healthy", 500)
        alone = await _send(producer, "healthy", sends)
        with _hostile(name, servers.broker, "large"):
            return Measured(alone, await _send(producer, "healthy", sends))


def measure_hostile(
    names: list[str], rounds: int, directory: str | None, begins: Callable[[str], None]
) -> dict[str, list[Measured]]:
    """A broker of its own for each kind and round, on a processor that the peers do not use where there are two."""
    results: dict[str, list[Measured]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            begins(name)
            with (
                tempfile.TemporaryDirectory(dir=directory) as folder,
                BrokerProcess(Path(folder), "--flush-disk-type=ASYNC_FLUSH") as servers,
            ):
                if (os.cpu_count() or 1) > 1:
                    os.sched_setaffinity(servers.process.pid, {1})
                results[name].append(anyio.run(_measure, name, servers, SENDS))
    return results


def table_of_hostile(results: dict[str, list[Measured]], title: str) -> Table:
    """A line for each kind, with the medians of its rounds; the ratio is of the rounds' own pairs."""
    table = Table(title=f"a healthy client's sends, one at a time (goal: p99 at most {GOAL:g} x); {title}")
    for column in ("beside", "p50 us alone", "p50 us", "p99 us alone", "p99 us", "p99 ratio", "min..max"):
        table.add_column(column, justify="left" if column == "beside" else "right")
    for name, rounds in results.items():
        ratios = sorted(one.beside.p99 / one.alone.p99 for one in rounds)
        columns = (
            [one.alone.p50 for one in rounds], [one.beside.p50 for one in rounds],
            [one.alone.p99 for one in rounds], [one.beside.p99 for one in rounds],
        )  # fmt: skip
        medians = [f"{statistics.median(column):.0f}" for column in columns]
        table.add_row(name, *medians, f"{statistics.median(ratios):.2f}", f"{ratios[0]:.2f}..{ratios[-1]:.2f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=list(HOSTILE))
    parser.add_argument("--broker", required=True)
    parser.add_argument("--topic", required=True)
    arguments = parser.parse_args()
    raise_descriptor_limit()
    HOSTILE[arguments.kind](arguments.broker, arguments.topic)


if __name__ == "__main__":
    main()
