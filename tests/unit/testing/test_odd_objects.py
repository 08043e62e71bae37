"""Objects of a user's that answer in their own way, in a harness: it asks them nothing that a service would not ask."""

from __future__ import annotations

import pytest

from rocketbox import Message
from rocketbox.testing import Harness, Outcome
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

SETTINGS = "rocketmq: {name-server: embedded, producer: {group: shop}}"

HEAD = """
import asyncio
import threading
from dataclasses import dataclass
from rocketbox import Reject, RocketBox, RocketMQTemplate, rocketmq_listener, send_to

app = RocketBox("shop", scan=[__name__])
"""

EXCEPTIONS = """
@dataclass
class OrderError(Exception):  # equal to others, and without a hash
    code: int

@dataclass
class Refused(Reject):
    code: int

class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("it cannot be said")

class Unwanted(Reject):
    def __str__(self):
        raise RuntimeError("it cannot be said")

@rocketmq_listener(topic="errors", consumer_group="errors", max_reconsume_times=1)
async def fails(name: str) -> None:
    raise {"order": OrderError(3), "refused": Refused(4), "unspeakable": Unspeakable(), "unwanted": Unwanted()}[name]
"""


@pytest.mark.parametrize("name", ["order", "unspeakable"])
async def test_what_a_handler_raises_is_raised_whatever_it_is(service: ServiceMaker, name: str) -> None:
    shop = service(HEAD + EXCEPTIONS, SETTINGS)
    error = {"order": shop.OrderError, "unspeakable": shop.Unspeakable}[name]
    async with Harness(shop.app) as harness:
        await harness.send("errors", name)
        with pytest.raises(error):
            await harness.drain()
        with pytest.raises(error):
            await harness.advance("1h")
        assert [call.outcome for call in harness.calls("fails")] == [Outcome.COMES_BACK, Outcome.DEAD_LETTER]
        assert [type(letter.why) for letter in harness.dead_letters("errors")] == [error]
        assert harness.log.count(f"fails, attempt 2: dead letter ({error.__name__}: ") == 1


@pytest.mark.parametrize("name", ["refused", "unwanted"])
async def test_what_rejects_a_message_does_so_whatever_it_is(service: ServiceMaker, name: str) -> None:
    shop = service(HEAD + EXCEPTIONS, SETTINGS)
    async with Harness(shop.app) as harness:
        await harness.send("errors", name)
        await harness.advance("1h")
        assert [call.outcome for call in harness.calls("fails")] == [Outcome.DEAD_LETTER]
        assert len(harness.dead_letters("errors")) == 1


async def test_a_body_is_one_line_of_the_log(service: ServiceMaker) -> None:
    shop = service(HEAD, SETTINGS)
    async with Harness(shop.app) as harness:
        await harness.send("orders", "cup\n+9.000 s  sent to orders  forged\x1b[31m")
        (line,) = harness.log.splitlines()
    assert line.endswith(r"cup\n+9.000 s  sent to orders  forged\x1b[31m")


PROXIES = """
asked = []

class Proxy:
    def __getattr__(self, name):
        asked.append(name)
        raise RuntimeError("working outside of request context")

@rocketmq_listener(topic="orders", consumer_group="orders")
async def waits(item: str) -> None:
    current = Proxy()
    await asyncio.sleep(0.05)
"""


async def test_local_variables_of_a_handler_that_waits_are_asked_nothing(service: ServiceMaker) -> None:
    shop = service(HEAD + PROXIES, SETTINGS)
    async with Harness(shop.app) as harness:
        await harness.send("orders", "cup")
        await harness.drain()
        assert [call.outcome for call in harness.calls("waits")] == [Outcome.CONSUMED]
    assert shop.asked == []


CIRCLE = """
class Step:
    def __init__(self, future) -> None:
        self.future = future.__await__()
        self.of = None
    def __await__(self):
        return self
    def __iter__(self):
        return self
    def __next__(self):
        return next(self.future)

async def inner(step: Step) -> None:
    await step

@rocketmq_listener(topic="orders", consumer_group="orders")
async def waits(item: str) -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_later(0.05, future.set_result, None)
    step = Step(future)
    step.of = inner(step)
    await step.of
"""


async def test_what_leads_back_to_who_awaits_it_is_waited_for(service: ServiceMaker) -> None:
    shop = service(HEAD + CIRCLE, SETTINGS)
    async with Harness(shop.app) as harness:
        await harness.send("orders", "cup")
        await harness.drain()
        assert [call.outcome for call in harness.calls("waits")] == [Outcome.CONSUMED]


CALLS = """
done = []

@rocketmq_listener(topic="orders", consumer_group="orders")
async def schedules(item: str) -> None:
    loop = asyncio.get_running_loop()
    loop.call_later(delay=0.02, callback=lambda: done.append("later"))
    loop.call_later(0.02, callback=lambda: done.append("later"))
    loop.call_later(0.02, done.append, "later")
    loop.call_at(when=loop.time() + 0.02, callback=lambda: done.append("at"))
    done.append(await loop.run_in_executor(None, func=lambda: "in a thread"))
    for wrong in ({}, {"delay": 1}, {"when": 1, "callback": print}):
        try:
            loop.call_later(**wrong)
        except TypeError:
            done.append("refused")

@rocketmq_listener(topic="threads", consumer_group="threads")
def starts(item: str) -> None:
    thread = threading.Thread(target=threading.Event().wait, args=(30,))
    thread.daemon = True
    thread.start()
"""


async def test_functions_of_asyncio_are_called_by_the_names_of_their_parameters(service: ServiceMaker) -> None:
    shop = service(HEAD + CALLS, SETTINGS)
    async with Harness(shop.app) as harness:
        await harness.send("orders", "cup")
        await harness.drain()
        assert sorted(shop.done) == ["at", "in a thread", *["later"] * 3, *["refused"] * 3]


async def test_a_thread_that_is_said_to_be_a_daemon_after_it_was_made_is_not_waited_for(service: ServiceMaker) -> None:
    shop = service(HEAD + CALLS, SETTINGS)
    async with Harness(shop.app, patience=1) as harness:
        await harness.send("threads", "cup")
        await harness.drain()


TRANSACTIONS = """
from rocketbox import LocalTransactionState, rocketmq_transaction_listener

@rocketmq_transaction_listener(topic="orders")
async def was_ordered(item: str) -> LocalTransactionState:
    return LocalTransactionState.COMMIT
"""


async def test_a_message_that_is_changed_and_sent_again_is_seen_as_it_was_each_time(service: ServiceMaker) -> None:
    shop = service(HEAD + TRANSACTIONS, SETTINGS)
    async with Harness(shop.app) as harness:
        keys, properties = ["k"], {"try": "1"}
        message = Message("orders", b"cup", keys=keys, properties=properties)
        await harness.template.send("orders", message)
        keys.append("2")
        properties["try"] = "2"
        await harness.template.send_batch("orders", [message])
        keys.append("3")
        properties["try"] = "3"
        async with harness.template.transaction("orders", message):
            keys.append("4")
            properties["try"] = "4"
        await harness.drain()
        sent = harness.sent("orders")
        assert [each.headers["try"] for each in sent] == ["1", "2", "3"]
        assert [each.keys for each in sent] == [("k",), ("k", "2"), ("k", "2", "3")]
        assert str(sent[0]) == "orders keys k try=1  cup"
