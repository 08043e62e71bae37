"""What a client knows of where topics live: routes, when each was last confirmed, and the brokers' addresses.

A name server tells of a broker in each topic's route, and they are asked for one after the other; so two routes may
name two addresses of one broker, and the one that was confirmed last is right, whether it had changed or not. A route
that no name server knows any more says nothing new, and cannot bring an old address back.

Routes go when nobody has used them for ten minutes, or when nobody uses them and no name server has known them for two.
The last route that names a broker stays while somebody wants the brokers: a producer that is quiet is still asked by
them (about its transactions), over the connection that heartbeats keep.

Asking is ``instance``'s part; what follows from a route for queues is said in ``routes``.

Source: Apache RocketMQ 5.x ``MQClientInstance`` (topicRouteTable, brokerAddrTable, cleanOfflineBroker). Unlike there,
where what was read last about any topic wins, and routes never go.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Set

from rocketbox.client.routes import BrokerTable, TopicRoute, make_route, same_route_data
from rocketbox.protocol.bodies import TopicRouteData
from rocketbox.protocol.codes import MASTER_ID

__all__ = ["RouteTable"]

FORGET_UNUSED_AFTER = 600.0  # seconds
FORGET_UNKNOWN_AFTER = 120.0  # seconds; longer than name servers that were just started take to know all brokers


class _Entry:
    __slots__ = ("route", "unknown_since", "used_at")

    def __init__(self, route: TopicRoute, now: float) -> None:
        self.route = route
        self.used_at = now
        self.unknown_since: float | None = None


class RouteTable:
    """Routes by topic, and the brokers that they name. Times are the clock's monotonic seconds."""

    def __init__(self) -> None:
        self.brokers: BrokerTable = {}
        """The addresses of all brokers that a route names."""
        self._entries: dict[str, _Entry] = {}
        self.versions: dict[str, int] = {}
        """What :meth:`version` looks at, for who asks with each message; only this table changes it."""
        self._numbers = itertools.count(1)
        self._confirmed_at: dict[str, float] = {}  # broker name: when its addresses were asked for
        self._topics_of: dict[str, set[str]] = {}  # broker name: topics whose route names it

    def __len__(self) -> int:
        return len(self._entries)

    def topics(self) -> Set[str]:
        """The topics that have a route."""
        return self._entries.keys()

    def get(self, topic: str) -> TopicRoute | None:
        """The topic's route, as it was when a name server last knew one."""
        entry = self._entries.get(topic)
        return None if entry is None else entry.route

    def version(self, topic: str) -> int:
        """Another number whenever the topic's route or an address of its brokers is another; 0 without a route.

        Other topics' changes leave it alone: what was prepared for one topic stays right.
        """
        return self.versions.get(topic, 0)

    def use(self, topic: str, now: float) -> None:
        """Somebody wants the topic's route."""
        entry = self._entries.get(topic)
        if entry is not None:
            entry.used_at = now

    def confirm(self, topic: str, data: TopicRouteData, asked_at: float) -> bool:
        """Take what a name server said of topic when it was asked at that time; whether the route is another now."""
        entry = self._entries.get(topic)
        if entry is None:
            entry = self._entries[topic] = _Entry(make_route(topic, data), asked_at)
            named_before: set[str] = set()
            changed = True
        else:
            named_before = {broker.broker_name for broker in entry.route.data.broker_datas}
            changed = not same_route_data(entry.route.data, data)
            if changed:
                entry.route = make_route(topic, data)
        entry.unknown_since = None
        stale = {topic} if changed else set()
        for broker in data.broker_datas:
            name, addresses = broker.broker_name, dict(broker.broker_addrs)
            self._topics_of.setdefault(name, set()).add(topic)
            if asked_at >= self._confirmed_at.get(name, asked_at):
                self._confirmed_at[name] = asked_at
                if self.brokers.get(name) != addresses:
                    self.brokers[name] = addresses
                    stale |= self._topics_of[name]
            named_before.discard(name)
        self._no_longer_named(topic, named_before)
        for each in stale:
            self.versions[each] = next(self._numbers)
        return changed

    def unknown(self, topic: str, now: float) -> None:
        """A name server answered that it knows no route of topic."""
        entry = self._entries.get(topic)
        if entry is not None and entry.unknown_since is None:
            entry.unknown_since = now

    def forget_unused(self, used: Collection[str], now: float, *, keep_brokers: bool) -> list[str]:
        """Drop the routes whose time is over, and name their topics; those in ``used`` are used right now.

        With ``keep_brokers`` a known route stays where it alone names a broker.
        """
        gone = []
        for topic, entry in sorted(self._entries.items(), key=lambda item: item[1].used_at):
            if topic in used:
                entry.used_at = now
                continue
            unknown = entry.unknown_since is not None and now - entry.unknown_since >= FORGET_UNKNOWN_AFTER
            names = {broker.broker_name for broker in entry.route.data.broker_datas}
            is_last = any(self._topics_of[name] == {topic} for name in names)
            if unknown or (now - entry.used_at >= FORGET_UNUSED_AFTER and not (keep_brokers and is_last)):
                del self._entries[topic], self.versions[topic]
                self._no_longer_named(topic, names)
                gone.append(topic)
        return gone

    def master(self, broker_name: str) -> str | None:
        """The address of a broker's master, if it is known."""
        return self.brokers.get(broker_name, {}).get(MASTER_ID)

    def addresses(self, *, masters_only: bool = False) -> list[str]:
        """All known addresses, without repeats."""
        return list(
            dict.fromkeys(
                address
                for machines in self.brokers.values()
                for broker_id, address in sorted(machines.items())
                if broker_id == MASTER_ID or not masters_only
            )
        )

    def _no_longer_named(self, topic: str, names: Iterable[str]) -> None:
        for name in names:
            topics = self._topics_of[name]
            topics.discard(topic)
            if not topics:
                del self._topics_of[name], self.brokers[name], self._confirmed_at[name]
