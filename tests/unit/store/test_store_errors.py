"""What the store does when calls of the file system fail: what is final, what is retried, what is refused meanwhile."""

from __future__ import annotations

import dataclasses
import errno
import logging
from typing import Any

import anyio
import pytest

from rocketbox.broker.store.dispatcher import BEHIND
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import FlushDiskType, StoreOptions
from rocketbox.errors import StoreFailedError, StoreFullError, StoreStalledError
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.crash_checks import inline_pools
from tests.support.store.store_tools import (
    LOG,
    ROOT,
    SMALL,
    FaultyStorage,
    ManualClock,
    check_index,
    found_by_key,
    message,
    numbers,
    opened,
    os_error,
    put_all,
    until,
)
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

ASYNC = dataclasses.replace(SMALL, flush_disk_type=FlushDiskType.ASYNC_FLUSH)
both_flush_types = pytest.mark.parametrize("options", [SMALL, ASYNC], ids=["sync", "async"])


class Told:
    """What those who wait were told, by the number of their message."""

    def __init__(self, store: MessageStore) -> None:
        self.good: list[int] = []
        self.bad: dict[int, BaseException] = {}
        self._store = store

    def put(self, number: int, size: int = 20) -> None:
        """Put a message and wait for its flush."""

        def tell(error: BaseException | None) -> None:
            if error is None:
                self.good.append(number)
            else:
                self.bad[number] = error

        self._store.when_durable(self._store.put(message(number, size=size)).end_offset, tell)

    def later(self, error: BaseException | None) -> None:
        """For somebody who asks again: number -1."""
        if error is not None:
            self.bad[-1] = error


# --- the log's writer ---


@both_flush_types
async def test_an_error_nobody_foresaw_in_the_writer_is_a_failure_told_once(
    options: StoreOptions, caplog: pytest.LogCaptureFixture
) -> None:
    storage, clock = FaultyStorage(), ManualClock()
    async with opened(storage, options, clock=clock) as store:
        changes: list[str | None] = []
        store.on_state_change.append(lambda: changes.append(store.failure))
        told = Told(store)
        told.put(0)
        await until(lambda: told.good == [0])
        storage.fail(ZeroDivisionError("of a bug"), "write", where="commitlog")
        for number in range(1, 6):
            told.put(number)
        await until(lambda: store.failure)
        assert len(told.bad) == 5
        assert all(isinstance(error, StoreFailedError) for error in told.bad.values())
        assert store.failure is not None
        assert "of a bug" in store.failure
        assert changes == [store.failure]
        assert store.refusal == store.failure
        storage.heal()
        for _ in range(100):
            with pytest.raises(StoreFailedError):
                store.put(message(9))
        assert store.health().waiting_bytes == 0
        assert numbers(store) == [0]
        await clock.advance(30)
    assert storage.exists(f"{ROOT}/abort")
    assert sum("of a bug" in record.getMessage() for record in caplog.records) == 1
    async with opened(storage, options) as store:
        assert numbers(store)[:1] == [0]


async def test_an_error_of_derived_data_while_messages_are_stored_is_no_failure() -> None:
    """An index whose slots cannot be read when the first message after a start comes."""
    storage, clock = FaultyStorage(), ManualClock()
    async with opened(storage, clock=clock) as store:
        await put_all(store, message(0))
    async with opened(storage, clock=clock) as store:
        storage.fail(os_error(errno.EIO), "read", "next_data", where="/index/")
        await put_all(store, *[message(number) for number in range(1, 6)])
        await clock.advance(30)
        assert store.failure is None
        assert store.refusal is None
        assert [trouble.what for trouble in store.troubles.current] == ["building the index"]
        assert numbers(store) == [0, 1, 2, 3, 4, 5]
        storage.heal()
        await until(lambda: not store.troubles.current, clock)
        assert await found_by_key(store, "k3") == [3]
    assert not storage.exists(f"{ROOT}/abort")
    async with opened(storage) as store:
        assert numbers(store) == [0, 1, 2, 3, 4, 5]
        for number in range(6):
            assert await found_by_key(store, f"k{number}") == [number]


# --- no place for a write ---


@both_flush_types
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_a_write_that_finds_no_place_is_taken_back_and_goes_on_by_itself_later(
    number: int, options: StoreOptions, caplog: pytest.LogCaptureFixture
) -> None:
    storage, clock = FaultyStorage(), ManualClock()
    caplog.set_level(logging.WARNING)
    async with opened(storage, options, clock=clock) as store:
        told = Told(store)
        changes: list[str | None] = []
        store.on_state_change.append(lambda: changes.append(store.refusal))
        for count in range(3):
            told.put(count, size=900)
        await until(lambda: len(told.good) == 3)
        storage.fail(os_error(number), "create", "allocate", where="commitlog")
        for count in range(3, 9):  # through the end of the file
            told.put(count, size=900)
        await until(lambda: told.bad and len(told.good) + len(told.bad) == 9)
        assert sorted(told.good) + sorted(told.bad) == list(range(9))
        assert all(isinstance(error, StoreFullError) for error in told.bad.values())
        assert len(changes) == 1
        assert store.failure is None
        with pytest.raises(StoreFullError, match=f"takes no messages now.*{os_error(number).strerror}.*bytes are free"):
            store.put(message(99))
        assert store.health().refused_full == len(told.bad) + 1
        assert numbers(store) == told.good  # reads go on
        await clock.advance(10)
        assert store.refusal is not None
        storage.heal()
        await until(lambda: store.refusal is None, clock)
        assert changes[-1] is None
        known = [*told.good]
        for count in range(20, 24):
            told.put(count, size=900)
        await until(lambda: len(told.good) == len(known) + 4)
        assert numbers(store) == [*known, 20, 21, 22, 23]
    assert sum(record.levelname == "ERROR" for record in caplog.records) == 1
    assert not storage.exists(f"{ROOT}/abort")
    async with opened(storage, options) as store:
        assert numbers(store) == [*known, 20, 21, 22, 23]
        assert store.report is not None
        assert store.report.truncated_bytes == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_error_amid_messages_that_became_durable_together_loses_and_doubles_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock(threads=False)
    with inline_pools():
        async with opened(MemoryStorage(), clock=clock) as store:
            add, calls = store._derived.add_to_queue, 0

            def add_once_failing(*arguments: Any) -> int:
                nonlocal calls
                calls += 1
                if calls == 5:
                    raise MemoryError
                return add(*arguments)

            monkeypatch.setattr(store._derived, "add_to_queue", add_once_failing)
            ends = [store.put(message(number, size=30 + 7 * number)).end_offset for number in range(9)]
            await store.durable(ends[-1])
            assert [trouble.what for trouble in store.troubles.current] == [BEHIND]
            await until(lambda: not store.troubles.current, clock)
            assert calls == 10
            assert numbers(store) == list(range(9))
            await put_all(store, message(9))
            assert numbers(store) == list(range(10))
            await check_index(store, *range(10))


async def test_what_was_put_behind_a_message_without_a_place_is_taken_back_with_it() -> None:
    storage, clock = FaultyStorage(), ManualClock()
    async with opened(storage, clock=clock) as store:
        await put_all(store, message(0))
        storage.fail(os_error(errno.ENOSPC), "allocate", where="commitlog")
        told = Told(store)
        told.put(1, size=1200)
        other = store.put(message(7, queue_id=3))
        await until(lambda: store.refusal)
        late: list[BaseException | None] = []
        store.when_durable(other.end_offset, late.append)
        assert isinstance(late[0], StoreFullError)
        storage.heal()
        await until(lambda: store.refusal is None, clock)
        assert (await put_all(store, message(2, queue_id=3)))[-1] < other.end_offset
        assert numbers(store) == [0]
        assert numbers(store, queue_id=3) == [2]


async def test_a_disk_with_less_room_than_is_set_aside_ahead_takes_what_fits() -> None:
    storage = FaultyStorage()
    options = dataclasses.replace(SMALL, allocate_ahead=4096)
    async with opened(storage, options) as store:
        room = 1500

        def record(name: str, path: str, offset: int = 0, size: int = 0) -> None:
            if name == "allocate" and offset + size > room:
                raise os_error(errno.ENOSPC)
            FaultyStorage.record(storage, name, path, offset, size)

        storage.record = record  # type: ignore[method-assign]
        await put_all(store, message(0), message(1))
        assert numbers(store) == [0, 1]
        with pytest.raises(StoreFullError):
            await put_all(store, message(2, size=3000))


@both_flush_types
async def test_a_disk_that_is_full_within_a_write_gets_the_same_bytes_again(options: StoreOptions) -> None:
    storage, clock = FaultyStorage(), ManualClock()
    options = dataclasses.replace(options, allocate_ahead=0)
    async with opened(storage, options, clock=clock) as store:
        told = Told(store)
        told.put(0)
        await until(lambda: told.good)
        storage.fail(os_error(errno.ENOSPC), "write", where="commitlog")
        told.put(1)
        await until(lambda: store.refusal)
        with pytest.raises(StoreFullError, match="writing"):
            store.put(message(2))
        await until(lambda: 1 in told.bad)
        assert isinstance(told.bad[1], StoreStalledError)  # not taken back: it may yet be stored
        assert "may be stored" in str(told.bad[1])
        storage.heal()
        await until(lambda: store.refusal is None, clock)
        assert numbers(store) == [0, 1]
        told.put(3)
        await until(lambda: 3 in told.good)
        assert numbers(store) == [0, 1, 3]


async def test_a_store_that_is_stopped_while_a_write_finds_no_room_ends_and_says_so() -> None:
    storage = FaultyStorage()
    options = dataclasses.replace(SMALL, allocate_ahead=0)
    with anyio.fail_after(PATIENCE):
        async with opened(storage, options) as store:
            told = Told(store)
            told.put(0)
            await until(lambda: told.good)
            storage.fail(os_error(errno.ENOSPC), "write", where="commitlog")
            told.put(1)
            await until(lambda: store.refusal)
            store.when_durable(store._log.end, told.later)
    assert isinstance(told.bad[1], StoreStalledError)
    assert isinstance(told.bad[-1], StoreFailedError)
    assert storage.exists(f"{ROOT}/abort")


@both_flush_types
async def test_who_does_not_wait_for_the_sync_is_told_when_it_is_written_and_never_before(
    options: StoreOptions,
) -> None:
    storage = FaultyStorage()
    async with opened(storage, options) as store:
        seen: list[tuple[BaseException | None, bool]] = []

        def tell(error: BaseException | None) -> None:
            seen.append((error, any(call.name == "write" and call.path == LOG for call in storage.calls)))

        store.when_written(store.put(message(0)).end_offset, tell)
        assert seen == []
        await until(lambda: seen)
        assert seen == [(None, True)]
        storage.fail(os_error(errno.ENOSPC), "allocate", where="commitlog")
        store.when_written(store.put(message(1, size=2000)).end_offset, tell)
        await until(lambda: len(seen) == 2)
        assert isinstance(seen[1][0], StoreFullError)


# --- derived data ---


@pytest.mark.parametrize("where", ["/consumequeue/", "/index/", "/checkpoint"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE])
async def test_derived_data_that_cannot_be_written_is_written_later_and_stops_nothing(
    where: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    storage, clock = FaultyStorage(), ManualClock()
    async with opened(storage, clock=clock) as store:
        await put_all(store, message(0))
        await clock.advance(12)
        storage.fail(
            os_error(number), "write", "sync", "create", "allocate", "truncate", "make_directories", where=where
        )
        for count in range(1, 30):
            await put_all(store, message(count, queue_id=count % 3))
            await clock.advance(2)
        assert store.failure is None
        assert store.refusal is None
        assert len(store.troubles.current) == 1
        found = numbers(store) + numbers(store, queue_id=1) + numbers(store, queue_id=2)
        assert sorted(found) == list(range(30))
        assert sum(record.levelname == "ERROR" for record in caplog.records) == 1
        storage.heal()
        await until(lambda: not store.troubles.current, clock)
    assert not storage.exists(f"{ROOT}/abort")
    async with opened(storage) as store:
        assert store.report is not None
        assert store.report.clean
        found = numbers(store) + numbers(store, queue_id=1) + numbers(store, queue_id=2)
        assert sorted(found) == list(range(30))
        for count in range(30):
            assert await found_by_key(store, f"k{count}") == [count]


async def test_a_stop_that_cannot_write_derived_data_is_not_clean_and_loses_nothing() -> None:
    storage = FaultyStorage()
    async with opened(storage) as store:
        await put_all(store, *[message(number) for number in range(5)])
        storage.fail(os_error(errno.ENOSPC), "write", "create", where="/consumequeue/")
    assert storage.exists(f"{ROOT}/abort")
    storage.heal()
    async with opened(storage) as store:
        assert numbers(store) == [0, 1, 2, 3, 4]


async def test_a_queue_whose_sync_failed_is_written_again_before_the_next_sync() -> None:
    """After a failed sync the kernel holds the bytes for written: a second sync alone would prove nothing."""
    storage, clock = FaultyStorage(), ManualClock()
    async with opened(storage, clock=clock) as store:
        await put_all(store, message(0))
        await clock.advance(2)
        storage.fail(os_error(errno.EIO), "sync", where="/consumequeue/", times=1)
        await put_all(store, message(1))
        await clock.advance(2)
        assert store.troubles.current
        before = len(storage.calls)
        await until(lambda: not store.troubles.current, clock)
        calls = [call for call in storage.calls[before:] if "/consumequeue/" in call.path]
        assert [(call.name, call.offset, call.size) for call in calls][:2] == [("write", 20, 20), ("sync", 0, 0)]


# --- dispatch ---


async def test_an_error_while_dispatching_holds_up_no_acknowledgement_and_is_made_up_for_from_the_log() -> None:
    storage, clock = FaultyStorage(), ManualClock()
    async with opened(storage, clock=clock) as store:
        arrived: list[tuple[int, int]] = []
        store.on_arrival.append(lambda new: arrived.extend([(queue_id, end) for _, queue_id, end, _, _ in new]))
        await put_all(store, message(0))
        derived = store._derived
        add, broken = derived.add_to_queue, True

        def fails(*arguments: object) -> int:
            if broken and number_of_queue(arguments) == 1:
                raise MemoryError("no memory")
            return add(*arguments)  # type: ignore[arg-type]

        derived.add_to_queue = fails  # type: ignore[assignment, method-assign]
        ends = [store.put(message(number, queue_id=number % 2, size=500)).end_offset for number in range(1, 20)]
        await store.durable(ends[-1])
        assert [trouble.what for trouble in store.troubles.current] == ["dispatching messages to their queues"]
        assert store.health().dispatched_offset < store.health().durable_offset == ends[-1]
        await put_all(store, message(20), message(21, queue_id=1))
        await clock.advance(5)
        assert store.max_offset("orders", 1) == 0
        broken = False
        await until(lambda: not store.troubles.current, clock)
        assert numbers(store) == [0, *range(2, 21, 2)]
        assert numbers(store, queue_id=1) == list(range(1, 22, 2))
        await put_all(store, message(22), message(23, queue_id=1))
        assert numbers(store)[-1] == 22
        assert sorted(arrived) == [(0, end) for end in range(1, 13)] + [(1, end) for end in range(1, 13)]
        for number in range(24):
            assert await found_by_key(store, f"k{number}") == [number]
    assert not storage.exists(f"{ROOT}/abort")


def number_of_queue(arguments: tuple[object, ...]) -> int:
    return arguments[0].queue_id  # type: ignore[attr-defined, no-any-return]


async def test_an_error_of_one_who_listens_is_told_and_touches_nobody_else() -> None:
    async with opened(FaultyStorage()) as store:
        heard: list[int] = []
        store.on_durable.append(lambda end: heard.remove(end))
        store.on_durable.append(heard.append)
        places = await put_all(store, message(0), message(1))
        assert heard == [places[1], places[2]]
        assert [trouble.what for trouble in store.troubles.current] == ["telling how far the commit log is safe"]
        assert store.failure is None


async def test_telling_is_no_trouble_any_more_when_all_who_listen_have_been_told() -> None:
    async with opened(FaultyStorage()) as store:
        failing = True

        def listen(*_: object) -> None:
            if failing:
                raise ZeroDivisionError("of a bug")

        store.on_arrival += [listen, lambda *_: None]
        store.on_durable += [listen, lambda *_: None]
        await put_all(store, message(0), message(1))
        assert {trouble.what: trouble.count for trouble in store.troubles.current} == {
            "telling how far the commit log is safe": 2,
            "telling of new messages": 2,
        }
        failing = False
        await put_all(store, message(2))
        assert store.troubles.current == []


# --- a full disk at the start ---


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
async def test_a_store_on_a_full_disk_opens_is_read_and_takes_messages_when_there_is_room(clean: bool) -> None:
    storage, clock = FaultyStorage(), ManualClock()
    async with opened(storage) as store:
        await put_all(store, *[message(number, size=300) for number in range(12)])
        if not clean:
            copied = storage.copy()
    if not clean:
        storage._files = copied._files
    storage.full = True
    async with opened(storage, clock=clock) as store:
        assert numbers(store) == list(range(12))
        with pytest.raises(StoreFullError):
            await put_all(store, message(12, size=3000))
        assert store.refusal is not None
        assert store.failure is None
        storage.heal()
        await until(lambda: store.refusal is None, clock)
        assert storage.exists(f"{ROOT}/abort")
        await put_all(store, message(12, size=3000))
        assert numbers(store) == list(range(13))
    assert not storage.exists(f"{ROOT}/abort")
    async with opened(storage) as store:
        assert numbers(store) == list(range(13))


async def test_a_store_that_was_only_read_on_a_full_disk_is_left_as_it_was() -> None:
    storage = FaultyStorage()
    async with opened(storage) as store:
        await put_all(store, message(0))
    storage.full = True
    for _ in range(2):
        async with opened(storage) as store:
            assert numbers(store) == [0]
            assert store.refusal is not None
            assert store.failure is None
    assert not storage.exists(f"{ROOT}/abort")
