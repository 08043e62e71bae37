"""A program whose listener writes a Delta table, for tests that make it fail or end between the write and the commit.

``python -m tests.support.spark.delta_service PLAN``: PLAN is a ``Plan`` as JSON. Each note is a line of JSON:
``["java", process]``, ``["begins", batch, attempt, done]``, ``["written", batch, by this attempt, done]``, where done
is what ``batch.already_done`` says, and behind the last batch ``["row", broker, queue, offset, body]`` for each row
that Delta Lake shows.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from pyspark.sql import DataFrame, SparkSession

from rocketbox.client import MQClientInstance
from rocketbox.spark.batch import SparkBatch
from rocketbox.spark.session import SparkRuntime
from tests.support.spark.listeners import spark_listener

__all__ = ["BATCH_SIZE", "Plan", "main"]

BATCH_SIZE = 10


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run does: it writes to ``table``; ``conf`` is that of its session.

    ``raises`` has the first attempt at each batch raise behind its write. ``die_behind`` is the batch between whose
    write and commit the program ends itself by kill -9.
    """

    name_server: str
    topic: str
    checkpoint: str
    table: str
    notes: str
    conf: dict[str, str]
    raises: bool = False
    die_behind: int = -1


def rows_of_table(session: SparkSession, table: str) -> list[list[Any]]:
    rows = session.read.format("delta").load(table).collect()
    return [[row.broker_name, row.queue_id, row.queue_offset, bytes(row.body).decode()] for row in rows]


async def main(plan: Plan) -> None:
    def note(*words: object) -> None:
        with Path(plan.notes).open("a") as output:
            output.write(json.dumps(words) + "\n")

    def handle(rows: DataFrame, batch: SparkBatch) -> None:
        note("begins", batch.id, batch.attempt, batch.already_done(plan.table))
        written = batch.write(rows.select("broker_name", "queue_id", "queue_offset", "body"), plan.table, "delta")
        note("written", batch.id, written, batch.already_done(plan.table))
        if batch.id == plan.die_behind:
            os.kill(os.getpid(), signal.SIGKILL)
        if plan.raises and batch.attempt == 1:
            raise ArithmeticError("behind the write")

    async with MQClientInstance(plan.name_server) as instance, SparkRuntime("delta", plan.conf) as runtime:
        session = await runtime.session()
        note("java", session.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
        listener = spark_listener(
            handle, instance, plan.topic, plan.checkpoint,
            runtime=runtime, trigger="available_now", max_messages=BATCH_SIZE,
        )  # fmt: skip
        async with listener:
            await listener.wait()
        for row in await anyio.to_thread.run_sync(rows_of_table, session, plan.table):
            note("row", *row)


if __name__ == "__main__":
    anyio.run(main, Plan(**json.loads(sys.argv[1])))
