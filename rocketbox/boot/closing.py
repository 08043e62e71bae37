"""How an object is closed that is no asynchronous context manager: by a method that is inferred, as in Spring Boot.

Source: Spring Framework 6 ``@Bean(destroyMethod)``, whose default is a public ``close()`` without arguments.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from rocketbox.loops import never_closed

__all__ = ["closing_call", "is_left_alone", "is_lock"]

STANDARD_STREAMS = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")


def is_left_alone(value: Any) -> bool:
    """Whether it is neither entered nor closed, whatever methods it has: a lock, a running loop, standard output."""
    return isinstance(value, never_closed()) or any(value is getattr(sys, name) for name in STANDARD_STREAMS)


def is_lock(value: object) -> bool:
    """Whether it looks like a lock, of threads or another library: entering it would keep it from whoever uses it."""
    return all(callable(getattr(value, name, None)) for name in ("acquire", "release"))


def closing_call(value: Any) -> Callable[[], Awaitable[None]] | None:
    """What closes it: its ``aclose()``, else ``close()`` and ``wait_closed()`` if it has that; None if it has neither.

    Only what its class has and what takes no arguments: ``close(ticket)`` is the business of whoever wrote it.
    """
    for name in ("aclose", "close"):
        method = _without_arguments(value, name)
        if method is not None:
            steps = [method]
            if name == "close" and (wait := _without_arguments(value, "wait_closed")) is not None:
                steps.append(wait)
            return lambda: _call(steps)
    return None


async def _call(steps: list[Callable[[], Any]]) -> None:
    for step in steps:
        result = step()
        if inspect.isawaitable(result):
            await result


def _without_arguments(value: Any, name: str) -> Callable[[], Any] | None:
    if not callable(getattr(type(value), name, None)):
        return None
    method: Callable[[], Any] = getattr(value, name)
    try:
        inspect.signature(method).bind()
    except TypeError:
        return None
    except ValueError:  # written in C, and says nothing of its parameters
        pass
    return method
