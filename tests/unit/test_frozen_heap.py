"""What collections pass over while an application runs, and that runs in one process leave nothing to one another."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from rocketbox.frozen_heap import freeze_program, freeze_run


class Ring:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def begun() -> Iterator[None]:
    """A run before, so that nothing of other tests is frozen twice; afterwards nothing is frozen."""
    freeze_run()
    freeze_program()
    yield
    gc.unfreeze()


def test_what_a_run_used_is_passed_over_until_the_next_one_begins() -> None:
    ring = Ring()
    left = weakref.ref(ring)
    freeze_run()
    del ring
    gc.collect()
    assert left() is not None
    freeze_program()
    assert left() is None


def test_after_a_start_that_failed_only_what_came_since_is_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    left = weakref.ref(Ring())
    with monkeypatch.context() as patch:
        patch.setattr(gc, "unfreeze", lambda: pytest.fail("all that the program has loaded is looked through"))
        freeze_program()
    assert left() is None
    assert gc.get_freeze_count() >= frozen


def test_after_a_run_that_was_ready_a_failed_start_costs_little_again(monkeypatch: pytest.MonkeyPatch) -> None:
    freeze_run()
    freeze_program()
    monkeypatch.setattr(gc, "unfreeze", lambda: pytest.fail("nothing was ready since"))
    freeze_program()
    monkeypatch.undo()
