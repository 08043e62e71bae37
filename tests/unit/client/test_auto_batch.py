"""Sends that are joined to batches by themselves: when they go, what each is told, and what goes alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

from rocketbox.client.middleware import SendContext, SendNext
from rocketbox.client.producer import Producer
from rocketbox.errors import (
    BrokerError,
    InvalidMessageError,
    NotDurableError,
    NotStartedError,
    SendTimeoutError,
    TooManyRequestsError,
)
from rocketbox.message import Compression, Message, MessageQueue, SendResult
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.stored_message import decode_batch
from tests.support.client.producing import producer_of
from tests.support.client.scripted_cluster import ClusterBroker, ScriptedCluster
from tests.support.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio


def store(broker: ClusterBroker, request: RemotingCommand) -> RemotingCommand:
    """The answer of a broker that has stored each message of a batch."""
    if request.code != RequestCode.SEND_BATCH_MESSAGE:
        return broker.store(request)
    queue, count = request.ext_fields["e"], len(bodies(request))
    first = broker.offsets.get(queue, -1) + 1
    broker.offsets[queue] = first + count - 1
    ids = ",".join(f"{int(queue):016X}{first + number:016X}" for number in range(count))
    return RemotingCommand.response(ext_fields={"msgId": ids, "queueId": queue, "queueOffset": str(first)})


def bodies(request: RemotingCommand) -> list[bytes]:
    if request.code != RequestCode.SEND_BATCH_MESSAGE:
        return [bytes(request.body)]
    return [bytes(element.body) for element in decode_batch(request.body)]


class Sends:
    """Sends messages at the same time, and keeps the result or error of each by its body."""

    def __init__(self, producer: Producer) -> None:
        self.outcomes: dict[bytes, SendResult | Exception] = {}
        self._producer = producer

    async def __call__(self, message: Message, **options: Any) -> None:
        try:
            self.outcomes[message.body] = await self._producer.send(message, **options)
        except Exception as error:
            self.outcomes[message.body] = error


class Setting:
    """A producer with auto_batch at a broker that stores batches, on virtual time."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.cluster = ScriptedCluster(self.clock)
        self.broker = self.cluster.broker
        self.broker.on_send = partial(store, self.broker)
        for topic in ("T", "U"):
            self.cluster.add_topic(topic)

    def producer(self, **options: Any) -> Producer:
        return producer_of(self.cluster, auto_batch=True, **options)

    @property
    def sent(self) -> list[list[bytes]]:
        """The bodies of each request, in the order in which they came; trio begins tasks in any order."""
        codes = {RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2}
        return [sorted(bodies(request)) for request in self.broker.requests if request.code in codes]


def numbered(count: int, **fields: Any) -> list[Message]:
    return [Message("T", b"%d" % number, **fields) for number in range(count)]


async def test_sends_at_the_same_time_are_one_request_and_each_has_its_own_result() -> None:
    setting = Setting()
    async with setting.cluster, setting.producer() as producer, anyio.create_task_group() as tasks:
        send = Sends(producer)
        for message in numbered(5):
            tasks.start_soon(send, message)
        await setting.clock.advance(0.009)
        assert setting.sent == []
        await setting.clock.advance(0.002)
        assert setting.sent == [[b"0", b"1", b"2", b"3", b"4"]]
        results = [send.outcomes[b"%d" % number] for number in range(5)]
    assert sorted(result.queue_offset for result in results if isinstance(result, SendResult)) == [0, 1, 2, 3, 4]
    assert len({result.msg_id for result in results if isinstance(result, SendResult)}) == 5
    assert len({result.offset_msg_id for result in results if isinstance(result, SendResult)}) == 5


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"batch_max_messages": 4}, [4, 4, 2]),
        ({"batch_max_bytes": 300}, [4, 4, 2]),
        ({"max_message_size": 299}, [3] * 3),
    ],
)
async def test_a_full_batch_goes_at_once(options: dict[str, int], sizes: list[int]) -> None:
    setting = Setting()
    async with setting.cluster, setting.producer(**options) as producer, anyio.create_task_group() as tasks:
        send = Sends(producer)
        for message in numbered(10):
            tasks.start_soon(send, message)
        await settle()
        assert len(setting.sent) == 10 // sizes[0]
        await setting.clock.advance(0.02)
        assert sorted(map(len, setting.sent), reverse=True)[: len(sizes)] == sizes
        assert sum(map(len, setting.sent)) == 10
    assert all(isinstance(each, SendResult) for each in send.outcomes.values())


async def test_what_differs_goes_apart_and_what_may_stand_in_no_batch_goes_at_once() -> None:
    setting = Setting()
    queue = MessageQueue("T", "broker-a", 2)
    async with setting.cluster, setting.producer() as producer, anyio.create_task_group() as tasks:
        send = Sends(producer)
        alone = [
            Message("T", b"delayed", delay_level=3),
            Message("T", b"packed", compression=Compression.ZLIB),
            Message("T", b"x" * 5000),
            Message("T", b"long", properties={"p": "x" * 32_400}),
        ]
        apart = [
            *(Message("U", b"topic %d" % number) for number in range(2)),
            *(Message("T", b"key a %d" % number, hash_key="a") for number in range(2)),
            *(Message("T", b"key b %d" % number, hash_key="b") for number in range(2)),
            *(Message("T", b"hasty %d" % number, wait_store_ok=False) for number in range(2)),
        ]
        for message in [*alone, *apart]:
            tasks.start_soon(send, message)
        for number in range(2):
            tasks.start_soon(partial(send, Message("T", b"queue %d" % number), queue=queue))
            tasks.start_soon(partial(send, Message("T", b"patient %d" % number), timeout=9.0))
        await settle()
        assert len(setting.sent) == len(alone)
        await setting.clock.advance(0.02)
        joined = {tuple(each) for each in setting.sent[len(alone) :]}
    assert joined == {
        tuple(b"%s %d" % (word, number) for number in range(2))
        for word in (b"topic", b"key a", b"key b", b"hasty", b"queue", b"patient")
    }
    results = send.outcomes.values()
    assert all(isinstance(each, SendResult) for each in results)
    placed = send.outcomes[b"queue 1"]
    assert isinstance(placed, SendResult)
    assert placed.queue == queue


async def test_a_message_that_is_wrong_is_told_so_and_the_others_go() -> None:
    setting = Setting()
    async with setting.cluster, setting.producer() as producer, anyio.create_task_group() as tasks:
        send = Sends(producer)
        for message in [*numbered(2), Message("T", b"wrong", tag="a|b"), Message("T", b"")]:
            tasks.start_soon(send, message)
        await setting.clock.advance(0.02)
    assert setting.sent == [[b"0", b"1"]]
    assert isinstance(send.outcomes[b"wrong"], InvalidMessageError)
    assert isinstance(send.outcomes[b""], InvalidMessageError)
    assert isinstance(send.outcomes[b"1"], SendResult)


async def test_when_a_batch_is_refused_for_one_of_its_messages_that_one_is_told() -> None:
    setting = Setting()

    def refuse(request: RemotingCommand) -> RemotingCommand:
        if b"1" in bodies(request):
            return RemotingCommand.response(ResponseCode.MESSAGE_ILLEGAL, "no")
        return store(setting.broker, request)

    setting.broker.on_send = refuse
    async with setting.cluster, setting.producer() as producer, anyio.create_task_group() as tasks:
        send = Sends(producer)
        for message in numbered(3):
            tasks.start_soon(send, message)
        await setting.clock.advance(0.02)
    assert setting.sent[0] == [b"0", b"1", b"2"]
    assert sorted(setting.sent[1:]) == [[b"0"], [b"1"], [b"2"]]
    assert [type(send.outcomes[b"%d" % number]) for number in range(3)] == [SendResult, BrokerError, SendResult]


async def test_a_weak_acknowledgement_is_told_of_each_message_with_its_own_result() -> None:
    setting = Setting()

    def store_weakly(request: RemotingCommand) -> RemotingCommand:
        answer = store(setting.broker, request)
        return RemotingCommand.response(ResponseCode.FLUSH_DISK_TIMEOUT, ext_fields=answer.ext_fields)

    setting.broker.on_send = store_weakly
    async with setting.cluster, setting.producer() as producer, anyio.create_task_group() as tasks:
        send = Sends(producer)
        for message in numbered(3):
            tasks.start_soon(send, message)
        await setting.clock.advance(0.02)
    errors = list(send.outcomes.values())
    results = [error.result for error in errors if isinstance(error, NotDurableError)]
    assert sorted(each.queue_offset for each in results) == [0, 1, 2]
    assert len({each.msg_id for each in results}) == 3
    assert not any("," in each.msg_id for each in results)


async def test_without_an_answer_each_is_told_of_its_own_message() -> None:
    setting = Setting()
    setting.broker.on_send = lambda _: None
    async with setting.cluster, setting.producer() as producer, anyio.create_task_group() as tasks:
        send = Sends(producer)
        for message in numbered(2):
            tasks.start_soon(send, message)
        await setting.clock.advance(4)
    first, second = send.outcomes[b"0"], send.outcomes[b"1"]
    assert isinstance(first, SendTimeoutError)
    assert isinstance(second, SendTimeoutError)
    assert "," not in first.msg_id
    assert first.msg_id != second.msg_id


@pytest.mark.parametrize("delay", [0.5, 30.0])
async def test_the_wait_for_others_is_a_part_of_the_time_of_a_send(delay: float) -> None:
    setting = Setting()
    async with (
        setting.cluster, setting.producer(batch_max_delay=delay) as producer, anyio.create_task_group() as tasks
    ):  # fmt: skip
        send = Sends(producer)
        tasks.start_soon(partial(send, Message("T", b"0"), timeout=1.0))
        await setting.clock.advance(0.99)
        assert isinstance(send.outcomes[b"0"], SendResult)
        setting.broker.on_send = lambda _: None
        tasks.start_soon(partial(send, Message("T", b"1"), timeout=1.0))
        await setting.clock.advance(1.2)
        assert isinstance(send.outcomes[b"1"], SendTimeoutError)
        tasks.cancel_scope.cancel()


async def test_a_send_that_is_cancelled_while_it_waits_is_not_sent() -> None:
    setting = Setting()
    async with setting.cluster, setting.producer() as producer, anyio.create_task_group() as tasks:
        send = Sends(producer)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as cancelled:
                for message in numbered(2):
                    (cancelled if message.body == b"0" else tasks).start_soon(send, message)
                await settle()
                scope.cancel()
        await setting.clock.advance(0.02)
    assert setting.sent == [[b"1"]]
    assert isinstance(send.outcomes[b"1"], SendResult)


async def test_leaving_sends_what_waits() -> None:
    setting = Setting()
    async with setting.cluster, anyio.create_task_group() as tasks:
        async with setting.producer(batch_max_delay=30.0) as producer:
            send = Sends(producer)
            for message in numbered(3):
                tasks.start_soon(send, message)
            await settle()
            assert setting.sent == []
        assert setting.sent == [[b"0", b"1", b"2"]]
        with pytest.raises(NotStartedError):
            await producer.send(Message("T", b"late"))
    assert all(isinstance(each, SendResult) for each in send.outcomes.values())


async def test_sends_wait_for_room_and_are_told_when_none_comes() -> None:
    setting = Setting()
    answers = anyio.Event()

    async def late(request: RemotingCommand) -> RemotingCommand:
        await answers.wait()
        return store(setting.broker, request)

    setting.broker.on_send = late
    limits = {"total_batch_max_bytes": 200, "batch_max_messages": 2}
    async with setting.cluster, setting.producer(**limits) as producer, anyio.create_task_group() as tasks:
        send = Sends(producer)
        for message in numbered(2):
            tasks.start_soon(send, message)
        await settle()
        tasks.start_soon(partial(send, Message("T", b"impatient"), timeout=0.5))
        tasks.start_soon(partial(send, Message("T", b"patient"), timeout=2.0))
        await setting.clock.advance(1)
        assert isinstance(send.outcomes.get(b"impatient"), TooManyRequestsError)
        assert setting.sent == [[b"0", b"1"]]
        answers.set()
        await setting.clock.advance(0.5)
    assert isinstance(send.outcomes[b"patient"], SendResult)
    assert setting.sent == [[b"0", b"1"], [b"patient"]]


@pytest.mark.parametrize(("room_at", "together"), [(0.5, True), (1.5, False)], ids=["early", "late"])
async def test_the_time_of_a_send_is_that_of_the_wait_for_room_as_well(room_at: float, together: bool) -> None:
    """Who has little time left goes alone, so that others keep theirs."""
    setting = Setting()
    answers = anyio.Event()
    ended: dict[bytes, float] = {}

    async def late(request: RemotingCommand) -> RemotingCommand:
        await answers.wait()
        if len(setting.sent) > 1:
            await anyio.sleep_forever()
        return store(setting.broker, request)

    setting.broker.on_send = late
    limits = {"total_batch_max_bytes": 200, "batch_max_messages": 2}
    async with setting.cluster, setting.producer(**limits) as producer, anyio.create_task_group() as tasks:
        send = Sends(producer)

        async def timed(body: bytes) -> None:
            await send(Message("T", body), timeout=2.0)
            ended[body] = setting.clock.now

        for message in numbered(2):
            tasks.start_soon(partial(send, message, timeout=2.0))
        await settle()
        tasks.start_soon(timed, b"waits for room")
        await setting.clock.advance(room_at)
        began = setting.clock.now
        answers.set()
        await settle()
        tasks.start_soon(timed, b"comes then")
        await setting.clock.advance(5)
        tasks.cancel_scope.cancel()
    assert isinstance(send.outcomes[b"waits for room"], SendTimeoutError)
    assert ended[b"waits for room"] == pytest.approx(2.0, abs=0.3)
    assert ended[b"comes then"] == pytest.approx(2.0 if together else began + 2.0, abs=0.3)
    assert setting.sent[1:] == (
        [[b"comes then", b"waits for room"]] if together else [[b"waits for room"], [b"comes then"]]
    )


async def test_middlewares_see_each_send_and_send_many_goes_in_batches_too() -> None:
    seen: list[tuple[int, bool]] = []

    async def count(context: SendContext, call_next: SendNext) -> SendResult | None:
        seen.append((len(context.messages), context.batch))
        return await call_next(context)

    setting = Setting()
    client = {"send_middleware": (count,)}
    async with setting.cluster, setting.producer(client=client) as producer, anyio.create_task_group() as tasks:
        results: list[SendResult] = []

        async def many() -> None:
            results.extend(await producer.send_many(numbered(6)))
            await producer.send_one_way(Message("T", b"one way"))

        tasks.start_soon(many)
        await setting.clock.advance(0.05)
    assert setting.sent == [[b"0", b"1", b"2", b"3", b"4", b"5"], [b"one way"]]
    assert seen == [(1, False)] * 7
    assert sorted(result.queue_offset for result in results) == list(range(6))
