"""Whether a task waits for what another task will do: one that holds what it waits for.

A future, an event or a queue does not say who will fill it. Who does has it at hand: in a variable of the code that it
is at, or in what is called when it ends (``asyncio.as_completed``). A lock does not say who has it either: that is who
is inside of its ``async with``, and so has its end on the stack.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import BuiltinMethodType, MethodType
from typing import Any

from rocketbox.testing.loop_turns import awaited_by, frames_of, is_users_frame, real_wait

__all__ = ["Work", "holder_of", "is_held_by"]

METHODS = (MethodType, BuiltinMethodType)


@dataclass(eq=False, frozen=True)
class Work:
    """A task, or a coroutine that is awaited in one: what it is, and who, where others wait for it.

    ``of`` is the call or task, the same for as long as it goes on. ``may_hold``: it is code of the service that has
    begun, and not what waits for the next time to begin. ``root`` is the call of a handler that has started it.
    """

    task: Any
    awaited: Any
    what: str
    who: str
    of: object
    may_hold: bool = True
    root: object | None = None


def is_held_by(others: Iterable[Any], task: Any, awaited: Awaitable[Any] | None) -> bool:
    """Whether one of others holds what task waits for; ``awaited`` is the coroutine that is looked at of it."""
    wanted = {id(each) for each in _waited_for(task, awaited)}
    return any(id(held) in wanted for other in others for held in _held(other))


def holder_of(work: Work, works: Sequence[Work]) -> tuple[str, bool]:
    """Who has the lock that a task waits for, for people, and whether that one waits for virtual time.

    Nothing is known of a lock whose holder is inside of no ``async with`` of it.
    """
    lock = _lock_of(work.task, work.awaited)
    if lock is None:
        return "", False
    for other in works:
        waits = _lock_of(other.task, other.awaited) is lock
        if _times_entered(lock, other.task, other.awaited) > waits:
            who = "it has entered itself" if other.task is work.task else f"{other.who} has entered"
            in_virtual_time = not waits and real_wait(other.task, other.awaited) is None
            return f", for the {type(lock).__name__} that {who}", in_virtual_time
    return "", False


def _lock_of(task: Any, awaited: Awaitable[Any] | None) -> object | None:
    """The lock, semaphore or whatever else has an ``async with`` that a task waits to enter; None: it does not."""
    users = [each for each, frame in awaited_by(_work(task, awaited)) if is_users_frame(frame)]
    entered = list(_entered(users[-1])) if users else []
    return next((each for each in _waited_for(task, awaited) if any(each is owner for owner in entered)), None)


def _times_entered(lock: object, task: Any, awaited: Awaitable[Any] | None) -> int:
    """How often a task is inside of the ``async with`` of a lock, or waits to be."""
    return sum(owner is lock for each, _ in awaited_by(_work(task, awaited)) for owner in _entered(each))


def _entered(coroutine: Any) -> Iterator[object]:
    """What a coroutine is inside of: on its stack is what ends it."""
    for each in gc.get_referents(coroutine):
        # Others are asked nothing: the user's own locals are among them, and some answer to any name.
        if type(each) in METHODS and each.__name__ == "__aexit__":
            yield each.__self__


def _work(task: Any, awaited: Awaitable[Any] | None) -> Any:
    return task.get_coro() if awaited is None else awaited


def _waited_for(task: Any, awaited: Awaitable[Any] | None) -> Iterator[object]:
    """The future, and the objects of libraries whose methods wait for it: an event, a queue, a condition."""
    yield getattr(task, "_fut_waiter", None)
    for frame in reversed(frames_of(_work(task, awaited))):
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
