"""A program that makes sessions and loses them, for tests that end Java processes: what it sees goes into a file.

``python session_steps.py notes steps``: steps are names of functions here, with ``,`` between them; the first one that
raises ends the program, and the error is the last note.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import LongType

from rocketbox.spark.session import SparkRuntime, is_alive

__all__ = ["main"]


@f.udf(LongType())
def doubled(number: int) -> int:
    return 2 * number


def java_of(session: SparkSession) -> Any:
    return session.sparkContext._jvm.java.lang  # type: ignore[union-attr]


def use(session: SparkSession) -> dict[str, Any]:
    """Python's and Java's side of it at work."""
    rows = session.range(4).select(doubled("id").alias("n")).collect()
    return {"rows": [row.n for row in rows], "alive": is_alive(session)}


def settings(session: SparkSession) -> dict[str, Any]:
    bean = java_of(session).management.ManagementFactory.getRuntimeMXBean()
    process = Path("/proc", str(java_of(session).ProcessHandle.current().pid()), "cmdline")
    hadoop = session.sparkContext._jsc.hadoopConfiguration()
    return {
        "conf": dict(session.sparkContext.getConf().getAll()),
        "java": list(bean.getInputArguments()),
        "command line": process.read_bytes().decode().split("\0") if process.exists() else None,
        "hadoop": hadoop.get("fs.s3a.secret.key"),
    }


def kill_java(session: SparkSession) -> dict[str, Any]:
    number = java_of(session).ProcessHandle.current().pid()
    os.kill(number, signal.SIGKILL)
    gateway: Any = session.sparkContext._gateway
    if gateway.proc is not None:
        gateway.proc.wait(60)
    return {"java": number, "alive": is_alive(session)}


def stop_in_java(session: SparkSession) -> dict[str, Any]:
    session.sparkContext._jsc.sc().stop()  # as Spark does itself when it has lost its cluster
    return {"alive": is_alive(session)}


STEPS: dict[str, Callable[[SparkSession], dict[str, Any]]] = {
    each.__name__: each for each in (use, settings, kill_java, stop_in_java)
}


async def main(notes: str, steps: str) -> None:
    def note(value: object) -> None:
        with Path(notes).open("a") as output:
            output.write(json.dumps(value) + "\n")

    conf = json.loads(os.environ.get("WRITTEN_CONF", "{}"))
    logging.basicConfig(level=logging.WARNING)
    try:
        async with SparkRuntime("steps", conf) as runtime:
            for step in steps.split(","):
                session = await runtime.session()
                note(await anyio.to_thread.run_sync(STEPS[step], session))
        note({"left": sorted(each.name for each in threading.enumerate() if not each.daemon)})
    except Exception as error:
        note({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    _, *arguments = sys.argv
    anyio.run(partial(main, *arguments))
