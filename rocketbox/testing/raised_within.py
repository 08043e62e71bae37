"""An exception raised inside of code that catches all exceptions: at a line that no ``try`` surrounds.

Code whose loop has a bare ``except:`` around its ``await`` catches whatever is thrown into it, and goes on. A trace
function is called before each line that it runs then, may raise there, and one of these lines is mostly outside of the
``try``: that of the ``except`` itself.

Source: ``sys.settrace``, and "trace functions" in Python's data model; the same in CPython 3.11 to 3.13.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

__all__ = ["raise_at"]


def raise_at(number: int, frame: FrameType, throw: Callable[[BaseException], object]) -> int:
    """Throw an exception into the code of a suspended frame, and one more before the line that it runs as the
    ``number``-th then, counted from 1; how many lines it has run.

    ``throw(error)`` raises where the frame awaits something, which has come to its end itself, and runs it until it
    waits again. What it raises nobody hears.
    """
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
            if lines == number:
                raise GeneratorExit
        return trace

    # Who traces (a debugger, a measurement of coverage) counts calls and returns: all of them are here, in one frame.
    before, of_frame = sys.gettrace(), frame.f_trace
    if sys.version_info >= (3, 12):
        sys.monitoring.restart_events()  # a line that was come to when nobody traced any more is not told of again
    frame.f_trace = trace
    sys.settrace(_of_no_other_code)
    try:
        with suppress(BaseException):
            throw(GeneratorExit())
    finally:
        sys.settrace(before)
        frame.f_trace = of_frame
    return lines


def _of_no_other_code(frame: FrameType, event: str, argument: Any) -> None:
    return None
