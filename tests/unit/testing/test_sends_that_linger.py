"""What a producer keeps for a while before it sends it: in a harness it is there when ``drain`` returns."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import ModuleType

import pytest

from rocketbox.testing import Harness, Outcome
from tests.support.framework.services import ServiceMaker
from tests.support.loops import ASYNCIO_LOOPS

pytestmark = pytest.mark.anyio

SOURCE = """
import asyncio
import anyio
from rocketbox import (
    LocalTransactionState, MessageExt, RocketBox, RocketMQTemplate, rocketmq_listener, rocketmq_transaction_listener
)

app = RocketBox("shop", scan=[__name__])
checked = []

@rocketmq_listener(topic="orders", consumer_group="billing")
async def bill(order: str) -> None:
    pass

@rocketmq_listener(topic="parcels", consumer_group="parcels")
async def hand_on(how: str, template: RocketMQTemplate) -> None:
    if how == "task":
        hand_on.task = asyncio.create_task(template.send("orders", how))
    elif how == "tasks":
        hand_on.task = asyncio.gather(template.send("orders", how), template.send("orders", how))
    else:
        hand_on.task = asyncio.run_coroutine_threadsafe(template.send("orders", how), asyncio.get_running_loop())

asked = asyncio.Queue()

@app.background_task
async def write(template: RocketMQTemplate) -> None:
    while True:
        text, done = await asked.get()
        await template.send("orders", text)
        done.set_result(None)

@rocketmq_listener(topic="letters", consumer_group="letters")
async def ask(text: str) -> None:
    done = asyncio.get_running_loop().create_future()
    asked.put_nowait((text, done))
    await done

async def sends_after_a_rest(text: str) -> None:
    await asyncio.sleep(0.05)
    await templates[-1].send("orders", text)

@rocketmq_listener(topic="cards", consumer_group="cards")
def hand_over(how: str) -> None:
    if how == "anyio":
        anyio.from_thread.run(templates[-1].send, "orders", how)
    elif how == "anyio, a function of the service":
        anyio.from_thread.run(sends_after_a_rest, how)
    elif how == "asyncio":
        asyncio.run_coroutine_threadsafe(templates[-1].send("orders", how), loops[-1]).result()
    else:
        asyncio.run_coroutine_threadsafe(sends_after_a_rest(how), loops[-1]).result(60)

loops, templates = [], []

@app.on_startup
async def keep(template: RocketMQTemplate) -> None:
    templates.append(template)
    loops.append(asyncio.get_running_loop())

met = asyncio.Event()

@rocketmq_listener(topic="meetings", consumer_group="meetings")
async def meet(who: str, template: RocketMQTemplate) -> None:
    if who == "waits":
        await met.wait()
    else:
        event = met
        await template.send("orders", who)
        event.set()

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


@pytest.mark.parametrize(("how", "times"), [("task", 1), ("tasks", 2), ("call", 1)])
async def test_drain_waits_for_a_send_that_a_handler_leaves_to_a_task(shop: ModuleType, how: str, times: int) -> None:
    async with Harness(shop.app) as harness:
        await harness.send("parcels", how)
        began = harness.now
        await harness.drain()
        assert shop.hand_on.task.done()
        assert harness.sent("orders").all(str) == [how] * times
        assert len(harness.calls(shop.bill)) == times
        assert seconds(harness, began) == 2.0


@pytest.mark.parametrize("anyio_backend", ASYNCIO_LOOPS)
@pytest.mark.parametrize(
    "how", ["anyio", "asyncio", "anyio, a function of the service", "asyncio, a function of the service"]
)
async def test_time_moves_for_a_thread_that_waits_for_a_send_in_the_loop(shop: ModuleType, how: str) -> None:
    async with Harness(shop.app, patience=1) as harness:
        await harness.send("cards", how)
        began = harness.now
        await harness.drain()
        assert [call.outcome for call in harness.calls(shop.hand_over)] == [Outcome.CONSUMED]
        assert harness.sent("orders").all(str) == [how]
        assert seconds(harness, began) == 2.0


async def test_time_moves_for_a_handler_that_waits_for_what_a_background_task_sends(shop: ModuleType) -> None:
    async with Harness(shop.app, patience=1) as harness:
        await harness.send("letters", "one")
        began = harness.now
        await harness.drain()
        assert [call.outcome for call in harness.calls(shop.ask)] == [Outcome.CONSUMED]
        assert harness.sent("orders").all(str) == ["one"]
        assert seconds(harness, began) == 2.0


async def test_time_moves_for_a_handler_that_waits_for_what_another_one_sends(shop: ModuleType) -> None:
    async with Harness(shop.app, patience=1) as harness:
        await harness.template.send_many("meetings", ["waits", "sends"])
        began = harness.now
        await harness.drain()
        assert [call.outcome for call in harness.calls(shop.meet)] == [Outcome.CONSUMED] * 2
        assert harness.sent("orders").all(str) == ["sends"]
        assert seconds(harness, began) == 2.0


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
