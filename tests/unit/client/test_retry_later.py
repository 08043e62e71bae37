"""The times that a handler may ask for by RetryLater, and how its signals travel."""

from __future__ import annotations

import pickle
import re
from datetime import timedelta
from typing import Any

import pytest

from rocketbox.errors import LONGEST_RETRY, BatchFailed, Reject, RetryLater
from rocketbox.message import DELAY_LEVEL_SECONDS


class PatientError(RetryLater):
    def __init__(self) -> None:
        self.delay = timedelta(hours=3)


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [(5, 5.0), (0.05, 0.05), ("30s", 30.0), ("1m30s", 90.0), ("2h", 7200.0), ("PT5S", 5.0), (0, 0)],
)
def test_a_delay_is_a_timedelta_text_with_a_unit_or_a_number_of_seconds(delay: Any, seconds: float) -> None:
    assert RetryLater(delay).delay == RetryLater(timedelta(seconds=seconds)).delay == timedelta(seconds=seconds)


@pytest.mark.parametrize("delay", [timedelta(hours=2, milliseconds=1), "3h", 7201, -1, "-1s", timedelta(days=-1)])
def test_a_time_that_no_delay_level_reaches_is_refused_where_it_is_made(delay: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"RetryLater({delay!r}): ") + ".* write a time from 0s to 2h"):
        RetryLater(delay)


@pytest.mark.parametrize("delay", ["30", "soon", True, None, float("nan"), float("inf")])
def test_what_is_no_time_is_refused_with_what_to_write(delay: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"RetryLater({delay!r}): ") + ".*a timedelta, or a number of sec"):
        RetryLater(delay)


@pytest.mark.parametrize("signal", [RetryLater("30s"), Reject("why"), BatchFailed(3, "why"), PatientError()])
def test_a_signal_comes_through_from_another_process(signal: Exception) -> None:
    again = pickle.loads(pickle.dumps(signal))
    assert type(again) is type(signal)
    assert vars(again) == vars(signal)
    assert str(again) == str(signal)


def test_the_longest_retry_is_the_longest_delay_level() -> None:
    assert LONGEST_RETRY.total_seconds() == DELAY_LEVEL_SECONDS[-1]
