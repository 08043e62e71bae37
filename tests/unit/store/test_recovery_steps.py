"""A start that is killed at any of its steps, once or again and again, leaves what the next start makes whole."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Awaitable, Callable, Iterator

import pytest

from rocketbox.broker.store import recovery
from rocketbox.broker.store.records import CHECKSUM_BYTES, CHECKSUM_NAME
from rocketbox.errors import StoreCorruptError
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.crash_checks import inline_pools
from tests.support.store.store_tools import (
    CHECKPOINT,
    LOG,
    ROOT,
    ManualClock,
    check_index,
    contents,
    forget_sync,
    killed,
    message,
    numbers,
    opened,
    overwrite,
    put_all,
    remove_tree,
    states_of_a_start,
    stopped,
)

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

COUNT = 45  # messages, over several files of log, queue and index


async def written() -> tuple[MemoryStorage, list[int]]:
    """A killed store whose checkpoint covers two thirds of its messages, and where its records begin."""
    storage, clock, places = MemoryStorage(), ManualClock(threads=False), []
    async with opened(storage, clock=clock) as store:
        for number in range(COUNT):
            places += (await put_all(store, message(number, queue_id=number % 2)))[:1]
            if number == COUNT * 2 // 3:
                await clock.advance(11)
        return storage.copy(), places


async def as_it_is() -> MemoryStorage:
    return (await written())[0]


async def torn_tail() -> MemoryStorage:
    """Behind the last record is noise, which was never synced."""
    storage, _ = await written()
    async with opened(storage) as store:
        end = store.max_commit_log_offset
    storage, _ = await written()
    overwrite(storage, f"{ROOT}/commitlog/{end // 4096 * 4096:020d}", end % 4096, random.Random(1).randbytes(300))
    return storage


async def queues_torn() -> MemoryStorage:
    """The newest entries were being written when the machine stopped: only some sectors of them are there."""
    storage, _ = await written()
    whole = storage.copy()
    async with opened(whole):
        pass
    for queue_id in (0, 1):
        path = f"{ROOT}/consumequeue/orders/{queue_id}/{0:020d}"
        data = contents(whole, path)
        half = len(contents(storage, path).rstrip(b"\0")) + 33
        overwrite(storage, path, half, bytes(10) + data[half + 10 : half + 55])
    return storage


async def mark_lost() -> MemoryStorage:
    storage, _ = await written()
    overwrite(storage, CHECKPOINT, 104, b"????")
    return storage


async def lost_queues() -> MemoryStorage:
    storage, _ = await stopped(*[message(number, queue_id=number % 2) for number in range(COUNT)])
    remove_tree(storage, f"{ROOT}/consumequeue/orders/1")
    return storage


async def lost_index() -> MemoryStorage:
    storage, _ = await stopped(*[message(number, queue_id=number % 2) for number in range(COUNT)])
    remove_tree(storage, f"{ROOT}/index")
    return storage


async def test_a_killed_store_is_read_from_its_checkpoint_on_only() -> None:
    storage, places = await written()
    async with opened(storage) as store:
        assert store.report is not None
        first = COUNT * 2 // 3 + 1
        assert (store.report.start, store.report.records) == (places[first], COUNT - first)


@pytest.fixture(autouse=True)
def _without_threads() -> Iterator[None]:
    """Hundreds of starts: their threads would take most of the time."""
    with inline_pools():
        yield


Maker = Callable[[], Awaitable[MemoryStorage]]


async def check(storage: MemoryStorage) -> None:
    async with opened(storage) as store:
        assert numbers(store) == list(range(0, COUNT, 2))
        assert numbers(store, queue_id=1) == list(range(1, COUNT, 2))
        await check_index(store, *range(COUNT))
        await put_all(store, message(COUNT, queue_id=COUNT % 2))
        after = storage.copy()
    async with opened(after) as store:
        await check_index(store, *range(COUNT + 1))


@pytest.fixture(params=[64 << 20, 1], ids=["", "written often"])
def _flushes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many bytes of log are read before queues and index are written meanwhile."""
    monkeypatch.setattr(recovery, "FLUSH_EVERY", request.param)


@pytest.mark.usefixtures("_flushes")
@pytest.mark.parametrize("make", [as_it_is, torn_tail, queues_torn, mark_lost, lost_queues, lost_index])
async def test_a_start_that_is_killed_at_any_step_can_be_made_again(make: Maker) -> None:
    states = await states_of_a_start(await make())
    assert len(states) > 5
    for state in states:
        await check(state)


@pytest.mark.usefixtures("_flushes")
@pytest.mark.parametrize("make", [torn_tail, queues_torn, mark_lost, lost_queues])
async def test_starts_that_are_killed_one_after_another_come_to_an_end(make: Maker) -> None:
    """Each is killed one step later than the one before, on what that has left."""
    storage, step = await make(), 0
    while True:
        states = await states_of_a_start(storage)
        if step >= len(states):
            break
        storage, step = states[step], step + 1
    assert step > 5
    await check(storage)


async def test_a_unit_torn_at_a_sector_is_not_believed() -> None:
    """Its offset and size are there, of its tags code only a half: a consumer of that tag would never see it."""
    storage, clock = MemoryStorage(), ManualClock(threads=False)
    async with opened(storage, clock=clock) as store:
        await put_all(store, *[message(number) for number in range(10)])
        await clock.advance(11)
        before = contents(storage, CHECKPOINT)
        await put_all(store, *[message(number) for number in range(10, 19)])
        await clock.advance(11)
        storage = storage.copy()
    overwrite(storage, CHECKPOINT, 0, before)
    queue = f"{ROOT}/consumequeue/orders/0/{0:020d}"
    for unit in range(10, 19):
        for cut in (13, 16, 18):
            torn = storage.copy()
            overwrite(torn, queue, unit * 20 + cut, bytes(20 - cut))
            async with opened(torn) as store:
                assert numbers(store) == list(range(19))


@pytest.mark.parametrize("what", ["topic", "queue id", "lengths"])
async def test_a_whole_record_that_cannot_be_one_is_refused_with_file_and_offset(what: str) -> None:
    """Its checksum is right, so no crash has made it: a broken broker, or another program, has."""
    storage, places = await killed(*[message(number) for number in range(12)])
    forget_sync(storage, places[8])
    start, end = places[9], places[10]
    record = bytearray(contents(storage, LOG)[start:end])
    if what == "topic":
        at = record.index(b"orders")
        record[at + 2 : at + 3] = b"/"
    elif what == "queue id":
        record[12:16] = struct.pack(">i", -1)
    else:
        at = record.index(b"orders")
        record[at - 1] += 1
    checksum = zlib.crc32(record[:-CHECKSUM_BYTES]) & 0x7FFFFFFF
    record[-CHECKSUM_BYTES:] = CHECKSUM_NAME + (b"%010d" % checksum)[::-1] + b"\x02"
    overwrite(storage, LOG, start, bytes(record))
    before = contents(storage, LOG)
    with pytest.raises(StoreCorruptError, match="store check --data-dir") as caught:
        async with opened(storage):
            raise AssertionError("it must not open")
    assert (caught.value.file, caught.value.offset) == (LOG, start)
    assert "cannot be one" in caught.value.reason
    assert contents(storage, LOG) == before
    assert storage.locked == set()
