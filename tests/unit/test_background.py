"""Calls from other threads into a background that has no loop to call into, or not for long."""

from __future__ import annotations

import _thread
import sys
import threading
from contextlib import AbstractAsyncContextManager

import anyio
import anyio.to_thread
import pytest

from rocketbox.background import Background, Service
from rocketbox.errors import NotStartedError
from tests.support.waiting import PATIENCE


class NoService(AbstractAsyncContextManager[Service]):
    async def __aenter__(self) -> Service:
        raise ValueError("no desk is free")

    async def __aexit__(self, *error: object) -> None: ...


class CallsAtItsEnd(AbstractAsyncContextManager[Service]):
    """As a ``def`` hook at the shutdown, in a thread."""

    def __init__(self) -> None:
        self.told = ""

    async def __aenter__(self) -> Service:
        return self

    async def __aexit__(self, *error: object) -> None:
        await anyio.to_thread.run_sync(self._call)

    async def wait_until_wanted(self) -> None:
        await anyio.sleep_forever()

    def told_of_end(self, error: BaseException, see_traceback: str) -> str:
        raise AssertionError("it does not fail") from error

    def _call(self) -> None:
        try:
            background.call(answer)
        except NotStartedError as error:
            self.told = str(error)


ends = CallsAtItsEnd()
background = Background("desk", lambda: ends)


def test_a_call_while_it_stops_says_so() -> None:
    with background:
        pass
    assert ends.told == "the background of desk is not started; it stops: call it before, or await in an async hook"
    with pytest.raises(NotStartedError, match=r"call its start\(\)"):
        background.call(answer)


async def answer() -> int:
    return 42


def test_a_call_while_a_start_fails_says_that_nothing_is_started() -> None:
    background = Background("desk", NoService)
    told: list[Exception] = []
    over = threading.Event()

    def go_on_calling() -> None:
        while not over.is_set():
            try:
                background.call(answer)
            except NotStartedError:
                continue
            except Exception as error:
                told.append(error)
                return

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns as often as they can
    callers = [threading.Thread(target=go_on_calling) for _ in range(2)]
    try:
        for each in callers:
            each.start()
        for _ in range(20):
            with pytest.raises(ValueError, match="no desk is free"):
                background.start()
    finally:
        over.set()
        for each in callers:
            each.join()
        sys.setswitchinterval(interval)
    assert told == []


def test_an_interrupt_that_comes_just_before_a_call_waits_ends_it() -> None:
    """As Ctrl-C may: what comes between the last look for signals and the wait ends no wait of Python's own."""

    waited_on: list[str] = []

    async def stay() -> None:
        _thread.interrupt_main()
        await anyio.sleep(PATIENCE)
        waited_on.append("to the end")

    background = Background("desk", CallsAtItsEnd)
    with background, pytest.raises(KeyboardInterrupt):
        background.call(stay)
    assert not waited_on
