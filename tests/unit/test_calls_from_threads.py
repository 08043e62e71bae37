"""Coroutine functions that threads have called in a loop: results, errors, cancellations, the close, forks."""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import ctypes
import gc
import os
import signal
import threading
import traceback
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest

from rocketbox.calls_from_threads import Call, CallsFromThreads, Wakes, threads_waiting_for_loops
from rocketbox.clock import RealClock
from rocketbox.errors import ClientStateError, ForkedError, NotStartedError
from rocketbox.loops import call_soon_from_thread
from tests.support.loops import anyio_backend as anyio_backend
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

airport: contextvars.ContextVar[str] = contextvars.ContextVar("airport", default="")


def new_calls() -> CallsFromThreads:
    return CallsFromThreads(lambda: "the client", RealClock())


@pytest.fixture
async def calls() -> AsyncIterator[CallsFromThreads]:
    async with new_calls() as calls:
        yield calls


def in_a_thread(function: Callable[..., Any], *args: Any) -> Future[Any]:
    """A thread that is neither anyio's nor of a pool, as a web server's."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


@contextmanager
def in_another_threads_loop() -> Iterator[CallsFromThreads]:
    """For callers in the main thread, where signals arrive."""
    ready: Future[tuple[CallsFromThreads, Callable[[], object]]] = Future()

    async def serve() -> None:
        stop = anyio.Event()
        async with new_calls() as calls:
            call_soon = call_soon_from_thread()
            ready.set_result((calls, lambda: call_soon(stop.set)))
            await stop.wait()

    thread = threading.Thread(target=lambda: anyio.run(serve), daemon=True)
    thread.start()
    calls, stop = ready.result(PATIENCE)
    try:
        yield calls
    finally:
        stop()
        thread.join(PATIENCE)


async def ended(future: Future[Any]) -> Any:
    with anyio.fail_after(PATIENCE):
        while not future.done():
            await anyio.sleep(0.001)
    return future.result()


async def twice(number: int) -> int:
    await anyio.lowlevel.checkpoint()
    return 2 * number


async def test_a_thread_gets_the_result_of_what_it_calls(calls: CallsFromThreads) -> None:
    assert await ended(in_a_thread(calls.call, "twice", twice, 21)) == 42
    assert not threads_waiting_for_loops()


async def test_many_threads_get_their_own_results(calls: CallsFromThreads) -> None:
    def many(begin: int) -> list[int]:
        return [calls.call("twice", twice, begin + number) for number in range(200)]

    futures = [in_a_thread(many, begin * 1000) for begin in range(8)]
    for begin, future in enumerate(futures):
        assert await ended(future) == [2 * (begin * 1000 + number) for number in range(200)]


async def test_an_error_is_raised_in_the_thread_with_the_line_that_raised_it(calls: CallsFromThreads) -> None:
    async def fail() -> None:
        raise LookupError("no such flight")

    with pytest.raises(LookupError, match="no such flight") as caught:
        await ended(in_a_thread(calls.call, "fail", fail))
    assert "fail" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


async def test_a_wish_to_exit_ends_the_call_and_not_the_loop(calls: CallsFromThreads) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await ended(in_a_thread(calls.call, "leave", leave))
    assert await ended(in_a_thread(calls.call, "twice", twice, 1)) == 2


async def test_it_runs_in_the_context_variables_of_the_thread(calls: CallsFromThreads) -> None:
    async def where() -> str:
        await anyio.lowlevel.checkpoint()
        return airport.get()

    def call() -> str:
        airport.set("JFK")
        return calls.call("where", where)

    assert await ended(in_a_thread(call)) == "JFK"
    assert await where() == ""


async def test_where_a_loop_runs_it_is_refused_with_the_way_out(calls: CallsFromThreads) -> None:
    with pytest.raises(
        ClientStateError, match=r"template\.blocking\.send\(\) would block the event loop.*await template"
    ):
        calls.call("template.blocking.send", twice, 1)


def test_in_the_thread_whose_loop_stands_still_it_is_refused() -> None:
    async def started() -> CallsFromThreads:
        return await new_calls().__aenter__()

    with asyncio.Runner() as runner:
        calls = runner.run(started())
        with pytest.raises(ClientStateError, match=r"would wait for ever.*does not run now"):
            calls.call("twice", twice, 21)  # would wait for ever

        async def in_another_thread() -> None:
            assert await ended(in_a_thread(calls.call, "twice", twice, 21)) == 42
            await calls.close()

        runner.run(in_another_thread())
        with pytest.raises(NotStartedError):
            calls.call("twice", twice, 21)


def test_a_thread_whose_call_outlives_the_loop_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client was entered and never left; ``asyncio.run`` ends its tasks, and nobody the calls without one."""
    monkeypatch.setattr("rocketbox.calls_from_threads.LOOK_AROUND", 0.01)

    class Unanswered(Call):
        def begin(self) -> None:
            begun.set()

        def cancel(self) -> None:
            raise AssertionError("its loop is closed")

    async def started() -> tuple[CallsFromThreads, Future[Any]]:
        calls = await new_calls().__aenter__()
        future = in_a_thread(lambda: calls.wait_for(Unanswered("send")))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        return calls, future

    begun = threading.Event()
    calls, future = asyncio.run(started())
    with pytest.raises(ClientStateError, match=r"the event loop of the client has ended while send\(\) was under way"):
        future.result(PATIENCE)
    with pytest.raises(NotStartedError):
        in_a_thread(calls.call, "twice", twice, 21).result(PATIENCE)
    assert not threads_waiting_for_loops()


async def test_before_the_start_and_after_the_end_nothing_is_called() -> None:
    calls = new_calls()
    with pytest.raises(NotStartedError, match="the client is not started"):
        await ended(in_a_thread(calls.call, "twice", twice, 1))
    async with calls:
        assert await ended(in_a_thread(calls.call, "twice", twice, 1)) == 2
    with pytest.raises(NotStartedError, match=r"twice\(\) was not carried out"):
        await ended(in_a_thread(calls.call, "twice", twice, 1))


async def test_the_end_waits_for_what_has_begun_and_refuses_what_comes(calls: CallsFromThreads) -> None:
    begun, go_on = anyio.Event(), anyio.Event()

    async def slow() -> str:
        begun.set()
        await go_on.wait()
        return "done"

    future = in_a_thread(calls.call, "slow", slow)
    await begun.wait()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(calls.close)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(NotStartedError):
            await ended(in_a_thread(calls.call, "twice", twice, 1))
        assert not future.done()
        go_on.set()
    assert await ended(future) == "done"


async def test_the_end_cuts_short_what_does_not_end(calls: CallsFromThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketbox.calls_from_threads.PATIENCE_AT_THE_END", 0.05)
    begun = anyio.Event()

    async def stay() -> None:
        begun.set()
        await anyio.sleep_forever()

    future = in_a_thread(calls.call, "stay", stay)
    await begun.wait()
    await calls.close()
    with pytest.raises(ClientStateError, match=r"closed while stay\(\) was under way: it may have been carried out"):
        await ended(future)


async def test_no_thread_is_left_waiting_whenever_the_end_comes() -> None:
    for _ in range(50):
        calls = new_calls()
        async with calls:
            futures = [in_a_thread(calls.call, "twice", twice, number) for number in range(4)]
            await anyio.lowlevel.checkpoint()
        for number, future in enumerate(futures):
            try:
                assert await ended(future) == 2 * number
            except NotStartedError:
                continue
    assert not threads_waiting_for_loops()


async def test_a_cancelled_owner_leaves_no_thread_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rocketbox.calls_from_threads.PATIENCE_AT_THE_END", 0.05)
    futures = []
    with anyio.CancelScope() as scope:
        async with new_calls() as calls:
            futures = [in_a_thread(calls.call, "sleep", anyio.sleep_forever) for _ in range(3)]
            while len(calls.under_way) < 3:
                await anyio.sleep(0.001)
            scope.cancel()
            await anyio.sleep_forever()
    for future in futures:
        with pytest.raises(ClientStateError):
            await ended(future)


async def test_what_is_handed_over_is_done_and_nobody_waits(calls: CallsFromThreads) -> None:
    done = anyio.Event()

    async def do() -> None:
        done.set()
        raise LookupError("lost")

    await ended(in_a_thread(calls.hand_over, "do", do))
    with anyio.fail_after(PATIENCE):
        await done.wait()


async def test_an_interrupt_before_the_loop_was_woken_leaves_no_other_call_waiting(
    calls: CallsFromThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    call_soon = calls._call_soon

    def interrupted(function: Callable[[], object]) -> object:
        monkeypatch.setattr(calls, "_call_soon", call_soon)
        raise KeyboardInterrupt

    monkeypatch.setattr(calls, "_call_soon", interrupted)
    with pytest.raises(KeyboardInterrupt):
        await ended(in_a_thread(calls.call, "twice", twice, 1))
    assert await ended(in_a_thread(calls.call, "twice", twice, 2)) == 4
    assert not threads_waiting_for_loops()


async def test_a_handler_of_signals_may_call_wherever_it_interrupts_a_call(calls: CallsFromThreads) -> None:
    done = anyio.Event()

    async def do() -> None:
        done.set()

    class Interrupted(deque[Call]):
        def append(self, call: Call) -> None:
            calls._line = deque(self)
            calls.hand_over("do", do)  # as the handler would: between two steps of the call, in its thread
            calls._line.append(call)

    calls._line = Interrupted()
    assert await ended(in_a_thread(calls.call, "twice", twice, 1)) == 2
    with anyio.fail_after(PATIENCE):
        await done.wait()


@pytest.mark.parametrize("comes", ["with the call in the line", "before the loop is woken"])
def test_a_handler_of_signals_that_interrupts_a_call_may_wait_for_those_of_others(
    comes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signals come there, to a thread that sends all the time, once in some hundred or thousand times."""
    found: list[int] = []
    with in_another_threads_loop() as calls:
        call_soon = calls._call_soon

        def handler(*_: object) -> None:
            found.append(in_a_thread(calls.call, "twice", twice, 1).result(PATIENCE))
            found.append(calls.call("twice", twice, 2))

        def interrupted(function: Callable[[], object]) -> object:
            monkeypatch.setattr(calls, "_call_soon", call_soon)
            signal.raise_signal(signal.SIGUSR1)
            return call_soon(function)

        class Interrupted(deque[Call]):
            def append(self, call: Call) -> None:
                calls._line = deque([call])
                signal.raise_signal(signal.SIGUSR1)

        if comes == "before the loop is woken":
            monkeypatch.setattr(calls, "_call_soon", interrupted)
        else:
            calls._line = Interrupted()
        before = signal.signal(signal.SIGUSR1, handler)
        try:
            assert calls.call("twice", twice, 3) == 6
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert found == [2, 4]


@pytest.mark.parametrize("waits_for_others", [False, True])
async def test_a_finalizer_that_calls_in_the_midst_of_a_call_leaves_nobody_waiting(
    waits_for_others: bool, calls: CallsFromThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that logs, where a handler of logging sends: it is called while its thread was to wake the loop."""
    monkeypatch.setattr("rocketbox.calls_from_threads.LOOK_AROUND", 0.01)
    call_soon, found = calls._call_soon, list[int]()

    def finalize() -> None:
        if waits_for_others:
            found.append(in_a_thread(calls.call, "twice", twice, 1).result(PATIENCE))
        else:
            found.append(calls.call("twice", twice, 1))

    def interrupted(function: Callable[[], object]) -> object:
        monkeypatch.setattr(calls, "_call_soon", call_soon)
        finalize()
        return call_soon(function)

    monkeypatch.setattr(calls, "_call_soon", interrupted)
    assert await ended(in_a_thread(calls.call, "twice", twice, 2)) == 4
    assert found == [2]
    assert await ended(in_a_thread(calls.call, "twice", twice, 3)) == 6
    assert not threads_waiting_for_loops()


@pytest.mark.parametrize("taken_by_the_loop", [False, True])
async def test_what_comes_into_the_line_behind_its_close_is_refused(
    taken_by_the_loop: bool, calls: CallsFromThreads
) -> None:
    """Its thread has seen it open, and stood still while it was closed."""

    class Late(deque[Call]):
        def append(self, call: Call) -> None:
            calls._line = deque()
            anyio.from_thread.run(calls.close)
            calls._line.append(call)
            if taken_by_the_loop:
                anyio.from_thread.run_sync(calls._begin)

    calls._line = Late()
    with anyio.fail_after(PATIENCE), pytest.raises(NotStartedError, match=r"twice\(\) was not carried out"):
        await anyio.to_thread.run_sync(calls.call, "twice", twice, 1)
    assert not calls._line
    assert not calls.under_way.calls


async def test_an_error_is_gone_with_who_has_caught_it(calls: CallsFromThreads) -> None:
    class BigError(Exception):
        """What would keep whatever its frames hold."""

    errors: list[weakref.ref[BigError]] = []

    async def fail() -> None:
        raise BigError

    def call() -> None:
        try:
            calls.call("fail", fail)
        except BigError as error:
            errors.append(weakref.ref(error))

    gc.disable()
    try:
        await ended(in_a_thread(call))
        with anyio.fail_after(PATIENCE):
            while errors[0]() is not None:
                await anyio.sleep(0.001)
    finally:
        gc.enable()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    "interrupts",
    [
        pytest.param(interrupt, id="while it waits"),
        # What comes between the last look for signals and the wait ends no wait. This way it never does.
        pytest.param(_thread.interrupt_main, id="before it waits"),
    ],
)
def test_an_interrupt_ends_the_wait_and_the_call(interrupts: Callable[[], None]) -> None:
    """In the main thread, where Ctrl-C arrives."""
    cancelled, waited_on = threading.Event(), list[str]()

    async def stay() -> None:
        interrupts()
        try:
            await anyio.sleep(PATIENCE)
            waited_on.append("to the end")
        finally:
            cancelled.set()

    with in_another_threads_loop() as calls:
        with pytest.raises(KeyboardInterrupt):
            calls.call("stay", stay)
        assert cancelled.wait(PATIENCE)
        assert not waited_on


async def test_a_thread_that_is_interrupted_while_it_waits_wakes_those_behind_it(calls: CallsFromThreads) -> None:
    class DeadlineError(Exception):
        """What a library of time limits raises in a thread from outside."""

    may_end = anyio.Event()
    begun: list[int] = []

    async def wait(number: int) -> int:
        begun.append(number)
        await may_end.wait()
        return number

    futures: list[Future[int]] = []
    for number in range(8):
        futures.append(in_a_thread(calls.call, "wait", wait, number))
        with anyio.fail_after(PATIENCE):
            while len(begun) <= number:
                await anyio.sleep(0.001)
    interrupted = sorted(call.thread for call in calls.under_way.calls)[::2]
    for thread in interrupted:
        assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(DeadlineError)) == 1

    may_end.set()

    results, deadlines = [], 0
    for future in futures:
        try:
            results.append(await ended(future))
        except DeadlineError:
            deadlines += 1
    assert deadlines == len(set(results)) == 4
    assert not threads_waiting_for_loops()
    assert not calls.under_way.calls


class Quick(Call):
    """One that has ended already, of the thread with this ident."""

    def __init__(self, thread: int) -> None:
        super().__init__("quick")
        self.thread = thread

    def begin(self) -> None:
        raise AssertionError("it has ended")

    def cancel(self) -> None:
        raise AssertionError("it has ended")

    @property
    def is_woken(self) -> bool:
        return not self.done.locked()


def test_the_main_thread_is_woken_at_once_and_wakes_nobody() -> None:
    """A handler of signals could raise there when it has taken another one out of the line, and not woken it yet."""
    wakes = Wakes()
    first, second, third, own = Quick(1), Quick(2), Quick(3), Quick(threading.get_ident())
    for each in (first, second, third, own):
        wakes.wake(each)
    assert [each.is_woken for each in (first, second, third, own)] == [True, False, False, True]
    wakes.go_on(own)
    assert not second.is_woken
    wakes.go_on(first)
    assert [second.is_woken, third.is_woken] == [True, False]
    wakes.go_on(second)
    assert third.is_woken


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
async def test_the_thread_that_forks_is_the_main_one_of_the_child() -> None:
    """``multiprocessing.Pool`` replaces its workers in a thread of its own."""

    def fork() -> int:
        child = os.fork()
        if not child:
            wakes, calls = Wakes(), [Quick(threading.get_ident()), Quick(threading.get_ident())]
            for each in calls:
                wakes.wake(each)
            os._exit(7 if all(each.is_woken for each in calls) else 8)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert await ended(in_a_thread(fork)) == 7


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
async def test_in_a_fork_it_is_refused(calls: CallsFromThreads) -> None:
    def fork() -> int:
        child = os.fork()
        if not child:
            try:
                calls.call("twice", twice, 1)
            except ForkedError:
                os._exit(7)
            except BaseException:
                os._exit(8)
            os._exit(9)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert await ended(in_a_thread(fork)) == 7
