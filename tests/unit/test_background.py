"""Calls from other threads into a background that fails to start, again and again."""

from __future__ import annotations

import sys
import threading
from contextlib import AbstractAsyncContextManager

import pytest

from rocketbox.background import Background, Service
from rocketbox.errors import NotStartedError


class NoService(AbstractAsyncContextManager[Service]):
    async def __aenter__(self) -> Service:
        raise ValueError("no desk is free")

    async def __aexit__(self, *error: object) -> None: ...


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
