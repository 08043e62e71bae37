"""Offsets in Spark's form, the share of each queue in a limited batch, and packing into tasks."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbox.message import MessageQueue
from rocketbox.spark.offsets import QueueRange, from_spark, limit_rows, pack, parse_starting_offsets, to_spark

queues = st.builds(
    MessageQueue, st.sampled_from(["t", "u"]), st.sampled_from(["broker-a", "broker-b"]), st.integers(0, 20)
)
backlogs = st.dictionaries(queues, st.tuples(st.integers(0, 10**9), st.integers(0, 10**6)), max_size=12)


@given(st.dictionaries(queues, st.integers(0, 2**62)), st.randoms())
def test_the_text_of_offsets_does_not_depend_on_their_order(
    offsets: dict[MessageQueue, int], chance: random.Random
) -> None:
    items = list(offsets.items())
    chance.shuffle(items)
    assert json.dumps(to_spark(offsets)) == json.dumps(to_spark(dict(items)))
    assert from_spark(to_spark(offsets)) == offsets


@given(backlogs, st.integers(1, 10**6))
def test_a_limited_batch_takes_what_it_may_and_starves_no_queue(
    backlog: dict[MessageQueue, tuple[int, int]], most: int
) -> None:
    start = {queue: begin for queue, (begin, _) in backlog.items()}
    latest = {queue: begin + size for queue, (begin, size) in backlog.items()}
    ends = limit_rows(start, latest, most)
    taken = {queue: ends[queue] - start[queue] for queue in latest}
    assert sum(taken.values()) == min(most, sum(size for _, size in backlog.values()))
    assert all(0 <= taken[queue] <= size for queue, (_, size) in backlog.items())
    if most >= len(backlog):
        assert all(taken[queue] for queue, (_, size) in backlog.items() if size)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 100), st.integers(0, 1000)), max_size=8),
    st.integers(1, 300),
    st.integers(1, 8),
)
def test_packing_covers_every_offset_once(
    sizes: list[tuple[int, int, int]], rows_per_task: int, most_tasks: int
) -> None:
    ranges = [
        QueueRange(MessageQueue("t", "b", number), start, start + size) for number, (_, start, size) in enumerate(sizes)
    ]
    tasks = pack(ranges, rows_per_task, most_tasks)
    assert len(tasks) <= most_tasks
    assert all(tasks)
    read = sorted((piece.queue, offset) for task in tasks for piece in task for offset in range(piece.start, piece.end))
    assert read == [(piece.queue, offset) for piece in ranges for offset in range(piece.start, piece.end)]


def test_small_queues_share_a_task_and_large_ones_are_split() -> None:
    def queue(number: int) -> MessageQueue:
        return MessageQueue("t", "b", number)

    assert len(pack([QueueRange(queue(number), 0, 10) for number in range(16)], 20_000, 8)) == 1
    assert [len(task) for task in pack([QueueRange(queue(0), 0, 100_000)], 20_000, 8)] == [1] * 5


@pytest.mark.parametrize("text", ["first", "[1]", '{"t": 5}', '{"t": {"b": {"x": 1}}}'])
def test_offsets_that_are_not_understood_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="startingOffsets must be earliest, latest, group or JSON"):
        parse_starting_offsets(text)
