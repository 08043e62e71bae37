"""Bytes of a store that are cut off, or flipped: whole records stay, damaged ones are never served.

All places are tried with ``ROCKETBOX_TESTS=all``, else some of them.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator, Sequence

import anyio.lowlevel
import pytest

from rocketbox.broker.store.checkpoint import Checkpoint
from rocketbox.broker.store.finding import StoreFinding
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.store.record_reading import WrongEntryError
from rocketbox.broker.store.store_check import check_store, find_files
from rocketbox.errors import StoreCorruptError
from tests.support.clocks import VirtualClock, idle
from tests.support.store.crash_checks import Found, Outcome, decode_found, inline_pools, observe
from tests.support.store.crashable_storage import CrashableStorage, Image
from tests.support.store.store_tools import ROOT, message

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

ALL = os.environ.get("ROCKETBOX_TESTS") == "all"
OPTIONS = StoreOptions(
    mapped_file_size_commit_log=16_384,
    mapped_file_size_consume_queue=4_000,
    max_hash_slot_num=64,
    max_index_num=10_000,
    allocate_ahead=0,
    flush_consume_queue_thorough_interval=1000,
)
CHECKPOINT = f"{ROOT}/checkpoint"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    with inline_pools():
        yield
    logging.disable(logging.NOTSET)


def store_on(storage: CrashableStorage, options: StoreOptions = OPTIONS) -> MessageStore:
    return MessageStore(ROOT, options, clock=VirtualClock(settle=idle), storage=storage)


async def written(
    count: int, *, stopped: bool, flushes: Sequence[int] = (), old_checkpoint: bool = False
) -> tuple[Image, Outcome, list[int]]:
    """A store of ``count`` messages, what is read from it, and where each record begins; killed, or stopped.

    When as many as ``flushes`` say were there, queues and index were written. ``old_checkpoint``: that of the last of
    these did not come to the disk any more.
    """
    storage, clock = CrashableStorage(), VirtualClock(settle=idle)
    places = []
    checkpoint = b""
    async with MessageStore(ROOT, OPTIONS, clock=clock, storage=storage) as store:
        for number in range(count):
            result = store.put(message(number, queue_id=number % 2))
            places.append(result.commit_log_offset)
            await store.durable(result.end_offset)
            if number + 1 in flushes:
                await idle()
                checkpoint = storage.image().files[CHECKPOINT]
                await clock.advance(12)
        await idle()
        outcome = await observe(store)
        killed = storage.image()
    if old_checkpoint:
        killed = replaced(killed, CHECKPOINT, checkpoint)
    return (storage.image() if stopped else killed), outcome, places


def forget_sync(image: Image, offset: int) -> Image:
    """The checkpoint knows of the log only up to ``offset``."""
    value = Checkpoint.decode(image.files[CHECKPOINT])
    assert value.queued_offset <= offset
    return replaced(image, CHECKPOINT, dataclasses.replace(value, synced_offset=offset).encode())


def replaced(image: Image, path: str, content: bytes) -> Image:
    return Image({**image.files, path: content}, image.directories)


def flipped(image: Image, path: str, position: int, bit: int) -> Image:
    content = bytearray(image.files[path])
    content[position] ^= 1 << bit
    return replaced(image, path, bytes(content))


def log_file(place: int) -> str:
    size = OPTIONS.mapped_file_size_commit_log
    return f"{ROOT}/commitlog/{place // size * size:020d}"


def tail(store: MessageStore, count: int) -> tuple[Found, ...]:
    """The last 20 messages of a store, which must have ``count`` in its two queues."""
    found = []
    for queue_id in (0, 1):
        end = store.max_offset("orders", queue_id)
        assert end == (count + 1 - queue_id) // 2
        offset = end - 10
        while offset < end:
            result = store.get("orders", queue_id, offset)
            found += [decode_found(record) for record in result.records]
            assert result.next_begin_offset > offset
            offset = result.next_begin_offset
    return tuple(sorted(found))


def served(store: MessageStore) -> set[Found]:
    """All that consumers get, who ask again behind what they are told is wrong."""
    found = set()
    for topic, queue_id in store.queues():
        offset = store.min_offset(topic, queue_id)
        while offset < store.max_offset(topic, queue_id):
            try:
                result = store.get(topic, queue_id, offset, 1)
            except WrongEntryError:
                offset += 1
                continue
            found |= {decode_found(record) for record in result.records}
            assert result.next_begin_offset > offset
            offset = result.next_begin_offset
    return found


@pytest.mark.parametrize("rest", ["zeros", "old bytes", "nothing"])
async def test_a_log_of_a_thousand_records_cut_at_any_byte_keeps_all_whole_records(rest: str) -> None:
    image, outcome, places = await written(1000, stopped=False, flushes=[900])
    options = dataclasses.replace(OPTIONS, verify_interval=0)  # the log is compared with nothing behind each start
    image = forget_sync(image, places[900])
    size = OPTIONS.mapped_file_size_commit_log
    end = outcome.end
    noise = image.files[log_file(0)]  # what another use of the disk has left: whole records, of other places
    tried = 0
    for cut in range(places[900], end, 1 if ALL else 97):
        path, position = log_file(cut), cut % size
        content = image.files[path][:position]
        content += {"zeros": bytes(size), "old bytes": noise, "nothing": b""}[rest][position:size]
        files = {name: data for name, data in image.files.items() if "/commitlog/" not in name or name <= path}
        torn = replaced(Image(files, image.directories), path, content)
        async with store_on(CrashableStorage(torn), options) as store:
            kept = sum(place + found.size <= cut for place, found in zip(places, outcome.records, strict=True))
            assert tail(store, kept) == outcome.records[kept - 20 : kept], f"cut at {cut}"
            result = store.put(message(kept, queue_id=kept % 2))
            assert result.commit_log_offset == places[kept]
            await store.durable(result.end_offset)
            await idle()
            assert tail(store, kept + 1) == outcome.records[kept - 19 : kept + 1] or kept == 999
        tried += 1
    assert tried > 100


def findings(image: Image, options: StoreOptions = OPTIONS) -> list[StoreFinding]:
    """What ``store check`` tells."""
    files = find_files(CrashableStorage(image), ROOT, options)
    return [each for each in check_store(files, options) if isinstance(each, StoreFinding)]


def places_of(start: int, size: int) -> list[tuple[int, int]]:
    """Every bit of these bytes, or a few of each byte's."""
    every = [(position, bit) for position in range(start, start + size) for bit in range(8)]
    return every if ALL else every[:: 7 if size < 100 else 29]


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "killed"])
async def test_a_record_with_a_flipped_bit_is_never_served_and_those_behind_it_are(stopped: bool) -> None:
    image, outcome, places = await written(30, stopped=stopped, flushes=[20])
    whole = set(outcome.records)
    tried = 0
    for number in (0, 15, 28) if ALL else (15,):
        for position, bit in places_of(places[number], places[number + 1] - places[number]):
            damaged = flipped(image, log_file(0), position, bit)
            storage, clock = CrashableStorage(damaged), VirtualClock(settle=idle)
            try:
                async with MessageStore(ROOT, OPTIONS, clock=clock, storage=storage) as store:
                    first = served(store)
                    await clock.advance(1)  # the queue is compared with the log
                    (trouble,) = [each for each in store.troubles.current if each.what.startswith("serving")]
                    result = store.get("orders", number % 2, number // 2)
                    behind = [each.queue_offset for each in map(decode_found, result.records)]
                    assert behind == list(range(number // 2 + 1, result.next_begin_offset)) != []
                    assert first == served(store) == {each for each in whole if each.place != places[number]}
                    for word in (log_file(0), f"at {places[number]} of", "rocketbox store check"):
                        assert word in trouble.error
            except StoreCorruptError as error:
                offset = error.offset
            else:
                offset = places[number]
            assert offset == places[number]  # the start tells where
            tried += 1
            assert findings(damaged), f"bit {position}.{bit}"
    assert tried or not stopped


@pytest.mark.parametrize("field", ["offset and size", "tags code"])
@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "killed"])
async def test_a_flipped_bit_of_a_queue_entry_is_mended(field: str, stopped: bool) -> None:
    image, outcome, _ = await written(60, stopped=stopped, flushes=[20, 60], old_checkpoint=not stopped)
    path = f"{ROOT}/consumequeue/orders/0/{0:020d}"
    start, size = (0, 12) if field == "offset and size" else (12, 8)
    wrong = []
    for number in (12, 29):
        for position, bit in places_of(number * 20 + start, size):
            damaged = flipped(image, path, position, bit)
            assert findings(damaged) or not stopped, f"bit {position}.{bit} is not found by a check"
            if field == "tags code" and stopped:
                continue  # found by the check alone, and by the pass in the background
            storage, clock = CrashableStorage(damaged), VirtualClock(settle=idle)
            async with MessageStore(ROOT, OPTIONS, clock=clock, storage=storage) as store:
                first = served(store)
                wrong += [f"{position}.{bit}: served {each}" for each in first - set(outcome.records)]
                if first != set(outcome.records):
                    await clock.advance(5)  # the rebuild goes on in the background
                if await observe(store) != outcome:
                    wrong.append(f"{position}.{bit}: not mended: {(await observe(store)).wrong}")
    assert not wrong, f"{len(wrong)}: " + "\n".join(text[:300] for text in wrong[:5])


async def test_a_flipped_bit_of_an_index_entry_is_found_by_a_check_and_mended_after_a_kill() -> None:
    for stopped in (True, False):
        image, outcome, _ = await written(30, stopped=stopped, flushes=[30])
        (path,) = [name for name in image.files if "/index/" in name]
        base = 40 + 4 * OPTIONS.max_hash_slot_num
        for number in (1, 40, 119):
            for position, bit in places_of(base + number * 20, 12):
                damaged = flipped(image, path, position, bit)
                assert findings(damaged), f"bit {position}.{bit} of entry {number}"
                if not stopped:
                    async with store_on(CrashableStorage(damaged)) as store:
                        assert await observe(store) == outcome, f"bit {position}.{bit} of entry {number}"
    await anyio.lowlevel.checkpoint()
