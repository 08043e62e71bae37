"""A container's life on a broker that does as the test says: when it pauses, and what it says of itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from rocketbox.client import ClientOptions, MQClientInstance, Producer
from rocketbox.errors import Reject
from rocketbox.hints import place_of
from rocketbox.listeners import ContainerStatus, ListenerContainer
from rocketbox.listeners.binding import Beans
from rocketbox.listeners.options import OptionLayer
from rocketbox.listeners.registrar import Candidate, ClusterSettings, plan_containers
from rocketbox.protocol.codes import RequestCode
from rocketbox.template import JsonMessageConverter, RocketMQTemplate
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.clocks import VirtualClock, settle

pytestmark = pytest.mark.anyio

NO_BEANS = Beans(has=lambda hint: False, provider=lambda hint: lambda: None)


async def on_arrival(arrival: dict[str, Any]) -> None: ...


async def on_departure(departure: dict[str, Any]) -> None: ...


def container_of(
    instance: MQClientInstance, functions: dict[str, Callable[..., Any]] | None = None, **options: Any
) -> ListenerContainer:
    """A container of group g with a function for each topic, at first A and T."""
    candidates = [
        Candidate(function, OptionLayer({"topic": topic, "consumer_group": "g", **options}, lambda name: "here"))
        for topic, function in (functions or {"A": on_arrival, "T": on_departure}).items()
    ]
    converter = JsonMessageConverter()
    (plan,), wrong, _ = plan_containers(candidates, {None: ClusterSettings()}, beans=NO_BEANS, converter=converter)
    assert not wrong

    def no_template(cluster: str | None) -> Callable[[], RocketMQTemplate]:
        raise AssertionError("nothing is sent on")

    return ListenerContainer(
        plan, instance=instance, beans=NO_BEANS, converter=converter, template_of=no_template, clock=instance.clock
    )


async def test_invalid_payloads_pause_a_container_that_is_still_starting() -> None:
    clock = VirtualClock()
    broker = ScriptedBroker(clock)
    broker.topics = {"A": 1, "T": 8, "%RETRY%g": 1}
    broker.committed["A", 0] = 0
    broker.store("A", *[b"{"] * 5)
    options = ClientOptions(client_ip="10.0.0.9", api_timeout=60.0)
    async with (
        broker,
        MQClientInstance(broker.address, options=options, clock=clock, network=broker.network) as instance,
        container_of(instance, invalid_limit=2) as container,
    ):
        await settle(200)
        state = container.state()
        assert (state.status, state.ready) == (ContainerStatus.PAUSED, False)
        assert "more than 2 payloads a minute" in (state.reason or "")
        assert container.consumer.paused
        container.resume()
        await settle(200)
        assert container.state().status is ContainerStatus.PAUSED, "the next ones are as bad"
        await container.drain(1)
        assert container.state().status is ContainerStatus.STOPPED


async def test_a_container_that_drains_can_be_neither_resumed_nor_paused() -> None:
    clock = VirtualClock()
    broker = ScriptedBroker(clock)
    broker.topics = {"A": 1, "T": 1, "%RETRY%g": 1}
    options = ClientOptions(client_ip="10.0.0.9", api_timeout=60.0)
    async with (
        broker,
        MQClientInstance(broker.address, options=options, clock=clock, network=broker.network) as instance,
        container_of(instance) as container,
    ):
        assert container.state().progress["lag"] == 0
        await container.drain(1)
        stopped = container.state()
        assert (stopped.status, stopped.reason) == (ContainerStatus.STOPPED, "stopping")
        container.resume()
        assert container.state() == stopped
        container.pause()
        assert container.state() == stopped


async def test_a_container_is_not_ready_while_a_topic_is_missing_and_says_so_each_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = VirtualClock()
    broker = ScriptedBroker(clock)
    broker.topics = {"A": 1, "%RETRY%g": 1}
    options = ClientOptions(client_ip="10.0.0.9", api_timeout=60.0)
    async with (
        broker,
        MQClientInstance(broker.address, options=options, clock=clock, network=broker.network) as instance,
        container_of(instance) as container,
    ):
        state = container.state()
        assert (state.status, state.ready) == (ContainerStatus.RUNNING, False)
        assert state.reason == "waits for topic T, which no name server knows yet"
        await clock.advance(121)
        reminders = [record for record in caplog.records if "still no route for T" in record.getMessage()]
        assert [record.levelname for record in reminders] == ["WARNING", "WARNING"]
        broker.topics["T"] = 1
        await clock.advance(2)
        assert container.state().ready
        await clock.advance(120)
        assert caplog.text.count("still no route") == 2


async def test_calls_of_def_listeners_wait_for_threads_with_their_payloads_read_and_no_worker_each() -> None:
    clock, release = VirtualClock(), threading.Event()
    broker = ScriptedBroker(clock)
    broker.topics = {"T": 1, "%RETRY%g": 1}
    broker.committed["T", 0] = 0
    came: list[int] = []

    def on_row(row: dict[str, int]) -> None:
        if row["number"] >= 100:
            release.wait(30)
        came.append(row["number"])
        if row["number"] == 7:
            raise Reject("not this one")

    async def until(condition: Callable[[], bool]) -> None:
        with anyio.fail_after(10):
            while not condition():
                await anyio.sleep(0.001)
                await settle(20)

    bodies = [b'{"number": %d}' % number for number in range(200)]
    bodies[3] = b"{"
    broker.store("T", *bodies)
    options = ClientOptions(client_ip="10.0.0.9", api_timeout=60.0)
    async with (
        broker,
        MQClientInstance(broker.address, options=options, clock=clock, network=broker.network) as instance,
        container_of(instance, {"T": on_row}, concurrency=2) as container,
    ):
        consumer = container.consumer
        try:
            await until(lambda: len(came) == 99 and len(consumer.threads.running) == 2)
            await settle(200)
            assert consumer.state().busy_workers > 2, "some wait for a thread"
        finally:
            release.set()
        await until(lambda: len(came) == 199 and not consumer.state().busy_workers)
    sent_back = broker.fields(RequestCode.CONSUMER_SEND_MSG_BACK, "offset", "delayLevel")
    assert sorted(sent_back) == [("1003", "-1"), ("1007", "-1")]
    assert broker.committed["T", 0] == 200
    assert sorted(came) == [number for number in range(200) if number != 3]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("kind", ["async def", "def", "async def, returned"])
async def test_a_message_whose_handler_forgets_an_await_comes_back_and_the_log_names_the_line(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    broker = ScriptedBroker(clock)
    broker.topics = {"T": 1, "%RETRY%g": 1}
    broker.committed["T", 0] = 0
    broker.store("T", b"a")
    options = ClientOptions(client_ip="10.0.0.9", api_timeout=60.0)
    async with (
        broker,
        MQClientInstance(broker.address, options=options, clock=clock, network=broker.network) as instance,
    ):
        template = RocketMQTemplate(Producer("p", instance=instance))

        async def forgetful(text: str) -> None:
            template.send("alerts", text)  # type: ignore[unused-coroutine]

        def in_a_thread(text: str) -> None:
            template.send("alerts", text)  # type: ignore[unused-coroutine]

        async def returned(text: str) -> Any:
            return template.send("alerts", text)

        handler = {"async def": forgetful, "def": in_a_thread}.get(kind, returned)
        async with container_of(instance, {"T": handler}):
            with anyio.fail_after(10):
                while not broker.asked(RequestCode.CONSUMER_SEND_MSG_BACK):
                    await anyio.sleep(0.001)
                    await settle(20)
            await settle(200)
    assert broker.fields(RequestCode.CONSUMER_SEND_MSG_BACK, "offset", "delayLevel") == [("1000", "0")]
    assert f"{handler.__qualname__} ({place_of(handler)}) " in caplog.text
    assert "RocketMQTemplate.send" in caplog.text
    assert "await" in caplog.text
