"""A service with one Spark listener, for whoever makes faults around it: each batch goes once to parquet.

``python -m tests.chaos.spark_service PLAN``: PLAN is a ``spark_driver.Plan`` as JSON. What the listener and Spark are
told stands in ``rocketbox.yaml`` in the working directory, as for any service. Each note is a line of JSON:
``["begins", batch, attempt]``, ``["waits", batch]``, ``["written", batch, by this attempt]``, ``["is", state, why]``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import uuid
from pathlib import Path

from pyspark.sql import DataFrame

from rocketbox import RocketBox, SparkBatch, rocketmq_spark_listener
from rocketbox.spark import lease
from tests.chaos.spark_driver import GROUP, Plan

__all__ = ["app", "to_lake"]

PLAN = Plan(**json.loads(sys.argv[1]))
LOOK = 0.02  # seconds between two looks at the listener's state, and at whether the batch may go on

app = RocketBox("chaos", scan=[__name__])


def note(*words: object) -> None:
    with Path(PLAN.notes).open("a") as output:
        output.write(json.dumps(words) + "\n")


@rocketmq_spark_listener(topic=PLAN.topic, consumer_group=GROUP)
def to_lake(rows: DataFrame, batch: SparkBatch) -> None:
    note("begins", batch.id, batch.attempt)
    waits = False
    while Path(PLAN.hold).exists():
        if not waits:
            note("waits", batch.id)
        waits = True
        time.sleep(LOOK)
    columns = rows.select("broker_name", "queue_id", "queue_offset")
    if PLAN.once:
        written = batch.write(columns, PLAN.lake)
    else:  # what a sink is that knows no batches
        columns.write.parquet(f"{PLAN.lake}/{uuid.uuid4()}")
        written = True
    note("written", batch.id, written)
    if batch.id == PLAN.die_behind:
        os.kill(os.getpid(), signal.SIGKILL)


def watch() -> None:
    """Note each change of the listener's state."""
    last = None
    while True:
        container = app.listeners[GROUP]
        status = container.status.value
        if status != last:
            note("is", status, container.state().reason)
            last = status
        time.sleep(LOOK)


if __name__ == "__main__":
    if PLAN.confirm_interval is not None:
        lease.CONFIRM_INTERVAL = PLAN.confirm_interval
    app.run(on_ready=lambda _: threading.Thread(target=watch, daemon=True).start())
