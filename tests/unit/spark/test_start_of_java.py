"""What the Java process of Spark is started with: nothing secret, unless it may be needed at once."""

from __future__ import annotations

import logging
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark import SparkContext

from rocketbox.spark.session import _start_java

KEYS = {
    "spark.hadoop.fs.s3a.access.key": "hunter2",
    "spark.hadoop.fs.s3a.secret.key": "hunter2",
    "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net": "hunter2",
    "spark.hadoop.fs.s3a.session.token": "hunter2",
    "spark.hadoop.javax.jdo.option.ConnectionPassword": "hunter2",
    "spark.ssl.keyPasswd": "hunter2",
}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """With what Java processes have been started."""
    confs: list[dict[str, str]] = []

    def start(*, conf: Any) -> None:
        confs.append(dict(conf.getAll()))

    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_jvm", None)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", start)
    return confs


@pytest.mark.parametrize("jars", ["/opt/a.jar,file:///opt/b.jar", ""])
def test_no_secret_is_an_argument(started: list[dict[str, str]], jars: str) -> None:
    others = {"spark.master": "local[2]", "spark.driver.memory": "2g", "spark.jars": jars}
    _start_java({**KEYS, **others})
    assert started == [others]


def test_keys_that_may_be_needed_to_fetch_something_are_told(
    started: list[dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    _start_java({**KEYS, "spark.jars": "/opt/a.jar,s3a://jars/b.jar"})
    assert started == [], "pyspark starts it, with all of them"
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "spark.hadoop.fs.s3a.secret.key" in record.getMessage()
    assert "what spark.jars names" in record.getMessage()
    assert "hunter2" not in record.getMessage()
    _start_java({"spark.jars": "s3a://jars/b.jar"})
    assert len(started) == 1
