"""Large requests in turns: work that takes long in the loop is done in steps, and others have their turn in between.

Holds the queue of such work, one at a time; the steps themselves are generators of whoever decodes or applies a body.
What is done in its first step is done at once, so small requests are answered as ever. What is answered when too many
wait is the owner's part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar

import anyio
import anyio.lowlevel

from rocketbox.protocol.loose_json import Steps

__all__ = ["Turns", "read_in_turns"]

ResultT = TypeVar("ResultT")

OWNERS = 8  # with as many as they may have, that take all of the room


async def read_in_turns(steps: Steps[ResultT]) -> ResultT:
    """What the body of a frame says; of a large one with turns of others between the steps: 4 MB that are no ordinary
    JSON take seconds, in which the loop would stand still.

    Raises RemoteProtocolError as the steps do.
    """
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: ResultT = done.value
            return result
        await anyio.lowlevel.checkpoint()


class Turns:
    """Does one piece of long work at a time, a step in each turn of the loop; at most ``most`` wait.

    Of one owner, whoever asked for it, an eighth of them may wait; they are done in their order, and after each its
    owner stands behind all others. ``too_many`` makes the error of one more, from a text and the number it exceeds.
    """

    def __init__(self, most: int, too_many: Callable[[str, int], Exception]) -> None:
        self._most = most
        self._share = max(1, most // OWNERS)
        self._too_many = too_many
        self._lines: dict[Hashable, deque[anyio.Event]] = {}  # of each owner; the next one's stands first
        self._busy = False
        self._waiting: dict[Hashable, int] = {}
        self.waiting = 0
        self.refused = 0

    def run(self, steps: Steps[ResultT], owner: Hashable) -> ResultT | Awaitable[ResultT]:
        """The result if one step is enough, else what to await for it.

        Raises what ``too_many`` makes, and what the steps raise.
        """
        try:
            next(steps)
        except StopIteration as done:
            result: ResultT = done.value
            return result
        own = self._waiting.get(owner, 0)
        if self.waiting >= self._most or own >= self._share:
            steps.close()
            self.refused += 1
            if own >= self._share:
                raise self._too_many(f"{own} large requests of this connection wait", self._share)
            raise self._too_many(f"{self.waiting} large requests wait", self._most)
        self.waiting += 1
        self._waiting[owner] = own + 1
        return self._go_on(steps, owner)

    async def _go_on(self, steps: Steps[ResultT], owner: Hashable) -> ResultT:
        try:
            await self._begin(owner)
            try:
                await anyio.lowlevel.checkpoint()
                return await read_in_turns(steps)
            finally:
                self._call_next()
        finally:
            steps.close()
            self.waiting -= 1
            self._waiting[owner] -= 1
            if not self._waiting[owner]:
                del self._waiting[owner]

    async def _begin(self, owner: Hashable) -> None:
        """Return when it is the owner's turn; :meth:`_call_next` ends it."""
        if not self._busy:
            self._busy = True
            return
        line, called = self._lines.setdefault(owner, deque()), anyio.Event()
        line.append(called)
        try:
            await called.wait()
        except BaseException:
            if called.is_set():
                self._call_next()
            else:
                line.remove(called)
                if not line:
                    del self._lines[owner]
            raise

    def _call_next(self) -> None:
        if not self._lines:
            self._busy = False
            return
        owner = next(iter(self._lines))
        line = self._lines.pop(owner)
        line.popleft().set()
        if line:
            self._lines[owner] = line
