"""Calls of ``def`` handlers, handed to their threads and fetched back some at a time.

A call has no task and no waiter of its own. As many are handed over as there are threads; where handlers are quick, as
many more as they end within 2 ms, so that one wake-up does for all of them. Which thread takes which is the pool's
part: there is one line, so none waits behind a slow handler while a thread is idle. What no thread has begun has not
been tried: it is taken out of the line at a stop, and left alone when its queue was closed.

What a failed call is followed by is handed in by ``consume``.

Source: own design (benchmark "push consume, def handler": a third of the cost of a task and a waiter for each call);
takes the place of the thread pool in Apache's ``ConsumeMessageConcurrentlyService``.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from threading import get_ident

from rocketbox.blocking import Job
from rocketbox.client.handler_threads import HandlerThreads
from rocketbox.client.message_source import MessageSource
from rocketbox.client.outcomes import BlockingHandler, Outcomes
from rocketbox.clock import Clock
from rocketbox.message import MessageExt
from rocketbox.tasks import SupervisedTask, Supervisor
from rocketbox.waiters import Waiter, make_waiter

__all__ = ["HandlerCall", "HandlerCalls"]

AHEAD = 0.002  # seconds: what may wait for threads is what they end within this
MOST_AHEAD = 128  # calls: the hand-over is a hundredth of their cost then
HANDFUL = 16  # calls with messages of one queue before those of the next one come


class HandlerCall(Job):
    """One call of a ``def`` handler. ``handling``: its handler has not ended, or not begun, and nobody gave it up."""

    __slots__ = ("_calls", "_handler", "batch", "began", "handling", "queue", "task", "took")

    def __init__(
        self, calls: HandlerCalls, handler: BlockingHandler, queue: MessageSource, batch: list[MessageExt]
    ) -> None:
        super().__init__()
        self._calls = calls
        self._handler = handler
        self.queue = queue
        self.batch = batch
        self.began: float | None = None
        self.took = 0.0
        self.handling = True
        self.task: SupervisedTask | None = None

    def run(self) -> Outcomes | Awaitable[Outcomes]:
        if self.queue.closed:
            return None
        calls = self._calls
        thread, monotonic, running = get_ident(), calls.clock.monotonic, calls.threads.running
        self.began = running[thread] = began = monotonic()
        try:
            return calls.threads.context.copy().run(self._handler, self.batch[:])  # handlers may change their list
        finally:
            del running[thread]
            self.took = monotonic() - began

    def ended(self) -> None:
        self._calls.ended.append(self)

    async def outcomes(self, batch: list[MessageExt]) -> Outcomes:
        """What the handler returned; raises what it raised. A ``def`` may return a coroutine, too."""
        if self.failure is not None:
            raise self.failure
        if inspect.isawaitable(self.result):
            return await self.result  # type: ignore[no-any-return] # what a handler returns is looked at later
        return self.result  # type: ignore[no-any-return]


class HandlerCalls:
    """Those of one consumer.

    ``handler_of(queue)`` says who is called with its messages, and with how many; None for a queue that is not for
    threads, which ``elsewhere`` gets. ``settle(call)`` sees to a call that did not simply return.
    """

    def __init__(
        self,
        threads: HandlerThreads,
        handler_of: Callable[[MessageSource], tuple[BlockingHandler, int] | None],
        elsewhere: Callable[[MessageSource], object],
        settle: Callable[[HandlerCall], Awaitable[None]],
        tasks: Supervisor,
        clock: Clock,
    ) -> None:
        self.threads = threads
        self.clock = clock
        self.ended: list[HandlerCall] = []
        """Their threads are done with them; for what is told next in the loop."""
        self._handler_of = handler_of
        self._elsewhere = elsewhere
        self._settle = settle
        self._tasks = tasks
        self._line: deque[MessageSource] = deque()
        self._in_hand: set[HandlerCall] = set()  # handed over, and not settled
        self._ahead = 0
        self._closed = False
        self._unsettled: deque[HandlerCall] = deque()
        self._new_unsettled: Waiter | None = None
        self._drained: list[Waiter] = []

    def start(self) -> None:
        self.threads.on_delivered(self._go_on)
        self._tasks.start("outcomes of def handlers", self._see_to_outcomes)

    def line_up(self, queue: MessageSource) -> None:
        """Put queue at the end of the line."""
        if self._closed:
            return
        queue.attended = True
        self._line.append(queue)
        self._hand_over()

    def close(self) -> None:
        """Begin nothing any more; what threads have begun goes on."""
        self._closed = True
        self._line.clear()
        for call in self.threads.take_back(HandlerCall):
            assert isinstance(call, HandlerCall)
            self._forget(call)

    def cancel(self) -> None:
        """Whatever becomes of what is in hand no longer counts."""
        self.close()
        for call in list(self._in_hand):
            self.give_up(call)

    async def drained(self) -> None:
        """Return when nothing is in hand."""
        while self._in_hand:
            waiter = make_waiter()
            self._drained.append(waiter)
            try:
                await waiter
            finally:
                self._drained.remove(waiter)

    @property
    def busy(self) -> int:
        """Calls that are in hand."""
        return len(self._in_hand)

    def slower_than(self, seconds: float) -> list[HandlerCall]:
        """Those whose handler began longer ago than seconds and has not ended."""
        oldest = self.clock.monotonic() - seconds
        return [call for call in self._in_hand if call.handling and call.began is not None and call.began < oldest]

    def oldest(self) -> float:
        """When the handler began that has run for longest, on the monotonic clock; now, where none runs."""
        began = (call.began for call in self._in_hand if call.handling and call.began is not None)
        return min(began, default=self.clock.monotonic())

    def give_up(self, call: HandlerCall) -> None:
        """What becomes of call no longer counts; others see to its messages."""
        call.handling = False
        if call.task is not None:
            call.task.cancel()  # and then it has ended
        else:
            self._forget(call)
            self._hand_over()

    def _forget(self, call: HandlerCall) -> None:
        self._in_hand.discard(call)
        call.queue.finish()
        if not self._in_hand:
            for waiter in self._drained:
                if not waiter.done():
                    waiter.set_result(None)

    def _hand_over(self) -> None:
        """Take messages of the queues in turn, while there is room, and put calls with them into the threads' line."""
        line, in_hand = self._line, self._in_hand
        room = self.threads.count + self._ahead - len(in_hand)
        if room <= 0 or not line:
            return
        calls: list[HandlerCall] = []
        while line and room > 0:
            queue = line.popleft()
            wanted = self._handler_of(queue)
            if wanted is None:
                self._elsewhere(queue)
                continue
            handler, limit = wanted
            for _ in range(min(HANDFUL, room)):
                batch = queue.take(limit)
                if not batch:
                    break
                calls.append(HandlerCall(self, handler, queue, batch))
                room -= 1
            if queue.waiting:
                line.append(queue)
            else:
                queue.attended = False
        in_hand.update(calls)
        if calls:
            self.threads.put(calls)

    def _go_on(self) -> None:
        """Some calls have ended: see to all of them together, and hand over the next ones."""
        ended, self.ended = self.ended, []
        in_hand, consumed = self._in_hand, dict[MessageSource, list[MessageExt]]()
        took = 0.0
        for call in ended:
            took += call.took
            if call not in in_hand:
                continue  # given up
            if call.failure is not None or call.result is not None:
                self._unsettled.append(call)
                continue
            if call.began is not None:
                consumed.setdefault(call.queue, []).extend(call.batch)
            self._forget(call)
        for queue, messages in consumed.items():
            queue.remove(messages)
        if ended:
            self._ahead = min(MOST_AHEAD, int(AHEAD * len(ended) / took)) if took else MOST_AHEAD
        if self._unsettled and self._new_unsettled is not None and not self._new_unsettled.done():
            self._new_unsettled.set_result(None)
        self._hand_over()

    async def _see_to_outcomes(self) -> None:
        """Start a task for each call that failed: it may wait. What the loop calls back can start none."""
        while True:
            while self._unsettled:
                call = self._unsettled.popleft()
                if call in self._in_hand:
                    call.task = self._tasks.start("outcome of a def handler", self._settled, call, restart=False)
            self._new_unsettled = make_waiter()
            await self._new_unsettled

    async def _settled(self, call: HandlerCall) -> None:
        try:
            await self._settle(call)
        finally:
            self._forget(call)
            self._hand_over()
