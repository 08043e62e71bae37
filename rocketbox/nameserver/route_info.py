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
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from math import inf

from rocketbox.clock import Clock
from rocketbox.errors import RemotingError
from rocketbox.protocol.admin_bodies import ClusterInfo
from rocketbox.protocol.bodies import BrokerData, QueueData, TopicRouteData
from rocketbox.protocol.codes import MASTER_ID
from rocketbox.protocol.headers import RegisterBrokerRequestHeader, UnregisterBrokerRequestHeader
from rocketbox.protocol.loose_json import Steps, finish
from rocketbox.protocol.registration_bodies import DataVersion, RegisterBrokerBody

__all__ = ["BROKER_EXPIRY_MS", "RegisterResult", "RegistrationRefusedError", "RouteInfoManager", "RouteLimits"]

_log = logging.getLogger(__name__)

BROKER_EXPIRY_MS = 120_000  # a broker silent for so long is dropped, unless it named a time of its own
Queues = tuple[int, int, int, int]
"""What a broker has of a topic: queues to read and to write, PermName, flags. There may be very many: the collector of
garbage does not look at plain tuples of numbers."""
TOPICS_OF_A_STEP = 200  # one takes some 3 us


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
    max_entries: int = 1_000_000
    """Topics at brokers: one that ten brokers have is ten. About 300 bytes each."""
    max_entries_per_connection: int = 100_000
    """Of the brokers that registered over one connection: closing it forgets all of them at once."""


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
        # By broker, not by topic: a broker that comes or goes with all its topics is then one change of the table.
        self._queues: dict[str, dict[str, Queues]] = {}  # by broker name and topic
        self._topics: dict[str, int] = {}  # how many brokers have each topic
        self.entries = 0
        """How many topics at brokers are registered."""
        self._brokers: dict[str, _Broker] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[tuple[str, str], _LiveBroker] = {}

    # --- reading ---

    def route(self, topic: str) -> TopicRouteData | None:
        """The brokers and queues of a topic; None when no live broker has it."""
        if topic not in self._topics:
            return None
        queues = {name: of_broker[topic] for name, of_broker in self._queues.items() if topic in of_broker}
        brokers = tuple(
            _data_of(name, broker)
            for name in sorted(queues)
            if (broker := self._brokers.get(name)) is not None and broker.addresses
        )
        if not brokers:
            return None
        return TopicRouteData(
            queue_datas=tuple(QueueData(name, *queues[name]) for name in sorted(queues)), broker_datas=brokers
        )

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
        for name in list(self._queues) if cluster is None else self._clusters.get(cluster, ()):
            if self._queues.get(name, {}).pop(topic, None) is not None:
                self._forget([topic])

    def prepare(self, header: RegisterBrokerRequestHeader, body: RegisterBrokerBody) -> Steps[dict[str, Queues]]:
        """The queues of all topics of a registration, for :meth:`register`; nothing is changed.

        Raises RegistrationRefusedError.
        """
        limits, queues = self.limits, dict[str, Queues]()
        topics = body.topic_config_serialize_wrapper.topic_config_table
        for number, topic in enumerate(topics.values(), 1):
            if len(topic.topic_name.encode("utf-8", "replace")) > limits.max_name_bytes:
                raise RegistrationRefusedError(f"the name of a topic has more than {limits.max_name_bytes} bytes")
            numbers = (topic.read_queue_nums, topic.write_queue_nums)
            if min(numbers) < 0 or max(numbers) > limits.max_queues:
                raise RegistrationRefusedError(
                    f"topic {topic.topic_name} has {numbers[0]} queues to read and {numbers[1]} to write; "
                    f"0 to {limits.max_queues} are allowed"
                )
            queues[topic.topic_name] = (*numbers, topic.perm, topic.topic_sys_flag)
            if number % TOPICS_OF_A_STEP == 0 and number < len(topics):
                yield
        return queues

    def register(
        self,
        header: RegisterBrokerRequestHeader,
        body: RegisterBrokerBody,
        connection: Hashable,
        prepared: Mapping[str, Queues] | None = None,
    ) -> RegisterResult | None:
        """Take a broker's registration in; None when it is refused. ``prepared``: what :meth:`prepare` made of it.

        Refused is a broker's first registration that holds a single topic: it is a change whose whole got lost.
        Topics that a broker no longer lists stay. Raises RegistrationRefusedError when the name or the address belongs
        to another, or a limit is reached.
        """
        name, address, broker_id = header.broker_name, header.broker_addr, header.broker_id
        wrapper = body.topic_config_serialize_wrapper
        topics = finish(self.prepare(header, body)) if prepared is None else prepared
        self._check_limits(header, topics, connection)
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
            self._put_queues(name, topics, changed=changed)
        if known_version is None:
            _log.debug("broker %s registered at %s", name, address)
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

    def _check_limits(
        self, header: RegisterBrokerRequestHeader, topics: Mapping[str, Queues], connection: Hashable
    ) -> None:
        limits = self.limits
        for what, text in (
            ("name of a broker", header.broker_name),
            ("name of a cluster", header.cluster_name),
            ("broker's address", header.broker_addr),
            ("replication address", header.ha_server_addr),
        ):
            if len(text.encode("utf-8", "replace")) > limits.max_name_bytes:
                raise RegistrationRefusedError(f"the {what} has more than {limits.max_name_bytes} bytes")
            if not text.isprintable():  # every client shows it in its log
                raise RegistrationRefusedError(f"the {what} has characters that cannot be printed")
        if (header.cluster_name, header.broker_addr) not in self._live and len(self._live) >= limits.max_brokers:
            raise RegistrationRefusedError(f"{limits.max_brokers} brokers are registered, which is the most here")
        if len(self._topics) + len(topics) > limits.max_topics:  # only then is it worth counting the new ones
            new = sum(topic not in self._topics for topic in topics)
            if len(self._topics) + new > limits.max_topics:
                raise RegistrationRefusedError(
                    f"{len(self._topics)} topics are registered and {new} more would be; "
                    f"{limits.max_topics} are the most"
                )
        if header.broker_id == MASTER_ID:
            self._check_entries(header.broker_name, topics, connection)

    def _check_entries(self, name: str, topics: Mapping[str, Queues], connection: Hashable) -> None:
        """Whether so many topics may be registered for a broker, of all brokers and of those of one connection."""
        limits, known = self.limits, self._queues.get(name, {})
        own = {live.broker_name for live in self._live.values() if live.connection == connection}
        of_connection = sum(len(self._queues.get(other, ())) for other in own | {name})
        if max(self.entries - limits.max_entries, of_connection - limits.max_entries_per_connection) + len(topics) <= 0:
            return
        new = sum(topic not in known for topic in topics)
        for what, entries, most in (
            ("all brokers", self.entries, limits.max_entries),
            ("the brokers of this connection", of_connection, limits.max_entries_per_connection),
        ):
            if new and entries + new > most:
                raise RegistrationRefusedError(
                    f"{what} have {entries} topics registered, counted for each broker, and {new} more would be; "
                    f"{most} are the most"
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

    def first_expiry(self) -> float:
        """When the first of them would be silent for too long, on the monotonic clock; inf when there is none."""
        return min((live.last_update + live.expiry for live in self._live.values()), default=inf)

    def expiry_of(self, header: RegisterBrokerRequestHeader) -> float:
        """When the broker that registered so would be silent for too long; inf when it is not there."""
        live = self._live.get((header.cluster_name, header.broker_addr))
        return inf if live is None else live.last_update + live.expiry

    def _leave_cluster(self, cluster: str, name: str) -> None:
        names = self._clusters.get(cluster, set())
        names.discard(name)
        if not names:
            self._clusters.pop(cluster, None)

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
        self._forget(self._queues.pop(name, {}))

    def _put_queues(self, name: str, queues: Mapping[str, Queues], *, changed: bool) -> None:
        """Note a broker's topics; if its table is not a changed one, those alone that are not known."""
        known, topics = self._queues.setdefault(name, {}), self._topics
        new = [topic for topic in queues if topic not in known]
        for topic in new:
            topics[topic] = topics.get(topic, 0) + 1
        self.entries += len(new)
        known.update(queues if changed else {topic: queues[topic] for topic in new})

    def _forget(self, topics: Collection[str]) -> None:
        """A broker has them no more."""
        self.entries -= len(topics)
        holders = self._topics
        for topic in topics:
            left = holders[topic] - 1
            if left:
                holders[topic] = left
            else:
                del holders[topic]


def _data_of(name: str, broker: _Broker) -> BrokerData:
    return BrokerData(
        cluster=broker.cluster,
        broker_name=name,
        broker_addrs=dict(sorted(broker.addresses.items())),
        enable_acting_master=broker.enable_acting_master,
    )
