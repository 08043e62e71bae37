"""Members of a group share the queues, and take over from one that leaves or dies."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

import anyio
import pytest

from rocketbox.client import ConsumerOptions, Producer, PushConsumer
from rocketbox.message import ConsumeMode, Message, MessageExt
from tests.support.client.consuming import Seen, send_all, servers
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

SELDOM = ConsumerOptions(rebalance_interval=3600)
"""The queues are only shared anew when the broker tells that members came or went."""


def bodies(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}-{number}".encode() for number in range(count)]


def queues_of(consumer: PushConsumer, topic: str) -> set[tuple[str, int]]:
    return {
        (state.queue.broker_name, state.queue.queue_id)
        for state in consumer.state().queues
        if state.queue.topic == topic
    }


async def shared(one: PushConsumer, two: PushConsumer, topic: str) -> None:
    """Return when both have queues of topic and no queue is with both or neither."""

    def fair() -> bool:
        first, second = queues_of(one, topic), queues_of(two, topic)
        return bool(first and second) and not first & second and abs(len(first) - len(second)) <= 1

    await until(fair, "both have their part of the queues")


async def test_members_share_the_queues_and_the_rest_takes_over_when_one_leaves(
    anyio_backend: str, tmp_path: Path
) -> None:
    first, second = Seen(), Seen()
    async with servers(tmp_path) as embedded:
        address = embedded.name_server_address
        async with (
            Producer("p", name_server=address) as producer,
            PushConsumer("desk", name_server=address, options=SELDOM) as one,
        ):
            await one.subscribe("t", "*", first)
            await send_all(producer, "t", bodies("alone", 20))
            await first.all_of(bodies("alone", 20))
            await until(lambda: one.state().held == 0, "all consumed")
            await one.persist_offsets()  # else the other member would get them again
            async with PushConsumer("desk", name_server=address, options=SELDOM) as two:
                await two.subscribe("t", "*", second)
                await shared(one, two, "t")
                await send_all(producer, "t", bodies("both", 40))
                await until(lambda: set(bodies("both", 40)) <= {*first.bodies, *second.bodies}, "all come")
                assert set(bodies("both", 40)) & set(first.bodies)
                assert set(bodies("both", 40)) & set(second.bodies)
            await send_all(producer, "t", bodies("again", 20))
            await first.all_of(bodies("again", 20))
    came = first.counts() + second.counts()
    assert set(came) == {*bodies("alone", 20), *bodies("both", 40), *bodies("again", 20)}
    assert set(came.values()) == {1}


async def test_what_a_killed_member_had_in_hand_comes_to_another(anyio_backend: str, tmp_path: Path) -> None:
    seen = Seen()
    stuck = bodies("stuck", 16)
    async with servers(tmp_path) as embedded:
        address = embedded.name_server_address
        async with Producer("p", name_server=address) as producer:
            await send_all(producer, "t", [b"so that the topic is there"])
            command = [sys.executable, "-m", "tests.support.client.consumer_process", address, "desk", "t"]
            async with await anyio.open_process(command, cwd=Path(__file__).parents[2], stderr=None) as process:
                assert process.stdout is not None
                assert b"ready" in await process.stdout.receive()
                async with PushConsumer("desk", name_server=address, options=SELDOM) as consumer:
                    await consumer.subscribe("t", "*", seen)
                    await until(lambda: 0 < len(queues_of(consumer, "t")) < 8, "both have their part of the queues")
                    own = len(queues_of(consumer, "t"))
                    await anyio.sleep(1.5)  # the other one has settled as well
                    await send_all(producer, "t", stuck)
                    await until(lambda: bool(seen.bodies), "some come here")
                    assert not set(stuck) <= set(seen.bodies), "the others hang there"
                    process.kill()
                    await seen.all_of(stuck)
                    assert len(queues_of(consumer, "t")) > own


async def test_a_member_that_is_cancelled_is_replaced(anyio_backend: str, tmp_path: Path) -> None:
    first, second = Seen(), Seen()
    async with servers(tmp_path) as embedded:
        address = embedded.name_server_address
        async with (
            Producer("p", name_server=address) as producer,
            PushConsumer("desk", name_server=address, options=SELDOM) as one,
        ):
            await one.subscribe("t", "*", first)
            await producer.send(Message("t", b"first"))
            await first.all_of([b"first"])
            await one.persist_offsets()
            with anyio.CancelScope() as death:
                async with PushConsumer("desk", name_server=address, options=SELDOM) as two:
                    await two.subscribe("t", "*", second)
                    await shared(one, two, "t")
                    death.cancel()  # nothing is drained
            await send_all(producer, "t", bodies("later", 20))
            await first.all_of(bodies("later", 20))
            await until(lambda: one.state().lag == 0, "no lag")
    assert first.counts() == Counter([b"first", *bodies("later", 20)]), "each once"
    assert second.bodies == [], "who was cancelled before anything was sent gets nothing"


async def test_an_orderly_queue_changes_hands_without_losing_its_order(anyio_backend: str, tmp_path: Path) -> None:
    came: dict[str, list[int]] = defaultdict(list)
    running: dict[tuple[str, int], int] = defaultdict(int)
    overlaps: list[MessageExt] = []

    async def handler(batch: list[MessageExt]) -> None:
        (message,) = batch
        place = (message.broker_name, message.queue_id)
        running[place] += 1
        if running[place] > 1:
            overlaps.append(message)
        await anyio.sleep(0.002)
        key, number = message.body.decode().split("-")
        came[key].append(int(number))
        running[place] -= 1

    options = ConsumerOptions(consume_mode=ConsumeMode.ORDERLY)
    sent = 0
    async with servers(tmp_path) as embedded:
        address = embedded.name_server_address
        async with (
            Producer("p", name_server=address) as producer,
            PushConsumer("desk", name_server=address, options=options) as one,
        ):

            async def send(count: int) -> None:
                nonlocal sent
                for number in range(sent, sent + count):
                    for key in "abcdefgh":
                        await producer.send(Message("t", f"{key}-{number}".encode(), hash_key=key))
                sent += count

            await one.subscribe("t", "*", handler)
            await send(20)
            async with PushConsumer("desk", name_server=address, options=options) as two:
                await two.subscribe("t", "*", handler)
                await send(60)
                await shared(one, two, "t")
                await send(20)
            await send(20)
            await until(lambda: all(set(came[key]) == set(range(sent)) for key in "abcdefgh"), "all come")
    assert not overlaps
    for key in "abcdefgh":
        first_times = list(dict.fromkeys(came[key]))
        assert first_times == sorted(first_times), f"{key} came out of order"
