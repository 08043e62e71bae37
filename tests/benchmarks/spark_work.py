"""One part of the benchmark ``spark`` in a process of its own: prints a line of JSON for each figure.

``python -m tests.benchmarks.spark_work PART --rows N [--name-server ADDRESS --topic TOPIC --directory PATH]``
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from rocketbox.client import Admin, Producer
from rocketbox.message import Message, MessageQueue
from rocketbox.protocol.stored_message import StoredMessage, decode_messages, encode_stored_message
from rocketbox.spark import reading
from rocketbox.spark.columns import COLUMNS
from rocketbox.spark.offsets import QueueRange
from rocketbox.spark.options import SourceOptions
from rocketbox.spark.pull_plan import ROWS_PER_RECORD_BATCH
from rocketbox.spark.record_columns import Pulled, RecordDecoder, record_starts
from tests.benchmarks import spark_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ALL", "FEW", "PARTS", "fill"]

BODY = b"x" * 1024
MEGABYTE = 1 << 20
LARGE = 4 * MEGABYTE - 1024  # with its properties it is below the broker's limit
FEW = ("body", "queue_id", "queue_offset", "born_timestamp", "store_timestamp")
ALL = tuple(COLUMNS)
RECORDS = 16_384
PULL = 32
PULLS_A_BATCH = ROWS_PER_RECORD_BATCH // PULL
MICRO_BATCHES = (20_000, 100_000, 400_000)
ROW_PATH = "rocketmq_rows"  # of spark_rows_source
TRICKLE, PAUSE = 40, 0.25  # messages, and seconds between them


def tell(name: str, **figures: float) -> None:
    print(json.dumps({"name": name, **figures}), flush=True)


def message(topic: str, number: int, body: bytes = BODY) -> Message:
    """Six properties: UNIQ_KEY and WAIT are the producer's."""
    return Message(topic, body, tag="A", keys=(f"k{number}",), properties={"trace": f"{number:016x}", "region": "eu"})


async def fill(name_server: str, topic: str, rows: int) -> None:
    """Put messages of 1 KiB into the topic."""
    async with Producer("bench", name_server=name_server) as producer:
        await producer.send(message(topic, 0))
        firsts = iter(range(1, rows, PULL))

        async def send() -> None:
            for first in firsts:
                await producer.send_batch([message(topic, row) for row in range(first, min(first + PULL, rows))])

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(send)


async def _ranges(name_server: str, topic: str) -> list[QueueRange]:
    async with Admin(name_server=name_server) as admin:
        return [QueueRange(queue, 0, await admin.max_offset(queue)) for queue in await admin.queues(topic)]


def decode(arguments: argparse.Namespace) -> None:
    """Answers of pulls, in memory, to record batches; CPU time of the process."""
    queue = MessageQueue("orders", "broker-a", 0)
    records = [
        encode_stored_message(
            StoredMessage(
                "orders", 0, BODY,
                b"UNIQ_KEY\x01%032X\x02KEYS\x01k%d\x02WAIT\x01true\x02TAGS\x01A\x02trace\x01%016x\x02region\x01eu\x02"
                % (row, row, row),
                born_timestamp_ms=1_795_000_000_000 + row, store_timestamp_ms=1_795_000_000_001 + row, queue_offset=row,
            ),
            property_crc=True,
        )
        for row in range(RECORDS)
    ]  # fmt: skip
    answers = [b"".join(records[first : first + PULL]) for first in range(0, RECORDS, PULL)]

    def by_columns(columns: tuple[str, ...]) -> Callable[[], int]:
        decoder = RecordDecoder(columns)

        def run() -> int:
            found = 0
            for at in range(0, len(answers), PULLS_A_BATCH):
                some = answers[at : at + PULLS_A_BATCH]
                pulled = [Pulled(queue, 0, RECORDS, answer, record_starts(answer)) for answer in some]
                found += sum(batch.num_rows for batch in decoder.record_batches(pulled))
            return found

        return run

    def by_rows() -> int:
        messages = [one for answer in answers for one in decode_messages(answer, "broker-a")]
        size = spark_rows.ROWS_PER_RECORD_BATCH
        batches = [spark_rows.to_record_batch(messages[at : at + size]) for at in range(0, RECORDS, size)]
        return sum(batch.num_rows for batch in batches)

    for name, run in (
        ("decode, body, queue, offset and times", by_columns(FEW)),
        ("decode, with tag, keys and properties", by_columns((*FEW, "tag", "keys", "properties"))),
        ("decode, all columns", by_columns(ALL)),
        ("decode, row path", by_rows),
    ):
        run()
        repeats = max(1, arguments.rows // RECORDS)
        before = time.process_time()
        rows = sum(run() for _ in range(repeats))
        tell(name, rows=rows, seconds=time.process_time() - before)


def source(arguments: argparse.Namespace) -> None:
    """All queues of the topic as one task reads them, without Spark."""
    ranges = anyio.run(_ranges, arguments.name_server, arguments.topic)

    def read(read_ranges: Callable[..., Iterator[Any]], columns: tuple[str, ...]) -> Callable[[], int]:
        named = {"nameServer": arguments.name_server, "topic": arguments.topic, "columns": ",".join(columns)}
        return lambda: sum(batch.num_rows for batch in read_ranges(ranges, SourceOptions(named)))

    for name, run in (
        ("source, body, queue, offset and times", read(reading.read_ranges, FEW)),
        ("source, all columns", read(reading.read_ranges, ALL)),
        ("source, row path", read(spark_rows.read_ranges, ALL)),
    ):
        wall, cpu = time.perf_counter(), time.process_time()
        rows = run()
        tell(name, rows=rows, seconds=time.perf_counter() - wall, cpu=time.process_time() - cpu)


def memory(arguments: argparse.Namespace) -> None:
    """How far the memory of a task's process grows, for messages of 1 KiB and, in a second topic, of 4 MiB."""
    large = f"{arguments.topic}-large"

    async def send() -> None:
        async with Producer("bench", name_server=arguments.name_server) as producer:
            for number in range(96):
                await producer.send(message(large, number, os.urandom(LARGE)))

    child = os.fork()  # what sends leaves nothing in the memory of what reads
    if not child:
        anyio.run(send)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    for topic, size in ((arguments.topic, "1 KiB"), (large, "4 MiB")):
        child = os.fork()
        if not child:
            _grow(arguments.name_server, topic, size)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def _grow(name_server: str, topic: str, size: str) -> None:
    ranges = anyio.run(_ranges, name_server, topic)
    options = SourceOptions({"nameServer": name_server, "topic": topic})
    few = [QueueRange(piece.queue, 0, 1) for piece in ranges]
    for _ in reading.read_ranges(few[:1], options):  # the client, and what is imported
        pass
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = 0
    for batch in reading.read_ranges(ranges, options):
        rows += batch.num_rows
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    tell(f"a task's memory above its base, messages of {size}", rows=rows, mebibytes=grown)


def session(arguments: argparse.Namespace) -> None:
    """All that needs Spark, in one session."""
    from rocketbox.spark.session import create_session
    from tests.benchmarks.spark_rows_source import RowsDataSource

    spark = create_session("bench", {"spark.driver.memory": "2g"})
    spark.dataSource.register(RowsDataSource)
    try:
        _reads(spark, arguments)
        for size in MICRO_BATCHES:
            _micro_batches(spark, arguments, size)
        _latency(spark, arguments)
        _writes(spark, arguments)
    finally:
        spark.stop()


def _frame(spark: SparkSession, arguments: argparse.Namespace, source: str = "rocketmq", **options: Any) -> DataFrame:
    named = {"nameServer": arguments.name_server, "topic": arguments.topic, **options}
    return spark.read.format(source).options(**named).load()


def _timed(name: str, rows: int, run: Callable[[], object]) -> None:
    before = time.perf_counter()
    run()
    tell(name, rows=rows, seconds=time.perf_counter() - before)


def _to_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _reads(spark: SparkSession, arguments: argparse.Namespace) -> None:
    rows = arguments.rows
    _to_noop(_frame(spark, arguments, columns="queue_offset"))  # workers, and Java's compiler
    _timed("batch read into noop, all columns", rows, lambda: _to_noop(_frame(spark, arguments)))
    few = ",".join(FEW)
    _timed(
        "batch read into noop, body, queue, offset and times", rows,
        lambda: _to_noop(_frame(spark, arguments, columns=few)),
    )  # fmt: skip
    _timed("batch read into noop, row path", rows, lambda: _to_noop(_frame(spark, arguments, ROW_PATH)))
    file = str(Path(arguments.directory, "rows.parquet"))
    _timed("a topic into parquet", rows, lambda: _frame(spark, arguments).write.parquet(file))
    _timed("the same rows from parquet into noop", rows, lambda: _to_noop(spark.read.parquet(file)))


def _micro_batches(spark: SparkSession, arguments: argparse.Namespace, size: int) -> None:
    if size > arguments.rows:
        return
    named = {"nameServer": arguments.name_server, "topic": arguments.topic, "maxOffsetsPerTrigger": size}
    query = (
        spark.readStream.format("rocketmq").options(**named).load()
        .writeStream.foreachBatch(lambda frame, _: _to_noop(frame))
        .option("checkpointLocation", str(Path(arguments.directory, f"micro-{size}")))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    progress = [one for one in query.recentProgress if one["numInputRows"]]
    steady = progress[1:] or progress  # the first batch starts the workers
    seconds = [one["durationMs"]["triggerExecution"] / 1000 for one in steady]
    tell(
        f"micro-batches of {size:,} rows into noop", rows=sum(one["numInputRows"] for one in steady),
        seconds=sum(seconds), median_ms=statistics.median(seconds) * 1000,
    )  # fmt: skip


def _latency(spark: SparkSession, arguments: argparse.Namespace) -> None:
    """From a send to the function that a listener is: ``foreachBatch`` of a stream without a pause."""
    topic = f"{arguments.topic}-trickle"
    latencies: list[float] = []
    begun = threading.Event()

    def function(frame: DataFrame, _: int) -> None:
        rows = frame.select("body").collect()
        latencies.extend(time.time() - float(bytes(row.body)) for row in rows)
        begun.set()

    async def send() -> None:
        async with Producer("bench", name_server=arguments.name_server) as producer:
            await producer.send(Message(topic, b"%.6f" % time.time()))
            await anyio.to_thread.run_sync(begun.wait)
            latencies.clear()
            for _ in range(TRICKLE):
                await anyio.sleep(PAUSE)
                await producer.send(Message(topic, b"%.6f" % time.time()))

    named = {"nameServer": arguments.name_server, "topic": topic, "startingOffsets": "earliest"}
    query = (
        spark.readStream.format("rocketmq").options(**named).load().writeStream.foreachBatch(function)
        .option("checkpointLocation", str(Path(arguments.directory, "trickle")))
        .trigger(processingTime="0 seconds").start()
    )  # fmt: skip
    anyio.run(send)
    while len(latencies) < TRICKLE:
        time.sleep(0.05)
        if not query.isActive:
            raise RuntimeError(f"the stream has ended: {query.exception()}")
    query.stop()
    cuts = statistics.quantiles(latencies, n=20)
    tell("latency of a stream, send to function", rows=TRICKLE, p50_ms=cuts[9] * 1000, p95_ms=cuts[18] * 1000)


def _writes(spark: SparkSession, arguments: argparse.Namespace) -> None:
    rows = min(arguments.rows, 50_000)
    frame = spark.range(rows).selectExpr("repeat('x', 1024) AS body", "concat('k', id) AS keys")
    writer = frame.write.format("rocketmq").mode("append")
    named = {"nameServer": arguments.name_server, "topic": f"{arguments.topic}-written", "tag": "A"}
    _timed("batch write", rows, writer.options(**named).save)


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "spark decode": decode,
    "spark source": source,
    "spark memory": memory,
    "spark session": session,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=[*PARTS, "fill"])
    parser.add_argument("--rows", type=int, required=True)
    for name in ("name-server", "topic", "directory"):
        parser.add_argument(f"--{name}", default="")
    arguments = parser.parse_args()
    if arguments.part == "fill":
        anyio.run(fill, arguments.name_server, arguments.topic, arguments.rows)
    else:
        PARTS[arguments.part](arguments)


if __name__ == "__main__":
    main()
