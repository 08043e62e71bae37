"""A call has the payload as the handler got it, whatever the handler makes of it; the handler has its own."""

from __future__ import annotations

from types import ModuleType

import pytest

from rocketbox.testing import Harness
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

SOURCE = """
import threading
from typing import Any

from pydantic import BaseModel, PrivateAttr
from rocketbox import Message, MessageExt, RocketBox, RocketMQTemplate, bean, rocketmq_listener

app = RocketBox("shop", scan=[__name__])
got = []

class Order(BaseModel):
    number: int
    items: list[str] = []

class Locked(Order):
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

class Desk: ...

@bean
def desk() -> Desk:
    return Desk()

@rocketmq_listener(topic="orders", consumer_group="orders")
async def change(order: Order, message: MessageExt, desk: Desk, template: RocketMQTemplate) -> None:
    order.number += 100
    order.items.append("fee")
    got.append((order, message, desk))

@rocketmq_listener(topic="in-threads", consumer_group="in-threads")
def change_in_thread(order: Order) -> None:
    order.number += 100
    got.append(order)

@rocketmq_listener(topic="batches", consumer_group="batches", consume_message_batch_max_size=5)
async def change_all(orders: list[Order]) -> None:
    got.extend(orders)
    for order in orders:
        order.number += 100
    orders.clear()

@rocketmq_listener(topic="dicts", consumer_group="dicts")
async def empty(order: dict[str, int]) -> None:
    order.clear()

@rocketmq_listener(topic="messages", consumer_group="messages")
async def rewrite(message: Message) -> None:
    message.properties["by"] = "rewrite"

@rocketmq_listener(topic="locked", consumer_group="locked")
async def keep(order: Locked) -> None:
    got.append(order)

@rocketmq_listener(topic="raw", consumer_group="raw", consume_message_batch_max_size=8)
async def unpack(messages: list[MessageExt]) -> None:
    while messages:
        message = messages.pop()
        got.append(message.body)
        message.body, message.topic = b"unpacked", "elsewhere"

@rocketmq_listener(topic="failing", consumer_group="failing", max_reconsume_times=0)
async def fail(order: Order) -> None:
    order.number += 100
    raise ValueError("no")
"""

SETTINGS = "rocketmq: {name-server: embedded, producer: {group: shop}}"


@pytest.fixture
def shop(service: ServiceMaker) -> ModuleType:
    return service(SOURCE, SETTINGS)


async def test_a_payload_is_as_it_came_though_its_handler_changes_it(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        await harness.send("orders", shop.Order(number=1, items=["lamp"]))
        await harness.drain()
        (call,) = harness.calls(shop.change)
        assert call.payload == shop.Order(number=1, items=["lamp"])
        ((order, message, desk),) = shop.got
        assert (order.number, order.items) == (101, ["lamp", "fee"])
        assert call.arguments is not None
        for each in (call.arguments[1], call.messages[0]):
            assert (each.msg_id, each.body, each.topic) == (message.msg_id, message.body, "orders")
        assert list(call.arguments[2:]) == [desk, harness.template]


async def test_messages_are_as_they_came_and_are_delivered_again_so(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        with harness.freeze("raw"):
            await harness.send("raw", "lamp")
            await harness.send("raw", "book")
        await harness.drain()
        assert sorted(shop.got) == [b"book", b"lamp"]
        called = [message for call in harness.calls(shop.unpack) for message in call.payload]
        assert sorted((message.body, message.topic) for message in called) == [(b"book", "raw"), (b"lamp", "raw")]
        await harness.redeliver(harness.calls(shop.unpack)[0])
        await harness.drain()
        assert len(shop.got) > 2, "it comes from its topic again, though the handler has written another one into it"


async def test_a_payload_is_as_it_came_whatever_takes_it(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        await harness.send("in-threads", shop.Order(number=1))
        with harness.freeze("batches"):
            for number in (1, 2):
                await harness.send("batches", shop.Order(number=number), hash_key="one queue")
        await harness.send("dicts", {"number": 1})
        await harness.send("messages", "lamp", headers={"by": "test"})
        await harness.send("failing", shop.Order(number=1))
        harness.handler(shop.fail).fails()
        await harness.drain(failures="keep")
        assert sorted(order.number for order in shop.got) == [101, 101, 102]
        assert harness.calls(shop.change_in_thread)[0].payload.number == 1
        assert [order.number for order in harness.calls(shop.change_all)[0].payload] == [1, 2]
        assert harness.calls(shop.empty)[0].payload == {"number": 1}
        assert harness.calls(shop.rewrite)[0].payload.properties["by"] == "test"
        assert harness.calls(shop.fail)[0].payload.number == 1


async def test_what_cannot_be_copied_is_the_handlers_own(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        await harness.send("locked", shop.Order(number=1))
        await harness.drain()
        assert harness.calls(shop.keep)[0].payload is shop.got[0]
