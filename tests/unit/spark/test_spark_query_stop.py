"""The stop of a query while its Java process hangs: it answers nothing, and is not gone either. No Java is needed."""

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
from rocketbox.spark.query_stop import QueryStop
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio


class HangingJava:
    """Stands for a session and a query: whatever is asked of them waits until ``answers`` is set."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked = threading.Semaphore(0)
        self.conf = SimpleNamespace(set=self._ask)

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
