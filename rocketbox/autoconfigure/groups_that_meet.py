"""Groups of one name that meet on the same servers, by two entries of the settings, and subscribe different things.

A broker knows one subscription for a group, the last that it was told, and members share all queues of a topic that
any of them subscribes: each would leave out what lies in the queues of the other, without a word.

Source: Apache RocketMQ 5.x ``ConsumerManager.registerConsumer``, ``AllocateMessageQueueStrategy``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rocketbox.autoconfigure.kinds import ListenerPlan
from rocketbox.autoconfigure.properties import cluster_prefix
from rocketbox.autoconfigure.users import PlannedClients
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.listeners.plans import ContainerPlan
from rocketbox.protocol.namespaces import Namespace
from rocketbox.remoting.name_server_addresses import address_server_of, parse_name_servers, shown_name_server

__all__ = ["groups_that_meet"]


def groups_that_meet(
    name_servers: Mapping[str, str | None], clients: PlannedClients, plans: Sequence[ListenerPlan]
) -> Iterator[Finding]:
    """A finding for each group that has another one of its name on the same servers, with other subscriptions.

    ``name_servers`` is what the service says of each cluster's.
    """
    before: list[tuple[tuple[str, str | None], frozenset[str], ContainerPlan]] = []
    for plan in plans:
        found = clients.clusters.get(plan.cluster or "")
        if not isinstance(plan, ContainerPlan) or found is None or plan.group not in found.groups:
            continue
        user = found.groups[plan.group].user
        name = (Namespace(user.namespace or "").wrap(plan.group), user.namespace_v2)
        servers = _servers(name_servers[plan.cluster or ""])
        for other_name, other_servers, other in before:
            if name == other_name and servers & other_servers and _subscribes(plan) != _subscribes(other):
                yield Finding(
                    f"group {plan.group} of {_of(plan)} and that of {_of(other)} are one group, for both have the name "
                    f"server {shown_name_server(min(servers & other_servers))}, and they subscribe different things "
                    f"({_told(other)}; {_told(plan)}): members share the queues, and each would leave out what lies in "
                    "those of the other",
                    f"{plan.where} and {other.where}",
                    "give one of them another consumer_group, or have both in one cluster of the settings",
                )
        before.append((name, servers, plan))


def _servers(said: str | None) -> frozenset[str]:
    """What names the servers; of two clusters that have one of these in common they are the same."""
    if said is None:
        return frozenset()
    if said.lower() == "embedded" or address_server_of(said) is not None:
        return frozenset({said.lower()})
    try:
        return frozenset(parse_name_servers(said))
    except ConfigurationError:  # it is told already
        return frozenset()


def _subscribes(plan: ContainerPlan) -> frozenset[tuple[str, str, str]]:
    return frozenset(
        (function.topic, function.selector_type.name, tag.strip())
        for function in plan.functions
        for tag in function.selector_expression.split("||")
    )


def _told(plan: ContainerPlan) -> str:
    return ", ".join(f"{each.topic}:{each.selector_expression}" for each in plan.functions)


def _of(plan: ContainerPlan) -> str:
    return f"cluster {plan.cluster}" if plan.cluster else f"the main cluster ({cluster_prefix('')})"
