"""What is told of an error that is retried."""

from __future__ import annotations

import logging

import pytest

from rocketbox.broker.store.troubles import Trouble, Troubles
from tests.support.store.store_tools import ManualClock


def test_a_trouble_is_told_when_it_begins_and_when_it_ends_and_not_between(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    troubles = Troubles(clock)
    begun = clock.now_ms
    with caplog.at_level(logging.WARNING):
        for number in range(100):
            troubles.begin("writing tables", OSError(28, f"no space {number}"))
            clock.now_ms += 10
        assert troubles.current == [Trouble("writing tables", "[Errno 28] no space 99", begun, 100)]
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "no space 0" in caplog.text
        troubles.end("writing tables")
        troubles.end("writing tables")
    assert troubles.current == []
    assert len(caplog.records) == 2
    assert "works again, after 100 failures in 1.0 s" in caplog.text


def test_troubles_are_kept_apart_and_an_unforeseen_one_comes_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    troubles = Troubles(ManualClock())
    troubles.begin("a", "full")
    try:
        raise KeyError("of a bug")
    except KeyError as error:
        troubles.begin("b", error)
    assert [trouble.what for trouble in troubles.current] == ["a", "b"]
    assert caplog.text.count("Traceback") == 1
    troubles.end("a")
    assert [trouble.what for trouble in troubles.current] == ["b"]
