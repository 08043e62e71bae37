"""Files of queues and index of odd sizes, off their grid or missing: a start puts them aside and builds them again."""

from __future__ import annotations

import dataclasses
import errno
import logging
from collections.abc import Callable, Iterator

import pytest

from rocketbox.broker.store.checkpoint import Checkpoint
from rocketbox.broker.store.misfits import entries_in
from rocketbox.errors import StoreCorruptError, StoreError, StoreFullError
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.crash_checks import inline_pools
from tests.support.store.store_tools import (
    CHECKPOINT,
    ROOT,
    SMALL,
    FaultyStorage,
    ManualClock,
    SteppingStorage,
    check_index,
    contents,
    message,
    numbers,
    opened,
    os_error,
    overwrite,
    put_all,
    remove_tree,
    states_of_a_start,
    until,
)

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

QUEUE = f"{ROOT}/consumequeue/orders/0"
COUNT = 50  # three files of 20 entries


@pytest.fixture(autouse=True)
def _no_threads() -> Iterator[None]:
    with inline_pools():
        yield


Damage = Callable[[MemoryStorage], None]


def resized(path: str, size: int) -> Damage:
    return lambda storage: storage.open(path).truncate(size)


def renamed(path: str, target: str) -> Damage:
    return lambda storage: storage.rename(path, target)


DAMAGES: dict[str, Damage] = {
    **{f"first queue file of {size}": resized(f"{QUEUE}/{0:020d}", size) for size in (0, 1, 277, 280, 401, 800)},
    **{f"middle queue file of {size}": resized(f"{QUEUE}/{400:020d}", size) for size in (0, 279, 420)},
    **{f"last queue file of {size}": resized(f"{QUEUE}/{800:020d}", size) for size in (5, 100, 399, 4000)},
    "only queue file of a topic": resized(f"{ROOT}/consumequeue/other/0/{0:020d}", 30),
    "middle queue file gone": lambda storage: storage.remove(f"{QUEUE}/{400:020d}"),
    "last queue file gone": lambda storage: storage.remove(f"{QUEUE}/{800:020d}"),
    "queue file off the grid": renamed(f"{QUEUE}/{400:020d}", f"{QUEUE}/{410:020d}"),
    "queue file far away": renamed(f"{QUEUE}/{400:020d}", f"{QUEUE}/{4 * 10**18:020d}"),
}


async def filled() -> tuple[MemoryStorage, MemoryStorage]:
    """A store that was stopped, and as it would be had it been killed."""
    storage, clock = MemoryStorage(), ManualClock(threads=False)
    async with opened(storage, clock=clock) as store:
        await put_all(store, *[message(number) for number in range(COUNT)], message(COUNT, topic="other"))
        for _ in range(3):
            await clock.advance(11)
        killed = storage.copy()
    return storage.copy(), killed


def without_mark(storage: MemoryStorage) -> MemoryStorage:
    overwrite(storage, CHECKPOINT, 48, bytes(100))
    assert not Checkpoint.decode(contents(storage, CHECKPOINT)).marked
    return storage


async def check(storage: MemoryStorage) -> None:
    async with opened(storage) as store:
        assert numbers(store) == list(range(COUNT))
        assert numbers(store, "other") == [COUNT]
        await check_index(store, 0, COUNT - 1, complete=False)
        await put_all(store, message(COUNT))
        assert numbers(store) == list(range(COUNT + 1))
        assert store.troubles.current == []
    async with opened(storage) as store:
        assert numbers(store) == list(range(COUNT + 1))
        await check_index(store, 0, COUNT, complete=False)


@pytest.mark.parametrize("what", DAMAGES)
async def test_queue_files_that_do_not_fit_are_built_again(what: str, caplog: pytest.LogCaptureFixture) -> None:
    for state in await filled():
        DAMAGES[what](state)
        unmarked = without_mark(state.copy())
        with caplog.at_level(logging.WARNING):
            await check(state)
        assert "again from the log" in caplog.text
        if what != "last queue file gone":  # without the mark nothing tells that there was one
            await check(unmarked)


@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("size", [1, 751, 1399, 1412])
async def test_index_files_that_do_not_fit_are_put_aside_and_built_again(which: int, size: int) -> None:
    for state in await filled():
        name = state.list_directory(f"{ROOT}/index")[which]
        state.open(f"{ROOT}/index/{name}").truncate(size)
        unmarked = without_mark(state.copy())
        await check(state)
        assert any(each.startswith(f"index-{name}") for each in state.list_directory(f"{ROOT}/torn"))
        await check(unmarked)


@pytest.mark.parametrize("marked", [True, False])
async def test_a_start_that_breaks_off_while_it_mends_is_made_up_for_by_the_next(marked: bool) -> None:
    state, _ = await filled()
    state.open(f"{QUEUE}/{400:020d}").truncate(100)
    state.open(f"{ROOT}/index/{state.list_directory(f'{ROOT}/index')[0]}").truncate(100)
    if not marked:
        without_mark(state)
    for left in await states_of_a_start(state):
        async with opened(left) as store:
            assert numbers(store) == list(range(COUNT))
            await check_index(store, *range(COUNT), complete=False)


async def test_what_was_changed_is_kept_in_torn() -> None:
    state, _ = await filled()
    path = f"{QUEUE}/{400:020d}"
    state.open(path).truncate(277)
    before = contents(state, path)
    await check(state)
    kept = [name for name in state.list_directory(f"{ROOT}/torn") if name.startswith("consumequeue-orders-0-")]
    assert [contents(state, f"{ROOT}/torn/{name}") for name in kept] == [before]


# --- on a full disk ---


def on_full_disk(state: MemoryStorage) -> FaultyStorage:
    storage = FaultyStorage()
    storage.take(state)
    storage.full = True
    return storage


async def check_on_full_disk(state: MemoryStorage, what: str) -> None:
    """It is read, also after a second start, takes no messages, and is whole when there is room again."""
    storage, clock = on_full_disk(state), ManualClock(threads=False)
    for _ in range(2):
        async with opened(storage, clock=clock) as store:
            assert store.refusal is not None, what
            assert store.failure is None
            assert numbers(store) == list(range(COUNT)), what
            assert numbers(store, "other") == [COUNT]
            await clock.advance(100)
            with pytest.raises(StoreFullError):
                store.put(message(COUNT))
    async with opened(storage, clock=clock) as store:
        assert store.refusal is not None
        for path in storage.list_directory(QUEUE):  # what lies there was not touched
            assert contents(storage, f"{QUEUE}/{path}") == contents(state, f"{QUEUE}/{path}")
        storage.heal()
        await until(lambda: store.refusal is None, clock)
        await put_all(store, message(COUNT))
        for _ in range(4):
            await clock.advance(30)
        assert store.troubles.current == []
        assert numbers(store) == list(range(COUNT + 1))
        await check_index(store, *range(COUNT), complete=False)
        killed = storage.copy()
    for left in (storage, killed):
        async with opened(left) as store:
            assert numbers(store) == list(range(COUNT + 1)), what
            await check_index(store, *range(COUNT + 1), complete=False)
    assert not storage.exists(f"{ROOT}/abort")


@pytest.mark.parametrize("what", [what for what in DAMAGES if what != "last queue file gone"])
async def test_on_a_full_disk_queue_files_that_do_not_fit_are_left_out_until_there_is_room(what: str) -> None:
    stopped, killed = await filled()
    for state in (stopped, without_mark(killed)):
        DAMAGES[what](state)
        await check_on_full_disk(state, what)


async def test_on_a_full_disk_an_index_that_does_not_fit_is_left_out_until_there_is_room() -> None:
    for state in await filled():
        state.open(f"{ROOT}/index/{state.list_directory(f'{ROOT}/index')[1]}").truncate(751)
        for each in (without_mark(state.copy()), state):
            async with opened(on_full_disk(each)) as store:
                with pytest.raises(StoreError, match="no message is found by its key until the disk has room"):
                    await store.query_keys("orders", "k1", 9, 0, 1 << 60)
            await check_on_full_disk(each, "index")


async def test_a_start_that_breaks_off_while_what_was_left_out_is_put_aside_is_made_up_for_by_the_next() -> None:
    state, _ = await filled()
    DAMAGES["middle queue file of 279"](state)
    state.open(f"{ROOT}/index/{state.list_directory(f'{ROOT}/index')[0]}").truncate(100)
    for each in (state, without_mark(state.copy())):
        stepping, clock = SteppingStorage(), ManualClock(threads=False)
        stepping.take(each)
        stepping.fail(os_error(errno.ENOSPC), "make_directories", where="/torn")
        async with opened(stepping, clock=clock) as store:
            assert store.refusal is not None
            stepping.heal()
            stepping.states.clear()
            await until(lambda: store.refusal is None, clock)
            states = [*stepping.states, stepping.copy()]
        assert len(states) > 10
        for left in states:
            async with opened(left) as store:
                assert numbers(store) == list(range(COUNT))
                await check_index(store, *range(COUNT), complete=False)


@pytest.mark.parametrize("full", [False, True], ids=["room", "full"])
async def test_a_queue_whose_messages_have_expired_keeps_its_numbers_when_a_file_of_it_is_missing(full: bool) -> None:
    storage, clock = FaultyStorage(), ManualClock(threads=False)
    options = dataclasses.replace(
        SMALL, delete_when=";".join(map(str, range(24))), file_reserved_time="3h", delete_commit_log_files_interval=0,
        max_message_size=2048,
    )  # fmt: skip
    async with opened(storage, options, clock=clock) as store:
        await put_all(store, *[message(number, topic="once") for number in range(45)])
        await put_all(store, *[message(number, size=700) for number in range(20)])
        for hours in (4, 1, 1):
            await clock.advance(hours * 3600)
        assert store.min_offset("once", 0) == 45
        queue = store._derived.find("once", 0)
        assert queue is not None
        first = queue.run.start
    storage.open(f"{ROOT}/consumequeue/once/0/{first:020d}").truncate(401)
    storage.full = full
    async with opened(storage, options, clock=clock) as store:
        assert (store.refusal is not None) == full
        assert (store.min_offset("once", 0), store.max_offset("once", 0)) == (45, 45)
        storage.heal()
        await until(lambda: store.refusal is None, clock)
        assert (store.min_offset("once", 0), store.max_offset("once", 0)) == (45, 45)
        await put_all(store, message(45, topic="once"))
    async with opened(storage, options, clock=clock) as store:
        assert numbers(store, "once") == [45]


class FillingStorage(FaultyStorage):
    """Its disk is full behind so many changes."""

    left = 0

    def record(self, name: str, path: str, offset: int = 0, size: int = 0) -> None:
        self.left -= 1
        self.full = self.full or self.left < 0
        super().record(name, path, offset, size)


async def test_a_disk_that_gets_full_at_any_step_of_mending_leaves_a_store_that_is_read_and_mended_later() -> None:
    stopped, _ = await filled()
    for what in (
        "first queue file of 277",
        "middle queue file gone",
        "last queue file of 100",
        "only queue file of a topic",
    ):
        DAMAGES[what](stopped)
    stopped.open(f"{ROOT}/index/{stopped.list_directory(f'{ROOT}/index')[0]}").truncate(100)
    counting = FillingStorage()
    counting.take(stopped)
    counting.left = most = 1 << 30
    async with opened(counting):
        changes = most - counting.left
    refused = 0
    for left in range(0, changes, 3):
        storage, clock = FillingStorage(), ManualClock(threads=False)
        storage.take(stopped)
        storage.left = left
        async with opened(storage, clock=clock) as store:
            assert numbers(store) == list(range(COUNT)), left
            assert numbers(store, "other") == [COUNT]
            refused += store.refusal is not None
            storage.left = most
            storage.heal()
            await until(lambda: store.refusal is None, clock)
            await put_all(store, message(COUNT))
            assert numbers(store) == list(range(COUNT + 1)), left
            await check_index(store, 0, COUNT, complete=False)
        async with opened(storage) as store:
            assert numbers(store) == list(range(COUNT + 1)), left
            assert numbers(store, "other") == [COUNT]
    assert refused > 10


async def test_entries_of_files_that_are_left_out_still_prove_that_the_log_was_synced() -> None:
    _, killed = await filled()
    DAMAGES["middle queue file of 420"](killed)
    without_mark(killed)
    remove_tree(killed, f"{ROOT}/consumequeue/other")  # nothing else proves it
    place = [place for place, _ in entries_in(killed, QUEUE, 0)][-3]
    log = f"{ROOT}/commitlog/{place - place % 4096:020d}"
    assert place + 2000 > killed.open(log).size(), "in the last file"
    overwrite(killed, log, place % 4096 + 30, b"damaged")
    with pytest.raises(StoreCorruptError, match=r"there is an intact record at \d+, which has a consume-queue entry"):
        async with opened(on_full_disk(killed)):
            pass
