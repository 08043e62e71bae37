"""A container's life on a broker that does as the test says: when it pauses, and what it says of itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from rocketbox.client import ClientOptions, MQClientInstance, Producer
from rocketbox.errors import ConnectError, Reject
from rocketbox.hints import place_of
from rocketbox.listeners import ContainerStatus
from rocketbox.marks import send_to
from rocketbox.protocol.codes import RequestCode
from rocketbox.template import RocketMQTemplate
from tests.support.client.scripted_broker import ScriptedBroker
from tests.support.clocks import VirtualClock, settle
from tests.support.framework.containers import container_of

pytestmark = pytest.mark.anyio


async def on_departure(departure: dict[str, Any]) -> None: ...


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


async def test_unreadable_payloads_leave_a_container_paused_for_the_reason_that_the_application_gave() -> None:
    clock = VirtualClock()
    broker = ScriptedBroker(clock)
    broker.topics = {"A": 1, "T": 1, "%RETRY%g": 1}
    broker.committed["A", 0] = 0
    broker.store("A", b"{}", *[b"{"] * 3)

    async def pauses(body: dict[str, int]) -> None:
        container.pause("the database is down")

    options = ClientOptions(client_ip="10.0.0.9", api_timeout=60.0)
    async with (
        broker,
        MQClientInstance(broker.address, options=options, clock=clock, network=broker.network) as instance,
        container_of(instance, {"A": pauses}, invalid_limit=1) as container,
    ):
        await settle(200)
        assert container.state().progress["held"] == 2, "one is dead-lettered, the others are held"
        assert (container.state().status, container.state().reason) == (ContainerStatus.PAUSED, "the database is down")
        container.begin_anew()
        assert (container.state().status, container.state().reason) == (ContainerStatus.PAUSED, "the database is down")
        container.resume()
        assert container.state().status is ContainerStatus.RUNNING


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


async def test_the_end_of_a_container_gives_running_handlers_the_time_that_was_said() -> None:
    clock = VirtualClock()
    broker = ScriptedBroker(clock)
    broker.topics = {"T": 1, "%RETRY%g": 1}
    broker.committed["T", 0] = 0
    broker.store("T", b"{}")
    done: list[float] = []

    async def on_row(row: dict[str, int]) -> None:
        await clock.sleep(3)
        done.append(clock.now)

    async def live() -> None:
        async with container_of(instance, {"T": on_row}):
            await settle(200)

    options = ClientOptions(client_ip="10.0.0.9", api_timeout=60.0)
    async with (
        broker,
        MQClientInstance(broker.address, options=options, clock=clock, network=broker.network) as instance,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(live)
        await settle(400)
        await clock.advance(5)
    assert done == [3]
    assert broker.committed["T", 0] == 1


async def test_a_container_that_shall_not_wait_for_servers_says_so_when_there_are_none() -> None:
    clock = VirtualClock()
    broker = ScriptedBroker(clock)  # which is not started
    options = ClientOptions(client_ip="10.0.0.9", api_timeout=60.0)
    async with MQClientInstance(broker.address, options=options, clock=clock, network=broker.network) as instance:
        container = container_of(instance)
        assert (container.name, container.group, container.cluster) == ("g", "g", None)
        with pytest.raises(ConnectError, match=r"10\.0\.0\.1:10911"):
            async with container:
                pass
        assert container.state().status is ContainerStatus.STOPPED


async def test_progress_tells_how_long_ago_a_queue_was_pulled_last() -> None:
    clock = VirtualClock()
    broker = ScriptedBroker(clock)
    options = ClientOptions(client_ip="10.0.0.9", api_timeout=60.0)
    async with (
        broker,
        MQClientInstance(broker.address, options=options, clock=clock, network=broker.network) as instance,
    ):
        container = container_of(instance, {"T": on_departure})
        assert not container.state().progress, "it has not begun"
        async with container:
            progress = container.state().progress
            assert (progress["queues"], progress["seconds_since_pull"]) == (0, None)
            broker.topics = {"T": 1, "%RETRY%g": 1}
            await clock.advance(3)
            broker.store("T", b"{}")
            await settle(200)
            assert container.state().progress["seconds_since_pull"] == 0
            await clock.advance(2.5)
            progress = container.state().progress
            assert (progress["queues"], progress["seconds_since_pull"]) == (2, 2.5)


async def test_what_a_listener_returns_goes_to_each_destination_that_it_names() -> None:
    clock = VirtualClock()
    broker = ScriptedBroker(clock)
    broker.topics = {"T": 1, "%RETRY%g": 1, "alerts": 1, "audit": 1}
    broker.committed["T", 0] = 0
    broker.store("T", b'"a"', b'"b"')

    @send_to("alerts:late")
    @send_to("audit")
    async def on_row(row: str) -> str:
        return row.upper()

    options = ClientOptions(client_ip="10.0.0.9", api_timeout=60.0)
    async with (
        broker,
        MQClientInstance(broker.address, options=options, clock=clock, network=broker.network) as instance,
        Producer("p", instance=instance) as producer,
        container_of(instance, {"T": on_row}, template=RocketMQTemplate(producer)),
    ):
        await settle(400)
    sent = [(request.ext_fields["b"], request.body) for request in broker.asked(RequestCode.SEND_MESSAGE_V2)]
    assert sorted(sent) == [("alerts", b'"A"'), ("alerts", b'"B"'), ("audit", b'"A"'), ("audit", b'"B"')]
    assert broker.committed["T", 0] == 2


@dataclass
class Rows:
    name: str
    rows: Iterable[int]


async def test_an_iterator_in_what_goes_to_several_places_is_refused_and_sent_to_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It would be empty from the second one on."""
    clock = VirtualClock()
    broker = ScriptedBroker(clock)
    broker.topics = {"T": 1, "U": 1, "%RETRY%g": 1, "alerts": 1, "audit": 1}
    broker.committed["T", 0] = broker.committed["U", 0] = 0
    broker.store("T", b'"field"', b'"itself"', b'"list"')
    broker.store("U", b'"field"')
    values: dict[str, Callable[[], object]] = {
        "field": lambda: {"row": Rows("a", (number for number in range(2)))},
        "itself": lambda: map(str, range(2)),
        "list": lambda: {"name": "a", "rows": [0, 1]},
    }

    @send_to("alerts:late")
    @send_to("audit")
    async def to_two(row: str) -> object:
        return values[row.strip('"')]()

    @send_to("audit")
    async def to_one(row: str) -> object:
        return values[row.strip('"')]()

    options = ClientOptions(client_ip="10.0.0.9", api_timeout=60.0)
    async with (
        broker,
        MQClientInstance(broker.address, options=options, clock=clock, network=broker.network) as instance,
        Producer("p", instance=instance) as producer,
        container_of(instance, {"T": to_two, "U": to_one}, template=RocketMQTemplate(producer)),
    ):
        await settle(400)
    sent = [(request.ext_fields["b"], request.body) for request in broker.asked(RequestCode.SEND_MESSAGE_V2)]
    whole = b'{"name":"a","rows":[0,1]}'
    one = b'{"row":' + whole + b"}"
    assert sorted(sent) == [("alerts", whole), ("audit", whole), ("audit", one)]
    assert "returned an iterator in row.rows, which can be read once, and the value goes to 2 places" in caplog.text


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
