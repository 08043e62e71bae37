"""Handlers are fed from any source of messages: here one that acknowledges each, and has no queue and no offset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

import pytest

from rocketbox.client import ConsumerOptions, MQClientInstance
from rocketbox.client.consume import ConcurrentConsumer, OrderlyConsumer
from rocketbox.client.handler_threads import HandlerThreads
from rocketbox.client.message_source import MessageSource
from rocketbox.client.subscriptions import Subscriptions
from rocketbox.errors import Reject
from rocketbox.message import ConsumeMode, MessageExt, SelectorType
from rocketbox.protocol.stored_message import StoredMessage, decode_messages, encode_stored_message
from rocketbox.tasks import Supervisor
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio


class Leased:
    """Messages that a broker has lent for a while: each is acknowledged by itself, the others come again."""

    def __init__(self, topic: str, *bodies: bytes) -> None:
        self.topic = topic
        self.attended = self.closed = self.dropped = False
        self.on_closed: list[Callable[[], object]] = []
        records = [encode_stored_message(StoredMessage(topic, 0, body, b"")) for body in bodies]
        self.waiting: list[MessageExt] = decode_messages(b"".join(records))
        self.in_hand = 0
        self.acknowledged: list[bytes] = []

    def lock_holds(self, now: float) -> bool:
        return True  # who has the lease has the message

    def take(self, limit: int, fits: Callable[[MessageExt], bool] | None = None, past: int = 0) -> list[MessageExt]:
        batch, self.waiting = self.waiting[:limit], self.waiting[limit:]
        self.in_hand += bool(batch)
        return batch

    def finish(self, batches: int = 1) -> None:
        self.in_hand -= batches

    def remove(self, messages: Iterable[MessageExt]) -> None:
        self.acknowledged += [message.body for message in messages]

    def give_back(self, messages: Sequence[MessageExt]) -> None:
        self.waiting[:0] = messages


class Again:
    """The way back of such messages: they are lent again after a while, so that nothing is sent."""

    def __init__(self) -> None:
        self.levels: list[tuple[bytes, int]] = []

    async def send_back(
        self, message: MessageExt, delay_level: int, max_reconsume_times: int, delay: timedelta | None = None
    ) -> bool:
        self.levels.append((message.body, delay_level))
        return True


class FaultyOnce(Again):
    """Fails, once, at a body and in a way that nobody foresaw."""

    def __init__(self, at: bytes) -> None:
        super().__init__()
        self.at: bytes | None = at

    async def send_back(
        self, message: MessageExt, delay_level: int, max_reconsume_times: int, delay: timedelta | None = None
    ) -> bool:
        if message.body == self.at:
            self.at = None
            raise KeyError(message.body)
        return await super().send_back(message, delay_level, max_reconsume_times)


async def test_fault_of_our_own_while_a_slow_batch_is_sent_back_repeats_none_of_it_and_loses_none(
    anyio_backend: str,
) -> None:
    clock = VirtualClock()
    broker = ScriptedBroker(clock)
    options = ConsumerOptions(concurrency=2, consume_timeout=1.0)
    source, back, calls = Leased("T", b"0", b"1", b"2"), FaultyOnce(b"1"), list[int]()

    async def handle(batch: list[MessageExt]) -> None:
        calls.append(len(batch))
        if len(calls) == 1:
            await clock.sleep(1000)

    async with (
        broker,
        MQClientInstance(broker.address, clock=clock, network=broker.network) as instance,
        Supervisor("test", clock) as tasks,
    ):
        subscriptions = Subscriptions("g", instance, options)
        subscriptions.put("T", "*", handle, SelectorType.TAG, 32)
        consumer = ConcurrentConsumer(
            "g", options, subscriptions, threads=HandlerThreads(2, "g", clock), send_back=back, tasks=tasks, clock=clock
        )
        consumer.start()
        consumer.offer(source)
        await clock.advance(12)
        assert back.levels == [(b"0", 3)], "sent back once"
        assert calls == [3, 2], "the others are handled again here"
        assert sorted(source.acknowledged) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("mode", list(ConsumeMode))
async def test_messages_that_are_acknowledged_one_by_one_are_handled_like_those_of_a_queue(
    mode: ConsumeMode, anyio_backend: str
) -> None:
    clock = VirtualClock()
    broker = ScriptedBroker(clock)
    options = ConsumerOptions(consume_mode=mode, concurrency=2)
    source, back, came = Leased("T", b"0", b"reject", b"once more", b"3"), Again(), list[bytes]()

    async def handle(batch: list[MessageExt]) -> None:
        came.append(batch[0].body)
        if batch[0].body == b"reject":
            raise Reject("no")
        if batch[0].body == b"once more" and came.count(b"once more") == 1:
            raise ValueError("x")

    async with (
        broker,
        MQClientInstance(broker.address, clock=clock, network=broker.network) as instance,
        Supervisor("test", clock) as tasks,
    ):
        subscriptions = Subscriptions("g", instance, options)
        subscriptions.put("T", "*", handle, SelectorType.TAG, 1)
        consumer: ConcurrentConsumer | OrderlyConsumer
        if mode is ConsumeMode.ORDERLY:
            consumer = OrderlyConsumer("g", options, subscriptions, send_back=back, tasks=tasks, clock=clock)
        else:
            threads = HandlerThreads(2, "g", clock)
            consumer = ConcurrentConsumer(
                "g", options, subscriptions, threads=threads, send_back=back, tasks=tasks, clock=clock
            )
        consumer.start()
        lent: MessageSource = source
        consumer.offer(lent)
        await settle()
        await clock.advance(10)
        assert source.in_hand == 0
        assert sorted(source.acknowledged) == [b"0", b"3", b"once more", b"reject"]
        if mode is ConsumeMode.ORDERLY:
            assert came == [b"0", b"reject", b"once more", b"once more", b"3"]
            assert back.levels == [(b"reject", -1)]
        else:
            assert sorted(back.levels) == [(b"once more", 0), (b"reject", -1)]
        assert not source.attended
