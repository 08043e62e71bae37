"""What a Spark listener's own client sees of its topic, on virtual time."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from rocketbox.client import Admin, ClientOptions, MQClientInstance
from rocketbox.message import MessageQueue
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.spark.topic_watch import TopicWatch
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.clocks import VirtualClock, idle

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Watched:
    """The topic T on brokers a and b, whose queues end where ``ends`` says."""

    def __init__(self) -> None:
        self.clock = VirtualClock(settle=idle)
        self.cluster = ScriptedCluster(self.clock, ("a", "b"))
        self.ends = {"a": "7", "b": "5"}
        for name, broker in self.cluster.brokers.items():
            broker.scripts[RequestCode.GET_MAX_OFFSET] = lambda *_, name=name: RemotingCommand.response(
                ext_fields={"offset": self.ends[name]}
            )


@asynccontextmanager
async def watched() -> AsyncIterator[tuple[Watched, TopicWatch, anyio.abc.TaskGroup]]:
    world = Watched()
    async with world.cluster:
        instance = MQClientInstance(
            world.cluster.name_server.address,
            options=ClientOptions(client_ip="10.0.0.9", instance_name="w"),
            clock=world.clock,
            network=world.cluster.network,
        )
        async with anyio.create_task_group() as tasks:

            async def let_time_pass() -> None:
                while True:
                    await world.clock.advance(0.1)

            async with instance:
                async with anyio.create_task_group() as own:
                    yield world, TopicWatch(Admin(instance=instance), "g", "T", world.clock), own
                    own.cancel_scope.cancel()
                tasks.start_soon(let_time_pass)
            tasks.cancel_scope.cancel()


async def test_ends_of_all_queues_are_known() -> None:
    async with watched() as (world, watch, tasks):
        world.cluster.add_topic("T", queues=1)
        tasks.start_soon(watch.watch)
        await world.clock.advance(0.1)
        assert watch.trouble is None
        assert watch.ends == {MessageQueue("T", "a", 0): 7, MessageQueue("T", "b", 0): 5}
        world.ends["a"] = "9"
        await world.clock.advance(10)
        assert watch.ends[MessageQueue("T", "a", 0)] == 9


async def test_a_broker_that_is_away_shows_within_30_s_and_its_return_too_each_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "rocketbox.spark")
    async with watched() as (world, watch, tasks):
        world.cluster.add_topic("T", queues=2)
        tasks.start_soon(watch.watch)
        await world.clock.advance(0.1)
        broker = world.cluster.brokers["b"]
        await broker.stop()
        await world.clock.advance(30)
        assert str(watch.trouble).startswith("topic T cannot be read from 1 of its brokers (b: ")
        assert watch.ends[MessageQueue("T", "b", 1)] == 5
        assert watch.ends[MessageQueue("T", "a", 1)] == 7
        await world.clock.advance(120)
        await world.cluster.restart(broker)
        await world.clock.advance(30)
        assert watch.trouble is None
        told = [record.getMessage() for record in caplog.records if record.name == "rocketbox.spark.topic_watch"]
        assert len(told) == 2
        assert "cannot be read from 1 of its brokers" in told[0]
        assert told[1] == "Spark listener g: topic T can be read again"


async def test_a_broker_that_leaves_the_route_is_away_while_it_has_what_was_not_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A name server forgets a broker two minutes after its last heartbeat."""
    caplog.set_level(logging.INFO, "rocketbox.spark")
    async with watched() as (world, watch, tasks):
        world.cluster.add_topic("T", queues=1)
        tasks.start_soon(watch.watch)
        on_a, on_b = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)
        watch.read = {on_a: 7, on_b: 2}
        await world.clock.advance(0.1)
        await world.cluster.brokers["b"].stop()
        await world.clock.advance(30)
        world.cluster.add_topic("T", queues=1, brokers=["a"])
        await world.clock.advance(300)
        assert str(watch.trouble) == (
            "topic T cannot be read from 1 of its brokers (b: it has left the route); 3 messages of queues that have "
            "left the route are not read yet"
        )
        assert watch.ends == {on_a: 7, on_b: 5}
        told = [record.getMessage() for record in caplog.records if record.name == "rocketbox.spark.topic_watch"]
        assert len(told) == 1
        watch.read = {on_a: 7, on_b: 5}
        await world.clock.advance(10)
        assert watch.trouble is None
        assert watch.ends == {on_a: 7}


async def test_a_broker_that_has_left_the_route_before_the_start_is_told_once_and_no_trouble(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may be out of service for ever, with all of it read: the checkpoint knows its queues all the same."""
    async with watched() as (world, watch, tasks):
        world.cluster.add_topic("T", brokers=["a"])
        tasks.start_soon(watch.watch)
        await world.clock.advance(0.1)
        watch.read = {MessageQueue("T", "a", 0): 3, MessageQueue("T", "b", 0): 5, MessageQueue("T", "b", 1): 5}
        await world.clock.advance(60)
        assert watch.trouble is None
        (told,) = [each.getMessage() for each in caplog.records if each.name == "rocketbox.spark.topic_watch"]
        assert told.startswith("Spark listener g: topic T was read from broker b before, which has no route now; ")


async def test_queues_that_were_taken_away_count_as_unread_and_are_no_trouble() -> None:
    async with watched() as (world, watch, tasks):
        world.cluster.add_topic("T", queues=2)
        tasks.start_soon(watch.watch)
        watch.read = {MessageQueue("T", broker, number): 5 for broker in "ab" for number in range(2)}
        await world.clock.advance(0.1)
        world.cluster.add_topic("T", queues=1)
        await world.clock.advance(20)
        assert watch.trouble is None
        assert watch.ends[MessageQueue("T", "a", 1)] == 7, "two are unread"
        assert MessageQueue("T", "b", 1) not in watch.ends, "all of it was read"


async def test_a_topic_that_is_there_takes_no_other_trouble_away() -> None:
    async with watched() as (world, watch, tasks):
        world.cluster.add_topic("T")
        tasks.start_soon(watch.watch)
        await world.clock.advance(0.1)
        await world.cluster.brokers["b"].stop()
        await world.clock.advance(30)
        trouble = watch.trouble
        assert trouble is not None
        assert await watch.until_there()
        assert watch.trouble == trouble, "the broker is still away"


async def test_a_name_server_that_is_away_is_told() -> None:
    async with watched() as (world, watch, tasks):
        world.cluster.add_topic("T")
        tasks.start_soon(watch.watch)
        await world.clock.advance(0.1)
        await world.cluster.name_server.stop()
        await world.clock.advance(30)
        assert "the queues of topic T cannot be asked for" in str(watch.trouble)


async def test_a_topic_that_does_not_exist_is_asked_for_each_second_and_told_each_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    there: list[bool] = []

    async def wait() -> None:
        there.append(await watch.until_there())

    caplog.set_level(logging.INFO, "rocketbox.spark")
    async with watched() as (world, watch, tasks):
        tasks.start_soon(wait)
        await world.clock.advance(130)
        assert there == []
        assert str(watch.trouble) == "waits for topic T, which no name server knows yet"
        assert 125 <= world.cluster.name_server.asked("T") <= 135
        told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert [text.partition(";")[0] for text in told] == [
            "Spark listener g: topic T does not exist yet",
            "Spark listener g: still no route for topic T",
            "Spark listener g: still no route for topic T",
        ]
        world.cluster.add_topic("T")
        await world.clock.advance(1)
        assert there == [False]
        assert watch.trouble is None
        assert caplog.records[-1].getMessage() == "Spark listener g: topic T is there now"


async def test_a_name_server_that_is_away_is_waited_for_and_asked_each_second(caplog: pytest.LogCaptureFixture) -> None:
    there: list[bool] = []

    async def wait() -> None:
        there.append(await watch.until_there())

    async with watched() as (world, watch, tasks):
        world.cluster.add_topic("T")
        await world.cluster.name_server.stop()
        tasks.start_soon(wait)
        await world.clock.advance(300)
        assert there == []
        assert str(watch.trouble).startswith("waits for a name server, to ask it for topic T: cannot connect to")
        told = [each.getMessage() for each in caplog.records if each.name == "rocketbox.spark.topic_watch"]
        assert 4 <= len(told) <= 6
        await world.cluster.restart(world.cluster.name_server)
        await world.clock.advance(5)
        assert there == [True], "the topic was there all the time"
        assert watch.trouble is None
