"""What a handler's return or exception means for each message of its batch, and which delay level a wait is.

Pure decisions; carrying them out is ``consume``'s part.

Source: design of rocketbox (return = consumed, exception = retry, the signals of ``rocketbox.errors``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from rocketbox.errors import BatchFailed, HandlerError, Reject, RetryLater
from rocketbox.message import DELAY_LEVEL_SECONDS, MessageExt
from rocketbox.safe_repr import safe_repr

__all__ = [
    "AnyHandler",
    "BROKER_DECIDES",
    "BlockingHandler",
    "DEAD_LETTER",
    "Failures",
    "MessageHandler",
    "NobodyError",
    "NotTriedError",
    "Outcome",
    "Outcomes",
    "Preparation",
    "PreparedCall",
    "delay_level_for",
    "failures_of_error",
    "failures_of_result",
    "signal_in",
]

Outcome = Exception | None
"""Of one message: None is consumed; Reject, RetryLater or any other exception as if the handler had raised it."""

Outcomes = Sequence[Outcome] | None
"""Of a batch: None (all consumed), or one outcome per message."""

MessageHandler = Callable[[list[MessageExt]], Awaitable[Outcomes]]
"""Gets a batch; returns its outcomes, or raises (see the signals)."""

BlockingHandler = Callable[[list[MessageExt]], Outcomes | Awaitable[Outcomes]]
"""The same as a ``def``, which is called in a thread."""

PreparedCall = Callable[[], Outcomes | Awaitable[Outcomes]]
"""A call of a ``def`` handler that has its arguments, for a thread."""

Preparation = Callable[[list[MessageExt]], PreparedCall | None]
"""Makes the call for a batch, in the loop. None, or what it raises: there is more to this batch than a call."""

AnyHandler = MessageHandler | BlockingHandler
"""A handler as users write it: ``async def``, or ``def`` for one that blocks."""

Failures = list[tuple[MessageExt, Exception]]

BROKER_DECIDES = 0  # the delay level with which a broker takes 3 + the number of earlier retries
DEAD_LETTER = -1  # the delay level that means the dead-letter queue


class NobodyError(HandlerError):
    """Nobody of the group takes a message any more: what was subscribed has changed since it was sent back."""


class NotTriedError(HandlerError):
    """No handler saw this message: it has not failed, and is no dead letter by that."""

    def __init__(self, why: str = "it stands behind a message of its queue that failed") -> None:
        super().__init__(f"it was not tried, for {why}")


def delay_level_for(delay: timedelta) -> int:
    """The first level that is not shorter than delay; the longest (2 h) when that is shorter."""
    seconds = delay.total_seconds()
    for level, length in enumerate(DELAY_LEVEL_SECONDS, 1):
        if length >= seconds:
            return level
    return len(DELAY_LEVEL_SECONDS)


def signal_in(error: Exception) -> Exception:
    """The signal that a task group of the handler's has wrapped into a group of its own; else the error itself.

    Only where it is the one error of the group: what else failed beside it may not be forgotten for it.
    """
    inner: BaseException = error
    while isinstance(inner, ExceptionGroup) and len(inner.exceptions) == 1:
        inner = inner.exceptions[0]
    return inner if isinstance(inner, Reject | RetryLater | BatchFailed) else error


def failures_of_error(messages: Sequence[MessageExt], error: Exception) -> Failures:
    """The messages that come back when a handler raised error, with the reason of each."""
    error = signal_in(error)
    if isinstance(error, BatchFailed) and error.index < len(messages):
        return [(message, error) for message in messages[error.index :]]
    return [(message, error) for message in messages]  # a BatchFailed past the end says nothing: all come back


def failures_of_result(messages: Sequence[MessageExt], result: object) -> Failures:
    """The messages that come back when a handler returned result, with the reason of each.

    What is neither None nor one outcome for each message is an error of the handler: all messages come back.
    """
    if result is None:
        return []
    if isinstance(result, Sequence) and len(result) == len(messages):
        outcomes = list(result)
        if all(outcome is None or isinstance(outcome, Exception) for outcome in outcomes):
            return [
                (message, signal_in(outcome))
                for message, outcome in zip(messages, outcomes, strict=True)
                if outcome is not None
            ]
    error = HandlerError(
        f"the handler returned {safe_repr(result):.200}; it must return None or a list of {len(messages)} outcomes, "
        "each None or an exception"
    )
    return [(message, error) for message in messages]
