"""A directory that an Apache broker used between two runs of ours, and was killed on: nothing that it stored is lost.

Apache's broker is played by what it leaves behind: records without a checksum of ours, entries in the queues, ``lock``
over the first bytes of the lock file, and a checkpoint that it has not written yet, in which our mark still holds.
The real ones do the same in ``tests/conformance``.
"""

from __future__ import annotations

import dataclasses

import pytest

from rocketbox.broker.store.checkpoint import Checkpoint
from rocketbox.errors import StoreCorruptError
from rocketbox.protocol.stored_message import StoredMessage
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.store_tools import (
    CHECKPOINT,
    LOG,
    ROOT,
    SMALL,
    contents,
    flip,
    forget_sync,
    killed,
    message,
    numbers,
    opened,
    overwrite,
    put_all,
    states_of_a_start,
    stopped,
)

pytestmark = pytest.mark.anyio

LOCK = f"{ROOT}/lock"
APACHES = dataclasses.replace(SMALL, enabled_append_prop_crc=False)


async def used_by_apache(storage: MemoryStorage, *messages: StoredMessage, locks: bool = True) -> MemoryStorage:
    """The files after an Apache broker stored these messages and was killed before it wrote its checkpoint."""
    ours = {path: contents(storage, path) for path in (CHECKPOINT, LOCK)}
    async with opened(storage, APACHES) as store:
        await put_all(store, *messages)
        after = storage.copy()
    for path, data in ours.items():
        after.open(path).truncate(len(data))
        overwrite(after, path, 0, data)
    if locks:
        overwrite(after, LOCK, 0, b"lock")
    assert after.exists(f"{ROOT}/abort")
    assert Checkpoint.decode(contents(after, CHECKPOINT)).marked
    return after


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
async def test_all_that_an_apache_broker_stored_before_it_was_killed_is_kept(clean: bool) -> None:
    storage, _ = await (stopped if clean else killed)(*[message(number) for number in range(10)])
    storage = await used_by_apache(storage, *[message(number) for number in range(10, 60)])
    for _ in range(2):
        async with opened(storage) as store:
            assert store.report is not None
            assert store.report.truncated_bytes == 0
            assert numbers(store) == list(range(60))
            storage = storage.copy()


async def test_a_foreign_run_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    storage, _ = await stopped(message(0))
    async with opened(storage):
        pass
    assert "another broker" not in caplog.text
    storage = await used_by_apache(storage, message(1))
    caplog.clear()
    async with opened(storage) as store:
        assert numbers(store) == [0, 1]
    assert "another broker than this one has used the directory" in caplog.text


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
async def test_even_where_the_lock_file_was_put_back_whole_records_are_never_torn(clean: bool) -> None:
    """As when a user restores some of the files: the mark says that no other broker was there."""
    storage, _ = await (stopped if clean else killed)(*[message(number) for number in range(10)])
    storage = await used_by_apache(storage, *[message(number) for number in range(10, 60)], locks=False)
    async with opened(storage) as store:
        assert numbers(store) == list(range(60))


async def test_an_entry_of_a_damaged_record_proves_that_it_was_synced_though_the_checkpoint_is_behind() -> None:
    storage = MemoryStorage()
    async with opened(storage) as store:
        places = await put_all(store, *[message(number) for number in range(12)])
    forget_sync(storage, places[5])
    storage.open(f"{ROOT}/abort", create=True)
    for number in (8, 11):
        damaged = storage.copy()
        flip(damaged, LOG, places[number] + 100)
        for _ in range(2):  # the refusal has destroyed none of its proofs
            with pytest.raises(StoreCorruptError, match="entry") as caught:
                async with opened(damaged):
                    raise AssertionError("it must not open")
            assert caught.value.offset == places[number]


async def test_the_lock_file_says_whose_run_was_the_last() -> None:
    storage = MemoryStorage()
    async with opened(storage):
        mark = Checkpoint.decode(contents(storage, CHECKPOINT))
        assert mark.run != 0
        assert contents(storage, LOCK) == b"rocketbox %016x\n" % mark.run
    overwrite(storage, LOCK, 0, b"lock")
    async with opened(storage):
        again = Checkpoint.decode(contents(storage, CHECKPOINT))
        assert contents(storage, LOCK) == b"rocketbox %016x\n" % again.run


@pytest.mark.parametrize("foreign", [True, False])
async def test_a_start_that_breaks_off_anywhere_leaves_the_mark_as_true_as_it_was(foreign: bool) -> None:
    """Never a foreign run taken for ours; never ours for a foreign one."""
    storage, _ = await killed(*[message(number) for number in range(10)])
    if foreign:
        storage = await used_by_apache(storage, *[message(number) for number in range(10, 20)])
    for state in await states_of_a_start(storage):
        mark = Checkpoint.decode(contents(state, CHECKPOINT))
        if not foreign:
            assert mark.marked
            assert contents(state, LOCK) == b"rocketbox %016x\n" % mark.run
        async with opened(state) as store:
            assert numbers(store) == list(range(20 if foreign else 10))
            assert store.report is not None
            assert store.report.truncated_bytes == 0
