"""Each run of a handler's function is a call of its own, also where middleware has it run again for one message."""

from __future__ import annotations

import textwrap

import pytest

from rocketbox.testing import Harness, Outcome
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

SOURCE = """
import asyncio
from typing import Any

from pydantic import BaseModel
from rocketbox import ConsumeMode, RocketBox, bean, rocketmq_listener
from rocketbox.client import ConsumeContext, ConsumeMiddleware, ConsumeNext

app = RocketBox("shop", scan=[__name__])
ran = []
down = [2]

class Order(BaseModel):
    number: int

@bean
class Tries(ConsumeMiddleware):
    async def __call__(self, context: ConsumeContext, call_next: ConsumeNext, /) -> Any:
        for left in (2, 1, 0):
            try:
                return await call_next(context)
            except ConnectionError:
                if not left:
                    raise

def connect(what: Any) -> None:
    ran.append(what)
    if down[0]:
        down[0] -= 1
        raise ConnectionError(f"down, {down[0]} left")

@rocketmq_listener(topic="payments", consumer_group="payer")
async def pay(order: Order) -> str:
    connect(order.number)
    return f"paid {order.number}"

@rocketmq_listener(topic="rows", consumer_group="rows", consume_message_batch_max_size=5)
def store(rows: list[Order]) -> None:
    connect([row.number for row in rows])
"""

SETTINGS = "rocketmq: {name-server: embedded, producer: {group: shop}}"


async def test_each_run_that_middleware_repeats_is_a_call_in_calls_and_in_the_log(service: ServiceMaker) -> None:
    shop = service(SOURCE, SETTINGS)
    async with Harness(shop.app) as harness:
        await harness.send("payments", shop.Order(number=1), keys="p1")
        await harness.drain()
        first, second, third = harness.calls(shop.pay)
        assert [call.outcome for call in (first, second)] == [Outcome.CALLED_AGAIN] * 2
        assert (third.outcome, third.error, third.result) == (Outcome.CONSUMED, None, "paid 1")
        assert [str(call.error) for call in (first, second)] == ["down, 1 left", "down, 0 left"]
        assert [(call.attempt, call.payload.number, call.passed_on) for call in harness.calls("pay")] == [
            (1, 1, True)
        ] * 3
        assert await harness.consumed("payer") == [third]
        log = [entry.split("  ")[1] for entry in harness.log.splitlines()]
        assert log[1:] == [
            "payer: pay, attempt 1, keys p1: called again by middleware (ConnectionError: down, 1 left)",
            "payer: pay, attempt 1, keys p1: called again by middleware (ConnectionError: down, 0 left)",
            "payer: pay, attempt 1, keys p1: consumed",
        ]


async def test_the_last_run_has_what_the_call_came_to(service: ServiceMaker) -> None:
    shop = service(SOURCE, SETTINGS)
    shop.down[0] = 4
    async with Harness(shop.app) as harness:
        await harness.send("payments", shop.Order(number=1))
        with pytest.raises(ConnectionError, match="down, 1 left"):
            await harness.drain()
        assert [call.outcome for call in harness.calls(shop.pay)] == [
            Outcome.CALLED_AGAIN, Outcome.CALLED_AGAIN, Outcome.COMES_BACK,
        ]  # fmt: skip
        await harness.consumed("payer")
        assert [(call.attempt, call.outcome) for call in harness.calls(shop.pay)[3:]] == [
            (2, Outcome.CALLED_AGAIN),
            (2, Outcome.CONSUMED),
        ]


async def test_a_run_that_fails_because_the_test_says_so_is_a_call(service: ServiceMaker) -> None:
    shop = service(SOURCE, SETTINGS)
    shop.down[0] = 0
    async with Harness(shop.app) as harness:
        harness.handler(shop.pay).fails(2, error=ConnectionError("no line"))
        await harness.send("payments", shop.Order(number=1))
        await harness.drain()
        assert shop.ran == [1]
        assert [(call.outcome, str(call.error), call.payload.number) for call in harness.calls(shop.pay)] == [
            (Outcome.CALLED_AGAIN, "no line", 1),
            (Outcome.CALLED_AGAIN, "no line", 1),
            (Outcome.CONSUMED, "None", 1),
        ]


async def test_each_run_of_a_batch_in_a_thread_is_a_call(service: ServiceMaker) -> None:
    shop = service(SOURCE, SETTINGS)
    async with Harness(shop.app) as harness:
        with harness.freeze("rows"):
            for number in (1, 2):
                await harness.send("rows", shop.Order(number=number), hash_key="one queue")
        await harness.drain()
        calls = harness.calls(shop.store)
        assert [[row.number for row in call.payload] for call in calls] == shop.ran == [[1, 2]] * 3
        assert [call.outcomes for call in calls] == [
            (Outcome.CALLED_AGAIN,) * 2, (Outcome.CALLED_AGAIN,) * 2, (Outcome.CONSUMED,) * 2,
        ]  # fmt: skip
        assert [str(each) for each in calls[0].failures] == ["down, 1 left"] * 2


async def test_runs_beside_each_other_are_calls(service: ServiceMaker) -> None:
    source = """
    @bean
    class Hedge(ConsumeMiddleware):
        async def __call__(self, context: ConsumeContext, call_next: ConsumeNext, /) -> Any:
            first = asyncio.ensure_future(call_next(context))
            while not ran:
                await asyncio.sleep(0)
            second = asyncio.ensure_future(call_next(context))
            try:
                return await second
            finally:
                may_end.set()
                await asyncio.gather(first, return_exceptions=True)

    may_end = asyncio.Event()

    @rocketmq_listener(topic="slow", consumer_group="slow")
    async def answer(number: str) -> None:
        ran.append(number)
        if len(ran) == 1:
            await may_end.wait()
            raise ValueError("too late")
    """
    shop = service(SOURCE + textwrap.dedent(source), SETTINGS)
    async with Harness(shop.app) as harness:
        await harness.send("slow", "1")
        await harness.drain()
        assert shop.ran == ["1", "1"]
        first, second = harness.calls(shop.answer)
        assert (first.outcome, str(first.error)) == (Outcome.CALLED_AGAIN, "too late")
        assert (second.outcome, second.error) == (Outcome.CONSUMED, None)


async def test_a_run_that_has_succeeded_and_is_repeated_has_no_error(service: ServiceMaker) -> None:
    source = """
    @bean
    class Twice(ConsumeMiddleware):
        async def __call__(self, context: ConsumeContext, call_next: ConsumeNext, /) -> Any:
            await call_next(context)
            return await call_next(context)
    """
    shop = service(SOURCE + textwrap.dedent(source), SETTINGS)
    shop.down[0] = 0
    async with Harness(shop.app) as harness:
        await harness.send("payments", shop.Order(number=1))
        await harness.drain()
        assert [(call.outcome, call.error, call.result) for call in harness.calls(shop.pay)] == [
            (Outcome.CALLED_AGAIN, None, "paid 1"),
            (Outcome.CONSUMED, None, "paid 1"),
        ]


IN_PARTS = """
import asyncio
from typing import Any

from rocketbox import RocketBox, bean, rocketmq_listener
from rocketbox.client import ConsumeContext, ConsumeMiddleware, ConsumeNext

app = RocketBox("shop", scan=[__name__])
at_once, fails, ran = [False], [""], []

@bean
class Parts(ConsumeMiddleware):
    async def __call__(self, context: ConsumeContext, call_next: ConsumeNext, /) -> Any:
        async def part(messages: list[Any]) -> None:
            context.messages = messages
            await call_next(context)

        parts = [part(context.messages[begin : begin + 2]) for begin in range(0, len(context.messages), 2)]
        if at_once[0]:
            await asyncio.gather(*parts)
        else:
            for each in parts:
                await each

@rocketmq_listener(topic="rows", consumer_group="rows", consume_message_batch_max_size=8, max_reconsume_times=0)
async def store(rows: list[str]) -> None:
    ran.append(list(rows))
    await asyncio.sleep(0)
    if fails[0] in rows:
        raise ValueError(f"{fails[0]} is bad")
"""


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("fails", ["", "r4"])
async def test_middleware_may_have_a_batch_handled_in_parts(service: ServiceMaker, at_once: bool, fails: str) -> None:
    shop = service(IN_PARTS, SETTINGS)
    shop.at_once[0], shop.fails[0] = at_once, fails
    async with Harness(shop.app) as harness:
        with harness.freeze("rows"):
            for number in range(6):
                await harness.template.send("rows", f"r{number}", hash_key="one queue")
        await harness.drain(failures="keep")
        parts = [["r0", "r1"], ["r2", "r3"], ["r4", "r5"]]
        calls = harness.calls(shop.store)
        assert shop.ran == [call.payload for call in calls] == parts
        assert [[message.body.decode() for message in call.messages] for call in calls[:2]] == parts[:2]
        assert [call.outcome for call in calls[:2]] == [Outcome.CALLED_AGAIN] * 2
        assert [message.body.decode() for message in calls[2].messages] == [f"r{number}" for number in range(6)]
        assert calls[2].outcomes == (Outcome.DEAD_LETTER if fails else Outcome.CONSUMED,) * 6
        assert [str(each.why) for each in harness.dead_letters("rows")] == (["r4 is bad"] * 6 if fails else [])
        if not fails:
            assert len(await harness.consumed("rows", count=6)) == 1
