"""Which harnesses the report of a failing test tells of: those that ran in it, whoever made them.

The pytest plugin loads it in every run, so it loads nothing else of rocketbox. Where there is no such plugin nobody
asks, and nothing is kept.
"""

from __future__ import annotations

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


def begin(folder: Path) -> None:
    """A run of pytest begins, with that root folder."""
    global root
    root = folder


def begin_test() -> None:
    """From now on, those that run and those that begin are of the test that begins now."""
    global _of_test
    _of_test = list(running)


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
