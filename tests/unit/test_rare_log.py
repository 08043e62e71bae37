"""A log that one kind of event does not fill."""

from __future__ import annotations

import logging

import pytest

from rocketbox.rare_log import RareLog


def test_each_kind_of_event_has_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    rare = RareLog(logging.getLogger("rocketbox.test"))
    for now in (0.0, 1.0, 9.0, 10.0, 11.0, 30.0):
        rare.tell(logging.WARNING, now, "a", "a at %g", now)
        rare.tell(logging.WARNING, now, "b", "b at %g", now)
    assert [message for message in caplog.messages if message.startswith("a")] == [
        "a at 0", "a at 10 (and 2 more like it)", "a at 30 (and 1 more like it)",
    ]  # fmt: skip


def test_what_is_well_again_is_told_at_once_when_it_fails_anew(caplog: pytest.LogCaptureFixture) -> None:
    rare = RareLog(logging.getLogger("rocketbox.test"), 60.0)
    for now in (0.0, 59.0):
        rare.tell(logging.WARNING, now, "a", "a at %g", now)
    rare.over("a")
    rare.over("never told")
    rare.tell(logging.WARNING, 59.5, "a", "a at %g", 59.5)
    assert caplog.messages == ["a at 0", "a at 59.5"]
