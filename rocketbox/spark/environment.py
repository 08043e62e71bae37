"""What Spark needs of this machine, looked at without starting it: Java, libraries, the Python of its workers, memory.

Source: Apache Spark 4.3.0 (``setup.py``: versions of libraries; ``SparkContext``: PYSPARK_PYTHON, the driver's memory).
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rocketbox.sizes import parse_data_size
from rocketbox.spark.java import JavaNotFoundError, find_java
from rocketbox.spark.submitted import said_outside

__all__ = ["LIBRARIES", "Look", "look_at_spark"]

LIBRARIES: Mapping[str, tuple[tuple[int, ...], tuple[int, ...] | None]] = {
    "pyspark": ((4, 2), (5,)),
    "pyarrow": ((18,), None),
    "pandas": ((2, 2), (3,)),
    "numpy": ((1, 26), None),
}
"""From which version on each is right, and from which on no more; those of the extra ``spark``."""
NATIVE_SHARE = 0.4  # of the driver's heap that Java takes beside it; and its Pythons want some
PYTHON_TIMEOUT = 60.0  # seconds for the workers' Python to say what it has
_PROBE = """
import importlib.metadata, json, sys
found = {}
for name in ("rocketbox", "pyspark", "pyarrow"):
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps([list(sys.version_info[:2]), found]))
"""


@dataclass(frozen=True)
class Look:
    """One thing that was looked at: what it is, and what to do when it is not right."""

    what: str
    fix: str | None = None


def look_at_spark(environ: Mapping[str, str] = os.environ, written: Mapping[str, str] | None = None) -> Iterator[Look]:
    """All that Spark needs; ``written`` is the application's own configuration of it. Takes a second: Java is asked."""
    conf = {**said_outside(environ), **(written or {})}
    yield _java(environ)
    yield from _libraries()
    yield _workers(environ, conf)
    yield _memory(conf)
    if "SPARK_REMOTE" in environ or "spark.remote" in conf:
        yield Look(
            "SPARK_REMOTE asks for Spark Connect, under which no listener runs",
            "unset it, and set spark.master instead",
        )
    yield Look(f"Spark runs at {conf.get('spark.master', 'this machine (nobody says another spark.master)')}")


def _java(environ: Mapping[str, str]) -> Look:
    try:
        java = find_java(environ)
    except JavaNotFoundError as error:
        what, _, fix = str(error).partition(". ")
        return Look(what, fix)
    return Look(f"Java {java.version} at {java.home}, by {java.origin}")


def _libraries() -> Iterator[Look]:
    for name, (least, below) in LIBRARIES.items():
        right = f">={_dotted(least)}" + (f",<{_dotted(below)}" if below else "")
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Look(f"{name} is not installed", "pip install 'rocketbox[spark]'")
            continue
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
        is_right = numbers >= least and (below is None or numbers < below)
        yield Look(f"{name} {version}", None if is_right else f"pip install '{name}{right}'")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _workers(environ: Mapping[str, str], conf: Mapping[str, str]) -> Look:
    """The Python that Spark runs its workers by: it must be of this version, and have what the source needs."""
    said = environ.get("PYSPARK_PYTHON") or conf.get("spark.pyspark.python")
    if said is None:
        return Look(f"PYSPARK_PYTHON is not set: workers run by {sys.executable}")
    if conf.get("spark.master", "local").partition("[")[0] not in ("local", "local-cluster"):
        return Look(f"PYSPARK_PYTHON is {said}, which the machines of the cluster must have")
    try:
        done = subprocess.run([said, "-c", _PROBE], capture_output=True, text=True, timeout=PYTHON_TIMEOUT, check=True)
        version, found = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        return Look(f"PYSPARK_PYTHON is {said}, which does not run: {error}", "unset it, or name a Python")
    mine = list(sys.version_info[:2])
    if version != mine:
        what = f"PYSPARK_PYTHON is {said}, Python {_dotted(tuple(version))}, and this one is {_dotted(tuple(mine))}"
        return Look(what, "unset it, or name a Python of the same version: Spark refuses another")
    missing = [name for name, has in found.items() if has is None]
    if missing:
        return Look(
            f"PYSPARK_PYTHON is {said}, which has no {' and no '.join(missing)}", "unset it, or install them there"
        )
    return Look(f"PYSPARK_PYTHON is {said}, Python {_dotted(tuple(version))}")


def _memory(conf: Mapping[str, str]) -> Look:
    said = conf.get("spark.driver.memory", "1g")
    try:
        heap = parse_data_size(f"{said}MB" if said.isdecimal() else re.sub(r"(?i)(?<=[kmgt])b?$", "B", said.strip()))
    except ValueError:
        return Look(f"spark.driver.memory is {said!r}", "write it as 2g or 512m")
    free, needed = _available(), int(heap * (1 + NATIVE_SHARE))
    if free is None:
        return Look(f"Spark's driver takes {said} of memory (spark.driver.memory)")
    text = (
        f"{free >> 20} MB of memory are free; Spark's driver takes up to {needed >> 20} MB (spark.driver.memory {said})"
    )
    fix = "give it less by rocketbox.spark.conf, spark.driver.memory, or the machine more"
    return Look(text, fix if needed > free else None)


def _available(root: Path = Path("/")) -> int | None:
    """The bytes that this process may still take: of the machine, or of its container where that has less."""
    lines = _text(root / "proc/meminfo").splitlines()
    free = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    group = root / "sys/fs/cgroup"
    most, used = _text(group / "memory.max").strip(), _text(group / "memory.current").strip()
    if most.isdecimal() and used.isdecimal():
        free.append(int(most) - int(used))
    return min(free, default=None)


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError:
        return ""
