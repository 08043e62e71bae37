"""What py4j's log keeps to itself while listeners run, and that it tells all again behind them."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from rocketbox.spark.py4j_log import told_once

LOG = logging.getLogger("py4j.clientserver")


def ours() -> None:
    raise ValueError("of ours")


def others() -> None:
    raise ValueError("of others")


def tell(text: str, function: Callable[[], None]) -> None:
    """As py4j does with what a function has raised that Java called."""
    try:
        function()
    except ValueError:
        LOG.warning(text, exc_info=True)


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, LOG.name)


def test_meanwhile_neither_single_calls_are_logged_nor_what_comes_out_of_the_function(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with told_once(ours):
        LOG.info("a call")
        tell("ours", ours)
        tell("others", others)
        LOG.warning("without an exception")
    assert caplog.messages == ["others", "without an exception"]


@pytest.mark.parametrize("fails", [False, True])
def test_the_filter_is_taken_away_again_also_where_a_listener_fails(
    caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    before = list(LOG.filters)
    try:
        with told_once(ours):
            assert len(LOG.filters) == len(before) + 1
            if fails:
                raise LookupError
    except LookupError:
        assert fails
    assert LOG.filters == before
    LOG.info("a call")
    tell("ours", ours)
    assert caplog.messages == ["a call", "ours"]


def test_who_leaves_takes_away_its_own_filter_alone() -> None:
    before = list(LOG.filters)
    first, second = told_once(ours), told_once(ours)
    first.__enter__()
    own = LOG.filters[-1]
    second.__enter__()
    other = LOG.filters[-1]
    first.__exit__(None, None, None)
    assert own is not other
    assert LOG.filters == [*before, other]
    second.__exit__(None, None, None)
    assert LOG.filters == before
