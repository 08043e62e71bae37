"""Objects in the place of beans whose methods are listeners: their own methods are called."""

from __future__ import annotations

from unittest.mock import create_autospec

import pytest

from rocketbox.message import LocalTransactionState
from rocketbox.testing import Harness, Outcome
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
