"""The producer and the admin slice against the embedded servers, over real TCP."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from rocketbox.client import (
    Admin,
    ClientOptions,
    ConsumerOptions,
    MQClientInstance,
    Producer,
    ProducerOptions,
    PullStatus,
    PushConsumer,
)
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.errors import (
    BrokerError,
    ConnectError,
    ConnectionClosedError,
    InvalidMessageError,
    NoRouteError,
    OtherLoopError,
    SendManyError,
)
from rocketbox.message import (
    Compression,
    ConsumeFromWhere,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    SendStatus,
)
from rocketbox.protocol.codes import SerializeType
from rocketbox.protocol.compression import sys_flag_of
from rocketbox.remoting.options import RemotingOptions
from rocketbox.template import RocketMQTemplate
from tests.support.loops import anyio_backend as anyio_backend
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio


def servers(directory: Path, *, name_server_port: int = 0, port: int = 0) -> EmbeddedServers:
    return EmbeddedServers(EmbeddedOptions(data_dir=directory, name_server_port=name_server_port, port=port))


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("first_loop", ["is cancelled", "is closed", "stands still"])
def test_what_is_used_in_another_loop_of_the_same_thread_says_so_and_does_nothing(
    tmp_path: Path, first_loop: str
) -> None:
    """As who calls asyncio.run() twice: the loop's own words are "Event loop is closed", and an end waited for ever.

    Or who has loops take turns, as pytest-asyncio may: what is written by the second one leaves as the first one runs
    again, and the second waits for ever.
    """
    with EmbeddedServers.in_thread(EmbeddedOptions(data_dir=tmp_path, port=0, name_server_port=0)) as cluster:
        use_in_two_loops(cluster.name_server_address, first_loop)
        gc.collect()  # what was left open warns here of its end, and not in another test


def use_in_two_loops(name_server: str, first_loop: str) -> None:
    async def check(message: MessageExt) -> LocalTransactionState:
        raise AssertionError("there is no transaction")

    async def handle(messages: list[MessageExt]) -> None:
        handled.extend(message.body for message in messages)

    producer = Producer("desk", name_server=name_server, transaction_checker=check)
    one_by_one = Producer("batches", name_server=name_server, options=ProducerOptions(auto_batch=True))
    consumer = PushConsumer("desk", name_server=name_server)
    admin = Admin(name_server)
    handled: list[bytes] = []

    async def first() -> None:
        await producer.__aenter__()
        await one_by_one.__aenter__()
        await consumer.__aenter__()
        await admin.__aenter__()
        await producer.send(Message("departures", b"first"))
        await one_by_one.send(Message("departures", b"first"))
        await consumer.subscribe("departures", "*", handle)

    async def second() -> None:
        second = Message("departures", b"second")
        uses: list[Callable[[], Awaitable[object]]] = [
            lambda: producer.send(second),
            lambda: producer.send_many([second] * 3),
            lambda: producer.send_one_way(second),
            lambda: producer.send_batch([second] * 3),
            lambda: producer.request(second),
            lambda: producer.transaction(second).begin(),
            lambda: producer.send_in_transaction(second, lambda _: LocalTransactionState.COMMIT),
            lambda: producer.recall("x"),
            lambda: producer.send(Message("arrivals", b"second")),
            lambda: one_by_one.send(second),
            lambda: one_by_one.send_many([second] * 3),
            lambda: one_by_one.send_one_way(second),
            lambda: RocketMQTemplate(producer).send("departures", "second"),
            lambda: consumer.subscribe("arrivals", "*", handle),
            lambda: consumer.unsubscribe("departures"),
            lambda: consumer.reply(MessageExt((0,) * 17, b"x", "departures", b""), b"second"),
            lambda: consumer.persist_offsets(),
            lambda: consumer.skip({}),
            lambda: consumer.drain(1.0),
            lambda: consumer.stop_pulling(),
            lambda: admin.queues("departures"),
            lambda: admin.queues("arrivals"),
            lambda: admin.topics(),
            lambda: consumer.__aexit__(None, None, None),
            lambda: producer.__aexit__(None, None, None),
            lambda: admin.__aexit__(None, None, None),
        ]
        for use in uses:
            with (
                pytest.raises(OtherLoopError, match=r"in the same thread .* nothing was sent. Start and end it"),
                anyio.fail_after(PATIENCE),
            ):
                await use()

    if first_loop == "is cancelled":
        asyncio.run(first())
        asyncio.run(second())
        return
    loop = asyncio.new_event_loop()
    if first_loop == "is closed":
        loop.run_until_complete(first())
        loop.close()
        asyncio.run(second())
        return
    started, again = asyncio.Event(), asyncio.Event()

    async def first_to_its_end() -> None:
        await first()
        started.set()
        await again.wait()
        await producer.send(Message("departures", b"last"))
        await until(lambda: b"last" in handled)
        for each in (admin, consumer, one_by_one, producer):
            await each.__aexit__(None, None, None)

    whole = loop.create_task(first_to_its_end())
    loop.run_until_complete(started.wait())
    asyncio.run(second())
    again.set()
    loop.run_until_complete(whole)
    loop.close()
    assert b"second" not in handled


@pytest.mark.parametrize("serialization", [SerializeType.ROCKETMQ, SerializeType.JSON])
async def test_what_was_sent_is_pulled_with_all_it_had(tmp_path: Path, serialization: SerializeType) -> None:
    client = ClientOptions(remoting=RemotingOptions(serialization=serialization))
    async with (
        servers(tmp_path) as cluster,
        MQClientInstance(cluster.name_server_address, options=client) as instance,
        Producer("desk", instance=instance) as producer,
        Admin(instance=instance) as admin,
    ):
        message = Message(
            "departures", b"body", tag="UA", keys=["UA1545", "k2"], properties={"stadt": "Zürich"}, flag=5
        )
        result = await producer.send(message)
        assert result.status is SendStatus.SEND_OK
        found = await admin.pull(result.queue, result.queue_offset)
        assert found.status is PullStatus.FOUND
        (stored,) = found.messages
        assert (stored.body, stored.tag, stored.keys, stored.flag) == (b"body", "UA", ("UA1545", "k2"), 5)
        assert stored.properties["stadt"] == "Zürich"
        assert stored.msg_id == result.msg_id
        assert stored.offset_msg_id == result.offset_msg_id
        assert stored.queue == result.queue
        viewed = await admin.view(result.offset_msg_id)
        assert (viewed.body, viewed.msg_id) == (b"body", result.msg_id)


async def test_topic_is_made_by_the_first_send_and_used_round_robin(tmp_path: Path) -> None:
    async with (
        servers(tmp_path) as cluster,
        Producer("desk", name_server=cluster.name_server_address) as producer,
        Admin(cluster.name_server_address) as admin,
    ):
        with pytest.raises(NoRouteError):
            await admin.queues("fresh")
        results = [await producer.send(Message("fresh", b"x")) for _ in range(8)]
        with anyio.fail_after(PATIENCE):
            while True:
                try:
                    queues = await admin.queues("fresh")
                    break
                except NoRouteError:
                    await anyio.sleep(0.02)
        assert [queue.queue_id for queue in queues] == [0, 1, 2, 3]
        assert sorted(result.queue.queue_id for result in results) == [0, 0, 1, 1, 2, 2, 3, 3]
        assert [await admin.max_offset(queue) for queue in queues] == [2, 2, 2, 2]
        assert [await admin.min_offset(queue) for queue in queues] == [0, 0, 0, 0]


async def test_one_key_is_one_queue_in_order(tmp_path: Path) -> None:
    async with servers(tmp_path) as cluster, Producer("desk", name_server=cluster.name_server_address) as producer:
        results = [await producer.send(Message("T", b"%d" % number, hash_key="UA1545")) for number in range(10)]
        assert len({result.queue for result in results}) == 1
        assert [result.queue_offset for result in results] == list(range(10))


async def test_many_are_all_stored_and_results_tell_where(tmp_path: Path) -> None:
    async with servers(tmp_path) as cluster, Producer("desk", name_server=cluster.name_server_address) as producer:
        bodies = [b"%d" % number for number in range(500)]
        results = await producer.send_many([Message("T", body) for body in bodies])
        async with Admin(cluster.name_server_address) as admin:
            for body, result in list(zip(bodies, results, strict=True))[::50]:
                assert (await admin.view(result.offset_msg_id)).body == body
        with pytest.raises(SendManyError) as caught:
            await producer.send_many([Message("T", b"x"), Message("T", b""), Message("T", b"y")])
        assert isinstance(caught.value.results[1], InvalidMessageError)
        assert caught.value.results[2].status is SendStatus.SEND_OK  # type: ignore[union-attr] # a result, or this fails


async def test_batch_is_stored_message_by_message(tmp_path: Path) -> None:
    async with servers(tmp_path) as cluster, Producer("desk", name_server=cluster.name_server_address) as producer:
        batch = [Message("T", b"b%d" % number, tag=f"t{number}", keys=[f"k{number}"]) for number in range(3)]
        results = await producer.send_batch(batch)
        async with Admin(cluster.name_server_address) as admin:
            found = await admin.pull(results[0].queue, results[0].queue_offset)
            assert [(message.body, message.tag, message.keys) for message in found.messages] == [
                (b"b0", "t0", ("k0",)),
                (b"b1", "t1", ("k1",)),
                (b"b2", "t2", ("k2",)),
            ]
            for message, result in zip(found.messages, results, strict=True):
                assert (message.msg_id, message.offset_msg_id) == (result.msg_id, result.offset_msg_id)
                assert (message.queue, message.queue_offset) == (result.queue, result.queue_offset)


@pytest.mark.parametrize("way", [Compression.ZLIB, Compression.LZ4, Compression.ZSTD])
async def test_compressed_messages_are_stored_so_and_come_as_they_were(tmp_path: Path, way: Compression) -> None:
    text, large = b"all work and no play " * 200, bytes(1 << 20)
    seen: list[bytes] = []
    came = anyio.Event()

    async def take(messages: list[MessageExt]) -> None:
        seen.extend(message.body for message in messages)
        if len(seen) == 3:
            came.set()

    async with servers(tmp_path) as cluster:
        address, options = cluster.name_server_address, ProducerOptions(compress_type=way)
        async with Producer("desk", name_server=address, options=options) as producer, Admin(address) as admin:
            results = await producer.send_many([Message("T", body) for body in (text, large, b"small")])
            assert [(await admin.view(result.offset_msg_id)).body for result in results] == [text, large, b"small"]
            (stored,) = (await admin.pull(results[1].queue, results[1].queue_offset, 1, decompress=False)).messages
            assert (stored.sys_flag, len(stored.body) < 10_000) == (sys_flag_of(way), True)
            first = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
            async with PushConsumer("board", name_server=address, options=first) as consumer:
                await consumer.subscribe("T", "*", take)
                with anyio.fail_after(PATIENCE):
                    await came.wait()
    assert sorted(seen, key=len) == [b"small", text, large]


async def test_a_topic_tells_its_sort_of_messages(tmp_path: Path) -> None:
    async with servers(tmp_path) as cluster, Admin(cluster.name_server_address) as admin:
        await admin.create_topic("fifo", queues=3, attributes={"message.type": "FIFO"})
        await admin.create_topic("any", queues=2)
        fifo = await admin.topic("fifo")
        assert (fifo.name, fifo.message_type, fifo.write_queues) == ("fifo", "FIFO", 3)
        assert (await admin.topic("any")).message_type == "UNSPECIFIED"
        with pytest.raises(NoRouteError, match=r"'nowhere'.*no master has it"):
            await admin.topic("nowhere")


async def test_one_way_messages_arrive(tmp_path: Path) -> None:
    async with servers(tmp_path) as cluster, Producer("desk", name_server=cluster.name_server_address) as producer:
        first = await producer.send(Message("T", b"first"))
        for number in range(20):
            await producer.send_one_way(Message("T", b"%d" % number), queue=first.queue)
        last = await producer.send(Message("T", b"last"), queue=first.queue)
        assert last.queue_offset == first.queue_offset + 21


async def test_pull_selects_tags_and_says_where_to_go_on(tmp_path: Path) -> None:
    async with servers(tmp_path) as cluster, Producer("desk", name_server=cluster.name_server_address) as producer:
        queue = (await producer.send(Message("T", b"0", tag="UA"))).queue
        for number, tag in enumerate(["AA", "DL", "UA"], 1):
            await producer.send(Message("T", b"%d" % number, tag=tag), queue=queue)
        async with Admin(cluster.name_server_address) as admin:
            found = await admin.pull(queue, 0, 10, "UA || DL")
            assert [message.body for message in found.messages] == [b"0", b"2", b"3"]
            assert (found.next_begin_offset, found.min_offset, found.max_offset) == (4, 0, 4)
            assert (await admin.pull(queue, 4)).status is PullStatus.NO_NEW_MSG
            assert len((await admin.pull(queue, 0, 2)).messages) == 2


async def test_offsets_of_a_group_are_read_and_set(tmp_path: Path) -> None:
    async with servers(tmp_path) as cluster, Producer("desk", name_server=cluster.name_server_address) as producer:
        queue = (await producer.send(Message("T", b"0"))).queue
        async with Admin(cluster.name_server_address) as admin:
            await admin.commit("group", queue, 1)
            assert await admin.committed("group", queue) == 1


async def test_message_that_is_not_there_is_a_broker_error(tmp_path: Path) -> None:
    async with servers(tmp_path) as cluster, Producer("desk", name_server=cluster.name_server_address) as producer:
        result = await producer.send(Message("T", b"0"))
        async with Admin(cluster.name_server_address) as admin:
            with pytest.raises(BrokerError):
                await admin.view(result.offset_msg_id[:-16] + f"{10**9:016X}")
            with pytest.raises(InvalidMessageError, match="offset message id"):
                await admin.view("not an id")


async def test_queue_out_of_range_is_refused_by_the_broker(tmp_path: Path) -> None:
    async with servers(tmp_path) as cluster, Producer("desk", name_server=cluster.name_server_address) as producer:
        result = await producer.send(Message("T", b"0"))
        with pytest.raises(BrokerError):
            await producer.send(Message("T", b"0"), queue=MessageQueue("T", result.broker_name, 99))


async def test_producer_goes_on_after_the_servers_were_started_again(tmp_path: Path) -> None:
    async with anyio.create_task_group() as tasks:
        cluster = servers(tmp_path)
        await cluster.__aenter__()
        ports = [int(address.rpartition(":")[2]) for address in (cluster.name_server_address, cluster.broker_address)]
        address = cluster.name_server_address
        await cluster.__aexit__(None, None, None)
        stop, stopped = anyio.Event(), anyio.Event()

        async def serve(until: anyio.Event, *, task_status: anyio.abc.TaskStatus[None]) -> None:
            async with servers(tmp_path, name_server_port=ports[0], port=ports[1]):
                task_status.started()
                await until.wait()
            stopped.set()

        await tasks.start(serve, stop)
        async with Producer(
            "desk", name_server=address, options=ProducerOptions(retry_times_when_send_failed=0)
        ) as producer:
            await producer.send(Message("T", b"before"))
            stop.set()
            await stopped.wait()
            with pytest.raises((ConnectError, ConnectionClosedError)):
                await producer.send(Message("T", b"nobody there"))
            again = anyio.Event()
            await tasks.start(serve, again)
            assert (await producer.send(Message("T", b"after"))).status is SendStatus.SEND_OK
            again.set()
