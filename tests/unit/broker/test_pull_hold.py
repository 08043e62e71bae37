"""Pulls on hold: woken by what they select, answered when their time is up, forgotten with their connection."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest

from rocketbox.broker.filters import TagFilter
from rocketbox.broker.pull_hold import ANSWERED_AT_ONCE, HeldPull, PullHold
from rocketbox.broker.store.message_filter import MessageFilter
from rocketbox.tasks import Supervisor
from tests.support.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio


def pull(
    resume: Callable[[HeldPull], None],
    offset: int,
    selects: MessageFilter | None = None,
    connection: object = None,
    group: str = "group",
) -> HeldPull:
    return HeldPull(connection, "request", "topic", 0, group, offset, selects, resume)


async def test_an_arrival_wakes_the_pulls_behind_it_only() -> None:
    clock = VirtualClock()
    answered: list[HeldPull] = []
    hold = PullHold(clock)
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        waits_for_five, waits_for_six = pull(answered.append, 5), pull(answered.append, 6)
        hold.hold(waits_for_five, 15)
        hold.hold(waits_for_six, 15)
        hold.on_arrival([("topic", 1, 6, 0, b"")])
        await settle()
        assert answered == []
        hold.on_arrival([("topic", 0, 6, 0, b"")])
        await settle()
        assert answered == [waits_for_five]
        assert len(hold) == 1


async def test_what_the_filter_refuses_does_not_wake() -> None:
    clock = VirtualClock()
    answered: list[HeldPull] = []
    hold = PullHold(clock)
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        held = pull(answered.append, 0, TagFilter({7}))
        hold.hold(held, 15)
        hold.on_arrival([("topic", 0, 1, 8, b"")])
        await settle()
        assert answered == []
        hold.on_arrival([("topic", 0, 2, 7, b"")])
        await settle()
        assert answered == [held]


async def test_each_pull_is_answered_when_its_own_time_is_up() -> None:
    clock = VirtualClock()
    answered: list[HeldPull] = []
    hold = PullHold(clock)
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        await settle()
        long, short = pull(answered.append, 0), pull(answered.append, 0)
        hold.hold(long, 15)
        await settle()
        hold.hold(short, 2)
        await settle()
        await clock.advance(1.9)
        assert answered == []
        await clock.advance(0.1)
        assert answered == [short]
        await clock.advance(13)
        assert answered == [short, long]
        assert len(hold) == 0


async def test_a_woken_pull_is_answered_once() -> None:
    clock = VirtualClock()
    answered: list[HeldPull] = []
    hold = PullHold(clock)
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        hold.hold(pull(answered.append, 0), 2)
        hold.on_arrival([("topic", 0, 1, 0, b"")])
        hold.on_arrival([("topic", 0, 2, 0, b"")])
        await settle()
        await clock.advance(3)
        assert len(answered) == 1


async def test_a_closed_connection_takes_its_pulls_along() -> None:
    clock = VirtualClock()
    answered: list[HeldPull] = []
    hold = PullHold(clock)
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        first, second = object(), object()
        kept = pull(answered.append, 0, connection=second)
        hold.hold(pull(answered.append, 0, connection=first), 2)
        hold.hold(kept, 2)
        hold.drop(first)
        await clock.advance(3)
        assert answered == [kept]


async def test_a_pull_that_cannot_be_answered_delays_no_other() -> None:
    clock = VirtualClock()
    answered: list[HeldPull] = []

    def fails(held: HeldPull) -> None:
        raise OSError("the disk does not read")

    broken = pull(fails, 0)
    hold = PullHold(clock)
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        await settle()
        behind, later = pull(answered.append, 0), pull(answered.append, 5)
        for held in (broken, behind, later):
            hold.hold(held, 2)
        hold.on_arrival([("topic", 0, 1, 0, b"")])
        await settle()
        assert answered == [behind]
        await clock.advance(2)
        assert answered == [behind, later]


async def test_what_was_answered_is_not_kept_until_its_time_would_be_up() -> None:
    clock = VirtualClock()
    hold = PullHold(clock)
    connection = object()
    answered = []
    done: list[int] = []
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        for number in range(1000):
            held = pull(lambda held: done.append(held.offset), number, connection=connection)
            hold.hold(held, 1e9)
            answered.append(weakref.ref(held))
            del held
            hold.on_arrival([("topic", 0, number + 1, 0, b"")])
            await settle()
    gc.collect()
    assert len(done) == 1000
    assert sum(held() is not None for held in answered) < 200


class Same(TagFilter):
    """Tags of code 7 whose record says so too: other tags may have the same code."""

    def matches_record(self, record: bytes) -> bool:
        return record == b"seven"


async def test_a_record_that_the_filter_refuses_does_not_wake() -> None:
    clock = VirtualClock()
    answered: list[HeldPull] = []
    hold = PullHold(clock)
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        held = pull(answered.append, 0, Same({7}))
        hold.hold(held, 15)
        hold.on_arrival([("topic", 0, 1, 7, b"another")])
        hold.on_arrival([("topic", 0, 2, 8, b"seven")])
        await settle()
        assert answered == []
        hold.on_arrival([("topic", 0, 3, 7, b"seven")])
        await settle()
        assert answered == [held]


async def test_pulls_on_hold_are_known_by_their_group() -> None:
    clock = VirtualClock()
    answered: list[HeldPull] = []
    hold = PullHold(clock)
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        first, second, other = (
            pull(answered.append, 0, group="a"),
            pull(answered.append, 0, group="a"),
            pull(answered.append, 0, group="b"),
        )
        for held in (first, second, other):
            hold.hold(held, 15)
        assert (hold.waiting("topic", 0, "a"), hold.waiting("topic", 0, "b"), hold.waiting("topic", 1, "a")) == (
            2,
            1,
            0,
        )
        hold.wake_group("a")
        await settle()
        assert answered == [first, second]
        assert (hold.waiting("topic", 0, "a"), hold.waiting("topic", 0, "b")) == (0, 1)
        hold.wake_topic("another")
        await settle()
        assert len(hold) == 1
        hold.wake_topic("topic")
        await settle()
        assert answered == [first, second, other]
        assert len(hold) == 0


async def test_a_connection_holds_so_many_pulls_and_no_more() -> None:
    clock = VirtualClock()
    answered: list[HeldPull] = []
    hold = PullHold(clock, most_for_each_connection=2)
    greedy, modest = object(), object()
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        hold.hold(pull(answered.append, 0, connection=greedy), 2)
        assert hold.refusal(greedy) is None
        hold.hold(pull(answered.append, 0, connection=greedy), 2)
        assert "2 pulls of this connection" in str(hold.refusal(greedy))
        assert hold.refusal(modest) is None
        assert hold.refused == 1
        await settle()
        await clock.advance(2)
        assert hold.refusal(greedy) is None


def test_all_connections_together_hold_so_many_pulls_and_no_more() -> None:
    hold = PullHold(VirtualClock(), most=2)
    hold.hold(pull(print, 0, connection=1), 2)
    hold.hold(pull(print, 0, connection=2), 2)
    assert hold.refusal(3) == "2 pulls are on hold already; max-held-pulls is 2"
    hold.drop(1)
    assert hold.refusal(3) is None


class Loud:
    """A connection that counts its answers."""

    def __init__(self) -> None:
        self.answers = 0

    def resume(self, _: HeldPull) -> None:
        self.answers += 1


async def test_ten_thousand_pulls_are_bounded_expire_on_time_and_go_with_their_connections() -> None:
    clock = VirtualClock()
    hold = PullHold(clock, most=10_000, most_for_each_connection=100)
    peers = [Loud() for _ in range(110)]
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        for number in range(110 * 101):
            peer = peers[number % 110]
            if hold.refusal(peer) is None:
                held = pull(peer.resume, 0, connection=peer, group=f"group{number % 10}")
                hold.hold(held, 10 + number % 5)
        assert len(hold) == 10_000
        assert hold.refused == 110 * 101 - 10_000
        assert [hold.waiting("topic", 0, f"group{number}") for number in range(10)] == [1_000] * 10
        for peer in peers[:50]:
            hold.drop(peer)
        left = len(hold)
        assert 5_400 <= left <= 5_500
        await clock.advance(9.9)
        assert len(hold) == left
        for second in range(5):
            await clock.advance(1)
            assert sum(peer.answers for peer in peers) == pytest.approx(left * (second + 1) / 5, rel=0.02)
        assert len(hold) == 0
        assert not any(peer.answers for peer in peers[:50])
        assert [hold.waiting("topic", 0, f"group{number}") for number in range(10)] == [0] * 10
        assert hold.refusal(peers[0]) is None
        assert (hold._queues, hold._connections) == ({}, {})


async def test_others_have_their_turn_while_thousands_of_pulls_are_answered() -> None:
    clock = VirtualClock()
    hold = PullHold(clock)
    peer = Loud()
    most = 0
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        for _ in range(2_000):
            hold.hold(pull(peer.resume, 0, connection=peer), 10)
        hold.on_arrival([("topic", 0, 1, 0, b"")])
        while len(hold):
            before = peer.answers
            await anyio.lowlevel.checkpoint()
            most = max(most, peer.answers - before)
    assert peer.answers == 2_000
    assert most <= 2 * ANSWERED_AT_ONCE


def test_pulls_on_hold_have_so_many_bytes_and_no_more() -> None:
    hold = PullHold(VirtualClock(), most_bytes=16_000)
    for number in range(16):
        held = pull(print, 0, connection=number)
        held.size = 990
        assert hold.refusal(number, 990) is None
        hold.hold(held, 2)
    assert hold.bytes == 16 * 990
    assert hold.refusal(16, 500) == "pulls on hold have 15840 bytes and this one 500; max-held-pull-bytes is 16000"
    hold.drop(1)
    assert hold.refusal(16, 500) is None
    assert "pulls of this connection on hold have 990 bytes and this one 500; 1000 are allowed" in str(
        hold.refusal(2, 500)
    )
    for number in range(16):
        hold.drop(number)
    assert (hold.bytes, hold._bytes_of) == (0, {})


async def test_pulls_that_cannot_be_answered_are_told_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()

    def fails(held: HeldPull) -> None:
        raise OSError("the disk does not read")

    hold = PullHold(clock)
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        for _ in range(100):
            hold.hold(pull(fails, 0), 2)
        hold.on_arrival([("topic", 0, 1, 0, b"")])
        await settle()
    assert hold.failed == 100
    assert len(caplog.records) == 1


async def test_few_bytes_of_answers_to_woken_pulls_are_written_in_one_turn() -> None:
    clock = VirtualClock()
    written = most = 0

    def answer(_: HeldPull) -> None:
        nonlocal written
        written += 200 << 10

    hold = PullHold(clock, written=lambda: written)
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        for number in range(100):
            hold.hold(pull(answer, 0, connection=number), 10)
        hold.on_arrival([("topic", 0, 1, 0, b"")])
        while len(hold):
            before = written
            await anyio.lowlevel.checkpoint()
            most = max(most, written - before)
    assert written == 100 * (200 << 10)
    assert most <= 4 * (200 << 10), "two answers in a turn of the task"
