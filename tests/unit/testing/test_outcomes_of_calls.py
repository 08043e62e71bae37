"""The outcome of a call is what becomes of its message, by what its handler did and by the options of its group."""

from __future__ import annotations

from types import ModuleType

import pytest

from rocketbox.template import PayloadError
from rocketbox.testing import Harness, Outcome
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

SOURCE = """
from datetime import timedelta

from pydantic import BaseModel
from rocketbox import BatchFailed, ConsumeMode, RetryLater, RocketBox, rocketmq_listener

app = RocketBox("shop", scan=[__name__])
ran = []

class Order(BaseModel):
    number: int

@rocketmq_listener(topic="never", consumer_group="never", delay_level_when_next_consume=-1)
async def never(number: str) -> None:
    raise ValueError("no")

@rocketmq_listener(topic="later", consumer_group="later", delay_level_when_next_consume=-1)
async def later(number: str) -> None:
    ran.append(number)
    if len(ran) == 1:
        raise RetryLater(timedelta(seconds=10))

@rocketmq_listener(topic="plain", consumer_group="plain")
async def plain(number: str) -> None:
    raise ValueError("no")

@rocketmq_listener(topic="rows", consumer_group="rows", consume_mode=ConsumeMode.ORDERLY, on_invalid="retry",
                   max_reconsume_times=0, consume_message_batch_max_size=10)
async def store(orders: list[Order]) -> None:
    ran.append([order.number for order in orders])

@rocketmq_listener(topic="steps", consumer_group="steps", consume_mode=ConsumeMode.ORDERLY,
                   max_reconsume_times=0, consume_message_batch_max_size=10)
async def walk(orders: list[Order]) -> None:
    ran.append([order.number for order in orders])
    if len(orders) > 2:
        raise BatchFailed(1)
"""

SETTINGS = "rocketmq: {name-server: embedded, producer: {group: shop}}"
BY_KEY = """
rocketmq:
  name-server: embedded
  producer: {group: shop}
  consumer:
    listeners:
      plain: {delay-level-when-next-consume: -1}
"""


@pytest.fixture
def shop(service: ServiceMaker) -> ModuleType:
    return service(SOURCE, SETTINGS)


async def test_what_becomes_a_dead_letter_at_once_is_none_that_comes_back(service: ServiceMaker) -> None:
    shop = service(SOURCE, BY_KEY)
    async with Harness(shop.app) as harness:
        for group, handler in (("never", shop.never), ("plain", shop.plain)):
            await harness.send(group, "1")
            await harness.drain(failures="keep")
            assert len(harness.dead_letters(group)) == 1
            assert [call.outcome for call in harness.calls(handler)] == [Outcome.DEAD_LETTER]


async def test_what_asks_to_come_later_does_so_also_where_all_else_becomes_a_dead_letter(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        await harness.send("later", "1")
        await harness.consumed("later")
        assert [call.outcome for call in harness.calls(shop.later)] == [Outcome.COMES_BACK, Outcome.CONSUMED]


async def test_what_was_not_tried_comes_back_and_is_no_failure(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        with harness.freeze("rows"):
            for payload in (shop.Order(number=1), b"no JSON", shop.Order(number=3)):
                await harness.send("rows", payload, hash_key="one queue")
        with pytest.raises(PayloadError):
            await harness.drain()
        await harness.drain()
        assert (shop.ran, len(harness.dead_letters("rows"))) == ([[1], [3]], 1)
        assert [call.outcomes for call in harness.calls(shop.store)] == [
            (Outcome.CONSUMED, Outcome.DEAD_LETTER, Outcome.COMES_BACK),
            (Outcome.CONSUMED,),
        ]


async def test_what_stands_behind_the_failed_message_of_an_orderly_batch_comes_back(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        with harness.freeze("steps"):
            for number in (1, 2, 3):
                await harness.send("steps", shop.Order(number=number), hash_key="one queue")
        await harness.drain()
        assert (shop.ran, len(harness.dead_letters("steps"))) == ([[1, 2, 3], [3]], 1)
        assert harness.calls(shop.walk)[0].outcomes == (Outcome.CONSUMED, Outcome.DEAD_LETTER, Outcome.COMES_BACK)
