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

__all__ = [
    "begin",
    "begin_test",
    "called",
    "end",
    "entered",
    "has_failed",
    "left",
    "ran",
    "root",
    "running",
    "test_ended",
]

running: list[Harness] = []
"""Those of this process that run, in the order in which they began."""
root: Path | None = None
"""The root folder of pytest's run."""
_of_test: list[Harness] | None = None
_has_begun = _has_failed = False  # the test; one that is skipped has failed as well
_around: list[Harness] = []  # those that ran when the run began: of one that it is inside of
_outer: list[tuple[Path | None, list[Harness] | None, bool, bool, list[Harness]]] = []  # all of that, of such runs
_thresholds: tuple[int, int, int] | None = None  # of the garbage collector, before a harness ran
_set = (0, 0, 0)  # those while one runs

YOUNG = 1  # generations up to this one hold nothing that was imported before the test
YOUNGEST = 20_000  # objects that come before the youngest generation is collected: a start and a short test make fewer
CALLS = 50  # of handlers, between two collections of the youngest generation
TO_YOUNG = 50  # collections of the youngest generation before one of the next


def begin(folder: Path) -> None:
    """A run of pytest begins, with that root folder."""
    global root, _around
    _outer.append((root, _of_test, _has_begun, _has_failed, _around))
    root, _around = folder, list(running)


def begin_test() -> None:
    """From now on, those that run and those that begin are of the test that begins now.

    What those of the test before have left is a web of some 3,000 objects that hold each other. It is taken away while
    it is young, in 2 ms. Later it would be looked through with all that the process has imported, for 8 ms a test.
    """
    global _of_test, _has_begun, _has_failed
    has_left_some = any(each not in running for each in _of_test or ())
    _of_test = list(running)
    for each in running:
        if each not in _around:
            each.next_test(last_has_failed=_has_failed)
    _has_begun, _has_failed = True, False
    if has_left_some and gc.isenabled():
        gc.collect(YOUNG)


def test_ended(*, passed: bool, is_over: bool) -> None:
    """A part of the test has ended: its setup, the test itself or, when it ``is_over``, its teardown."""
    global _has_begun, _has_failed
    _has_failed = _has_failed or (_has_begun and not passed)  # one that is skipped by its mark does not begin
    _has_begun = _has_begun and not is_over


def has_failed() -> bool:
    """Whether the test has, as far as pytest knows, or was skipped: also when it is over, until another one begins."""
    return _has_failed


def end() -> None:
    """Nobody asks any more."""
    global root, _of_test, _has_begun, _has_failed, _around
    root, _of_test, _has_begun, _has_failed, _around = _outer.pop()
    _collect_as_before()


def entered(harness: Harness) -> None:
    """It begins.

    What it is made of is looked at once, by the ``begin_test`` of the next test, which takes all of it away. Nearly all
    of that lives until then, so that looking at it before is in vain; and what gets old would lead to full collections,
    each through all that the process has imported.
    """
    global _thresholds, _set
    running.append(harness)
    if _of_test is None:
        return
    _of_test.append(harness)
    if _thresholds is None:
        _thresholds = youngest, young, old = gc.get_threshold()
        youngest = max(youngest, YOUNGEST) if youngest else 0  # 0: nothing is collected by itself
        _set = youngest, max(young, TO_YOUNG), old
        gc.set_threshold(*_set)


def called(times: int) -> None:
    """A harness has seen so many calls of handlers: what each may have left, as an exception that holds its frames
    does, is taken away after some of them, for it may be large."""
    if times % CALLS == 0 and _thresholds is not None and _thresholds[0] and gc.isenabled():
        gc.collect(0)


def left(harness: Harness) -> None:
    """It has ended."""
    running.remove(harness)
    if not running:
        _collect_as_before()


def _collect_as_before() -> None:
    global _thresholds
    if _thresholds is not None and gc.get_threshold() == _set:  # else somebody else has set them
        gc.set_threshold(*_thresholds)
    _thresholds = None


def ran() -> list[Harness]:
    """Those of the test."""
    return list(_of_test or ())
