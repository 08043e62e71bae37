"""Clients of every kind at once: single sends, batches, delays, sends that do not wait, transactions, timer messages
and recalls, requests, and commits of offsets."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from datetime import timedelta

import anyio

from rocketbox.client import Admin, ConsumerOptions, Producer, ProducerOptions, PushConsumer
from rocketbox.errors import BrokerError, ReplyTimeoutError, RocketBoxError
from rocketbox.message import LocalTransactionState, Message, MessageExt
from tests.chaos.ledger import GROUP, TAGS, TOPIC, Entry, Ledger

__all__ = ["Traffic"]

SENDERS = 8
ASKED = "asked"
TOO_LATE = 604  # a recall's answer: the message is being delivered
_REPLYING = ConsumerOptions(wait_for_servers=True)
_OPTIONS = ProducerOptions(retry_times_when_send_failed=0, send_message_timeout=5.0)


class Traffic:
    """What runs until the broker is gone; each sender ends at its first error. ``run`` is for one broker."""

    def __init__(self, ledger: Ledger, chance: random.Random, *, own: bool = True, requests: bool = True) -> None:
        """``own``: all brokers are ours, so that there are transactions, timer messages and, as said, requests, too."""
        self.ledger = ledger
        self.wrong: list[str] = []
        """What a client was told that must never be."""
        self.replies = 0
        self._own = own
        self._requests = own and requests
        self.acknowledged = 0
        self._chance = chance
        self._senders = itertools.count()

    async def run(self, name_server: str, kill: Callable[[], object]) -> None:
        """Let all clients work, and ``kill`` the broker at a moment between their first answer and half a second on."""
        first = anyio.Event()
        async with (
            self.producer(name_server) as producer,
            Admin(name_server=name_server) as admin,
            anyio.create_task_group() as group,
        ):
            for _ in range(SENDERS):
                group.start_soon(self._send, producer, first)
            group.start_soon(self._send_batches, producer, first)
            group.start_soon(self._send_delayed, producer)
            group.start_soon(self._send_without_waiting, producer)
            group.start_soon(self._commit, admin)
            if self._own:
                group.start_soon(self._send_in_transactions, producer)
                group.start_soon(self._send_timed, producer)
            if self._requests:
                group.start_soon(self._request, name_server, producer)
            with anyio.move_on_after(20):
                await first.wait()
            await anyio.sleep(self._chance.random() ** 2 * 0.5)
            kill()

    def producer(self, name_server: str) -> Producer:
        """The one that sends everything, and knows what became of every work."""
        return Producer("ledger", name_server=name_server, options=_OPTIONS, transaction_checker=self._state_of)

    async def _state_of(self, message: MessageExt) -> LocalTransactionState:
        return self.ledger.state_of(message)

    def _entry(self, sender: int, number: int, *, delayed: bool = False, late: bool = False) -> Entry:
        body = b"%d %d " % (sender, number)
        body += b"." * self._chance.choice((0, 10, 200, 1000, 5000))
        entry = Entry(body, self._chance.choice(TAGS), f"{sender}-{number}", delayed, late)
        self.ledger.send(entry)
        return entry

    async def _send(self, producer: Producer, first: anyio.Event) -> None:
        sender = next(self._senders)
        for number in itertools.count():
            entry = self._entry(sender, number)
            try:
                result = await producer.send(Message(TOPIC, entry.body, tag=entry.tag, keys=(entry.key,)))
            except RocketBoxError:
                return
            self._acknowledge([entry], result.queue.queue_id, result.queue_offset)
            first.set()

    async def _send_batches(self, producer: Producer, first: anyio.Event) -> None:
        sender = next(self._senders)
        for number in itertools.count():
            entries = [self._entry(sender, 10 * number + each) for each in range(self._chance.randrange(1, 10))]
            try:
                result, *_ = await producer.send_batch(
                    [Message(TOPIC, entry.body, tag=entry.tag, keys=(entry.key,)) for entry in entries]
                )
            except RocketBoxError:
                return
            self._acknowledge(entries, result.queue.queue_id, result.queue_offset)
            first.set()

    def _acknowledge(self, entries: list[Entry], queue_id: int, offset: int) -> None:
        self.acknowledged += len(entries)
        for number, entry in enumerate(entries):
            self.ledger.acknowledged[entry.body] = (queue_id, offset + number)

    async def _send_delayed(self, producer: Producer) -> None:
        sender = next(self._senders)
        for number in range(20):  # level 1: a second
            entry = self._entry(sender, number, delayed=True)
            try:
                await producer.send(Message(TOPIC, entry.body, tag=entry.tag, keys=(entry.key,), delay_level=1))
            except RocketBoxError:
                return
            self.ledger.delayed[entry.body] = time.monotonic()

    async def _send_timed(self, producer: Producer) -> None:
        """For up to three seconds later; every third is recalled."""
        sender = next(self._senders)
        for number in range(60):
            entry = self._entry(sender, number, delayed=True)
            delay = timedelta(milliseconds=self._chance.randrange(3, 3000))
            message = Message(TOPIC, entry.body, tag=entry.tag, keys=(entry.key,), delay=delay)
            try:
                result = await producer.send(message)
                if number % 3 or result.recall_handle is None:
                    self.ledger.delayed[entry.body] = time.monotonic()
                else:  # without an answer nobody knows whether it comes
                    await producer.recall(result.recall_handle)
                    self.ledger.recalled.add(entry.body)
            except BrokerError as error:
                if error.code != TOO_LATE:
                    return
                self.ledger.delayed[entry.body] = time.monotonic()
            except RocketBoxError:
                return

    async def _send_in_transactions(self, producer: Producer) -> None:
        """Works that are done, or not; of some the broker has to ask."""
        sender = next(self._senders)
        for number in itertools.count():
            entry = self._entry(sender, number, late=True)
            message = Message(TOPIC, entry.body, tag=entry.tag, keys=(entry.key,))
            try:
                async with producer.transaction(message) as transaction:
                    done = self.ledger.works[entry.body] = self._chance.random() < 0.7
                    if self._chance.random() < 0.3:
                        transaction.unknown()
                    elif not done:
                        transaction.rollback()
            except RocketBoxError:
                return

    async def _request(self, name_server: str, producer: Producer) -> None:
        """Requests, and who replies: a member of a group, which joins in time for some of them."""

        async def handle(batch: list[MessageExt]) -> None:
            for message in batch:
                await consumer.replier.try_to_reply(message, b"reply to " + message.body)

        async with PushConsumer("repliers", name_server=name_server, options=_REPLYING) as consumer:
            await consumer.subscribe(ASKED, "*", handle)
            await self._ask(producer)

    async def _ask(self, producer: Producer) -> None:
        """Requests, each of which is told its own reply, or none."""
        sender = next(self._senders)
        for number in itertools.count():
            body = b"%d %d" % (sender, number)
            try:
                reply = await producer.request(Message(ASKED, body), timeout=1.0)
            except ReplyTimeoutError:  # who replies may not have joined yet
                continue
            except RocketBoxError:
                return
            self.replies += 1
            if reply.body != b"reply to " + body:
                self.wrong.append(f"{body!r} was told {reply.body[:40]!r}")

    async def _send_without_waiting(self, producer: Producer) -> None:
        """Answered before it is safe: it may be lost, and nothing else may happen to it."""
        sender = next(self._senders)
        for number in range(200):
            entry = self._entry(sender, number)
            try:
                await producer.send(Message(TOPIC, entry.body, tag=entry.tag, keys=(entry.key,), wait_store_ok=False))
            except RocketBoxError:
                return

    async def _commit(self, admin: Admin) -> None:
        try:
            while True:
                for queue in await admin.queues(TOPIC):
                    offset = await admin.max_offset(queue)
                    self.ledger.committed[queue.queue_id] = max(offset, self.ledger.committed[queue.queue_id])
                    await admin.commit(GROUP, queue, offset)
                await anyio.sleep(0.02)
        except RocketBoxError:
            return
