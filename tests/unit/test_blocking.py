"""Blocking functions in the worker pool and, where it is said, in the loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

from rocketbox.blocking import Job, WorkerPool, blocking_in_loop, run_blocking
from rocketbox.errors import NotStartedError
from tests.support.clocks import settle
from tests.support.loops import anyio_backend as anyio_backend
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio


class Noted(Job):
    """Waits for an event, if it has one, and notes its end."""

    def __init__(self, name: str, ended: list[str], wait_for: threading.Event | None = None) -> None:
        super().__init__()
        self.name = name
        self.all_ended = ended
        self.wait_for = wait_for
        self.began = threading.Event()

    def run(self) -> object:
        self.began.set()
        return self.wait_for is None or self.wait_for.wait(10)

    def ended(self) -> None:
        self.all_ended.append(self.name)


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.001)


async def test_functions_run_in_threads_and_their_results_come_back() -> None:
    async with WorkerPool(4, "test") as pool:
        names = [await pool.run(lambda: threading.current_thread().name) for _ in range(8)]
        assert threading.current_thread().name not in names
        with pytest.raises(ZeroDivisionError):
            await pool.run(divmod, 1, 0)
        assert await pool.run(divmod, 7, 2) == (3, 1)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_function_may_call_into_the_loop_by_anyio() -> None:
    """Under asyncio, which users have: trio's own call from a thread knows trio's own threads only."""

    async def where() -> int:
        await anyio.lowlevel.checkpoint()
        return threading.get_ident()

    async with WorkerPool(1, "test") as pool:
        assert await pool.run(anyio.from_thread.run, where) == threading.get_ident()
        assert await pool.run(anyio.from_thread.run_sync, threading.get_ident) == threading.get_ident()
        await pool.run(anyio.from_thread.check_cancelled)  # it is not


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


async def test_a_function_whose_caller_was_cancelled_in_line_is_not_begun() -> None:
    release = threading.Event()
    called: list[str] = []

    async with WorkerPool(1, "test") as pool, anyio.create_task_group() as group:
        group.start_soon(pool.run, release.wait, 10)
        await anyio.wait_all_tasks_blocked()
        async with anyio.create_task_group() as given_up:
            given_up.start_soon(pool.run, called.append, "given up")
            await anyio.wait_all_tasks_blocked()
            given_up.cancel_scope.cancel()
        release.set()
        await pool.run(called.append, "next")
    assert called == ["next"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_that_is_cancelled_itself_waits_for_the_end_of_its_function(anyio_backend: str) -> None:
    """As by asyncio.timeout(), wait_for() or a server that stops: no scope of anyio's keeps that away."""
    started, release, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        release.wait(10)
        ended.set()

    task = asyncio.ensure_future(run_blocking(work))
    await anyio.to_thread.run_sync(started.wait)
    for _ in range(2):
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    assert not task.done(), "the function still runs behind the back of who cancelled it"
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_function_whose_task_is_cancelled_before_a_thread_begins_it_is_never_begun(anyio_backend: str) -> None:
    called: list[str] = []
    for turns in range(4):
        task = asyncio.ensure_future(run_blocking(called.append, "called"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        calls = len(called)
        await anyio.to_thread.run_sync(int)  # the thread that would have begun it has another turn
        assert len(called) == calls


@pytest.mark.parametrize("error", [StopIteration, GeneratorExit, KeyboardInterrupt])
async def test_what_would_end_who_awaits_a_function_is_an_error_and_not_a_hang(error: type[BaseException]) -> None:
    def fails() -> None:
        raise error

    async with WorkerPool(1, "test") as pool:
        with anyio.fail_after(PATIENCE), pytest.raises(RuntimeError, match=error.__name__):
            await pool.run(fails)
        assert await pool.run(lambda: "next") == "next"


async def test_who_still_waits_in_line_when_the_pool_closes_is_told() -> None:
    release = threading.Event()
    ended: list[str] = []
    refused: list[NotStartedError] = []
    async with anyio.create_task_group() as group:

        async def wait_in_line() -> None:
            with pytest.raises(NotStartedError) as caught:
                await pool.run(lambda: None)
            refused.append(caught.value)

        with anyio.fail_after(PATIENCE):
            async with WorkerPool(1, "test") as pool:
                runs = Noted("runs", ended, release)
                pool.put([runs])
                await until(runs.began.is_set)  # what has not begun would be dropped, too
                group.start_soon(wait_in_line)
                await anyio.wait_all_tasks_blocked()
                group.start_soon(anyio.to_thread.run_sync, release.set)
    assert len(refused) == 1
    assert ended == ["runs"]


async def test_a_pool_that_is_closed_has_no_thread_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread tells of its end before its last steps, which take their time on a busy machine."""
    live, never = WorkerPool._live, threading.Event()

    def lingers(pool: WorkerPool) -> None:
        live(pool)
        never.wait(0.005)

    monkeypatch.setattr(WorkerPool, "_live", lingers)
    before = set(threading.enumerate())
    async with WorkerPool(2, "test") as pool:
        await pool.run(str)
    assert set(threading.enumerate()) <= before


async def test_a_pool_does_not_wait_for_what_its_threads_kept_for_themselves() -> None:
    """Such as a connection, which may take long to close: the function itself has ended."""
    mine, go_on, told = threading.local(), threading.Event(), []

    class Connection:
        def __del__(self) -> None:
            told.append(go_on.wait(PATIENCE))

    def connect() -> None:
        mine.connection = Connection()

    async with WorkerPool(1, "test") as pool:
        await pool.run(connect)
        (thread,) = pool._threads
    assert told == []
    go_on.set()
    await anyio.to_thread.run_sync(thread.join)
    assert told == [True]


async def test_a_closed_pool_refuses_work() -> None:
    async with WorkerPool(1, "test") as pool:
        assert await pool.run(lambda: 1) == 1
    with pytest.raises(NotStartedError):
        await pool.run(lambda: 1)


async def test_blocking_functions_run_in_the_loop_when_it_is_said_and_no_thread_starts() -> None:
    later: list[Callable[[], object]] = []
    ended: list[str] = []
    here = threading.get_ident()

    def work(name: str) -> None:
        assert threading.get_ident() == here
        ended.append(name)

    async with anyio.create_task_group() as group:
        with blocking_in_loop(later.append):
            pool = await WorkerPool(2, "test").__aenter__()
            for name in "abc":
                group.start_soon(pool.run, work, name)
            await settle()
            assert (len(later), ended) == (2, []), "as many as there would be threads"
            later.pop()()
            await settle()
            assert len(later) == 2, "the next in line"
            group.start_soon(run_blocking, work, "d")
            await settle()
        for call in later:
            call()
        later.clear()
    assert sorted(ended) == ["a", "b", "c", "d"]
    await pool.__aexit__(None, None, None)


async def test_what_waits_in_line_in_the_loop_is_dropped_at_the_end() -> None:
    later: list[Callable[[], object]] = []
    ended: list[str] = []

    async def refused(pool: WorkerPool) -> None:
        with pytest.raises(NotStartedError):
            await pool.run(ended.append, "second")

    with blocking_in_loop(later.append):
        async with anyio.create_task_group() as group, WorkerPool(1, "test") as pool:
            group.start_soon(pool.run, ended.append, "first")
            await settle()
            group.start_soon(refused, pool)
            await settle()
            group.start_soon(anyio.lowlevel.checkpoint)

            async def let_it_end() -> None:
                await settle()
                later.pop()()

            group.start_soon(let_it_end)
    assert ended == ["first"]


async def test_many_quick_jobs_come_back_by_few_deliveries() -> None:
    ended: list[str] = []
    deliveries = 0

    def delivered() -> None:
        nonlocal deliveries
        deliveries += 1

    async with WorkerPool(20, "test") as pool:
        pool.on_delivered = delivered
        with anyio.fail_after(10):
            for number in range(1, 21):
                pool.put([Noted(f"{number}-{index}", ended) for index in range(50)])
                while len(ended) < 50 * number:
                    await anyio.sleep(0.001)
        assert len(ended) == 1000
    assert deliveries < 400, "of 1000 jobs; other work on the machine adds some"


@pytest.mark.parametrize("blocking", [1, 3])
async def test_no_job_waits_behind_a_blocked_one_while_a_thread_is_idle(blocking: int) -> None:
    ended: list[str] = []
    release = threading.Event()
    async with WorkerPool(blocking + 1, "test") as pool:
        for _ in range(20):
            await pool.run(lambda: None)  # all threads are there, and idle
        blocked = [Noted("blocked", ended, release) for _ in range(blocking)]
        quick = [Noted(f"{number}", ended) for number in range(50)]
        pool.put([quick[0], *blocked, *quick[1:]])
        try:
            await until(lambda: len(ended) == 50)
            await until(
                lambda: all(job.began.is_set() for job in blocked)
            )  # a thread may have taken it and not run yet
        finally:
            release.set()
        await until(lambda: len(ended) == 50 + blocking)


async def test_what_is_finished_comes_back_while_the_next_job_blocks_the_only_thread() -> None:
    ended: list[str] = []
    release = threading.Event()
    async with WorkerPool(1, "test") as pool:
        pool.put([Noted("first", ended), Noted("second", ended, release), Noted("third", ended)])
        try:
            await until(lambda: bool(ended))
        finally:
            release.set()
        await until(lambda: len(ended) == 3)
    assert ended == ["first", "second", "third"]


async def test_jobs_that_are_taken_back_are_never_begun_and_others_stay_in_line() -> None:
    ended: list[str] = []
    release = threading.Event()
    async with WorkerPool(1, "test") as pool, anyio.create_task_group() as group:
        first, second = Noted("first", ended, release), Noted("second", ended)
        pool.put([first])
        await until(first.began.is_set)
        group.start_soon(pool.run, ended.append, "awaited")
        await anyio.wait_all_tasks_blocked()
        pool.put([second])
        assert pool.take_back(Noted) == [second]
        release.set()
        await until(lambda: len(ended) == 2)
    assert sorted(ended) == ["awaited", "first"]
    assert not second.began.is_set()


async def test_every_job_of_many_small_hand_overs_ends_once() -> None:
    """Threads fall idle and are woken all the while: no wake-up may be lost."""
    ended: list[str] = []
    async with WorkerPool(3, "test") as pool:
        for number in range(2000):
            pool.put([Noted(f"{number}-{index}", ended) for index in range(number % 4)])
            if number % 3 == 0:
                await anyio.lowlevel.checkpoint()
        await until(lambda: len(ended) == 3000)
    assert len(set(ended)) == 3000


async def test_the_threads_that_could_be_started_do_the_work_of_those_that_could_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, started = threading.Thread.start, list[str]()

    def only_one(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread.name)
        start(thread)

    ended: list[str] = []
    async with WorkerPool(4, "test") as pool:
        with monkeypatch.context() as limited:
            limited.setattr(threading.Thread, "start", only_one)
            for _ in range(3):
                pool.put([Noted("job", ended) for _ in range(10)])
            await until(lambda: len(ended) == 30)
        with anyio.fail_after(PATIENCE):
            assert await pool.run(divmod, 7, 2) == (3, 1)
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    assert "has 1 of 4 threads" in caplog.text


async def test_a_function_that_no_thread_can_take_fails_and_is_not_begun_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    called: list[int] = []
    async with WorkerPool(2, "test") as pool:
        with monkeypatch.context() as limited:
            limited.setattr(threading.Thread, "start", refuse)
            with anyio.fail_after(PATIENCE), pytest.raises(RuntimeError, match="worker pool test has no thread"):
                await pool.run(called.append, 1)
        await pool.run(called.append, 2)
    assert called == [2]
