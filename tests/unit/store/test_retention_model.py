"""Random puts, times, jumps of the clock, disk marks, stops and kills: nothing unexpired goes, offsets have no gap.

10,000 schedules with ``ROCKETBOX_TESTS=all``, else 60.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.store.reading import GetMessageStatus
from rocketbox.broker.store.store_check import check_store, find_files
from rocketbox.errors import StoreFullError
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.store.crash_checks import inline_pools
from tests.support.store.store_tools import ROOT, SMALL, JumpingClock, found_by_key, message, numbers, put_all

SCHEDULES = 10_000 if os.environ.get("ROCKETBOX_TESTS") == "all" else 60
RESERVED = 3 * 3600
OPTIONS = dataclasses.replace(
    SMALL,
    file_reserved_time="3h",
    delete_when="04",
    delete_commit_log_files_interval=0,
    flush_consume_queue_thorough_interval=1000,
    max_message_size=2048,
    disk_space_warning_free_bytes=100,
)
QUEUES = [("orders", 0), ("orders", 1), ("bills", 0)]
Step = tuple[Any, ...]
STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(QUEUES), st.integers(200, 1500)),
    st.tuples(st.just("put"), st.sampled_from(QUEUES), st.integers(200, 1500)),
    st.tuples(st.just("wait"), st.sampled_from([10, 11, 600, 3600, 3 * 3600])),
    st.tuples(st.just("disk"), st.integers(0, 100)),
    st.tuples(st.just("jump"), st.sampled_from([2 * 3600, 24 * 3600, 10 * 365 * 24 * 3600]), st.integers(0, 3000)),
    st.tuples(st.just("jump"), st.sampled_from([-600, -24 * 3600]), st.integers(0, 3000)),
    st.tuples(st.sampled_from(["stop", "kill"])),
)


@dataclasses.dataclass
class Model:
    """Each queue's messages, and when they were stored; the first offset that was seen of each."""

    put: dict[tuple[str, int], list[tuple[int, int]]]
    least: dict[tuple[str, int], int]
    count: int = 0
    behind_ms: int = 0
    """For so long the clock was behind: what is stored meanwhile has the store time of the message before."""


@settings(max_examples=SCHEDULES)
@given(st.lists(STEPS, min_size=10, max_size=70))
def test_nothing_that_has_not_expired_is_removed(steps: list[Step]) -> None:
    with inline_pools():
        anyio.run(run, steps)


async def run(steps: list[Step]) -> None:
    storage, clock = MemoryStorage(), JumpingClock(threads=False)
    model = Model({queue: [] for queue in QUEUES}, dict.fromkeys(QUEUES, 0))
    remaining = iter(steps)
    going_on = True
    while going_on:
        going_on = False
        async with MessageStore(ROOT, OPTIONS, clock=clock, storage=storage) as store:
            await check(store, model, clock)
            for step in remaining:
                await take(step, store, clock, storage, model)
                await check(store, model, clock)
                if going_on := step[0] in {"stop", "kill"}:
                    break
            snapshot = storage.copy()
        if going_on and step[0] == "kill":
            snapshot.used_space, snapshot.free_space = storage.used_space, storage.free_space
            storage = snapshot
    copy = storage.copy()
    assert [each for each in check_store(find_files(copy, ROOT, OPTIONS), OPTIONS) if not isinstance(each, int)] == []


async def take(step: Step, store: MessageStore, clock: JumpingClock, storage: MemoryStorage, model: Model) -> None:
    if step[0] == "wait":
        await clock.advance(step[1])
    elif step[0] == "jump":  # for less than an hour, after which it would be believed
        clock.jump_ms = step[1] * 1000
        await take(("put", QUEUES[0], 300), store, clock, storage, model)
        await clock.advance(step[2])
        await take(("put", QUEUES[0], 300), store, clock, storage, model)
        clock.jump_ms = 0
        if step[1] < 0:
            model.behind_ms += step[2] * 1000
    elif step[0] == "disk":
        storage.used_space, storage.free_space = 10 * step[1], 10 * (100 - step[1])
    elif step[0] == "put":
        _, (topic, queue_id), size = step
        try:
            await put_all(store, message(model.count, topic=topic, queue_id=queue_id, size=size))
        except StoreFullError:
            return
        model.put[topic, queue_id].append((model.count, clock.now_ms))
        model.count += 1


async def check(store: MessageStore, model: Model, clock: JumpingClock) -> None:
    for queue, put in model.put.items():
        least = store.min_offset(*queue)
        assert store.max_offset(*queue) == len(put)
        assert least >= model.least[queue]
        assert all(stored + RESERVED * 1000 <= clock.now_ms + model.behind_ms for _, stored in put[:least])
        model.least[queue] = least
        assert numbers(store, *queue) == [number for number, _ in put[least:]]
        if least:
            assert store.get(*queue, least - 1).status is GetMessageStatus.OFFSET_TOO_SMALL
        for number, _ in put[least:][:1]:
            assert await found_by_key(store, f"k{number}", topic=queue[0]) == [number]
