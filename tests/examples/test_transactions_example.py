"""The example of transactions, on virtual time: orders are billed if they are stored, whatever is lost in between."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from rocketbox.testing import Harness
from starter_examples.transactions.app import Order, Orders, OrdersProperties, app, bill, place

pytestmark = pytest.mark.anyio
CUP, POT = Order(number=1, item="a cup"), Order(number=2, item="a pot")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def orders(tmp_path: Path) -> AsyncIterator[Orders]:
    orders = Orders(OrdersProperties(database=tmp_path / "orders.db"))
    yield orders
    orders.close()


@pytest.fixture
async def harness(orders: Orders) -> AsyncIterator[Harness]:
    async with Harness(app, hooks=False, beans={Orders: orders}) as harness:
        yield harness


def billed(harness: Harness) -> list[int]:
    return [call.payload.number for call in harness.calls(bill)]


async def test_an_order_is_billed_once_it_is_stored(harness: Harness, orders: Orders) -> None:
    await place(CUP, harness.template, orders)
    with pytest.raises(sqlite3.IntegrityError):
        await place(CUP, harness.template, orders)
    await harness.drain()
    assert billed(harness) == [1]
    assert harness.sent("orders").one(Order) == CUP, "what was rolled back was not sent"


async def test_an_order_whose_end_is_lost_is_billed_when_the_broker_has_asked(harness: Harness, orders: Orders) -> None:
    transaction = harness.template.transaction("orders:placed", POT)
    await transaction.begin()
    orders.add(POT, transaction.transaction_id)
    await harness.drain()
    assert billed(harness) == [], "the process is thought to be killed here"
    assert len(harness.sent("orders")) == 0
    await harness.advance(timedelta(seconds=40))
    await harness.drain()
    assert billed(harness) == [2]
    assert harness.sent("orders").one(Order) == POT


async def test_an_order_that_was_never_stored_is_not_billed(harness: Harness) -> None:
    await harness.template.transaction("orders:placed", POT).begin()
    await harness.advance(timedelta(minutes=10))
    await harness.drain()
    assert billed(harness) == []
