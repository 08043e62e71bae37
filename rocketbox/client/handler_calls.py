"""Calls of ``def`` handlers, handed to their threads and fetched back some at a time.

A call has no task and no waiter of its own. As many are handed over as there are threads; where handlers are quick, as
many more as they end within 2 ms, so that one wake-up does for all of them. Which thread takes which is the pool's
part: there is one line, so none waits behind a slow handler while a thread is idle. What no thread has begun has not
been tried: it is taken out of the line at a stop, and left alone when its queue was closed.

A call is prepared in the loop before: a listener's payload is read there. That has 5 ms of a turn, then others have
theirs. What cannot be prepared is handled by the whole handler, in a task of its own.

What a failed call is followed by is handed in by ``consume``.

Source: own design (benchmark "push consume, def handler": a third of the cost of a task and a waiter for each call);
takes the place of the thread pool in Apache's ``ConsumeMessageConcurrentlyService``.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from threading import get_ident

from anyio.lowlevel import checkpoint

from rocketbox.blocking import Job
from rocketbox.client.handler_threads import HandlerThreads
from rocketbox.client.message_source import MessageSource
from rocketbox.client.outcomes import MessageHandler, Outcomes, PreparedCall
from rocketbox.client.subscriptions import Subscription
from rocketbox.client.workers import OTHERS_RAN, SLICE, take_in_hand
from rocketbox.clock import Clock
from rocketbox.message import MessageExt
from rocketbox.tasks import SupervisedTask, Supervisor
from rocketbox.waiters import LoopCondition, Waiter, make_waiter

__all__ = ["HandlerCall", "HandlerCalls"]

AHEAD = 0.002  # seconds: what may wait for threads is what they end within this
MOST_AHEAD = 128  # calls: the hand-over is a hundredth of their cost then
HANDFUL = 16  # calls with messages of one queue before those of the next one come


class HandlerCall(Job):
    """One call of a ``def`` handler. ``handling``: its handler has not ended, or not begun, and nobody gave it up.

    ``prepared``: what a thread calls; None: ``handler`` is awaited in the loop.
    """

    __slots__ = (
        "_calls", "_handler", "batch", "began", "context", "handling", "in_line_since", "prepared", "queue", "task",
        "took",
    )  # fmt: skip

    def __init__(
        self, calls: HandlerCalls, handler: MessageHandler, queue: MessageSource, batch: list[MessageExt]
    ) -> None:
        super().__init__()
        self._calls = calls
        self.context = calls.threads.context.copy()  # it is prepared and called in it
        self._handler = handler
        self.queue = queue
        self.batch = batch
        self.prepared: PreparedCall | None = None
        self.began: float | None = None
        self.in_line_since: float | None = None
        self.took = 0.0
        self.handling = True
        self.task: SupervisedTask | None = None

    def run(self) -> Outcomes | Awaitable[Outcomes]:
        if self.queue.closed:
            return None
        assert self.prepared is not None
        calls = self._calls
        thread, monotonic, running = get_ident(), calls.clock.monotonic, calls.threads.running
        self.began = running[thread] = began = monotonic()
        try:
            return self.context.run(self.prepared)
        finally:
            del running[thread]
            self.took = monotonic() - began

    def ended(self) -> None:
        self._calls.ended.append(self)

    async def outcomes(self, batch: list[MessageExt]) -> Outcomes:
        """What the handler returned; raises what it raised. A ``def`` may return a coroutine, too."""
        if self.prepared is None:
            take_in_hand(self)
            self.began = self._calls.clock.monotonic()
            return await self._handler(batch)
        if self.failure is not None:
            raise self.failure
        if inspect.isawaitable(self.result):
            return await self.result  # type: ignore[no-any-return] # what a handler returns is looked at later
        return self.result  # type: ignore[no-any-return]

    def drop_result(self) -> None:
        """Nobody awaits what was returned, or nobody any more."""
        if inspect.iscoroutine(self.result):
            self.result.close()

    # --- where the whole handler is awaited, and waits for a thread itself (Handling) ---------------------------------

    def may_begin(self) -> bool:
        return not self.queue.closed

    def wait_in_line(self, now: float) -> None:
        self.in_line_since = now

    def leave_line(self, now: float) -> None:
        if self.in_line_since is not None and self.began is not None:
            self.began += now - self.in_line_since
            self.in_line_since = None


class HandlerCalls:
    """Those of one consumer.

    ``subscription_of(queue)`` says who is called with its messages, and how that is prepared; None for a queue that is
    not for threads, which ``elsewhere`` gets. ``settle(call)`` sees to a call that did not simply return.
    """

    def __init__(
        self,
        threads: HandlerThreads,
        subscription_of: Callable[[MessageSource], Subscription | None],
        elsewhere: Callable[[MessageSource], object],
        settle: Callable[[HandlerCall], Awaitable[None]],
        tasks: Supervisor,
        clock: Clock,
    ) -> None:
        self.threads = threads
        self.clock = clock
        self.ended: list[HandlerCall] = []
        """Their threads are done with them; for what is told next in the loop."""
        self._subscription_of = subscription_of
        self._elsewhere = elsewhere
        self._settle = settle
        self._tasks = tasks
        self._line: deque[MessageSource] = deque()
        self._in_hand: set[HandlerCall] = set()  # handed over, and not settled
        self._ahead = 0
        self._closed = False
        self._unsettled: deque[HandlerCall] = deque()
        self._slice_ends = 0.0  # on the monotonic clock: until then calls may be prepared
        self._last_prepared = float("-inf")
        self._behind = False  # it has ended, and there is more to prepare
        self._more: Waiter | None = None
        self._drained = LoopCondition()

    def start(self) -> None:
        self.threads.on_delivered(self._go_on)
        self._tasks.start("def handlers", self._see_to_more)

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
        await self._drained.wait_for(lambda: not self._in_hand)

    @property
    def busy(self) -> int:
        """Calls that are in hand."""
        return len(self._in_hand)

    def slower_than(self, seconds: float) -> list[HandlerCall]:
        """Those whose handler began longer ago than seconds and has not ended."""
        oldest = self.clock.monotonic() - seconds
        return [
            call for call in self._in_hand
            if call.handling and call.began is not None and call.in_line_since is None and call.began < oldest
        ]  # fmt: skip

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
        if call.result is not None:
            call.drop_result()
        if not self._in_hand:
            self._drained.notify_all()

    def _hand_over(self) -> None:
        """Take messages of the queues in turn, while there is room, and put calls with them into the threads' line."""
        line = self._line
        room = self.threads.count + self._ahead - len(self._in_hand)
        if room <= 0 or not line or self._behind:
            return
        now = self.clock.monotonic()
        if now - self._last_prepared > OTHERS_RAN:
            self._slice_ends = now + SLICE
        calls: list[HandlerCall] = []
        while line and len(calls) < room and now < self._slice_ends:
            queue = line.popleft()
            subscription = self._subscription_of(queue)
            if subscription is None or subscription.prepare is None:
                self._elsewhere(queue)
                continue
            now = self._take(queue, subscription, calls, min(room, len(calls) + HANDFUL))
            if queue.waiting:
                line.append(queue)
            else:
                queue.attended = False
        self._last_prepared = now
        self._behind = bool(line) and len(calls) < room
        self._in_hand.update(calls)
        whole = [call for call in calls if call.prepared is None]
        if whole:
            self._unsettled.extend(whole)
            calls = [call for call in calls if call.prepared is not None]
        if calls:
            self.threads.put(calls)
        self._see_to_more_soon()

    def _take(self, queue: MessageSource, subscription: Subscription, calls: list[HandlerCall], up_to: int) -> float:
        """Add calls with messages of queue, until there are up_to or the slice is over; what the clock says then."""
        handler, prepare, limit = subscription.handler, subscription.prepare, subscription.batch_max_size
        take = None if subscription.receiver_of is None else subscription.take  # a call less for each batch
        assert prepare is not None
        monotonic = self.clock.monotonic
        while batch := queue.take(limit) if take is None else take(queue):
            call = HandlerCall(self, handler, queue, batch)
            calls.append(call)
            try:
                call.prepared = call.context.run(prepare, batch[:])  # a copy, for handlers may change their list
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: S110 - the whole handler meets it again, and it is judged there
                pass
            now = monotonic()
            if len(calls) >= up_to or now >= self._slice_ends:
                return now
        return monotonic()

    def _go_on(self) -> None:
        """Some calls have ended: see to all of them together, and hand over the next ones."""
        ended, self.ended = self.ended, []
        in_hand, consumed = self._in_hand, dict[MessageSource, list[MessageExt]]()
        took = 0.0
        for call in ended:
            took += call.took
            if call not in in_hand:  # given up
                call.drop_result()
                continue
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
        self._see_to_more_soon()
        self._hand_over()

    def _see_to_more_soon(self) -> None:
        if (self._unsettled or self._behind) and self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def _see_to_more(self) -> None:
        """Do what callbacks of the loop cannot: wait for another turn, and start tasks.

        Each call that failed, or is more than a call in a thread, has a task: it may wait.
        """
        while True:
            if self._behind:
                await checkpoint()
                self._behind = False
                self._slice_ends = self.clock.monotonic() + SLICE
                self._hand_over()
            while self._unsettled:
                call = self._unsettled.popleft()
                if call in self._in_hand:
                    call.task = self._tasks.start("outcome of a def handler", self._settled, call, restart=False)
            if not self._behind:
                self._more = make_waiter()
                await self._more

    async def _settled(self, call: HandlerCall) -> None:
        try:
            if call.prepared is None and (self._closed or call.queue.closed):
                return  # it was not begun
            await self._settle(call)
        finally:
            self._forget(call)
            self._hand_over()
