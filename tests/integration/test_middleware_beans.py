"""Middleware of a service: beans of the two types wrap all of its sends and all calls of its listeners."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from tests.support.framework.services import ServiceMaker
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio

SERVICE = """
from typing import Any
from pydantic import BaseModel
from rocketbox import MessageExt, RetryLater, RocketBox, SendResult, bean, rocketmq_listener, send_to
from rocketbox.client import (
    ConsumeContext, ConsumeMiddleware, ConsumeNext, SendContext, SendMiddleware, SendNext,
)

app = RocketBox("desk", scan=[__name__])
told: list[Any] = []

class Order(BaseModel):
    number: int

class Ledger:
    def __init__(self):
        self.entries = []

@bean
def ledger() -> Ledger:
    return Ledger()

@bean
class Timing(ConsumeMiddleware):
    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    async def __call__(self, context: ConsumeContext, call_next: ConsumeNext, /) -> Any:
        self.ledger.entries.append("begin")
        try:
            return await call_next(context)
        finally:
            self.ledger.entries.append(("end", context.invocation.listener, context.invocation.arguments))

@bean
def policy(ledger: Ledger) -> ConsumeMiddleware:
    async def patient(context: ConsumeContext, call_next: ConsumeNext) -> Any:
        ledger.entries.append("policy")
        try:
            return await call_next(context)
        except ConnectionError as error:
            raise RetryLater("1s") from error
    return patient

@bean
def stamp() -> SendMiddleware:
    async def stamped(context: SendContext, call_next: SendNext) -> SendResult | None:
        told.append((context.producer_group, [message.topic for message in context.messages]))
        return await call_next(context)
    return stamped

@rocketmq_listener(topic="orders", consumer_group="billing")
@send_to("invoices")
async def bill(order: Order, message: MessageExt) -> str:
    if order.number == 2 and not message.reconsume_times:
        raise ConnectionError("no answer")
    return f"invoice {order.number}"

@rocketmq_listener(topic="invoices", consumer_group="post")
def post(invoice: str) -> None:
    told.append(invoice)
"""

SETTINGS = """
rocketmq:
  name-server: embedded
  producer: {group: desk}
  consumer: {consume-from-where: CONSUME_FROM_FIRST_OFFSET}
rocketbox:
  embedded: {port: 0, name-server-port: 0, data-dir: %(folder)s/store, mapped-file-size-commit-log: 1MB,
             message-delay-level: "0s 0s 0s 0s 0s 0s"}
"""


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE):
        while not condition():
            await anyio.sleep(0.01)


async def test_middleware_beans_wrap_all_sends_and_all_calls_in_the_order_in_which_they_stand(
    service: ServiceMaker, anyio_backend_name: str
) -> None:
    if anyio_backend_name != "asyncio":
        return
    module = service(SERVICE, SETTINGS)
    async with module.app as app:
        entries = app.get(module.Ledger).entries
        await app.template.send("orders", module.Order(number=1))
        await until(lambda: "invoice 1" in module.told and len(entries) >= 6)  # told in a thread, entered behind that
        names = [each if isinstance(each, str) else (each[0], each[1]) for each in entries[:6]]
        assert names == ["begin", "policy", ("end", "bill"), "begin", "policy", ("end", "post")]
        assert entries[2][2][0] == module.Order(number=1)
        assert entries[5][2] == ["invoice 1"]
        await app.template.send("orders", module.Order(number=2))
        await until(lambda: "invoice 2" in module.told)
    sends = [each for each in module.told if isinstance(each, tuple)]
    assert sends == [("desk", ["orders"]), ("desk", ["invoices"])] * 2
