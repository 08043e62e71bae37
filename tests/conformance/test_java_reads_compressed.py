"""Bodies compressed in each way, and messages of batches, between our client and Apache's Java client."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
import pytest

from rocketbox.client import Admin, ConsumerOptions, Producer, ProducerOptions, PushConsumer
from rocketbox.message import Compression, ConsumeFromWhere, Message, MessageExt
from rocketbox.protocol.codes import MessageSysFlag
from tests.conformance.apache import EACH_VERSION, NEWEST
from tests.conformance.java_member import JavaMember
from tests.conformance.java_sender import java_sender
from tests.conformance.servers import EMBEDDED
from tests.support.broker.broker_process import BrokerProcess
from tests.support.waiting import until

pytestmark = [pytest.mark.apache, pytest.mark.smoke, pytest.mark.anyio]

SEND = ProducerOptions(send_message_timeout=12.0)
FIRST = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
READ_BY = {"4.9.7": (Compression.NONE, Compression.ZLIB)}  # LZ4 and ZSTD came with 5.0


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_java_consumes_what_is_compressed_and_what_is_batched(version: str, tmp_path: Path) -> None:
    ways = READ_BY.get(version, tuple(Compression))
    with BrokerProcess(tmp_path / "store") as broker:
        async with Producer("desk", name_server=broker.name_server) as producer:
            sent = []
            for way in ways:
                sent += [f"{way.name} small ".ljust(200, "x"), f"{way.name} large ".ljust(100_000, "y")]
                for body in sent[-2:]:
                    await producer.send(Message("T", body.encode(), compression=way))
            sent += [f"of a batch {number}" for number in range(5)]
            await producer.send_batch([Message("T", body.encode()) for body in sent[-5:]])
        with JavaMember(broker.name_server, "T", "java", orderly=False, handler_ms=0, version=version) as member:
            await until(lambda: len([each for each in member.events if each[1] == "begins"]) >= len(sent))
            seen = [body for _, what, body in member.events if what == "begins"]
    assert sorted(seen) == sorted(sent)


PACKED = {
    "ZLIB": MessageSysFlag.COMPRESSION_ZLIB,
    "LZ4": MessageSysFlag.COMPRESSION_LZ4,
    "ZSTD": MessageSysFlag.COMPRESSION_ZSTD,
}


@pytest.mark.parametrize("name_server", [EMBEDDED, NEWEST], indirect=True)
async def test_java_and_we_read_what_the_other_compresses_in_each_way(name_server: str, topic: str) -> None:
    """The Java client of 4.9.7 compresses by zlib alone, as ``test_java_sends`` shows."""
    got: list[MessageExt] = []
    for_java = f"{topic}-java"

    async def take(messages: list[MessageExt]) -> None:
        got.extend(messages)

    def send() -> dict[str, str]:
        with java_sender(name_server, f"java-{topic}") as java:
            return {java.send("packed", topic, f"all-{way}-", 100_000, way).ids[0]: way for way in PACKED}

    async with (
        Producer(f"p-{topic}", name_server=name_server, options=SEND) as producer,
        PushConsumer(f"g-{topic}", name_server=name_server, options=FIRST) as consumer,
        Admin(name_server=name_server) as admin,
    ):
        ours = {f"{way.name} ".ljust(50_000, "z") for way in Compression}
        for body in ours:
            await producer.send(Message(for_java, body.encode(), compression=Compression[body.split()[0]]))
        ways = await anyio.to_thread.run_sync(send)
        await consumer.subscribe(topic, "*", take)
        await until(lambda: len(got) >= len(PACKED))
        assert sorted((ways[each.msg_id], each.body) for each in got) == sorted(
            (way, (f"all-{way}-" * 20_000)[:100_000].encode()) for way in PACKED
        )
        stored = [
            message
            for queue in await admin.queues(topic)
            for message in (await admin.pull(queue, 0, decompress=False)).messages
        ]
        assert len(stored) == len(PACKED)
        for message in stored:
            assert message.sys_flag & MessageSysFlag.COMPRESSED
            assert message.sys_flag & MessageSysFlag.COMPRESSION_MASK == PACKED[ways[message.msg_id]]
            assert len(message.body) < 10_000
    soon = ("-Drocketmq.client.rebalance.waitInterval=1000",)
    with JavaMember(name_server, for_java, f"java-{topic}", orderly=False, handler_ms=0, options=soon) as member:
        await until(lambda: len([each for each in member.events if each[1] == "begins"]) >= len(ours))
    assert sorted(body for _, what, body in member.events if what == "begins") == sorted(body.strip() for body in ours)
