"""What is missing of servers and of what stands on them: told, where a service would do nothing or could not start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rocketbox.autoconfigure import embedded, rocketmq
from rocketbox.autoconfigure.embedded import PREFIX
from rocketbox.autoconfigure.properties import RocketBoxProperties, RocketMQProperties, cluster_prefix
from rocketbox.autoconfigure.service import Service, of_cluster
from rocketbox.boot.beans import BeanContainer
from rocketbox.boot.dependencies import Dependency
from rocketbox.client import ConsumeMiddleware, MQClientInstance, SendMiddleware
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.local_servers import LocalServers
from rocketbox.template import RocketMQTemplate

__all__ = ["absences", "embedded_elsewhere", "embedded_settings", "idle_middleware"]


def embedded_settings(properties: RocketMQProperties, own: RocketBoxProperties, service: Service) -> Sequence[Finding]:
    """What the embedded servers would refuse, if they are to start: settings of their own, and clients without TLS."""
    every = {"": properties, **properties.clusters}
    clusters = {name: each for name, each in every.items() if each.is_embedded}
    if properties.off_by is not None or not clusters:
        return ()
    try:
        enforced = embedded.embedded_options(own.embedded, service).enforces_tls()
    except ConfigurationError as error:
        return error.findings
    if not enforced:
        return ()
    key = "tls-server-mode" if service.where(f"{PREFIX}tls-server-mode") else "tls-server-cert-path"
    return [
        Finding(
            f"{cluster_prefix(name)}.name-server is embedded, whose servers speak TLS alone ({PREFIX}{key}), and "
            f"{cluster_prefix(name)}.tls.enable is not true",
            service.where(f"{PREFIX}{key}"),
            f"set {cluster_prefix(name)}.tls.enable: true, and {cluster_prefix(name)}.tls.ca-file to the CA of their "
            f"certificate; or {PREFIX}tls-server-mode: permissive",
        )
        for name, cluster in clusters.items()
        if not cluster.encrypts
    ]


def embedded_elsewhere(properties: RocketMQProperties, container: BeanContainer, service: Service) -> Iterator[Finding]:
    """Clusters whose client is to use the embedded servers, when these do not run."""
    if container.has(LocalServers):
        return
    for bean in container.planned.taken:
        if bean.target is rocketmq.client_instance and properties.cluster(bean.cluster_name).is_embedded:
            key = f"{cluster_prefix(bean.cluster_name)}.name-server"
            others = "set rocketmq.name-server to embedded" if bean.cluster_name else "do not exclude embedded_servers"
            what = f"{key} is embedded, and the embedded servers do not run"
            yield Finding(what, service.where(key), f"{others}, or write an address")


def idle_middleware(container: BeanContainer) -> Iterator[Finding]:
    """Middleware beans wrap what our client instances do; one of the user's own has to take them by itself."""
    planned = container.planned
    middlewares = [
        bean for kind in (SendMiddleware, ConsumeMiddleware) for bean in planned.candidates(Dependency(kind))
    ]
    for bean in planned.candidates(Dependency(MQClientInstance, every=True)):
        given = [each for argument in planned.arguments.get(bean, ()) for each in argument.beans]
        if bean.target is not rocketmq.client_instance and not any(each in given for each in middlewares):
            for middleware in middlewares:
                what = f"middleware {middleware.label} wraps nothing of {bean.label}, a client instance of your own"
                options = "ClientOptions(send_middleware=..., consume_middleware=...)"
                yield Finding(what, f"{middleware.where} and {bean.where}", f"make {bean.label} with {options}")


def absences(properties: RocketMQProperties, container: BeanContainer, *, listens: bool) -> Iterator[Finding]:
    """A missing name server is told, and a missing template where nothing listens: then nothing at all would be done.

    A service that only listens needs no template, and the report says why there is none.
    """
    if properties.off_by is not None:
        return
    told = set()
    for cluster, own in {"": properties, **properties.clusters}.items():
        key = f"{cluster_prefix(cluster)}.name-server"
        if own.name_server is None and not container.has(of_cluster(MQClientInstance, cluster)):
            skipped = [
                bean.label
                for bean, verdict in container.planned.left_out
                if bean.mark.per_cluster and bean.cluster_name == cluster and verdict.key == key
            ]
            told.add(key)
            what = f"{key} is not set, so that the beans of RocketMQ are skipped: {', '.join(skipped)}"
            yield Finding(what, None, f"set {key} to an address, or to embedded")
    verdict = container.planned.why_missing(RocketMQTemplate)
    if verdict is None or container.has(RocketMQTemplate) or listens:
        return
    if verdict.key is not None and verdict.key not in told:  # None: it is excluded
        what = f"there is no {Dependency(RocketMQTemplate)}: {verdict.reason}"
        yield Finding(what, None, verdict.fix)
