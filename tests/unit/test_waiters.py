"""Waiters, under asyncio and trio."""

from __future__ import annotations

import anyio
import pytest

from rocketbox.waiters import LoopCondition, make_waiter
from tests.support.loops import anyio_backend as anyio_backend

pytestmark = pytest.mark.anyio


async def test_a_waiter_hands_over_its_result() -> None:
    waiter = make_waiter()
    async with anyio.create_task_group() as group:

        async def wait() -> None:
            assert await waiter == "answer"

        group.start_soon(wait)
        await anyio.lowlevel.checkpoint()
        assert not waiter.done()
        waiter.set_result("answer")
    assert waiter.done()


async def test_a_waiter_hands_over_its_error() -> None:
    waiter = make_waiter()
    waiter.set_exception(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        await waiter


async def test_who_waits_for_a_state_goes_on_when_it_holds_and_somebody_says_so() -> None:
    condition, left = LoopCondition(), [2]
    gone: list[str] = []

    async def wait(name: str) -> None:
        await condition.wait_for(lambda: not left[0])
        gone.append(name)

    async with anyio.create_task_group() as group:
        for name in ("one", "other"):
            group.start_soon(wait, name)
        await anyio.wait_all_tasks_blocked()
        for expected in (1, 0):
            left[0] = expected
            condition.notify_all()
            await anyio.wait_all_tasks_blocked()
            assert len(gone) == (0 if expected else 2)
    assert condition.waiting == []
    await condition.wait_for(lambda: True)  # at once


async def test_who_is_cancelled_while_it_waits_for_a_state_is_not_notified() -> None:
    condition = LoopCondition()
    with anyio.move_on_after(0):
        await condition.wait_for(lambda: False)
    assert condition.waiting == []
    condition.notify_all()
