"""What Spark listeners come back from, what counts as an attempt, and what is known meanwhile; on embedded servers."""

from __future__ import annotations

import json
import shutil
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("pyspark")

from pyspark import SparkContext
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id

from rocketbox.client import Admin, MQClientInstance
from rocketbox.spark import listener_source
from rocketbox.spark.batch import SparkBatch
from rocketbox.spark.batch_log import BatchLog, PlannedBatch
from rocketbox.spark.checkpoint import CheckpointError
from rocketbox.spark.lease import LeaseLostError
from rocketbox.spark.listener import SparkListenerState
from rocketbox.spark.query_options import OnFailedBatch
from tests.support.remoting.address_server import HttpAddressServer
from tests.support.spark.listeners import MINUTES, rows_in, send, spark_listener, until
from tests.support.spark.topics import Broker

pytestmark = [pytest.mark.spark, pytest.mark.anyio, pytest.mark.usefixtures("spark")]


def raised_in_a_task(error: str) -> PythonException:
    """What an action of a function raises where a task of Spark's could not read."""
    return PythonException(
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        f'  File "/venv/rocketbox/spark/reading.py", line 130, in _ask\n{error}\n SQLSTATE: 38000'
    )


async def test_a_listener_that_reads_again_what_its_group_has_read_comes_back_and_knows_its_lag(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path
) -> None:
    await send(broker, topic, 0, 12)
    admin = Admin(instance=client)
    for queue in await admin.queues(topic):
        await admin.commit(topic[-40:], queue, await admin.max_offset(queue))
    seen: list[int] = []
    hold = threading.Event()

    def handle(rows: DataFrame, batch: SparkBatch) -> None:
        if batch.id == 1 and not hold.is_set():
            raise ArithmeticError("not now")
        seen.extend(rows_in(rows))

    again: dict[str, Any] = {"starting_offsets": "earliest", "max_messages": 4}
    first = spark_listener(handle, client, topic, tmp_path, **again)
    async with first:
        await until(lambda: first.error is not None)
    second = spark_listener(handle, client, topic, tmp_path, **again)
    async with second:
        await until(lambda: second.state().progress["attempt"] or second.has_ended)
        progress = second.state().progress
        assert progress["attempt"] in range(2, 9), second.state().reason
        assert (progress["batch"], progress["lag"]) == (0, 8)
        hold.set()
        await until(lambda: second.state().progress["lag"] == 0)
    assert sorted(seen) == list(range(12))


async def test_a_checkpoint_that_was_restored_from_a_copy_skips_nothing_that_its_sink_does_not_have(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path, spark: SparkSession
) -> None:
    """In a back-fill, where the group stands does not show it: that stood further before."""
    checkpoint, copied, lake = tmp_path / "checkpoint", tmp_path / "copy", tmp_path / "lake"
    await send(broker, topic, 0, 12)
    admin = Admin(instance=client)
    for queue in await admin.queues(topic):
        await admin.commit(topic[-40:], queue, 100)
    is_copied = False

    def handle(rows: DataFrame, batch: SparkBatch) -> None:
        if batch.id == 1 and not is_copied:
            raise ArithmeticError("not now")
        batch.write(rows.select("body"), lake)

    def listener(most: int) -> Any:
        return spark_listener(
            handle, client, topic, checkpoint, starting_offsets="earliest", max_messages=most, trigger="available_now"
        )

    async with listener(4) as first:
        await until(lambda: first.error is not None)
    shutil.copytree(checkpoint, copied)
    is_copied = True
    async with listener(4) as second:
        await until(lambda: second.has_ended)
    await send(broker, topic, 12, 16)
    shutil.rmtree(checkpoint)
    copied.rename(checkpoint)
    async with listener(8) as third:
        await until(lambda: third.has_ended)
        state = third.state()
        assert third.status is SparkListenerState.FAILED
        assert "the checkpoint is older than what was written by it" in str(state.reason)
    for folder in lake.glob("query=*/batch=2"):
        folder.rename(tmp_path / "aside")
    async with listener(8) as fourth:
        await until(lambda: fourth.has_ended)
        assert fourth.status is SparkListenerState.FINISHED, fourth.state().reason
    assert rows_in(spark.read.parquet(str(lake))) == list(range(16))


async def test_the_group_is_told_of_a_batch_when_it_is_done_and_not_when_the_next_one_comes(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path
) -> None:
    await send(broker, topic, 0, 4)
    running = spark_listener(lambda rows: None, client, topic, tmp_path, trigger=timedelta(hours=1))
    async with running:
        with anyio.fail_after(MINUTES):
            while (told := await anyio.to_thread.run_sync(broker.committed, topic, topic[-40:])) != (
                await anyio.to_thread.run_sync(broker.ends, topic)
            ):
                await anyio.sleep(0.1)
        assert set(told.values()) == {1}


async def test_a_listener_reads_from_the_name_servers_that_its_address_server_tells_later(
    broker: Broker, topic: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr("rocketbox.remoting.name_server_addresses.RETRY_AFTER", 0.05)
    monkeypatch.setattr("rocketbox.remoting.name_server_addresses.ASK_AGAIN_AFTER", 0.05)
    await send(broker, topic, 0, 3)
    seen: list[int] = []
    hold = threading.Event()
    hold.set()

    def handle(rows: DataFrame) -> None:
        seen.extend(rows_in(rows))
        hold.wait(MINUTES)

    with HttpAddressServer("", 503) as address_server:
        async with MQClientInstance(address_server.url) as client:
            running = spark_listener(handle, client, topic, tmp_path)
            async with running:
                await until(lambda: "HTTP 503" in str(running.state().reason))
                address_server.answer, address_server.status = broker.name_server, 200
                await until(lambda: seen or running.has_ended)
                assert running.status is SparkListenerState.RUNNING, running.state().reason
                (first,) = spark.streams.active
                run_id = first.runId
                address_server.answer = f"localhost:{broker.ports['name_server_port']}"
                await until(lambda: [each.runId for each in spark.streams.active] not in ([], [run_id]))
                await send(broker, topic, 3, 5)
                await until(lambda: len(seen) >= 5 or running.has_ended)
                assert running.status is SparkListenerState.RUNNING, running.state().reason
                monkeypatch.setattr("rocketbox.spark.listener.LONGEST_MOVE", 0.2)
                hold.clear()
                await send(broker, topic, 5, 6)
                await until(lambda: 5 in seen)
                address_server.answer = broker.name_server
                await until(lambda: "its query has been stopped" in str(running.state().reason))
                hold.set()
                await send(broker, topic, 6, 7)
                await until(lambda: 6 in seen or running.has_ended)
                await until(lambda: running.state().ready and not running.state().progress["busy"])
    assert sorted(seen) in ([0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 5, 6]), "that batch was done in time, or cut off"
    assert "it starts again in" not in caplog.text, "nothing has failed"


async def test_what_neither_the_batch_nor_its_function_is_to_blame_for_is_no_attempt(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketbox.spark.listener.FIRST_BACKOFF", 0.05)
    await send(broker, topic, 0, 3)
    attempts: list[int] = []
    away = raised_in_a_task("rocketbox.errors.ConnectError: nobody listens at 10.0.0.1:10911")

    def handle(rows: DataFrame, batch: SparkBatch) -> None:
        attempts.append(batch.attempt)
        if len(attempts) < 4:
            raise away
        if len(attempts) == 4:
            raise ArithmeticError("the sink is full")

    most: dict[str, Any] = {"max_batch_attempts": 2, "on_failed_batch": OnFailedBatch.DEAD_LETTER}
    running = spark_listener(handle, client, topic, tmp_path, **most, trigger="available_now")
    async with running:
        await until(lambda: running.has_ended)
        assert running.status is SparkListenerState.FINISHED, running.state().reason
    assert attempts == [1, 1, 1, 1, 2]


async def test_a_batch_that_is_done_and_that_spark_cannot_commit_has_all_its_attempts(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path
) -> None:
    """A disk that was full for a moment: messages that a function had taken well became dead letters."""
    await send(broker, topic, 0, 3)
    attempts: list[int] = []
    commits = tmp_path / "lake" / "commits"

    def handle(rows: DataFrame, batch: SparkBatch) -> None:
        attempts.append(batch.attempt)
        if len(attempts) == 1:
            commits.rmdir()
            commits.touch()  # so nothing can be written there

    most: dict[str, Any] = {"max_batch_attempts": 1, "on_failed_batch": OnFailedBatch.DEAD_LETTER}
    running = spark_listener(handle, client, topic, tmp_path / "lake", **most, trigger="available_now")
    async with running:
        await until(lambda: running.error is not None or running.has_ended)
        commits.unlink()
        await until(lambda: running.has_ended)
        assert running.status is SparkListenerState.FINISHED, running.state().reason
    assert attempts == [1, 1]


async def test_a_batch_that_was_planned_when_a_stop_came_has_all_its_attempts(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path
) -> None:
    """The function has never seen it: its messages became dead letters at the next start."""
    await send(broker, topic, 0, 3)
    attempts: list[tuple[int, int, list[int]]] = []

    def handle(rows: DataFrame, batch: SparkBatch) -> None:
        attempts.append((batch.id, batch.attempt, rows_in(rows)))

    def wait_for_the_plan() -> None:
        while not (tmp_path / "offsets" / "1").exists():  # its function is called some tens of milliseconds later
            assert not first.has_ended, first.state().reason

    most: dict[str, Any] = {"max_batch_attempts": 1, "on_failed_batch": OnFailedBatch.DEAD_LETTER}
    first = spark_listener(handle, client, topic, tmp_path, **most)
    async with first:
        await until(lambda: (tmp_path / "commits" / "0").exists() or first.has_ended)
        await send(broker, topic, 3, 6)
        await anyio.to_thread.run_sync(wait_for_the_plan)
        await first.drain(MINUTES)
    last = spark_listener(handle, client, topic, tmp_path, **most, trigger="available_now")
    async with last:
        await until(lambda: last.has_ended)
        assert last.status is SparkListenerState.FINISHED, last.state().reason
    assert attempts == [(0, 1, [0, 1, 2]), (1, 1, [3, 4, 5])]


async def test_a_batch_that_comes_again_is_divided_as_before_whatever_cores_there_are(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys by which consumers know what it writes have the number of the task and of the row in it."""
    await send(broker, topic, 0, 30)
    cores = 3
    monkeypatch.setattr(listener_source, "FEWEST_ROWS", 1)
    monkeypatch.setattr(SparkContext, "defaultParallelism", property(lambda _: cores))
    divided: list[tuple[int, dict[int, list[tuple[int, int]]]]] = []

    def handle(rows: DataFrame, batch: SparkBatch) -> None:
        found: dict[int, list[tuple[int, int]]] = {}
        for task, queue, offset in rows.select(spark_partition_id(), "queue_id", "queue_offset").collect():
            found.setdefault(task, []).append((queue, offset))
        divided.append((batch.id, found))
        if cores == 3:
            raise ArithmeticError("not now")

    first = spark_listener(handle, client, topic, tmp_path, max_messages=12)
    async with first:
        await until(lambda: first.error is not None)
    cores = 6  # as where the executors of a cluster come and go
    again = spark_listener(handle, client, topic, tmp_path, max_messages=12, trigger="available_now")
    async with again:
        await until(lambda: again.has_ended)
        assert again.status is SparkListenerState.FINISHED, again.state().reason
    await send(broker, topic, 30, 42)
    last = spark_listener(handle, client, topic, tmp_path, max_messages=12, trigger="available_now")
    async with last:
        await until(lambda: last.has_ended)
        assert last.status is SparkListenerState.FINISHED, last.state().reason
    *before, zero, _, _, three = divided
    assert before
    assert all(each == zero for each in before)
    assert (zero[0], len(zero[1])) == (0, 3)
    assert (three[0], len(three[1])) == (3, 6), "a query that owes no batch uses all cores"


async def test_an_error_of_a_functions_own_counts_although_a_stop_has_begun(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path
) -> None:
    await send(broker, topic, 0, 3)
    attempts: list[int] = []
    begun, stopping = threading.Event(), threading.Event()

    def handle(rows: DataFrame, batch: SparkBatch) -> None:
        attempts.append(batch.attempt)
        if len(attempts) == 1:
            begun.set()
            stopping.wait(MINUTES)
            raise ArithmeticError("the sink is full")

    first = spark_listener(handle, client, topic, tmp_path, max_batch_attempts=2)
    async with first:
        await until(begun.is_set)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.drain, MINUTES)
            await anyio.wait_all_tasks_blocked()
            stopping.set()
    async with spark_listener(handle, client, topic, tmp_path, max_batch_attempts=2, trigger="available_now") as second:
        await until(lambda: second.has_ended)
    assert attempts == [1, 2]


async def test_a_coroutine_that_a_stop_cancels_has_tried_nothing_whatever_it_makes_of_that(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path
) -> None:
    await send(broker, topic, 0, 3)
    attempts: list[int] = []

    async def handle(rows: DataFrame, batch: SparkBatch) -> None:
        attempts.append(batch.attempt)
        if len(attempts) == 1:
            with suppress(BaseException):
                await anyio.sleep_forever()

    cancelled = spark_listener(handle, client, topic, tmp_path, max_batch_attempts=1, drain_timeout=0.5)
    async with cancelled:
        await until(lambda: attempts or cancelled.has_ended)
    last = spark_listener(handle, client, topic, tmp_path, max_batch_attempts=1, trigger="available_now")
    async with last:
        await until(lambda: last.has_ended)
        assert last.status is SparkListenerState.FINISHED, last.state().reason
    assert attempts == [1, 1]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_query_that_stops_for_its_lease_has_tried_nothing(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path
) -> None:
    await send(broker, topic, 0, 3)
    attempts: list[int] = []

    def handle(rows: DataFrame, batch: SparkBatch) -> None:
        attempts.append(batch.attempt)
        if len(attempts) == 1:
            running._portal.call(running._keeper.release)
            with suppress(LeaseLostError):
                running._portal.call(running._lease.confirm)  # whoever keeps it is told
            while True:  # until Spark ends its jobs
                rows.count()

    running = spark_listener(handle, client, topic, tmp_path, max_batch_attempts=2)
    async with running:
        await until(lambda: len(attempts) == 2 or running.has_ended)
        assert not running.has_ended, running.state().reason
    assert attempts == [1, 1]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("metadata", '{"id":"'),
        ("offsets/0", ""),
        ("offsets/0", "v1\n{}"),
        ("offsets/0", 'v1\n{}\n{"group": "etl", "que'),
        ("offsets/0", "\x00\x01\x02"),
        ("commits/0", ""),
        ("commits/0", "v1"),
    ],
)
def test_a_damaged_checkpoint_is_refused_with_what_to_do(
    spark: SparkSession, tmp_path: Path, file: str, content: str
) -> None:
    end = '{"queues": {"t": {"b": {"0": {"first": 3, "next": 5}}}}, "v": 1}'
    whole = {"metadata": '{"id":"1"}', "offsets/0": f"v1\n{{}}\n{end}", "commits/0": "v1\n{}"}
    for name, text in whole.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    log = BatchLog(spark, f"file:{tmp_path}")
    assert log.last_planned() == PlannedBatch(0, json.loads(end), done=True)
    (tmp_path / file).write_text(content)
    with pytest.raises(CheckpointError, match=f"is damaged, its file {file} is cut.*restore it from a copy, or begin"):
        log.last_planned()


@pytest.mark.parametrize(
    ("removed", "lacks"),
    [("metadata", "metadata"), ("offsets", "offsets/0")],
)
def test_a_checkpoint_of_which_a_part_was_removed_is_refused(
    spark: SparkSession, tmp_path: Path, removed: str, lacks: str
) -> None:
    """Spark would go on: under another query's id, or from batch 0 under that of the old one."""
    for name, text in {"metadata": '{"id":"1"}', "offsets/0": "v1\n{}\n{}", "commits/0": "v1\n{}"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / removed).rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=f"is damaged, its file {lacks} is missing.*restore it from a copy"):
        BatchLog(spark, f"file:{tmp_path}").last_planned()


async def test_a_checkpoint_that_is_removed_while_its_listener_runs_ends_that(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path
) -> None:
    """It was begun with anew at once: rows came again for an idempotent sink, or from the latest on some never came."""
    await send(broker, topic, 0, 3)
    queries: set[str] = set()
    folder = tmp_path / "lake"

    def handle(rows: DataFrame, batch: SparkBatch) -> None:
        queries.add(batch.query_id)
        if (folder / "commits" / "0").exists():
            shutil.rmtree(folder)

    running = spark_listener(handle, client, topic, folder)
    async with running:
        await until((folder / "commits" / "0").exists)
        await send(broker, topic, 3, 5)
        await until(lambda: running.has_ended or len(queries) == 2)
        assert running.status is SparkListenerState.FAILED
        (query,) = queries
        assert f"was that of query {query}, and now it is empty: somebody has removed" in str(running.state().reason)


@pytest.mark.parametrize("fails", [True, False])
async def test_queues_that_are_taken_away_while_a_batch_of_them_is_tried_end_the_listener_or_are_left_out(
    fails: bool, broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path
) -> None:
    await send(broker, topic, 0, 12)
    queues = len(await Admin(instance=client).queues(topic))
    seen: list[int] = []
    taken = threading.Event()

    def handle(rows: DataFrame) -> None:
        if not taken.is_set():
            taken.wait(MINUTES)
            raise ArithmeticError("not now")
        seen.extend(rows_in(rows))

    source = {"failOnDataLoss": str(fails).lower()}
    running = spark_listener(handle, client, topic, tmp_path, source_options=source)
    async with running:
        await until(lambda: running.state().progress["attempt"])
        await anyio.to_thread.run_sync(broker.set_queues, topic, queues - 1)
        taken.set()
        await until(lambda: running.has_ended or seen)
        if fails:
            assert "unread messages were taken away with their queues" in str(running.state().reason)
        else:
            await until(lambda: running.state().progress["batch"] == 0)
    assert (running.status, len(seen)) == (SparkListenerState.STOPPED, 0 if fails else 12 - 12 // queues)
