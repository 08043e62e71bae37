"""What a task of Spark reads: ranges of queues as record batches, several pulls in flight while Spark works on one.

The pulls run in the loop of the process' client, decoding in the thread of the task. Which pulls are made is
``pull_plan``'s, what becomes of the records ``record_columns``'.

A pull goes on where the broker says, but without a filter never further than behind the last record that it brought:
what may lie there is asked for, and only an answer without any record passes over offsets. What lacks messages is
pulled once more, from the machine that has written them, before they are told as missing; and where a queue begins and
ends counts as that one says it: a replica may have less. Records that come twice or
out of order (``answers``), or do not fill an answer, are pulled one by one instead: what then still cannot be costs
itself, as a row with its error; two records for one are an error. With a filter nobody sees from an answer whether what
it begins without was left out or deleted: the message there is looked at without the filter.

Source: Apache RocketMQ 5.x ``PullMessageProcessor`` (where a pull goes on), Apache Spark 4.3.0 (the batches of a Python
data source must have exactly the schema it declares).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import anyio

from rocketbox.client import Admin, PulledRecords
from rocketbox.clock import Clock
from rocketbox.errors import RemoteProtocolError, RocketBoxError
from rocketbox.message import MessageQueue
from rocketbox.protocol.codes import MASTER_ID
from rocketbox.protocol.namespaces import Namespace
from rocketbox.protocol.tags import parse_subscription
from rocketbox.spark.answers import FARTHEST_SCAN, AnswerError, what_cannot_be
from rocketbox.spark.beginnings import Beginnings, beginnings_of, first_of
from rocketbox.spark.loss import DELETED_BY_NOW, SETTLE, SETTLE_PAUSE, data_loss
from rocketbox.spark.missing import MissingOffsets
from rocketbox.spark.offsets import QueueRange, in_words
from rocketbox.spark.options import SourceOptions
from rocketbox.spark.pull_plan import PULLS_IN_FLIGHT, PullPlan, Stretch
from rocketbox.spark.record_columns import Pulled, RecordDecoder, queue_offsets, record_starts, unreadable_record
from rocketbox.spark.worker_client import PATIENCE, UNREACHABLE, client, may_pass, patiently

__all__ = ["NotReadError", "Reading", "read_ranges"]

ResultT = TypeVar("ResultT")


class NotReadError(RocketBoxError):
    """``unread`` was not read: ``error`` is what its broker, or the way to it, had for an answer all the time that it
    was asked.
    """

    def __init__(self, unread: QueueRange, error: RocketBoxError) -> None:
        self.unread = unread
        queue, last = unread.queue, f" to {unread.end - 1}" if len(unread) > 1 else ""
        super().__init__(
            f"{in_words(queue)}: offsets {unread.start}{last} ({len(unread)} in all) were not read, since broker "
            f"{queue.broker_name} did not answer for {PATIENCE:.0f} s: {error}"
        )


def read_ranges(ranges: Sequence[QueueRange], options: SourceOptions) -> Iterator[Any]:
    """The messages of the ranges, in their order, as record batches."""
    namespace = Namespace(options.servers.namespace or "")
    decoder = RecordDecoder(
        options.columns, parse_subscription("", options.tags).tags_set, namespace, options.body_format
    )
    with client(options.servers) as thread:
        reading = Reading(ranges, options, thread.clock, beginnings_of(thread))
        running = thread.start(reading.run)

        def next_batches() -> Iterator[Any] | None:
            pulled = thread.call(lambda _: reading.take())
            return decoder.record_batches(pulled) if pulled else None

        try:
            while (batches := next_batches()) is not None:
                yield from batches
        finally:
            running.cancel()


class Reading:
    """The pulls of some ranges, made in the background; ``run`` and ``take`` are called in one loop."""

    def __init__(
        self, ranges: Sequence[QueueRange], options: SourceOptions, clock: Clock, beginnings: Beginnings
    ) -> None:
        self._plan = PullPlan(ranges)
        self._tags = options.tags
        self._fails = options.fail_on_data_loss
        self._absence_level = options.absence_level
        self._clock = clock
        self._beginnings = beginnings
        self._brokers: dict[MessageQueue, int] = {}  # the machine that the broker suggested last
        self._missing = MissingOffsets()
        self._looked_at: dict[MessageQueue, float] = {}  # when it was found that a gap is none that is just made
        self._lacking: set[tuple[MessageQueue, int]] = set()  # pulls that are made once more
        self._changed = anyio.Event()
        self._error: Exception | None = None

    async def run(self, admin: Admin) -> None:
        """Pull until all has been read; what goes wrong is raised by :meth:`take`."""
        async with anyio.create_task_group() as group:

            async def work() -> None:
                try:
                    await self._work(admin)
                except Exception as error:
                    self._error = self._error or error
                    group.cancel_scope.cancel()
                    self._change()

            for _ in range(PULLS_IN_FLIGHT):
                group.start_soon(work)

    async def take(self) -> list[Pulled]:
        """What makes the next record batch, when it is there; nothing at the end.

        Raises DataLossError, NotReadError when a broker is away for longer than a minute, and what the client raises
        that does not pass.
        """
        while self._error is None and not self._plan.has_batch:
            await self._changed.wait()
        if self._error is not None:
            raise self._error
        if not (taken := self._plan.take()):
            self._missing.tell()
        self._change()
        return taken

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _work(self, admin: Admin) -> None:
        while not self._plan.finished:
            if (pull := self._plan.next_pull()) is None:
                await self._changed.wait()
                continue
            stretch, most = pull
            try:
                await self._pull(admin, stretch, most)
            except UNREACHABLE as error:
                if not may_pass(error):
                    raise
                raise NotReadError(stretch.unread, error) from error
            finally:
                self._plan.ended(stretch)
            self._change()

    async def _pull(self, admin: Admin, stretch: Stretch, most: int) -> None:
        """Pull a stretch once, and again for some seconds where it brought nothing to go on with.

        Goes on at ``next_begin_offset``, not by a count: filters and deleted messages leave gaps.
        """
        begun = self._clock.monotonic()
        while True:
            offset, queue = stretch.position, stretch.queue
            if asked_again := self._was_asked_for(queue, offset):
                self._brokers.pop(queue, None)  # a replica may lack what its master has
            result = await self._ask(admin, queue, offset, most)
            waited = self._clock.monotonic() - begun
            if result.min_offset > offset:
                if (begin := await self._begin(admin, queue)) > offset:
                    end = min(begin, stretch.farthest)
                    data_loss(self._fails, queue, offset, end, found=begin)
                    self._plan.answered(stretch, most, b"", (), end)
                    return
            elif result.next_begin_offset <= offset:  # the queue ends before the range
                self._brokers.pop(queue, None)  # a replica may only be behind
                if waited >= SETTLE and (end := await self._end(admin, queue)) <= offset:
                    data_loss(self._fails, queue, offset, stretch.farthest, found=end)
                    self._plan.answered(stretch, most, b"", (), stretch.farthest)
                    return
            elif result.records:
                await self._brought(admin, stretch, most, result)
                return
            elif await self._passes_over(admin, queue, offset, most, result):
                if waited >= SETTLE:
                    end = min(result.next_begin_offset, stretch.farthest)
                    data_loss(self._fails, queue, offset, end, found=result.next_begin_offset)
                    self._plan.answered(stretch, most, b"", (), end)
                    return
            elif asked_again or self._tags != "*":
                await self._brought(admin, stretch, most, result)
                return
            self._lacking.add((queue, offset))
            await self._clock.sleep(SETTLE_PAUSE)

    def _was_asked_for(self, queue: MessageQueue, offset: int) -> bool:
        """Whether what lacks there is pulled no second time, if the machine that wrote it does not bring it either."""
        return (queue, offset) in self._lacking or self._beginnings.has_nothing_at(queue, offset)

    async def _passes_over(
        self, admin: Admin, queue: MessageQueue, offset: int, most: int, result: PulledRecords
    ) -> bool:
        """Whether a pull without records goes on further than a broker looks for one: then it has looked at none.

        One that may look further for a tag has something at the offset, or close to it, for who asks without tags.
        """
        if result.next_begin_offset - offset <= max(FARTHEST_SCAN, most):
            return False
        if self._tags != "*":
            result = await self._ask(admin, queue, offset, 1, "*")
        return not result.records and result.next_begin_offset - offset > FARTHEST_SCAN

    async def _ask(
        self, admin: Admin, queue: MessageQueue, offset: int, most: int, tags: str | None = None
    ) -> PulledRecords:
        """A pull; ``tags`` are the reading's own where none are given."""

        async def pull() -> PulledRecords:
            broker = self._brokers.get(queue, MASTER_ID)
            try:
                return await admin.pull_records(queue, offset, most, tags or self._tags, broker_id=broker)
            except RocketBoxError:
                self._brokers.pop(queue, None)  # who was suggested may be the one that fails
                raise

        what = f"reading {in_words(queue)} at {offset}"
        result = await self._patiently(what, pull)
        self._brokers[queue] = result.suggest_which_broker_id
        return result

    async def _patiently(self, what: str, function: Callable[[], Awaitable[ResultT]]) -> ResultT:
        return await patiently(self._clock, what, function, level=self._absence_level)

    async def _begin(self, admin: Admin, queue: MessageQueue) -> int:
        """Where the queue begins, as its master says, which is waited for and asked next: a replica may begin later."""
        self._brokers.pop(queue, None)
        return await self._patiently(f"asking where {in_words(queue)} begins", partial(admin.min_offset, queue))

    async def _end(self, admin: Admin, queue: MessageQueue) -> int:
        """Where it ends, in the same way."""
        return await self._patiently(f"asking where {in_words(queue)} ends", partial(admin.max_offset, queue))

    async def _brought(
        self, admin: Admin, stretch: Stretch, most: int, result: PulledRecords, *, all_tags: bool = False
    ) -> None:
        """Take what a pull has brought; with ``all_tags`` it was one without the filter."""
        offset, reached = stretch.position, result.next_begin_offset
        all_tags = all_tags or self._tags == "*"
        try:
            starts = record_starts(result.records)
        except RemoteProtocolError as error:
            if most > 1:
                await self._one_by_one(admin, stretch, reached)
                return
            data = unreadable_record(reached - 1)
            self._plan.brought(stretch, data, (0,), reached, str(error))
            return
        offsets, has_inner_batch = queue_offsets(result.records, starts)
        if has_inner_batch and not all_tags:
            result = await self._ask(admin, stretch.queue, offset, most, "*")
            if result.records:  # else it is gone, which the next pull finds
                await self._brought(admin, stretch, most, result, all_tags=True)
            return
        if wrong := what_cannot_be(offsets, offset, reached, has_inner_batch=has_inner_batch):
            if most > 1:
                await self._one_by_one(admin, stretch, reached)
            elif len(starts) > 1:
                raise AnswerError(stretch.queue, offset, wrong)
            else:
                self._plan.brought(stretch, unreadable_record(reached - 1), (0,), reached, wrong)
            return
        if all_tags and offsets and not has_inner_batch:
            reached = offsets[-1] + 1
        place = stretch.queue, offset
        lacks = len(starts) < reached - offset
        if lacks and not has_inner_batch and (not offsets or offsets[0] > offset):
            first = await self._first_kept(admin, stretch.queue, offset, result)
            if first is None:
                return
            if first > offset:
                end = min(first, stretch.farthest)
                data_loss(self._fails, stretch.queue, offset, end, found=first)
                self._plan.answered(stretch, most, b"", (), end)
                return
        if self._tags == "*" and lacks:
            if not self._was_asked_for(*place):
                self._lacking.add(place)
                return
            self._missing.note(stretch.queue, result.records, starts, offset, min(reached, stretch.farthest))
        self._lacking.discard(place)
        self._plan.answered(stretch, most, result.records, starts, reached)

    async def _first_kept(self, admin: Admin, queue: MessageQueue, offset: int, result: PulledRecords) -> int | None:
        """Where the queue begins, if what a pull at ``offset`` lacks is being deleted with all before it; else offset.

        That is waited for where nothing is left before the offset (``beginnings``): None when it is to be pulled again.
        A pull with a filter lacks what its filter leaves out: it has passed over nothing else where the message at the
        offset is still there now.
        """
        if self._tags != "*":
            result = await self._ask(admin, queue, offset, 1, "*")
            if (there := first_of(result, offset)) is not None and there <= offset:
                return offset
            if result.min_offset > offset:
                return begin if (begin := await self._begin(admin, queue)) > offset else None
        since, looked_for, empty_since = self._clock.monotonic(), -1, 0.0
        while since - self._looked_at.get(queue, -math.inf) > DELETED_BY_NOW:
            if result.min_offset > offset:
                return begin if (begin := await self._begin(admin, queue)) > offset else None
            begin = result.min_offset
            result = await self._ask(admin, queue, begin, 1, "*")
            first = first_of(result, begin)
            if result.min_offset <= begin and first is not None and first < max(offset, begin + 1):
                self._looked_at[queue] = since
                return offset if begin < offset else None
            if looked_for != begin:
                look, looked_for = partial(self._beginnings.empty_since, admin, queue, begin), begin
                empty_since = await self._patiently(f"looking for the first message of {in_words(queue)}", look)
            if self._clock.monotonic() - empty_since >= DELETED_BY_NOW:
                self._looked_at[queue] = math.inf
                return None
            await self._clock.sleep(SETTLE_PAUSE)
        return offset

    async def _one_by_one(self, admin: Admin, stretch: Stretch, end: int) -> None:
        """Read up to ``end`` with a pull for each message: one of them is no whole record."""
        while stretch.position < min(end, stretch.end):
            await self._pull(admin, stretch, 1)
