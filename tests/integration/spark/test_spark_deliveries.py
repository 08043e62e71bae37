"""What a listener's function gets: its form, and what becomes of rows that are invalid."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pandas as pd  # type: ignore[import-untyped]  # it has no types
import pyarrow as pa
from pydantic import BaseModel
from pyspark.sql import DataFrame

from rocketbox.client import Admin
from rocketbox.clock import RealClock
from rocketbox.message import Message, MessageExt, MessageQueue
from rocketbox.spark.deliveries import Delivery, InvalidRowError, missing_library
from rocketbox.spark.outgoing import DEDUP_KEY
from rocketbox.spark.query_options import OnInvalidBody, RowForm
from rocketbox.spark.servers import Servers
from tests.support.spark.topics import Broker, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Order(BaseModel):
    row: int


class AClock(RealClock):
    """Its time moves when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def delivery(topic: str, **options: Any) -> Delivery:
    said = {"schema": Order, "as_": "spark", "on_invalid": "column", "clock": AClock(), **options}
    said["as_"], said["on_invalid"] = RowForm(said["as_"]), OnInvalidBody(said["on_invalid"])
    return Delivery(label="Spark listener f", where="app.py:1", group=topic[-40:], **said)


def orders(spark: SparkSession, broker: Broker, topic: str, bodies: list[bytes]) -> DataFrame:
    """A batch of the topic, in one queue."""
    messages = [
        Message(topic, body, tag="T", keys=(f"k{n}",), properties={"run": "1"}) for n, body in enumerate(bodies)
    ]
    broker.send_messages(messages, MessageQueue(topic, "broker-a", 0))
    return spark.read.format("rocketmq").options(nameServer=broker.name_server, topic=topic).load()


BODIES = [b'{"row":0}', b"what", b'{"row":2}', b'{"other":1}']


def rows_in(frame: DataFrame) -> list[int | None]:
    return [row.row for row in frame.orderBy("message.queue_offset").collect()]


def counts(given: Delivery, expected: int) -> bool:
    return given.count() == expected


def test_invalid_rows_are_columns_counted_once_a_batch_and_told_once_a_minute(
    spark: SparkSession, broker: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = AClock()
    given = delivery(topic, clock=clock)
    rows = orders(spark, broker, topic, BODIES)
    with caplog.at_level(logging.WARNING, "rocketbox"):
        for batch in (0, 0, 1, 2):  # the first one fails, and comes again
            with given.of(rows, batch, Servers(broker.name_server)) as frame:
                assert rows_in(frame) == [0, None, 2, None]
                assert [row["_corrupt"] for row in frame.where("_corrupt IS NOT NULL").collect()] == [
                    "what",
                    '{"other":1}',
                ]
            wait_for(partial(counts, given, 2 * (batch + 1)))
            clock.now += 21
    told = [record.getMessage() for record in caplog.records if "could not be read" in record.getMessage()]
    assert [text.partition(" messages")[0] for text in told] == [
        "Spark listener f: batch 0 had 2",
        "Spark listener f: batch 2 had 2",
    ]


def test_a_function_that_looks_at_nothing_is_not_waited_for(spark: SparkSession, broker: Broker, topic: str) -> None:
    given = delivery(topic)
    rows = orders(spark, broker, topic, BODIES)
    for batch in range(3):
        with given.of(rows, batch, Servers(broker.name_server)):
            pass
    assert given.invalid == 0


def test_invalid_rows_can_be_left_out(spark: SparkSession, broker: Broker, topic: str) -> None:
    given = delivery(topic, on_invalid="skip")
    with given.of(orders(spark, broker, topic, BODIES), 0, Servers(broker.name_server)) as frame:
        assert rows_in(frame) == [0, 2]
    wait_for(lambda: counts(given, 2))


@pytest.mark.parametrize(
    "look",
    [lambda frame: frame.isEmpty(), lambda frame: frame.first(), lambda frame: frame.foreachPartition(list)],
    ids=["isEmpty", "first", "foreachPartition"],
)
def test_rows_that_are_left_out_are_told_whatever_the_function_looks_at_first(
    spark: SparkSession,
    broker: Broker,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    look: Callable[[DataFrame], object],
) -> None:
    given = delivery(topic, on_invalid="skip")
    rows = orders(spark, broker, topic, BODIES)
    with given.of(rows, 0, Servers(broker.name_server)) as frame:
        look(frame)
    assert given.invalid == 2
    with given.of(rows, 1, Servers(broker.name_server)) as frame:
        look(frame)
        assert rows_in(frame) == [0, 2]
    assert given.invalid == 4
    told = [record.getMessage() for record in caplog.records if "could not be read" in record.getMessage()]
    assert [text.partition("; ")[2] for text in told] == ["they are left out (2 since the start)"]


def test_invalid_rows_can_fail_the_batch_before_the_function(spark: SparkSession, broker: Broker, topic: str) -> None:
    given = delivery(topic, on_invalid="fail")
    rows = orders(spark, broker, topic, BODIES)
    with (
        pytest.raises(InvalidRowError, match=rf"the message at {topic}/broker-a/0/1 is invalid: .* schema: what"),
        given.of(rows, 0, Servers(broker.name_server)),
    ):
        pytest.fail("the function must not be called")
    good = rows.where("queue_offset IN (0, 2)")
    with given.of(good, 1, Servers(broker.name_server)) as frame:
        assert rows_in(frame) == [0, 2]


def dead_letters(broker: Broker, group: str) -> list[MessageExt]:
    async def pull(admin: Admin) -> list[MessageExt]:
        found: list[MessageExt] = []
        for queue in await admin.queues(f"%DLQ%{group}"):
            found += (await admin.pull(queue, 0, 32)).messages
        return found

    return broker.ask(pull)


def test_invalid_rows_can_go_to_the_dead_letter_topic(spark: SparkSession, broker: Broker, topic: str) -> None:
    given = delivery(topic, on_invalid="dead-letter")
    rows = orders(spark, broker, topic, BODIES)
    ids = {row.queue_offset: row.msg_id for row in rows.collect()}
    with given.of(rows, 0, Servers(broker.name_server)) as frame:
        assert rows_in(frame) == [0, 2]
    found = {letter.body: letter for letter in dead_letters(broker, topic[-40:])}
    assert sorted(found) == [b"what", b'{"other":1}']
    assert given.invalid == 2
    letter = found[b"what"]
    assert (letter.tag, letter.keys, letter.msg_id) == ("T", ("k1",), ids[1])
    properties = letter.properties
    assert properties["DLQ_REASON"] == "its body does not fit the schema of the listener"
    assert properties["DLQ_ORIGIN_TOPIC"] == topic
    assert properties["DLQ_ORIGIN_MESSAGE_ID"] == ids[1]
    assert properties["run"] == "1"
    assert properties[DEDUP_KEY].startswith("dead-letters/0/")


def test_a_failed_function_dead_letters_nothing(spark: SparkSession, broker: Broker, topic: str) -> None:
    given = delivery(topic, on_invalid="dead-letter")
    rows = orders(spark, broker, topic, BODIES)
    with pytest.raises(ArithmeticError), given.of(rows, 0, Servers(broker.name_server)):
        raise ArithmeticError("the sink is full")
    assert given.invalid == 0


def test_dead_letters_are_written_in_a_thread_that_did_not_make_the_session(
    spark: SparkSession, broker: Broker, topic: str
) -> None:
    """Spark looks for a data source in the session of the thread, which a new thread of Java does not have."""
    rows = orders(spark, broker, topic, [b"a", b"b"])
    spark._jvm.SparkSession.clearActiveSession()  # type: ignore[union-attr]
    assert delivery(topic).dead_letter(rows, "it failed", Servers(broker.name_server)) == 2
    assert sorted(letter.body for letter in dead_letters(broker, topic[-40:])) == [b"a", b"b"]


def test_a_message_whose_body_could_not_be_read_goes_as_its_broker_has_it(
    spark: SparkSession, broker: Broker, topic: str
) -> None:
    rows = orders(spark, broker, topic, [b"odd"]).drop("_error")
    lost = rows.selectExpr("CAST(null AS binary) AS body", "* EXCEPT (body)", "'unknown codec\n!' AS _error")
    given = delivery(topic, on_invalid="dead-letter", schema=None)
    with given.of(lost, 0, Servers(broker.name_server)) as frame:
        assert frame.count() == 0
    (letter,) = dead_letters(broker, topic[-40:])
    assert letter.body == b"odd"
    assert letter.properties["DLQ_REASON"] == "unknown codec !"


def test_a_function_gets_its_rows_as_it_asks(spark: SparkSession, broker: Broker, topic: str) -> None:
    rows = orders(spark, broker, topic, [b'{"row":0}', b'{"row":1}'])
    with delivery(topic, as_="arrow").of(rows, 0, Servers(broker.name_server)) as table:
        assert isinstance(table, pa.Table)
        assert sorted(table.column("row").to_pylist()) == [0, 1]
    with delivery(topic, as_="pandas").of(rows, 0, Servers(broker.name_server)) as frame:
        assert type(frame).__module__.startswith("pandas")
        assert sorted(frame["row"]) == [0, 1]
    if importlib.util.find_spec("polars") is None:
        assert missing_library(RowForm.POLARS) == "polars"
    else:
        with delivery(topic, as_="polars").of(rows, 0, Servers(broker.name_server)) as frame:
            assert sorted(frame["row"]) == [0, 1]


LARGE = (1 << 53) + 1  # which no float is
FORMS = [form for form in RowForm if missing_library(form) is None]


def numbers_in(given: Any) -> list[int | None]:
    """The column ``row`` of any form of rows, in order, and None last."""
    if isinstance(given, DataFrame):
        found = [row.row for row in given.collect()]
    elif isinstance(given, pa.Table):
        found = given.column("row").to_pylist()
    else:
        found = [None if pd.isna(each) else each for each in given["row"]]
    return sorted((each if each is None else int(each) for each in found), key=lambda each: (each is None, each))


@pytest.mark.parametrize("form", FORMS)
def test_whatever_becomes_of_invalid_rows_each_form_has_the_others_as_they_are(
    spark: SparkSession, broker: Broker, topic: str, form: RowForm
) -> None:
    rows = orders(spark, broker, topic, [b'{"row":%d}' % LARGE, b"what", b'{"row":2}'])
    servers = Servers(broker.name_server)
    with delivery(topic, as_=form).of(rows, 0, servers) as given:
        assert numbers_in(given) == [2, LARGE, None]
    with delivery(topic, as_=form, on_invalid="skip").of(rows, 1, servers) as given:
        assert numbers_in(given) == [2, LARGE]
    letters = delivery(topic, as_=form, on_invalid="dead-letter")
    with letters.of(rows, 2, servers) as given:
        assert numbers_in(given) == [2, LARGE]
    assert [letter.body for letter in dead_letters(broker, topic[-40:])] == [b"what"]
    assert letters.invalid == 1
    strict = delivery(topic, as_=form, on_invalid="fail")
    with pytest.raises(InvalidRowError), strict.of(rows, 3, servers):
        pytest.fail("the function must not be called")
    with strict.of(rows.where("queue_offset <> 1"), 4, servers) as given:
        assert numbers_in(given) == [2, LARGE]


def test_whole_numbers_of_pandas_stay_whole_beside_those_that_are_missing(spark: SparkSession, topic: str) -> None:
    """Spark makes them floats, which a large one does not fit into: another one came in its place."""
    rows = spark.sql(
        f"SELECT {LARGE}L AS id, 1 AS `a.b`, timestamp'9999-12-31 23:59:59' AS at, 5L AS `odd ``name.``` "
        "UNION ALL SELECT null, 2, null, 6L"
    )
    given = delivery(topic, as_="pandas", schema=None)
    told = pytest.warns(UserWarning, match="out of bounds timestamp")
    with told, given.of(rows, 0, Servers("")) as frame:
        assert list(frame.columns) == ["id", "a.b", "at", "odd `name.`"]
        assert [str(kind) for kind in frame.dtypes] == ["Int64", "int32", "datetime64[us]", "int64"]
        assert frame["id"][0] == LARGE
        assert frame["id"].isna().tolist() == [False, True]
    with given.of(rows.where("id IS NOT NULL").drop("at"), 1, Servers("")) as frame:
        assert [str(kind) for kind in frame.dtypes] == ["int64", "int32", "int64"], "as Spark makes them"


def test_a_time_that_pandas_has_no_nanoseconds_for_does_not_end_a_topic(spark: SparkSession, topic: str) -> None:
    first = "SELECT 1 AS row, timestamp'2026-01-31 12:00:00.000005' AS at, cast(null AS timestamp_ntz) AS maybe"
    last = "SELECT 2, timestamp'9999-12-31 23:59:59.999999', timestamp_ntz'1600-01-01 00:00:00'"
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        usual, odd = spark.sql(first), spark.sql(f"{first} UNION ALL {last}").orderBy("row")
        given = delivery(topic, as_="pandas", schema=None)
        with given.of(usual, 0, Servers("")) as frame:
            assert [str(kind) for kind in frame.dtypes] == ["int32", "datetime64[ns]", "datetime64[ns]"]
            (expected,) = frame["at"]
        told = pytest.warns(UserWarning, match="out of bounds timestamp")
        with told, given.of(odd, 1, Servers("")) as frame:
            assert [str(kind) for kind in frame.dtypes] == ["int32", "datetime64[us]", "datetime64[us]"]
            assert frame["at"][0] == expected
            assert [str(each) for each in frame["at"]] == ["2026-01-31 12:00:00.000005", "9999-12-31 23:59:59.999999"]
            assert [str(each) for each in frame["maybe"]] == ["NaT", "1600-01-01 00:00:00"]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
