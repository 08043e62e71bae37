"""Topics and groups by request: our Admin on our broker and on Apache's, and Apache's mqadmin on our broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from rocketbox.client import Admin, MQClientInstance, Producer, ProducerOptions
from rocketbox.client.needed_topics import TopicState, find_topic, make_topic, until_in_route
from rocketbox.client.options import TopicOptions, TopicPermission
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers, ServersInThread
from rocketbox.errors import BrokerError, NoRouteError
from rocketbox.message import LocalTransactionState, Message, MessageExt
from rocketbox.protocol.codes import PermName, ResponseCode
from rocketbox.protocol.group_config import SubscriptionGroupConfig
from tests.conformance.apache import EACH_VERSION
from tests.conformance.java_tools import JavaTools
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.apache, pytest.mark.smoke, pytest.mark.anyio]


async def test_a_topic_is_made_changed_listed_and_deleted(name_server: str, topic: str) -> None:
    async with Admin(name_server=name_server) as admin:
        await admin.create_topic(topic, queues=3)
        async with Producer("p", name_server=name_server) as producer:
            await producer.send(Message(topic, b"first"))
        (found,) = [one for one in await admin.topics() if one.name == topic]
        (config,) = found.brokers.values()
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (3, 3, 6)
        await admin.create_topic(topic, queues=5, perm=PermName.READ | PermName.WRITE)
        assert len(await admin.queues(topic)) == 5
        await admin.delete_topic(topic)
        assert topic not in {one.name for one in await admin.topics()}
        await admin.create_topic(topic, queues=1)
        async with Producer("p", name_server=name_server) as producer:  # which knows nothing of the old queues
            again = await producer.send(Message(topic, b"again"))
        with anyio.fail_after(PATIENCE):
            while not (found_again := (await admin.pull(again.queue, again.queue_offset)).messages):
                await anyio.sleep(0.05)  # Apache's broker fills its queues later
        assert [message.body for message in found_again] == [b"again"]


async def test_the_type_of_a_topics_messages_is_shown(name_server: str, kind: str, topic: str) -> None:
    async with Admin(name_server=name_server) as admin:
        await admin.create_topic(topic, attributes={"message.type": "FIFO"})
        assert (await admin.topic(topic)).message_type == ("UNSPECIFIED" if kind.startswith("4.") else "FIFO")
        await admin.delete_topic(topic)


async def test_a_broker_takes_messages_of_every_type_whatever_its_topic_is_for(name_server: str, topic: str) -> None:
    """Apache's proxy is who refuses them, for the clients that send by it."""

    def check(message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    options = ProducerOptions(send_message_timeout=12.0)
    async with (
        Admin(name_server=name_server) as admin,
        Producer(f"p-{topic}", name_server=name_server, options=options, transaction_checker=check) as producer,
    ):
        for kind in ("NORMAL", "FIFO", "DELAY", "TRANSACTION"):
            typed = f"{topic}-{kind}"
            await admin.create_topic(typed, queues=1, attributes={"message.type": kind})
            await producer.send(Message(typed, b"plain"))
            await producer.send(Message(typed, b"keyed", hash_key="k"))
            await producer.send(Message(typed, b"delayed", delay_level=1))
            async with producer.transaction(Message(typed, b"committed")):
                pass
            (queue,) = await admin.queues(typed)
            with anyio.fail_after(90):
                while await admin.max_offset(queue) < 4:
                    await anyio.sleep(0.2)
            found = (await admin.pull(queue, 0)).messages
            assert sorted(each.body for each in found) == [b"committed", b"delayed", b"keyed", b"plain"]
            await admin.delete_topic(typed)


async def test_types_of_messages_that_there_are_not_are_refused_in_words(
    name_server: str, kind: str, topic: str
) -> None:
    async with Admin(name_server=name_server) as admin:
        if kind.startswith("4."):  # which knows no attributes of topics, and drops them
            await admin.create_topic(topic, attributes={"message.type": "LETTERS"})
            return
        with pytest.raises(BrokerError, match=r"value is not in set: \[.*FIFO.*\]") as unknown:
            await admin.create_topic(topic, attributes={"message.type": "LETTERS"})
        assert unknown.value.code == ResponseCode.SYSTEM_ERROR
        with pytest.raises(BrokerError, match=r"MIXED message type is not supported\.") as mixed:
            await admin.create_topic(topic, attributes={"message.type": "MIXED"})
        assert mixed.value.code == ResponseCode.INVALID_PARAMETER
        with pytest.raises(NoRouteError):
            await admin.queues(topic)


async def test_a_topic_that_a_service_needs_is_made_and_differences_are_found(name_server: str, topic: str) -> None:
    needed = TopicOptions(queues=3, perm=TopicPermission.READ_WRITE)
    async with MQClientInstance(name_server) as instance, Admin(instance=instance) as admin:
        state = await find_topic(admin, topic, needed)
        assert state == TopicState(tuple(await admin.masters()), ())
        await make_topic(admin, topic, needed, state.missing)
        assert await until_in_route(admin, topic, state.missing, instance.clock, 10.0)
        assert await find_topic(admin, topic, needed) == TopicState((), ())
        assert await find_topic(admin, topic, TopicOptions(order=False)) == TopicState((), ())
        other = await find_topic(admin, topic, TopicOptions(queues=5, order=True))
        assert {(each.option, each.needed, each.found) for each in other.differences} == {
            ("queues", "5", "3"),
            ("order", "true", "false"),
        }
        await admin.delete_topic(topic)


async def test_names_that_cannot_be_are_refused(name_server: str) -> None:
    async with Admin(name_server=name_server) as admin:
        for wrong in ("bad topic", "TBW102", "x" * 128):
            with pytest.raises(BrokerError) as caught:
                await admin.create_topic(wrong)
            assert caught.value.code in (29, 1)  # 1: 4.9.7's code for the same


async def test_a_group_is_made_changed_listed_and_deleted(name_server: str, topic: str) -> None:
    group = f"g-{topic}"
    async with Admin(name_server=name_server) as admin:
        await admin.create_group(SubscriptionGroupConfig(group, retry_max_times=5, retry_queue_nums=2))
        (found,) = [one for one in await admin.groups() if one.name == group]
        (config,) = found.brokers.values()
        assert (config.retry_max_times, config.retry_queue_nums, config.consume_enable) == (5, 2, True)
        await admin.create_group(SubscriptionGroupConfig(group, consume_enable=False))
        (found,) = [one for one in await admin.groups() if one.name == group]
        assert [config.consume_enable for config in found.brokers.values()] == [False]
        await admin.delete_group(group)
        assert group not in {one.name for one in await admin.groups()}


async def test_the_cluster_is_told(name_server: str) -> None:
    async with Admin(name_server=name_server) as admin:
        cluster = await admin.cluster()
        assert dict(cluster.clusters) == {"DefaultCluster": ("broker-a",)}
        assert list(cluster.masters("DefaultCluster")) == ["broker-a"]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServersInThread]:
    folder = tmp_path_factory.mktemp("ours")
    with EmbeddedServers.in_thread(EmbeddedOptions(data_dir=folder, port=0, name_server_port=0)) as embedded:
        yield embedded


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_apaches_tools_keep_our_topics_and_groups(
    version: str, ours: ServersInThread, topic: str, tmp_path: Path
) -> None:
    with JavaTools(tmp_path, version, ours.name_server_address) as tools:
        await keep_topics_and_groups(tools, ours.name_server_address, topic, knows_types=not version.startswith("4."))


async def keep_topics_and_groups(tools: JavaTools, name_server: str, topic: str, *, knows_types: bool) -> None:
    async def run(command: str, *arguments: str) -> str:
        return await anyio.to_thread.run_sync(tools, command, *arguments)

    async with Admin(name_server=name_server) as admin:
        where = ("-c", "DefaultCluster")
        assert "success" in await run("updateTopic", *where, "-t", topic, "-r", "3", "-w", "2")
        (made,) = [one for one in await admin.topics() if one.name == topic]
        assert [(one.read_queue_nums, one.write_queue_nums) for one in made.brokers.values()] == [(3, 2)]
        assert topic in await run("topicList")
        typed = f"{topic}-typed"
        if knows_types:
            assert "success" in await run("updateTopic", *where, "-t", typed, "-a", "+message.type=FIFO")
            assert (await admin.topic(typed)).message_type == "FIFO"
            assert "success" in await run("deleteTopic", *where, "-t", typed)
            told = await run("updateTopic", *where, "-t", f"{topic}-mixed", "-a", "+message.type=MIXED")
            assert "MIXED message type is not supported." in told
            assert f"{topic}-mixed" not in {one.name for one in await admin.topics()}
        assert "success" in await run("updateSubGroup", *where, "-g", f"g-{topic}", "-r", "7")
        (group,) = [one for one in await admin.groups() if one.name == f"g-{topic}"]
        assert [one.retry_max_times for one in group.brokers.values()] == [7]
        assert "success" in await run("deleteSubGroup", *where, "-g", f"g-{topic}")
        assert f"g-{topic}" not in {one.name for one in await admin.groups()}
        assert "success" in await run("deleteTopic", *where, "-t", topic)
        assert topic not in {one.name for one in await admin.topics()}
        assert topic not in await run("topicList")
