"""What ``sent`` lists is what the broker has stored for consumers, whatever its sender was told."""

from __future__ import annotations

import asyncio
from types import ModuleType

import pytest

from rocketbox.errors import RequestTimeoutError, SendManyError
from rocketbox.testing import Harness, HarnessError
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

SOURCE = """
from rocketbox import LocalTransactionState, RocketBox, RocketMQTemplate, rocketmq_listener
from rocketbox import rocketmq_transaction_listener

app = RocketBox("shop", scan=[__name__])
sold, says = [], [LocalTransactionState.ROLLBACK]

@rocketmq_listener(topic="carts", consumer_group="carts")
async def check_out(item: str, template: RocketMQTemplate) -> None:
    await template.send("orders", item, headers={"by": "carts"})

@rocketmq_listener(topic="orders", consumer_group="shop")
async def sell(item: str) -> None:
    sold.append(item)

@rocketmq_transaction_listener(topic="orders")
async def was_ordered(item: str) -> LocalTransactionState:
    return says[0]
"""

SETTINGS = "rocketmq: {name-server: embedded, producer: {group: shop}}"


@pytest.fixture
def shop(service: ServiceMaker) -> ModuleType:
    return service(SOURCE, SETTINGS)


@pytest.mark.parametrize("said", ["ROLLBACK", "UNKNOWN", "COMMIT"])
async def test_a_transaction_whose_commit_got_lost_is_sent_only_if_the_check_commits_it(
    shop: ModuleType, said: str
) -> None:
    shop.says[0] = type(shop.says[0])[said]
    async with Harness(shop.app) as harness:
        async with harness.template.transaction("orders", "lamp"):
            await harness.broker.stop()
        await harness.broker.start()
        assert len(harness.sent("orders")) == 0
        await harness.advance("5m")
        assert harness.sent("orders").all(str) == shop.sold == (["lamp"] if said == "COMMIT" else [])


@pytest.mark.parametrize("end", ["commit", "roll back"])
async def test_a_transaction_is_sent_once_when_its_broker_has_its_commit(shop: ModuleType, end: str) -> None:
    async with Harness(shop.app) as harness:
        async with harness.template.transaction("orders", "lamp") as transaction:
            if end == "roll back":
                transaction.rollback()
            await harness.drain()
            assert len(harness.sent("orders")) == 0
        await harness.drain()
        for sent in harness.sent("orders"):
            assert (sent.result is not None, shop.sold) == (True, ["lamp"])
            await harness.redeliver(sent)
        await harness.advance("5m")
        assert harness.sent("orders").all(str) == (["lamp"] if end == "commit" else [])


async def test_a_transaction_whose_begin_was_not_answered_is_sent_if_the_check_commits_it(shop: ModuleType) -> None:
    shop.says[0] = type(shop.says[0]).COMMIT
    async with Harness(shop.app) as harness:
        with harness.broker.silence(), pytest.raises(RequestTimeoutError):
            await harness.template.transaction("orders", "lamp").begin()
        assert len(harness.sent("orders")) == 0
        await harness.advance("5m")
        assert shop.sold
        assert harness.sent("orders").all(str) == shop.sold


async def test_what_a_silent_broker_has_stored_was_sent_though_its_sender_was_told_otherwise(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        await harness.send("carts", "lamp")
        with harness.broker.silence():
            await harness.drain(failures="keep")
        await harness.consumed("carts")
        await harness.drain(failures="keep")
        assert len(shop.sold) > 1
        assert harness.sent("orders").all(str) == shop.sold
        assert {sent.headers["by"] for sent in harness.sent("orders")} == {"carts"}
        assert "the send to orders failed, though its message was sent: " in harness.log
        assert "not sent" not in harness.log
        with pytest.raises(HarnessError, match="or its send failed"):
            await harness.redeliver(harness.sent("orders")[0])


async def test_each_copy_that_tries_of_one_send_have_left_was_sent(shop: ModuleType) -> None:
    """The first try is not answered in time, a later one is: one send, one id, two messages."""
    settings = {"rocketmq.producer.send-message-timeout": "10s"}
    settings["rocketmq.producer.send-msg-max-timeout-per-request"] = "2s"
    async with Harness(shop.app, settings=settings) as harness:
        with harness.broker.silence():
            sending = asyncio.ensure_future(harness.template.send("orders", "lamp"))
            await harness.advance("3s")
        await sending
        await harness.advance("1m")
        assert shop.sold == ["lamp", "lamp"]
        first, second = harness.sent("orders")
        assert first.result == second.result is not None


async def test_a_send_that_was_given_up_was_sent_if_it_is_stored(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        with harness.broker.silence():
            sending = asyncio.ensure_future(harness.template.send("orders", "lamp"))
            await harness.advance("1s")
            sending.cancel()
            await asyncio.wait([sending])
        await harness.advance("1m")
        assert harness.sent("orders").all(str) == shop.sold == ["lamp"]


async def test_each_of_many_is_sent_that_a_silent_broker_has_stored(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        with harness.broker.silence():
            with pytest.raises(SendManyError):
                await harness.template.send_many("orders", ["a", "b"])
            with pytest.raises(RequestTimeoutError):
                await harness.template.send_batch("orders", ["c", "d"])
        await harness.advance("1m")
        assert set(shop.sold) == {"a", "b", "c", "d"}
        assert sorted(harness.sent("orders").all(str)) == sorted(shop.sold)


async def test_a_send_that_waits_for_others_was_sent_if_it_is_stored(shop: ModuleType) -> None:
    async with Harness(shop.app, settings={"rocketmq.producer.auto-batch": True}) as harness:
        with harness.broker.silence(), pytest.raises(RequestTimeoutError):
            await harness.template.send("orders", "lamp")
        await harness.advance("1m")
        assert shop.sold
        assert harness.sent("orders").all(str) == shop.sold


async def test_a_request_that_was_stored_was_sent(shop: ModuleType) -> None:
    async with Harness(shop.app) as harness:
        with harness.broker.silence(), pytest.raises(RequestTimeoutError):
            await harness.template.send_and_receive("orders", "lamp", str)
        await harness.advance("1m")
        assert shop.sold
        assert harness.sent("orders").all(str) == shop.sold


@pytest.mark.parametrize("disk", ["full", "roomy"])
async def test_a_one_way_send_was_sent_if_it_is_stored(shop: ModuleType, disk: str) -> None:
    async with Harness(shop.app) as harness:
        if disk == "full":
            harness.disk.full()
        await harness.template.send_one_way("orders", "lamp")
        await harness.drain()
        harness.disk.free()
        await harness.advance("1h")
        assert harness.sent("orders").all(str) == shop.sold == ([] if disk == "full" else ["lamp"])
        assert "a one-way send to orders is on its way" in harness.log
        for sent in harness.sent("orders"):
            assert sent.result is None
            (call,) = harness.calls(shop.sell)
            await harness.redeliver(call)
        await harness.drain()
        assert len(harness.sent("orders")) == (0 if disk == "full" else 1)


@pytest.mark.parametrize("delay", ["10s", "20500ms"])
@pytest.mark.parametrize("how", ["answered", "one-way", "silent"])
async def test_a_delayed_message_was_sent_once_from_its_send_on(shop: ModuleType, how: str, delay: str) -> None:
    async with Harness(shop.app) as harness:
        if how == "answered":
            await harness.template.send("orders", "lamp", delay=delay)
        elif how == "one-way":
            await harness.template.send_one_way("orders", "lamp", delay=delay)
        else:
            with harness.broker.silence(), pytest.raises(RequestTimeoutError):
                await harness.template.send("orders", "lamp", delay=delay)
        await harness.drain()
        stored = len(harness.sent("orders"))
        assert (stored >= 1, shop.sold) == (True, [])
        await harness.advance("1m")
        assert harness.sent("orders").all(str) == shop.sold == ["lamp"] * stored


async def test_a_message_that_waits_so_long_that_it_is_stored_anew_was_sent_once(shop: ModuleType) -> None:
    async with Harness(shop.app, settings={"rocketbox.embedded.retention": "3h"}) as harness:
        await harness.template.send_one_way("orders", "lamp", delay="110m")
        await harness.advance("2h")
        assert harness.sent("orders").all(str) == shop.sold == ["lamp"]


async def test_nothing_that_was_stored_before_is_sent_after_fresh(shop: ModuleType) -> None:
    shop.says[0] = type(shop.says[0]).COMMIT
    async with Harness(shop.app) as harness:
        with harness.broker.silence(), pytest.raises(RequestTimeoutError):
            await harness.template.transaction("orders", "lamp").begin()
        await harness.fresh()
        await harness.advance("5m")
        assert len(harness.sent("orders")) == 0


PASSED_ON_TWICE = """
import asyncio
from typing import Any

from rocketbox import Message, RocketBox, bean, rocketmq_listener
from rocketbox.client import SendContext, SendMiddleware, SendNext

app = RocketBox("shop", scan=[__name__])
sold = []

@bean
class Twice(SendMiddleware):
    async def __call__(self, context: SendContext, call_next: SendNext, /) -> Any:
        async def one(body: bytes) -> Any:
            context.messages = [Message("orders", body)]
            return await call_next(context)

        return (await asyncio.gather(one(b"lamp"), one(b"book")))[0]

@rocketmq_listener(topic="orders", consumer_group="shop")
async def sell(item: str) -> None:
    sold.append(item)
"""


@pytest.mark.parametrize("silent", [False, True])
async def test_what_middleware_passes_on_twice_at_once_is_two_sends(service: ServiceMaker, silent: bool) -> None:
    shop = service(PASSED_ON_TWICE, SETTINGS)
    async with Harness(shop.app, settings={"rocketmq.producer.retry-times-when-send-failed": 0}) as harness:
        if silent:
            with harness.broker.silence(), pytest.raises(RequestTimeoutError):
                await harness.send("orders", "any")
        else:
            await harness.send("orders", "any")
        await harness.advance("1m")
        assert sorted(shop.sold) == sorted(harness.sent("orders").all(str)) == ["book", "lamp"]


async def test_the_end_of_a_transaction_of_a_test_before_is_not_in_the_log(shop: ModuleType) -> None:
    shop.says[0] = type(shop.says[0]).UNKNOWN
    async with Harness(shop.app) as harness:
        async with harness.template.transaction("orders", "lamp"):
            await harness.drain()
            await harness.fresh()
        await harness.drain()
        assert (str(harness.log), len(harness.sent("orders")), shop.sold) == ("nothing has happened", 0, [])
