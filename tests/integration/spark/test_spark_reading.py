"""What a task reads from the embedded broker, without Spark: the same rows each time, in order, however many."""

from __future__ import annotations

import zlib
from typing import Any

import anyio
import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from rocketbox.client import Admin, Producer
from rocketbox.message import Message
from rocketbox.spark.offsets import QueueRange
from rocketbox.spark.options import SourceOptions
from rocketbox.spark.pull_plan import ROWS_PER_RECORD_BATCH
from rocketbox.spark.reading import read_ranges
from tests.support.spark.topics import Broker

ROWS = 20_000


def ranges_of(broker: Broker, topic: str) -> list[QueueRange]:
    return [QueueRange(queue, 0, end or 0) for queue, end in sorted(broker.ends(topic).items())]


def table(broker: Broker, topic: str, ranges: list[QueueRange], **options: str) -> Any:
    chosen = SourceOptions({"nameServer": broker.name_server, "topic": topic, **options})
    batches = list(read_ranges(ranges, chosen))
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches)


def test_a_task_of_several_record_batches_reads_each_message_once_and_in_order(broker: Broker, topic: str) -> None:
    async def send() -> None:
        async with Producer("spark-tests", name_server=broker.name_server) as producer:
            for first in range(0, ROWS, 500):
                await producer.send_batch(
                    [Message(topic, b"%d" % row, tag="AB"[row % 2]) for row in range(first, first + 500)]
                )

    anyio.run(send)
    ranges = ranges_of(broker, topic)
    found = table(broker, topic, ranges)
    assert len(found) == ROWS > 2 * ROWS_PER_RECORD_BATCH
    assert sorted(map(int, found.column("body").to_pylist())) == list(range(ROWS))
    places = list(zip(found.column("queue_id").to_pylist(), found.column("queue_offset").to_pylist(), strict=True))
    assert places == [(piece.queue.queue_id, offset) for piece in ranges for offset in range(piece.start, piece.end)]
    assert table(broker, topic, ranges).equals(found)
    tagged = table(broker, topic, ranges, tags="B", columns="tag,body")
    assert tagged.column_names == ["tag", "body"]
    assert set(tagged.column("tag").to_pylist()) == {"B"}
    assert sorted(map(int, tagged.column("body").to_pylist())) == list(range(1, ROWS, 2))


def test_rows_are_those_of_the_client(broker: Broker, topic: str) -> None:
    long = b"all work and no play " * 400

    async def send_and_pull() -> list[tuple[Any, ...]]:
        async with (
            Producer("spark-tests", name_server=broker.name_server) as producer,
            Admin(name_server=broker.name_server) as admin,
        ):
            for number in range(20):
                await producer.send(
                    Message(
                        topic,
                        long if number % 2 else b"short",
                        tag="A",
                        keys=("k", f"{number}"),
                        properties={"x": "\u00e4"},
                    )
                )
            found: list[tuple[Any, ...]] = []
            for queue in await admin.queues(topic):
                for one in (await admin.pull(queue, 0, 100)).messages:
                    place = (one.topic, one.broker_name, one.queue_id, one.queue_offset)
                    found.append((one.body, *place, one.msg_id, one.tag, [*one.keys], [*one.properties.items()]))
            return found

    expected = anyio.run(send_and_pull)
    found = table(broker, topic, ranges_of(broker, topic))
    names = found.column_names[:9]
    assert [tuple(row[name] for name in names) for row in found.to_pylist()] == expected
    assert len(zlib.compress(long)) < len(long) == max(map(len, found.column("body").to_pylist()))


def test_a_reader_that_is_left_early_stops_pulling(broker: Broker, topic: str) -> None:
    broker.send(topic, [{"row": number} for number in range(300)])
    chosen = SourceOptions({"nameServer": broker.name_server, "topic": topic})
    batches = read_ranges(ranges_of(broker, topic), chosen)
    assert next(batches).num_rows == 300
    batches.close()  # type: ignore[attr-defined]
    assert list(read_ranges([], chosen)) == []
