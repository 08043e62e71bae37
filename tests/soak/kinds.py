"""``make soak ARGS=kinds``: 100,000 messages of each kind; then tables are as they were, and memory too.

Kinds are sends, one-way sends, many at once, batches, sends that the client joins to batches, blocking sends of 20
threads, transactions, timer messages (half of them recalled), delay levels, requests, compressed and traced messages; a
consumer takes all of them. They go to an embedded broker in the same process, so that tables of both
sides can be counted: whatever has more entries behind a kind than before it is named. ``--soak`` sends a million of
each, ``--messages`` another number, ``--only timers,requests`` some of the kinds.

Of each kind a tenth is sent first, which fills caches; memory (what is resident of the process and not of a file) is
compared from there on. Status 1 when a table or memory has grown, or a message is missing or came twice.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from rich.console import Console
from rich.table import Table

from rocketbox.client import ConsumerOptions, Producer, ProducerOptions, PushConsumer
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.errors import RocketBoxError
from rocketbox.message import ConsumeFromWhere, LocalTransactionState, Message, MessageExt
from tests.soak.tables import grown, sizes

__all__ = ["KINDS", "main"]

MESSAGES = 100_000
AT_ONCE = 64
BATCH = 32
MANY = 1_000  # messages of one send_many
THREADS = 20
GROWN = 500  # entries of a table that stay: caches of names and the like have fewer, and messages are more
GROWN_BYTES = 12 << 20  # of memory behind the first tenth: an allocator keeps some pieces, and a queue its index
SETTLED = 30.0  # seconds without anything in which the next of what was sent has come
TOPIC = "soak"


@dataclass
class Soak:
    """The clients. ``sent`` are all that are to come, by their bodies, and how often each came."""

    servers: EmbeddedServers
    producer: Producer
    traced: Producer
    joining: Producer
    number: int = 0
    wanted: set[bytes] = field(default_factory=set)
    came: Counter[bytes] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    consumer: PushConsumer = field(init=False)

    def next(self, kind: str, size: int = 100) -> bytes:
        self.number += 1
        body = f"{kind} {self.number} ".encode().ljust(size, b".")
        self.wanted.add(body)
        return body

    async def handle(self, batch: list[MessageExt]) -> None:
        for message in batch:
            self.came[message.body] += 1
            if message.properties.get("CORRELATION_ID"):
                await self.consumer.reply(message, b"reply to " + message.body)

    def check(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT if message.body in self.wanted else LocalTransactionState.ROLLBACK

    async def settle(self) -> None:
        """Return when all that is to come has come; what is missing, or too much, is noted."""
        seen, since = len(self.came), time.monotonic()
        while self.wanted - self.came.keys() and time.monotonic() < since + SETTLED:
            await anyio.sleep(0.1)
            if len(self.came) > seen:
                seen, since = len(self.came), time.monotonic()
        await anyio.sleep(0.5)  # what comes twice
        missing = self.wanted - self.came.keys()
        extra = [body for body, count in self.came.items() if count > 1 or body not in self.wanted]
        self.wrong += [f"{len(missing)} did not come, {min(missing)[:30]!r} for one"] if missing else []
        self.wrong += [f"{len(extra)} came twice or were not to come, {extra[0][:30]!r} for one"] if extra else []
        self.wanted.clear()
        self.came.clear()


async def _many(count: int, do: Callable[[], Awaitable[object]]) -> None:
    """Do it so many times, some at once."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await do()

    async with anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(work)


async def _sends(soak: Soak, count: int) -> None:
    await _many(count, lambda: soak.producer.send(Message(TOPIC, soak.next("send"))))


async def _one_way(soak: Soak, count: int) -> None:
    async def one() -> None:
        await soak.producer.send_one_way(Message(TOPIC, soak.next("one-way")))
        await anyio.lowlevel.checkpoint()

    for _ in range(0, count, 1000):  # nobody says stop to them: the broker is given time
        await _many(min(count, 1000), one)
        while soak.wanted - soak.came.keys():
            await anyio.sleep(0.01)


async def _batches(soak: Soak, count: int) -> None:
    def batch() -> Awaitable[object]:
        return soak.producer.send_batch([Message(TOPIC, soak.next("batch")) for _ in range(BATCH)])

    await _many(count // BATCH, batch)


async def _send_many(soak: Soak, count: int) -> None:
    for _ in range(0, count, MANY):
        await soak.producer.send_many([Message(TOPIC, soak.next("many")) for _ in range(min(count, MANY))])


async def _auto_batches(soak: Soak, count: int) -> None:
    await _many(count, lambda: soak.joining.send(Message(TOPIC, soak.next("auto-batch"))))


async def _blocking(soak: Soak, count: int) -> None:
    def work(left: Iterator[bytes]) -> None:
        for body in left:
            soak.producer.send_from_thread("a soak", Message(TOPIC, body))

    limiter = anyio.CapacityLimiter(THREADS)
    async with anyio.create_task_group() as threads:
        for number in range(THREADS):
            bodies = iter([soak.next("blocking") for _ in range(number, count, THREADS)])
            threads.start_soon(partial(anyio.to_thread.run_sync, work, bodies, limiter=limiter))


async def _delay_levels(soak: Soak, count: int) -> None:
    await _many(count, lambda: soak.producer.send(Message(TOPIC, soak.next("level"), delay_level=1)))


async def _transactions(soak: Soak, count: int) -> None:
    async def one() -> None:
        body = soak.next("transaction")
        end = soak.number % 10
        if end == 0:
            soak.wanted.discard(body)
        async with soak.producer.transaction(Message(TOPIC, body)) as transaction:
            if end == 0:
                transaction.rollback()
            elif end == 1:
                transaction.unknown()

    await _many(count, one)


async def _timers(soak: Soak, count: int) -> None:
    async def one() -> None:
        body = soak.next("timer")
        is_recalled = soak.number % 2
        delay = timedelta(milliseconds=3701 if is_recalled else 701)
        result = await soak.producer.send(Message(TOPIC, body, delay=delay))
        if is_recalled:
            try:
                await soak.producer.recall(result.recall_handle)
            except RocketBoxError as error:  # a slow machine: it comes
                soak.wrong.append(f"a recall failed: {error}")
            else:
                soak.wanted.discard(body)

    await _many(count, one)


async def _requests(soak: Soak, count: int) -> None:
    async def one() -> None:
        body = soak.next("request")
        reply = await soak.producer.request(Message(TOPIC, body), timeout=30.0)
        if reply.body != b"reply to " + body:
            soak.wrong.append(f"{body[:30]!r} was answered {reply.body[:40]!r}")

    await _many(count, one)


async def _compressed(soak: Soak, count: int) -> None:
    await _many(count, lambda: soak.producer.send(Message(TOPIC, soak.next("compressed", 6000))))


async def _traced(soak: Soak, count: int) -> None:
    await _many(count, lambda: soak.traced.send(Message(TOPIC, soak.next("traced"))))


KINDS: dict[str, Callable[[Soak, int], Awaitable[None]]] = {
    "sends": _sends,
    "one-way": _one_way,
    "many": _send_many,
    "batches": _batches,
    "auto-batches": _auto_batches,
    "blocking": _blocking,
    "transactions": _transactions,
    "timers": _timers,
    "levels": _delay_levels,
    "requests": _requests,
    "compressed": _compressed,
    "traced": _traced,
}
BOUNDED = {
    "._cache._": "what was stored last, up to read-cache-size",
    "._tail[]": "the last file of a queue, up to mapped-file-size-consume-queue",
    "._feed._notes": "keys for the index, up to where they are written",
    "._ended._ends": "transactions of the last minute, up to 10,000",
    ".index.files[]": "the last file of the index, up to max-index-num",
}
"""Tables that hold more for a while, and why that ends."""
SETTINGS = {
    "flush_disk_type": "ASYNC_FLUSH",
    "transaction_check_interval": 2000,
    "transaction_time_out": 4000,
    "read_cache_size": "1MB",
    "max_hash_slot_num": 2_000,  # what is kept by design is to be full after a tenth
    "max_index_num": 8_000,
    "mapped_file_size_commit_log": "64MB",
    "mapped_file_size_consume_queue": 200_000,
}


def anonymous_bytes() -> int:
    """What of this process is in memory and in no file."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) << 10
    raise OSError("/proc/self/smaps_rollup does not say Anonymous:")


async def soak_kinds(kinds: list[str], messages: int, directory: Path) -> tuple[Table, bool]:
    """A row for each kind, and whether all is well."""
    table = Table(
        "kind", "messages", "messages/s", "memory, MB", "grown by, KB", "tables that have grown, or what is wrong"
    )
    good = True
    async with EmbeddedServers(
        EmbeddedOptions(data_dir=directory, port=0, name_server_port=0, broker=SETTINGS)
    ) as servers:
        address = servers.name_server_address
        options = ProducerOptions(compress_message_body_threshold=4096, send_message_timeout=30.0)
        traced = ProducerOptions(enable_msg_trace=True, send_message_timeout=30.0)
        joins = ProducerOptions(auto_batch=True, send_message_timeout=30.0)
        consuming = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, concurrency=32)
        soak: Soak
        async with (
            Producer(
                "soak", name_server=address, options=options, transaction_checker=lambda message: soak.check(message)
            ) as producer,
            Producer("soak-traced", name_server=address, options=traced) as of_trace,
            Producer("soak-joining", name_server=address, options=joins) as joining,
            PushConsumer("soak", name_server=address, options=consuming) as consumer,
        ):
            soak = Soak(servers, producer, of_trace, joining)
            soak.consumer = consumer
            await producer.send(Message(TOPIC, soak.next("first")))
            await consumer.subscribe(TOPIC, "*", soak.handle)
            await soak.settle()
            roots = {
                "broker": servers.broker, "producer": producer, "traced": of_trace, "joining": joining,
                "consumer": consumer,
            }  # fmt: skip
            for kind in kinds:
                first = max(1000, messages // 10)
                await KINDS[kind](soak, first)
                await _rest(soak)
                before, memory = sizes(roots), anonymous_bytes()
                began = time.perf_counter()
                for _ in range(0, messages, first):  # so much at once that what the count itself takes stays the same
                    await KINDS[kind](soak, first)
                    await soak.settle()
                rate = messages / (time.perf_counter() - began)
                await _rest(soak)
                more, now = grown(before, sizes(roots), GROWN), anonymous_bytes()
                wrong = [
                    f"{path}: {old} to {new}"
                    for path, (old, new) in more.items()
                    if not any(bounded in path for bounded in BOUNDED)
                ] + soak.wrong
                wrong += [f"memory grew by {(now - memory) >> 20} MB"] if now - memory > GROWN_BYTES else []
                soak.wrong = []
                good = good and not wrong
                row = [kind, f"{messages:,}", f"{rate:,.0f}", f"{now / 2**20:.0f}", f"{(now - memory) >> 10:,}"]
                table.add_row(*row, "\n".join(wrong[:20]) or "none")
                print(*row, "; ".join(wrong[:20]) or "none", file=sys.stderr, flush=True)
    return table, good


async def _rest(soak: Soak) -> None:
    await soak.settle()
    broker = soak.servers.broker
    with anyio.move_on_after(SETTLED):
        while len(broker.halves) or broker.timers.waiting:
            await anyio.sleep(0.1)
    left = len(broker.halves), broker.timers.waiting, len(soak.producer.instance.waiting_requests)
    if any(left):
        soak.wrong.append(f"transactions, timer messages, requests that still wait: {left}")
    await anyio.sleep(6.0)  # what is remembered of recalls is forgotten, offsets are written
    gc.collect()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make soak ARGS=kinds", description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES, help=f"of each kind ({MESSAGES:,})")
    parser.add_argument("--soak", action="store_true", help="a million of each kind")
    parser.add_argument("--only", default="", help=f"these kinds, with commas between them ({','.join(KINDS)})")
    given = parser.parse_args(arguments)
    kinds = [kind for kind in given.only.split(",") if kind] or list(KINDS)
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"there is no kind {', '.join(unknown)}; there are {', '.join(KINDS)}")
    with tempfile.TemporaryDirectory(prefix="rocketbox-soak-") as folder:
        table, good = anyio.run(soak_kinds, kinds, 1_000_000 if given.soak else given.messages, Path(folder))
    Console(width=180).print(table)
    return not good


if __name__ == "__main__":
    sys.exit(main())
