"""Batches: which messages go in one request, and what each of them is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from rocketbox.client.batches import Part, parts_of, results_of
from rocketbox.client.middleware import SendContext, SendNext
from rocketbox.errors import (
    BrokerError,
    ClientError,
    InvalidMessageError,
    NotDurableError,
    RemoteProtocolError,
    SendManyError,
)
from rocketbox.message import Message, SendResult, SendStatus
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.stored_message import decode_batch
from tests.support.client.producing import producer_of
from tests.support.client.scripted_cluster import ClusterBroker, ScriptedCluster
from tests.support.clocks import VirtualClock

pytestmark = pytest.mark.anyio


def store(broker: ClusterBroker, request: RemotingCommand) -> RemotingCommand:
    """The answer of a broker that has stored each message of a batch."""
    if request.code != RequestCode.SEND_BATCH_MESSAGE:
        return broker.store(request)
    queue, count = request.ext_fields["e"], len(list(decode_batch(request.body)))
    first = broker.offsets.get(queue, -1) + 1
    broker.offsets[queue] = first + count - 1
    ids = ",".join(f"{int(queue):016X}{first + number:016X}" for number in range(count))
    return RemotingCommand.response(ext_fields={"msgId": ids, "queueId": queue, "queueOffset": str(first)})


def bodies(request: RemotingCommand) -> list[bytes]:
    if request.code != RequestCode.SEND_BATCH_MESSAGE:
        return [request.body]
    return [bytes(element.body) for element in decode_batch(request.body)]


# --- parts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([], []),
        ([100], [(0, 1)]),
        ([50, 50], [(0, 2)]),
        ([50, 51], [(0, 1), (1, 2)]),
        ([40, 40, 40, 40], [(0, 2), (2, 4)]),
        ([10, 101, 10, 20], [(0, 1), (1, 2, True), (2, 4)]),
        ([101], [(0, 1, True)]),
        ([101, 102], [(0, 1, True), (1, 2, True)]),
        ([100, 1], [(0, 1), (1, 2)]),
    ],
)
def test_parts_are_as_large_as_may_be(sizes: list[int], parts: list[tuple[int, int]]) -> None:
    assert list(parts_of(sizes, 100)) == [Part(*part) for part in parts]


def test_a_part_has_no_more_messages_than_an_answer_can_name() -> None:
    assert [part.end - part.start for part in parts_of([1] * 120_000, 1 << 30)] == [50_000, 50_000, 20_000]


# --- results --------------------------------------------------------------------------------------------------------


@dataclass
class Answered:
    ext_fields: Mapping[str, str]


def result(msg_id: str, **fields: str) -> SendResult:
    return SendResult(SendStatus.SEND_OK, msg_id, "T", "broker-a", Answered(fields))


def test_each_message_of_a_batch_has_a_result_of_its_own() -> None:
    shared = result("A,B,C", msgId="1,2,3", queueId="4", queueOffset="7", transactionId="A,B,C", MSG_REGION="r")
    found = results_of(shared, 3)
    assert [(each.msg_id, each.offset_msg_id, each.queue_offset) for each in found] == [
        ("A", "1", 7),
        ("B", "2", 8),
        ("C", "3", 9),
    ]
    assert {(each.queue.queue_id, each.region_id, each.status, each.transaction_id) for each in found} == {
        (4, "r", SendStatus.SEND_OK, None)
    }


def test_what_an_answer_does_not_say_of_each_is_missing() -> None:
    first, second = results_of(result("A,B", msgId="1", queueId="4", queueOffset="what"), 2)
    assert first.offset_msg_id == "1"
    for ask in (lambda: second.offset_msg_id, lambda: second.queue_offset):
        with pytest.raises(RemoteProtocolError, match="message B"):
            ask()


def test_a_result_of_a_middlewares_own_is_that_of_each() -> None:
    own = result("mine")
    assert results_of(own, 2) == [own, own]


# --- requests -------------------------------------------------------------------------------------------------------


async def test_a_batch_that_is_too_large_for_a_request_goes_in_several_in_order() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        broker = cluster.broker
        broker.on_send = lambda request: store(broker, request)
        cluster.add_topic("T")
        sent = [b"%03d" % number + b"x" * 200 for number in range(20)]
        sent[7] = b"y" * 990  # larger than a request, with what stands around it
        async with producer_of(cluster, max_message_size=1000) as producer:
            results = await producer.send_batch([Message("T", body) for body in sent])
        requests = cluster.broker.requests
        requests = [each for each in requests if each.code in {RequestCode.SEND_BATCH_MESSAGE, 310}]
    assert [body for request in requests for body in bodies(request)] == sent
    assert [len(bodies(request)) for request in requests] == [3, 3, 1, 1, 3, 3, 3, 3]
    assert [request.code for request in requests].count(310) == 1
    assert all(len(request.body) <= 1000 for request in requests)
    places = [(request.ext_fields["e"], body) for request in requests for body in bodies(request)]
    assert [str(each.queue.queue_id) for each in results] == [queue for queue, _ in places]
    assert len({(each.queue, each.queue_offset) for each in results}) == 20
    assert len({each.msg_id for each in results}) == 20


async def test_a_message_whose_properties_are_too_long_for_a_batch_of_old_brokers_goes_alone() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        broker = cluster.broker
        broker.on_send = lambda request: store(broker, request)
        cluster.add_topic("T")
        long = Message("T", b"2", properties={"p": "x" * 32_400})
        async with producer_of(cluster) as producer:
            await producer.send_batch([Message("T", b"0"), Message("T", b"1"), long, Message("T", b"3")])
        codes = {RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2}
        sent = [(request.code, bodies(request)) for request in broker.requests if request.code in codes]
    assert sent == [(320, [b"0", b"1"]), (310, [b"2"]), (320, [b"3"])]


async def test_all_requests_of_a_batch_with_a_key_go_to_its_queue() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        broker = cluster.broker
        broker.on_send = lambda request: store(broker, request)
        cluster.add_topic("T")
        async with producer_of(cluster, max_message_size=1000) as producer:
            results = await producer.send_batch([Message("T", b"x" * 300, hash_key="UA1545")] * 10)
        assert {each.queue.queue_id for each in results} == {abs(-1_784_254_178 % 4) % 4} or len(
            {each.queue.queue_id for each in results}
        ) == 1
        assert [each.queue_offset for each in results] == list(range(10))


async def test_what_follows_a_request_that_failed_is_not_sent_and_each_message_is_told_what_became_of_it() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        broker = cluster.broker

        def refuse_the_second(request: RemotingCommand) -> RemotingCommand:
            if len(broker.sends) == 2:
                return RemotingCommand.response(ResponseCode.MESSAGE_ILLEGAL, "no")
            return store(broker, request)

        broker.on_send = refuse_the_second
        cluster.add_topic("T")
        async with producer_of(cluster, max_message_size=1000) as producer:
            with pytest.raises(SendManyError) as caught:
                await producer.send_batch([Message("T", b"x" * 300)] * 5)
        outcomes = caught.value.results
        assert len(broker.sends) == 2
    assert [type(each) for each in outcomes] == [SendResult, SendResult, BrokerError, BrokerError, ClientError]
    assert "was not sent" in str(outcomes[4])


async def test_each_message_of_a_request_that_is_stored_weakly_is_told_its_own_place() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        broker = cluster.broker

        def store_weakly(request: RemotingCommand) -> RemotingCommand:
            return RemotingCommand.response(
                ResponseCode.FLUSH_DISK_TIMEOUT, ext_fields=store(broker, request).ext_fields
            )

        broker.on_send = store_weakly
        cluster.add_topic("T")
        async with producer_of(cluster, max_message_size=1000) as producer:
            with pytest.raises(SendManyError) as caught:
                await producer.send_batch([Message("T", b"x" * 300)] * 5)
    told = caught.value.results[:2]
    results = [each.result for each in told if isinstance(each, NotDurableError)]
    assert [each.queue_offset for each in results] == [0, 1]
    assert not any("," in each.msg_id for each in results)


async def test_one_request_that_failed_raises_its_own_error() -> None:
    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.broker.on_send = lambda _: RemotingCommand.response(ResponseCode.MESSAGE_ILLEGAL, "no")
        cluster.add_topic("T")
        async with producer_of(cluster) as producer:
            with pytest.raises(BrokerError, match="no"):
                await producer.send_batch([Message("T", b"x")] * 5)


async def test_middlewares_see_each_request_of_a_batch() -> None:
    seen: list[tuple[int, bool]] = []

    async def count(context: SendContext, call_next: SendNext) -> SendResult | None:
        seen.append((len(context.messages), context.batch))
        return await call_next(context)

    async with ScriptedCluster(VirtualClock()) as cluster:
        broker = cluster.broker
        broker.on_send = lambda request: store(broker, request)
        cluster.add_topic("T")
        messages = [Message("T", b"x" * 300)] * 3 + [Message("T", b"y" * 990)]
        async with producer_of(cluster, client={"send_middleware": (count,)}, max_message_size=1000) as producer:
            results = await producer.send_batch(messages)
    assert seen == [(2, True), (1, True), (1, False)]
    assert len({(each.queue, each.queue_offset) for each in results}) == 4


async def test_a_batch_that_a_middleware_makes_too_large_is_refused() -> None:
    async def enlarge(context: SendContext, call_next: SendNext) -> SendResult | None:
        context.messages = [replace(message, body=message.body * 20) for message in context.messages]
        return await call_next(context)

    async with ScriptedCluster(VirtualClock()) as cluster:
        cluster.add_topic("T")
        async with producer_of(cluster, client={"send_middleware": (enlarge,)}, max_message_size=1000) as producer:
            with pytest.raises(
                InvalidMessageError, match=r"more than 1000 bytes.*max-message-size.*after a middleware"
            ):
                await producer.send_batch([Message("T", b"x" * 40)] * 3)
        assert cluster.broker.sends == []
