"""Clients in a namespace on the embedded broker and on Apache's: ours, Apache's Java client, its tools, and Spark's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from rocketbox.client import (
    Admin,
    ClientOptions,
    ConsumerOptions,
    MQClientInstance,
    Producer,
    ProducerOptions,
    PushConsumer,
)
from rocketbox.errors import NoRouteError, Reject
from rocketbox.message import ConsumeFromWhere, ConsumeMode, Message, MessageExt, MessageQueue
from rocketbox.protocol.namespaces import Namespace
from tests.conformance.apache import NEWEST, mqadmin
from tests.conformance.java_exchange import SMALL_AND_QUICK
from tests.conformance.java_program import JavaProgram
from tests.conformance.servers import EMBEDDED
from tests.support.client.consuming import Seen, dead_letters

pytestmark = [pytest.mark.apache, pytest.mark.smoke, pytest.mark.anyio]

SECONDS = 60.0
TEAM, TEAM_V2 = ClientOptions(namespace="team"), ClientOptions(namespace_v2="team")
SEND = ProducerOptions(send_message_timeout=12.0)  # a busy broker on two cores may need it


@dataclass(frozen=True)
class Servers:
    """A name server with its broker, and the version of the Java programs that are tried with them."""

    name_server: str
    version: str
    folder: Path
    are_apaches: bool


@pytest.fixture
def servers(name_server: str, kind: str, tmp_path: Path) -> Servers:
    are_apaches = kind != EMBEDDED
    return Servers(name_server, kind if are_apaches else NEWEST, tmp_path, are_apaches)


@pytest.mark.parametrize(
    ("team", "mode"),
    [(TEAM, ConsumeMode.CONCURRENTLY), (TEAM, ConsumeMode.ORDERLY), (TEAM_V2, ConsumeMode.ORDERLY)],
    ids=["before names", "before names, orderly", "in a header, orderly"],
)
async def test_a_group_works_in_its_namespace(
    servers: Servers, topic: str, team: ClientOptions, mode: ConsumeMode
) -> None:
    """One before names is a part of them at the servers. In a header, these do not look at it."""
    group = f"g-{topic}"
    seen = Seen({b"later": [ValueError("once")], b"bad": [Reject("bad")]})
    options = ConsumerOptions(
        consume_mode=mode,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        delay_level_when_next_consume=1,
        suspend_current_queue_time=0.1,
    )
    async with (
        MQClientInstance(servers.name_server, options=team) as instance,
        Producer(f"p-{topic}", instance=instance, options=SEND) as producer,
    ):
        admin, whole = Admin(instance=instance), Namespace(team.namespace or "").wrap
        await producer.send(Message(topic, b"good", hash_key="k"))
        await producer.send_batch([Message(topic, b"later"), Message(topic, b"bad")])
        async with PushConsumer(group, instance=instance, options=options) as consumer:
            await consumer.subscribe(topic, "*", seen)
            with anyio.fail_after(SECONDS):
                while len(seen.messages) < 4 or consumer.state().held:
                    await anyio.sleep(0.05)
        assert {message.topic for message in seen.messages} == {topic}
        letters: list[MessageExt] = []
        with anyio.fail_after(SECONDS):
            while not letters:  # a broker tells its name server of a new topic after a while
                try:
                    letters = await dead_letters(admin, group)
                except NoRouteError:
                    await anyio.sleep(0.2)
        assert [(letter.body, letter.topic) for letter in letters] == [(b"bad", f"%DLQ%{group}")]
        ends = {queue: await admin.max_offset(queue) for queue in await admin.queues(topic)}
        assert {queue: await admin.committed(group, queue) or 0 for queue in ends} == ends
    async with Admin(servers.name_server) as outside:
        for queue, end in ends.items():
            stored = MessageQueue(whole(topic), queue.broker_name, queue.queue_id)
            assert (await outside.committed(whole(group), stored) or 0) == end
            assert await outside.max_offset(stored) == end


async def test_javas_client_and_ours_meet_in_a_namespace(servers: Servers, topic: str) -> None:
    seen, back = Seen(), f"{topic}-back"
    arguments = (servers.name_server, "team", topic, back, f"java-{topic}")
    options = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    async with (
        MQClientInstance(servers.name_server, options=TEAM) as team,
        Producer(f"p-{topic}", instance=team, options=SEND) as producer,
        PushConsumer(f"g-{topic}", instance=team, options=options) as consumer,
    ):
        admin = Admin(instance=team)
        await admin.create_topic(topic, queues=2)
        await admin.create_topic(back, queues=2)
        await producer.send(Message(topic, b"from us"))
        with JavaProgram("rocketbox.Namespaced", *arguments, options=SMALL_AND_QUICK, version=servers.version) as java:

            def line() -> str:
                return java.told.readline().strip()

            with anyio.fail_after(SECONDS):
                lines = [await anyio.to_thread.run_sync(line, abandon_on_cancel=True) for _ in range(2)]
                assert sorted(lines) == [f"> {topic} from us", "joined"], java.errors
                java.tell("from java")
                assert await anyio.to_thread.run_sync(line, abandon_on_cancel=True) == "sent", java.errors
                await consumer.subscribe(back, "*", seen)
                await seen.all_of([b"from java"])
            java.tell_end()
            assert await anyio.to_thread.run_sync(java.process.wait) == 0
        assert [message.topic for message in seen.messages] == [back]
        assert seen.messages[0].properties["INSTANCE_ID"] == "team"
        assert sum([await admin.committed(f"java-{topic}", queue) or 0 for queue in await admin.queues(topic)]) == 1
    if servers.are_apaches:  # the embedded broker does not answer this tool
        group = f"team%java-{topic}"
        told = await anyio.to_thread.run_sync(
            mqadmin, servers.folder, servers.version, servers.name_server, "consumerProgress", "-g", group
        )
        assert f"team%{topic}" in told, told


async def test_spark_reads_in_a_namespace(servers: Servers, topic: str) -> None:
    pytest.importorskip("pyspark")
    from rocketbox.spark.options import SourceOptions
    from rocketbox.spark.readers import batch_reader

    async with (
        MQClientInstance(servers.name_server, options=TEAM) as team,
        Producer(f"p-{topic}", instance=team, options=SEND) as producer,
    ):
        for number in range(5):
            await producer.send(Message(topic, b"%d" % number))

    def read() -> list[tuple[str, bytes]]:
        said = {"nameServer": servers.name_server, "topic": topic, "namespace": "team"}
        reader = batch_reader(SourceOptions(said))
        batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
        return sorted((row["topic"], row["body"]) for batch in batches for row in batch.to_pylist())

    assert await anyio.to_thread.run_sync(read) == [(topic, b"%d" % number) for number in range(5)]
