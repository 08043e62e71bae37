"""What a batch still runs for its function when that has ended, or is no coroutine. Nothing here needs Java."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.from_thread import BlockingPortal

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame

from rocketbox.clock import RealClock
from rocketbox.errors import ClientStateError
from rocketbox.spark.batch import SparkBatch
from rocketbox.spark.batch_call import BatchCall
from rocketbox.spark.deliveries import Delivery
from rocketbox.spark.listener_options import SparkListenerOptions
from rocketbox.spark.query_options import OnInvalidBody, RowForm
from rocketbox.spark.servers import Servers
from rocketbox.spark.signature import read_spark_signature

pytestmark = pytest.mark.anyio

MINUTE = 60.0
NO_ROWS: Any = SimpleNamespace(sparkSession=None, columns=[], toArrow=None)


async def call(function: Any) -> Any:
    """What the function returns, called on a thread of its own as Spark does it."""
    delivery = Delivery(
        label="f", where="app.py:1", group="g", schema=None, as_=RowForm.SPARK, on_invalid=OnInvalidBody.COLUMN,
        clock=RealClock(),
    )  # fmt: skip
    options = SparkListenerOptions(topic="orders", group="g", checkpoint="c")
    calling = BatchCall(options, read_spark_signature(function), beans={}, delivery=delivery)
    ended: Future[Any] = Future()
    async with BlockingPortal() as portal:  # would put what is raised inside into a group
        try:
            ended.set_result(await anyio.to_thread.run_sync(calling, NO_ROWS, 0, 1, "query", portal, Servers("")))
        except Exception as error:
            ended.set_exception(error)
    return ended.result()


async def test_a_batch_runs_nothing_more_when_its_function_has_ended() -> None:
    batches: list[SparkBatch] = []

    async def keeps(rows: DataFrame, batch: SparkBatch) -> str:
        batches.append(batch)
        return str(await batch.run(threading.current_thread().name.upper))

    await call(keeps)
    with anyio.fail_after(MINUTE), pytest.raises(ClientStateError, match="batch 0 of Spark listener g has ended"):
        await batches[0].run(print)


async def test_a_function_that_is_no_coroutine_is_told_that_it_needs_no_run() -> None:
    def blocks(rows: DataFrame, batch: SparkBatch) -> None:
        async def inside() -> None:
            with anyio.fail_after(MINUTE):
                await batch.run(print)

        anyio.run(inside)

    with pytest.raises(ClientStateError, match=r"is for async functions.* call the function itself"):
        await call(blocks)
