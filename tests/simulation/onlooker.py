"""What is looked at while a simulation runs, and when it is at rest: commits, owners of queues, brokers' addresses."""

from __future__ import annotations

from collections.abc import Sequence

from rocketbox.message import MessageQueue
from rocketbox.protocol.codes import MASTER_ID
from tests.simulation.clients import GROUPS, OTHER, QUEUES, TOPIC, TOPICS, Clients
from tests.simulation.cluster import SimulatedBroker, SimulatedNameServer
from tests.simulation.history import GroupKind, History

__all__ = ["Onlooker"]

ROUTES_KNOWN = 45.0  # seconds in which clients know what name servers say: they ask each 30 s, and may ask again


class Onlooker:
    """Notes violations in the history."""

    def __init__(
        self, history: History, clients: Clients, brokers: Sequence[SimulatedBroker],
        name_servers: Sequence[SimulatedNameServer],
    ) -> None:  # fmt: skip
        self._history = history
        self._clients = clients
        self._brokers = brokers
        self._name_servers = name_servers
        self._told: dict[tuple[str, str], float] = {}
        """When a name server last named an address of a broker."""
        self._believed: set[tuple[str, str, str]] = set()  # (client, broker, address) of violations

    def look(self) -> None:
        """Now and then."""
        for broker in self._brokers:
            if broker.running is not None:
                for group, kind in GROUPS.items():
                    if kind is not GroupKind.BROADCAST:
                        self._look_at_commits(broker, group)
        self.look_at_owners(at_rest=False)
        self._look_at_addresses()

    def _look_at_commits(self, broker: SimulatedBroker, group: str) -> None:
        assert broker.running is not None
        for topic in TOPICS[group]:
            for queue in range(QUEUES):
                offset = broker.running.offsets.get(group, topic, queue)
                if offset is not None:
                    if topic == OTHER:  # one that is made again begins where the deleted one ended, or further on
                        self._history.begins_at(
                            (topic, broker.name, queue), broker.running.store.min_offset(topic, queue)
                        )
                    self._history.committed(group, (topic, broker.name, queue), offset)

    def look_at_owners(self, *, at_rest: bool) -> None:
        """No queue of an orderly group is locked for two members; at rest each has one owner, in any group."""
        for group, kind in GROUPS.items():
            if kind is GroupKind.BROADCAST or not (at_rest or kind is GroupKind.ORDERLY):
                continue
            owners: dict[MessageQueue, list[str]] = {}
            for member in self._clients.members[group]:
                for held in member.consumer.state().queues:
                    if held.queue.topic in TOPICS[group] and (held.locked or kind is not GroupKind.ORDERLY):
                        owners.setdefault(held.queue, []).append(member.name)
            for queue, names in owners.items():
                if len(names) > 1:
                    self._history.violate(f"{group}: {' and '.join(names)} both have {queue}")
            had = sum(queue.topic == TOPIC for queue in owners)
            if at_rest and (missing := len(self._brokers) * QUEUES - had):
                self._history.violate(f"{group}: {missing} queues of {TOPIC} have no owner")

    def _look_at_addresses(self) -> None:
        """No client believes an address of a broker that no name server names any more."""
        now = self._history.now()
        named: dict[str, set[str]] = {}
        for server in self._name_servers:
            for broker in server.brokers():
                if (address := broker.broker_addrs.get(MASTER_ID)) is not None:
                    named.setdefault(broker.broker_name, set()).add(address)
                    self._told[broker.broker_name, address] = now
            if server.running:
                known = {each.broker_name for each in server.brokers()}
                for unnamed in sorted({each.name for each in self._brokers} - known):
                    self._history.unrouted(unnamed)
        for client, group, instance in self._clients.instances():
            for name, machines in instance.routes.brokers.items():
                address = machines.get(MASTER_ID, "")
                since = self._told.get((name, address), 0.0)
                belief = client, name, address
                if name not in named or address in named[name] or belief in self._believed:
                    continue
                if since < now - ROUTES_KNOWN and not self._history.touched(since, {group}):
                    self._believed.add(belief)
                    self._history.violate(
                        f"{client} believes {name} at {address}, which no name server has named since {since:.0f} s; "
                        f"it is at {' or '.join(sorted(named[name]))}"
                    )
