"""The life cycle: phases up in order, down in reverse, whatever happens in between, within one time limit."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest

from rocketbox.boot.lifecycle import Lifecycle, Phase, Step
from rocketbox.clock import RealClock
from rocketbox.tasks import Supervisor
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio


class StepClock(RealClock):
    """Time passes when a step says so; its sleeps never end, or at once."""

    def __init__(self, impatient: bool = False) -> None:
        super().__init__()
        self.now = 0.0
        self.slept: list[float] = []
        self.impatient = impatient

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if not self.impatient:
            await anyio.Event().wait()
        for _ in range(5):  # as long as it takes a cancellation to come by
            await anyio.lowlevel.checkpoint()


def step(
    events: list[str], name: str, fails: bool = False, waits: bool = False, clock: StepClock | None = None
) -> Step:
    @asynccontextmanager
    async def thing() -> AsyncIterator[None]:
        await anyio.lowlevel.checkpoint()
        if fails:
            raise OSError(name)
        events.append(f"+{name}")
        if clock is not None:
            clock.now += 1
        try:
            yield
            if waits:
                await anyio.Event().wait()
            await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class():
            events.append(f"cut {name}")
            raise
        finally:
            if clock is not None:
                clock.now += 2
            events.append(f"-{name}")

    async def start(stack: AsyncExitStack) -> None:
        await stack.enter_async_context(thing())

    return start


async def test_phases_start_in_order_and_stop_in_reverse(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "rocketbox.boot.lifecycle")
    events: list[str] = []
    clock = StepClock()
    life = Lifecycle("desk", clock, prepared=0.5)
    life.add(Phase.LISTENERS, step(events, "listeners", clock=clock))
    life.add(Phase.CLIENT, step(events, "client", clock=clock))
    life.add(Phase.CLIENT, step(events, "second client", clock=clock))
    life.add(Phase.INFRASTRUCTURE, step(events, "servers", clock=clock))
    async with life:
        assert events == ["+servers", "+client", "+second client", "+listeners"]
        del events[:]
    assert events == ["-listeners", "-second client", "-client", "-servers"]
    assert life.cut_short is None
    assert life.times[Phase.CLIENT].start == 2
    assert life.times[Phase.CLIENT].stop == 4
    assert life.times[Phase.BEANS].start is None
    assert caplog.messages == [
        "desk: phase infrastructure started in 1000.0 ms",
        "desk: phase client started in 2000.0 ms",
        "desk: phase listeners started in 1000.0 ms",
        "desk: ready after 4.50 s: prepare 500 ms, infrastructure 1000 ms, client 2000 ms, listeners 1000 ms",
        "desk: phase listeners stopped in 2000.0 ms",
        "desk: phase client stopped in 4000.0 ms",
        "desk: phase infrastructure stopped in 2000.0 ms",
    ]


async def test_a_start_that_fails_half_way_closes_what_was_started() -> None:
    events: list[str] = []
    life = Lifecycle("desk", StepClock())
    life.add(Phase.INFRASTRUCTURE, step(events, "servers"))
    life.add(Phase.CLIENT, step(events, "client"))
    life.add(Phase.CLIENT, step(events, "broken", fails=True))
    life.add(Phase.LISTENERS, step(events, "listeners"))
    with pytest.raises(OSError, match="broken"):
        async with life:
            events.append("body")
    assert events == ["+servers", "+client", "-client", "-servers"]


async def test_an_error_of_the_body_comes_out_as_it_is_after_the_stop() -> None:
    events: list[str] = []
    life = Lifecycle("desk", StepClock())
    life.add(Phase.CLIENT, step(events, "client"))

    async def supervise(stack: AsyncExitStack) -> None:
        await stack.enter_async_context(Supervisor("inner", RealClock()))

    life.add(Phase.BEANS, supervise)
    with pytest.raises(ValueError, match="body"):
        async with life:
            raise ValueError("body")
    assert events == ["+client", "-client"]


async def test_a_cancelled_body_is_followed_by_the_whole_ordered_stop() -> None:
    events: list[str] = []
    life = Lifecycle("desk", StepClock())
    life.add(Phase.CLIENT, step(events, "client"))
    life.add(Phase.LISTENERS, step(events, "listeners"))
    with anyio.CancelScope() as scope:
        async with life:
            scope.cancel()
            await anyio.Event().wait()
    assert scope.cancelled_caught
    assert events == ["+client", "+listeners", "-listeners", "-client"]


async def test_a_stop_that_takes_too_long_is_cut_short(caplog: pytest.LogCaptureFixture) -> None:
    events: list[str] = []
    clock = StepClock(impatient=True)
    life = Lifecycle("desk", clock, stop_timeout=7)
    life.add(Phase.INFRASTRUCTURE, step(events, "servers"))
    life.add(Phase.LISTENERS, step(events, "listeners", waits=True))
    async with life:
        assert clock.slept == []
    assert clock.slept == [7]
    assert events == ["+servers", "+listeners", "cut listeners", "-listeners", "cut servers", "-servers"]
    assert life.cut_short is Phase.LISTENERS
    assert "desk: the stop took longer than 7 s; phase listeners was cut short" in caplog.messages


async def test_a_stop_behind_a_cancelled_body_has_the_same_limit() -> None:
    events: list[str] = []
    clock = StepClock(impatient=True)
    life = Lifecycle("desk", clock, stop_timeout=7)
    life.add(Phase.LISTENERS, step(events, "listeners", waits=True))
    with anyio.fail_after(PATIENCE), anyio.CancelScope() as scope:
        async with life:
            scope.cancel()
            await anyio.Event().wait()
    assert clock.slept == [7]
    assert events == ["+listeners", "cut listeners", "-listeners"]
    assert life.cut_short is Phase.LISTENERS


async def test_a_stop_behind_a_cancelled_start_has_the_same_limit() -> None:
    events: list[str] = []
    clock = StepClock(impatient=True)
    life = Lifecycle("desk", clock, stop_timeout=7)
    life.add(Phase.CLIENT, step(events, "client", waits=True))
    with anyio.fail_after(PATIENCE), anyio.CancelScope() as scope:

        async def is_cancelled(stack: AsyncExitStack) -> None:
            scope.cancel()
            await anyio.Event().wait()

        life.add(Phase.LISTENERS, is_cancelled)
        await life.__aenter__()
    assert events == ["+client", "cut client", "-client"]
    assert life.cut_short is Phase.CLIENT


async def test_a_stop_that_fails_says_so() -> None:
    events: list[str] = []
    life = Lifecycle("desk", StepClock())
    life.add(Phase.INFRASTRUCTURE, step(events, "servers"))

    async def breaks_at_stop(stack: AsyncExitStack) -> None:
        async def fail() -> None:
            raise OSError("disk full")

        stack.push_async_callback(fail)

    life.add(Phase.CLIENT, breaks_at_stop)
    with pytest.raises(OSError, match="disk full"):
        async with life:
            pass
    assert events == ["+servers", "-servers"]


async def test_a_task_that_crashes_inside_ends_the_body_and_is_what_comes_out() -> None:
    events: list[str] = []
    life = Lifecycle("desk", StepClock())
    life.add(Phase.CLIENT, step(events, "client"))

    async def crash() -> None:
        raise OSError("crashed")

    async def group_of_a_user(stack: AsyncExitStack) -> None:
        group = await stack.enter_async_context(anyio.create_task_group())
        group.start_soon(crash)

    life.add(Phase.BEANS, group_of_a_user)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with life:
            await anyio.Event().wait()
    assert caught.group_contains(OSError, match="crashed")
    assert events == ["+client", "-client"]
