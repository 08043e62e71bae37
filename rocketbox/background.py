"""A service on a loop of its own, in a thread of its own, for code that has no loop: Flask, Django, Celery, scripts.

What runs there is handed in as a context manager; calls are handed over by anyio's blocking portal.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from types import TracebackType
from typing import ParamSpec, Protocol, Self, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from rocketbox.calls_from_threads import result_of
from rocketbox.errors import ClientStateError, ForkedError, NotStartedError
from rocketbox.loops import in_event_loop, loop_options, run_loop

__all__ = ["Background"]

_log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")
P = ParamSpec("P")

_running: set[Background] = set()  # those that nobody keeps, too: the end of the process stops them


class Service(Protocol):
    """What runs in the background."""

    async def wait_until_wanted(self) -> None:
        """Return when the service itself wants the end."""

    def told_of_end(self, error: BaseException, see_traceback: str) -> str:
        """What an error that ended it is to a user: what failed, where, and what to do.

        ``see_traceback`` is what to do to see more of it.
        """


SEE_TRACEBACK = f"logger {__name__} shows the traceback at level debug"
HOW_TO_START = "call its start(), or use it inside 'with'"


class Background:
    """``with Background(...) as background:`` is started inside; any thread may :meth:`call` into its loop.

    Without a block to stand around, :meth:`start` and :meth:`stop`; a process that ends stops it in order by itself.
    Entering blocks until the service is ready and raises what its start raises; leaving blocks until it has stopped.
    A process that is forked has to start one of its own, after the fork.

    While ``host()`` gives a portal, the service runs there already, as it does in a test harness: calls go into that
    loop, and there is nothing to start or to stop.
    """

    def __init__(
        self,
        name: str,
        service: Callable[[], AbstractAsyncContextManager[Service]],
        host: Callable[[], BlockingPortal | None] = lambda: None,
    ) -> None:
        self.name = name
        self._service = service
        self._host = host
        self._thread: _ServiceThread | None = None
        self._stopping: _ServiceThread | None = None

    @property
    def is_running(self) -> bool:
        """Whether it was started in this process, and has neither been stopped nor ended by itself."""
        thread = self._thread
        if thread is None and self._host() is not None:
            return True
        return thread is not None and thread.process == os.getpid() and not thread.has_ended

    def start(self) -> Self:
        """Start the service; ClientStateError when it runs already."""
        if self._thread is None and self._host() is not None:
            return self
        if self.is_running:
            raise ClientStateError(f"the background of {self.name} is running already")
        self._refuse_in_loop("start")
        thread = self._thread = _ServiceThread(self.name, self._service)
        try:
            thread.start()
        except BaseException:  # KeyboardInterrupt too: the thread would go on, and nobody could stop it
            self._thread = None
            thread.ask_to_stop()
            raise
        _running.add(self)
        return self

    def stop(self) -> None:
        """Stop the service in order and end its thread. What is not started, or was before a fork, is left alone."""
        thread = self._thread
        if thread is None or thread.process != os.getpid():
            return
        self._refuse_in_loop("stop")
        _running.discard(self)
        self._thread, self._stopping = None, thread
        thread.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def call(self, function: Callable[P, Awaitable[ResultT]], *args: P.args, **kwargs: P.kwargs) -> ResultT:
        """The result of a coroutine function, which runs in the service's loop while the caller waits.

        Raises what it raises; NotStartedError; ForkedError in a fork of the process that started it; ClientStateError
        where an event loop runs, which the wait would block. A stop of the service cancels the calls that still wait:
        ``concurrent.futures.CancelledError``.
        """
        future = self.submit(function, *args, **kwargs)
        try:
            return result_of(future)
        except BaseException:  # KeyboardInterrupt above all
            future.cancel()
            raise

    def submit(self, function: Callable[P, Awaitable[ResultT]], *args: P.args, **kwargs: P.kwargs) -> Future[ResultT]:
        """As :meth:`call`, without waiting. Cancelling the future cancels the call."""
        thread = self._thread  # another thread may stop it meanwhile
        if thread is None and (portal := self._host()) is not None:
            self._refuse_in_loop("call")
            return portal.start_task_soon(partial(function, *args, **kwargs))
        if thread is None:
            stops = self._stopping is not None and not self._stopping.has_ended
            how = "it stops: call it before, or await in an async hook" if stops else HOW_TO_START
            raise NotStartedError(f"the background of {self.name}", how)
        if thread.process != os.getpid():
            raise ForkedError(self.name, thread.process)
        self._refuse_in_loop("call")
        if thread.is_starting:
            raise NotStartedError(
                f"the background of {self.name}", "it is about to: call it when its start() has returned"
            )
        if not thread.has_started:
            raise NotStartedError(f"the background of {self.name}", HOW_TO_START)
        try:
            return thread.portal.start_task_soon(partial(function, *args, **kwargs))
        except RuntimeError as error:  # it has ended by itself
            raise NotStartedError(f"the background of {self.name}", HOW_TO_START) from error

    def _refuse_in_loop(self, verb: str) -> None:
        if in_event_loop():
            raise ClientStateError(
                f"background.{verb}() of {self.name} would block the event loop that runs in this thread; "
                "use 'async with app:' and await there"
            )


class _ServiceThread:
    """One run of the service. Not a generator that waits for its end: in a fork, collecting that would hang."""

    portal: BlockingPortal

    def __init__(self, name: str, service: Callable[[], AbstractAsyncContextManager[Service]]) -> None:
        self.name = name
        self.process = os.getpid()
        self._service = service
        self._stop_wanted = False
        self._ready: Future[None] = Future()
        self._ended: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=f"rocketbox {name}", daemon=True)

    @property
    def has_ended(self) -> bool:
        """Whether it has run, and does so no more."""
        return self._ended.done()

    @property
    def is_starting(self) -> bool:
        """Whether it is neither ready nor has failed to become so."""
        return not self._ready.done()

    @property
    def has_started(self) -> bool:
        """Whether its start has succeeded, so that it has, or had, a loop to call into."""
        return self._ready.done() and self._ready.exception() is None

    def start(self) -> None:
        self._thread.start()
        result_of(self._ready)

    def ask_to_stop(self) -> None:
        """Let it stop, as soon as it has started if it is still about that."""
        self._stop_wanted = True
        with suppress(RuntimeError, AttributeError):  # it has ended by itself, or has not come to its loop
            self.portal.start_task_soon(self._stop.set)

    def stop(self) -> None:
        self.ask_to_stop()
        self._thread.join()
        self._ended.result()

    def _run(self) -> None:
        try:
            run_loop(self._serve, **loop_options())
        except BaseException as error:  # it belongs to the thread that started this one
            self._failed(error)
        else:
            if not self._ended.done():
                self._ended.set_result(None)

    async def _serve(self) -> None:
        self._stop = anyio.Event()
        service: Service | None = None
        async with BlockingPortal() as self.portal:
            try:
                async with self._service() as service:
                    self._ready.set_result(None)
                    if not self._stop_wanted:
                        await self._until_stop(service)
            except Exception as error:  # here, before the portal's task group wraps it
                self._failed(error, service)
            await self.portal.stop(cancel_remaining=True)

    async def _until_stop(self, service: Service) -> None:
        async def wait_for_its_own_wish() -> None:
            await service.wait_until_wanted()
            self._stop.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for_its_own_wish)
            await self._stop.wait()
            tasks.cancel_scope.cancel()

    def _failed(self, error: BaseException, service: Service | None = None) -> None:
        if self._ready.done() and service is not None:
            told = service.told_of_end(error, SEE_TRACEBACK)
            _log.error("the background of %s has failed, and runs no more\n%s", self.name, told)
            _log.debug("the background of %s has failed", self.name, exc_info=error)
        elif self._ready.done():
            _log.error("the background of %s has failed, and runs no more", self.name, exc_info=error)
        future = self._ended if self._ready.done() else self._ready
        if not future.done():
            future.set_exception(error)


def _stop_all() -> None:
    for background in list(_running):
        with suppress(Exception):  # its thread has told it
            background.stop()


# Before Python waits for threads, and from 3.12 on starts none any more: as concurrent.futures does it. What ``atexit``
# calls comes after that.
getattr(threading, "_register_atexit", atexit.register)(_stop_all)
