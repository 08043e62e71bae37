"""Committed offsets after a crash that took messages from the end of the log, as it may with ASYNC_FLUSH."""

from __future__ import annotations

import pytest

from rocketbox.broker.broker import Broker
from rocketbox.protocol.stored_message import StoredMessage
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.broker.in_memory import broker_in_memory
from tests.support.store.store_tools import contents, overwrite

pytestmark = pytest.mark.anyio

TABLE = "/store/config/consumerOffset.json"


async def consumed(broker: Broker, count: int, queue_id: int = 0) -> None:
    """Store so many messages, and have a group commit that it has seen all of the queue."""
    for _ in range(count):
        await broker.store.durable(broker.store.put(StoredMessage("orders", queue_id, b"body", b"")).end_offset)
    broker.offsets.commit("desk", "orders", queue_id, broker.store.max_offset("orders", queue_id))
    await broker.persister.offsets.written(broker.persister.offsets.marked)


async def after_a_power_failure() -> MemoryStorage:
    """Ten messages, of which the last four, and a whole queue of three, were consumed but not synced."""
    storage = MemoryStorage()
    async with broker_in_memory(storage=storage) as wire:
        await consumed(wire.running, 6)
        left = storage.copy()
        await consumed(wire.running, 4)
        await consumed(wire.running, 3, queue_id=1)
        for suffix in ("", ".crc", ".bak"):
            left.open(f"{TABLE}{suffix}", create=True).truncate(0)
            overwrite(left, f"{TABLE}{suffix}", 0, contents(storage, f"{TABLE}{suffix}"))
    return left


async def test_a_group_sees_the_messages_that_get_the_offsets_of_lost_ones(caplog: pytest.LogCaptureFixture) -> None:
    storage = await after_a_power_failure()
    async with broker_in_memory(storage=storage) as wire:
        assert wire.running.store.max_offset("orders", 0) == 6
        assert wire.running.offsets.get("desk", "orders", 0) == 6
        assert wire.running.offsets.get("desk", "orders", 1) == 0
        store = wire.running.store
        await store.durable(store.put(StoredMessage("orders", 0, b"new", b"")).end_offset)
        storage = storage.copy()
    async with broker_in_memory(storage=storage) as wire:  # killed at once: the new message is still to be seen
        assert wire.running.store.max_offset("orders", 0) == 7
        assert wire.running.offsets.get("desk", "orders", 0) == 6
    told = [record.getMessage() for record in caplog.records if "brought back" in record.getMessage()]
    assert len(told) == 1
    assert "group desk was at 10 of orders/0, which ends at 6" in told[0]


async def test_a_group_that_was_reset_to_behind_a_queue_stays_there_over_a_stop() -> None:
    storage = MemoryStorage()
    async with broker_in_memory(storage=storage) as wire:
        await consumed(wire.running, 6)
        wire.running.offsets.commit("desk", "orders", 0, 100)
    async with broker_in_memory(storage=storage) as wire:
        assert wire.running.offsets.get("desk", "orders", 0) == 100
