"""One scenario in a process of its own: prints one line of JSON with what it cost.

``python -m tests.benchmarks.scenario NAME --name-server ADDRESS --broker ADDRESS --messages N --topic TOPIC [--cpu N]``
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio

from rocketbox.client import ConsumerOptions, Producer, PushConsumer
from rocketbox.message import ConsumeFromWhere, Message, MessageExt
from tests.benchmarks import reference

__all__ = ["SCENARIOS"]

BODY = b"x" * 1024
BATCH = 32


@dataclass
class Run:
    """What a scenario is told, and what it measures; the clock runs from ``start`` to ``stop``."""

    name_server: str
    broker: str
    topic: str
    messages: int
    seconds: float = 0.0
    cpu: float = 0.0
    latencies: list[float] = field(default_factory=list)

    def start(self) -> None:
        self._wall, self._cpu = time.perf_counter(), self._used()

    def stop(self) -> None:
        self.seconds, self.cpu = time.perf_counter() - self._wall, self._used() - self._cpu

    @staticmethod
    def _used() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    def message(self, number: int) -> Message:
        return Message(self.topic, BODY, tag="A", keys=(f"k{number}",))


async def _send_from_tasks(run: Run, tasks: int) -> None:
    async with Producer("bench", name_server=run.name_server) as producer:
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


async def consume(run: Run) -> None:
    """A push consumer whose handler looks at the body only; the messages lie ready."""
    async with Producer("bench", name_server=run.name_server) as producer:
        for number in range(0, run.messages, BATCH):
            await producer.send_batch([run.message(number + index) for index in range(BATCH)])
    done = anyio.Event()
    seen = size = 0

    async def handle(messages: list[MessageExt]) -> None:
        nonlocal seen, size
        for message in messages:
            size += len(message.body)
        seen += len(messages)
        if seen >= run.messages:
            done.set()

    options = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    async with PushConsumer(f"bench-{run.topic}", name_server=run.name_server, options=options) as consumer:
        run.start()
        await consumer.subscribe(run.topic, "*", handle)
        await done.wait()
        run.stop()
    assert size == seen * len(BODY)


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


SCENARIOS: dict[str, Callable[[Run], Awaitable[None]]] = {
    "send, 256 in flight": send_pipelined,
    "send, 256 in flight (bare peer)": reference_pipelined,
    "send_many": send_many,
    "send, one at a time": send_one_at_a_time,
    "send, one at a time (bare peer)": reference_one_at_a_time,
    "one-way": send_one_way,
    "one-way (bare peer)": reference_one_way,
    "batch of 32, one at a time": send_batch,
    "push consume": consume,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=list(SCENARIOS))
    for name in ("name-server", "broker", "topic"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--cpu", type=int)
    arguments = parser.parse_args()
    if arguments.cpu is not None:
        os.sched_setaffinity(0, {arguments.cpu})
    run = Run(arguments.name_server, arguments.broker, arguments.topic, arguments.messages)
    anyio.run(SCENARIOS[arguments.name], run)
    result = {"seconds": run.seconds, "cpu": run.cpu, "messages": run.messages}
    if run.latencies:
        cuts = statistics.quantiles(run.latencies, n=100)
        result |= {"p50_us": cuts[49] * 1e6, "p99_us": cuts[98] * 1e6}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
