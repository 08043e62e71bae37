"""What a task of Spark does to write rows as messages: send a bounded number at a time, and say what was not sent.

At least once: a task answers Spark only when a broker has acknowledged every row, and an attempt that ends before is
made again by Spark. Rows that are sent again have the same DEDUP_KEY:
``<query id>/<batch id>/<partition>/<row>/<digest>`` (a batch write has an id of its own instead of the query's, and
batch 0). The digest is of the message: where Spark computes a partition anew with its rows in another order, a consumer
that drops known keys has some of them twice, and none of them not at all.

There is no transactional write. A half message is committed by the producer that sent it, and its broker asks that
producer's group for the outcome later, for hours: the processes of a Spark job are gone by then, and nobody who could
read the checkpoint would answer.

Source: Apache Spark 4.3.0, ``DataSourceArrowWriter``, ``DataSourceStreamArrowWriter``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rocketbox.client import Producer
from rocketbox.clock import RealClock
from rocketbox.errors import NotDurableError, RocketBoxError, SendManyError
from rocketbox.message import Message
from rocketbox.spark.dead_letters import DeadLetterPlan, send_dead_lot
from rocketbox.spark.outgoing import OutgoingPlan, RowError
from rocketbox.spark.worker_client import client, gather
from rocketbox.spark.write_options import WriteOptions

__all__ = ["RocketMQStreamWriter", "RocketMQWriter", "SentRows", "TaskWrite", "Write", "WriteError", "plan_write"]

BYTES_OF_A_HEAD = 256  # about what a message takes beside its body
SendLot = Callable[[Producer, Sequence[Any], float], Awaitable[Mapping[int, Exception]]]
"""Sends the entries that a plan has made of rows; the errors, by the number in the lot."""


class WriteError(RocketBoxError):
    """A row was not sent, or nobody knows whether it was."""

    def __init__(self, place: WritePlace, row: int, error: Exception, others: int, sent: int) -> None:
        self.row = row
        broker = getattr(error, "address", None)
        if isinstance(error, NotDurableError):
            broker = error.result.broker_name
        at = f" at broker {broker}" if broker and str(broker) not in str(error) else ""
        super().__init__(
            f"row {row} of partition {place.partition} ({place.prefix}{row}) was not written{at}: {error}"
            + (f" ({others} more rows failed with it)" if others else "")
            + f". {sent} rows of this attempt are stored; another attempt sends them again, with the same DEDUP_KEY"
        )


@dataclass(frozen=True)
class WritePlace:
    """Where in a write a task stands; the same for each of its attempts."""

    write: str
    batch: str
    partition: int

    @property
    def prefix(self) -> str:
        return f"{self.write}/{self.batch}/{self.partition}/"


def place_of_task(write_id: str, name: str | None) -> WritePlace:
    """In a streaming query (also in a write within ``foreachBatch``) the query's id and the batch's."""
    task = TaskContext.get()
    if task is None:
        return WritePlace(name or write_id, "0", 0)
    query, batch = task.getLocalProperty("sql.streaming.queryId"), task.getLocalProperty("streaming.sql.batchId")
    if query and batch:
        return WritePlace(f"{query}.{name}" if name else query, batch, task.partitionId())
    return WritePlace(name or write_id, "0", task.partitionId())


class TaskWrite:
    """The rows of one task on their way: while one lot is being sent, the next one is made ready."""

    def __init__(
        self, plan: OutgoingPlan | DeadLetterPlan, send: SendLot, options: WriteOptions, place: WritePlace
    ) -> None:
        self._plan = plan
        self._send_lot = send
        self._options = options
        self._place = place
        self._thread = client(options.servers)
        self._lot: list[Any] = []
        self._bytes = 0
        self._first = 0  # number of the lot's first row
        self._flying: tuple[int, Sequence[Any], Future[Mapping[int, Exception]]] | None = None
        self._sent = 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> int:
        """How many rows were sent; all of them are acknowledged. Raises WriteError."""
        with self._thread:  # Spark may take long for the next rows
            try:
                start = 0
                for batch in batches:
                    self._add(batch, start)
                    start += batch.num_rows
                self._send()
                self._land()
            finally:
                if self._flying is not None:
                    self._flying[2].cancel()
        return self._sent

    def _add(self, batch: pa.RecordBatch, start: int) -> None:
        prefix, options = self._place.prefix, self._options
        entries = self._plan.messages(batch, lambda row, digest: f"{prefix}{start + row}/{digest}")
        for entry in entries:
            if isinstance(entry, RowError):
                self._land()
                raise WriteError(self._place, start + entry.row, entry, 0, self._sent) from entry
            size = len(entry.body or b"") + BYTES_OF_A_HEAD
            if self._bytes + size > options.max_in_flight_bytes:
                self._send()
            self._lot.append(entry)
            self._bytes += size
            if len(self._lot) >= options.max_in_flight:
                self._send()

    def _send(self) -> None:
        """Send the lot, as soon as the one before has landed: rows of one hash key keep their order."""
        self._land()
        lot, timeout, send_lot = self._lot, self._options.send_timeout, self._send_lot
        if lot:
            future = self._thread.send(
                self._options.producer_group, lambda producer: send_lot(producer, lot, timeout)
            )  # fmt: skip
            self._flying = self._first, lot, future
            self._first += len(lot)
            self._lot, self._bytes = [], 0

    def _land(self) -> None:
        if self._flying is None:
            return
        first, lot, future = self._flying
        failed = future.result()
        self._flying = None
        self._sent += len(lot) - len(failed)
        if failed:
            index = min(failed)
            error = failed[index]
            raise WriteError(self._place, first + index, error, len(failed) - 1, self._sent) from error


async def send_lot(producer: Producer, lot: Sequence[Message], timeout: float) -> Mapping[int, Exception]:
    """Send messages; those of one hash key one after another. The errors, by the number in the lot."""
    failed: dict[int, Exception] = {}
    free = [index for index, message in enumerate(lot) if message.hash_key is None]
    if free:
        try:
            await producer.send_many([lot[index] for index in free], timeout=timeout)
        except SendManyError as error:
            failed |= {free[index]: each for index, each in error.errors.items()}
    if len(free) < len(lot):
        failed |= await send_in_order(producer, lot, timeout)
    return failed


async def send_in_order(producer: Producer, lot: Sequence[Message], timeout: float) -> Mapping[int, Exception]:
    keys: dict[str, list[int]] = {}
    for index, message in enumerate(lot):
        if message.hash_key is not None:
            keys.setdefault(message.hash_key, []).append(index)
    failed: dict[int, Exception] = {}
    waiting: Iterator[list[int]] = iter(keys.values())

    async def work(_: int) -> None:
        for indices in waiting:
            for place, index in enumerate(indices):
                try:
                    await producer.send(lot[index], timeout=timeout)
                except RocketBoxError as error:
                    # Those behind it are not sent: they would be before it when it comes again.
                    failed.update(dict.fromkeys(indices[place:], error))
                    break

    await gather(work, range(min(len(keys), producer.options.send_many_window)))
    return failed


@dataclass(frozen=True)
class SentRows(WriterCommitMessage):
    """A task's answer to Spark: all its rows are with their brokers."""

    rows: int


@dataclass(frozen=True)
class Write:
    """One write, as it is pickled to the tasks: its plan, and the id that all their attempts share."""

    plan: OutgoingPlan | DeadLetterPlan
    send: SendLot
    options: WriteOptions
    id: str

    def run(self, batches: Iterator[pa.RecordBatch]) -> SentRows:
        place = place_of_task(self.id, self.options.write_id)
        return SentRows(TaskWrite(self.plan, self.send, self.options, place).write(batches))


def plan_write(options: Mapping[str, str], schema: StructType, overwrite: bool) -> Write:
    """The write of a frame of ``schema``. Raises ValueError for what cannot be written, or is not clear."""
    if overwrite:
        raise ValueError(
            'a topic can only be appended to: write it with .mode("append"), and a stream with outputMode("append") '
            'or ("update")'
        )
    checked, write_id = WriteOptions(options), RealClock().uuid()
    if (group := checked.dead_letters_of) is not None:
        return Write(DeadLetterPlan(schema, group), send_dead_lot, checked, write_id)
    return Write(OutgoingPlan(schema, checked), send_lot, checked, write_id)


class RocketMQWriter(DataSourceArrowWriter):
    """``frame.write.format("rocketmq").mode("append").save()``"""

    def __init__(self, write: Write) -> None:
        self._write = write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentRows:
        return self._write.run(iterator)


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """``frame.writeStream.format("rocketmq").start()``"""

    def __init__(self, write: Write) -> None:
        self._write = write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentRows:
        return self._write.run(iterator)
