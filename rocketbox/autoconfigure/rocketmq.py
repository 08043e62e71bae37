"""Auto-configuration of clients, producer, converter and template, for each cluster.

Source: rocketmq-spring 2.3 ``RocketMQAutoConfiguration``, ``MessageConverterConfiguration`` (conditions and order).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio

from rocketbox.autoconfigure.key_rules import key_of_file
from rocketbox.autoconfigure.message_spans import spans_in_use, spans_of_client
from rocketbox.autoconfigure.properties import ClusterProperties, RocketBoxProperties, RocketMQProperties
from rocketbox.autoconfigure.service import ConverterInUse, ConverterLookup, Service, TemplateLookup
from rocketbox.autoconfigure.users import ClientInstances, PlannedClients
from rocketbox.boot.conditions import Condition, ConditionContext, Verdict, on_bean, on_missing_bean, on_property
from rocketbox.boot.marks import Cluster, Phase, bean
from rocketbox.client import (
    ConsumeMiddleware,
    CredentialsFile,
    CredentialsProvider,
    LitePullConsumerOptions,
    MQClientInstance,
    Producer,
    ProducerOptions,
    SendMiddleware,
)
from rocketbox.errors import (
    AccessDeniedError,
    BrokerError,
    ConfigurationError,
    ConnectError,
    CredentialsError,
    Finding,
    NoNameServerError,
    RemotingError,
    RequestTimeoutError,
)
from rocketbox.local_servers import LocalServers
from rocketbox.otel import MessageSpans
from rocketbox.protocol.codes import TBW102, ResponseCode
from rocketbox.tasks import Supervisor
from rocketbox.template import (
    BlockingRocketMQTemplate,
    CodecMessageConverter,
    MessageConverter,
    PayloadCodec,
    RocketMQTemplate,
)

__all__ = [
    "AwaitedServers",
    "awaited_servers",
    "blocking_rocketmq_template",
    "client_instance",
    "client_instances",
    "message_converter",
    "producer",
    "pull_consumer_options",
    "rocketmq_template",
]


_log = logging.getLogger(__name__)

RETRY_PAUSE = 1.0  # seconds between two questions while no name server answers
FIRST_ANSWER = 1.0  # seconds that a start waits for the first of them


@dataclass
class AwaitedServers:
    """Which clusters wait for a name server with ``startup: retry``, by their names, and why: a bean."""

    problems: dict[str, str] = field(default_factory=dict)
    _answered: anyio.Event = field(default_factory=anyio.Event)

    def answered(self, cluster: str) -> None:
        """A name server of the cluster has answered."""
        del self.problems[cluster]
        if not self.problems:
            self._answered.set()

    async def until_all_answer(self) -> None:
        """Return when no cluster waits."""
        while self.problems:
            await self._answered.wait()


@bean
def awaited_servers() -> AwaitedServers:
    """What is told in the health of clients as long as no name server has answered."""
    return AwaitedServers()


class _SwitchedOn:
    def evaluate(self, context: ConditionContext) -> Verdict:
        for key, on in (("rocketmq.enabled", "true"), ("rocketmq.name-server", "an address")):
            if (context.text(key) or "").strip().lower() == "false":  # written out: of the main cluster, for each
                return Verdict(False, f"{key} is false", key, f"set {key} to {on}")
        return Verdict(True, "RocketMQ is not switched off")


SWITCHED_ON: Condition = _SwitchedOn()
"""Holds unless ``rocketmq.enabled`` or ``rocketmq.name-server`` is false, which switches off every cluster."""

NAME_SERVER = on_property("rocketmq.name-server", to="an address, or to embedded")


class _OneTemplate:
    def evaluate(self, context: ConditionContext) -> Verdict:
        verdict = on_bean(RocketMQTemplate).evaluate(context)
        if len(names := context.bean_names(RocketMQTemplate)) <= 1:
            return verdict
        told = f"there are {len(names)} of RocketMQTemplate: {', '.join(names)}"
        return Verdict(False, told, fix="mark one of them @primary, or make a BlockingRocketMQTemplate of each")


@bean(on_missing_bean(MessageConverter), before=["client_instance"])
def message_converter(codecs: list[PayloadCodec]) -> MessageConverter:
    """JSON by pydantic, and the formats of codecs, the user's among them; an own MessageConverter bean takes its place.

    Converters come first, then RocketMQ, then transactions: that order is rocketmq-spring's.
    """
    return CodecMessageConverter(codecs)


@bean(
    SWITCHED_ON,
    NAME_SERVER,
    on_missing_bean(MQClientInstance),
    per_cluster=True,
    phase=Phase.CLIENT,
)
async def client_instance(
    properties: RocketMQProperties,
    cluster: Cluster,
    servers: LocalServers | None,
    service: Service,
    planned: PlannedClients,
    awaited: AwaitedServers,
    send_middleware: list[SendMiddleware],
    consume_middleware: list[ConsumeMiddleware],
    own_properties: RocketBoxProperties,
    spans: MessageSpans | None,
    credentials: list[CredentialsProvider],  # so that they are there: the plan says which of them is asked
) -> AsyncIterator[MQClientInstance]:
    """The cluster's client, shared by its producer and consumers; where they are several users, the first one's.

    It takes all middleware beans, in the order in which they are declared. With ``startup: fail`` a name server has to
    answer now, with ``retry`` one is asked until it does, and the service is not ready before.
    """
    client = planned.clusters[cluster.name].clients[0]
    own = properties.cluster(cluster.name)
    address = own.name_server
    assert address is not None, "a condition says that it is set"
    key = f"{cluster.prefix}.name-server"
    if own.is_embedded:
        assert servers is not None, "assembly finds it before the start"
        address = servers.name_server_address
    machine = service.machine
    if machine.name_server is not None:
        address = machine.name_server(cluster.name, address)
    spans = spans_in_use(own_properties.otel.enabled, spans, service)
    try:
        options = client.options(own, cluster.prefix)
        around_sends, around_calls = spans_of_client(spans, options, service)
        options = replace(
            options,
            send_middleware=(
                *machine.send_middleware(cluster.name),
                *around_sends,
                *send_middleware,
                *machine.inner_send_middleware(cluster.name),
            ),
            consume_middleware=(
                *machine.consume_middleware(cluster.name),
                *around_calls,
                *consume_middleware,
                *machine.handler_middleware,
            ),
        )
        instance = service.client(address, options)
    except ConfigurationError as error:
        place = service.where(key)
        raise ConfigurationError(
            [Finding(f"{key}: {finding.what}", place, finding.fix) for finding in error.findings]
        ) from error
    async with _entered(instance, cluster.name, own, service):
        if own.startup == "fail":
            await _expect_an_answer(instance, key, service)
            yield instance
            return
        async with Supervisor(f"name servers of {cluster.prefix}", service.clock) as tasks:
            wait = _WaitForServers(instance, key, service, awaited, cluster.name)
            tasks.start("first answer", wait.until_one_answers)
            with service.clock.move_on_after(FIRST_ANSWER):
                await wait.asked.wait()
            yield instance


@bean(SWITCHED_ON, on_bean(MQClientInstance), on_missing_bean(ClientInstances), per_cluster=True, phase=Phase.CLIENT)
async def client_instances(
    properties: RocketMQProperties,
    cluster: Cluster,
    service: Service,
    planned: PlannedClients,
    instance: MQClientInstance,
) -> AsyncIterator[ClientInstances]:
    """The clients of all users of the cluster, of which there is mostly one (``users``)."""
    plan = planned.clusters[cluster.name]
    own = properties.cluster(cluster.name)
    first, *further = plan.clients
    running = {first: instance}
    async with AsyncExitStack() as stack:
        for client in further:
            options = replace(
                client.options(own, cluster.prefix),
                send_middleware=instance.options.send_middleware,
                consume_middleware=instance.options.consume_middleware,
            )
            further_instance = service.client(instance.said_name_servers, options)
            running[client] = await stack.enter_async_context(_entered(further_instance, cluster.name, own, service))
            if own.startup == "fail":
                await _expect_an_answer(running[client], f"{cluster.prefix}.name-server", service)
        yield ClientInstances(plan, running)


@asynccontextmanager
async def _entered(
    instance: MQClientInstance, cluster: str, own: ClusterProperties, service: Service
) -> AsyncIterator[MQClientInstance]:
    """A client that runs. Raises ConfigurationError where it gets no keys."""
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(instance)
        except CredentialsError as error:
            given = instance.options.credentials
            is_file = isinstance(given, CredentialsFile)
            key = key_of_file(cluster, own, given) if isinstance(given, CredentialsFile) else None
            fix = "write accessKey: and secretKey: into it" if is_file else "mend the bean that gives the keys"
            raise ConfigurationError(Finding(str(error), service.where(key) if key else None, fix)) from None
        yield instance


async def _expect_an_answer(instance: MQClientInstance, key: str, service: Service) -> None:
    try:
        await instance.find_route(TBW102)  # any topic would do: whoever answers is there
    except AccessDeniedError as error:
        if error.wrong_keys or error.who is None:
            raise ConfigurationError(Finding(str(error), service.where(key))) from error
        # It is there, and takes the keys: nothing of the service needs a right to just this topic.
    except BrokerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        what = f"{key} is {error.address}, and who answers there is no name server: it knows no routes"
        fix = "write the address of a name server; they listen on 9876 by default, and brokers on 10911"
        raise ConfigurationError(Finding(what, service.where(key), fix)) from error
    except RemotingError as error:
        prefix = key.removesuffix(".name-server")
        failures = error.failures if isinstance(error, NoNameServerError) else {instance.name_servers[0]: error}
        reasons = ", ".join(f"{address} ({_reason(each)})" for address, each in sorted(failures.items()))
        raise ConfigurationError(
            Finding(
                f"no name server answers: {reasons}",
                service.where(key),
                f"start it, correct {key}, set it to embedded, or let {prefix}.startup be retry",
            )
        ) from error


class _WaitForServers:
    """Asks for a name server until one answers, and says meanwhile what it waits for."""

    def __init__(
        self, instance: MQClientInstance, key: str, service: Service, awaited: AwaitedServers, cluster: str
    ) -> None:
        self.asked = anyio.Event()
        """Set when the first question has been answered, or was in vain."""
        self._instance = instance
        self._key = key
        self._service = service
        self._awaited = awaited
        self._cluster = cluster
        awaited.problems[cluster] = f"no name server has answered yet: {', '.join(instance.name_servers)}"

    async def until_one_answers(self) -> None:
        while (problem := await self._problem()) is not None:
            if problem != self._awaited.problems[self._cluster]:
                self._awaited.problems[self._cluster] = problem
                _log.warning("%s: %s; it is asked again until one answers", self._key, problem)
            self.asked.set()
            await self._service.clock.sleep(RETRY_PAUSE)
        self._awaited.answered(self._cluster)
        if self.asked.is_set():
            _log.info("%s: a name server answers", self._key)
        self.asked.set()

    async def _problem(self) -> str | None:
        try:
            await _expect_an_answer(self._instance, self._key, self._service)
        except ConfigurationError as error:
            return error.findings[0].what
        except BrokerError as error:
            return str(error)
        return None


def _reason(error: RemotingError) -> str:
    if isinstance(error, RequestTimeoutError):
        return f"no answer within {error.timeout:.2g} s"
    return error.reason if isinstance(error, ConnectError) else str(error)


@bean(
    SWITCHED_ON,
    NAME_SERVER,
    on_property("rocketmq.producer.group"),
    on_missing_bean(Producer),
    per_cluster=True,
    phase=Phase.CLIENT,
)
def producer(properties: RocketMQProperties, cluster: Cluster, clients: ClientInstances) -> Producer:
    """The cluster's producer; a user's own Producer bean takes its place."""
    own = properties.cluster(cluster.name).producer
    assert own.group is not None, "a condition says that it is set"
    return Producer(own.group, instance=clients.producer, options=own.as_options(ProducerOptions))


@bean(on_bean(Producer), on_missing_bean(RocketMQTemplate), per_cluster=True, phase=Phase.TEMPLATE)
def rocketmq_template(
    properties: RocketMQProperties,
    cluster: Cluster,
    producer: Producer,
    converter: MessageConverter,  # so that it is there
    converters: ConverterLookup,
    templates: TemplateLookup,
) -> RocketMQTemplate:
    """The cluster's template; a user's own RocketMQTemplate bean takes its place."""
    own = properties.cluster(cluster.name).producer
    return RocketMQTemplate(
        producer,
        converter=ConverterInUse(converters),
        template_of=templates.of,
        default_destination=own.default_destination,
        spring_headers=own.spring_headers,
    )


@bean(
    _OneTemplate(),
    on_missing_bean(BlockingRocketMQTemplate),
    after=["rocketmq_template"],
    per_cluster=True,
    phase=Phase.TEMPLATE,
)
def blocking_rocketmq_template(template: RocketMQTemplate) -> BlockingRocketMQTemplate:
    """The cluster's template for code that blocks: def handlers, views of web frameworks that run in threads."""
    return BlockingRocketMQTemplate(template)


@bean(
    SWITCHED_ON,
    NAME_SERVER,
    on_property("rocketmq.pull-consumer.group"),
    on_property("rocketmq.pull-consumer.topic"),
    on_missing_bean(LitePullConsumerOptions),
    per_cluster=True,
    phase=Phase.CLIENT,
)
def pull_consumer_options(properties: RocketMQProperties, cluster: Cluster) -> LitePullConsumerOptions:
    """How the cluster's pull consumer pulls; its group and topic stand in the properties."""
    return properties.cluster(cluster.name).pull_consumer.as_options(LitePullConsumerOptions)
