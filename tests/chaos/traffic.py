"""Clients of every kind at once: single sends, batches, delays, sends that do not wait, and commits of offsets."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable

import anyio

from rocketbox.client import Admin, Producer, ProducerOptions
from rocketbox.errors import RocketBoxError
from rocketbox.message import Message
from tests.chaos.ledger import GROUP, TAGS, TOPIC, Entry, Ledger

__all__ = ["Traffic"]

SENDERS = 8
_OPTIONS = ProducerOptions(retry_times_when_send_failed=0, send_message_timeout=5.0)


class Traffic:
    """What runs until the broker is gone; each sender ends at its first error. ``run`` is for one broker."""

    def __init__(self, ledger: Ledger, chance: random.Random) -> None:
        self.ledger = ledger
        self.acknowledged = 0
        self._chance = chance
        self._senders = itertools.count()

    async def run(self, name_server: str, kill: Callable[[], object]) -> None:
        """Let all clients work, and ``kill`` the broker at a moment between their first answer and half a second on."""
        first = anyio.Event()
        async with (
            Producer("ledger", name_server=name_server, options=_OPTIONS) as producer,
            Admin(name_server=name_server) as admin,
            anyio.create_task_group() as group,
        ):
            for _ in range(SENDERS):
                group.start_soon(self._send, producer, first)
            group.start_soon(self._send_batches, producer, first)
            group.start_soon(self._send_delayed, producer)
            group.start_soon(self._send_without_waiting, producer)
            group.start_soon(self._commit, admin)
            with anyio.move_on_after(20):
                await first.wait()
            await anyio.sleep(self._chance.random() ** 2 * 0.5)
            kill()

    def _entry(self, sender: int, number: int, *, delayed: bool = False) -> Entry:
        body = b"%d %d " % (sender, number)
        body += b"." * self._chance.choice((0, 10, 200, 1000, 5000))
        entry = Entry(body, self._chance.choice(TAGS), f"{sender}-{number}", delayed)
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
