"""Groups and topics that are short enough by themselves, and too long with the namespace of their client before them.

Source: own design; Apache RocketMQ 5.x ``Validators`` finds them when something is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rocketbox.autoconfigure.kinds import ListenerPlan
from rocketbox.autoconfigure.properties import ClusterProperties, RocketMQProperties, cluster_prefix
from rocketbox.autoconfigure.users import ClusterClients, PlannedClients
from rocketbox.client.checks import check_group, check_topic
from rocketbox.errors import Finding, InvalidGroupError, InvalidMessageError
from rocketbox.listeners.plans import ContainerPlan
from rocketbox.protocol.namespaces import Namespace
from rocketbox.template.headers import split_destination

__all__ = ["long_names"]

Where = Callable[[str], str | None]
_FIX = "shorten the name, or the namespace"


def long_names(
    properties: RocketMQProperties, clients: PlannedClients, plans: Sequence[ListenerPlan], where: Where
) -> Iterator[Finding]:
    """What the clients of all clusters would refuse when they start, or when a handler's answer is sent."""
    every: dict[str, ClusterProperties] = {"": properties, **properties.clusters}
    for name, cluster in every.items():
        if cluster.name_server is not None and not cluster.is_off:
            yield from _of_the_producer(cluster_prefix(name), cluster, clients.clusters[name], where)
    for plan in plans:
        cluster_ = clients.clusters.get(plan.cluster or "")
        if cluster_ is None or plan.group not in cluster_.groups:
            continue
        namespace = _namespace(cluster_.groups[plan.group].user.namespace)
        for told in _too_long(namespace, plan.group, plan):
            yield Finding(f"listener group {plan.group}: {told}", plan.where, _FIX)
        yield from _replies(plan, clients)


def _of_the_producer(
    prefix: str, cluster: ClusterProperties, clients: ClusterClients, where: Where
) -> Iterator[Finding]:
    namespace = _namespace(clients.producer.user.namespace)
    group = cluster.producer.group
    if group is not None and (told := _group_refusal(group, "producer", namespace)):
        key = f"{prefix}.producer.group"
        yield Finding(f"{key}: {told}", where(key), _FIX)
    for topic in cluster.topics:
        if told := _topic_refusal(topic, namespace):
            key = f"{prefix}.topics.{topic}"
            yield Finding(f"{key}: {told}", where(key), _FIX)


def _too_long(namespace: Namespace, group: str, plan: ListenerPlan) -> Iterator[str]:
    if told := _group_refusal(group, "consumer", namespace):
        yield told
    for topic in getattr(plan, "topics", ()):  # kinds of other distributions need not say theirs
        if told := _topic_refusal(topic, namespace):
            yield told


def _replies(plan: ListenerPlan, clients: PlannedClients) -> Iterator[Finding]:
    for function in plan.functions if isinstance(plan, ContainerPlan) else ():
        for reply in function.replies:
            found = clients.clusters.get((reply.cluster or plan.cluster) or "")
            if found is None:
                continue
            try:
                topic, _ = split_destination(reply.destination)
            except InvalidMessageError:  # it is told already
                continue
            namespace = _namespace(found.producer.user.namespace)
            if told := _topic_refusal(topic, namespace):
                yield Finding(f"send_to of listener {function.signature.name}: {told}", function.signature.where, _FIX)


def _namespace(name: str | None) -> Namespace:
    return Namespace(name or "")


def _group_refusal(group: str, role: str, namespace: Namespace) -> str | None:
    """Why a group's name does not do with the namespace; None: it does, or not without it either, which is told."""
    try:
        check_group(group, role)
    except InvalidGroupError:
        return None
    try:
        check_group(group, role, namespace)
    except InvalidGroupError as error:
        return str(error)
    return None


def _topic_refusal(topic: str, namespace: Namespace) -> str | None:
    """The same of a topic's."""
    try:
        check_topic(topic)
    except InvalidMessageError:
        return None
    try:
        check_topic(topic, namespace)
    except InvalidMessageError as error:
        return str(error)
    return None
