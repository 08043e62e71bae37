"""Whether what a Spark listener names can be reached from where Spark runs: known from its configuration, at no cost.

Spark's executors talk to name servers and brokers themselves, and driver and executors alike to the file system of a
checkpoint. Source: Apache Spark 4.3.0 (its jars), Apache Hadoop 3.4 ``FileSystem``.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from rocketbox.errors import Finding
from rocketbox.spark.paths import scheme_of
from rocketbox.spark.submitted import said_to_spark

__all__ = ["check_checkpoint", "check_servers", "known_conf", "master_of"]

_BROUGHT = frozenset({"file", "hdfs", "viewfs", "webhdfs", "swebhdfs", "har", "http", "https", "ftp"})
"""Schemes of file systems that come with pyspark."""
_JARS = {"s3a": "hadoop-aws", "abfs": "hadoop-azure", "abfss": "hadoop-azure", "gs": "gcs-connector"}
_SAY_JARS = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")


def known_conf(written: Mapping[str, str]) -> dict[str, str]:
    """What is known of Spark's configuration before it starts: what is said outside, and over it what is written."""
    return {**said_to_spark(), **written}


def master_of(conf: Mapping[str, str]) -> str | None:
    """The cluster that Spark runs on; None: this machine, since nobody says another."""
    return conf.get("spark.master")


def check_servers(
    conf: Mapping[str, str], name: str, key: str, where: str | None
) -> tuple[list[Finding], list[Finding]]:
    """What is wrong, and what may be, where a listener reads from servers in this process."""
    master = master_of(conf)
    if master is None or (master.startswith("local") and not master.startswith("local-cluster")):
        return [], []
    if master.startswith("local-cluster"):
        what = f"{key} is embedded, and {master} is for trials: the executors of {name} reach it on this machine alone"
        return [], [Finding(what, where, "name a server by its address before it runs on a cluster")]
    what = f"{key} is embedded, and the executors of {name}, at {master}, cannot reach servers inside of this process"
    return [Finding(what, where, "write the address of a name server, or leave spark.master out")], []


def check_checkpoint(conf: Mapping[str, str], checkpoint: str, name: str, where: str) -> Iterator[Finding]:
    """What may be wrong with the file system of a checkpoint: nobody seems to bring its classes."""
    scheme = scheme_of(checkpoint)
    if scheme is None or scheme in _BROUGHT or f"spark.hadoop.fs.{scheme}.impl" in conf:
        return
    if any(conf.get(key) for key in _SAY_JARS) or _has_jar(_JARS.get(scheme, scheme)):
        return
    package = f", such as {_JARS[scheme]} by spark.jars.packages" if scheme in _JARS else ""
    yield Finding(
        f"the checkpoint of {name} is {checkpoint}, and pyspark brings no file system for {scheme}",
        where,
        f"name its jar in rocketbox.spark.conf{package}, if the cluster does not bring it",
    )


def _has_jar(name: str) -> bool:
    home = os.environ.get("SPARK_HOME")
    package = importlib.util.find_spec("pyspark")
    folders = [Path(home) / "jars"] if home else []
    if package is not None and package.origin is not None:
        folders.append(Path(package.origin).parent / "jars")
    return any(True for folder in folders for _ in folder.glob(f"*{name}*.jar"))
