"""A listener whose Java process is killed, twice: while it runs, and just before the stop.

``python killed_java.py folder``: prints what was seen as JSON. A process of its own, since the tests share a session.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from pyspark.sql import DataFrame

from rocketbox.client import MQClientInstance
from rocketbox.clock import RealClock
from rocketbox.spark.listener import (
    SparkListenerContainer,
    SparkListenerOptions,
    SparkListenerState,
    read_spark_signature,
)
from rocketbox.spark.session import SparkRuntime
from tests.integration.spark.topics import Broker, rows_of

__all__ = ["main"]

CONF = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.sql.shuffle.partitions": "1"}


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(240):
        while not condition():
            await anyio.sleep(0.01)


async def main(folder: str) -> None:
    seen: list[int] = []
    report: dict[str, Any] = {}

    def handle(rows: DataFrame) -> None:
        seen.extend(json.loads(bytes(row.body))["row"] for row in rows.select("body").collect())

    async def kill_java() -> None:
        context: Any = (await runtime.session()).sparkContext
        os.kill(context._jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)

    with Broker(Path(folder) / "store") as broker:
        await anyio.to_thread.run_sync(broker.send, "t", rows_of(0, 3))
        options = SparkListenerOptions(
            topic="t", group="g", checkpoint=f"{folder}/checkpoint", trigger=timedelta(milliseconds=100)
        )
        async with MQClientInstance(broker.name_server) as client, SparkRuntime("killed", CONF) as runtime:
            listener = SparkListenerContainer(
                options,
                read_spark_signature(handle),
                runtime=runtime,
                instance=client,
                provider=lambda hint: lambda: None,
                clock=RealClock(),
            )
            async with listener:
                await until(lambda: listener.state().progress.get("lag") == 0)
                await kill_java()
                await until(lambda: listener.status is SparkListenerState.RESTARTING)
                report["reason"] = listener.state().reason
                await anyio.to_thread.run_sync(broker.send, "t", rows_of(3, 5))
                await until(lambda: set(seen) == {0, 1, 2, 3, 4})
                await kill_java()
            report["status"] = listener.status.value
    report["seen"] = sorted(set(seen))
    print(json.dumps(report))


if __name__ == "__main__":
    anyio.run(partial(main, *sys.argv[1:]))
