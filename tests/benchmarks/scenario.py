"""One scenario in a process of its own: prints one line of JSON with what it cost.

``python -m tests.benchmarks.scenario NAME --messages N --topic TOPIC [--name-server ADDRESS --broker ADDRESS]
[--directory PATH] [--cpu N]``
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.from_thread
import anyio.to_thread

from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import FlushDiskType, StoreOptions
from rocketbox.client import ConsumerOptions, Credentials, Producer, PushConsumer
from rocketbox.client.outcomes import AnyHandler
from rocketbox.message import ConsumeFromWhere, MessageExt
from tests.benchmarks import reference
from tests.benchmarks.recovery import fill_and_die, open_once
from tests.benchmarks.run import BATCH, BODY, Run
from tests.benchmarks.ways_to_send import send_blocking, send_requests, send_through_portal, send_transactions

__all__ = ["SCENARIOS", "Scenario"]

PRODUCERS = 100  # of group commits


async def _send_from_tasks(run: Run, tasks: int, credentials: Credentials | None = None) -> None:
    options = run.client_options(credentials)
    async with Producer("bench", name_server=run.name_server, client_options=options) as producer:
        await producer.send(run.message(0))
        numbers = iter(range(run.messages))

        async def send() -> None:
            for number in numbers:
                before = time.perf_counter()
                await producer.send(run.message(number))
                run.latencies.append(time.perf_counter() - before)

        run.start()
        async with anyio.create_task_group() as group:
            for _ in range(tasks):
                group.start_soon(send)
        run.stop()


async def send_pipelined(run: Run) -> None:
    """256 tasks, each awaiting its own sends."""
    await _send_from_tasks(run, 256)
    run.latencies.clear()


async def send_signed(run: Run) -> None:
    """The same, each request signed with a user's keys."""
    await _send_from_tasks(run, 256, Credentials(access_key="rocketmqtest", secret_key="12345678"))
    run.latencies.clear()


async def send_100_in_flight(run: Run) -> None:
    """100 tasks: beside one task, what a group commit gains."""
    await _send_from_tasks(run, 100)
    run.latencies.clear()


async def send_one_at_a_time(run: Run) -> None:
    """One task; each send waits for the one before."""
    await _send_from_tasks(run, 1)


async def send_many(run: Run) -> None:
    """The pipelined call for many messages."""
    async with Producer("bench", name_server=run.name_server) as producer:
        await producer.send(run.message(0))
        run.start()
        await producer.send_many([run.message(number) for number in range(run.messages)])
        run.stop()


async def send_one_way(run: Run) -> None:
    """No answers; the last message is an ordinary send, so that all are counted when the broker has them."""
    async with Producer("bench", name_server=run.name_server) as producer:
        await producer.send(run.message(0))
        run.start()
        for number in range(run.messages):
            await producer.send_one_way(run.message(number))
        await producer.send(run.message(0))
        run.stop()


async def send_batch(run: Run) -> None:
    """Batches of 32, one at a time."""
    async with Producer("bench", name_server=run.name_server) as producer:
        await producer.send(run.message(0))
        run.start()
        for number in range(run.messages // BATCH):
            await producer.send_batch([run.message(number * BATCH + index) for index in range(BATCH)])
        run.stop()


async def send_batches(run: Run) -> None:
    """Batches of 32, 8 of them in flight."""
    async with Producer("bench", name_server=run.name_server) as producer:
        await producer.send(run.message(0))
        run.start()
        await _send_batches(run, producer)
        run.stop()


async def _send_batches(run: Run, producer: Producer) -> None:
    firsts = iter(range(0, run.messages, BATCH))

    async def send() -> None:
        for first in firsts:
            await producer.send_batch([run.message(first + index) for index in range(BATCH)])

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(send)


async def fill(run: Run) -> None:
    """Only put the messages into the topic that others consume."""
    async with Producer("bench", name_server=run.name_server) as producer:
        run.start()
        await _send_batches(run, producer)
        run.stop()


async def consume(run: Run) -> None:
    """A push consumer whose handler looks at the body only; the messages lie ready."""
    seen = Seen(run)

    async def handle(messages: list[MessageExt]) -> None:
        seen.count(messages)

    await _consume(run, seen, handle)


async def consume_in_threads(run: Run) -> None:
    """The same with a handler that is a ``def``: it runs in the consumer's threads."""
    seen = Seen(run)
    await _consume(run, seen, seen.count)


class Seen:
    """What handlers have seen; counted under a lock, for they may be threads."""

    def __init__(self, run: Run) -> None:
        self._wanted = run.messages
        self._lock = threading.Lock()
        self.messages = self.bytes = 0
        self.all_seen = threading.Event()

    def count(self, messages: list[MessageExt]) -> None:
        size = 0
        for message in messages:
            size += len(message.body)
        with self._lock:
            self.messages += len(messages)
            self.bytes += size
            if self.messages >= self._wanted:
                self.all_seen.set()


async def _consume(run: Run, seen: Seen, handle: AnyHandler) -> None:
    if not run.filled:
        await fill(run)
    options = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    group = f"bench-{uuid.uuid4().hex[:12]}"
    client = run.client_options()
    async with PushConsumer(group, name_server=run.name_server, client_options=client, options=options) as consumer:
        run.start()
        await consumer.subscribe(run.topic, "*", handle)
        while not seen.all_seen.is_set():
            await anyio.sleep(0.005)
        run.stop()
    assert seen.bytes == seen.messages * len(BODY)


async def reference_pipelined(run: Run) -> None:
    """The bare peer, 256 in flight."""
    await reference.run(run.broker, run.topic, 1, 1, BODY, oneway=False)
    run.start()
    await reference.run(run.broker, run.topic, run.messages, 256, BODY, oneway=False)
    run.stop()


async def reference_one_at_a_time(run: Run) -> None:
    """The bare peer, one in flight."""
    await reference.run(run.broker, run.topic, 1, 1, BODY, oneway=False)
    run.start()
    await reference.run(run.broker, run.topic, run.messages, 1, BODY, oneway=False)
    run.stop()


async def reference_one_way(run: Run) -> None:
    """The bare peer, no answers."""
    await reference.run(run.broker, run.topic, 1, 1, BODY, oneway=False)
    run.start()
    await reference.run(run.broker, run.topic, run.messages, 1, BODY, oneway=True)
    run.stop()


async def store_append(run: Run) -> None:
    """The store alone with ASYNC_FLUSH, up to its stop: all is synced then, and in queues and index."""
    options = StoreOptions(flush_disk_type=FlushDiskType.ASYNC_FLUSH)
    async with MessageStore(run.directory, options) as store:
        run.start()
        for number in range(run.messages):
            end = store.put(run.stored_message(number)).end_offset
            if number % 256 == 255:
                await store.durable(end)
    run.stop()


async def store_group_commit(run: Run) -> None:
    """The store alone with SYNC_FLUSH; 100 producers, each waiting until its message is synced."""
    async with MessageStore(run.directory) as store:
        numbers = iter(range(run.messages))

        async def produce() -> None:
            for number in numbers:
                before = time.perf_counter()
                await store.durable(store.put(run.stored_message(number)).end_offset)
                run.latencies.append(time.perf_counter() - before)

        run.start()
        async with anyio.create_task_group() as group:
            for _ in range(PRODUCERS):
                group.start_soon(produce)
        run.stop()


async def store_recovery(run: Run) -> None:
    """A store that was killed before anything was derived from its log, opened: all is read, checked and derived."""
    await fill_and_die(run.directory, run.messages)
    run.start()
    assert await open_once(run.directory) == run.messages
    run.stop()


async def store_opening(run: Run) -> None:
    """The same store opened again after a clean stop: nothing is read (the whole open and stop, for all messages)."""
    await fill_and_die(run.directory, run.messages)
    await open_once(run.directory)
    run.start()
    assert await open_once(run.directory) == 0
    run.stop()


async def reference_sync_each(run: Run) -> None:
    """A bare file, one producer: a sync for each message, nothing else written; room is set aside as the store does."""
    fd = os.open(f"{run.directory}/log", os.O_WRONLY | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, run.messages * len(BODY))
        os.fsync(fd)
        run.start()
        for number in range(run.messages):
            before = time.perf_counter()
            os.pwrite(fd, BODY, number * len(BODY))
            os.fdatasync(fd)
            run.latencies.append(time.perf_counter() - before)
        run.stop()
    finally:
        os.close(fd)


async def reference_group_commit(run: Run) -> None:
    """A bare file with as many producers: what they wrote while a sync ran is synced together by the next one."""
    fd = os.open(f"{run.directory}/log", os.O_WRONLY | os.O_CREAT)
    written, synced = anyio.Event(), anyio.Event()
    numbers = iter(range(run.messages))

    async def produce() -> None:
        for number in numbers:
            before = time.perf_counter()
            os.pwrite(fd, BODY, number * len(BODY))
            written.set()
            await synced.wait()
            run.latencies.append(time.perf_counter() - before)

    async def sync() -> None:
        nonlocal written, synced
        while True:
            await written.wait()
            of_these, written, synced = synced, anyio.Event(), anyio.Event()
            await anyio.to_thread.run_sync(os.fdatasync, fd)
            of_these.set()

    try:
        os.posix_fallocate(fd, 0, run.messages * len(BODY))
        os.fsync(fd)
        run.start()
        async with anyio.create_task_group() as syncing:
            syncing.start_soon(sync)
            async with anyio.create_task_group() as producing:
                for _ in range(PRODUCERS):
                    producing.start_soon(produce)
            run.stop()
            syncing.cancel_scope.cancel()
    finally:
        os.close(fd)


@dataclass(frozen=True)
class Scenario:
    """What to run, and with how many messages: all that are asked for, or a ``share`` of them."""

    run: Callable[[Run], Awaitable[None]]
    share: float = 1.0
    needs_servers: bool = True
    tls: bool = False
    """Its servers speak TLS with those who want it; it is run twice, with TLS and without."""
    encrypted: bool = False


SCENARIOS: dict[str, Scenario] = {
    "send, 256 in flight": Scenario(send_pipelined),
    "signed send, 256 in flight": Scenario(send_signed),
    "send, 256 in flight (bare peer)": Scenario(reference_pipelined),
    "send_many": Scenario(send_many),
    "blocking sends": Scenario(send_blocking, share=0.3),
    "blocking sends, one thread": Scenario(partial(send_blocking, threads=1), share=0.1),
    "blocking sends (anyio's from_thread)": Scenario(send_through_portal, share=0.1),
    "blocking sends, 64 threads": Scenario(partial(send_blocking, threads=64), share=0.3),
    "transactions, 64 in flight": Scenario(send_transactions, share=0.2),
    "requests, 64 in flight": Scenario(send_requests, share=0.2),
    "send, 100 in flight": Scenario(send_100_in_flight),
    "send, one at a time": Scenario(send_one_at_a_time, share=0.1),
    "send, one at a time (bare peer)": Scenario(reference_one_at_a_time, share=0.1),
    "one-way": Scenario(send_one_way),
    "one-way (bare peer)": Scenario(reference_one_way),
    "batch of 32, one at a time": Scenario(send_batch),
    "batch of 32, 8 in flight": Scenario(send_batches),
    "push consume": Scenario(consume),
    "push consume, def handler": Scenario(consume_in_threads),
    "send, 256 in flight (tls)": Scenario(send_pipelined, tls=True, encrypted=True),
    "send, 256 in flight (plain beside tls)": Scenario(send_pipelined, tls=True),
    "send, one at a time (tls)": Scenario(send_one_at_a_time, share=0.1, tls=True, encrypted=True),
    "send, one at a time (plain beside tls)": Scenario(send_one_at_a_time, share=0.1, tls=True),
    "push consume (tls)": Scenario(consume, tls=True, encrypted=True),
    "push consume (plain beside tls)": Scenario(consume, tls=True),
    "store append": Scenario(store_append, needs_servers=False),
    "store recovery (256 MiB)": Scenario(store_recovery, share=3.5, needs_servers=False),
    "store opening": Scenario(store_opening, needs_servers=False),
    "store group commit": Scenario(store_group_commit, needs_servers=False),
    "store group commit (bare peer)": Scenario(reference_group_commit, needs_servers=False),
    "one producer, a sync each (bare file)": Scenario(reference_sync_each, share=0.01, needs_servers=False),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=[*SCENARIOS, "fill"])
    parser.add_argument("--topic", required=True)
    for name in ("name-server", "broker"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--directory")
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--cpu", type=int)
    parser.add_argument("--filled", action="store_true")
    parser.add_argument("--ca-file", default="")
    arguments = parser.parse_args()
    if arguments.cpu is not None:
        os.sched_setaffinity(0, {arguments.cpu})
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        run = Run(
            arguments.name_server,
            arguments.broker,
            arguments.topic,
            arguments.messages,
            directory,
            ca_file=arguments.ca_file,
            encrypted=arguments.name != "fill" and SCENARIOS[arguments.name].encrypted,
            filled=arguments.filled,
        )
        anyio.run(fill if arguments.name == "fill" else SCENARIOS[arguments.name].run, run)
    result = {"seconds": run.seconds, "cpu": run.cpu, "messages": run.messages}
    if run.latencies:
        cuts = statistics.quantiles(run.latencies, n=100)
        result |= {"p50_us": cuts[49] * 1e6, "p99_us": cuts[98] * 1e6}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
