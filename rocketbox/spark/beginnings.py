"""Where queues begin whose first messages are not there: deleted just now, or never kept.

A broker deletes files of its log, and says a little later where its queues begin: until then a pull only brings less.
So a reader that finds nothing where a queue begins waits for some time whether that moves. Since when nothing is there
is known for a process, not for each task: whoever finds such a queue looks at all of its topic, so that they are waited
for at the same time, and a store of which the first files were taken out costs that time once. What has gone since,
behind the gap that was seen, is waited for anew.

Source: Apache RocketMQ 5.x ``DefaultMessageStore.CleanConsumeQueueService`` (behind the log's, each 10 s).
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from rocketbox.client import Admin, PulledRecords
from rocketbox.clock import Clock
from rocketbox.errors import RemoteProtocolError
from rocketbox.message import MessageQueue
from rocketbox.spark.asking import ask_each
from rocketbox.spark.loss import DELETED_BY_NOW
from rocketbox.spark.record_columns import queue_offsets, record_starts
from rocketbox.spark.worker_client import ClientThread

__all__ = ["Beginnings", "beginnings_of", "first_of"]

FIRST_STEP = 1024  # offsets


@dataclass(frozen=True, slots=True)
class _Gap:
    """Since when a queue is known to begin at ``begin``, and to have its first message at ``first``."""

    begin: int
    first: int
    since: float


class Beginnings:
    """What a process has seen of queues that have nothing where they begin. All calls are made in one loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._gaps: dict[MessageQueue, _Gap] = {}
        self._looked_at: dict[str, float] = {}  # topics, and when

    async def empty_since(self, admin: Admin, queue: MessageQueue, begin: int) -> float:
        """Since when, on the monotonic clock, a queue that begins at ``begin`` has nothing up to its first message.

        Raises what the client raises.
        """
        since = await self._note(admin, queue, begin)
        now = self._clock.monotonic()
        if now - self._looked_at.get(queue.topic, -DELETED_BY_NOW) >= DELETED_BY_NOW:
            self._looked_at[queue.topic] = now
            others = [each for each in await admin.queues(queue.topic) if each != queue]
            await ask_each(lambda other: self._look(admin, other), others)
        return since

    def has_nothing_at(self, queue: MessageQueue, offset: int) -> bool:
        """Whether it has been known for long enough that the queue has its first message behind this offset."""
        gap = self._gaps.get(queue)
        if gap is None or not gap.begin <= offset < gap.first:
            return False
        return self._clock.monotonic() - gap.since >= DELETED_BY_NOW

    async def _look(self, admin: Admin, queue: MessageQueue) -> None:
        found = await admin.pull_records(queue, 0, 1)
        if (begin := found.min_offset) > 0:
            found = await admin.pull_records(queue, begin, 1)
        if found.min_offset == begin < found.max_offset and first_of(found, begin) is None:
            await self._note(admin, queue, begin)

    async def _note(self, admin: Admin, queue: MessageQueue, begin: int) -> float:
        now = self._clock.monotonic()
        first = await _first_message(admin, queue, begin)
        gap = self._gaps.get(queue)
        if gap is None or gap.begin != begin or gap.first < first:
            gap = self._gaps[queue] = _Gap(begin, first, now)
        return gap.since


_of_clients: WeakKeyDictionary[ClientThread, Beginnings] = WeakKeyDictionary()


def beginnings_of(thread: ClientThread) -> Beginnings:
    """What the process has seen of the queues that this client reads."""
    return _of_clients.setdefault(thread, Beginnings(thread.clock))


async def _first_message(admin: Admin, queue: MessageQueue, begin: int) -> int:
    """The offset of a queue's first message, or its end: nothing is at ``begin``. Some tens of pulls at most."""
    low, high, step = begin, (await admin.pull_records(queue, begin, 1)).max_offset, FIRST_STEP
    while low + 1 < high:
        middle = min(low + step, (low + high) // 2)
        found = first_of(await admin.pull_records(queue, middle, 1), middle)
        if found is None:
            low, step = middle, 2 * step
        elif found > middle:
            return found
        else:
            high = middle
    return high


def first_of(result: PulledRecords, asked: int) -> int | None:
    """The offset of the first message that a pull has brought, be it one that cannot be read; None: there is none."""
    try:
        offsets, _ = queue_offsets(result.records, record_starts(result.records))
    except RemoteProtocolError:
        return asked
    return offsets[0] if offsets else None
