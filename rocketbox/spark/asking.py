"""Questions about many queues at once, of which some may stay without an answer: one broker away is not all away.

What may pass when it is asked again later counts as no answer (``worker_client.may_pass``); anything else is raised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from rocketbox.errors import ConnectError, RequestTimeoutError
from rocketbox.message import MessageQueue
from rocketbox.spark.worker_client import UNREACHABLE, gather, may_pass

__all__ = ["Answers", "ask_each"]

ResultT = TypeVar("ResultT")
Answers = tuple[dict[MessageQueue, ResultT], dict[MessageQueue, Exception]]
"""What was answered, and why the rest was not."""


async def ask_each(
    function: Callable[[MessageQueue], Awaitable[ResultT]], queues: Iterable[MessageQueue]
) -> Answers[ResultT]:
    """``function(queue)`` for each queue, at the same time (``worker_client.gather``).

    A broker that was silent is not asked for the rest of its queues.
    """
    silent: dict[str, Exception] = {}

    async def ask(queue: MessageQueue) -> tuple[ResultT] | Exception:
        if (known := silent.get(queue.broker_name)) is not None:
            return known
        try:
            return (await function(queue),)
        except UNREACHABLE as error:
            if not may_pass(error):
                raise
            if isinstance(error, (ConnectError, RequestTimeoutError)):
                silent[queue.broker_name] = error
            return error

    found = await gather(ask, queues)
    answers = {queue: each[0] for queue, each in found.items() if isinstance(each, tuple)}
    return answers, {queue: each for queue, each in found.items() if isinstance(each, Exception)}
