"""Messages and damage that peers and disks can think of, and after which a store must go on, and start again."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import anyio
import pytest

from rocketbox.broker.store.checkpoint import Checkpoint
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.record_reading import WrongEntryError
from rocketbox.protocol.codes import SCHEDULE_TOPIC
from rocketbox.protocol.stored_message import StoredMessage
from rocketbox.storage.file_system import LockHandle, RealStorage
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.store_tools import (
    CHECKPOINT,
    SMALL,
    FaultyStorage,
    ManualClock,
    contents,
    message,
    numbers,
    opened,
    os_error,
    put_all,
)
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

ROOMY = dataclasses.replace(SMALL, mapped_file_size_commit_log=1 << 16)
NO_CHECKSUMS = dataclasses.replace(ROOMY, enabled_append_prop_crc=False, read_cache_size=0)


@pytest.mark.parametrize(
    ("digits", "level"), [(b"9" * 4400, 18), (b"0" * 4400 + b"2", 2), (b"99999999999", 18), (b"0" * 4400, None)]
)
async def test_a_delay_level_of_thousands_of_digits_stops_neither_dispatch_nor_the_next_start(
    digits: bytes, level: int | None
) -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, ROOMY, clock=clock) as store:
        await put_all(store, StoredMessage(SCHEDULE_TOPIC, 1, b"body", b"DELAY\x01" + digits + b"\x02"), message(0))
        assert numbers(store) == [0]
        queue = store._derived.find(SCHEDULE_TOPIC, 1)
        assert queue is not None
        due = 0 if level is None else clock.now_ms + ROOMY.delay_level_ms[level - 1]
        assert queue.unit(0)[2] == due
        killed = storage.copy()
    async with opened(killed, ROOMY) as store:
        assert numbers(store) == [0]
        assert store.max_offset(SCHEDULE_TOPIC, 1) == 1


@pytest.mark.parametrize(
    "properties",
    [
        b"A\x01b\0",
        b"A\x01" + bytes(1100) + b"\x02",
        b"A\x01b\x02__CRC32#\x010000000001\x02",
        b"A\x01b\x02__CRC33#\x010000000001\x02",
    ],
    ids=["zero at the end", "sectors of zeros", "another checksum", "nearly a checksum"],
)
async def test_without_checksums_properties_that_look_damaged_are_read_and_survive_a_kill(properties: bytes) -> None:
    storage = MemoryStorage()
    odd = StoredMessage("odd", 0, b"body", properties)
    async with opened(storage, NO_CHECKSUMS) as store:
        await put_all(store, message(0), odd, message(1))
        killed = storage.copy()
        (record,) = store.get("odd", 0, 0).records
        assert properties in record
    async with opened(killed, NO_CHECKSUMS) as store:
        assert numbers(store) == [0, 1]
        (record,) = store.get("odd", 0, 0).records
        assert properties in record


async def test_opening_that_is_cancelled_while_it_takes_the_lock_gives_it_back(tmp_path: Path) -> None:
    class SlowLock(RealStorage):
        def lock(self, path: str) -> LockHandle:
            begun.set()
            go_on.wait(5)
            try:
                return super().lock(path)
            finally:
                done.set()

    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()
    async with anyio.create_task_group() as group:

        async def open_it() -> None:
            async with MessageStore(tmp_path, SMALL, storage=SlowLock()):
                raise AssertionError("it was cancelled before")

        group.start_soon(open_it)
        while not begun.is_set():
            await anyio.sleep(0.001)
        group.cancel_scope.cancel()
        go_on.set()
    await anyio.to_thread.run_sync(done.wait, 5)
    async with MessageStore(tmp_path, SMALL) as store:
        assert numbers(store) == []


async def test_a_checkpoint_that_could_not_be_written_is_written_again_though_nothing_new_came() -> None:
    storage, clock = FaultyStorage(), ManualClock()
    async with opened(storage, clock=clock) as store:
        (*_, end) = await put_all(store, message(0), message(1))
        for _ in range(3):
            await clock.advance(2)
        storage.fail(os_error(5), "write", where="checkpoint", times=1)
        for _ in range(5):
            await clock.advance(15)
        assert storage.failed == 1
        assert store.troubles.current == []
        assert Checkpoint.decode(contents(storage, CHECKPOINT)).indexed_offset == end


async def test_an_entry_of_a_negative_size_behind_a_good_one_has_its_queue_mended(tmp_path: Path) -> None:
    async with MessageStore(tmp_path, SMALL) as store:
        await put_all(store, *[message(number) for number in range(6)])
    with (tmp_path / "consumequeue/orders/0" / f"{0:020d}").open("r+b") as file:
        file.seek(3 * 20 + 8)
        file.write(b"\xff")
    async with MessageStore(tmp_path, SMALL) as store:
        with pytest.raises(WrongEntryError):
            store.get("orders", 0, 0)
        with anyio.fail_after(PATIENCE):
            while store.troubles.current or not store.upkeep.mended:
                await anyio.sleep(0.01)
        assert numbers(store) == list(range(6))


@pytest.mark.parametrize("name", [".DS_Store", "orders/7", "orders/\N{SUPERSCRIPT TWO}/x", "orders/01/x", "\udcff/0/x"])
async def test_what_is_no_queue_in_the_directory_of_queues_is_left_alone(tmp_path: Path, name: str) -> None:
    async with MessageStore(tmp_path, SMALL) as store:
        await put_all(store, message(0))
    stray = tmp_path / "consumequeue" / name
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_bytes(b"stray")
    async with MessageStore(tmp_path, SMALL) as store:
        assert numbers(store) == [0]
        assert store.queues() == [("orders", 0)]
    assert stray.read_bytes() == b"stray"
