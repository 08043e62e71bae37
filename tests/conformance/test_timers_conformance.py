"""Delays, times of delivery and recalls of our client, on the embedded broker and on Apache RocketMQ."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import anyio
import pytest

from rocketbox.client import ConsumerOptions, Producer, ProducerOptions, PushConsumer
from rocketbox.client.outcomes import MessageHandler
from rocketbox.errors import BrokerError, InvalidMessageError, RetryLater
from rocketbox.message import ConsumeFromWhere, Message, MessageExt
from rocketbox.protocol.codes import ResponseCode

pytestmark = [pytest.mark.apache, pytest.mark.smoke, pytest.mark.anyio]

SECONDS = 60.0
OLD = "4.9"  # ignores timer properties, delivers at once, and knows no recall


class Seen:
    """What came, and when by the machine's clock."""

    def __init__(self) -> None:
        self.messages: list[MessageExt] = []
        self.times: dict[bytes, datetime] = {}

    async def handle(self, messages: list[MessageExt]) -> None:
        self.messages += messages
        self.times.update((message.body, datetime.now(UTC)) for message in messages)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    async def wait_for(self, count: int) -> None:
        with anyio.fail_after(SECONDS):
            while len(self.messages) < count:
                await anyio.sleep(0.02)


def sending(name_server: str, topic: str) -> Producer:
    return Producer(f"p-{topic}", name_server=name_server, options=ProducerOptions(send_message_timeout=12.0))


@asynccontextmanager
async def consuming(name_server: str, topic: str, handler: MessageHandler) -> AsyncIterator[None]:
    first = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    async with PushConsumer(f"g-{topic}", name_server=name_server, options=first) as consumer:
        await consumer.subscribe(topic, "*", handler)
        yield


async def test_messages_come_at_their_time_and_recalled_ones_do_not(name_server: str, kind: str, topic: str) -> None:
    seen = Seen()
    async with sending(name_server, topic) as producer:
        await producer.send(Message(topic, b"first"))
        at = datetime.now(UTC) + timedelta(seconds=4)
        if kind.startswith(OLD):
            for late in (Message(topic, b"x", deliver_at=at), Message(topic, b"x", delay=timedelta(seconds=3))):
                with pytest.raises(InvalidMessageError, match=r"older than RocketMQ 5\.0"):
                    await producer.send(late)
            level = await producer.send(Message(topic, b"level", delay=timedelta(seconds=1)))
            assert level.recall_handle is None
            expected = [b"first", b"level"]
        else:
            await producer.send(Message(topic, b"time", deliver_at=at))
            begun = datetime.now(UTC)
            await producer.send(Message(topic, b"delay", delay=timedelta(milliseconds=2500)))
            recalled = await producer.send(Message(topic, b"recalled", deliver_at=at))
            for _ in range(2):
                assert await producer.recall(recalled.recall_handle) == recalled.msg_id
            expected = [b"delay", b"first", b"time"]
        async with consuming(name_server, topic, seen.handle):
            await seen.wait_for(len(expected))
            await producer.send(Message(topic, b"last", delay=timedelta(seconds=1)))
            await seen.wait_for(len(expected) + 1)
        assert sorted(seen.bodies) == sorted([*expected, b"last"])
        if not kind.startswith(OLD):
            assert seen.times[b"time"] >= at
            assert seen.times[b"delay"] >= begun + timedelta(milliseconds=2500)
            with pytest.raises(BrokerError) as late_recall:
                await producer.recall(recalled.recall_handle)
            assert late_recall.value.code == ResponseCode.ILLEGAL_OPERATION


async def test_retry_later_takes_the_time_that_was_asked_for(name_server: str, kind: str, topic: str) -> None:
    times: list[datetime] = []
    seen = Seen()

    async def handle(messages: list[MessageExt]) -> None:
        times.append(datetime.now(UTC))
        await seen.handle(messages)
        if messages[0].reconsume_times == 0:
            raise RetryLater(timedelta(seconds=3))

    async with sending(name_server, topic) as producer:
        await producer.send(Message(topic, b"again"))
    async with consuming(name_server, topic, handle):
        await seen.wait_for(2)
    waited = times[1] - times[0]
    assert waited >= timedelta(seconds=3)
    if kind.startswith(OLD):  # by the next level, 5 s
        assert waited >= timedelta(seconds=5)
    else:
        assert seen.messages[1].properties["TIMER_DELAY_MS"] == "3000"
    assert (seen.messages[1].topic, seen.messages[1].reconsume_times) == (topic, 1)
