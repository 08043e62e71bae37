"""A listener that loses its lease, and whose Java process is killed just when its query is to stop for that.

``python lost_lease_dead_java.py folder``: prints what was seen as JSON. A process of its own, since the tests share a
session.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rocketbox.client import MQClientInstance
from rocketbox.spark import lease, query_stop
from rocketbox.spark.query import stop_query
from rocketbox.spark.session import SparkRuntime
from tests.support.spark.listeners import give_lease_to, rows_in, spark_listener, until
from tests.support.spark.topics import Broker, rows_of

__all__ = ["main"]

CONF = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.sql.shuffle.partitions": "1"}


def kill_and_stop(session: SparkSession, query: StreamingQuery, timeout: float) -> None:
    context: Any = session.sparkContext
    os.kill(context._jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
    vars(query_stop)["stop_query"] = stop_query  # the next one stops as ever
    stop_query(session, query, timeout)


async def main(folder: str) -> None:
    lease.CONFIRM_INTERVAL = 0.5  # seconds; a lease that was given to another is noticed so soon
    vars(query_stop)["stop_query"] = kill_and_stop
    seen: list[int] = []

    def handle(rows: DataFrame) -> None:
        seen.extend(rows_in(rows))

    with Broker(Path(folder) / "store") as broker:
        await anyio.to_thread.run_sync(broker.send, "t", rows_of(0, 3))
        async with (
            MQClientInstance(broker.name_server) as client,
            MQClientInstance(broker.name_server) as another,
            SparkRuntime("lost", CONF) as runtime,
        ):
            listener = spark_listener(
                handle, client, "t", f"{folder}/checkpoint", runtime=runtime, trigger=timedelta(milliseconds=100)
            )
            async with listener:
                await until(lambda: listener.state().progress.get("lag") == 0)
                rival = await give_lease_to("rival", listener, another)
                await until(lambda: vars(query_stop)["stop_query"] is stop_query)
                await rival.release()
                await anyio.to_thread.run_sync(broker.send, "t", rows_of(3, 5))
                with anyio.move_on_after(60):
                    await until(lambda: set(seen) == set(range(5)))
                print(json.dumps({"seen": sorted(set(seen)), "why": listener.state().reason}))


if __name__ == "__main__":
    anyio.run(partial(main, *sys.argv[1:]))
