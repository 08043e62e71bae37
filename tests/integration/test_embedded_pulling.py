"""What the broker answers to pulls: the checks, filters, long polls, commits, and the answers of an empty queue."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import anyio
import pytest

from rocketbox.clock import RealClock
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand, encode_command
from rocketbox.protocol.framing import FrameReader
from rocketbox.protocol.stored_message import decode_messages
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.broker.in_memory import broker_in_memory
from tests.support.broker.wire import Wire, embedded
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio


def offsets(answer: RemotingCommand) -> tuple[int, int, int]:
    fields = answer.ext_fields
    return int(fields["nextBeginOffset"]), int(fields["minOffset"]), int(fields["maxOffset"])


async def send_tagged(wire: Wire, *tags: str) -> None:
    for tag in tags:
        assert (await wire.send("t", tag.encode(), properties=f"TAGS\x01{tag}\x02")).code == 0


async def test_found_messages_come_with_all_offsets(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await send_tagged(wire, "A", "B", "A")
        answer = await wire.pull("t", 1)
        assert (answer.code, answer.remark) == (0, "FOUND")
        assert offsets(answer) == (3, 0, 3)
        assert answer.ext_fields["suggestWhichBrokerId"] == "0"
        assert [message.body for message in decode_messages(answer.body)] == [b"B", b"A"]


async def test_tags_are_filtered_by_the_broker(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await send_tagged(wire, "A", "B", "C", "A", "C")
        answer = await wire.pull("t", expression="A || B")
        assert [message.body for message in decode_messages(answer.body)] == [b"A", b"B", b"A"]
        nothing = await wire.pull("t", expression="X")
        assert (nothing.code, nothing.remark) == (20, "NO_MATCHED_MESSAGE")
        assert offsets(nothing)[0] == 5


@pytest.mark.parametrize(
    ("offset", "code", "status", "next_offset"),
    [
        (2, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 2),
        (3, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 2),
        (-1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
    ],
)
async def test_offsets_that_hold_nothing(
    tmp_path: Path, offset: int, code: ResponseCode, status: str, next_offset: int
) -> None:
    async with embedded(tmp_path) as wire:
        await send_tagged(wire, "A", "B")
        answer = await wire.pull("t", offset)
        assert (answer.code, answer.remark) == (code, status)
        assert offsets(answer) == (next_offset, 0, 2)


class LaterClock(RealClock):
    """Time in which some hours have passed of a sudden."""

    later = 0.0  # seconds

    def time_ms(self) -> int:
        return super().time_ms() + round(self.later * 1000)

    def monotonic(self) -> float:
        return super().monotonic() + self.later


async def test_a_consumer_behind_what_was_removed_is_sent_on_to_what_is_left() -> None:
    storage, clock = MemoryStorage(), LaterClock()
    retention = {
        "file-reserved-time": "3h",
        "delete-when": ";".join(map(str, range(24))),
        "clean-resource-interval": 100,
        "delete-commit-log-files-interval": 0,
        "mapped-file-size-commit-log": 64 << 10,
        "max-message-size": 32 << 10,
    }
    async with broker_in_memory(storage=storage, clock=clock, settings=retention) as wire:
        for number in range(12):
            assert (await wire.send("t", b"%d" % number + bytes(15_000))).code == 0
        clock.later = 4 * 3600
        await until(lambda: len(storage.list_directory("/store/commitlog")) == 1, "the others are removed")
        await until(lambda: wire.running.store.min_offset("t", 0) > 0, "and left out of the queue")
        least = wire.running.store.min_offset("t", 0)
        for behind in (0, least - 1):
            moved = await wire.pull("t", behind)
            assert (moved.code, moved.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL")
            assert offsets(moved) == (least, least, 12)
        left = [int(message.body.rstrip(b"\0")) for message in await wire.messages("t", first=least)]
        assert left == list(range(least, 12))


async def test_a_queue_without_messages(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await send_tagged(wire, "A")
        assert (await wire.pull("t", 0, queue=1)).code == ResponseCode.PULL_NOT_FOUND
        moved = await wire.pull("t", 7, queue=1)
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        assert offsets(moved) == (0, 0, 0)


async def test_pulls_are_checked(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await send_tagged(wire, "A")
        assert (await wire.pull("missing")).code == ResponseCode.TOPIC_NOT_EXIST
        assert await wire.route("missing") is None  # a pull makes no topic
        assert (await wire.pull("t", queue=4)).code == ResponseCode.INVALID_PARAMETER
        assert (await wire.pull("t", queue=-1)).code == ResponseCode.INVALID_PARAMETER
        assert (await wire.pull("t", group="no good")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert (await wire.pull("t", expression="||")).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        sql = await wire.pull("t", expression="a > 1", expressionType="SQL92")
        assert sql.code == ResponseCode.SYSTEM_ERROR
        assert sql.remark is not None
        assert "SQL92" in sql.remark


async def test_groups_may_have_to_be_known(tmp_path: Path) -> None:
    async with embedded(tmp_path, auto_create_subscription_group=False) as wire:
        await send_tagged(wire, "A")
        assert (await wire.pull("t", group="new")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert (await wire.pull("t", group="TOOLS_CONSUMER")).code == 0


async def test_a_broker_that_must_not_be_read(tmp_path: Path) -> None:
    async with embedded(tmp_path, broker_permission=2) as wire:
        answer = await wire.pull("TBW102")
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.ext_fields["forbiddenType"] == "1"
        route = await wire.route("BenchmarkTest")
        assert route is not None
        assert route["queueDatas"][0]["perm"] == 2


async def test_without_an_expression_the_heartbeat_decides(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await send_tagged(wire, "A", "B")
        assert (await wire.pull("t", expression=None)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await wire.heartbeat("readers", {"other": "*"}, version=5)
        assert (await wire.pull("t", expression=None)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await wire.heartbeat("readers", {"t": "B"}, version=5)
        answer = await wire.pull("t", expression=None, subVersion=5)
        assert [message.body for message in decode_messages(answer.body)] == [b"B"]
        assert (await wire.pull("t", expression=None, subVersion=6)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        await wire.heartbeat("readers", {"t": "x = 1"}, version=7, kind="SQL92")
        assert (await wire.pull("t", expression=None, subVersion=7)).code == ResponseCode.SYSTEM_ERROR


async def test_a_held_pull_is_woken_by_an_arrival(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await send_tagged(wire, "A")
        answers: list[RemotingCommand] = []
        async with anyio.create_task_group() as group:
            group.start_soon(hold, wire, answers, "*")
            await on_hold(wire)
            assert answers == []
            await send_tagged(wire, "B")
        assert [message.body for message in decode_messages(answers[0].body)] == [b"B"]


async def on_hold(wire: Wire, count: int = 1) -> None:
    await until(lambda: len(wire.servers.broker.held_pulls) == count, f"{count} pulls on hold")


async def hold(wire: Wire, answers: list[RemotingCommand], expression: str, suspend_ms: int = 120_000) -> None:
    answers.append(await wire.pull("t", 1, expression=expression, suspend_ms=suspend_ms))


async def test_a_held_pull_is_woken_by_its_own_tags_only(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await send_tagged(wire, "A")
        answers: list[RemotingCommand] = []
        async with anyio.create_task_group() as group:
            group.start_soon(hold, wire, answers, "B")
            await on_hold(wire)
            await send_tagged(wire, "A", "A")
            await anyio.sleep(0.1)
            assert answers == []
            await send_tagged(wire, "B")
        assert [message.body for message in decode_messages(answers[0].body)] == [b"B"]
        assert offsets(answers[0])[0] == 4


async def test_a_held_pull_is_answered_when_its_time_is_up(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await send_tagged(wire, "A")
        started = time.monotonic()
        answer = await wire.pull("t", 1, suspend_ms=300)
        assert time.monotonic() - started >= 0.29
        assert (answer.code, answer.remark) == (19, "OFFSET_OVERFLOW_ONE")


async def test_a_held_pull_learns_at_the_end_what_passed_its_filter_by(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await send_tagged(wire, "A")
        answers: list[RemotingCommand] = []
        async with anyio.create_task_group() as group:
            group.start_soon(hold, wire, answers, "B", 1000)
            await on_hold(wire)
            await send_tagged(wire, "A", "A")
        assert (answers[0].code, answers[0].remark) == (20, "NO_MATCHED_MESSAGE")
        assert offsets(answers[0])[0] == 3


async def test_a_pull_of_an_empty_queue_waits_as_well(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await wire.send("t", queue=1)
        answers: list[RemotingCommand] = []

        async def wait() -> None:
            answers.append(await wire.pull("t", 0, suspend_ms=120_000))

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await on_hold(wire)
            await wire.send("t", b"first")
        assert [message.body for message in decode_messages(answers[0].body)] == [b"first"]


async def test_short_polling_waits_its_own_time(tmp_path: Path) -> None:
    async with embedded(tmp_path, long_polling_enable=False, short_polling_time_mills=100) as wire:
        await send_tagged(wire, "A")
        started = time.monotonic()
        assert (await wire.pull("t", 1, suspend_ms=10_000)).code == 19
        assert time.monotonic() - started < 10


async def test_a_pull_may_commit_an_offset(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await send_tagged(wire, "A", "B")
        await wire.pull("t", 2, commit=1)
        fields = {"consumerGroup": "readers", "topic": "t", "queueId": 0}
        assert (await wire.broker(RequestCode.QUERY_CONSUMER_OFFSET, fields)).ext_fields["offset"] == "1"


async def test_a_pull_brings_its_messages_also_where_no_further_offset_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with embedded(tmp_path, max_offsets=1) as wire:
        await send_tagged(wire, "A", "B")
        await wire.pull("t", 0, commit=1, group="first")
        for _ in range(5):
            answer = await wire.pull("t", 0, commit=1, group="second")
            assert (answer.code, len(decode_messages(answer.body))) == (0, 2)
        await wire.pull("t", 0, commit=2, group="first")
        fields = {"consumerGroup": "first", "topic": "t", "queueId": 0}
        assert (await wire.broker(RequestCode.QUERY_CONSUMER_OFFSET, fields)).ext_fields["offset"] == "2"
        assert wire.servers.broker.offsets.refused == 5
    (line,) = [record.getMessage() for record in caplog.records if "max-offsets" in record.getMessage()]
    assert "1 is the most (max-offsets)" in line
    assert "second" in line


async def test_offsets_are_kept_of_queues_that_the_topic_has(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await send_tagged(wire, "A")
        fields = {"consumerGroup": "g", "topic": "t", "commitOffset": 1}
        for queue in (-1, 4, 2**31 - 1):
            answer = await wire.broker(RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "queueId": queue})
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert f"queueId[{queue}] is illegal, topic:[t] has 4 queues" in str(answer.remark)
        assert len(wire.servers.broker.offsets) == 0
        assert (await wire.broker(RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "queueId": 3})).code == 0
        fewer = {"topic": "t", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "defaultTopic": "TBW102",
                 "topicFilterType": "SINGLE_TAG"}  # fmt: skip
        assert (await wire.broker(RequestCode.UPDATE_AND_CREATE_TOPIC, fewer)).code == 0
        assert (await wire.broker(RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "queueId": 3})).code == 0


async def test_offsets_are_committed_and_asked_for(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await send_tagged(wire, "A", "B")
        fields = {"consumerGroup": "g", "topic": "t", "queueId": 0}
        query, update = RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET
        assert (await wire.broker(update, {**fields, "commitOffset": 2})).code == 0
        assert (await wire.broker(query, fields)).ext_fields["offset"] == "2"
        empty = await wire.broker(query, {**fields, "queueId": 3})
        assert (empty.code, empty.ext_fields["offset"]) == (0, "0")
        asked = await wire.broker(query, {**fields, "queueId": 3, "setZeroIfNotFound": "false"})
        assert asked.code == ResponseCode.QUERY_NOT_FOUND
        assert (await wire.broker(query, {**fields, "topic": "missing"})).code == ResponseCode.QUERY_NOT_FOUND
        missing = await wire.broker(update, {**fields, "topic": "missing", "commitOffset": 2})
        assert missing.code == ResponseCode.TOPIC_NOT_EXIST
        bad = await wire.broker(update, {**fields, "consumerGroup": "no good", "commitOffset": 2})
        assert bad.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_the_ends_of_a_queue(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await send_tagged(wire, "A", "B")

        async def offset(code: RequestCode, **fields: object) -> str:
            answer = await wire.broker(code, {"topic": "t", "queueId": 0, **fields})
            assert answer.code == 0, answer.remark
            return answer.ext_fields["offset"]

        assert await offset(RequestCode.GET_MAX_OFFSET, committed="true") == "2"
        assert await offset(RequestCode.GET_MIN_OFFSET) == "0"
        assert await offset(RequestCode.GET_MAX_OFFSET, topic="missing", committed="true") == "0"
        assert await offset(RequestCode.GET_MIN_OFFSET, topic="missing") == "0"
        first = (await wire.messages("t"))[0]
        search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        assert await offset(search, timestamp=first.store_timestamp_ms) == "0"
        assert await offset(search, timestamp=first.store_timestamp_ms + 3_600_000) == "2"
        assert await offset(search, timestamp=first.store_timestamp_ms + 3_600_000, boundaryType="UPPER") == "1"


async def test_messages_are_found_by_key_and_by_place(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        sent = await wire.send("t", b"one", properties="KEYS\x01k1 k2\x02UNIQ_KEY\x01U9\x02")
        await wire.send("t", b"two", properties="KEYS\x01k2\x02")
        fields = {"topic": "t", "key": "k2", "maxNum": 10, "beginTimestamp": 0, "endTimestamp": 2**63 - 1}
        found = await wire.broker(RequestCode.QUERY_MESSAGE, fields)
        assert [message.body for message in decode_messages(found.body)] == [b"one", b"two"]
        unique = await wire.broker(RequestCode.QUERY_MESSAGE, {**fields, "key": "U9", "_UNIQUE_KEY_QUERY": "true"})
        assert [message.body for message in decode_messages(unique.body)] == [b"one"]
        none = await wire.broker(RequestCode.QUERY_MESSAGE, {**fields, "key": "k3"})
        assert none.code == ResponseCode.QUERY_NOT_FOUND
        place = int(sent.ext_fields["msgId"][-16:], 16)
        view = await wire.broker(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place})
        assert decode_messages(view.body)[0].body == b"one"
        assert (await wire.broker(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place + 5})).code == 1
        assert (await wire.broker(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 10**9})).code == 1


async def test_a_missing_field_is_answered_and_not_dropped(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        answer = await wire.broker(RequestCode.PULL_MESSAGE, {"topic": "t"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (await wire.broker(RequestCode.HEART_BEAT, None, json.dumps([1]).encode())).code == 1


async def test_what_a_consumer_does_not_read_does_not_gather_in_the_broker(tmp_path: Path) -> None:
    pulls, body = 100, bytes(500_000)
    async with embedded(tmp_path) as wire:
        await wire.send("t", b"first")
        host, _, port = wire.servers.broker_address.rpartition(":")
        fields = {
            "consumerGroup": "deaf", "topic": "t", "queueId": "0", "queueOffset": "1", "maxMsgNums": "32",
            "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "10000", "subscription": "*",
            "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        async with await anyio.connect_tcp(host, int(port)) as deaf:
            request = RemotingCommand.request(RequestCode.PULL_MESSAGE, fields)
            await deaf.send(b"".join(encode_command(request, opaque) for opaque in range(pulls)))
            await on_hold(wire, pulls)
            await wire.send("t", body)
            await anyio.sleep(0.3)
            reader = FrameReader()
            answers: list[RemotingCommand] = []
            with anyio.fail_after(PATIENCE):
                while len(answers) < pulls:
                    answers += reader.feed(await deaf.receive())
    codes = Counter(answer.code for answer in answers)
    assert codes.keys() == {ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND}
    assert codes[ResponseCode.SUCCESS] * len(body) < 20_000_000
    assert {offsets(answer) for answer in answers if answer.code != 0} == {(1, 0, 2)}


async def test_how_much_is_searched_is_not_for_the_consumer_to_say(tmp_path: Path) -> None:
    async with embedded(tmp_path, max_filter_message_size=200, max_transfer_count_on_message_in_memory=32) as wire:
        await send_tagged(wire, *["A"] * 40)
        answer = await wire.pull("t", expression="B", maxMsgNums=2**31 - 1)
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert offsets(answer) == (32, 0, 40)
