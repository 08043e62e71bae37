"""The longest gap of a broker's loop with 100,000 groups: ``python -m tests.benchmarks.loop_gap [--embedded]``.

A broker is started on tables of 100,000 groups and as many committed offsets; then its tables are written, large and
hostile heartbeats come in, and connections with many groups close. Shown is, for each, the longest time that the loop
did not come round: on the clock, and in CPU time of the loop's thread, which other work on the machine lengthens less;
and the longest garbage collection, in CPU time. The tables are out of collections, as in ``rocketbox broker``, or with
``--embedded`` they are not, as in a service's process.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path

import anyio
from rich.console import Console
from rich.table import Table

from rocketbox.broker.broker import Broker
from rocketbox.broker.options import BrokerOptions
from rocketbox.cli.full_collections import tables_out_of_collections
from rocketbox.clock import RealClock
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.client import RemotingClient
from rocketbox.tasks import Supervisor

__all__ = ["main"]

MEGABYTE = 1 << 20
TIMEOUT = 120.0


class Gaps:
    """The longest gaps, by what went on."""

    def __init__(self) -> None:
        self.found: list[tuple[str, float, float, float, float]] = []
        self._collecting = self._collection = 0.0
        gc.callbacks.append(self._collected)

    def _collected(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.thread_time()
        else:
            self._collection = max(self._collection, time.thread_time() - self._collecting)

    @asynccontextmanager
    async def during(self, what: str) -> AsyncIterator[None]:
        wall = cpu = self._collection = 0.0
        over = False

        async def look() -> None:
            nonlocal wall, cpu
            while not over:
                before, worked = time.perf_counter(), time.thread_time()
                await anyio.lowlevel.checkpoint()
                wall = max(wall, time.perf_counter() - before)
                cpu = max(cpu, time.thread_time() - worked)

        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            group.start_soon(look)
            await anyio.sleep(0.01)
            yield
            over = True
        self.found.append((what, wall * 1000, cpu * 1000, self._collection * 1000, time.perf_counter() - began))


def write_tables(directory: Path, groups: int) -> None:
    """Tables as a broker would have left them, in Apache's layout."""
    config = directory / "config"
    config.mkdir(parents=True)
    names = [f"group{number}" for number in range(groups)]
    table = {"subscriptionGroupTable": {name: {"groupName": name} for name in names}}
    (config / "subscriptionGroup.json").write_text(json.dumps(table, indent="\t"))
    offsets = {"offsetTable": {f"TopicTest@{name}": {"0": 1} for name in names}}
    (config / "consumerOffset.json").write_text(json.dumps(offsets, indent="\t"))


def heartbeats() -> dict[str, bytes]:
    """Bodies of some 1 MB."""
    producers = b",".join([b'{"groupName":"g"}'] * 50_000)
    topics = b",".join(b'{"topic":"t%d"}' % number for number in range(60_000))
    consumers = b",".join(b'{"groupName":"group%d","subscriptionDataSet":[]}' % number for number in range(1000))
    return {
        "a heartbeat of 1,000 groups": b'{"clientID":"c","consumerDataSet":[%b]}' % consumers,
        "one of 50,000 groups": b'{"clientID":"c","producerDataSet":[%b]}' % producers,
        "the same without quotes": b"{clientID:'c',producerDataSet:[%b]}" % producers.replace(b'"', b"'"),
        "one of 60,000 subscriptions":
            b'{"clientID":"c","consumerDataSet":[{"groupName":"group1","subscriptionDataSet":[%b]}]}' % topics,
        "one of empty objects": b'{"clientID":"c","consumerDataSet":[' + b"{}," * (MEGABYTE // 3 - 30) + b"{}]}",
        "one of lists in lists": b"[" * (MEGABYTE - 10),
        "one long number": b'{"clientID":' + b"9" * (MEGABYTE - 100) + b"}",
    }  # fmt: skip


async def measure(groups: int, embedded: bool) -> Gaps:
    gaps = Gaps()
    with tempfile.TemporaryDirectory() as folder:
        write_tables(Path(folder), groups)
        options = BrokerOptions(
            store_path_root_dir=Path(folder), listen_port=0, max_groups=2 * groups, max_heartbeat_bytes=2 * MEGABYTE
        )
        async with Broker(options, name_servers=[]) as broker, AsyncExitStack() as stack:
            if not embedded:
                entries = partial(attrgetter("table_entries"), broker)
                tables = stack.enter_context(tables_out_of_collections(entries, RealClock()))
                tasks = await stack.enter_async_context(Supervisor("process", RealClock()))
                tasks.start("keep tables out of collections", tables.run)
            async with gaps.during("nothing"):
                await anyio.sleep(1)
            async with gaps.during("the first write of all groups"):
                group = broker.groups.find("one-more")
                assert group is not None
                change = broker.groups.put(group)
                while not broker.persister.groups.is_written(change):
                    await anyio.sleep(0.1)
            async with gaps.during("a further write of all groups"):
                await broker.groups.written(broker.groups.put(group))
            async with gaps.during("the first write of all offsets"):
                broker.offsets.commit("group1", "TopicTest", 0, 5)
                await anyio.sleep(options.flush_consumer_offset_interval / 1000 + 3)
            for name, body in heartbeats().items():
                async with RemotingClient(clock=RealClock()) as client:
                    request = RemotingCommand.request(RequestCode.HEART_BEAT, body=body)
                    async with gaps.during(name):
                        await client.request(broker.address, request, timeout=TIMEOUT)
            async with gaps.during("the connections closed"):
                await anyio.sleep(0.5)
    return gaps


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.loop_gap", description=__doc__)
    parser.add_argument("--groups", type=int, default=100_000)
    parser.add_argument("--embedded", action="store_true", help="with Python's own garbage collections")
    arguments = parser.parse_args()
    gaps = anyio.run(measure, arguments.groups, arguments.embedded)
    table = Table("meanwhile", "longest gap, ms", "of it CPU, ms", "longest collection, ms", "took, s")
    for what, wall, cpu, collection, seconds in gaps.found:
        table.add_row(what, f"{wall:.1f}", f"{cpu:.1f}", f"{collection:.1f}", f"{seconds:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
