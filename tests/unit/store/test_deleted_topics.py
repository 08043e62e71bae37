"""A deleted topic: its queues are gone for good, also over a crash, and begin anew when it is made again."""

from __future__ import annotations

import dataclasses
import errno
import json
from contextlib import suppress
from typing import TypeVar

import anyio
import anyio.lowlevel
import pytest

from rocketbox.broker.store.memory_storage import MemoryStorage
from rocketbox.broker.store.options import FlushDiskType
from rocketbox.broker.store.reading import GetMessageStatus
from rocketbox.broker.store.store_check import check_store, find_files
from rocketbox.errors import StoreError
from tests.unit.store.store_tools import (
    LOG,
    ROOT,
    SMALL,
    FaultyStorage,
    ManualClock,
    SteppingStorage,
    contents,
    forget_sync,
    message,
    numbers,
    opened,
    os_error,
    overwrite,
    put_all,
)

pytestmark = pytest.mark.anyio

StorageT = TypeVar("StorageT", bound=MemoryStorage)

TABLE = f"{ROOT}/config/deletedTopics.json"


def every_file(storage: MemoryStorage, directory: str = ROOT) -> list[str]:
    found = []
    for name in storage.list_directory(directory):
        path = f"{directory}/{name}"
        found += every_file(storage, path) if storage.is_directory(path) else [path]
    return found


def findings(storage: MemoryStorage) -> list[str]:
    found = []
    store = find_files(storage, ROOT, SMALL)
    for step in check_store(store, SMALL):
        if not isinstance(step, int) and not step.harmless:
            found.append(str(step))
    return found


async def filled(storage: StorageT) -> StorageT:
    """The storage with 50 messages of the topic, whose entries are in files."""
    async with opened(storage) as store:
        await put_all(store, *[message(number) for number in range(50)])
    assert [path for path in every_file(storage) if "/consumequeue/orders/" in path]
    return storage


async def test_a_deleted_topic_is_not_read_and_others_are() -> None:
    async with opened(MemoryStorage()) as store:
        await put_all(store, *[message(number) for number in range(50)])
        await put_all(store, *[message(number, topic="other") for number in range(5)])
        await store.delete_topic("orders")
        assert store.get("orders", 0, 0).status is GetMessageStatus.NO_MATCHED_LOGIC_QUEUE
        assert (store.min_offset("orders", 0), store.max_offset("orders", 0)) == (0, 0)
        assert [topic for topic, _ in store.queues()] == ["other"]
        assert numbers(store, "other") == list(range(5))
        await store.delete_topic("nowhere")


async def test_its_files_are_gone_and_a_new_one_begins_at_offset_0() -> None:
    storage = await filled(MemoryStorage())
    async with opened(storage) as store:
        await store.delete_topic("orders")
        assert not [path for path in every_file(storage) if "/consumequeue/orders/" in path]
        await put_all(store, message(100), message(101))
        assert numbers(store) == [100, 101]
        assert store.max_offset("orders", 0) == 2
    assert findings(storage) == []
    async with opened(storage) as store:
        assert numbers(store) == [100, 101]
        await put_all(store, message(102))
        assert numbers(store) == [100, 101, 102]


@pytest.mark.parametrize("again", [0, 2])
async def test_a_crash_brings_nothing_back(again: int) -> None:
    storage = await filled(MemoryStorage())
    async with opened(storage) as store:
        await store.delete_topic("orders")
        for number in range(100, 100 + again):
            await put_all(store, message(number))
        killed = storage.copy()
    expected = list(range(100, 100 + again))
    for directory in ("", "consumequeue", "checkpoint"):  # as it was, and with what is derived lost
        after = killed.copy()
        if directory:
            for path in [path for path in every_file(after) if path.startswith(f"{ROOT}/{directory}")]:
                after.remove(path)
        async with opened(after) as store:
            assert numbers(store) == expected
            await put_all(store, message(200))
            assert numbers(store) == [*expected, 200]
        assert findings(after) == []


async def test_a_crash_at_any_call_of_the_deletion_leaves_all_or_nothing() -> None:
    storage = await filled(SteppingStorage())
    async with opened(storage) as store:
        before = len(storage.states)
        await store.delete_topic("orders")
        states = [*storage.states[before:], storage.copy()]
    seen = set()
    for state in states:
        async with opened(state) as store:
            found = numbers(store)
            assert found in (list(range(50)), [])
            seen.add(len(found))
            await put_all(store, message(60))
            assert numbers(store) == [*found, 60]
        assert findings(state) == []
    assert len(states) > 5
    assert seen == {0, 50}


async def test_a_deletion_that_cannot_be_written_down_changes_nothing() -> None:
    storage = FaultyStorage()
    async with opened(storage) as store:
        await put_all(store, *[message(number) for number in range(5)])
        storage.fail(os_error(errno.EIO), "write", where="deletedTopics", times=1)
        with pytest.raises(OSError, match="Input/output"):
            await store.delete_topic("orders")
        assert numbers(store) == list(range(5))
        await put_all(store, message(5))
        await store.delete_topic("orders")
        assert numbers(store) == []


async def test_files_that_cannot_be_removed_keep_the_topic_closed_until_they_can() -> None:
    storage = await filled(FaultyStorage())
    async with opened(storage) as store:
        storage.fail(os_error(errno.EIO), "remove", where="/consumequeue/", times=1)
        with pytest.raises(OSError, match="Input/output"):
            await store.delete_topic("orders")
        with pytest.raises(StoreError, match="topic orders is being deleted"):
            store.put(message(60))
        with pytest.raises(StoreError, match="topic orders is being deleted"):
            store.put_batch([message(60)])
        await put_all(store, message(1, topic="other"))
        await store.delete_topic("orders")
        assert not [path for path in every_file(storage) if "/consumequeue/orders/" in path]
        await put_all(store, message(60))
        assert numbers(store) == [60]


async def test_a_topic_whose_files_could_not_be_removed_opens_by_itself_when_they_can() -> None:
    storage, clock = await filled(FaultyStorage()), ManualClock()
    async with opened(storage, clock=clock) as store:
        storage.fail(os_error(errno.EIO), "remove", where="/consumequeue/", times=2)
        with pytest.raises(OSError, match="Input/output"):
            await store.delete_topic("orders")
        with anyio.fail_after(5):
            while [path for path in every_file(storage) if "/consumequeue/orders/" in path] or store.troubles.current:
                await clock.advance(1)
                await anyio.sleep(0.001)
        await put_all(store, message(60))
        assert numbers(store) == [60]
    assert findings(storage) == []


async def test_what_is_stored_between_two_deletions_at_once_is_not_lost() -> None:
    storage = await filled(MemoryStorage())
    async with opened(storage) as store:
        running = 2

        async def delete() -> None:
            nonlocal running
            await store.delete_topic("orders")
            running -= 1

        async with anyio.create_task_group() as group:
            group.start_soon(delete)
            group.start_soon(delete)
            number = 100
            while running:
                await anyio.lowlevel.checkpoint()
                with suppress(StoreError):
                    store.put(message(number))
                    number += 1
    assert findings(storage) == []


async def test_what_retention_has_removed_need_not_be_known_any_more() -> None:
    storage = MemoryStorage()
    async with opened(storage) as store:
        await put_all(store, message(1))
        await store.delete_topic("orders")
        await put_all(store, *[message(number, topic="other") for number in range(100)])
    (end,) = json.loads(contents(storage, TABLE))["deletedTopics"].values()
    assert 0 < end < SMALL.mapped_file_size_commit_log
    storage.remove(f"{ROOT}/commitlog/{0:020d}")
    async with opened(storage):
        pass
    assert json.loads(contents(storage, TABLE)) == {"deletedTopics": {}}


async def test_a_log_that_has_become_shorter_takes_messages_where_deleted_ones_were() -> None:
    storage = MemoryStorage()
    async with opened(storage, dataclasses.replace(SMALL, flush_disk_type=FlushDiskType.ASYNC_FLUSH)) as store:
        await put_all(store, *[message(number) for number in range(3)])
        end = store.max_commit_log_offset
        await put_all(store, *[message(number) for number in range(3, 6)])
        await store.delete_topic("orders")
        killed = storage.copy()
    forget_sync(killed, end)
    overwrite(killed, LOG, end, bytes(1000))
    async with opened(killed) as store:
        assert store.report is not None
        assert store.report.end == end
        await put_all(store, message(7), message(8))
        assert numbers(store) == [7, 8]
        again = killed.copy()
    async with opened(again) as store:
        assert numbers(store) == [7, 8]
