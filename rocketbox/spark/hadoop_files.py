"""Paths as Spark means them: on Hadoop's file systems, with the settings of the session.

Hadoop's ``Path`` takes text as it stands; what is called here runs in Spark's Java process.

Source: Apache Hadoop 3.4 ``FileSystem``, ``FileUtil.stat2Paths``; Apache Spark 4.3.0 ``SessionState.newHadoopConf``;
Apache Commons Lang 3, which Spark brings along, ``ArrayUtils.toString``.
"""

from __future__ import annotations

import os
from typing import Any

from pyspark.sql import SparkSession

__all__ = ["exists", "names_in", "place_of", "qualified"]


def place_of(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Hadoop's file system for a path, and its form of the path."""
    java: Any = spark.sparkContext._jvm
    place = java.org.apache.hadoop.fs.Path(path)
    return place.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), place


def exists(spark: SparkSession, path: str) -> bool:
    """Whether something is there."""
    files, place = place_of(spark, path)
    return bool(files.exists(place))


def names_in(spark: SparkSession, folder: str) -> list[str]:
    """The names of what is in a folder, in one call however many there are."""
    files, place = place_of(spark, folder)
    java: Any = spark.sparkContext._jvm
    paths = java.org.apache.hadoop.fs.FileUtil.stat2Paths(files.listStatus(place))
    if not len(paths):
        return []
    parent = f"{paths[0].getParent()}/"
    told = str(java.org.apache.commons.lang3.ArrayUtils.toString(paths))  # {path,path}
    return told[1:-1].removeprefix(parent).split(f",{parent}")


def qualified(spark: SparkSession, path: str) -> str:
    """The one name of a place, however it is written: with its file system, without ``..``, ``//`` and local links."""
    files, place = place_of(spark, path)
    whole = files.makeQualified(place)
    if files.getUri().getScheme() == "file":
        return f"file:{os.path.realpath(whole.toUri().getPath())}"
    return str(whole)
