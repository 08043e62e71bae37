"""Background tasks and scheduled functions on virtual time."""

from __future__ import annotations

import sys

import anyio
import pytest

from rocketbox.background_work import BackgroundWork
from rocketbox.tasks import TaskState
from tests.support.clocks import VirtualClock

pytestmark = pytest.mark.anyio


async def test_a_background_task_that_fails_is_started_again_and_says_so_meanwhile(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, began = VirtualClock(), []

    async def poll() -> None:
        began.append(clock.now)
        if len(began) < 4:
            raise ValueError("no answer")
        await clock.sleep(1e9)

    async with BackgroundWork("desk", clock) as work:
        work.start("background task poll (desk.py:7)", poll)
        await clock.advance(0.05)
        assert work.problems() == [
            "background task poll (desk.py:7) failed and waits to start again: ValueError('no answer')"
        ]
        await clock.advance(10)
        assert began == pytest.approx([0, 0.1, 0.3, 0.7])
        assert work.problems() == []
        (task,) = work.tasks
        assert (task.state, task.restarts) == (TaskState.RUNNING, 3)
    assert "task background task poll (desk.py:7) of desk failed; again in 0.4 s" in caplog.text


async def test_a_background_task_that_returns_is_done() -> None:
    clock = VirtualClock()

    async def once() -> None: ...

    async with BackgroundWork("desk", clock) as work:
        work.start("once", once)
        await clock.advance(1)
        assert [task.state for task in work.tasks] == [TaskState.FINISHED]
        assert work.problems() == []


async def test_background_tasks_are_cancelled_one_after_the_other_the_last_one_first() -> None:
    clock, ended = VirtualClock(), []

    async def work_for(name: str) -> None:
        try:
            await clock.sleep(1e9)
        finally:
            with anyio.CancelScope(shield=True):
                ended.append(f"{name} is told")
                await anyio.lowlevel.checkpoint()
                ended.append(f"{name} ends")

    async with BackgroundWork("desk", clock) as work:
        for name in ("first", "second"):
            work.start(name, lambda name=name: work_for(name))  # type: ignore[misc]  # mypy infers no defaults
        await clock.advance(1)
    assert ended == ["second is told", "second ends", "first is told", "first ends"]


async def test_a_cancellation_from_within_and_an_exit_are_failures_and_no_end() -> None:
    clock, began = VirtualClock(), []

    async def ends() -> None:
        began.append(clock.now)
        if len(began) == 1:
            raise anyio.get_cancelled_exc_class()
        if len(began) == 2:
            sys.exit(7)
        await clock.sleep(1e9)

    async with BackgroundWork("desk", clock) as work:
        work.start("ends", ends)
        work.repeat("exits", 1, sys.exit)  # what a def may do in its thread
        await clock.advance(2.5)
        assert len(began) == 3
        assert (
            work.tasks[0].error
            == "RuntimeError('it raised SystemExit(7), and app.shutdown() is what ends the application')"
        )
        assert [schedule.failures for schedule in work.schedules] == [2]


async def test_a_scheduled_function_runs_once_an_interval_and_goes_on_after_failures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, ran = VirtualClock(), []

    async def refresh() -> None:
        ran.append(clock.now)
        if len(ran) == 2:
            raise ValueError("no rates")

    async with BackgroundWork("desk", clock) as work:
        work.repeat("scheduled function refresh (desk.py:7)", 300, refresh)
        await clock.advance(299)
        assert ran == []
        await clock.advance(302)
        (schedule,) = work.schedules
        assert (schedule.runs, schedule.failures, schedule.error) == (2, 1, "ValueError('no rates')")
        await clock.advance(600)
        assert ran == [300, 600, 900, 1200]
        (schedule,) = work.schedules
        assert (schedule.runs, schedule.failures, schedule.skipped, schedule.error) == (4, 1, 0, None)
    assert "scheduled function refresh (desk.py:7) failed, 1 of 2 runs so far" in caplog.text
    assert "ValueError: no rates" in caplog.text


async def test_times_that_come_while_a_scheduled_function_still_runs_are_skipped() -> None:
    clock, ran = VirtualClock(), []

    async def slow() -> None:
        ran.append(clock.now)
        await clock.sleep(250)

    async with BackgroundWork("desk", clock) as work:
        work.repeat("slow", 100, slow)
        await clock.advance(200)
        (schedule,) = work.schedules
        assert (schedule.runs, schedule.running_for) == (1, 100)
        await clock.advance(500)
        assert ran == [100, 400, 700]
        (schedule,) = work.schedules
        assert schedule.skipped == 4


async def test_a_drain_begins_no_run_and_gives_those_that_run_their_time(caplog: pytest.LogCaptureFixture) -> None:
    clock, ended = VirtualClock(), []

    async def takes(seconds: float) -> None:
        try:
            await clock.sleep(seconds)
            ended.append(f"{seconds:g} s")
        except anyio.get_cancelled_exc_class():
            ended.append(f"{seconds:g} s cancelled")
            raise

    async with BackgroundWork("desk", clock) as work:
        for seconds in (2, 60):
            work.repeat(f"{seconds} s", 10, lambda seconds=seconds: takes(seconds))  # type: ignore[misc]  # as above
        work.repeat("idle", 1000, lambda: takes(0))
        await clock.advance(11)
        async with anyio.create_task_group() as group:
            group.start_soon(work.drain, 5)
            await clock.advance(6)
        assert ended == ["2 s"]
        assert [schedule.runs for schedule in work.schedules] == [1, 1, 0]
    assert ended == ["2 s", "60 s cancelled"]
    assert "still running after 5 s, and cancelled: 60 s" in caplog.text
