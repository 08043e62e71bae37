"""A listener whose Java process is killed, twice: while its function is at work, and just before the stop.

``python killed_java.py folder``: prints what was seen as JSON. A process of its own, since the tests share a session.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from pyspark.sql import DataFrame, SparkSession

from rocketbox.client import MQClientInstance
from rocketbox.spark.listener import SparkListenerState
from rocketbox.spark.session import SparkRuntime
from tests.support.spark.listeners import spark_listener, until
from tests.support.spark.topics import Broker, rows_of

__all__ = ["main"]

CONF = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.sql.shuffle.partitions": "1"}


async def main(folder: str) -> None:
    seen: list[int] = []
    report: dict[str, Any] = {}

    hold, at_work, most_at_work = threading.Event(), [], []

    def handle(rows: DataFrame) -> None:
        if not killed_at_once:
            killed_at_once.append(True)
            end_java(rows.sparkSession)
        found = [json.loads(bytes(row.body))["row"] for row in rows.select("body").collect()]
        at_work.append(found)
        most_at_work.append(len(at_work))
        if 3 in found:
            hold.wait(240)  # its Java process may die meanwhile, of which it hears nothing
        seen.extend(found)
        at_work.remove(found)

    killed_at_once: list[bool] = []  # before the first batch is looked at

    def end_java(session: SparkSession) -> None:
        context: Any = session.sparkContext
        os.kill(context._jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)

    async def kill_java() -> None:
        end_java(await runtime.session())

    with Broker(Path(folder) / "store") as broker:
        await anyio.to_thread.run_sync(broker.send, "t", rows_of(0, 3))
        async with MQClientInstance(broker.name_server) as client, SparkRuntime("killed", CONF) as runtime:
            listener = spark_listener(
                handle, client, "t", f"{folder}/checkpoint", runtime=runtime, trigger=timedelta(milliseconds=100)
            )
            async with listener:
                await until(lambda: listener.state().progress.get("lag") == 0)
                await anyio.to_thread.run_sync(broker.send, "t", rows_of(3, 5))
                await until(lambda: at_work)
                await kill_java()
                await until(lambda: listener.status is SparkListenerState.RESTARTING)
                report["reason"] = listener.state().reason
                await until(lambda: "at work" in str(listener.state().reason) or len(at_work) > 1)
                report["waits"] = listener.state().reason
                hold.set()
                await until(lambda: seen.count(3) == 2)
                await kill_java()
            report["status"] = listener.status.value
            report["at once"] = max(most_at_work)
    report["seen"] = sorted(set(seen))
    print(json.dumps(report))


if __name__ == "__main__":
    anyio.run(partial(main, *sys.argv[1:]))
