"""What is acknowledged is on the disk; what cannot get there is said so."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import anyio
import pytest

from rocketbox.client import Producer, ProducerOptions
from rocketbox.clock import RealClock
from rocketbox.embedded import EmbeddedServers
from rocketbox.errors import NotDurableError
from rocketbox.message import Message, SendStatus
from rocketbox.protocol.codes import ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.client import RemotingClient
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.broker.wire import Wire, embedded, small_options
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio


class Disk(MemoryStorage):
    """Holds or fails the syncs of the commit log when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()
        self.free.set()
        self.broken = False

    def record(self, name: str, path: str, offset: int = 0, size: int = 0) -> None:
        if name == "sync" and "/commitlog/" in path:
            self.free.wait(10)
            if self.broken:
                raise OSError(errno.EIO, "the disk is broken")
        super().record(name, path, offset, size)


async def test_no_acknowledgement_precedes_the_sync_of_its_message(tmp_path: Path) -> None:
    disk = Disk()
    answered: list[tuple[int, int]] = []  # where the message begins, and how many calls the disk had seen

    async with embedded(tmp_path, disk) as wire:

        async def send(number: int) -> None:
            for count in range(20):
                answer = await wire.send("t", b"%d %d" % (number, count), queue=number % 4)
                answered.append((int(answer.ext_fields["msgId"][-16:], 16), len(disk.calls)))

        async with anyio.create_task_group() as group:
            for number in range(16):
                group.start_soon(send, number)
    assert len(answered) == 320
    synced = 0  # the end of what is synced for certain, after each call
    written = 0
    ends = []
    for call in disk.calls:
        if "/commitlog/" in call.path and call.name == "write":
            written = max(written, call.offset + call.size)
        elif "/commitlog/" in call.path and call.name == "sync":
            synced = written
        ends.append(synced)
    assert all(begin < ends[calls - 1] for begin, calls in answered)
    syncs = sum(call.name == "sync" and "/commitlog/" in call.path for call in disk.calls)
    assert syncs < 320  # messages share a sync


async def test_a_sync_that_takes_long_is_said_and_the_message_is_stored(tmp_path: Path) -> None:
    disk = Disk()
    async with embedded(tmp_path, disk, sync_flush_timeout=200) as wire:
        await wire.send("t", b"first")
        disk.free.clear()
        try:
            answer = await wire.send("t", b"slow")
        finally:
            disk.free.set()
        assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert answer.ext_fields["queueOffset"] == "1"
        await until_there_are(wire, 2)


@pytest.mark.parametrize("accepted", [False, True])
async def test_a_producer_is_told_that_a_sync_takes_long_and_sends_the_message_no_second_time(
    tmp_path: Path, accepted: bool
) -> None:
    """Row C36: an error that says that the message is stored, or its result where that was asked for."""
    disk = Disk()
    options = ProducerOptions(accept_weak_ack=accepted)
    async with (
        embedded(tmp_path, disk, sync_flush_timeout=200, default_topic_queue_nums=1) as wire,
        Producer("desk", name_server=wire.servers.name_server_address, options=options) as producer,
    ):
        await producer.send(Message("t", b"first"))
        disk.free.clear()
        try:
            if accepted:
                result = await producer.send(Message("t", b"slow"))
            else:
                with pytest.raises(NotDurableError, match="is stored with FLUSH_DISK_TIMEOUT") as caught:
                    await producer.send(Message("t", b"slow"))
                result = caught.value.result
        finally:
            disk.free.set()
        assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
        assert (result.queue.topic, result.queue.queue_id, result.queue_offset) == ("t", 0, 1)
        last = await producer.send(Message("t", b"last"))
        assert (last.status, last.queue_offset) == (SendStatus.SEND_OK, 2)
        await until_there_are(wire, 3)
        found = await wire.messages("t")
        assert [message.body for message in found] == [b"first", b"slow", b"last"]
        assert found[1].msg_id == result.msg_id


async def until_there_are(wire: Wire, count: int) -> None:
    with anyio.fail_after(PATIENCE):
        while len(await wire.messages("t")) < count:
            await anyio.sleep(0.01)


async def test_after_a_failed_sync_nothing_is_accepted_and_reads_go_on(tmp_path: Path) -> None:
    disk = Disk()
    async with embedded(tmp_path, disk) as wire:
        await wire.send("t", b"kept")
        disk.broken = True
        answer = await wire.send("t", b"lost")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert answer.remark is not None
        assert "the disk is broken" in answer.remark
        disk.broken = False
        later = await wire.send("t", b"refused")
        assert later.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert later.remark is not None
        assert "accepts no more writes" in later.remark
        assert [message.body for message in await wire.messages("t")] == [b"kept"]


async def collect(wire: Wire, answers: list[RemotingCommand], properties: str = "") -> None:
    answers.append(await wire.send("t", b"x", properties=properties))


async def test_too_many_waiting_sends_are_turned_away(tmp_path: Path) -> None:
    disk = Disk()
    async with embedded(tmp_path, disk, send_thread_pool_queue_capacity=2) as wire:
        await wire.send("t", b"first")
        answers: list[RemotingCommand] = []
        disk.free.clear()
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(collect, wire, answers)
            with anyio.fail_after(PATIENCE):
                while not answers:
                    await anyio.sleep(0.01)
            disk.free.set()
        assert sorted(answer.code for answer in answers) == [0, 0, ResponseCode.SYSTEM_BUSY]
        assert answers[0].remark is not None
        assert answers[0].remark.startswith("[PCBUSY")
        assert (await wire.send("t", b"last")).code == 0


async def test_a_sender_may_choose_not_to_wait(tmp_path: Path) -> None:
    disk = Disk()
    async with embedded(tmp_path, disk) as wire:
        await wire.send("t", b"first")
        disk.free.clear()
        try:
            with anyio.fail_after(PATIENCE):
                answer = await wire.send("t", b"quick", properties="WAIT\x01false\x02")
        finally:
            disk.free.set()
        assert answer.code == 0


@pytest.mark.parametrize("properties", ["AWAIT\x01false\x02", "WAIT\x01falsehood\x02", "WAIT\x01true\x02"])
async def test_only_the_property_itself_chooses_not_to_wait(tmp_path: Path, properties: str) -> None:
    disk = Disk()
    async with embedded(tmp_path, disk, sync_flush_timeout=200) as wire:
        await wire.send("t", b"first")
        disk.free.clear()
        try:
            answer = await wire.send("t", b"waits", properties=properties)
        finally:
            disk.free.set()
        assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT


async def test_a_stop_answers_what_is_stored(tmp_path: Path) -> None:
    disk = Disk()
    answers: list[RemotingCommand] = []
    async with RemotingClient(clock=RealClock()) as client, anyio.create_task_group() as group:
        async with EmbeddedServers(small_options(tmp_path), storage=disk) as servers:
            wire = Wire(servers, client)
            await wire.send("t", b"first")
            disk.free.clear()
            for _ in range(3):
                group.start_soon(collect, wire, answers)
            await until(lambda: servers.broker._replies.waiting == 3, "all wait for the disk")
            threading.Timer(0.3, disk.free.set).start()
        with anyio.fail_after(PATIENCE):
            while len(answers) < 3:
                await anyio.sleep(0.01)
    assert [answer.code for answer in answers] == [0, 0, 0]
