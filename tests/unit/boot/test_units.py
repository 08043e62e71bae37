"""Times and sizes as users write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketbox.durations import parse_duration, parse_time
from rocketbox.sizes import parse_data_size


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (3000, 3.0),
        ("3000", 3.0),
        (1.5, 0.0015),
        ("3s", 3.0),
        (" 3 S ", 3.0),
        ("500ms", 0.5),
        ("1m30s", 90.0),
        ("1h 30m", 5400.0),
        ("2d", 172_800.0),
        ("1.5s", 1.5),
        ("PT3S", 3.0),
        ("pt1h2m3.5s", 3723.5),
        ("P1DT1S", 86_401.0),
        ("-3s", -3.0),
        (timedelta(minutes=1), 60.0),
    ],
)
def test_a_time_is_read(value: object, seconds: float) -> None:
    assert parse_duration(value) == timedelta(seconds=seconds)


@pytest.mark.parametrize("value", ["", "soon", "3 weeks", "P", "PT", "1m30", "12:30", True, None, [3], "--3s", "1e3"])
def test_what_is_no_time_is_refused_with_examples(value: object) -> None:
    with pytest.raises(ValueError, match=r"not a time such as 3000 \(milliseconds\), 3s, 500ms, 1m30s or PT3S"):
        parse_duration(value)


def test_a_time_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than any time"):
        parse_duration("99999999999d")


@pytest.mark.parametrize("value", [15, "15", "1.5"])
def test_a_bare_number_is_refused_where_a_unit_is_needed(value: object) -> None:
    with pytest.raises(ValueError, match="has no unit; write a time such as 15m"):
        parse_duration(value, bare_numbers=False)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(2, 2.0), (0.05, 0.05), (-1, -1.0), ("30s", 30.0), ("PT1M", 60.0), (timedelta(hours=1), 3600)],
)
def test_a_number_in_a_call_is_seconds(value: object, seconds: float) -> None:
    assert parse_time(value) == timedelta(seconds=seconds)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), True, None, "5", "soon", "99999999999d", 1e300])
def test_what_is_no_time_in_a_call_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"no time|not a time|has no unit|longer than any time"):
        parse_time(value)


@given(st.integers(min_value=0, max_value=10**12))
def test_milliseconds_come_through_in_every_form(milliseconds: int) -> None:
    forms = {parse_duration(form) for form in (milliseconds, str(milliseconds), f"{milliseconds}ms")}
    assert forms == {timedelta(milliseconds=milliseconds)}


@pytest.mark.parametrize(
    ("value", "size"), [(4096, 4096), ("4096", 4096), ("4096B", 4096), ("4MB", 4 << 20), ("1 gb", 1 << 30), ("0", 0)]
)
def test_a_size_is_read(value: object, size: int) -> None:
    assert parse_data_size(value) == size


@pytest.mark.parametrize("value", ["4 apples", "-1", "1.5MB", True, 1.5, ""])
def test_what_is_no_size_is_refused_with_examples(value: object) -> None:
    with pytest.raises(ValueError, match="not a size such as 4194304"):
        parse_data_size(value)
