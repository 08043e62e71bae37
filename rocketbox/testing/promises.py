"""Whether a task waits for what another task will do: one that holds what it waits for.

A future, an event or a queue does not say who will fill it. Who does has it at hand: in a variable of the code that it
is at, or in what is called when it ends (``asyncio.as_completed``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator
from typing import Any

from rocketbox.testing.loop_turns import frames_of, is_users_frame

__all__ = ["is_held_by"]


def is_held_by(others: Iterable[Any], task: Any, awaited: Awaitable[Any] | None) -> bool:
    """Whether one of others holds what task waits for; ``awaited`` is the coroutine that is looked at of it."""
    wanted = {id(each) for each in _waited_for(task, awaited)}
    return any(id(held) in wanted for other in others for held in _held(other))


def _waited_for(task: Any, awaited: Awaitable[Any] | None) -> Iterator[object]:
    """The future, and the objects of libraries whose methods wait for it: an event, a queue, a condition."""
    yield getattr(task, "_fut_waiter", None)
    for frame in reversed(frames_of(task.get_coro() if awaited is None else awaited)):
        if is_users_frame(frame):
            return
        if (owner := frame.f_locals.get("self")) is not None:
            yield owner


def _held(task: Any) -> Iterator[object]:
    for frame in frames_of(task.get_coro()):
        yield from frame.f_locals.values()
    for callback, _ in getattr(task, "_callbacks", None) or ():
        owner = getattr(callback, "__self__", None)  # of as_completed, from Python 3.13 on
        yield from vars(owner).values() if hasattr(owner, "__dict__") else ()
        yield from (cell.cell_contents for cell in getattr(callback, "__closure__", None) or () if _is_filled(cell))


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # nothing was put into it yet
        return False
