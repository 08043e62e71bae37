"""Objects of a user's that answer in their own way, in a harness: it asks them nothing that a service would not ask."""

from __future__ import annotations

import anyio
import pytest

from rocketbox.testing import Harness, Outcome, StuckError
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


PING_PONG = """
@rocketmq_listener(topic="ping", consumer_group="ping")
@send_to("pong")
async def ping(item: str) -> str:
    return item

@rocketmq_listener(topic="pong", consumer_group="pong")
@send_to("ping")
%s pong(item: str) -> str:
    return item
"""


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_messages_that_lead_to_each_other_without_end_are_named(service: ServiceMaker, kind: str) -> None:
    shop = service(HEAD + PING_PONG % kind, SETTINGS.replace("%", ""))
    async with Harness(shop.app, patience=0.05) as harness:
        await harness.send("ping", "ball")
        with pytest.raises(StuckError, match=r"without end: .* sent to p[io]ng  ball; .*p[io]ng, attempt 1: consumed"):
            await harness.drain()


SENDS_ON = """
@app.background_task
async def noise(template: RocketMQTemplate) -> None:
    while True:
        await template.%s
"""


@pytest.mark.parametrize("verb", ['send("noise", 1)', 'send_one_way("noise", 1)', 'send_many("noise", [1] * 50)'])
async def test_a_background_task_that_sends_without_end_is_named(service: ServiceMaker, verb: str) -> None:
    shop = service(HEAD + SENDS_ON % verb, SETTINGS)
    with anyio.fail_after(60), pytest.raises(StuckError, match=r"without end: .* sent to noise  1; .* wait between"):
        async with Harness(shop.app, patience=0.05) as harness:
            await harness.drain()


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
