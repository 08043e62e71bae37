"""Whose code a frame is: the user's, that of installed libraries, Python's own, or what runs all of it.

From this follow the line that blocks a loop or holds up a stop, the line at which an error was raised, and a traceback
that has the user's own lines only. Nothing here runs user code or waits for anything: a thread may look at another one.
"""

from __future__ import annotations

import gc
import os
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from types import AsyncGeneratorType, FrameType, TracebackType
from typing import Any

__all__ = [
    "awaited_frames",
    "in_debugger",
    "inside",
    "outwards",
    "place_of_frame",
    "raised_at",
    "stack_text",
    "users_frame",
    "users_traceback",
]

STACK_LINES = 6

MACHINERY = frozenset({"rocketbox", "anyio", "asyncio", "trio", "outcome", "sniffio", "uvloop"})
DEBUGGERS = frozenset({"bdb", "pdb", "code", "pydevd", "_pydevd_bundle", "debugpy", "IPython"})

STDLIB = ("<frozen ", *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")))
INSTALLED = {"site-packages", "dist-packages"}


# --- of a thread -----------------------------------------------------------------------------------------------------


def users_frame(frames: Iterable[FrameType]) -> FrameType | None:
    """Of frames, the innermost one first, that of the user's code which is at work.

    It is the innermost one of the handler's own package or of code that is not installed: not that of a library the
    handler calls, nor of Python. None when there is no code but what runs it.
    """
    code: list[FrameType] = []
    for each in frames:
        if _package(each) in MACHINERY:
            if code:
                break
        elif _counts(each):
            code.append(each)
    if not code:
        return None
    own = _package(code[-1])  # what rocketbox has called; it may be installed as its libraries are
    return next(each for each in code if _package(each) == own or not _is_installed(each))


def place_of_frame(frame: FrameType) -> str:
    """``/srv/desk/app.py:31 in look_up``: where it is now."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"


def stack_text(frames: Sequence[FrameType]) -> str:
    """The innermost frames, with their lines, as tracebacks have them; ``frames`` begin with the innermost one."""
    with_lines = [(each, each.f_lineno) for each in frames][:STACK_LINES]
    return "".join(traceback.StackSummary.extract(reversed(with_lines)).format()).rstrip()


def inside(frame: FrameType, outside: int) -> list[FrameType]:
    """The frames from an innermost one outwards, without the ``outside`` outermost ones."""
    frames = list(outwards(frame))
    return frames[: max(len(frames) - outside, 0)]


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame, the one that called it, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def in_debugger(frame: FrameType) -> bool:
    """Whether somebody looks at it in a debugger."""
    return any(_package(each) in DEBUGGERS for each in outwards(frame))


# --- of a task that waits --------------------------------------------------------------------------------------------


def awaited_frames(awaitable: Any) -> list[FrameType]:
    """The frames of a coroutine that waits, and of all that it waits for, the innermost one first."""
    frames: list[FrameType] = []
    while awaitable is not None:
        frame = next(
            (each for name in ("cr_frame", "ag_frame", "gi_frame") if (each := getattr(awaitable, name, None))), None
        )
        if frame is not None:
            frames.append(frame)
        awaitable = _awaited_by(awaitable)
    return frames[::-1]


def _awaited_by(awaitable: Any) -> Any:
    for name in ("cr_await", "ag_await", "gi_yieldfrom"):
        if hasattr(awaitable, name) and ((awaits := getattr(awaitable, name)) is not None or name != "gi_yieldfrom"):
            return awaits
    # What steps an asynchronous generator does not say which one; neither does a wrapper of a coroutine, nor a
    # generator that steps one by hand, as consumers step handlers.
    for inner in gc.get_referents(awaitable):
        if isinstance(inner, AsyncGeneratorType) or hasattr(inner, "cr_await"):
            return inner
    return None


# --- of an error -----------------------------------------------------------------------------------------------------


def raised_at(error: BaseException) -> str | None:
    """The innermost line of the user's that an error came through: ``desk/app.py:31``.

    The file is relative when it is below the working directory.
    """
    own = _users_entries(error.__traceback__)
    if not own:
        return None
    code = own[-1].tb_frame.f_code
    file = code.co_filename.removeprefix(os.getcwd() + os.sep)
    return f"{file}:{own[-1].tb_lineno}"


def users_traceback(error: BaseException) -> TracebackType | None:
    """The traceback of an error with the user's own lines only; as it is where there are none."""
    found: TracebackType | None = None
    for entry in reversed(_users_entries(error.__traceback__)):
        found = TracebackType(found, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return found or error.__traceback__


def _users_entries(trace: TracebackType | None) -> list[TracebackType]:
    entries: list[TracebackType] = []
    while trace is not None:
        if _package(trace.tb_frame) not in MACHINERY and _counts(trace.tb_frame):
            entries.append(trace)
        trace = trace.tb_next
    if not entries:
        return []
    own = _package(entries[0].tb_frame)
    return [each for each in entries if _package(each.tb_frame) == own or not _is_installed(each.tb_frame)]


def _counts(frame: FrameType) -> bool:
    return _is_installed(frame) or not frame.f_code.co_filename.startswith(STDLIB)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_installed(frame: FrameType) -> bool:
    return not INSTALLED.isdisjoint(PurePath(frame.f_code.co_filename).parts)
