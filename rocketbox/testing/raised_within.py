"""An exception raised inside of code that catches all exceptions: at a line that no ``try`` surrounds.

Code whose loop has a bare ``except:`` around its ``await`` catches whatever is thrown into it, and goes on. A trace
function is called before each line that it runs then, may raise there, and one of these lines is mostly outside of the
``try``: that of the ``except`` itself.

Source: ``sys.settrace``, and "trace functions" in Python's data model; the same in CPython 3.11 to 3.13.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

__all__ = ["raise_within"]

MOST_LINES = 50  # that are tried, one in each round of the loop


def raise_within(frame: FrameType, throw: Callable[[BaseException], object], has_ended: Callable[[], bool]) -> bool:
    """End the code of a suspended frame; whether it has ended.

    ``throw(error)`` raises in what the frame awaits, and runs it until it waits again.
    """
    for number in range(1, MOST_LINES + 1):
        with _raising_at(number, frame) as lines, suppress(BaseException):  # what it raises nobody hears
            throw(GeneratorExit())
        if has_ended():
            return True
        if lines() < number:  # it waits again, and each of its lines is inside of the try
            return False
    return False


@contextmanager
def _raising_at(number: int, frame: FrameType) -> Iterator[Callable[[], int]]:
    """Raise before the so-manieth line that a frame runs in this thread; how many it has run, is what is yielded."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
            if lines == number:
                raise GeneratorExit
        return trace

    before, of_frame = sys.gettrace(), frame.f_trace
    if sys.version_info >= (3, 12):
        sys.monitoring.restart_events()  # a line that was come to when nobody traced any more is not told of again
    frame.f_trace = trace
    sys.settrace(lambda frame, event, argument: None)  # of no other code
    try:
        yield lambda: lines
    finally:
        sys.settrace(before)
        frame.f_trace = of_frame
