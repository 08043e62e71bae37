"""What a batch still runs for its function when that has ended, or is no coroutine. Nothing here needs Java."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, Future
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from anyio.from_thread import BlockingPortal

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame

from rocketbox.clock import RealClock
from rocketbox.errors import ClientStateError
from rocketbox.spark.batch import SparkBatch
from rocketbox.spark.batch_call import BatchCall, FunctionEndedError
from rocketbox.spark.deliveries import Delivery
from rocketbox.spark.listener_options import SparkListenerOptions
from rocketbox.spark.query_options import OnInvalidBody, RowForm
from rocketbox.spark.servers import Servers
from rocketbox.spark.signature import read_spark_signature

pytestmark = pytest.mark.anyio

MINUTE = 60.0
NO_ROWS: Any = SimpleNamespace(sparkSession=None, columns=[], toArrow=None)


def batch_call(function: Any) -> BatchCall:
    delivery = Delivery(
        label="f", where="app.py:1", group="g", schema=None, as_=RowForm.SPARK, on_invalid=OnInvalidBody.COLUMN,
        clock=RealClock(),
    )  # fmt: skip
    options = SparkListenerOptions(topic="orders", group="g", checkpoint="c")
    return BatchCall(options, read_spark_signature(function), beans={}, delivery=delivery)


async def call(function: Any) -> Any:
    """What the function returns, called on a thread of its own as Spark does it."""
    calling = batch_call(function)
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


class LibraryExit(BaseException):
    """As some libraries have it: what no ``except Exception`` is to catch."""


@pytest.mark.parametrize("raised", [SystemExit, LibraryExit, asyncio.CancelledError])
@pytest.mark.parametrize("by", ["def", "async def", "batch.run"])
async def test_what_would_end_the_thread_or_the_process_is_a_failure_of_the_function(
    by: str, raised: type[BaseException]
) -> None:
    """py4j answers Spark's call for an Exception alone: Spark would wait for ever, and nobody would be told."""

    def leaves(rows: DataFrame) -> None:
        raise raised("enough")

    async def leaves_the_loop(rows: DataFrame) -> None:
        await anyio.lowlevel.checkpoint()
        leaves(rows)

    async def leaves_its_thread(rows: DataFrame, batch: SparkBatch) -> None:
        await batch.run(leaves, rows)

    functions = {"def": leaves, "async def": leaves_the_loop, "batch.run": leaves_its_thread}
    with anyio.fail_after(MINUTE), pytest.raises(FunctionEndedError) as told:
        await call(functions[by])
    assert str(told.value).startswith(f"{functions[by].__qualname__} raised {raised.__name__}('enough')")
    assert isinstance(told.value.__cause__, raised)


async def test_a_keyboard_interrupt_in_a_thread_is_a_failure_as_well() -> None:
    def interrupts(rows: DataFrame) -> None:
        raise KeyboardInterrupt

    with pytest.raises(FunctionEndedError, match=r"raised KeyboardInterrupt\(\)"):
        await call(interrupts)


async def test_what_the_stop_cancels_stays_cancelled() -> None:
    begun = anyio.Event()

    async def waits(rows: DataFrame) -> None:
        begun.set()
        await anyio.sleep_forever()

    ended: list[BaseException] = []

    def on_a_thread(portal: BlockingPortal) -> None:
        try:
            batch_call(waits)(NO_ROWS, 0, 1, "query", portal, Servers(""))
        except BaseException as error:
            ended.append(error)

    with anyio.fail_after(MINUTE):
        async with BlockingPortal() as portal, anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, on_a_thread, portal)
            await begun.wait()
            await portal.stop(cancel_remaining=True)
    assert [type(each) for each in ended] == [CancelledError]
