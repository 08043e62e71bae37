"""The borders of a store: records that just fit into a file or just do not, very large offsets, clocks that jump."""

from __future__ import annotations

import pytest

from rocketbox.broker.store.message_store import MessageStore
from rocketbox.errors import InvalidMessageError
from rocketbox.message import MessageExt
from rocketbox.protocol.stored_message import decode_message, encode_stored_message
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.crash_checks import observe
from tests.support.store.store_tools import LOG, ROOT, SMALL, ManualClock, message, numbers, opened, put_all

pytestmark = pytest.mark.anyio

BLANK = 8  # what a file must have left behind its last record
FILE = SMALL.mapped_file_size_commit_log
FAR = 1 << 62


async def reopened(storage: MemoryStorage) -> list[int]:
    async with opened(storage) as store:
        assert not (await observe(store)).wrong
        return numbers(store)


async def size_of_record(size: int, number: int = 0) -> int:
    async with opened(MemoryStorage()) as store:
        return store.put(message(number, size=size)).end_offset


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "stopped"])
@pytest.mark.parametrize("spare", [-9, -8, -7, -1, 0, 1, 7, 8, 9])
async def test_a_record_that_just_fits_stays_in_its_file_and_one_that_does_not_begins_the_next(
    spare: int, killed: bool
) -> None:
    overhead = await size_of_record(0 + 20) - 20
    storage = MemoryStorage()
    async with opened(storage) as store:
        first = store.put(message(0, size=1000)).end_offset
        left = FILE - first - BLANK
        (place, end) = await put_all(store, message(1, size=left - overhead - spare))
        assert (place, end) == ((first, FILE - BLANK - spare) if spare >= 0 else (FILE, FILE + left - spare))
        (following, _) = await put_all(store, message(2))
        assert following == (FILE if spare >= 0 else end)
        assert numbers(store) == [0, 1, 2]
        copy = storage.copy()
    assert await reopened(copy if killed else storage) == [0, 1, 2]


@pytest.mark.parametrize("spare", [-1, 0, 1])
async def test_a_batch_that_just_fits_stays_together(spare: int) -> None:
    overhead = await size_of_record(20) - 20
    storage = MemoryStorage()
    async with opened(storage) as store:
        first = store.put(message(0, size=1000)).end_offset
        last = FILE - first - BLANK - (overhead + 50) - overhead - spare
        result = store.put_batch([message(1, size=50), message(2, size=last)])
        await store.durable(result.end_offset)
        assert result.commit_log_offset == (first if spare >= 0 else FILE)
        storage = storage.copy()
    assert await reopened(storage) == [0, 1, 2]


async def test_a_record_as_large_as_a_file_can_hold_is_stored_and_a_larger_one_refused() -> None:
    overhead = await size_of_record(20) - 20
    storage = MemoryStorage()
    async with opened(storage) as store:
        with pytest.raises(InvalidMessageError, match="does not fit into a commit-log file"):
            store.put(message(0, size=FILE - BLANK - overhead + 1))
        await put_all(store, *[message(number, size=FILE - BLANK - overhead) for number in range(3)])
        assert numbers(store) == [0, 1, 2]
        storage = storage.copy()
    assert await reopened(storage) == [0, 1, 2]


async def test_queue_offsets_near_the_end_of_64_bits_are_served_and_gone_on_with() -> None:
    storage = MemoryStorage()
    storage.make_directories(f"{ROOT}/commitlog")
    record = encode_stored_message(message(0), place=(FAR, 0, 1_700_000_000_000, (bytes(4), 10911)))
    log = storage.open(LOG, create=True)
    log.truncate(FILE)
    log.write(0, [record])
    for _ in range(2):  # the queue is built from the log, then read from its file
        async with opened(storage) as store:
            found = [each.queue_offset for each in read_all(store)]
            assert found == list(range(FAR, store.max_offset("orders", 0)))
            result = store.put(message(1))
            await store.durable(result.end_offset)
            assert result.queue_offset == FAR + len(found)


def read_all(store: MessageStore) -> list[MessageExt]:
    offset, found = store.min_offset("orders", 0), []
    while records := store.get("orders", 0, offset).records:
        found += [decode_message(record)[0] for record in records]
        offset = found[-1].queue_offset + 1
    return found


async def test_store_times_never_go_back_whatever_the_clock_does() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    day = 24 * 3_600_000
    start = clock.now_ms
    jumps = (0, -day, 365 * day, -400 * day, 1)
    for jump in jumps:
        clock.now_ms += jump
        async with opened(storage, clock=clock) as store:
            await put_all(store, message(0), message(1))
            times = [each.store_timestamp_ms for each in read_all(store)]
            assert times == sorted(times)
            assert len(times) == store.max_offset("orders", 0)
    assert times[0] == start
    assert times[-1] == start + 364 * day
