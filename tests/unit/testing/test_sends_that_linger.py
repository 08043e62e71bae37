"""What a producer keeps for a while before it sends it: in a harness it is there when ``drain`` returns."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import ModuleType

import pytest

from rocketbox.testing import Harness
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

SOURCE = """
from rocketbox import LocalTransactionState, MessageExt, RocketBox, rocketmq_listener, rocketmq_transaction_listener

app = RocketBox("shop", scan=[__name__])
checked = []

@rocketmq_listener(topic="orders", consumer_group="billing")
async def bill(order: str) -> None:
    pass

@rocketmq_transaction_listener(topic="orders")
def placed(message: MessageExt) -> LocalTransactionState:
    checked.append(message.tag)
    return LocalTransactionState.UNKNOWN
"""

SETTINGS = """
rocketmq:
  name-server: embedded
  producer: {group: shop, auto-batch: true, batch-max-delay: 2s, enable-msg-trace: true}
  consumer: {enable-msg-trace: true}
"""


@pytest.fixture
def shop(service: ServiceMaker) -> ModuleType:
    return service(SOURCE, SETTINGS)


def seconds(harness: Harness, began: object) -> float:
    return float((harness.now - began).total_seconds())  # type: ignore[operator]  # a datetime


async def test_drain_waits_for_a_send_that_waits_for_others(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        began = harness.now
        sending = asyncio.create_task(harness.template.send("orders", "a"))
        await asyncio.sleep(0)
        await harness.drain()
        assert sending.done()
        assert [call.arguments for call in harness.calls(shop.bill)] == [("a",)]
        assert seconds(harness, began) == 2.0
        await harness.drain()
        assert seconds(harness, began) == 2.0  # of the trace nobody waits for, and no time passes


async def test_a_send_of_one_test_never_comes_in_the_next_one(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        async with harness.template.transaction("orders:open", "b") as transaction:
            transaction.unknown()
        await harness.template.send("orders", "c", delay=timedelta(minutes=3))
        sending = asyncio.create_task(harness.template.send("orders", "a"))
        await asyncio.sleep(0)
        await harness.fresh()
        assert sending.done()
        await harness.advance("10m")
        assert harness.calls(shop.bill) == []
        assert shop.checked == []
