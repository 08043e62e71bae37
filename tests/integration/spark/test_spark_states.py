"""The states of Spark listeners on the embedded broker: what begins again, what stands by, what has failed for good."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from rocketbox.client import Admin, MQClientInstance
from rocketbox.clock import RealClock
from rocketbox.errors import ConnectError
from rocketbox.listeners import ContainerStatus
from rocketbox.message import MessageQueue
from rocketbox.protocol.codes import dlq_topic
from rocketbox.spark.batch import SparkBatch
from rocketbox.spark.batch_log import BatchLog
from rocketbox.spark.checkpoint_folder import set_aside
from rocketbox.spark.lease import Lease
from rocketbox.spark.listener import (
    SparkListenerContainer,
    SparkListenerState,
)
from rocketbox.spark.loss import DataLossError
from rocketbox.spark.query import STOP_TIMEOUT
from rocketbox.spark.query_options import OnFailedBatch
from rocketbox.spark.session import SparkRuntime
from tests.support.spark.listeners import MINUTES, give_lease_to, group_of, rows_in, send, spark_listener, until
from tests.support.spark.topics import Broker, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.anyio, pytest.mark.usefixtures("spark")]


class Seen:
    """The batches that a function was given."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, list[int]]] = []  # id, attempt, rows

    def handle(self, rows: DataFrame, batch: SparkBatch) -> None:
        self.batches.append((batch.id, batch.attempt, rows_in(rows)))

    @property
    def rows(self) -> list[int]:
        return sorted(row for _, _, rows in self.batches for row in rows)


async def test_a_query_that_somebody_stops_begins_again(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path, spark: SparkSession,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    await send(broker, topic, 0, 3)
    seen = Seen()
    running = spark_listener(seen.handle, client, topic, tmp_path)
    async with running:
        await until(lambda: seen.rows == [0, 1, 2])
        await until(lambda: "rows" in running.state().progress)  # else the batch is not committed, and comes again
        (query,) = spark.streams.active
        assert query.name == f"{topic[-40:]}.{topic}"
        await anyio.to_thread.run_sync(query.stop)
        await until(lambda: running.status is SparkListenerState.RESTARTING)
        state = running.state()
        assert (state.status, state.ready) == (ContainerStatus.RESTARTING, False)
        assert state.reason is not None
        assert "its query has ended: somebody has stopped it, or its session; it starts again in" in state.reason
        await send(broker, topic, 3, 5)
        await until(lambda: seen.rows == [0, 1, 2, 3, 4])
        assert running.state().ready
        await until(lambda: running.state().progress["rows"] == 2)
        (query,) = spark.streams.active
        await anyio.to_thread.run_sync(query.stop)
        await until(lambda: caplog.text.count("somebody has stopped it") == 2)
    assert caplog.text.count("it starts again in 1 s from its checkpoint") == 2, "it has run well in between"


async def test_what_is_sent_once_a_listener_from_the_latest_on_is_ready_is_read(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path
) -> None:
    """It was ready before its query had found where the queues end: what came in these seconds was skipped."""
    await send(broker, topic, 0, 3)
    seen: list[int] = []

    def handle(rows: DataFrame) -> None:
        seen.extend(rows_in(rows))

    running = spark_listener(handle, client, topic, tmp_path, starting_offsets="latest")
    async with running:
        await until(lambda: running.state().ready or running.has_ended)
        await send(broker, topic, 3, 6)
        await until(lambda: running.state().progress["batch"] != -1 or running.has_ended)
        await send(broker, topic, 6, 9)
        await until(lambda: 8 in seen or running.has_ended)
    assert sorted(seen) == [3, 4, 5, 6, 7, 8]


async def test_a_checkpoint_may_be_on_any_file_system_of_hadoops(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path, spark: SparkSession
) -> None:
    """One that is no folder of this machine for us: ``viewfs`` knows what lies behind its names, and Spark asks it."""
    (tmp_path / "far").mkdir()
    hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("fs.viewfs.mounttable.lake.link./checkpoints", (tmp_path / "far").as_uri())
    checkpoint = f"viewfs://lake/checkpoints/{topic}"
    seen = Seen()
    await send(broker, topic, 0, 3)
    first = spark_listener(seen.handle, client, topic, checkpoint, starting_offsets="latest")
    async with first:
        await until(lambda: first.state().ready or first.has_ended)
        await send(broker, topic, 3, 6)
        await until(lambda: seen.rows == [3, 4, 5] or first.has_ended)
    assert json.loads((tmp_path / "far" / topic / "metadata").read_text()).keys() == {"id"}
    await send(broker, topic, 6, 9)
    second = spark_listener(seen.handle, client, topic, checkpoint, starting_offsets="latest")
    async with second:
        await until(lambda: 8 in seen.rows or second.has_ended)
    assert seen.rows == [3, 4, 5, 6, 7, 8], "all that came since it was ready, also while it did not run"
    ids = [batch for batch, _, _ in seen.batches]
    assert ids == sorted(set(ids)), "one query with one count of batches"


async def test_a_listener_whose_file_system_does_not_answer_begins_again_and_says_why(
    broker: Broker, client: MQClientInstance, topic: str
) -> None:
    await send(broker, topic, 0, 3)
    seen = Seen()
    running = spark_listener(seen.handle, client, topic, "viewfs://nowhere/checkpoints")
    async with running:
        await until(lambda: running.status in (SparkListenerState.RESTARTING, SparkListenerState.FAILED))
        state = running.state()
        assert (state.status, state.ready) == (ContainerStatus.RESTARTING, False)
        assert state.reason is not None
        assert "viewfs://nowhere/" in state.reason
        assert "Empty Mount table" in state.reason
    assert seen.batches == []


async def test_what_is_behind_shows_in_the_state_and_at_the_broker(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path
) -> None:
    await send(broker, topic, 0, 8)
    seen, hold = Seen(), threading.Event()

    def handle(rows: DataFrame, batch: SparkBatch) -> None:
        seen.handle(rows, batch)
        if batch.id == 1:
            hold.wait(MINUTES)

    running = spark_listener(handle, client, topic, tmp_path, max_messages=4)
    async with running:
        await until(lambda: running.state().progress.get("lag") == 4)
        progress = running.state().progress
        assert progress["state"] == "running"
        assert (progress["batch"], progress["rows"]) == (0, 4)
        assert progress["lag_by_queue"] == {f"broker-a/{number}": 1 for number in range(4)}
        assert isinstance(progress["rows_per_second"], float)
        hold.set()
        await until(lambda: running.state().progress["lag"] == 0)
        # The last batch is mirrored also when nothing more comes.
        with anyio.fail_after(MINUTES):
            while await anyio.to_thread.run_sync(broker.committed, topic, topic[-40:]) != (
                await anyio.to_thread.run_sync(broker.ends, topic)
            ):
                await anyio.sleep(0.1)


async def test_an_error_that_no_restart_mends_is_failed_at_once(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await send(broker, topic, 0, 1)
    seen = Seen()
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"starting_offsets": "tomorrow"}, "startingOffsets"),
        ({"checkpoint": "nosuch://host/path"}, "nosuch"),
        ({"schema": "row bigint name string"}, "is no DDL of Spark"),
    )
    for options, text in wrong:
        checkpoint = options.pop("checkpoint", str(tmp_path / text))
        running = spark_listener(seen.handle, client, topic, checkpoint, **options)
        async with running:
            with anyio.fail_after(MINUTES):
                await running.wait()
            assert running.status is SparkListenerState.FAILED
            state = running.state()
            assert (state.status, state.ready) == (ContainerStatus.FAILED, False)
            assert state.reason is not None
            assert text in state.reason
    assert seen.batches == []
    assert caplog.text.count("does not run, everything else does") == 3


def goes_beyond_what_is_there(batches: Iterator[Any]) -> Iterator[Any]:
    """As the source does in a task that finds messages deleted."""
    raise DataLossError(MessageQueue("t", "broker-a", 0), 5, 8, found=8)


async def test_messages_that_are_gone_fail_a_listener_at_once_although_its_function_meets_it(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path
) -> None:
    await send(broker, topic, 0, 1)
    attempts: list[int] = []

    def handle(rows: DataFrame, batch: SparkBatch) -> None:
        attempts.append(batch.attempt)
        rows.select("queue_id").mapInArrow(goes_beyond_what_is_there, "queue_id int").collect()

    running = spark_listener(handle, client, topic, tmp_path)
    async with running:
        with anyio.fail_after(MINUTES):
            await running.wait()
        assert running.status is SparkListenerState.FAILED
        assert "t broker-a/0: offsets 5 to 7 (3 in all) are gone" in str(running.state().reason)
    assert attempts == [1]


async def test_a_batch_that_fails_too_often_is_given_up_with_what_the_function_raised(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path
) -> None:
    await send(broker, topic, 0, 2)
    attempts: list[int] = []
    failure = ArithmeticError("the sink is full")

    def handle(rows: DataFrame, batch: SparkBatch) -> None:
        attempts.append(batch.attempt)
        raise failure

    running = spark_listener(handle, client, topic, tmp_path, max_batch_attempts=3)
    async with running:  # a stop in between does not begin the count anew
        # an attempt that ends after the stop has begun is none
        await until(lambda: len(attempts) == 2 and not running.state().progress["busy"])
    again = spark_listener(handle, client, topic, tmp_path, max_batch_attempts=3)
    async with again:
        with anyio.fail_after(MINUTES):
            await again.wait()
        assert again.status is SparkListenerState.FAILED
        assert again.error is failure
        reason = again.state().reason
        assert reason == "batch 0 has failed 3 times (max_batch_attempts): ArithmeticError: the sink is full"
    assert attempts == [1, 2, 3]
    seen = Seen()  # whoever starts it again has mended it
    mended = spark_listener(seen.handle, client, topic, tmp_path, max_batch_attempts=3, trigger="available_now")
    async with mended:
        await mended.wait()
    assert seen.batches == [(0, 1, [0, 1])]


async def test_a_batch_that_fails_too_often_may_be_dead_lettered_and_the_next_one_comes(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path
) -> None:
    await send(broker, topic, 0, 4)
    calls: list[tuple[int, int]] = []

    def handle(rows: DataFrame, batch: SparkBatch) -> None:
        calls.append((batch.id, batch.attempt))
        if batch.id == 0:
            raise ArithmeticError("the sink is full")

    running = spark_listener(
        handle, client, topic, tmp_path, max_batch_attempts=2, on_failed_batch=OnFailedBatch.DEAD_LETTER
    )
    async with running:
        await until(lambda: running.state().progress.get("lag") == 0)
        await send(broker, topic, 4, 5)
        await until(lambda: (1, 1) in calls)
        assert running.state().ready
    assert calls == [(0, 1), (0, 2), (1, 1)]
    letters: list[Any] = []
    async with Admin(instance=client) as admin:
        for queue in await admin.queues(dlq_topic(topic[-40:])):
            letters += (await admin.pull(queue, 0)).messages
    assert sorted(json.loads(letter.body)["row"] for letter in letters) == [0, 1, 2, 3]
    assert {letter.properties["DLQ_REASON"] for letter in letters} == {"ArithmeticError: the sink is full"}


async def test_jobs_of_an_async_function_belong_to_the_query_and_leave_the_loop_alone(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path
) -> None:
    await send(broker, topic, 0, 3)
    threads: list[threading.Thread] = []
    ids: list[Any] = []

    def count(rows: DataFrame) -> int:
        threads.append(threading.current_thread())
        context = rows.sparkSession.sparkContext
        ids.append((context.getLocalProperty("spark.jobGroup.id"), context.getLocalProperty("sql.streaming.queryId")))
        return rows.count()

    async def handle(rows: DataFrame, batch: SparkBatch) -> None:
        threads.append(threading.current_thread())
        assert await batch.run(count, rows) == 3
        with pytest.raises(ZeroDivisionError):
            await batch.run(lambda: 1 // 0)
        ids.append(batch.query_id)

    running = spark_listener(handle, client, topic, tmp_path, trigger="available_now")
    async with running:
        await running.wait()
        assert running.status is SparkListenerState.FINISHED, running.error
    assert threads[0] is threading.current_thread()
    assert threads[1] is not threads[0]
    (job_group, query_id), told = ids
    assert job_group
    assert query_id == told


async def test_a_missing_topic_is_told_and_read_from_its_beginning_when_it_comes(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    running = spark_listener(seen.handle, client, topic, tmp_path, starting_offsets="latest")
    async with running:
        await until(lambda: running.state().reason not in (None, "starting"))
        state = running.state()
        assert not state.ready
        assert state.reason == f"waits for topic {topic}, which no name server knows yet"
        await send(broker, topic, 0, 5)
        await until(lambda: seen.rows == [0, 1, 2, 3, 4])
        assert running.state().ready
    assert caplog.text.count(f"topic {topic} does not exist yet") == 1


@pytest.mark.parametrize("said", [None, "77s"])
async def test_a_hanging_function_does_not_stretch_the_stop_and_is_named_and_the_session_keeps_its_own_timeout(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path, spark: SparkSession,
    caplog: pytest.LogCaptureFixture, said: str | None,
) -> None:  # fmt: skip
    """The session may be one of the user's own, who have queries besides: for these it is as they have made it."""
    before = spark.conf.getAll.get(STOP_TIMEOUT)
    release, begun = threading.Event(), []

    def hangs(rows: DataFrame, batch: SparkBatch) -> None:
        begun.append(batch.id)
        release.wait(MINUTES)

    runtime = SparkRuntime("tests", {})
    topics = [f"{topic[:90]}_{number}" for number in range(2)]
    for each in topics:
        await send(broker, each, 0, 1)
    both = [spark_listener(hangs, client, each, tmp_path / each, runtime=runtime) for each in topics]
    try:
        if said is None:
            spark.conf.unset(STOP_TIMEOUT)
        else:
            spark.conf.set(STOP_TIMEOUT, said)
        async with both[0], both[1]:
            await until(lambda: len(begun) == 2)
            began = RealClock().monotonic()
            async with anyio.create_task_group() as tasks:  # as an application does it
                for running in both:
                    tasks.start_soon(running.drain, 4.0)
            took = RealClock().monotonic() - began
        left_in = RealClock().monotonic() - began - took
        assert spark.conf.getAll.get(STOP_TIMEOUT) == said
    finally:
        release.set()
        if before is not None:
            spark.conf.set(STOP_TIMEOUT, before)
    assert took < 7, "4 s, and what a busy machine adds"
    assert left_in < 10, "nothing is drained twice; the end of two listeners' threads is waited for 2 s each"
    line = hangs.__code__.co_firstlineno + 2
    assert caplog.text.count(f"{Path(__file__).name}:{line} in") >= 2
    assert "has not ended within" in caplog.text


async def test_a_replica_stands_by_and_takes_over_where_the_checkpoint_is_shared(
    broker: Broker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketbox.spark.lease.CONFIRM_INTERVAL", 0.5)  # what a new holder waits for a former one
    await send(broker, topic, 0, 4)
    seen: dict[str, Seen] = {name: Seen() for name in ("one", "two", "three")}
    ends: dict[str, anyio.Event] = {name: anyio.Event() for name in seen}
    drivers: dict[str, SparkListenerContainer] = {}

    async def replica(name: str, checkpoint: str) -> None:
        """A driver with a client of its own; in one session, so its query has a cluster's name."""
        async with MQClientInstance(broker.name_server) as client:
            running = spark_listener(
                seen[name].handle, client, topic, tmp_path / checkpoint, cluster=name, group="replicas"
            )
            async with running:
                drivers[name] = running
                await ends[name].wait()

    async def stands_by(name: str) -> None:
        await until(lambda: name in drivers and drivers[name].status is SparkListenerState.STANDING_BY)

    async def has_read_all(name: str) -> None:
        await until(lambda: name in drivers and drivers[name].state().progress.get("lag") == 0)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(replica, "one", "shared")
        await has_read_all("one")
        tasks.start_soon(replica, "two", "shared")
        await stands_by("two")
        state = drivers["two"].state()
        assert (state.status, state.ready) == (ContainerStatus.STANDING_BY, True)
        assert state.reason == "another driver holds its lock at broker broker-a"
        ends["one"].set()
        await send(broker, topic, 4, 6)
        await until(lambda: seen["two"].rows == [4, 5])
        await has_read_all("two")
        tasks.start_soon(replica, "three", "own")
        await stands_by("three")
        ends["two"].set()
        await until(lambda: drivers["three"].status is SparkListenerState.FAILED)
        assert "the checkpoint is not shared: group replicas has read" in str(drivers["three"].state().reason)
        ends["three"].set()
    assert [seen[name].rows for name in seen] == [[0, 1, 2, 3], [4, 5], []]


async def test_a_checkpoint_that_was_reset_is_begun_with_also_where_another_driver_held_the_lease(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed, on another machine, and its lease lives on for a minute."""
    monkeypatch.setattr("rocketbox.spark.lease.CONFIRM_INTERVAL", 0.5)
    await send(broker, topic, 0, 4)
    seen = Seen()
    first = spark_listener(seen.handle, client, topic, tmp_path / "lake")
    async with first:
        await until(lambda: first.state().progress.get("lag") == 0)
    set_aside(tmp_path / "lake")
    killed = Lease(client, first.group, topic, holder="another machine")
    assert (await killed.take()).held
    second = spark_listener(seen.handle, client, topic, tmp_path / "lake")
    async with second:
        await until(lambda: second.status is SparkListenerState.STANDING_BY)
        await send(broker, topic, 4, 6)
        await killed.release()
        await until(lambda: second.has_ended or len(seen.rows) == 6)
        assert second.status is SparkListenerState.RUNNING, second.state().reason
    assert seen.rows == [0, 1, 2, 3, 4, 5]


async def test_who_gets_a_lease_that_brokers_have_forgotten_waits_until_its_former_holder_knows(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path, spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    noticed = anyio.Event()

    async def until_noticed(_: Lease) -> None:
        await noticed.wait()

    monkeypatch.setattr(Lease, "until_noticed", until_noticed)
    await send(broker, topic, 0, 4)
    seen = Seen()
    first = spark_listener(seen.handle, client, topic, tmp_path)
    async with first:
        await until(lambda: first.state().progress.get("lag") == 0)
        log = BatchLog(spark, str(tmp_path))
        assert str(log.holder()).endswith((tmp_path / "rocketbox" / "driver").read_text())
    assert log.holder() is None, "it was given back"
    again = spark_listener(seen.handle, client, topic, tmp_path)
    async with again:
        await until(lambda: again.status is SparkListenerState.RUNNING)
    log.note_holder("another machine")
    other = spark_listener(seen.handle, client, topic, tmp_path)
    async with other:
        await until(lambda: "has not given its lease back" in str(other.state().reason))
        await send(broker, topic, 4, 6)
        assert len(seen.rows) == 4
        noticed.set()
        await until(lambda: len(seen.rows) == 6)
    assert log.holder() is None
    assert seen.rows == [0, 1, 2, 3, 4, 5]


async def test_a_new_checkpoint_of_a_group_that_has_read_waits_whether_another_driver_shows_once_more(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its brokers were started anew, and have forgotten who reads."""
    shown, stands_back = anyio.Event(), anyio.Event()

    async def stand_back(lease: Lease) -> None:
        await lease.release()
        stands_back.set()
        await shown.wait()

    monkeypatch.setattr(Lease, "stand_back", stand_back)
    await send(broker, topic, 0, 4)
    seen, other_seen = Seen(), Seen()
    first = spark_listener(seen.handle, client, topic, tmp_path / "one")
    async with first:
        await until(lambda: first.state().progress.get("lag") == 0)
        assert not stands_back.is_set(), "the first one of its group"
    holder = Lease(client, group_of(topic), topic, holder="the one whom they have forgotten")
    other = spark_listener(other_seen.handle, client, topic, tmp_path / "two")
    async with other:
        with anyio.fail_after(MINUTES):
            await stands_back.wait()
        state = other.state()
        assert (state.status, state.ready) == (ContainerStatus.STARTING, False)
        assert state.reason == "its checkpoint is new, and its group has read before: another driver shows within 30 s"
        assert (await holder.take()).held
        shown.set()
        await until(lambda: other.status is SparkListenerState.STANDING_BY)
        await send(broker, topic, 4, 6)
        await holder.release()
        monkeypatch.setattr("rocketbox.spark.lease.CONFIRM_INTERVAL", 0.2)
        await until(lambda: other.status is SparkListenerState.FAILED)
        assert "the checkpoint is not shared" in str(other.state().reason)
    assert other_seen.rows == []
    alone = spark_listener(other_seen.handle, client, topic, tmp_path / "three")
    async with alone:  # nobody shows
        await until(lambda: other_seen.rows == [4, 5])


@pytest.mark.parametrize("fails", ["session", "committed"])
async def test_a_checkpoint_that_is_not_shared_is_refused_also_where_a_step_before_has_failed(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    await send(broker, topic, 0, 4)
    runtime, seen = SparkRuntime("tests", {}), Seen()
    first = spark_listener(seen.handle, client, topic, tmp_path / "one", runtime=runtime)
    async with first:
        await until(lambda: first.state().progress.get("lag") == 0)
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    again = spark_listener(seen.handle, client, topic, tmp_path / "one", runtime=runtime)
    async with again:
        await send(broker, topic, 4, 6)
        await until(lambda: seen.rows == [0, 1, 2, 3, 4, 5])
        await until(lambda: again.state().progress.get("lag") == 0)

    failures = [ConnectError("127.0.0.1:1", "it was away for a moment")]

    def fails_once(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **options: Any) -> Any:
            if failures:
                raise failures.pop()
            return await function(*arguments, **options)

        return call

    if fails == "session":
        monkeypatch.setattr(runtime, "session", fails_once(runtime.session))
    else:
        monkeypatch.setattr(Admin, "committed", fails_once(Admin.committed))
    behind = spark_listener(seen.handle, client, topic, tmp_path / "copy", runtime=runtime)
    async with behind:
        await until(lambda: behind.has_ended or len(seen.rows) > 6)
        assert not failures
        assert behind.status is SparkListenerState.FAILED
        assert "the checkpoint is not shared" in str(behind.state().reason)
    assert seen.rows == [0, 1, 2, 3, 4, 5]


async def test_nobody_gets_the_lease_while_a_function_is_left_at_work(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketbox.spark.lease.CONFIRM_INTERVAL", 0.5)
    hold, at_work = threading.Event(), threading.Event()

    def hangs(rows: DataFrame) -> None:
        at_work.set()
        hold.wait(MINUTES)

    await send(broker, topic, 0, 1)
    try:
        async with MQClientInstance(broker.name_server) as another:
            running = spark_listener(hangs, client, topic, tmp_path / "checkpoint", drain_timeout=1.0)
            async with running:
                await until(at_work.is_set)
                rival = await give_lease_to("rival", running, another)
                await until(lambda: running.status is SparkListenerState.STANDING_BY)
                await rival.release()
                await until(lambda: "has not ended yet" in str(running.state().reason))
                assert "its query has been stopped" in str(running.state().reason)
                with anyio.fail_after(MINUTES):
                    await running.drain(1.0)
                assert not hold.is_set()
                assert (await rival.take()).by_another
    finally:
        hold.set()


def test_a_lease_that_is_lost_while_the_java_process_dies_needs_no_restart_of_the_service(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "support" / "spark" / "lost_lease_dead_java.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"seen": [0, 1, 2, 3, 4], "why": None}


def test_a_java_process_that_is_killed_is_replaced_and_a_dead_one_does_not_fail_the_stop(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "support" / "spark" / "killed_java.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["reason"].startswith("its query has ended: the Java process of its session is gone")
    assert report["at once"] == 1, "the function is not called beside the call that goes on"
    assert report["waits"].startswith("its Java process has ended while its function was at work, which has not ended")
    assert report["status"] == "stopped"
    assert report["seen"] == [0, 1, 2, 3, 4]


async def test_a_listener_tells_of_options_that_a_checkpoint_makes_nothing_of(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await send(broker, topic, 0, 3)
    seen = Seen()
    async with spark_listener(seen.handle, client, topic, tmp_path, trigger="available_now") as first:
        await first.wait()
    assert seen.rows == [0, 1, 2]
    caplog.clear()
    await anyio.to_thread.run_sync(broker.send, topic, rows_of(3, 5), lambda number: "AB"[number])
    changed = spark_listener(
        seen.handle, client, topic, tmp_path,
        trigger="available_now", starting_offsets="latest", selector_expression="A",
    )  # fmt: skip
    async with changed:
        await changed.wait()
    assert seen.rows == [0, 1, 2, 3], "it goes on where it stood"
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    start, tags = told
    assert start.startswith(
        f"Spark listener {group_of(topic)}: starting_offsets is latest now, and is not used: the query of this "
        "checkpoint began with group, and goes on where it stands"
    )
    assert tags.startswith(f"Spark listener {group_of(topic)}: selector_expression is A from the next batch on")


async def test_a_checkpoint_of_another_topic_is_refused_as_that_wherever_it_began(
    broker: Broker, client: MQClientInstance, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen, other = Seen(), f"{topic}_b"
    for each in (topic, other):
        await send(broker, each, 0, 4)
    begin = json.dumps({topic: {"broker-a": {"0": 1}}})
    made = partial(spark_listener, seen.handle, client, checkpoint=tmp_path, group="lake", trigger="available_now")
    async with made(topic=topic, starting_offsets=begin) as first:
        await first.wait()
    caplog.clear()
    async with made(topic=other, starting_offsets="earliest") as changed:
        await changed.wait()
        reason = changed.state().reason
    assert reason is not None
    assert "CheckpointError" in reason
    assert f"topic {other}" in reason
    assert "startingOffsets names" not in reason
    assert "starting_offsets is earliest now" not in caplog.text
