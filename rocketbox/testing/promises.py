"""Whether a task waits for what another task will do: one that holds what it waits for.

A future, an event or a queue does not say who will fill it. Who does has it at hand: in a variable of the code that it
is at, or in what is called when it ends (``asyncio.as_completed``). A lock does not say who has it either: that is who
is inside of its ``async with``, and so has its end on the stack.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, _AsyncGeneratorContextManager
from dataclasses import dataclass
from types import BuiltinMethodType, MethodType
from typing import Any

from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from rocketbox.testing.loop_turns import awaited_by, frames_of, is_users_frame, real_wait

__all__ = ["Work", "holder_of", "is_held_by"]

METHODS = (MethodType, BuiltinMethodType)
STREAMS = (MemoryObjectReceiveStream, MemoryObjectSendStream)


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
    wanted = {id(_shared(each)) for each in _waited_for(task, awaited)}
    return any(id(_shared(held)) in wanted for other in others for held in _held(other))


def holder_of(work: Work, works: Sequence[Work]) -> tuple[str, bool]:
    """Who has the lock that a task waits for, for people, and whether that one waits for virtual time.

    Nothing is known of a lock whose holder is inside of no ``async with`` of it.
    """
    for lock in _locks_of(work.task, work.awaited):
        for other in works:
            waits = _enters(lock, other.task, other.awaited)
            if _times_entered(lock, other.task, other.awaited) > waits:
                who = "it has entered itself" if other.task is work.task else f"{other.who} has entered"
                in_virtual_time = not waits and real_wait(other.task, other.awaited) is None
                return f", for the {type(lock).__name__} that {who}", in_virtual_time
    return "", False


def _locks_of(task: Any, awaited: Awaitable[Any] | None) -> list[object]:
    """The lock, semaphore or whatever else has an ``async with`` that a task waits to enter, and what that is made of;
    none: it does not wait for such a thing."""
    entered = _entered_by_users(task, awaited)
    return [
        each
        for each in _waited_for(task, awaited)
        if any(each is owner for owner in entered)
        or (hasattr(type(each), "acquire") and hasattr(type(each), "release"))
    ]


def _enters(lock: object, task: Any, awaited: Awaitable[Any] | None) -> bool:
    """Whether a task waits in the ``async with`` of a lock: its end is on the stack by then."""
    entered = _entered_by_users(task, awaited)
    return any(owner is lock for owner in entered) and any(each is lock for each in _waited_for(task, awaited))


def _entered_by_users(task: Any, awaited: Awaitable[Any] | None) -> list[object]:
    """What the innermost code of the user's in a task is inside of, or waits to be."""
    users = [each for each, frame in awaited_by(_work(task, awaited)) if is_users_frame(frame)]
    return list(_entered(users[-1], set())) if users else []


def _times_entered(lock: object, task: Any, awaited: Awaitable[Any] | None) -> int:
    """How often a task is inside of the ``async with`` of a lock, or waits to be."""
    seen = set[int]()
    return sum(owner is lock for each, _ in awaited_by(_work(task, awaited)) for owner in _entered(each, seen))


def _entered(code: Any, seen: set[int]) -> Iterator[object]:
    """What a coroutine or generator is inside of, as far as it was not ``seen``: on its stack is what ends it."""
    if id(code) in seen:  # a generator of which a step is awaited
        return
    seen.add(id(code))
    yield from _ended_by(gc.get_referents(code), seen)


def _ended_by(found: Iterable[Any], seen: set[int]) -> Iterator[object]:
    """What these are the ends of, and what those have entered themselves."""
    for each in found:
        # Others are asked nothing: the user's own locals are among them, and some answer to any name.
        if type(each) in METHODS and each.__name__ == "__aexit__":
            owner = each.__self__
            yield owner
            if issubclass(type(owner), _AsyncGeneratorContextManager):
                yield from _entered(owner.gen, seen)
            elif issubclass(type(owner), AsyncExitStack):
                yield from _ended_by([callback for _, callback in owner._exit_callbacks], seen)


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


def _shared(each: Any) -> object:
    """What both ends of a stream have in common; of anything else, that."""
    return each._state if type(each) in STREAMS else each


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
