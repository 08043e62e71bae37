"""Messages with a time of delivery in a cluster of which some brokers are older than RocketMQ 5.0."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from rocketbox.client import ClientOptions, Producer
from rocketbox.errors import InvalidMessageError
from rocketbox.message import Message, MessageQueue
from rocketbox.protocol.codes import VERSION_4_9_7
from rocketbox.remoting.options import RemotingOptions
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.clocks import VirtualClock

pytestmark = pytest.mark.anyio

TIMED = Message("T", b"x", delay=timedelta(seconds=7))


@asynccontextmanager
async def producing(*older: str) -> AsyncIterator[tuple[ScriptedCluster, Producer]]:
    clock = VirtualClock()
    cluster = ScriptedCluster(clock, brokers=("broker-a", "broker-b", "broker-c"))
    for name in older:
        cluster.brokers[name].options = RemotingOptions(version=VERSION_4_9_7)
    async with cluster:
        cluster.add_topic("T", queues=2)
        async with Producer(
            "desk", name_server=cluster.name_server.address, clock=clock, network=cluster.network,
            client_options=ClientOptions(client_ip="192.0.2.7"),
        ) as producer:  # fmt: skip
            yield cluster, producer


async def test_a_message_with_a_time_goes_to_brokers_that_keep_it_and_others_to_all() -> None:
    async with producing("broker-a", "broker-c") as (cluster, producer):
        results = [await producer.send(TIMED) for _ in range(6)]
        assert {result.queue.broker_name for result in results} == {"broker-b"}
        await producer.send_one_way(TIMED)
        assert {result.queue.broker_name for result in await producer.send_many([TIMED] * 5)} == {"broker-b"}
        assert not cluster.brokers["broker-a"].sends
        plain = [await producer.send(Message("T", b"x")) for _ in range(6)]
        assert {result.queue.broker_name for result in plain} == set(cluster.brokers)


async def test_a_message_with_a_time_is_refused_where_its_queue_or_all_brokers_are_too_old() -> None:
    async with producing("broker-a") as (cluster, producer):
        with pytest.raises(InvalidMessageError, match=r"broker broker-a .*older than RocketMQ 5\.0"):
            await producer.send(TIMED, queue=MessageQueue("T", "broker-a", 0))
        assert not cluster.brokers["broker-a"].sends
    async with producing("broker-a", "broker-b", "broker-c") as (cluster, producer):
        with pytest.raises(InvalidMessageError, match=r"older than RocketMQ 5\.0"):
            await producer.send(TIMED)
        assert not any(broker.sends for broker in cluster.brokers.values())
