"""The share of each queue in a limited batch, and batches that wait for more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketbox.message import MessageQueue
from rocketbox.spark.limits import FewRows, Turns, limit_bytes, limit_rows

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
    ends = limit_rows(start, latest, most, Turns())
    taken = {queue: ends[queue] - start[queue] for queue in latest}
    assert sum(taken.values()) == min(most, sum(size for _, size in backlog.values()))
    assert all(0 <= taken[queue] <= size for queue, (_, size) in backlog.items())
    if most >= len(backlog):
        assert all(taken[queue] for queue, (_, size) in backlog.items() if size)


def test_a_queue_of_large_messages_moves_though_others_have_taken_their_shares() -> None:
    one, small, large = (MessageQueue("t", "a", number) for number in range(3))
    start = dict.fromkeys((one, small, large), 0)
    sizes = {one: 4e6, small: 1e3, large: 4e6}
    latest = {one: 1, small: 9_999, large: 10_000}
    assert limit_bytes(start, latest, sizes, 8_001_500, Turns()) == {one: 1, small: 1, large: 1}


@given(st.lists(st.integers(0, 9), min_size=2, max_size=9), st.data())
def test_a_queue_waits_for_no_more_batches_than_there_are_queues(arrivals: list[int], data: st.DataObject) -> None:
    most = data.draw(st.integers(1, len(arrivals)))
    sizes = {MessageQueue("t", "a", number): data.draw(st.floats(91, 4e6)) for number in range(len(arrivals))}
    by_bytes = data.draw(st.booleans())
    start, latest = dict.fromkeys(sizes, 0), dict.fromkeys(sizes, 5)
    turns, longest = Turns(), 0
    behind = dict.fromkeys(sizes, 0)
    for _ in range(3 * len(sizes)):
        if by_bytes:
            ends = limit_bytes(start, latest, sizes, max(1, int(sum(sizes.values()) * most / len(sizes) / 2)), turns)
        else:
            ends = limit_rows(start, latest, most, turns)
        turns.note(start, latest, ends)
        behind = {queue: behind[queue] + 1 if ends[queue] == start[queue] < latest[queue] else 0 for queue in sizes}
        longest = max(longest, *behind.values())
        start = ends
        latest = {queue: latest[queue] + count for queue, count in zip(sizes, arrivals, strict=True)}
    assert longest < len(sizes)


@given(backlogs, st.data(), st.integers(1, 10**7))
def test_a_batch_limited_by_bytes_holds_no_more_unless_it_is_one_row(
    backlog: dict[MessageQueue, tuple[int, int]], data: st.DataObject, most: int
) -> None:
    start = {queue: begin for queue, (begin, _) in backlog.items()}
    latest = {queue: begin + size for queue, (begin, size) in backlog.items()}
    sizes = {queue: data.draw(st.floats(91, 4e6)) for queue in backlog}
    ends = limit_bytes(start, latest, sizes, most, Turns())
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


def test_two_large_backlogs_leave_each_other_their_share() -> None:
    queues = [MessageQueue("t", "a", number) for number in range(8)]
    latest = {queue: 5 if queue.queue_id < 6 else 100 for queue in queues}
    assert min(limit_rows(dict.fromkeys(queues, 0), latest, 8, Turns()).values()) == 1
