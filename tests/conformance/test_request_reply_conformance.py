"""Requests and replies: our client with itself and with Apache's Java client, on the embedded broker and Apache's."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest

from rocketbox.client import ConsumerOptions, Producer, PushConsumer
from rocketbox.errors import BrokerError, ReplyError, ReplyTimeoutError
from rocketbox.message import ConsumeFromWhere, Message, MessageExt
from tests.conformance.apache import EACH_VERSION, NEWEST
from tests.conformance.java_program import JavaProgram
from tests.conformance.servers import EMBEDDED, running_name_server

pytestmark = [pytest.mark.apache, pytest.mark.anyio]

SECONDS = 60
OLDEST = "4.9.7"
FIRST = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)


@pytest.fixture(scope="module", params=[EMBEDDED, *EACH_VERSION])
def name_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_name_server(request.param, tmp_path_factory.mktemp(request.param)) as address:
        yield address


def answering(consumer: PushConsumer) -> Any:
    async def answer(messages: list[MessageExt]) -> None:
        for message in messages:
            if "REPLY_TO_CLIENT" not in message.properties:
                continue
            if message.body == b"fail":
                raise KeyError("no seat")
            if message.body != b"never":
                await consumer.reply(message, b"python:" + message.body, properties={"unit": "EUR"})

    return answer


@pytest.mark.smoke
async def test_our_client_answers_itself(name_server: str, anyio_backend: str) -> None:
    topic, group = f"t{uuid.uuid4().hex[:12]}", f"g{uuid.uuid4().hex[:12]}"
    async with (
        Producer("p", name_server=name_server) as maker,
        Producer("asker", name_server=name_server) as producer,
        PushConsumer(group, name_server=name_server, options=FIRST) as consumer,
    ):
        await maker.send(Message(topic, b"makes the topic"))
        await consumer.subscribe(topic, "*", answering(consumer))
        first = await producer.request(Message(topic, "größer".encode()), timeout=SECONDS)
        assert first.body == "python:größer".encode()
        assert first.topic == "DefaultCluster_REPLY_TOPIC"
        assert first.properties["unit"] == "EUR"
        with pytest.raises(ReplyError, match="KeyError: 'no seat'"):
            await producer.request(Message(topic, b"fail"), timeout=SECONDS)
        with pytest.raises(ReplyTimeoutError):
            await producer.request(Message(topic, b"never"), timeout=0.5)

        async def ask(number: int) -> None:
            reply = await producer.request(Message(topic, b"%d" % number), timeout=SECONDS)
            assert reply.body == b"python:%d" % number

        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(ask, number)
        assert (len(producer.instance.waiting_requests), producer.instance.waiting_requests.late) == (0, 0)


async def test_a_reply_to_nobody_is_refused(name_server: str, anyio_backend: str) -> None:
    topic, group = f"t{uuid.uuid4().hex[:12]}", f"g{uuid.uuid4().hex[:12]}"
    refused: list[BrokerError] = []
    async with (
        Producer("p", name_server=name_server) as maker,
        PushConsumer(group, name_server=name_server, options=FIRST) as consumer,
    ):
        await maker.send(Message(topic, b"makes the topic"))
        done = anyio.Event()

        async def answer(messages: list[MessageExt]) -> None:
            if "CORRELATION_ID" not in messages[0].properties:
                return
            messages[0].set_property("REPLY_TO_CLIENT", "192.0.2.1@nobody")
            try:
                await consumer.reply(messages[0], b"x")
            except BrokerError as error:
                refused.append(error)
            done.set()

        await consumer.subscribe(topic, "*", answer)
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                with pytest.raises(ReplyTimeoutError):
                    await maker.request(Message(topic, b"?"), timeout=10)

            tasks.start_soon(ask)
            with anyio.fail_after(SECONDS):
                await done.wait()
    assert refused[0].code == 1
    assert refused[0].remark == "push reply message fail, channel of <192.0.2.1@nobody> not found."


@pytest.mark.parametrize("version", [NEWEST, OLDEST])  # the one of 5.3.3 waits for the answer to its send alone
@pytest.mark.smoke
async def test_javas_client_asks_and_answers_on_the_embedded_broker(
    version: str, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> None:
    with running_name_server(EMBEDDED, tmp_path_factory.mktemp("embedded")) as name_server:
        await java_and_ours_ask_each_other(name_server, version)


async def test_javas_client_asks_and_answers_ours_on_apaches_servers(
    tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> None:
    with running_name_server(NEWEST, tmp_path_factory.mktemp("apache")) as name_server:
        await java_and_ours_ask_each_other(name_server, NEWEST)


async def java_and_ours_ask_each_other(name_server: str, version: str) -> None:
    for_java, for_ours, group = (f"{kind}{uuid.uuid4().hex[:12]}" for kind in ("j", "p", "g"))
    arguments = (name_server, for_java, for_ours, f"java-{group}", "5000")
    async with (
        Producer("asker", name_server=name_server) as producer,
        PushConsumer(group, name_server=name_server, options=FIRST) as consumer,
    ):
        for topic in (for_java, for_ours):
            await producer.send(Message(topic, b"makes the topic"))
        await consumer.subscribe(for_ours, "*", answering(consumer))
        with JavaProgram("rocketbox.Replies", *arguments, options=("-Xmx256m",), version=version) as java:

            async def told() -> str:
                line = await anyio.to_thread.run_sync(java.told.readline, abandon_on_cancel=True)
                return line.strip()

            with anyio.fail_after(SECONDS):
                assert await told() == "joined", java.errors
                java.tell("what does it cost")
                assert await told() == "< python:what does it cost", java.errors
                for number in range(20):
                    java.tell(f"again {number}")
                    assert await told() == f"< python:again {number}", java.errors
                java.tell("never")
                assert await told() == "timeout"
                java.tell("fail")  # a client of Apache's would take an error for an answer
                assert await told() == "timeout"
                reply = await producer.request(Message(for_java, b"and yours"), timeout=SECONDS)
                assert reply.body == b"java:and yours"
                assert reply.properties["MSG_TYPE"] == "reply"
                big = b"x" * 100_000  # compressed by Java's client
                reply = await producer.request(Message(for_java, big), timeout=SECONDS)
                assert reply.body == b"java:" + big
        assert producer.instance.waiting_requests.late == 0
