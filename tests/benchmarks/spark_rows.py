"""The row path of the Spark source as it was before it read by columns, frozen: the peer of the benchmark ``spark``.

A message becomes a MessageExt, and a record batch is made of lists of their fields. Kept as it was but for its errors;
the tests of the columnar path compare with it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pyarrow as pa

from rocketbox.client import Admin
from rocketbox.clock import Clock
from rocketbox.errors import RocketBoxError
from rocketbox.message import MessageExt, MessageQueue
from rocketbox.spark.offsets import QueueRange
from rocketbox.spark.options import SourceOptions
from rocketbox.spark.worker_client import client, gather, patiently

__all__ = ["ARROW_SCHEMA", "DataLossError", "data_loss", "read_chunk", "read_ranges", "to_record_batch"]

_log = logging.getLogger(__name__)

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
PULL_MESSAGES = 1024  # a broker gives what it likes to give at once; Apache's gives 32
PULLS_AT_ONCE = 4  # of one task: their requests go out in one write, and the broker has no pause between them
SHORTEST_STRETCH = 32  # rows; what one of them reads


class DataLossError(RocketBoxError):
    """Offsets that should be read are no longer on the broker."""

    def __init__(self, queue: MessageQueue, wanted: int, first: int) -> None:
        self.queue = queue
        self.wanted = wanted
        self.first = first
        super().__init__(
            f"{queue.topic} {queue.broker_name}/{queue.queue_id}: offset {wanted} is gone, there is "
            + (f"nothing before {first}: " if first > wanted else f"nothing from {first} on: ")
            + "messages were deleted before they were read (failOnDataLoss=false goes on behind them), or the topic "
            "was made anew (then remove the checkpoint)"
        )


def data_loss(options: SourceOptions, queue: MessageQueue, wanted: int, first: int) -> None:
    """Raise DataLossError, or log it where the options allow loss."""
    error = DataLossError(queue, wanted, first)
    if options.fail_on_data_loss:
        raise error
    _log.warning("%s", error)


def to_record_batch(messages: Sequence[MessageExt]) -> pa.RecordBatch:
    """One row for each message, in the columns of ARROW_SCHEMA."""
    names: list[str] = []
    values: list[str] = []
    ends = [0]
    for message in messages:
        properties = message.properties
        names += properties
        values += properties.values()
        ends.append(len(names))
    columns = [
        pa.array([message.body for message in messages], pa.binary()),
        pa.array([message.topic for message in messages], pa.string()),
        pa.array([message.broker_name for message in messages], pa.string()),
        pa.array([message.queue_id for message in messages], pa.int32()),
        pa.array([message.queue_offset for message in messages], pa.int64()),
        pa.array([message.msg_id for message in messages], pa.string()),
        pa.array([message.tag for message in messages], pa.string()),
        pa.array([message.keys for message in messages], pa.list_(pa.string())),
        # From its parts: a list of pairs for each row costs three times as much as the other columns together.
        pa.MapArray.from_arrays(
            pa.array(ends, pa.int32()), pa.array(names, pa.string()), pa.array(values, pa.string())
        ),
        pa.array([message.born_timestamp_ms * 1000 for message in messages], _TIMESTAMP),
        pa.array([message.store_timestamp_ms * 1000 for message in messages], _TIMESTAMP),
        pa.array([message.reconsume_times for message in messages], pa.int32()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


async def read_stretch(
    admin: Admin, piece: QueueRange, options: SourceOptions, clock: Clock
) -> tuple[list[MessageExt], int]:
    """The messages of ``piece``, and the offset reached: its end, or less when they are too many bytes.

    Reads on ``next_begin_offset``, not on a count: filters and deleted messages leave gaps.
    """
    queue = piece.queue
    messages: list[MessageExt] = []
    offset, size = piece.start, 0
    while offset < piece.end and size < BYTES_PER_RECORD_BATCH // PULLS_AT_ONCE:
        most = min(PULL_MESSAGES, piece.end - offset)
        result = await patiently(
            clock,
            f"reading {queue.topic} {queue.broker_name}/{queue.queue_id} at {offset}",
            lambda offset=offset, most=most: admin.pull(queue, offset, most, options.tags),  # type: ignore[misc]
        )
        if result.min_offset > offset:
            data_loss(options, queue, offset, result.min_offset)
        found = [message for message in result.messages if message.queue_offset < piece.end]
        if result.next_begin_offset <= offset:  # the queue ends before the range
            data_loss(options, queue, offset, result.max_offset)
            return messages, piece.end
        messages += found
        size += sum(len(message.body) for message in found)
        offset = result.next_begin_offset
    return messages, min(offset, piece.end)


async def read_chunk(
    admin: Admin, piece: QueueRange, options: SourceOptions, clock: Clock
) -> tuple[list[MessageExt], int]:
    """The same as :func:`read_stretch`, by several pulls at a time."""
    length = max(SHORTEST_STRETCH, -(-(piece.end - piece.start) // PULLS_AT_ONCE))
    stretches = [
        QueueRange(piece.queue, start, min(start + length, piece.end))
        for start in range(piece.start, piece.end, length)
    ]
    parts = await gather(lambda stretch: read_stretch(admin, stretch, options, clock), stretches)
    messages: list[MessageExt] = []
    for stretch, (found, reached) in parts.items():
        messages += found
        if reached < stretch.end:  # what later stretches have brought is read again, so that offsets ascend
            return messages, reached
    return messages, piece.end


def read_ranges(ranges: Sequence[QueueRange], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The messages of the ranges; while Spark works on one record batch, the next one is fetched."""
    thread = client(options.servers)
    waiting = [piece for piece in reversed(ranges) if piece.end > piece.start]
    length = SHORTEST_STRETCH * PULLS_AT_ONCE  # grows when messages have turned out to be small

    def fetch() -> tuple[QueueRange, Future[tuple[list[MessageExt], int]]] | None:
        if not waiting:
            return None
        piece = waiting.pop()
        if (end := min(piece.end, piece.start + length)) < piece.end:
            waiting.append(QueueRange(piece.queue, end, piece.end))
        piece = QueueRange(piece.queue, piece.start, end)
        return piece, thread.start(lambda admin: read_chunk(admin, piece, options, thread.clock))

    rows: list[MessageExt] = []
    size = 0
    coming = fetch()
    try:
        while coming is not None:
            piece, future = coming
            messages, reached = future.result()
            if reached < piece.end:
                waiting.append(QueueRange(piece.queue, reached, piece.end))
            rows += messages
            size += sum(len(message.body) for message in messages)
            if rows:
                length = max(
                    PULLS_AT_ONCE, min(ROWS_PER_RECORD_BATCH, BYTES_PER_RECORD_BATCH * len(rows) // (2 * max(size, 1)))
                )
            coming = fetch()
            if len(rows) >= ROWS_PER_RECORD_BATCH or 2 * size >= BYTES_PER_RECORD_BATCH:
                yield to_record_batch(rows)
                rows, size = [], 0
        if rows:
            yield to_record_batch(rows)
    finally:
        if coming is not None:
            coming[1].cancel()
