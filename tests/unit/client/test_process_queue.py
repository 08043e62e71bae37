"""A consumer's bookkeeping of one queue, against a model that is too simple to be wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import anyio
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rocketbox.client.cached_bytes import CachedBytes
from rocketbox.client.process_queue import FlowLimits, ProcessQueue
from rocketbox.message import MessageExt, MessageQueue

QUEUE = MessageQueue("T", "broker-a", 0)


def message(offset: int, body: bytes = b"body") -> MessageExt:
    fields = (0, 0, 0, 0, 0, offset, offset * 100, 0, 0, b"\x7f\0\0\1", 0, 0, b"\x7f\0\0\1", 0, 0, 0, len(body))
    return MessageExt(fields, body, "T", b"", "broker-a")


def new_queue(start: int = 0) -> ProcessQueue:
    return ProcessQueue(QUEUE, start, now=0.0)


def offsets(messages: Iterable[MessageExt]) -> list[int]:
    return [message.queue_offset for message in messages]


class Bookkeeping(RuleBasedStateMachine):
    """Pulls with gaps, takes of any size, ends in any order, some messages given back."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = new_queue(7)
        self.pulled_to = 7
        self.unconsumed: set[int] = set()  # the model of what is held
        self.waiting: list[int] = []
        self.taken: list[list[MessageExt]] = []

    @rule(gaps=st.lists(st.integers(0, 3), max_size=6), tail=st.integers(0, 4))
    def pull(self, gaps: list[int], tail: int) -> None:
        offset, pulled = self.pulled_to, []
        for gap in gaps:
            pulled.append(offset + gap)
            offset += gap + 1
        self.pulled_to = offset + tail
        assert self.queue.put([message(offset) for offset in pulled], self.pulled_to) == len(pulled)
        self.unconsumed.update(pulled)
        self.waiting.extend(pulled)

    @rule(limit=st.integers(1, 4))
    def take(self, limit: int) -> None:
        batch = self.queue.take(limit)
        assert offsets(batch) == self.waiting[:limit]
        del self.waiting[:limit]
        if batch:
            self.taken.append(batch)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def consume(self, data: st.DataObject) -> None:
        batch = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        self.queue.remove(batch)
        self.queue.finish()
        self.unconsumed.difference_update(offsets(batch))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        batch = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        assert self.queue.give_back(batch) == len(batch)
        self.queue.finish()
        self.waiting[:0] = offsets(batch)

    @precondition(lambda self: self.pulled_to > 7)
    @rule()
    def pull_again_what_is_known(self) -> None:
        assert self.queue.put([message(7)], self.pulled_to) == 0

    @invariant()
    def commit_is_the_lowest_unconsumed(self) -> None:
        assert self.queue.commit_offset == min(self.unconsumed, default=self.pulled_to)
        assert self.queue.pulled_to == self.pulled_to
        assert self.queue.count == len(self.unconsumed)
        assert self.queue.body_bytes == 4 * len(self.unconsumed)
        assert self.queue.in_process == len(self.taken)
        assert offsets(list(self.queue.waiting)) == self.waiting


TestBookkeeping = Bookkeeping.TestCase
TestBookkeeping.settings = settings(max_examples=60, stateful_step_count=30)


def test_the_commit_moves_over_filtered_offsets_only_when_all_before_them_is_done() -> None:
    queue = new_queue()
    queue.put([message(2)], 10)
    assert queue.commit_offset == 2
    batch = queue.take(1)
    queue.remove(batch)
    assert queue.commit_offset == 10


def test_a_batch_stops_before_a_message_that_does_not_fit() -> None:
    queue = new_queue()
    queue.put([message(offset) for offset in range(5)], 5)
    assert offsets(queue.take(4, fits=lambda message: message.queue_offset != 2)) == [0, 1]
    assert offsets(queue.take(4, fits=lambda message: message.queue_offset == 2)) == [2]


@pytest.mark.parametrize(
    ("limit", "past", "taken", "left"),
    [
        (3, 2, [0, 2, 4], [1, 3, 5, 6, 7]),
        (3, 1, [0, 2], [1, 3, 4, 5, 6, 7]),
        (8, 7, [0, 2, 4, 6], [1, 3, 5, 7]),
        (1, 7, [0], [1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_a_batch_may_be_taken_past_messages_that_do_not_fit(
    limit: int, past: int, taken: list[int], left: list[int]
) -> None:
    queue = new_queue()
    queue.put([message(offset) for offset in range(8)], 8)
    batch = queue.take(limit, lambda message: message.queue_offset % 2 == 0, past)
    assert (offsets(batch), offsets(queue.waiting)) == (taken, left)
    queue.remove(batch)
    assert queue.commit_offset == 1, "what was passed holds back the commit"
    queue.give_back(batch)
    assert offsets(queue.waiting) == left, "what is removed comes no more"


def test_removing_twice_changes_nothing() -> None:
    queue = new_queue()
    queue.put([message(0), message(1)], 2)
    batch = queue.take(1)
    queue.remove(batch)
    queue.remove(batch)
    assert (queue.commit_offset, queue.count, queue.body_bytes) == (1, 1, 4)


@pytest.mark.parametrize("body", [b"", b"a longer body than came", {"decoded": "by a middleware"}, None])
def test_what_a_handler_makes_of_a_body_does_not_change_what_is_counted(body: Any) -> None:
    budget = CachedBytes(100)
    queue = ProcessQueue(QUEUE, 0, now=0.0, cached=budget)
    for offset in range(3):
        queue.put([message(offset, b"12345678")], offset + 1)
        batch = queue.take(1)
        batch[0].body = body
        queue.remove(batch)
        queue.finish()
    assert (queue.body_bytes, budget.total, queue.count) == (0, 0, 0)


def test_queues_share_a_budget_that_holds_what_they_hold_pull_after_pull() -> None:
    budget = CachedBytes(100)
    one, other = (ProcessQueue(QUEUE, 0, now=0.0, cached=budget) for _ in range(2))
    for offset in range(3):
        for queue in (one, other):
            queue.put([message(offset, b"12345678")], offset + 1)
            assert budget.total == one.body_bytes + other.body_bytes
    one.remove(one.take(2))
    assert budget.total == 8 + 24
    other.drop()
    assert budget.total == 8


def test_a_dropped_queue_takes_nothing_in_and_gives_nothing_out() -> None:
    queue = new_queue()
    queue.put([message(0), message(1)], 2)
    batch = queue.take(1)
    queue.drop()
    assert queue.take(1) == []
    assert queue.give_back(batch) == 0
    assert queue.put([message(2)], 3) == 0
    assert queue.commit_offset == 0


@pytest.mark.parametrize(
    ("limits", "full_at"),
    [
        (FlowLimits(messages=3), 4),
        (FlowLimits(body_bytes=8), 3),
        (FlowLimits(span=2), 4),
        (FlowLimits(messages=100, span=None), None),
    ],
)
def test_limits_may_be_reached_but_not_exceeded(limits: FlowLimits, full_at: int | None) -> None:
    queue = new_queue()
    first_full = None
    for offset in range(10):
        queue.put([message(offset)], offset + 1)
        if first_full is None and queue.full(limits):
            first_full = offset + 1
    assert first_full == full_at


@pytest.mark.anyio
async def test_room_wakes_when_consumption_makes_some(anyio_backend: str) -> None:
    queue = new_queue()
    queue.put([message(offset) for offset in range(4)], 4)
    limits = FlowLimits(messages=2)
    steps: list[str] = []

    async def wait() -> None:
        await queue.room(limits)
        steps.append("room")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        queue.remove(queue.take(1))
        await anyio.wait_all_tasks_blocked()
        steps.append("still full")
        queue.remove(queue.take(1))
    assert steps == ["still full", "room"]


@pytest.mark.anyio
async def test_dropping_ends_the_wait_for_room(anyio_backend: str) -> None:
    queue = new_queue()
    queue.put([message(offset) for offset in range(4)], 4)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.room, FlowLimits(messages=2))
        await anyio.wait_all_tasks_blocked()
        queue.drop()


@pytest.mark.anyio
async def test_idle_waits_for_the_last_batch(anyio_backend: str) -> None:
    queue = new_queue()
    queue.put([message(0), message(1)], 2)
    queue.take(1)
    queue.take(1)
    steps: list[str] = []

    async def wait() -> None:
        await queue.idle()
        steps.append("idle")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        queue.finish()
        await anyio.wait_all_tasks_blocked()
        steps.append("one left")
        queue.finish()
    assert steps == ["one left", "idle"]


def test_a_lock_counts_for_thirty_seconds() -> None:
    queue = new_queue()
    assert not queue.lock_holds(0.0)
    queue.locked_at = 100.0
    assert queue.lock_holds(129.9)
    assert not queue.lock_holds(130.0)
