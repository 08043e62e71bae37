"""A declarative pipeline of Spark (``spark-pipelines``) that reads a topic, as its users start it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("grpc_status", reason="spark-pipelines needs what pyspark[pipelines] brings")

import pyarrow.parquet as pq

import rocketbox
from rocketbox.spark.java import find_java
from tests.support.spark.topics import Broker, rows_of
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.spark

SPEC = """
name: departures
storage: file://{folder}/storage
libraries:
  - glob:
      include: pipeline.py
"""
PIPELINE = """
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table
def departures() -> DataFrame:
    return spark.readStream.format("rocketmq").option("nameServer", "{name_server}").option("topic", "{topic}").load()
"""


def test_a_pipeline_reads_a_topic_into_a_table(broker: Broker, topic: str, tmp_path: Path) -> None:
    broker.send(topic, rows_of(0, 12))
    (tmp_path / "spec.yml").write_text(SPEC.format(folder=tmp_path))
    (tmp_path / "pipeline.py").write_text(PIPELINE.format(name_server=broker.name_server, topic=topic))
    here = str(Path(rocketbox.__file__).parents[1])
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    program = Path(sys.executable).with_name("spark-pipelines")
    done = subprocess.run(
        [str(program), "run", "--spec", "spec.yml"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=10 * PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    table = pq.read_table(tmp_path / "spark-warehouse" / "departures")
    assert sorted(body.as_py() for body in table["body"]) == sorted(b'{"row": %d}' % number for number in range(12))
