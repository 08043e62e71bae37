"""JSON bodies as columns: real rows of every type, and bodies that do not fit."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from typing import TYPE_CHECKING, Any, Literal

import pytest

pytest.importorskip("pyspark")

from pydantic import BaseModel, Field, NaiveDatetime
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from rocketbox.spark.payload import payload_columns
from tests.support.spark.body_models import PlainTypes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark

COLUMNS = "body binary, topic string, broker_name string, queue_id int, queue_offset bigint"


def messages(spark: SparkSession, bodies: list[Any]) -> DataFrame:
    rows = [
        (body.encode() if isinstance(body, str) else body, "t", "broker-a", 0, number)
        for number, body in enumerate(bodies)
    ]
    return spark.createDataFrame(rows, COLUMNS)


def rows(spark: SparkSession, bodies: list[Any], schema: Any) -> list[Row]:
    return payload_columns(messages(spark, bodies), schema).orderBy("message.queue_offset").collect()


class Kind(enum.Enum):
    SMALL = "small"


class Level(enum.IntEnum):
    HIGH = 2


class Line(BaseModel):
    item: str = Field(alias="theItem")
    price: decimal.Decimal | None = None


class Everything(PlainTypes):
    kind: Kind
    level: Level
    state: Literal["new", "paid"]
    line: Line = Field(alias="theLine")
    lines: list[Line]
    counts: dict[str, int]
    reals: dict[str, float]
    by_name: dict[str, Line]
    maybe: int | None
    missing: str | None = None


EVERYTHING = Everything(
    text="ü", number=2**62, real=0.1, flag=True, raw=b"hello!", day=datetime.date(2026, 1, 31),
    at=datetime.datetime(2026, 1, 31, 12, 30, 0, 5, datetime.UTC),
    aware=datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=8))),
    naive=datetime.datetime(2026, 1, 31, 12),  # noqa: DTZ001 - that it has no zone is what is tried
    id=uuid.UUID(int=5), amount=decimal.Decimal("12345678901234567890.123456789012345678"),
    price=decimal.Decimal("1.50"), kind=Kind.SMALL, level=Level.HIGH, state="paid",
    theLine=Line(theItem="a", price=decimal.Decimal("0.1")), lines=[Line(theItem="b")], counts={"x": 1},
    reals={"y": 1.5}, by_name={"z": Line(theItem="c")}, maybe=None,
)  # fmt: skip


def test_every_type_that_pydantic_writes_comes_back(spark: SparkSession) -> None:
    (row,) = rows(spark, [EVERYTHING.model_dump_json(by_alias=True)], Everything)
    assert row["_corrupt"] is None
    found = row.asDict(recursive=True)
    del found["message"], found["_corrupt"]
    line = {"item": "a", "price": decimal.Decimal("0.1")}
    assert found == {
        "text": "ü", "number": 2**62, "real": 0.1, "flag": True, "raw": "hello!", "day": datetime.date(2026, 1, 31),
        "at": datetime.datetime(2026, 1, 31, 12, 30, 0, 5),  # noqa: DTZ001 - Spark's rows are in the session's zone
        "aware": datetime.datetime(2026, 1, 31, 4),  # noqa: DTZ001 - as above
        "naive": datetime.datetime(2026, 1, 31, 12),  # noqa: DTZ001 - as above
        "id": str(uuid.UUID(int=5)), "amount": decimal.Decimal("12345678901234567890.123456789012345678"),
        "price": decimal.Decimal("1.50"), "kind": "small", "level": 2, "state": "paid", "line": line,
        "lines": [{"item": "b", "price": None}], "counts": {"x": 1}, "reals": {"y": 1.5},
        "by_name": {"z": {"item": "c", "price": None}}, "maybe": None, "missing": None,
    }  # fmt: skip
    assert [type(found[name]) for name in ("number", "flag", "real")] == [int, bool, float]


class Order(BaseModel):
    row: int
    name: str | None = None
    amount: decimal.Decimal | None = None
    at: datetime.datetime | None = None
    naive: NaiveDatetime | None = None
    numbers: list[int] = []
    lines: list[Line] = []
    by_name: dict[str, Line] = {}
    flag: bool | None = None
    day: datetime.date | None = None
    counts: dict[str, int] = {}
    times: dict[str, list[datetime.datetime]] = {}


FITTING: dict[str, dict[str, Any]] = {
    '{"row":1}': {},
    ' {"row": 1, "more": [1]} ': {},
    '{"row":1,"name":5}': {"name": "5"},
    '{"row":1,"name":{"a":1}}': {"name": '{"a":1}'},
    '{"row":1,"amount":1.5}': {"amount": decimal.Decimal("1.5")},
    '{"row":1,"numbers":[1,2]}': {"numbers": [1, 2]},
    '{"row":1,"lines":[{"theItem":"a"}]}': {"lines": [{"item": "a", "price": None}]},
    '{"row":1,"_corrupt":"x"}': {},
    '{"row":1,"name":"]","numbers":[3]}': {"name": "]", "numbers": [3]},
    '{"row":1,"name":"\\ud83d\\ude00 \\\\ud800"}': {"name": "\U0001f600 \\ud800"},
    '{"row":1,"amount":"1.5E+3"}': {"amount": decimal.Decimal(1500)},
    '{"row":1,"day":"2026-01-31T00:00:00Z"}': {"day": datetime.date(2026, 1, 31)},
    '{"row":1,"at":"2026-01-31"}': {"at": datetime.datetime(2026, 1, 31)},  # noqa: DTZ001 - in the session's zone
    '{"row":1,"at":"2026-01-31 12:00:00.123456789+01:00"}': {
        "at": datetime.datetime(2026, 1, 31, 11, 0, 0, 123456)  # noqa: DTZ001 - as above
    },
}
NOT_FITTING: list[str | bytes] = [
    "no JSON", "", "null", "1", '"x"', '[{"row":1}]', '[{"row":1},{"row":2}]', '{"row":1}{"row":2}', '{"row":1} more',
    '{"other":1}', '{"row":null}', '{"row":1.5}', '{"row":"1"}', '{"row":true}', '{"row":99999999999999999999}',
    "{'row':1}", '{"row":1,"amount":"1e30"}', '{"row":1,"amount":"x"}', '{"row":1,"at":"x"}',
    '{"row":1,"naive":"2026-01-31T12:00:00Z"}', '{"row":1,"numbers":[1,null]}', '{"row":1,"numbers":1}',
    '{"row":1,"lines":[{"price":"1"}]}', '{"row":1,"lines":[null]}', '{"row":1,"by_name":{"x":{"price":"1"}}}',
    '{"row":1,"flag":1}', '{"row":1,"day":"31.1.2026"}', b'{"row":1,"name":"\xff"}',
    # What Spark by itself takes the beginning of, or something else for.
    '{"row":1}] more', '{"row":1}]}', '{"row":1}]{"row":2}', '{"row":1},0]',
    '{"row":1,"at":1769860800000}', '{"row":1,"at":1769860800}', '{"row":1,"at":9223372036854775807}',
    '{"row":1,"at":"12:30"}', '{"row":1,"at":"2026"}', '{"row":1,"at":"+12345-01-01T00:00:00Z"}',
    '{"row":1,"at":"2026-01-31T12:00:00 Europe/Berlin"}', '{"row":1,"at":"0000-01-01T00:00:00Z"}',
    '{"row":1,"times":{"a":["2026-01-31T12:00:00Z","12:30"]}}', '{"row":1,"naive":"2026-01"}',
    '{"row":1,"day":"20000"}', '{"row":1,"day":"2026-1-5"}', '{"row":1,"day":"2026-01-31T23:30:00-05:00"}',
    '{"row":1,"amount":"1,5"}', '{"row":1,"lines":[{"theItem":"a","price":"1,000"}]}',
    '{"row":1,"name":"\\ud83d"}', '{"row":1,"name":"\\uDE00"}', '{"row":1,"counts":{"a":1,"b":1,"a":2}}',
]  # fmt: skip


def test_a_body_that_does_not_fit_is_nulls_and_its_text(spark: SparkSession) -> None:
    bodies = [*FITTING, *NOT_FITTING, None]
    found = [row.asDict(recursive=True) for row in rows(spark, bodies, Order)]
    for row in found:
        del row["message"]
    for body, row in zip(FITTING, found, strict=False):
        assert {name: value for name, value in row.items() if value is not None} == {"row": 1, **FITTING[body]}, body
    for text, row in zip(NOT_FITTING, found[len(FITTING) : -1], strict=True):
        told = row.pop("_corrupt")
        assert told == (text if isinstance(text, str) else text.decode(errors="replace"))
        assert set(row.values()) == {None}, text
    assert set(found[-1].values()) == {None}  # there is no body: not what it says is wrong


FAR = "1e600000000"  # Java would make all its digits
HARMLESS: dict[str, dict[str, Any]] = {
    '{"row":1,"name":"12e45678","amount":"1.5"}': {"name": "12e45678", "amount": decimal.Decimal("1.5")},
    '{"row":1,"name":":1e600000000,","amount":1.5}': {"name": ":1e600000000,", "amount": decimal.Decimal("1.5")},
    '{"row":1,"name":"\\",\\\\","amount":15e-1}': {"name": '",\\', "amount": decimal.Decimal("1.5")},
    '{"row":1,"amount":0E-18}': {"amount": decimal.Decimal(0)},
    '{"row":1,"amount":"1e-999"}': {"amount": decimal.Decimal(0)},
    '{"row":1,"amount":"0.' + "3" * 1000 + '"}': {"amount": decimal.Decimal("0." + "3" * 18)},
    '{"row":1,"amount":0.' + "3" * 900 + "}": {"amount": decimal.Decimal("0." + "3" * 18)},
    '{"row":1,"name":"' + "7" * 5000 + '"}': {"name": "7" * 5000},
}
ENDLESS = [
    f'{{"row":1,"amount":{FAR}}}', f'{{"row":1,"amount":"{FAR}"}}', '{"row":1,"amount":1e-600000000}',
    '{"row":1,"amount":0E-600000000}', f'{{"row":1,"lines":[{{"theItem":"a","price":{FAR}}}]}}',
    f'{{"row":1,"by_name":{{"x":{{"theItem":"a","price":"{FAR}"}}}}}}', '{"row":1,"amount":"' + "9" * 3_000_000 + '"}',
    '{"row":1,"amount":"' + "0" * 500_000 + '.5,"}', f'{{"row":1,"amount":"{FAR}"', f'{{"row":1,"amount":{FAR}',
    f'{{"row":1,"amount":{FAR},"amount":1}}', f'{{"row":1,"amount":"{FAR}","amount":"1"}}',
    '{"row":1,"amount":"1\\u0065600000000","amount":"1"}', f'[{{"row":1}},{{"row":1,"amount":"{FAR}"}}]',
    '{"row":1,"amount":"1e1,0,0,0,0,0,0,0","amount":"1"}', '{"row":1,"amount":"\uff11e600000000","amount":"1"}',
    '{"row":1,"amount":"' + "9" * 3_000_000 + '","amount":"1"}',
    f'{{"row":1,"lines":[{{"theItem":"a","price":"{FAR}","price":"1"}}]}}',
]  # fmt: skip


def test_no_decimal_keeps_a_task_for_hours(spark: SparkSession) -> None:
    found = [row.asDict(recursive=True) for row in rows(spark, [*HARMLESS, *ENDLESS], Order)]
    for row in found:
        del row["message"]
    for body, row in zip(HARMLESS, found, strict=False):
        assert {name: value for name, value in row.items() if value is not None} == {"row": 1, **HARMLESS[body]}
    for text, row in zip(ENDLESS, found[len(HARMLESS) :], strict=True):
        assert row.pop("_corrupt") == text
        assert set(row.values()) == {None}


def test_ddl_and_struct_types_say_what_may_not_be_null(spark: SparkSession) -> None:
    bodies = ['{"id":1,"item":"a"}', '{"item":"a"}', '{"id":1}']
    for schema in ("id bigint NOT NULL, item string", StructType.fromDDL("id bigint NOT NULL, item string")):
        corrupt = [row["_corrupt"] for row in rows(spark, bodies, schema)]
        assert corrupt == [None, '{"item":"a"}', None]


def test_failfast_names_the_place_of_the_message(spark: SparkSession) -> None:
    good = payload_columns(messages(spark, ['{"row":1}']), Order, "FAILFAST")
    assert [row.row for row in good.select("row").collect()] == [1]
    frame = payload_columns(messages(spark, ['{"row":1}', "what"]), Order, "FAILFAST")
    with pytest.raises(PySparkException, match=r"the message at t/broker-a/0/1 does not fit the schema: what"):
        frame.select("name").collect()


def test_failfast_lets_no_message_pass_that_could_not_be_read(spark: SparkSession) -> None:
    unread = messages(spark, ['{"row":1}', None])
    for rows, why in ((unread, "it has no body"), (unread.selectExpr("*", "'unknown codec' AS _error"), "unknown co")):
        frame = payload_columns(rows, Order, "FAILFAST")
        with pytest.raises(PySparkException, match=rf"the message at t/broker-a/0/1 could not be read: {why}"):
            frame.select("row").collect()


def test_the_error_of_the_source_stands_beside_the_columns(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(None, "t", "unknown codec")], "body binary, topic string, _error string")
    (row,) = payload_columns(frame, Order).collect()
    assert (row["_error"], row["_corrupt"], row.row, row.message["_error"]) == (
        "unknown codec",
        None,
        None,
        "unknown codec",
    )
