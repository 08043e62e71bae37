"""What a batch still runs for its function when that has ended, or is no coroutine. Nothing here needs Java."""

from __future__ import annotations

import asyncio
import functools
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
from rocketbox.errors import ClientStateError, HandlerError
from rocketbox.spark.batch import SparkBatch
from rocketbox.spark.batch_call import OWNER, BatchCall, FunctionEndedError
from rocketbox.spark.deliveries import Delivery
from rocketbox.spark.listener_options import SparkListenerOptions
from rocketbox.spark.query_options import OnInvalidBody, RowForm
from rocketbox.spark.servers import Servers
from rocketbox.spark.signature import read_spark_signature
from rocketbox.template.unawaited import expects_await

pytestmark = pytest.mark.anyio

MINUTE = 60.0
NO_ROWS: Any = SimpleNamespace(sparkSession=None, columns=[], toArrow=None)


def batch_call(function: Any, bean: object = None, owner: type | None = None) -> BatchCall:
    delivery = Delivery(
        label="f", where="app.py:1", group="g", schema=None, as_=RowForm.SPARK, on_invalid=OnInvalidBody.COLUMN,
        clock=RealClock(),
    )  # fmt: skip
    options = SparkListenerOptions(topic="orders", group="g", checkpoint="c")
    beans = {} if owner is None else {OWNER: lambda: bean}
    return BatchCall(options, read_spark_signature(function, owner=owner), beans=beans, delivery=delivery)


async def call(function: Any, bean: object = None, owner: type | None = None) -> Any:
    """What the function returns, or the method of the bean, called on a thread of its own as Spark does it."""
    calling = batch_call(function, bean, owner)
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


def traced(function: Any) -> Any:
    """A decorator that is a plain function."""

    @functools.wraps(function)
    def around(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return around


class Lake:
    def __init__(self) -> None:
        self.threads: list[str] = []

    async def __call__(self, rows: DataFrame, batch: SparkBatch) -> str:
        return await self.fill(rows, batch)

    async def fill(self, rows: DataFrame, batch: SparkBatch) -> str:
        self.threads += [threading.current_thread().name, await batch.run(lambda: threading.current_thread().name)]
        return "filled"


@pytest.mark.parametrize("by", ["decorator", "object", "def"])
async def test_what_a_call_gives_to_await_is_awaited(by: str) -> None:
    """Else nothing has run, and the batch is committed: its rows are lost."""
    lake = Lake()

    async def fills(rows: DataFrame, batch: SparkBatch) -> str:
        return await lake.fill(rows, batch)

    def returns(rows: DataFrame, batch: SparkBatch) -> Any:
        return lake.fill(rows, batch)

    with anyio.fail_after(MINUTE):
        assert await call({"decorator": traced(fills), "object": lake, "def": returns}[by]) == "filled"
    of_loop, of_batch = lake.threads
    assert of_loop == threading.current_thread().name != of_batch


class Ocean(Lake):
    async def fill(self, rows: DataFrame, batch: SparkBatch) -> str:
        return f"{threading.current_thread().name} filled another"


class Sea(Lake):
    def fill(self, rows: DataFrame, batch: SparkBatch) -> Any:
        return "filled it"


async def test_a_method_is_that_of_the_object_that_is_the_bean() -> None:
    here = threading.current_thread().name
    assert await call(Lake.fill, Lake(), Lake) == "filled"
    assert await call(Lake.fill, Ocean(), Lake) == f"{here} filled another"
    with pytest.raises(TypeError, match=r"Sea.fill .* is a def in the place of the listener Lake.fill, .* async def"):
        await call(Lake.fill, Sea(), Lake)


async def waits(rows: DataFrame) -> None:
    await anyio.lowlevel.checkpoint()


async def returns_a_coroutine(rows: DataFrame) -> Any:
    return waits(rows)


async def runs_a_coroutine(rows: DataFrame, batch: SparkBatch) -> None:
    await batch.run(waits, rows)  # type: ignore[unused-coroutine]  # its result is one


@expects_await
async def send() -> None: ...


async def forgets_a_send(rows: DataFrame) -> None:
    send()  # type: ignore[unused-coroutine]  # as a user may forget it


async def forgets_to_run(rows: DataFrame, batch: SparkBatch) -> None:
    batch.run(print)  # type: ignore[unused-coroutine]  # likewise


def cannot_send(rows: DataFrame) -> None:
    send()  # type: ignore[unused-coroutine]  # as a user may forget it


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # what a user sees beside it
@pytest.mark.parametrize(
    ("function", "text"),
    [
        (returns_a_coroutine, r"^returns_a_coroutine \(.*\) returned waits without awaiting it: write return await"),
        (runs_a_coroutine, r"^batch.run is for functions that block, and waits was not awaited: write await"),
        (
            forgets_a_send,
            r"^forgets_a_send \(.*\) did not await send \(.*\), and so it never ran: write await before it$",
        ),
        (
            cannot_send,
            r"^cannot_send \(.*\) did not await send \(.*\), .*: a def cannot await, so declare it with async",
        ),
    ],
)
async def test_a_forgotten_await_fails_the_batch(function: Any, text: str) -> None:
    with anyio.fail_after(MINUTE), pytest.raises(HandlerError, match=text):
        await call(function)


async def test_nothing_is_given_to_the_loop_once_the_stop_has_cancelled_what_is_there() -> None:
    """It would run for as long as it likes, and the stop waits for its loop."""
    lake = Lake()

    def returns(rows: DataFrame, batch: SparkBatch) -> Any:
        assert not calling.stop_awaiting()
        return lake.fill(rows, batch)

    calling = batch_call(returns)
    ended: list[Exception] = []

    def on_a_thread(portal: BlockingPortal) -> None:
        try:
            calling(NO_ROWS, 0, 1, "query", portal, Servers(""))
        except Exception as error:
            ended.append(error)

    with anyio.fail_after(MINUTE):
        async with BlockingPortal() as portal:
            await anyio.to_thread.run_sync(on_a_thread, portal)
    assert [type(each) for each in ended] == [CancelledError]
    assert lake.threads == []


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
