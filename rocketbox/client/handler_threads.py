"""The threads of a consumer's ``def`` handlers, and what is known of those that hang.

A handler's time begins when its thread does: what waits in line for a thread has not been tried. Threads cannot be
cancelled, so a handler that never returns keeps its thread; when all of them hang, the consumer stops pulling.

Source: own design; takes the place of the thread pool in Apache's ``ConsumeMessageConcurrentlyService``.
"""

from __future__ import annotations

import inspect
import logging
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeGuard, TypeVar

import anyio

from rocketbox.blocking import Job, WorkerPool
from rocketbox.client.outcomes import AnyHandler, BlockingHandler, MessageHandler, Outcomes, Preparation
from rocketbox.client.workers import in_hand
from rocketbox.clock import Clock
from rocketbox.message import MessageExt

__all__ = ["HandlerThreads", "is_blocking", "preparation"]

_log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

GRACE = 1.0  # seconds for threads whose handlers were not done when the drain ended
STANDARD_LIBRARY = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))


def is_blocking(given: AnyHandler) -> TypeGuard[BlockingHandler]:
    """Whether a handler is a ``def``, which may block and is called in a thread."""
    return not (
        inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(getattr(given, "__call__", None))  # noqa: B004
    )


def preparation(given: AnyHandler) -> Preparation | None:
    """How a call of a ``def`` is prepared; None for an ``async def``."""
    if not is_blocking(given):
        return None
    return partial(partial, given)  # for a batch: partial(given, batch), without a function of ours between


class HandlerThreads:
    """``count`` threads for one group. ``async with HandlerThreads(20, "desk", clock) as threads``.

    Its end waits a second for what still runs, and leaves the rest to itself.
    """

    def __init__(self, count: int, group: str, clock: Clock) -> None:
        self.count = count
        self._group = group
        self._clock = clock
        self._pool = WorkerPool(count, group)
        self.running: dict[int, float] = {}
        """When the handler began that a thread is at, by thread: they write it down themselves."""
        self.hung: tuple[str, ...] = ()
        """The lines that the threads hang at, while all of them do."""

    async def __aenter__(self) -> Self:
        await self._pool.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True), self._clock.move_on_after(GRACE) as scope:
            await self._pool.__aexit__(None, None, None)
        if scope.cancelled_caught:
            _log.warning("group %s: a def handler still runs in its thread; it is left to itself", self._group)

    async def run(self, function: Callable[..., ResultT], *args: Any) -> ResultT:
        """The result of ``function(*args)``, which runs in a thread of its own; raises what it raises."""
        handling = in_hand()
        if handling is None:
            return await self._pool.run(self._call, None, function, args)
        handling.wait_in_line(self._clock.monotonic())
        try:
            return await self._pool.run(self._call, handling.leave_line, function, args)
        finally:
            handling.leave_line(self._clock.monotonic())  # it was cancelled before the thread began

    @property
    def context(self) -> Context:
        """What handlers run in copies of: the context in which the threads were started, without its loop."""
        return self._pool.context

    def put(self, jobs: Sequence[Job]) -> None:
        """Put jobs into the line of the threads."""
        self._pool.put(jobs)

    def take_back(self, kind: type[Job]) -> list[Job]:
        """Take those of a kind out of the line; no thread has begun them, and none will."""
        return self._pool.take_back(kind)

    def on_delivered(self, call: Callable[[], object]) -> None:
        """Have call called in the loop whenever some jobs have ended there."""
        self._pool.on_delivered = call

    def _call(
        self, begin: Callable[[float], None] | None, function: Callable[..., ResultT], args: tuple[Any, ...]
    ) -> ResultT:
        thread, now = threading.get_ident(), self._clock.monotonic()
        self.running[thread] = now
        if begin is not None:
            begin(now)
        try:
            return function(*args)
        finally:
            del self.running[thread]

    def handler(self, given: AnyHandler) -> MessageHandler:
        """given as an async function: one that is a ``def`` runs in a thread."""
        if not is_blocking(given):
            return given  # type: ignore[return-value] # an async function is what was asked

        async def in_a_thread(batch: list[MessageExt]) -> Outcomes:
            result = await self.run(given, batch)
            if result is not None and inspect.isawaitable(result):  # a def may return a coroutine
                return await result
            return result

        return in_a_thread

    async def watch(self, limit: float, changed: Callable[[], None]) -> None:
        """Look for ever whether all threads have hung for longer than limit; call changed when that changes."""
        step = min(max(limit / 20, 0.05), 30.0)
        while True:
            soonest = 0.0 if self.hung else self._all_begun() + limit - self._clock.monotonic()
            await self._clock.sleep(max(step, soonest))
            late = self._clock.monotonic() - limit
            hanging = [thread for thread, began in list(self.running.items()) if began < late]
            before, self.hung = self.hung, self._lines(hanging) if len(hanging) >= self.count else ()
            if self.hung and not before:
                _log.error(
                    "group %s: all %d threads of its def handlers have hung for more than consume_timeout (%g s), so "
                    "it pulls nothing more until one returns. They hang at: %s",
                    self._group, self.count, limit, "; ".join(self.hung),
                )  # fmt: skip
            elif before and not self.hung:
                _log.warning("group %s: a def handler has returned, it pulls again", self._group)
            if bool(before) != bool(self.hung):
                changed()

    def _all_begun(self) -> float:
        """Since when all threads have been busy: the handler that began last did it then. Now, where one is free."""
        began = list(self.running.values())
        return max(began) if len(began) >= self.count else self._clock.monotonic()

    def _lines(self, threads: list[int]) -> tuple[str, ...]:
        frames = sys._current_frames()
        return tuple(_line(traceback.extract_stack(frames[thread])) for thread in threads if thread in frames)


def _line(stack: traceback.StackSummary) -> str:
    """The innermost line that is not Python's own library's."""
    own = [frame for frame in stack if not frame.filename.startswith(STANDARD_LIBRARY)] or list(stack)
    return f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}"
