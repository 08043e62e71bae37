"""Clients outlive what is away for long: name servers, their own loop, and themselves, a thousand times."""

from __future__ import annotations

import asyncio
import logging
import os
import threading

import anyio
import pytest

from rocketbox.client import ClientOptions, ConsumerOptions, MQClientInstance, Producer, PushConsumer
from rocketbox.clock import RealClock
from rocketbox.message import ConsumeFromWhere, Message, MessageExt
from tests.support.client.consumer_group import Group
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.clocks import VirtualClock, idle

STARTS = 1000 if os.environ.get("ROCKETBOX_TESTS") == "all" else 30

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # whose loop tells when all tasks wait: the clock here moves through minutes


async def test_ten_minutes_without_a_name_server_disturb_nobody_who_has_a_route(
    caplog: pytest.LogCaptureFixture, anyio_backend: str
) -> None:
    clock = VirtualClock(settle=idle)
    broker = ScriptedBroker(clock)
    broker.topics = {"T": 1, "%RETRY%g": 1}
    name_server = ScriptedBroker(clock, broker, host="10.0.0.7")
    name_server.brokers, broker.brokers, name_server.topics = [broker], [broker], broker.topics
    came: list[bytes] = []

    async def handle(batch: list[MessageExt]) -> None:
        came.extend(message.body for message in batch)

    async with broker, name_server:
        instance = MQClientInstance(
            name_server.address, options=ClientOptions(client_ip="10.0.0.9"), clock=clock, network=broker.network
        )
        options = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer = PushConsumer("g", instance=instance, options=options)
        async with instance, Producer("p", instance=instance) as producer, consumer:
            await consumer.subscribe("T", "*", handle)
            await producer.send(Message("T", b"before"))
            name_server.silent = True
            name_server.drop_connections()
            caplog.clear()
            try:
                for minute in range(10):
                    broker.store("T", b"%d" % minute)
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(producer.send, Message("T", b"sent"))
                        await clock.advance(60)
            finally:
                name_server.silent = False  # for the end, in which nobody moves the clock
                name_server.drop_connections()
            assert came == [b"%d" % minute for minute in range(10)]
            lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
            assert 1 <= len(lines) <= 10


@pytest.mark.parametrize("connections", ["kept", "lost"])
async def test_a_member_whose_loop_was_blocked_for_a_minute_is_one_again_within_seconds(
    connections: str, anyio_backend: str
) -> None:
    group = Group()
    async with group.broker, group.member():
        group.broker.store("T", b"before")
        await group.until(lambda: group.bodies == [b"before"], 1.0)
        beats = len(group.broker.heartbeats)
        group.clock.now += 60  # and nothing ran in this time
        if connections == "lost":
            group.broker.drop_connections()
        await group.until(lambda: len(group.broker.heartbeats) > beats, 3.0)
        group.broker.store("T", b"behind")
        await group.until(lambda: group.bodies == [b"before", b"behind"], 3.0)


async def test_starts_and_stops_leave_nothing_behind(anyio_backend: str) -> None:
    clock = RealClock()
    broker = ScriptedBroker(clock)
    broker.topics = {"T": 1, "%RETRY%g": 1}

    async def handle(batch: list[MessageExt]) -> None:
        """Consume it."""

    async with broker:
        tasks, threads = asyncio.all_tasks(), threading.active_count()
        for _ in range(STARTS):
            instance = MQClientInstance(
                broker.address, options=ClientOptions(client_ip="10.0.0.9"), clock=clock, network=broker.network
            )
            consumer = PushConsumer("g", instance=instance)
            await consumer.subscribe("T", "*", handle)
            async with instance, Producer("p", instance=instance) as producer, consumer:
                await producer.send(Message("T", b"x"))
            await idle()
            assert asyncio.all_tasks() == tasks
            assert broker.connections == []
            broker.requests.clear()
        assert threading.active_count() <= threads, "those of earlier tests may have ended meanwhile"
