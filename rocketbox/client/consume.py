"""Calling handlers: concurrently (any message of a queue beside another), or in order (one batch at a time per queue).

Holds what becomes of a batch when its handler has ended. What an outcome means is in ``outcomes``; where messages come
from and go back to is behind ``message_source``.

Source: Apache RocketMQ 5.x ``ConsumeMessageConcurrentlyService``, ``ConsumeMessageOrderlyService``.
"""

from __future__ import annotations

import logging
import types
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Coroutine, Generator, Sequence
from contextvars import Context, copy_context
from datetime import timedelta
from functools import partial
from types import CoroutineType
from typing import Any, ClassVar

from anyio.lowlevel import checkpoint_if_cancelled

from rocketbox.client.delays import exact_level
from rocketbox.client.failure_log import FailureLog, describe_message
from rocketbox.client.handler_calls import HandlerCall, HandlerCalls
from rocketbox.client.handler_threads import HandlerThreads
from rocketbox.client.message_source import MessageSource, WayBack
from rocketbox.client.options import LONGEST_PAUSE, SHORTEST_PAUSE, ConsumerOptions
from rocketbox.client.outcomes import (
    DEAD_LETTER,
    Failures,
    MessageHandler,
    NobodyError,
    NotTriedError,
    Outcomes,
    delay_level_for,
    failures_of_error,
    failures_of_result,
)
from rocketbox.client.replies import Replier, is_answer
from rocketbox.client.send_back import DEFAULT_MAX_RECONSUME_TIMES, FIRST_RETRY_LEVEL
from rocketbox.client.subscriptions import Subscription, Subscriptions
from rocketbox.client.workers import Worker, Workers
from rocketbox.clock import Clock
from rocketbox.errors import BatchFailed, HandlerError, Reject, RetryLater
from rocketbox.message import DELAY_LEVEL_SECONDS, MessageExt
from rocketbox.protocol.codes import dlq_topic, retry_topic
from rocketbox.protocol.request_reply import asks_for_reply
from rocketbox.safe_repr import safe_repr
from rocketbox.tasks import Supervisor

__all__ = ["ConcurrentConsumer", "HandlerEndedError", "OrderlyConsumer"]

_log = logging.getLogger(__name__)

RESUBMIT_AFTER = 5.0  # seconds until messages that could not be sent back are handled again here
WAITED = 16  # batches that are awaited after one whose handler waited, before it is hoped again that none does
EXPIRED_DELAY_LEVEL = 3  # of a message whose handler took longer than consume_timeout
UNTRIED_DELAY_LEVEL = 3  # of a message that was not tried, and goes to who consumes next


class HandlerEndedError(HandlerError):
    """A handler raised what would end its task or the process: a CancelledError of its own, a SystemExit."""

    def __init__(self, topic: str, error: BaseException) -> None:
        self.topic = topic
        super().__init__(
            f"the handler of {topic} raised {safe_repr(error)}; the message has failed, the service goes on"
        )


class _Consumer(ABC):
    """What both ways of consuming share: workers, and the call of a handler."""

    in_order: ClassVar[bool]
    """Whether a message may not overtake another one of its queue."""

    def __init__(
        self,
        group: str,
        options: ConsumerOptions,
        subscriptions: Subscriptions,
        *,
        send_back: WayBack | None,
        tasks: Supervisor,
        clock: Clock,
        replier: Replier | None = None,
    ) -> None:
        self._group = group
        self._retry_topic = retry_topic(group)
        self._options = options
        self._subscriptions = subscriptions
        self._send_back = send_back  # None: broadcasting, which has no retries
        self._replier = replier  # tells errors to those who have sent requests
        self._tasks = tasks
        self._clock = clock
        self._dead_letters = f"it goes to the dead-letter queue {dlq_topic(group)}"
        self._failures = FailureLog(group, clock, tasks)
        self._workers = Workers(group, options.concurrency, self.run, tasks, clock, self._may_begin)

    @abstractmethod
    async def run(self, worker: Worker, queue: MessageSource) -> None:
        """Take one batch of queue and see it through; never raises for what a handler does."""

    def offer(self, queue: MessageSource) -> None:
        """Messages were put into queue: see that a worker comes to it."""
        if not queue.attended and queue.waiting:
            self._workers.line_up(queue)

    def close(self) -> None:
        """Begin no handler any more; those that run go on."""
        self._workers.close()

    async def drained(self) -> None:
        """Return when no handler runs, and what became of them is seen to."""
        await self._workers.drained()

    def cancel(self) -> None:
        """Cancel what is in hand: whatever becomes of it no longer counts."""
        self._workers.cancel()

    @property
    def busy(self) -> int:
        """How many handlers run."""
        return self._workers.busy

    def _may_begin(self, queue: MessageSource) -> bool:
        """Whether a handler may begin with messages of queue."""
        return not queue.closed

    def _take(self, queue: MessageSource) -> tuple[Subscription | None, list[MessageExt]]:
        subscription = self._subscriptions.get(queue.topic)
        if subscription is not None:
            return subscription, subscription.take(queue, in_order=self.in_order)
        if queue.topic != self._retry_topic or not queue.waiting:
            return None, []
        subscription = self._subscriptions.get(queue.waiting[0].topic)  # each belongs to the topic it once came from
        if subscription is None:
            return None, queue.take(1)
        return subscription, subscription.take_like_the_first(queue, in_order=self.in_order)

    async def _call(self, handler: MessageHandler | None, batch: list[MessageExt]) -> Failures:
        """The messages of batch that failed. Raises only what ends the service, or this task."""
        try:
            # A copy, for handlers may change their list.
            result = await _apart(self._gone if handler is None else handler, batch[:])
            return failures_of_result(batch, result) if result is not None else []
        except Exception as error:  # of the handler, or of what it returned: that may need what is closed by now
            return failures_of_error(batch, error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a cancellation, or what should end the process
            await checkpoint_if_cancelled()  # a worker that is being stopped ends here: nothing is committed
            # Whatever the handler's own code or a library of its raised: only the service's own stop ends the service.
            ended = HandlerEndedError(batch[0].topic, error)
            ended.__cause__ = error
            return failures_of_error(batch, ended)

    async def _gone(self, batch: list[MessageExt]) -> Outcomes:
        """In place of a handler, where there is none any more."""
        raise NobodyError(f"group {self._group} does not subscribe to {batch[0].topic} any more")

    async def _without_answers(self, queue: MessageSource, failures: Failures) -> Failures:
        """The failures that are left when those of requests were told to who asked: he has his answer, and decides.

        A message that is rejected goes to the dead-letter queue all the same.
        """
        left: Failures = []
        for message, error in failures:
            if (
                self._replier is not None
                and is_answer(message, error)
                and await self._replier.tell_error(message, error)
                and not isinstance(error, Reject)
            ):
                self._tell(message, error, -1, "who asked was told, and the request is done with")
                queue.remove((message,))
            else:
                left.append((message, error))
        return left

    def _tell(self, message: MessageExt, error: Exception, retries: int, what_now: str) -> None:
        """Log a failed message; ``retries`` below 0: without limit."""
        if self._send_back is None:
            retries = 0  # broadcasting
        end = 0 <= retries <= message.reconsume_times and not isinstance(error, Reject)
        subscription = self._subscriptions.get(message.topic)
        receiver = "" if subscription is None else subscription.receiver(message)
        self._failures.tell(message, error, retries + 1 if retries >= 0 else None, what_now, end=end, receiver=receiver)


class ConcurrentConsumer(_Consumer):
    """Messages of one queue are handled beside each other; one that fails comes back by way of the broker."""

    in_order = False

    def __init__(
        self,
        group: str,
        options: ConsumerOptions,
        subscriptions: Subscriptions,
        *,
        threads: HandlerThreads,
        send_back: WayBack | None,
        tasks: Supervisor,
        clock: Clock,
        replier: Replier | None = None,
    ) -> None:
        super().__init__(group, options, subscriptions, send_back=send_back, tasks=tasks, clock=clock, replier=replier)
        self._waited = 0
        self._calls = HandlerCalls(
            threads, self._called_in_threads, self._workers.line_up, self._settle_call, tasks, clock
        )

    def start(self) -> None:
        self._workers.start()
        self._calls.start()
        if self._options.consume_timeout != float("inf"):
            self._tasks.start("consume timeout", self._watch_for_slow_handlers)

    def offer(self, queue: MessageSource) -> None:
        """Messages were put into queue: see that a worker or a thread comes to it."""
        if queue.attended or not queue.waiting:
            return
        if self._called_in_threads(queue) is None:
            self._workers.line_up(queue)
        else:
            self._calls.line_up(queue)

    def close(self) -> None:
        self._workers.close()
        self._calls.close()

    async def drained(self) -> None:
        await self._workers.drained()
        await self._calls.drained()

    def cancel(self) -> None:
        self._workers.cancel()
        self._calls.cancel()

    @property
    def busy(self) -> int:
        return self._workers.busy + self._calls.busy

    def _called_in_threads(self, queue: MessageSource) -> Subscription | None:
        """Whose ``def`` is called with messages of queue, after it was prepared; None: that is the workers' part.

        Where a group has other handlers as well all are: together they run no more than ``concurrency`` at once. So are
        messages that come back, for each has a handler of its own.
        """
        return self._subscriptions.get(queue.topic) if self._subscriptions.all_in_threads else None

    async def run(self, worker: Worker, queue: MessageSource) -> None:
        """Take one batch of queue after another, have it handled, and see to what failed.

        Fast path: while handlers do not wait, the queue is still in line when a batch has ended, and the worker goes on
        with it without standing in line itself (benchmark "push consume").
        """
        workers = self._workers
        in_line = False
        while True:
            subscription, batch = self._take(queue)
            if not in_line:
                if batch and queue.waiting:
                    workers.line_up(queue)  # others may go on with it meanwhile
                    in_line = True
                else:
                    queue.attended = False
            if not batch:
                return
            taken = workers.taken
            if subscription is None or self._waited:
                self._waited = max(0, self._waited - 1)
                await self._see_through(worker, queue, batch, subscription.handler if subscription else None)
            else:
                own = in_line and subscription is self._subscriptions.get(queue.topic)
                rest = self._handle_at_once(worker, queue, subscription, batch, go_on=own)
                if rest is not None:
                    self._waited = WAITED
                    batch, handling = rest
                    await self._see_through(worker, queue, batch, partial(_begun, handling))
            if not in_line or workers.taken != taken or not queue.waiting or not workers.another(worker):
                return

    def _handle_at_once(
        self, worker: Worker, queue: MessageSource, subscription: Subscription, batch: list[MessageExt], *, go_on: bool
    ) -> tuple[list[MessageExt], Awaitable[Outcomes]] | None:
        """Call the handler with batch and, if ``go_on``, with those behind it, until one waits or does not just return.

        That batch comes back with what is still to be awaited of its handler; None: all were consumed. Fast path: what
        never waits costs no task's step, and leaves its queue together: a third less ("push consume").
        """
        handler, limit, workers = subscription.handler, subscription.batch_max_size, self._workers
        worker.queue = queue  # also for its first step: that may be all, or wait long
        take = None if subscription.receiver_of is None else subscription.take  # a call less for each batch
        consumed: list[MessageExt] = []
        batches = 0
        try:
            while True:
                context = copy_context()
                try:
                    handling = handler(batch[:])  # a copy, for handlers may change their list
                except BaseException as error:
                    return batch, _raised(error)
                if type(handling) is not CoroutineType:
                    return batch, handling
                try:
                    trap = context.run(handling.send, None)
                except StopIteration as returned:
                    if returned.value is not None:
                        return batch, _returned(returned.value)
                except BaseException as error:
                    return batch, _raised(error)
                else:
                    return batch, _resumed(handling, trap, context)
                consumed += batch
                batches += 1
                if not go_on or not queue.waiting or not workers.another(worker):
                    return None
                batch = queue.take(limit) if take is None else take(queue)
        finally:
            if batches:
                queue.remove(consumed)
                queue.finish(batches)

    async def _see_through(
        self, worker: Worker, queue: MessageSource, batch: list[MessageExt], handler: MessageHandler | None
    ) -> None:
        worker.queue, worker.batch = queue, batch
        try:
            failures = await self._call(handler, batch)
            if worker.batch is not batch:
                return  # cancelled, and that was swallowed: it took too long, or this is the end; others see to it
            worker.batch = None  # from here on no handler runs
            if not failures:
                queue.remove(batch)
            elif not queue.dropped:  # else another member gets the messages again
                await self._settle(queue, batch, failures)
        except Exception:  # a fault of ours: the supervisor tells, and the messages must not be stuck
            self._resubmit_later(queue, batch)
            raise
        finally:
            worker.batch = None
            queue.finish()

    async def _settle_call(self, call: HandlerCall) -> None:
        """See to a ``def`` handler's call that raised, returned something, or is more than a call in a thread."""
        queue, batch = call.queue, call.batch
        try:
            failures = await self._call(call.outcomes, batch)
            if not call.handling:
                return  # given up, and the cancellation was swallowed; others see to it
            call.handling = False
            if not failures:
                queue.remove(batch)
            elif not queue.dropped:
                await self._settle(queue, batch, failures)
        except Exception:  # a fault of ours: the supervisor tells, and the messages must not be stuck
            self._resubmit_later(queue, batch)
            raise

    async def _settle(self, queue: MessageSource, batch: Sequence[MessageExt], failures: Failures) -> None:
        failed = {id(message) for message, _ in failures}
        queue.remove(message for message in batch if id(message) not in failed)
        if any(asks_for_reply(message.raw_properties) for message, _ in failures):
            failures = await self._without_answers(queue, failures)
        kept = []
        untried = []
        for message, error in failures:
            if isinstance(error, NotTriedError):
                if await self._passed_on(queue, message):
                    queue.remove((message,))
                else:
                    untried.append(message)
                continue
            if self._send_back is None:
                self._tell(message, error, 0, "it is dropped, for broadcasting has no retries")
                queue.remove((message,))
                continue
            level, delay = self._delay(message, error)
            if await self._send_back.send_back(message, level, self._options.max_reconsume_times, delay):
                queue.remove((message,))
            else:
                message.reconsume_times += 1
                kept.append(message)
        if kept:
            self._resubmit_later(queue, kept)
        if untried:
            queue.give_back(untried)
            self.offer(queue)

    async def _passed_on(self, queue: MessageSource, message: MessageExt) -> bool:
        """Whether a message that was not tried is sent back, for nothing begins here any more.

        Left in its queue it would hold the offset back, and all that was handled behind it would be delivered once
        more. At its last attempt it is left all the same: sent back, it would be a dead letter.
        """
        if self._send_back is None or not (self._workers.closed or queue.closed):
            return False
        if message.reconsume_times >= self._retries:
            return False
        return await self._send_back.send_back(message, UNTRIED_DELAY_LEVEL, self._options.max_reconsume_times)

    @property
    def _retries(self) -> int:
        """How often a message comes back before it is a dead letter."""
        retries = self._options.max_reconsume_times
        return DEFAULT_MAX_RECONSUME_TIMES if retries < 0 else retries

    def _delay(self, message: MessageExt, error: Exception) -> tuple[int, timedelta | None]:
        """How a failed message is sent back: by which level, and by which delay if that is none; it is logged."""
        retries = self._retries
        level = self._options.delay_level_when_next_consume
        delay: timedelta | None = None
        if isinstance(error, RetryLater):
            level = delay_level_for(error.delay)
            if error.delay and not exact_level(error.delay):
                delay = error.delay
        elif isinstance(error, Reject):
            level = DEAD_LETTER
        if level == DEAD_LETTER or message.reconsume_times >= retries:
            what_now, delay = self._dead_letters, None
        else:
            real = level or min(FIRST_RETRY_LEVEL + message.reconsume_times, len(DELAY_LEVEL_SECONDS))
            seconds = DELAY_LEVEL_SECONDS[real - 1]
            what_now = f"it comes back after {seconds} s"
            if delay is not None:
                what_now = f"it comes back after {delay.total_seconds():g} s ({seconds} s with a broker before 5.0)"
        self._tell(message, error, retries, what_now)
        return level, delay

    def _resubmit_later(self, queue: MessageSource, messages: Sequence[MessageExt]) -> None:
        self._tasks.start("resubmit", self._resubmit, queue, tuple(messages), restart=False)

    async def _resubmit(self, queue: MessageSource, messages: Sequence[MessageExt]) -> None:
        await self._clock.sleep(RESUBMIT_AFTER)
        queue.give_back(messages)
        self.offer(queue)

    async def _watch_for_slow_handlers(self) -> None:
        limit = self._options.consume_timeout
        while True:
            # What is begun during the sleep is not late before another limit has passed.
            left = min(self._workers.oldest(), self._calls.oldest()) + limit - self._clock.monotonic()
            await self._clock.sleep(max(left, min(max(limit / 20, 0.05), 30.0)))
            for worker in self._workers.slower_than(limit):
                queue, batch = worker.queue, worker.batch
                assert queue is not None
                assert batch is not None
                self._workers.replace(worker)
                self._took_too_long(queue, batch)
            for call in self._calls.slower_than(limit):
                self._calls.give_up(call)
                self._took_too_long(call.queue, call.batch)

    def _took_too_long(self, queue: MessageSource, batch: Sequence[MessageExt]) -> None:
        _log.warning(
            "group %s: the handler of %s has run for longer than consume_timeout (%g s); it is cancelled, "
            "the messages come back",
            self._group,
            describe_message(batch[0]),
            self._options.consume_timeout,
        )
        self._tasks.start("consume timeout of a batch", self._take_away, queue, batch, restart=False)

    async def _take_away(self, queue: MessageSource, batch: Sequence[MessageExt]) -> None:
        kept = list(batch)
        try:
            for message in batch:
                if queue.dropped:
                    return
                if self._send_back is None or await self._send_back.send_back(
                    message, EXPIRED_DELAY_LEVEL, self._options.max_reconsume_times
                ):
                    kept.remove(message)
                    queue.remove((message,))
                else:
                    message.reconsume_times += 1
        except Exception:  # a fault of ours: the supervisor tells, and the messages must not be stuck
            self._resubmit_later(queue, kept)
            raise
        if kept:
            self._resubmit_later(queue, kept)


def _begun(handling: Awaitable[Outcomes], batch: list[MessageExt]) -> Awaitable[Outcomes]:
    """In place of a handler that was called already."""
    return handling


async def _raised(error: BaseException) -> Outcomes:
    raise error


async def _returned(outcomes: Outcomes) -> Outcomes:
    return outcomes


async def _apart(handler: MessageHandler, batch: list[MessageExt]) -> Outcomes:
    """Await a handler in a context of its own: what it sets there is not seen with the worker's next batch."""
    context = copy_context()
    handling = handler(batch)
    if type(handling) is not CoroutineType:
        return await handling
    try:
        trap = context.run(handling.send, None)
    except StopIteration as returned:
        return returned.value  # type: ignore[no-any-return] # what a handler returns is looked at later
    return await _resumed(handling, trap, context)


@types.coroutine
def _resumed(handling: Coroutine[Any, Any, Outcomes], trap: Any, context: Context) -> Generator[Any, Any, Outcomes]:
    """Await the rest of a coroutine, begun in context; trap is what its first step told the loop to wait for."""
    while True:
        try:
            sent = yield trap
        except GeneratorExit:
            context.run(handling.close)
            raise
        except BaseException as error:
            try:
                trap = context.run(handling.throw, error)
            except StopIteration as returned:
                return returned.value  # type: ignore[no-any-return] # what a handler returns is looked at later
        else:
            try:
                trap = context.run(handling.send, sent)
            except StopIteration as returned:
                return returned.value  # type: ignore[no-any-return] # the same


class OrderlyConsumer(_Consumer):
    """One batch of a queue at a time, in order; one that fails holds up its queue, the others go on."""

    in_order = True

    def start(self) -> None:
        self._workers.start()

    async def run(self, worker: Worker, queue: MessageSource) -> None:
        """Take the next batch of queue, have it handled, and put the queue into the line again."""
        if queue.closed:
            return
        if not self._may_consume(queue):
            queue.attended = False  # it is offered again when its lock is confirmed
            return
        subscription, batch = self._take(queue)
        if not batch:
            queue.attended = False
            return
        worker.queue, worker.batch = queue, batch
        pause: float | None = None
        try:
            failures = await self._call(subscription.handler if subscription else None, batch)
            if worker.batch is not batch:
                return  # cancelled at the end, and that was swallowed: it comes again
            worker.batch = None
            if not failures:
                queue.remove(batch)  # also without its lock, which may be confirmed in a moment
            elif not queue.dropped and self._may_consume(queue):
                pause = await self._settle(queue, batch, failures)
            else:  # who has the lock by now gets the batch again
                queue.give_back(batch)
                pause = self._options.suspend_current_queue_time
        except Exception:  # a fault of ours: the supervisor tells, and the queue must not be stuck
            queue.give_back(batch)
            self._suspend(queue, self._options.suspend_current_queue_time)
            raise
        finally:
            worker.batch = None
            queue.finish()
        if pause is not None:
            self._suspend(queue, pause)
        elif queue.waiting:
            self._workers.line_up(queue)
        else:
            queue.attended = False

    def _may_begin(self, queue: MessageSource) -> bool:
        return not queue.closed and self._may_consume(queue)

    def _may_consume(self, queue: MessageSource) -> bool:
        return self._options.broadcasting or queue.lock_holds(self._clock.monotonic())

    async def _settle(self, queue: MessageSource, batch: Sequence[MessageExt], failures: Failures) -> float | None:
        """Give what failed back to its queue, in order, or to the dead-letter queue; the seconds to pause, if any."""
        if any(asks_for_reply(message.raw_properties) for message, _ in failures):
            failures = await self._without_answers(queue, failures)
        again: list[MessageExt] = []
        pause = 0.0
        told: list[Exception] = []
        for message, error in failures:
            # Of those with the same BatchFailed the first one failed, and the others stand behind it.
            if isinstance(error, NotTriedError) or any(error is each for each in told):
                again.append(message)
                continue
            if isinstance(error, BatchFailed):
                told.append(error)
            if isinstance(error, Reject) or self._tried_enough(message, error):
                self._tell(message, error, self._options.max_reconsume_times, self._dead_letters)
                if await self._bury(message):
                    continue
                pause = max(pause, self._options.suspend_current_queue_time)
            else:
                wanted = self._options.suspend_current_queue_time
                if isinstance(error, RetryLater):
                    wanted = min(max(error.delay.total_seconds(), SHORTEST_PAUSE), LONGEST_PAUSE)
                what_now = f"its queue is suspended for {wanted:g} s"
                self._tell(message, error, self._options.max_reconsume_times, what_now)
                pause = max(pause, wanted)
                message.reconsume_times += 1
            again.append(message)
        kept = {id(message) for message in again}
        queue.remove(message for message in batch if id(message) not in kept)
        queue.give_back(again)
        return pause if again else None

    def _tried_enough(self, message: MessageExt, error: Exception) -> bool:
        limit = self._options.max_reconsume_times
        if limit < 0 and isinstance(error, NobodyError):
            limit = DEFAULT_MAX_RECONSUME_TIMES  # or it would hold up the retries of all other topics for ever
        return self._send_back is not None and limit >= 0 and message.reconsume_times >= limit

    async def _bury(self, message: MessageExt) -> bool:
        if self._send_back is None:
            return True  # broadcasting has no dead-letter queue; the reason has been logged
        return await self._send_back.send_back(message, DEAD_LETTER, self._options.max_reconsume_times)

    def _suspend(self, queue: MessageSource, pause: float) -> None:
        self._tasks.start("suspended queue", self._go_on_after, pause, queue, restart=False)

    async def _go_on_after(self, pause: float, queue: MessageSource) -> None:
        await self._clock.sleep(pause)
        self._workers.line_up(queue)
