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

from rocketbox.broker.store import deleted_topics
from rocketbox.broker.store.options import FlushDiskType
from rocketbox.broker.store.reading import GetMessageStatus
from rocketbox.broker.store.store_check import check_store, find_files
from rocketbox.errors import InvalidMessageError, StoreError
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.store_tools import (
    CHECKPOINT,
    LOG,
    ROOT,
    SMALL,
    FaultyStorage,
    ManualClock,
    SteppingStorage,
    contents,
    expire_first_file,
    forget_sync,
    message,
    numbers,
    opened,
    os_error,
    overwrite,
    put_all,
)
from tests.support.waiting import PATIENCE

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
        assert store.get("orders", 0, 0).status is GetMessageStatus.OFFSET_TOO_SMALL
        assert store.min_offset("orders", 0) == store.max_offset("orders", 0)
        assert [topic for topic, _ in store.queues()] == ["other"]
        assert numbers(store, "other") == list(range(5))
        await store.delete_topic("nowhere")


async def test_its_files_are_gone_and_a_new_one_begins() -> None:
    storage = await filled(MemoryStorage())
    async with opened(storage) as store:
        await store.delete_topic("orders")
        assert not [path for path in every_file(storage) if "/consumequeue/orders/" in path]
        await put_all(store, message(100), message(101))
        assert numbers(store) == [100, 101]
        assert store.max_offset("orders", 0) - store.min_offset("orders", 0) == 2
    assert findings(storage) == []
    async with opened(storage) as store:
        assert numbers(store) == [100, 101]
        await put_all(store, message(102))
        assert numbers(store) == [100, 101, 102]


async def test_a_message_that_is_refused_when_the_topic_is_made_again_has_no_queue_built_again() -> None:
    storage = MemoryStorage()
    async with opened(storage) as store:
        await put_all(store, message(0))
        await store.delete_topic("orders")
        with pytest.raises(InvalidMessageError):
            store.put(message(100, size=store.options.max_message_size + 1))
    async with opened(storage) as store:
        assert store.report is not None
        assert store.report.records == 0  # nothing of the log was read
        await put_all(store, message(100))
        assert numbers(store) == [100]


async def test_a_deletion_that_could_not_be_noted_for_certain_is_not_done_by_the_next_start() -> None:
    storage = FaultyStorage()
    async with opened(storage) as store:
        await put_all(store, *[message(number) for number in range(50)])
        storage.fail(os_error(errno.EIO), "sync_directory", where="config", times=1)  # its new table is there
        with pytest.raises(OSError, match="Input/output"):
            await store.delete_topic("orders")
        assert numbers(store) == list(range(50))
        await put_all(store, message(50))
    async with opened(storage) as store:
        assert numbers(store) == list(range(51))


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
        with anyio.fail_after(PATIENCE):
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
    expire_first_file(storage)
    async with opened(storage):
        pass
    table = json.loads(contents(storage, TABLE))
    assert table["deletedTopics"] == {}
    assert table["queueBegins"]["orders"]["0"] > 0  # whoever has its offsets may come back later


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


async def test_a_topic_made_again_begins_behind_all_offsets_of_the_old_one() -> None:
    """So that whoever goes on with an offset of the old one misses nothing of the new one."""
    storage = await filled(MemoryStorage())
    async with opened(storage) as store:
        await put_all(store, message(1, queue_id=3))
        await store.delete_topic("orders")
        begin = store.min_offset("orders", 0)
        assert begin >= 50
        assert (store.max_offset("orders", 0), store.first_offset("orders", 0)) == (begin, begin)
        assert store.first_offset("orders", 3) >= 1
        assert store.first_offset("orders", 1) == store.first_offset("other", 0) == 0
        for offset, status in (
            (49, GetMessageStatus.OFFSET_TOO_SMALL),
            (begin, GetMessageStatus.OFFSET_OVERFLOW_ONE),
            (begin + 7, GetMessageStatus.OFFSET_OVERFLOW_BADLY),
        ):
            found = store.get("orders", 0, offset)
            assert (found.status, found.next_begin_offset, found.min_offset) == (status, begin, begin)
        await put_all(store, message(100))
        assert store.get("orders", 0, 3).next_begin_offset == begin
        assert store.min_offset("orders", 0) == begin
        await store.delete_topic("orders")
        await store.delete_topic("orders")
        again = store.min_offset("orders", 0)
        assert again > begin
        killed = storage.copy()
    for state in (storage, killed):
        async with opened(state) as store:
            assert store.first_offset("orders", 0) == again
            await put_all(store, message(200), message(201))
            assert (store.min_offset("orders", 0), store.max_offset("orders", 0)) == (again, again + 2)
            assert numbers(store) == [200, 201]
        assert findings(state) == []


@pytest.mark.parametrize("lost", ["", "consumequeue", "checkpoint"])
async def test_offsets_of_a_topic_made_again_are_the_same_after_every_kind_of_restart(lost: str) -> None:
    storage = await filled(MemoryStorage())
    async with opened(storage) as store:
        await store.delete_topic("orders")
        for number in range(100, 130):
            await put_all(store, message(number))
        ends = (store.min_offset("orders", 0), store.max_offset("orders", 0))
        killed = storage.copy()
    for state in (killed, storage):
        for path in [path for path in every_file(state) if lost and path.startswith(f"{ROOT}/{lost}")]:
            state.remove(path)
        async with opened(state) as store:
            assert (store.min_offset("orders", 0), store.max_offset("orders", 0)) == ends
            assert numbers(store) == list(range(100, 130))
        assert findings(state) == []


async def test_files_of_another_size_keep_the_offsets_of_a_topic_made_again() -> None:
    storage = await filled(MemoryStorage())
    async with opened(storage) as store:
        await store.delete_topic("orders")
        await put_all(store, message(100))
        begin = store.min_offset("orders", 0)
    for path in [path for path in every_file(storage) if path.startswith(f"{ROOT}/consumequeue")]:
        storage.remove(path)
    async with opened(storage, dataclasses.replace(SMALL, mapped_file_size_consume_queue=20 * 37)) as store:
        assert store.min_offset("orders", 0) == begin
        assert numbers(store) == [100]


async def test_what_another_broker_has_stored_from_offset_0_on_is_kept() -> None:
    """A broker that does not know the table begins a topic that is made again at 0."""
    storage = await filled(MemoryStorage())
    async with opened(storage) as store:
        await store.delete_topic("orders")
    table = contents(storage, TABLE)
    for name in (TABLE, f"{TABLE}.crc", f"{TABLE}.bak"):
        if storage.exists(name):
            storage.remove(name)
    for path in [path for path in every_file(storage) if "consumequeue" in path or "commitlog" in path]:
        storage.remove(path)
    storage.remove(CHECKPOINT)
    async with opened(storage) as store:
        await put_all(store, message(1), message(2))
    for path in [path for path in every_file(storage) if path.startswith(f"{ROOT}/consumequeue")]:
        storage.remove(path)
    storage.remove(CHECKPOINT)
    ends = json.loads(table)
    ends["deletedTopics"] = {}
    file = storage.open(TABLE, create=True)
    file.truncate(0)
    file.write(0, [b"{\n" + json.dumps(ends).encode()[1:]])
    async with opened(storage) as store:
        assert numbers(store) == [1, 2]


async def test_deleted_topics_are_kept_in_mind_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleted_topics, "MOST_DELETED_TOPICS", 3)
    storage = MemoryStorage()
    async with opened(storage) as store:
        for number in range(3):
            await put_all(store, message(number, topic=f"t{number}"))
            await store.delete_topic(f"t{number}")
        await put_all(store, message(5, topic="t5"), message(6, topic="t0"))
        await store.delete_topic("t0")
        with pytest.raises(StoreError, match=r"3 deleted topics .* 3 is the most"):
            await store.delete_topic("t5")
        assert numbers(store, "t5") == [5]
        await put_all(store, *[message(number, topic="other") for number in range(100)])
    expire_first_file(storage)
    async with opened(storage) as store:
        await store.delete_topic("other")
        assert set(json.loads(contents(storage, TABLE))["queueBegins"]) == {"t2", "t0", "other"}
