"""Faults that are planted in the product, to see that the simulation finds them.

Each puts a fault back that the client once had, or breaks a promise. The product knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rocketbox.client import assignment
from rocketbox.client.api.pull import PullResult, PullStatus
from rocketbox.client.process_queue import ProcessQueue
from rocketbox.client.pull_loop import PullLoop
from rocketbox.message import MessageExt

__all__ = ["PLANTS"]


def _commit_ahead() -> None:
    """What is held in memory counts as consumed."""
    ProcessQueue.commit_offset = property(lambda self: self.pulled_to)  # type: ignore[method-assign, assignment]


def _skipped_message() -> None:
    """Of what a pull brings every tenth message is passed over."""
    put = ProcessQueue.put

    def put_some(self: ProcessQueue, messages: Iterable[MessageExt], next_offset: int) -> int:
        return put(self, [message for message in messages if message.fields[5] % 10 != 9], next_offset)

    ProcessQueue.put = put_some  # type: ignore[method-assign]


def _lost_refresh() -> None:
    """A lock that was not confirmed is asked for again at the next turn, when it does not count any more."""
    assignment.REFRESH_AGAIN = assignment.REFRESH_INTERVAL


def _no_pause() -> None:
    """A pull that is sent to the offset it had asked for is made again at once."""
    handle = PullLoop._handle

    async def handle_at_once(self: PullLoop, result: PullResult) -> None:
        if result.status is PullStatus.OFFSET_ILLEGAL:
            await self._context.reset(self._queue, result.next_begin_offset)
        else:
            await handle(self, result)

    PullLoop._handle = handle_at_once  # type: ignore[method-assign]


PLANTS: dict[str, Callable[[], Any]] = {
    "commit ahead": _commit_ahead,
    "skipped message": _skipped_message,
    "lost refresh": _lost_refresh,
    "no pause": _no_pause,
}
