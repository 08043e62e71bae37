"""Committed offsets after a crash that took messages from the end of the log, as it may with ASYNC_FLUSH."""

from __future__ import annotations

import math
from collections.abc import Callable

import anyio
import pytest

from rocketbox.broker.broker import Broker
from rocketbox.broker.put_stage import PutOrigin
from rocketbox.broker.store.timer_file import TimerFile
from rocketbox.clock import RealClock
from rocketbox.message import MessageExt
from rocketbox.protocol.stored_message import StoredMessage, decode_message
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.broker.in_memory import broker_in_memory
from tests.support.clocks import VirtualClock, settle
from tests.support.store.machine_disk import Disk
from tests.support.store.store_tools import contents, overwrite
from tests.support.waiting import PATIENCE

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


def as_they_were(storage: MemoryStorage, later: MemoryStorage, *names: str) -> None:
    """Have files of ``config`` be as they were later."""
    storage.make_directories("/store/config")
    for name in names:
        path = f"/store/config/{name}"
        if later.exists(path):
            storage.open(path, create=True).truncate(0)
            overwrite(storage, path, 0, contents(later, path))


async def delivered_after(seconds: float, clock: VirtualClock, broker: Broker, *bodies: bytes) -> None:
    await clock.advance(seconds)
    with anyio.fail_after(PATIENCE):
        while sorted(each.body for each in stored(broker)) != sorted(bodies):
            await clock.advance(0.5)
            await anyio.sleep(0.001)


def stored(broker: Broker) -> list[MessageExt]:
    found: list[MessageExt] = []
    while records := broker.store.get("orders", 0, len(found)).records:
        found += [decode_message(record)[0] for record in records]
    return found


@pytest.mark.parametrize("kind", ["level", "timer"])
async def test_what_is_parked_where_lost_messages_were_comes_though_the_broker_is_killed_at_once(kind: str) -> None:
    clock = VirtualClock()
    properties = {"level": b"DELAY\x012\x02", "timer": b"TIMER_DELAY_MS\x015000\x02"}[kind]

    async def park(broker: Broker, body: bytes) -> None:
        text = b"UNIQ_KEY\x01" + body + b"\x02" + properties
        await broker.store.durable(
            broker.timers.puts.put(StoredMessage("orders", 0, body, text), PutOrigin.SEND).end_offset
        )
        await settle()

    async with broker_in_memory(storage=(storage := MemoryStorage()), clock=clock) as wire:
        await park(wire.running, b"first")
        await delivered_after(5, clock, wire.running, b"first")
        left = storage.copy()  # the log ends here; the tables go on
        for number in range(9):
            await park(wire.running, b"lost %d" % number)
        await clock.advance(30)
    as_they_were(left, storage, "delayOffset.json", "delayOffset.json.crc", "timers.bin", "timers.bin.bak")
    async with broker_in_memory(storage=left, clock=clock) as wire:
        await park(wire.running, b"new")
        killed = left.copy()
    async with broker_in_memory(storage=killed, clock=clock) as wire:
        await delivered_after(5, clock, wire.running, b"first", b"new")


NEVER = 3_600_000  # milliseconds
UNSYNCED = {
    "flush-disk-type": "ASYNC_FLUSH",
    "flush-interval-commit-log": NEVER,
    "flush-interval-consume-queue": NEVER,
    "flush-consumer-offset-interval": 20,
    "flush-delay-offset-interval": 20,
    "transaction-check-interval": NEVER,
}


class ClockAhead(RealClock):
    """The machine's time, and ``ahead`` milliseconds."""

    ahead = 0

    def time_ms(self) -> int:
        return super().time_ms() + self.ahead


async def test_what_is_written_of_deliveries_and_ends_is_never_ahead_of_the_log() -> None:
    """A power failure takes with the delivered message what says that it was delivered; so it is delivered again."""
    disk, clock = Disk(), ClockAhead()
    parked = {
        b"by level": b"DELAY\x014\x02",
        b"by timer": b"TIMER_DELAY_MS\x0160000\x02",
    }

    async def until(condition: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE):
            while not condition():
                await anyio.sleep(0.001)

    def timers_on_disk() -> tuple[int, int] | None:
        """Up to which offset they are known, and how many wait."""
        try:
            state, _ = TimerFile("/store/config", disk).load()
        except FileNotFoundError:  # the next one is put in its place just now
            return None
        return None if state is None else (state.next_offset, len(state.entries) // 2)

    def delivered(broker: Broker) -> list[bytes]:
        records = broker.store.get("orders", 0, 0, 32).records
        return sorted(decode_message(record)[0].body for record in records)

    async with broker_in_memory(storage=disk, clock=clock, settings=UNSYNCED) as wire:
        for body, properties in parked.items():
            text = b"UNIQ_KEY\x01" + body + b"\x02" + properties
            wire.running.timers.puts.put(StoredMessage("orders", 0, body, text), PutOrigin.SEND)
        half = StoredMessage("orders", 0, b"half", b"UNIQ_KEY\x01half\x02TRAN_MSG\x01true\x02PGROUP\x01desk\x02")
        end = wire.running.halves.put(half, b"half", "10.0.0.1").end_offset
        await wire.running.store.durable(end)
    clock.ahead = 120_000  # both are due
    async with broker_in_memory(storage=disk, clock=clock, settings=UNSYNCED) as wire:
        broker = wire.running
        (open_half,) = broker.halves.due(math.inf)
        record = await broker.store.read_record(open_half.log_offset)
        assert record is not None
        broker.halves.commit(open_half, decode_message(record)[0])
        await until(lambda: delivered(broker) == [b"by level", b"by timer", b"half"])
        await broker.transaction_checks.round()
        for file in (broker.persister.delays, broker.persister.offsets):
            await file.written(file.marked)
        await until(lambda: timers_on_disk() == (1, 0))
        await until(lambda: not broker.timers.waiting)
        failed = disk.after_a_power_failure()
    async with broker_in_memory(storage=failed, clock=clock, settings=UNSYNCED) as wire:
        await until(lambda: {b"by level", b"by timer"} <= set(delivered(wire.running)))
        assert b"half" in delivered(wire.running) or len(wire.running.halves) == 1
