"""Delta Lake for tests: where it is, and what a session is told about it. It is fetched only when somebody says so."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pyspark
import pytest

__all__ = ["delta_conf"]

VARIABLE = "DELTA_LAKE"
OWN_JAR = re.compile(r"delta-spark_(\d+\.\d+)_[\d.]+[-:]")
"""Of a jar's name or of Maven coordinates: the Spark that it is made for."""
EXTENSIONS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def delta_conf() -> dict[str, str]:
    """What ``rocketbox.spark.conf`` would say; skips where this Spark has no Delta Lake, and says what is missing."""
    ours = ".".join(pyspark.__version__.split(".")[:2])
    said = os.environ.get(VARIABLE, "")
    if not said:
        pytest.skip(
            f"no Delta Lake: {VARIABLE} names neither a folder of its jars nor Maven coordinates, such as "
            f"io.delta:delta-spark_{ours}_2.13:4.4.0"
        )
    folder = Path(said).absolute()
    jars = sorted(folder.glob("*.jar"))
    own = said if not folder.is_dir() else next((jar.name for jar in jars if OWN_JAR.match(jar.name)), None)
    if own is None:
        pytest.skip(f"no Delta Lake: there is no delta-spark_{ours}_2.13-*.jar in {folder}, which {VARIABLE} names")
    found = OWN_JAR.search(own)
    if found is None or found[1] != ours:
        pytest.skip(f"no Delta Lake for Spark {ours}: {VARIABLE} names {own}")
    where = {"spark.jars": ",".join(map(str, jars))} if folder.is_dir() else {"spark.jars.packages": said}
    return {**where, **EXTENSIONS}
