"""What a consumer holds of one queue: messages pulled and not yet consumed, and the offset that may be committed.

All of it is plain bookkeeping in one event loop: no locks, nothing awaited but :meth:`ProcessQueue.room` and
:meth:`ProcessQueue.idle`. Pulling is ``pull_loop``'s part, calling handlers ``consume``'s.

Source: Apache RocketMQ 5.x ``ProcessQueue``. Unlike there, an offset to commit exists from the start and moves over
messages that the filter left out as soon as everything before them is consumed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rocketbox.client.cached_bytes import CachedBytes
from rocketbox.client.options import MIB
from rocketbox.message import QUEUE_OFFSET_FIELD, MessageExt, MessageQueue
from rocketbox.safe_repr import also_when_unmade
from rocketbox.waiters import LoopCondition, Waiter, make_waiter

__all__ = ["LOCK_EXPIRY", "FlowLimits", "ProcessQueue"]

LOCK_EXPIRY = 30.0  # seconds a lock counts without being refreshed; the broker gives it away after 60


@dataclass(frozen=True)
class FlowLimits:
    """Above which of these a queue is not pulled: messages, bytes of bodies, distance from first to last offset."""

    messages: int = 1000
    body_bytes: int = 100 * MIB
    span: int | None = 2000


class ProcessQueue:
    """The messages of one queue between pull and commit. Offsets go up and may have gaps.

    A message is *waiting* until a worker takes it, *in process* while its handler runs, and *held* until it is removed
    (consumed, or sent back). ``pulled_to`` is the offset behind everything pulled, the next to ask for.
    """

    __slots__ = (
        "_cached",
        "_held",
        "_idle",
        "_limits",
        "_live",
        "_room_waiter",
        "attended",
        "body_bytes",
        "closed",
        "dropped",
        "end_offset",
        "in_process",
        "last_pull_at",
        "lock_doubted",
        "locked_at",
        "on_closed",
        "pulled_to",
        "queue",
        "topic",
        "waiting",
    )

    def __init__(
        self, queue: MessageQueue, start_offset: int, *, now: float, cached: CachedBytes | None = None
    ) -> None:
        self.queue = queue
        self._cached = cached or CachedBytes()
        self.topic = queue.topic
        self.pulled_to = start_offset
        self.end_offset = start_offset  # the broker's end of the queue at the last pull
        self.last_pull_at = now
        self.locked_at: float | None = None  # when the broker's lock was last confirmed (orderly only)
        self.lock_doubted = False  # the connection to the broker was lost since
        self.closed = False  # takes nothing in and gives nothing out; what is in hand still counts
        self.dropped = False  # closed, and what is in hand no longer counts
        self.attended = False  # see MessageSource
        self.on_closed: list[Callable[[], object]] = []
        self.waiting: deque[MessageExt] = deque()
        self.in_process = 0  # batches with handlers
        self.body_bytes = 0
        self._held: deque[int] = deque()  # offsets, going up; those not in _live are done and wait for earlier ones
        self._live: dict[int, int] = {}  # offset: bytes of the body as it came, for a handler may replace it
        self._limits: FlowLimits | None = None
        self._room_waiter: Waiter | None = None
        self._idle = LoopCondition()

    def put(self, messages: Iterable[MessageExt], next_offset: int) -> int:
        """Take over what a pull brought, and go on at next_offset; returns how many messages are new.

        A message from before ``pulled_to`` is one that is held already, or consumed; it is left out.
        """
        if self.closed:
            return 0
        added = 0
        held, live, waiting = self._held, self._live, self.waiting
        floor, before = self.pulled_to, self.body_bytes
        for message in messages:
            offset = message.fields[QUEUE_OFFSET_FIELD]
            if offset < floor:
                continue
            floor = offset + 1
            held.append(offset)
            live[offset] = size = len(message.body)
            waiting.append(message)
            self.body_bytes += size
            added += 1
        self.pulled_to = max(floor, next_offset)
        self._cached.add(self.body_bytes - before)
        return added

    def take(self, limit: int, fits: Callable[[MessageExt], bool] | None = None, past: int = 0) -> list[MessageExt]:
        """As :meth:`MessageSource.take`; counts as one in process.

        An empty list counts nothing. Each other take needs one :meth:`finish`.
        """
        waiting = self.waiting
        if not waiting:
            return []
        self.in_process += 1
        if limit == 1:
            return [waiting.popleft()]
        batch = [waiting.popleft()]
        passed: list[MessageExt] = []
        while waiting and len(batch) < limit:
            if fits is None or fits(waiting[0]):
                batch.append(waiting.popleft())
            elif len(passed) < past:
                passed.append(waiting.popleft())
            else:
                break
        waiting.extendleft(reversed(passed))
        return batch

    def finish(self, batches: int = 1) -> None:
        """So many batches that were taken have been dealt with."""
        self.in_process -= batches
        if self.in_process == 0 and self._idle.waiting:
            self._idle.notify_all()

    def give_back(self, messages: Sequence[MessageExt]) -> int:
        """Let messages wait again, before all others and in their order; those no longer held are left out."""
        if self.closed:
            return 0
        live = self._live
        back = [message for message in messages if message.fields[QUEUE_OFFSET_FIELD] in live]
        self.waiting.extendleft(reversed(back))
        return len(back)

    def remove(self, messages: Iterable[MessageExt]) -> None:
        """These are consumed, or safe elsewhere: they no longer hold back the commit."""
        held, live = self._held, self._live
        before = self.body_bytes
        for message in messages:
            self.body_bytes -= live.pop(message.fields[QUEUE_OFFSET_FIELD], 0)
        if not self.dropped:
            self._cached.free(before - self.body_bytes)
        while held and held[0] not in live:
            held.popleft()
        if self._room_waiter is not None and not self.full(self._limits):
            self._wake_room()

    def holds(self, message: MessageExt) -> bool:
        return message.fields[QUEUE_OFFSET_FIELD] in self._live

    @property
    def count(self) -> int:
        """Messages held, waiting or in process."""
        return len(self._live)

    @property
    def span(self) -> int:
        """From the first offset that is not consumed to the last pulled one."""
        return self._held[-1] - self._held[0] if self._held else 0

    @property
    def commit_offset(self) -> int:
        """The lowest offset not yet consumed: everything before it is done."""
        return self._held[0] if self._held else self.pulled_to

    @property
    def lag(self) -> int:
        """Messages between the commit offset and the broker's end of the queue, as far as the last pull knew."""
        return max(0, self.end_offset - self.commit_offset)

    def full(self, limits: FlowLimits | None) -> bool:
        """Whether one of limits is exceeded (as in Java, reaching one is allowed), or the budget all queues share."""
        if limits is None:
            return False
        return (
            self.over_budget
            or len(self._live) > limits.messages
            or self.body_bytes > limits.body_bytes
            or (limits.span is not None and self.span > limits.span)
        )

    @property
    def over_budget(self) -> bool:
        """Whether the bytes of all queues are too many. A queue that holds nothing may have one message even then."""
        return self._cached.full and bool(self._live)

    @property
    def only_one(self) -> bool:
        """Whether no more than one message may be pulled."""
        return self._cached.full

    def fitting(self, messages: Sequence[MessageExt]) -> int:
        """How many of these there is room for, with the last one that begins within it; one at least.

        An answer of compressed messages has many times the bytes that were asked for, when they are unpacked; and other
        queues may have used the room up while it was on its way.
        """
        left = self._cached.limit - self._cached.total
        for count, message in enumerate(messages, 1):
            left -= len(message.body)
            if left <= 0:
                return count
        return len(messages)

    async def room(self, limits: FlowLimits) -> None:
        """Return when the queue is within limits, or closed."""
        while not self.closed and self.full(limits):
            self._limits = limits
            self._room_waiter = make_waiter()
            self._cached.wait(self, self._room_may_be)
            try:
                await self._room_waiter
            finally:
                self._room_waiter = None
                self._cached.leave(self)

    def _room_may_be(self) -> None:
        if not self.full(self._limits):
            self._wake_room()

    def _wake_room(self) -> None:
        waiter, self._room_waiter = self._room_waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def idle(self) -> None:
        """Return when no batch is in process."""
        await self._idle.wait_for(lambda: not self.in_process)

    def close(self) -> None:
        """Nothing more is pulled or begun, what waits is forgotten; what is in hand ends, and counts."""
        self.closed = True
        self.waiting.clear()
        self._wake_room()
        for tell in [*self.on_closed]:
            tell()

    def drop(self) -> None:
        """The queue is no longer this consumer's: nothing of it counts any more."""
        if not self.dropped:
            self._cached.free(self.body_bytes)
        self.dropped = True
        self.close()

    def lock_holds(self, now: float) -> bool:
        """Whether the broker's lock was confirmed less than 30 s ago, and its connection not lost since."""
        return not self.lock_doubted and self.locked_at is not None and now - self.locked_at < LOCK_EXPIRY

    @also_when_unmade
    def __repr__(self) -> str:
        return (
            f"ProcessQueue({self.queue.topic!r}, {self.queue.broker_name}/{self.queue.queue_id}, "
            f"commit={self.commit_offset}, held={self.count}, waiting={len(self.waiting)}"
            + (", dropped)" if self.dropped else ", closed)" if self.closed else ")")
        )
