"""Our client against the embedded broker and against Apache RocketMQ: the same tests, the same results."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import anyio
import pytest

from rocketbox.client import Admin, ConsumerOptions, Producer, ProducerOptions, PushConsumer
from rocketbox.errors import InvalidMessageError, NoRouteError, Reject, RetryLater
from rocketbox.message import (
    Compression,
    ConsumeFromWhere,
    ConsumeMode,
    Message,
    MessageExt,
    MessageQueue,
    SendResult,
)

pytestmark = [pytest.mark.apache, pytest.mark.smoke, pytest.mark.anyio]

SECONDS = 60.0
SEND = ProducerOptions(send_message_timeout=12.0)  # a busy broker on two cores may need it
FIRST = ConsumeFromWhere.FIRST_OFFSET


class Seen:
    """What a handler was given; tests wait for a number of messages, or look at them."""

    def __init__(self) -> None:
        self.messages: list[MessageExt] = []
        self._news = anyio.Event()

    async def handle(self, messages: list[MessageExt]) -> None:
        self.messages += messages
        self._news.set()
        self._news = anyio.Event()

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    async def wait_for(self, count: int) -> None:
        with anyio.fail_after(SECONDS):
            while len(self.messages) < count:
                await self._news.wait()


Handler = Callable[[list[MessageExt]], Awaitable[None]]


@asynccontextmanager
async def consuming(
    name_server: str, topic: str, handler: Handler, *, group: str | None = None, expression: str = "*",
    batch: int = 1, **options: object,
) -> AsyncIterator[PushConsumer]:  # fmt: skip
    settings = ConsumerOptions(**{"consume_from_where": FIRST, **options})  # type: ignore[arg-type]  # test shorthand
    async with PushConsumer(group or f"g-{topic}", name_server=name_server, options=settings) as consumer:
        await consumer.subscribe(topic, expression, handler, batch_max_size=batch)
        yield consumer


@asynccontextmanager
async def sending(name_server: str, topic: str) -> AsyncIterator[Producer]:
    async with Producer(f"p-{topic}", name_server=name_server, options=SEND) as producer:
        yield producer


def queues_of(consumer: PushConsumer, topic: str) -> list[MessageQueue]:
    """The queues of the topic that a member has now; its retry queue is another topic's."""
    return [held.queue for held in consumer.state().queues if held.queue.topic == topic]


async def pulled(admin: Admin, result: SendResult) -> Sequence[MessageExt]:
    """What was sent, as soon as it is there: a broker answers the send before the message is in its queue, and before
    a name server knows a topic that is new."""
    with anyio.fail_after(SECONDS):
        while True:
            with suppress(NoRouteError):
                if found := (await admin.pull(result.queue, result.queue_offset)).messages:
                    return found
            await anyio.sleep(0.05)


async def test_what_is_sent_can_be_pulled_and_viewed(name_server: str, topic: str) -> None:
    async with sending(name_server, topic) as producer, Admin(name_server=name_server) as admin:
        sent = Message(topic, b"hello", tag="A", keys=("k1", "k2"), properties={"airport": "JFK"}, flag=7)
        result = await producer.send(sent)
        (message,) = await pulled(admin, result)
        viewed = await admin.view(result.offset_msg_id)
        for found in (message, viewed):
            assert (found.body, found.tag, found.keys, found.flag) == (b"hello", "A", ("k1", "k2"), 7)
            assert found.properties["airport"] == "JFK"
            assert found.msg_id == result.msg_id
        assert await admin.min_offset(result.queue) == 0
        assert await admin.max_offset(result.queue) == result.queue_offset + 1


async def test_a_topic_that_nobody_made_has_no_route(name_server: str, topic: str) -> None:
    async with Admin(name_server=name_server) as admin:
        with pytest.raises(NoRouteError, match=topic):
            await admin.queues(topic)


async def test_the_messages_of_a_key_keep_their_order(name_server: str, topic: str) -> None:
    keys = [f"key-{number}" for number in range(7)]
    async with sending(name_server, topic) as producer:
        for number in range(5):
            for key in keys:
                await producer.send(Message(topic, f"{key}:{number}".encode(), hash_key=key))
    seen = Seen()
    async with consuming(name_server, topic, seen.handle, consume_mode=ConsumeMode.ORDERLY, batch=4):
        await seen.wait_for(35)
    for key in keys:
        ours = [body.decode() for body in seen.bodies if body.startswith(key.encode() + b":")]
        assert ours == [f"{key}:{number}" for number in range(5)]


async def test_a_batch_is_stored_together(name_server: str, topic: str) -> None:
    async with sending(name_server, topic) as producer:
        results = await producer.send_batch([Message(topic, b"%d" % number, tag="B") for number in range(10)])
    seen = Seen()
    async with consuming(name_server, topic, seen.handle, expression="B"):
        await seen.wait_for(10)
    assert sorted(seen.bodies) == [b"%d" % number for number in range(10)]
    told = {(each.body, each.msg_id, each.offset_msg_id, each.queue_id, each.queue_offset) for each in seen.messages}
    assert told == {
        (b"%d" % number, each.msg_id, each.offset_msg_id, each.queue.queue_id, each.queue_offset)
        for number, each in enumerate(results)
    }


async def test_a_batch_that_is_too_large_for_one_request_is_stored_whole(name_server: str, topic: str) -> None:
    sizes = [700_000, 10, 2_000_000, 2_000_000, 4 << 20, 1, 3_000_000]
    bodies = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    plain = ProducerOptions(send_message_timeout=12.0, compress_type=Compression.NONE)
    async with (
        Producer(f"p-{topic}", name_server=name_server, options=plain) as producer,
        Admin(name_server=name_server) as admin,
    ):
        results = await producer.send_batch([Message(topic, body) for body in bodies])
        for result, body in zip(results, bodies, strict=True):
            found = await admin.view(result.offset_msg_id)
            assert (found.body == body, found.queue_id, found.queue_offset, found.msg_id) == (
                True, result.queue.queue_id, result.queue_offset, result.msg_id,
            )  # fmt: skip


async def test_a_batch_with_long_properties_is_stored_whole(name_server: str, topic: str) -> None:
    """4.9.7 adds some of its own, without a look at the sum: what was acknowledged then was never read again."""
    sent: list[bytes] = []
    async with sending(name_server, topic) as producer:
        for length in (32_000, 32_200, 32_400, 32_600):
            long, short = b"long %d" % length, b"short %d" % length
            properties = {"p": "x" * length}
            await producer.send_batch([Message(topic, long, properties=properties), Message(topic, short)])
            sent += [long, short]
    seen = Seen()
    async with consuming(name_server, topic, seen.handle):
        await seen.wait_for(len(sent))
    assert sorted(seen.bodies) == sorted(sent)


async def test_sends_that_are_joined_have_results_of_their_own(name_server: str, topic: str) -> None:
    options = ProducerOptions(send_message_timeout=12.0, auto_batch=True, batch_max_messages=50)
    results: dict[bytes, SendResult] = {}

    async with Producer(f"p-{topic}", name_server=name_server, options=options) as producer:

        async def send(body: bytes) -> None:
            results[body] = await producer.send(Message(topic, body, keys=[body.decode()]))

        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(send, b"k%d" % number)
    seen = Seen()
    async with consuming(name_server, topic, seen.handle):
        await seen.wait_for(200)
    told = {(each.body, each.msg_id, each.offset_msg_id, each.queue_id, each.queue_offset) for each in seen.messages}
    assert told == {
        (body, each.msg_id, each.offset_msg_id, each.queue.queue_id, each.queue_offset)
        for body, each in results.items()
    }


@pytest.mark.parametrize("way", [Compression.ZLIB, Compression.LZ4, Compression.ZSTD])
async def test_what_is_compressed_comes_as_it_was(name_server: str, topic: str, way: Compression) -> None:
    bodies = [b"all work and no play " * 300, bytes(1 << 20), b"small"]
    async with sending(name_server, topic) as producer, Admin(name_server=name_server) as admin:
        results = [await producer.send(Message(topic, body, compression=way)) for body in bodies]
        seen = Seen()
        async with consuming(name_server, topic, seen.handle):
            await seen.wait_for(3)
        assert sorted(seen.bodies, key=len) == sorted(bodies, key=len)
        # Only now: a broker answers a send before the message is in its queue.
        (stored,) = (await admin.pull(results[1].queue, results[1].queue_offset, 1, decompress=False)).messages
        assert len(stored.body) < 10_000
        assert (await admin.view(results[1].offset_msg_id)).body == bodies[1]


async def test_a_hash_key_travels_along_and_a_function_picks_the_queue(name_server: str, topic: str) -> None:
    async with sending(name_server, topic) as producer, Admin(name_server=name_server) as admin:
        keyed = await producer.send(Message(topic, b"keyed", hash_key="UA1545"))
        assert (await admin.view(keyed.offset_msg_id)).properties["__SHARDINGKEY"] == "UA1545"
        last = await producer.send(Message(topic, b"last"), queue=lambda queues, message: queues[-1])
        assert await pulled(admin, last)
        assert last.queue == max(await admin.queues(topic))


async def test_many_in_flight_and_one_way(name_server: str, topic: str) -> None:
    async with sending(name_server, topic) as producer:
        results = await producer.send_many([Message(topic, b"%d" % number) for number in range(500)])
        assert len({(result.queue, result.queue_offset) for result in results}) == 500
        for number in range(500, 520):
            await producer.send_one_way(Message(topic, b"%d" % number))
        await producer.send(Message(topic, b"520"))
    seen = Seen()
    async with consuming(name_server, topic, seen.handle):
        await seen.wait_for(521)
    assert Counter(seen.bodies) == Counter(b"%d" % number for number in range(521))


async def test_only_the_wanted_tags_come(name_server: str, topic: str) -> None:
    async with sending(name_server, topic) as producer:
        for tag in ("A", "B", "C", None, "A"):
            await producer.send(Message(topic, str(tag).encode(), tag=tag))
        seen = Seen()
        async with consuming(name_server, topic, seen.handle, expression="A || C"):
            await seen.wait_for(3)
            await producer.send(Message(topic, b"B", tag="B"))
            await producer.send(Message(topic, b"last", tag="C"))
            await seen.wait_for(4)
    assert sorted(seen.bodies) == [b"A", b"A", b"C", b"last"]


async def test_a_new_group_reads_a_young_queue_from_its_beginning_wherever_it_would_begin(
    name_server: str, topic: str
) -> None:
    """Brokers answer offset 0 to a new group while a queue still has its first message, as Java's clients know them."""
    async with sending(name_server, topic) as producer:
        await producer.send_many([Message(topic, b"old %d" % number) for number in range(40)])
        seen = Seen()
        async with consuming(name_server, topic, seen.handle, consume_from_where=ConsumeFromWhere.LAST_OFFSET):
            await producer.send_many([Message(topic, b"new %d" % number) for number in range(8)])
            await seen.wait_for(48)
    old, new = (b"old %d" % number for number in range(40)), (b"new %d" % number for number in range(8))
    assert Counter(seen.bodies) == Counter([*old, *new])


async def test_a_topic_that_comes_up_later_is_read_from_its_beginning(name_server: str, topic: str) -> None:
    seen = Seen()
    async with consuming(name_server, topic, seen.handle, consume_from_where=ConsumeFromWhere.LAST_OFFSET):
        async with sending(name_server, topic) as producer:
            for number in range(20):
                await producer.send(Message(topic, b"%d" % number))
        await seen.wait_for(20)
    assert sorted(seen.bodies, key=int) == [b"%d" % number for number in range(20)]


async def test_a_message_comes_back_later(name_server: str, topic: str) -> None:
    seen = Seen()

    async def handle(messages: list[MessageExt]) -> None:
        await seen.handle(messages)
        if messages[0].reconsume_times == 0:
            raise RetryLater(timedelta(seconds=1))

    async with sending(name_server, topic) as producer:
        result = await producer.send(Message(topic, b"again", tag="A", keys=("k",)))
    async with consuming(name_server, topic, handle):
        await seen.wait_for(2)
    first, second = seen.messages
    assert (second.topic, second.body, second.tag, second.keys) == (topic, b"again", "A", ("k",))
    assert first.msg_id == second.msg_id == result.msg_id
    assert (first.reconsume_times, second.reconsume_times) == (0, 1)
    assert second.properties["RETRY_TOPIC"] == topic


async def test_a_rejected_message_is_in_the_dead_letter_queue(name_server: str, topic: str) -> None:
    seen = Seen()

    async def handle(messages: list[MessageExt]) -> None:
        await seen.handle(messages)
        if messages[0].body == b"bad":
            raise Reject("it is bad")

    async with sending(name_server, topic) as producer:
        for body in (b"good", b"bad", b"good"):
            await producer.send(Message(topic, body))
    async with consuming(name_server, topic, handle), Admin(name_server=name_server) as admin:
        await seen.wait_for(3)
        with anyio.fail_after(SECONDS):
            while True:
                try:
                    (queue,) = await admin.queues(f"%DLQ%g-{topic}")
                    if await admin.max_offset(queue):
                        break
                except NoRouteError:
                    pass
                await anyio.sleep(0.1)  # the dead letter is stored by the broker, which tells nobody
        (dead,) = (await admin.pull(queue, 0)).messages
    assert dead.body == b"bad"
    assert dead.properties["RETRY_TOPIC"] == topic
    assert len(seen.messages) == 3


async def test_a_dead_letter_that_fails_comes_back_to_its_listener(name_server: str, topic: str) -> None:
    """It still says which topic it was first sent to, and brokers copy that when it is given back."""
    buried, seen = anyio.Event(), Seen()

    async def bury(messages: list[MessageExt]) -> None:
        buried.set()
        raise Reject("it is bad")

    async def look(messages: list[MessageExt]) -> None:
        await seen.handle(messages)
        if messages[0].reconsume_times <= 1:  # it was counted when it was buried
            raise RetryLater(timedelta(seconds=1))

    async with sending(name_server, topic) as producer, consuming(name_server, topic, bury):
        await producer.send(Message(topic, b"bad"))
        with anyio.fail_after(SECONDS):
            await buried.wait()
    dead = f"%DLQ%g-{topic}"
    async with consuming(name_server, dead, look, group=f"morgue-{topic}"):
        await seen.wait_for(2)
    assert [(message.topic, message.body) for message in seen.messages] == [(dead, b"bad")] * 2
    first, second = seen.messages
    assert first.properties["RETRY_TOPIC"] == second.properties["DLQ_ORIGIN_TOPIC"] == topic


async def test_an_orderly_queue_waits_for_the_message_that_failed(name_server: str, topic: str) -> None:
    seen = Seen()
    failures = itertools.count()

    async def handle(messages: list[MessageExt]) -> None:
        await seen.handle(messages)
        if messages[0].body == b"2" and next(failures) < 2:
            raise RetryLater(timedelta(milliseconds=100))

    async with sending(name_server, topic) as producer:
        for number in range(5):
            await producer.send(Message(topic, b"%d" % number, hash_key="one"))
    async with consuming(name_server, topic, handle, consume_mode=ConsumeMode.ORDERLY):
        await seen.wait_for(7)
    assert seen.bodies == [b"0", b"1", b"2", b"2", b"2", b"3", b"4"]


async def test_two_members_share_the_queues_and_one_takes_over(name_server: str, topic: str) -> None:
    first, second = Seen(), Seen()
    async with sending(name_server, topic) as producer:
        await producer.send(Message(topic, b"first"))
        async with consuming(name_server, topic, first.handle) as one:
            await first.wait_for(1)
            async with consuming(name_server, topic, second.handle) as two:
                with anyio.fail_after(SECONDS):
                    while {len(queues_of(member, topic)) for member in (one, two)} != {2}:
                        await anyio.sleep(0.05)
                await producer.send_many([Message(topic, b"%d" % number) for number in range(40)])
                with anyio.fail_after(SECONDS):
                    while len({*first.bodies, *second.bodies} - {b"first"}) < 40:
                        await anyio.sleep(0.05)
                assert second.messages
            await producer.send_many([Message(topic, b"after %d" % number) for number in range(8)])
            with anyio.fail_after(SECONDS):
                while len([body for body in first.bodies if body.startswith(b"after")]) < 8:
                    await anyio.sleep(0.05)
    after = {b"after %d" % number for number in range(8)}
    assert set(first.bodies) | set(second.bodies) == {b"first", *(b"%d" % number for number in range(40)), *after}
    assert not after & set(second.bodies)


async def test_a_group_goes_on_where_it_stopped(name_server: str, topic: str) -> None:
    first, second = Seen(), Seen()
    async with sending(name_server, topic) as producer:
        await producer.send_many([Message(topic, b"%d" % number) for number in range(100)])
        async with consuming(name_server, topic, first.handle):
            await first.wait_for(100)
        await producer.send(Message(topic, b"next"))
        async with consuming(name_server, topic, second.handle):
            await second.wait_for(1)
    assert second.bodies == [b"next"]


async def test_limits_are_known_before_anything_is_sent(name_server: str, topic: str) -> None:
    async with sending(name_server, topic) as producer:
        largest = await producer.send(Message(topic, b"x" * 4_194_304))
        assert largest.queue_offset == 0
        for message in (
            Message(topic, b""),
            Message(topic, b"x" * 4_194_305),
            Message("no spaces", b"x"),
            Message("t" * 128, b"x"),
            Message(topic, b"x", properties={"KEYS": "reserved"}),
            Message(topic, b"x", properties={"a": "\x01"}),
        ):
            with pytest.raises(InvalidMessageError):
                await producer.send(message)
