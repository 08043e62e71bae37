"""Sends from threads, transactions, and requests with their answers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread

from rocketbox.client import ConsumerOptions, Producer, PushConsumer, Transaction
from rocketbox.message import ConsumeFromWhere, LocalTransactionState, MessageExt
from rocketbox.template import RocketMQTemplate
from tests.benchmarks.run import BODY, Run

__all__ = ["send_blocking", "send_requests", "send_through_portal", "send_transactions"]

IN_FLIGHT = 64
ANSWER_TIMEOUT = 30.0  # seconds; a loaded machine must not turn into failures
ASKS = "REPLY_TO_CLIENT"  # the property of a message that asks for an answer


async def _send_from_threads(
    run: Run, threads: int, send_with: Callable[[RocketMQTemplate], Callable[[int], object]]
) -> None:
    """Threads that each wait for their own sends; ``send_with(template)`` sends the message of a number."""
    async with Producer("bench", name_server=run.name_server) as producer:
        await producer.send(run.message(0))
        send = send_with(RocketMQTemplate(producer))
        numbers = iter(range(run.messages))

        def send_all() -> None:
            for number in numbers:
                send(number)

        limiter = anyio.CapacityLimiter(threads)
        run.start()
        async with anyio.create_task_group() as group:
            for _ in range(threads):
                group.start_soon(partial(anyio.to_thread.run_sync, send_all, limiter=limiter))
        run.stop()


async def send_blocking(run: Run, threads: int = 20) -> None:
    """Threads that send by the blocking template."""

    def send_with(template: RocketMQTemplate) -> Callable[[int], object]:
        return lambda number: template.blocking.send(run.topic, run.message(number))

    await _send_from_threads(run, threads, send_with)


async def send_through_portal(run: Run) -> None:
    """The same through anyio's own way from a thread into the loop, a task and a wake-up for each."""

    def send_with(template: RocketMQTemplate) -> Callable[[int], object]:
        return lambda number: anyio.from_thread.run(template.send, run.topic, run.message(number))

    await _send_from_threads(run, 20, send_with)


async def send_transactions(run: Run) -> None:
    """Transactions whose local work is nothing, 64 at once, each committed."""

    async def nothing(transaction: Transaction) -> LocalTransactionState:
        return LocalTransactionState.COMMIT

    async with Producer(
        f"bench-{uuid.uuid4().hex[:12]}", name_server=run.name_server, transaction_checker=_commit
    ) as producer:
        await producer.send_in_transaction(run.message(0), nothing)
        numbers = iter(range(run.messages))

        async def send() -> None:
            for number in numbers:
                await producer.send_in_transaction(run.message(number), nothing)

        await _at_once(run, send)


async def _commit(message: MessageExt) -> LocalTransactionState:
    return LocalTransactionState.COMMIT


async def send_requests(run: Run) -> None:
    """Requests, 64 at once, each answered with its own body by a consumer of the same process."""
    group = f"bench-{uuid.uuid4().hex[:12]}"
    options = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    async with (
        Producer("bench", name_server=run.name_server) as producer,
        PushConsumer(group, name_server=run.name_server, options=options) as consumer,
    ):

        async def answer(messages: list[MessageExt]) -> None:
            for message in messages:
                if ASKS in message.properties:
                    await consumer.reply(message, message.body)

        await producer.send(run.message(0))  # makes the topic
        await consumer.subscribe(run.topic, "*", answer)
        await producer.request(run.message(0), timeout=ANSWER_TIMEOUT)  # the consumer has its queues now
        numbers = iter(range(run.messages))

        async def ask() -> None:
            for number in numbers:
                before = time.perf_counter()
                reply = await producer.request(run.message(number), timeout=ANSWER_TIMEOUT)
                run.latencies.append(time.perf_counter() - before)
                assert len(reply.body) == len(BODY)

        await _at_once(run, ask)


async def _at_once(run: Run, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run.start()
    async with anyio.create_task_group() as group:
        for _ in range(IN_FLIGHT):
            group.start_soon(work)
    run.stop()
