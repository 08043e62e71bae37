"""What blocks for long and cannot be interrupted, on a thread of its own: who waits for its end may go away.

Java processes are started and ended so: a stop of the application must not wait for one for ever. The thread does not
keep the process alive; a Java process that it has started ends with the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

import anyio

from rocketbox.loops import call_soon_from_thread

__all__ = ["Detached"]

ResultT = TypeVar("ResultT")


class Detached(Generic[ResultT]):
    """``function()``, begun at once. ``abandoned`` is called with its result in the thread when it ends too late."""

    def __init__(
        self, name: str, function: Callable[[], ResultT], abandoned: Callable[[ResultT], object] | None = None
    ) -> None:
        self._function = function
        self._abandoned = abandoned
        self._claim = threading.Lock()  # of who is first: the thread that has a result, or who does not want it
        self._given_up = False
        self._result: list[ResultT] = []
        self._error: BaseException | None = None
        self._call_soon = call_soon_from_thread()
        self._ended = anyio.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def result(self) -> ResultT:
        """What the function has returned, when it has; raises what it raised."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._result[0]

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def give_up(self) -> None:
        """Nobody wants the result any more."""
        with self._claim:
            self._given_up = True
            has_result = bool(self._result)
        if has_result and self._abandoned is not None:
            self._abandoned(self._result[0])

    def _run(self) -> None:
        try:
            result = self._function()
        except BaseException as error:
            self._error = error
        else:
            with self._claim:
                self._result.append(result)
                late = self._given_up
            if late and self._abandoned is not None:
                self._abandoned(result)
        with suppress(RuntimeError):  # the loop may be gone
            self._call_soon(self._ended.set)
