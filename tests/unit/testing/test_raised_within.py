"""Code that catches whatever is raised in it is ended at a line that no ``try`` surrounds."""

# ruff: noqa: E722, SIM105

from __future__ import annotations

import asyncio
import ctypes
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

import pytest

from rocketbox.testing import raised_within
from rocketbox.testing.raised_within import raise_at

Work = Callable[[], Coroutine[Any, Any, None]]


async def passes() -> None:
    while True:
        try:
            await asyncio.sleep(1)
        except:
            pass


async def goes_on() -> None:
    while True:
        try:
            await asyncio.sleep(1)
        except BaseException:
            continue


async def returns_in_the_try() -> None:
    while True:
        try:
            return await asyncio.sleep(1)
        except:
            pass


async def waits_in_the_except() -> None:
    while True:
        try:
            await asyncio.sleep(1)
        except:
            try:
                await asyncio.sleep(1)
            except:
                pass


async def in_a_for() -> None:
    for _ in range(10**9):
        try:
            await asyncio.sleep(1)
        except:
            pass


async def leaves_by_a_finally() -> None:
    while True:
        try:
            await asyncio.shield(asyncio.sleep(1))
        finally:
            continue  # noqa: B012


async def one_behind_the_other() -> None:
    try:
        while True:
            try:
                await asyncio.sleep(1)
            except:
                pass
    except:
        pass
    while True:
        try:
            await asyncio.sleep(1)
        except:
            pass


# fmt: off
async def within_another_try() -> None:
    while True:
        try:
            while True:
                try: await asyncio.sleep(1)  # noqa: E701
                except: pass  # noqa: E701
        except: pass  # noqa: E701
# fmt: on


def begun(work: Work) -> Coroutine[Any, Any, None]:
    coroutine = work()
    coroutine.send(None)
    return coroutine


def has_ended(coroutine: Any) -> bool:
    return inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


def end(coroutine: Any) -> bool:
    """Try at its lines, one after the other, until it has ended, or has no more before it waits again."""
    for number in range(1, 50):
        lines = raise_at(number, coroutine.cr_frame, coroutine.throw)
        if has_ended(coroutine) or lines < number:
            break
    return has_ended(coroutine)


def keep(coroutine: object) -> None:
    """For good: it would be told of as one that ignores its end."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(coroutine))


@pytest.mark.parametrize(
    "work",
    [
        passes,
        goes_on,
        returns_in_the_try,
        waits_in_the_except,
        in_a_for,
        leaves_by_a_finally,
        one_behind_the_other,
    ],
)
def test_code_that_catches_all_is_ended(work: Work) -> None:
    async def test() -> None:
        coroutine = begun(work)
        with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
            coroutine.close()
        assert end(coroutine)

    asyncio.run(test())


def test_where_each_line_is_inside_of_a_try_it_says_so() -> None:
    async def test() -> None:
        coroutine = begun(within_another_try)
        assert not end(coroutine)
        keep(coroutine)

    asyncio.run(test())


def test_other_code_is_not_looked_at_and_who_traces_goes_on() -> None:
    """Such as a debugger, or a measurement of coverage."""

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        return None

    def of_frame(frame: FrameType, event: str, argument: Any) -> None:
        return None

    traced = []

    def other() -> None:
        traced.append(sys._getframe().f_trace)

    async def work() -> None:
        while True:
            try:
                await asyncio.sleep(1)
            except:
                other()

    async def test() -> None:
        assert end(begun(work))
        assert sys.gettrace() is trace
        stays: Any = begun(within_another_try)
        stays.cr_frame.f_trace = of_frame
        assert not end(stays)
        assert stays.cr_frame.f_trace is of_frame
        assert sys.gettrace() is trace
        keep(stays)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        asyncio.run(test())
    finally:
        sys.settrace(before)
    assert traced == [None] * len(traced)


@pytest.mark.parametrize("work", [passes, within_another_try])
def test_who_traces_is_told_of_as_many_returns_as_calls(work: Work) -> None:
    told: Counter[str] = Counter()
    here = sys._getframe().f_code.co_filename
    files = {here, raised_within.__file__}

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        told[event] += 1
        return trace

    async def test() -> None:
        coroutine = begun(work)
        sys.settrace(trace)
        end(coroutine)
        sys.settrace(None)
        keep(coroutine)

    before = sys.gettrace()
    try:
        asyncio.run(test())
    finally:
        sys.settrace(before)
    assert told["call"] == told["return"] > 0
