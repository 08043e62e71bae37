"""Answers to recalls after the clock was put back, and a kill right behind one."""

from __future__ import annotations

import anyio
import pytest

from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.storage.memory_storage import MemoryStorage
from tests.support.broker.in_memory import BrokerWire, broker_in_memory
from tests.support.clocks import VirtualClock
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio


async def send(wire: BrokerWire, name: str, at_ms: int) -> str:
    """Send one that waits for a time; its handle."""
    answer = await wire.send("t", name.encode(), properties=f"UNIQ_KEY\x01{name}\x02TIMER_DELIVER_MS\x01{at_ms}\x02")
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer.ext_fields["recallHandle"]


async def recall(wire: BrokerWire, handle: str) -> RemotingCommand:
    fields = {"producerGroup": "group", "topic": "t", "recallHandle": handle}
    return await wire.broker(RequestCode.RECALL_MESSAGE, fields)


async def come(wire: BrokerWire, clock: VirtualClock, *names: str) -> None:
    with anyio.fail_after(PATIENCE):
        while [message.body.decode() for message in await wire.messages("t")] != [*names]:
            await clock.advance(0.5)
            await anyio.sleep(0.001)


async def test_a_recall_of_what_came_before_the_clock_was_put_back_is_refused_in_words() -> None:
    clock = VirtualClock()
    async with broker_in_memory(clock=clock) as wire:
        now = clock.time_ms()
        came, waits = await send(wire, "came", now + 5_000), await send(wire, "waits", now + 3_600_000)
        await clock.advance(5)
        await come(wire, clock, "came")
        clock.wall_is_ahead = -60
        refused = await recall(wire, came)
        assert (refused.code, refused.remark) == (
            ResponseCode.ILLEGAL_OPERATION,
            "recall failed, the message came before the broker's clock was put back",
        )
        assert (await recall(wire, waits)).code == ResponseCode.SUCCESS


async def test_what_was_answered_to_be_recalled_never_comes_though_the_broker_is_killed_at_once() -> None:
    storage, clock = MemoryStorage(), VirtualClock()
    async with broker_in_memory(storage=storage, clock=clock) as wire:
        handles = [await send(wire, name, clock.time_ms() + 5_000) for name in ("a", "b", "c")]
        assert (await recall(wire, handles[1])).code == ResponseCode.SUCCESS
        killed = storage.copy()
    async with broker_in_memory(storage=killed, clock=clock) as wire:
        await clock.advance(5)
        await come(wire, clock, "a", "c")
        await clock.advance(5)
        assert wire.running.timers.recalled == 1
        await come(wire, clock, "a", "c")
