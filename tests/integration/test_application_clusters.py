"""Several clusters in plain YAML: templates, listeners and clients of their own, and one stop in order."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from rocketbox.client import Admin, MQClientInstance, Producer
from rocketbox.embedded import EmbeddedOptions, EmbeddedServers
from rocketbox.errors import ConfigurationError, InvalidMessageError, NoRouteError
from rocketbox.template import RocketMQTemplate
from rocketbox.testing import Harness
from tests.support.certificates import authority, certificate, write
from tests.support.framework.services import ServiceMaker
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
def name_servers(tmp_path: Path) -> Iterator[list[str]]:
    """The addresses of two servers that have nothing to do with each other."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                EmbeddedServers.in_thread(
                    EmbeddedOptions(
                        data_dir=tmp_path / name,
                        port=0,
                        name_server_port=0,
                        broker={"mapped-file-size-commit-log": "1MB"},
                    )
                )
            )
            for name in ("first", "second")
        ]
        yield [each.name_server_address for each in servers]


SETTINGS = """
rocketmq:
  name-server: {0}
  producer: {{group: desk}}
  clusters:
    audit:
      name-server: {1}
      producer: {{group: desk, send-message-timeout: 7s}}
      consumer: {{listeners: {{desk: {{concurrency: 3}}}}}}
    lake:
      name-server: {0}
      producer: {{group: lake}}
"""

SERVICE = """
    from __future__ import annotations

    from typing import Annotated

    import anyio
    from rocketbox import Qualifier, RocketBox, RocketMQTemplate, bean, rocketmq_listener, send_to

    app = RocketBox("flight-desk", scan=[__name__])
    events = []

    class Auditor:
        def __init__(self, template: Annotated[RocketMQTemplate, Qualifier("audit")]) -> None:
            self.template = template

        async def __aenter__(self) -> Auditor:
            return self

        async def __aexit__(self, *error: object) -> None:
            await self.template.send("closings", "the auditor closes")
            events.append("auditor closed")

    @bean
    def audit(template: Annotated[RocketMQTemplate, Qualifier("audit")]) -> Auditor:
        return Auditor(template)  # a bean that is named as a cluster, and no part of it

    @rocketmq_listener(topic="departures", consumer_group="desk")
    async def on_departure(flight: str, auditor: Auditor) -> None:
        events.append(f"main {flight}")
        await auditor.template.send("audits", flight)

    @rocketmq_listener(topic="audits", consumer_group="desk", cluster="audit")
    @send_to("proofs", cluster="lake")
    async def on_audit(flight: str) -> str:
        events.append(f"audit {flight}")
        if flight == "UA3":
            await anyio.sleep(0.5)  # the stop begins
        return flight

    @rocketmq_listener(topic="proofs", consumer_group="lake", cluster="lake")
    async def on_proof(flight: str) -> None:
        events.append(f"lake {flight}")
"""


async def test_each_cluster_has_its_own_and_they_stop_together_in_order(
    service: ServiceMaker, name_servers: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("rocketbox.running", "rocketbox.boot"):
        caplog.set_level(logging.DEBUG, name)
    module = service(SERVICE, SETTINGS.format(*name_servers))
    async with module.app as app:
        names = (None, "audit", "lake")
        instances = [app.get(MQClientInstance, name) if name else app.get(MQClientInstance) for name in names]
        assert len({instance.client_id for instance in instances}) == 3
        assert [instance.name_servers for instance in instances] == [
            (name_servers[0],),
            (name_servers[1],),
            (name_servers[0],),
        ]
        assert set(app.listeners) == {"desk", ("audit", "desk"), ("lake", "lake")}
        assert [each.plan.options.concurrency for each in app.listeners.values()] == [20, 3, 20]
        template = app.get(RocketMQTemplate, "audit")
        assert template is app.get(module.Auditor).template
        assert template is not app.template
        assert template.producer is app.get(Producer, "audit")
        assert template.producer.options.send_message_timeout == 7

        await app.template.send("departures", "UA1")
        await until(lambda: module.events == ["main UA1", "audit UA1", "lake UA1"])
        await app.get(RocketMQTemplate, "lake").send("departures", "UA2")  # the same servers, another client
        await until(lambda: module.events[-1] == "lake UA2")
        async with Admin(name_server=name_servers[1]) as admin:
            assert await admin.queues("audits")
            with pytest.raises(NoRouteError):
                await admin.queues("departures")
        del module.events[:]
        await template.send("audits", "UA3")
        await until(lambda: module.events == ["audit UA3"])
    assert module.events == [
        "audit UA3",
        "auditor closed",
    ]  # what it returned was sent to lake, where nobody listens now
    async with Admin(name_server=name_servers[0]) as admin:
        assert sum([await admin.max_offset(queue) for queue in await admin.queues("proofs")]) == 3

    lines = [
        f"template of cluster {name}: producer group {group}, " for name, group in (("audit", "desk"), ("lake",) * 2)
    ]
    for line in ("template: producer group desk, ", *lines):
        assert caplog.text.count(line) == 1
    (summary,) = [text for text in caplog.messages if text.startswith("flight-desk: ready after ")]
    parts = "prepare infrastructure client template beans startup listeners".split()
    assert [part.split()[0] for part in summary.partition(" s: ")[2].split(", ")] == parts
    stops = [record.message.split()[2] for record in caplog.records if " stopped in " in record.message]
    assert stops == ["listeners", "startup", "beans", "template", "client", "infrastructure"]


async def test_the_stop_closes_what_was_started_when_one_cluster_does_not_answer(
    service: ServiceMaker, name_servers: list[str]
) -> None:
    settings = SETTINGS.format(*name_servers).replace(
        "lake:\n      name-server: " + name_servers[0], "lake:\n      name-server: 127.0.0.1:1"
    )
    module = service(SERVICE, settings)
    with pytest.raises(ConfigurationError, match=r"no name server answers: 127\.0\.0\.1:1") as caught:
        async with module.app:
            raise AssertionError("it started")
    assert "correct rocketmq.clusters.lake.name-server" in str(caught.value)
    assert module.events == []


DEFAULTS = """
rocketmq:
  name-server: embedded
  producer: {group: desk, default-destination: "main:M"}
  clusters:
    audit: {name-server: embedded, producer: {group: audit, default-destination: "audits:A", spring-headers: true}}
    lake: {name-server: embedded, producer: {group: lake}}
"""
EVERY_VERB = """
    from __future__ import annotations

    from rocketbox import LocalTransactionState, RocketBox, rocketmq_listener, rocketmq_transaction_listener

    app = RocketBox("desk", scan=[__name__])

    @rocketmq_listener(topic="audits", consumer_group="answers", cluster="audit")
    async def answer(text: str) -> str:
        return f"{text} is seen"

    @rocketmq_transaction_listener(cluster="audit")
    async def was_done(text: str) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    async def work(transaction: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT
"""


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the harness is of asyncio
async def test_what_is_sent_to_a_further_cluster_has_its_defaults_and_not_those_of_the_main_one(
    service: ServiceMaker,
) -> None:
    module = service(EVERY_VERB, DEFAULTS)
    async with Harness(module.app) as harness:
        template = module.app.template
        await template.send(None, "one", cluster="audit")
        await template.send_one_way(None, "one-way", cluster="audit")
        await template.send_batch(None, ["batch"], cluster="audit")
        await template.send_many(None, ["many"], cluster="audit")
        assert await template.send_and_receive(None, "request", str, cluster="audit") == "request is seen"
        async with template.transaction(None, "transaction", cluster="audit"):
            pass
        await template.send_in_transaction(None, "work", module.work, cluster="audit")
        await anyio.to_thread.run_sync(lambda: template.blocking.send(None, "blocking", cluster="audit"))
        await template.send(None, "main")
        wanted = r"set rocketmq\.clusters\.lake\.producer\.default-destination$"
        with pytest.raises(InvalidMessageError, match=wanted):
            await template.send(None, "nowhere", cluster="lake")
        await harness.drain()
        sent = harness.sent("audits", cluster="audit")
        assert sorted(message.body.decode() for message in sent) == [
            "batch", "blocking", "many", "one", "one-way", "request", "transaction", "work",
        ]  # fmt: skip
        assert {message.tag for message in sent} == {"A"}
        assert all(message.headers.get("id") and message.headers.get("timestamp") for message in sent)
        (main,) = harness.sent("main")
        assert (main.body, main.tag, "id" in main.headers) == (b"main", "M", False)


ONE_LISTENER = """
from rocketbox import RocketBox, rocketmq_listener

app = RocketBox("lake", scan=[__name__])

@rocketmq_listener(topic="depth", consumer_group="lake", cluster="lake")
async def on_depth(text: str) -> None: ...
"""
TLS_AT_ONE = """
rocketmq:
  name-server: MAIN
  clusters:
    lake:
      name-server: LAKE
      TLS
"""


@pytest.mark.parametrize(
    ("tls", "advice"),
    [
        ("tls: {enable: false}", "set rocketmq.clusters.lake.tls.enable"),
        ("tls: {enable: true}", "set rocketmq.clusters.lake.tls.ca-file to the certificate of its CA"),
        (
            "tls: {enable: true, ca-file: ca.pem}",
            "set rocketmq.clusters.lake.tls.cert-file and rocketmq.clusters.lake.tls.key-file",
        ),
        (
            "tls: {enable: true, ca-file: ca.pem, cert-file: client.pem, key-file: client-key.pem, server-name: x}",
            "set rocketmq.clusters.lake.tls.server-name to one that stands in it",
        ),
    ],
)
async def test_what_a_further_cluster_lacks_of_tls_is_said_with_its_own_keys(
    service: ServiceMaker, name_servers: list[str], tmp_path: Path, tls: str, advice: str
) -> None:
    for name, made in (("ca", authority()), ("server", certificate()), ("client", certificate("client"))):
        write(tmp_path, name, made)
    secured = {
        "tls-server-cert-path": str(tmp_path / "server.pem"),
        "tls-server-key-path": str(tmp_path / "server-key.pem"),
        "tls-server-trust-cert-path": str(tmp_path / "ca.pem"),
        "tls-server-need-client-auth": "require",
    }
    options = EmbeddedOptions(data_dir=tmp_path / "lake", port=0, name_server_port=0, broker=secured)
    async with EmbeddedServers(options) as lake:
        settings = TLS_AT_ONE.replace("MAIN", name_servers[0]).replace("LAKE", lake.name_server_address)
        module = service(ONE_LISTENER, settings.replace("TLS", tls))
        with pytest.raises(ConfigurationError) as caught:
            async with module.app:
                raise AssertionError("it started")
    assert advice in str(caught.value)
    assert "rocketmq.tls" not in str(caught.value)
