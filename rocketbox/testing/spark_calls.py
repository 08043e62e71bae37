"""Calls functions of Spark listeners with rows that were no message at any broker of Spark's.

Everything between a stored record and the function is the production code: records become columns (``record_columns``,
as in a task of Spark's), columns a frame, which is given in the form that the listener asks for (``deliveries``) to its
function (``batch_call``). Missing are the query and its checkpoint, and the processes that read: one Arrow table takes
their place. Dead letters are sent by the service's own client.

The session is a local one, the same for all harnesses of a process, for its Java takes seconds to start.

Source: Apache Spark 4.3.0 ``SparkSession.createDataFrame`` (of a ``pyarrow.Table``), ``InheritableThread``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import pyarrow as pa
from anyio.from_thread import BlockingPortal
from pyspark.sql import DataFrame, SparkSession

from rocketbox.application import RocketBox
from rocketbox.autoconfigure.spark_listening import SparkPlan
from rocketbox.autoconfigure.users import ClientInstances
from rocketbox.blocking import WorkerPool
from rocketbox.client import Admin, Producer
from rocketbox.clock import Clock
from rocketbox.message import MessageQueue, Property
from rocketbox.protocol.codes import MessageSysFlag
from rocketbox.protocol.stored_message import StoredMessage, encode_stored_message
from rocketbox.protocol.tags import parse_subscription
from rocketbox.spark.batch_call import BatchCall, beans_for, delivery_of
from rocketbox.spark.columns import schema_of
from rocketbox.spark.dead_letters import DLQ_REASON, DeadLetter, DeadLetterPlan, send_dead_lot
from rocketbox.spark.deliveries import Delivery, InvalidRowError
from rocketbox.spark.listener_options import SparkListenerOptions
from rocketbox.spark.options import SourceOptions
from rocketbox.spark.record_columns import Pulled, RecordDecoder
from rocketbox.spark.servers import Servers
from rocketbox.spark.session import DEFAULT_MASTER, create_session, has_session, is_alive
from rocketbox.testing.loop_turns import waits_for_rocketbox
from rocketbox.testing.observer import Observer
from rocketbox.testing.records import Batch

__all__ = ["SparkCalls"]

BROKER = "broker-a"
"""Of which the rows say that they come."""
SEND_TIMEOUT = 3.0  # seconds for a dead letter


class _Thread(WorkerPool):
    """The thread of one batch: it is not at work while its async function waits for rocketbox, and so for time."""

    def __init__(self, name: str, call: BatchCall) -> None:
        super().__init__(1, name)
        self._call = call

    @property
    def at_work(self) -> bool:
        waits_for_time = not self._call.handed_over and waits_for_rocketbox(self._call.coroutine)
        return not waits_for_time and super().at_work


class SparkCalls:
    """Calls the listeners of one service."""

    def __init__(
        self, app: RocketBox, clock: Clock, seen: Observer, same_as: Callable[[str | None], str | None]
    ) -> None:
        self._app = app
        self._clock = clock
        self._seen = seen
        self._same_as = same_as
        self._session: SparkSession | None = None

    async def call(self, plan: SparkPlan, batch: Batch, query_id: str) -> Any:
        """What the function returns. Raises what it raises, InvalidRowError, and JavaNotFoundError."""
        ended: Future[Any] = Future()
        async with BlockingPortal() as portal:  # would put what is raised inside into a group
            try:
                ended.set_result(await self._call(plan, batch, query_id, portal))
            except Exception as error:
                ended.set_exception(error)
        return ended.result()

    async def _call(self, plan: SparkPlan, batch: Batch, query_id: str, portal: BlockingPortal) -> Any:
        options, signature = plan.listener_options(), plan.signature
        delivery = delivery_of(
            options, signature, self._clock, partial(self._send_letters, plan, batch, query_id, portal)
        )
        call = BatchCall(
            options, signature, beans=beans_for(signature, self._app.assembly.beans.provider), delivery=delivery
        )
        async with _Thread(f"Spark listener {plan.name}", call) as thread:
            self._seen.under_way.threads.append(thread)
            try:
                return await thread.run(self._run, options, delivery, call, batch, query_id, portal)
            finally:
                self._seen.under_way.threads.remove(thread)

    def _run(
        self,
        options: SparkListenerOptions,
        delivery: Delivery,
        call: BatchCall,
        batch: Batch,
        query_id: str,
        portal: BlockingPortal,
    ) -> Any:
        """Blocks; in a thread of its own, whose jobs belong to the batch as those of a query do."""
        session = self._begun_session()
        delivery.begin()
        session.sparkContext.setLocalProperty("sql.streaming.queryId", query_id)
        session.sparkContext.setLocalProperty("streaming.sql.batchId", str(batch.id))
        rows = frame_of_records(session, options, batch.records)
        if options.persist:
            rows.persist()
        try:
            return call(rows, batch.id, batch.attempt, query_id, portal, Servers(""))
        finally:
            if options.persist:
                rows.unpersist()

    def _begun_session(self) -> SparkSession:
        if self._session is None or not is_alive(self._session):
            conf = dict(self._app.assembly.rocketbox.spark.conf)
            master = conf.pop("spark.master", DEFAULT_MASTER)
            if not has_session():
                conf["spark.master"] = master if master.startswith("local") else DEFAULT_MASTER
            self._session = create_session(self._app.name, conf)
        return self._session

    def _send_letters(
        self,
        plan: SparkPlan,
        batch: Batch,
        query_id: str,
        portal: BlockingPortal,
        letters: DataFrame,
        group: str,
        servers: Servers,
    ) -> None:
        """What Spark's processes do elsewhere; a body that could not be read goes as it is in its record."""
        making = DeadLetterPlan(letters.schema, group)
        place = f"{query_id}.dead-letters/{batch.id}/0"
        lot: list[DeadLetter] = []
        for part in letters.toArrow().to_batches():

            def key_of(row: int, digest: str, first: int = len(lot)) -> str:
                return f"{place}/{first + row}/{digest}"

            for letter in making.messages(part, key_of):
                if not isinstance(letter, DeadLetter):
                    raise letter
                lot.append(letter)
        records = {record.queue_offset: record for record in batch.records}

        async def fetch(admin: Admin, letter: DeadLetter) -> tuple[bytes, int]:
            record = records[letter.queue_offset]
            return record.body, record.sys_flag & (MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK)

        async def send() -> Mapping[int, Exception]:
            instance = self._app.get(ClientInstances, plan.cluster).group(plan.group)
            for letter in lot:
                why = InvalidRowError(letter.properties.get(DLQ_REASON, ""))
                self._seen.will_bury(
                    self._same_as(plan.cluster), group, letter.properties.get(Property.UNIQ_KEY, ""), why, batch.attempt
                )
            async with Producer(f"dead-letters-of-{group}", instance=instance) as producer:
                return await send_dead_lot(producer, lot, SEND_TIMEOUT, fetch=fetch)

        for error in portal.call(send).values():
            raise error


def frame_of_records(
    session: SparkSession, options: SparkListenerOptions, records: Sequence[StoredMessage]
) -> DataFrame:
    """The rows of a batch of these records, with the columns and tags that the listener's query would ask for."""
    said = {"nameServer": "memory:9876", "topic": options.topic, "group": options.group}
    source = SourceOptions({**said, "tags": options.selector_expression, **options.source_options})
    decoder = RecordDecoder(
        source.columns, parse_subscription("", source.tags).tags_set, body_format=source.body_format
    )
    data, starts = bytearray(), []
    for record in records:
        starts.append(len(data))
        data += encode_stored_message(record)
    first = records[0]
    pulled = Pulled(
        MessageQueue(first.topic, BROKER, first.queue_id), first.queue_offset, first.queue_offset + len(records),
        bytes(data), starts,
    )  # fmt: skip
    table = pa.Table.from_batches(decoder.record_batches([pulled]), schema=decoder.schema)
    return session.createDataFrame(table, schema_of(source.columns))
