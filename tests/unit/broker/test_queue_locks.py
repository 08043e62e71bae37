"""Locks of orderly consumers: one owner at a time, kept by renewal, free after 60 s."""

from __future__ import annotations

import pytest

from rocketbox.broker.limits import LimitError
from rocketbox.broker.locks import QueueLocks
from rocketbox.message import MessageQueue
from tests.support.clocks import VirtualClock

ONE, TWO = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)


def test_a_queue_is_held_by_one_client() -> None:
    locks = QueueLocks(VirtualClock())
    assert locks.lock("g", "a", [ONE, TWO]) == [ONE, TWO]
    assert locks.lock("g", "b", [ONE]) == []
    assert locks.lock("other", "b", [ONE]) == [ONE]


def test_only_the_owner_unlocks() -> None:
    locks = QueueLocks(VirtualClock())
    locks.lock("g", "a", [ONE])
    locks.unlock("g", "b", [ONE])
    assert locks.lock("g", "b", [ONE]) == []
    locks.unlock("g", "a", [ONE])
    assert locks.lock("g", "b", [ONE]) == [ONE]


def test_a_lock_lives_for_60_seconds_after_its_renewal() -> None:
    clock = VirtualClock()
    locks = QueueLocks(clock)
    locks.lock("g", "a", [ONE])
    clock.now = 50
    locks.lock("g", "a", [ONE])
    clock.now = 110
    assert locks.lock("g", "b", [ONE]) == []
    clock.now = 110.1
    assert locks.lock("g", "b", [ONE]) == [ONE]


def test_a_group_is_locked_while_any_lock_is_valid() -> None:
    clock = VirtualClock()
    locks = QueueLocks(clock)
    assert not locks.is_locked("g")
    locks.lock("g", "a", [ONE])
    assert locks.is_locked("g")
    clock.now = 61
    assert not locks.is_locked("g")


def test_what_nobody_renews_is_not_kept() -> None:
    clock = VirtualClock()
    locks = QueueLocks(clock)
    locks.lock("g", "a", [ONE, TWO])
    locks.lock("empty", "a", [])
    clock.now = 30
    locks.lock("g", "a", [TWO])
    assert len(locks) == 2
    assert locks.first_expiry() == 60
    clock.now = 61
    locks.expire()
    assert len(locks) == 1
    assert locks.first_expiry() == 90
    assert locks.is_locked("g")
    clock.now = 91
    locks.expire()
    assert len(locks) == 0
    assert "0 groups" in repr(locks)


def test_one_address_leaves_room_for_others() -> None:
    clock = VirtualClock()
    locks = QueueLocks(clock, most=4, most_for_each_address=2)
    queues = [MessageQueue("t", "b", number) for number in range(5)]
    assert locks.lock("g", "a", queues[:1], "10.0.0.1:1000") == queues[:1]
    assert locks.lock("g", "a", queues[1:2], "10.0.0.1:1001") == queues[1:2]
    with pytest.raises(
        LimitError, match=r"^2 of the queues .* clients at 10\.0\.0\.1; 2 .*max-locked-queues-per-address"
    ):
        locks.lock("g", "a", queues[2:3], "10.0.0.1:1002")
    assert locks.lock("g", "b", queues[2:3], "10.0.0.2:1000") == queues[2:3]
    assert locks.lock("g", "b", queues[3:4], "10.0.0.2:1001") == queues[3:4]
    locks.unlock("g", "a", queues[:1])
    assert locks.lock("g", "c", queues[:1], "10.0.0.1:2000") == queues[:1]
    clock.now = 61
    assert locks.lock("g", "c", queues[:1], "10.0.0.3:1") == queues[:1], "who takes a lock over counts it"
    locks.expire()
    assert len(locks) == 1
    assert locks.lock("g", "a", queues[1:2], "10.0.0.1:1") == queues[1:2]
    assert locks.lock("g", "a", queues[2:3], "10.0.0.1:2") == queues[2:3]
    assert locks.refused == 1


def test_one_connection_leaves_room_for_others_of_its_address() -> None:
    locks = QueueLocks(VirtualClock(), most=100, most_for_each_address=12)
    queues = [MessageQueue("t", "b", number) for number in range(13)]
    with pytest.raises(
        LimitError, match=r"^6 of the queues .* the connection of 10\.0\.0\.1:1, half .*; 6 is the most"
    ):
        locks.lock("g", "a", queues, "10.0.0.1:1")
    with pytest.raises(LimitError, match="3 is the most"):
        locks.lock("g", "b", queues[6:], "10.0.0.1:2")
    assert locks.lock("g", "b", queues[6:9], "10.0.0.1:2") == queues[6:9], "a lock that is renewed is none more"
    locks.unlock("g", "a", queues)
    assert locks.lock("g", "b", queues[9:12], "10.0.0.1:2") == queues[9:12]
