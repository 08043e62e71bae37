"""What is removed from a store, and when: files of the log, queues and index that hold only expired messages."""

from __future__ import annotations

import dataclasses
import errno
from typing import Any

import pytest

from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.options import StoreOptions
from rocketbox.broker.store.reading import GetMessageStatus
from rocketbox.broker.store.store_check import check_store, find_files
from rocketbox.errors import ConfigurationError, StoreFullError
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.store_tools import (
    ROOT,
    SMALL,
    FaultyStorage,
    JumpingClock,
    ManualClock,
    found_by_key,
    message,
    numbers,
    opened,
    os_error,
    put_all,
    until,
)

pytestmark = pytest.mark.anyio

HOUR = 3600
ANY_HOUR = ";".join(map(str, range(24)))
KEEPS_3H = dataclasses.replace(
    SMALL,
    file_reserved_time="3h",
    delete_when=ANY_HOUR,
    delete_commit_log_files_interval=0,
    flush_consume_queue_thorough_interval=1000,
    max_message_size=2048,
)


def files(storage: MemoryStorage, directory: str) -> list[str]:
    return storage.list_directory(f"{ROOT}/{directory}")


def sound(storage: MemoryStorage, options: StoreOptions = KEEPS_3H) -> bool:
    return all(isinstance(step, int) for step in check_store(find_files(storage.copy(), ROOT, options), options))


async def fill(store: MessageStore, clock: ManualClock, count: int, *, first: int = 0, seconds: int = 60) -> None:
    """Put messages, one each minute."""
    for number in range(first, first + count):
        await put_all(store, message(number, size=700))
        await clock.advance(seconds)


async def test_files_whose_newest_message_has_expired_are_removed_with_what_queues_and_index_hold_of_them() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, KEEPS_3H, clock=clock) as store:
        await fill(store, clock, 100)  # four in a file, twenty entries in a queue's, 21 messages in one of the index
        log, queue, index = (
            files(storage, "commitlog"),
            files(storage, "consumequeue/orders/0"),
            files(storage, "index"),
        )
        assert files(storage, "commitlog")[0] == f"{0:020d}"
        assert numbers(store) == list(range(100))
        await clock.advance(2 * HOUR)
        await clock.advance(10)
        kept = numbers(store)
        assert kept == list(range(kept[0], 100))
        assert kept[0] % 4 == 0
        assert 36 <= kept[0] <= 40  # 0 to 39 were stored more than three hours ago
        assert store.min_offset("orders", 0) == kept[0]
        assert files(storage, "commitlog") == log[kept[0] // 4 :]
        assert files(storage, "consumequeue/orders/0") == queue[kept[0] // 20 :]
        assert len(files(storage, "index")) < len(index)
        assert store.get("orders", 0, 0).status is GetMessageStatus.OFFSET_TOO_SMALL
        assert await found_by_key(store, "all", 99) == kept[::-1][:64]
        assert await found_by_key(store, "k0") == []
    assert sound(storage)
    async with opened(storage, KEEPS_3H, clock=clock) as store:
        assert numbers(store) == kept
        await put_all(store, message(100))
        assert numbers(store) == [*kept, 100]


async def test_a_queue_whose_messages_are_all_gone_keeps_its_offsets() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, KEEPS_3H, clock=clock) as store:
        await put_all(store, *[message(number, topic="once", size=700) for number in range(30)])
        await fill(store, clock, 8)
        await clock.advance(4 * HOUR)
        await clock.advance(10)
        assert (store.min_offset("once", 0), store.max_offset("once", 0)) == (30, 30)
        assert files(storage, "consumequeue/once/0") == [f"{400:020d}"]
    assert sound(storage)
    async with opened(storage, KEEPS_3H, clock=clock) as store:
        assert (store.min_offset("once", 0), store.max_offset("once", 0)) == (30, 30)
        await put_all(store, message(30, topic="once"))
        assert numbers(store, "once") == [30]


async def test_the_last_file_stays_however_old() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, KEEPS_3H, clock=clock) as store:
        await fill(store, clock, 10)
        await clock.advance(100 * HOUR)
        await clock.advance(10)
        assert numbers(store) == [8, 9]


async def test_a_file_is_as_old_as_its_newest_message_not_as_the_next_one() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, KEEPS_3H, clock=clock) as store:
        await fill(store, clock, 4)
        await clock.advance(3 * HOUR)
        await put_all(store, message(4, size=700))  # begins the second file
        for _ in range(4):  # its entries, and its keys, must be on the disk first
            await clock.advance(10)
        assert numbers(store) == [4]


async def test_without_need_files_go_in_the_hours_of_delete_when_only() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    local_hour = clock.hour()
    options = dataclasses.replace(KEEPS_3H, delete_when=f"{(local_hour + 20) % 24:02d}")
    async with opened(storage, options, clock=clock) as store:
        await fill(store, clock, 12)
        await clock.advance(10 * HOUR)
        await clock.advance(10)
        assert numbers(store) == list(range(12))
        await clock.advance(10 * HOUR)
        await clock.advance(10)
        assert numbers(store) == list(range(8, 12))


async def test_above_the_first_mark_expired_files_go_at_any_hour() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    options = dataclasses.replace(KEEPS_3H, delete_when=f"{(clock.hour() + 20) % 24:02d}")
    storage.used_space, storage.free_space = 750, 250
    async with opened(storage, options, clock=clock) as store:
        await fill(store, clock, 12)
        await clock.advance(4 * HOUR)
        await clock.advance(10)
        assert numbers(store) == list(range(12))
        storage.used_space, storage.free_space = 751, 249
        await clock.advance(10)
        assert numbers(store) == list(range(8, 12))


async def test_what_has_not_expired_stays_on_a_full_disk() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    storage.used_space, storage.free_space = 95, 5
    async with opened(storage, dataclasses.replace(KEEPS_3H, disk_space_warning_free_bytes=0), clock=clock) as store:
        await fill(store, clock, 12)
        await clock.advance(2 * HOUR)
        await clock.advance(10)
        assert numbers(store) == list(range(12))


async def test_ten_files_go_in_a_run_and_all_above_the_second_mark() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, KEEPS_3H, clock=clock) as store:
        await fill(store, clock, 200, seconds=1)
        before = len(files(storage, "commitlog"))
        await clock.advance(4 * HOUR)
        assert len(files(storage, "commitlog")) == before - 10
        await clock.advance(10)
        assert len(files(storage, "commitlog")) == before - 20
        storage.used_space, storage.free_space = 86, 14
        await clock.advance(10)
        assert len(files(storage, "commitlog")) == 1


async def test_above_the_warning_mark_messages_are_refused_until_there_is_room() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, KEEPS_3H, clock=clock) as store:
        await put_all(store, message(0))
        storage.used_space, storage.free_space = 91 << 20, 9 << 20
        await clock.advance(10)
        with pytest.raises(StoreFullError, match=r"91\.0 % of it are used.*-ratio is 90.*9437184 bytes are free"):
            store.put(message(1))
        assert store.refusal is not None
        assert store.failure is None
        assert numbers(store) == [0]
        storage.used_space, storage.free_space = 90 << 20, 10 << 20
        await clock.advance(10)
        await put_all(store, message(1))
        assert store.refusal is None


async def test_a_large_disk_that_is_nearly_full_takes_messages() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    storage.used_space, storage.free_space = 98 << 30, 2 << 30
    async with opened(storage, KEEPS_3H, clock=clock) as store:
        await clock.advance(10)
        await put_all(store, message(0))


async def test_a_file_that_is_being_read_stays_until_the_read_is_over() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, KEEPS_3H, clock=clock) as store:
        await fill(store, clock, 12)
        store._log.run._reads[0] = 1
        await clock.advance(4 * HOUR)
        await clock.advance(10)
        assert numbers(store) == list(range(12))
        del store._log.run._reads[0]
        await clock.advance(10)
        assert numbers(store) == list(range(8, 12))


async def test_a_clock_that_jumps_forward_removes_nothing_before_it_has_lasted_for_an_hour() -> None:
    storage, clock = MemoryStorage(), JumpingClock()
    async with opened(storage, KEEPS_3H, clock=clock) as store:
        await fill(store, clock, 12)
        clock.jump_ms = 365 * 24 * HOUR * 1000
        await clock.advance(1800)
        assert numbers(store) == list(range(12))
        clock.jump_ms = 0  # set right in time
        await clock.advance(1810)
        await clock.advance(10)
        assert numbers(store) == list(range(12))
        clock.jump_ms = 365 * 24 * HOUR * 1000
        await clock.advance(10)
        await clock.advance(3590)
        assert numbers(store) == list(range(12))
        await clock.advance(20)
        assert numbers(store) == list(range(8, 12))


async def test_a_message_stored_while_the_clock_was_far_ahead_does_not_keep_the_log_for_ever() -> None:
    storage, clock = MemoryStorage(), JumpingClock()
    async with opened(storage, KEEPS_3H, clock=clock) as store:
        await fill(store, clock, 12)
        clock.jump_ms = 10 * 365 * 24 * HOUR * 1000
        await fill(store, clock, 1, first=12, seconds=10)
        clock.jump_ms = 0
        await fill(store, clock, 15, first=13)
        (trouble,) = store.health().troubles
        assert "87599.7 hours ahead of the clock" in trouble.error
        assert "run for 3h since it was full" in trouble.error
        await clock.advance(HOUR)
        killed = storage.copy()
    for state, ran in ((storage, 1.25), (killed, 1)):
        later = JumpingClock()
        later.now_ms = clock.now_ms + 30 * 24 * HOUR * 1000  # in which it did not run
        async with opened(state, KEEPS_3H, clock=later) as store:
            await later.advance(10)
            await later.advance(HOUR)
            await later.advance(20)
            assert numbers(store)[-1] == 27
            assert numbers(store)[0] <= 12  # those before the jump have expired
            await later.advance((3 - ran - 1) * HOUR - 1200)
            assert numbers(store)[0] <= 12
            for _ in range(6):
                await later.advance(600)
            assert numbers(store) == list(range(24, 28))
            for number in range(28, 40):
                await put_all(store, message(number, size=700))
            await later.advance(10)
            await later.advance(3 * HOUR - 60)
            assert numbers(store) == list(range(24, 40))
            await later.advance(60)
            await later.advance(10)
            assert numbers(store) == list(range(36, 40))
        assert sound(state)


async def test_a_clock_that_was_set_forward_before_the_start_is_not_believed_either() -> None:
    storage, clock = MemoryStorage(), JumpingClock()
    async with opened(storage, KEEPS_3H, clock=clock) as store:
        await fill(store, clock, 12)
    clock.jump_ms = 365 * 24 * HOUR * 1000
    async with opened(storage, KEEPS_3H, clock=clock) as store:
        await clock.advance(10)
        await clock.advance(1800)
        assert numbers(store) == list(range(12))


async def test_a_store_that_was_full_takes_messages_again_when_expired_files_are_gone() -> None:
    storage, clock = FullDisk(files=4), ManualClock()
    async with opened(storage, KEEPS_3H, clock=clock) as store:
        number = 16  # as many as four files hold
        await put_all(store, *[message(each, size=700) for each in range(number)])
        with pytest.raises(StoreFullError):
            await put_all(store, message(number, size=700))
        storage.used_space, storage.free_space = 86, 14
        await clock.advance(2 * HOUR)
        with pytest.raises(StoreFullError):
            store.put(message(number))
        await clock.advance(2 * HOUR)
        await clock.advance(60)
        await put_all(store, message(number, size=700))
        assert numbers(store)[-1] == number


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_crash_between_any_two_steps_leaves_a_store_that_opens_and_goes_on() -> None:
    storage, clock = EachRemoval(), ManualClock()
    async with opened(storage, KEEPS_3H, clock=clock) as store:
        await put_all(store, *[message(number, topic="once", size=700) for number in range(30)])
        await fill(store, clock, 50)
        storage.states.clear()
        await clock.advance(4 * HOUR)
        await clock.advance(10)
        await clock.advance(10)
        expected = numbers(store)
    assert len(storage.states) > 20
    for state in storage.states:
        later = ManualClock()
        later.now_ms = clock.now_ms
        async with opened(state, KEEPS_3H, clock=later) as store:
            found = numbers(store)
            assert found[-len(expected) :] == expected
            assert found == list(range(found[0], 50))
            assert store.max_offset("once", 0) == 30
            for seconds in (10, 10, HOUR + 10, 10, 10):  # it could be a clock that was set forward
                await later.advance(seconds)
            assert numbers(store) == expected
            await put_all(store, message(50))
        assert sound(state)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
async def test_what_is_removed_while_a_start_waits_for_room_is_not_missed_by_the_next_start(clean: bool) -> None:
    storage, clock = FaultyStorage(), ManualClock()
    async with opened(storage, KEEPS_3H, clock=clock) as store:
        await fill(store, clock, 100)
        killed = storage.copy()
    if not clean:
        storage.take(killed)
    storage.full = True
    storage.fail(os_error(errno.ENOSPC), "create", "sync", where="abort")  # it cannot be said that the store is in use
    async with opened(storage, KEEPS_3H, clock=clock) as store:
        assert store.refusal is not None
        for _ in range(5):
            await clock.advance(HOUR)
        assert store.min_commit_log_offset > 0
        storage.heal()
        await until(lambda: store.refusal is None, clock)
        await put_all(store, message(100))
    async with opened(storage, KEEPS_3H, clock=clock) as store:
        assert numbers(store)[-1] == 100


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"file_reserved_time": "soon"}, "file-reserved-time is 'soon'"),
        ({"file_reserved_time": "30m"}, "at least 3h"),
        ({"delete_when": "24"}, "hours from 00 to 23"),
        ({"delete_when": ""}, "hours from 00 to 23"),
        ({"disk_max_used_space_ratio": 96}, "from 10 to 95"),
        ({"disk_space_clean_forcibly_ratio": 86}, "from 30 to 85"),
        ({"disk_space_warning_level_ratio": 91}, "from 35 to 90"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        dataclasses.replace(SMALL, **settings)
    assert says in str(caught.value)


@pytest.mark.parametrize(("text", "hours"), [("72", 72), ("72h", 72), ("3d", 72), ("240m", 4)])
def test_the_time_that_files_are_kept_is_hours_or_has_a_unit(text: str, hours: int) -> None:
    assert dataclasses.replace(SMALL, file_reserved_time=text).file_reserved_ms == hours * HOUR * 1000


class FullDisk(MemoryStorage):
    """Has no room for more than so many files of the log at once."""

    def __init__(self, files: int) -> None:
        super().__init__()
        self._files_of_log = files

    def begin_call(self, name: str, path: str) -> None:
        super().begin_call(name, path)
        if name in {"create", "allocate"} and "commitlog" in path:
            there = self.list_directory(f"{ROOT}/commitlog")
            if len(there) >= self._files_of_log and path.rpartition("/")[2] not in there:
                raise OSError(28, "No space left on device", path)


class EachRemoval(MemoryStorage):
    """Keeps a copy of all files as they were before each removal."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[MemoryStorage] = []

    def record(self, name: str, path: str, offset: int = 0, size: int = 0) -> None:
        if name == "remove":
            self.states.append(self.copy())
        super().record(name, path, offset, size)
