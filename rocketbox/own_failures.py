"""What code of the user's may raise that is no ``Exception``, and must end nothing but itself.

A task that it has cancelled and awaits, ``sys.exit``, a library's own timeout: each would end what is around, without a
word. Here it becomes a failure like any other; a cancellation that comes from outside stays one.

Source: own design.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from rocketbox.loops import is_cancelled
from rocketbox.safe_repr import safe_repr

__all__ = ["as_failure", "failures_only", "without_context"]


@contextmanager
def failures_only(*, exits: bool = False, hosted: bool = False) -> Iterator[None]:
    """What is raised inside is an Exception, or comes from outside; the parameters are those of :func:`as_failure`."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        failure = as_failure(error, exits=exits, hosted=hosted)
        if failure is error:
            raise
        raise failure from error


def as_failure(error: BaseException, *, exits: bool = False, hosted: bool = False) -> BaseException:
    """The error, or the RuntimeError that stands for it.

    With ``exits`` SystemExit stays what it is. With ``hosted`` the task is another program's, which may cancel it as a
    task, and not by a scope.
    """
    if isinstance(error, Exception | KeyboardInterrupt | GeneratorExit) or (exits and isinstance(error, SystemExit)):
        return error
    if isinstance(error, SystemExit):
        return RuntimeError(f"it raised {safe_repr(error)}, and app.shutdown() is what ends the application")
    if is_cancelled(as_task=hosted):
        return error
    if isinstance(error, anyio.get_cancelled_exc_class()):
        return RuntimeError("it was cancelled from within")
    return RuntimeError(f"it raised {safe_repr(error)}, which is no Exception")


def without_context(error: BaseException, around: BaseException | None) -> None:
    """Let an error not be told as one that came while ``around`` was dealt with; what led to it itself stays."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if each.__context__ is not None and each.__context__ is around:
            each.__context__ = None
        waiting += [other for other in (each.__context__, each.__cause__) if other is not None]
