"""Servers that are somebody else's, or ill: what they say neither forges lines of a client's log nor fills it."""

from __future__ import annotations

import logging
import re
import time
import traceback
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from rocketbox.client import ClientOptions, ConsumerOptions, PushConsumer
from rocketbox.client.api import group_configs, groups, routes, topics
from rocketbox.client.api.answers import refusal
from rocketbox.client.failure_log import describe_message
from rocketbox.client.name_servers import NameServers
from rocketbox.errors import AccessDeniedError, BrokerError, ReplyError
from rocketbox.message import ConsumeFromWhere, MessageExt, decode_properties
from rocketbox.protocol.codes import MessageSysFlag, ResponseCode
from rocketbox.protocol.codes import RequestCode as C
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.compression import unpack
from rocketbox.protocol.stored_message import StoredMessage, encode_batch, encode_stored_message
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.connection import Connection
from rocketbox.remoting.network import MemoryNetwork
from rocketbox.remoting.server import RemotingServer
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio

CLEARS = "\x1b[2J\x00\x08\x7f\x9b2J\x85"  # what terminals obey, some of it in one character
FORGED = f"\n2026-11-23 00:00:00,000 ERROR rocketbox: forged{CLEARS}"
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")
LONG = FORGED * 100
LONGEST_LINE = 4000  # characters: an error that quotes another one


class Setting:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.broker = ScriptedBroker(self.clock)
        self.broker.topics = {"T": 1, "%RETRY%g": 1}

    def consumer(self) -> PushConsumer:
        return PushConsumer(
            "g",
            name_server=self.broker.address,
            options=ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=3),
            client_options=ClientOptions(client_ip="10.0.0.9", instance_name="c1"),
            clock=self.clock,
            network=self.broker.network,
        )


async def fail(batch: list[MessageExt]) -> None:
    raise ValueError("no")


async def take(batch: list[MessageExt]) -> None:
    pass


def lines_of(caplog: pytest.LogCaptureFixture, level: int = logging.DEBUG) -> list[str]:
    """What the client's loggers have said, each record with its traceback."""
    formatter = logging.Formatter("%(message)s")
    return [
        formatter.format(record)
        for record in caplog.records
        if record.levelno >= level and record.name.startswith("rocketbox.") and "broker." not in record.name
    ]


def check(text: str) -> None:
    assert not [line for line in text.splitlines() if line.startswith("2026-11-23 00:00:00")], text[:300]
    assert not CONTROLS.search(text), ascii(text[:300])
    assert len(text) <= LONGEST_LINE, text[:300]


REFUSED = (
    C.HEART_BEAT, C.UPDATE_CONSUMER_OFFSET, C.CONSUMER_SEND_MSG_BACK, C.SEND_MESSAGE_V2, C.PULL_MESSAGE,
    C.GET_CONSUMER_LIST_BY_GROUP, C.GET_ROUTEINFO_BY_TOPIC, C.UNREGISTER_CLIENT, C.QUERY_CONSUMER_OFFSET,
)  # fmt: skip


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_BUSY])
async def test_what_a_server_remarks_begins_no_line_of_the_log_and_fills_none(
    code: ResponseCode, anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Setting()

    def refuse(request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(code, f"{FORGED} Topic:{'x' * 5000} {LONG}")

    caplog.set_level(logging.DEBUG)
    async with setting.broker, setting.consumer() as consumer:
        await consumer.subscribe("T", "*", fail)
        await setting.clock.advance(3)
        setting.broker.store("T", *[b"x"] * 3, keys=f"k{FORGED}")
        for each in REFUSED:
            if each is not C.PULL_MESSAGE:
                setting.broker.overrides[each] = refuse
        await setting.clock.advance(40)
        setting.broker.overrides[C.PULL_MESSAGE] = refuse
        setting.broker.store("T", b"x")
        await setting.clock.advance(60)
    lines = lines_of(caplog)
    assert len([line for line in lines if "2026-11-23" in line]) > 5, "it is told all the same"
    for line in lines:
        check(line)
    assert len(lines_of(caplog, logging.WARNING)) < 60


def test_errors_tell_the_beginning_of_what_a_peer_says_on_one_line() -> None:
    errors: list[Exception] = [
        BrokerError(1, LONG, "b:1"),
        AccessDeniedError(16, LONG, "b:1", who="user", permission="PUB", resource=f"topic {'x' * 5000}"),
        ReplyError("desk.SoldOut", LONG),
    ]
    for error in errors:
        check("".join(traceback.format_exception_only(error)))
        assert "2026-11-23 00:00:00,000 ERROR rocketbox: forged" in str(error)
        assert "\n" not in str(error)
    assert isinstance(errors[0], BrokerError)
    assert errors[0].remark == LONG


def test_a_record_of_a_broker_begins_no_line() -> None:
    fields = (0, 0, 0, 0, 0, 7, 0, 0, 0, b"", 0, 0, b"", 0, 0, 0, 1)
    message = MessageExt(fields, b"x", f"T{FORGED}", f"UNIQ_KEY\x01u{FORGED}\x02".encode(), "broker-a")
    for text in (describe_message(message), repr(message)):
        assert text.splitlines() == [text]
        assert not CONTROLS.search(text), ascii(text)


@pytest.mark.parametrize("times", [-1, -100, -(2**31), 2**31 - 1])
async def test_a_message_that_says_it_was_consumed_any_number_of_times_goes_back_as_any_other(
    times: int, anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The number is what its sender has written."""
    setting = Setting()
    async with setting.broker, setting.consumer() as consumer:
        await consumer.subscribe("T", "*", fail)
        await setting.clock.advance(3)
        setting.broker.store("T", b"x", reconsume_times=times)
        await setting.clock.advance(30)
        assert setting.broker.committed["T", 0] == 1
    (back,) = [each for each in setting.broker.requests if each.code == C.CONSUMER_SEND_MSG_BACK]
    assert back.ext_fields["delayLevel"] == "0"
    assert "IndexError" not in caplog.text
    what_now = "%DLQ%g" if times > 0 else "it comes back after 10 s"
    assert what_now in caplog.text


async def test_an_empty_message_that_says_to_be_of_another_topic_goes_back(anyio_backend: str) -> None:
    """It is sent, so that it does not come back as one of that topic; and what is sent has a body."""
    setting = Setting()
    async with setting.broker, setting.consumer() as consumer:
        await consumer.subscribe("T", "*", fail)
        await setting.clock.advance(3)
        setting.broker.store("T", b"", retry_topic="another")
        await setting.clock.advance(30)
        assert setting.broker.committed["T", 0] == 1
    (sent,) = [each for each in setting.broker.requests if each.code == C.SEND_MESSAGE_V2]
    assert sent.ext_fields["b"] == "%RETRY%g"
    assert "RETRY_TOPIC\x01T\x02" in sent.ext_fields["i"]
    assert unpack(sent.body, int(sent.ext_fields["f"]), 10) == b""


async def test_a_message_with_a_property_that_cannot_be_written_goes_back(anyio_backend: str) -> None:
    """Whoever sends by code of his own writes any bytes; a value may hold what parts names and values."""
    setting = Setting()
    async with setting.broker, setting.consumer() as consumer:
        await consumer.subscribe("T", "*", fail)
        await setting.clock.advance(3)
        text = b"odd\x01a\x01b\x02RETRY_TOPIC\x01another\x02"
        setting.broker.store("T", b"x")
        setting.broker.records["T", 0].append(
            encode_stored_message(StoredMessage("T", 0, b"x", text, queue_offset=1, commit_log_offset=1001))
        )
        await setting.clock.advance(60)
        assert setting.broker.committed["T", 0] == 2
    (sent,) = [each for each in setting.broker.requests if each.code == C.SEND_MESSAGE_V2]
    assert "odd\x01a b\x02" in sent.ext_fields["i"]


async def test_a_message_is_sent_again_with_numbers_that_java_can_read(anyio_backend: str) -> None:
    """Java's brokers read each as an int, and would take no message with a larger one."""
    setting = Setting()
    setting.broker.overrides[C.CONSUMER_SEND_MSG_BACK] = lambda _: RemotingCommand.response(1, "look message failed")
    async with setting.broker, setting.consumer() as consumer:
        await consumer.subscribe("T", "*", fail)
        await setting.clock.advance(3)
        setting.broker.store("T", b"x", reconsume_times=2**31 - 1)
        await setting.clock.advance(30)
        assert setting.broker.committed["T", 0] == 1
    (sent,) = setting.broker.asked(C.SEND_MESSAGE_V2)
    delay_level = decode_properties(sent.ext_fields["i"].encode())["DELAY"]
    assert [int(number) for number in (delay_level, sent.ext_fields["j"])] == [2**31 - 1] * 2


INNER_BATCH = int(MessageSysFlag.NEED_UNWRAP | MessageSysFlag.INNER_BATCH)


async def test_a_message_that_says_to_be_many_hides_none_of_those_behind_it(anyio_backend: str) -> None:
    """Its sender has set the flags of an inner batch, which brokers before 5.0 do not look at: each of its messages
    would have the place of another one, which had been consumed then.
    """
    setting = Setting()
    taken: list[bytes] = []

    async def note(batch: list[MessageExt]) -> None:
        taken.extend(message.body for message in batch)

    forged = encode_batch([(0, b"%d" % number, b"") for number in range(50)])
    async with setting.broker, setting.consumer() as consumer:
        await consumer.subscribe("T", "*", note)
        await setting.clock.advance(3)
        setting.broker.store("T", forged, sys_flag=INNER_BATCH)
        await setting.clock.advance(3)
        setting.broker.store("T", b"a", b"b")
        setting.broker.store("T", forged, sys_flag=INNER_BATCH)
        setting.broker.store("T", b"c")
        await setting.clock.advance(30)
    assert [body for body in taken if body in (b"a", b"b", b"c")] == [b"a", b"b", b"c"]
    assert taken.count(forged) == 2
    assert setting.broker.committed["T", 0] == 5


MANY = 4_000
LARGE_ANSWERS: dict[C, tuple[str, Callable[[RemotingClient, NameServers, str], Awaitable[object]]]] = {
    C.GET_CONSUMER_LIST_BY_GROUP: (
        "{consumerIdList:[%s]}",
        lambda remoting, servers, address: groups.consumer_ids(remoting, address, "g", timeout=9),
    ),
    C.LOCK_BATCH_MQ: (
        "{lockOKMQSet:[%s]}",
        lambda remoting, servers, address: groups.lock_queues(remoting, address, "g", "c", [], timeout=9),
    ),
    C.GET_ALL_TOPIC_CONFIG: (
        "{topicConfigTable:{%s}}",
        lambda remoting, servers, address: topics.all_topics(remoting, address, timeout=9),
    ),
    C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (
        "{subscriptionGroupTable:{%s}}",
        lambda remoting, servers, address: group_configs.all_groups(remoting, address, timeout=9),
    ),
    C.GET_ROUTEINFO_BY_TOPIC: (
        "{brokerDatas:[],x:[%s]}",
        lambda remoting, servers, address: routes.fetch_route(servers, "T", timeout=9),
    ),
    C.GET_BROKER_CLUSTER_INFO: (
        "{clusterAddrTable:{c:[%s]}}",
        lambda remoting, servers, address: routes.fetch_cluster(servers, timeout=9),
    ),
    C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: (
        "{topicList:[%s]}",
        lambda remoting, servers, address: routes.fetch_topic_names(servers, timeout=9),
    ),
}
"""What may be large, in Java's kind of JSON, and what asks for it."""


@pytest.mark.parametrize("code", LARGE_ANSWERS)
async def test_others_have_their_turns_while_a_large_answer_is_read(code: C, anyio_backend: str) -> None:
    form, ask = LARGE_ANSWERS[code]
    entry = "{topic:'t',brokerName:'b',queueId:1}" if code is C.LOCK_BATCH_MQ else "'some-name-of-which-there-are-many'"
    entry = "n:{whatever:'is said of it','and':'more'}" if "{%s}" in form else entry
    clock, turns, body = VirtualClock(), 0, b""

    def answer(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand.response(body=body)

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    network = MemoryNetwork()
    async with (
        RemotingServer({int(code): answer}, host="10.0.0.1", port=9876, clock=clock, network=network) as server,
        RemotingClient(clock=clock, network=network) as remoting,
        anyio.create_task_group() as tasks,
    ):
        servers = NameServers(server.address, remoting, clock)
        tasks.start_soon(count)
        taken = []
        for number in (1, MANY):
            body = (form % (f"{entry}," * number)).encode()
            assert number == 1 or len(body) > 64 << 10
            await ask(remoting, servers, server.address)  # the first one connects
            before = turns
            await ask(remoting, servers, server.address)
            taken.append(turns - before)
        tasks.cancel_scope.cancel()
    assert taken[1] > taken[0] + 5, taken


async def test_offsets_that_go_to_and_fro_are_followed_once_a_second(
    anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Setting()
    pulls: list[int] = []

    def swing(request: RemotingCommand) -> RemotingCommand | None:
        if request.ext_fields["topic"] != "T":
            return None
        pulls.append(int(request.ext_fields["queueOffset"]))
        return setting.broker.pulled(ResponseCode.PULL_OFFSET_MOVED, 9 - pulls[-1], ("T", 0))

    async with setting.broker, setting.consumer() as consumer:
        await consumer.subscribe("T", "*", take)
        await settle(200)
        setting.broker.overrides[C.PULL_MESSAGE] = swing
        setting.broker.drop_connections()
        with caplog.at_level(logging.INFO):
            for _ in range(20):
                await setting.clock.advance(0.5)
                await settle(600)
        assert 5 <= len(pulls) <= 13
        assert set(pulls) == {0, 9}
        assert len([line for line in lines_of(caplog) if "goes on at offset" in line]) <= 2


async def test_a_pull_that_fails_now_and_then_is_told_once_a_minute(
    anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Setting()
    asked: list[str] = []

    def flicker(request: RemotingCommand) -> RemotingCommand | None:
        if request.ext_fields["topic"] != "T":
            return None
        asked.append(request.ext_fields["queueOffset"])
        if len(asked) % 2:
            return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, "ill")
        return setting.broker.pulled(ResponseCode.PULL_NOT_FOUND, 0, ("T", 0))

    async with setting.broker, setting.consumer() as consumer:
        await consumer.subscribe("T", "*", take)
        await settle(200)
        setting.broker.overrides[C.PULL_MESSAGE] = flicker
        setting.broker.drop_connections()
        with caplog.at_level(logging.INFO):
            await setting.clock.advance(50)
        told = [line for line in lines_of(caplog) if "pulling MessageQueue(topic='T'" in line]
        assert len(asked) > 20
        assert len([line for line in told if "failed" in line]) == 1
        assert len(told) <= 2


async def test_questions_that_cannot_be_read_are_told_once(
    anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Setting()
    async with setting.broker, setting.consumer() as consumer:
        await consumer.subscribe("T", "*", take)
        await setting.clock.advance(1)
        question = RemotingCommand.request(C.CHECK_TRANSACTION_STATE, {"msgId": f"m{LONG}"}, b"garbage")
        with caplog.at_level(logging.WARNING):
            for connection in setting.broker.connections:
                for _ in range(100):
                    connection.send_oneway(question)
            await settle(600)
        told = [line for line in lines_of(caplog) if "cannot be read here" in line]
        assert len(told) == 1
        check(told[0])
        assert "\n" not in told[0]


def test_a_remark_is_read_in_time_that_does_not_grow_with_its_square() -> None:
    """The loop stands still meanwhile, and a frame may hold 16 million characters of it."""
    began = time.process_time()
    error = refusal(RemotingCommand.response(ResponseCode.NO_PERMISSION, "user:" * 1_000_000), "b:1", 310)
    assert isinstance(error, AccessDeniedError)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("topic", "properties"),
    [
        ("T%d", b"UNIQ_KEY\x01u%d\x02"),
        ("T", b"UNIQ_KEY\x01%d" + b"u" * 30_000 + b"\x02KEYS\x01" + b"k" * 2000 + b"\x02"),
    ],
    ids=["other topics", "long ids and keys"],
)
async def test_records_that_fail_are_a_few_short_lines(
    topic: str, properties: bytes, anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Setting()
    async with setting.broker, setting.consumer() as consumer:
        await consumer.subscribe("T", "*", fail)
        await setting.clock.advance(2)
        for number in range(300):
            said = topic % number if "%" in topic else topic
            record = StoredMessage(said, 0, b"x", properties % number, queue_offset=number, commit_log_offset=number)
            setting.broker.records["T", 0].append(encode_stored_message(record))
        with caplog.at_level(logging.WARNING):
            setting.broker.store("T", b"last")
            await setting.clock.advance(5)
    told = [line for line in lines_of(caplog) if "failed, attempt" in line]
    assert 1 <= len(told) <= 110
    for line in told:
        check(line)
