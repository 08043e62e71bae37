"""Messages with a time of delivery in a cluster of which some brokers are older than RocketMQ 5.0."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio
import pytest

from rocketbox.client import ClientOptions, Producer
from rocketbox.errors import ConnectError, InvalidMessageError, SendTimeoutError
from rocketbox.message import Message, MessageQueue
from rocketbox.protocol.codes import VERSION_4_9_7
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.options import RemotingOptions
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio

TIMED = Message("T", b"x", delay=timedelta(seconds=7))


@asynccontextmanager
async def producing(
    *older: str, brokers: tuple[str, ...] = ("broker-a", "broker-b", "broker-c")
) -> AsyncIterator[tuple[ScriptedCluster, Producer]]:
    clock = VirtualClock()
    cluster = ScriptedCluster(clock, brokers=brokers)
    for name in older:
        cluster.brokers[name].options = RemotingOptions(version=VERSION_4_9_7)
    async with cluster:
        cluster.add_topic("T", queues=2)
        async with Producer(
            "desk", name_server=cluster.name_server.address, clock=clock, network=cluster.network,
            client_options=ClientOptions(client_ip="192.0.2.7"),
        ) as producer:  # fmt: skip
            yield cluster, producer


def clock_of(cluster: ScriptedCluster) -> VirtualClock:
    assert isinstance(cluster.clock, VirtualClock)
    return cluster.clock


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


async def test_tries_at_the_only_newer_broker_that_is_away_pause_as_any_others_do() -> None:
    async with producing("broker-a", brokers=("broker-a", "broker-b")) as (cluster, producer):
        await producer.send(TIMED)
        await cluster.brokers["broker-b"].stop()

        async def send() -> None:
            with pytest.raises(
                ConnectError, match=r" ([4-9]|1[01]) tries"
            ):  # pauses of 0.05, 0.1, 0.2 and 0.25 s, or half
                await producer.send(TIMED, timeout=1)

        await clock_of(cluster).run(send)
        assert not cluster.brokers["broker-a"].sends


async def test_a_broker_that_may_have_stored_and_is_gone_is_told_of_though_the_others_are_too_old() -> None:
    """Who heard that nothing was sent would send it again."""
    async with producing("broker-a", brokers=("broker-a", "broker-b")) as (cluster, producer):
        broker = cluster.brokers["broker-b"]

        async def store_and_go(request: RemotingCommand) -> None:
            cluster.add_topic("T", queues=2, brokers=("broker-a",))
            await producer.instance.find_route("T", refresh=True)  # who is gone does not answer any more

        broker.on_send = store_and_go

        async def send() -> None:
            with pytest.raises(SendTimeoutError, match=r"it may have been stored"):
                await producer.send(TIMED)

        await clock_of(cluster).run(send)
        assert len(broker.sends) == 1
        assert not cluster.brokers["broker-a"].sends


async def without_newer_broker(cluster: ScriptedCluster, producer: Producer) -> None:
    """Take broker-b out of the route, as one that stops does itself."""
    cluster.add_topic("T", queues=2, brokers=("broker-a",))
    await producer.instance.find_route("T", refresh=True)


@pytest.mark.parametrize("way", ["send", "one-way", "many"])
async def test_a_message_with_a_time_waits_for_the_only_newer_broker_that_restarts(way: str) -> None:
    """It has left the route meanwhile, and nothing says that it will come back."""
    async with producing("broker-a", brokers=("broker-a", "broker-b")) as (cluster, producer):
        await producer.send(TIMED)
        await without_newer_broker(cluster, producer)
        clock, begun = clock_of(cluster), clock_of(cluster).now

        async def come_back() -> None:
            await clock.sleep(1)
            cluster.add_topic("T", queues=2)

        async def send() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(come_back)
                message = Message("T", b"later", delay=timedelta(seconds=7))
                if way == "one-way":
                    await producer.send_one_way(message)
                elif way == "many":
                    await producer.send_many([message])
                else:
                    assert (await producer.send(message)).queue.broker_name == "broker-b"

        await clock.run(send)
        await settle()
        assert 1 <= clock.now - begun < 3
        assert [request.body for request in cluster.brokers["broker-b"].sends] == [b"x", b"later"]
        assert not cluster.brokers["broker-a"].sends


async def test_where_the_only_newer_broker_stays_away_the_error_says_so_and_that_nothing_was_sent() -> None:
    async with producing("broker-a", brokers=("broker-a", "broker-b")) as (cluster, producer):
        await producer.send(TIMED)
        await without_newer_broker(cluster, producer)
        clock, begun = clock_of(cluster), clock_of(cluster).now

        async def send() -> None:
            words = (
                r"broker-b is not in the route of topic 'T' now.* older than RocketMQ 5\.0\. Nothing was sent.* tries"
            )
            with pytest.raises(ConnectError, match=words) as caught:
                await producer.send(TIMED, timeout=2)
            assert caught.value.address == cluster.brokers["broker-b"].address

        await clock.run(send)
        assert 1.7 < clock.now - begun <= 2
        assert not cluster.brokers["broker-a"].sends
        plain = await producer.send(Message("T", b"plain"))
        assert plain.queue.broker_name == "broker-a", "it is not avoided for what it is not asked to do"


async def test_a_newer_broker_that_has_been_away_for_ten_minutes_is_not_waited_for() -> None:
    async with producing("broker-a", brokers=("broker-a", "broker-b")) as (cluster, producer):
        await producer.send(TIMED)
        await without_newer_broker(cluster, producer)
        await producer.send(Message("T", b"x"))  # by the new route
        clock_of(cluster).now += 601

        async def send() -> None:
            with pytest.raises(InvalidMessageError, match=r"older than RocketMQ 5\.0"):
                await producer.send(TIMED)

        await clock_of(cluster).run(send)
        assert [request.body for request in cluster.brokers["broker-b"].sends] == [b"x"]
