"""What a service's own middleware makes of calls and sends, as the records of a harness show it."""

from __future__ import annotations

import textwrap

import pytest

from rocketbox.errors import ClientError
from rocketbox.testing import Harness, Outcome
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

HEAD = """
from typing import Any

from rocketbox import (
    LocalTransactionState, RetryLater, RocketBox, bean, rocketmq_listener, rocketmq_transaction_listener
)
from rocketbox.client import ConsumeContext, ConsumeMiddleware, ConsumeNext, SendContext, SendMiddleware, SendNext

app = RocketBox("shop", scan=[__name__])
ran = []
"""

ORDER = """
from pydantic import BaseModel

class Order(BaseModel):
    number: int
"""

SETTINGS = """
rocketmq:
  name-server: embedded
  producer: {group: shop}
"""

TWO_FUNCTIONS = """
@rocketmq_listener(
    topic="orders", consumer_group="desk", selector_expression="new", consume_message_batch_max_size=10
)
async def place(numbers: list[str]) -> None:
    ran.append(("place", numbers))

@rocketmq_listener(
    topic="orders", consumer_group="desk", selector_expression="gone", consume_message_batch_max_size=10
)
async def cancel(numbers: list[str]) -> None:
    ran.append(("cancel", numbers))
"""


async def test_each_function_of_a_topic_has_calls_of_its_own_in_a_mixed_batch(service: ServiceMaker) -> None:
    shop = service(HEAD + TWO_FUNCTIONS, SETTINGS)
    async with Harness(shop.app) as harness:
        failing = harness.handler(shop.cancel).fails(1)
        with harness.freeze("desk"):
            for number in ("1", "2", "3", "4"):
                tag = "new" if number in "13" else "gone"
                await harness.send("orders", number, tag=tag, hash_key="one queue")
        await harness.drain()
        assert shop.ran == [("place", ["1", "3"])]
        assert failing.left == 0
        await harness.advance("1m")
        assert [call.payload for call in harness.calls(shop.place)] == [["1", "3"]]
        assert [call.attempt for call in harness.calls(shop.cancel)] == [1, 2, 2]
        assert sorted(number for name, numbers in shop.ran if name == "cancel" for number in numbers) == ["2", "4"]


BILL = """
@rocketmq_listener(topic="orders", consumer_group="bills")
async def bill(number: str) -> None:
    ran.append(number)
"""

DROPS_WHAT_COMES_TWICE = """
known = set()
busy = []

@bean
def once() -> ConsumeMiddleware:
    async def once(context: ConsumeContext, call_next: ConsumeNext) -> Any:
        (key,) = context.messages[0].keys
        if key in busy:
            busy.remove(key)
            raise RetryLater("1s")
        if key in known:
            return None
        known.add(key)
        return await call_next(context)
    return once
"""


async def test_a_call_that_middleware_did_not_pass_on_is_none_of_the_handler(service: ServiceMaker) -> None:
    shop = service(HEAD + BILL + DROPS_WHAT_COMES_TWICE, SETTINGS)
    async with Harness(shop.app) as harness:
        await harness.send("orders", "1", keys="o1")
        await harness.drain()
        (call,) = harness.calls(shop.bill)
        assert (call.payload, call.passed_on) == ("1", True)
        await harness.redeliver(call)
        await harness.drain()
        assert harness.calls(shop.bill) == [call]
        assert shop.ran == ["1"]
        first, again = await harness.consumed("bills", 2)
        assert (first, again.outcome, again.passed_on) == (call, Outcome.CONSUMED, False)
        with pytest.raises(
            AssertionError, match="bill had no arguments: it did not run, for a middleware did not pass"
        ):
            _ = again.payload
        assert harness.log.splitlines()[-1].endswith(
            "bills: bill, attempt 1, keys o1: consumed, in middleware: the handler did not run"
        )


async def test_a_call_that_middleware_has_fail_by_itself_is_none_of_the_handler(service: ServiceMaker) -> None:
    shop = service(HEAD + BILL + DROPS_WHAT_COMES_TWICE, SETTINGS)
    async with Harness(shop.app) as harness:
        shop.busy.append("o1")
        await harness.send("orders", "1", keys="o1")
        await harness.drain()
        assert harness.calls(shop.bill) == []
        assert "attempt 1, keys o1: comes back, in middleware: the handler did not run (RetryLater" in harness.log
        await harness.advance("5s")
        assert [call.attempt for call in harness.calls(shop.bill)] == [2]


async def test_a_call_is_listed_from_the_handlers_turn_on(service: ServiceMaker) -> None:
    source = """
    import anyio

    in_middleware, in_handler, may_come, may_end = (anyio.Event() for _ in range(4))

    @bean
    def waits() -> ConsumeMiddleware:
        async def waits(context: ConsumeContext, call_next: ConsumeNext) -> Any:
            in_middleware.set()
            await may_come.wait()
            return await call_next(ConsumeContext(context.consumer_group, context.messages))
        return waits

    @rocketmq_listener(topic="orders", consumer_group="bills")
    async def bill(number: str) -> None:
        in_handler.set()
        await may_end.wait()
    """
    shop = service(HEAD + textwrap.dedent(source), SETTINGS)
    async with Harness(shop.app) as harness:
        await harness.send("orders", "1")
        await shop.in_middleware.wait()
        assert harness.calls(shop.bill) == []
        shop.may_come.set()
        await shop.in_handler.wait()
        (call,) = harness.calls(shop.bill)
        with pytest.raises(AssertionError, match="bill had no arguments: its call has not ended"):
            _ = call.payload
        shop.may_end.set()
        await harness.drain()
        with pytest.raises(AssertionError, match="a middleware passed on a context of its own"):
            _ = call.payload


HANDS_OVER = """
import asyncio
import contextvars

handed = asyncio.Queue()

@app.on_startup
async def starts() -> None:
    asyncio.create_task(works())

async def works() -> None:
    while True:
        call_next, context, result = await handed.get()
        result.set_result(await call_next(context))

async def hand_over(context, call_next) -> Any:
    result = asyncio.get_running_loop().create_future()
    await handed.put((call_next, context, result))
    return await result

@bean
def calls() -> ConsumeMiddleware:
    return hand_over

@bean
def sends() -> SendMiddleware:
    return hand_over
"""


async def test_what_middleware_hands_to_a_task_of_its_own_was_called_and_sent(service: ServiceMaker) -> None:
    shop = service(HEAD + BILL + HANDS_OVER, SETTINGS)
    async with Harness(shop.app) as harness:
        await harness.send("orders", "1")
        await harness.drain()
        assert shop.ran == ["1"]
        assert [(call.payload, call.passed_on) for call in harness.calls(shop.bill)] == [("1", True)]
        assert harness.sent("orders").all(str) == ["1"]
        assert "middleware" not in harness.log


SKIPS = """
@rocketmq_listener(topic="orders", consumer_group="bills", on_invalid="skip")
async def bill(order: Order) -> None:
    ran.append(order.number)

@rocketmq_listener(topic="rows", consumer_group="rows", on_invalid="skip", consume_message_batch_max_size=10)
def store(rows: list[Order]) -> None:
    ran.extend(row.number for row in rows)

@rocketmq_listener(topic="rejects", consumer_group="rejects")
async def reject(order: Order) -> None: ...
"""


@pytest.mark.parametrize("with_middleware", [False, True])
async def test_a_payload_that_is_skipped_is_told_with_the_reason(service: ServiceMaker, with_middleware: bool) -> None:
    twice = """
@bean
def twice() -> ConsumeMiddleware:
    async def twice(context: ConsumeContext, call_next: ConsumeNext) -> Any:
        await call_next(context)
        return await call_next(context)
    return twice
"""
    shop = service(HEAD + ORDER + SKIPS + (twice if with_middleware else ""), SETTINGS)
    async with Harness(shop.app) as harness:
        await harness.send("orders", b"no JSON")
        (call,) = await harness.consumed("bills")
        assert harness.calls(shop.bill)[-1] is call
        assert [len(each.skipped) for each in harness.calls(shop.bill)] == [1] * (1 + with_middleware)
        assert (call.outcome, call.error, len(call.skipped)) == (Outcome.CONSUMED, None, 1)
        with pytest.raises(
            AssertionError, match=r"could not be read, and was skipped \(on_invalid: skip\): PayloadError:"
        ):
            _ = call.payload
        assert "bills: bill, attempt 1: consumed, skipped (PayloadError: " in harness.log

        with harness.freeze("rows"):
            for body in (shop.Order(number=1), b"no JSON", shop.Order(number=2)):
                await harness.send("rows", body, hash_key="one queue")
        (call,) = await harness.consumed("rows", 3)
        assert [row.number for row in call.payload] == [1, 2]
        assert "rows: store, attempt 1, 3 messages: consumed, 1 of them skipped (PayloadError: " in harness.log

        await harness.send("rejects", b"no JSON")
        await harness.drain()
        call = harness.calls(shop.reject)[-1]
        assert (call.outcome, call.skipped) == (Outcome.DEAD_LETTER, ())
        with pytest.raises(AssertionError, match=r"reject had no arguments: Reject\('reject: it cannot be read"):
            _ = call.payload


AROUND_SENDS = """
from dataclasses import replace

from rocketbox import Message

mode = []

@bean
def around() -> SendMiddleware:
    async def around(context: SendContext, call_next: SendNext) -> Any:
        if "drop" in mode:
            return None
        if "stamp" in mode:
            stamped = [replace(each, tag="paid", properties={"by": "us"}) for each in context.messages]
            return await call_next(replace(context, messages=stamped))
        if "twice" in mode:
            await call_next(context)
        result = await call_next(context)
        if "fail" in mode:
            raise RuntimeError("metrics are down")
        return result
    return around
"""


async def test_what_was_sent_is_told_though_middleware_fails_the_send(service: ServiceMaker) -> None:
    shop = service(HEAD + BILL + AROUND_SENDS, SETTINGS)
    async with Harness(shop.app) as harness:
        shop.mode.append("fail")
        with pytest.raises(RuntimeError, match="metrics are down"):
            await harness.send("orders", "1")
        with pytest.raises(RuntimeError, match="metrics are down"):
            await harness.template.send_batch("orders", ["2", "3"])
        await harness.drain()
        assert sorted(shop.ran) == ["1", "2", "3"]
        assert harness.sent("orders").all(str) == ["1", "2", "3"]
        first, second, third = harness.sent("orders")
        assert all(each.result is not None for each in (first, second, third))
        assert second.result is not third.result
        assert "the send to orders failed, though its message was sent: RuntimeError: metrics are down" in harness.log
        assert "not sent" not in harness.log


async def test_what_middleware_drops_was_not_sent(service: ServiceMaker) -> None:
    shop = service(HEAD + BILL + AROUND_SENDS, SETTINGS)
    async with Harness(shop.app) as harness:
        shop.mode.append("drop")
        await harness.template.send_one_way("orders", "1")
        await harness.drain()
        assert shop.ran == []
        assert len(harness.sent("orders")) == 0
        assert harness.log == "+0.000 s  not sent to orders so far: a middleware did not pass it on"


async def test_what_middleware_adds_or_sends_again_is_seen_in_what_was_sent(service: ServiceMaker) -> None:
    shop = service(HEAD + BILL + AROUND_SENDS, SETTINGS)
    async with Harness(shop.app) as harness:
        await harness.send("orders", "1")
        shop.mode.append("stamp")
        await harness.send("orders", "2")
        shop.mode[:] = ["twice"]
        await harness.send("orders", "3")
        await harness.drain()
        assert sorted(shop.ran) == ["1", "2", "3", "3"]
        told = [(each.payload(str), each.tag, dict(each.headers)) for each in harness.sent("orders")]
        assert told == [("1", None, {}), ("2", "paid", {"by": "us"}), ("3", None, {}), ("3", None, {})]


async def test_what_is_sent_in_a_transaction_passes_middleware_and_is_sent_with_its_end(service: ServiceMaker) -> None:
    source = """
    @rocketmq_transaction_listener(topic="orders")
    async def was_stored(number: str) -> LocalTransactionState:
        return LocalTransactionState.ROLLBACK
    """
    shop = service(HEAD + BILL + AROUND_SENDS + textwrap.dedent(source), SETTINGS)
    async with Harness(shop.app) as harness:
        shop.mode.append("stamp")
        async with harness.template.transaction("orders", "1"):
            assert len(harness.sent("orders")) == 0
        await harness.drain()
        (sent,) = harness.sent("orders")
        assert (sent.tag, shop.ran) == ("paid", ["1"])
        shop.mode[:] = ["drop"]
        with pytest.raises(ClientError, match="a middleware returned None for a send"):
            await harness.template.transaction("orders", "2").begin()
        await harness.advance("2m")
        assert (len(harness.sent("orders")), shop.ran) == (1, ["1"])
