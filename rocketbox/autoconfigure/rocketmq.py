"""Auto-configuration of client, producer, converter and template, for each cluster.

Source: rocketmq-spring 2.3 ``RocketMQAutoConfiguration``, ``MessageConverterConfiguration`` (conditions and order).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from rocketbox.autoconfigure.properties import RocketMQProperties
from rocketbox.autoconfigure.service import ProducerLookup, Service
from rocketbox.boot.conditions import on_bean, on_missing_bean, on_property
from rocketbox.boot.marks import Cluster, Phase, bean
from rocketbox.client import MQClientInstance, Producer
from rocketbox.embedded import ServersInThread
from rocketbox.errors import ConfigurationError, Finding, RemotingError
from rocketbox.protocol.codes import TBW102
from rocketbox.template import JsonMessageConverter, MessageConverter, RocketMQTemplate

__all__ = ["client_instance", "message_converter", "producer", "rocketmq_template"]


@bean(on_missing_bean(MessageConverter))
def message_converter() -> MessageConverter:
    """JSON by pydantic; a user's own MessageConverter bean takes its place."""
    return JsonMessageConverter()


@bean(
    on_property("rocketmq.enabled", missing=True),
    on_property("rocketmq.name-server"),
    on_missing_bean(MQClientInstance),
    per_cluster=True,
    phase=Phase.CLIENT,
)
async def client_instance(
    properties: RocketMQProperties, cluster: Cluster, servers: ServersInThread | None, service: Service
) -> AsyncIterator[MQClientInstance]:
    """The cluster's one client, shared by its producer and consumers.

    With ``startup: fail`` a name server has to answer now.
    """
    own = properties.cluster(cluster.name)
    address = own.name_server
    assert address is not None, "a condition says that it is set"
    key = f"{cluster.prefix}.name-server"
    if address.lower() == "embedded":
        if servers is None:
            raise ConfigurationError(
                Finding(
                    f"{key} is embedded, and the embedded servers belong to the main cluster, which does not use them",
                    service.where(key),
                    "set rocketmq.name-server: embedded, or write this cluster's address",
                )
            )
        address = servers.name_server_address
    try:
        instance = MQClientInstance(address, clock=service.clock)
    except ConfigurationError as error:
        place = service.where(key)
        raise ConfigurationError(
            [Finding(f"{key}: {finding.what}", place, finding.fix) for finding in error.findings]
        ) from error
    async with instance:
        if own.startup == "fail":
            await _expect_an_answer(instance, key, service)
        yield instance


async def _expect_an_answer(instance: MQClientInstance, key: str, service: Service) -> None:
    try:
        await instance.find_route(TBW102)  # any topic would do: whoever answers is there
    except RemotingError as error:
        prefix = key.removesuffix(".name-server")
        raise ConfigurationError(
            Finding(
                f"no name server answers at {', '.join(instance.name_servers)}: {error}",
                service.where(key),
                f"start it, correct {key}, set it to embedded, or let {prefix}.startup be retry",
            )
        ) from error


@bean(
    on_property("rocketmq.enabled", missing=True),
    on_property("rocketmq.name-server"),
    on_property("rocketmq.producer.group"),
    on_missing_bean(Producer),
    per_cluster=True,
    phase=Phase.CLIENT,
)
def producer(properties: RocketMQProperties, cluster: Cluster, instance: MQClientInstance) -> Producer:
    """The cluster's producer; a user's own Producer bean takes its place."""
    own = properties.cluster(cluster.name).producer
    assert own.group is not None, "a condition says that it is set"
    return Producer(own.group, instance=instance, options=own.options())


@bean(on_bean(Producer), on_missing_bean(RocketMQTemplate), per_cluster=True, phase=Phase.TEMPLATE)
def rocketmq_template(producer: Producer, converter: MessageConverter, producers: ProducerLookup) -> RocketMQTemplate:
    """The cluster's template; a user's own RocketMQTemplate bean takes its place."""
    return RocketMQTemplate(producer, converter=converter, producer_of=producers.of)
