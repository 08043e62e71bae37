"""Coroutines that a call of users' code makes and nobody begins: a ``template.send(...)`` without ``await``.

Such a send sends nothing, and Python only warns of it, later and elsewhere. Here a call of a handler learns of it:
while one runs (:data:`current_call`), a coroutine function that is marked by :func:`expects_await` writes down each
coroutine that it makes, and the coroutine strikes itself out when it begins. What is left at the end, was not closed
and is held by nobody else can never begin (:func:`never_begun`). What a task or anybody else still holds may: that is
no mistake.

Source: own design. Nothing is set up in the interpreter, and outside of a call it costs one look at a context variable.
"""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from functools import wraps
from itertools import islice
from types import CodeType, FrameType
from typing import Any, ParamSpec, TypeVar

from rocketbox.loops import mark_coroutine_function

__all__ = ["Call", "Made", "current_call", "expects_await", "never_begun", "not_awaited"]

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


class Made:
    """A coroutine was made: of which function, and at which place. No frame is kept, which would hold its variables."""

    __slots__ = ("_code", "_instruction", "name")

    def __init__(self, name: str, maker: FrameType | None) -> None:
        self.name = name
        caller = maker.f_back if maker is not None else None
        self._code: CodeType | None = caller.f_code if caller is not None else None
        self._instruction = caller.f_lasti if caller is not None else 0

    @property
    def where(self) -> str:
        """``file:line`` of the call; empty where that cannot be known."""
        if self._code is None:
            return ""
        position = next(islice(self._code.co_positions(), self._instruction // 2, None), (None,))
        path = self._code.co_filename.removeprefix(os.getcwd() + os.sep)
        return f"{path}:{position[0] or self._code.co_firstlineno}"


class Call:
    """A call of users' code, as far as the coroutines matter that are made in it.

    It knows nothing else of the call when that has ended: what the call has begun, such as a connection of a pool,
    keeps the context and with it this for as long as it lives. There is one for each message, so both are set without
    an ``__init__``.
    """

    __slots__ = ("about", "unbegun")

    about: Any
    """The call itself, for logs, while it runs; else None, or not set."""

    unbegun: dict[Made, Coroutine[Any, Any, Any]] | None
    """Those that were made and have not begun; None: the call has ended, and what tasks of it make is their own."""


current_call: ContextVar[Call | None] = ContextVar("rocketbox_current_call", default=None)


def expects_await(function: Callable[P, Coroutine[Any, Any, ResultT]]) -> Callable[P, Coroutine[Any, Any, ResultT]]:
    """A coroutine function whose coroutines are written down in the call that makes them."""
    name = function.__qualname__

    @wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, ResultT]:
        call = current_call.get()
        if call is None or (unbegun := call.unbegun) is None:
            return function(*args, **kwargs)
        made = Made(name, inspect.currentframe())
        coroutine: Any = _begin(call, made, function, args, kwargs)
        coroutine.__qualname__ = name  # as Python's own warning is to name it
        unbegun[made] = coroutine
        return coroutine  # type: ignore[no-any-return]  # Any for __qualname__, which Coroutine does not tell of

    mark_coroutine_function(make)
    return make


async def _begin(
    call: Call,
    made: Made,
    function: Callable[..., Coroutine[Any, Any, ResultT]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> ResultT:
    if call.unbegun is not None:
        call.unbegun.pop(made, None)
    return await function(*args, **kwargs)


def never_begun(call: Call) -> list[Made]:
    """End a call; those of its coroutines that have not begun and never will, for nobody holds them."""
    unbegun, call.unbegun = call.unbegun, None
    if not unbegun:
        return []
    held = [
        (made, weakref.ref(coroutine))
        for made, coroutine in list(unbegun.items())
        if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED  # else it was begun, or closed: by its task
    ]
    unbegun.clear()
    return [made for made, coroutine in held if coroutine() is None]


def not_awaited(lost: Sequence[Made], who: str, *, is_async: bool) -> str:
    """What is wrong with a function that has left these behind, and what to write."""
    told = ", ".join(f"{each.name} ({each.where})" if each.where else each.name for each in lost)
    write = "write await before it"
    if not is_async:
        write = "a def cannot await, so declare it with async def and write await before it"
    return f"{who} did not await {told}, and so it never ran: {write}"
