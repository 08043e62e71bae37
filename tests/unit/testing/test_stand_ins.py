"""Objects in the place of beans whose methods are listeners: their own methods are called."""

from __future__ import annotations

from unittest.mock import create_autospec

import pytest

from rocketbox.message import LocalTransactionState
from rocketbox.testing import Harness, HarnessError, Outcome
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

SOURCE = """
from rocketbox import LocalTransactionState, RocketBox, bean, rocketmq_listener, rocketmq_transaction_listener

app = RocketBox("shop", scan=[__name__])

class Desk:
    def __init__(self) -> None:
        self.saw: list[str] = []

    @rocketmq_listener(topic="orders", consumer_group="desk")
    async def sell(self, item: str) -> None:
        self.saw.append(f"{item} sold")

    @rocketmq_listener(topic="gifts", consumer_group="giver")
    def give(self, item: str) -> None:
        self.saw.append(f"{item} given")

    @rocketmq_transaction_listener(topic="debts")
    async def owes(self, item: str) -> LocalTransactionState:
        return LocalTransactionState.ROLLBACK

class Special(Desk):
    async def sell(self, item: str) -> None:
        self.saw.append(f"{item} sold by another")

    def give(self, item: str) -> None:
        self.saw.append(f"{item} given by another")

    async def owes(self, item: str) -> LocalTransactionState:
        return LocalTransactionState.COMMIT

special = Special()

@bean
def desk() -> Desk:
    return special if %(special)s else Desk()
"""

SETTINGS = "rocketmq: {name-server: embedded, producer: {group: shop}}"


async def both(harness: Harness) -> None:
    await harness.send("orders", "cup")
    await harness.send("gifts", "cup")
    await harness.drain()


async def begun(harness: Harness) -> list[str]:
    """What of a transaction that nobody ends comes to the topic: what its listener says."""
    before = len(harness.sent("debts"))
    await harness.template.transaction("debts", "cup").begin()
    await harness.advance("40s")
    return [message.body.decode() for message in harness.sent("debts")[before:]]


async def test_the_bean_of_a_factory_may_be_of_a_subclass(service: ServiceMaker) -> None:
    shop = service(SOURCE.replace("%(special)s", "True"), SETTINGS)
    async with Harness(shop.app) as harness:
        await both(harness)
        assert sorted(shop.special.saw) == ["cup given by another", "cup sold by another"]
        assert await begun(harness) == ["cup"]
        for handler in (shop.Desk.sell, shop.special.sell, harness.app.get(shop.Desk).sell, "Desk.sell"):
            assert [call.outcome for call in harness.calls(handler)] == [Outcome.CONSUMED]


async def test_what_takes_the_place_of_a_bean_for_a_while_is_called_with_its_own_methods(service: ServiceMaker) -> None:
    shop = service(SOURCE.replace("%(special)s", "False"), SETTINGS)
    async with Harness(shop.app) as harness:
        with harness.override(shop.Desk, shop.special):
            await both(harness)
            assert await begun(harness) == ["cup"]
        assert sorted(shop.special.saw) == ["cup given by another", "cup sold by another"]
        await both(harness)
        assert await begun(harness) == []
        assert len(shop.special.saw) == 2
        assert sorted(harness.app.get(shop.Desk).saw) == ["cup given", "cup sold"]
        assert [call.outcome for call in harness.calls("Desk.sell")] == [Outcome.CONSUMED] * 2


async def test_a_mock_takes_the_place_of_a_bean(service: ServiceMaker) -> None:
    shop = service(SOURCE.replace("%(special)s", "False"), SETTINGS)
    desk = create_autospec(shop.Desk, instance=True)
    desk.owes.return_value = LocalTransactionState.COMMIT
    desk.give.return_value = None
    async with Harness(shop.app, beans={shop.Desk: desk}) as harness:
        await both(harness)
        assert await begun(harness) == ["cup"]
    desk.sell.assert_awaited_once_with("cup")
    desk.give.assert_called_once_with("cup")


TAKEN_AT_THE_START = """
from rocketbox import Health, HealthIndicator, RocketBox, bean, rocketmq_listener
from rocketbox.client import ConsumeMiddleware, Credentials, CredentialsProvider, SendMiddleware
from rocketbox.otel import MessageSpans
from rocketbox.template import PayloadCodec

app = RocketBox("shop", scan=[__name__])
seen = []

class Around:
    def __init__(self, name: str = "first") -> None:
        self.name = name

    async def __call__(self, context, call_next, /):
        seen.append(self.name)
        return await call_next(context)

class Calls(Around, ConsumeMiddleware): ...

class Sends(Around, SendMiddleware): ...

class Asked(Around, ConsumeMiddleware): ...

class Hears(Around, SendMiddleware): ...

class Keys(CredentialsProvider):
    async def credentials(self) -> Credentials:
        return Credentials(access_key="shop", secret_key="secret-of-shop")

class Till(HealthIndicator):
    name = "till"
    def health(self) -> Health:
        return Health.up()

class Text(PayloadCodec):
    content_type = "text/shop"
    def write(self, payload):
        return b""
    def reader(self, type_):
        return str

@bean
def calls() -> Calls:
    return Calls()

@bean
def sends() -> Sends:
    return Sends()

@bean
def asked() -> Asked:
    return Asked()

@bean
def hears() -> Hears:
    return Hears()

@bean
def keys() -> Keys:
    return Keys()

@bean
def till() -> Till:
    return Till()

@bean
def text() -> Text:
    return Text()

@bean
def spans() -> MessageSpans:
    return MessageSpans()

@rocketmq_listener(topic="orders", consumer_group="desk")
async def sell(item: str, asked: Asked) -> None:
    seen.append(f"{asked.name} was asked for")

@app.on_shutdown
async def close(hears: Hears) -> None:
    seen.append(f"{hears.name} hears of the end")
"""


@pytest.mark.parametrize("name", ["Calls", "Sends", "Keys", "Text", "MessageSpans"])
async def test_what_a_service_takes_when_it_starts_cannot_be_overridden_later(service: ServiceMaker, name: str) -> None:
    shop = service(TAKEN_AT_THE_START, SETTINGS)
    kind = getattr(shop, name)
    async with Harness(shop.app) as harness:
        with pytest.raises(HarnessError, match=rf"^{name} is .* Harness\(app, beans={{{name}: \.\.\.}}\)"):
            harness.override(kind, kind())
        await harness.send("orders", "cup")
        await harness.drain()
        assert "first" in shop.seen


async def test_what_the_harness_is_given_takes_the_place_of_middleware(service: ServiceMaker) -> None:
    shop = service(TAKEN_AT_THE_START, SETTINGS)
    beans = {shop.Calls: shop.Calls("other calls"), shop.Sends: shop.Sends("other sends")}
    async with Harness(shop.app, beans=beans) as harness:
        await harness.send("orders", "cup")
        await harness.drain()
        assert shop.seen == ["other sends", "first", "other calls", "first", "first was asked for"]


async def test_a_handler_or_a_hook_that_asks_for_middleware_is_given_another_one(service: ServiceMaker) -> None:
    shop = service(TAKEN_AT_THE_START, SETTINGS)
    async with Harness(shop.app) as harness:
        harness.override(shop.Asked, shop.Asked("another"))
        harness.override(shop.Hears, shop.Hears("another"))
        await harness.send("orders", "cup")
        await harness.drain()
    assert shop.seen[-2:] == ["another was asked for", "another hears of the end"]


async def test_a_part_of_health_may_be_asked_for_by_a_web_endpoint_and_so_be_overridden(service: ServiceMaker) -> None:
    shop = service(TAKEN_AT_THE_START, SETTINGS)
    till = shop.app.provider(shop.Till)
    async with Harness(shop.app) as harness:
        other = shop.Till()
        assert await till() is not other
        with harness.override(shop.Till, other):
            assert await till() is other
