"""Requests whose fields have any value that fits on the wire: refused or clamped, by every handler of the broker."""

from __future__ import annotations

import re

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocketbox.broker.extensions import BrokerExtensions
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import HeaderError, PullMessageRequestHeader
from rocketbox.protocol.stored_message import encode_batch
from rocketbox.remoting.connection import Connection
from tests.support.broker.in_memory import BrokerWire, broker_in_memory
from tests.support.clocks import VirtualClock, settle
from tests.support.waiting import PATIENCE

NUMBERS = st.sampled_from(
    ["0", "1", "-1", "3", "32", "4096", "-2147483648", "2147483647", "2147483648", "4294967296", "-9223372036854775808",
     "9223372036854775807", "9223372036854775808", "315360000000", "1" * 5_000, "1.5", "", "x", " 1"]
) | st.integers(-(2**64), 2**64).map(str)  # fmt: skip
NAMES = st.sampled_from(
    ["topic", "readers", "", ".", "..", "../../etc/passwd", "/etc/passwd", "a/b", "a\\b", "a\0b", "a b",
     "%RETRY%readers", "%DLQ%readers", "%RETRY%../x", "TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC",
     "t" * 127, "t" * 128,
     "t" * 30_000, "ü" * 100, "a%b|c^d$", "con", "\n", "a\x01b\x02c"]
) | st.text(max_size=40)  # fmt: skip
WORDS = (
    NAMES
    | NUMBERS
    | st.sampled_from(["*", "A||B", "true", "false", "null", "TAG", "SQL92", "|" * 9_000, "A||" * 9_000])
)
# Flags of pulls: commit 1 and subscription 4; not suspend 2, whose answer may come later.
FLAGS = st.sampled_from(["0", "1", "4", "5", "8", "-3", "2147483645"])

FIELDS: dict[int, dict[str, st.SearchStrategy[str]]] = {
    RequestCode.SEND_MESSAGE_V2: {
        "a": NAMES, "b": NAMES, "c": NAMES, "d": NUMBERS, "e": NUMBERS, "f": NUMBERS, "g": NUMBERS, "h": NUMBERS,
        "i": WORDS, "j": NUMBERS, "k": WORDS, "l": NUMBERS, "m": WORDS, "n": NAMES,
    },
    RequestCode.PULL_MESSAGE: {
        "consumerGroup": NAMES, "topic": NAMES, "queueId": NUMBERS, "queueOffset": NUMBERS, "maxMsgNums": NUMBERS,
        "sysFlag": FLAGS, "commitOffset": NUMBERS, "suspendTimeoutMillis": NUMBERS, "subscription": WORDS,
        "subVersion": NUMBERS, "expressionType": WORDS, "maxMsgBytes": NUMBERS,
    },
    RequestCode.QUERY_MESSAGE: {
        "topic": NAMES, "key": WORDS, "maxNum": NUMBERS, "beginTimestamp": NUMBERS, "endTimestamp": NUMBERS,
        "_UNIQUE_KEY_QUERY": WORDS, "indexType": WORDS, "lastKey": WORDS,
    },
    RequestCode.VIEW_MESSAGE_BY_ID: {"offset": NUMBERS, "topic": NAMES},
    RequestCode.QUERY_CONSUMER_OFFSET: {"consumerGroup": NAMES, "topic": NAMES, "queueId": NUMBERS},
    RequestCode.UPDATE_CONSUMER_OFFSET: {
        "consumerGroup": NAMES, "topic": NAMES, "queueId": NUMBERS, "commitOffset": NUMBERS,
    },
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: {
        "topic": NAMES, "queueId": NUMBERS, "timestamp": NUMBERS, "boundaryType": WORDS,
    },
    RequestCode.GET_MAX_OFFSET: {"topic": NAMES, "queueId": NUMBERS, "committed": WORDS},
    RequestCode.GET_MIN_OFFSET: {"topic": NAMES, "queueId": NUMBERS},
    RequestCode.UNREGISTER_CLIENT: {"clientID": NAMES, "producerGroup": NAMES, "consumerGroup": NAMES},
    RequestCode.CONSUMER_SEND_MSG_BACK: {
        "offset": NUMBERS, "group": NAMES, "delayLevel": NUMBERS, "originMsgId": NAMES, "originTopic": NAMES,
        "unitMode": WORDS, "maxReconsumeTimes": NUMBERS,
    },
    RequestCode.RECALL_MESSAGE: {"producerGroup": NAMES, "topic": NAMES, "recallHandle": WORDS},
    RequestCode.END_TRANSACTION: {
        "topic": NAMES, "producerGroup": NAMES, "tranStateTableOffset": NUMBERS, "commitLogOffset": NUMBERS,
        "commitOrRollback": NUMBERS, "fromTransactionCheck": WORDS, "msgId": NAMES, "transactionId": NAMES,
    },
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: {"consumerGroup": NAMES},
    RequestCode.UPDATE_AND_CREATE_TOPIC: {
        "topic": NAMES, "defaultTopic": NAMES, "readQueueNums": NUMBERS, "writeQueueNums": NUMBERS, "perm": NUMBERS,
        "topicFilterType": WORDS, "topicSysFlag": NUMBERS, "order": WORDS, "attributes": WORDS,
    },
    RequestCode.DELETE_SUBSCRIPTIONGROUP: {"groupName": NAMES, "cleanOffset": WORDS},
}  # fmt: skip
GOOD = {
    "a": "group", "b": "topic", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "j": "0",
    "k": "false", "m": "false", "consumerGroup": "readers", "topic": "topic", "queueId": "0", "queueOffset": "0",
    "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
    "subVersion": "0", "expressionType": "TAG", "key": "k", "maxNum": "32", "beginTimestamp": "0",
    "endTimestamp": "1800000000000", "offset": "0", "timestamp": "0", "clientID": "c", "group": "readers",
    "delayLevel": "0", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG",
    "groupName": "others",
}  # fmt: skip
LEAKS = re.compile(
    r"Traceback|File \"|\.py\b|\b(?:Key|Value|Type|Attribute|Index|Unicode\w*|Assertion|OS|Runtime)Error\b"
)
MOST_WORDS = 1_000  # characters of a remark beside the names that the peer wrote itself
MOST_BODY = 256 << 10


def request_fields(code: int) -> st.SearchStrategy[dict[str, str]]:
    """A good request of which some fields have any value, or are not there."""
    fields = FIELDS[code]
    good = {name: GOOD[name] for name in fields if name in GOOD}
    any_of_them = st.fixed_dictionaries({}, optional={name: values | st.none() for name, values in fields.items()})
    return any_of_them.map(
        lambda changed: {name: value for name, value in {**good, **changed}.items() if value is not None}
    )


async def ask(wire: BrokerWire, code: int, fields: dict[str, str]) -> None:
    with anyio.fail_after(PATIENCE):
        answer = await wire.broker(code, fields, b"body" if code == RequestCode.SEND_MESSAGE_V2 else b"")
    assert not LEAKS.search(answer.remark or ""), (fields, answer.remark)
    assert len(answer.remark or "") <= MOST_WORDS + sum(map(len, fields.values())), (fields, answer.remark)
    assert len(answer.body or b"") <= MOST_BODY


@pytest.mark.parametrize("code", list(FIELDS), ids=lambda code: RequestCode(code).name)
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_value_of_any_field_is_refused_or_clamped(
    code: int, data: st.DataObject, caplog: pytest.LogCaptureFixture
) -> None:
    requests = data.draw(st.lists(request_fields(code), min_size=8, max_size=20))
    caplog.clear()

    async def ask_all() -> None:
        async with broker_in_memory() as wire:
            for number in range(3):
                assert (await wire.send("topic", b"%d" % number, properties="KEYS\x01k\x02")).code == 0
            for fields in requests:
                await ask(wire, code, fields)
            assert wire.running.server.counters.failed_requests == 0
            assert (await wire.send("another")).code == 0
            assert len(wire.running.held_pulls) == 0

    anyio.run(ask_all)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("suspend_ms", [315_360_000_000, 2**63 - 1])
async def test_a_pull_that_would_wait_for_years_is_answered_when_a_silent_client_is_dropped(suspend_ms: int) -> None:
    clock = VirtualClock()
    async with broker_in_memory(clock=clock, settings={"channel-expired-timeout": "60s"}) as wire:
        assert (await wire.send("topic")).code == 0
        answers: list[RemotingCommand] = []

        async def pull() -> None:
            request = {
                "consumerGroup": "readers", "topic": "topic", "queueId": "0", "queueOffset": "1", "maxMsgNums": "32",
                "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": str(suspend_ms), "subscription": "*",
                "subVersion": "0", "expressionType": "TAG",
            }  # fmt: skip
            command = RemotingCommand.request(RequestCode.PULL_MESSAGE, request)
            answers.append(await wire.client.request(wire.broker_address, command, timeout=1e6))

        async with anyio.create_task_group() as group:
            group.start_soon(pull)
            await settle()
            assert len(wire.running.held_pulls) == 1
            await clock.advance(59)
            assert answers == []
            await clock.advance(2)
            assert [answer.code for answer in answers] == [19]
            group.cancel_scope.cancel()


def test_a_value_that_cannot_be_read_is_shown_in_part() -> None:
    fields = {
        **{name: GOOD[name] for name in FIELDS[RequestCode.PULL_MESSAGE] if name in GOOD},
        "queueId": "7" * 40_000,
    }
    with pytest.raises(HeaderError) as raised:
        PullMessageRequestHeader.decode(fields)
    assert str(raised.value) == f"PullMessageRequestHeader: field queueId is '{'7' * 100}'... (40000 characters)"


@pytest.mark.anyio
@pytest.mark.parametrize("hooked", [False, True], ids=["many at once", "one by one"])
async def test_a_message_that_says_to_be_an_inner_batch_is_refused(hooked: bool) -> None:
    """As Apache's brokers refuse it for topics like ours; consumers would pass over the messages behind it."""
    body = encode_batch([(0, b"x", b"")] * 50)
    fields = {
        "a": "g", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "g": "1700000000000", "h": "0",
        "i": "UNIQ_KEY\x01A\x02",
    }  # fmt: skip
    long_names = {
        "producerGroup": "g", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
        "bornTimestamp": "1", "flag": "0", "properties": "",
    }  # fmt: skip
    replies = {**fields, "b": "DefaultCluster_REPLY_TOPIC", "i": "REPLY_TO_CLIENT\x01c\x02UNIQ_KEY\x01A\x02"}
    async with broker_in_memory(extensions=BrokerExtensions(hooks=[Nothing()] if hooked else [])) as wire:
        for flags, code in ((0x40, ResponseCode.SUCCESS), (0x80, ResponseCode.MESSAGE_ILLEGAL), (0xC0, 13)):
            sent = [
                await wire.broker(RequestCode.SEND_MESSAGE_V2, {**fields, "f": str(flags)}, body),
                await wire.broker(RequestCode.SEND_MESSAGE, {**long_names, "sysFlag": str(flags)}, body),
                await wire.broker(RequestCode.SEND_BATCH_MESSAGE, {**fields, "f": str(flags), "m": "true"}, body),
            ]
            assert [answer.code for answer in sent] == [code] * 3
            answer = await wire.broker(RequestCode.SEND_REPLY_MESSAGE_V2, {**replies, "f": str(flags)}, body)
            assert answer.code == (ResponseCode.SYSTEM_ERROR if flags == 0x40 else code), "nobody asks here"
        assert "inner batch" in str(answer.remark)
        assert wire.running.store.max_offset("orders", 0) == 52


@pytest.mark.anyio
@pytest.mark.parametrize(("times", "retried"), [(-(2**31), True), (-1, True), (0, True), (2**31 - 1, False)])
async def test_a_message_goes_back_however_often_it_says_it_was_consumed(times: int, retried: bool) -> None:
    """Its sender has written the number; what cannot go back is consumed again and again, without end."""
    fields = {
        "a": "g", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
        "i": "UNIQ_KEY\x01A\x02", "j": str(times),
    }  # fmt: skip
    async with broker_in_memory() as wire:
        assert (await wire.broker(RequestCode.SEND_MESSAGE_V2, fields, b"x")).code == 0
        back = {"offset": 0, "group": "board", "delayLevel": 0, "originTopic": "orders", "maxReconsumeTimes": 16}
        answer = await wire.broker(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert (answer.code, answer.remark) == (0, None)
        store = wire.running.store
        assert store.max_offset("SCHEDULE_TOPIC_XXXX", 2) == int(retried), "after 10 s, as at the first time"
        assert store.max_offset("%DLQ%board", 0) == int(not retried)


class Nothing:
    """A hook that does nothing; with one requests are taken one by one."""

    def before(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        return None

    def after(self, connection: Connection, request: RemotingCommand, code: int, frame_bytes: int) -> None:
        return None
