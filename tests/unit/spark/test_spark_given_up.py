"""What of a batch that is given up can still be read, on a broker in memory."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from rocketbox.errors import RocketBoxError
from rocketbox.message import MessageQueue
from rocketbox.protocol.codes import PermName
from rocketbox.spark.given_up import Remains, remains_of
from rocketbox.spark.loss import SETTLE
from rocketbox.spark.offsets import QueueRange
from tests.support.spark.log_of_a_broker import StillClock
from tests.support.spark.stores import store, until_closed

pytestmark = pytest.mark.anyio

Q0, Q1 = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)
BATCH = [QueueRange(Q0, 1, 4), QueueRange(Q1, 0, 3)]


async def test_queues_that_were_taken_away_are_gone_and_told() -> None:
    """A read that names them is refused, so that the batch could never be given up."""
    async with store("orders") as here:
        await here.send(Q0, [b"m"] * 5)
        await here.send(Q1, [b"m"] * 3)
        clock = StillClock()
        assert await remains_of(here.admin, BATCH, clock) == Remains(tuple(BATCH), ())
        assert clock.slept == 0
        await here.admin.create_topic("orders", queues=1)
        remains = await remains_of(here.admin, BATCH, clock)
        assert remains == Remains((QueueRange(Q0, 1, 4),), (QueueRange(Q1, 0, 3),))
        assert clock.slept == SETTLE, "a broker that starts may tell of its queues by and by"
        assert remains.gone_in_words().startswith("3 of its offsets were deleted meanwhile, or taken away with their ")
        assert remains.gone_in_words().endswith("and are lost: orders broker-a/1 0 to 2")


async def test_messages_of_a_topic_that_was_deleted_are_gone_and_those_of_a_broker_that_is_away_are_waited_for() -> (
    None
):
    async with store("orders", queues=1) as here:
        await here.send(Q0, [b"m"] * 5)
        there = MessageQueue("others", "broker-b", 0)
        async with here.another_broker("broker-b"):
            await here.admin.create_topic("others", queues=1)
            await here.admin.delete_topic("orders")
            batch = [QueueRange(Q0, 1, 4), QueueRange(there, 0, 0)]
            assert await remains_of(here.admin, batch, StillClock()) == Remains((), (QueueRange(Q0, 1, 4),))
        here.admin.timeout = 0.2
        with pytest.raises(RocketBoxError):
            await remains_of(here.admin, [QueueRange(there, 0, 1)], StillClock())


async def test_messages_of_a_topic_that_may_not_be_read_for_now_are_not_gone() -> None:
    """They would never get to the dead letters, and are there again as soon as the topic may be read."""
    async with store("orders") as here:
        await here.send(Q0, [b"m"] * 5)
        await here.send(Q1, [b"m"] * 3)
        await here.admin.create_topic("orders", queues=2, perm=PermName.WRITE)
        await until_closed(here, "broker-a")
        assert await here.admin.queues("orders") == []
        assert await remains_of(here.admin, BATCH, StillClock()) == Remains(tuple(BATCH), ())


async def test_what_is_deleted_is_gone() -> None:
    async with store("orders") as here:
        await here.send(Q0, [b"m"] * 2)
        remains = await remains_of(here.admin, [QueueRange(Q0, 1, 4), QueueRange(Q1, 2, 2)], StillClock())
        assert remains == Remains((QueueRange(Q0, 1, 2),), (QueueRange(Q0, 2, 4),))
