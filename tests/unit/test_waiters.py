"""Waiters, under asyncio and trio."""

from __future__ import annotations

import anyio
import pytest

from rocketbox.waiters import make_waiter
from tests.loops import anyio_backend as anyio_backend

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
