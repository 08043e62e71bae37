"""What the Java process of Spark is started with: nothing secret, unless it may be needed at once."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark import SparkContext

from rocketbox.spark.session import _start_java, settings_of

KEYS = {
    "spark.hadoop.fs.s3a.access.key": "hunter2",
    "spark.hadoop.fs.s3a.secret.key": "hunter2",
    "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net": "hunter2",
    "spark.hadoop.fs.s3a.session.token": "hunter2",
    "spark.hadoop.javax.jdo.option.ConnectionPassword": "hunter2",
    "spark.ssl.keyPasswd": "hunter2",
    "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:postgresql://desk:hunter2@base/lake",
    "spark.executor.extraJavaOptions": "-XX:+UseG1GC -Dlake.password=hunter2",
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
    others = {
        "spark.master": "local[2]",
        "spark.driver.memory": "2g",
        "spark.driver.extraClassPath": "/opt/secret=1/tokens.jar",
        "spark.executor.extraJavaOptions.x": "-Dlake.level=debug",
        "spark.jars": jars,
    }
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


def test_a_secret_option_of_java_is_told_without_it(
    started: list[dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    """It is an argument in any case, for Java is started with it."""
    options = "-Xmx2g -Dlake.password=hunter2 -Dlake.url=db://desk:hunter2@base -Dlake.level=debug"
    _start_java({"spark.driver.extraJavaOptions": options})
    _start_java({"spark.driver.extraJavaOptions": "-Xmx2g -Dlake.level=debug @/run/secrets/java.options"})
    assert len(started) == 2
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "-Dlake.password, -Dlake.url in spark.driver.extraJavaOptions: all users of this machine see the arguments"
    )
    assert "hunter2" not in record.getMessage()


@pytest.mark.parametrize(
    "key_or_value",
    ["lake.passwd", "lake.credentials", "fs.azure.account.key.lake", "private-key", "jdbc:db://desk:hunter2@base/lake"],
)
def test_what_is_secret_by_its_name_or_its_look_is_shown_on_no_page_of_spark(key_or_value: str) -> None:
    pattern = settings_of("desk", {}, {})["spark.redaction.regex"]
    assert re.search(pattern, key_or_value)
    assert not re.search(pattern, "jdbc:db://base/lake")
