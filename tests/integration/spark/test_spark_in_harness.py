"""Batches for Spark listeners in the test harness: rows as production makes them, and what becomes of invalid ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("pyspark")

from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.errors import InvalidMessageError
from rocketbox.message import Message
from rocketbox.spark.deliveries import InvalidRowError
from rocketbox.testing import Harness, HarnessError, Unreadable
from tests.support.framework.services import ServiceMaker

pytestmark = [pytest.mark.spark, pytest.mark.anyio, pytest.mark.usefixtures("spark")]

SOURCE = """
import dataclasses
import threading
from datetime import datetime
from typing import Any

import pandas as pd
import pyarrow as pa
from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession

from rocketbox import (
    RocketBox, RocketMQTemplate, SparkBatch, bean, rocketmq_listener, rocketmq_spark_listener, send_to,
)

app = RocketBox("lake", scan=[__name__])

class Order(BaseModel):
    number: int
    item: str | None = None

@dataclasses.dataclass
class Reading:
    sensor: str
    at: datetime

class Book:
    name = "the real one"

@bean
def book() -> Book:
    return Book()

@rocketmq_listener(topic="orders", consumer_group="billing")
@send_to("billed")
async def bill(order: Order) -> Order:
    return order

@rocketmq_spark_listener(topic="orders", consumer_group="raw", selector_expression="new || old")
def raw(rows: DataFrame, batch: SparkBatch, book: Book) -> list[Any]:
    columns = "queue_id", "topic", "tag", "keys", "properties", "msg_id", "queue_offset", "store_timestamp", "body"
    return [batch, book.name, rows.select(*columns).orderBy("queue_offset").collect()]

@rocketmq_spark_listener(topic="billed", consumer_group="model", schema=Order)
def model(rows: DataFrame) -> list[Any]:
    return rows.select("number", "item", "_corrupt", "_error").orderBy("message.queue_offset").collect()

@rocketmq_spark_listener(topic="readings", consumer_group="arrow", schema=Reading, as_="arrow")
def as_arrow(rows: pa.Table) -> Any:
    return rows.select(["sensor", "at"]).to_pylist(), threading.current_thread().name

@rocketmq_spark_listener(topic="orders", consumer_group="pandas", schema="number bigint", as_="pandas",
                         on_invalid="skip")
def as_pandas(rows: pd.DataFrame) -> Any:
    return rows["number"].tolist()

@rocketmq_spark_listener(topic="orders", consumer_group="strict", schema=Order, on_invalid="fail")
def strict(rows: DataFrame) -> int:
    return rows.count()

@rocketmq_spark_listener(topic="orders", consumer_group="letters", schema=Order, on_invalid="dead-letter")
async def letters(rows: DataFrame, batch: SparkBatch, template: RocketMQTemplate, spark: SparkSession) -> int:
    count = await batch.run(rows.count)
    await template.send("counts", str(count))
    return count

@rocketmq_spark_listener(topic="orders", consumer_group="packed", schema=Order, on_invalid="dead-letter",
                         options={"bodyFormat": "messagepack"})
def packed(rows: DataFrame) -> list[Any]:
    return [(row.number, row.item) for row in rows.collect()]

folder = ""

@rocketmq_spark_listener(topic="orders", consumer_group="lake", persist=True)
def to_lake(rows: DataFrame, batch: SparkBatch) -> bool:
    if "InMemoryTableScan" not in rows._jdf.queryExecution().toString():
        raise AssertionError("not kept")
    written = batch.write(rows.select("body"), folder)
    if batch.attempt == 1:
        raise ConnectionError("the lake is full")
    return written

@rocketmq_spark_listener(topic="orders", consumer_group="twice")
@rocketmq_spark_listener(topic="billed", consumer_group="twice", checkpoint="second")
def twice(rows: DataFrame) -> str:
    return rows.head().topic
"""

SETTINGS = """
rocketmq:
  name-server: ns1.example:9876
  producer: {group: lake}
rocketbox.spark.conf:
  spark.master: spark://nowhere.example:7077
"""


@pytest.fixture
def lake(service: ServiceMaker) -> ModuleType:
    return service(SOURCE, SETTINGS)


async def test_the_function_gets_rows_as_a_query_gives_them(lake: ModuleType) -> None:
    async with Harness(lake.app) as harness:
        with harness.override(lake.Book, type("Fake", (), {"name": "another one"})()):
            messages = [
                Message("orders", b"one", tag="new", keys=("k1", "k2"), properties={"run": "7"}),
                Message("orders", b"two", tag="odd"),
                Message("orders", b"three", tag="old"),
            ]
            batch, book, rows = await harness.batch(lake.raw, messages)
        assert (batch.id, batch.attempt, batch.topic, batch.group) == (0, 1, "orders", "raw")
        assert book == "another one"
        assert [(bytes(row.body), row.tag, row.queue_offset) for row in rows] == [
            (b"one", "new", 0),
            (b"three", "old", 2),
        ]
        first = rows[0]
        assert (first.topic, first["keys"], first.properties["run"]) == ("orders", ["k1", "k2"], "7")
        assert first.store_timestamp.timestamp() == int(harness.now.timestamp() * 1000) / 1000
        again, _, same = await harness.batch("raw", batch_id=0)
        assert (again.id, again.attempt, again.query_id) == (0, 2, batch.query_id)
        assert same == rows
        after, _, (row,) = await harness.batch("raw", [Message("orders", b"four", tag="new")])
        assert (after.id, after.attempt, row.queue_offset) == (1, 1, 3)
        await harness.drain()
        assert harness.calls(lake.bill) == [], "a batch is for its listener only"
        assert "batch 0 of raw, attempt 2, 3 messages: done" in harness.log


async def test_a_batch_of_what_a_handler_has_sent_with_bodies_that_do_not_fit(lake: ModuleType) -> None:
    async with Harness(lake.app) as harness:
        await harness.send("orders", lake.Order(number=1, item="lamp"))
        await harness.drain()
        payloads = [*harness.sent("billed"), {"number": 2}, b"what", Unreadable()]
        rows = await harness.batch(lake.model, payloads)
        assert [(row.number, row.item, row["_corrupt"]) for row in rows] == [
            (1, "lamp", None), (2, None, None), (None, None, "what"), (None, None, None),
        ]  # fmt: skip
        assert [row["_error"] is None for row in rows] == [True, True, True, False]


async def test_each_form_of_rows(lake: ModuleType) -> None:
    async with Harness(lake.app) as harness:
        rows, thread = await harness.batch(lake.as_arrow, [{"sensor": "a", "at": "2026-01-02T03:04:05Z"}])
        assert (rows[0]["sensor"], rows[0]["at"].isoformat()) == ("a", "2026-01-02T03:04:05+00:00")
        assert thread.startswith("Spark listener arrow")
        assert await harness.batch(lake.as_pandas, [{"number": 5}, "no order", {"number": 7}]) == [5, 7]


async def test_a_body_that_does_not_fit_can_fail_the_batch(lake: ModuleType) -> None:
    async with Harness(lake.app) as harness:
        assert await harness.batch(lake.strict, [{"number": 1}]) == 1
        with pytest.raises(
            InvalidRowError, match=r"orders/broker-a/0/2 is invalid: its body does not fit the schema: \{\}"
        ):
            await harness.batch(lake.strict, [{"number": 2}, "{}"])
        assert "batch 1 of strict, attempt 1, 2 messages: failed (InvalidRowError" in harness.log


@pytest.mark.parametrize("real", [False, True])
async def test_invalid_rows_become_dead_letters(lake: ModuleType, tmp_path: Path, real: bool) -> None:
    async with AsyncExitStack() as stack:
        name_server = None
        if real:
            options = EmbeddedOptions(data_dir=tmp_path / "store", port=0, name_server_port=0)
            name_server = stack.enter_context(EmbeddedServers.in_thread(options)).name_server_address
        harness = await stack.enter_async_context(Harness(lake.app, name_server=name_server))
        assert (
            await harness.batch(lake.letters, [{"number": 1}, Message("orders", b"{}", keys=("k",)), Unreadable()]) == 1
        )
        assert harness.sent("counts").one(str) == "1", "an async function runs in the loop of its beans"
        misfit, unreadable = harness.dead_letters("letters")
        assert (misfit.body, list(misfit.message.keys), misfit.attempts) == (b"{}", ["k"], 1)
        assert str(misfit.why) == "its body does not fit the schema of the listener"
        assert misfit.message.properties["DLQ_ORIGIN_TOPIC"] == "orders"
        assert "decompress" in str(unreadable.why) or "compress" in str(unreadable.why)


async def test_bodies_of_another_format_fit_or_are_dead_letters_as_they_were_sent(lake: ModuleType) -> None:
    msgpack = pytest.importorskip("msgpack")
    fits, misfit = msgpack.packb({"number": 1, "item": "lamp"}), msgpack.packb({"item": "lamp"})
    async with Harness(lake.app) as harness:
        payloads = [fits, Message("orders", b'{"number":2}', properties={"contentType": "application/json"})]
        assert await harness.batch(lake.packed, [*payloads, misfit, b"\xc1"]) == [(1, "lamp"), (2, None)]
        letters = harness.dead_letters("packed")
        assert [(letter.body, str(letter.why)) for letter in letters] == [
            (misfit, "its body does not fit the schema of the listener"),
            (b"\xc1", "its body of 1 bytes is no application/msgpack (FormatError)"),
        ]


def test_a_batch_comes_again_after_a_failure(lake: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake, "folder", str(tmp_path / "lake"))
    with Harness(lake.app) as harness:
        with pytest.raises(ConnectionError, match="the lake is full"):
            harness.blocking.batch(lake.to_lake, [{"number": 1}])
        assert harness.blocking.batch(lake.to_lake, batch_id=0) is False, "it was written before it failed"
    assert len(list(tmp_path.glob("lake/query=*/batch=0/*.parquet"))) == 1


def test_in_a_plain_function(lake: ModuleType) -> None:
    with Harness(lake.app) as harness:
        assert harness.blocking.batch(lake.letters, [{"number": 1}]) == 1
        assert harness.blocking.batch("twice.orders", ["x"]) == "orders"


@pytest.mark.parametrize(
    ("batch", "refusal"),
    [
        (lambda lake: (lake.bill, ["x"]), "bill is no Spark listener of lake; its Spark listeners are: raw .group raw"),
        (lambda lake: ("lakes", ["x"]), "lakes is no Spark listener of lake; .* to_lake .group lake"),
        (lambda lake: (lake.twice, ["x"]), "twice is a Spark listener 2 times: .* '(twice.orders|twice.billed)'"),
        (lambda lake: (lake.raw, "x"), r"payloads='x': a batch has a list of payloads, .*; write \['x'\]"),
        (lambda lake: (lake.raw, []), "a batch has a message at least"),
        (lambda lake: (lake.raw,), "without payloads a batch comes again, and batch_id=None is none .* has had: none"),
        (
            lambda lake: (lake.raw, [Message("billed", b"x")]),
            "a message of topic billed in a batch of group raw, which",
        ),
    ],
)
async def test_what_is_no_batch_is_refused(
    lake: ModuleType, batch: Callable[[ModuleType], tuple[Any, ...]], refusal: str
) -> None:
    async with Harness(lake.app) as harness:
        with pytest.raises(HarnessError, match=refusal):
            await harness.batch(*batch(lake))


async def test_batches_are_not_mixed_up(lake: ModuleType) -> None:
    async with Harness(lake.app) as harness:
        await harness.batch("twice.orders", ["x"])
        with pytest.raises(HarnessError, match=r"batch 0 of group twice has its messages, .* for a new one \(1\)"):
            await harness.batch("twice.orders", ["x"], batch_id=0)
        with pytest.raises(HarnessError, match="batch_id=-1: batches are numbered from 0 on"):
            await harness.batch("twice.orders", ["x"], batch_id=-1)
        with pytest.raises(InvalidMessageError, match="empty"):
            await harness.batch("twice.orders", [b""])


async def test_begun_anew_there_was_no_batch(lake: ModuleType) -> None:
    async with Harness(lake.app) as harness:
        first, _, _ = await harness.batch(lake.raw, [Message("orders", b"one", tag="new")])
        await harness.fresh()
        other, _, (row,) = await harness.batch(lake.raw, [Message("orders", b"one", tag="new")])
        assert (other.id, other.attempt, row.queue_offset) == (0, 1, 0)
        assert other.query_id != first.query_id


async def test_a_listener_that_is_off_is_named_with_its_switch(lake: ModuleType) -> None:
    settings = {"rocketmq.consumer.listeners.raw.enabled": False}
    async with Harness(lake.app, settings=settings) as harness:
        with pytest.raises(HarnessError, match=r"Spark listener raw is off: rocketmq.consumer.listeners.raw.enabled"):
            await harness.batch(lake.raw, ["x"])


OF_BEANS = """
import functools
from typing import Generic, TypeVar

from pyspark.sql import DataFrame
from rocketbox import RocketBox, SparkBatch, bean, rocketmq_spark_listener

app = RocketBox("lake", scan=[__name__])
BookT = TypeVar("BookT")

@bean
class Orders:
    name = "of orders"

class Lake(Generic[BookT]):
    depth = 7

    @rocketmq_spark_listener(topic="orders", consumer_group="plain")
    def plain(self, rows: DataFrame, batch: SparkBatch, book: BookT) -> object:
        return type(self).__name__, self.depth, batch.group, book.name, rows.count()

    @rocketmq_spark_listener(topic="orders", consumer_group="awaited")
    async def awaited(self, rows: DataFrame, batch: SparkBatch) -> object:
        return self.depth, await batch.run(rows.count)

    @staticmethod
    @rocketmq_spark_listener(topic="orders", consumer_group="static")
    def static(rows: DataFrame) -> int:
        return rows.count()

    @classmethod
    @rocketmq_spark_listener(topic="orders", consumer_group="of_class")
    def of_class(cls, rows: DataFrame) -> object:
        return cls.__name__, rows.count()

@bean
class Deep(Lake[Orders]):
    def __init__(self) -> None:
        self.depth = 900

def counted(rows: DataFrame, times: int) -> int:
    return rows.count() * times

@rocketmq_spark_listener(topic="orders", consumer_group="partial")
def twice(rows: DataFrame) -> int:
    return counted(rows, 2)

thrice = rocketmq_spark_listener(topic="orders", consumer_group="thrice")(functools.partial(counted, times=3))
"""


async def test_methods_of_beans_are_called_on_their_bean_as_those_of_other_listeners(service: ServiceMaker) -> None:
    lake = service(OF_BEANS, SETTINGS)
    async with Harness(lake.app) as harness:
        assert await harness.batch(lake.Deep.plain, [b"1", b"2"]) == ("Deep", 900, "plain", "of orders", 2)
        harness.app.get(lake.Deep).depth = 901
        assert await harness.batch(lake.Lake.plain, [b"3"]) == ("Deep", 901, "plain", "of orders", 1)
        assert await harness.batch("awaited", [b"1"]) == (901, 1)
        assert await harness.batch(lake.Lake.static, [b"1", b"2"]) == 2
        for of_class in ("of_class", lake.Lake.of_class, lake.Deep.of_class):
            assert await harness.batch(of_class, [b"1"]) == ("Deep", 1)
        for thrice in ("thrice", lake.thrice):
            assert await harness.batch(thrice, [b"1", b"2"]) == 6
        assert "batch 0 of Lake.plain, attempt 1, 2 messages: done" in harness.log
