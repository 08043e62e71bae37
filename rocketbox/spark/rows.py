"""Messages as rows: what a task of Spark reads, from ranges of queues to Arrow record batches.

Source: Apache Spark 4.3.0, where the batches of a Python data source must have exactly the schema it declares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pyarrow as pa

from rocketbox.client import Admin
from rocketbox.clock import Clock
from rocketbox.message import MessageExt
from rocketbox.protocol.codes import MASTER_ID
from rocketbox.spark.loss import SETTLE, SETTLE_PAUSE, data_loss
from rocketbox.spark.offsets import QueueRange, in_words
from rocketbox.spark.options import SourceOptions
from rocketbox.spark.worker_client import client, gather, patiently

__all__ = ["ARROW_SCHEMA", "read_chunk", "read_ranges", "to_record_batch"]

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

    Reads on ``next_begin_offset``, not on a count: filters and deleted messages leave gaps. A queue that ends before
    the range is asked for some seconds: a broker that has just started fills it still.
    """
    queue, fail = piece.queue, options.fail_on_data_loss
    messages: list[MessageExt] = []
    offset, size, broker_id = piece.start, 0, MASTER_ID
    short_since: float | None = None
    while offset < piece.end and size < BYTES_PER_RECORD_BATCH // PULLS_AT_ONCE:
        most = min(PULL_MESSAGES, piece.end - offset)
        result = await patiently(
            clock,
            f"reading {in_words(queue)} at {offset}",
            lambda offset=offset, most=most, broker_id=broker_id: admin.pull(  # type: ignore[misc]
                queue, offset, most, options.tags, broker_id=broker_id
            ),
        )
        broker_id = result.suggest_which_broker_id
        if result.min_offset > offset:
            data_loss(fail, queue, offset, min(result.min_offset, piece.end), found=result.min_offset)
        found = [message for message in result.messages if message.queue_offset < piece.end]
        if result.next_begin_offset <= offset:  # the queue ends before the range
            broker_id = MASTER_ID  # a replica may only be behind
            short_since = clock.monotonic() if short_since is None else short_since
            if clock.monotonic() - short_since < SETTLE:
                await clock.sleep(SETTLE_PAUSE)
                continue
            data_loss(fail, queue, offset, piece.end, found=result.max_offset)
            return messages, piece.end
        short_since = None
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
    thread = client(options.name_server)
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
