"""Packing ranges of offsets into tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketbox.message import MessageQueue
from rocketbox.spark.offsets import QueueRange, pack


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
    assert len(pack([QueueRange(queue(0), 0, 10_000_000)], 20_000)) == 500, "as many as the rows need"
