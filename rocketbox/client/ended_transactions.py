"""Which transactions a broker is known to have ended lately, by its own answer.

Apache's brokers from 5.0 on write up to 3 s later that a half message is done (``transactionOpBatchInterval``); those
before at once, but a check may be under way then. It stores the half message anew, and asks about the copy. Who commits
that has the message delivered a second time, so the copy is rolled back: the end that was asked for is done. That holds
only as long as the broker has not died since, with whom the end may be gone, and so only while the connection is the
same.

Source: Apache RocketMQ 5.x ``TransactionalMessageServiceImpl.check``, ``TransactionalOpBatchService``.
"""

from __future__ import annotations

__all__ = ["EndedTransactions", "Half"]

KEPT = 60.0  # seconds; two of the intervals in which brokers check
MOST = 10_000

Half = tuple[int, int]
"""Where a half message lies: its offsets in its queue and in the commit log."""


class EndedTransactions:
    """Those of one producer, by their ids. Times are of the monotonic clock; connections are for comparing."""

    def __init__(self) -> None:
        self._ends: dict[str, tuple[float, object, Half]] = {}

    def note(self, msg_id: str, half: Half, connection: object, now: float) -> None:
        """A broker has answered, over a connection, that it has ended the transaction of this half message."""
        ends = self._ends
        ends[msg_id] = now, connection, half
        while len(ends) > MOST or next(iter(ends.values()))[0] + KEPT < now:
            del ends[next(iter(ends))]

    def is_copy(self, msg_id: str, half: Half, connection: object, now: float) -> bool:
        """Whether a half message that is asked about over a connection is a copy of one that has ended."""
        ended = self._ends.get(msg_id)
        if ended is None:
            return False
        when, same, first = ended
        return same is connection and half > first and when + KEPT >= now
