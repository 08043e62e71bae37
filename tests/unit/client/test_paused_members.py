"""A member that pulls nothing for a while, by its user's wish or because its threads hang, is a member all the same."""

from __future__ import annotations

import threading
from collections import Counter

import anyio
import pytest

from rocketbox.client import ClientOptions, ConsumerOptions, PushConsumer
from rocketbox.message import ConsumeFromWhere, ConsumeMode, MessageExt, MessageQueue
from rocketbox.protocol.codes import RequestCode
from tests.support.client.consumer_group import Group, queues_of
from tests.support.client.scripted_broker import BROKER
from tests.support.clocks import settle
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # whose loop tells when all tasks wait


@pytest.mark.parametrize("mode", list(ConsumeMode))
async def test_a_paused_member_hands_queues_on_when_another_joins(mode: ConsumeMode, anyio_backend: str) -> None:
    group = Group(queues=2)
    for queue_id in range(2):
        group.broker.store("T", *[b"%d-%d" % (queue_id, number) for number in range(10)], queue_id=queue_id)
    async with (
        group.broker,
        group.member("c1", seconds=lambda body: 0.5, concurrency=2, consume_mode=mode) as one,
    ):
        await group.until(lambda: len(group.came) >= 2, 5)
        one.pause()
        async with group.member("c2", consume_mode=mode) as two:
            await group.until(lambda: len(queues_of(two)) == 1, 5)
            await group.until(lambda: len(queues_of(one)) == 1, 1)
            await group.clock.advance(60)
            assert not set(queues_of(one)) & set(queues_of(two))
            assert group.broker.committed == {("T", 0): 10, ("T", 1): 10, ("%RETRY%g", 0): 0}
    assert Counter(group.bodies).most_common(1)[0][1] == 1, "nothing came twice"
    assert len(group.bodies) == 20


async def test_a_paused_member_that_gains_a_queue_keeps_its_place_and_pulls_after_the_pause(anyio_backend: str) -> None:
    """The group's newest messages are where it begins: what comes during the pause would be skipped otherwise."""
    group = Group(queues=2)
    broker = group.broker
    start = ConsumeFromWhere.LAST_OFFSET
    async with broker, group.member("c1", consume_from_where=start) as one:
        await group.until(lambda: len(queues_of(one)) == 2, 5)
        broker.committed.clear()
        async with group.member("c2", consume_from_where=start) as two:
            await group.until(lambda: len(queues_of(two)) == len(queues_of(one)) == 1, 5)
            one.pause()
            broker.requests.clear()
            broker.store("T", b"before", queue_id=queues_of(two)[0].queue_id)
            await group.until(lambda: group.bodies == [b"before"], 2)
        await group.until(lambda: len(queues_of(one)) == 2, 5)
        for queue_id in range(2):
            broker.store("T", b"during %d" % queue_id, queue_id=queue_id)
        await group.clock.advance(30)
        assert group.bodies == [b"before"]
        one.resume()
        await group.clock.advance(0.1)
        assert sorted(group.bodies) == [b"before", b"during 0", b"during 1"]


async def test_members_of_which_one_is_paused_ask_no_more_often_than_others(anyio_backend: str) -> None:
    group = Group()
    async with group.broker, group.member() as one:
        await group.until(lambda: len(queues_of(one)) == 1, 5)
        one.pause()
        await group.clock.advance(5)
        group.broker.requests.clear()
        await group.clock.advance(60)
        rounds = len(group.broker.asked(RequestCode.GET_CONSUMER_LIST_BY_GROUP))  # one for topic and retry topic
        assert rounds == 3


async def test_a_member_whose_threads_all_hang_hands_queues_on(anyio_backend: str) -> None:
    group = Group(queues=2)
    broker, clock, release, begun = group.broker, group.clock, threading.Event(), list[bytes]()

    def handle(batch: list[MessageExt]) -> None:
        begun.append(batch[0].body)
        release.wait(30)

    consumer = PushConsumer(
        "g", name_server=broker.address, clock=clock, network=broker.network,
        options=ConsumerOptions(
            concurrency=1, consume_timeout=5.0, consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            consume_mode=ConsumeMode.CONCURRENTLY,
        ),
        client_options=ClientOptions(client_ip="10.0.0.9", instance_name="c1"),
    )  # fmt: skip
    for queue_id in range(2):
        broker.store("T", *[b"%d-%d" % (queue_id, number) for number in range(3)], queue_id=queue_id)
    async with broker, consumer:
        try:
            await consumer.subscribe("T", "*", handle)
            with anyio.fail_after(PATIENCE):
                while not begun:
                    await settle(20)
            await clock.advance(20)
            assert consumer.state().hung_handlers
            async with group.member("c2") as two:
                await group.until(lambda: len(queues_of(two)) == 1, 5)
                assert queues_of(consumer) == [MessageQueue("T", BROKER, 0)]
                await group.clock.advance(5)
                assert group.bodies.count(b"1-2") == 1
        finally:
            release.set()
