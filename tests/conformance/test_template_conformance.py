"""The template in threads, messages sent on, and headers: our client on the embedded broker and on Apache's."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import anyio
import anyio.to_thread
import pytest

from rocketbox.client import ConsumerOptions, Producer, PushConsumer
from rocketbox.message import ConsumeFromWhere, MessageExt, SendStatus
from rocketbox.template import RocketMQTemplate

pytestmark = [pytest.mark.apache, pytest.mark.anyio]

SECONDS = 60
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
