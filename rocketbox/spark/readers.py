"""What Spark asks the data source ``rocketmq``: where a read begins and ends, and which tasks it is made of.

Source: Apache Spark 4.3.0, ``DataSourceReader`` and ``DataSourceStreamReader`` in Python, whose order of calls is
described in the docstrings here.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from rocketbox.client import Admin
from rocketbox.errors import NoRouteError
from rocketbox.message import MessageQueue
from rocketbox.spark.offsets import (
    QueueOffsets,
    QueueRange,
    from_spark,
    limit_rows,
    pack,
    parse_starting_offsets,
    to_spark,
)
from rocketbox.spark.options import SourceOptions
from rocketbox.spark.rows import data_loss, read_ranges
from rocketbox.spark.worker_client import UNREACHABLE, client, gather, may_pass, patiently

__all__ = ["RocketMQBatchReader", "RocketMQStreamReader"]

_log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

IDLE_PAUSE = 0.1  # seconds: with nothing new, Spark would ask about 90 times a second


class RangePartition(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: list[QueueRange]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


class _Reader:
    """What the batch and the stream reader share: the options, which alone are pickled, and questions to the broker."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def ask(self, function: Callable[[Admin], Awaitable[ResultT]]) -> ResultT:
        return client(self.options.name_server).call(function)

    async def queues(self, admin: Admin) -> list[MessageQueue]:
        try:
            return await admin.queues(self.options.topic)
        except NoRouteError:
            return []  # a topic that nobody has sent to yet has no messages

    async def last_offsets(self, admin: Admin) -> QueueOffsets:
        return await gather(admin.max_offset, await self.queues(admin))

    async def group_offsets(self, admin: Admin, queues: Iterable[MessageQueue]) -> QueueOffsets:
        """What the group has committed; the beginning of a queue where it has not."""
        group = self.options.group
        assert group is not None
        committed = await gather(lambda queue: admin.committed(group, queue), queues)
        first = await gather(admin.min_offset, [queue for queue, offset in committed.items() if offset is None])
        return {queue: first[queue] if offset is None else offset for queue, offset in committed.items()}

    async def resolve(self, admin: Admin, text: str) -> QueueOffsets:
        """The offset of each queue that ``text`` (earliest, latest, group, JSON) means now."""
        queues = await self.queues(admin)
        if text == "latest":
            return await gather(admin.max_offset, queues)
        if text == "group":
            return await self.group_offsets(admin, queues)
        first = await gather(admin.min_offset, queues)
        if text == "earliest":
            return first
        return {**first, **await self.resolve_json(admin, text, "startingOffsets")}

    async def resolve_json(self, admin: Admin, text: str, option: str) -> QueueOffsets:
        """The offsets of the queues that ``text`` names."""
        last = await self.last_offsets(admin)
        given = parse_starting_offsets(text)
        if unknown := {queue: offset for queue, offset in given.items() if queue not in last}:
            raise ValueError(f"option {option} names queues that the topic does not have: {to_spark(unknown)}")
        if beyond := {queue: last[queue] for queue, offset in given.items() if offset > last[queue]}:
            raise ValueError(f"option {option} lies beyond the end of the queues, which is {to_spark(beyond)}")
        first = await gather(admin.min_offset, [queue for queue, offset in given.items() if offset == -2])
        special = {-2: first, -1: last}
        return {queue: special[offset][queue] if offset < 0 else offset for queue, offset in given.items()}

    def tasks(self, start: QueueOffsets, end: QueueOffsets) -> list[RangePartition]:
        for queue in sorted(end):
            if start[queue] > end[queue]:
                data_loss(self.options, queue, start[queue], end[queue])
        ranges = [QueueRange(queue, start[queue], end[queue]) for queue in sorted(end)]
        return [
            RangePartition(task) for task in pack(ranges, self.options.rows_per_partition, self.options.max_partitions)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called in Spark's workers; with no partition at all when a batch read has none."""
        ranges = partition.ranges if isinstance(partition, RangePartition) else []
        return read_ranges(ranges, self.options)


class RocketMQBatchReader(_Reader, DataSourceReader):
    """``spark.read``: what lies between two offsets."""

    def partitions(self) -> Sequence[InputPartition]:
        return self.tasks(*self.ask(self.ends))

    async def ends(self, admin: Admin) -> tuple[QueueOffsets, QueueOffsets]:
        """Where the read begins and where it ends."""
        start = await self.resolve(admin, self.options.starting_offsets or "earliest")
        last = await self.last_offsets(admin)
        if self.options.ending_offsets == "latest":
            end = last
        else:
            end = {**last, **await self.resolve_json(admin, self.options.ending_offsets, "endingOffsets")}
        if wrong := {queue: offset for queue, offset in end.items() if offset < start.get(queue, 0)}:
            raise ValueError(f"option endingOffsets lies before startingOffsets: {to_spark(wrong)}")
        return {queue: start.get(queue, 0) for queue in end}, end

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return super().read(partition)


class RocketMQStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream``: micro-batches between offsets that Spark keeps in its checkpoint.

    ``start`` of a batch is always fully processed: it is mirrored to the group's offsets, so that the lag that tools
    show is right also while the topic is idle (``commit`` alone comes one batch late).
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._initial: QueueOffsets | None = None
        self._target: QueueOffsets | None = None
        self._mirrored: QueueOffsets = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Always the same answer for one query: Spark asks twice, and once more when batch 0 is repeated."""
        if self._initial is None:
            kept = self._kept_initial()
            self._initial = self._resolve_initial() if kept is None else kept
        return to_spark(self._initial)

    def _kept_initial(self) -> QueueOffsets | None:
        if self.options.metadata_path is None or not (file := self.options.metadata_path / "initial.json").exists():
            return None
        try:
            kept = json.loads(file.read_text())
            topic, offsets = kept["topic"], from_spark(kept["offsets"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{file} should hold the first offsets of the query, and cannot be read: {error}"
            ) from error
        if topic != self.options.topic:
            raise ValueError(f"{file} keeps the offsets of topic {topic!r}; one metadataPath, one topic")
        return offsets

    def _resolve_initial(self) -> QueueOffsets:
        offsets = self.ask(lambda admin: self.resolve(admin, self.options.stream_start))
        if folder := self.options.metadata_path:
            folder.mkdir(parents=True, exist_ok=True)
            draft = folder / "initial.draft"
            with draft.open("w") as output:
                json.dump({"topic": self.options.topic, "offsets": to_spark(offsets)}, output)
                output.flush()
                os.fsync(output.fileno())
            draft.rename(folder / "initial.json")
        if self.options.commit_offsets:
            self._commit(offsets)
        return offsets

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        most = self.options.max_offsets_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self.ask(self.last_offsets)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where the next batch ends; ``start`` when there is nothing to read."""
        begin = from_spark(start)
        self._mirror(begin)
        # Spark ends the query when this raises; a broker that restarts is no reason to.
        try:
            first, last = self.ask(lambda admin: self._backlog(admin, begin))
            if last == begin and self._target is None:
                # Nothing new: wait here for a moment instead of being asked again at once.
                client(self.options.name_server).pause(IDLE_PAUSE)
                first, last = self.ask(lambda admin: self._backlog(admin, begin))
        except UNREACHABLE as error:
            if not may_pass(error):
                raise
            _log.warning("the end of topic %s is not known: %s", self.options.topic, error)
            client(self.options.name_server).pause(IDLE_PAUSE)
            return to_spark(begin)
        for queue, offset in begin.items():
            if last[queue] < offset:
                data_loss(self.options, queue, offset, last[queue])
        if isinstance(limit, ReadMaxRows):
            last = limit_rows(first, last, limit.max_rows)
        return to_spark(last)

    async def _backlog(self, admin: Admin, begin: QueueOffsets) -> tuple[QueueOffsets, QueueOffsets]:
        """Where each queue is to be read from and to; a queue whose broker is away stays where it is."""
        last = await self.last_offsets(admin) if self._target is None else self._target
        first = {**begin, **await self._new_queues(admin, last.keys() - begin.keys())}
        return first, {**begin, **last}

    async def _new_queues(self, admin: Admin, queues: Iterable[MessageQueue]) -> QueueOffsets:
        """A queue that has appeared since the query began is read from its beginning, or where the group stands."""
        if self.options.stream_start == "group":
            return await self.group_offsets(admin, queues)
        return await gather(admin.min_offset, queues)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        try:
            return to_spark(self.ask(self.last_offsets))
        except UNREACHABLE:
            return None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, ends = from_spark(start), from_spark(end)
        if new := ends.keys() - begin.keys():
            clock = client(self.options.name_server).clock
            what = f"asking where new queues of {self.options.topic} begin"
            begin |= self.ask(lambda admin: patiently(clock, what, lambda: self._new_queues(admin, new)))
        return self.tasks(begin, ends)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return super().read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._mirror(from_spark(end))

    def _mirror(self, offsets: QueueOffsets) -> None:
        """Commit what has moved on to the group; a failure costs the mirror a moment, never the query."""
        if not self.options.commit_offsets:
            return
        try:
            self._commit(offsets)
        except UNREACHABLE as error:
            _log.warning("the offsets of group %s were not mirrored: %s", self.options.group, error)

    def _commit(self, offsets: QueueOffsets) -> None:
        group = self.options.group
        assert group is not None
        moved = {queue: offset for queue, offset in offsets.items() if offset != self._mirrored.get(queue)}

        async def commit(admin: Admin) -> None:
            await gather(lambda queue: admin.commit(group, queue, moved[queue]), moved)

        if moved:
            self.ask(commit)
            self._mirrored |= moved
