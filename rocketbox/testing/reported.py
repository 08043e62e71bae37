"""Which harnesses the report of a failing test tells of: those that ran in it, whoever made them.

The pytest plugin loads it in every run, so it loads nothing else of rocketbox. Where there is no such plugin nobody
asks, and nothing is kept.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from rocketbox.testing.harness import Harness

__all__ = ["begin", "begin_test", "end", "entered", "ran", "root", "running"]

running: list[Harness] = []
"""Those of this process that run, in the order in which they began."""
root: Path | None = None
"""The root folder of pytest's run."""
_of_test: list[Harness] | None = None

YOUNG = 1  # generations up to this one hold nothing that was imported before the test


def begin(folder: Path) -> None:
    """A run of pytest begins, with that root folder."""
    global root
    root = folder


def begin_test() -> None:
    """From now on, those that run and those that begin are of the test that begins now.

    What those of the test before have left is a web of some 3,000 objects that hold each other. It is taken away while
    it is young, in 2 ms. Later it would be looked through with all that the process has imported, for 8 ms a test.
    """
    global _of_test
    has_left_some = any(each not in running for each in _of_test or ())
    _of_test = list(running)
    if has_left_some and gc.isenabled():
        gc.collect(YOUNG)


def end() -> None:
    """Nobody asks any more."""
    global _of_test, root
    _of_test = root = None


def entered(harness: Harness) -> None:
    """It begins."""
    running.append(harness)
    if _of_test is not None:
        _of_test.append(harness)


def ran() -> list[Harness]:
    """Those of the test."""
    return list(_of_test or ())
