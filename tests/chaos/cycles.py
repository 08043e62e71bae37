"""Start, work, kill, start again and check; again and again on one directory."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio

from tests.chaos.ledger import Ledger
from tests.chaos.traffic import Traffic
from tests.support.broker.broker_process import BrokerProcess

__all__ = ["OURS", "Result", "run_cycles"]

OURS = "rocketbox"
SETTINGS = (
    "--mapped-file-size-commit-log=4194304",  # small files, so that kills meet the roll as well
    "--mapped-file-size-consume-queue=20000",
    "--flush-consumer-offset-interval=100",
    "--flush-delay-offset-interval=200",
    "--transaction-check-interval=200",
    "--transaction-time-out=500",
    "--transaction-check-max=10000",
)
DELIVERY_SECONDS = 20  # what a delayed message may take at the end


@dataclass
class Result:
    """What many cycles came to."""

    cycles: int = 0
    acknowledged: int = 0
    sent: int = 0
    delayed: int = 0
    recalled: int = 0
    works: int = 0
    replies: int = 0
    longest_start: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.cycles} kills, {self.sent} sent, {self.acknowledged} acknowledged, {self.delayed} delayed, "
            f"{self.recalled} recalled, {self.works} in transactions and {self.replies} replies: "
            f"{len(self.wrong)} wrong; our longest start took {self.longest_start:.1f} s"
        )


@contextmanager
def _ours(directory: Path, flush: str) -> Iterator[tuple[str, Callable[[], object]]]:
    with BrokerProcess(directory / "store", *SETTINGS, f"--flush-disk-type={flush}") as broker:
        yield broker.name_server, broker.kill


@contextmanager
def _apache(directory: Path, version: str, flush: str) -> Iterator[tuple[str, Callable[[], object]]]:
    from tests.conformance.apache import apache_servers

    with apache_servers(
        directory,
        version,
        flushDiskType=flush,
        mappedFileSizeCommitLog=4_194_304,
        mappedFileSizeConsumeQueue=20_000,
    ) as servers:
        yield servers.name_server, servers.kill_broker


def run_cycles(
    directory: Path,
    cycles: int,
    *,
    seed: int = 0,
    brokers: Sequence[str] = (OURS,),
    requests: bool = True,
    say: Callable[[str], object] = lambda text: None,
) -> Result:
    """Kill as often on ``directory``/store. ``brokers``, used in turns, are "rocketbox" or versions of Apache's.

    ``requests``: with our broker alone there are requests too, which make the end of each run a second or two longer.
    """
    chance = random.Random(seed)
    ledger, result = Ledger(), Result()
    traffic = Traffic(ledger, chance, own=set(brokers) == {OURS}, requests=requests)
    for cycle in range(cycles + 1):
        broker = brokers[cycle % len(brokers)]
        flush = "ASYNC_FLUSH" if cycle // len(brokers) % 2 else "SYNC_FLUSH"
        if broker == OURS and cycle % 5 == 4:
            _kill_while_it_starts(directory / "store", chance.random())
        began = time.monotonic()
        running = (_ours if broker == OURS else partial(_apache, version=broker))(directory, flush=flush)
        with running as (address, kill):
            if broker == OURS:
                result.longest_start = max(result.longest_start, time.monotonic() - began)
            if cycle:
                last = cycle == cycles
                wrong = anyio.run(_check, ledger, traffic, address, last)
                result.wrong += [f"cycle {cycle}, {broker} {flush}: {text}" for text in wrong[:20]]
                if wrong:
                    break
                if last:
                    break
            anyio.run(traffic.run, address, kill)
        result.cycles += 1
        result.sent, result.acknowledged = len(ledger.sent), len(ledger.acknowledged)
        result.delayed, result.recalled, result.works = len(ledger.delayed), len(ledger.recalled), len(ledger.works)
        result.replies = traffic.replies
        say(f"cycle {cycle + 1} of {cycles}, {broker} {flush}: {result.acknowledged} acknowledged")
    return result


async def _check(ledger: Ledger, traffic: Traffic, name_server: str, last: bool) -> list[str]:
    wrong, traffic.wrong = await ledger.check(name_server, thorough=last) + traffic.wrong, []
    if last:
        deadline = time.monotonic() + DELIVERY_SECONDS
        async with traffic.producer(name_server):  # which tells the broker of works whose ends it has not heard
            while not wrong and ledger.undelivered() and time.monotonic() < deadline:
                await anyio.sleep(0.5)
                wrong = await ledger.check(name_server, thorough=False)
        wrong += [f"acknowledged and never delivered: {body[:40]!r}" for body in ledger.undelivered()]
    return wrong


def _kill_while_it_starts(directory: Path, seconds: float) -> None:
    """A broker that is killed before it says that it is ready, or soon after."""
    BrokerProcess(directory, *SETTINGS).kill_after(seconds)
