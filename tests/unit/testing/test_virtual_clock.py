"""The clock of a harness: what is due at a time, and what is not yet."""

from __future__ import annotations

import anyio
import pytest

from rocketbox.testing.loop_turns import LoopTurns
from rocketbox.testing.pace import Pace
from rocketbox.testing.virtual_clock import VirtualClock
from tests.support import clocks

pytestmark = pytest.mark.anyio

STEPS = [(0.1, 1.237), (0.4, 0.937), (0.1, 0.2), (0.1, 1.8), (2.2, 0.1), (0.7, 0.6)]  # seconds; few sums are exact


def pace_of(clock: VirtualClock) -> Pace:
    return Pace(clock, LoopTurns(), lambda: (), lambda: 0, list, 5)


async def sleep_twice(clock: VirtualClock, first: float, second: float, woken: list[float]) -> None:
    await clock.sleep(first)
    await clock.sleep(second)
    woken.append(clock.monotonic())


@pytest.mark.parametrize("steps", STEPS)
async def test_who_waits_for_one_time_after_the_other_is_woken_when_both_have_passed(
    steps: tuple[float, float],
) -> None:
    """Though their sum is another number than that of all the time: 0.1 + 1.237 is 1.3370000000000002."""
    clock, woken = VirtualClock(0, begin=0.0), list[float]()
    pace, whole = pace_of(clock), round(sum(steps), 3)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sleep_twice, clock, *steps, woken)
        await pace.advance(whole - 0.001)
        assert woken == []
        await pace.advance(0.001)
        assert woken == [pytest.approx(whole, abs=1e-9)]
        assert clock.time_ms() == round(whole * 1000)


@pytest.mark.parametrize("steps", STEPS)
async def test_waiting_within_a_time_sees_what_is_due_at_its_end(steps: tuple[float, float]) -> None:
    clock, woken = VirtualClock(0, begin=0.0), list[float]()
    pace, whole = pace_of(clock), round(sum(steps), 3)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sleep_twice, clock, *steps, woken)
        assert not await pace.until(lambda: bool(woken), within=whole - 0.001)
        assert clock.monotonic() < whole - 0.001
        assert await pace.until(lambda: bool(woken), within=whole - clock.monotonic())


@pytest.mark.parametrize("steps", STEPS)
async def test_the_clock_of_tests_wakes_at_the_same_time(steps: tuple[float, float]) -> None:
    clock, woken = clocks.VirtualClock(), list[float]()
    whole = round(sum(steps), 3)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sleep_twice, clock, *steps, woken)
        await clock.advance(whole - 0.001)
        assert woken == []
        await clock.advance(0.001)
        assert woken == [pytest.approx(whole, abs=1e-9)]


def test_what_has_passed_is_told_without_what_sums_of_seconds_lose() -> None:
    clock = VirtualClock(0)
    clock.move_to(2499.9999999999995)
    assert clock.passed == 1500
