"""Transaction listeners in a harness: what they raise, which a service only logs."""

from __future__ import annotations

import pytest

from rocketbox.testing import Harness, StuckError
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

SOURCE = """
import asyncio
import threading
from rocketbox import LocalTransactionState, RocketBox, rocketmq_transaction_listener

app = RocketBox("shop", scan=[__name__])

@rocketmq_transaction_listener(topic="orders")
async def in_the_loop(item: str) -> LocalTransactionState:
    if item == "exit":
        raise SystemExit
    if item == "nothing":
        return None
    raise LookupError(f"no {item}")

@rocketmq_transaction_listener(topic="refunds")
def in_a_thread(item: str) -> LocalTransactionState:
    raise LookupError(f"no {item}")

looked_up: list[str] = []
found = threading.Event()

@rocketmq_transaction_listener(topic="letters")
async def in_real_time(item: str) -> LocalTransactionState:
    if item == "never":
        await asyncio.get_running_loop().create_future()
    await asyncio.sleep(0.05)
    looked_up.append(item)
    return LocalTransactionState.COMMIT

@rocketmq_transaction_listener(topic="parcels")
def in_real_time_in_a_thread(item: str) -> LocalTransactionState:
    found.wait(0.05)
    looked_up.append(item)
    return LocalTransactionState.COMMIT
"""

SETTINGS = "rocketmq: {name-server: embedded, producer: {group: shop}}"


@pytest.mark.parametrize(
    ("topic", "item", "raised"),
    [
        ("orders", "cup", r"no cup"),
        ("refunds", "cup", r"no cup"),
        ("orders", "exit", r"SystemExit"),
        ("orders", "nothing", r"in_the_loop returned None"),
    ],
)
async def test_what_a_transaction_listener_raises_fails_the_test(
    service: ServiceMaker, topic: str, item: str, raised: str
) -> None:
    """The broker asks again and again, so that a test would see nothing of one that never answers."""
    shop = service(SOURCE, SETTINGS)
    async with Harness(shop.app) as harness:
        await harness.template.transaction(topic, item).begin()
        await harness.drain()
        with pytest.raises((LookupError, RuntimeError, TypeError), match=raised):
            await harness.advance("40s")
        await harness.drain()  # it is raised once
        await harness.advance("40s", failures="keep")
    assert "transaction listener in_" in harness.log


@pytest.mark.parametrize("topic", ["letters", "parcels"])
async def test_time_stands_still_while_a_transaction_listener_goes_on_in_real_time(
    service: ServiceMaker, topic: str
) -> None:
    shop = service(SOURCE, SETTINGS)
    async with Harness(shop.app) as harness:
        await harness.template.transaction(topic, "lamp").begin()
        await harness.advance("40s")
        assert shop.looked_up == ["lamp"]
        assert harness.sent(topic).one(str) == "lamp"


async def test_a_transaction_listener_that_never_ends_is_named(service: ServiceMaker) -> None:
    shop = service(SOURCE, SETTINGS)
    async with Harness(shop.app, patience=0.2) as harness:
        await harness.template.transaction("letters", "never").begin()
        with pytest.raises(StuckError, match="transaction listener in_real_time waits"):
            await harness.advance("40s")
