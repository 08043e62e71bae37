"""A Java process that hangs, answers nothing and is not gone either: how it is told, and the stop. It needs no Java."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

pytest.importorskip("pyspark")

from rocketbox.blocking import WorkerPool
from rocketbox.clock import RealClock
from rocketbox.spark import query_stop
from rocketbox.spark.java_watch import JavaWatch
from rocketbox.spark.query_stop import QueryStop
from tests.support.clocks import VirtualClock
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio


class HangingJava:
    """Stands for a session and a query: whatever is asked of them waits until ``answers`` is set."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked = threading.Semaphore(0)

    @property
    def conf(self) -> bool:
        return self._ask()

    def _ask(self, *_: object) -> bool:
        self.asked.release()
        self.answers.wait()
        return False

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        return self._ask()


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(query_stop, "LONGEST_RESERVE", 0.05)
    monkeypatch.setattr(query_stop, "NO_ANSWER", 0.05)
    hanging = HangingJava()
    yield hanging
    hanging.answers.set()


@pytest.mark.parametrize("at_work", [False, True])
@pytest.mark.parametrize("asking_already", [0, 2])
async def test_a_java_process_that_hangs_does_not_stretch_the_stop(
    java: Any, at_work: bool, asking_already: int, caplog: pytest.LogCaptureFixture
) -> None:
    idle = threading.Event()
    if not at_work:
        idle.set()
    batches: Any = SimpleNamespace(
        idle=idle, attempt=(0, 1), done=-1, hangs_at=lambda: None, take_back=lambda: java.isActive
    )
    async with WorkerPool(2, "spark") as threads, anyio.create_task_group() as others:
        for _ in range(asking_already):
            others.start_soon(threads.run, lambda: java.isActive)
            await anyio.to_thread.run_sync(java.asked.acquire)
        stop = QueryStop("lake", batches, portal=None, threads=threads, clock=RealClock())
        with anyio.fail_after(PATIENCE):
            await stop.drain(java, java, 0.1)
        assert stop.has_left_one_behind  # so that nobody else gets its lease before that ends
        assert "its Java process does not answer" in caplog.text
        java.answers.set()


async def test_a_java_process_that_goes_on_after_it_has_hung_is_asked_again_at_the_next_stop(java: Any) -> None:
    """Else an attempt that the stop cuts short would count."""
    idle, taken_back = threading.Event(), list[int]()
    idle.set()
    batches: Any = SimpleNamespace(
        idle=idle, attempt=(0, 1), done=-1, hangs_at=lambda: None, take_back=lambda: taken_back.append(1)
    )
    async with WorkerPool(2, "spark") as threads:
        stop = QueryStop("lake", batches, portal=None, threads=threads, clock=RealClock())
        with anyio.fail_after(PATIENCE):
            await stop.stop(java, java, 0.1)  # its lease is lost
            answered = [stop.java_answers]
            java.answers.set()
            assert await stop.has_ended()
            assert [*answered, stop.java_answers] == [False, True]
            await stop.drain(java, java, 0.1)
    assert taken_back


async def test_a_java_process_that_hangs_is_told_within_half_a_minute_and_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, hanging, answered = VirtualClock(), HangingJava(), anyio.Event()
    java: Any = hanging
    watch = JavaWatch("lake", clock)
    async with WorkerPool(1, "spark") as threads, anyio.create_task_group() as others:

        async def ask() -> None:
            assert not await watch.is_active(java, threads)
            answered.set()

        others.start_soon(watch.watch)
        await clock.advance(60)
        assert watch.trouble is None, "nothing is asked"
        others.start_soon(ask)
        await anyio.to_thread.run_sync(hanging.asked.acquire)
        await clock.advance(20)
        assert watch.trouble is None
        await clock.advance(10)
        assert "has not answered for 20 s" in str(watch.trouble)
        await clock.advance(60)
        hanging.answers.set()
        await answered.wait()
        await clock.advance(5)
        assert watch.trouble is None
        others.cancel_scope.cancel()
    said = [record.getMessage() for record in caplog.records if "lake" in record.getMessage()]
    assert [each.partition("process ")[2].split()[0] for each in said] == ["has", "answers"]
