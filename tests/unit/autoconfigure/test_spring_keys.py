"""Every key of rocketmq-spring: its type, its default, and what it does to the object that it configures.

Source: rocketmq-spring 2.3 ``RocketMQProperties``, ``@ExtRocketMQTemplateConfiguration``,
``@ExtRocketMQConsumerConfiguration``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any

import pytest
from pydantic import SecretStr

from rocketbox.autoconfigure.assembly import Assembly
from rocketbox.autoconfigure.service import of_cluster
from rocketbox.autoconfigure.users import User, users_of
from rocketbox.boot.marks import Phase
from rocketbox.boot.shapes import Leaf
from rocketbox.client import (
    AccessChannel,
    ClientOptions,
    ConsumerOptions,
    Credentials,
    LitePullConsumerOptions,
    MQClientInstance,
    Producer,
    ProducerOptions,
)
from rocketbox.errors import InvalidMessageError
from rocketbox.listeners.options import LISTENER_OPTIONS, consumer_options
from rocketbox.listeners.plans import ListenerFunction
from rocketbox.message import Message, MessageModel, SelectorType
from rocketbox.template import RocketMQTemplate
from tests.support.framework.services import ServiceMaker
from tests.support.framework.spring_attributes import EXT_CONSUMER, EXT_TEMPLATE, SECRET

SERVICE = """
from rocketbox import RocketBox, rocketmq_listener

app = RocketBox("desk", scan=[__name__])

@rocketmq_listener()  # group and topic come from the settings
async def on_departure(body: bytes) -> None: ...
"""

BASE = {  # with "retry" nothing is connected at the start
    "rocketmq.name-server": "127.0.0.1:1",
    "rocketmq.startup": "retry",
    "rocketmq.producer.group": "desk",
    "rocketmq.consumer.group": "desk",
    "rocketmq.consumer.topic": "departures",
}
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


def look(service: ServiceMaker, **settings: str | None) -> Assembly:
    """What is known of the service with these settings beside the base; None takes one of the base away."""
    merged = {key: text for key, text in {**BASE, **settings}.items() if text is not None}
    assembly = service(SERVICE, "".join(f"{key}: {text}\n" for key, text in merged.items())).app.look()
    assert isinstance(assembly, Assembly)
    return assembly


@asynccontextmanager
async def running(assembly: Assembly) -> AsyncIterator[Callable[[Any], Any]]:
    """Clients, producers and templates, started; gives what finds a bean by its hint."""
    assembly.check()
    async with AsyncExitStack() as stack:
        for phase in (Phase.INFRASTRUCTURE, Phase.CLIENT, Phase.TEMPLATE):
            await assembly.container.start(phase, stack)
        yield assembly.container.resolve


# --- the table --------------------------------------------------------------------------------------------------------


def client(assembly: Assembly, cluster: str = "") -> ClientOptions:
    """The options of the cluster's first client."""
    return assembly.clients.clusters[cluster].clients[0].options(assembly.rocketmq.cluster(cluster))


def keys_of(user: User) -> tuple[str, str]:
    assert isinstance(user.credentials, Credentials)
    return user.credentials.access_key, user.credentials.secret_key


def producer(assembly: Assembly) -> ProducerOptions:
    return assembly.rocketmq.producer.as_options(ProducerOptions)


def pull(assembly: Assembly) -> LitePullConsumerOptions:
    return assembly.rocketmq.pull_consumer.as_options(LitePullConsumerOptions)


def consumer(assembly: Assembly) -> ConsumerOptions:
    """The options that the container of the only group gives its push consumer."""
    (plan,) = assembly.plans
    return consumer_options(plan.options)


def function(assembly: Assembly) -> ListenerFunction:
    (plan,) = assembly.plans
    first: ListenerFunction = plan.functions[0]
    return first


def has(kind: type, assembly: Assembly) -> bool:
    return assembly.container.has(kind)


@dataclass(frozen=True)
class Key:
    """One key: Spring's type and default, what a test writes, and what is then so, read by ``effect``.

    ``is_built`` False: starting with it is refused so far. ``beside`` is what it needs to have an effect, or be right.
    """

    name: str
    kind: str
    default: Any
    written: str
    effect: Callable[[Assembly], Any]
    expected: Any
    is_built: bool = True
    beside: Mapping[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, str]:
        return {self.name: self.written, **self.beside}


def member(section: str, options: Callable[[Assembly], Any]) -> list[Key]:
    """The keys that producer, consumer and pull consumer have alike."""

    def key(name: str, kind: str, default: Any, written: str, expected: Any) -> Key:
        option = name.replace("-", "_")
        return Key(f"{section}.{name}", kind, default, written, lambda seen: getattr(options(seen), option), expected)

    def of_user(name: str, effect: Callable[[User], Any], written: str, **beside: str) -> Key:
        return Key(
            f"{section}.{name}", "string", None, written,
            lambda seen: effect(users_of(seen.rocketmq)[section.removeprefix("rocketmq.")]), written, True,
            {f"{section}.{each.replace('_', '-')}": text for each, text in beside.items()},
        )  # fmt: skip

    return [
        of_user("namespace", lambda user: user.namespace, "MQ_INST_1"),
        of_user("namespace-v2", lambda user: user.namespace_v2, "MQ_INST_1"),
        of_user("access-key", lambda user: user.credentials and keys_of(user)[0], "AK", secret_key=SECRET),
        of_user("secret-key", lambda user: user.credentials and keys_of(user)[1], SECRET, access_key="AK"),
        key("enable-msg-trace", "bool", False, "true", True),
        key("customized-trace-topic", "string", TRACE_TOPIC, "traces", "traces"),
        Key(f"{section}.tls-enable", "bool", False, "true", lambda seen: client(seen).tls_enable, True),
        Key(f"{section}.instance-name", "string", "DEFAULT", "gate", lambda seen: client(seen).instance_name, "gate"),
    ]


KEYS = [
    Key(
        "rocketmq.name-server", "string", None, "a:1;b:2",
        lambda seen: sorted(MQClientInstance(seen.rocketmq.name_server or "").name_servers), ["a:1", "b:2"],
    ),
    Key(
        "rocketmq.access-channel", "enum", AccessChannel.LOCAL, "cloud",
        lambda seen: client(seen).access_channel, AccessChannel.CLOUD,
    ),
    Key("rocketmq.producer.group", "string", None, "desk", lambda seen: has(RocketMQTemplate, seen), True),
    Key(
        "rocketmq.producer.send-message-timeout", "int ms", timedelta(milliseconds=3000), "1500",
        lambda seen: producer(seen).send_message_timeout, 1.5,
    ),
    Key(
        "rocketmq.producer.compress-message-body-threshold", "int bytes", 4096, "1024",
        lambda seen: producer(seen).compress_message_body_threshold, 1024,
    ),
    Key(
        "rocketmq.producer.retry-times-when-send-failed", "int", 2, "5",
        lambda seen: producer(seen).retry_times_when_send_failed, 5,
    ),
    Key(
        "rocketmq.producer.retry-times-when-send-async-failed", "int", 2, "5",
        lambda seen: producer(seen).retry_times_when_send_async_failed, 5,
    ),
    Key(
        "rocketmq.producer.retry-next-server", "bool", False, "true",
        lambda seen: producer(seen).retry_another_broker_when_not_store_ok, True,
    ),
    Key(
        "rocketmq.producer.max-message-size", "int bytes", 4194304, "10",
        lambda seen: producer(seen).max_message_size, 10,
    ),
    *member("rocketmq.producer", producer),
    Key(
        "rocketmq.pull-consumer.group", "string", None, "puller", lambda seen: has(LitePullConsumerOptions, seen), True,
        is_built=False, beside={"rocketmq.pull-consumer.topic": "departures"},
    ),
    Key(
        "rocketmq.pull-consumer.topic", "string", None, "departures",
        lambda seen: has(LitePullConsumerOptions, seen), True,
        is_built=False, beside={"rocketmq.pull-consumer.group": "puller"},
    ),
    Key(
        "rocketmq.pull-consumer.message-model", "enum", MessageModel.CLUSTERING, "BROADCASTING",
        lambda seen: pull(seen).message_model, MessageModel.BROADCASTING,
    ),
    Key(
        "rocketmq.pull-consumer.selector-type", "enum", SelectorType.TAG, "SQL92",
        lambda seen: pull(seen).selector_type, SelectorType.SQL92,
    ),
    Key(
        "rocketmq.pull-consumer.selector-expression", "string", "*", "UA || AA",
        lambda seen: pull(seen).selector_expression, "UA || AA",
    ),
    Key("rocketmq.pull-consumer.pull-batch-size", "int", 10, "3", lambda seen: pull(seen).pull_batch_size, 3),
    *member("rocketmq.pull-consumer", pull),
    Key("rocketmq.consumer.listeners.desk.departures", "bool", True, "false", lambda seen: seen.plans, []),
    Key("rocketmq.consumer.group", "string", None, "lake", lambda seen: seen.plans[0].group, "lake"),
    Key("rocketmq.consumer.topic", "string", None, "arrivals", lambda seen: function(seen).topic, "arrivals"),
    Key(
        "rocketmq.consumer.message-model", "enum", MessageModel.CLUSTERING, "broadcasting",
        lambda seen: consumer(seen).message_model, MessageModel.BROADCASTING,
    ),
    Key(
        "rocketmq.consumer.selector-type", "enum", SelectorType.TAG, "sql92",
        lambda seen: function(seen).selector_type, SelectorType.SQL92,
    ),
    Key(
        "rocketmq.consumer.selector-expression", "string", "*", "UA || AA",
        lambda seen: function(seen).selector_expression, "UA || AA",
    ),
    Key("rocketmq.consumer.pull-batch-size", "int", 32, "3", lambda seen: consumer(seen).pull_batch_size, 3),
    *member("rocketmq.consumer", consumer),
]  # fmt: skip

# rocketmq-spring's own list, as its documentation and source have it.
OF_SPRING = """
rocketmq.name-server
rocketmq.access-channel

rocketmq.producer.group
rocketmq.producer.namespace
rocketmq.producer.namespace-v2
rocketmq.producer.send-message-timeout
rocketmq.producer.compress-message-body-threshold
rocketmq.producer.retry-times-when-send-failed
rocketmq.producer.retry-times-when-send-async-failed
rocketmq.producer.retry-next-server
rocketmq.producer.max-message-size
rocketmq.producer.access-key
rocketmq.producer.secret-key
rocketmq.producer.enable-msg-trace
rocketmq.producer.customized-trace-topic
rocketmq.producer.tls-enable
rocketmq.producer.instance-name

rocketmq.pull-consumer.group
rocketmq.pull-consumer.topic
rocketmq.pull-consumer.namespace
rocketmq.pull-consumer.namespace-v2
rocketmq.pull-consumer.message-model
rocketmq.pull-consumer.selector-type
rocketmq.pull-consumer.selector-expression
rocketmq.pull-consumer.access-key
rocketmq.pull-consumer.secret-key
rocketmq.pull-consumer.pull-batch-size
rocketmq.pull-consumer.enable-msg-trace
rocketmq.pull-consumer.customized-trace-topic
rocketmq.pull-consumer.tls-enable
rocketmq.pull-consumer.instance-name

rocketmq.consumer.listeners.desk.departures
rocketmq.consumer.group
rocketmq.consumer.topic
rocketmq.consumer.namespace
rocketmq.consumer.namespace-v2
rocketmq.consumer.message-model
rocketmq.consumer.selector-type
rocketmq.consumer.selector-expression
rocketmq.consumer.access-key
rocketmq.consumer.secret-key
rocketmq.consumer.pull-batch-size
rocketmq.consumer.enable-msg-trace
rocketmq.consumer.customized-trace-topic
rocketmq.consumer.tls-enable
rocketmq.consumer.instance-name
""".split()

each_key = pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)


def test_the_table_has_every_key_of_rocketmq_spring() -> None:
    assert sorted(key.name for key in KEYS) == sorted(OF_SPRING)
    assert len(OF_SPRING) == 46


@each_key
def test_a_key_has_springs_type_and_default(service: ServiceMaker, key: Key) -> None:
    assembly = look(service, **{name: None for name in BASE if name == key.name})
    located = assembly.settings.schema.locate(key.name.split("."))
    assert located.unknown is None
    if key.name == "rocketmq.consumer.listeners.desk.departures":
        assert (key.kind, key.default) == ("bool", bool(assembly.plans))  # the keys of this table are the user's
        return
    shape = located.shape
    assert isinstance(shape, Leaf)
    (kind,) = shape.kinds
    match key.kind:
        case "string":
            assert kind in (str, SecretStr)
            assert kind is SecretStr or not key.name.endswith(("access-key", "secret-key"))
        case "int ms":
            assert kind is timedelta
        case "int bytes":
            assert kind is int
            assert shape.description.startswith("a size")
        case "enum":
            assert issubclass(kind, Enum)
        case plain:
            assert kind.__name__ == plain
    default = assembly.settings.value(key.name)
    if default is None and key.name.startswith("rocketmq.consumer."):  # an option of listeners that nobody said
        declared = LISTENER_OPTIONS.get(key.name.rpartition(".")[2].replace("-", "_"))
        default = None if declared is None else declared.default
    assert default == key.default


@each_key
def test_a_key_does_what_it_says(service: ServiceMaker, key: Key) -> None:
    assert key.effect(look(service, **key.settings)) == key.expected


@each_key
def test_without_it_the_same_is_otherwise(service: ServiceMaker, key: Key) -> None:
    """So that the effect above is the key's."""
    if key.name in BASE:
        absent = look(service, **{key.name: None})
        needs_it = {"rocketmq.consumer.group": "has no consumer group", "rocketmq.consumer.topic": "has no topic"}
        if key.name in needs_it:
            assert needs_it[key.name] in absent.findings[0].what
        else:
            assert not has(RocketMQTemplate, absent)
    else:
        assert key.effect(look(service)) != key.expected


@each_key
def test_only_what_is_not_built_is_refused_and_told_with_its_place(service: ServiceMaker, key: Key) -> None:
    findings = look(service, **key.settings).findings
    if key.is_built:
        assert findings == []
        return
    line = list({**BASE, **key.settings}).index(key.name) + 1
    place = f"rocketbox.yaml:{line}:{len(key.name) + 3}"
    (finding,) = (each for each in findings if place in (each.where or "").split(" and "))
    assert key.name in finding.what
    assert "which rocketbox does not have yet" in finding.what
    assert finding.fix
    assert SECRET not in str(finding)


def test_defaults_may_be_written_out(service: ServiceMaker) -> None:
    written = {
        key.name: str(key.default).lower()
        if isinstance(key.default, bool)
        else str(getattr(key.default, "value", key.default))
        for key in KEYS
        if "-trace" in key.name
    }
    assert len(written) == 6
    assert look(service, **written).findings == []


# --- started -------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_the_options_are_those_of_the_producer_and_client_that_start(service: ServiceMaker) -> None:
    of_producer = [key for key in KEYS if key.is_built and key.name.startswith("rocketmq.producer.")]
    keys = [key for key in of_producer if not key.name.endswith("-v2")]  # there is one namespace or the other
    assembly = look(service, **{key.name: key.written for key in keys})
    async with running(assembly) as get:
        started: Producer = get(Producer)
        assert started.options == ProducerOptions(
            send_message_timeout=1.5,
            compress_message_body_threshold=1024,
            retry_times_when_send_failed=5,
            retry_times_when_send_async_failed=5,
            retry_another_broker_when_not_store_ok=True,
            max_message_size=10,
            enable_msg_trace=True,
            customized_trace_topic="traces",
        )
        assert started.group == "desk"
        assert started.instance.client_id.endswith("@gate")
        assert started.instance.name_servers == ("127.0.0.1:1",)
        with pytest.raises(InvalidMessageError, match="10 are allowed"):
            await started.send(Message("departures", b"eleven byte"))


@pytest.mark.anyio
async def test_the_default_instance_name_makes_each_client_its_own(service: ServiceMaker) -> None:
    async with running(look(service)) as get, running(look(service)) as of_another:
        first, second = get(MQClientInstance), of_another(MQClientInstance)
        assert "#" in first.client_id
        assert first.client_id != second.client_id


# --- further clusters, instead of rocketmq-spring's marker classes ---------------------------------------------------

# Attribute of @ExtRocketMQTemplateConfiguration -> the key below rocketmq.clusters.audit, and what is written there.

# The same for @ExtRocketMQConsumerConfiguration.


def of_audit(attributes: dict[str, tuple[str, str]], *without: str) -> dict[str, str]:
    return {f"rocketmq.clusters.audit.{key}": text for name, (key, text) in attributes.items() if name not in without}


def test_every_attribute_of_an_extra_template_has_its_key(service: ServiceMaker) -> None:
    assert len(EXT_TEMPLATE) == 16  # all but "value", which is the cluster's name here
    assembly = look(service, **of_audit(EXT_TEMPLATE, "namespaceV2"))
    audit = assembly.rocketmq.clusters["audit"]
    assert audit.producer.as_options(ProducerOptions) == ProducerOptions(
        send_message_timeout=0.7,
        compress_message_body_threshold=100,
        retry_times_when_send_failed=6,
        retry_times_when_send_async_failed=7,
        retry_another_broker_when_not_store_ok=True,
        max_message_size=1 << 20,
        enable_msg_trace=True,
        customized_trace_topic="traces",
    )
    assert client(assembly, "audit") == ClientOptions(
        tls_enable=True,
        instance_name="gate",
        namespace="MQ_INST_1",
        credentials=Credentials(access_key="AK", secret_key=SECRET),
    )
    other = look(service, **of_audit(EXT_TEMPLATE, "namespace"))
    assert client(other, "audit").namespace_v2 == "MQ_INST_1"


@pytest.mark.anyio
async def test_an_extra_template_has_a_client_and_a_producer_of_its_own(service: ServiceMaker) -> None:
    settings = {**of_audit(EXT_TEMPLATE, "tlsEnable", "namespaceV2"), "rocketmq.clusters.audit.startup": "retry"}
    async with running(look(service, **settings)) as get:
        main, audit = get(RocketMQTemplate).producer, get(of_cluster(RocketMQTemplate, "audit")).producer
        assert (main.group, main.instance.name_servers) == ("desk", ("127.0.0.1:1",))
        assert (audit.group, audit.instance.name_servers) == ("auditors", ("127.0.0.1:2",))
        assert audit.options.send_message_timeout == 0.7
        assert (audit.instance.options.namespace, main.instance.options.namespace) == ("MQ_INST_1", None)
        assert audit.options.compress_message_body_threshold == 100
        assert main.options == ProducerOptions()
        assert audit.instance.client_id.endswith("@gate")
        assert audit.instance.options.credentials == Credentials(access_key="AK", secret_key=SECRET)
        assert main.instance.options.credentials is None
        assert not main.instance.client_id.endswith("@gate")


def test_every_attribute_of_an_extra_pull_consumer_has_its_key(service: ServiceMaker) -> None:
    assert len(EXT_CONSUMER) == 16
    assembly = look(service, **of_audit(EXT_CONSUMER, "namespaceV2"))
    audit = assembly.rocketmq.clusters["audit"]
    assert audit.pull_consumer.as_options(LitePullConsumerOptions) == LitePullConsumerOptions(
        message_model=MessageModel.BROADCASTING,
        selector_type=SelectorType.SQL92,
        selector_expression="a > 5",
        pull_batch_size=3,
        enable_msg_trace=True,
        customized_trace_topic="traces",
    )
    assert client(assembly, "audit") == ClientOptions(
        tls_enable=True,
        instance_name="gate",
        access_channel=AccessChannel.CLOUD,
        namespace="MQ_INST_1",
        credentials=Credentials(access_key="AK", secret_key=SECRET),
    )
    assert (audit.pull_consumer.group, audit.pull_consumer.topic) == ("auditors", "departures")
    assert assembly.container.has(of_cluster(LitePullConsumerOptions, "audit"))
    other = look(service, **of_audit(EXT_CONSUMER, "namespace"))
    assert client(other, "audit").namespace_v2 == "MQ_INST_1"


def test_what_is_not_built_is_told_with_the_keys_of_its_cluster(service: ServiceMaker) -> None:
    assembly = look(service, **of_audit(EXT_CONSUMER, "namespaceV2"))
    told = sorted(finding.what.partition(" asks for ")[0] for finding in assembly.findings)
    assert told == ["rocketmq.clusters.audit.pull-consumer.group with rocketmq.clusters.audit.pull-consumer.topic"]
