"""Waiters and the worker pool, under asyncio and trio."""

from __future__ import annotations

import contextvars
import threading

import anyio
import pytest

from rocketbox.errors import NotStartedError
from rocketbox.handoff import WorkerPool, make_waiter

pytestmark = pytest.mark.anyio


async def test_a_waiter_hands_over_its_result() -> None:
    waiter = make_waiter()
    async with anyio.create_task_group() as group:

        async def wait() -> None:
            assert await waiter == "answer"

        group.start_soon(wait)
        await anyio.lowlevel.checkpoint()
        assert not waiter.done()
        waiter.set_result("answer")
    assert waiter.done()


async def test_a_waiter_hands_over_its_error() -> None:
    waiter = make_waiter()
    waiter.set_exception(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        await waiter


async def test_functions_run_in_threads_and_their_results_come_back() -> None:
    async with WorkerPool(4, "test") as pool:
        names = [await pool.run(lambda: threading.current_thread().name) for _ in range(8)]
        assert threading.current_thread().name not in names
        with pytest.raises(ZeroDivisionError):
            await pool.run(divmod, 1, 0)
        assert await pool.run(divmod, 7, 2) == (3, 1)


async def test_no_more_functions_run_at_once_than_threads() -> None:
    running = 0
    most = 0
    lock = threading.Lock()
    both = threading.Barrier(2, timeout=10)

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        both.wait()  # only two at once can pass, so two do run at once
        with lock:
            running -= 1

    async with WorkerPool(2, "test") as pool, anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(pool.run, work)
    assert most == 2


async def test_the_callers_context_is_seen_in_the_thread() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("here")
    async with WorkerPool(1, "test") as pool:
        assert await pool.run(variable.get) == "here"


async def test_cancelling_the_caller_drops_the_result_only() -> None:
    started = threading.Event()
    release = threading.Event()
    finished = threading.Event()

    def work() -> None:
        started.set()
        release.wait(10)
        finished.set()

    async with WorkerPool(1, "test") as pool:
        async with anyio.create_task_group() as group:
            group.start_soon(pool.run, work)
            await anyio.to_thread.run_sync(started.wait)
            group.cancel_scope.cancel()
        release.set()
        assert await pool.run(lambda: "next") == "next"
    assert finished.is_set()


async def test_a_closed_pool_refuses_work() -> None:
    async with WorkerPool(1, "test") as pool:
        assert await pool.run(lambda: 1) == 1
    with pytest.raises(NotStartedError):
        await pool.run(lambda: 1)
