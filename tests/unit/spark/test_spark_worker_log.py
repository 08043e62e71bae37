"""What Spark's own Python processes log."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rocketbox.spark.worker_log import set_up_worker_log


@contextmanager
def nowhere() -> Iterator[None]:
    """Logging as in a process in which nobody has set it up."""
    root, ours = logging.getLogger(), logging.getLogger("rocketbox")
    before = root.handlers[:], ours.handlers[:]
    root.handlers[:], ours.handlers[:] = [], []
    try:
        yield
    finally:
        root.handlers[:], ours.handlers[:] = before


@pytest.mark.parametrize("program", ["pyspark.daemon", "pyspark.worker", "pyspark.sql.worker.plan_data_source_read"])
def test_a_worker_says_in_one_line_who_it_is(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    with nowhere():
        for _ in range(3):
            set_up_worker_log(program)
        logging.getLogger("rocketbox.spark.reading").warning("reading %s", "orders")
    said = capsys.readouterr().err
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING \[spark worker \d+\] rocketbox.spark.reading: reading orders\n",
        said,
    )


@pytest.mark.parametrize("program", ["", "pytest.__main__", "flight_desk.__main__", None])
def test_another_programs_log_is_its_own(program: str | None) -> None:
    with nowhere():
        set_up_worker_log(program)
        assert logging.getLogger("rocketbox").handlers == []


def test_a_log_that_goes_somewhere_stays_as_it_is() -> None:
    with nowhere():
        logging.getLogger().addHandler(logging.NullHandler())
        set_up_worker_log("pyspark.daemon")
        assert logging.getLogger("rocketbox").handlers == []
