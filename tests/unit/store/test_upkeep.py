"""What a running store mends of its queues and index by itself, and what it tells."""

from __future__ import annotations

import dataclasses
import errno
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from rocketbox.broker.store.consume_queue import FILLER_UNIT
from rocketbox.broker.store.finding import StoreFinding
from rocketbox.broker.store.upkeep import CHECKING
from rocketbox.broker.store.verify import LogComparison
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.store_tools import (
    CHECKPOINT,
    HOURLY,
    LOG,
    ROOT,
    SMALL,
    FaultyStorage,
    ManualClock,
    contents,
    flip,
    found_by_key,
    killed,
    message,
    numbers,
    opened,
    os_error,
    overwrite,
    passed,
    put_all,
    settle,
    stopped,
    until,
)

pytestmark = pytest.mark.anyio

QUEUE = f"{ROOT}/consumequeue/orders/0/{0:020d}"
DAILY = dataclasses.replace(SMALL, verify_interval=24 * 3_600_000)


async def test_a_tags_code_that_was_damaged_is_mended_in_the_background(caplog: pytest.LogCaptureFixture) -> None:
    storage, _ = await stopped(*[message(number) for number in range(30)])
    sound = contents(storage, QUEUE)
    clock = ManualClock()
    async with opened(storage, HOURLY, clock=clock) as store:
        for position in (32, 79, 119):
            flip(storage, QUEUE, position)
        with caplog.at_level(logging.WARNING, "rocketbox.broker.store.upkeep"):
            await passed(store, clock)
            await passed(store, clock)
        assert contents(storage, QUEUE) == sound
        assert store.upkeep.mended == 3
        assert [record.message[:40] for record in caplog.records] == ["3 entries of queues and index differed f"]
        assert store.troubles.current == []


async def test_a_pass_that_an_error_cut_short_is_made_again_soon() -> None:
    storage, clock = FaultyStorage(), ManualClock()
    async with opened(storage, DAILY, clock=clock) as store:
        await put_all(store, *[message(number) for number in range(30)])
    async with opened(storage, DAILY, clock=clock) as store:
        storage.fail(os_error(errno.EMFILE), "read", where="consumequeue", times=2)
        await settle()
        await clock.advance(3600)
        await until(lambda: storage.failed == 1)
        await settle()
        assert [trouble.what for trouble in store.troubles.current] == [CHECKING]
        await clock.advance(60)
        await until(lambda: storage.failed == 2)
        await settle()
        assert [trouble.what for trouble in store.troubles.current] == [CHECKING]
        await clock.advance(120)
        await until(lambda: store.upkeep.passes == 1)
        assert store.troubles.current == []


async def test_index_entries_and_slots_are_mended_in_the_background() -> None:
    storage, _ = await stopped(*[message(number) for number in range(40)])
    paths = [f"{ROOT}/index/{name}" for name in storage.list_directory(f"{ROOT}/index")]
    sound = [contents(storage, path) for path in paths]
    clock = ManualClock()
    async with opened(storage, HOURLY, clock=clock) as store:
        for path in paths:
            flip(storage, path, 40 + 64 + 20 * 3 + 1)
            flip(storage, path, 40 + 4 * 7 + 3)
        await passed(store, clock)
        assert [contents(storage, path) for path in paths] == sound
        for number in range(40):
            assert await found_by_key(store, f"k{number}") == [number]


async def test_after_an_unclean_stop_the_comparison_begins_at_once() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, clock=clock) as store:
        await put_all(store, *[message(number) for number in range(30)])
        await clock.advance(11)
        state = storage.copy()
    sound = contents(state, QUEUE)
    flip(state, QUEUE, 33)
    async with opened(state, clock=ManualClock()) as store:
        await settle()
        await settle()
        assert store.upkeep.passes == 1
        assert contents(state, QUEUE) == sound


async def test_damage_of_the_log_is_a_trouble_and_is_not_touched() -> None:
    storage, places = await stopped(*[message(number) for number in range(30)])
    clock = ManualClock()
    async with opened(storage, HOURLY, clock=clock) as store:
        flip(storage, LOG, places[3] + 50)
        damaged = contents(storage, LOG)
        await passed(store, clock)
        (trouble,) = [each for each in store.health().troubles if each.what.startswith("log: ")]
        assert f"{LOG}:{places[3]}: " in trouble.what
        assert contents(storage, LOG) == damaged
        flip(storage, LOG, places[3] + 50)
        await passed(store, clock)
        assert store.health().troubles == []


async def test_a_pass_does_not_disturb_puts_and_finds_nothing_in_a_sound_store() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, HOURLY, clock=clock) as store:
        for number in range(0, 100, 5):
            await put_all(store, *[message(number + each, queue_id=each % 2) for each in range(5)])
            await clock.advance(1200)
        assert store.upkeep.passes > 3
        assert store.upkeep.mended == 0
        assert store.troubles.current == []
        assert len(numbers(store)) == 60


async def test_a_comparison_begins_when_its_interval_is_over_and_not_before() -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, HOURLY, clock=clock) as store:
        await put_all(store, message(0))
        await settle()
        for passes in range(3):
            await clock.advance(3599.9)
            assert store.upkeep.passes == passes
            await clock.advance(0.1)
            await until(lambda passes=passes: store.upkeep.passes == passes + 1)  # type: ignore[misc]
            await settle()


async def test_no_comparison_runs_with_an_interval_of_0() -> None:
    storage, _ = await killed(*[message(number) for number in range(30)])
    clock = ManualClock()
    async with opened(storage, dataclasses.replace(SMALL, verify_interval=0), clock=clock) as store:
        await clock.advance(100_000)
        assert store.upkeep.passes == 0


async def test_a_comparison_reads_so_many_bytes_a_second() -> None:
    clock = ManualClock()
    options = dataclasses.replace(
        HOURLY, mapped_file_size_commit_log=4 << 20, verify_bytes_per_second=1 << 20, max_message_size=1 << 20
    )
    storage, _ = await stopped(*[message(number, size=500_000) for number in range(20)], options=options)
    async with opened(storage, options, clock=clock) as store:
        await settle()
        await clock.advance(3600)
        seconds = 0
        while not store.upkeep.passes and seconds < 100:
            await clock.advance(1)
            seconds += 1
        assert 7 <= seconds <= 20


async def test_a_queue_is_rebuilt_when_it_is_asked_for() -> None:
    storage, _ = await stopped(*[message(number) for number in range(30)])
    sound = contents(storage, QUEUE)
    async with opened(storage) as store:
        flip(storage, QUEUE, 47)
        queue = store._derived.find("orders", 0)
        assert queue is not None
        store.upkeep.rebuild(queue, 3, "wrong")
        store.upkeep.rebuild(queue, 3, "wrong")
        await settle()
        await settle()
        assert contents(storage, QUEUE) == sound
        assert store.upkeep.mended == 1


async def test_a_queue_file_that_retention_removes_during_a_pass_is_not_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage, clock = MemoryStorage(), ManualClock()
    options = dataclasses.replace(HOURLY, mapped_file_size_consume_queue=80)
    async with opened(storage, options, clock=clock) as store:
        await put_all(store, *[message(number) for number in range(100)])
        for _ in range(3):
            await clock.advance(61)
        compare = LogComparison._compare

        def compare_while_files_go(self: LogComparison, *arguments: Any) -> Iterator[StoreFinding]:
            while store._retention._remove_expired(clock.now_ms + 80 * 3_600_000):
                store._retention._remove_derived()
            return compare(self, *arguments)

        monkeypatch.setattr(LogComparison, "_compare", compare_while_files_go)
        await passed(store, clock)
        assert store.min_offset("orders", 0) > 20
        assert store.upkeep.mended == 0
        queue = store._derived.find("orders", 0)
        assert queue is not None
        names = storage.list_directory(f"{ROOT}/consumequeue/orders/0")
        assert [int(name) for name in names] == queue.run.starts
    async with opened(storage, options) as store:
        assert numbers(store)[-1] == 99


async def test_an_index_file_that_goes_while_a_pass_opens_it_does_not_end_the_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, HOURLY, clock=clock) as store:
        await put_all(store, *[message(number) for number in range(60)])
        for _ in range(3):
            await clock.advance(61)
        second = f"{ROOT}/index/{storage.list_directory(f'{ROOT}/index')[1]}"
        exists = storage.exists

        def exists_and_is_gone(path: str) -> bool:
            there = exists(path)
            if path == second and there:
                storage.remove(second)
            return there

        monkeypatch.setattr(storage, "exists", exists_and_is_gone)
        await passed(store, clock)
        assert CHECKING not in {trouble.what for trouble in store.troubles.current}


async def test_the_newest_index_file_that_goes_during_a_pass_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, HOURLY, clock=clock) as store:
        await put_all(store, *[message(number) for number in range(60)])
        for _ in range(3):
            await clock.advance(61)
        storage.remove(f"{ROOT}/index/{storage.list_directory(f'{ROOT}/index')[-1]}")
        await passed(store, clock)
        assert CHECKING not in {trouble.what for trouble in store.troubles.current}
        assert any("index" in trouble.what for trouble in store.troubles.current)


FIRST_FILES = [f"{ROOT}/consumequeue/orders/0/{start:020d}" for start in (0, 400)]


@pytest.mark.parametrize("missing", [1, 2])
async def test_first_files_of_a_queue_that_are_missing_are_made_again_in_the_background(missing: int) -> None:
    options = dataclasses.replace(HOURLY, mapped_file_size_commit_log=1 << 20)
    storage, _ = await stopped(*[message(number) for number in range(55)], options=options)
    paths = [f"{ROOT}/consumequeue/orders/0/{start:020d}" for start in (0, 400, 800)]
    sound = [contents(storage, path) for path in paths]
    for path in paths[:missing]:
        storage.remove(path)
    overwrite(storage, paths[missing], 0, FILLER_UNIT)  # as if the queue began behind it: a start believes that
    clock = ManualClock()
    async with opened(storage, options, clock=clock) as store:
        assert numbers(store) == list(range(missing * 20 + 1, 55))
        await passed(store, clock)
        await until(lambda: store.min_offset("orders", 0) == 0)
        assert numbers(store) == list(range(55))
        assert [contents(storage, path) for path in paths] == sound
        assert store.troubles.current == []
        await put_all(store, message(55))
    async with opened(storage, options, clock=clock) as store:
        assert numbers(store) == list(range(56))


@pytest.mark.parametrize("missing", [1, 2])
@pytest.mark.parametrize("stop", ["stopped", "killed", "unmarked"])
async def test_first_files_of_a_queue_that_are_missing_are_made_again_by_a_start(missing: int, stop: str) -> None:
    storage, clock = MemoryStorage(), ManualClock()
    async with opened(storage, clock=clock) as store:
        await put_all(store, *[message(number) for number in range(55)])
        await clock.advance(11)
        left = storage.copy()
    if stop == "killed":
        storage = left
    for path in FIRST_FILES[:missing]:
        storage.remove(path)
    if stop == "unmarked":
        overwrite(storage, CHECKPOINT, 48, bytes(100))
    async with opened(storage) as store:
        assert numbers(store) == list(range(55))
    async with opened(storage) as store:
        assert store.report is not None
        assert store.report.records == 0
        assert numbers(store) == list(range(55))
