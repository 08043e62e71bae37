"""Pulls that found nothing and wait for a message: woken by an arrival their filter accepts, or when their time is up.

Holds who waits for which queue; reading and answering again is the pull handler's part, handed in as ``resume``.
Apache looks every 5 s at what has timed out; here each pull is answered when its own time is up.

Source: Apache RocketMQ 5.x ``PullRequestHoldService``, ``NotifyMessageArrivingListener``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio

from rocketbox.clock import Clock

__all__ = ["HeldPull", "PullHold"]


@dataclass(eq=False, slots=True)
class HeldPull:
    """One pull that waits: for an offset from ``offset`` on whose tag code ``matches`` accepts (None: any).

    ``request`` is whatever the pull handler needs to answer it; ``connection`` where the answer goes.
    """

    connection: Any
    request: Any
    topic: str
    queue_id: int
    offset: int
    matches: Callable[[int], bool] | None
    deadline: float = 0.0
    done: bool = field(default=False)


class PullHold:
    """The pulls on hold. :meth:`run` is its task, which answers those that are woken or out of time.

    ``resume(held)`` is called once for each pull that leaves the hold because of a message or its time; not for those
    whose connection closed.
    """

    def __init__(self, clock: Clock, resume: Callable[[HeldPull], None]) -> None:
        self._clock = clock
        self._resume = resume
        self._queues: dict[tuple[str, int], list[HeldPull]] = {}
        self._deadlines: list[tuple[float, int, HeldPull]] = []
        self._woken: list[HeldPull] = []
        self._count = 0
        self._signal = anyio.Event()

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._queues.values())

    def hold(self, held: HeldPull, seconds: float) -> None:
        """Keep a pull until a message arrives or ``seconds`` have passed."""
        held.deadline = self._clock.monotonic() + seconds
        self._queues.setdefault((held.topic, held.queue_id), []).append(held)
        self._count += 1
        heapq.heappush(self._deadlines, (held.deadline, self._count, held))
        if self._deadlines[0][2] is held:  # it is the next to run out of time: the task sleeps too long
            self._signal.set()

    def on_arrival(self, topic: str, queue_id: int, next_offset: int, tags_code: int) -> None:
        """A message became pullable at offset ``next_offset - 1``.

        The pulls it wakes are answered by the task and not here, so that one answer carries all messages of a group
        commit and not the first alone.
        """
        waiting = self._queues.get((topic, queue_id))
        if not waiting:
            return
        kept = []
        for held in waiting:
            if next_offset > held.offset and (held.matches is None or held.matches(tags_code)):
                self._woken.append(held)
            else:
                kept.append(held)
        if len(kept) != len(waiting):
            if kept:
                self._queues[topic, queue_id] = kept
            else:
                del self._queues[topic, queue_id]
            self._signal.set()

    def drop(self, connection: Any) -> None:
        """Forget the pulls of a connection that closed."""
        for key, waiting in list(self._queues.items()):
            kept = []
            for held in waiting:
                if held.connection is connection:
                    held.done = True
                else:
                    kept.append(held)
            if kept:
                self._queues[key] = kept
            else:
                del self._queues[key]

    async def run(self) -> None:
        """Answer what is woken or out of time, for ever."""
        while True:
            self._signal = anyio.Event()  # before answering: what is woken meanwhile must not wait for the next signal
            self._answer_due()
            if self._deadlines:
                with self._clock.move_on_after(max(0.0, self._deadlines[0][0] - self._clock.monotonic())):
                    await self._signal.wait()
            else:
                await self._signal.wait()

    def _answer_due(self) -> None:
        woken, self._woken = self._woken, []
        for held in woken:
            self._finish(held)
        now = self._clock.monotonic()
        while self._deadlines and (self._deadlines[0][2].done or self._deadlines[0][0] <= now):
            held = heapq.heappop(self._deadlines)[2]
            if not held.done:
                self._forget(held)
                self._finish(held)

    def _finish(self, held: HeldPull) -> None:
        if not held.done:
            held.done = True
            self._resume(held)

    def _forget(self, held: HeldPull) -> None:
        waiting = self._queues.get((held.topic, held.queue_id))
        if waiting is not None and held in waiting:
            waiting.remove(held)
            if not waiting:
                del self._queues[held.topic, held.queue_id]
