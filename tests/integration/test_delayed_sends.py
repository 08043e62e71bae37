"""Delays, times of delivery and recalls, from the client to the embedded broker and back; older brokers are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from rocketbox.broker.handlers.clients import ClientHandler
from rocketbox.broker.peer_limits import remoting_options
from rocketbox.client import Producer, PushConsumer
from rocketbox.client.options import ClientOptions, ConsumerOptions
from rocketbox.embedded import EmbeddedServers
from rocketbox.errors import BrokerError, ClientError, ConnectError, InvalidMessageError, RetryLater, SendManyError
from rocketbox.message import ConsumeFromWhere, Message, MessageExt
from rocketbox.protocol.codes import VERSION_4_9_7, RequestCode, ResponseCode
from rocketbox.remoting.connection import RequestHandler
from rocketbox.template import RocketMQTemplate
from tests.support.broker.broker_process import BrokerProcess
from tests.support.broker.wire import small_options
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

FIRST = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)


@asynccontextmanager
async def running(directory: Path, **client: object) -> AsyncIterator[tuple[EmbeddedServers, Producer]]:
    options = ClientOptions(**client)  # type: ignore[arg-type]  # options by their names
    async with (
        EmbeddedServers(small_options(directory)) as servers,
        Producer("desk", name_server=servers.name_server_address, client_options=options) as producer,
    ):
        yield servers, producer


class Received:
    """What a consumer got, and when by the machine's clock."""

    def __init__(self) -> None:
        self.messages: list[tuple[datetime, MessageExt]] = []

    async def take(self, messages: list[MessageExt]) -> None:
        self.messages += [(datetime.now(UTC), message) for message in messages]

    async def bodies(self, count: int) -> list[bytes]:
        with anyio.fail_after(PATIENCE):
            while len(self.messages) < count:
                await anyio.sleep(0.005)
        return sorted(message.body for _, message in self.messages)

    def at(self, body: bytes) -> datetime:
        return next(time for time, message in self.messages if message.body == body)


@asynccontextmanager
async def received(producer: Producer, topic: str = "t") -> AsyncIterator[Received]:
    found = Received()
    consumer = PushConsumer("readers", instance=producer.instance, options=FIRST)
    async with consumer:
        await consumer.subscribe(topic, "*", found.take)
        yield found


@pytest.mark.parametrize("namespace", [None, "ns"])
async def test_messages_come_at_their_time_and_recalled_ones_do_not(tmp_path: Path, namespace: str | None) -> None:
    async with running(tmp_path, namespace=namespace) as (servers, producer):
        template = RocketMQTemplate(producer)
        async with received(producer) as found:
            now = datetime.now(UTC)
            level = await template.send("t", b"level", delay="1s")
            assert level.recall_handle is None
            later = await template.send("t", b"delay", delay=timedelta(milliseconds=700))
            assert later.recall_handle is not None
            at = now + timedelta(milliseconds=1234, microseconds=1)
            await producer.send(Message("t", b"time", deliver_at=at))
            await template.send_one_way("t", b"one-way", delay="250ms")
            many = await template.send_many("t", [b"1", b"2", b"3"], deliver_at=at)
            recalled = await template.send("t", b"recalled", deliver_at=now + timedelta(seconds=1))
            assert await template.recall(recalled.recall_handle) == recalled.msg_id
            assert await template.recall(recalled.recall_handle) == recalled.msg_id
            assert await producer.recall(many[1].recall_handle) == many[1].msg_id
            assert servers.broker.timers.waiting > 0
            expected = [b"1", b"3", b"delay", b"level", b"one-way", b"time"]
            assert await found.bodies(len(expected)) == expected
            assert found.at(b"delay") >= now + timedelta(milliseconds=700)
            assert found.at(b"time") >= at
            assert servers.broker.timers.recalled == 2
            assert servers.broker.timers.waiting == 0
            with pytest.raises(BrokerError, match="time of the message is over") as late:
                await template.recall(later.recall_handle)
            assert late.value.code == ResponseCode.ILLEGAL_OPERATION


async def test_a_broker_before_five_is_sent_no_time_and_levels_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "rocketbox.broker.broker.remoting_options",
        lambda options: replace(remoting_options(options), version=VERSION_4_9_7),
    )
    async with running(tmp_path) as (servers, producer):
        at = datetime.now(UTC) + timedelta(seconds=10)
        for message in (Message("t", b"x", delay=timedelta(seconds=7)), Message("t", b"x" * 5000, deliver_at=at)):
            with pytest.raises(InvalidMessageError, match=r"older than RocketMQ 5\.0"):
                await producer.send(message)
            with pytest.raises(InvalidMessageError, match=r"older than RocketMQ 5\.0"):
                await producer.send_one_way(message)
            with pytest.raises(SendManyError, match=r"older than RocketMQ 5\.0"):
                await producer.send_many([message])
        await producer.send(Message("t", b"x", delay=timedelta(seconds=10)))
        assert servers.broker.store.max_offset("SCHEDULE_TOPIC_XXXX", 2) == 1


async def test_a_broker_that_answers_no_heartbeat_is_sent_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = ClientHandler.codes

    def without_heartbeats(handler: ClientHandler) -> dict[int, RequestHandler]:
        return {code: handle for code, handle in codes(handler).items() if code != RequestCode.HEART_BEAT}

    monkeypatch.setattr(ClientHandler, "codes", without_heartbeats)
    async with running(tmp_path) as (servers, producer):
        await producer.send(Message("t", b"x"))
        with pytest.raises(ConnectError, match="it is not known whether broker broker-a is new enough"):
            await producer.send(Message("t", b"y", delay=timedelta(seconds=7)), timeout=0.5)
        assert servers.broker.timers.waiting == 0


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Message("t", b"x", delay_level=1, delay=timedelta(seconds=1)), "more than one of"),
        (Message("t", b"x", delay=timedelta(seconds=-1)), "not negative"),
        (Message("t", b"x", delay=3), "must be a timedelta"),  # type: ignore[arg-type]
        (Message("t", b"x", deliver_at=datetime(2030, 1, 1)), "with a time zone"),  # noqa: DTZ001
        (Message("t", b"x", deliver_at="soon"), "with a time zone"),  # type: ignore[arg-type]
        (Message("t", b"x", delay=timedelta(days=4)), "max delay"),
    ],
)
async def test_times_that_are_none_are_refused_in_words(tmp_path: Path, message: Message, words: str) -> None:
    async with running(tmp_path) as (_, producer):
        with pytest.raises((InvalidMessageError, BrokerError), match=words):
            await producer.send(message)
        with pytest.raises(InvalidMessageError, match="one by one"):
            await producer.send_batch([Message("t", b"x"), message])


@pytest.mark.parametrize("handle", [None, "", "x", "dj0=", 5])
async def test_what_is_no_handle_is_refused_in_words(tmp_path: Path, handle: str | None) -> None:
    async with running(tmp_path) as (_, producer):
        with pytest.raises(ClientError, match="recall"):
            await producer.recall(handle)


async def test_a_handle_of_another_namespace_is_refused(tmp_path: Path) -> None:
    async with (
        running(tmp_path, namespace="ours") as (servers, producer),
        Producer("other", name_server=servers.name_server_address) as other,
    ):
        result = await other.send(Message("t", b"x", delay=timedelta(seconds=7)))
        with pytest.raises(ClientError, match="namespace ours"):
            await producer.recall(result.recall_handle)
        assert await other.recall(result.recall_handle) == result.msg_id


async def test_retry_later_is_exact(tmp_path: Path) -> None:
    async with running(tmp_path) as (servers, producer):
        times: list[tuple[datetime, int, str]] = []

        async def handle(messages: list[MessageExt]) -> None:
            (message,) = messages
            times.append((datetime.now(UTC), message.reconsume_times, message.topic))
            if message.reconsume_times < 2:
                raise RetryLater(timedelta(milliseconds=400))

        consumer = PushConsumer("readers", instance=producer.instance, options=FIRST)
        async with consumer:
            await consumer.subscribe("t", "*", handle)
            await producer.send(Message("t", b"x"))
            with anyio.fail_after(PATIENCE):
                while len(times) < 3:
                    await anyio.sleep(0.005)
        assert [(times_before, topic) for _, times_before, topic in times] == [(0, "t"), (1, "t"), (2, "t")]
        for (before, *_), (after, *_) in pairwise(times):
            assert timedelta(milliseconds=400) <= after - before
        assert servers.broker.timers.delivered == 2
        assert servers.broker.store.max_offset("SCHEDULE_TOPIC_XXXX", 0) == 0


async def test_properties_without_room_for_what_a_broker_adds_until_the_time_are_refused(tmp_path: Path) -> None:
    """Apache's 5.5.0 stores such a message, acknowledges it, and cannot put it into its topic when it is due."""
    async with running(tmp_path) as (servers, producer):
        at = datetime.now(UTC) + timedelta(milliseconds=300)
        empty = Message("t", b"x", deliver_at=at, properties={"pad": "x"})
        room = 32_255 - len(producer._sender.request(empty).properties) + 1
        too_long = replace(empty, properties={"pad": "x" * (room + 1)})
        sends: list[Callable[[Message], Awaitable[object]]] = [producer.send, producer.send_one_way, producer.request]
        for send in sends:
            with pytest.raises(InvalidMessageError, match="take 32256 bytes; at most 32255 are allowed where it has a"):
                await send(too_long)
        with pytest.raises(SendManyError):
            await producer.send_many([too_long])
        await producer.send(replace(empty, properties={"pad": "x" * room}))
        assert servers.broker.timers.waiting + servers.broker.timers.delivered == 1


async def test_a_retry_whose_properties_leave_no_room_goes_by_a_delay_level(tmp_path: Path) -> None:
    async with running(tmp_path) as (servers, producer):
        times: list[int] = []

        async def handle(messages: list[MessageExt]) -> None:
            times.append(messages[0].reconsume_times)
            if times == [0]:
                raise RetryLater(timedelta(milliseconds=400))

        async with PushConsumer("readers", instance=producer.instance, options=FIRST) as consumer:
            await consumer.subscribe("t", "*", handle)
            await producer.send(Message("t", b"x", properties={"pad": "x" * 32_200}))
            with anyio.fail_after(PATIENCE):
                while len(times) < 2:
                    await anyio.sleep(0.005)
        assert times == [0, 1]
        assert servers.broker.timers.delivered == 0
        assert servers.broker.store.max_offset("SCHEDULE_TOPIC_XXXX", 0) == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_killed_broker_delivers_what_waited_and_brings_nothing_back_that_was_recalled(tmp_path: Path) -> None:
    begun = datetime.now(UTC)
    with BrokerProcess(tmp_path) as broker:
        async with Producer("desk", name_server=broker.name_server) as producer:
            await producer.send_many([Message("t", b"past", delay=timedelta(milliseconds=1500)) for _ in range(20)])
            at = begun + timedelta(seconds=8)
            later = [await producer.send(Message("t", b"later %d" % number, deliver_at=at)) for number in range(20)]
            for result in later[:10]:
                await producer.recall(result.recall_handle)
            broker.kill()
    with BrokerProcess(tmp_path) as broker:
        async with Producer("desk", name_server=broker.name_server) as producer, received(producer) as found:
            assert sorted(await found.bodies(30)) == sorted([b"past"] * 20 + [b"later %d" % n for n in range(10, 20)])
            assert all(found.at(b"later %d" % number) >= at for number in range(10, 20))


class Standstills:
    """How long, in all, this machine has let nobody have a turn: what that makes late is no fault of a broker."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def watch(self) -> None:
        while True:
            before = anyio.current_time()
            await anyio.sleep(0.02)
            if (late := anyio.current_time() - before - 0.02) > 0.05:
                self.seconds += late


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_waited_in_a_killed_broker_comes_once_and_at_its_time_or_as_soon_as_the_broker_is_back(
    tmp_path: Path,
) -> None:
    """Row C47: nothing was delivered before the kill, so nothing may come twice."""
    still = Standstills()
    due: dict[bytes, datetime] = {}
    with BrokerProcess(tmp_path) as broker:
        async with Producer("desk", name_server=broker.name_server) as producer:
            begun = datetime.now(UTC)
            for number in range(60):
                due[b"%d" % number] = begun + timedelta(milliseconds=2000 + 60 * number)
            await producer.send_many([Message("t", body, deliver_at=at) for body, at in due.items()])
            await producer.send(Message("t", b"last", deliver_at=max(due.values()) + timedelta(seconds=0.5)))
            broker.kill()
    await anyio.sleep((begun - datetime.now(UTC)).total_seconds() + 2.2)
    with BrokerProcess(tmp_path) as broker:
        ready = datetime.now(UTC)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(still.watch)
            async with Producer("desk", name_server=broker.name_server) as producer, received(producer) as found:
                with anyio.fail_after(PATIENCE):
                    while not any(message.body == b"last" for _, message in found.messages):
                        await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    assert Counter(message.body for _, message in found.messages) == {**dict.fromkeys(due, 1), b"last": 1}
    stored = {
        message.body: datetime.fromtimestamp(message.store_timestamp_ms / 1000, UTC) for _, message in found.messages
    }
    assert any(at < ready for at in due.values()), "some were due while it was down"
    for body, at in due.items():
        assert at - timedelta(milliseconds=1) < stored[body], f"{body!r} came before its time"
        assert stored[body] <= max(at, ready) + timedelta(seconds=1 + still.seconds), f"{body!r} came late"
