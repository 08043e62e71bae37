"""Filters that a batch read does itself: what is then not read, and what is left to Spark."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from rocketbox.client import Admin, PullResult, PullStatus
from rocketbox.message import MessageQueue
from rocketbox.protocol.codes import PermName, RequestCode
from rocketbox.spark.offsets import QueueRange
from rocketbox.spark.options import SourceOptions
from rocketbox.spark.pushdown import PUSHING_WORKER, Pushed, spark_pushes_filters
from rocketbox.spark.readers import PushingBatchReader, RocketMQBatchReader, batch_reader
from rocketbox.spark.selection import MissingTopicError
from tests.support.spark.stores import Store, store, until_closed

Q0, Q1, Q2 = (MessageQueue("orders", "broker-a", number) for number in range(3))


def reader(filters: list[Filter], **options: str) -> tuple[RocketMQBatchReader, list[Filter]]:
    """A reader that was given filters, and what it left to Spark."""
    found = PushingBatchReader(SourceOptions({"nameServer": "a:1", "topic": "orders", **options}))
    return found, list(found.pushFilters(filters))


async def ranges(of: Store, *filters: Filter) -> list[QueueRange]:
    found, _ = reader(list(filters))
    return [piece for piece in await found.ranges(of.admin) if piece]


@pytest.mark.anyio
async def test_other_queues_and_offsets_are_not_read() -> None:
    async with store("orders", queues=3) as here:
        for queue in (Q0, Q1, Q2):
            await here.send(queue, [b"x"] * 20)
        whole = [QueueRange(queue, 0, 20) for queue in (Q0, Q1, Q2)]
        assert await ranges(here) == whole
        assert await ranges(here, EqualTo(("queue_id",), 1)) == whole[1:2]
        assert await ranges(here, In(("queue_id",), (0, 2, 9))) == [whole[0], whole[2]]
        assert await ranges(here, GreaterThan(("queue_id",), 0), LessThanOrEqual(("queue_id",), 1)) == whole[1:2]
        assert await ranges(here, EqualTo(("broker_name",), "broker-b")) == []
        assert await ranges(here, EqualTo(("topic",), "orders")) == whole
        assert await ranges(here, GreaterThanOrEqual(("queue_offset",), 5), LessThan(("queue_offset",), 8)) == [
            QueueRange(queue, 5, 8) for queue in (Q0, Q1, Q2)
        ]
        assert await ranges(here, GreaterThan(("queue_offset",), 5), LessThanOrEqual(("queue_offset",), 8)) == [
            QueueRange(queue, 6, 9) for queue in (Q0, Q1, Q2)
        ]
        assert await ranges(here, EqualTo(("queue_id",), 0), EqualTo(("queue_offset",), 7)) == [QueueRange(Q0, 7, 8)]
        assert await ranges(here, EqualTo(("queue_id",), 0), In(("queue_offset",), (3, 11))) == [QueueRange(Q0, 3, 12)]
        here.requests.by_code.clear()
        await ranges(here, EqualTo(("queue_id",), 1))
        assert here.requests.by_code[RequestCode.GET_MAX_OFFSET] == 1, "nothing is asked of other queues either"


@pytest.mark.anyio
async def test_what_is_not_read_need_not_be_readable() -> None:
    """A filter by topic or broker leaves out what may not be read; only what is left is looked at."""
    eu, pattern = MessageQueue("orders_eu", "broker-a", 0), {"topicPattern": "orders.*"}

    async def found(*filters: Filter, **options: str) -> list[QueueRange]:
        reads = PushingBatchReader(SourceOptions({"nameServer": here.name_server, **options}))
        assert list(reads.pushFilters(list(filters))) == []
        return [piece for piece in await reads.ranges(here.admin) if piece]

    async with store("orders", "orders_eu", queues=1) as here, here.another_broker("broker-b"):
        await here.admin.create_topic("orders_us", queues=1, brokers=["broker-a", "broker-b"])
        us = MessageQueue("orders_us", "broker-a", 0)
        for queue in (Q0, eu, us):
            await here.send(queue, [b"x"] * 5)
        await here.admin.create_topic("orders_eu", queues=1, perm=PermName.WRITE)
        await here.admin.create_topic("orders_us", queues=1, perm=PermName.WRITE, brokers=["broker-b"])
        await until_closed(here, "broker-a", "orders_eu")
        await until_closed(here, "broker-b", "orders_us")
        with pytest.raises(MissingTopicError, match="orders_eu has no queue"):
            await found(**pattern)
        here.requests.by_code.clear()
        assert await found(EqualTo(("topic",), "orders"), **pattern) == [QueueRange(Q0, 0, 5)]
        routes = here.requests.by_code[RequestCode.GET_ROUTEINFO_BY_TOPIC]
        assert routes == 2, "nothing is asked of topics that are not read"
        with pytest.raises(MissingTopicError, match="orders_us may not be read at broker-b"):
            await found(EqualTo(("topic",), "orders_us"), **pattern)
        assert await found(In(("topic",), ("orders_us",)), EqualTo(("broker_name",), "broker-a"), **pattern) == [
            QueueRange(us, 0, 5)
        ]
        with pytest.raises(MissingTopicError, match="orders_us may not be read at broker-b"):
            await found(EqualTo(("broker_name",), "broker-b"), topicPattern="orders_us")
        with pytest.raises(MissingTopicError, match="orders_eu has no queue"):
            await found(EqualTo(("topic",), "orders_eu"), **pattern)
        assert await found(EqualTo(("topic",), "orders_eu"), EqualTo(("broker_name",), "broker-c"), **pattern) == []
        assert await found(EqualTo(("topic",), "others"), **pattern) == []
        starting = '{"orders_us": {"broker-a": {"0": 2}}}'
        assert await found(EqualTo(("topic",), "orders"), startingOffsets=starting, **pattern) == [QueueRange(Q0, 0, 5)]
        with pytest.raises(MissingTopicError, match="no topic matches"):
            await found(EqualTo(("topic",), "orders"), topicPattern="bills.*")


@pytest.mark.anyio
async def test_other_store_times_are_not_read_but_for_a_minute_on_both_sides() -> None:
    async with store("orders", queues=1) as here:
        await here.send(Q0, [b"x"] * 20)
        message = (await here.admin.pull(Q0, 0, 1)).messages[0]
        stored = datetime.fromtimestamp(message.store_timestamp_ms / 1000, UTC)
        hour = timedelta(hours=1)
        assert await ranges(here, GreaterThan(("store_timestamp",), stored - hour)) == [QueueRange(Q0, 0, 20)]
        assert await ranges(here, GreaterThan(("store_timestamp",), stored + hour)) == []
        assert await ranges(here, LessThan(("store_timestamp",), stored - hour)) == []
        assert await ranges(here, LessThan(("store_timestamp",), stored + timedelta(seconds=-50))) == [
            QueueRange(Q0, 0, 20)
        ]
        assert await ranges(here, EqualTo(("store_timestamp",), stored)) == [QueueRange(Q0, 0, 20)]


@pytest.mark.anyio
async def test_the_first_and_the_last_time_leave_nothing_out() -> None:
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    async with store("orders", queues=1) as here:
        await here.send(Q0, [b"x"] * 20)
        whole = [QueueRange(Q0, 0, 20)]
        assert await ranges(here, LessThanOrEqual(("store_timestamp",), last)) == whole
        assert await ranges(here, LessThan(("store_timestamp",), last)) == whole
        assert await ranges(here, GreaterThanOrEqual(("store_timestamp",), first)) == whole
        assert await ranges(here, GreaterThan(("store_timestamp",), last)) == []
        assert await ranges(here, LessThan(("store_timestamp",), first)) == []
        assert await ranges(here, EqualTo(("store_timestamp",), last)) == []


def test_what_is_done_by_half_only_is_left_to_spark_as_well() -> None:
    time = datetime(2026, 1, 31, tzinfo=UTC)
    exact: list[Filter] = [
        EqualTo(("queue_id",), 1),
        LessThan(("queue_offset",), 10),
        EqualTo(("topic",), "orders"),
        In(("broker_name",), ("a", "b")),
    ]
    left: list[Filter] = [
        GreaterThan(("store_timestamp",), time),
        EqualTo(("tag",), "UA"),
        In(("queue_offset",), (1, 5)),
        Not(EqualTo(("queue_id",), 3)),
        IsNotNull(("queue_id",)),
        EqualTo(("keys",), ["a"]),
        EqualTo(("msg_id",), "x"),
        StringStartsWith(("topic",), "or"),
    ]
    assert reader([*exact, *left])[1] == left


@pytest.mark.parametrize(
    ("filters", "tags", "expression"),
    [
        ([EqualTo(("tag",), "UA")], "*", "UA"),
        ([EqualTo(("tag",), "UA")], "UA || AA", "UA"),
        ([EqualTo(("tag",), "UA")], "AA", None),
        ([In(("tag",), ("UA", "AA", None))], "*", "AA || UA"),
        ([EqualTo(("tag",), "UA"), EqualTo(("tag",), "AA")], "*", None),
        ([EqualTo(("tag",), "U || A")], "*", "*"),
        ([EqualTo(("tag",), " UA")], "*", "*"),
        ([EqualTo(("tag",), "")], "*", "*"),
        ([EqualTo(("tag",), "*")], "*", "*"),
        ([], "UA || AA", "UA || AA"),
    ],
)
def test_the_broker_selects_the_tags_that_a_filter_leaves(
    filters: list[Filter], tags: str, expression: str | None
) -> None:
    pushed = Pushed()
    assert pushed.push(filters) == filters
    assert pushed.tag_expression(tags) == expression


def test_a_reader_that_takes_filters_is_only_there_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"nameServer": "a:1", "topic": "orders"}
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, PUSHING_WORKER, sys)
        assert type(batch_reader(SourceOptions(said))) is RocketMQBatchReader
        assert type(batch_reader(SourceOptions({**said, "pushFilters": "false"}))) is RocketMQBatchReader
        assert type(batch_reader(SourceOptions({**said, "pushFilters": "true"}))) is PushingBatchReader
    with pytest.raises(ValueError, match="option pushFilters is for batch reads"):
        SourceOptions({**said, "pushFilters": "true"}).check_stream()


def test_a_reader_that_takes_filters_is_only_there_where_spark_pushes_them() -> None:
    assert not spark_pushes_filters()
    options = SourceOptions({"nameServer": "a:1", "topic": "orders", "pushFilters": "true"})
    assert type(batch_reader(options)) is RocketMQBatchReader
    assert dataclasses.is_dataclass(Pushed)


def test_tasks_ask_brokers_for_the_tags_that_a_filter_leaves() -> None:
    """Spark pickles a reader for its tasks behind pushFilters, and before it asks for partitions."""
    found, _ = reader([EqualTo(("tag",), "UA")], tags="UA || AA")
    in_tasks: RocketMQBatchReader = pickle.loads(pickle.dumps(found))
    assert in_tasks.options.tags == "UA"
    none, _ = reader([EqualTo(("tag",), "LH")], tags="UA || AA")
    assert none.partitions() == []


class SteppedBack(Admin):
    """A queue whose broker's clock went back once; found by halves, as Apache's brokers find a time."""

    def __init__(self, times: Sequence[int]) -> None:
        self.times = times

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        return bisect_left(self.times, timestamp_ms)

    async def pull(self, *_: Any, **__: Any) -> PullResult:
        return PullResult(PullStatus.NO_NEW_MSG, 0, 0, 0)


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(20))
async def test_a_clock_that_went_back_by_less_than_a_minute_costs_no_row(seed: int) -> None:
    chance = Random(seed)
    at = 1_795_000_000_000
    before = list(accumulate((chance.randrange(20_000) for _ in range(50)), initial=at))
    times = [*before, *accumulate((chance.randrange(20_000) for _ in range(50)), initial=before[-1] - 59_999)]
    for time in times:
        when = datetime.fromtimestamp(time / 1000, UTC)
        for kind, fits in ((GreaterThanOrEqual, time.__le__), (LessThanOrEqual, time.__ge__), (EqualTo, time.__eq__)):
            found, _ = reader([kind(("store_timestamp",), when)])
            (piece,) = await found._narrowed(SteppedBack(times), {Q0: 0}, {Q0: len(times)})
            assert [each for each in times[piece.start : piece.end] if fits(each)] == [
                each for each in times if fits(each)
            ]
