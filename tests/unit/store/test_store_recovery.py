"""Opening a store that was killed, cut off, or damaged: what is kept, what is cut, and when the start is refused."""

from __future__ import annotations

import dataclasses
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from rocketbox.broker.store.message_store import MessageStore
from rocketbox.errors import StoreCorruptError, StoreError, StoreLockedError
from rocketbox.protocol.stored_message import StoredMessage
from rocketbox.storage.file_system import RealStorage
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.crash_checks import inline_pools
from tests.support.store.store_tools import (
    CHECKPOINT,
    LOG,
    ROOT,
    SMALL,
    ManualClock,
    check_index,
    contents,
    expire_first_file,
    flip,
    forget_sync,
    found_by_key,
    killed,
    message,
    numbers,
    opened,
    overwrite,
    put_all,
    remove_tree,
    stopped,
)

pytestmark = pytest.mark.anyio

QUEUE = f"{ROOT}/consumequeue/orders/0/{0:020d}"


def remove_mark(storage: MemoryStorage, physic_msg_timestamp: int = 0) -> None:
    """Leave the checkpoint as an Apache broker would have written it."""
    overwrite(storage, CHECKPOINT, 0, struct.pack(">6q", physic_msg_timestamp, 0, 0, 0, 0, 0) + bytes(200))


async def numbers_in(storage: MemoryStorage) -> list[int]:
    async with opened(storage) as store:
        return numbers(store)


# --- kills ---


async def test_a_killed_store_has_all_that_was_durable_and_goes_on() -> None:
    storage, _ = await killed(*[message(number) for number in range(60)])
    assert storage.exists(f"{ROOT}/abort")
    async with opened(storage) as store:
        assert store.report is not None
        assert (store.report.clean, store.report.records, store.report.queue_entries_added) == (False, 60, 60)
        assert numbers(store) == list(range(60))
        assert await found_by_key(store, "k33") == [33]
        await put_all(store, message(60))
        assert numbers(store) == list(range(61))
    async with opened(storage) as store:
        assert store.report is not None
        assert (store.report.clean, store.report.queue_entries_added) == (True, 0)
        assert numbers(store) == list(range(61))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_real_directory_copied_while_the_store_runs_opens_with_what_was_durable(tmp_path: Path) -> None:
    live = tmp_path / "live"
    clock = ManualClock()
    copies = []
    async with MessageStore(live, SMALL, clock=clock) as store:
        for number in range(120):
            await put_all(store, message(number, queue_id=number % 2, size=number * 7 % 300 + 20))
            if number % 10 == 5:
                copies.append((number, tmp_path / str(number)))
                shutil.copytree(live, copies[-1][1])
            if number % 25 == 24:
                await clock.advance(11)
    for number, directory in copies:
        for _ in range(2):
            async with MessageStore(directory, SMALL, clock=clock) as store:
                assert numbers(store) == list(range(0, number + 1, 2))
                assert numbers(store, queue_id=1) == list(range(1, number + 1, 2))
                assert await found_by_key(store, f"k{number}") == [number]


async def test_recovery_again_and_again_changes_nothing_more() -> None:
    storage, places = await killed(*[message(number) for number in range(30)])
    forget_sync(storage, places[20])
    flip(storage, f"{ROOT}/commitlog/{places[28] // 4096 * 4096:020d}", places[28] % 4096 + 40)
    states = []
    for _ in range(3):
        async with opened(storage) as store:
            found = numbers(store)
            copy = storage.copy()
        states.append((found, files_of(copy)))
        storage = copy
    assert states[0] == states[1] == states[2]


def files_of(storage: MemoryStorage) -> dict[str, bytes]:
    """Logs and queues by path."""
    found = {}
    for directory in (f"{ROOT}/commitlog", f"{ROOT}/consumequeue/orders/0"):
        for name in storage.list_directory(directory):
            found[f"{directory}/{name}"] = contents(storage, f"{directory}/{name}")
    return found


# --- torn tails ---


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_cut_at_every_byte_of_the_last_record_all_before_it_is_kept() -> None:
    storage, places = await killed(*[message(number) for number in range(12)])
    start, end = places[-2], places[-1]
    forget_sync(storage, start)
    whole = contents(storage, LOG)
    for cut in range(start, end + 1):
        torn = storage.copy()
        overwrite(torn, LOG, cut, bytes(end - cut))
        async with opened(torn) as store:
            assert store.report is not None
            complete = whole[cut:end].strip(b"\0") == b""
            assert numbers(store) == list(range(12 if complete else 11))
            if not complete:
                assert store.report.end == start
                assert store.report.truncated_bytes == cut - start - whole[start:cut].count(0)
                assert (await put_all(store, message(11)))[0] == start
                assert numbers(store) == list(range(12))


@pytest.mark.parametrize("rest", ["noise", "another record", "its own second half"])
async def test_whatever_bytes_follow_the_tear_they_are_cleared(rest: str) -> None:
    storage, places = await killed(*[message(number) for number in range(12)])
    start, end = places[-2], places[-1]
    forget_sync(storage, places[-3])
    record = contents(storage, LOG)[start:end]
    if rest == "noise":
        overwrite(storage, LOG, start + 50, random.Random(3).randbytes(3 * len(record)))
    elif rest == "another record":
        overwrite(storage, LOG, start, record[:60] + record)
    else:
        overwrite(storage, LOG, start, bytes(60))
    async with opened(storage) as store:
        assert store.report is not None
        assert (store.report.torn_file, store.report.torn_position) == (LOG, start)
        assert numbers(store) == list(range(11))
    assert contents(storage, LOG)[start:] == bytes(4096 - start)


async def test_a_leftover_behind_the_tear_never_comes_back() -> None:
    """Of an un-synced batch the first page is lost and a later record whole; then the log grows over the gap."""
    storage, places = await killed(*[message(number) for number in range(12)])
    forget_sync(storage, places[9])
    overwrite(storage, LOG, places[9], bytes(places[10] - places[9]))
    async with opened(storage) as store:
        assert numbers(store) == list(range(9))
        await put_all(store, message(9))
        assert store.report is not None
        storage = storage.copy()
    assert await numbers_in(storage) == list(range(10))


async def test_a_torn_first_record_of_a_file_and_the_empty_file_behind_are_dealt_with() -> None:
    storage, places = await killed(*[message(number, size=700) for number in range(9)])
    second = next(place for place in places if place >= 4096)
    forget_sync(storage, second)
    overwrite(storage, f"{ROOT}/commitlog/{4096:020d}", 10, bytes(4086))
    last = f"{ROOT}/commitlog/{8192:020d}"
    if storage.exists(last):
        overwrite(storage, last, 0, bytes(4096))
    else:
        storage.open(last, create=True).truncate(4096)
    found = await numbers_in(storage)
    assert found == list(range(places.index(second)))
    assert storage.list_directory(f"{ROOT}/commitlog") == [f"{0:020d}", f"{4096:020d}"]


async def test_the_end_of_a_file_without_its_blank_is_where_the_log_goes_on() -> None:
    storage, places = await killed(*[message(number, size=700) for number in range(9)])
    last = max(place for place in places if place < 4096)
    blank = last + struct.unpack_from(">i", contents(storage, LOG), last)[0]
    second = next(place for place in places if place >= 4096)
    forget_sync(storage, blank)
    overwrite(storage, LOG, blank, bytes(8))
    for start in (4096, 8192):
        overwrite(storage, f"{ROOT}/commitlog/{start:020d}", 0, bytes(4096))
    async with opened(storage) as store:
        assert store.report is not None
        assert store.report.end == blank
        assert numbers(store) == list(range(places.index(second)))


async def test_files_that_a_crash_left_empty_are_made_anew() -> None:
    storage, places = await killed(message(0), message(1))
    storage.open(f"{ROOT}/commitlog/{4096:020d}", create=True)
    storage.make_directories(f"{ROOT}/consumequeue/other/3")
    storage.open(f"{ROOT}/consumequeue/other/3/{0:020d}", create=True)
    storage.make_directories(f"{ROOT}/index")
    storage.open(f"{ROOT}/index/20260101000000000", create=True)
    async with opened(storage) as store:
        assert numbers(store) == [0, 1]
        await put_all(store, *[message(number, size=700) for number in range(2, 20)])
        await put_all(store, message(5, topic="other", queue_id=3))
        assert numbers(store) == list(range(20))
    assert places


# --- corrupt records ---


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_flipped_bit_of_a_synced_record_is_refused_with_file_and_offset() -> None:
    storage, places = await killed(*[message(number) for number in range(12)])
    chance = random.Random(7)
    for number in (0, 6, 10, 11):  # first, middle, last but one, last
        for offset in range(places[number], places[number + 1]):
            damaged = storage.copy()
            flip(damaged, LOG, offset, chance.randrange(8))
            before = contents(damaged, LOG)
            with pytest.raises(StoreCorruptError, match="synced") as caught:
                await numbers_in(damaged)
            assert (caught.value.file, caught.value.offset) == (LOG, places[number])
            assert contents(damaged, LOG) == before
            assert damaged.locked == set()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_every_bit_of_a_record_counts() -> None:
    storage, places = await killed(message(0), message(1), message(2))
    for offset in range(places[1], places[2]):
        for bit in range(8):
            flip(storage, LOG, offset, bit)
            with pytest.raises(StoreCorruptError):
                await numbers_in(storage)
            flip(storage, LOG, offset, bit)
    assert await numbers_in(storage) == [0, 1, 2]


async def test_a_flipped_bit_that_was_never_synced_is_a_torn_tail() -> None:
    storage, places = await killed(*[message(number) for number in range(12)])
    forget_sync(storage, places[9])
    flip(storage, LOG, places[9] + 100)
    assert await numbers_in(storage) == list(range(9))


async def test_a_record_in_a_later_file_proves_that_the_earlier_file_was_synced() -> None:
    storage, places = await killed(*[message(number, size=700) for number in range(9)])
    assert places[-1] > 8192
    forget_sync(storage, 0)
    flip(storage, LOG, places[2] + 100)
    with pytest.raises(StoreCorruptError, match=r"intact record at 4096"):
        await numbers_in(storage)


async def test_zeros_and_missing_files_where_the_log_was_synced_are_refused() -> None:
    storage, places = await killed(*[message(number, size=700) for number in range(9)])
    wiped = storage.copy()
    overwrite(wiped, f"{ROOT}/commitlog/{4096:020d}", 0, bytes(4096))
    with pytest.raises(StoreCorruptError, match="zero"):
        await numbers_in(wiped)
    cut = storage.copy()
    cut.remove(f"{ROOT}/commitlog/{8192:020d}")
    with pytest.raises(StoreCorruptError) as caught:
        await numbers_in(cut)
    assert caught.value.file.endswith(f"{8192:020d}")
    gap = storage.copy()
    gap.remove(f"{ROOT}/commitlog/{4096:020d}")
    with pytest.raises(StoreCorruptError, match="missing"):
        await numbers_in(gap)
    remove_tree(storage, f"{ROOT}/commitlog")
    with pytest.raises(StoreCorruptError):
        await numbers_in(storage)
    assert places


async def test_a_length_that_a_flipped_bit_makes_huge_is_not_believed() -> None:
    options = dataclasses.replace(SMALL, mapped_file_size_commit_log=1 << 30)
    storage, places = await killed(message(0), message(1), options=options)
    forget_sync(storage, places[1])
    overwrite(storage, LOG, places[1], (900 << 20).to_bytes(4, "big"))
    async with opened(storage, options) as store:
        assert numbers(store) == [0]
        assert store.report is not None
        assert "body" in str(store.report.torn_reason)


async def test_without_our_mark_apaches_checkpoint_time_proves_a_sync() -> None:
    """Records stored 1 s apart; the checkpoint's time lies behind record 8."""
    storage, clock, places = MemoryStorage(), ManualClock(), []
    async with opened(storage, clock=clock) as store:
        start = clock.now_ms
        for number in range(10):
            places += (await put_all(store, message(number)))[:1]
            clock.now_ms += 1000
        storage = storage.copy()
    flip(storage, LOG, places[5] + 100)
    for known, refused in ((start + 8500, True), (start + 5500, False), (0, False)):
        copy = storage.copy()
        remove_mark(copy, known)
        if refused:
            with pytest.raises(StoreCorruptError, match="intact record at"):
                await numbers_in(copy)
        else:
            assert await numbers_in(copy) == list(range(5))


@pytest.mark.parametrize("clean", [True, False])
async def test_without_our_mark_a_queue_entry_proves_a_sync(clean: bool) -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, clock=clock) as store:
        places = await put_all(store, *[message(number) for number in range(10)])
        await clock.advance(2)
        copy = storage.copy()
    storage = storage if clean else copy
    assert storage.exists(f"{ROOT}/abort") is not clean
    remove_mark(storage)
    flip(storage, LOG, places[5] + 100)
    with pytest.raises(StoreCorruptError, match="entry"):
        await numbers_in(storage)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_checkpoint_that_is_torn_or_lost_costs_nothing() -> None:
    storage, _ = await killed(*[message(number) for number in range(30)])
    for length in (*range(0, 109, 4), 4096):
        copy = storage.copy()
        copy.open(CHECKPOINT).truncate(length)
        assert await numbers_in(copy) == list(range(30))
    storage.remove(CHECKPOINT)
    assert await numbers_in(storage) == list(range(30))


# --- queues and index ---


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
async def test_lost_queues_and_index_are_built_again_with_the_same_offsets(clean: bool) -> None:
    messages = [message(number, queue_id=number % 2, size=number % 5 * 100 + 20) for number in range(100)]
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, clock=clock) as store:
        await put_all(store, *messages[:90])
        await clock.advance(11)
        await put_all(store, *messages[90:])
        if not clean:
            copy = storage.copy()
    storage = storage if clean else copy
    for lost in ("consumequeue", "consumequeue/orders/1", "index"):
        copy = storage.copy()
        remove_tree(copy, f"{ROOT}/{lost}")
        await check_all(copy)
    for name in storage.list_directory(f"{ROOT}/consumequeue/orders/0"):
        copy = storage.copy()
        if name != f"{0:020d}":
            for later in storage.list_directory(f"{ROOT}/consumequeue/orders/0"):
                if later >= name:
                    copy.remove(f"{ROOT}/consumequeue/orders/0/{later}")
            await check_all(copy)


async def check_all(storage: MemoryStorage) -> None:
    async with opened(storage) as store:
        assert numbers(store) == list(range(0, 100, 2))
        assert numbers(store, queue_id=1) == list(range(1, 100, 2))
        for number in (0, 49, 89, 99):
            found = await found_by_key(store, f"k{number}")
            assert found == [number]
        await put_all(store, message(100))
        assert numbers(store)[-1] == 100


async def written_and_killed(count: int, written: int) -> MemoryStorage:
    """The files of a store that was killed when the queue entries of the first ``written`` messages were written."""
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, clock=clock) as store:
        await put_all(store, *[message(number) for number in range(written)])
        await clock.advance(11)
        for number in range(written, count):
            await put_all(store, message(number))
        return storage.copy()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_a_queue_holds_behind_the_checkpoint_is_not_believed() -> None:
    """A write of entries that was cut off at any byte, and any leftover there, is written again."""
    storage = await written_and_killed(19, 10)
    whole = await written_and_killed(19, 19)
    entries = contents(whole, QUEUE)
    for cut in range(200, 381):
        for rest in (bytes(400 - cut), b"\x01" * (400 - cut)):
            copy = storage.copy()
            overwrite(copy, QUEUE, 0, entries[:cut] + rest)
            with inline_pools():
                async with opened(copy) as store:
                    assert numbers(store) == list(range(19))
                    await check_index(store, *range(19))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_queue_of_a_stopped_store_that_was_cut_is_completed() -> None:
    storage, _ = await stopped(*[message(number) for number in range(19)])
    for units in range(19):
        for cut in (units * 20, units * 20 + 8, units * 20 + 11):  # in the tags code: only reading the log shows it
            copy = storage.copy()
            overwrite(copy, QUEUE, cut, bytes(400 - cut))
            assert await numbers_in(copy) == list(range(19))


async def test_queue_entries_of_records_that_are_gone_are_removed() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, clock=clock) as store:
        places = await put_all(store, *[message(number) for number in range(15)])
        await clock.advance(11)
        storage = storage.copy()
    remove_mark(storage)  # as after an Apache broker, whose entries may be on the disk before the log is
    overwrite(storage, LOG, places[10], bytes(places[-1] - places[10]))
    async with opened(storage) as store:
        assert store.report is not None
        assert store.report.queue_entries_removed == 5
        assert numbers(store) == list(range(10))
        assert await found_by_key(store, "k12") == []
        await put_all(store, *[message(number) for number in range(20, 25)])
        assert numbers(store) == [*range(10), *range(20, 25)]
        assert await found_by_key(store, "k3") == [3]
        assert await found_by_key(store, "k22") == [22]


async def test_a_queue_whose_first_records_are_gone_keeps_its_offsets() -> None:
    """As after retention: the first log file is removed with its part of the queue."""
    storage, places = await stopped(*[message(number, size=100) for number in range(60)])
    first = next(number for number, place in enumerate(places) if place >= 4096)
    expire_first_file(storage)
    complete, rebuilt = storage, storage.copy()
    remove_tree(rebuilt, f"{ROOT}/consumequeue")
    for copy in (complete, rebuilt):
        async with opened(copy) as store:
            assert store.min_offset("orders", 0) == first
            assert store.get("orders", 0, 0).next_begin_offset == first
            assert numbers(store) == list(range(first, 60))
            await put_all(store, message(60))
            assert numbers(store)[-1] == 60


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_index_whose_write_was_cut_off_anywhere_finds_everything_after_recovery() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, clock=clock) as store:
        await put_all(store, *[message(number) for number in range(5)])
        await clock.advance(11)
        before = storage.copy()
        await put_all(store, *[message(number) for number in range(5, 10)])
        begin = len(storage.calls)
        await clock.advance(11)
        after = storage.copy()
    (name,) = after.list_directory(f"{ROOT}/index")
    path = f"{ROOT}/index/{name}"
    writes = [call for call in storage.calls[begin:] if (call.name, call.path) == ("write", path)]
    assert len(writes) >= 3  # entries, slots, header
    for count in range(len(writes) + 1):
        copy = before.copy()
        for directory in ("commitlog", "consumequeue/orders/0"):
            for file in after.list_directory(f"{ROOT}/{directory}"):
                overwrite(copy, f"{ROOT}/{directory}/{file}", 0, contents(after, f"{ROOT}/{directory}/{file}"))
        for call in writes[:count]:
            data = contents(after, path)[call.offset : call.offset + call.size]
            overwrite(copy, path, call.offset, data)
        for _ in range(2):
            async with opened(copy) as store:
                for number in range(10):
                    assert await found_by_key(store, f"k{number}") == [number]
                assert len(await found_by_key(store, "all", 32)) == 10


# --- settings, locks ---


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"mapped_file_size_commit_log": 8192}, "files of the commit log have 4096 bytes"),
        ({"mapped_file_size_consume_queue": 800}, "files of consume queues have 400 bytes"),
        ({"max_hash_slot_num": 32}, "index files have 16 slots and 64 entries"),
        ({"max_index_num": 100}, "index files have 16 slots and 64 entries"),
    ],
)
async def test_files_of_other_sizes_than_the_settings_say_are_gone_on_with_as_they_are(
    change: dict[str, int], told: str, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    storage = await written_and_killed(30, 25)
    if clean:
        async with opened(storage):
            pass
    options = dataclasses.replace(SMALL, **change)  # type: ignore[arg-type]  # only numbers
    for end in (31, 32, 33):
        caplog.clear()
        async with opened(storage, options) as store:
            assert [line for line in caplog.messages if told in line]
            await put_all(store, message(end - 1))
            await put_all(store, message(end - 1, topic="other"))
            assert numbers(store) == list(range(end))
            await check_index(store, *range(end))
    sizes = {
        name: storage.open(f"{ROOT}/commitlog/{name}").size() for name in storage.list_directory(f"{ROOT}/commitlog")
    }
    assert set(sizes.values()) == {4096}
    assert storage.open(f"{ROOT}/consumequeue/other/0/{0:020d}").size() == 400
    caplog.clear()
    async with opened(storage) as store:
        assert numbers(store) == list(range(33))
    assert not [line for line in caplog.messages if " bytes" in line or " slots" in line]


async def test_files_of_the_log_of_several_sizes_are_refused() -> None:
    storage, _ = await stopped(*[message(number, size=700) for number in range(9)])
    storage.open(f"{ROOT}/commitlog/{4096:020d}").truncate(8192)
    before = files_of(storage)
    with pytest.raises(StoreError, match="mapped-file-size-commit-log"):
        await numbers_in(storage)
    assert files_of(storage) == before


async def test_a_directory_in_use_is_refused() -> None:
    storage = MemoryStorage()
    async with opened(storage) as store:
        await put_all(store, message(0))
        with pytest.raises(StoreLockedError, match="in use"):
            await numbers_in(storage)
        await put_all(store, message(1))
    assert await numbers_in(storage) == [0, 1]


HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("locked", flush=True)
sys.stdin.readline()
"""


def try_to_hold(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HOLDER, str(directory / "lock")]
    return subprocess.run(command, input="", capture_output=True, text=True, check=False)


def hold(directory: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, str(directory / "lock")]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_lock_is_the_one_that_another_process_would_take(tmp_path: Path) -> None:
    async with MessageStore(tmp_path, SMALL) as store:
        await put_all(store, message(0))
        refused = try_to_hold(tmp_path)
        assert refused.returncode != 0
        assert "BlockingIOError" in refused.stderr
        with pytest.raises(StoreLockedError):
            async with MessageStore(tmp_path, SMALL):
                raise AssertionError("it must not open")
        with pytest.raises(StoreLockedError):  # and the attempt above did not let go of the lock
            RealStorage().lock(str(tmp_path / "lock"))
    holder = hold(tmp_path)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(StoreLockedError):
            async with MessageStore(tmp_path, SMALL):
                raise AssertionError("it must not open")
        holder.kill()
    async with MessageStore(tmp_path, SMALL) as store:
        assert numbers(store) == [0]


async def test_the_abort_file_holds_the_process_id_while_the_store_runs() -> None:
    storage = MemoryStorage()
    async with opened(storage):
        assert contents(storage, f"{ROOT}/abort").decode().isdigit()
    assert not storage.exists(f"{ROOT}/abort")


async def test_a_long_recovery_tells_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    class Hasty(ManualClock):
        def monotonic(self) -> float:
            self.now_ms += 1500
            return super().monotonic()

    storage, _ = await killed(*[message(number, size=700) for number in range(30)])
    with caplog.at_level("INFO"):
        async with opened(storage, clock=Hasty()):
            pass
    assert "reading the commit log: at " in caplog.text
    assert "30 records read" in caplog.text


async def test_empty_and_new_directories_open() -> None:
    storage = MemoryStorage()
    for _ in range(2):
        async with opened(storage) as store:
            assert store.queues() == []
            assert store.max_commit_log_offset == 0
    storage.open(f"{ROOT}/abort", create=True)
    messages: list[StoredMessage] = [message(0)]
    async with opened(storage) as store:
        await put_all(store, *messages)
        assert numbers(store) == [0]


async def test_a_record_whose_checksum_is_torn_off_is_not_taken_for_one_without() -> None:
    """Its body and lengths are whole; the end of its properties is not there, but other bytes."""
    storage, places = await killed(*[message(number) for number in range(12)])
    forget_sync(storage, places[11])
    overwrite(storage, LOG, places[12] - 30, b"x" * 30)
    async with opened(storage) as store:
        assert numbers(store) == list(range(11))
        assert store.report is not None
        assert "no checksum" in str(store.report.torn_reason)


async def test_records_without_checksums_stay_readable_when_checksums_are_turned_on() -> None:
    without = dataclasses.replace(SMALL, enabled_append_prop_crc=False)
    storage = MemoryStorage()
    for options in (without, SMALL, without, SMALL):
        for _ in range(2):
            async with opened(storage, options) as store:
                count = len(numbers(store))
                assert numbers(store) == list(range(count))
                await put_all(store, message(count))
                storage = storage.copy()
    assert await numbers_in(storage) == list(range(8))
