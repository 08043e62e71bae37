"""What is said of Spark's configuration outside of the application: spark-submit, its files and its variables.

A program that spark-submit has started finds its Java process there, with all of the configuration. Any other one
starts its Java process itself, by spark-submit as well: then this reads what that will read, ``spark-defaults.conf``,
``PYSPARK_SUBMIT_ARGS`` and ``MASTER``, since a default of ours given on the command line would win over them.

Source: Apache Spark 4.3.0 ``SparkSubmitArguments``, ``SparkSubmitOptionParser``, ``Utils.getPropertiesFromFile``;
``pyspark.java_gateway``.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["conf_folder", "has_log_settings", "is_submitted", "said_outside", "said_to_spark"]

_OPTIONS = {
    "--master": "spark.master",
    "--remote": "spark.remote",
    "--name": "spark.app.name",
    "--driver-memory": "spark.driver.memory",
    "--driver-java-options": "spark.driver.extraJavaOptions",
}
"""Options of spark-submit that say what a default of ours, or a check, is about."""

_LINE = re.compile(r"\s*([^#!\s:=][^\s:=]*)(?:\s*[=:]\s*|\s+)(.*)")


def is_submitted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether spark-submit started this process, whose Java process is there then."""
    return "PYSPARK_GATEWAY_PORT" in environ


def said_to_spark(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """All that is said outside of the application; connects to the Java process of spark-submit if there is one."""
    return _said_by_submit() if is_submitted(environ) else said_outside(environ)


def _said_by_submit() -> dict[str, str]:
    from pyspark import SparkConf, SparkContext  # the rest of this module is needed where there may be no pyspark

    SparkContext._ensure_initialized()
    return dict(SparkConf(loadDefaults=True).getAll())


def said_outside(environ: Mapping[str, str]) -> dict[str, str]:
    """What a Java process that this one starts would find said; no file or a wrong one says nothing here."""
    arguments = _arguments(environ.get("PYSPARK_SUBMIT_ARGS", ""))
    said = dict(_pairs(arguments))
    files = [Path(value) for option, value in _options(arguments) if option == "--properties-file"][-1:]
    if (folder := conf_folder(environ)) is not None and (not files or "--load-spark-defaults" in arguments):
        files.append(folder / "spark-defaults.conf")
    for file in files:
        for key, value in _properties(file):
            said.setdefault(key, value)
    if "MASTER" in environ:
        said.setdefault("spark.master", environ["MASTER"])
    return said


def conf_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of ``spark-defaults.conf`` and ``log4j2.properties``, which need not be there."""
    if folder := environ.get("SPARK_CONF_DIR"):
        return Path(folder)
    if home := environ.get("SPARK_HOME"):
        return Path(home) / "conf"
    package = importlib.util.find_spec("pyspark")
    return None if package is None or package.origin is None else Path(package.origin).parent / "conf"


def has_log_settings(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether somebody has said what Spark logs, by a file."""
    folder = conf_folder(environ)
    return folder is not None and any(folder.glob("log4j2.*"))


def _arguments(text: str) -> Sequence[str]:
    try:
        return shlex.split(text)
    except ValueError:  # pyspark will tell of it
        return ()


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options that have a value, as ``--name value`` or ``--name=value``."""
    for argument, behind in zip(arguments, [*arguments[1:], ""], strict=False):
        name, equals, value = argument.partition("=")
        if name.startswith("-"):
            yield name, value if equals else behind


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What the arguments say, what wins last: an option of its own wins over ``--conf``."""
    options = list(_options(arguments))
    for option, value in options:
        key, equals, text = value.partition("=")
        if option in ("--conf", "-c") and equals:
            yield key, text
    for option, value in options:
        if option in _OPTIONS:
            yield _OPTIONS[option], value


def _properties(file: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        if (match := _LINE.match(line)) is not None and match[1].startswith("spark."):
            yield match[1], match[2].strip()
