"""The share of each queue in a limited batch, and batches that wait for more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketbox.message import MessageQueue
from rocketbox.spark.limits import FewRows, limit_bytes, limit_rows

queues = st.builds(
    MessageQueue, st.sampled_from(["t", "u"]), st.sampled_from(["broker-a", "broker-b"]), st.integers(0, 20)
)
backlogs = st.dictionaries(queues, st.tuples(st.integers(0, 10**9), st.integers(0, 10**6)), max_size=12)


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


def test_a_queue_of_large_messages_moves_though_others_have_taken_their_shares() -> None:
    one, small, large = (MessageQueue("t", "a", number) for number in range(3))
    start = dict.fromkeys((one, small, large), 0)
    sizes = {one: 4e6, small: 1e3, large: 4e6}
    assert limit_bytes(start, {one: 1, small: 9_999, large: 10_000}, sizes, 8_001_500) == {one: 1, small: 1, large: 1}


@given(backlogs, st.data(), st.integers(1, 10**7))
def test_a_batch_limited_by_bytes_holds_no_more_unless_it_is_one_row(
    backlog: dict[MessageQueue, tuple[int, int]], data: st.DataObject, most: int
) -> None:
    start = {queue: begin for queue, (begin, _) in backlog.items()}
    latest = {queue: begin + size for queue, (begin, size) in backlog.items()}
    sizes = {queue: data.draw(st.floats(91, 4e6)) for queue in backlog}
    ends = limit_bytes(start, latest, sizes, most)
    taken = {queue: ends[queue] - start[queue] for queue in latest}
    assert all(0 <= taken[queue] <= size for queue, (_, size) in backlog.items())
    size = sum(rows * sizes[queue] for queue, rows in taken.items())
    assert size <= most * 1.0001 or sum(taken.values()) == 1
    if any(size for _, size in backlog.values()):
        assert any(taken.values()), "it goes on"
    if most > sum(sizes.values()):
        assert all(taken[queue] for queue, (_, size) in backlog.items() if size), "none starves"


def test_a_batch_waits_for_rows_but_not_for_ever() -> None:
    few = FewRows(100, 60.0)
    assert not few.waits(1, now=5.0), "the first of a process"
    assert few.waits(99, now=64.9)
    assert not few.waits(99, now=65.0)
    assert few.waits(99, now=66.0)
    assert not few.waits(100, now=67.0)
