"""Recalls that are remembered, and those that are brought forward: some at a time, and none left out."""

from __future__ import annotations

from rocketbox.broker.timer_recalls import AT_ONCE, REMEMBERED_MS, BroughtForward, Entry, Recalls

COUNT, MOST = 10, 4


def recall(number: int) -> bytes:
    return b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01t\x02TIMER_DEL_UNIQKEY\x01t+m%d\x02" % (1000 + number, number)


def message(number: int) -> bytes:
    return b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01t\x02UNIQ_KEY\x01m%d\x02" % (1000 + number, number)


def held(*numbers: int) -> BroughtForward:
    brought = BroughtForward()
    for number in numbers:
        assert brought.holds_back(recall(number), 1000 + number, number)
    return brought


def taken(brought: BroughtForward) -> list[Entry]:
    found: list[Entry] = []
    while (entries := brought.take(MOST)) is not None:
        assert len(entries) <= MOST
        found += entries
    return found


def test_recalls_are_taken_some_at_a_time_those_of_messages_that_come_early_at_once() -> None:
    brought = held(*range(COUNT))
    assert not brought.holds_back(message(9), 5, 99)  # due before the time under which it was parked
    assert not brought.holds_back(message(3), 1004, 98)
    expected = [(1000 + number, number) for number in range(COUNT - 1)] + [(AT_ONCE, 9)]
    assert taken(brought) == expected
    assert brought.take(MOST) is None


def test_a_recall_is_taken_once_more_when_its_message_is_brought_forward_behind_it() -> None:
    brought = held(*range(COUNT))
    before = [*(brought.take(MOST) or ()), *(brought.take(MOST) or ())]
    assert before == [(1000 + number, number) for number in range(8)]
    brought.holds_back(message(0), 5, 97)
    brought.holds_back(message(6), 5, 98)
    brought.holds_back(message(9), 5, 99)
    assert sorted(taken(brought)) == [(AT_ONCE, 0), (AT_ONCE, 6), (AT_ONCE, 9), (1008, 8)]
    brought.holds_back(recall(20), 1020, 20)  # it has arrived since
    brought.holds_back(message(1), 5, 96)
    assert sorted(taken(brought)) == [(AT_ONCE, 1), (1020, 20)]
    assert brought.take(MOST) is None


def test_what_is_remembered_is_forgotten_and_written_some_at_a_time() -> None:
    recalls = Recalls()
    for number in range(COUNT):
        recalls.remember(b"t+m%d" % number, (number, number), 0)
    pieces = recalls.pieces(MOST)
    assert next(pieces) == [(number, number) for number in range(MOST)]
    recalls.forget_before(REMEMBERED_MS + 1, MOST)
    assert len(recalls) == COUNT - MOST
    assert recalls.next_ms() == REMEMBERED_MS + 1
    assert (recalls.drop(message(0)), recalls.drop(message(9))) == (False, True)
    assert sum(map(len, pieces)) == COUNT - MOST, "those that were there when the first piece was made"
    recalls.forget_before(REMEMBERED_MS + 1, COUNT)
    assert (len(recalls), recalls.next_ms()) == (0, None)
    assert list(recalls.pieces(MOST)) == [[]]
