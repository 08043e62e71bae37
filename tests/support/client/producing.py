"""A producer at a scripted cluster, on its clock and network; what the sends of any producer have left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rocketbox.client import ClientOptions, Producer, ProducerOptions
from rocketbox.remoting.connection import Connection
from tests.support.client.scripted_cluster import ScriptedCluster

__all__ = ["connections_of", "leftovers", "producer_of"]


def producer_of(cluster: ScriptedCluster, *, client: Mapping[str, Any] | None = None, **options: Any) -> Producer:
    """Of the group PG1, with these options; ``client`` are those of its client."""
    return Producer(
        "PG1",
        name_server=cluster.name_server.address,
        options=ProducerOptions(**options),
        client_options=ClientOptions(client_ip="192.0.2.7", **(client or {})),
        clock=cluster.clock,
        network=cluster.network,
    )


def connections_of(producer: Producer) -> list[Connection]:
    return list(producer.instance.remoting._connections.values())


def leftovers(producer: Producer) -> Counter[str]:
    """What sends may have forgotten in the tables of their client."""
    links = connections_of(producer)
    remoting = producer.instance.remoting
    joining = producer._auto_batch
    routes = [route for each in producer._transactions.checkers._by_topic.values() for route in each]
    return +Counter(
        {
            "requests in flight": sum(each.requests_in_flight for each in links),
            "places in line": sum(len(each._line.places) for each in links),
            "connects": len(remoting._connecting),
            "replies": len(producer.instance.waiting_requests),
            "look-ups of routes": len(producer.instance._lookups),
            "batches that wait for more": 0 if joining is None else len(joining._open) + len(joining._under_way),
            "questions about transactions": sum(len(each.questions) for each in routes),
        }
    )
