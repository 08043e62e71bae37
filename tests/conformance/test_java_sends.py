"""Every way in which Apache's Java clients send, delay and recall, on the embedded broker."""

from __future__ import annotations

import time
from collections.abc import Iterator

import anyio
import pytest

from rocketbox.client import Admin, ConsumerOptions, Producer, PushConsumer
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.message import ConsumeFromWhere, Message, MessageExt
from rocketbox.protocol.codes import MessageSysFlag, ResponseCode
from tests.conformance.apache import EACH_VERSION
from tests.conformance.java_sender import JavaSender, Sent, java_sender
from tests.support.waiting import until

pytestmark = [pytest.mark.apache, pytest.mark.smoke]

OLDEST = "4.9.7"  # which knows delay levels alone
FIRST = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    options = EmbeddedOptions(data_dir=tmp_path_factory.mktemp("embedded"), port=0, name_server_port=0)
    with EmbeddedServers.in_thread(options) as embedded:
        yield embedded.name_server_address


@pytest.fixture(scope="module", params=EACH_VERSION)
def java(request: pytest.FixtureRequest, name_server: str) -> Iterator[JavaSender]:
    with java_sender(name_server, "java-senders", request.param) as sender:
        yield sender


@pytest.fixture
def knows_times(request: pytest.FixtureRequest) -> bool:
    return not request.node.callspec.id.startswith(OLDEST)


async def pulled(name_server: str, topic: str, *, decompress: bool = True) -> list[MessageExt]:
    """All messages of a topic that consumers may get."""
    found: list[MessageExt] = []
    async with Admin(name_server=name_server) as admin:
        for queue in await admin.queues(topic):
            offset = await admin.min_offset(queue)
            while offset < await admin.max_offset(queue):
                answer = await admin.pull(queue, offset, decompress=decompress)
                found += answer.messages
                offset = answer.next_begin_offset
    return found


def test_delays_times_of_delivery_and_recalls(java: JavaSender, topic: str, knows_times: bool) -> None:
    java.send("plain", topic, "first")
    times: dict[str, int] = {}
    not_before: dict[str, int] = {}

    async def handle(messages: list[MessageExt]) -> None:
        times.update((message.body.decode(), int(time.time() * 1000)) for message in messages)

    def send(way: str, body: str, number: int, due_ms: int) -> Sent:
        not_before[body] = due_ms
        return java.send(way, topic, body, number)

    async def run() -> None:
        async with PushConsumer(f"g-{topic}", name_server=java.name_server, options=FIRST) as consumer:
            await consumer.subscribe(topic, "*", handle)
            now = int(time.time() * 1000)
            assert send("level", "level", 1, now + 1000).handle is None
            if knows_times:
                recalled = java.send("at", topic, "recalled", now + 2000)
                assert java.tell("recall", topic, recalled.handle) == f"recalled {recalled.ids[0]}"
                assert java.tell("recall", topic, recalled.handle) == f"recalled {recalled.ids[0]}", "once more"
                for way, number, due in (
                    ("sec", 1, now + 1000),
                    ("ms", 1234, now + 1234),
                    ("at", now + 2100, now + 2100),
                ):
                    assert send(way, way, number, due).handle
                send("at", "over", now - 5000, 0)  # comes at once
                assert java.tell("ms", topic, "far", 4 * 24 * 3600 * 1000) == f"refused {ResponseCode.MESSAGE_ILLEGAL}"
            await until(lambda: not_before.keys() <= times.keys())
            if knows_times:
                assert java.tell("recall", topic, recalled.handle) == f"refused {ResponseCode.ILLEGAL_OPERATION}", (
                    "late"
                )

    anyio.run(run)
    assert times.keys() == {"first", *not_before}
    assert {body for body, due in not_before.items() if times[body] < due} == set()


def test_batches_large_bodies_and_one_way(java: JavaSender, topic: str) -> None:
    sent = java.send("batch", topic, "one", "two", "three")
    large = java.send("large", topic, "all-work-and-no-play-", 200_000)
    java.send("oneway", topic, "thrown")
    java.send("plain", topic, "last")

    async def read() -> None:
        with anyio.fail_after(60):
            while len(found := await pulled(java.name_server, topic)) < 6:
                await anyio.sleep(0.05)  # nobody says when what was sent one-way is there
        bodies = {message.msg_id: message.body for message in found}
        assert [bodies[each] for each in sent.ids] == [b"one", b"two", b"three"]
        assert bodies[large.ids[0]] == (b"all-work-and-no-play-" * 10_000)[:200_000]
        assert sorted(bodies.values(), key=len)[:5] == [b"one", b"two", b"last", b"three", b"thrown"]
        stored = {each.msg_id: each for each in await pulled(java.name_server, topic, decompress=False)}
        assert len(stored[large.ids[0]].body) < 10_000
        assert stored[large.ids[0]].sys_flag & MessageSysFlag.COMPRESSED

    anyio.run(read)


def test_java_and_we_choose_the_same_queue_for_a_key(java: JavaSender, topic: str) -> None:
    java.send("plain", topic, "first")
    keys = ["UA1545", "DL461", "größe", "\U0001f6eb", "k" * 200]

    async def run() -> None:
        async with Producer(f"p-{topic}", name_server=java.name_server) as producer:
            for key in keys:
                ours = await producer.send(Message(topic, b"ours", hash_key=key))
                assert java.send("hash", topic, "java's", key).queue_id == str(ours.queue.queue_id), key

    anyio.run(run)
    assert {java.send("random", topic, "random").queue_id for _ in range(40)} == {"0", "1", "2", "3"}
