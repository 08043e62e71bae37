"""Message trace on virtual time: what is sent when, what is dropped, and that it holds up nothing."""

from __future__ import annotations

import contextlib
import logging
import zlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import anyio
import pytest

from rocketbox.client import (
    AccessChannel,
    ClientOptions,
    ConsumeContext,
    Credentials,
    MQClientInstance,
    Producer,
    ProducerOptions,
)
from rocketbox.client.options import ConsumerOptions
from rocketbox.client.outcomes import Outcomes
from rocketbox.client.trace import ConsumerTrace
from rocketbox.client.trace_dispatcher import MAX_BODY_BYTES, MOST_WAITING, TraceCounts
from rocketbox.errors import BatchFailed, NotDurableError, Reject
from rocketbox.message import Message, MessageExt, SendResult, SendStatus, encode_properties
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.trace_records import (
    ConsumeCode,
    PubRecord,
    SubAfterRecord,
    SubBeforeRecord,
    TraceRecord,
    decode_trace_records,
)
from tests.support.client.producing import producer_of
from tests.support.client.scripted_cluster import Answer, ScriptedCluster
from tests.support.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio

TRACE = "RMQ_SYS_TRACE_TOPIC"


def cluster_with(*topics: str) -> ScriptedCluster:
    cluster = ScriptedCluster(VirtualClock())
    for topic in topics or ("T", TRACE):
        cluster.add_topic(topic)
    return cluster


def sends_to(cluster: ScriptedCluster, topic: str = TRACE) -> list[RemotingCommand]:
    return [request for request in cluster.broker.sends if request.ext_fields["b"] == topic]


def bodies(requests: list[RemotingCommand]) -> list[bytes]:
    return [zlib.decompress(each.body) if int(each.ext_fields["f"]) & 1 else each.body for each in requests]


def records(cluster: ScriptedCluster, topic: str = TRACE) -> list[list[TraceRecord]]:
    """Of each message to the topic of trace."""
    return [decode_trace_records(body) for body in bodies(sends_to(cluster, topic))]


def silent_to(cluster: ScriptedCluster, topic: str = TRACE) -> None:
    """Let the broker never answer what is sent to a topic."""

    async def never() -> None:
        await anyio.sleep_forever()

    def on_send(request: RemotingCommand) -> Answer:
        return never() if request.ext_fields["b"] == topic else cluster.broker.store(request)

    cluster.broker.on_send = on_send


async def test_the_first_record_goes_at_once_and_further_ones_after_5_s_or_when_there_are_10() -> None:
    async with cluster_with() as cluster, producer_of(cluster, enable_msg_trace=True) as producer:
        await producer.send(Message("T", b"first"))
        await settle(400)
        assert [len(each) for each in records(cluster)] == [1]
        for _ in range(9):
            await producer.send(Message("T", b"x"))
        await cluster.clock.advance(4.9)  # type: ignore[attr-defined] # a virtual one
        assert [len(each) for each in records(cluster)] == [1]
        await cluster.clock.advance(0.2)  # type: ignore[attr-defined]
        assert [len(each) for each in records(cluster)] == [1, 9]
        for _ in range(10):
            await producer.send(Message("T", b"x"))
        await settle(400)
        assert [len(each) for each in records(cluster)] == [1, 9, 10]
        assert producer.trace == TraceCounts(waiting=0, sent=20, dropped=0, failed=0)


async def test_what_a_record_says_of_a_send() -> None:
    async with cluster_with() as cluster, producer_of(cluster, enable_msg_trace=True) as producer:
        result = await producer.send(Message("T", b"body", tag="A", keys=["k1", "k2"]))
        await settle(400)
        ((record,),) = records(cluster)
        assert isinstance(record, PubRecord)
        assert (record.group, record.topic, record.msg_id, record.tags) == ("PG1", "T", result.msg_id, "A")
        assert (record.keys, record.store_host, record.body_length) == ("k1 k2", cluster.broker.address, 4)
        assert (record.offset_msg_id, record.region_id, record.success) == ("0" * 32, "DefaultRegion", True)
        (request,) = sends_to(cluster)
        assert request.ext_fields["a"] == "_INNER_TRACE_PRODUCER-PG1-PRODUCE-0"
        assert f"KEYS\x01{result.msg_id} k1 k2\x02" in request.ext_fields["i"]


async def test_a_client_of_its_own_sends_it_and_says_goodbye_with_the_last_member() -> None:
    async with cluster_with() as cluster:
        options = ProducerOptions(enable_msg_trace=True)
        async with MQClientInstance(
            cluster.name_server.address, options=ClientOptions(client_ip="192.0.2.7"), clock=cluster.clock,
            network=cluster.network,
        ) as instance:  # fmt: skip
            async with Producer("G2", instance=instance, options=options) as longer:
                async with Producer("G1", instance=instance, options=options) as producer:
                    await producer.send(Message("T", b"x"))
                    await longer.send(Message("T", b"x"))
                    await settle(400)
                    groups = {request.ext_fields["a"] for request in sends_to(cluster)}
                    assert groups == {f"_INNER_TRACE_PRODUCER-G{2 - n}-PRODUCE-{n}" for n in (0, 1)}
                gone = [each.ext_fields for each in cluster.broker.requested(RequestCode.UNREGISTER_CLIENT)]
                assert "_INNER_TRACE_PRODUCER-G1-PRODUCE-1" in {each.get("producerGroup") for each in gone}
                clients = {each["clientID"] for each in gone}
                assert len(clients) == 2
                assert instance.client_id in clients
                assert len(cluster.broker.connections) == 2
            (of_trace,) = clients - {instance.client_id}
            gone = [each.ext_fields for each in cluster.broker.requested(RequestCode.UNREGISTER_CLIENT)]
            assert "_INNER_TRACE_PRODUCER-G2-PRODUCE-0" in {
                each.get("producerGroup") for each in gone if each["clientID"] == of_trace
            }
            async with Producer("G3", instance=instance, options=options) as again:
                await again.send(Message("T", b"x"))
                await settle(400)
                assert "_INNER_TRACE_PRODUCER-G3-PRODUCE-0" in {each.ext_fields["a"] for each in sends_to(cluster)}


async def test_it_signs_with_the_keys_of_the_traced_client_also_when_they_change() -> None:
    class Vault:
        asked = 0

        async def credentials(self) -> Credentials:
            self.asked += 1
            return Credentials(access_key=f"AK{self.asked}", secret_key="a secret of the vault")

    vault = Vault()
    async with cluster_with() as cluster:
        clock: Any = cluster.clock
        async with producer_of(cluster, enable_msg_trace=True, client={"credentials": vault}) as producer:
            await producer.send(Message("T", b"x"))
            await settle(400)
            assert producer.instance.keys is not None
            producer.instance.keys.look()
            await clock.advance(3)
            assert vault.asked == 2, "nobody asks it for the client of the trace"
            await producer.send_many([Message("T", b"x")] * 10)
            await settle(400)
            assert [request.ext_fields["AccessKey"] for request in sends_to(cluster)] == ["AK1", "AK2"]


async def test_it_asks_the_name_servers_that_the_traced_client_was_given() -> None:
    async with cluster_with() as cluster:
        clock: Any = cluster.clock
        async with producer_of(cluster, enable_msg_trace=True) as producer:
            await producer.send(Message("T", b"x"))
            await settle(400)
            asked = len(cluster.name_server.connections)
            assert asked == 2
            producer.instance.replace_name_servers("elsewhere:9876")
            await producer.send_many([Message("T", b"x")] * 10)
            await settle(400)
            await clock.advance(1)
            assert await closed(cluster) == 2
            assert producer.trace == TraceCounts(waiting=0, sent=11, dropped=0, failed=0)


async def closed(cluster: ScriptedCluster) -> int:
    """How many connections to the name server are no more."""
    await settle(100)
    return sum(connection.closed for connection in cluster.name_server.connections)


async def test_nothing_is_made_for_a_producer_that_sends_nothing() -> None:
    async with cluster_with() as cluster, producer_of(cluster, enable_msg_trace=True):
        await cluster.clock.advance(60)  # type: ignore[attr-defined]
        assert cluster.name_server.asked(TRACE) == 0


async def test_a_long_group_makes_no_longer_one_than_brokers_take() -> None:
    async with cluster_with() as cluster:
        async with Producer(
            "g" * 120, name_server=cluster.name_server.address, options=ProducerOptions(enable_msg_trace=True),
            clock=cluster.clock, network=cluster.network,
        ) as producer:  # fmt: skip
            await producer.send(Message("T", b"x"))
        (request,) = sends_to(cluster)
        group = request.ext_fields["a"]
        assert len(group) == 120
        assert group.startswith("_INNER_TRACE_PRODUCER-ggg")
        assert group.endswith("g-PRODUCE-0")


async def test_more_than_are_sent_are_dropped_and_counted_and_no_send_waits(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster_with() as cluster:
        silent_to(cluster)
        async with anyio.create_task_group() as tasks, producer_of(cluster, enable_msg_trace=True) as producer:
            await producer.send(Message("T", b"x"))
            await settle(400)  # this one is on its way for ever
            before = cluster.clock.monotonic()
            await producer.send_many([Message("T", b"x")] * (MOST_WAITING + 7))
            assert cluster.clock.monotonic() == before
            assert producer.trace == TraceCounts(waiting=MOST_WAITING + 1, sent=0, dropped=7, failed=0)
            tasks.start_soon(cluster.clock.advance, 9)  # type: ignore[attr-defined]
        counts = producer.trace
        assert counts is not None
        assert counts.waiting == 0
        assert counts.dropped + counts.failed == MOST_WAITING + 8
    told = [each.getMessage() for each in caplog.records if "records are dropped" in each.getMessage()]
    assert len(told) == 1, "one line in a minute"


async def test_the_rest_is_sent_at_the_stop() -> None:
    async with cluster_with() as cluster:
        async with producer_of(cluster, enable_msg_trace=True) as producer:
            for _ in range(8):
                await producer.send(Message("T", b"x"))
        assert sum(map(len, records(cluster))) == 8
        assert producer.trace == TraceCounts(waiting=0, sent=8, dropped=0, failed=0)


async def test_a_topic_that_is_not_there_is_told_and_sends_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster_with("T") as cluster:
        async with producer_of(cluster, enable_msg_trace=True) as producer:
            await producer.send(Message("T", b"x"))
            await settle(400)
            assert (await producer.send(Message("T", b"x"))).queue_offset >= 0
        assert producer.trace == TraceCounts(waiting=0, sent=0, dropped=0, failed=2)
    (told, *_) = [each for each in caplog.records if "could not be sent to RMQ_SYS_TRACE_TOPIC" in each.getMessage()]
    assert told.levelno == logging.WARNING
    assert "trace of group PG1: 1 records" in told.getMessage()


async def test_trace_goes_on_when_its_broker_is_back_and_sends_never_stop() -> None:
    async with ScriptedCluster(VirtualClock(), brokers=("a", "b")) as cluster:
        clock: Any = cluster.clock
        cluster.add_topic("T", brokers=["a"])
        cluster.add_topic(TRACE, brokers=["b"])
        broker = cluster.brokers["b"]
        async with producer_of(cluster, enable_msg_trace=True) as producer:
            await producer.send(Message("T", b"x"))
            await settle(400)
            await broker.stop()
            await producer.send_many([Message("T", b"x")] * 10)
            assert producer.trace is not None
            await clock.advance(10)
            assert producer.trace == TraceCounts(waiting=0, sent=1, dropped=0, failed=10)
            await cluster.restart(broker)
            await producer.send_many([Message("T", b"x")] * 10)
            await clock.advance(10)
            assert producer.trace == TraceCounts(waiting=0, sent=11, dropped=0, failed=10)


async def test_a_topic_of_the_settings_and_that_topic_is_not_traced() -> None:
    async with (
        cluster_with("T", "traces") as cluster,
        producer_of(cluster, enable_msg_trace=True, customized_trace_topic="traces") as producer,
    ):
        await producer.send(Message("T", b"x"))
        await producer.send(Message("traces", b"by hand"))
        await producer.send_one_way(Message("T", b"unknown to us"))
        await settle(400)
        sent = [each for each in bodies(sends_to(cluster, "traces")) if each != b"by hand"]
        assert [len(decode_trace_records(body)) for body in sent] == [1]
        assert producer.trace == TraceCounts(waiting=0, sent=1, dropped=0, failed=0)


async def test_a_broker_that_says_so_is_not_traced() -> None:
    async with cluster_with() as cluster:

        def on_send(request: RemotingCommand) -> RemotingCommand:
            fields = {**cluster.broker.store(request).ext_fields, "TRACE_ON": "false"}
            return RemotingCommand.response(ext_fields=fields)

        cluster.broker.on_send = on_send
        async with producer_of(cluster, enable_msg_trace=True) as producer:
            await producer.send(Message("T", b"x"))
        assert producer.trace == TraceCounts(waiting=0, sent=0, dropped=0, failed=0)


async def test_in_a_cloud_trace_goes_to_the_topic_of_the_region() -> None:
    topic = "rmq_sys_TRACE_DATA_DefaultRegion"
    async with (
        cluster_with("T", topic) as cluster,
        producer_of(cluster, enable_msg_trace=True, client={"access_channel": AccessChannel.CLOUD}) as producer,
    ):
        await producer.send(Message("T", b"x"))
        await settle(400)
        assert [len(each) for each in records(cluster, topic)] == [1]


async def test_a_message_that_is_stored_less_safely_than_asked_has_failed() -> None:
    async with cluster_with() as cluster:
        cluster.broker.on_send = lambda request: cluster.broker.store(
            request, ResponseCode.FLUSH_DISK_TIMEOUT if request.ext_fields["b"] == "T" else 0
        )
        async with producer_of(cluster, enable_msg_trace=True) as producer:
            with pytest.raises(NotDurableError):
                await producer.send(Message("T", b"x"))
        ((record,),) = records(cluster)
        assert isinstance(record, PubRecord)
        assert not record.success


async def test_a_message_of_trace_is_no_larger_than_its_limits() -> None:
    async with cluster_with() as cluster:
        async with producer_of(cluster, enable_msg_trace=True) as producer:
            keys = [f"{'k' * 9_000}"]
            await producer.send(Message("T", b"x", keys=keys))
            await producer.send_many([Message("T", b"x", keys=keys, tag="t" * 9_000) for _ in range(12)])
            await producer.send_many([Message("T", b"x", keys=[f"{n}k{m}" for m in range(200)]) for n in range(12)])
        sent = records(cluster)
        assert sum(map(len, sent)) == 25
        assert len(sent) > 3
        assert all(len(body) <= MAX_BODY_BYTES for body in bodies(sends_to(cluster)))
        assert all(len(request.ext_fields["i"]) < 10_000 for request in sends_to(cluster))
        assert producer.trace == TraceCounts(waiting=0, sent=25, dropped=0, failed=0)


async def test_each_message_of_a_batch_has_its_own_record() -> None:
    async with cluster_with() as cluster:

        def on_send(request: RemotingCommand) -> RemotingCommand:
            fields = dict(cluster.broker.store(request).ext_fields)
            if request.code == RequestCode.SEND_BATCH_MESSAGE:
                fields["msgId"] = "OFFSET1,OFFSET2"
            return RemotingCommand.response(ext_fields=fields)

        cluster.broker.on_send = on_send
        async with producer_of(cluster, enable_msg_trace=True) as producer:
            results = await producer.send_batch([Message("T", b"1"), Message("T", b"22", keys=["k"])])
        found = [each for message in records(cluster) for each in message if isinstance(each, PubRecord)]
        assert [each.msg_id for each in found] == [each.msg_id for each in results]
        assert [each.offset_msg_id for each in found] == ["OFFSET1", "OFFSET2"]
        assert [(each.body_length, each.keys) for each in found] == [(1, None), (2, "k")]


class Tag(StrEnum):
    PAID = "paid"


async def test_a_tag_that_is_a_member_of_an_enum_costs_no_record() -> None:
    async with cluster_with() as cluster, producer_of(cluster, enable_msg_trace=True) as producer:
        await producer.send(Message("T", b"x"))
        await settle(400)
        await producer.send(Message("T", b"x", tag=Tag.PAID))
        await producer.send(Message("T", b"x", tag="other"))
        await cluster.clock.advance(6)  # type: ignore[attr-defined] # a virtual one
        assert producer.trace == TraceCounts(waiting=0, sent=3, dropped=0, failed=0)
    assert [each.tags for message in records(cluster) for each in message if isinstance(each, PubRecord)] == [
        None,
        "paid",
        "other",
    ]


class KeysOfASession(Sequence[str]):
    """Keys that can be read no more after the send."""

    def __init__(self) -> None:
        self.is_closed = False

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        if self.is_closed:
            raise ValueError("the session is closed")
        return ["k"][index]


async def test_a_record_that_cannot_be_made_fails_no_send_that_is_stored(caplog: pytest.LogCaptureFixture) -> None:
    keys: Any = KeysOfASession()
    none: Any = None
    async with cluster_with() as cluster, producer_of(cluster, enable_msg_trace=True) as producer:
        stored = cluster.broker.store

        def on_send(request: RemotingCommand) -> Answer:
            keys.is_closed = True
            return stored(request)

        cluster.broker.on_send = on_send
        assert (await producer.send(Message("T", b"x", keys=keys))).status is SendStatus.SEND_OK
        assert (await producer.send(Message("T", b"x", keys=none))).status is SendStatus.SEND_OK
    assert producer.trace == TraceCounts(waiting=0, sent=1, dropped=1, failed=0)
    assert "1 records cannot be made: the session is closed" in caplog.text


async def seconds_of_stop(*, traced: bool) -> float:
    """Of a producer whose broker has begun to answer nothing."""
    async with cluster_with() as cluster:
        clock: Any = cluster.clock

        async def never() -> None:
            await anyio.sleep_forever()

        producer, went, began = producer_of(cluster, enable_msg_trace=traced), anyio.Event(), [0.0]

        async def live() -> None:
            async with producer:
                await producer.send(Message("T", b"x"))
                await settle(400)
                await producer.send(Message("T", b"x"))
                cluster.broker.on_send = lambda request: never()
                cluster.broker.scripts[RequestCode.UNREGISTER_CLIENT] = lambda _, request: never()
                began[0] = clock.monotonic()
            went.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(live)
            while not went.is_set():
                await clock.advance(0.1)
            return clock.monotonic() - began[0]  # type: ignore[no-any-return]
    raise AssertionError


async def test_a_silent_broker_holds_up_the_stop_by_little_more_than_the_rest_of_the_trace_may_take() -> None:
    assert await seconds_of_stop(traced=True) - await seconds_of_stop(traced=False) <= 6.0


async def test_sends_that_go_together_have_a_record_each() -> None:
    async with cluster_with() as cluster:
        clock: Any = cluster.clock
        async with producer_of(cluster, enable_msg_trace=True, auto_batch=True) as producer:
            results: list[SendResult] = []

            async def send(body: bytes) -> None:
                results.append(await producer.send(Message("T", body)))

            async with anyio.create_task_group() as tasks:
                for body in (b"1", b"22"):
                    tasks.start_soon(send, body)
                await settle(50)
                await clock.advance(0.1)
        (request,) = sends_to(cluster, "T")
        assert request.code == RequestCode.SEND_BATCH_MESSAGE
        found = [each for message in records(cluster) for each in message if isinstance(each, PubRecord)]
        assert sorted(each.msg_id for each in found) == sorted(each.msg_id for each in results)
        assert sorted(each.body_length for each in found) == [1, 2]


# --- calls of handlers ------------------------------------------------------------------------------------------------


def received(number: int, topic: str = "T", **properties: str) -> MessageExt:
    fields: tuple[Any, ...] = (0, 0, 0, 0, 0, number, 0, 0, 0, b"\x7f\0\0\1", 1, 0, b"\x7f\0\0\1", 2, number, 0, 1)
    return MessageExt(fields, b"x", topic, encode_properties({"UNIQ_KEY": f"ID{number}", **properties}))


async def call(
    messages: list[MessageExt], handler: Any, *, takes: float = 0.0, consume_timeout: float = 900.0
) -> list[TraceRecord]:
    """The records of one call of a handler that takes so many seconds."""
    async with cluster_with() as cluster:
        clock: Any = cluster.clock
        async with MQClientInstance(cluster.name_server.address, clock=clock, network=cluster.network) as instance:
            options = ConsumerOptions(enable_msg_trace=True, consume_timeout=consume_timeout)
            trace = ConsumerTrace("desk", instance, options)
            trace.start()

            async def call_next(context: ConsumeContext) -> Outcomes:
                if takes:
                    await clock.advance(takes)
                return await handler(context.messages)  # type: ignore[no-any-return]

            with contextlib.suppress(Exception, anyio.get_cancelled_exc_class(), SystemExit):
                await trace(ConsumeContext("desk", messages), call_next)
            await trace.stop()
        return [each for message in records(cluster) for each in message]


def after(found: list[TraceRecord]) -> list[tuple[str, bool, ConsumeCode]]:
    return [(each.msg_id, each.success, each.code) for each in found if isinstance(each, SubAfterRecord)]


async def test_a_call_has_records_before_and_after_it() -> None:
    async def handle(messages: list[MessageExt]) -> None: ...

    found = await call([received(1, KEYS="a b", MSG_REGION="R"), received(2)], handle, takes=3.0)
    befores = [each for each in found if isinstance(each, SubBeforeRecord)]
    afters = [each for each in found if isinstance(each, SubAfterRecord)]
    assert [(each.msg_id, each.retry_times, each.keys, each.region_id) for each in befores] == [
        ("ID1", 1, "a b", "R"),
        ("ID2", 2, None, "DefaultRegion"),
    ]
    assert {each.request_id for each in befores} == {each.request_id for each in afters}
    assert [(each.cost_ms, each.success, each.group) for each in afters] == [(1500, True, "desk")] * 2
    assert afters[0].timestamp_ms - befores[0].timestamp_ms == 3000


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("x"), ConsumeCode.EXCEPTION),
        (Reject("x"), ConsumeCode.FAILED),
        (SystemExit(), ConsumeCode.EXCEPTION),
    ],
)
async def test_what_a_handler_raises_is_its_outcome(error: BaseException, code: ConsumeCode) -> None:
    async def handle(messages: list[MessageExt]) -> None:
        raise error

    assert after(await call([received(1)], handle)) == [("ID1", False, code)]


async def test_each_message_of_a_batch_has_its_own_outcome() -> None:
    async def says(messages: list[MessageExt]) -> list[Exception | None]:
        return [None, ValueError("x"), None]

    async def fails(messages: list[MessageExt]) -> None:
        raise BatchFailed(2)

    three = [received(number) for number in range(3)]
    good, bad = ConsumeCode.SUCCESS, ConsumeCode.FAILED
    assert after(await call(three, says)) == [("ID0", True, good), ("ID1", False, bad), ("ID2", True, good)]
    assert after(await call(three, fails)) == [("ID0", True, good), ("ID1", True, good), ("ID2", False, bad)]


async def test_a_call_that_is_cancelled_for_its_time_says_so() -> None:
    async def cancelled(messages: list[MessageExt]) -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class() as error:
                seen.append(error)
        raise seen[-1]

    seen: list[BaseException] = []
    late = await call([received(1)], cancelled, takes=10.0, consume_timeout=5.0)
    assert after(late) == [("ID1", False, ConsumeCode.TIME_OUT)]


async def test_a_call_that_the_consumers_stop_cancels_has_no_outcome() -> None:
    async def waits(messages: list[MessageExt]) -> None:
        scope.cancel()
        await anyio.sleep_forever()

    async with cluster_with() as cluster:
        async with MQClientInstance(
            cluster.name_server.address, clock=cluster.clock, network=cluster.network
        ) as instance:
            trace = ConsumerTrace("desk", instance, ConsumerOptions(enable_msg_trace=True))
            trace.start()
            with anyio.CancelScope() as scope:
                await trace(ConsumeContext("desk", [received(1)]), lambda context: waits(context.messages))
            assert scope.cancelled_caught
            await trace.stop()
        assert [each.kind for message in records(cluster) for each in message] == ["SubBefore"]


async def test_a_message_with_separators_in_its_keys_costs_no_others_their_records() -> None:
    async def handle(messages: list[MessageExt]) -> None: ...

    hostile = received(1)
    hostile.set_property("KEYS", "a\x01b \x02c")
    hostile.set_property("UNIQ_KEY", "ID\x01 1" + "x" * 9_000)
    found = await call([hostile, received(2)], handle)
    assert [each.kind for each in found] == ["SubBefore", "SubBefore", "SubAfter", "SubAfter"]
    assert {each.msg_id for each in found} == {"ID  1" + "x" * 9_000, "ID2"}
    assert {each.keys for each in found} == {"a b  c", None}


async def test_messages_that_may_not_be_traced_are_not() -> None:
    async def handle(messages: list[MessageExt]) -> None: ...

    found = await call([received(1, TRACE_ON="false"), received(2, TRACE)], handle)
    assert found == []
