"""What a peer is answered beyond the limits: a code, the number, and the setting; others are served as before."""

from __future__ import annotations

import gc
import json
import tracemalloc
from pathlib import Path

import anyio
import pytest

from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand, encode_command
from tests.support.broker.wire import embedded
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio


async def test_names_that_are_made_automatically_are_limited_and_known_ones_go_on(tmp_path: Path) -> None:
    async with embedded(tmp_path, auto_create_names_per_minute=1, auto_create_names_burst=6) as wire:
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


async def test_a_pull_on_hold_keeps_little_of_a_large_request(tmp_path: Path) -> None:
    fields = {
        "consumerGroup": "readers", "topic": "one", "queueId": "1", "queueOffset": "0", "maxMsgNums": "32",
        "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "60000", "subVersion": "0", "subscription": "*",
        "junk": "x" * 300_000, "bname": "b" * 300_000,
    }  # fmt: skip
    request = RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=fields, body=bytes(100_000), remark="r" * 300_000)
    async with embedded(tmp_path) as wire:
        assert (await wire.send("one")).code == ResponseCode.SUCCESS
        host, port = wire.broker_address.split(":")
        async with await anyio.connect_tcp(host, int(port)) as peer:
            tracemalloc.start()
            try:
                before = tracemalloc.get_traced_memory()[0]
                for opaque in range(20):
                    await peer.send(encode_command(request, opaque))
                with anyio.fail_after(PATIENCE):
                    while len(wire.servers.broker.held_pulls) < 20:
                        await anyio.sleep(0.01)
                gc.collect()
                assert tracemalloc.get_traced_memory()[0] - before < 2_000_000
            finally:
                tracemalloc.stop()
            assert (await wire.send("one", b"news", queue=1)).code == ResponseCode.SUCCESS
            with anyio.fail_after(PATIENCE):
                assert b"news" in await peer.receive()


async def test_an_expression_of_a_pull_has_a_most_length(tmp_path: Path) -> None:
    async with embedded(tmp_path) as wire:
        assert (await wire.send("one")).code == ResponseCode.SUCCESS
        longest = "||".join(["a" * 65_500, "b" * 34])
        assert len(longest) == 65_536
        assert (await wire.pull("one", expression=longest)).code == ResponseCode.PULL_RETRY_IMMEDIATELY
        refused = await wire.pull("one", expression=longest + "b")
        assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert "65537 characters; 65536 is the most" in (refused.remark or "")
