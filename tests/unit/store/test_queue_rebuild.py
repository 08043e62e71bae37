"""Writing a queue's entries anew from the log while the store runs."""

from __future__ import annotations

import anyio
import pytest

from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.store.rebuild import QueueRebuild, rebuild_queue
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.store_tools import (
    ROOT,
    SMALL,
    ManualClock,
    contents,
    flip,
    message,
    numbers,
    opened,
    overwrite,
    put_all,
    stopped,
)

pytestmark = pytest.mark.anyio

QUEUE = f"{ROOT}/consumequeue/orders/0/{0:020d}"
SECOND = f"{ROOT}/consumequeue/orders/0/{400:020d}"


def rebuild_of(store: MessageStore, options: StoreOptions = SMALL) -> QueueRebuild:
    queue = store._derived.find("orders", 0)
    assert queue is not None
    deleted, end = store._derived.deleted, store.max_commit_log_offset
    return QueueRebuild(store._files, store._log.run, queue, deleted, options.delay_level_ms, end)


async def rebuilt(store: MessageStore) -> QueueRebuild:
    rebuild = rebuild_of(store)
    await anyio.to_thread.run_sync(lambda: list(rebuild.steps()))
    rebuild.finish()
    return rebuild


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_every_damaged_byte_of_a_queue_is_mended_while_the_store_runs() -> None:
    sound, _ = await stopped(*[message(number) for number in range(30)])
    good = contents(sound, QUEUE), contents(sound, SECOND)
    for position in (*range(19, 41), *range(380, 400), *range(400, 420)):
        storage = sound.copy()
        async with opened(storage) as store:
            flip(storage, QUEUE if position < 400 else SECOND, position % 400, position % 8)
            assert (await rebuilt(store)).changed == 1
            assert (contents(storage, QUEUE), contents(storage, SECOND)) == good
            assert numbers(store) == list(range(30))


async def test_a_sound_queue_is_not_written() -> None:
    storage, _ = await stopped(*[message(number) for number in range(30)])
    async with opened(storage) as store:
        before = len(storage.calls)
        assert (await rebuilt(store)).changed == 0
        assert storage.calls[before:] == []


async def test_a_queue_whose_files_are_all_garbage_is_written_anew() -> None:
    storage, _ = await stopped(*[message(number, queue_id=number % 2) for number in range(60)])
    good = contents(storage, QUEUE), contents(storage, SECOND)
    async with opened(storage) as store:
        overwrite(storage, QUEUE, 0, b"\xff" * 400)
        storage.remove(SECOND)
        store._files.forget(SECOND)
        rebuild = await rebuilt(store)
        assert rebuild.changed == 30
        assert (contents(storage, QUEUE), contents(storage, SECOND)) == good
        assert numbers(store) == list(range(0, 60, 2))


async def test_puts_go_on_while_a_queue_is_rebuilt() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, clock=clock) as store:
        await put_all(store, *[message(number) for number in range(25)])
        await clock.advance(2)
        flip(storage, QUEUE, 40)
        rebuild = rebuild_of(store)
        steps = rebuild.steps()
        next(steps)
        await put_all(store, *[message(number) for number in range(25, 50)])
        await clock.advance(2)  # writes the new entries, into a new file too
        for _ in steps:
            pass
        rebuild.finish()
        assert rebuild.changed == 1
        assert numbers(store) == list(range(50))
    async with opened(storage) as store:
        assert numbers(store) == list(range(50))


async def test_a_rebuild_finds_the_first_message_again() -> None:
    storage, _ = await stopped(*[message(number) for number in range(10)])
    async with opened(storage) as store:
        queue = store._derived.find("orders", 0)
        assert queue is not None
        overwrite(storage, QUEUE, 0, b"\xff" * 100)
        queue.min_offset = 5
        assert (await rebuilt(store)).changed == 5
        assert numbers(store) == list(range(10))


async def test_it_is_done_in_one_call_too() -> None:
    storage, _ = await stopped(*[message(number) for number in range(10)])
    async with opened(storage) as store:
        queue = store._derived.find("orders", 0)
        assert queue is not None
        flip(storage, QUEUE, 27)
        end = store.max_commit_log_offset
        assert (
            rebuild_queue(
                store._files, store._log.run, queue, store._derived.deleted, SMALL.delay_level_ms, end
            ).changed
            == 1
        )


async def test_entries_that_stand_for_no_message_do_not_hide_those_before_them() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, clock=clock) as store:
        await put_all(store, message(0), message(1))
        queue = store._derived.find("orders", 0)
        assert queue is not None
        queue.next_offset = 5  # as after a start that found the records of 2, 3 and 4 missing
        store._derived.fill_queue(queue, 5)
        clock.now_ms += 1000
        await put_all(store, message(5))
        queue.set_min_offset(0)
        assert queue.min_offset == 0
        assert queue.offset_behind(1) == 1
        assert await store.find_offset_by_time("orders", 0, clock.now_ms - 1000) == 0
        assert await store.find_offset_by_time("orders", 0, clock.now_ms) == 5
