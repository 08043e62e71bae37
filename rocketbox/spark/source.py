"""The Spark data source ``rocketmq``: batch and streaming read of a topic, as Arrow record batches.

``spark.read.format("rocketmq")`` and ``spark.readStream.format("rocketmq")`` with these options (names in any case):

- ``nameServer``: ``host:port``, several with ``;``. Needed.
- ``topic``: the topic. Needed.
- ``tags``: which tags, such as ``UA || AA``; ``*`` (all) by default.
- ``group``: a consumer group: where ``startingOffsets=group`` begins, and where progress is mirrored.
- ``startingOffsets``: ``earliest`` (batch default), ``latest``, ``group`` (its offset, else earliest; the stream's
  default when there is a group), or JSON, which may name some queues only (others: earliest).
- ``endingOffsets``: batch only: ``latest`` (default) or JSON (queues it does not name: latest).
- ``maxOffsetsPerTrigger``: rows of one micro-batch at most, shared in proportion to the queues' backlogs.
- ``commitOffsets``: mirror progress to the group's offsets on the broker; ``true`` when there is a group.
- ``metadataPath``: a folder where a stream's initial offsets are kept, so that a repeated batch 0 reads the same.
- ``failOnDataLoss``: ``true`` (default): offsets that are gone fail the query; ``false``: it goes on behind the gap.
- ``rowsPerPartition``: about how many rows one task reads (20,000).
- ``maxPartitions``: tasks of one batch at most (twice the processors).

What counts is Spark's checkpoint; the group's offsets on the broker are a mirror for tools, at most one batch behind.

Spark's workers import this module: it stands on the client alone. Source: Apache Spark 4.3.0, ``DataSource`` in Python.
"""

from __future__ import annotations

import atexit
import difflib
import json
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pyarrow as pa
from anyio.from_thread import BlockingPortal
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from rocketbox.client import Admin
from rocketbox.clock import Clock, RealClock
from rocketbox.errors import NoRouteError, RemotingError, RocketBoxError
from rocketbox.message import MessageExt, MessageQueue
from rocketbox.spark.offsets import (
    QueueOffsets,
    QueueRange,
    from_spark,
    limit_rows,
    pack,
    parse_starting_offsets,
    to_spark,
)

__all__ = ["ARROW_SCHEMA", "SCHEMA", "DataLossError", "RocketMQDataSource", "SourceOptions"]

_log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

SCHEMA = (
    "body binary, topic string, broker_name string, queue_id int, queue_offset bigint, msg_id string, tag string, "
    "keys array<string>, properties map<string,string>, born_timestamp timestamp, store_timestamp timestamp, "
    "reconsume_times int"
)
_TIMESTAMP = pa.timestamp("us", tz="UTC")
ARROW_SCHEMA = pa.schema(
    [
        ("body", pa.binary()),
        ("topic", pa.string()),
        ("broker_name", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("msg_id", pa.string()),
        ("tag", pa.string()),
        ("keys", pa.list_(pa.string())),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("born_timestamp", _TIMESTAMP),
        ("store_timestamp", _TIMESTAMP),
        ("reconsume_times", pa.int32()),
    ]
)

ROWS_PER_RECORD_BATCH = 4096
BYTES_PER_RECORD_BATCH = 16 * 1024 * 1024
PULL_MESSAGES = 32  # a broker gives no more at once
IDLE_PAUSE = 0.2  # seconds: with nothing new, Spark would ask about 90 times a second
MIRROR_PAUSE = 1.0  # seconds between two commits of the group's offsets


class DataLossError(RocketBoxError):
    """Offsets that should be read are no longer on the broker."""

    def __init__(self, queue: MessageQueue, wanted: int, first: int) -> None:
        self.queue = queue
        self.wanted = wanted
        self.first = first
        super().__init__(
            f"{queue.topic} {queue.broker_name}/{queue.queue_id}: offsets {wanted} to {first} are gone. They were "
            "deleted before they were read (failOnDataLoss=false goes on behind them), or the topic was made anew "
            "(then remove the checkpoint)"
        )


class SourceOptions:
    """The options of a read, checked. Raises ValueError naming the option and what would be right."""

    NAMES = (
        "nameServer topic tags group startingOffsets endingOffsets maxOffsetsPerTrigger commitOffsets metadataPath "
        "failOnDataLoss rowsPerPartition maxPartitions"
    ).split()

    def __init__(self, options: Mapping[str, str]) -> None:
        known = {name.lower(): name for name in self.NAMES}
        values: dict[str, str] = {}
        for name, value in options.items():
            if name.lower() not in known:
                near = difflib.get_close_matches(name.lower(), known, 1)
                hint = f"did you mean {known[near[0]]}?" if near else f"there are {', '.join(self.NAMES)}"
                raise ValueError(f"the data source rocketmq has no option {name!r}; {hint}")
            values[known[name.lower()]] = value
        self.name_server = self._needed(values, "nameServer")
        self.topic = self._needed(values, "topic")
        self.tags = values.get("tags", "*")
        self.group = values.get("group") or None
        self.starting_offsets = values.get("startingOffsets")
        self.ending_offsets = values.get("endingOffsets", "latest")
        self.max_offsets_per_trigger = self._number(values, "maxOffsetsPerTrigger", None)
        self.commit_offsets = self._switch(values, "commitOffsets", self.group is not None)
        self.metadata_path = Path(values["metadataPath"]) if values.get("metadataPath") else None
        self.fail_on_data_loss = self._switch(values, "failOnDataLoss", True)
        self.rows_per_partition = self._number(values, "rowsPerPartition", 20_000) or 20_000
        self.max_partitions = self._number(values, "maxPartitions", None) or 2 * (os.cpu_count() or 1)
        if self.group is None and (self.commit_offsets or self.starting_offsets == "group"):
            raise ValueError("commitOffsets and startingOffsets=group need the option group")
        for text in (self.starting_offsets, self.ending_offsets):
            if text not in (None, "earliest", "latest", "group"):
                parse_starting_offsets(str(text))

    @staticmethod
    def _needed(values: Mapping[str, str], name: str) -> str:
        if not (value := values.get(name, "").strip()):
            raise ValueError(f"the data source rocketmq needs the option {name}")
        return value

    @staticmethod
    def _number(values: Mapping[str, str], name: str, default: int | None) -> int | None:
        if name not in values:
            return default
        if not values[name].isdecimal() or int(values[name]) < 1:
            raise ValueError(f"option {name} is {values[name]!r}; it must be a whole number above 0")
        return int(values[name])

    @staticmethod
    def _switch(values: Mapping[str, str], name: str, default: bool) -> bool:
        text = values.get(name, str(default)).lower()
        if text not in ("true", "false"):
            raise ValueError(f"option {name} is {values[name]!r}; it must be true or false")
        return text == "true"


class ClientThread:
    """A client in an event loop of its own, for code that has none: Spark calls its sources from plain functions."""

    def __init__(self, name_server: str) -> None:
        self._name_server = name_server
        self._ready = threading.Event()
        self._portal: BlockingPortal | None = None
        self._admin: Admin | None = None
        self._error: BaseException | None = None
        # A daemon: a worker of Spark ends without asking anybody.
        self._thread = threading.Thread(target=self._work, name=f"rocketmq {name_server}", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        async def main() -> None:
            async with BlockingPortal() as portal, Admin(name_server=self._name_server) as admin:
                self._portal, self._admin = portal, admin
                self._ready.set()
                await portal.sleep_until_stopped()

        try:
            anyio.run(main)
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    @property
    def portal(self) -> BlockingPortal:
        assert self._portal is not None
        return self._portal

    def call(self, function: Callable[[Admin], Awaitable[ResultT]]) -> ResultT:
        """The result of ``function(admin)``, run in the client's loop."""
        assert self._admin is not None
        return self.portal.call(function, self._admin)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        if self.alive:
            self.portal.start_task_soon(self.portal.stop)
            self._thread.join(10)


_clients: dict[tuple[int, str], ClientThread] = {}
_clients_lock = threading.Lock()


def client(name_server: str) -> ClientThread:
    """This process' client of a name server. Spark's workers live on from batch to batch, and so does it."""
    key = (os.getpid(), name_server)  # a worker is forked: the parent's thread is not there
    with _clients_lock:
        found = _clients.get(key)
        if found is None or not found.alive:
            found = _clients[key] = ClientThread(name_server)
            atexit.register(found.close)
        return found


class RangePartition(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: list[QueueRange]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


def to_record_batch(messages: Sequence[MessageExt]) -> pa.RecordBatch:
    """One row for each message, in the columns of ARROW_SCHEMA."""
    columns = [
        pa.array([message.body for message in messages], pa.binary()),
        pa.array([message.topic for message in messages], pa.string()),
        pa.array([message.broker_name for message in messages], pa.string()),
        pa.array([message.queue_id for message in messages], pa.int32()),
        pa.array([message.queue_offset for message in messages], pa.int64()),
        pa.array([message.msg_id for message in messages], pa.string()),
        pa.array([message.tag for message in messages], pa.string()),
        pa.array([message.keys for message in messages], pa.list_(pa.string())),
        pa.array([list(message.properties.items()) for message in messages], pa.map_(pa.string(), pa.string())),
        pa.array([message.born_timestamp_ms * 1000 for message in messages], _TIMESTAMP),
        pa.array([message.store_timestamp_ms * 1000 for message in messages], _TIMESTAMP),
        pa.array([message.reconsume_times for message in messages], pa.int32()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


async def read_chunk(admin: Admin, piece: QueueRange, options: SourceOptions) -> tuple[list[MessageExt], QueueRange]:
    """About one record batch's worth of messages from the start of ``piece``, and what is left of it.

    Reads on ``next_begin_offset``, not on a count: filters and deleted messages leave gaps.
    """
    messages: list[MessageExt] = []
    offset, size = piece.start, 0
    while offset < piece.end and len(messages) < ROWS_PER_RECORD_BATCH and size < BYTES_PER_RECORD_BATCH:
        result = await admin.pull(piece.queue, offset, PULL_MESSAGES, expression=options.tags)
        if result.min_offset > offset:
            if options.fail_on_data_loss:
                raise DataLossError(piece.queue, offset, min(result.min_offset, piece.end))
            _log.warning("%s", DataLossError(piece.queue, offset, min(result.min_offset, piece.end)))
        if result.next_begin_offset <= offset:
            if options.fail_on_data_loss:
                raise DataLossError(piece.queue, offset, piece.end)
            _log.warning("%s", DataLossError(piece.queue, offset, piece.end))
            offset = piece.end
            break
        found = [message for message in result.messages if message.queue_offset < piece.end]
        messages += found
        size += sum(len(message.body) for message in found)
        offset = result.next_begin_offset
    return messages, QueueRange(piece.queue, min(offset, piece.end), piece.end)


def read_ranges(ranges: Sequence[QueueRange], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The messages of the ranges; while Spark works on one record batch, the next one is fetched."""
    thread = client(options.name_server)

    async def fetch(piece: QueueRange) -> tuple[list[MessageExt], QueueRange]:
        assert thread._admin is not None
        return await read_chunk(thread._admin, piece, options)

    waiting = [piece for piece in reversed(ranges) if piece.end > piece.start]
    coming = thread.portal.start_task_soon(fetch, waiting.pop()) if waiting else None
    try:
        while coming is not None:
            messages, rest = coming.result()
            if rest.end > rest.start:
                waiting.append(rest)
            coming = thread.portal.start_task_soon(fetch, waiting.pop()) if waiting else None
            if messages:
                yield to_record_batch(messages)
    finally:
        if coming is not None:
            coming.cancel()


class _Reader:
    """What the batch and the stream reader share: the options, which alone are pickled, and questions to the broker."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def ask(self, function: Callable[[Admin], Awaitable[ResultT]]) -> ResultT:
        return client(self.options.name_server).call(function)

    async def _queues(self, admin: Admin) -> list[MessageQueue]:
        try:
            return await admin.queues(self.options.topic)
        except NoRouteError:
            return []  # a topic that nobody has sent to yet has no messages

    async def first_offsets(self, admin: Admin) -> QueueOffsets:
        return {queue: await admin.min_offset(queue) for queue in await self._queues(admin)}

    async def last_offsets(self, admin: Admin) -> QueueOffsets:
        return {queue: await admin.max_offset(queue) for queue in await self._queues(admin)}

    async def resolve(self, admin: Admin, text: str) -> QueueOffsets:
        """The offset of each queue that ``text`` (earliest, latest, group, JSON) means now."""
        first = await self.first_offsets(admin)
        if text == "earliest":
            return first
        last = await self.last_offsets(admin)
        if text == "latest":
            return last
        if text == "group":
            group = self.options.group
            assert group is not None
            committed = {queue: await admin.committed(group, queue) for queue in first}
            return {queue: first[queue] if offset is None else offset for queue, offset in committed.items()}
        given = parse_starting_offsets(text)
        if unknown := sorted(given.keys() - first.keys()):
            raise ValueError(f"offsets name queues that topic {self.options.topic!r} does not have: {unknown}")
        special = {-2: first, -1: last}
        return {
            queue: special[given[queue]][queue] if given.get(queue, 0) < 0 else given.get(queue, first[queue])
            for queue in first
        }

    def tasks(self, start: QueueOffsets, end: QueueOffsets) -> list[RangePartition]:
        # A queue that is new since the start of the batch is read from its beginning.
        new = end.keys() - start.keys()
        first = self.ask(self.first_offsets) if new else {}
        ranges = [QueueRange(queue, start.get(queue, first.get(queue, 0)), end[queue]) for queue in sorted(end)]
        return [
            RangePartition(task) for task in pack(ranges, self.options.rows_per_partition, self.options.max_partitions)
        ]


class RocketMQBatchReader(_Reader, DataSourceReader):
    """``spark.read``: what lies between two offsets."""

    def partitions(self) -> Sequence[InputPartition]:
        start = self.ask(lambda admin: self.resolve(admin, self.options.starting_offsets or "earliest"))
        last = self.ask(self.last_offsets)
        end = last
        if self.options.ending_offsets != "latest":
            end = {**last, **self.ask(lambda admin: self.resolve_end(admin, last))}
        return self.tasks(start, end)

    async def resolve_end(self, admin: Admin, last: QueueOffsets) -> QueueOffsets:
        if self.options.ending_offsets in ("earliest", "group"):
            raise ValueError(f"endingOffsets is {self.options.ending_offsets!r}; it must be latest or JSON")
        given = parse_starting_offsets(self.options.ending_offsets)
        beyond = {queue: offset for queue, offset in given.items() if queue not in last or offset > last[queue]}
        if beyond:
            raise ValueError(f"endingOffsets lie beyond the topic's end or name no queue of it: {to_spark(beyond)}")
        first = await self.first_offsets(admin)
        special = {-2: first, -1: last}
        return {queue: special[offset][queue] if offset < 0 else offset for queue, offset in given.items()}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_ranges(partition.ranges, self.options)


class RocketMQStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream``: micro-batches between offsets that Spark keeps in its checkpoint.

    ``start`` of a batch is always fully processed: it is mirrored to the group's offsets, so that the lag that tools
    show is right also while the topic is idle (``commit`` alone comes one batch late).
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        starting = options.starting_offsets or ("group" if options.group else "earliest")
        moving = starting in ("latest", "group")
        if moving and options.metadata_path is None and not options.commit_offsets:
            raise ValueError(
                f"startingOffsets={starting} needs metadataPath (a folder, such as one beside the checkpoint) or a "
                "group with commitOffsets=true: Spark asks for the initial offsets again when batch 0 is repeated, "
                "and messages in between would be skipped"
            )
        self._starting = starting
        self._initial: QueueOffsets | None = None
        self._target: QueueOffsets | None = None
        self._mirrored: QueueOffsets = {}
        self._mirrored_at = float("-inf")
        self._clock: Clock = RealClock()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Always the same answer for one query: Spark asks twice, and once more when batch 0 is repeated."""
        if self._initial is None:
            kept = self._kept_initial()
            self._initial = self._resolve_initial() if kept is None else kept
        return to_spark(self._initial)

    def _initial_file(self) -> Path | None:
        path = self.options.metadata_path
        return path / "initial.json" if path else None

    def _kept_initial(self) -> QueueOffsets | None:
        file = self._initial_file()
        if file is None or not file.exists():
            return None
        kept = json.loads(file.read_text())
        if kept["topic"] != self.options.topic:
            raise ValueError(f"{file} keeps the offsets of topic {kept['topic']!r}; one checkpoint, one topic")
        return from_spark(kept["offsets"])

    def _resolve_initial(self) -> QueueOffsets:
        offsets = self.ask(lambda admin: self.resolve(admin, self._starting))
        if file := self._initial_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            draft = file.with_suffix(".draft")
            with draft.open("w") as output:
                json.dump({"topic": self.options.topic, "offsets": to_spark(offsets)}, output)
                output.flush()
                os.fsync(output.fileno())
            draft.rename(file)
        if self.options.commit_offsets:
            self._mirror(offsets, at_once=True)
        return offsets

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        most = self.options.max_offsets_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        begin = from_spark(start)
        if self.options.commit_offsets:
            self._mirror(begin)
        latest = self._latest(begin)
        if latest == begin and self._target is None:
            # Nothing new: wait here for a moment instead of being asked again at once.
            client(self.options.name_server).portal.call(self._clock.sleep, IDLE_PAUSE)
            latest = self._latest(begin)
        if isinstance(limit, ReadMaxRows):
            first = {queue: begin.get(queue, 0) for queue in latest}
            latest = limit_rows(first, latest, limit.max_rows)
        return to_spark(latest)

    def _latest(self, begin: QueueOffsets) -> QueueOffsets:
        """The ends to read to: never before ``begin`` (a queue that vanished stays), nor beyond the target."""
        try:
            last = self._target if self._target is not None else self.ask(self.last_offsets)
        except RemotingError as error:
            # Spark ends the query when this raises; a broker that restarts is no reason to.
            _log.warning("the end of topic %s is not known: %s", self.options.topic, error)
            return begin
        for queue, offset in begin.items():
            if queue in last and last[queue] < offset and self._target is None:
                raise DataLossError(queue, last[queue], offset)
        ends = {queue: max(offset, begin.get(queue, 0)) for queue, offset in last.items()}
        return {**begin, **ends}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._target = self.ask(self.last_offsets)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        try:
            return to_spark(self.ask(self.last_offsets))
        except RemotingError:
            return None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self.tasks(from_spark(start), from_spark(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_ranges(partition.ranges, self.options)

    def commit(self, end: dict[str, Any]) -> None:
        if self.options.commit_offsets:
            self._mirror(from_spark(end), at_once=True)

    def _mirror(self, offsets: QueueOffsets, *, at_once: bool = False) -> None:
        """Commit what has moved on to the group; a failure costs the mirror a moment, never the query."""
        moved = {queue: offset for queue, offset in offsets.items() if offset > self._mirrored.get(queue, -1)}
        now = self._clock.monotonic()
        if not moved or (not at_once and now - self._mirrored_at < MIRROR_PAUSE):
            return
        group = self.options.group
        assert group is not None

        async def commit(admin: Admin) -> None:
            for queue, offset in moved.items():
                await admin.commit(group, queue, offset)

        try:
            self.ask(commit)
        except RocketBoxError as error:
            _log.warning("the offsets of group %s were not mirrored: %s", group, error)
            return
        self._mirrored.update(moved)
        self._mirrored_at = now


class RocketMQDataSource(DataSource):
    """Spark's way in; it is pickled with its options for every use."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = dict(options)

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return RocketMQBatchReader(SourceOptions(self._options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return RocketMQStreamReader(SourceOptions(self._options))
