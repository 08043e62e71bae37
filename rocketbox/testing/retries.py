"""What becomes of a message whose handler has failed, by the options of its group: the decisions of ``client.consume``,
as a test is told of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rocketbox.client.outcomes import NotTriedError
from rocketbox.client.replies import is_answer
from rocketbox.errors import BatchFailed, Reject, RetryLater
from rocketbox.message import MessageExt
from rocketbox.testing.records import Outcome

__all__ = ["Retries"]


@dataclass(frozen=True)
class Retries:
    """Those of a group: ``most`` for each message, -1 without end.

    ``are_kept``: what fails comes back or becomes a dead letter; else, in a broadcasting group, it is lost.
    ``at_once_dead``: it becomes a dead letter at once, unless its handler says when it is to come back
    (``delay_level_when_next_consume`` -1). ``in_order``: the group is an orderly one.
    """

    most: int
    are_kept: bool = True
    at_once_dead: bool = False
    in_order: bool = False

    def outcomes(self, messages: Sequence[MessageExt], failures: Sequence[BaseException | None]) -> tuple[Outcome, ...]:
        """Those of the messages of a call, by the failure of each."""
        found: list[Outcome] = []
        failed: list[BaseException] = []
        for message, failure in zip(messages, failures, strict=True):
            stands_behind = self.in_order and isinstance(failure, BatchFailed) and any(failure is e for e in failed)
            if failure is not None:
                failed.append(failure)
            found.append(Outcome.COMES_BACK if stands_behind else self._outcome(message, failure))
        return tuple(found)

    def _outcome(self, message: MessageExt, failure: BaseException | None) -> Outcome:
        if failure is None:
            return Outcome.CONSUMED
        if isinstance(failure, NotTriedError):
            return Outcome.COMES_BACK
        if isinstance(failure, Reject):
            return Outcome.DEAD_LETTER if self.are_kept else Outcome.LOST
        if isinstance(failure, Exception) and is_answer(message, failure):
            return Outcome.CONSUMED
        if not self.are_kept:
            return Outcome.LOST
        if self.at_once_dead and not isinstance(failure, RetryLater):
            return Outcome.DEAD_LETTER
        return Outcome.DEAD_LETTER if 0 <= self.most <= message.reconsume_times else Outcome.COMES_BACK
