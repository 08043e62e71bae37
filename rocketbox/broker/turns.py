"""Large requests in turns: work that takes long in the loop is done in steps, and others have their turn in between.

Holds the queue of such work, one at a time; the steps themselves are generators of whoever decodes or applies a body.
What is done in its first step is done at once, so small requests are answered as ever.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import anyio
import anyio.lowlevel

from rocketbox.broker.limits import LimitError
from rocketbox.protocol.loose_json import Steps

__all__ = ["Turns"]

ResultT = TypeVar("ResultT")


class Turns:
    """Does one piece of long work at a time, a step in each turn of the loop; at most ``most`` wait."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._working = anyio.Lock()
        self.waiting = 0
        self.refused = 0

    def run(self, steps: Steps[ResultT]) -> ResultT | Awaitable[ResultT]:
        """The result if one step is enough, else what to await for it. Raises LimitError, and what the steps raise."""
        try:
            next(steps)
        except StopIteration as done:
            result: ResultT = done.value
            return result
        if self.waiting >= self._most:
            steps.close()
            self.refused += 1
            raise LimitError(f"{self.waiting} large requests wait", self._most, "max-large-requests", soon=True)
        self.waiting += 1
        return self._go_on(steps)

    async def _go_on(self, steps: Steps[ResultT]) -> ResultT:
        try:
            async with self._working:
                while True:
                    await anyio.lowlevel.checkpoint()
                    try:
                        next(steps)
                    except StopIteration as done:
                        result: ResultT = done.value
                        return result
        finally:
            steps.close()
            self.waiting -= 1
