"""What servers refuse because of who asks: what the error says, and a group that may not do something for a while."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import anyio
import pytest

from rocketbox.client import ClientOptions, ConsumerOptions, Credentials, MQClientInstance, PushConsumer
from rocketbox.client.api.answers import refusal
from rocketbox.errors import AccessDeniedError
from rocketbox.message import ConsumeFromWhere, ConsumeMode, MessageExt
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from tests.support.client.consumer_group import Group
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.clocks import VirtualClock, idle

pytestmark = pytest.mark.anyio

KEYS = Credentials(access_key="subscriber", secret_key="hunter2")
ACL_1 = "org.apache.rocketmq.acl.common.AclException: {}, org.apache.rocketmq.acl.plain.P.check(P.java:605)"


def lacks(what: str) -> str:
    return f"User:subscriber has no permission to access {what} from 192.0.2.7, no matched policies."


@pytest.mark.parametrize(
    ("code", "request_code", "fields", "remark", "missing"),
    [
        (16, RequestCode.PULL_MESSAGE, {"topic": "T", "consumerGroup": "g"}, lacks("Topic:T"), "SUB on topic T"),
        (16, RequestCode.PULL_MESSAGE, {"topic": "T", "consumerGroup": "g"}, lacks("Group:g"), "SUB on group g"),
        (16, RequestCode.SEND_MESSAGE_V2, {"topic": "T"}, lacks("Topic:T"), "PUB on topic T"),
        (16, RequestCode.SEND_MESSAGE_V2, {"topic": "%RETRY%g"}, lacks("Group:g"), "SUB on group g"),
        (16, RequestCode.GET_MAX_OFFSET, {"topic": "T"}, lacks("Topic:T"), "GET on topic T"),
        (16, RequestCode.HEART_BEAT, {}, lacks("Group:g"), "SUB on group g"),
        (16, RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T"}, lacks("Topic:T"), "CREATE on topic T"),
        (16, 25, {}, lacks("Cluster:DefaultCluster"), "a permission on cluster Default"),
        (1, RequestCode.SEND_MESSAGE_V2, {"topic": "T"}, "No default permission for topic:T", "PUB on topic T"),
        (1, RequestCode.PULL_MESSAGE, {"topic": "T"}, "No default permission for group:g", "SUB on group g"),
        (1, RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T"},
         "Need admin permission for request code=17, but accessKey=subscriber is not", "ADMIN on topic T"),
        (16, RequestCode.PULL_MESSAGE, {"topic": "T", "consumerGroup": "g"}, None, "SUB on topic T and group g"),
        (16, RequestCode.PULL_MESSAGE, {"topic": "%RETRY%g", "consumerGroup": "g"}, None, "SUB on group g"),
        (16, RequestCode.SEND_MESSAGE_V2, {"topic": "%DLQ%g"}, "no", "SUB on group g"),
    ],
)  # fmt: skip
async def test_a_refusal_says_which_permission_of_whom_is_missing(
    code: int, request_code: int, fields: Mapping[str, str], remark: str | None, missing: str
) -> None:
    words = ACL_1.format(remark) if code == 1 else remark
    error = refusal(RemotingCommand.response(code, words), "broker:1", request_code, fields, KEYS)
    assert isinstance(error, AccessDeniedError)
    assert not error.wrong_keys
    assert error.who == "subs..."
    assert f"user subs... lacks {missing}" in error.missing
    assert error.missing in str(error)
    assert "subscriber" not in f"{error} {error.remark}"


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (16, "check signature failed."),
        (16, "User:subscriber is not found."),
        (16, "User:subscriber is disabled."),
        (1, ACL_1.format("Check signature failed for accessKey=subscriber")),
        (1, ACL_1.format("No acl config for subscriber")),
    ],
)
async def test_keys_that_are_not_taken_are_told_from_a_permission_that_is_missing(code: int, remark: str) -> None:
    error = refusal(RemotingCommand.response(code, remark), "broker:1", RequestCode.SEND_MESSAGE_V2, {}, KEYS)
    assert isinstance(error, AccessDeniedError)
    assert error.wrong_keys
    assert error.missing == "the keys of user subs... are not taken"
    assert "subscriber" not in f"{error} {error.remark}"


@pytest.mark.parametrize("user", ["subscriber", "signature-desk", "no accesskey", "topic:other, of all"])
@pytest.mark.parametrize("topic", ["e-signatures", "unauthenticated", "no-acl"])
@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (16, "User:{user} has no permission to access Topic:{topic} from 192.0.2.7, the decision is deny."),
        (1, ACL_1.format("No default permission for topic:{topic}")),
    ],
)
async def test_no_name_of_a_user_or_topic_is_taken_for_what_the_server_says(
    code: int, remark: str, topic: str, user: str
) -> None:
    keys = Credentials(access_key=user, secret_key="hunter2")
    answer = RemotingCommand.response(code, remark.format(user=user, topic=topic))
    error = refusal(answer, "broker:1", RequestCode.SEND_MESSAGE_V2, {}, keys)
    assert isinstance(error, AccessDeniedError)
    assert (error.wrong_keys, error.permission, error.resource) == (False, "PUB", f"topic {topic}")
    assert user not in f"{error} {error.remark}"


@pytest.mark.parametrize(
    "remark", ["User:the desk, of old is not found.", ACL_1.format("No acl config for the desk, of old")]
)
async def test_keys_with_spaces_in_their_names_that_are_not_taken(remark: str) -> None:
    keys = Credentials(access_key="the desk, of old", secret_key="hunter2")
    code = 1 if "AclException" in remark else 16
    error = refusal(RemotingCommand.response(code, remark), "broker:1", RequestCode.SEND_MESSAGE_V2, {}, keys)
    assert isinstance(error, AccessDeniedError)
    assert error.wrong_keys
    assert "desk" not in f"{error} {error.remark}"


@pytest.mark.parametrize(
    ("code", "remark"), [(16, "username cannot be null."), (1, ACL_1.format("No accessKey is configured"))]
)
async def test_who_has_no_keys_is_told_so(code: int, remark: str) -> None:
    error = refusal(RemotingCommand.response(code, remark), "broker:1", RequestCode.SEND_MESSAGE_V2)
    assert isinstance(error, AccessDeniedError)
    assert (error.who, error.wrong_keys, error.missing) == (None, True, "the request is not signed")


# --- a group that may not ---------------------------------------------------------------------------------------------


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # whose loop tells when all tasks wait: the clock here moves through minutes


CONSUMING = {
    "all": (
        RequestCode.HEART_BEAT, RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.GET_MAX_OFFSET, RequestCode.PULL_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2, RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
    ),
    "heartbeats": (RequestCode.HEART_BEAT,),
    "members": (RequestCode.GET_CONSUMER_LIST_BY_GROUP,),
    "offsets": (RequestCode.QUERY_CONSUMER_OFFSET,),
    "pulls": (RequestCode.PULL_MESSAGE,),
    "locks": (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ),
    "commits": (RequestCode.UPDATE_CONSUMER_OFFSET,),
}  # fmt: skip
SHAPES: Mapping[str, Callable[[RemotingCommand], RemotingCommand]] = {
    "5.5.0": lambda request: RemotingCommand.response(ResponseCode.NO_PERMISSION, lacks("Group:g")),
    "4.9.7": lambda request: RemotingCommand.response(
        ResponseCode.SYSTEM_ERROR, ACL_1.format("No default permission for group:g")
    ),
}


@pytest.mark.parametrize("version", SHAPES)
@pytest.mark.parametrize(
    ("what", "mode"),
    [(what, mode) for what in CONSUMING for mode in ConsumeMode if what != "locks" or mode is ConsumeMode.ORDERLY],
)
async def test_a_group_that_may_not_consume_asks_rarely_says_so_and_goes_on_when_it_may(
    what: str, mode: ConsumeMode, version: str, anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    group = Group(queues=4)
    codes = CONSUMING[what]
    group.broker.overrides.update(dict.fromkeys(codes, SHAPES[version]))
    async with group.broker, group.member(consume_mode=mode) as consumer:
        for queue in range(4):
            group.broker.store("T", b"%d" % queue, queue_id=queue)
        await group.clock.advance(30)
        group.broker.requests.clear()
        await group.clock.advance(120)
        refused = {code: len(group.broker.asked(code)) for code in codes}
        # Of each 10 s: one for each queue at most, and the retry topic's; the heartbeat also over each broker's turn.
        assert all(times <= 12 * 8 for times in refused.values()), refused
        assert sum(refused.values()) > 0
        (missing,) = consumer.state().refused
        assert missing.endswith("lacks SUB on group g")
        if what != "commits":
            assert group.came == []
        told = [record.message for record in caplog.records if "is refused, and asked for again" in record.message]
        assert sum(each.startswith("group g:") for each in told) == 1
        refusing = [record.message for record in caplog.records if record.levelno >= logging.WARNING
                    and "was not answered" not in record.message]  # fmt: skip # the broker here holds pulls for ever
        assert len(refusing) <= 2, refusing
        group.broker.overrides.clear()
        await group.until(lambda: sorted(group.bodies) == [b"0", b"1", b"2", b"3"], 25)
        await group.until(lambda: consumer.state().refused == (), 95)
    if what != "pulls":  # that of the retry topic finds nothing, and this broker never answers it
        assert any("no longer refused" in record.message for record in caplog.records)
    assert sum(group.broker.committed.get(("T", queue), 0) for queue in range(4)) == 4


async def test_a_group_that_is_refused_keeps_no_other_of_its_client_from_the_brokers(
    anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock(settle=idle)
    broker = ScriptedBroker(clock)
    broker.topics = {"T": 1, "%RETRY%good": 1, "%RETRY%g": 1}

    def refuse_g(request: RemotingCommand) -> RemotingCommand | None:
        refused = b'"groupName":"g"' in request.body or request.ext_fields.get("consumerGroup") == "g"
        return SHAPES["5.5.0"](request) if refused else None

    for code in (RequestCode.HEART_BEAT, RequestCode.GET_CONSUMER_LIST_BY_GROUP):
        broker.overrides[code] = refuse_g
    came: list[bytes] = []

    async def handle(batch: list[MessageExt]) -> None:
        came.extend(message.body for message in batch)

    options = ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    async with broker:
        broker.store("T", b"x")
        client = ClientOptions(client_ip="10.0.0.9", credentials=KEYS)
        instance = MQClientInstance(broker.address, options=client, clock=clock, network=broker.network)
        refused, good = (PushConsumer(group, instance=instance, options=options) for group in ("g", "good"))
        async with anyio.create_task_group() as tasks:
            async with instance, refused, good:
                for consumer in (refused, good):
                    tasks.start_soon(consumer.subscribe, "T", "*", handle)
                await clock.advance(40)
                assert came == [b"x"]
                assert refused.state().refused == ("user subs... lacks SUB on group g",)
                assert good.state().refused == ()
                assert instance.state().brokers[0].lost is None
                told = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
                assert [each for each in told if "was not answered" not in each] == told[:1]
                broker.overrides.clear()
                await clock.advance(61)
                assert refused.state().refused == ()
                broker.store("T", b"y")
                await clock.advance(1)
                assert came.count(b"y") == 2
                tasks.start_soon(pass_time, clock)
            tasks.cancel_scope.cancel()


async def pass_time(clock: VirtualClock) -> None:
    while True:
        await clock.advance(0.1)


async def test_failed_messages_that_may_not_be_given_back_stay_and_are_handled_again(anyio_backend: str) -> None:
    group = Group()
    fails = True

    def seconds(body: bytes) -> float:
        if fails:
            raise ConnectionError("not now")
        return 0.0

    back = (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2)
    group.broker.overrides.update(dict.fromkeys(back, SHAPES["5.5.0"]))
    async with group.broker, group.member(seconds=seconds) as consumer:
        group.broker.store("T", b"x", b"y")
        await group.clock.advance(60)
        assert group.bodies.count(b"x") >= 5
        assert len(group.broker.asked(*back)) <= 2 * 2 * 7
        assert consumer.state().refused == ("a client without keys lacks SUB on group g",)
        assert group.broker.committed.get(("T", 0), 0) == 0
        fails = False
        await group.until(lambda: group.broker.committed.get(("T", 0)) == 2, 30)


async def test_new_keys_end_all_waits(anyio_backend: str) -> None:
    group = Group()
    group.broker.overrides[RequestCode.PULL_MESSAGE] = SHAPES["5.5.0"]
    async with group.broker, group.member() as consumer:
        group.broker.store("T", b"x")
        await group.clock.advance(60)
        group.broker.overrides.clear()
        consumer._instance.refusals("g").forgive()
        await group.until(lambda: group.bodies == [b"x"], 0.2)
