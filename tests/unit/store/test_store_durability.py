"""When a message counts as safe: never before its sync; and what happens when the disk refuses."""

from __future__ import annotations

import dataclasses
import errno
import os
import threading
from functools import partial
from itertools import pairwise

import anyio
import pytest

from rocketbox.broker.store.options import FlushDiskType, StoreOptions
from rocketbox.broker.store.waiting import DurableCallback
from rocketbox.errors import StoreFailedError
from rocketbox.storage.memory_storage import MemoryStorage, StorageCall
from tests.support.store.store_tools import (
    LOG,
    ROOT,
    SMALL,
    FailingStorage,
    ManualClock,
    check_index,
    message,
    numbers,
    opened,
    put_all,
    settle,
    until,
)

pytestmark = pytest.mark.anyio

ASYNC = dataclasses.replace(SMALL, flush_disk_type=FlushDiskType.ASYNC_FLUSH)


class SlowStorage(MemoryStorage):
    """Syncs of the commit log wait until :attr:`may_sync` allows them, writes of ``held`` paths :attr:`may_write`."""

    held = "nothing"

    def __init__(self) -> None:
        super().__init__()
        self.may_sync, self.may_write = threading.Event(), threading.Event()
        self.may_sync.set()
        self.may_write.set()
        self.syncs_begun = self.writes_begun = 0

    def record(self, name: str, path: str, offset: int = 0, size: int = 0) -> None:
        if name == "write" and self.held in path:
            self.writes_begun += 1
            assert self.may_write.wait(10)
        if name == "sync" and "commitlog" in path:
            self.syncs_begun += 1
            assert self.may_sync.wait(10)
        super().record(name, path, offset, size)


def last_sync(calls: list[StorageCall], path: str = LOG) -> int:
    return max((number for number, call in enumerate(calls) if (call.name, call.path) == ("sync", path)), default=-1)


async def test_no_message_is_told_durable_before_the_sync_behind_its_write() -> None:
    storage = MemoryStorage()
    told: list[tuple[int, list[StorageCall]]] = []

    def tell(end: int, error: BaseException | None) -> None:
        told.append((end, list(storage.calls)))

    async with opened(storage) as store:
        for number in range(100):
            end = store.put(message(number)).end_offset
            store.when_durable(end, partial(tell, end))
            if number % 7 == 0:
                await store.durable(end)
        await store.durable(end)
    assert len(told) == 100
    for end, calls in told:
        path = f"{ROOT}/commitlog/{(end - 1) // 4096 * 4096:020d}"
        written = [
            number
            for number, call in enumerate(calls)
            if call.name == "write"
            and call.path == path
            and call.offset < (end - 1) % 4096 + 1 <= call.offset + call.size
        ]
        assert written
        assert last_sync(calls, path) > written[-1]


async def test_a_commit_of_messages_costs_one_sync() -> None:
    """What the checkpoint says of the log is written with it, and needs no sync of its own."""
    storage = MemoryStorage()
    async with opened(storage) as store:
        await put_all(store, message(0))
        storage.calls.clear()
        await put_all(store, *[message(number) for number in range(1, 11)])
        synced = [call.path for call in storage.calls if "sync" in call.name]
        written = [call.path for call in storage.calls if call.name == "write"]
    assert synced == [LOG] * 10
    assert written.count(f"{ROOT}/checkpoint") == 10


async def test_a_file_is_synced_before_the_next_one_is_begun() -> None:
    storage = MemoryStorage()
    async with opened(storage) as store:
        end = [store.put(message(number, size=700)).end_offset for number in range(20)][-1]
        await store.durable(end)
    names = [call.path for call in storage.calls if call.name == "create" and "commitlog" in call.path]
    assert len(names) == 5
    for before, path in pairwise(names):
        begun = next(number for number, call in enumerate(storage.calls) if call == StorageCall("create", path))
        writes = [number for number, call in enumerate(storage.calls) if (call.name, call.path) == ("write", before)]
        syncs = [number for number, call in enumerate(storage.calls) if (call.name, call.path) == ("sync", before)]
        assert max(writes) < max(number for number in syncs if number < begun)


async def test_what_is_put_during_a_sync_shares_the_next_one() -> None:
    storage = SlowStorage()
    async with opened(storage) as store:
        await put_all(store, message(0))
        storage.may_sync.clear()
        begun = storage.syncs_begun
        first = store.put(message(1)).end_offset
        await until(lambda: storage.syncs_begun > begun)
        told: list[int] = []
        for number in range(2, 20):
            end = store.put(message(number)).end_offset
            store.when_durable(end, tell(told, number))
        await settle()
        assert told == []
        storage.may_sync.set()
        await store.durable(first)
        await store.durable(end)
        assert told == list(range(2, 20))
        assert storage.syncs_begun == begun + 2


def tell(told: list[int], number: int) -> DurableCallback:
    return lambda error: told.append(number)


def checkpoints(storage: MemoryStorage) -> int:
    return storage.calls.count(StorageCall("sync", f"{ROOT}/checkpoint"))


async def test_a_callback_for_what_is_durable_already_is_called_at_once() -> None:
    async with opened(MemoryStorage()) as store:
        end = (await put_all(store, message(0)))[-1]
        told: list[BaseException | None] = []
        store.when_durable(end, told.append)
        assert told == [None]


async def test_callbacks_registered_out_of_order_are_told_in_the_logs_order() -> None:
    async with opened(MemoryStorage()) as store:
        ends = [store.put(message(number)).end_offset for number in range(3)]
        told: list[int] = []
        for number in (2, 0, 1):
            store.when_durable(ends[number], tell(told, number))
        await store.durable(ends[2])
        assert told == [0, 1, 2]


async def test_a_callback_that_raises_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(MemoryStorage()) as store:

        def fails(error: BaseException | None) -> None:
            raise ValueError("of the caller's")

        store.on_arrival.append(lambda *arrival: fails(None))
        end = store.put(message(0)).end_offset
        told: list[BaseException | None] = []
        store.when_durable(end, fails)
        store.when_durable(end, told.append)
        await store.durable(end)
        assert told == [None]
    assert "of the caller's" in caplog.text


async def test_a_sync_that_does_not_end_times_out_and_the_message_may_still_become_durable() -> None:
    storage, clock = SlowStorage(), ManualClock()
    async with opened(storage, clock=clock) as store:
        await put_all(store, message(0))
        storage.may_sync.clear()
        told: list[BaseException | None] = []
        end = store.put(message(1)).end_offset
        store.when_durable(end, told.append)
        await clock.advance(4.9)
        assert told == []
        await clock.advance(0.5)
        assert isinstance(told[0], TimeoutError)
        storage.may_sync.set()
        await store.durable(end)
        assert numbers(store) == [0, 1]
    assert len(told) == 1


async def test_asynchronous_flush_tells_after_the_write_and_syncs_in_intervals() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, ASYNC, clock=clock) as store:
        await put_all(store, message(0), message(1))
        written = max(number for number, call in enumerate(storage.calls) if (call.name, call.path) == ("write", LOG))
        assert last_sync(storage.calls) < written
        await clock.advance(0.6)
        assert last_sync(storage.calls) > written
    async with opened(storage, ASYNC) as store:
        assert numbers(store) == [0, 1]


async def test_all_that_was_put_in_one_tick_is_written_at_once() -> None:
    storage = MemoryStorage()
    async with opened(storage, ASYNC) as store:
        await put_all(store, message(0))
        before = len(storage.calls)
        end = [store.put(message(number)).end_offset for number in range(4)][-1]
        await store.durable(end)
        assert [call.name for call in storage.calls[before:]] == ["write"]


@pytest.mark.parametrize("options", [SMALL, ASYNC], ids=["sync", "async"])
async def test_queues_and_index_are_written_only_behind_a_sync_of_the_log(options: StoreOptions) -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, options, clock=clock) as store:
        for number in range(40):
            await put_all(store, message(number))
            if number % 10 == 9:
                done = checkpoints(storage)
                await clock.advance(11)
                await until(partial(lambda done: checkpoints(storage) > done, done))
    dirty = False
    derived = 0
    for call in storage.calls:
        if call.path.startswith(f"{ROOT}/commitlog/") and call.name in {"write", "sync"}:
            dirty = call.name == "write"
        elif "/consumequeue/" in call.path or "/index/" in call.path:
            assert not dirty
            derived += 1
    assert derived


async def test_the_checkpoint_speaks_of_queues_only_after_their_sync() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, clock=clock) as store:
        await put_all(store, *[message(number, queue_id=number % 3) for number in range(9)])
        begin = len(storage.calls)
        await clock.advance(1.5)
        calls = [
            call for call in storage.calls[begin:] if call.path.startswith(f"{ROOT}/c") and "commit" not in call.path
        ]
        names = [(call.name, "checkpoint" in call.path) for call in calls if call.name in {"write", "sync"}]
        assert names[-2:] == [("write", True), ("sync", True)]
        assert names.count(("sync", False)) == 6  # three files made, each then written and synced
        assert names[-3] == ("sync", False)


ENOSPC = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
EIO = OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize(
    ("error", "calls"),
    [(EIO, {"write"}), (EIO, {"sync"}), (ENOSPC, {"sync"})],
    ids=["write fails", "sync fails", "full at a sync"],
)
@pytest.mark.parametrize("options", [SMALL, ASYNC], ids=["sync", "async"])
async def test_after_an_error_nobody_is_told_durable_and_nothing_is_written_any_more(
    error: OSError, calls: set[str], options: StoreOptions
) -> None:
    storage, clock = FailingStorage(error, calls=calls), ManualClock()
    acknowledged = []
    async with opened(storage, options, clock=clock) as store:
        acknowledged += [0, 1, 2]
        await put_all(store, message(0), message(1), message(2))
        storage.failing = True
        told: list[BaseException | None] = []
        for number in range(3, 30):  # through an allocation and a new file
            try:
                end = store.put(message(number, size=300)).end_offset
            except StoreFailedError:
                break

            def tell(why: BaseException | None, number: int = number) -> None:
                told.append(why)
                if why is None:
                    acknowledged.append(number)

            store.when_durable(end, tell)
            await settle()
            await clock.advance(0.6)
        await until(lambda: store.failure is not None, clock)
        assert store.failure is not None
        assert str(error.strerror) in store.failure
        with pytest.raises(StoreFailedError, match=f"{error.strerror}.*until it is opened again"):
            store.put(message(99))
        with pytest.raises(StoreFailedError):
            await store.durable(1 << 40)
        # The call that fails runs in a thread, which may take longer than those who wait do on this clock.
        assert all(why is None or isinstance(why, StoreFailedError | TimeoutError) for why in told)
        assert numbers(store)[:3] == [0, 1, 2]  # reads go on
        before = [call for call in storage.calls if "commitlog" in call.path]
        storage.failing = False
        await clock.advance(30)
        assert [call for call in storage.calls if "commitlog" in call.path] == before
    assert storage.exists(f"{ROOT}/abort")
    async with opened(storage, options) as store:
        found = numbers(store)
        assert found[: len(acknowledged)] == acknowledged
        assert found == list(range(len(found)))
        await put_all(store, message(len(found)))
        assert numbers(store) == list(range(len(found) + 1))


async def test_what_was_put_before_the_stop_is_written_by_it() -> None:
    storage = MemoryStorage()
    told: list[BaseException | None] = []
    async with opened(storage) as store:
        for number in range(10):
            store.when_durable(store.put(message(number)).end_offset, told.append)
    assert told == [None] * 10
    async with opened(storage) as store:
        assert numbers(store) == list(range(10))


async def test_cancelling_the_one_who_waits_leaves_the_store_whole() -> None:
    storage = SlowStorage()
    async with opened(storage) as store:
        await put_all(store, message(0))
        storage.may_sync.clear()
        async with anyio.create_task_group() as group:
            group.start_soon(store.durable, store.put(message(1)).end_offset)
            await settle()
            group.cancel_scope.cancel()
        storage.may_sync.set()
        await put_all(store, message(2))
        assert numbers(store) == [0, 1, 2]


async def test_a_cancellation_from_outside_closes_nothing_under_a_running_sync() -> None:
    storage = SlowStorage()
    told: list[BaseException | None] = []
    with anyio.CancelScope() as scope:
        async with opened(storage) as store:
            await store.durable(store.put(message(0)).end_offset)
            storage.may_sync.clear()
            begun = storage.syncs_begun
            for number in (1, 2):  # the first is in the sync when the cancellation comes, the second behind it
                store.when_durable(store.put(message(number)).end_offset, told.append)
                while storage.syncs_begun == begun:
                    await settle()
            threading.Timer(0.1, storage.may_sync.set).start()
            scope.cancel()
    assert told == [None, None]
    assert not storage.locked
    async with opened(storage) as store:
        assert store.report is not None
        assert store.report.clean
        assert numbers(store) == [0, 1, 2]


@pytest.mark.parametrize("held", ["consumequeue", "index"])
async def test_a_cancellation_from_outside_loses_nothing_that_is_being_written_to_queues_and_index(held: str) -> None:
    storage, clock = SlowStorage(), ManualClock()
    storage.held = f"/{held}/"
    with anyio.CancelScope() as scope:
        async with opened(storage, clock=clock) as store:
            await put_all(store, *[message(number) for number in range(5)])
            storage.may_write.clear()
            storage.writes_begun = 0
            async with anyio.create_task_group() as group:
                group.start_soon(clock.advance, 11)
                while not storage.writes_begun:
                    await settle()
                threading.Timer(0.1, storage.may_write.set).start()
                scope.cancel()
    assert not storage.locked
    async with opened(storage) as store:
        assert store.report is not None
        assert (store.report.clean, store.report.records) == (True, 0)
        assert numbers(store) == list(range(5))
        await check_index(store, *range(5))
