"""Messages that come again: delayed ones, those that consumers give back, dead letters."""

from __future__ import annotations

import time
import zlib
from pathlib import Path

import anyio
import pytest

from rocketbox.message import MessageExt, Property
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from tests.support.broker.wire import Wire, embedded
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio


async def arrived(wire: Wire, topic: str, count: int = 1, *, queue: int = 0) -> list[MessageExt]:
    """The messages of a queue, once there are so many."""
    found: list[MessageExt] = []
    with anyio.fail_after(PATIENCE):
        while len(found) < count:
            found = await wire.messages(topic, queue=queue)
            await anyio.sleep(0.02)
    return found


async def give_back(wire: Wire, message: MessageExt, **fields: object) -> RemotingCommand:
    return await wire.broker(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        {
            "offset": message.commit_log_offset, "group": "g", "delayLevel": 0, "originMsgId": message.msg_id,
            "originTopic": message.topic, "unitMode": "false", **fields,
        },
    )  # fmt: skip


async def test_a_delayed_message_arrives_after_its_delay(tmp_path: Path) -> None:
    async with embedded(tmp_path, message_delay_level="1s 2s") as wire:
        await wire.send("t", b"now")
        started = time.time()
        sent = await wire.send("t", b"later", queue=1, properties="TAGS\x01A\x02DELAY\x011\x02UNIQ_KEY\x01U\x02")
        assert sent.code == 0
        assert sent.ext_fields["queueId"] == "1"
        assert await wire.messages("t", queue=1) == []
        (message,) = await arrived(wire, "t", queue=1)
        assert time.time() - started >= 0.95
        assert message.body == b"later"
        assert (message.tag, message.msg_id, message.topic, message.queue_id) == ("A", "U", "t", 1)
        assert message.properties[Property.DELAY] == "1"
        assert message.properties[Property.REAL_TOPIC] == "t"
        tagged = await wire.pull("t", queue=1, expression="A")
        assert tagged.code == 0


async def test_a_level_above_the_longest_is_the_longest(tmp_path: Path) -> None:
    async with embedded(tmp_path, message_delay_level="1s") as wire:
        await wire.send("t", b"x", properties="DELAY\x0199\x02")
        (message,) = await arrived(wire, "t")
        assert message.properties[Property.DELAY] == "1"


async def test_a_delayed_message_survives_a_restart_and_comes_once(tmp_path: Path) -> None:
    async with embedded(tmp_path, message_delay_level="1s") as wire:
        await wire.send("t", b"first", properties="DELAY\x011\x02")
        await arrived(wire, "t")
        await wire.send("t", b"second", properties="DELAY\x011\x02")
    async with embedded(tmp_path, message_delay_level="1s") as wire:
        messages = await arrived(wire, "t", 2)
        await anyio.sleep(0.3)
        assert [message.body for message in await wire.messages("t")] == [b"first", b"second"]
        assert len(messages) == 2


async def test_a_message_given_back_comes_again_in_the_retry_topic(tmp_path: Path) -> None:
    async with embedded(tmp_path, message_delay_level="1s 1s 1s 1s") as wire:
        await wire.send("t", b"x", properties="KEYS\x01k\x02UNIQ_KEY\x01U\x02")
        (message,) = await wire.messages("t")
        answer = await give_back(wire, message)
        assert answer.code == 0, answer.remark
        (again,) = await arrived(wire, "%RETRY%g")
        assert again.body == b"x"
        assert again.reconsume_times == 1
        assert again.msg_id == "U"
        properties = again.properties
        assert properties[Property.RETRY_TOPIC] == "t"
        assert properties[Property.ORIGIN_MESSAGE_ID] == message.offset_msg_id
        assert properties[Property.DELAY] == "3"  # the first retry's level
        assert properties[Property.WAIT] == "false"
        assert again.born_timestamp_ms == message.born_timestamp_ms
        assert again.born_host == message.born_host
        assert again.raw_properties.count(b"__CRC32#") == message.raw_properties.count(b"__CRC32#")
        assert await wire.route("%RETRY%g") is not None
        assert (await give_back(wire, again)).code == 0
        third = (await arrived(wire, "%RETRY%g", 2))[1]
        assert third.reconsume_times == 2
        assert third.properties[Property.DELAY] == "4"
        assert third.properties[Property.ORIGIN_MESSAGE_ID] == message.offset_msg_id
        assert third.properties[Property.RETRY_TOPIC] == "t"


async def test_a_message_comes_back_as_one_of_the_topic_it_was_in_whatever_its_sender_wrote(tmp_path: Path) -> None:
    """Consumers go by what the retry says: who may send to one topic would have his messages taken for another's."""
    async with embedded(tmp_path, message_delay_level="1s 1s 1s 1s") as wire:
        await wire.send("t", b"x", properties="RETRY_TOPIC\x01payments\x02KEYS\x01k\x02")
        (message,) = await wire.messages("t")
        assert (await give_back(wire, message)).code == 0
        (again,) = await arrived(wire, "%RETRY%g")
        assert again.properties[Property.RETRY_TOPIC] == "t"
        assert again.raw_properties.count(b"RETRY_TOPIC") == 1
        assert (await give_back(wire, again, delayLevel=-1)).code == 0
        (dead,) = await wire.messages("%DLQ%g")
        assert dead.properties[Property.RETRY_TOPIC] == "t"
        assert (await give_back(wire, dead, group="morgue")).code == 0
        (again,) = await arrived(wire, "%RETRY%morgue")
        assert again.properties[Property.RETRY_TOPIC] == "t", "what a dead letter says was not written by its sender"


async def test_an_asked_for_level_is_used(tmp_path: Path) -> None:
    async with embedded(tmp_path, message_delay_level="1s 9s 9s") as wire:
        await wire.send("t", b"x")
        (message,) = await wire.messages("t")
        assert (await give_back(wire, message, delayLevel=1)).code == 0
        (again,) = await arrived(wire, "%RETRY%g")
        assert again.properties[Property.DELAY] == "1"


async def test_a_negative_level_is_a_dead_letter(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await wire.send("t", b"x")
        (message,) = await wire.messages("t")
        assert (await give_back(wire, message, delayLevel=-1)).code == 0
        (dead,) = await wire.messages("%DLQ%g")
        assert dead.reconsume_times == 1
        assert dead.properties[Property.RETRY_TOPIC] == "t"
        assert dead.properties[Property.DELAY] == "0"
        route = await wire.route("%DLQ%g")
        assert route is not None
        assert route["queueDatas"][0]["writeQueueNums"] == 1
        assert route["queueDatas"][0]["perm"] == 6


async def test_after_the_last_retry_comes_the_dead_letter(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await wire.send("t", b"x")
        (message,) = await wire.messages("t")
        assert (await give_back(wire, message, maxReconsumeTimes=0)).code == 0
        assert [dead.body for dead in await wire.messages("%DLQ%g")] == [b"x"]


async def test_a_message_that_is_not_there_cannot_be_given_back(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await wire.send("t", b"x")
        (message,) = await wire.messages("t")
        answer = await give_back(wire, message, offset=message.commit_log_offset + 1)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == f"look message by offset failed, {message.commit_log_offset + 1}"
        assert (await give_back(wire, message, group="no good")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_compressed_message_is_given_back_as_it_is(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await wire.send("t", zlib.compress(b"long text " * 100), f=0x301)
        (message,) = await wire.messages("t")
        assert message.body == b"long text " * 100
        assert (await give_back(wire, message, delayLevel=-1)).code == 0
        answer = await wire.pull("%DLQ%g")
        assert b"long text long text" not in answer.body
        (dead,) = await wire.messages("%DLQ%g")
        assert dead.body == message.body
