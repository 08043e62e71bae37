"""How long tests wait in real time for what must come.

A bound of a few seconds is broken by a slow machine with much to do, and shows nothing. What must be quick is shown on
virtual time (``tests/support/clocks.py``) or by counting; these seconds only end a test that hangs.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio

__all__ = ["PATIENCE", "until"]

PATIENCE = 60.0
"""Seconds. Only a test that fails waits so long."""


async def until(
    condition: Callable[[], object], what: str = "what the test waits for", *, seconds: float = PATIENCE
) -> None:
    """Return when condition holds; fails with ``what`` when it does not for so long."""
    with anyio.move_on_after(seconds):
        while not condition():
            await anyio.sleep(0.01)
        return
    raise AssertionError(f"not within {seconds:g} s: {what}")
