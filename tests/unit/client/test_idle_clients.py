"""A client that has nothing to do costs next to nothing: its tasks sleep, and nothing is started in vain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rocketbox.client import ClientOptions, ConsumerOptions, PushConsumer
from rocketbox.client.instance import MQClientInstance
from rocketbox.message import ConsumeFromWhere, ConsumeMode, MessageExt
from rocketbox.tasks import SupervisedTask, Supervisor
from tests.clocks import VirtualClock
from tests.unit.client.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.anyio


class CountingClock(VirtualClock):
    """Counts how often somebody begins to sleep."""

    sleeps = 0

    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        await super().sleep(seconds)


async def handle(batch: list[MessageExt]) -> None:
    """Consume it."""


@pytest.mark.parametrize("mode", list(ConsumeMode))
async def test_an_idle_consumer_sleeps_and_starts_no_tasks(
    mode: ConsumeMode, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = CountingClock()
    broker = ScriptedBroker(clock)
    broker.topics = {"T": 4, "%RETRY%g": 1}
    started: list[str] = []
    start = Supervisor.start

    def noted(self: Supervisor, name: str, function: Callable[..., Any], *args: Any, restart: bool = True) -> Any:
        task: SupervisedTask = start(self, name, function, *args, restart=restart)
        started.append(name)
        return task

    async with broker:
        instance = MQClientInstance(
            broker.address, options=ClientOptions(client_ip="10.0.0.9"), clock=clock, network=broker.network
        )
        options = ConsumerOptions(
            consume_mode=mode, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, consume_timeout=10.0
        )
        async with instance, PushConsumer("g", instance=instance, options=options) as consumer:
            await consumer.subscribe("T", "*", handle)
            await clock.advance(5)
            monkeypatch.setattr(Supervisor, "start", noted)
            clock.sleeps = 0
            await clock.advance(20)
            each_second = 4  # routes, offsets, sweeps of client and broker
            assert clock.sleeps <= each_second * 20 + 10
            assert [name for name in started if name.startswith("offsets")] == []
