"""What Spark asks the data source ``rocketmq``: where a read begins and ends, and which tasks it is made of.

Source: Apache Spark 4.3.0, ``DataSourceReader`` and ``DataSourceStreamReader`` in Python, whose order of calls is
described in the docstrings here.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from rocketbox.client import Admin
from rocketbox.message import MessageQueue
from rocketbox.spark.checkpoint import INITIAL, StreamOffset, decode_offset, encode_ends, encode_offset
from rocketbox.spark.mirror import ABSENCE, GroupMirror
from rocketbox.spark.offsets import QueueOffsets, QueueRange, pack
from rocketbox.spark.options import SourceOptions
from rocketbox.spark.progress import StreamProgress
from rocketbox.spark.pushdown import Pushed, spark_pushes_filters
from rocketbox.spark.reading import read_ranges
from rocketbox.spark.selection import NOT_READABLE, MissingTopicError, unreadable_at
from rocketbox.spark.starting import PlaceKind, Places, offset_at, resolve, within
from rocketbox.spark.worker_client import client, gather

__all__ = ["RocketMQBatchReader", "RocketMQStreamReader", "batch_reader"]

_log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")


class RangePartition(InputPartition):
    """The ranges that one task reads; ``tags``: with which filter, if not with that of the options."""

    def __init__(self, ranges: list[QueueRange], tags: str | None = None) -> None:
        super().__init__(ranges)
        self.ranges = ranges
        self.tags = tags


class _Reader:
    """What the batch and the stream reader share."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def ask(self, function: Callable[[Admin], Awaitable[ResultT]]) -> ResultT:
        return client(self.options.servers).call(function)

    def tasks(self, ranges: Iterable[QueueRange], tags: str | None = None) -> list[RangePartition]:
        packed = pack(ranges, self.options.rows_per_partition, self.options.max_partitions)
        return [RangePartition(task, tags) for task in packed]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called in Spark's workers; with no partition at all when a batch read has none."""
        if not isinstance(partition, RangePartition):
            return read_ranges([], self.options)
        options = self.options if partition.tags is None else self.options.with_tags(partition.tags)
        return read_ranges(partition.ranges, options)


class RocketMQBatchReader(_Reader, DataSourceReader):
    """``spark.read``: what lies between two offsets."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._pushed = Pushed()

    def partitions(self) -> Sequence[InputPartition]:
        if self._pushed.tag_expression(self.options.tags) is None:  # no message has what is wanted
            return []
        return self.tasks(self.ask(self.ranges))

    async def ranges(self, admin: Admin) -> list[QueueRange]:
        """What is to be read of each queue."""
        options = self.options
        queues, missing, closed = await options.selection.queues(admin, self._pushed.may_have)
        if missing:
            raise MissingTopicError(
                f"{'; '.join(missing)} at name server {options.name_server}", "create it first, or let it be read"
            )
        if not options.selection.assigned:
            await self._check_readable(admin, {queue.topic for queue in queues}, closed)
        self._check_named(queues, options.batch_start, "startingOffsets")
        self._check_named(queues, options.ending_offsets, "endingOffsets")
        queues = [queue for queue in queues if self._pushed.has(queue)]
        last = await gather(admin.max_offset, queues)
        start = await self._resolve(admin, "startingOffsets", options.batch_start, last)
        end = await self._resolve(admin, "endingOffsets", options.ending_offsets, last)
        if wrong := {queue: offset for queue, offset in end.items() if offset < start[queue]}:
            queue, offset = min(wrong.items())
            raise ValueError(
                f"option endingOffsets lies before startingOffsets: {queue} ends at {offset} and begins at "
                f"{start[queue]}"
            )
        return await self._narrowed(admin, start, end)

    async def _check_readable(self, admin: Admin, topics: Collection[str], closed: Iterable[str]) -> None:
        """Whether all brokers let those topics be read that filters leave: messages of one that does not would only
        lack.

        Those of ``closed`` are known to have no queue that may be read. Raises MissingTopicError, or tells it
        where loss is allowed.
        """
        closed, pushed = frozenset(closed), self._pushed
        wanted = filter(pushed.may_have, {*topics, *closed})
        found: dict[str, str] = {}
        for topic, brokers in (await gather(admin.queues_on_brokers, wanted)).items():
            read = {name: queues for name, queues in brokers.items() if pushed.may_have(topic, name)}
            if topic in closed and (read or not brokers):
                found[topic] = f"topic {topic} has {NOT_READABLE}"
            elif closed_at := unreadable_at(read):
                found[topic] = f"topic {topic} may not be read at {', '.join(closed_at)}, by its permission there"
        for _, what in sorted(found.items()):
            if self.options.fail_on_data_loss:
                raise MissingTopicError(
                    what,
                    "let it be read (mqadmin updateTopicPerm -p 6, updateTopic -r), name the queues of the others by "
                    "assign, or say failOnDataLoss=false, which leaves those out",
                )
            _log.warning("%s: these messages are left out, as failOnDataLoss=false allows", what)

    def _check_named(self, queues: Sequence[MessageQueue], places: Places, option: str) -> None:
        named = {queue for queue in places.named if self._pushed.may_have(queue.topic)}
        if unknown := sorted(named - set(queues)):
            raise ValueError(
                f"option {option} names queues that the topic does not have: {', '.join(map(str, unknown))}"
            )

    async def _resolve(self, admin: Admin, option: str, places: Places, last: QueueOffsets) -> QueueOffsets:
        async def offset_of(queue: MessageQueue) -> int:
            place = places.of(queue)
            if place.kind is PlaceKind.LATEST:
                return last[queue]
            offset = await resolve(admin, place, queue, self.options.group)
            return within(option, place, queue, offset, last[queue])

        return await gather(offset_of, last)

    async def _narrowed(self, admin: Admin, start: QueueOffsets, end: QueueOffsets) -> list[QueueRange]:
        """The ranges without what the filters leave out."""
        pushed = self._pushed

        async def narrow(queue: MessageQueue) -> QueueRange:
            lowest, highest = max(start[queue], pushed.lowest), end[queue]
            if pushed.end is not None:
                highest = min(highest, pushed.end)
            if lowest < highest and pushed.earliest_ms is not None:
                lowest = max(lowest, await offset_at(admin, queue, pushed.earliest_ms))
            if lowest < highest and pushed.latest_ms is not None:
                highest = min(highest, await offset_at(admin, queue, pushed.latest_ms))
            return QueueRange(queue, lowest, highest)

        return list((await gather(narrow, sorted(end))).values())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return super().read(partition)


class PushingBatchReader(RocketMQBatchReader):
    """The same where Spark pushes filters: elsewhere it refuses a reader that could take some."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Called before ``partitions``; what comes back Spark evaluates itself.

        What the tasks have to know is said here: Spark pickles the reader for them before it asks for partitions.
        """
        left = self._pushed.push(filters)
        if (tags := self._pushed.tag_expression(self.options.tags)) is not None:
            self.options = self.options.with_tags(tags)
        return left


def batch_reader(options: SourceOptions) -> RocketMQBatchReader:
    """The reader for ``spark.read`` in this process of Spark's.

    Filters are taken only where the user says so: up to Spark 4.3.0 all scans of what one ``load()`` gave share the
    reader that was planned last, and so the filters that it has taken (``PythonDataSourceV2.setReadInfo``).
    """
    takes_filters = options.push_filters and spark_pushes_filters()
    return PushingBatchReader(options) if takes_filters else RocketMQBatchReader(options)


class RocketMQStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream``: micro-batches between offsets that Spark keeps in its checkpoint (form: ``checkpoint``).

    ``start`` of a batch is always fully processed: it is what the mirror of the group follows, so that the lag that
    tools show is right also while the topic is idle (``commit`` alone comes one batch late).
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._waits = False

    @cached_property
    def _progress(self) -> StreamProgress:
        """Made when it is wanted: what plans the tasks has a reader of its own, and sends it to them."""
        return StreamProgress(self.options, client(self.options.servers).clock)

    @cached_property
    def _mirror(self) -> GroupMirror | None:
        group = self.options.group if self.options.commit_offsets else None
        if group is None:
            return None
        return GroupMirror(group, client(self.options.servers).clock, absence=ABSENCE)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Always the same: Spark asks twice, and once more when batch 0 is repeated.

        Where batch 0 begins is found by ``latestOffset``, and written in its end.
        """
        return encode_offset(INITIAL)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """One of the limits, for Spark to show; all of them are kept."""
        options = self.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self.ask(self._progress.aim)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where the next batch ends; ``start`` when there is nothing to read.

        Spark ends the query when this raises; a broker that restarts is no reason to.
        """
        begin = decode_offset(start)
        limited = not isinstance(limit, ReadAllAvailable)

        async def ask(admin: Admin) -> StreamOffset:
            await self._follow(admin, begin)
            if self._waits:  # instead of being asked again at once
                await self._progress.ends.wait()
            return await self._progress.next(admin, begin, limited=limited)

        end = self.ask(ask)
        self._waits = end == begin
        if not self._waits:
            self._progress.ends.moved()
        return encode_offset(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """What the queues' ends were when ``latestOffset`` asked: Spark wants it after each of its calls."""
        return encode_ends(self._progress.ends.last)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Of a batch that may have been planned by an earlier process: it has the rows that it had then."""
        begin, ends = decode_offset(start), decode_offset(end)
        return self.tasks(self.ask(lambda admin: self._progress.check_end(admin, begin, ends)), ends.tags)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return super().read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Called when the next batch is planned: ``end`` is processed."""
        self.ask(lambda admin: self._follow(admin, decode_offset(end)))

    async def _follow(self, admin: Admin, done: StreamOffset) -> None:
        if self._mirror is not None:
            await self._mirror.follow(admin, {queue: progress.next for queue, progress in done.queues.items()})
