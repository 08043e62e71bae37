"""A client that has nothing to do costs next to nothing: its tasks sleep, and nothing is started in vain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rocketbox.client import ClientOptions, ConsumerOptions, PushConsumer
from rocketbox.client.instance import MQClientInstance
from rocketbox.message import ConsumeFromWhere, ConsumeMode, MessageExt
from rocketbox.protocol.codes import RequestCode
from rocketbox.tasks import SupervisedTask, Supervisor
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.clocks import VirtualClock

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
            assert clock.sleeps <= 20 + 12, "only offsets are looked at each second"
            assert [name for name in started if name.startswith("offsets")] == []


@pytest.mark.parametrize("hold", [15.0, 110.0])
async def test_a_pull_may_be_held_as_long_as_the_client_says_and_is_given_up_after_that(hold: float) -> None:
    clock = CountingClock()
    broker = ScriptedBroker(clock)
    broker.topics = {"T": 1, "%RETRY%g": 1}
    async with broker:
        options = ClientOptions(client_ip="10.0.0.9", broker_suspend_max_time=hold)
        instance = MQClientInstance(broker.address, options=options, clock=clock, network=broker.network)
        async with instance, PushConsumer("g", instance=instance) as consumer:
            await consumer.subscribe("T", "*", handle)
            await clock.advance(hold + 14)
            pulls = broker.asked(RequestCode.PULL_MESSAGE)
            assert {request.ext_fields["suspendTimeoutMillis"] for request in pulls} == {str(int(hold * 1000))}
            assert len(pulls) == len(broker.topics), "none was given up, though nothing has come"
            await clock.advance(10)
            assert len(broker.asked(RequestCode.PULL_MESSAGE)) == 2 * len(broker.topics)
