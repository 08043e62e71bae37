"""Orders that are stored in SQLite and told to others, both or neither.

The message goes with the row: it is delivered if, and only if, the row was committed, whatever dies in between. There
is no table of an outbox, and nobody who polls it: the broker asks ``was_stored`` where it has heard nothing.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from pydantic import BaseModel

from rocketbox import (
    LocalTransactionState,
    MessageExt,
    RocketBox,
    RocketMQTemplate,
    bean,
    configuration_properties,
    rocketmq_listener,
    rocketmq_transaction_listener,
)

app = RocketBox("orders", scan=[__name__])


class Order(BaseModel):
    number: int
    item: str


@configuration_properties("orders")
class OrdersProperties(BaseModel):
    database: Path = Path(".rocketbox/orders.db")
    longest_work_seconds: float = 60.0


class Orders:
    """The table of orders; each row knows the transaction that it was written in."""

    def __init__(self, properties: OrdersProperties) -> None:
        self.longest_work_seconds = properties.longest_work_seconds
        properties.database.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(properties.database, check_same_thread=False)
        self._database.execute("create table if not exists orders (number integer primary key, item, transaction_id)")

    def add(self, order: Order, transaction_id: str) -> None:
        with self._database:  # a transaction of its own; an order that is there already raises
            self._database.execute("insert into orders values (?, ?, ?)", (order.number, order.item, transaction_id))

    def has(self, transaction_id: str | None) -> bool:
        found = self._database.execute("select 1 from orders where transaction_id = ?", (transaction_id,))
        return found.fetchone() is not None

    def close(self) -> None:
        self._database.close()


@bean
def orders(properties: OrdersProperties) -> Orders:
    return Orders(properties)


async def place(order: Order, template: RocketMQTemplate, orders: Orders) -> None:
    """Store an order and tell of it. Raises sqlite3.IntegrityError for one that is there: then nothing is told."""
    async with template.transaction("orders:placed", order, keys=str(order.number)) as transaction:
        orders.add(order, transaction.transaction_id)


@rocketmq_transaction_listener(topic="orders")
async def was_stored(message: MessageExt, orders: Orders) -> LocalTransactionState:
    """What became of a transaction that the broker has not heard the end of."""
    if orders.has(message.transaction_id):
        return LocalTransactionState.COMMIT
    age = time.time() - message.born_timestamp_ms / 1000
    if age < orders.longest_work_seconds:  # the work may be at it still
        return LocalTransactionState.UNKNOWN
    return LocalTransactionState.ROLLBACK


@rocketmq_listener(topic="orders", consumer_group="bills")
async def bill(order: Order) -> None:
    print("billed", order.number, order.item, flush=True)


@app.background_task
async def take_orders(template: RocketMQTemplate, orders: Orders) -> None:
    for order in (Order(number=1, item="a cup"), Order(number=2, item="a pot"), Order(number=1, item="another cup")):
        try:
            await place(order, template, orders)
        except sqlite3.IntegrityError:
            print("not placed", order.number, order.item, flush=True)
