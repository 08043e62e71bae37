"""Senders who wait for a sync that does not come are told in time, and nobody looks for them while there are none."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from rocketbox.broker.store.waiting import DurableWaiters
from tests.support.clocks import VirtualClock

pytestmark = pytest.mark.anyio


class CountingClock(VirtualClock):
    sleeps = 0

    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        await super().sleep(seconds)


async def test_whoever_waits_too_long_is_told_at_most_a_tenth_of_the_time_late(anyio_backend: str) -> None:
    clock = CountingClock()
    waiters = DurableWaiters(clock, 5000)
    told: dict[int, float] = {}

    def tell(whats: list[Any], error: BaseException | None) -> None:
        assert isinstance(error, TimeoutError)
        told.update((what, clock.now - what) for what in whats)

    async with anyio.create_task_group() as group:
        group.start_soon(waiters.sweep)
        await clock.advance(100)
        assert clock.sleeps <= 21
        for second in (100, 102, 104, 111):
            await clock.advance(second - clock.now)
            waiters.add(tell, second, second)
        await clock.advance(10)
        group.cancel_scope.cancel()
    assert sorted(told) == [100, 102, 104, 111]
    assert all(5.0 <= after <= 5.5 for after in told.values())
