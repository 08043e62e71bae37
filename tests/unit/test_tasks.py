"""Supervised tasks: restarted with backoff, visible, and gone when their owner is."""

from __future__ import annotations

import asyncio
import logging

import anyio
import anyio.lowlevel
import pytest

from rocketbox.clock import RealClock
from rocketbox.errors import NotStartedError
from rocketbox.tasks import Supervisor, TaskState
from tests.support.clocks import VirtualClock

pytestmark = pytest.mark.anyio


class ImpatientClock(RealClock):
    """Records how long it was asked to wait and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await anyio.lowlevel.checkpoint()


async def test_a_failing_task_is_restarted_with_growing_pauses(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "rocketbox.tasks")
    clock = ImpatientClock()
    runs = 0

    async def fails_three_times() -> None:
        nonlocal runs
        runs += 1
        if runs <= 3:
            raise OSError("no luck")

    async with Supervisor("test", clock) as tasks:
        task = tasks.start("work", fails_three_times)
        await task.wait()
    assert runs == 4
    assert clock.waits == [0.1, 0.2, 0.4]
    assert task.state is TaskState.FINISHED
    assert task.restarts == 3


async def test_a_task_that_may_not_restart_stays_in_health(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, "rocketbox.tasks")

    async def fails() -> None:
        raise OSError("no luck")

    async with Supervisor("test", RealClock()) as tasks:
        await tasks.start("work", fails, restart=False).wait()
        (health,) = tasks.health()
    assert health.state is TaskState.FAILED
    assert health.error == "OSError('no luck')"


async def test_leaving_the_supervisor_ends_its_tasks() -> None:
    async with Supervisor("test", RealClock()) as tasks:
        task = tasks.start("work", anyio.Event().wait)
    assert task.state is TaskState.CANCELLED
    with pytest.raises(NotStartedError):
        tasks.start("late", anyio.Event().wait)


async def test_a_scope_cancelled_further_out_reaches_tasks_by_way_of_their_owner_alone() -> None:
    states = []
    with anyio.CancelScope() as scope:
        async with Supervisor("test", RealClock()) as tasks:
            task = tasks.start("work", anyio.Event().wait)
            try:
                scope.cancel()
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    for _ in range(5):  # as long as it takes a cancellation to come by
                        await anyio.lowlevel.checkpoint()
                states.append(task.state)
    assert [*states, task.state] == [TaskState.RUNNING, TaskState.CANCELLED]


async def test_who_shields_himself_from_a_cancellation_that_has_come_can_end_his_tasks_in_order() -> None:
    ended = False
    with anyio.CancelScope() as scope, anyio.CancelScope() as shield:
        tasks = await Supervisor("test", RealClock()).__aenter__()
        task = tasks.start("work", anyio.Event().wait)
        scope.cancel()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            shield.shield = True
            await tasks.__aexit__(None, None, None)
            ended = True
            raise
    assert ended
    assert task.state is TaskState.CANCELLED


async def test_a_task_can_be_cancelled_alone() -> None:
    async with Supervisor("test", RealClock()) as tasks:
        first = tasks.start("first", anyio.Event().wait)
        second = tasks.start("second", anyio.Event().wait)
        first.cancel()
        await first.wait()
        assert first.state is TaskState.CANCELLED
        assert [health.name for health in tasks.health()] == [second.name]


async def test_an_error_inside_the_block_comes_out_as_it_is() -> None:
    async def fail() -> None:
        async with Supervisor("test", RealClock()) as tasks:
            tasks.start("work", anyio.Event().wait)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await fail()


async def test_of_many_tasks_that_failed_for_good_health_shows_the_last_few(anyio_backend: str) -> None:
    async def fail(number: int) -> None:
        raise ValueError(number)

    async with Supervisor("test", VirtualClock()) as tasks:
        for number in range(100):
            await tasks.start(f"task {number}", fail, number, restart=False).wait()
        names = [health.name for health in tasks.health()]
        assert len(names) == 8
        assert names[-1] == "task 99"


async def test_a_task_that_is_cancelled_as_one_of_asyncio_ends_alone(
    anyio_backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    if anyio_backend != "asyncio":
        pytest.skip("only there a task can be cancelled")

    async def ends_itself() -> None:
        if (this := asyncio.current_task()) is not None:
            this.cancel()
        await anyio.lowlevel.checkpoint()

    async with Supervisor("test", RealClock()) as tasks:
        other = tasks.start("other", anyio.sleep_forever)
        task = tasks.start("work", ends_itself)
        await task.wait()
        await anyio.lowlevel.checkpoint()
        assert (task.state, other.state) == (TaskState.CANCELLED, TaskState.RUNNING)
    assert "task work of test was cancelled from outside of rocketbox" in caplog.text


@pytest.mark.parametrize("raised", [asyncio.CancelledError, SystemExit])
async def test_a_task_that_cancels_itself_ends_no_other(
    raised: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1, "rocketbox.tasks")

    async def ends_itself() -> None:
        raise raised("its own")

    async with Supervisor("test", RealClock()) as tasks:
        other = tasks.start("other", anyio.sleep_forever)
        task = tasks.start("work", ends_itself, restart=False)
        await task.wait()
        await anyio.lowlevel.checkpoint()
        assert (task.state, other.state) == (TaskState.FAILED, TaskState.RUNNING)
        assert isinstance(task.error, RuntimeError)
