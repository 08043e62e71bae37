"""Opening a store after a clean stop is cheap, whatever is in it; and what does not fit is noticed all the same."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import pytest

from rocketbox.errors import StoreLockedError
from rocketbox.storage.file_system import StorageFile
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.store_tools import (
    CHECKPOINT,
    LOG,
    ROOT,
    SMALL,
    ManualClock,
    check_index,
    contents,
    message,
    numbers,
    opened,
    overwrite,
    put_all,
    remove_tree,
    stopped,
)

pytestmark = pytest.mark.anyio

LARGE = dataclasses.replace(
    SMALL,
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=(1 << 20) // 20 * 20,
    max_hash_slot_num=100_000,
    max_index_num=200_000,
    allocate_ahead=1 << 18,
)


class CountingStorage(MemoryStorage):
    """Adds up how many bytes are read of each file."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes_read: Counter[str] = Counter()

    def open(self, path: str, *, create: bool = False) -> StorageFile:
        return _CountingFile(self, super().open(path, create=create))


class _CountingFile:
    def __init__(self, storage: CountingStorage, file: StorageFile) -> None:
        self.path = file.path
        self._storage = storage
        self._file = file

    def read(self, offset: int, size: int) -> bytes:
        data = self._file.read(offset, size)
        self._storage.bytes_read[self.path] += len(data)
        return data

    def write(self, offset: int, chunks: Sequence[bytes]) -> None:
        self._file.write(offset, chunks)

    def sync(self) -> None:
        self._file.sync()

    def allocate(self, offset: int, size: int) -> None:
        self._file.allocate(offset, size)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def size(self) -> int:
        return self._file.size()

    def next_data(self, offset: int) -> int | None:
        return self._file.next_data(offset)

    def close(self) -> None:
        self._file.close()


async def filled(*, sparse: bool) -> CountingStorage:
    """A stopped store with 3 log files, 40 queues and 3000 messages; its files with holes, or written to the end."""
    storage = CountingStorage()
    async with opened(storage, LARGE) as store:
        for first in range(0, 3000, 500):
            await put_all(store, *[message(n, queue_id=n % 40, size=700) for n in range(first, first + 500)])
    if not sparse:
        for directory in ("commitlog", *(f"consumequeue/orders/{queue_id}" for queue_id in range(40))):
            for name in storage.list_directory(f"{ROOT}/{directory}"):
                path = f"{ROOT}/{directory}/{name}"
                overwrite(storage, path, 0, contents(storage, path))
    storage.bytes_read.clear()
    return storage


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("sparse", [True, False])
async def test_after_a_clean_stop_little_is_read_of_each_file(sparse: bool) -> None:
    storage = await filled(sparse=sparse)
    async with opened(storage, LARGE) as store:
        read = Counter(storage.bytes_read)
        assert store.report is not None
        assert store.report.records == 0
        assert [numbers(store, queue_id=queue_id) for queue_id in range(40)] == [
            list(range(queue_id, 3000, 40)) for queue_id in range(40)
        ]
        await check_index(store, 0, 1234, 2999, complete=False)
    assert len(storage.list_directory(f"{ROOT}/commitlog")) == 3
    assert max(read.values()) <= 64 << 10
    queue_files = [path for path in read if "consumequeue" in path]
    assert len(queue_files) == 40
    assert max(read[path] for path in queue_files) <= 10 << 10
    assert sum(read[path] for path in read if "commitlog" in path) <= 64 << 10


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_store_that_goes_on_after_a_cheap_start_recovers_all_of_it_when_it_is_killed() -> None:
    storage = await filled(sparse=True)
    async with opened(storage, LARGE) as store:
        await put_all(store, *[message(n, queue_id=n % 40, size=700) for n in range(3000, 3100)])
        storage.bytes_read.clear()
        killed = storage.copy()
    async with opened(killed, LARGE) as store:
        assert store.report is not None
        assert store.report.records == 100
        assert [numbers(store, queue_id=queue_id) for queue_id in range(40)] == [
            list(range(queue_id, 3100, 40)) for queue_id in range(40)
        ]


@pytest.mark.parametrize("exchanged", [False, True])
async def test_queues_that_do_not_end_where_the_checkpoint_says_are_built_again(exchanged: bool) -> None:
    """Also where the ends of two are exchanged, so that their sum is the same."""
    storage, _ = await stopped(
        *[message(n) for n in range(12)],
        *[message(n, topic="other") for n in range(8)],
    )
    one, other = f"{ROOT}/consumequeue/orders/0/{0:020d}", f"{ROOT}/consumequeue/other/0/{0:020d}"
    if exchanged:
        data = contents(storage, one)
        overwrite(storage, one, 0, contents(storage, other))
        overwrite(storage, other, 0, data)
    else:
        overwrite(storage, one, 20 * 11, bytes(20))
    async with opened(storage) as store:
        assert numbers(store) == list(range(12))
        assert numbers(store, "other") == list(range(8))
    async with opened(storage) as store:
        assert store.report is not None
        assert store.report.records == 0
        assert numbers(store) == list(range(12))


async def test_a_queue_without_its_newest_entries_gets_them_where_no_checkpoint_says_what_it_had() -> None:
    """Another broker has stopped cleanly. Others of its queues are whole, and newer than what this one has left."""
    storage, _ = await stopped(
        *[message(number, size=700) for number in range(9)],
        message(0, queue_id=1),
        message(9, size=700),
    )
    storage.remove(CHECKPOINT)
    queue = f"{ROOT}/consumequeue/orders/0/{0:020d}"
    for left in (0, 3, 8):
        damaged = storage.copy()
        overwrite(damaged, queue, 20 * left, bytes(400 - 20 * left))
        async with opened(damaged) as store:
            assert numbers(store) == list(range(10)), left
            assert numbers(store, queue_id=1) == [0]
            await put_all(store, message(10))
        async with opened(damaged) as store:
            assert numbers(store) == list(range(11)), left


async def test_an_only_file_of_the_log_keeps_its_size_whatever_size_the_settings_say() -> None:
    storage, _ = await stopped(*[message(number) for number in range(5)])
    larger = dataclasses.replace(SMALL, mapped_file_size_commit_log=2 * 4096)
    async with opened(storage, larger) as store:
        assert storage.open(LOG).size() == store._log.run.file_size == 4096
        await put_all(store, *[message(number) for number in range(5, 30)])
        assert numbers(store) == list(range(30))
    directory = f"{ROOT}/commitlog"
    assert {storage.open(f"{directory}/{name}").size() for name in storage.list_directory(directory)} == {4096}


async def test_the_store_time_does_not_go_back_though_no_record_was_read() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, clock=clock) as store:
        await put_all(store, message(0))
        newest = clock.now_ms
    clock.now_ms -= 60_000
    async with opened(storage, clock=clock) as store:
        assert store.put(message(1)).store_timestamp_ms == newest


async def test_the_checkpoint_after_a_cheap_start_says_what_it_said() -> None:
    storage, _ = await stopped(*[message(n) for n in range(12)])
    before = contents(storage, CHECKPOINT)
    async with opened(storage):
        assert contents(storage, CHECKPOINT) == before
    assert contents(storage, CHECKPOINT) == before


async def test_a_lost_log_is_noticed_without_reading_it() -> None:
    storage, _ = await stopped(*[message(n) for n in range(12)])
    remove_tree(storage, f"{ROOT}/commitlog")
    with pytest.raises(Exception, match="synced up to"):
        async with opened(storage):
            raise AssertionError("it must not open")
    assert not storage.exists(LOG)


async def test_a_store_that_is_entered_twice_refuses_and_goes_on() -> None:
    storage = MemoryStorage()
    async with opened(storage) as store:
        await put_all(store, message(0))
        with pytest.raises(StoreLockedError):
            async with store:
                pass
        await put_all(store, message(1))
        assert numbers(store) == [0, 1]
        assert store.health().durable_offset == store.max_commit_log_offset > 0
    async with store:  # one behind the other it may be
        await put_all(store, message(2))
        assert numbers(store) == [0, 1, 2]
    assert not storage.exists(f"{ROOT}/abort")
