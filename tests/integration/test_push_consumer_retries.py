"""What a handler does not consume comes back: by the retry topic, by the dead-letter topic, or in its queue's order."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from rocketbox.client import Admin, ConsumerOptions, Producer, PushConsumer
from rocketbox.client.outcomes import Outcome
from rocketbox.errors import BatchFailed, Reject, RetryLater
from rocketbox.message import ConsumeMode, Message, MessageExt
from tests.support.client.consuming import Seen, dead_letters, send_all, servers
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

SOON = ConsumerOptions(delay_level_when_next_consume=1)  # 1 s


def orderly(**others: float) -> ConsumerOptions:
    return ConsumerOptions(consume_mode=ConsumeMode.ORDERLY, suspend_current_queue_time=0.1, **others)  # type: ignore[arg-type] # of several number types


async def test_retry_later_and_errors_come_back_with_their_topic_and_a_count(
    anyio_backend: str, tmp_path: Path
) -> None:
    seen = Seen({b"later": [RetryLater(timedelta(seconds=1))], b"error": [ValueError("once"), KeyError("twice")]})
    async with servers(tmp_path) as embedded:
        address = embedded.name_server_address
        async with (
            Producer("p", name_server=address) as producer,
            PushConsumer("desk", name_server=address, options=SOON) as consumer,
        ):
            await consumer.subscribe("t", "A", seen)
            await send_all(producer, "t", [b"later", b"error", b"fine"], tag="A")
            await until(lambda: len(seen.messages) == 6, "three deliveries and three repeats")
            await until(lambda: consumer.state().held == 0, "all settled")
    assert seen.counts() == {b"later": 2, b"error": 3, b"fine": 1}
    of_error = [message for message in seen.messages if message.body == b"error"]
    assert [message.reconsume_times for message in of_error] == [0, 1, 2]
    assert {message.topic for message in seen.messages} == {"t"}
    assert len({message.msg_id for message in of_error}) == 1
    assert {message.tag for message in of_error} == {"A"}


async def test_reject_goes_to_the_dead_letter_topic_at_once(anyio_backend: str, tmp_path: Path) -> None:
    seen = Seen({b"bad": [Reject("no departure time")]})
    async with servers(tmp_path) as embedded:
        address = embedded.name_server_address
        async with (
            Producer("p", name_server=address) as producer,
            PushConsumer("desk", name_server=address) as consumer,
            Admin(name_server=address) as admin,
        ):
            await consumer.subscribe("t", "*", seen)
            await send_all(producer, "t", [b"bad", b"good"])
            await seen.all_of([b"bad", b"good"])
            await until(lambda: consumer.state().held == 0, "all settled")
            dead = await dead_letters(admin, "desk")
    assert [message.body for message in dead] == [b"bad"]
    assert seen.counts() == {b"bad": 1, b"good": 1}


async def test_the_last_retry_leads_to_the_dead_letter_topic(anyio_backend: str, tmp_path: Path) -> None:
    seen = Seen({b"bad": [ValueError(str(number)) for number in range(5)]})
    options = ConsumerOptions(delay_level_when_next_consume=1, max_reconsume_times=1)
    async with servers(tmp_path) as embedded:
        address = embedded.name_server_address
        async with (
            Producer("p", name_server=address) as producer,
            PushConsumer("desk", name_server=address, options=options) as consumer,
            Admin(name_server=address) as admin,
        ):
            await consumer.subscribe("t", "*", seen)
            await send_all(producer, "t", [b"bad"])
            await until(lambda: len(seen.messages) == 2, "one delivery and one repeat")
            await until(lambda: consumer.state().held == 0, "all settled")
            assert [message.body for message in await dead_letters(admin, "desk")] == [b"bad"]


async def test_a_batch_comes_back_from_where_it_failed(anyio_backend: str, tmp_path: Path) -> None:
    batches: list[list[bytes]] = []

    async def handler(batch: list[MessageExt]) -> None:
        batches.append([message.body for message in batch])
        if len(batch) == 4:
            raise BatchFailed(2)

    async with servers(tmp_path) as embedded:
        address = embedded.name_server_address
        async with (
            Producer("p", name_server=address) as producer,
            PushConsumer("desk", name_server=address, options=SOON) as consumer,
        ):
            await consumer.subscribe("t", "*", handler, batch_max_size=4)
            await producer.send_batch([Message("t", body) for body in (b"0", b"1", b"2", b"3")])
            await until(lambda: sum(map(len, batches)) == 6, "two come back")
            await until(lambda: consumer.state().held == 0, "all settled")
    assert batches[0] == [b"0", b"1", b"2", b"3"]
    assert sorted(body for batch in batches[1:] for body in batch) == [b"2", b"3"]


async def test_a_batch_may_say_an_outcome_for_each_message(anyio_backend: str, tmp_path: Path) -> None:
    batches: list[list[bytes]] = []

    async def handler(batch: list[MessageExt]) -> list[Outcome] | None:
        batches.append([message.body for message in batch])
        return [None, Reject("bad"), RetryLater(1)] if len(batch) == 3 else None

    async with servers(tmp_path) as embedded:
        address = embedded.name_server_address
        async with (
            Producer("p", name_server=address) as producer,
            PushConsumer("desk", name_server=address) as consumer,
            Admin(name_server=address) as admin,
        ):
            await consumer.subscribe("t", "*", handler, batch_max_size=3)
            await producer.send_batch([Message("t", body) for body in (b"fine", b"bad", b"later")])
            await until(lambda: batches == [[b"fine", b"bad", b"later"], [b"later"]], "one comes back")
            assert [message.body for message in await dead_letters(admin, "desk")] == [b"bad"]


async def test_orderly_consumption_keeps_the_order_of_a_queue_over_failures(anyio_backend: str, tmp_path: Path) -> None:
    consumed: list[bytes] = []
    failures: dict[bytes, list[Exception]] = {b"3": [ValueError("once"), RetryLater(0.05)], b"5": [Reject("never")]}
    tries: list[tuple[bytes, int]] = []

    async def handler(batch: list[MessageExt]) -> None:
        for message in batch:
            tries.append((message.body, message.reconsume_times))
            if errors := failures.get(message.body):
                raise errors.pop(0)
            consumed.append(message.body)

    async with servers(tmp_path) as embedded:
        address = embedded.name_server_address
        async with (
            Producer("p", name_server=address) as producer,
            PushConsumer("desk", name_server=address, options=orderly()) as consumer,
            Admin(name_server=address) as admin,
        ):
            await consumer.subscribe("t", "*", handler)
            for number in range(10):
                await producer.send(Message("t", str(number).encode(), hash_key="one queue"))
            await until(lambda: len(consumed) == 9, "all but the rejected one")
            await until(lambda: consumer.state().lag == 0, "no lag")
            assert [message.body for message in await dead_letters(admin, "desk")] == [b"5"]
    assert consumed == [b"0", b"1", b"2", b"3", b"4", b"6", b"7", b"8", b"9"]
    assert [count for body, count in tries if body == b"3"] == [0, 1, 2]


async def test_an_orderly_message_is_given_up_after_its_retries(anyio_backend: str, tmp_path: Path) -> None:
    seen = Seen({b"bad": [ValueError(str(number)) for number in range(9)]})
    async with servers(tmp_path) as embedded:
        address = embedded.name_server_address
        async with (
            Producer("p", name_server=address) as producer,
            PushConsumer("desk", name_server=address, options=orderly(max_reconsume_times=2)) as consumer,
            Admin(name_server=address) as admin,
        ):
            await consumer.subscribe("t", "*", seen)
            for body in (b"bad", b"good"):
                await producer.send(Message("t", body, hash_key="one queue"))
            await seen.all_of([b"good"])
            assert seen.bodies == [b"bad", b"bad", b"bad", b"good"]
            await until(lambda: consumer.state().held == 0, "all settled")
            assert [message.body for message in await dead_letters(admin, "desk")] == [b"bad"]
