"""A producer at a scripted cluster, on its clock and network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rocketbox.client import ClientOptions, Producer, ProducerOptions
from tests.support.client.scripted_cluster import ScriptedCluster

__all__ = ["producer_of"]


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
