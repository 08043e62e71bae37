"""What the index lacks: built when much is held, in slices; complete also when more came than may be held."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Iterable

import pytest

from rocketbox.broker.store import index_feed, key_search
from rocketbox.broker.store.derived_writer import INDEX
from rocketbox.broker.store.dispatch import IndexedRecord
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.store_tools import (
    SMALL,
    FaultyStorage,
    ManualClock,
    check_index,
    found_by_key,
    message,
    number_of,
    opened,
    os_error,
    put_all,
    settle,
    until,
)

pytestmark = pytest.mark.anyio

OPTIONS = dataclasses.replace(SMALL, max_index_num=10_000)


async def is_indexed(store: MessageStore) -> bool:
    """Whether keys come into the index without anybody asking for one."""
    for _ in range(10):
        await settle()
        if store._derived.index.changed:
            return True
    return False


async def test_many_bytes_of_properties_are_indexed_before_anybody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(MemoryStorage(), OPTIONS) as store:
        await put_all(store, *[message(number) for number in range(20)])
        assert not await is_indexed(store)
        monkeypatch.setattr(index_feed, "WAKE_BYTES", 1000)
        await put_all(store, message(20))
        assert await is_indexed(store)
        await check_index(store, *range(21))


async def test_more_bytes_of_properties_than_may_be_held_are_read_again_from_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_feed, "WAKE_BYTES", 300)
    monkeypatch.setattr(index_feed, "MOST_BYTES", 300)
    async with opened(MemoryStorage(), OPTIONS) as store:
        await put_all(store, *[message(number) for number in range(40)])
        await check_index(store, *range(40))


async def test_a_slice_holds_few_bytes_of_keys_however_long_those_of_a_message_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slices: list[int] = []
    options = dataclasses.replace(OPTIONS, max_index_num=100_000, mapped_file_size_commit_log=1 << 20)
    async with opened(MemoryStorage(), options) as store:
        index_records = store._derived.index_records

        def noted(records: Iterable[IndexedRecord]) -> None:
            records = list(records)
            slices.append(sum(len(keys[1] or b"") for _, keys, *_ in records))
            index_records(records)

        monkeypatch.setattr(store._derived, "index_records", noted)
        words = " ".join([f"word{number}" for number in range(500)])
        await put_all(store, *[message(number, KEYS=words) for number in range(60)])
        assert len((await store.query_keys("orders", "word499", 99, 0, 1 << 60)).records) == 60
    assert sum(slices) == 60 * len(words)
    assert max(slices) <= 64 << 10


async def test_keys_are_written_later_when_something_nobody_foresaw_ends_the_writing_of_queues() -> None:
    storage = FaultyStorage()
    async with opened(storage, OPTIONS) as store:
        await put_all(store, *[message(number) for number in range(10)])
        storage.fail(MemoryError("no memory"), "write", where="consumequeue", times=1)
        with pytest.raises(MemoryError):
            await store._derived_writer.flush(store._pool, index=True, thorough=True)
    async with opened(storage, OPTIONS) as store:
        await check_index(store, *range(10))


async def test_a_query_by_key_ends_with_as_many_of_the_newest_messages_as_fit_into_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_search, "MOST_BYTES", 2000, raising=False)
    async with opened(MemoryStorage(), OPTIONS) as store:
        await put_all(store, *[message(number, size=300) for number in range(20)])
        records = (await store.query_keys("orders", "all", 64, 0, 1 << 60)).records
        assert [number_of(record) for record in records] == [19, 18, 17, 16]
        assert sum(map(len, records)) <= 2000
        await put_all(store, message(20, size=3000))  # the first comes, whatever its size
        assert await found_by_key(store, "all", 64) == [20]


async def test_entries_that_no_disk_takes_are_held_up_to_a_bound_and_made_up_for_from_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_feed, "MOST_UNWRITTEN", 100)
    monkeypatch.setattr(index_feed, "WAKE", 8)
    monkeypatch.setattr(index_feed, "SLICE", 8)
    monkeypatch.setattr(index_feed, "MOST_NOTES", 30)
    storage, clock = FaultyStorage(), ManualClock()
    async with opened(storage, dataclasses.replace(OPTIONS, max_index_num=64), clock=clock) as store:
        storage.fail(os_error(errno.EIO), "write", where="/index/")
        for first in range(0, 200, 10):
            await put_all(store, *[message(number) for number in range(first, first + 10)])
            await clock.advance(5)
        assert (await store.query_keys("orders", "k3", 9, 0, 1 << 60)).records  # what is held is found
        assert sum(file.changed for file in store._derived.index.files) <= 100 + 8 * 4
        assert {trouble.what for trouble in store.troubles.current} == {index_feed.BUILDING, INDEX}
        storage.heal()
        await until(lambda: not store.troubles.current, clock)
        await check_index(store, *range(0, 200, 9), complete=False)
        assert len(await found_by_key(store, "all", 64)) == 64
    async with opened(storage, dataclasses.replace(OPTIONS, max_index_num=64)) as store:
        assert store.report is not None
        assert store.report.clean
        await check_index(store, *range(0, 200, 9), complete=False)
