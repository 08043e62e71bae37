"""Listeners answer requests by what they return or raise, whatever kind of function they are."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from rocketbox.errors import ReplyError, ReplyTimeoutError
from rocketbox.message import Message, MessageExt
from rocketbox.template import PayloadError
from tests.support.framework.services import ServiceMaker
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

SOURCE = """
from dataclasses import dataclass

from rocketbox import Message, MessageExt, Reject, RetryLater, RocketBox, rocketmq_listener, send_to

app = RocketBox("desk", scan=[__name__])
seen = []

class SoldOut(Exception): ...

@dataclass
class Quote:
    flight: str
    price: float

def answer(flight):
    seen.append(flight)
    match flight:
        case "none":
            return None
        case "sold out":
            raise SoldOut("no seat is left")
        case "secret":
            raise RuntimeError("cannot log in: ('desk', 'hunter2-of-the-desk')")
        case "rejected":
            raise Reject("no such flight")
        case "text":
            return "text, Zürich"
        case "message":
            return Message("", b"whole", properties={"unit": "EUR"})
        case "wrong":
            return object()
        case "empty":
            return b""
        case _:
            return Quote(flight, 99.5)

@rocketmq_listener(topic="quotes", consumer_group="desk")
async def quote(flight: str):
    return answer(flight)

@rocketmq_listener(topic="blocking", consumer_group="blocking")
def blocking(flight: str):
    return answer(flight)

@rocketmq_listener(topic="both", consumer_group="both")
@send_to("copies")
async def both(flight: str) -> Quote:
    return Quote(flight, 7)

@rocketmq_listener(topic="copies", consumer_group="copies")
async def copies(copy: Quote, message: MessageExt):
    seen.append(("copy", copy.flight, "REPLY_TO_CLIENT" in message.properties))
    return "nobody asks"
"""

SETTINGS = """
rocketmq:
  name-server: embedded
  producer: {group: desk}
  consumer: {consume-from-where: first-offset}
  topics: {quotes: {queues: 2}, blocking: {queues: 2}, both: {queues: 2}, copies: {queues: 2}}
rocketbox.embedded: {port: 0, name-server-port: 0}
desk: {password: hunter2-of-the-desk}
"""


async def test_what_a_listener_returns_or_raises_is_the_answer(service: ServiceMaker, tmp_path: Path) -> None:
    module = service(SOURCE, SETTINGS)
    async with module.app:
        template = module.app.template
        for topic in ("quotes", "blocking"):

            async def ask(flight: str, kind: type, topic: str = topic) -> object:
                return await template.send_and_receive(topic, flight, kind, timeout=PATIENCE)

            assert await ask("UA1", module.Quote) == module.Quote("UA1", 99.5)
            assert await ask("text", str) == "text, Zürich"
            reply = await ask("message", MessageExt)
            assert isinstance(reply, MessageExt)
            assert (reply.body, reply.properties["unit"]) == (b"whole", "EUR")
            with pytest.raises(ReplyError) as caught:
                await ask("sold out", str)
            assert caught.value.error_class == f"{module.__name__}.SoldOut"
            assert caught.value.message == "no seat is left"
            with pytest.raises(ReplyError) as caught:
                await ask("secret", str)
            assert caught.value.message == "cannot log in: ('desk', '******')", "who asks may be anybody"
            with pytest.raises(ReplyError, match="Reject: no such flight"):
                await ask("rejected", str)
            with pytest.raises(ReplyError, match=r"PayloadError.*type object cannot be written"):
                await ask("wrong", str)
            with pytest.raises(ReplyError, match=r"the body of a message to .* is empty"):
                await ask("empty", str)
            with pytest.raises(PayloadError):
                await ask("text", module.Quote)
            with pytest.raises(ReplyTimeoutError):
                await template.send_and_receive(topic, "none", str, timeout="300ms")
            await template.send(topic, "nobody asks")
            with anyio.fail_after(PATIENCE):
                while "nobody asks" not in module.seen:
                    await anyio.sleep(0.01)
            assert module.seen.count("sold out") == 1
            module.seen.clear()
        sent = await template.send_and_receive("both", Message("", b"UA2"), module.Quote, timeout=PATIENCE)
        assert sent == module.Quote("UA2", 7)
        with anyio.fail_after(PATIENCE):
            while ("copy", "UA2", False) not in module.seen:
                await anyio.sleep(0.01)
        assert len(template.producer.instance.waiting_requests) == 0
        assert template.producer.instance.waiting_requests.late == 0
