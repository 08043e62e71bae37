"""Pulls on hold: woken by what they select, answered when their time is up, forgotten with their connection."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from rocketbox.broker.pull_hold import HeldPull, PullHold
from rocketbox.tasks import Supervisor
from tests.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio


def pull(offset: int, matches: Callable[[int], bool] | None = None, connection: object = None) -> HeldPull:
    return HeldPull(connection, "request", "topic", 0, offset, matches)


async def test_an_arrival_wakes_the_pulls_behind_it_only() -> None:
    clock = VirtualClock()
    answered: list[HeldPull] = []
    hold = PullHold(clock, answered.append)
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        waits_for_five, waits_for_six = pull(5), pull(6)
        hold.hold(waits_for_five, 15)
        hold.hold(waits_for_six, 15)
        hold.on_arrival("topic", 1, 6, 0)
        await settle()
        assert answered == []
        hold.on_arrival("topic", 0, 6, 0)
        await settle()
        assert answered == [waits_for_five]
        assert len(hold) == 1


async def test_what_the_filter_refuses_does_not_wake() -> None:
    clock = VirtualClock()
    answered: list[HeldPull] = []
    hold = PullHold(clock, answered.append)
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        held = pull(0, frozenset({7}).__contains__)
        hold.hold(held, 15)
        hold.on_arrival("topic", 0, 1, 8)
        await settle()
        assert answered == []
        hold.on_arrival("topic", 0, 2, 7)
        await settle()
        assert answered == [held]


async def test_each_pull_is_answered_when_its_own_time_is_up() -> None:
    clock = VirtualClock()
    answered: list[HeldPull] = []
    hold = PullHold(clock, answered.append)
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        await settle()
        long, short = pull(0), pull(0)
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
    hold = PullHold(clock, answered.append)
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        hold.hold(pull(0), 2)
        hold.on_arrival("topic", 0, 1, 0)
        hold.on_arrival("topic", 0, 2, 0)
        await settle()
        await clock.advance(3)
        assert len(answered) == 1


async def test_a_closed_connection_takes_its_pulls_along() -> None:
    clock = VirtualClock()
    answered: list[HeldPull] = []
    hold = PullHold(clock, answered.append)
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        first, second = object(), object()
        kept = pull(0, connection=second)
        hold.hold(pull(0, connection=first), 2)
        hold.hold(kept, 2)
        hold.drop(first)
        await clock.advance(3)
        assert answered == [kept]


async def test_a_pull_that_cannot_be_answered_delays_no_other() -> None:
    clock = VirtualClock()
    answered: list[HeldPull] = []
    broken = pull(0)

    def resume(held: HeldPull) -> None:
        if held is broken:
            raise OSError("the disk does not read")
        answered.append(held)

    hold = PullHold(clock, resume)
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        await settle()
        behind, later = pull(0), pull(5)
        for held in (broken, behind, later):
            hold.hold(held, 2)
        hold.on_arrival("topic", 0, 1, 0)
        await settle()
        assert answered == [behind]
        await clock.advance(2)
        assert answered == [behind, later]


async def test_what_was_answered_is_not_kept_until_its_time_would_be_up() -> None:
    clock = VirtualClock()
    hold = PullHold(clock, lambda held: None)
    connection = object()
    answered = []
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        for number in range(1000):
            held = pull(number, connection=connection)
            hold.hold(held, 1e9)
            answered.append(weakref.ref(held))
            del held
            hold.on_arrival("topic", 0, number + 1, 0)
            await settle()
    gc.collect()
    assert sum(held() is not None for held in answered) < 200


async def test_one_connection_holds_so_many_pulls_and_no_more() -> None:
    clock = VirtualClock()
    answered: list[HeldPull] = []
    hold = PullHold(clock, answered.append, most_for_each_connection=2)
    greedy, modest = object(), object()
    async with Supervisor("test", clock) as tasks:
        tasks.start("hold", hold.run)
        assert hold.hold(pull(0, connection=greedy), 2)
        assert hold.hold(pull(0, connection=greedy), 2)
        assert not hold.hold(pull(0, connection=greedy), 2)
        assert hold.hold(pull(0, connection=modest), 2)
        await clock.advance(2)
        assert len(answered) == 3
        assert hold.hold(pull(0, connection=greedy), 2)
