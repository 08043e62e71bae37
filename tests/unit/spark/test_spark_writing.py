"""What a task has on its way while it writes rows: a bounded number, those of a key in order, whatever brokers do."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import anyio
import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import types as t

from rocketbox.client import Producer
from rocketbox.message import Message, MessageQueue
from rocketbox.spark.writing import BYTES_OF_A_HEAD, Write, plan_write, send_lot
from tests.support.spark.stores import store

pytestmark = pytest.mark.spark

NOBODY = "127.0.0.1:1"
"""Nothing is sent there: the lots end in the test."""


class SlowBroker:
    """Acknowledges each lot a moment later; ``rows`` hands rows out and looks how many are not acknowledged then."""

    def __init__(self) -> None:
        self.lots: list[Sequence[Message]] = []
        self.taken = self.acknowledged = self.at_once = self.most_at_once = self.most_unacknowledged = 0

    async def send(self, producer: Producer, lot: Sequence[Message], timeout: float) -> Mapping[int, Exception]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.lots.append(lot)
        await anyio.sleep(0.005)
        self.acknowledged += len(lot)
        self.at_once -= 1
        return {}

    def rows(self, sizes: Sequence[int], together: int) -> Iterator[pa.RecordBatch]:
        """Rows with bodies of these sizes, so many in a record batch."""
        for first in range(0, len(sizes), together):
            bodies = [b"x" * size for size in sizes[first : first + together]]
            self.taken += len(bodies)
            self.most_unacknowledged = max(self.most_unacknowledged, self.taken - self.acknowledged)
            yield pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary())})


def a_write(broker: SlowBroker, **options: str) -> Write:
    schema = t.StructType([t.StructField("body", t.BinaryType())])
    planned = plan_write({"nameServer": NOBODY, "topic": "t", **options}, schema, overwrite=False)
    return dataclasses.replace(planned, send=broker.send)


def test_a_task_waits_for_its_broker_with_as_many_rows_unacknowledged_as_are_allowed() -> None:
    broker = SlowBroker()
    sent = a_write(broker, maxInFlight="20").run(broker.rows([8] * 500, together=10))
    assert sent.rows == broker.acknowledged == 500
    assert {len(lot) for lot in broker.lots} == {20}
    assert broker.most_at_once == 1
    assert broker.most_unacknowledged <= 20 + 20 + 10  # on their way, made ready, and the record batch in hand


def test_the_rows_on_their_way_are_no_more_bytes_than_allowed_but_for_one_that_is_larger() -> None:
    broker = SlowBroker()
    sizes = [1000] * 30 + [5000] + [1000] * 10
    sent = a_write(broker, maxInFlightBytes="4KB").run(broker.rows(sizes, together=100))
    assert sent.rows == len(sizes)
    bytes_of_lots = [sum(len(message.body) + BYTES_OF_A_HEAD for message in lot) for lot in broker.lots]
    assert [len(lot) for lot, size in zip(broker.lots, bytes_of_lots, strict=True) if size > 4096] == [1]
    assert max(len(lot) for lot in broker.lots) == 4096 // (1000 + BYTES_OF_A_HEAD)


def test_at_most_a_thousand_rows_are_unacknowledged_when_nobody_says_how_many() -> None:
    broker = SlowBroker()
    a_write(broker).run(broker.rows([1] * 5000, together=500))
    assert {len(lot) for lot in broker.lots} == {1000}
    assert broker.most_unacknowledged <= 1000 + 1000 + 500


@pytest.mark.anyio
async def test_rows_of_a_hash_key_behind_one_that_failed_are_not_sent_before_it() -> None:
    async with store("orders", queues=1) as here:
        async with Producer("spark", name_server=here.name_server, network=here.network) as producer:
            rows = [("a", "0"), ("a", "|"), ("b", "2"), ("a", "3"), ("b", "4")]
            lot = [Message("orders", tag.encode(), tag, hash_key=key) for key, tag in rows]
            failed = await send_lot(producer, lot, 3.0)
        assert sorted(failed) == [1, 3]
        sent = (await here.admin.pull(MessageQueue("orders", "broker-a", 0), 0, 32)).messages
        assert sorted(message.body for message in sent) == [b"0", b"2", b"4"]
