"""Pulls that found nothing and wait for a message: woken by an arrival their filter accepts, or when their time is up.

Holds who waits for which queue, by group; reading and answering again is the part of the handler whose pull it is
(``resume``). Apache looks every 5 s at what has timed out; here each pull is answered when its own time is up.

Source: Apache RocketMQ 5.x ``PullRequestHoldService``, ``NotifyMessageArrivingListener``.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from rocketbox.broker.store.dispatcher import Arrival
from rocketbox.broker.store.message_filter import MessageFilter
from rocketbox.clock import Clock
from rocketbox.rare_log import RareLog
from rocketbox.remoting.read_turns import ANSWER_BYTES_PER_TURN

__all__ = ["ANSWERED_AT_ONCE", "HELD_PULL_BYTES", "HeldPull", "PullHold"]

_log = logging.getLogger(__name__)

ANSWERED_AT_ONCE = 16  # of small answers; large ones are fewer
SHARE_OF_A_CONNECTION = 16  # one of so many parts of the bytes
HELD_PULL_BYTES = 1024  # of one that selects everything, with its request
SPARE_DEADLINES = 64  # so many deadlines of answered pulls are no reason yet to look through all of them


@dataclass(eq=False, slots=True, weakref_slot=True)
class HeldPull:
    """One pull that waits: for a message from ``offset`` on that ``filter`` selects (None: any).

    ``request`` is whatever the pull handler needs to answer it; ``connection`` where the answer goes; ``size`` about
    how many bytes all of it takes.
    """

    connection: Any
    request: Any
    topic: str
    queue_id: int
    group: str
    offset: int
    filter: MessageFilter | None
    resume: Callable[[HeldPull], Awaitable[None] | None]
    size: int = HELD_PULL_BYTES
    deadline: float = 0.0
    done: bool = field(default=False)


class PullHold:
    """The pulls on hold. :meth:`run` is its task, which answers those that are woken or out of time.

    ``held.resume(held)`` is called once for each pull that leaves the hold because of a message, its time or the end of
    what it waits for; not for those whose connection closed. One that must wait for a file is awaited, beside others.
    ``written`` says how many bytes of answers were written so far: in one turn of the loop not many are added.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        most: int = 100_000,
        most_for_each_connection: int = 10_000,
        most_bytes: int = 256 << 20,
        written: Callable[[], int] = lambda: 0,
    ) -> None:
        self._clock = clock
        self._most = most
        self._most_for_each_connection = most_for_each_connection
        self._most_bytes = most_bytes
        self._written = written
        self._bytes_of: dict[Any, int] = {}  # by connection, of those that are not done
        self.bytes = 0
        """About how many bytes the pulls on hold take."""
        self._log = RareLog(_log)
        self._queues: dict[tuple[str, int], dict[str, dict[HeldPull, None]]] = {}  # by group; sets in order, as below
        self._connections: dict[Any, dict[HeldPull, None]] = {}  # those that are not done
        self._live = 0
        self.refused = 0
        """How many pulls were not held, because too many were."""
        self.failed = 0
        """How many could not be answered, by a fault of this side."""
        self._deadlines: list[tuple[float, int, HeldPull]] = []
        self._woken: deque[HeldPull] = deque()
        self._count = 0
        self._signal = anyio.Event()

    def __len__(self) -> int:
        return self._live

    def refusal(self, connection: Any, size: int = HELD_PULL_BYTES) -> str | None:
        """Why no pull of a connection, of ``size`` bytes, can be held now; None when it can."""
        share = self._most_bytes // SHARE_OF_A_CONNECTION
        if self._live >= self._most:
            reason = f"{self._live} pulls are on hold already; max-held-pulls is {self._most}"
        elif len(self._connections.get(connection, ())) >= self._most_for_each_connection:
            reason = (
                f"{self._most_for_each_connection} pulls of this connection are on hold already, as many as "
                "max-held-pulls-per-connection allows"
            )
        elif self.bytes + size > self._most_bytes:
            reason = (
                f"pulls on hold have {self.bytes} bytes and this one {size}; max-held-pull-bytes is {self._most_bytes}"
            )
        elif (held := self._bytes_of.get(connection, 0)) + size > share:
            reason = (
                f"pulls of this connection on hold have {held} bytes and this one {size}; {share} are allowed, one "
                f"{SHARE_OF_A_CONNECTION}th of max-held-pull-bytes"
            )
        else:
            return None
        self.refused += 1
        return reason

    def waiting(self, topic: str, queue_id: int, group: str) -> int:
        """How many pulls of a group wait for a queue."""
        return len(self._queues.get((topic, queue_id), {}).get(group, ()))

    def hold(self, held: HeldPull, seconds: float) -> None:
        """Keep a pull until a message arrives or ``seconds`` have passed; :meth:`refusal` says whether it may be."""
        of_connection = self._connections.setdefault(held.connection, {})
        of_connection[held] = None
        self._live += 1
        self.bytes += held.size
        self._bytes_of[held.connection] = self._bytes_of.get(held.connection, 0) + held.size
        held.deadline = self._clock.monotonic() + seconds
        self._queues.setdefault((held.topic, held.queue_id), {}).setdefault(held.group, {})[held] = None
        self._count += 1
        heapq.heappush(self._deadlines, (held.deadline, self._count, held))
        if self._deadlines[0][2] is held:  # it is the next to run out of time: the task sleeps too long
            self._signal.set()

    def on_arrival(self, arrived: Sequence[Arrival]) -> None:
        """Messages became pullable, each at the offset before the one that is told.

        The pulls they wake are answered by the task and not here, so that one answer carries all messages of a group
        commit and not the first alone.
        """
        queues = self._queues
        if not queues:
            return
        for topic, queue_id, next_offset, tags_code, record in arrived:
            if waiting := queues.get((topic, queue_id)):
                self._wake(
                    [
                        held
                        for of_group in waiting.values()
                        for held in of_group
                        if next_offset > held.offset and self._selects(held.filter, tags_code, record)
                    ]
                )

    def _selects(self, selects: MessageFilter | None, tags_code: int, record: bytes) -> bool:
        if selects is None:
            return True
        try:
            return selects.matches_unit(tags_code) and selects.matches_record(record)
        except Exception as error:  # the pull is answered what is wrong with its filter, and the others go on waiting
            self._log.tell(logging.ERROR, self._clock.monotonic(), "filter", "the filter of a pull on hold failed: %s",
                           error, error=error)  # fmt: skip
            return True

    def wake_topic(self, topic: str) -> None:
        """Have all pulls of a topic answered, because it is gone."""
        for (name, _), waiting in list(self._queues.items()):
            if name == topic:
                self._wake([held for of_group in waiting.values() for held in of_group])

    def wake_group(self, group: str) -> None:
        """Have all pulls of a group answered, because it is gone."""
        for waiting in list(self._queues.values()):
            self._wake(list(waiting.get(group, ())))

    def _wake(self, woken: list[HeldPull]) -> None:
        if woken:
            for held in woken:
                self._leave_queue(held)
            self._woken += woken
            self._signal.set()

    def drop(self, connection: Any) -> None:
        """Forget the pulls of a connection that closed."""
        for held in list(self._connections.get(connection, ())):
            self._leave_queue(held)
            self._set_done(held)
            held.connection = held.request = None  # its deadline may stand in line for long

    async def run(self) -> None:
        """Answer what is woken or out of time, for ever."""
        async with anyio.create_task_group() as group:
            while True:
                self._signal = anyio.Event()  # before answering: what is woken meanwhile must not wait for the next one
                while self._answer_some(group):
                    await anyio.lowlevel.checkpoint()  # thousands may be due at once, and nobody waits for all of them
                if self._deadlines:
                    with self._clock.move_on_after(max(0.0, self._deadlines[0][0] - self._clock.monotonic())):
                        await self._signal.wait()
                else:
                    await self._signal.wait()

    def _answer_some(self, group: TaskGroup) -> bool:
        """Answer up to ANSWERED_AT_ONCE of those that are due, with few bytes in all; whether there may be more."""
        left = ANSWERED_AT_ONCE
        full = self._written() + ANSWER_BYTES_PER_TURN
        while self._woken and left:
            self._finish(self._woken.popleft(), group)
            left = left - 1 if self._written() < full else 0
        now = self._clock.monotonic()
        while left and self._deadlines and (self._deadlines[0][2].done or self._deadlines[0][0] <= now):
            held = heapq.heappop(self._deadlines)[2]
            if not held.done:
                self._leave_queue(held)
                self._finish(held, group)
                left -= 1
        if len(self._deadlines) > 2 * self._live + SPARE_DEADLINES:  # those woken early, each with its whole request
            self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
            heapq.heapify(self._deadlines)
        return not left

    def _finish(self, held: HeldPull, group: TaskGroup) -> None:
        if held.done:
            return
        self._set_done(held)
        try:
            slow = held.resume(held)
            if slow is not None:
                group.start_soon(self._finish_slowly, held, slow)
        except Exception as error:  # the others must not wait for the task to be started again
            self._failed(held, error)

    async def _finish_slowly(self, held: HeldPull, slow: Awaitable[None]) -> None:
        try:
            await slow
        except Exception as error:
            self._failed(held, error)

    def _failed(self, held: HeldPull, error: Exception) -> None:
        self.failed += 1
        self._log.tell(
            logging.ERROR, self._clock.monotonic(), type(error),
            "a pull of %s/%d from %d could not be answered", held.topic, held.queue_id, held.offset, error=error,
        )  # fmt: skip

    def _set_done(self, held: HeldPull) -> None:
        held.done = True
        self._live -= 1
        self.bytes -= held.size
        self._bytes_of[held.connection] -= held.size
        of_connection = self._connections[held.connection]
        del of_connection[held]
        if not of_connection:
            del self._connections[held.connection], self._bytes_of[held.connection]

    def _leave_queue(self, held: HeldPull) -> None:
        waiting = self._queues.get((held.topic, held.queue_id))
        of_group = None if waiting is None else waiting.get(held.group)
        if waiting is not None and of_group is not None:
            of_group.pop(held, None)
            if not of_group:
                del waiting[held.group]
                if not waiting:
                    del self._queues[held.topic, held.queue_id]
