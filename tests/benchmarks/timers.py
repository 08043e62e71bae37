"""What timer messages that wait cost: ``python -m tests.benchmarks.timers [--messages 1000000]``.

A broker is filled with messages that are due within a day, stopped, and started again. Shown are the bytes of memory
for each that waits (far away, and all due within a minute; and what the process of ``rocketbox broker`` takes more with
all of them than with none), the time until a start knows what waits, from the copy and
without one (from the queue), and the longest gaps of the broker's loop (as in ``loop_gap``) while it is filled, while
copies are written, while it starts, and while an hour of the messages becomes due at once.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import tracemalloc
from pathlib import Path

import anyio
from rich.console import Console
from rich.table import Table

from rocketbox.broker.broker import Broker
from rocketbox.broker.options import BrokerOptions
from rocketbox.broker.put_stage import PutOrigin
from rocketbox.broker.store.options import FlushDiskType, StoreOptions
from rocketbox.broker.timer_wheel import TimerWheel
from rocketbox.clock import RealClock
from rocketbox.protocol.stored_message import StoredMessage
from tests.benchmarks.loop_gap import Gaps
from tests.support.broker.broker_process import BrokerProcess

__all__ = ["main"]

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
AT_ONCE = 64
SETTLED = 20.0  # seconds from a broker's start until its memory is looked at


class ClockAhead(RealClock):
    """The machine's time, and ``ahead`` milliseconds."""

    ahead = 0

    def time_ms(self) -> int:
        return super().time_ms() + self.ahead


def bytes_each(count: int, spread_ms: int) -> float:
    """What a wheel takes for each entry, the copy of it included while that is made."""
    tracemalloc.start()
    wheel, now = TimerWheel(), round(time.time() * 1000)
    wheel.pour(now)
    for number in range(count):
        wheel.add(now + number * spread_ms // count, number)
    while wheel.pour(now):
        pass
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken / count


def process_bytes(directory: Path, messages: int) -> int:
    """What the process of a broker has in memory and in no file, once it has started."""
    with BrokerProcess(directory, f"--max-timer-messages={messages}", "--flush-disk-type=ASYNC_FLUSH") as broker:
        time.sleep(SETTLED)
        lines = Path(f"/proc/{broker.process.pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))


async def measure(directory: Path, messages: int) -> tuple[Gaps, list[tuple[str, str]]]:
    gaps, clock = Gaps(), ClockAhead()
    told: list[tuple[str, str]] = []
    options = BrokerOptions(
        store_path_root_dir=directory,
        listen_port=0,
        max_timer_messages=messages,
        store=StoreOptions(flush_disk_type=FlushDiskType.ASYNC_FLUSH),
    )

    async def started(what: str) -> None:
        began = time.perf_counter()
        async with gaps.during(what), Broker(options, name_servers=[], clock=clock) as broker:
            while not broker.timers.is_loaded:
                await anyio.sleep(0.01)
            told.append((what, f"{time.perf_counter() - began:.2f} s, {broker.timers.waiting:,} wait"))

    async with Broker(options, name_servers=[], clock=clock) as broker:
        puts = broker.timers.puts
        async with gaps.during("filled, copies among it"):
            for number in range(messages):
                text = b"UNIQ_KEY\x01%032X\x02TIMER_DELAY_MS\x01%d\x02" % (
                    number, HOUR_MS + number * (DAY_MS - HOUR_MS) // messages,
                )  # fmt: skip
                end = puts.put(StoredMessage("bench", 0, b"x" * 100, text), PutOrigin.SEND).end_offset
                if number % AT_ONCE == 0:
                    await broker.store.durable(end)
    await started("start from the copy")
    with tempfile.TemporaryDirectory() as empty:
        taken = process_bytes(directory, messages) - process_bytes(Path(empty), messages)
    told.append(("memory, a whole broker's process", f"{taken / messages:.1f} bytes each"))
    for name in ("timers.bin", "timers.bin.bak"):
        (directory / "config" / name).unlink(missing_ok=True)
    await started("start from the queue")
    clock.ahead = 2 * HOUR_MS
    async with Broker(options, name_servers=[], clock=clock) as broker, gaps.during("an hour is due at once"):
        began, due = time.perf_counter(), messages // 23
        while broker.timers.delivered < due:
            await anyio.sleep(0.01)
        told.append(("delivered", f"{due / (time.perf_counter() - began):,.0f} messages/s"))
    return gaps, told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        gaps, told = anyio.run(measure, Path(directory), arguments.messages)
    console = Console()
    for what, spread in (("due within a day", DAY_MS), ("due within a minute", 60_000)):
        told.append((f"memory, {what}", f"{bytes_each(arguments.messages, spread):.1f} bytes each"))
    for what, words in told:
        console.print(f"{what}: {words}")
    table = Table("longest gap of the loop", "ms", "of these CPU", "collection, CPU")
    for what, wall, cpu, collection, _ in gaps.found:
        table.add_row(what, f"{wall:.1f}", f"{cpu:.1f}", f"{collection:.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
