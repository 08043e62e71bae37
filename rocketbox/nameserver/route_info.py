"""Which brokers there are and which topics they hold: the name server's tables and the rules that keep them.

Holds values only; frames, connections and the time of the scans belong to ``name_server``.

Other than Apache's, whose name server lets anybody replace or remove any broker: a broker's name and address belong to
the connection that registered them, until that is closed or the broker is silent for its time (120 s). Who else asks
for them is refused, with one exception (``may_take_over``): a broker that was started again on its machine, of whose
end nothing was heard. What a peer can register is bounded.

Source: Apache RocketMQ 5.x ``RouteInfoManager``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

from rocketbox.clock import Clock
from rocketbox.errors import RemotingError
from rocketbox.protocol.admin_bodies import ClusterInfo
from rocketbox.protocol.bodies import (
    BrokerData,
    DataVersion,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicRouteData,
)
from rocketbox.protocol.codes import MASTER_ID
from rocketbox.protocol.headers import RegisterBrokerRequestHeader, UnregisterBrokerRequestHeader

__all__ = ["BROKER_EXPIRY_MS", "RegisterResult", "RegistrationRefusedError", "RouteInfoManager", "RouteLimits"]

_log = logging.getLogger(__name__)

BROKER_EXPIRY_MS = 120_000  # a broker silent for so long is dropped, unless it named a time of its own


class RegistrationRefusedError(RemotingError):
    """A broker may not register, or unregister, what it asked for; the text is its answer."""


@dataclass(frozen=True, kw_only=True)
class RouteLimits:
    """How much brokers may register."""

    max_brokers: int = 1_000
    """Addresses of brokers, slaves included."""
    max_topics: int = 100_000
    """Names of topics, of all brokers together."""
    max_name_bytes: int = 255
    """Of the name of a topic, broker or cluster, and of an address."""
    max_queues: int = 65_536
    """Of one topic at one broker: a client asks for each of them."""


@dataclass(frozen=True)
class RegisterResult:
    """What a broker is told: for a slave, its master's address and replication address."""

    master_address: str | None = None
    ha_address: str | None = None


@dataclass(slots=True)
class _LiveBroker:
    connection: Hashable
    last_update: float
    expiry: float
    version: DataVersion
    ha_address: str
    broker_name: str
    broker_id: int


@dataclass(slots=True)
class _Broker:
    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool = False


class RouteInfoManager:
    """Clusters, brokers and topics. A connection is any hashable value that says who registered."""

    def __init__(
        self,
        clock: Clock,
        limits: RouteLimits | None = None,
        may_take_over: Callable[[Hashable, Hashable], bool] = lambda holder, newcomer: holder == newcomer,
    ) -> None:
        self.limits = limits or RouteLimits()
        self._clock = clock
        self._may_take_over = may_take_over
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._brokers: dict[str, _Broker] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[tuple[str, str], _LiveBroker] = {}

    # --- reading ---

    def route(self, topic: str) -> TopicRouteData | None:
        """The brokers and queues of a topic; None when no live broker has it."""
        queues = self._topics.get(topic)
        if not queues:
            return None
        brokers = tuple(
            _data_of(name, broker)
            for name in sorted(queues)
            if (broker := self._brokers.get(name)) is not None and broker.addresses
        )
        if not brokers:
            return None
        return TopicRouteData(queue_datas=tuple(queues[name] for name in sorted(queues)), broker_datas=brokers)

    def clusters(self) -> dict[str, set[str]]:
        """Broker names by cluster (a copy)."""
        return {cluster: set(names) for cluster, names in self._clusters.items()}

    def cluster_info(self) -> ClusterInfo:
        """All clusters and their brokers."""
        return ClusterInfo(
            brokers={name: _data_of(name, broker) for name, broker in self._brokers.items()},
            clusters={cluster: tuple(sorted(names)) for cluster, names in self._clusters.items()},
        )

    def topics(self) -> list[str]:
        """The names of all topics."""
        return list(self._topics)

    # --- writing ---

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Forget where a topic is: on the brokers of a cluster, or everywhere."""
        queues = self._topics.get(topic, {})
        for name in list(queues) if cluster is None else self._clusters.get(cluster, ()):
            queues.pop(name, None)
        if not queues:
            self._topics.pop(topic, None)

    def register(
        self, header: RegisterBrokerRequestHeader, body: RegisterBrokerBody, connection: Hashable
    ) -> RegisterResult | None:
        """Take a broker's registration in; None when it is refused.

        Refused is a broker's first registration that holds a single topic: it is a change whose whole got lost.
        Topics that a broker no longer lists stay. Raises RegistrationRefusedError when the name or the address belongs
        to another, or a limit is reached.
        """
        name, address, broker_id = header.broker_name, header.broker_addr, header.broker_id
        wrapper = body.topic_config_serialize_wrapper
        topics = wrapper.topic_config_table
        self._check_limits(header, topics)
        self._check_holders(header, connection)
        self._leave_other_places(header)
        first_of_name = name not in self._brokers
        broker = self._brokers.setdefault(name, _Broker(header.cluster_name))
        for other, known in list(broker.addresses.items()):
            if known == address and other != broker_id:  # a slave that became master
                del broker.addresses[other]
        old = broker.addresses.get(broker_id)
        if old is not None and old != address:
            live = self._live.get((header.cluster_name, old))
            if live is not None and live.version.state_version > wrapper.data_version.state_version:
                _log.warning("broker %s at %s is older than the one at %s and is ignored", name, address, old)
                self._live.pop((header.cluster_name, address), None)
                return RegisterResult()
            self._live.pop((header.cluster_name, old), None)
        if old is None and len(topics) == 1:
            if first_of_name:
                del self._brokers[name]
            _log.warning("the first registration of broker %s at %s holds a single topic", name, address)
            return None
        if broker.cluster != header.cluster_name:  # a slave that is first to come with the cluster's new name
            self._leave_cluster(broker.cluster, name)
            broker.cluster = header.cluster_name
        broker.enable_acting_master = bool(header.enable_acting_master)
        self._clusters.setdefault(header.cluster_name, set()).add(name)
        broker.addresses[broker_id] = address
        known_version = self._live.get((header.cluster_name, address))
        if broker_id == MASTER_ID:
            changed = old is None or known_version is None or known_version.version != wrapper.data_version
            for topic in topics.values():
                if changed or name not in self._topics.get(topic.topic_name, {}):
                    self._put_queues(name, topic)
        if known_version is None:
            _log.info("broker %s registered at %s", name, address)
        expiry = header.heartbeat_timeout_millis
        self._live[header.cluster_name, address] = _LiveBroker(
            connection,
            self._clock.monotonic(),
            (BROKER_EXPIRY_MS if not expiry or expiry < 0 else expiry) / 1000,
            wrapper.data_version,
            header.ha_server_addr,
            name,
            broker_id,
        )
        master = broker.addresses.get(MASTER_ID)
        if broker_id != MASTER_ID and master is not None:
            live = self._live.get((header.cluster_name, master))
            return RegisterResult(master, live.ha_address if live is not None else None)
        return RegisterResult()

    def _check_limits(self, header: RegisterBrokerRequestHeader, topics: Mapping[str, TopicConfig]) -> None:
        limits = self.limits
        for what, text in (
            ("name of a broker", header.broker_name),
            ("name of a cluster", header.cluster_name),
            ("broker's address", header.broker_addr),
            ("replication address", header.ha_server_addr),
        ):
            if len(text.encode("utf-8", "replace")) > limits.max_name_bytes:
                raise RegistrationRefusedError(f"the {what} has more than {limits.max_name_bytes} bytes")
        for topic in topics.values():
            if len(topic.topic_name.encode("utf-8", "replace")) > limits.max_name_bytes:
                raise RegistrationRefusedError(f"the name of a topic has more than {limits.max_name_bytes} bytes")
            queues = (topic.read_queue_nums, topic.write_queue_nums)
            if min(queues) < 0 or max(queues) > limits.max_queues:
                raise RegistrationRefusedError(
                    f"topic {topic.topic_name} has {queues[0]} queues to read and {queues[1]} to write; "
                    f"0 to {limits.max_queues} are allowed"
                )
        if (header.cluster_name, header.broker_addr) not in self._live and len(self._live) >= limits.max_brokers:
            raise RegistrationRefusedError(f"{limits.max_brokers} brokers are registered, which is the most here")
        if len(self._topics) + len(topics) > limits.max_topics:  # only then is it worth counting the new ones
            new = sum(topic.topic_name not in self._topics for topic in topics.values())
            if len(self._topics) + new > limits.max_topics:
                raise RegistrationRefusedError(
                    f"{len(self._topics)} topics are registered and {new} more would be; "
                    f"{limits.max_topics} are the most"
                )

    def _check_holders(self, header: RegisterBrokerRequestHeader, connection: Hashable) -> None:
        """Whether the name's address and the address's name, if there are any, may be replaced by this connection."""
        broker = self._brokers.get(header.broker_name)
        held = broker.addresses.get(header.broker_id) if broker is not None else None
        for (_, address), live in self._live.items():
            same_name = broker is not None and live.broker_name == header.broker_name and address == held
            if not same_name and address != header.broker_addr:
                continue
            restarted = address == header.broker_addr and live.broker_name == header.broker_name
            if live.connection == connection or (restarted and self._may_take_over(live.connection, connection)):
                continue
            raise RegistrationRefusedError(
                f"broker {live.broker_name} is registered at {address} over another connection, which is open; stop "
                f"that broker, or give this one another brokerName and address (both are free {live.expiry:g} s after "
                "the last word of a broker that is gone)"
            )

    def _leave_other_places(self, header: RegisterBrokerRequestHeader) -> None:
        """A broker that comes back with another cluster or name leaves the old one."""
        for (cluster, address), live in list(self._live.items()):
            if address == header.broker_addr and (cluster, live.broker_name) != (
                header.cluster_name,
                header.broker_name,
            ):
                self._remove(cluster, live.broker_name, address, live.broker_id)

    def unregister(self, header: UnregisterBrokerRequestHeader, connection: Hashable) -> None:
        """A broker says that it stops. Raises RegistrationRefusedError when it is not its own to say."""
        live = self._live.get((header.cluster_name, header.broker_addr))
        if live is None:
            return
        if live.connection != connection and not self._may_take_over(live.connection, connection):
            raise RegistrationRefusedError(
                f"broker {live.broker_name} at {header.broker_addr} is registered over another connection"
            )
        self._remove(header.cluster_name, live.broker_name, header.broker_addr, live.broker_id)

    def on_close(self, connection: Hashable) -> None:
        """The brokers that registered over this connection are gone, at once."""
        for (cluster, address), live in list(self._live.items()):
            if live.connection == connection:
                _log.warning("broker %s at %s is dropped: its connection closed", live.broker_name, address)
                self._remove(cluster, live.broker_name, address, live.broker_id)

    def expire(self) -> list[Hashable]:
        """Drop brokers that were silent for too long; their connections, to be closed."""
        now = self._clock.monotonic()
        dropped = []
        for (cluster, address), live in list(self._live.items()):
            if now - live.last_update > live.expiry:
                _log.warning("broker %s at %s is dropped: silent for %g s", live.broker_name, address, live.expiry)
                self._remove(cluster, live.broker_name, address, live.broker_id)
                dropped.append(live.connection)
        return dropped

    def _leave_cluster(self, cluster: str, name: str) -> None:
        names = self._clusters.get(cluster, set())
        names.discard(name)
        if not names:
            self._clusters.pop(cluster, None)

    def _put_queues(self, broker_name: str, topic: TopicConfig) -> None:
        self._topics.setdefault(topic.topic_name, {})[broker_name] = QueueData(
            broker_name=broker_name,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            perm=topic.perm,
            topic_sys_flag=topic.topic_sys_flag,
        )

    def _remove(self, cluster: str, name: str, address: str, broker_id: int) -> None:
        self._live.pop((cluster, address), None)
        broker = self._brokers.get(name)
        if broker is None:
            return
        if broker.addresses.get(broker_id) == address:
            del broker.addresses[broker_id]
        if broker.addresses:
            return
        del self._brokers[name]
        self._leave_cluster(broker.cluster, name)
        for topic, queues in list(self._topics.items()):
            queues.pop(name, None)
            if not queues:
                del self._topics[topic]


def _data_of(name: str, broker: _Broker) -> BrokerData:
    return BrokerData(
        cluster=broker.cluster,
        broker_name=name,
        broker_addrs=dict(sorted(broker.addresses.items())),
        enable_acting_master=broker.enable_acting_master,
    )
