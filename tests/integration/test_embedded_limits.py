"""What a peer is answered beyond the limits: a code, the number, and the setting; others are served as before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocketbox.protocol.codes import RequestCode, ResponseCode
from tests.integration.wire import embedded

pytestmark = pytest.mark.anyio


async def test_names_that_are_made_automatically_are_limited_and_known_ones_go_on(tmp_path: Path) -> None:
    async with embedded(tmp_path, auto_create_names_per_minute=1, auto_create_names_burst=3) as wire:
        assert (await wire.send("one")).code == ResponseCode.SUCCESS
        assert (await wire.heartbeat("g", {"one": "*"})).code == ResponseCode.SUCCESS  # the group and its retry topic
        for answer in (
            await wire.send("two"),
            await wire.heartbeat("h", {"one": "*"}),
            await wire.broker(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                {"consumerGroup": "i", "topic": "one", "queueId": 0, "commitOffset": 1},
            ),
        ):
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert answer.remark is not None
            assert "1 is the most (auto-create-names-per-minute)" in answer.remark
        assert (await wire.send("one")).code == ResponseCode.SUCCESS
        assert (await wire.heartbeat("g", {"one": "*"})).code == ResponseCode.SUCCESS


async def test_topics_groups_offsets_locks_and_memberships_are_limited(tmp_path: Path) -> None:
    async with embedded(
        tmp_path, max_topics=14, max_groups=10, max_offsets=1, max_locked_queues=1, max_groups_per_connection=2
    ) as wire:
        assert (await wire.send("one")).code == ResponseCode.SUCCESS
        refused = [await wire.send("two")]
        commit = {"consumerGroup": "g", "topic": "one", "queueId": 0, "commitOffset": 1}
        assert (await wire.broker(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == ResponseCode.SUCCESS
        refused.append(await wire.broker(RequestCode.UPDATE_CONSUMER_OFFSET, {**commit, "queueId": 1}))
        assert (await wire.broker(RequestCode.UPDATE_CONSUMER_OFFSET, {**commit, "commitOffset": 2})).code == 0
        beat = {"clientID": "c", "producerDataSet": [{"groupName": f"p{number}"} for number in range(3)]}
        refused.append(await wire.broker(RequestCode.HEART_BEAT, body=json.dumps(beat).encode()))
        queues = [{"topic": "one", "brokerName": "b", "queueId": number} for number in range(2)]
        lock = {"consumerGroup": "g", "clientId": "c", "mqSet": queues}
        refused.append(await wire.broker(RequestCode.LOCK_BATCH_MQ, body=json.dumps(lock).encode()))
        settings = ["14 is the most (max-topics)", "1 is the most (max-offsets)",
                    "2 is the most (max-groups-per-connection)", "1 is the most (max-locked-queues)"]  # fmt: skip
        for answer, setting in zip(refused, settings, strict=True):
            assert answer.remark is not None
            assert setting in answer.remark
        assert (await wire.send("one")).code == ResponseCode.SUCCESS


async def test_a_topic_asked_for_without_queues_takes_messages_and_retries(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        sent = await wire.send("%RETRY%g", b"x", d=0)
        assert sent.code == ResponseCode.SUCCESS
        await wire.heartbeat("g", {"t": "*"})
        back = {
            "group": "g",
            "offset": 0,
            "delayLevel": 0,
            "originTopic": "t",
            "originMsgId": "",
            "maxReconsumeTimes": 16,
        }
        assert (await wire.broker(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == ResponseCode.SUCCESS
