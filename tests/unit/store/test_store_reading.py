"""Reading: what is served is checked, what is cold is read by threads, and nothing a reader asks holds up the loop."""

from __future__ import annotations

import dataclasses
import errno
import threading

import anyio
import pytest

from rocketbox.broker.store.reading import GetMessageStatus
from rocketbox.broker.store.record_reading import WrongEntryError
from rocketbox.errors import StoreBusyError
from rocketbox.protocol.stored_message import decode_message
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.store_tools import (
    LOG,
    ROOT,
    SMALL,
    FaultyStorage,
    ManualClock,
    flip,
    message,
    number_of,
    numbers,
    opened,
    os_error,
    put_all,
    settle,
    stopped,
    until,
)

pytestmark = pytest.mark.anyio

QUEUE = f"{ROOT}/consumequeue/orders/0/{0:020d}"


class WatchedStorage(MemoryStorage):
    """Notes what is called in the thread that made it; reads of ``held`` paths wait while :attr:`go` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.in_loop: list[tuple[str, str]] = []
        self.go = threading.Event()
        self.go.set()
        self.waiting = 0
        self.held = "/commitlog/"
        self._loop = threading.get_ident()

    def begin_call(self, name: str, path: str) -> None:
        if threading.get_ident() == self._loop:
            self.in_loop.append((name, path))
        elif name == "read" and self.held in path and not self.go.is_set():
            self.waiting += 1
            assert self.go.wait(10)


# --- what is served is checked ---


async def test_an_entry_with_a_flipped_bit_is_never_served_and_mended_by_itself() -> None:
    storage, _ = await stopped(*[message(number) for number in range(10)])
    sound = storage.open(QUEUE).read(0, 400)
    clock = ManualClock()
    async with opened(storage, clock=clock) as store:
        for number, bit in enumerate(range(12 * 8), 1):  # of offset and size; that of a tag is no matter of serving
            flip(storage, QUEUE, 5 * 20 + bit // 8, bit % 8)
            with pytest.raises(WrongEntryError, match="entry 5 of orders/0"):
                store.get("orders", 0, 5)
            assert [number_of(record) for record in store.get("orders", 0, 6).records] == [6, 7, 8, 9]
            await until(lambda: store.upkeep.mended == number and not store.troubles.current, clock)  # noqa: B023 - in time
            assert storage.open(QUEUE).read(0, 400) == sound
        assert numbers(store) == list(range(10))


async def test_an_entry_that_leads_to_another_message_of_its_size_is_not_believed() -> None:
    storage, _ = await stopped(message(0), message(1), message(2, topic="others"), message(3))
    other = storage.open(f"{ROOT}/consumequeue/others/0/{0:020d}").read(0, 8)
    clock = ManualClock()
    async with opened(storage, clock=clock) as store:
        storage.open(QUEUE).write(0, [other])  # queue offset 0 of queue 0, in another topic
        with pytest.raises(WrongEntryError):
            store.get("orders", 0, 0)
        await until(lambda: store.upkeep.mended and not store.troubles.current, clock)
        assert numbers(store) == [0, 1, 3]


async def test_a_record_with_a_flipped_bit_is_never_served_and_shows_in_health() -> None:
    storage, places = await stopped(*[message(number) for number in range(4)])
    clock = ManualClock()
    async with opened(storage, clock=clock) as store:
        for position in range(places[1], places[2]):
            flip(storage, LOG, position, position % 8)
            with pytest.raises(WrongEntryError):
                store.get("orders", 0, 1)
            assert store.read(places[1]) is None
            assert number_of(store.get("orders", 0, 0, 1).records[0]) == 0
            assert [number_of(record) for record in store.get("orders", 0, 2).records] == [2, 3]
            flip(storage, LOG, position, position % 8)
        await settle()
        before = storage.open(QUEUE).read(0, 400)
        flip(storage, LOG, places[1] + 90)
        with pytest.raises(WrongEntryError):
            store.get("orders", 0, 1)
        await until(lambda: store.upkeep._damaged, clock)
        assert [trouble.what for trouble in store.health().troubles] == ["serving orders/0"]
        assert [number_of(record) for record in store.get("orders", 0, 0).records] == [0, 2, 3]
        assert (result := store.get("orders", 0, 1, 1)).records == []
        assert (result.status, result.next_begin_offset) == (GetMessageStatus.MESSAGE_WAS_REMOVING, 2)
        assert storage.open(QUEUE).read(0, 400) == before
        flip(storage, LOG, places[1] + 90)
        assert numbers(store) == [0, 1, 2, 3]  # restored, it is there again


async def test_a_file_that_is_removed_while_it_is_read_answers_as_removed() -> None:
    options = dataclasses.replace(SMALL, read_cache_size=0)
    storage = WatchedStorage()
    async with opened(storage, options) as store:
        await put_all(store, *[message(number, size=700) for number in range(12)])
        storage.go.clear()
        async with anyio.create_task_group() as group:
            found = []

            async def fetch() -> None:
                found.append(await store.fetch("orders", 0, 0))

            group.start_soon(fetch)
            await until(lambda: storage.waiting)
            run = store._log.run
            gone, run.starts = run.starts[0], run.starts[1:]
            store._files.forget(run.path(gone))
            storage.remove(run.path(gone))
            storage._files[run.path(gone)] = type(storage._files[run.path(run.starts[0])])()  # reads nothing
            storage.go.set()
        assert found[0].status in {GetMessageStatus.MESSAGE_WAS_REMOVING, GetMessageStatus.FOUND}
        after = await store.fetch("orders", 0, 0)
        assert after.status is GetMessageStatus.MESSAGE_WAS_REMOVING or number_of(after.records[0]) > 0
        assert store.read(0) is None


# --- lanes ---


async def test_nothing_that_a_client_asks_touches_a_file_in_the_loop() -> None:
    storage, clock = WatchedStorage(), ManualClock()
    small_cache = dataclasses.replace(SMALL, read_cache_size=600)
    async with opened(storage, small_cache, clock=clock) as store:
        await put_all(store, *[message(number) for number in range(60)])
    async with opened(storage, small_cache, clock=clock) as store:
        start = clock.now_ms
        storage.in_loop.clear()
        await put_all(store, message(60))  # the first key after a start, for which the slots are read
        await clock.advance(1)
        assert store.get_from_memory("orders", 0, 0) is None
        assert number_of((await store.fetch("orders", 0, 3)).records[0]) == 3
        assert number_of((await store.fetch("orders", 0, 60)).records[0]) == 60
        found = await store.query_keys("orders", "k7", 9, 0, 1 << 60)
        assert [number_of(record) for record in found.records] == [7]
        newest = await store.query_keys("orders", "k60", 9, 0, 1 << 60)
        assert [number_of(record) for record in newest.records] == [60]
        assert await store.find_offset_by_time("orders", 0, start) == 0
        assert await store.read_record(0) is not None
        for number in (0, 30):
            place = decode_message((await store.fetch("orders", 0, number)).records[0])[0].commit_log_offset
            read = await store.read_message(place)
            assert read is not None
            assert number_of(read) == number
        assert storage.in_loop == []


async def test_who_reads_old_messages_from_a_slow_disk_holds_up_nobody_else() -> None:
    storage = WatchedStorage()
    options = dataclasses.replace(SMALL, read_cache_size=4000)
    async with opened(storage, options) as store:
        await put_all(store, *[message(number) for number in range(60)])
        storage.go.clear()
        async with anyio.create_task_group() as group:
            group.start_soon(store.fetch, "orders", 0, 0)
            await until(lambda: storage.waiting)
            await put_all(store, message(60))
            newest = store.get_from_memory("orders", 0, 60)
            assert newest is not None
            assert number_of(newest.records[0]) == 60
            storage.go.set()


async def test_reading_in_threads_goes_together_with_putting_and_writing() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    options = dataclasses.replace(SMALL, read_cache_size=2000, mapped_file_size_commit_log=1 << 16)
    async with opened(storage, options, clock=clock) as store:
        await put_all(store, message(0))
        wrong: list[object] = []

        async def read_all() -> None:
            offset = 0
            while offset < 400 and not wrong:
                found = await anyio.to_thread.run_sync(store.get, "orders", 0, offset)
                for record in found.records:
                    if number_of(record) != offset:
                        wrong.append((offset, number_of(record)))
                    offset += 1

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(read_all)
            for number in range(1, 400):
                end = store.put(message(number)).end_offset
                if number % 20 == 0:
                    await store.durable(end)
                    await clock.advance(1)
            await store.durable(end)
        assert wrong == []


async def test_a_query_by_key_looks_at_a_bounded_part_of_the_index() -> None:
    options = dataclasses.replace(
        SMALL,
        max_index_num=20_000,
        max_hash_slot_num=8,
        max_index_search_steps=600,
        mapped_file_size_commit_log=1 << 20,
    )
    clock = ManualClock()
    async with opened(MemoryStorage(), options, clock=clock) as store:
        await put_all(store, message(0, KEYS="first"))
        begin = clock.now_ms
        clock.now_ms += 5000
        last = [store.put(message(number, TAGS="all", KEYS="all")).end_offset for number in range(1, 2000)][-1]
        await store.durable(last)
        newest = await store.query_keys("orders", "all", 5, 0, 1 << 60)
        assert [number_of(record) for record in newest.records] == [1999, 1998, 1997, 1996, 1995]
        assert newest.is_complete
        none = await store.query_keys("orders", "T#all", 5, 0, begin)  # matches, all of them too new
        assert none.records == []
        assert not none.is_complete
        assert 600 <= none.looked_at < 600 + 256


# --- the bytes that may wait ---


async def test_more_bytes_than_may_wait_for_the_disk_are_refused_until_it_has_caught_up() -> None:
    class HeldStorage(FaultyStorage):
        def __init__(self) -> None:
            super().__init__()
            self.go = threading.Event()
            self.go.set()

        def begin_call(self, name: str, path: str) -> None:
            super().begin_call(name, path)
            if name == "sync" and "/commitlog/" in path:
                assert self.go.wait(10)

    storage = HeldStorage()
    options = dataclasses.replace(
        SMALL, mapped_file_size_commit_log=1 << 20, allocate_ahead=1 << 18, max_waiting_bytes=50_000
    )
    async with opened(storage, options) as store:
        await put_all(store, message(0))
        storage.go.clear()
        taken = 0
        while store.health().waiting_bytes <= 49_000:
            taken += 1
            store.put(message(taken, size=1000))
            if taken % 7 == 0:
                await settle()
        with pytest.raises(StoreBusyError, match=r"\d+ bytes of messages wait .* max-waiting-bytes is 50000"):
            store.put(message(taken, size=1000))
        assert 35 <= taken < 50
        health = store.health()
        assert 45_000 < health.waiting_bytes <= 50_000 + 200
        assert health.refused_busy == 1
        assert store.refusal is None
        storage.go.set()
        await store.durable(store._log.end)
        assert store.health().waiting_bytes == 0
        await put_all(store, message(500, size=60_000))  # alone it may be larger
        assert numbers(store) == [*range(taken + 1), 500]


async def test_a_read_that_fails_is_told_and_tried_again_by_who_asks() -> None:
    storage, _ = await stopped(*[message(number) for number in range(5)])
    faulty = FaultyStorage()
    faulty._files, faulty._directories = storage._files, storage._directories
    async with opened(faulty) as store:
        faulty.fail(os_error(errno.EIO), "read", where="/commitlog/", times=1)
        with pytest.raises(OSError, match="Input/output"):
            await store.fetch("orders", 0, 0)
        assert numbers(store) == [0, 1, 2, 3, 4]
