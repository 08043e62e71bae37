"""A disk without room, for tables or the log: what is refused, what goes on, and what is written later."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

import anyio
import pytest

from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.broker.wire import embedded
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio


class Disk(MemoryStorage):
    """Has no room for tables while it is full."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False

    def record(self, name: str, path: str, offset: int = 0, size: int = 0) -> None:
        if self.full and name == "write" and "/config/" in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().record(name, path, offset, size)

    def table(self, directory: Path, name: str) -> bytes:
        path = str(directory / "config" / f"{name}.json")
        return self.open(path).read(0, 1 << 20) if self.exists(path) else b""


async def test_a_topic_that_cannot_be_written_down_takes_no_message(tmp_path: Path) -> None:
    disk = Disk()
    async with embedded(tmp_path, disk) as wire:
        disk.full = True
        refused = await wire.send("news")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert refused.remark is not None
        assert "topics.json" in refused.remark
        assert "No space left" in refused.remark
        assert (await wire.send("news")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        disk.full = False
        assert (await wire.send("news")).code == ResponseCode.SUCCESS
        assert b'"news"' in disk.table(tmp_path, "topics")
        assert await wire.route("news") is not None


@pytest.mark.parametrize(("level", "topic"), [(1, "%RETRY%g"), (-1, "%DLQ%g")], ids=["retry", "dead letter"])
async def test_a_message_is_given_back_only_when_its_topic_is_written_down(
    tmp_path: Path, level: int, topic: str
) -> None:
    disk = Disk()
    async with embedded(tmp_path, disk, message_delay_level="1s") as wire:
        assert (await wire.send("news", b"kept")).code == ResponseCode.SUCCESS
        (message,) = await wire.messages("news")
        back = {"offset": message.commit_log_offset, "group": "g", "delayLevel": level,
                "originMsgId": message.msg_id, "originTopic": "news", "unitMode": "false"}  # fmt: skip
        disk.full = True
        for _ in range(2):
            refused = await wire.broker(RequestCode.CONSUMER_SEND_MSG_BACK, back)
            assert refused.code != ResponseCode.SUCCESS  # the consumer keeps it, and tries again
            assert "No space left" in (refused.remark or "")
        disk.full = False
        assert (await wire.broker(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == ResponseCode.SUCCESS
        with anyio.fail_after(PATIENCE):
            while not (again := await wire.messages(topic)):
                await anyio.sleep(0.05)
        assert [each.body for each in again] == [b"kept"]


async def test_a_change_that_could_not_be_written_is_not_confirmed_when_it_is_asked_for_again(tmp_path: Path) -> None:
    disk = Disk()
    topic = {"topic": "news", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
             "topicFilterType": "SINGLE_TAG", "order": "false"}  # fmt: skip
    group = {"groupName": "desk", "consumeEnable": True, "retryQueueNums": 1, "retryMaxTimes": 3}
    async with embedded(tmp_path, disk) as wire:
        assert (await wire.broker(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)).code == ResponseCode.SUCCESS
        more = {**topic, "readQueueNums": 8, "writeQueueNums": 8}
        disk.full = True
        for code, fields, body in (
            (RequestCode.UPDATE_AND_CREATE_TOPIC, more, b""),
            (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, json.dumps(group).encode()),
        ):
            for _ in range(2):
                refused = await wire.broker(code, fields, body)
                assert refused.code == ResponseCode.SYSTEM_ERROR
                assert "No space left" in (refused.remark or "")
        disk.full = False
        assert (await wire.broker(RequestCode.UPDATE_AND_CREATE_TOPIC, more)).code == ResponseCode.SUCCESS
        assert json.loads(disk.table(tmp_path, "topics"))["topicConfigTable"]["news"]["readQueueNums"] == 8
        confirmed = await wire.broker(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, json.dumps(group).encode())
        assert confirmed.code == ResponseCode.SUCCESS
        assert b'"desk"' in disk.table(tmp_path, "subscriptionGroup")


async def test_who_only_reads_a_full_disk_goes_on(tmp_path: Path) -> None:
    disk = Disk()
    async with embedded(tmp_path, disk) as wire:
        assert (await wire.send("news", b"kept")).code == ResponseCode.SUCCESS
        disk.full = True
        assert (await wire.heartbeat("late", {"news": "*"})).code == ResponseCode.SUCCESS
        assert [message.body for message in await wire.messages("news", group="late")] == [b"kept"]
        disk.full = False
        with anyio.fail_after(PATIENCE):  # by itself, though nobody sends to the group's retry topic
            while b'"%RETRY%late"' not in disk.table(tmp_path, "topics"):
                await anyio.sleep(0.02)
    assert b'"late"' in disk.table(tmp_path, "subscriptionGroup")


async def test_offsets_that_could_not_be_written_are_written_later(tmp_path: Path) -> None:
    disk = Disk()
    async with embedded(tmp_path, disk, flush_consumer_offset_interval=20) as wire:
        await wire.send("news")
        disk.full = True
        update = {"consumerGroup": "g", "topic": "news", "queueId": 0, "commitOffset": 1}
        assert (await wire.broker(RequestCode.UPDATE_CONSUMER_OFFSET, update)).code == ResponseCode.SUCCESS
        await anyio.sleep(0.2)
        assert b"news@g" not in disk.table(tmp_path, "consumerOffset")
        disk.full = False
        with anyio.fail_after(PATIENCE):
            while b"news@g" not in disk.table(tmp_path, "consumerOffset"):
                await anyio.sleep(0.02)


class CountingDisk(MemoryStorage):
    """Counts how often tables are written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def record(self, name: str, path: str, offset: int = 0, size: int = 0) -> None:
        if name == "truncate" and path.endswith(".json.tmp"):
            self.writes += 1
        super().record(name, path, offset, size)


async def test_a_heartbeat_of_many_new_groups_writes_a_few_times(tmp_path: Path) -> None:
    disk = CountingDisk()
    async with embedded(tmp_path, disk) as wire:
        groups = [{"groupName": f"g{number}", "subscriptionDataSet": []} for number in range(300)]
        body = json.dumps({"clientID": "many", "consumerDataSet": groups}).encode()
        assert (await wire.broker(RequestCode.HEART_BEAT, body=body)).code == ResponseCode.SUCCESS
        assert disk.writes < 20


class FullDisk(MemoryStorage):
    """Has no room for new files, nor for bytes behind those that files have, while it is full."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.hold = threading.Event()
        self.hold.set()
        self._used: dict[str, int] = {}

    def begin_call(self, name: str, path: str) -> None:
        if self.full and name == "create":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if name in {"write", "sync"} and "/commitlog/" in path:
            assert self.hold.wait(10)

    def record(self, name: str, path: str, offset: int = 0, size: int = 0) -> None:
        if name in {"write", "allocate"}:
            if self.full and offset + size > self._used.get(path, 0):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._used[path] = max(self._used.get(path, 0), offset + size)
        super().record(name, path, offset, size)


async def test_a_full_disk_refuses_sends_serves_reads_and_takes_sends_again_by_itself(tmp_path: Path) -> None:
    disk = FullDisk()
    async with embedded(tmp_path, disk, allocate_ahead=4096) as wire:
        assert (await wire.send("news", b"kept")).code == ResponseCode.SUCCESS
        disk.full = True
        refused = await wire.send("news", b"x" * 20_000)
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert refused.remark is not None
        assert "No space left" in refused.remark
        assert "bytes are free" in refused.remark
        assert (await wire.send("news", b"more")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert [message.body for message in await wire.messages("news")] == [b"kept"]
    async with embedded(tmp_path, disk, allocate_ahead=4096) as wire:
        assert [message.body for message in await wire.messages("news")] == [b"kept"]
        assert (await wire.send("news", b"x" * 20_000)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        disk.full = False
        with anyio.fail_after(PATIENCE):
            while (await wire.send("news", b"later")).code != ResponseCode.SUCCESS:
                await anyio.sleep(0.05)
        assert [message.body for message in await wire.messages("news")] == [b"kept", b"later"]


async def test_bytes_that_wait_for_the_disk_are_bounded_also_of_those_who_do_not_wait_for_it(tmp_path: Path) -> None:
    disk = FullDisk()
    async with embedded(tmp_path, disk, max_waiting_bytes=100_000, sync_flush_timeout=60_000) as wire:
        assert (await wire.send("news")).code == ResponseCode.SUCCESS
        disk.hold.clear()
        answers: list[RemotingCommand] = []

        async def send() -> None:
            answers.append(await wire.send("news", b"x" * 10_000, properties="WAIT\x01false\x02"))

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(send)
            with anyio.fail_after(PATIENCE):
                while len(answers) < 10:
                    await anyio.sleep(0.01)
            await anyio.sleep(0.05)
            assert {answer.code for answer in answers} == {ResponseCode.SYSTEM_BUSY}  # nobody hears of what may vanish
            assert "max-waiting-bytes is 100000" in (answers[0].remark or "")
            disk.hold.set()
        codes = [answer.code for answer in answers]
        assert 8 <= codes.count(ResponseCode.SUCCESS) <= 11
        assert len(await wire.messages("news")) == 1 + codes.count(ResponseCode.SUCCESS)
