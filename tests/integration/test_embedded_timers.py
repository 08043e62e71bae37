"""Timer messages and recalls over the wire: what is answered, who is refused, what a killed broker keeps."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest

from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.recall_handles import RecallHandle, decode_recall_handle, encode_recall_handle
from tests.support.broker.wire import Wire, embedded
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio


async def recall(wire: Wire, handle: str, topic: str = "t") -> RemotingCommand:
    fields = {"producerGroup": "group", "topic": topic, "recallHandle": handle}
    return await wire.broker(RequestCode.RECALL_MESSAGE, fields)


async def bodies(wire: Wire, count: int) -> list[bytes]:
    with anyio.fail_after(PATIENCE):
        while len(found := await wire.messages("t")) < count:
            await anyio.sleep(0.01)
    return [message.body for message in found]


async def test_a_timer_message_is_answered_with_its_handle_and_recalled_by_it(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        now = round(time.time() * 1000)
        await wire.send("t", b"plain")
        sent = await wire.send("t", b"a", properties=f"UNIQ_KEY\x01U1\x02TIMER_DELIVER_MS\x01{now + 1500}\x02")
        assert sent.code == 0, sent.remark
        assert (sent.ext_fields["queueId"], sent.ext_fields["transactionId"]) == ("0", "U1")
        handle = decode_recall_handle(sent.ext_fields["recallHandle"])
        assert handle == RecallHandle("t", "broker-a", now + 1500, "U1")
        await wire.send("t", b"b", properties="UNIQ_KEY\x01U2\x02TIMER_DELAY_MS\x011600\x02")
        assert wire.servers.broker.timers.waiting == 2
        for _ in range(2):  # an answer may be lost, and asked for again
            answer = await recall(wire, sent.ext_fields["recallHandle"])
            assert (answer.code, answer.ext_fields["msgId"]) == (0, "U1"), answer.remark
        assert await bodies(wire, 2) == [b"plain", b"b"]
        assert round(time.time() * 1000) >= now + 1600
        assert wire.servers.broker.timers.recalled == 1
        late = await recall(wire, sent.ext_fields["recallHandle"])
        assert late.code == ResponseCode.ILLEGAL_OPERATION
        assert "time of the message is over" in (late.remark or "")


async def test_recalls_that_cannot_be_are_refused_in_words(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        await wire.send("t")
        await wire.send("u")
        later = round(time.time() * 1000) + 60_000
        handle = RecallHandle("t", "broker-a", later, "U1")
        refused = {
            "": "field recallHandle",
            "x": "recall handle is invalid",
            "v1 t broker-a 1 U1": "recall handle is invalid",
            "dj\x7f=": "recall handle is invalid",
            encode_recall_handle(RecallHandle("t", "broker-b", later, "U1")): "waits at broker broker-b",
            encode_recall_handle(RecallHandle("t", "broker-a", later + 10**9, "U1")): "timestamp invalid",
            encode_recall_handle(RecallHandle("t", "broker-a", 5, "U1")): "timestamp invalid",
            encode_recall_handle(RecallHandle("u", "broker-a", later, "U1")): "topic not match",
            encode_recall_handle(RecallHandle("t", "broker-a", later, "U\x021")): "control character",
        }
        for text, words in refused.items():
            answer = await recall(wire, text)
            assert answer.code in (ResponseCode.ILLEGAL_OPERATION, ResponseCode.SYSTEM_ERROR), text
            assert words in (answer.remark or ""), (text, answer.remark)
        unknown = await recall(wire, encode_recall_handle(handle), topic="nothing")
        assert unknown.code == ResponseCode.TOPIC_NOT_EXIST
        assert wire.servers.broker.timers.waiting == 0
    async with embedded(tmp_path / "off", recall_message_enable=False) as wire:
        await wire.send("t")
        assert (await recall(wire, encode_recall_handle(handle))).code == ResponseCode.NO_PERMISSION


async def test_times_that_are_none_are_refused_and_not_stored(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        for text in ("TIMER_DELAY_SEC\x01x", "TIMER_DELAY_MS\x01999999999999"):
            assert (await wire.send("t", properties=text)).code == ResponseCode.MESSAGE_ILLEGAL
        assert await wire.messages("t") == []
        assert (await wire.send("t", properties="TIMER_DELAY_SEC\x01-5")).code == 0
        assert len(await wire.messages("t")) == 1


async def test_a_restarted_broker_delivers_what_waited(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        for number in range(50):
            await wire.send("t", b"%d" % number, properties=f"TIMER_DELAY_MS\x01{900 + number}")
    async with embedded(tmp_path) as wire:
        assert sorted(map(int, await bodies(wire, 50))) == list(range(50))
        assert len(await wire.messages("t")) == 50
