"""What the broker answers to sends: singles, batches, each check, topics made by sending, redirected retries."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rocketbox.message import Property
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from tests.support.broker.wire import Wire, embedded

pytestmark = pytest.mark.anyio


async def test_a_message_comes_back_as_it_was_sent(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        sent = await wire.send("news", b"body", queue=2, properties="TAGS\x01A\x02KEYS\x01k\x02UNIQ_KEY\x01U1\x02", h=7)
        assert sent.code == 0, sent.remark
        assert sent.ext_fields["queueId"] == "2"
        assert sent.ext_fields["queueOffset"] == "0"
        assert sent.ext_fields["transactionId"] == "U1"
        assert sent.ext_fields["MSG_REGION"] == "DefaultRegion"
        assert sent.ext_fields["TRACE_ON"] == "true"
        (message,) = await wire.messages("news", queue=2)
        assert message.body == b"body"
        assert message.offset_msg_id == sent.ext_fields["msgId"]
        assert (message.tag, message.keys, message.flag, message.topic) == ("A", ("k",), 7, "news")
        assert message.born_timestamp_ms == 1_700_000_000_000
        assert message.born_host.startswith("127.0.0.1:")
        assert message.store_host == wire.servers.broker_address
        assert message.properties["CLUSTER"] == "DefaultCluster"
        assert message.properties["MSG_REGION"] == "DefaultRegion"


async def test_the_old_header_with_long_names_is_understood(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        sent = await wire.broker(
            RequestCode.SEND_MESSAGE,
            {
                "producerGroup": "p", "topic": "old", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4,
                "queueId": 3, "sysFlag": 0, "bornTimestamp": 5, "flag": 1, "properties": "TAGS\x01X",
                "reconsumeTimes": 0, "unitMode": "false", "batch": "false",
            },
            b"x",
        )  # fmt: skip
        assert sent.code == 0
        (message,) = await wire.messages("old", queue=3)
        assert (message.tag, message.flag, message.born_timestamp_ms) == ("X", 1, 5)


async def test_a_message_without_a_key_of_its_own_gets_one(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        sent = await wire.send("t")
        (message,) = await wire.messages("t")
        assert message.properties[Property.UNIQ_KEY] == sent.ext_fields["transactionId"]
        assert len(sent.ext_fields["transactionId"]) == 32


async def test_offsets_of_a_queue_have_no_gap(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        for number in range(5):
            assert (await wire.send("t", b"%d" % number)).ext_fields["queueOffset"] == str(number)
        assert [message.body for message in await wire.messages("t")] == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_new_topic_has_a_route_as_soon_as_its_first_message_is_acknowledged(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        assert await wire.route("fresh") is None
        assert (await wire.send("fresh", d=4)).code == 0
        route = await wire.route("fresh")
        assert route is not None
        assert route["queueDatas"] == [
            {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4}
        ]
        assert route["brokerDatas"][0]["brokerAddrs"] == {"0": wire.servers.broker_address}


async def test_a_new_topic_has_at_most_the_queues_of_its_pattern(tmp_path: Path) -> None:
    async with embedded(tmp_path, default_topic_queue_nums=2) as wire:
        await wire.send("wide", d=16)
        route = await wire.route("wide")
        assert route is not None
        assert route["queueDatas"][0]["writeQueueNums"] == 2


async def test_topics_are_not_made_when_that_is_switched_off(tmp_path: Path) -> None:
    async with embedded(tmp_path, auto_create_topic_enable=False) as wire:
        assert await wire.route("TBW102") is None
        assert (await wire.send("fresh")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await wire.send("BenchmarkTest", queue=1023)).code == 0


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("", ResponseCode.INVALID_PARAMETER),
        ("no spaces", ResponseCode.INVALID_PARAMETER),
        ("ümlaut", ResponseCode.INVALID_PARAMETER),
        ("x" * 128, ResponseCode.INVALID_PARAMETER),
        ("x" * 127, ResponseCode.SUCCESS),
        ("%DLQ%" + "x" * 200, ResponseCode.SUCCESS),
        ("SCHEDULE_TOPIC_XXXX", ResponseCode.NO_PERMISSION),
        ("RMQ_SYS_TRANS_HALF_TOPIC", ResponseCode.NO_PERMISSION),
        ("SELF_TEST_TOPIC", ResponseCode.NO_PERMISSION),
        ("TBW102", ResponseCode.SUCCESS),
        ("BenchmarkTest", ResponseCode.SUCCESS),
    ],
)
async def test_topics_are_checked(tmp_path: Path, topic: str, code: ResponseCode) -> None:
    async with embedded(tmp_path) as wire:
        answer = await wire.send(topic)
        assert answer.code == code, answer.remark
        assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"


async def test_a_topic_needs_a_pattern_that_may_be_inherited(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        assert (await wire.send("fresh", c="BenchmarkTest")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await wire.send("fresh", c="missing")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_queue_that_is_not_there_is_refused_and_a_negative_one_is_chosen(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        assert (await wire.send("t", queue=4)).code == ResponseCode.INVALID_PARAMETER
        chosen = {(await wire.send("t", queue=-1)).ext_fields["queueId"] for _ in range(40)}
        assert chosen <= {"0", "1", "2", "3"}
        assert len(chosen) > 1


async def test_bodies_are_limited(tmp_path: Path) -> None:
    async with embedded(tmp_path, max_message_size=1000) as wire:
        assert (await wire.send("t", b"")).code == ResponseCode.SYSTEM_ERROR
        assert (await wire.send("t", b"x" * 1000)).code == 0
        assert (await wire.send("t", b"x" * 1001)).code == ResponseCode.MESSAGE_ILLEGAL


async def test_properties_with_what_the_broker_adds_are_limited(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        assert (await wire.send("t", properties="P\x01" + "x" * 32_500)).code == 0
        assert (await wire.send("t", properties="P\x01" + "x" * 32_764)).code == ResponseCode.MESSAGE_ILLEGAL


async def test_who_only_looks_like_a_half_message_is_stored(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        assert await wire.messages("t") == []
        assert (await wire.send("t", properties="MY_TRAN_MSG\x01true\x02TRAN_MSG\x01trueish")).code == 0


async def test_a_message_sent_again_carries_the_brokers_properties_once(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await wire.send("t")
        (first,) = await wire.messages("t")
        await wire.send("t", properties=first.raw_properties.decode())
        second = (await wire.messages("t"))[1]
        for name in ("CLUSTER", "MSG_REGION", "TRACE_ON", "UNIQ_KEY", "__CRC32#"):
            assert second.raw_properties.count(name.encode() + b"\x01") == first.raw_properties.count(
                name.encode() + b"\x01"
            )


def element(body: bytes, properties: bytes = b"", flag: int = 0) -> bytes:
    """One element of a batch, from the protocol's table."""
    size = 4 + 4 + 4 + 4 + 4 + len(body) + 2 + len(properties)
    return struct.pack(">iiiii", size, 0, 0, flag, len(body)) + body + struct.pack(">h", len(properties)) + properties


async def test_a_batch_is_stored_as_single_messages(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        body = element(b"one", b"TAGS\x01A\x02", 5) + element(b"two", b"KEYS\x01k\x02")
        sent = await send_batch(wire, "t", body)
        assert sent.code == 0, sent.remark
        first, second = await wire.messages("t", queue=1)
        assert (first.body, first.tag, first.flag, first.queue_offset) == (b"one", "A", 5, 0)
        assert (second.body, second.keys, second.queue_offset) == (b"two", ("k",), 1)
        assert sent.ext_fields["msgId"] == f"{first.offset_msg_id},{second.offset_msg_id}"
        assert sent.ext_fields["queueOffset"] == "0"


async def test_bad_batches_are_refused(tmp_path: Path) -> None:
    async with embedded(tmp_path, max_message_size=500) as wire:
        assert (await send_batch(wire, "t", element(b"one")[:-3])).code == ResponseCode.SYSTEM_ERROR
        assert (await send_batch(wire, "t", element(b"x" * 600))).code == ResponseCode.SYSTEM_ERROR
        assert (await send_batch(wire, "%RETRY%g", element(b"x"))).code == ResponseCode.MESSAGE_ILLEGAL
        assert (await send_batch(wire, "t", element(b"x"), "DELAY\x013")).code == ResponseCode.MESSAGE_ILLEGAL
        assert await wire.messages("t", queue=1) == []


async def send_batch(wire: Wire, topic: str, body: bytes, properties: str = "") -> RemotingCommand:
    return await wire.broker(
        RequestCode.SEND_BATCH_MESSAGE,
        {
            "a": "p", "b": topic, "c": "TBW102", "d": 4, "e": 1, "f": 0, "g": 1, "h": 0, "i": properties or None,
            "j": 0, "k": "false", "m": "true",
        },
        body,
    )  # fmt: skip


async def test_a_retry_beyond_the_limit_goes_to_the_dead_letters(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        assert (await wire.send("%RETRY%g", b"again", j=3, l=3)).code == 0
        assert (await wire.send("%RETRY%g", b"enough", j=4, l=3)).code == 0
        assert [message.body for message in await wire.messages("%RETRY%g")] == [b"again"]
        assert [message.body for message in await wire.messages("%DLQ%g")] == [b"enough"]


async def test_a_retry_of_a_group_that_holds_locks_goes_to_the_dead_letters(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        body = b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"t","brokerName":"broker-a","queueId":0}]}'
        assert (await wire.broker(RequestCode.LOCK_BATCH_MQ, None, body)).code == 0
        assert (await wire.send("%RETRY%g", b"in order", j=1, l=16)).code == 0
        (message,) = await wire.messages("%DLQ%g")
        assert message.body == b"in order"


async def test_a_one_way_send_is_stored_and_not_answered(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await wire.send("t", b"first")
        request = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, {"b": "t", "e": "0", "g": "1"}, b"one way")
        await wire.client.send_oneway(wire.servers.broker_address, request, timeout=3)
        await wire.send("t", b"last")
        assert [message.body for message in await wire.messages("t")] == [b"first", b"one way", b"last"]


async def test_a_header_that_is_no_number_is_named(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        answer = await wire.send("t", e="many")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert "'many'" in answer.remark


async def test_an_unknown_code_is_named(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        answer = await wire.broker(12345)
        assert (answer.code, answer.remark) == (3, " request type 12345 not supported")
        assert (await wire.name_server(12345)).code == 3
