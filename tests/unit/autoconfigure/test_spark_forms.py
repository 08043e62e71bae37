"""What a Spark listener asks for its rows, looked at before the start: their form, and what of invalid ones."""

from __future__ import annotations

import sys

import pytest

from rocketbox.spark.query_options import OnInvalidBody
from tests.support.framework.services import ServiceMaker

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark

BASE = "rocketmq.name-server: ns:9876\n"
SOURCE = """
import pandas, pyarrow
from pyspark.sql import DataFrame
from rocketbox import RocketBox, rocketmq_spark_listener

app = RocketBox("desk", scan=[__name__])

@rocketmq_spark_listener(topic="orders", consumer_group="lake", {options})
def to_lake(orders{hint}) -> None: ...
"""


def findings(service: ServiceMaker, options: str, hint: str = "", text: str = BASE) -> list[str]:
    found = service(SOURCE.format(options=options, hint=hint), text).app.look().findings
    return [f"{each.what}; {each.fix}" for each in found]


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ('as_="arrow"', ": pyarrow.Table"),
        ('as_="pandas", on_invalid="skip"', ": pandas.DataFrame"),
        ('as_="spark", on_invalid="dead-letter"', ": DataFrame"),
        ('on_invalid="fail"', ""),
    ],
)
def test_forms_and_what_becomes_of_invalid_rows(service: ServiceMaker, options: str, hint: str) -> None:
    assert findings(service, options, hint) == []


@pytest.mark.parametrize(
    ("options", "hint", "text"),
    [
        ('as_="dask"', "", "'dask' is none of spark, arrow, pandas, polars"),
        ('on_invalid="retry"', "", "'retry' is none of column, fail, skip, dead-letter"),
        ('as_="arrow"', ": DataFrame", "say as_='spark'"),
        ('as_="spark"', ": pyarrow.Table", "say as_='arrow'"),
    ],
)
def test_a_wrong_one_is_a_finding(service: ServiceMaker, options: str, hint: str, text: str) -> None:
    (found,) = findings(service, options, hint)
    assert text in found


def test_settings_say_what_becomes_of_invalid_rows(service: ServiceMaker) -> None:
    source = SOURCE.format(options='on_invalid="fail"', hint="")
    (plan,) = service(source, BASE).app.look().plans
    assert plan.options["on_invalid"] is OnInvalidBody.FAIL
    (plan,) = service(source, BASE + "rocketmq.consumer.listeners.lake: {on-invalid: skip}\n").app.look().plans
    assert plan.options["on_invalid"] is OnInvalidBody.SKIP
    text = BASE + "rocketmq.consumer.listeners.lake: {on-invalid: retry}\n"
    (found,) = findings(service, "", text=text)
    assert "on-invalid of Spark listener to_lake is retry: a batch comes again as a whole; say skip" in found


def test_a_library_that_is_not_installed_is_a_finding(service: ServiceMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    (found,) = findings(service, 'as_="polars"')
    assert "asks for its rows as polars, and polars is not installed; pip install polars" in found
