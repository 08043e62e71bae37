"""The frames of what waits: they lead to the line of a user's that a stop waits for, whatever steps it."""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from typing import Any

import anyio
import pytest

from rocketbox.frames import awaited_frames, users_frame
from rocketbox.loops import coroutines_from_thread

pytestmark = pytest.mark.anyio


@types.coroutine
def _stepped(coroutine: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
    """As a consumer steps a handler in a context of its own: the generator does not say what it steps."""
    try:
        trap = coroutine.send(None)
        while True:
            trap = coroutine.send((yield trap))
    except StopIteration:
        return


async def _handler(reached: anyio.Event, go_on: anyio.Event) -> None:
    reached.set()
    with anyio.CancelScope(shield=True):
        await go_on.wait()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # under trio a stop guard is told of no coroutines
async def test_a_handler_that_its_consumer_steps_is_found_at_the_line_where_it_waits() -> None:
    reached, go_on = anyio.Event(), anyio.Event()
    coroutines = coroutines_from_thread()
    async with anyio.create_task_group() as tasks:

        async def consume() -> None:
            await _stepped(_handler(reached, go_on))

        tasks.start_soon(consume)
        await reached.wait()
        found = [users_frame(awaited_frames(each)) for each in coroutines()]
        go_on.set()
    assert "_handler" in [frame.f_code.co_name for frame in found if frame is not None]
