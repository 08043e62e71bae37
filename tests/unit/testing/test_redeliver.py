"""A message that the broker delivers once more: it is that message and no other, or the test is told why it is not."""

from __future__ import annotations

from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest

from rocketbox.testing import Harness, HarnessError
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

SOURCE = """
from typing import Any
from rocketbox import LocalTransactionState, RocketBox, bean, rocketmq_listener, rocketmq_transaction_listener
from rocketbox.client import ConsumeContext, ConsumeMiddleware, ConsumeNext

app = RocketBox("shop", scan=[__name__])
sold = []

@bean
def decoding() -> ConsumeMiddleware:
    async def decode(context: ConsumeContext, call_next: ConsumeNext) -> Any:
        for message in context.messages:
            if message.body.startswith(b"hex:"):
                message.body = bytes.fromhex(message.body[4:].decode())
        return await call_next(context)
    return decode

@rocketmq_listener(topic="orders", consumer_group="shop")
async def sell(item: str) -> None:
    sold.append(item)

@rocketmq_transaction_listener(topic="orders")
async def was_ordered(item: str) -> LocalTransactionState:
    return LocalTransactionState.COMMIT
"""

SETTINGS = "rocketmq: {name-server: embedded, producer: {group: shop}}"


@pytest.fixture
def shop(service: ServiceMaker) -> ModuleType:
    return service(SOURCE, SETTINGS)


async def test_a_transaction_is_delivered_again_as_itself(shop: ModuleType) -> None:
    """Its send was answered with the place of the half message, where there is another message of the topic."""
    async with Harness(shop.app) as harness:
        for item in ("one", "two", "three", "four", "five", "six", "seven", "eight"):
            await harness.send("orders", item)
        for item in ("cup", "lamp"):
            async with harness.template.transaction("orders", item):
                pass
        await harness.drain()
        await harness.broker.restart()
        await harness.advance("1m")  # the client connects again
        shop.sold.clear()
        for sent in harness.sent("orders")[-2:]:
            await harness.redeliver(sent)
            await harness.drain()
        assert shop.sold == ["cup", "lamp"]
        assert len({call.messages[0].msg_id for call in harness.calls("sell")}) == 10


async def test_a_transaction_is_delivered_again_once_its_broker_has_its_commit(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        async with harness.template.transaction("orders", "cup"):
            pass
        await harness.drain()
        await harness.redeliver(harness.sent("orders")[0])
        await harness.drain()
        assert shop.sold == ["cup", "cup"]
        await harness.template.transaction("orders", "lamp").begin()
        await harness.advance("40s")
        await harness.redeliver(harness.sent("orders")[1])
        await harness.drain()
        assert shop.sold[2:] == ["lamp", "lamp"]


@pytest.mark.parametrize("when", [{"delay": "10s"}, {"delay": timedelta(milliseconds=1234)}, {"delay_level": 3}, {}])
async def test_what_waits_for_its_time_is_delivered_again_when_it_was_delivered(
    shop: ModuleType, when: dict[str, Any]
) -> None:
    async with Harness(shop.app) as harness:
        await harness.send("orders", "one")
        result = await harness.send("orders", "cup", **(when or {"deliver_at": harness.now + timedelta(seconds=9)}))
        sent = harness.sent("orders")[1]
        with pytest.raises(HarnessError, match=r"orders  cup is not delivered yet.*: await harness\.advance\(\.\.\.\)"):
            await harness.redeliver(sent)
        await harness.advance("1m")
        await harness.redeliver(sent)
        await harness.drain()
        assert shop.sold == ["one", "cup", "cup"]
        assert {call.messages[0].msg_id for call in harness.calls("sell")[1:]} == {result.msg_id}


AUDITED = """
from rocketbox import RocketBox, rocketmq_listener

app = RocketBox("shop", scan=[__name__])

@rocketmq_listener(topic="records", consumer_group="audit", cluster="audit")
async def record(item: str) -> None: ...

@rocketmq_listener(topic="records", consumer_group="shop")
async def shop(item: str) -> None: ...
"""


@pytest.mark.parametrize("namespaces", [("", ""), ("", "theirs"), ("ours", "theirs")])
async def test_what_came_by_another_name_of_the_main_cluster_is_delivered_there(
    service: ServiceMaker, namespaces: tuple[str, str]
) -> None:
    settings: dict[str, Any] = {"rocketmq.clusters.audit": {"name-server": "embedded", "producer": {"group": "audits"}}}
    ours, theirs = namespaces
    if ours:
        settings["rocketmq.namespace"] = ours
    if theirs:
        settings["rocketmq.clusters.audit"]["namespace"] = theirs
    async with Harness(service(AUDITED, SETTINGS).app, settings=settings) as harness:
        await harness.send("records", "a cup", cluster="audit")
        await harness.drain()
        (call,) = harness.calls("record")
        (sent,) = harness.sent("records", cluster="audit")
        others = len(harness.calls("shop"))
        assert others == (ours == theirs)
        for again in (call, call.messages[0], sent):
            await harness.redeliver(again)
            await harness.drain()
        assert [each.payload for each in harness.calls("record")] == ["a cup"] * 4
        assert len(harness.calls("shop")) == 4 * others


async def test_what_was_recalled_is_not_delivered_at_all(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        result = await harness.send("orders", "cup", delay="11s")
        await harness.template.recall(result.recall_handle)
        await harness.advance("1m")
        with pytest.raises(HarnessError, match=r"is not delivered yet, or was recalled"):
            await harness.redeliver(harness.sent("orders")[0])


async def test_the_body_comes_as_it_was_sent_whatever_a_middleware_has_made_of_it(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        await harness.send("orders", b"hex:" + b"hex:00".hex().encode())
        await harness.drain()
        await harness.redeliver(harness.calls("sell")[0])
        await harness.drain()
        assert shop.sold == ["hex:00"] * 2


async def test_what_is_no_message_is_told_with_what_to_write(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        await harness.send("orders", "cup")
        await harness.drain()
        wrong: dict[str, Any] = {
            "list": harness.calls("sell"),
            "SentMessages": harness.sent("orders"),
            "str": "orders",
            "NoneType": None,
            "SendResult": harness.sent("orders")[0].result,
        }
        for kind, given in wrong.items():
            with pytest.raises(HarnessError) as raised:
                await harness.redeliver(given)
            assert str(raised.value) == (
                f"redeliver is given a {kind}, and not one message: write harness.calls(handler)[0], "
                "harness.sent(topic)[0], or a message of a call, call.messages[0]; of several, each by itself"
            )
        await harness.template.send_one_way("orders", "lamp")
        await harness.drain()
        with pytest.raises(HarnessError, match=r"sent one-way .*: take its call"):
            await harness.redeliver(harness.sent("orders")[1])


BURIES = """
from rocketbox import MessageExt, Reject, RocketBox, rocketmq_listener

app = RocketBox("shop", scan=[__name__])
buried = []

@rocketmq_listener(topic="orders", consumer_group="shop")
async def sell(item: str) -> None:
    raise Reject("sold out")

@rocketmq_listener(topic="%DLQ%shop", consumer_group="undertaker")
async def bury(message: MessageExt) -> None:
    buried.append(message.body)
"""


async def test_a_dead_letter_that_is_delivered_again_was_given_up_once(service: ServiceMaker) -> None:
    shop = service(BURIES, SETTINGS)
    async with Harness(shop.app) as harness:
        await harness.send("orders", "lamp")
        await harness.drain()
        for again in (harness.calls(shop.bury)[0], harness.dead_letters("shop")[0].message):
            await harness.redeliver(again)
            await harness.drain()
        assert shop.buried == [b"lamp"] * 3
        assert len(harness.dead_letters("shop")) == 1
        assert harness.log.count("dead letter after") == 1
        await harness.redeliver(harness.calls(shop.sell)[0])  # that the group rejects once more
        await harness.drain()
        assert len(harness.dead_letters("shop")) == 2
