"""Clients in a namespace: servers know names with it, users without."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rocketbox.client import (
    Admin,
    ClientOptions,
    ConsumerOptions,
    MQClientInstance,
    PermName,
    Producer,
    PushConsumer,
    SubscriptionGroupConfig,
)
from rocketbox.client.api.groups import lock_queues
from rocketbox.client.needed_topics import find_topic, make_topic, until_in_route
from rocketbox.client.options import TopicOptions
from rocketbox.errors import ConfigurationError, InvalidGroupError, InvalidMessageError, NoRouteError, Reject
from rocketbox.message import ConsumeFromWhere, ConsumeMode, Message, MessageModel, MessageQueue, Property
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.namespaces import Namespace
from rocketbox.protocol.prepared_sends import SendRequest
from rocketbox.remoting.acl import Credentials
from tests.support.client.consuming import Seen, dead_letters, servers
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio

TEAM = ClientOptions(namespace="team")
TEAM_V2 = ClientOptions(namespace_v2="team")
FIRST: dict[str, Any] = {"consume_from_where": ConsumeFromWhere.FIRST_OFFSET, "delay_level_when_next_consume": 1}


@asynccontextmanager
async def clients(address: str, *options: ClientOptions) -> AsyncIterator[list[MQClientInstance]]:
    """A client for each of the options."""
    made = [MQClientInstance(address, options=each) for each in options]
    async with made[0], made[1]:
        yield made


@pytest.mark.parametrize("mode", ConsumeMode)
async def test_what_a_handler_gets_in_a_namespace_has_plain_names(
    anyio_backend: str, tmp_path: Path, mode: ConsumeMode
) -> None:
    seen = Seen({b"bad": [Reject("bad")], b"later": [ValueError("once")]})
    options = ConsumerOptions(consume_mode=mode, suspend_current_queue_time=0.1, **FIRST)
    async with (
        servers(tmp_path) as cluster,
        clients(cluster.name_server_address, TEAM, ClientOptions()) as (team, all_),
    ):
        admin, outside = Admin(instance=team), Admin(instance=all_)
        async with (
            Producer("desk", instance=team) as producer,
            PushConsumer("desk", instance=team, options=options) as c,
        ):
            result = await producer.send(Message("alerts", b"good"))
            await producer.send_batch([Message("alerts", b"bad"), Message("team%alerts", b"later")])
            await c.subscribe("alerts", "*", seen)
            await until(lambda: len(seen.messages) == 4, "three deliveries and one more")
            await until(lambda: c.state().held == 0, "all settled")
            await c.persist_offsets()
            assert result.queue.topic == result.topic == "alerts"
            assert {message.topic for message in seen.messages} == {"alerts"}
            assert {message.queue.topic for message in seen.messages} == {"alerts"}
            good = next(message for message in seen.messages if message.body == b"good")
            assert good.properties[Property.INSTANCE_ID] == "team"
            assert {held.queue.topic for held in c.state().queues} <= {"alerts", "%RETRY%desk"}
            (dead,) = await dead_letters(admin, "desk")
            (same,) = await dead_letters(outside, "team%desk")
            (queue,) = [queue for queue in await admin.queues("alerts") if queue == result.queue]
            stored = MessageQueue("team%alerts", queue.broker_name, queue.queue_id)
            assert await admin.committed("desk", queue) == await outside.committed("team%desk", stored) != 0
            assert await admin.members("desk") == await outside.members("team%desk") != []
        assert (dead.body, dead.topic, dead.properties[Property.RETRY_TOPIC]) == (b"bad", "%DLQ%desk", "alerts")
        assert (same.topic, same.properties[Property.RETRY_TOPIC]) == ("%DLQ%team%desk", "team%alerts")
        names = await outside.topic_names()
        assert {"team%alerts", "%RETRY%team%desk", "%DLQ%team%desk"} <= set(names)
        assert not {"alerts", "%RETRY%desk", "desk"} & set(names)
        viewed = await admin.view(result.offset_msg_id)
        assert (viewed.topic, (await outside.view(result.offset_msg_id)).topic) == ("alerts", "team%alerts")


async def test_no_request_names_anything_without_its_namespace(anyio_backend: str, tmp_path: Path) -> None:
    seen, spy = Seen({b"later": [ValueError("once")], b"bad": [Reject("bad")]}), Spy()
    options = ClientOptions(namespace="team", hooks=(spy,))
    async with (
        servers(tmp_path) as cluster,
        MQClientInstance(cluster.name_server_address, options=options) as team,
        Producer("p", instance=team) as producer,
        PushConsumer("desk", instance=team, options=ConsumerOptions(**FIRST)) as consumer,
    ):
        await producer.send_many([Message("alerts", body) for body in (b"later", b"bad", b"good")])
        await consumer.subscribe("alerts", "*", seen)
        await until(lambda: len(seen.messages) == 4, "three deliveries and one more")
        await until(lambda: consumer.state().held == 0, "all settled")
    named = ("topic", "consumerGroup", "producerGroup", "group", "originTopic", "a", "b")
    names = {fields[field] for fields in spy.fields for field in named if fields.get(field)}
    assert {"team%alerts", "team%desk", "team%p", "%RETRY%team%desk"} <= names
    assert {name for name in names if "team%" not in name} <= {"TBW102", "CLIENT_INNER_PRODUCER"}


async def test_two_namespaces_do_not_see_each_others_messages(anyio_backend: str, tmp_path: Path) -> None:
    ours, theirs = Seen(), Seen()
    other = ClientOptions(namespace="other")
    async with (
        servers(tmp_path) as cluster,
        clients(cluster.name_server_address, TEAM, other) as (team, others),
        Producer("p", instance=team) as producer,
        PushConsumer("desk", instance=team, options=ConsumerOptions(**FIRST)) as one,
        PushConsumer("desk", instance=others, options=ConsumerOptions(**FIRST)) as two,
    ):
        await Admin(instance=others).create_topic("alerts")
        await two.subscribe("alerts", "*", theirs)
        await producer.send(Message("alerts", b"for us"))
        await one.subscribe("alerts", "*", ours)
        await ours.all_of([b"for us"])
        assert two.state().held == 0
        topics = [each.name for each in await Admin(instance=others).topics()]
        assert "alerts" in topics
        assert not [name for name in topics if "team" in name]
        with pytest.raises(NoRouteError, match="'departures' of namespace team at name server"):
            await Admin(instance=team).queues("departures")
    assert theirs.messages == []


@pytest.mark.parametrize("mode", ConsumeMode)
async def test_who_joins_a_group_of_a_namespace_is_heard_of_at_once(
    anyio_backend: str, tmp_path: Path, mode: ConsumeMode
) -> None:
    seen = Seen()
    options = ConsumerOptions(consume_mode=mode, rebalance_interval=600.0, **FIRST)
    async with (
        servers(tmp_path) as cluster,
        clients(cluster.name_server_address, TEAM, TEAM) as (first, second),
        PushConsumer("desk", instance=first, options=options) as one,
    ):
        await Admin(instance=first).create_topic("alerts", queues=4)
        await one.subscribe("alerts", "*", seen)

        def queues(consumer: PushConsumer) -> list[int]:
            return [held.queue.queue_id for held in consumer.state().queues if held.queue.topic == "alerts"]

        await until(lambda: len(queues(one)) == 4, "all queues are the first one's")
        async with PushConsumer("desk", instance=second, options=options) as two:
            await two.subscribe("alerts", "*", seen)
            await until(lambda: len(queues(one)) == len(queues(two)) == 2, "they share")
        await until(lambda: len(queues(one)) == 4, "the one who stays has all again")


async def test_names_that_are_wrapped_already_are_the_same(anyio_backend: str, tmp_path: Path) -> None:
    seen = Seen({b"again": [ValueError("once")]})
    async with (
        servers(tmp_path) as cluster,
        MQClientInstance(cluster.name_server_address, options=TEAM) as team,
        Producer("team%p", instance=team) as producer,
        PushConsumer("team%desk", instance=team, options=ConsumerOptions(**FIRST)) as consumer,
    ):
        assert (producer.group, consumer.group) == ("p", "desk")
        await consumer.subscribe("team%alerts", "*", seen)
        sent = await producer.send(Message("team%alerts", b"again"))
        whole = MessageQueue("team%alerts", sent.queue.broker_name, sent.queue.queue_id)
        again = await producer.send(Message("alerts", b"here"), queue=whole)
        assert (sent.topic, again.queue) == ("alerts", sent.queue)
        await until(lambda: len(seen.messages) == 3, "two messages and a repeat")
        assert {message.topic for message in seen.messages} == {"alerts"}
        with pytest.raises(InvalidGroupError, match="in use by another producer"):
            async with Producer("p", instance=team):
                pass
        await consumer.unsubscribe("team%alerts")
        assert consumer.state().queues == () or "alerts" not in {q.queue.topic for q in consumer.state().queues}


async def test_admin_works_in_a_namespace(anyio_backend: str, tmp_path: Path) -> None:
    async with (
        servers(tmp_path) as cluster,
        clients(cluster.name_server_address, TEAM, ClientOptions()) as (team, all_),
    ):
        admin, outside = Admin(instance=team), Admin(instance=all_)
        await outside.create_topic("alerts", queues=1)
        await admin.create_topic("alerts", queues=3, perm=PermName.READ | PermName.WRITE)
        await admin.create_group(SubscriptionGroupConfig("desk", retry_max_times=2))
        (topic,) = [each for each in await admin.topics() if each.name == "alerts"]
        assert topic.write_queues == 3
        assert {config.topic_name for config in topic.brokers.values()} == {"alerts"}
        (group,) = [each for each in await admin.groups() if each.name == "desk"]
        assert {(config.group_name, config.retry_max_times) for config in group.brokers.values()} == {("desk", 2)}
        everywhere = {each.name: each.write_queues for each in await outside.topics()}
        assert (everywhere["alerts"], everywhere["team%alerts"]) == (1, 3)
        assert "team%desk" in {each.name for each in await outside.groups()}
        (queue, *_) = await admin.queues("alerts")
        assert (await admin.queues_on_brokers("alerts")).keys() == {queue.broker_name}
        await admin.commit("desk", queue, 0)
        assert (
            await admin.search_offset(queue, 0) == await admin.min_offset(queue) == await admin.max_offset(queue) == 0
        )
        await admin.delete_group("desk")
        await admin.delete_topic("alerts")
        assert "team%alerts" not in await outside.topic_names()
        assert "alerts" in await outside.topic_names()
        assert "alerts" not in await admin.topic_names()


@pytest.mark.parametrize("name", ["alerts", "team%alerts"])
async def test_a_topic_that_is_needed_is_found_by_both_of_its_names(
    anyio_backend: str, tmp_path: Path, name: str
) -> None:
    async with servers(tmp_path) as cluster, MQClientInstance(cluster.name_server_address, options=TEAM) as team:
        admin = Admin(instance=team)
        for needed in (TopicOptions(queues=3), TopicOptions(queues=3, order=False)):
            (broker,) = await admin.masters()
            assert (await find_topic(admin, name, needed)).missing == (broker,)
            await make_topic(admin, name, needed, [broker])
            assert await until_in_route(admin, name, [broker], team.clock, 10.0)
            state = await find_topic(admin, name, needed)
            assert (state.missing, state.differences) == ((), ())
            await admin.delete_topic(name)


async def test_offsets_of_broadcasting_are_those_of_the_namespace(anyio_backend: str, tmp_path: Path) -> None:
    options = ConsumerOptions(
        message_model=MessageModel.BROADCASTING, local_offset_dir=tmp_path / "offsets", **FIRST
    )  # fmt: skip
    async with (
        servers(tmp_path / "store") as cluster,
        clients(cluster.name_server_address, TEAM, ClientOptions()) as both,
    ):
        for instance, bodies in zip(both, ([b"in", b"side"], [b"outside"]), strict=True):
            seen = Seen()
            async with Producer("p", instance=instance) as producer:
                for body in bodies:
                    await producer.send(Message("alerts", body))
            async with PushConsumer("desk", instance=instance, options=options) as consumer:
                await consumer.subscribe("alerts", "*", seen)
                await seen.all_of(bodies)
                await consumer.persist_offsets()
    inside, outside = (
        next((tmp_path / "offsets").glob(f"*/{group}/offsets.json")).read_text() for group in ("team%desk", "desk")
    )
    assert '"topic":"team%alerts"' in inside
    assert '"topic":"alerts"' in outside


@pytest.mark.parametrize("team", [TEAM, TEAM_V2], ids=["before names", "in a header"])
async def test_an_orderly_group_locks_retries_and_gives_up_in_a_namespace(
    anyio_backend: str, tmp_path: Path, team: ClientOptions
) -> None:
    seen, spy = Seen({b"bad": [ValueError("once"), ValueError("twice")]}), Spy()
    options = ConsumerOptions(
        consume_mode=ConsumeMode.ORDERLY, max_reconsume_times=1, suspend_current_queue_time=0.02, **FIRST
    )
    async with (
        servers(tmp_path) as cluster,
        clients(cluster.name_server_address, team, ClientOptions()) as (ours, all_),
    ):
        ours.remoting.hooks = (*ours.remoting.hooks, spy)
        admin, outside = Admin(instance=ours), Admin(instance=all_)
        whole = Namespace(team.namespace or "").wrap

        async def locked_by_another(queue: MessageQueue) -> set[MessageQueue]:
            address, group = cluster.broker_address, whole("desk")
            return await lock_queues(all_.remoting, address, group, "another", [queue], timeout=PATIENCE)

        async with Producer("p", instance=ours) as producer:
            sent = [await producer.send(Message("alerts", body, hash_key="k")) for body in (b"1", b"bad", b"3")]
            stored = MessageQueue(whole("alerts"), sent[0].queue.broker_name, sent[0].queue.queue_id)
            async with PushConsumer("desk", instance=ours, options=options) as consumer:
                await consumer.subscribe("alerts", "*", seen)
                await until(lambda: seen.bodies[-1:] == [b"3"] and not consumer.state().held, "all settled")
                assert await locked_by_another(stored) == set()
        assert await locked_by_another(stored) == {stored}, "the member has given it back"
        assert seen.bodies == [b"1", b"bad", b"bad", b"3"]
        assert {message.topic for message in seen.messages} == {"alerts"}
        (letter,) = await dead_letters(admin, "desk")
        (same,) = await dead_letters(outside, whole("desk"))
        assert (letter.body, letter.topic, letter.properties[Property.RETRY_TOPIC]) == (b"bad", "%DLQ%desk", "alerts")
        assert (same.body, same.topic) == (b"bad", whole("%DLQ%desk"))
        assert await admin.committed("desk", sent[0].queue) == await outside.committed(whole("desk"), stored) == 3
    assert {RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ} <= set(spy.codes)
    says = ("true", "team") if team.namespace_v2 else (None, None)
    assert {(fields.get("nsd"), fields.get("ns")) for fields in spy.fields} == {says}


async def test_broadcasting_in_a_namespace_v2_goes_by_offsets_of_its_own(anyio_backend: str, tmp_path: Path) -> None:
    """These servers have one topic for both; others may have two, of which each needs its own offsets."""
    options = ConsumerOptions(
        message_model=MessageModel.BROADCASTING, local_offset_dir=tmp_path / "offsets", **FIRST
    )  # fmt: skip
    async with (
        servers(tmp_path / "store") as cluster,
        clients(cluster.name_server_address, TEAM_V2, ClientOptions()) as (team, all_),
        Producer("p", instance=team) as producer,
    ):

        async def hears(instance: MQClientInstance, bodies: list[bytes]) -> None:
            seen = Seen()
            async with PushConsumer("desk", instance=instance, options=options) as consumer:
                await consumer.subscribe("alerts", "*", seen)
                await seen.all_of(bodies)
            assert sorted(seen.bodies) == sorted(bodies)

        await producer.send(Message("alerts", b"1"))
        await hears(team, [b"1"])
        await producer.send(Message("alerts", b"2"))
        await hears(all_, [b"1", b"2"])
        await producer.send(Message("alerts", b"3"))
        await hears(team, [b"2", b"3"])
    assert {path.parent.name for path in (tmp_path / "offsets").glob("*/*/offsets.json")} == {"team@desk", "desk"}


async def test_a_name_must_be_short_enough_for_the_namespace_before_it(anyio_backend: str, tmp_path: Path) -> None:
    async with servers(tmp_path) as cluster, MQClientInstance(cluster.name_server_address, options=TEAM) as team:
        with pytest.raises(InvalidGroupError, match="121 characters with namespace team before it"):
            Producer("g" * 116, instance=team)
        with pytest.raises(InvalidGroupError, match="121 characters with namespace team before it"):
            PushConsumer("g" * 116, instance=team)
        async with Producer("p", instance=team) as producer:
            with pytest.raises(InvalidMessageError, match="128 characters with namespace team before it"):
                await producer.send(Message("t" * 123, b"x"))
            await producer.send(Message("t" * 122, b"x"))


class Spy:
    """A hook of a user's, which sees what stands in each request when those before it are done."""

    def __init__(self) -> None:
        self.fields: list[dict[str, str]] = []
        self.codes: list[int] = []

    def before_request(self, address: str, command: RemotingCommand) -> None:
        self.codes.append(command.code)
        self.fields.append(dict(command.ext_fields))

    def before_prepared(self, address: str, request: SendRequest) -> bytes:
        self.fields.append(dict(request.template.fields))
        return b""

    def after_response(self, address: str, code: int, response: RemotingCommand) -> None: ...


@pytest.mark.parametrize("credentials", [None, Credentials(access_key="AK-desk", secret_key="SK-desk")])
async def test_every_request_of_a_namespace_v2_says_it(
    anyio_backend: str, tmp_path: Path, credentials: Credentials | None
) -> None:
    seen = Seen({b"later": [ValueError("once")]})
    async with servers(tmp_path) as cluster:
        options = ClientOptions(namespace_v2="team", credentials=credentials)
        async with (
            MQClientInstance(cluster.name_server_address, options=options) as team,
            Producer("p", instance=team) as producer,
            PushConsumer("desk", instance=team, options=ConsumerOptions(**FIRST)) as consumer,
        ):
            hooks = team.remoting.hooks
            last = Spy()
            team.remoting.hooks = (*hooks, last)
            await consumer.subscribe("alerts", "*", seen)
            await producer.send(Message("alerts", b"later"))
            await producer.send_batch([Message("alerts", b"1"), Message("alerts", b"2")])
            await producer.send_one_way(Message("alerts", b"3"))
            await producer.send_many([Message("alerts", b"4"), Message("alerts", b"5")])
            await until(lambda: len(seen.messages) == 7, "six messages and a repeat")
            assert {message.topic for message in seen.messages} == {"alerts"}
            names = await Admin(instance=team).topic_names()
    assert len(last.fields) > 10
    assert {(fields.get("nsd"), fields.get("ns")) for fields in last.fields} == {("true", "team")}
    assert "alerts" in names


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"namespace": "a", "namespace_v2": "a"}, "namespace and namespace_v2 are both set"),
        ({"namespace": "a%b"}, "ClientOptions.namespace is 'a%b': it holds %"),
        ({"namespace": ""}, "ClientOptions.namespace is '': it is blank"),
        ({"namespace_v2": "a\x01"}, "namespace_v2 is .* cannot stand in a header"),
        ({"unit_name": "a@b"}, "unit_name is 'a@b'"),
    ],
)
def test_what_can_be_no_namespace_is_refused(said: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        ClientOptions(**said)


def test_an_address_that_names_a_namespace_wants_it_said() -> None:
    address = "http://MQ_INST_1_2.mq.example:80"
    with pytest.raises(ConfigurationError, match=r"set rocketmq\.namespace: MQ_INST_1_2"):
        MQClientInstance(address)
    MQClientInstance(address, options=ClientOptions(namespace="MQ_INST_1_2"))
