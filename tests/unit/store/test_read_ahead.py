"""Reading ahead: who catches up is served from memory, what is read in vain is bounded, and nothing wrong is served."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.store.reading import GetMessageStatus
from rocketbox.broker.store.record_reading import WrongEntryError
from rocketbox.protocol.tags import tags_code
from rocketbox.storage.file_system import StorageFile
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.store_tools import (
    LOG,
    ROOT,
    ManualClock,
    flip,
    message,
    number_of,
    numbers,
    opened,
    overwrite,
    until,
)

pytestmark = pytest.mark.anyio

OPTIONS = StoreOptions(
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=20_000,
    max_hash_slot_num=16,
    max_index_num=64,
    allocate_ahead=0,
    message_index_enable=False,
)
BODY = 1000
FAR: dict[str, Any] = {"read_cache_size": 1 << 20, "mapped_file_size_commit_log": 1 << 24}
QUEUE = f"{ROOT}/consumequeue/orders/0/{0:020d}"


class _Counted:
    """A file whose reads are counted."""

    def __init__(self, storage: CountingStorage, file: StorageFile) -> None:
        self._storage = storage
        self._file = file

    def read(self, offset: int, size: int) -> bytes:
        self._storage.read_from(self._file.path)
        data = self._file.read(offset, size)
        self._storage.count(self._file.path, len(data))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class CountingStorage(MemoryStorage):
    """Counts reads, and the bytes that they read; those of the log wait while :attr:`go` is not set."""

    def __init__(self, files: MemoryStorage) -> None:
        super().__init__()
        self.take(files)
        self.sizes: list[tuple[str, int]] = []
        self.waiting = 0
        self.go = threading.Event()
        self.go.set()

    def open(self, path: str, *, create: bool = False) -> Any:
        return _Counted(self, super().open(path, create=create))

    def read_from(self, path: str) -> None:
        if "/commitlog/" in path and not self.go.is_set():
            self.waiting += 1
            assert self.go.wait(10)

    def count(self, path: str, size: int) -> None:
        self.sizes.append((path, size))

    @property
    def bytes_of_log(self) -> int:
        return sum(size for path, size in self.sizes if "/commitlog/" in path)


@asynccontextmanager
async def holding(
    count: int, *, queues: int = 4, size: int = BODY, clock: ManualClock | None = None, **changes: Any
) -> AsyncIterator[tuple[MessageStore, CountingStorage]]:
    """A store that was stopped with so many messages in so many queues, and opened again: none is in memory."""
    options = dataclasses.replace(OPTIONS, **changes)
    storage = MemoryStorage()
    async with opened(storage, options) as store:
        for number in range(count):
            end = store.put(message(number, queue_id=number % queues, size=size)).end_offset
        await store.durable(end)
    counting = CountingStorage(storage)
    async with opened(counting, options, clock=clock) as store:
        counting.sizes.clear()
        yield store, counting


async def caught_up(store: MessageStore, queue_ids: Sequence[int], *, end: int | None = None) -> dict[int, list[int]]:
    """The numbers of the messages that pulls of all these queues, in turns, are answered with."""
    found: dict[int, list[int]] = {queue_id: [] for queue_id in queue_ids}
    offsets = dict.fromkeys(queue_ids, 0)
    while offsets:
        for queue_id, offset in list(offsets.items()):
            result = await store.fetch("orders", queue_id, offset)
            found[queue_id] += [number_of(record) for record in result.records]
            offsets[queue_id] = result.next_begin_offset
            if result.status is not GetMessageStatus.FOUND or result.next_begin_offset == end:
                del offsets[queue_id]
    return found


async def pulled(store: MessageStore, offset: int) -> list[int]:
    """The numbers of the messages that a pull is answered with; none when it is answered with an error."""
    try:
        return [number_of(record) for record in (await store.fetch("orders", 0, offset)).records]
    except WrongEntryError:
        return []


def all_of(count: int, queues: int) -> dict[int, list[int]]:
    return {queue_id: list(range(queue_id, count, queues)) for queue_id in range(queues)}


# --- what it saves ---


async def test_consumers_of_all_queues_that_catch_up_share_a_few_long_reads() -> None:
    async with holding(1600) as (store, storage):
        assert await caught_up(store, range(4)) == all_of(1600, 4)
        assert len(storage.sizes) <= 16  # 50 pulls; the log has 1.9 MB
        assert storage.bytes_of_log < 1.1 * store.max_commit_log_offset


async def test_what_was_read_ahead_is_served_without_a_look_into_a_file() -> None:
    async with holding(400) as (store, storage):
        await store.fetch("orders", 0, 0)
        storage.sizes.clear()
        found = store.get_from_memory("orders", 0, 32)
        assert found is not None
        assert [number_of(record) for record in found.records] == list(range(128, 256, 4))
        assert (found.status, found.next_begin_offset) == (GetMessageStatus.FOUND, 64)
        await store.fetch("orders", 1, 0)
        assert [path for path, _ in storage.sizes if "/commitlog/" in path] == []  # its records lie between


async def test_the_next_run_is_read_before_anybody_asks_for_it() -> None:
    async with holding(1600, queues=1) as (store, storage):
        offset = 0
        while offset < 320:
            offset = (await store.fetch("orders", 0, offset)).next_begin_offset
        await until(lambda: store.get_from_memory("orders", 0, 576) is not None)
        storage.sizes.clear()
        while offset < 608:
            found = store.get_from_memory("orders", 0, offset)
            assert found is not None
            offset = found.next_begin_offset
        assert [path for path, _ in storage.sizes if "/consumequeue/" in path] == []


async def test_a_message_of_which_a_part_lies_in_the_next_run_is_served_from_memory_too() -> None:
    async with holding(1600, queues=1, mapped_file_size_commit_log=1 << 24) as (store, storage):
        offset = 0
        while offset < 1500:
            offset = (await store.fetch("orders", 0, offset)).next_begin_offset
        ends = {run.end for run in store._reader._ahead._runs}
        places = list(store._derived.find("orders", 0).units(0, 1500))  # type: ignore[union-attr]
        across = [number for number, (at, size, _) in enumerate(places) if any(at < end < at + size for end in ends)]
        assert len(across) >= 2
        storage.sizes.clear()
        for number in across:
            found = await store.fetch("orders", 0, number - 3, 5)
            assert [number_of(record) for record in found.records] == list(range(number - 3, number + 2))
        assert [path for path, _ in storage.sizes if "/commitlog/" in path] == []


async def test_several_who_want_the_same_part_of_the_log_read_it_once() -> None:
    async with holding(400) as (store, storage):
        storage.go.clear()
        async with anyio.create_task_group() as group:
            for queue_id in range(4):
                group.start_soon(store.fetch, "orders", queue_id, 0)
            await until(lambda: storage.waiting)
            storage.go.set()
        assert storage.bytes_of_log < 1.1 * store.max_commit_log_offset


async def test_messages_that_a_filter_selects_are_served_from_memory_too() -> None:
    class Tagged:
        def matches_unit(self, code: int) -> bool:
            return code == tags_code("t1")

        def matches_record(self, record: bytes) -> bool:
            return True

    async with holding(400, queues=1) as (store, storage):
        first = await store.fetch("orders", 0, 0, filter=Tagged())
        storage.sizes.clear()
        found = store.get_from_memory("orders", 0, first.next_begin_offset, filter=Tagged())
        assert found is not None
        assert [number_of(record) for record in found.records] == list(range(97, 193, 3))
        assert storage.sizes == []


# --- what it may cost ---


async def test_one_queue_of_very_many_reads_little_more_than_it_is_served() -> None:
    async with holding(3200, queues=32, mapped_file_size_commit_log=1 << 23) as (store, storage):
        assert await caught_up(store, [7]) == {7: list(range(7, 3200, 32))}
        served = 100 * (BODY + 300)
        assert storage.bytes_of_log <= 1.2 * served


async def test_what_is_read_in_vain_is_bounded_by_what_is_served() -> None:
    # One queue of six: its records lie close enough together, but five bytes of six are nobody's.
    async with holding(6000, queues=6, read_cache_size=1 << 20, mapped_file_size_commit_log=1 << 24) as (
        store,
        storage,
    ):
        assert await caught_up(store, [2]) == {2: list(range(2, 6000, 6))}
        served = 1000 * (BODY + 300)
        assert storage.bytes_of_log <= 4 * served + (1 << 18)
        assert store.max_commit_log_offset > 6_000_000


async def test_reads_here_and_there_soon_read_no_more_than_they_are_served() -> None:
    async with holding(6000, queues=1, read_cache_size=1 << 20, mapped_file_size_commit_log=1 << 24) as (
        store,
        storage,
    ):
        count = 0
        for turn in range(4):
            for offset in range(5900 - 40 * turn, 0, -160):
                found = await store.fetch("orders", 0, offset, 8)
                assert [number_of(record) for record in found.records] == list(range(offset, offset + 8))
                count += 1
        assert storage.bytes_of_log <= 3 * count * 8 * (BODY + 300) + (1 << 19)


async def test_what_is_kept_stays_within_a_quarter_of_the_read_cache() -> None:
    async with holding(2000, read_cache_size=400_000) as (store, _):
        await caught_up(store, range(4))
        ahead = store._reader._ahead
        runs = sum(len(run.data) for run in ahead._runs)
        units = sum(len(units) for _, _, units in ahead._units.values())
        assert 0 < runs + units <= 100_000
        assert runs == ahead._held


async def test_without_a_read_cache_nothing_is_read_ahead() -> None:
    async with holding(400, read_cache_size=0) as (store, storage):
        assert await caught_up(store, range(4)) == all_of(400, 4)
        assert len([path for path, _ in storage.sizes if "/commitlog/" in path]) >= 16
        assert store.get_from_memory("orders", 0, 0) is None


# --- what is served is right ---


async def test_a_record_that_is_damaged_is_not_read_ahead_and_those_around_it_are() -> None:
    async with holding(200, queues=1) as (store, storage):
        place, size, _ = next(store._derived.find("orders", 0).units(40, 1))  # type: ignore[union-attr]
        for position in range(0, size, 7):
            flip(storage, LOG, place + position, position % 8)
            store._reader.begin(store._log, store._derived, store._feed)
            assert await pulled(store, 8) == list(range(8, 40))
            assert await pulled(store, 33) in ([], [*range(33, 40), *range(41, 65)])  # later it is known to be damaged
            assert await pulled(store, 41) == list(range(41, 73))
            flip(storage, LOG, place + position, position % 8)


async def test_a_damaged_record_of_another_queue_keeps_nobody_from_what_lies_behind_it() -> None:
    async with holding(200, queues=2) as (store, storage):
        place, size, _ = next(store._derived.find("orders", 1).units(49, 1))  # type: ignore[union-attr]
        overwrite(storage, LOG, place, b"\xff" * size)
        await store.fetch("orders", 0, 0)
        found = store.get_from_memory("orders", 0, 32)
        assert found is not None
        assert [number_of(record) for record in found.records] == list(range(64, 128, 2))


async def test_a_record_that_is_damaged_after_it_was_read_ahead_is_served_as_it_was() -> None:
    async with holding(200, queues=1) as (store, storage):
        await store.fetch("orders", 0, 0)
        place, size, _ = next(store._derived.find("orders", 0).units(40, 1))  # type: ignore[union-attr]
        overwrite(storage, LOG, place, b"\xff" * size)
        found = await store.fetch("orders", 0, 32)
        assert [number_of(record) for record in found.records] == list(range(32, 64))
        with pytest.raises(WrongEntryError):
            store.get("orders", 0, 40)


async def test_an_entry_with_a_flipped_bit_is_not_served_from_what_was_read_ahead() -> None:
    clock = ManualClock()
    async with holding(200, queues=1, clock=clock) as (store, storage):
        await store.fetch("orders", 0, 0)
        for bit in range(0, 12 * 8, 5):
            flip(storage, QUEUE, 40 * 20 + bit // 8, bit % 8)
            assert await pulled(store, 40) == list(range(40, 72))  # the sound entries are in memory
            store._reader._ahead._units.clear()
            assert await pulled(store, 40) == []
            await until(lambda: not store.troubles.current, clock)
            assert await pulled(store, 40) == list(range(40, 72))


async def test_an_entry_that_leads_to_another_message_is_not_served_from_what_was_read_ahead() -> None:
    async with holding(200, queues=2) as (store, storage):
        await store.fetch("orders", 0, 0)
        other = f"{ROOT}/consumequeue/orders/1/{0:020d}"
        for path, entry in ((QUEUE, 41), (other, 40)):  # of the same queue, and with its number of another
            sound = storage.open(QUEUE).read(40 * 20, 20)
            overwrite(storage, QUEUE, 40 * 20, storage.open(path).read(entry * 20, 20))
            store._reader._ahead._units.clear()
            with pytest.raises(WrongEntryError, match="entry 40 of"):
                await store.fetch("orders", 0, 32)
            overwrite(storage, QUEUE, 40 * 20, sound)


async def test_units_that_were_mended_are_not_served_as_they_were() -> None:
    class Tagged:
        def matches_unit(self, code: int) -> bool:
            return code == tags_code("t1")

        def matches_record(self, record: bytes) -> bool:
            return True

    clock = ManualClock()
    async with holding(200, queues=1, clock=clock) as (store, storage):
        flip(storage, QUEUE, 40 * 20 + 19)  # of the tags code, which nobody can see is wrong
        found = await store.fetch("orders", 0, 0, filter=Tagged())
        again = store.get_from_memory("orders", 0, 37, 4, filter=Tagged())
        assert again is not None
        assert [number_of(record) for record in again.records] == [37, 43, 46, 49]
        await store.upkeep.check(store._pool)
        assert store.upkeep.mended
        again = await store.fetch("orders", 0, 37, 4, filter=Tagged())
        assert [number_of(record) for record in again.records] == [37, 40, 43, 46]
        assert found.records


async def test_a_topic_that_is_deleted_and_made_again_has_none_of_the_old_messages() -> None:
    async with holding(200, queues=1) as (store, _):
        await store.fetch("orders", 0, 0)
        await store.delete_topic("orders")
        begin = store.first_offset("orders", 0)
        assert begin >= 200
        for number in range(300, 340):
            end = store.put(message(number, size=BODY)).end_offset
        await store.durable(end)
        assert (await store.fetch("orders", 0, 40)).status is GetMessageStatus.OFFSET_TOO_SMALL
        found = await store.fetch("orders", 0, begin)
        assert [number_of(record) for record in found.records] == list(range(300, 332))
        assert numbers(store) == list(range(300, 340))


async def test_what_retention_has_removed_is_not_served_from_memory() -> None:
    async with holding(200, queues=1, mapped_file_size_commit_log=1 << 16) as (store, _):
        await store.fetch("orders", 0, 0)
        assert store.get_from_memory("orders", 0, 8, 8) is not None
        assert store._log.run.remove_first()
        assert store.get_from_memory("orders", 0, 8, 8) is None
        first = next(
            number
            for number, (place, _, _) in enumerate(store._derived.find("orders", 0).units(0, 200))  # type: ignore[union-attr]
            if place >= store.min_commit_log_offset
        )
        assert store.get_from_memory("orders", 0, first - 3, 8) is None  # that some are gone, the disk decides
        for queue in store._derived:
            queue.set_min_offset(store._log.start)
        assert await pulled(store, 8) == []
        assert (await pulled(store, store.min_offset("orders", 0)))[0] == store.min_offset("orders", 0) > 8
        gone = store.get_from_memory("orders", 0, 8, 8)
        assert gone is not None
        assert gone.status is GetMessageStatus.OFFSET_TOO_SMALL


async def test_messages_in_several_files_of_the_log_are_all_found() -> None:
    async with holding(600, queues=3, mapped_file_size_commit_log=1 << 16) as (store, _):
        assert await caught_up(store, range(3)) == all_of(600, 3)


async def test_small_messages_are_all_found() -> None:
    async with holding(3000, queues=3, size=10) as (store, storage):
        assert await caught_up(store, range(3)) == all_of(3000, 3)
        assert len(storage.sizes) <= 40
