"""Which queue a message goes to, where somebody says it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import pytest

from rocketbox.client import QueueChoice
from rocketbox.client.middleware import SendContext, SendNext
from rocketbox.errors import ClientError, InvalidMessageError, NoRouteError, SendManyError
from rocketbox.message import Message, MessageQueue, SendResult, decode_properties
from rocketbox.protocol.codes import ResponseCode
from rocketbox.protocol.command import RemotingCommand
from tests.support.client.producing import producer_of
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.clocks import VirtualClock

pytestmark = pytest.mark.anyio

TWO = ("broker-a", "broker-b")


def message(**fields: Any) -> Message:
    return Message("T", b"body", **fields)


def by_flag(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    return queues[message.flag]


async def test_a_function_picks_the_queue_of_every_kind_of_send() -> None:
    seen: list[Sequence[MessageQueue]] = []

    def pick(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        seen.append(queues)
        return queues[message.flag]

    async with ScriptedCluster(VirtualClock(), brokers=TWO) as cluster:
        cluster.add_topic("T", queues=2)
        async with producer_of(cluster) as producer:
            result = await producer.send(message(flag=3), queue=pick)
            assert result.queue == MessageQueue("T", "broker-b", 1)
            await producer.send_one_way(message(flag=2), queue=pick)
            await producer.send_batch([message(flag=1), message(flag=0)], queue=pick)
        assert seen[0] == [MessageQueue("T", name, number) for name in TWO for number in range(2)]
        assert cluster.brokers["broker-b"].queues == [1, 0]
        assert cluster.brokers["broker-a"].queues == [1]


async def test_a_picked_queue_is_kept_over_all_tries() -> None:
    asked = 0

    def pick(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        nonlocal asked
        asked += 1
        return queues[1]

    clock = VirtualClock()
    async with ScriptedCluster(clock, brokers=TWO) as cluster:
        cluster.add_topic("T", queues=2)
        broker = cluster.broker

        def busy_at_first(request: RemotingCommand) -> RemotingCommand:
            return broker.store(request) if len(broker.sends) == 2 else RemotingCommand.response(1, "no")

        broker.on_send = busy_at_first
        async with producer_of(cluster) as producer, anyio.create_task_group() as tasks:
            tasks.start_soon(partial(producer.send, message(), queue=pick))
            await clock.advance(1)
        assert (broker.queues, cluster.brokers["broker-b"].sends, asked) == ([1, 1], [], 1)


@pytest.mark.parametrize("picked", [None, MessageQueue("T", "broker-z", 0), 0])
async def test_a_queue_that_is_none_of_the_topics_is_refused(picked: Any) -> None:
    def pick_wrongly(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        queue: MessageQueue = picked
        return queue

    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            with pytest.raises(InvalidMessageError, match=r"pick_wrongly, .* returned .*; it must return one of the 4"):
                await producer.send(message(), queue=pick_wrongly)
        assert cluster.broker.sends == []


async def test_what_a_function_raises_is_raised_and_nothing_is_sent() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            with pytest.raises(IndexError):
                await producer.send(message(flag=77), queue=by_flag)
            with pytest.raises(NoRouteError):
                await producer.send(Message("U", b"x"), queue=by_flag)
            with pytest.raises(InvalidMessageError, match="queue=7 is int; it must be a MessageQueue, a QueueChoice"):
                await producer.send(message(), queue=7)  # type: ignore[arg-type] # what is tried here
        assert cluster.broker.sends == []


async def test_random_goes_anywhere_and_on_to_another_broker() -> None:
    async with ScriptedCluster(VirtualClock(), brokers=TWO) as cluster:
        cluster.add_topic("T", queues=4)
        async with producer_of(cluster) as producer:
            places = [(await producer.send(message(), queue=QueueChoice.RANDOM)).queue for _ in range(60)]
            in_turn = [(await producer.send(message(), queue=QueueChoice.IN_TURN)).queue for _ in range(8)]
        assert len(set(places)) == 8
        steps = {(places.index(one), places.index(other)) for one, other in pairwise(places)}
        assert len(steps) > 8, "that would be their turn"
        assert len(set(in_turn)) == 8
        cluster.brokers["broker-a"].on_send = lambda _: RemotingCommand.response(ResponseCode.SYSTEM_BUSY, "no")
        async with producer_of(cluster) as producer:
            for _ in range(8):
                result = await producer.send(message(), queue=QueueChoice.RANDOM)
                assert result.broker_name == "broker-b"
            with pytest.raises(InvalidMessageError, match="hash_key, which chooses its queue"):
                await producer.send(message(hash_key="k"), queue=QueueChoice.RANDOM)


async def test_middlewares_may_look_at_the_choice_and_make_another() -> None:
    async def second(context: SendContext, call_next: SendNext) -> SendResult | None:
        assert context.queue is by_flag
        context.queue = lambda queues, message: queues[1]
        return await call_next(context)

    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster, client={"send_middleware": (second,)}) as producer:
            assert (await producer.send(message(flag=3), queue=by_flag)).queue.queue_id == 1


# --- of send_many ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", [{}, {"send_middleware": (lambda context, call_next: call_next(context),)}])
async def test_a_function_is_asked_once_for_each_of_many(client: dict[str, Any]) -> None:
    asked: list[int] = []

    def pick(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        asked.append(message.flag)
        return queues[message.flag % len(queues)]

    async with ScriptedCluster(VirtualClock(), brokers=TWO) as cluster:
        cluster.add_topic("T", queues=2)
        async with producer_of(cluster, client=client) as producer:
            for first in (0, 5):  # nothing is known of the topic yet; all of it is
                many = [message(flag=number) for number in range(first, first + 5)]
                results = await producer.send_many(many, queue=pick)
                every = [MessageQueue("T", name, number) for name in TWO for number in range(2)]
                assert [result.queue for result in results] == [every[each.flag % 4] for each in many]
    assert sorted(asked) == list(range(10))


async def test_many_go_to_the_queue_that_is_given_and_stay_there_over_all_tries() -> None:
    clock = VirtualClock()
    async with ScriptedCluster(clock, brokers=TWO) as cluster:
        cluster.add_topic("T", queues=2)
        broker, given = cluster.brokers["broker-b"], MessageQueue("T", "broker-b", 1)
        seen = set[bytes]()

        def busy_at_first(request: RemotingCommand) -> RemotingCommand:
            if request.body in seen:
                return broker.store(request)
            seen.add(request.body)
            return RemotingCommand.response(ResponseCode.SYSTEM_BUSY, "no")

        results: list[SendResult] = []
        async with producer_of(cluster) as producer, anyio.create_task_group() as tasks:

            async def send() -> None:
                many = [Message("T", b"%d" % number, hash_key="k" if number % 2 else None) for number in range(6)]
                results.extend(await producer.send_many(many, queue=given))

            await producer.send_many([message()])
            cluster.broker.requests.clear()
            broker.requests.clear()
            broker.on_send = busy_at_first
            tasks.start_soon(send)
            await clock.advance(1)
        assert [result.queue for result in results] == [given] * 6
        assert (broker.queues, cluster.broker.sends) == ([1] * 12, [])


async def test_of_many_only_those_fail_whose_queue_cannot_be_chosen() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            for _ in range(2):  # nothing is known of the topic yet; all of it is
                with pytest.raises(SendManyError) as caught:
                    await producer.send_many([message(flag=3), message(flag=77), message(flag=1)], queue=by_flag)
                one, wrong, other = caught.value.results
                assert isinstance(one, SendResult)
                assert isinstance(other, SendResult)
                assert (one.queue.queue_id, type(wrong), other.queue.queue_id) == (3, IndexError, 1)
            with pytest.raises(SendManyError) as caught:
                await producer.send_many([message(hash_key="k"), message()], queue=QueueChoice.RANDOM)
            assert [type(each) for each in caught.value.results] == [InvalidMessageError, SendResult]
            cluster.broker.requests.clear()
            with pytest.raises(InvalidMessageError, match="queue=7 is int; it must be a MessageQueue, a QueueChoice"):
                await producer.send_many([message()], queue=7)  # type: ignore[arg-type] # what is tried here
        assert cluster.broker.sends == []


async def test_each_of_many_goes_to_any_queue() -> None:
    async with ScriptedCluster(VirtualClock(), brokers=TWO) as cluster:
        cluster.add_topic("T", queues=4)
        async with producer_of(cluster) as producer:
            results = await producer.send_many([message() for _ in range(60)], queue=QueueChoice.RANDOM)
        places = [result.queue for result in results]
        steps = {(places.index(one), places.index(other)) for one, other in pairwise(places)}
        assert (len(set(places)), len(steps) > 8) == (8, True), "that would be their turn"


# --- hash keys ------------------------------------------------------------------------------------------------------


async def test_the_queues_of_an_ordered_topic_stay_the_same_while_a_broker_is_away() -> None:
    """Its configuration says how many there are, so that no key moves; Java's clients count them, too."""
    configured = "broker-a:4;broker-b:4"
    async with ScriptedCluster(VirtualClock(), brokers=TWO) as cluster:
        cluster.add_topic("T")
        cluster.name_server.routes["T"]["orderTopicConf"] = configured
        async with producer_of(cluster) as producer:
            keys = [str(number) for number in range(20)]
            before = [(await producer.send(message(hash_key=key))).queue for key in keys]
            assert {queue.broker_name for queue in before} == set(TWO)
            cluster.add_topic("T", brokers=("broker-a",))
            cluster.name_server.routes["T"]["orderTopicConf"] = configured
            await producer.instance.find_route("T", refresh=True)
            there = len(cluster.broker.sends)
            for key, queue in zip(keys, before, strict=True):
                keyed = message(hash_key=key)
                if queue.broker_name == "broker-a":
                    assert (await producer.send(keyed)).queue == queue
                    continue
                with pytest.raises(ClientError, match="no address of broker 'broker-b' is known"):
                    await producer.send(keyed)
                with pytest.raises(SendManyError):
                    await producer.send_many([keyed])
                with pytest.raises(ClientError, match="broker-b"):
                    await producer.send(message(), queue=lambda queues, _: queues[7])
            assert len(cluster.broker.sends) == there + sum(queue.broker_name == "broker-a" for queue in before)
            plain = [(await producer.send(message())).queue.broker_name for _ in range(8)]
            assert set(plain) == {"broker-a"}


async def test_a_hash_key_travels_with_its_message() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            await producer.send(message(hash_key="Straße 1"))
            await producer.send(message())
        keyed, plain = (decode_properties(request.ext_fields["i"].encode()) for request in cluster.broker.sends)
    assert keyed["__SHARDINGKEY"] == "Straße 1"
    assert "__SHARDINGKEY" not in plain


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"hash_key": ""}, "hash_key is blank"),
        ({"hash_key": " "}, "hash_key is blank"),
        ({"hash_key": 7}, "hash_key is 7, of type int"),
        ({"hash_key": "a\x01b"}, "control character"),
        ({"hash_key": "\ud800"}, "half of a surrogate pair"),
        ({"hash_key": "a", "properties": {"__SHARDINGKEY": "b"}}, "keep one of them"),
    ],
)
async def test_a_hash_key_that_could_not_travel_is_refused(fields: dict[str, Any], reason: str) -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            with pytest.raises(InvalidMessageError, match=reason):
                await producer.send(message(**fields))
            with pytest.raises(InvalidMessageError, match=reason):
                await producer.send_batch([message(**fields)])
        assert cluster.broker.sends == []
