"""Runs of handlers' functions. Middleware of the service stands between a delivery and the function: it may pass a call
on once, again and again, or never, and each time that it does is a run, with a call of its own in the records.

The last one has the outcome of the delivery. Of those before, all is known that they came to by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from rocketbox.client import ConsumeContext
from rocketbox.client.middleware import ConsumeNext
from rocketbox.client.outcomes import Outcomes, failures_of_error, failures_of_result
from rocketbox.listeners.dispatch import Invocation
from rocketbox.message import MessageExt
from rocketbox.testing.payload_copies import PayloadCopies, copied
from rocketbox.testing.records import Call, Outcome

__all__ = ["HandlerRuns", "Run", "failures_of_each"]

_run: ContextVar[Run | None] = ContextVar("the run in which a handler is called", default=None)


@dataclass(eq=False)
class Run:
    """One run: its call, and what it came to by itself once it ``has_ended``. ``delivered`` are the messages of the
    delivery, ``messages`` those of this run."""

    call: Call
    delivered: tuple[MessageExt, ...]
    is_repeated: bool = False
    has_ended: bool = False
    messages: tuple[MessageExt, ...] = ()
    error: BaseException | None = None
    outcomes: Outcomes = None
    payloads: dict[int, Any] = field(default_factory=dict)
    """Copies of those arguments that are payloads, as they were when the function was called."""

    def take(self, invocation: object) -> None:
        """Have its call know what the listener's call knows."""
        if isinstance(invocation, Invocation):
            call, arguments = self.call, invocation.arguments
            call.result, call.skipped = invocation.result, invocation.skipped
            call.arguments = (
                None
                if arguments is None
                else tuple([self.payloads.get(index, each) for index, each in enumerate(arguments)])
            )

    def keep_payloads(self, places: tuple[int, ...], invocation: Invocation) -> None:
        """The function is about to be called, in this thread."""
        if not self.has_ended and _run.get() in (self, None):  # else it is another run of the same listener's call
            arguments = invocation.arguments
            assert arguments is not None
            self.payloads = {index: copied(arguments[index]) for index in places}


class HandlerRuns:
    """``one_more(call)`` is told of a call that was repeated as it begins, ``repeated(call)`` of the one before when it
    has ended; ``passed()`` is what time it is.
    """

    def __init__(
        self, passed: Callable[[], float], one_more: Callable[[Call], object], repeated: Callable[[Call], object]
    ) -> None:
        self._passed = passed
        self._one_more = one_more
        self._repeated = repeated
        self._copies = PayloadCopies()
        self._last: dict[Call, Run] = {}  # by the first call of each delivery that goes on

    async def run(self, first: Call, context: ConsumeContext, call_next: ConsumeNext) -> Outcomes:
        """The function's turn, for the delivery whose first call that is."""
        run, invocation = self._begin(first), context.invocation
        run.messages = tuple(context.messages)
        around = _run.set(run)
        if isinstance(invocation, Invocation) and (places := self._copies.places(invocation.signature)):
            invocation.check_before(lambda: run.keep_payloads(places, invocation))
        try:
            outcomes = await call_next(context)
        except BaseException as error:
            self._end(run, context, error, None)
            raise
        finally:
            _run.reset(around)
        self._end(run, context, None, outcomes)
        return outcomes

    def last(self, first: Call) -> Run | None:
        """The run that a delivery came to, which has ended; None: the function never had its turn."""
        return self._last.pop(first, None)

    def _begin(self, first: Call) -> Run:
        before = self._last.get(first)
        is_over = before is None and first.outcome is not Outcome.RUNNING  # the delivery; a task has this run
        if before is None and not first.passed_on:
            first.passed_on = True
            run = Run(first, first.messages)
        else:
            delivered = first.messages if before is None else before.delivered
            run = Run(_again(first, delivered, self._passed()), delivered, is_repeated=is_over)
            if before is not None:
                before.is_repeated = True
                if before.has_ended:
                    self._tell(before)
            self._one_more(run.call)
        if not is_over:
            self._last[first] = run
        return run

    def _end(self, run: Run, context: ConsumeContext, error: BaseException | None, outcomes: Outcomes) -> None:
        run.error, run.outcomes = error, outcomes
        run.take(context.invocation)
        run.has_ended = True
        if run.is_repeated:
            self._tell(run)

    def _tell(self, run: Run) -> None:
        call, messages, error = run.call, run.messages, run.error
        call.messages = messages
        if error is not None and not isinstance(error, Exception):
            call.failures = (error,) * len(messages)
        else:
            call.failures = failures_of_each(messages, error, run.outcomes)
        call.error = next((each for each in call.failures if each is not None), None)
        call.outcome, call.outcomes = Outcome.CALLED_AGAIN, (Outcome.CALLED_AGAIN,) * len(messages)
        self._repeated(call)


def failures_of_each(
    messages: Sequence[MessageExt], error: Exception | None, outcomes: Outcomes
) -> tuple[Exception | None, ...]:
    """What each message of a call has failed by, which raised ``error`` or returned ``outcomes``; None: it has not."""
    found = failures_of_result(messages, outcomes) if error is None else failures_of_error(messages, error)
    failed = {id(message): failure for message, failure in found}
    return tuple(failed.get(id(message)) for message in messages)


def _again(first: Call, messages: tuple[MessageExt, ...], at: float) -> Call:
    return replace(
        first, messages=messages, at=at, passed_on=True, arguments=None, result=None, skipped=(),
        outcome=Outcome.RUNNING, error=None, outcomes=(), failures=(),
    )  # fmt: skip
