"""Requests in a harness: they are answered in virtual time, and what was told to who asked fails no test."""

from __future__ import annotations

import pytest

from rocketbox.errors import ReplyError, ReplyTimeoutError
from rocketbox.template import PayloadError
from rocketbox.testing import Harness, Outcome
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

SOURCE = """
from rocketbox import Reject, RocketBox, rocketmq_listener

app = RocketBox("desk", scan=[__name__])

def answer(flight):
    if flight == "bad":
        raise ValueError("no")
    if flight == "rejected":
        raise Reject("never")
    return None if flight == "silent" else flight * 2

@rocketmq_listener(topic="quotes", consumer_group="desk")
async def quote(flight: str):
    return answer(flight)

@rocketmq_listener(topic="blocking", consumer_group="blocking")
def blocking(flight: str):
    return answer(flight)
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("topic", ["quotes", "blocking"])
async def test_requests_are_answered_in_virtual_time(service: ServiceMaker, topic: str) -> None:
    module = service(SOURCE, "rocketmq: {name-server: embedded, producer: {group: desk}}\n")
    async with Harness(module.app) as harness:
        handler = module.quote if topic == "quotes" else module.blocking
        ask = harness.template.send_and_receive
        assert await ask(topic, "a", str) == "aa"
        with pytest.raises(PayloadError, match="no body can be read as"):
            await ask(topic, "never sent", type("Unreadable", (), {}))
        with pytest.raises(ReplyError, match="ValueError: no"):
            await ask(topic, "bad", str)
        with pytest.raises(ReplyError, match="Reject: never"):
            await ask(topic, "rejected", str)
        with pytest.raises(ReplyTimeoutError, match="within 3600 s"):  # of virtual time
            await ask(topic, "silent", str, timeout="1h")
        await harness.drain()
        calls = harness.calls(handler)
        assert [call.outcome for call in calls] == [
            Outcome.CONSUMED, Outcome.CONSUMED, Outcome.DEAD_LETTER, Outcome.CONSUMED,
        ]  # fmt: skip
        await harness.template.send(topic, "bad")  # of what nobody asked a test does hear
        with pytest.raises(ValueError, match="no"):
            await harness.drain()
