"""Row C48 of the catalogue of failures: sends of every kind, cancelled at any moment, beside each other.

Afterwards no table of the client or the broker holds anything of them, the connection is whole, and other sends go on.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from rocketbox.client import ConsumerOptions, Producer, ProducerOptions, PushConsumer, Transaction
from rocketbox.embedded import EmbeddedServers
from rocketbox.errors import BrokerError
from rocketbox.message import ConsumeFromWhere, LocalTransactionState, Message, MessageExt
from tests.support.broker.wire import small_options
from tests.support.client.producing import connections_of, leftovers
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio

CANCELS = 10_000 if os.environ.get("ROCKETBOX_TESTS") == "all" else 600
AT_ONCE = 20
MOST_TURNS = 60
LARGE = bytes(random.Random(48).randbytes(30_000))
FIRST = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)


class Sends:
    """Starts sends of every kind, and knows which of them have ended well before they were cancelled."""

    def __init__(self, producer: Producer, joining: Producer) -> None:
        self.producer, self.joining = producer, joining
        self.begun: set[bytes] = set()
        self.stored: set[bytes] = set()
        self.cancelled = 0
        self.done: Counter[str] = Counter()
        self.handles: list[str] = []
        self.kinds: dict[str, Callable[[list[bytes]], Awaitable[object]]] = {
            "send": lambda bodies: producer.send(Message("t", bodies[0])),
            "by key": lambda bodies: producer.send(Message("t", bodies[0], hash_key=str(len(self.begun)))),
            "compressed": lambda bodies: producer.send(Message("t", bodies[0] + LARGE)),
            "many": lambda bodies: producer.send_many([Message("t", each) for each in bodies]),
            "batch": lambda bodies: producer.send_batch([Message("t", each) for each in bodies]),
            "joined": lambda bodies: joining.send(Message("t", bodies[0])),
            "one-way": lambda bodies: producer.send_one_way(Message("t", bodies[0])),
            "level": lambda bodies: producer.send(Message("later", bodies[0], delay_level=1)),
            "timer": lambda bodies: producer.send(Message("later", bodies[0], delay=timedelta(milliseconds=1234))),
            "recall": self.recall,
            "transaction": self.transaction,
            "work": lambda bodies: producer.send_in_transaction(Message("paid", bodies[0]), self.work),
            "request": lambda bodies: producer.request(Message("t", bodies[0]), timeout=10 * PATIENCE),
        }

    async def transaction(self, bodies: list[bytes]) -> None:
        async with self.producer.transaction(Message("paid", bodies[0])):
            await anyio.lowlevel.checkpoint()

    async def work(self, transaction: Transaction) -> LocalTransactionState:
        await anyio.lowlevel.checkpoint()
        return LocalTransactionState.COMMIT

    async def recall(self, bodies: list[bytes]) -> None:
        sent = await self.producer.send(Message("later", bodies[0], delay=timedelta(seconds=2)))
        try:
            await self.producer.recall(sent.recall_handle)
        except BrokerError as error:
            assert error.code == 604, "it was too late for that"  # noqa: PT017 - any other one is a failure

    async def one(self, chance: random.Random, number: int) -> None:
        """Start a send, and cancel it after some turns of the loop or some time."""
        kind = chance.choice(list(self.kinds))
        bodies = [b"%s %d %d" % (kind.encode(), number, each) for each in range(1 + chance.randrange(8))]
        self.begun.update(bodies)

        async def run() -> None:
            await self.kinds[kind](bodies)
            self.done[kind] += 1
            if kind in ("send", "by key", "joined", "request"):
                self.stored.add(bodies[0])
            elif kind in ("many", "batch"):
                self.stored.update(bodies)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            if chance.random() < 0.5:
                for _ in range(chance.randrange(MOST_TURNS)):
                    await anyio.lowlevel.checkpoint()
            else:
                await anyio.sleep(chance.random() * 0.02)
            before = sum(self.done.values())
            tasks.cancel_scope.cancel()
        self.cancelled += sum(self.done.values()) == before


async def unknown(message: MessageExt) -> LocalTransactionState:
    return LocalTransactionState.ROLLBACK


async def test_sends_of_every_kind_that_are_cancelled_anywhere_leave_nothing_behind(tmp_path: Path) -> None:
    options = small_options(tmp_path, transaction_time_out=1000, transaction_check_interval=300)
    came: list[bytes] = []
    async with (
        EmbeddedServers(options) as servers,
        Producer("p", name_server=servers.name_server_address, transaction_checker=unknown) as producer,
        Producer("j", instance=producer.instance, options=ProducerOptions(auto_batch=True)) as joining,
        PushConsumer("c", name_server=servers.name_server_address, options=FIRST) as consumer,
    ):

        async def take(messages: list[MessageExt]) -> None:
            for message in messages:
                came.append(message.body.removesuffix(LARGE))
                if "REPLY_TO_CLIENT" in message.properties:
                    await consumer.reply(message, message.body)

        for topic in ("t", "later", "paid"):
            await producer.send(Message(topic, b"makes the topic"))
            await consumer.subscribe(topic, "*", take)
        await until(lambda: came.count(b"makes the topic") == 3)
        links, sends = connections_of(producer), Sends(producer, joining)

        async def work(numbers: Iterator[int], seed: int) -> None:
            chance = random.Random(seed)
            for number in numbers:
                await sends.one(chance, number)

        numbers = iter(range(CANCELS))
        async with anyio.create_task_group() as tasks:
            for seed in range(AT_ONCE):
                tasks.start_soon(work, numbers, seed)
        assert sends.cancelled > CANCELS / 5, "most had ended before they were cancelled"
        assert sum(sends.done.values()) > CANCELS / 20, "all were cancelled early"

        for each in (producer, joining):
            await each.send(Message("t", b"after"))
            async with each.transaction(Message("paid", b"after")) if each is producer else anyio.create_task_group():
                pass
        reply = await producer.request(Message("t", b"after"), timeout=PATIENCE)
        assert reply.body == b"after"
        await until(lambda: came.count(b"after") == 4, "what is sent afterwards comes")
        broker = servers.broker
        await until(lambda: not len(broker.halves), "every transaction ends")
        await until(lambda: not broker.timers.waiting, "no timer message is left")
        await until(lambda: sends.stored <= set(came), "what was said to be stored comes")
        await until(lambda: not leftovers(producer) + leftovers(joining), "the client forgets all of them")
        assert connections_of(producer) == links, "half a frame closes a connection"
        assert set(came) <= {*sends.begun, b"after", b"makes the topic"}
