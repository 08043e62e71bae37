"""How far the query of a listener has read, and who hears of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("pyspark")

from rocketbox.message import MessageQueue
from rocketbox.spark.position import QueryPosition
from rocketbox.spark.query_progress import BatchProgress
from rocketbox.spark.topic_watch import TopicWatch
from tests.support.spark.log_of_a_broker import StillClock
from tests.support.spark.stores import Store, store

pytestmark = pytest.mark.anyio

Q0, Q1 = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)


@asynccontextmanager
async def ten_at_each() -> AsyncIterator[tuple[Store, TopicWatch, QueryPosition]]:
    """A topic with ten messages in each of two queues, which its watch has seen."""
    async with store("orders") as here:
        clock = StillClock()
        for queue in (Q0, Q1):
            await here.send(queue, [b"m"] * 10)
        watch = TopicWatch(here.admin, "etl", "orders", clock)
        assert await watch.look() is None
        yield here, watch, QueryPosition("etl", here.admin, watch, clock)


def batch(**end: int) -> BatchProgress:
    ends = {MessageQueue("orders", "broker-a", int(name[1:])): offset for name, offset in end.items()}
    return BatchProgress(3, 7, 3.5, 2.0, ends)


async def test_health_and_the_watch_follow_what_was_read() -> None:
    async with ten_at_each() as (_, watch, position):
        assert position.shown() == {}
        position.begins({Q0: 4, Q1: 0})
        assert (position.shown()["lag"], watch.read) == (16, {Q0: 4, Q1: 0})
        position.moves(batch(q0=9, q1=2))
        position.tell()
        assert watch.read == {Q0: 9, Q1: 2}
        shown = position.shown()
        assert (shown["rows"], shown["rows_per_second"], shown["batch_seconds"]) == (7, 3.5, 2.0)
        assert (shown["lag"], shown["lag_by_queue"]) == (9, {"broker-a/0": 1, "broker-a/1": 8})


async def test_a_batch_of_which_spark_tells_no_end_leaves_the_position() -> None:
    async with ten_at_each() as (_, watch, position):
        position.begins({Q0: 4, Q1: 0})
        position.moves(batch())
        position.tell()
        assert position.has_moved
        assert watch.read == {Q0: 4, Q1: 0}
        assert position.shown()["lag"] == 16


async def test_what_another_driver_may_read_is_not_known() -> None:
    """Neither is an old lag shown, nor does the watch tell of messages that nobody has read."""
    async with ten_at_each() as (_, watch, position):
        position.begins({Q0: 4, Q1: 0})
        position.moves(batch(q0=5, q1=5))
        position.forget()
        assert position.shown() == {}
        assert watch.read is None


async def test_the_group_has_been_told_when_a_query_has_ended() -> None:
    async with ten_at_each() as (here, _, position):
        position.begins({Q0: 0, Q1: 0})
        position.moves(batch(q0=3, q1=1))
        await position.ends({Q0: 6, Q1: 1})
        assert [await here.admin.committed("etl", queue) for queue in (Q0, Q1)] == [6, 1]
        position.forget()
        await position.ends(None)
        assert await here.admin.committed("etl", Q0) == 6
