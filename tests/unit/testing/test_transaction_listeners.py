"""Transaction listeners in a harness: what they raise, which a service only logs."""

from __future__ import annotations

import pytest

from rocketbox.testing import Harness
from tests.support.framework.services import ServiceMaker

pytestmark = pytest.mark.anyio

SOURCE = """
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
