"""Spark listeners on the embedded broker: what the function gets, restarts, draining, and a killed process."""

from __future__ import annotations

import dataclasses
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

import anyio
import pytest

pytest.importorskip("pyspark")

import pyarrow.parquet
from py4j.clientserver import ClientServerConnection  # type: ignore[import-untyped]  # it has no types
from pydantic import BaseModel, Field
from pyspark.sql import DataFrame, SparkSession

from rocketbox.client import MQClientInstance
from rocketbox.spark.batch import SparkBatch
from rocketbox.spark.listener import SparkListenerState
from tests.support.spark.listeners import MINUTES, rows_in, send, spark_listener
from tests.support.spark.topics import Broker, rows_of, wait_for
from tests.support.waiting import PATIENCE, until

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.spark, pytest.mark.anyio, pytest.mark.usefixtures("spark")]


class Model(BaseModel):
    number: int = Field(alias="row")
    name: str | None = None


@dataclasses.dataclass
class Data:
    row: int
    name: str | None


class Typed(TypedDict):
    row: int
    name: str


class Ledger:
    """A bean: what the functions have seen."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, list[int]]] = []  # id, attempt, rows

    def saw(self, batch: SparkBatch, rows: list[int]) -> None:
        self.batches.append((batch.id, batch.attempt, sorted(rows)))

    @property
    def rows(self) -> list[int]:
        return sorted(row for _, _, rows in self.batches for row in rows)


@pytest.mark.parametrize("schema", [Model, Data, Typed, "row bigint, name string"], ids=str)
async def test_a_function_gets_its_columns_the_message_and_its_beans(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path, schema: Any
) -> None:
    rows: list[dict[str, Any]] = [{"row": 7, "name": "seven"}, {"row": 8, "name": "eight"}]
    await anyio.to_thread.run_sync(broker.send, topic, rows, lambda _: "T")
    seen: dict[str, Any] = {}

    def handle(rows: DataFrame, batch: SparkBatch, ledger: Ledger, spark: SparkSession) -> None:
        seen.update(columns=rows.columns, batch=batch, ledger=ledger, spark=spark, thread=threading.current_thread())
        first = rows.columns[0]
        seen["rows"] = [
            (row[first], row["name"], row["tag"], row["run"])
            for row in rows.selectExpr(first, "name", "message.tag", "message.properties['run'] AS run").collect()
        ]

    ledger = Ledger()
    listener = spark_listener(
        handle, client, topic, tmp_path, beans={Ledger: ledger}, schema=schema, trigger="available_now"
    )
    async with listener:
        await listener.wait()
        assert listener.status is SparkListenerState.FINISHED, listener.error
    first = "number" if schema is Model else "row"
    assert [name for name in seen["columns"] if name != "_error"] == [first, "name", "_corrupt", "message"]
    assert sorted(seen["rows"], key=str) == [(7, "seven", "T", "1"), (8, "eight", "T", "1")]
    batch = seen["batch"]
    assert (batch.id, batch.attempt, batch.topic, batch.group) == (0, 1, topic, topic[-40:])
    assert len(batch.query_id) == 36
    assert seen["ledger"] is ledger
    assert seen["spark"] is batch.spark
    assert seen["thread"] is not threading.main_thread()


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_an_async_function_runs_in_the_applications_loop(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path
) -> None:
    await send(broker, topic, 0, 3)
    loop = threading.current_thread()
    threads = []

    async def handle(rows: DataFrame, batch: SparkBatch, ledger: Ledger) -> None:
        threads.append(threading.current_thread())
        ledger.saw(batch, await anyio.to_thread.run_sync(rows_in, rows))

    ledger = Ledger()
    listener = spark_listener(handle, client, topic, tmp_path, beans={Ledger: ledger}, trigger="available_now")
    async with listener:
        await listener.wait()
    assert ledger.rows == [0, 1, 2]
    assert threads == [loop]
    assert listener.status is SparkListenerState.STOPPED


async def test_a_failed_batch_comes_again_until_it_succeeds(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await send(broker, topic, 0, 4)
    failure = ArithmeticError("the sink is full")
    seen_errors = []

    def handle(rows: DataFrame, batch: SparkBatch, ledger: Ledger) -> None:
        ledger.saw(batch, rows_in(rows))
        seen_errors.append(listener.error)
        if batch.id == 0 and batch.attempt < 3:
            raise failure

    ledger = Ledger()
    listener = spark_listener(handle, client, topic, tmp_path, beans={Ledger: ledger})
    with caplog.at_level(logging.ERROR, "rocketbox"):
        async with listener:
            await until(lambda: listener.status is SparkListenerState.RESTARTING)
            assert listener.error is failure
            await send(broker, topic, 4, 6)
            await until(lambda: len(ledger.rows) == 14)
            seen_errors.append(listener.error)
    assert ledger.batches == [(0, 1, [0, 1, 2, 3]), (0, 2, [0, 1, 2, 3]), (0, 3, [0, 1, 2, 3]), (1, 1, [4, 5])]
    assert seen_errors == [None, failure, failure, None, None]
    # Once for each failure, and not by py4j as well.
    logged = [record for record in caplog.records if record.exc_info and record.exc_info[1] is failure]
    assert [record.getMessage().partition("again in ")[2][:4] for record in logged] == ["1 s ", "2 s "]


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_stop_lets_the_batch_end_and_loses_nothing(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path
) -> None:
    await send(broker, topic, 0, 30)
    begun, release = threading.Event(), threading.Event()

    def handle(rows: DataFrame, batch: SparkBatch, ledger: Ledger) -> None:
        begun.set()
        release.wait(20)
        ledger.saw(batch, rows_in(rows))  # Spark still answers during the drain

    ledger = Ledger()
    listener = spark_listener(handle, client, topic, tmp_path, beans={Ledger: ledger}, max_messages=10)
    async with listener:
        await until(begun.is_set)
        threading.Timer(0.5, release.set).start()
    assert ledger.batches == [(0, 1, ledger.rows)]
    assert len(ledger.rows) == 10
    assert listener.status is SparkListenerState.STOPPED
    again = spark_listener(
        handle, client, topic, tmp_path, beans={Ledger: ledger}, max_messages=10, trigger="available_now"
    )
    async with again:
        await again.wait()
    assert ledger.rows == list(range(30))
    assert [batch_id for batch_id, _, _ in ledger.batches] == [0, 1, 2]


async def test_a_batch_that_does_not_end_in_time_is_cancelled_and_comes_again(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path
) -> None:
    await send(broker, topic, 0, 3)
    begun = threading.Event()

    async def stuck(rows: DataFrame) -> None:
        begun.set()
        await anyio.sleep(10 * PATIENCE)

    listener = spark_listener(stuck, client, topic, tmp_path, drain_timeout=0.5)
    with anyio.fail_after(PATIENCE):
        async with listener:
            await until(begun.is_set)
    ledger = Ledger()

    def handle(rows: DataFrame, batch: SparkBatch, ledger: Ledger) -> None:
        ledger.saw(batch, rows_in(rows))

    again = spark_listener(handle, client, topic, tmp_path, beans={Ledger: ledger}, trigger="available_now")
    async with again:
        await again.wait()
    assert ledger.batches == [(0, 1, [0, 1, 2])]


async def test_a_stop_while_the_query_starts_leaves_none_behind(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path, spark: SparkSession
) -> None:
    def handle(rows: DataFrame) -> None:
        raise AssertionError("nothing was sent")

    for pause in (0.0, 0.1, 0.3):
        async with spark_listener(handle, client, topic, tmp_path):
            await anyio.sleep(pause)
        assert spark.streams.active == []


async def test_no_thread_outlives_its_listener(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path
) -> None:
    def handle(rows: DataFrame, ledger: Ledger) -> None:
        rows.count()

    async def run() -> None:
        await send(broker, topic, 0, 1)
        listener = spark_listener(handle, client, topic, tmp_path, beans={Ledger: Ledger()}, trigger="available_now")
        async with listener:
            await listener.wait()

    await run()  # Spark makes threads of its own the first time
    before = {thread for thread in threading.enumerate() if "spark" in thread.name}
    await run()
    left = {thread for thread in threading.enumerate() if "spark" in thread.name} - before
    for thread in left:  # one that has said that it ends may still be on its last line
        await anyio.to_thread.run_sync(thread.join, 10)
    assert [thread for thread in left if thread.is_alive()] == []


async def test_queries_that_have_ended_leave_no_connections_of_javas(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each left a thread and a socket: a function that failed all night took all that the service may open."""
    monkeypatch.setattr("rocketbox.spark.listener.FIRST_BACKOFF", 0.05)
    monkeypatch.setattr("rocketbox.spark.listener.LONGEST_BACKOFF", 0.05)
    seen: list[int] = []

    def handle(rows: DataFrame, batch: SparkBatch) -> None:
        seen.append(batch.attempt)
        if len(seen) <= 4:
            raise ArithmeticError("the sink is full")

    def connections() -> int:
        targets = (getattr(thread, "_target", None) for thread in threading.enumerate())
        return sum(isinstance(getattr(target, "__self__", None), ClientServerConnection) for target in targets)

    await send(broker, topic, 0, 1)
    before = connections()
    listener = spark_listener(handle, client, topic, tmp_path)
    async with listener:
        await until(lambda: len(seen) == 5 and listener.state().progress["batch"] == 0, seconds=MINUTES)
        await send(broker, topic, 1, 2)  # the query that is left is called all the same
        await until(lambda: len(seen) == 6)
        assert connections() - before <= 3, "that of the query, that of what follows its progress, and one that ends"
    assert seen == [1, 2, 3, 4, 5, 1]


async def test_ddl_that_spark_cannot_read_ends_the_listener(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path
) -> None:
    def handle(rows: DataFrame) -> None:
        raise AssertionError("it cannot run")

    await send(broker, topic, 0, 1)  # else it would wait for its topic
    listener = spark_listener(handle, client, topic, tmp_path, schema="row bigint name string")
    async with listener:
        with anyio.fail_after(PATIENCE):
            await listener.wait()
        assert listener.status is SparkListenerState.FAILED
        assert "'row bigint name string' is no DDL of Spark" in str(listener.error)


def in_the_lake(path: Path) -> list[int]:
    return sorted(json.loads(body)["row"] for body in pyarrow.parquet.read_table(path)["body"].to_pylist())


async def test_a_batch_that_fails_after_its_write_is_in_the_sink_once(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path
) -> None:
    await send(broker, topic, 0, 20)
    written = []

    def handle(rows: DataFrame, batch: SparkBatch) -> None:
        written.append(batch.write(rows.selectExpr("cast(body AS string) AS body"), tmp_path / "lake"))
        if len(written) == 1:
            raise ArithmeticError("after the write")

    listener = spark_listener(handle, client, topic, tmp_path, max_messages=10, trigger="available_now")
    async with listener:
        await listener.wait()
    assert written == [True, False, True]
    assert in_the_lake(tmp_path / "lake") == list(range(20))


def test_a_killed_process_gets_the_same_batch_again(broker: Broker, topic: str, tmp_path: Path) -> None:
    notes, checkpoint = tmp_path / "notes", tmp_path / "checkpoint"

    def noted() -> list[Any]:
        return [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []

    @contextmanager
    def service(hang_in: int) -> Iterator[subprocess.Popen[bytes]]:
        program = [sys.executable, "-m", "tests.support.spark.spark_service"]
        arguments = [broker.name_server, topic, str(checkpoint), str(notes), str(hang_in)]
        with subprocess.Popen([*program, *arguments], cwd=ROOT, stderr=subprocess.DEVNULL) as process:
            try:
                yield process
            finally:
                process.kill()  # it hangs for ever, and leaving the with statement waits for its end

    broker.send(topic, rows_of(0, 30))
    with service(hang_in=1) as process:
        wait_for(lambda: len(noted()) == 3, 300, unless=process.poll)
        process.kill()
    java, *before = noted()
    broker.send(topic, rows_of(30, 35))
    wait_for(lambda: not Path(f"/proc/{java}").exists())  # Spark's Java ends when its driver has gone
    notes.unlink()
    with service(hang_in=-1) as process:
        assert process.wait(300) == 0
    _, *after = noted()
    assert [batch[0] for batch in before] == [0, 1]
    assert after[0] == before[1]
    assert [batch[0] for batch in after] == [1, 2, 3]
    rows = [row for batch in (before[0], *after) for row in batch[2]]
    assert sorted(rows) == list(range(35))
