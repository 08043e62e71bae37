"""Large requests in turns: work that takes long in the loop is done in steps, and others have their turn in between.

Holds the queue of such work, one at a time; the steps themselves are generators of whoever decodes or applies a body.
What is done in its first step is done at once, so small requests are answered as ever. What is answered when too many
wait is the owner's part.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import anyio.lowlevel

from rocketbox.protocol.loose_json import Steps

__all__ = ["Turns"]

ResultT = TypeVar("ResultT")


class Turns:
    """Does one piece of long work at a time, a step in each turn of the loop; at most ``most`` wait.

    ``too_many`` makes the error of one more, from how many wait and ``most``.
    """

    def __init__(self, most: int, too_many: Callable[[int, int], Exception]) -> None:
        self._most = most
        self._too_many = too_many
        self._working = anyio.Lock()
        self.waiting = 0
        self.refused = 0

    def run(self, steps: Steps[ResultT]) -> ResultT | Awaitable[ResultT]:
        """The result if one step is enough, else what to await for it.

        Raises what ``too_many`` makes, and what the steps raise.
        """
        try:
            next(steps)
        except StopIteration as done:
            result: ResultT = done.value
            return result
        if self.waiting >= self._most:
            steps.close()
            self.refused += 1
            raise self._too_many(self.waiting, self._most)
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
