"""The template's ways to send, also from threads, and headers: our client on the embedded broker and on Apache's."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import anyio
import anyio.to_thread
import pytest
from pydantic import BaseModel

from rocketbox.client import Admin, ConsumerOptions, Producer, ProducerOptions, PushConsumer, Transaction
from rocketbox.errors import ReplyError
from rocketbox.message import ConsumeFromWhere, LocalTransactionState, MessageExt, SendStatus
from rocketbox.protocol.tags import java_string_hash
from rocketbox.template import RocketMQTemplate

pytestmark = [pytest.mark.apache, pytest.mark.anyio]

SECONDS = 60
SEND = ProducerOptions(send_message_timeout=12.0)
FIRST = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)


async def consumed(name_server: str, topic: str, count: int) -> list[MessageExt]:
    """What lies in a topic."""
    got: list[MessageExt] = []

    async def take(messages: list[MessageExt]) -> None:
        got.extend(messages)

    async with PushConsumer(f"g{uuid.uuid4().hex[:12]}", name_server=name_server, options=FIRST) as consumer:
        await consumer.subscribe(topic, "*", take)
        with anyio.fail_after(SECONDS):
            while len(got) < count:
                await anyio.sleep(0.05)
    return got


@pytest.mark.smoke
async def test_threads_send_by_the_blocking_template(name_server: str, topic: str) -> None:
    def send_all(template: RocketMQTemplate) -> None:
        blocking = template.blocking
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda number: blocking.send(topic, f"{number}", keys=f"k{number}"), range(100)))
        assert {result.status for result in results} == {SendStatus.SEND_OK}
        assert len({result.msg_id for result in results}) == 100
        assert len(blocking.send_many(topic, [f"{number}" for number in range(100, 150)])) == 50
        assert len(blocking.send_batch(topic, [f"{number}" for number in range(150, 200)])) == 50
        blocking.send_one_way(topic, "200")
        blocking.send(topic, "201", hash_key="a", timeout="5s")

    async with Producer("threads", name_server=name_server) as producer:
        template = RocketMQTemplate(producer)
        await template.send(topic, "makes the topic")
        await anyio.to_thread.run_sync(send_all, template)
        got = await consumed(name_server, topic, 203)
    assert sorted(message.body for message in got) == sorted(
        [b"makes the topic", *(b"%d" % each for each in range(202))]
    )


@pytest.mark.smoke
async def test_a_message_is_sent_on_and_headers_travel(name_server: str, topic: str) -> None:
    async with Producer("forwards", name_server=name_server) as producer:
        template = RocketMQTemplate(producer, spring_headers=True)
        at = datetime(2026, 11, 23, 12, tzinfo=UTC)
        await template.send(f"{topic}:a", {"n": 1}, keys=["k", "l"], hash_key="h", headers={"at": at, "größe": 1.5})
        (first,) = await consumed(name_server, topic, 1)
        await template.send(f"{topic}-on", first)
        (second,) = await consumed(name_server, f"{topic}-on", 1)
    for message in (first, second):
        assert (message.body, message.tag, message.keys) == (b'{"n":1}', "a", ("k", "l"))
        properties = message.properties
        assert (properties["at"], properties["größe"]) == ("2026-11-23T12:00:00+00:00", "1.5")
        assert (properties["__SHARDINGKEY"], properties["contentType"]) == ("h", "application/json")
    assert first.msg_id != second.msg_id
    assert first.properties["id"] != second.properties["id"]


class Quote(BaseModel):
    flight: str
    price: float


@pytest.mark.smoke
async def test_a_request_of_the_template_is_answered_with_a_value_of_its_type(name_server: str, topic: str) -> None:
    asked: list[MessageExt] = []
    async with (
        Producer(f"p-{topic}", name_server=name_server, options=SEND) as producer,
        PushConsumer(f"g-{topic}", name_server=name_server, options=FIRST) as consumer,
    ):
        template = RocketMQTemplate(producer)
        await template.send(topic, "makes the topic")

        async def answer(messages: list[MessageExt]) -> None:
            for message in messages:
                if "REPLY_TO_CLIENT" in message.properties:
                    asked.append(message)
                    if message.tag == "refused":
                        raise ValueError("no such flight")
                    await consumer.reply(message, b'{"flight": "UA1545", "price": 99.5}')

        await consumer.subscribe(topic, "*", answer)
        wanted, headers = Quote(flight="UA1545", price=0), {"desk": "JFK"}
        found = await template.send_and_receive(
            f"{topic}:quotes", wanted, Quote, keys="k", headers=headers, timeout="60s"
        )
        assert found == Quote(flight="UA1545", price=99.5)
        with pytest.raises(ReplyError, match="ValueError: no such flight"):
            await template.send_and_receive(f"{topic}:refused", wanted, Quote, timeout="60s")
        blocking = template.blocking
        again = await anyio.to_thread.run_sync(
            lambda: blocking.send_and_receive(f"{topic}:quotes", wanted, dict[str, object], hash_key="h", timeout="60s")
        )
        assert again == {"flight": "UA1545", "price": 99.5}
    first, _, last = asked
    assert Quote.model_validate_json(first.body) == wanted
    assert (first.tag, first.keys, first.properties["desk"]) == ("quotes", ("k",), "JFK")
    assert last.properties["__SHARDINGKEY"] == "h"


@pytest.mark.smoke
async def test_what_the_template_commits_comes_and_what_it_rolls_back_or_recalls_does_not(
    name_server: str, kind: str, topic: str
) -> None:
    async def check(message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT if message.tag == "unknown" else LocalTransactionState.ROLLBACK

    async def works(transaction: Transaction) -> LocalTransactionState:
        return LocalTransactionState.COMMIT

    def works_not(transaction: Transaction) -> LocalTransactionState:
        return LocalTransactionState.ROLLBACK

    async with Producer(f"p-{topic}", name_server=name_server, options=SEND, transaction_checker=check) as producer:
        template = RocketMQTemplate(producer)
        async with template.transaction(f"{topic}:paid", {"n": 1}, keys="k", hash_key="h", headers={"desk": "JFK"}):
            pass
        with pytest.raises(ValueError, match="the work failed"):
            async with template.transaction(f"{topic}:paid", {"n": 2}):
                raise ValueError("the work failed")
        async with template.transaction(f"{topic}:unknown", {"n": 3}) as unknown:
            unknown.unknown()
        done = await template.send_in_transaction(f"{topic}:done", {"n": 4}, works)
        undone = await template.send_in_transaction(f"{topic}:done", {"n": 5}, works_not)
        assert (done.state, undone.state) == (LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK)
        if not kind.startswith("4."):  # which knows no recall
            late = await template.send(f"{topic}:late", {"n": 6}, delay="2s")
            assert await template.recall(late.recall_handle) == late.msg_id
        await template.send(f"{topic}:last", {"n": 7}, delay="4s" if not kind.startswith("4.") else "5s")
        got = await consumed(name_server, topic, 4)  # the broker asks about one of them, and the last one is late
    assert {message.body: message.tag for message in got} == {
        b'{"n":1}': "paid", b'{"n":3}': "unknown", b'{"n":4}': "done", b'{"n":7}': "last",
    }  # fmt: skip
    assert len(got) == 4
    (first,) = [message for message in got if message.body == b'{"n":1}']
    assert (first.keys, first.properties["__SHARDINGKEY"], first.properties["desk"]) == (("k",), "h", "JFK")


@pytest.mark.smoke
async def test_orderly_sends_of_the_template_keep_their_queue_with_a_delay_level_and_from_tasks(
    name_server: str, topic: str
) -> None:
    """rocketmq-spring's ``syncSendOrderly`` with a delay level, and ``asyncSendOrderly``."""
    keys = [f"key-{number}" for number in range(5)]
    async with (
        Producer(f"p-{topic}", name_server=name_server, options=SEND) as producer,
        Admin(name_server=name_server) as admin,
    ):
        await admin.create_topic(topic, queues=4)
        template = RocketMQTemplate(producer)

        async def send_in_order(key: str) -> None:
            for number in range(3):
                await template.send(topic, f"{key} at once {number}", hash_key=key)
                await template.send(topic, f"{key} delayed {number}", hash_key=key, delay_level=1)

        async with anyio.create_task_group() as tasks:
            for key in keys:
                tasks.start_soon(send_in_order, key)
        got = await consumed(name_server, topic, 30)
    places = {
        key: [
            (each.queue_id, each.queue_offset, each.body.decode()) for each in got if each.body.startswith(key.encode())
        ]
        for key in keys
    }
    for key, found in places.items():
        assert {queue for queue, _, _ in found} == {abs(java_string_hash(key)) % 4}, key
        bodies = [body for _, _, body in sorted(found)]
        for way in ("at once", "delayed"):
            assert [body for body in bodies if way in body] == [f"{key} {way} {number}" for number in range(3)]
    assert len(got) == 30
