"""Message trace on the embedded broker: by client and service, in namespaces, with rights, in several clusters."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from rocketbox.client import (
    Admin,
    ClientOptions,
    ConsumerOptions,
    MQClientInstance,
    Producer,
    ProducerOptions,
    PushConsumer,
    Transaction,
)
from rocketbox.client.trace_dispatcher import TraceCounts
from rocketbox.clock import RealClock
from rocketbox.errors import BrokerError, RetryLater
from rocketbox.message import ConsumeFromWhere, LocalTransactionState, Message, MessageExt
from rocketbox.protocol.codes import RequestCode as C
from rocketbox.protocol.trace_records import (
    ConsumeCode,
    EndTransactionRecord,
    PubRecord,
    RecallRecord,
    SubAfterRecord,
    SubBeforeRecord,
    TracedType,
)
from rocketbox.remoting.acl import RequestSigner
from rocketbox.remoting.client import RemotingClient
from rocketbox.testing import Harness
from tests.support.broker.access import ADMIN, keys_of
from tests.support.broker.wire import Wire, embedded
from tests.support.client.traced import trace_records
from tests.support.framework.services import ServiceMaker
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio

PRODUCER = keys_of("producer")
SEND = ProducerOptions(enable_msg_trace=True)
COMMIT, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.UNKNOWN


def consume(**more: Any) -> ConsumerOptions:
    return ConsumerOptions(enable_msg_trace=True, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, **more)


@pytest.mark.parametrize("is_async", [True, False])
async def test_the_way_of_a_message_from_its_send_to_its_retry(tmp_path: Path, is_async: bool) -> None:
    calls: list[MessageExt] = []
    done = anyio.Event()

    def handle(messages: list[MessageExt]) -> None:
        calls.extend(messages)
        if len(calls) == 1:
            raise RetryLater(timedelta(seconds=1))

    async def handle_async(messages: list[MessageExt]) -> None:
        handle(messages)

    async with embedded(tmp_path, message_delay_level="1s 1s 1s") as wire:
        address = wire.servers.name_server_address
        async with (
            Producer("payers", name_server=address, options=SEND) as producer,
            PushConsumer("billing", name_server=address, options=consume()) as consumer,
        ):
            result = await producer.send(Message("orders", b"one", tag="A", keys=["k"]))
            await consumer.subscribe("orders", "*", handle_async if is_async else handle)
            await until(lambda: len(calls) == 2, "the retry")
            done.set()
        assert consumer.trace == TraceCounts(waiting=0, sent=4, dropped=0, failed=0)
        found = [record for record in await trace_records(address) if record.msg_id == result.msg_id]
        broker = wire.broker_address
    (pub,) = [each for each in found if isinstance(each, PubRecord)]
    before = [each for each in found if isinstance(each, SubBeforeRecord)]
    after = {each.request_id: each for each in found if isinstance(each, SubAfterRecord)}
    assert (pub.group, pub.tags, pub.keys, pub.offset_msg_id) == ("payers", "A", "k", result.offset_msg_id)
    assert pub.store_host == broker
    told = [(each.retry_times, after[each.request_id].success, after[each.request_id].code) for each in before]
    assert sorted(told) == [(0, False, ConsumeCode.FAILED), (1, True, ConsumeCode.SUCCESS)]
    assert {each.group for each in before} | {each.group for each in after.values()} == {"billing"}


async def test_a_transaction_has_its_end_and_that_of_each_check(tmp_path: Path) -> None:
    asked: list[str] = []

    async def check(message: MessageExt) -> LocalTransactionState:
        asked.append(message.msg_id)
        return UNKNOWN if message.body == b"one" else COMMIT

    async def knows_later(transaction: Transaction) -> LocalTransactionState:
        return UNKNOWN

    async with embedded(tmp_path, transaction_time_out=0, transaction_check_interval=100) as wire:
        address = wire.servers.name_server_address
        async with Producer("payers", name_server=address, options=SEND, transaction_checker=check) as producer:
            async with producer.transaction(Message("orders", b"one", tag="A", keys=["k"])) as first:
                pass
            second = await producer.send_in_transaction(Message("orders", b"two"), knows_later)
            third = producer.transaction(Message("orders", b"three"))  # held, so that it hears of the check as well
            await third.begin()
            await until(lambda: second.transaction_id in asked and third.state is COMMIT, "the questions")
        found = await trace_records(address)
        broker = wire.broker_address
    assert [each.type for each in found if isinstance(each, PubRecord)] == [TracedType.HALF] * 3
    ends = [each for each in found if isinstance(each, EndTransactionRecord)]
    assert sorted((each.msg_id, each.state.name) for each in ends if not each.from_check) == [
        (first.transaction_id, "COMMIT"),
        (second.transaction_id, "UNKNOWN"),
    ]
    of_checks = [each for each in ends if each.from_check]
    assert {each.msg_id for each in of_checks} == {*asked}
    assert len(of_checks) <= len(asked)
    assert {each.msg_id for each in of_checks if each.state is COMMIT} == {second.transaction_id, third.transaction_id}
    assert {(each.topic, each.store_host, each.group) for each in ends} == {("orders", broker, "payers")}
    (of_first,) = [each for each in ends if each.msg_id == first.transaction_id and not each.from_check]
    assert (of_first.tags, of_first.keys, of_first.transaction_id) == ("A", "k", first.transaction_id)


async def until_too_late(producer: Producer, handle: str | None) -> None:
    while True:
        await producer.recall(handle)
        await anyio.sleep(0.1)


async def test_a_recall_and_one_that_comes_too_late(tmp_path: Path) -> None:
    async with embedded(tmp_path, recall_message_enable=True) as wire:
        address = wire.servers.name_server_address
        async with Producer("payers", name_server=address, options=SEND) as producer:
            sent = await producer.send(Message("orders", b"x", delay=timedelta(hours=1, milliseconds=7)))
            soon = await producer.send(Message("orders", b"x", delay=timedelta(milliseconds=1)))
            assert await producer.recall(sent.recall_handle) == sent.msg_id
            with pytest.raises(BrokerError), anyio.fail_after(PATIENCE):
                await until_too_late(producer, soon.recall_handle)
        found = await trace_records(address)
    assert [each.type for each in found if isinstance(each, PubRecord)] == [TracedType.DELAY] * 2
    recalls = {(each.msg_id, each.success) for each in found if isinstance(each, RecallRecord)}
    assert (sent.msg_id, True) in recalls
    assert (soon.msg_id, False) in recalls


async def test_a_request_is_traced_as_a_send_and_its_reply_is_not(tmp_path: Path) -> None:
    async def reply(messages: list[MessageExt]) -> None:
        await consumer.reply(messages[0], b"answer")

    async with embedded(tmp_path) as wire:
        address = wire.servers.name_server_address
        consumer = PushConsumer("quotes", name_server=address, options=consume())
        await consumer.subscribe("quotes", "*", reply)
        async with consumer, Producer("payers", name_server=address, options=SEND) as producer:
            answer = await producer.request(Message("quotes", b"x"), timeout=PATIENCE)
            assert answer.body == b"answer"
        found = await trace_records(address)
    assert sorted((each.kind, each.group) for each in found) == [
        ("Pub", "payers"),
        ("SubAfter", "quotes"),
        ("SubBefore", "quotes"),
    ]
    assert len({each.msg_id for each in found}) == 1


async def test_in_a_namespace_records_have_plain_names_and_go_to_the_same_topic(tmp_path: Path) -> None:
    got: list[MessageExt] = []

    async def handle(messages: list[MessageExt]) -> None:
        got.extend(messages)

    async with embedded(tmp_path) as wire:
        address = wire.servers.name_server_address
        async with (
            MQClientInstance(address, options=ClientOptions(namespace="team")) as instance,
            Producer("payers", instance=instance, options=SEND) as producer,
            PushConsumer("billing", instance=instance, options=consume()) as consumer,
        ):
            await producer.send(Message("team%orders", b"x"))
            await consumer.subscribe("orders", "*", handle)
            await until(lambda: len(got) == 1, "the message")
        found = await trace_records(address)
    groups = {each.kind: each.group for each in found}
    assert groups == {"Pub": "payers", "SubBefore": "billing", "SubAfter": "billing"}
    assert [each.topic for each in found if isinstance(each, PubRecord)] == ["orders"]


IN_THE_CLOUD = """
from rocketbox import ConsumeFromWhere, RocketBox, rocketmq_listener

app = RocketBox("billing", scan=[__name__])
seen = []

@rocketmq_listener(topic="orders", consumer_group="billing", consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
async def bill(text: str) -> None:
    seen.append(text)
"""
CLOUD = """
rocketmq:
  name-server: ADDRESS
  access-channel: CLOUD
  unit-name: south
  producer: {group: payers, enable-msg-trace: true}
  consumer: {enable-msg-trace: true}
"""


async def test_a_service_in_a_cloud_traces_to_the_topic_of_its_region_and_is_of_its_unit(
    tmp_path: Path, service: ServiceMaker
) -> None:
    """Its producer and its listener; nothing goes to the topic of other clusters. SubAfter names no group there."""
    async with embedded(tmp_path / "store", region_id="cn-south-1") as wire:
        address = wire.servers.name_server_address
        module = service(IN_THE_CLOUD, CLOUD.replace("ADDRESS", address))
        async with module.app as app:
            await app.template.send("orders", "one")
            await until(lambda: module.seen == ["one"], "the message")
            (member,) = await Admin(instance=app.get(MQClientInstance)).members("billing")
            assert member.endswith("@south")
            assert member == app.get(MQClientInstance).client_id
        found = await trace_records(address, topic="rmq_sys_TRACE_DATA_cn-south-1")
        assert await wire.route("RMQ_SYS_TRACE_TOPIC") is None
        assert await wire.route("rmq_sys_TRACE_DATA_DefaultRegion") is None
    assert sorted((each.kind, each.group) for each in found) == [
        ("Pub", "payers"), ("SubAfter", ""), ("SubBefore", "billing"),
    ]  # fmt: skip
    assert len({each.msg_id for each in found}) == 1
    regions = {each.region_id for each in found if isinstance(each, PubRecord | SubBeforeRecord)}
    assert regions == {"cn-south-1"}


async def test_a_broker_without_the_topic_is_told_of_once_and_nothing_else_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with embedded(tmp_path, auto_create_topic_enable=False) as wire:
        await wire.broker(C.UPDATE_AND_CREATE_TOPIC, ORDERS)
        async with Producer("payers", name_server=wire.servers.name_server_address, options=SEND) as producer:
            for _ in range(3):
                await producer.send(Message("orders", b"x"))
        assert producer.trace == TraceCounts(waiting=0, sent=0, dropped=0, failed=3)
    told = [each.getMessage() for each in caplog.records if "trace of group payers" in each.getMessage()]
    assert len(told) == 1
    assert "RMQ_SYS_TRACE_TOPIC" in told[0]


@pytest.mark.parametrize(("settings", "is_there"), [({}, False), ({"trace_topic_enable": True}, True)])
async def test_the_brokers_setting_has_the_topic_from_the_start(
    tmp_path: Path, settings: dict[str, Any], is_there: bool
) -> None:
    async with embedded(tmp_path, **settings) as wire:
        assert (await wire.route("RMQ_SYS_TRACE_TOPIC") is not None) is is_there


async def test_a_broker_that_allows_no_trace_has_none(tmp_path: Path) -> None:
    got: list[MessageExt] = []

    async def handle(messages: list[MessageExt]) -> None:
        got.extend(messages)

    async with embedded(tmp_path, trace_on=False) as wire:
        address = wire.servers.name_server_address
        async with (
            Producer("payers", name_server=address, options=SEND) as producer,
            PushConsumer("billing", name_server=address, options=consume()) as consumer,
        ):
            await producer.send(Message("orders", b"x"))
            await consumer.subscribe("orders", "*", handle)
            await until(lambda: len(got) == 1, "the message")
    assert producer.trace == consumer.trace == TraceCounts(waiting=0, sent=0, dropped=0, failed=0)


ACL_1 = f"""
accounts:
- {{accessKey: {ADMIN.access_key}, secretKey: {ADMIN.secret_key}, admin: true}}
- {{accessKey: producer, secretKey: {PRODUCER.secret_key}, topicPerms: [orders=PUB]}}
"""
ACL_2 = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": json.dumps({"username": ADMIN.access_key, "password": ADMIN.secret_key}),
}


ORDERS = {
    "topic": "orders", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "defaultTopic": "TBW102",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
}  # fmt: skip


async def set_up(wire: Wire, *topics: str) -> None:
    """The topic of orders, and with ACL 2.0 the producer, who may send to these topics."""
    async with RemotingClient(clock=RealClock(), hooks=[RequestSigner(ADMIN)]) as client:
        admin = Wire(wire.servers, client)
        assert (await admin.broker(C.UPDATE_AND_CREATE_TOPIC, ORDERS)).code == 0
        if not topics:
            return
        user = {"username": "producer", "password": PRODUCER.secret_key}
        entries = [{"resource": f"Topic:{topic}", "actions": ["Pub"], "decision": "Allow"} for topic in topics]
        made = await admin.broker(C.AUTH_CREATE_USER, {"username": "producer"}, json.dumps(user).encode())
        acl = json.dumps({"policies": [{"entries": entries}]}).encode()
        given = await admin.broker(C.AUTH_CREATE_ACL, {"subject": "User:producer"}, acl)
        assert (made.code, given.code) == (0, 0)


@pytest.mark.parametrize(
    ("kind", "topics", "sent"),
    [("1.0", (), 2), ("2.0", ("orders",), 0), ("2.0", ("orders", "RMQ_SYS_TRACE_TOPIC"), 2)],
)
async def test_who_traces_needs_the_right_to_and_is_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, topics: tuple[str, ...], sent: int
) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / "acl.yml").write_text(ACL_1)
    settings: dict[str, Any] = (
        {"acl_enable": True, "acl_file": str(tmp_path / "acl.yml")} if kind == "1.0" else dict(ACL_2)
    )
    async with embedded(tmp_path / "store", trace_topic_enable=True, **settings) as wire:
        await set_up(wire, *topics)
        options = ClientOptions(credentials=PRODUCER)
        async with Producer(
            "payers", name_server=wire.servers.name_server_address, options=SEND, client_options=options
        ) as producer:
            for _ in range(2):
                await producer.send(Message("orders", b"x"))
        assert producer.trace == TraceCounts(waiting=0, sent=sent, dropped=0, failed=2 - sent)
    told = [each.getMessage() for each in caplog.records if "could not be sent" in each.getMessage()]
    assert len(told) == (0 if sent else 1)
    assert all("user prod... lacks" in each and "topic RMQ_SYS_TRACE_TOPIC" in each for each in told)


# --- a service --------------------------------------------------------------------------------------------------------

SERVICE = """
from rocketbox import RocketBox, rocketmq_listener, send_to

app = RocketBox("desk", scan=[__name__])

@rocketmq_listener(topic="orders", consumer_group="desk")
@send_to("bills", cluster="audit")
async def bill(order: str) -> str:
    return order

@rocketmq_listener(topic="bills", consumer_group="post", cluster="audit", enable_msg_trace=True)
def post(bill: str) -> None: ...
"""
SETTINGS = """
rocketmq:
  name-server: embedded
  producer: {group: desk, enable-msg-trace: true}
  consumer: {listeners: {desk: {enable-msg-trace: true, customized-trace-topic: traces}}}
  clusters:
    audit: {name-server: "audit:9876", producer: {group: auditors, enable-msg-trace: true}}
"""


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_producers_and_listeners_of_each_cluster_trace_as_their_settings_say_and_hold_up_no_virtual_time(
    service: ServiceMaker,
) -> None:
    app = service(SERVICE, SETTINGS).app
    async with Harness(app) as harness:
        begin = harness.now
        for number in range(3):
            await harness.send("orders", f"order {number}")
        await harness.drain()
        assert harness.now == begin, "no record's time has moved it"
        assert len(harness.sent("bills", cluster="audit")) == 3
        members = {
            "desk": app.template.producer,
            "auditors": app.assembly.container.get(Producer, "audit"),
            "listener desk": app.listeners["desk"].consumer,
            "listener post": app.listeners["audit", "post"].consumer,
        }
        await harness.advance("6s")
        assert app.listeners["desk"].state().progress["trace_lost"] == 0
        assert {name: member.trace for name, member in members.items()} == {
            "desk": TraceCounts(waiting=0, sent=3, dropped=0, failed=0),
            "auditors": TraceCounts(waiting=0, sent=3, dropped=0, failed=0),
            "listener desk": TraceCounts(waiting=0, sent=6, dropped=0, failed=0),
            "listener post": TraceCounts(waiting=0, sent=6, dropped=0, failed=0),
        }
