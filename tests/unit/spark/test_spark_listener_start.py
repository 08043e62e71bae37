"""What a Spark listener says before Spark is there: signatures, schemas, checkpoints, and a machine without Java."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypedDict

import pytest

pytest.importorskip("pyspark")

import anyio
import anyio.to_thread
import pandas as pd  # type: ignore[import-untyped]  # it has no types
import pyarrow as pa
from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession

from rocketbox.client import MQClientInstance
from rocketbox.clock import RealClock
from rocketbox.errors import ConfigurationError
from rocketbox.listeners import ContainerStatus
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.spark import listener, session
from rocketbox.spark.batch import SparkBatch
from rocketbox.spark.detached import Detached
from rocketbox.spark.java import JavaNotFoundError
from rocketbox.spark.listener import (
    SparkListenerContainer,
    SparkListenerOptions,
    SparkListenerState,
    read_spark_signature,
)
from rocketbox.spark.query_options import RowForm
from rocketbox.spark.session import SparkRuntime
from tests.support.client.scripted_cluster import ScriptedCluster
from tests.support.spark.lock_tables import LockTable
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.anyio]


class Service:
    """A bean."""


def handle(rows: DataFrame, batch: SparkBatch, service: Service, spark: SparkSession, limit: int = 3) -> None:
    rows.count()


@pytest.fixture
async def client() -> AsyncIterator[MQClientInstance]:
    """A client of a broker that has the topic t and gives locks."""
    clock = RealClock()
    cluster = ScriptedCluster(clock)
    LockTable(clock, cluster.broker)
    cluster.broker.scripts[RequestCode.GET_MAX_OFFSET] = lambda *_: RemotingCommand.response(ext_fields={"offset": "0"})
    cluster.add_topic("t")
    instance = MQClientInstance(cluster.name_server.address, clock=clock, network=cluster.network)
    async with cluster, instance:
        yield instance


def container(
    checkpoint: Path, runtime: SparkRuntime, client: MQClientInstance | None = None, **options: Any
) -> SparkListenerContainer:
    return SparkListenerContainer(
        SparkListenerOptions(topic="t", group="g", checkpoint=str(checkpoint), **options),
        read_spark_signature(handle),
        runtime=runtime,
        instance=client or MQClientInstance("127.0.0.1:1"),
        provider=lambda hint: partial({Service: Service(), int: 3}.__getitem__, hint),
        clock=RealClock(),
    )


def test_parameters_behind_the_data_frame_are_bound_by_type() -> None:
    signature = read_spark_signature(handle)
    assert dict(signature.parameters) == {"batch": SparkBatch, "service": Service, "spark": SparkSession, "limit": int}
    assert signature.beans == (Service, int)
    assert not signature.is_async


def nothing() -> None: ...


def no_frame(batch: SparkBatch) -> None: ...


def a_table(rows: pa.Table) -> None: ...


def no_type(rows: DataFrame, other) -> None: ...  # type: ignore[no-untyped-def]


def a_generator(rows: DataFrame) -> Iterator[int]:
    yield 1


async def an_async_generator(rows: DataFrame) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (a_generator, "Spark listener a_generator: it is a generator, whose call runs nothing"),
        (wraps(an_async_generator)(lambda rows: None), "it is a generator"),
        (nothing, "takes no parameters"),
        (no_frame, "first parameter 'batch' is not a DataFrame"),
        (no_type, "parameter 'other' has no type"),
        (a_table, "first parameter 'rows' is one of pyarrow, and as_ is 'spark'; say as_='arrow'"),
    ],
)
def test_a_signature_that_cannot_be_bound_is_refused(function: Callable[..., Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as failure:
        read_spark_signature(function)
    assert Path(__file__).name in str(failure.value.findings[0].where)


def test_the_first_parameter_is_of_the_form_that_was_asked_for() -> None:
    def a_pandas_frame(rows: pd.DataFrame) -> None: ...

    def anything(rows) -> None: ...  # type: ignore[no-untyped-def]

    pairs = ((a_table, "arrow"), (a_pandas_frame, "pandas"), (anything, "polars"), (handle, "spark"))
    for function, form in pairs:
        assert read_spark_signature(function, RowForm(form)).function is function
    with pytest.raises(ConfigurationError, match="is one of pyspark, and as_ is 'arrow'; say as_='spark'"):
        read_spark_signature(handle, RowForm.ARROW)


class WithMessage(BaseModel):
    message: str


class WithError(TypedDict):
    _error: str


class WithComplex(BaseModel):
    value: complex


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (WithMessage, "has a field 'message', and that is"),
        (WithError, "has a field '_error', and that is the column of a message's error"),
        (WithComplex, r"WithComplex\.value: Spark has no"),
    ],
)
def test_a_schema_that_cannot_be_columns_is_refused(schema: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=text):
        container(tmp_path, SparkRuntime("t", {}), schema=schema)


async def test_without_java_the_listener_says_so_and_the_rest_goes_on(
    tmp_path: Path, client: MQClientInstance, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_java() -> None:
        raise JavaNotFoundError("Spark needs Java 17 or newer")

    monkeypatch.setattr(session, "has_session", lambda: False)
    monkeypatch.setattr(session, "find_java", no_java)
    async with SparkRuntime("t", {}) as runtime, container(tmp_path, runtime, client) as listener:
        await listener.wait()
        assert listener.status is SparkListenerState.UNAVAILABLE
        assert listener.has_ended
        assert isinstance(listener.error, JavaNotFoundError)
        state = listener.state()
        assert (state.status, state.ready) == (ContainerStatus.FAILED, False)
        assert state.reason == "Spark needs Java 17 or newer"
    assert "Spark listener g does not run, everything else does. Spark needs Java 17 or newer" in caplog.text


async def test_two_listeners_with_one_checkpoint_are_refused(
    tmp_path: Path, client: MQClientInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_java() -> None:
        raise JavaNotFoundError("no Java")

    monkeypatch.setattr(session, "has_session", lambda: False)
    monkeypatch.setattr(session, "find_java", no_java)
    async with SparkRuntime("t", {}) as runtime:
        async with container(tmp_path, runtime, client):
            with pytest.raises(ConfigurationError, match="two Spark listeners would keep their progress in one"):
                async with container(tmp_path, runtime, client):
                    pytest.fail("it must not start")
        async with container(tmp_path, runtime, client) as again:  # free again
            await again.wait()
            assert isinstance(again.error, JavaNotFoundError), "it has got as far as to look for Java"


class SlowJava:
    """Sessions that are made when ``go`` is set: by then nobody may want them any more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.made = 0
        monkeypatch.setattr(session, "create_session", self.create)

    def create(self, app_name: str, conf: dict[str, str]) -> Any:
        self.made += 1
        self.begun.set()
        self.go.wait(PATIENCE)
        self.ended.set()
        raise JavaNotFoundError("it has gone")


async def test_a_stop_does_not_wait_for_a_session_that_is_still_being_made(
    tmp_path: Path, client: MQClientInstance, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    java = SlowJava(monkeypatch)
    with anyio.fail_after(PATIENCE):
        async with SparkRuntime("t", {}, stop_timeout=0.01) as runtime:
            async with container(tmp_path, runtime, client) as listener:
                await anyio.to_thread.run_sync(java.begun.wait)
            assert listener.status is SparkListenerState.STOPPED
    assert not java.ended.is_set()
    assert "the SparkSession is still being made, and the stop does not wait for it (rocketbox.shutdown.timeout)" in (
        caplog.text
    )
    java.go.set()
    await anyio.to_thread.run_sync(java.ended.wait)


async def test_a_stop_waits_for_no_thread_that_a_java_process_holds_which_answers_nothing(
    tmp_path: Path, client: MQClientInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed later in the stop, whose time that is: else nothing of it would be left."""

    def no_java() -> None:
        raise JavaNotFoundError("no Java")

    monkeypatch.setattr(session, "has_session", lambda: False)
    monkeypatch.setattr(session, "find_java", no_java)
    monkeypatch.setattr(listener, "LAST_BATCH", 2 * PATIENCE)
    begun, go = threading.Semaphore(0), threading.Event()

    def hang() -> None:
        begun.release()
        go.wait()

    try:
        async with anyio.create_task_group() as tasks:
            with anyio.fail_after(PATIENCE):
                async with SparkRuntime("t", {}) as runtime, container(tmp_path, runtime, client) as held:
                    await held.wait()
                    for _ in range(2):
                        tasks.start_soon(held._threads.run, hang)
                        await anyio.to_thread.run_sync(begun.acquire)
                    held._stop.java_answers = False
            assert held.status is SparkListenerState.STOPPED
            go.set()
    finally:
        go.set()


async def test_who_asks_for_a_session_that_somebody_has_waited_for_gets_that_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    java = SlowJava(monkeypatch)
    async with SparkRuntime("t", {}) as runtime:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.session)
            await anyio.to_thread.run_sync(java.begun.wait)
            tasks.cancel_scope.cancel()
        java.go.set()
        with pytest.raises(JavaNotFoundError):
            await runtime.session()
        assert java.made == 1
        with pytest.raises(JavaNotFoundError):
            await runtime.session()
        assert java.made == 2, "one that could not be made is tried again"


async def test_a_session_that_is_there_just_when_nobody_waits_for_it_any_more_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped: list[object] = []
    made = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=None))
    monkeypatch.setattr(session, "create_session", lambda *_: made)
    monkeypatch.setattr(session, "_stop", stopped.append)
    async with SparkRuntime("t", {}) as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(runtime.session)
        while runtime._making is None:
            await anyio.lowlevel.checkpoint()
        while not runtime._making._result:
            pass  # the loop stands still, so that it does not hear of it yet
        tasks.cancel_scope.cancel()
        runtime._making._ended.set()  # before who waits runs again
    assert stopped == [made]


async def test_what_ends_when_nobody_wants_it_any_more_is_done_away_with() -> None:
    go, gone, away = threading.Event(), threading.Event(), list[int]()

    def work() -> int:
        go.wait(PATIENCE)
        return 7

    def abandoned(result: int) -> None:
        away.append(result)
        gone.set()

    late = Detached("late", work, abandoned)
    late.give_up()
    go.set()
    await anyio.to_thread.run_sync(gone.wait)
    soon = Detached("soon", work, abandoned)
    assert await soon.result() == 7
    assert away == [7]
    soon.give_up()
    assert away == [7, 7]
