"""Requests and replies over the embedded servers: who gets which reply, what errors become, and what is left behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from rocketbox.client import ClientOptions, ConsumerOptions, MQClientInstance, Producer, PushConsumer
from rocketbox.client.middleware import SendContext, SendNext
from rocketbox.client.outcomes import MessageHandler
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.errors import (
    BrokerError,
    ClientError,
    ClientStateError,
    InvalidMessageError,
    Reject,
    ReplyError,
    ReplyTimeoutError,
)
from rocketbox.message import ConsumeFromWhere, ConsumeMode, Message, MessageExt, SendResult
from rocketbox.protocol.codes import SerializeType
from rocketbox.remoting.options import RemotingOptions
from tests.support.broker.broker_process import BrokerProcess
from tests.support.loops import anyio_backend as anyio_backend
from tests.support.process_lines import running_module
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

FIRST = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)


def servers(directory: Path, **settings: object) -> EmbeddedServers:
    broker = {name.replace("_", "-"): value for name, value in settings.items()}
    return EmbeddedServers(EmbeddedOptions(data_dir=directory, name_server_port=0, port=0, broker=broker))


@asynccontextmanager
async def desk(
    cluster: EmbeddedServers, *, client: ClientOptions | None = None, options: ConsumerOptions = FIRST
) -> AsyncIterator[PushConsumer]:
    """A consumer of the topic "quotes", which is there."""
    async with Producer("maker", name_server=cluster.name_server_address, client_options=client) as producer:
        await producer.send(Message("quotes", b"makes the topic"))
    async with PushConsumer(
        "desk", name_server=cluster.name_server_address, options=options, client_options=client
    ) as consumer:
        yield consumer


async def copies_are(cluster: EmbeddedServers, count: int) -> None:
    """That so many replies lie in the topic of replies; they are seen there a moment later."""
    with anyio.fail_after(PATIENCE):
        while cluster.broker.store.max_offset("DefaultCluster_REPLY_TOPIC", 0) < count:
            await anyio.sleep(0.01)
    await anyio.sleep(0.05)
    assert cluster.broker.store.max_offset("DefaultCluster_REPLY_TOPIC", 0) == count


def doubling(consumer: PushConsumer) -> MessageHandler:
    async def handle(messages: list[MessageExt]) -> None:
        for message in messages:
            if "REPLY_TO_CLIENT" in message.properties:
                await consumer.reply(message, message.body * 2, properties={"unit": "EUR"})

    return handle


@pytest.mark.parametrize("serialization", [SerializeType.ROCKETMQ, SerializeType.JSON])
@pytest.mark.parametrize("namespace", [None, "team"])
async def test_a_request_is_answered(tmp_path: Path, serialization: SerializeType, namespace: str | None) -> None:
    client = ClientOptions(remoting=RemotingOptions(serialization=serialization), namespace=namespace)
    async with servers(tmp_path) as cluster, desk(cluster, client=client) as consumer:
        await consumer.subscribe("quotes", "*", doubling(consumer))
        async with Producer("asker", name_server=cluster.name_server_address, client_options=client) as producer:
            reply = await producer.request(Message("quotes", "Zürich".encode(), keys=["k1"]), timeout=PATIENCE)
            assert reply.body == "ZürichZürich".encode()
            assert reply.topic == "DefaultCluster_REPLY_TOPIC"
            assert reply.properties["unit"] == "EUR"
            assert {"MSG_TYPE", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "PUSH_REPLY_TIME", "ARRIVE_TIME"} <= set(
                reply.properties
            )
            assert reply.properties["TTL"] == str(round(PATIENCE * 1000))
            assert len(producer.instance.waiting_requests) == 0
            assert producer.instance.waiting_requests.late == 0


async def test_each_of_many_gets_its_own_reply(tmp_path: Path) -> None:
    async with (
        servers(tmp_path) as cluster,
        desk(cluster) as consumer,
        Producer("one", name_server=cluster.name_server_address) as one,
        Producer("other", name_server=cluster.name_server_address) as other,
    ):
        await consumer.subscribe("quotes", "*", doubling(consumer))
        wrong: list[bytes] = []

        async def ask(producer: Producer, body: bytes) -> None:
            reply = await producer.request(Message("quotes", body), timeout=PATIENCE)
            if reply.body != body * 2:
                wrong.append(body)

        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(ask, one if number % 2 else other, b"%d-" % number)
        assert wrong == []
        for producer in (one, other):
            assert len(producer.instance.waiting_requests) == 0
            assert producer.instance.waiting_requests.late == 0


async def test_without_a_reply_the_time_is_over_and_a_late_one_is_counted_and_dropped(tmp_path: Path) -> None:
    """Row C46 of the catalogue of failures: late, and twice."""
    answer = anyio.Event()
    async with servers(tmp_path) as cluster, desk(cluster) as consumer:

        async def late(messages: list[MessageExt]) -> None:
            for message in messages:
                if "REPLY_TO_CLIENT" in message.properties:
                    await answer.wait()
                    await consumer.reply(message, b"late")
                    await consumer.reply(message, b"and twice")

        await consumer.subscribe("quotes", "*", late)
        async with Producer("asker", name_server=cluster.name_server_address) as producer:
            with pytest.raises(ReplyTimeoutError, match=r"got no reply within 0\.3 s") as caught:
                await producer.request(Message("quotes", b"x"), timeout=0.3)
            assert caught.value.topic == "quotes"
            assert len(producer.instance.waiting_requests) == 0
            answer.set()
            with anyio.fail_after(PATIENCE):
                while producer.instance.waiting_requests.late < 2:
                    await anyio.sleep(0.01)


@pytest.mark.parametrize("mode", list(ConsumeMode))
async def test_the_exception_of_a_handler_is_the_answer_and_the_message_does_not_come_again(
    tmp_path: Path, mode: ConsumeMode
) -> None:
    seen: list[bytes] = []

    async def fail(messages: list[MessageExt]) -> None:
        for message in messages:
            seen.append(message.body)
            if message.body == b"plain":
                return
            if "REPLY_TO_CLIENT" in message.properties:
                raise KeyError("no seat\x01left")

    options = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, consume_mode=mode)
    async with servers(tmp_path) as cluster, desk(cluster, options=options) as consumer:
        await consumer.subscribe("quotes", "*", fail)
        async with Producer("asker", name_server=cluster.name_server_address) as producer:
            with pytest.raises(ReplyError) as caught:
                await producer.request(Message("quotes", b"seat 7"), timeout=PATIENCE)
            assert caught.value.error_class == "KeyError"
            assert caught.value.message == "'no seat\\x01left'"
            assert caught.value.reply is not None
            sent = await producer.send(Message("quotes", b"plain"))
            with anyio.fail_after(PATIENCE):
                while b"plain" not in seen or consumer.state().held:
                    await anyio.sleep(0.01)
            assert sent.queue.topic == "quotes"
    assert seen.count(b"seat 7") == 1


async def test_what_is_rejected_is_told_and_buried(tmp_path: Path) -> None:
    async def reject(messages: list[MessageExt]) -> None:
        if "REPLY_TO_CLIENT" in messages[0].properties:
            raise Reject("no such flight")

    async with servers(tmp_path) as cluster, desk(cluster) as consumer:
        await consumer.subscribe("quotes", "*", reject)
        async with Producer("asker", name_server=cluster.name_server_address) as producer:
            with pytest.raises(ReplyError, match="Reject: no such flight"):
                await producer.request(Message("quotes", b"UA0"), timeout=PATIENCE)
            with anyio.fail_after(PATIENCE):
                while not cluster.broker.store.max_offset("%DLQ%desk", 0):
                    await anyio.sleep(0.01)


async def test_who_does_not_ask_gets_no_reply(tmp_path: Path) -> None:
    refused: list[ClientError] = []
    done = anyio.Event()

    async with servers(tmp_path) as cluster, desk(cluster) as consumer:

        async def handle(messages: list[MessageExt]) -> None:
            try:
                await consumer.reply(messages[0], b"x")
            except ClientError as error:
                refused.append(error)
            done.set()

        await consumer.subscribe("quotes", "*", handle)
        with anyio.fail_after(PATIENCE):
            await done.wait()
    assert "asks for no reply: it has no property CORRELATION_ID, REPLY_TO_CLIENT" in str(refused[0])


async def test_a_reply_to_a_client_that_is_gone_is_refused_in_apaches_words(tmp_path: Path) -> None:
    caught: list[BrokerError] = []
    asked, done, gone = anyio.Event(), anyio.Event(), anyio.Event()

    async with servers(tmp_path) as cluster, desk(cluster) as consumer:

        async def handle(messages: list[MessageExt]) -> None:
            if "REPLY_TO_CLIENT" not in messages[0].properties:
                return
            asked.set()
            await gone.wait()
            messages[0].set_property("TTL", "0")  # nobody waits any more, so the brokers are asked once
            try:
                await consumer.reply(messages[0], b"x")
            except BrokerError as error:
                caught.append(error)
            done.set()

        await consumer.subscribe("quotes", "*", handle)
        async with (
            anyio.create_task_group() as tasks,
            Producer("asker", name_server=cluster.name_server_address) as producer,
        ):
            client_id = producer.instance.client_id

            async def ask() -> None:
                with pytest.raises(ClientStateError, match="was closed while request"):
                    await producer.request(Message("quotes", b"x"), timeout=PATIENCE)

            tasks.start_soon(ask)
            with anyio.fail_after(PATIENCE):
                await asked.wait()
        with anyio.fail_after(PATIENCE):
            while cluster.broker.producers.connection_of(client_id) is not None:
                await anyio.sleep(0.01)
            gone.set()
            await done.wait()
        await copies_are(cluster, 1)  # as Apache stores it
    assert (caught[0].code, caught[0].remark) == (1, f"push reply message fail, channel of <{client_id}> not found.")


@pytest.mark.parametrize("stored", [True, False])
async def test_copies_of_replies_are_stored_if_they_are_to_be(tmp_path: Path, stored: bool) -> None:
    async with servers(tmp_path, store_reply_message_enable=stored) as cluster, desk(cluster) as consumer:
        await consumer.subscribe("quotes", "*", doubling(consumer))
        async with Producer("asker", name_server=cluster.name_server_address) as producer:
            for _ in range(3):
                await producer.request(Message("quotes", b"x"), timeout=PATIENCE)
        await copies_are(cluster, 3 if stored else 0)


async def test_middlewares_see_the_send_of_a_request(tmp_path: Path) -> None:
    seen: list[tuple[bytes, SendResult | None]] = []

    async def see(context: SendContext, call_next: SendNext) -> SendResult | None:
        result = await call_next(context)
        seen.append((context.messages[0].body, result))
        return result

    async with servers(tmp_path) as cluster, desk(cluster) as consumer:
        await consumer.subscribe("quotes", "*", doubling(consumer))
        async with (
            MQClientInstance(cluster.name_server_address, options=ClientOptions(send_middleware=(see,))) as instance,
            Producer("asker", instance=instance) as producer,
        ):
            assert (await producer.request(Message("quotes", b"a"), timeout=PATIENCE)).body == b"aa"
            with pytest.raises(InvalidMessageError):
                await producer.request(Message("quotes", b""), timeout=PATIENCE)
            assert len(instance.waiting_requests) == 0
    ((body, result),) = seen
    assert body == b"a"
    assert result is not None
    assert result.queue.topic == "quotes"


async def test_a_request_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    async with (
        servers(tmp_path) as cluster,
        desk(cluster),
        Producer("asker", name_server=cluster.name_server_address) as producer,
    ):
        for _ in range(3):
            with anyio.move_on_after(0.05):
                await producer.request(Message("quotes", b"x"), timeout=PATIENCE)
        assert len(producer.instance.waiting_requests) == 0


async def test_a_broker_that_was_killed_knows_who_asked_when_it_is_back(tmp_path: Path) -> None:
    begun, back = anyio.Event(), anyio.Event()
    first = BrokerProcess(tmp_path)
    await anyio.to_thread.run_sync(first.__enter__)
    ports = [f"--port={first.broker.rpartition(':')[2]}", f"--name-server-port={first.name_server.rpartition(':')[2]}"]
    second = BrokerProcess(tmp_path, *ports)
    rarely = ClientOptions(heartbeat_broker_interval=3600)  # nor would its next heartbeat
    try:
        async with (
            Producer("asker", name_server=first.name_server, client_options=rarely) as producer,
            PushConsumer("desk", name_server=first.name_server, options=FIRST) as consumer,
        ):
            await producer.send(Message("quotes", b"makes the topic"))

            async def answer(messages: list[MessageExt]) -> None:
                if "REPLY_TO_CLIENT" in messages[0].properties:
                    begun.set()
                    await back.wait()
                    await consumer.reply(messages[0], b"after all", timeout=PATIENCE)

            await consumer.subscribe("quotes", "*", answer)
            replies: list[bytes] = []

            async def ask() -> None:
                replies.append((await producer.request(Message("quotes", b"x"), timeout=PATIENCE)).body)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                with anyio.fail_after(PATIENCE):
                    await begun.wait()
                    await anyio.to_thread.run_sync(first.kill)
                    await anyio.to_thread.run_sync(second.__enter__)
                    instance = producer.instance  # which sends nothing that would connect it
                    while instance.strangers() or any(link.lost for link in instance.state().brokers):
                        await anyio.sleep(0.02)
                back.set()
            assert replies == [b"after all"]
    finally:
        for each in (first, second):
            await anyio.to_thread.run_sync(each.__exit__, None, None, None)


async def test_the_request_of_a_replier_that_is_gone_is_answered_by_the_one_who_takes_over(tmp_path: Path) -> None:
    """Row C46: its responder dies."""
    begun = anyio.Event()

    async def hang(messages: list[MessageExt]) -> None:
        if "REPLY_TO_CLIENT" in messages[0].properties:
            begun.set()
            await anyio.sleep_forever()

    at_once = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, await_termination=0)
    async with (
        servers(tmp_path) as cluster,
        Producer("asker", name_server=cluster.name_server_address) as producer,
        anyio.create_task_group() as tasks,
    ):
        replies: list[bytes] = []

        async def ask() -> None:
            replies.append((await producer.request(Message("quotes", b"x"), timeout=PATIENCE)).body)

        async with desk(cluster, options=at_once) as first:
            await first.subscribe("quotes", "*", hang)
            tasks.start_soon(ask)
            with anyio.fail_after(PATIENCE):
                await begun.wait()
        async with desk(cluster) as second:
            await second.subscribe("quotes", "*", doubling(second))
            with anyio.fail_after(PATIENCE):
                while not replies:
                    await anyio.sleep(0.01)
        assert replies == [b"xx"]


async def test_the_request_of_a_replier_that_was_killed_ends_at_its_time_and_comes_to_the_next_one(
    tmp_path: Path,
) -> None:
    """Row C46: SIGKILL in the middle of a request. Its asker hears nothing, and waits for its own time alone."""
    came: list[bytes] = []
    async with servers(tmp_path) as cluster, Producer("asker", name_server=cluster.name_server_address) as asker:
        await asker.send(Message("quotes", b"makes the topic"))
        waiting, seconds = asker.instance.waiting_requests, 2.0
        arguments = (cluster.name_server_address, "desk", "quotes", "first")
        with running_module("tests.support.client.consumer_process", *arguments) as replier:
            with anyio.fail_after(PATIENCE):
                await replier.until("ready")

            async def kill_in_the_middle() -> None:
                await replier.until("begun x")
                replier.kill()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(kill_in_the_middle)
                began = anyio.current_time()
                with pytest.raises(ReplyTimeoutError, match=rf"got no reply within {seconds:g} s") as caught:
                    await asker.request(Message("quotes", b"x"), timeout=seconds)
                assert seconds <= anyio.current_time() - began
        assert caught.value.topic == "quotes"
        assert (len(waiting), waiting.late) == (0, 0)
        assert all(link.requests_in_flight == 0 for link in asker.instance.remoting._connections.values())

        async with desk(cluster) as next_one:

            async def answer(messages: list[MessageExt]) -> None:
                for message in messages:
                    came.append(message.body)
                    if "REPLY_TO_CLIENT" in message.properties:
                        await next_one.reply(message, b"too late")

            await next_one.subscribe("quotes", "*", answer)
            with anyio.fail_after(PATIENCE):
                while waiting.late < 1:
                    await anyio.sleep(0.01)
            reply = await asker.request(Message("quotes", b"y"), timeout=PATIENCE)
        assert reply.body == b"too late", "for the first request, and in time for this one"
        assert sorted(came) == [b"makes the topic"] * 2 + [b"x", b"y"]
        assert (len(waiting), waiting.late) == (0, 1)
