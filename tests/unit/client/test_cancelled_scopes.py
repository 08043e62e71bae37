"""A scope that its user cancels around a running consumer: what is finished counts, what was running does not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import anyio
import pytest
from anyio.lowlevel import checkpoint

from rocketbox.client import ClientOptions, ConsumerOptions, MQClientInstance, PushConsumer
from rocketbox.message import ConsumeFromWhere, ConsumeMode, MessageExt
from rocketbox.protocol.codes import RequestCode
from tests.support.client.consumer_group import Group
from tests.support.clocks import VirtualClock

pytestmark = pytest.mark.anyio
MESSAGES = 12


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # whose loop tells when all tasks wait


@dataclass
class Handled:
    """What a handler began, and ended without being cancelled. A cancellation it swallows, as careless ones do."""

    clock: VirtualClock
    begun: list[int] = field(default_factory=list)
    finished: set[int] = field(default_factory=set)

    async def __call__(self, batch: list[MessageExt]) -> None:
        (message,) = batch
        number = int(message.body)
        self.begun.append(number)
        try:
            await self.clock.sleep(0.1)
            await checkpoint()
        except BaseException:
            return
        self.finished.add(number)

    @property
    def unbroken(self) -> int:
        """How many from the first on have finished."""
        return next(number for number in range(MESSAGES + 1) if number not in self.finished)


async def use_until_cancelled(group: Group, handled: Handled, scope: anyio.CancelScope, mode: ConsumeMode) -> None:
    broker = group.broker
    options = ConsumerOptions(
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET, consume_mode=mode, concurrency=3, await_termination=5
    )
    with scope:
        async with MQClientInstance(
            broker.address, options=ClientOptions(client_ip="10.0.0.9"), clock=group.clock, network=broker.network
        ) as instance:
            consumer = PushConsumer("g", instance=instance, options=options)
            try:
                async with consumer:
                    await consumer.subscribe("T", "*", handled)
                    await group.clock.sleep(1000)
            finally:
                assert not consumer.state().running
                assert instance.cached_bytes.total == 0


@pytest.mark.parametrize("moment", [0.0, 0.05, 0.1, 0.15, 0.3])
@pytest.mark.parametrize("mode", list(ConsumeMode))
async def test_a_scope_that_is_cancelled_at_any_step_commits_what_has_finished_and_nothing_else(
    mode: ConsumeMode, moment: float, anyio_backend: str
) -> None:
    """Cancelled so long after the first handler began, and some steps of the loop later."""
    for steps in range(0, 40, 3):
        await cancel_and_look(mode, moment, steps)


async def cancel_and_look(mode: ConsumeMode, moment: float, steps: int) -> None:
    group = Group()
    broker, clock = group.broker, group.clock
    handled = Handled(clock)
    async with broker:
        before = asyncio.all_tasks()
        broker.store("T", *[b"%d" % number for number in range(MESSAGES)])
        scope = anyio.CancelScope()
        using = asyncio.ensure_future(use_until_cancelled(group, handled, scope, mode))
        await group.until(lambda: bool(handled.begun), 5)
        await clock.advance(moment)
        broker.requests.clear()
        for _ in range(steps):
            await checkpoint()
        scope.cancel()
        begun, began = len(handled.begun), clock.now
        await group.until(using.done, 8)
        await using
        assert clock.now - began < 1, "nothing hangs, so nothing is waited for"
        assert len(handled.begun) == begun, f"begun after the cancellation ({steps} steps)"
        assert broker.committed["T", 0] == handled.unbroken, f"{handled} ({steps} steps)"
        assert not broker.locks
        last = [request.code for request in broker.requests]
        assert RequestCode.UNREGISTER_CLIENT in last
        if mode is ConsumeMode.ORDERLY:
            assert last.index(RequestCode.UNLOCK_BATCH_MQ) < last.index(RequestCode.UNREGISTER_CLIENT)
        await clock.advance(1)
        left = [task.get_name() for task in asyncio.all_tasks() - before]
        assert all(name.startswith("remoting server") for name in left), left
