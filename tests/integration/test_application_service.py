"""Whole services on the embedded servers: YAML to template to broker to listener, started and stopped."""

from __future__ import annotations

import logging
import re
import socket
from pathlib import Path

import anyio
import pytest

from rocketbox.client import Admin, MQClientInstance, Producer
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.errors import ClientStateError, ConfigurationError, NotStartedError
from rocketbox.listeners import ContainerStatus
from rocketbox.message import MessageQueue
from rocketbox.watchdog import LoopWatchdog
from tests.support.framework.services import SETTINGS, ServiceMaker
from tests.support.loops import anyio_backend as anyio_backend
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.anyio


FLIGHTS = """
    from __future__ import annotations

    import threading
    import time
    from typing import Annotated

    import anyio
    from pydantic import BaseModel
    from rocketbox import (
        BatchFailed, ConsumeMode, Header, MessageExt, Reject, RetryLater, RocketBox, RocketMQTemplate, bean,
        configuration_properties, rocketmq_listener, send_to,
    )

    class Departure(BaseModel):
        flight: str
        delay: int | None = None

    class Alert(BaseModel):
        flight: str
        text: str

    @configuration_properties("desk")
    class DeskProperties(BaseModel):
        threshold_minutes: int = 60

    class Seen:
        def __init__(self) -> None:
            self.departures = []
            self.alerts = []
            self.steps = []

    @bean
    def seen() -> Seen:
        return Seen()

    app = RocketBox("flight-desk", scan=[__name__])
"""

DESK = """
    @rocketmq_listener(topic="departures", consumer_group="desk")
    async def on_departure(departure: Departure, message: MessageExt, seen: Seen) -> None:
        seen.departures.append((departure.flight, message.reconsume_times))
"""


async def test_what_is_sent_reaches_a_listener_and_what_it_returns_is_sent_on(service: ServiceMaker) -> None:
    module = service(
        FLIGHTS
        + """
    @rocketmq_listener(topic="departures", consumer_group="desk", selector_expression="UA || AA")
    @send_to("alerts:late")
    async def on_departure(
        departure: Departure, message: MessageExt, properties: DeskProperties, seen: Seen,
        airport: Annotated[str, Header("airport")] = "JFK",
    ) -> Alert | None:
        seen.departures.append((departure.flight, message.keys, message.tag, airport))
        if (departure.delay or 0) > properties.threshold_minutes:
            return Alert(flight=departure.flight, text=f"{departure.delay} minutes late")
        return None

    @rocketmq_listener(topic="alerts", consumer_group="alarm")
    def on_alert(alerts: list[Alert], messages: list[MessageExt], seen: Seen, app: RocketBox) -> None:
        seen.alerts.extend((alert.flight, alert.text, message.tag) for alert, message in zip(alerts, messages))
        app.shutdown()
    """,
        SETTINGS + "desk: {threshold-minutes: 45}\n",
    )
    async with module.app as app:
        seen, departure = app.get(module.Seen), module.Departure
        await app.template.send("departures:UA", departure(flight="UA1", delay=46), keys="UA1", hash_key="UA1")
        await app.template.send(
            "departures:AA", departure(flight="AA2", delay=45), keys="AA2", headers={"airport": "EWR"}
        )
        await app.template.send("departures:DL", departure(flight="DL3", delay=99))  # not selected
        with anyio.fail_after(PATIENCE):
            await app.wait_for_shutdown()
        await until(lambda: len(seen.departures) == 2)
    assert sorted(seen.departures) == [("AA2", ("AA2",), "AA", "EWR"), ("UA1", ("UA1",), "UA", "JFK")]
    assert seen.alerts == [("UA1", "46 minutes late", "late")]


async def test_rejected_and_unreadable_messages_are_dead_lettered_and_retried_ones_come_again(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    module = service(
        FLIGHTS
        + """
    @rocketmq_listener(topic="departures", consumer_group="desk")
    async def on_departure(departure: Departure, message: MessageExt, seen: Seen) -> None:
        seen.departures.append((departure.flight, message.reconsume_times))
        if departure.delay is None:
            raise Reject("no delay reported")
        if departure.delay < 0 and message.reconsume_times == 0:
            raise RetryLater(1)
    """
    )
    async with module.app as app:
        seen = app.get(module.Seen)
        for body in (b'{"flight":"UA1"}', b"{", b'{"flight":"AA2","delay":-1}'):
            await app.template.send("departures", body)
        await until(lambda: ("AA2", 1) in seen.departures)
        async with Admin(instance=app.get(MQClientInstance)) as admin:
            assert await admin.max_offset(MessageQueue("%DLQ%desk", "broker-a", 0)) == 2
    assert sorted(seen.departures) == [("AA2", 0), ("AA2", 1), ("UA1", 0)]
    assert "no delay reported" in caplog.text
    assert "cannot be read (dead-letter)" in caplog.text


async def test_every_verb_of_the_template_sends(service: ServiceMaker) -> None:
    module = service(FLIGHTS + DESK)
    async with module.app as app:
        template, seen = app.template, app.get(module.Seen)
        departures = [module.Departure(flight=f"UA{number}") for number in range(6)]
        await template.send("departures", departures[0])
        await template.send_one_way("departures", departures[1])
        await template.send_batch("departures", departures[2:4])
        results = await template.send_many(
            "departures", [departures[4], template.to_message("x", departures[5], keys="k")]
        )
        assert [result.topic for result in results] == ["departures", "departures"]
        await until(lambda: len(seen.departures) == 6)
    assert sorted(seen.departures) == [(f"UA{number}", 0) for number in range(6)]


async def test_an_orderly_batch_in_a_thread_keeps_the_order_of_each_key_and_repeats_what_failed(
    service: ServiceMaker,
) -> None:
    module = service(
        FLIGHTS
        + """
    @rocketmq_listener(topic="departures", consumer_group="audit", consume_mode=ConsumeMode.ORDERLY,
                       consume_message_batch_max_size=10, suspend_current_queue_time="50ms")
    def audit(departures: list[Departure], seen: Seen) -> None:
        assert threading.current_thread().name.startswith("audit-")
        for index, departure in enumerate(departures):
            if departure.delay == 7 and "failed" not in seen.steps:
                seen.steps.append("failed")
                raise BatchFailed(index)
            seen.departures.append((departure.flight, departure.delay))
    """
    )
    async with module.app as app:
        seen = app.get(module.Seen)
        for number in range(20):
            for flight in ("UA1", "AA2"):
                departure = module.Departure(flight=flight, delay=number)
                await app.template.send("departures", departure, hash_key=flight)
        await until(lambda: len(seen.departures) >= 40)
    for flight in ("UA1", "AA2"):
        assert [delay for name, delay in seen.departures if name == flight] == list(range(20))


async def test_one_description_is_started_again_and_again_with_fresh_beans(service: ServiceMaker) -> None:
    module = service(FLIGHTS + DESK)
    beans = []
    for round_ in range(2):
        async with module.app as app:
            seen = app.get(module.Seen)
            beans.append(seen)
            await app.template.send("departures", module.Departure(flight=f"UA{round_}"))
            await until(lambda: beans[-1].departures)
            with pytest.raises(ClientStateError, match="is running already"):
                await app.__aenter__()
        with pytest.raises(NotStartedError):
            app.get(module.Seen)
    assert [seen.departures for seen in beans] == [[("UA0", 0)], [("UA1", 0)]]


async def test_beans_and_hooks_start_before_listeners_and_stop_after_them(service: ServiceMaker) -> None:
    module = service(
        FLIGHTS
        + """
    steps = []

    @bean
    async def depot(template: RocketMQTemplate) -> anyio.Event:
        steps.append("bean")
        return anyio.Event()

    class Tower:
        async def __aenter__(self):
            steps.append("tower opens")
            return self

        async def __aexit__(self, *error):
            steps.append("tower closes")

        @rocketmq_listener(topic="departures", consumer_group="tower")
        async def on_departure(self, departure: Departure) -> None:
            steps.append("message")
            await anyio.sleep(0.3)
            steps.append("handled")

    @bean
    def tower(event: anyio.Event) -> Tower:
        return Tower()

    @app.on_startup
    async def warm_up(template: RocketMQTemplate, tower: Tower) -> None:
        steps.append("hook")
        await template.send("departures", Departure(flight="UA1"))

    @app.on_startup
    def in_a_thread(seen: Seen) -> None:
        steps.append(threading.current_thread() is not threading.main_thread())
    """
    )
    async with module.app as app:
        assert app.is_ready
        await until(lambda: "message" in module.steps)
    assert module.steps == ["bean", "tower opens", "hook", True, "message", "handled", "tower closes"]
    assert not app.is_ready


async def test_a_container_is_paused_and_resumed(service: ServiceMaker) -> None:
    module = service(FLIGHTS + DESK)
    async with module.app as app:
        seen, container = app.get(module.Seen), app.listeners["desk"]
        await app.template.send("departures", module.Departure(flight="UA1"))
        await until(lambda: len(seen.departures) == 1)
        container.pause("the tower is closed")
        assert not app.is_ready
        assert container.state().status is ContainerStatus.PAUSED
        assert container.state().reason == "the tower is closed"
        await anyio.sleep(0.3)  # pulls that were held come back
        await app.template.send("departures", module.Departure(flight="UA2"))
        container.resume()
        assert app.is_ready
        await until(lambda: len(seen.departures) == 2)
        with pytest.raises(KeyError, match="no listeners of group 'nobody' run here; there are: 'desk'"):
            app.listeners["nobody"]


async def test_a_backlog_that_cannot_be_read_pauses_the_group_instead_of_emptying_into_the_dead_letter_queue(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    module = service(
        FLIGHTS + DESK, SETTINGS.replace("producer:", "consumer: {listeners: {desk: {invalid-limit: 5}}}\n  producer:")
    )
    async with module.app as app:
        for _ in range(20):
            await app.template.send("departures", b"{")
        container = app.listeners["desk"]
        await until(lambda: container.state().status is ContainerStatus.PAUSED)
        assert not app.is_ready
        assert "more than 5 payloads a minute" in (container.state().reason or "")
        await app.template.send("departures", module.Departure(flight="UA1"))
        async with Admin(instance=app.get(MQClientInstance)) as admin:
            dead_letters = MessageQueue("%DLQ%desk", "broker-a", 0)
            with anyio.fail_after(PATIENCE):  # the last ones may still be on their way when the group pauses
                while await admin.max_offset(dead_letters) < 5:
                    await anyio.sleep(0.02)
            assert await admin.max_offset(dead_letters) == 5
    assert "app.listeners['desk'].resume()" in caplog.text


async def test_service_whose_def_handlers_all_hang_is_not_ready_until_one_returns(service: ServiceMaker) -> None:
    module = service(
        FLIGHTS
        + """
    release = threading.Event()

    @rocketmq_listener(topic="departures", consumer_group="desk", concurrency=2, consume_timeout="200ms")
    def on_departure(departure: Departure, seen: Seen) -> None:
        seen.departures.append(departure.flight)
        release.wait(30)
    """
    )
    async with module.app as app:
        try:
            for number in range(4):
                await app.template.send("departures", module.Departure(flight=f"UA{number}"))
            await until(lambda: "all threads of its def handlers hang" in str(app.not_ready_because))
            reason = str(app.not_ready_because)
            assert not app.is_ready
            assert f"{module.__file__}:" in reason
            assert "in on_departure" in reason
            assert len(app.get(module.Seen).departures) == 2
        finally:
            module.release.set()
        await until(lambda: app.is_ready)


async def test_bytes_that_wait_for_handlers_are_bounded_by_the_setting(service: ServiceMaker) -> None:
    module = service(
        FLIGHTS
        + """
    release = threading.Event()

    @rocketmq_listener(topic="departures", consumer_group="desk", concurrency=1)
    def on_departure(message: MessageExt, seen: Seen) -> None:
        seen.departures.append(len(message.body))
        release.wait(30)
    """,
        SETTINGS + "\n  client: {max-cached-bytes: 1MB}\n",
    )
    size, count = 100_000, 60
    async with module.app as app:
        try:
            for _ in range(count):
                await app.template.send("departures", b"x" * size)
            consumer = app.listeners["desk"].consumer
            cached = app.get(MQClientInstance).cached_bytes
            await until(lambda: cached.full)
            await anyio.sleep(0.2)  # pulls that are under way come back
            assert cached.limit == 1_048_576
            queues = len(consumer.state().queues)
            assert cached.total <= cached.limit + size * queues
            assert consumer.state().held < count
        finally:
            module.release.set()
        await until(lambda: len(app.get(module.Seen).departures) == count)


async def test_settings_win_over_decorators_and_can_switch_listeners_off(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rocketbox")
    settings = SETTINGS.replace(
        "producer:",
        "consumer: {pull-batch-size: 16, listeners: {desk: {concurrency: 7}, other: {departures: false}}}\n  producer:",
    )
    module = service(
        FLIGHTS
        + """
    @rocketmq_listener(topic="departures", consumer_group="desk", concurrency=3)
    async def on_departure(departure: Departure) -> None: ...

    @rocketmq_listener(topic="departures", consumer_group="other")
    async def on_other(departure: Departure) -> None: ...

    @rocketmq_listener(topic="${topics.arrivals}", consumer_group="arrivals", consume_timeout="${times.arrivals:10m}")
    @send_to("${topics.alerts:alerts}")
    async def on_arrival(arrivals: list[Departure]) -> list[Departure]:
        return arrivals
    """,
        settings + "topics: {arrivals: arrivals-2013}\n",
    )
    async with module.app as app:
        assert sorted(app.listeners) == ["arrivals", "desk"]
        assert app.listeners["desk"].plan.options.concurrency == 7
        (arrivals,) = app.listeners["arrivals"].plan.functions
        assert (arrivals.topic, arrivals.batch_max_size, arrivals.replies[0].destination) == (
            "arrivals-2013",
            16,
            "alerts",
        )
        assert app.listeners["arrivals"].plan.options.consume_timeout == 600
    assert re.search(
        r"listener on_departure \(service_\d+.py:\d+\): topic departures, selector \*, group desk, concurrently, "
        r"concurrency 7, 16 retries, then %DLQ%desk \[concurrency said in rocketbox.yaml:\d+:\d+; "
        r"pull-batch-size said in rocketbox.yaml:\d+:\d+\]",
        caplog.text,
    )
    assert "listener on_other of group other is off: rocketmq.consumer.listeners.other.departures" in caplog.text


async def test_a_users_own_bean_takes_the_place_of_the_auto_configured_one(service: ServiceMaker) -> None:
    module = service(
        FLIGHTS
        + """
    class MyTemplate(RocketMQTemplate):
        pass

    from rocketbox.client import MQClientInstance, Producer

    @bean
    def my_producer(instance: MQClientInstance) -> Producer:
        return Producer("mine", instance=instance)

    @bean
    def my_template(producer: Producer) -> MyTemplate:
        return MyTemplate(producer)
    """,
        SETTINGS.replace("  producer: {group: desk}\n", ""),
    )
    async with module.app as app:
        assert isinstance(app.template, module.MyTemplate)
        assert app.get(Producer).group == "mine"
        assert (await app.template.send("departures", b"x")).queue_offset == 0
        taken = app.conditions().negative
        assert {entry.name for entry in taken} >= {"producer", "rocketmq_template"}


async def test_further_clusters_have_their_own_template_and_listeners(service: ServiceMaker, tmp_path: Path) -> None:
    source = (
        FLIGHTS
        + """
    from rocketbox import Qualifier

    @rocketmq_listener(topic="departures", consumer_group="desk")
    async def on_departure(departure: Departure, audit: Annotated[RocketMQTemplate, Qualifier("audit")]) -> None:
        await audit.send("audits", departure)

    @rocketmq_listener(topic="audits", consumer_group="desk", cluster="audit")
    @send_to("proofs")
    async def on_audit(departure: Departure, seen: Seen) -> str:
        seen.departures.append(departure.flight)
        return departure.flight
    """
    )
    servers = EmbeddedServers.in_thread(
        EmbeddedOptions(
            data_dir=tmp_path / "audit", port=0, name_server_port=0, broker={"mapped-file-size-commit-log": "1MB"}
        )
    )
    await anyio.to_thread.run_sync(servers.__enter__)
    try:
        further = f"  clusters: {{audit: {{name-server: '{servers.name_server_address}', producer: {{group: desk}}}}}}"
        module = service(source, SETTINGS.replace("rocketbox:", f"{further}\nrocketbox:"))
        async with module.app as app:
            seen = app.get(module.Seen)
            assert set(app.listeners) == {"desk", ("audit", "desk")}
            await app.template.send("departures", module.Departure(flight="UA1"))
            await until(lambda: seen.departures == ["UA1"])
            await app.template.send("audits", module.Departure(flight="UA2"), cluster="audit")
            await app.template.send_one_way("audits", module.Departure(flight="UA3"), cluster="audit")
            await app.template.send_batch("audits", [module.Departure(flight="UA4")], cluster="audit")
            await app.template.send_many("audits", [module.Departure(flight="UA5")], cluster="audit")
            await until(lambda: sorted(seen.departures) == ["UA1", "UA2", "UA3", "UA4", "UA5"])
            with pytest.raises(ConfigurationError, match="a send names cluster 'lake'"):
                await app.template.send("audits", b"x", cluster="lake")
            async with Admin(instance=app.get(MQClientInstance, "audit")) as admin:
                with anyio.fail_after(PATIENCE):
                    while not await admin.queues("proofs"):
                        await anyio.sleep(0.05)
    finally:
        await anyio.to_thread.run_sync(servers.__exit__, None, None, None)


async def test_without_settings_nothing_starts_and_a_missing_template_says_what_to_set(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    module = service(FLIGHTS, None)
    async with module.app as app:
        assert dict(app.listeners) == {}
        with pytest.raises(ConfigurationError, match=r"rocketmq\.name-server is not set"):
            _ = app.template
    assert "rocketmq.name-server is not set, so that the beans of RocketMQ are skipped" in caplog.text
    assert "rocketmq.name-server" in caplog.text


async def test_nothing_of_rocketmq_starts_when_it_is_switched_off(service: ServiceMaker) -> None:
    module = service(FLIGHTS + DESK, SETTINGS.replace("rocketmq:", "rocketmq:\n  enabled: false"))
    async with module.app as app:
        assert dict(app.listeners) == {}
        with pytest.raises(ConfigurationError, match=r"rocketmq\.enabled is false"):
            _ = app.template


async def test_a_start_that_fails_half_way_closes_what_was_started(service: ServiceMaker) -> None:
    module = service(
        FLIGHTS
        + DESK
        + """
    @app.on_startup
    async def break_down() -> None:
        if fails:
            raise ValueError("no crew")

    fails = True
    """
    )
    with pytest.raises(ConfigurationError, match="startup hook break_down failed: ValueError: no crew"):
        async with module.app:
            raise AssertionError("it started")
    vars(module)["fails"] = False
    async with module.app as app:  # the store is free again
        await app.template.send("departures", module.Departure(flight="UA1"))


async def test_with_startup_retry_the_service_starts_first_and_connects_when_a_name_server_appears(
    service: ServiceMaker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "rocketbox")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    module = service(
        FLIGHTS + DESK,
        f"rocketmq: {{name-server: '127.0.0.1:{port}', startup: retry, producer: {{group: desk}}}}\n",
    )
    options = EmbeddedOptions(
        data_dir=tmp_path / "late", port=0, name_server_port=port, broker={"mapped-file-size-commit-log": "1MB"}
    )
    servers = EmbeddedServers.in_thread(options)
    try:
        async with module.app as app:
            silent = f"no name server answers: 127.0.0.1:{port} ("
            assert any(each.startswith(silent) for each in app.not_ready_because)
            assert f" s, and is not ready: {silent}" in caplog.text
            assert "desk is ready" not in caplog.text
            await anyio.to_thread.run_sync(servers.__enter__)
            seen = app.get(module.Seen)
            await until(lambda: "rocketmq.name-server: a name server answers" in caplog.text)
            await app.template.send("departures", module.Departure(flight="UA1"), timeout=10)
            await until(lambda: seen.departures)
            await until(lambda: "desk is ready after" in caplog.text)
            assert app.is_ready
    finally:
        await anyio.to_thread.run_sync(servers.__exit__, None, None, None)


async def test_a_service_whose_name_server_is_there_is_ready_at_once_with_startup_retry(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "rocketbox")
    async with service(FLIGHTS, SETTINGS + "rocketmq.startup: retry\n").app as app:
        assert app.is_ready
        assert " is ready after" in caplog.text
        assert "not ready" not in caplog.text


async def test_a_handler_that_blocks_the_loop_is_named_and_takes_readiness_away(
    service: ServiceMaker, caplog: pytest.LogCaptureFixture
) -> None:
    module = service(
        FLIGHTS
        + """
    @rocketmq_listener(topic="departures", consumer_group="desk")
    async def on_departure(departure: Departure, application: RocketBox, seen: Seen) -> None:
        seen.steps.append(application.is_ready)
        time.sleep(1.4)  # as code of somebody who does not know better
        seen.steps.append(application.is_ready)
    """
    )
    async with module.app as app:
        app.get(LoopWatchdog).down_after = 1.0
        await app.template.send("departures", module.Departure(flight="UA1"))
        await until(lambda: len(app.get(module.Seen).steps) == 2)
        await until(lambda: app.is_ready)
        assert app.get(module.Seen).steps == [True, False]
    assert "in on_departure blocks it" in caplog.text


async def test_a_scope_that_is_cancelled_around_a_running_service_stops_it_in_order(service: ServiceMaker) -> None:
    module = service("""
        import anyio
        from rocketbox import RocketBox, rocketmq_listener

        begun, ended, cancelled = [], [], []

        @rocketmq_listener(topic="departures", consumer_group="desk")
        async def on_departure(departure: str) -> None:
            begun.append(departure)
            try:
                await anyio.sleep(0.1)
            except BaseException:
                cancelled.append(departure)
                raise
            ended.append(departure)

        app = RocketBox("flight-desk", scan=[__name__])
    """)
    with anyio.CancelScope() as scope:
        async with module.app as app:
            await app.template.send("departures", "UA1")
            await until(lambda: module.begun)
            scope.cancel()
            await anyio.sleep(60)
    assert (module.ended, module.cancelled) == (["UA1"], [])
    async with module.app as app:
        await app.template.send("departures", "UA2")
        await until(lambda: "UA2" in module.ended)
    assert module.begun == ["UA1", "UA2"], "what had ended was committed"
