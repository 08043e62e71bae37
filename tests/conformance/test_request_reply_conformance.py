"""Requests and replies: our client with itself and with Apache's Java client, on the embedded broker and Apache's."""

from __future__ import annotations

import sys
import time
import uuid
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.streams.text import TextReceiveStream

from rocketbox.client import Admin, ConsumerOptions, Producer, PushConsumer
from rocketbox.errors import BrokerError, ReplyError, ReplyTimeoutError
from rocketbox.message import ConsumeFromWhere, Message, MessageExt
from tests.conformance.apache import EACH_BUT_NEWEST_BETWEEN, NEWEST
from tests.conformance.java_exchange import SMALL_AND_QUICK
from tests.conformance.java_program import SPRING, JavaProgram, build
from tests.conformance.servers import EMBEDDED

pytestmark = [pytest.mark.apache, pytest.mark.anyio]

SECONDS = 60
OLDEST = "4.9.7"
RELEASED = "2.3.3"  # of rocketmq-spring
FIRST = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)


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


@pytest.mark.smoke
@pytest.mark.parametrize("name_server", EACH_BUT_NEWEST_BETWEEN, indirect=True)  # it waits for some seconds
async def test_who_asks_a_process_that_is_killed_waits_as_long_as_it_said_and_the_next_one_answers_to_nobody(
    name_server: str, anyio_backend: str
) -> None:
    """Brokers give the killed one's requests to the next member, whose reply is late: it is counted and dropped."""
    topic, group = f"t{uuid.uuid4().hex[:12]}", f"g{uuid.uuid4().hex[:12]}"
    command = [sys.executable, "-m", "tests.support.client.consumer_process", name_server, group, topic]
    async with Producer("asker", name_server=name_server) as producer:
        await producer.send(Message(topic, b"makes the topic"))
        async with await anyio.open_process(command, stderr=None) as killed:
            assert killed.stdout is not None
            said = TextReceiveStream(killed.stdout)
            told = ""

            async def until_told(line: str) -> None:
                nonlocal told
                with anyio.fail_after(SECONDS):
                    while line not in told.splitlines():
                        told += await said.receive()

            await until_told("ready")
            asked = False

            async def ask() -> None:
                nonlocal asked
                before = time.monotonic()
                with pytest.raises(ReplyTimeoutError, match=r"within 4 s"):
                    await producer.request(Message(topic, b"what does it cost"), timeout=4)
                assert time.monotonic() - before >= 4
                asked = True

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await until_told("begun what does it cost")
                killed.kill()
                await killed.wait()
                assert not asked
            assert len(producer.instance.waiting_requests) == 0
        answered: list[bytes] = []
        async with PushConsumer(group, name_server=name_server, options=FIRST) as consumer:

            async def answer(messages: list[MessageExt]) -> None:
                for message in messages:
                    if "REPLY_TO_CLIENT" in message.properties:
                        answered.append(message.body)
                        await consumer.reply(message, b"python:" + message.body)

            await consumer.subscribe(topic, "*", answer)
            with anyio.fail_after(SECONDS):
                while not answered or producer.instance.waiting_requests.late < 1:
                    await anyio.sleep(0.05)
            reply = await producer.request(Message(topic, b"and now"), timeout=SECONDS)
            assert reply.body == b"python:and now"
            assert answered == [b"what does it cost", b"and now"]
            assert (len(producer.instance.waiting_requests), producer.instance.waiting_requests.late) == (0, 1)


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
@pytest.mark.parametrize("name_server", [EMBEDDED], indirect=True)
@pytest.mark.smoke
async def test_javas_client_asks_and_answers_on_the_embedded_broker(
    version: str, name_server: str, anyio_backend: str
) -> None:
    await java_and_ours_ask_each_other(name_server, version)


@pytest.mark.parametrize("name_server", [NEWEST], indirect=True)
async def test_javas_client_asks_and_answers_ours_on_apaches_servers(name_server: str, anyio_backend: str) -> None:
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
        with JavaProgram("rocketbox.Replies", *arguments, options=SMALL_AND_QUICK, version=version) as java:

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


@pytest.mark.parametrize("name_server", [EMBEDDED], indirect=True)
async def test_rocketmq_springs_template_and_reply_listener_ask_and_answer_ours(
    name_server: str, anyio_backend: str
) -> None:
    try:
        build(RELEASED, SPRING)
    except RuntimeError as error:
        pytest.skip(f"Maven has no rocketmq-spring {RELEASED} here: {error}")
    for_spring, for_ours, group = (f"{kind}{uuid.uuid4().hex[:12]}" for kind in ("s", "p", "g"))
    async with Admin(name_server=name_server) as admin:
        for topic in (for_spring, for_ours):
            await admin.create_topic(topic)
    settings = {
        "rocketmq.name-server": name_server,
        "rocketmq.producer.group": f"spring-{group}",
        "rocketmq.producer.send-message-timeout": 12_000,
        "answer.topic": for_spring,
        "ask.topic": for_ours,
        "logging.level.root": "ERROR",
        "spring.main.banner-mode": "off",
    }
    spring = JavaProgram(
        "rocketbox.SpringReplies", *(f"--{key}={value}" for key, value in settings.items()),
        options=SMALL_AND_QUICK, version=RELEASED, project=SPRING,
    )  # fmt: skip
    async with (
        Producer("asker", name_server=name_server) as producer,
        PushConsumer(group, name_server=name_server, options=FIRST) as consumer,
    ):
        await consumer.subscribe(for_ours, "*", answering(consumer))
        with spring as java:

            async def told() -> str:
                """What it says next, without what its libraries print."""
                while True:
                    line: str = await anyio.to_thread.run_sync(java.told.readline, abandon_on_cancel=True)
                    if not line or line.startswith(("joined", "< ", "failed")):
                        return line.strip()

            with anyio.fail_after(SECONDS):
                assert await told() == "joined", java.errors
                for number in range(5):
                    java.tell(f"what does {number} cost")
                    assert await told() == f"< python:what does {number} cost", java.errors
                for question in ("and yours", "größer"):
                    reply = await producer.request(Message(for_spring, question.encode()), timeout=SECONDS)
                    assert reply.body.decode() == f"spring:{question}"
