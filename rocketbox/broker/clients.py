"""Who is connected: the consumers of each group with their subscriptions, and the producers.

Holds tables alone; sending the notice that a group's members changed is the caller's part (``on_change``), and so is
closing connections that have gone silent.

Source: Apache RocketMQ 5.x ``ConsumerManager``, ``ConsumerGroupInfo``, ``ProducerManager``, ``ClientChannelInfo``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rocketbox.broker.limits import LimitError
from rocketbox.broker.options import (
    MAX_GROUPS,
    MAX_GROUPS_PER_CONNECTION,
    MAX_SUBSCRIPTION_BYTES,
    MAX_SUBSCRIPTIONS_PER_GROUP,
)
from rocketbox.clock import Clock
from rocketbox.message import ConsumeFromWhere, MessageModel
from rocketbox.protocol.tags import SubscriptionData

__all__ = ["CLIENT_EXPIRY", "ClientChannel", "ConsumerGroup", "ConsumerTable", "ProducerTable"]

CLIENT_EXPIRY = 120.0  # seconds without a heartbeat; Apache's channelExpiredTimeout

SHARE_OF_A_GROUP = 64  # one of so many parts of the bytes of all subscriptions
SUBSCRIPTION_BYTES = 300  # without its texts
TAG_BYTES, CODE_BYTES = 60, 40

ConnectionT = TypeVar("ConnectionT", bound=Hashable)


@dataclass(slots=True)
class ClientChannel:
    """A client as one of its heartbeats described it; ``last_update`` is on the monotonic clock.

    ``access_key`` is whose heartbeat it was, where access control asks for signatures.
    """

    client_id: str
    language: int
    version: int
    last_update: float
    access_key: str | None = None


@dataclass(slots=True)
class ConsumerGroup(Generic[ConnectionT]):
    """The members of a group and what it is subscribed to; the last heartbeat of any member decides."""

    name: str
    consume_type: str
    message_model: MessageModel | None
    consume_from_where: ConsumeFromWhere | None
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    channels: dict[ConnectionT, ClientChannel] = field(default_factory=dict)
    subscription_bytes: int = 0
    """About how many bytes the subscriptions take."""

    def client_ids(self) -> list[str]:
        return list(dict.fromkeys(channel.client_id for channel in self.channels.values()))

    def update_channel(self, connection: ConnectionT, channel: ClientChannel) -> bool:
        """Whether this is a new member."""
        known = self.channels.get(connection)
        self.channels[connection] = channel
        return known is None or known.client_id != channel.client_id

    def update_subscriptions(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Whether topics came or went; a newer version of a subscription takes its place without being a change."""
        wanted = {subscription.topic: subscription for subscription in subscriptions}
        changed = wanted.keys() != self.subscriptions.keys()
        for topic in self.subscriptions.keys() - wanted.keys():
            del self.subscriptions[topic]
        for topic, subscription in wanted.items():
            known = self.subscriptions.get(topic)
            if known is None or subscription.sub_version > known.sub_version:
                self.subscriptions[topic] = subscription
        return changed


def _subscription_bytes(data: SubscriptionData) -> int:
    """About how many bytes a subscription takes."""
    texts = (data.topic, data.sub_string, data.expression_type, *data.tags_set)
    return SUBSCRIPTION_BYTES + sum(map(len, texts)) + TAG_BYTES * len(data.tags_set) + CODE_BYTES * len(data.code_set)


class Memberships(Generic[ConnectionT]):
    """Which groups each connection is in, and since when it has not said so again: closing one costs what it had."""

    def __init__(self, kind: str, most: int) -> None:
        self._kind = kind
        self._most = most
        self._groups: dict[ConnectionT, dict[str, None]] = {}
        self._beats: OrderedDict[tuple[ConnectionT, str], float] = OrderedDict()  # the oldest first
        self.refused = 0

    def __len__(self) -> int:
        return len(self._beats)

    def __iter__(self) -> Iterator[tuple[ConnectionT, str]]:
        """All that there are now, each connection with one of its groups."""
        return iter(list(self._beats))

    def of(self, connection: ConnectionT) -> Collection[str]:
        return self._groups.get(connection, ())

    def note(self, connection: ConnectionT, group: str, now: float) -> None:
        """The connection is in the group, it has just said so. Raises LimitError for one group too many."""
        groups = self._groups.get(connection)
        if groups is None or group not in groups:
            if groups is not None and len(groups) >= self._most:
                self.refused += 1
                raise LimitError(
                    f"the connection is in {len(groups)} {self._kind} groups", self._most, "max-groups-per-connection"
                )
            self._groups.setdefault(connection, {})[group] = None
        self._beats[connection, group] = now
        self._beats.move_to_end((connection, group))

    def forget(self, connection: ConnectionT, group: str) -> None:
        if self._beats.pop((connection, group), None) is None:
            return
        groups = self._groups[connection]
        del groups[group]
        if not groups:
            del self._groups[connection]

    def oldest(self) -> float | None:
        """When the one said so that has been silent for longest; None when there is none."""
        return next(iter(self._beats.values()), None)

    def older_than(self, oldest: float) -> Iterator[tuple[ConnectionT, str]]:
        """Forgets, one after the other, what nobody has said again since then."""
        while self._beats:
            (connection, group), beat = next(iter(self._beats.items()))
            if beat >= oldest:
                return
            self.forget(connection, group)
            yield connection, group


class ConsumerTable(Generic[ConnectionT]):
    """All consumer groups. ``on_change(group)`` is called when members or topics of a clustering group changed.

    Apache tells nobody when a silent client is dropped by the scan; here the others hear of it at once.
    """

    def __init__(
        self,
        clock: Clock,
        on_change: Callable[[ConsumerGroup[ConnectionT]], None],
        expiry: float = CLIENT_EXPIRY,
        *,
        most_groups: int = MAX_GROUPS_PER_CONNECTION,
        most_subscriptions: int = MAX_SUBSCRIPTIONS_PER_GROUP,
        most_subscription_bytes: int = MAX_SUBSCRIPTION_BYTES,
    ) -> None:
        self._clock = clock
        self._on_change = on_change
        self._expiry = expiry
        self._most_subscriptions = most_subscriptions
        self._most_subscription_bytes = most_subscription_bytes
        self.subscription_bytes = 0
        """About how many bytes the subscriptions of all groups take."""
        self._groups: dict[str, ConsumerGroup[ConnectionT]] = {}
        self.memberships: Memberships[ConnectionT] = Memberships("consumer", most_groups)

    def group(self, name: str) -> ConsumerGroup[ConnectionT] | None:
        return self._groups.get(name)

    def register(
        self,
        name: str,
        connection: ConnectionT,
        channel: ClientChannel,
        *,
        consume_type: str,
        message_model: MessageModel | None,
        consume_from_where: ConsumeFromWhere | None,
        subscriptions: Collection[SubscriptionData] | None,
    ) -> bool:
        """Take a heartbeat in; whether members or topics changed. Subscriptions None: the beat did not carry them.

        Raises LimitError when the connection is in too many groups, or the group has too many subscriptions, or too
        large ones.
        """
        if subscriptions is not None and len(subscriptions) > self._most_subscriptions:
            self.memberships.refused += 1
            raise LimitError(
                f"group {name} has {len(subscriptions)} subscriptions",
                self._most_subscriptions, "max-subscriptions-per-group",
            )  # fmt: skip
        group = self._groups.get(name)
        size = None if subscriptions is None else sum(map(_subscription_bytes, subscriptions))
        if size is not None:
            self._check_bytes(name, size, 0 if group is None else group.subscription_bytes)
        self.memberships.note(connection, name, channel.last_update)
        if group is None:
            group = self._groups[name] = ConsumerGroup(name, consume_type, message_model, consume_from_where)
        group.consume_type = consume_type
        group.message_model = message_model
        group.consume_from_where = consume_from_where
        changed = group.update_channel(connection, channel)
        if subscriptions is not None:
            changed = group.update_subscriptions(subscriptions) or changed
            size = sum(map(_subscription_bytes, group.subscriptions.values()))  # some may be kept that were newer
            self.subscription_bytes += size - group.subscription_bytes
            group.subscription_bytes = size
        if changed:
            self._tell(group)
        return changed

    def _check_bytes(self, name: str, size: int, before: int) -> None:
        share = self._most_subscription_bytes // SHARE_OF_A_GROUP
        limit: LimitError | None = None
        if size > share:
            setting = f"a {SHARE_OF_A_GROUP}th of max-subscription-bytes"
            limit = LimitError(f"the subscriptions of group {name} have {size} bytes", share, setting)
        elif size > before and self.subscription_bytes - before + size > self._most_subscription_bytes:
            limit = LimitError(
                f"with those of group {name} the subscriptions of all groups have "
                f"{self.subscription_bytes - before + size} bytes",
                self._most_subscription_bytes, "max-subscription-bytes",
            )  # fmt: skip
        if limit is not None:
            self.memberships.refused += 1
            raise limit

    def unregister(self, name: str, client_id: str, connection: ConnectionT) -> None:
        """A client leaves a group."""
        group = self._groups.get(name)
        if group is None:
            return
        channel = group.channels.get(connection)
        if channel is not None and channel.client_id == client_id:
            self._remove(group, [connection])

    def drop(self, connection: ConnectionT, name: str) -> None:
        """Forget a connection in one group, if it is in it; the other members are told."""
        group = self._groups.get(name)
        if group is not None and connection in group.channels:
            self._remove(group, [connection])

    def on_close(self, connection: ConnectionT) -> None:
        """Forget a connection in all groups; their other members are told."""
        for name in list(self.memberships.of(connection)):
            self._remove(self._groups[name], [connection])

    def first_expiry(self) -> float:
        """When the first of them would be silent for too long, or one that comes now."""
        oldest = self.memberships.oldest()
        return (self._clock.monotonic() if oldest is None else oldest) + self._expiry

    def expire(self) -> list[ConnectionT]:
        """Drop clients without a heartbeat for the expiry time; their connections, to be closed."""
        silent: dict[str, list[ConnectionT]] = {}
        for connection, name in self.memberships.older_than(self._clock.monotonic() - self._expiry):
            silent.setdefault(name, []).append(connection)
        for name, connections in silent.items():
            self._remove(self._groups[name], connections)
        return list(dict.fromkeys(connection for connections in silent.values() for connection in connections))

    def _remove(self, group: ConsumerGroup[ConnectionT], connections: list[ConnectionT]) -> None:
        for connection in connections:
            del group.channels[connection]
            self.memberships.forget(connection, group.name)
        if not group.channels:
            del self._groups[group.name]
            self.subscription_bytes -= group.subscription_bytes
        else:
            self._tell(group)

    def _tell(self, group: ConsumerGroup[ConnectionT]) -> None:
        if group.message_model is not MessageModel.BROADCASTING:  # each member has all queues, whoever comes or goes
            self._on_change(group)


@dataclass(slots=True)
class _Client:
    """A connection that goes by a client id: in how many groups, and whose last heartbeat was."""

    groups: int = 0
    access_key: str | None = None


@dataclass(slots=True)
class _ClientId(Generic[ConnectionT]):
    """Who goes by a client id, and whose it is: that of the user who has said it first, as long as anybody says it."""

    owner: str | None
    connections: dict[ConnectionT, _Client] = field(default_factory=dict)


class ProducerTable(Generic[ConnectionT]):
    """All producer groups."""

    def __init__(
        self,
        clock: Clock,
        expiry: float = CLIENT_EXPIRY,
        *,
        most: int = MAX_GROUPS,
        most_groups: int = MAX_GROUPS_PER_CONNECTION,
    ) -> None:
        self._clock = clock
        self._expiry = expiry
        self._most = most
        self.memberships: Memberships[ConnectionT] = Memberships("producer", most_groups)
        self._groups: dict[str, dict[ConnectionT, ClientChannel]] = {}
        self._clients: dict[str, _ClientId[ConnectionT]] = {}

    def connection_of(self, client_id: str, is_his: Callable[[ConnectionT], bool] | None = None) -> ConnectionT | None:
        """Where the client of that id is; where several say it, the one that came last: it connected again.

        An id is no secret, and what is sent to it is one user's: of those that ``is_his`` says to be his, or if that is
        not known, of those of the user who said it first, even when that one has gone.
        """
        known = self._clients.get(client_id)
        if known is None:
            return None
        clients, owner = known.connections, known.owner
        if is_his is not None:
            return next(filter(is_his, reversed(clients)), None)
        return next((each for each, client in reversed(clients.items()) if client.access_key == owner), None)

    def channels(self, group: str) -> dict[ConnectionT, ClientChannel]:
        """The producers of a group (a copy)."""
        return dict(self._groups.get(group, {}))

    def channel(self, connection: ConnectionT, group: str) -> ClientChannel | None:
        """How a connection described itself as a producer of a group."""
        return self._groups.get(group, {}).get(connection)

    def register(self, group: str, connection: ConnectionT, channel: ClientChannel) -> None:
        """Take a heartbeat in. Raises LimitError when there are too many groups, or the connection is in too many."""
        if group not in self._groups and len(self._groups) >= self._most:
            self.memberships.refused += 1
            raise LimitError(
                f"producer group {group} is one too many, there are {len(self._groups)}", self._most, "max-groups"
            )
        self.memberships.note(connection, group, channel.last_update)
        channels = self._groups.setdefault(group, {})
        known = channels.get(connection)
        channels[connection] = channel
        owned = self._clients.get(channel.client_id)
        if owned is None:
            owned = self._clients[channel.client_id] = _ClientId(channel.access_key)
        client = owned.connections.get(connection)
        if client is None:
            client = owned.connections[connection] = _Client()
        elif client.access_key == owned.owner != channel.access_key:  # his keys are others now
            owned.owner = channel.access_key
        client.access_key = channel.access_key
        if known is None or known.client_id != channel.client_id:
            client.groups += 1
            if known is not None:
                self._forget_id(known.client_id, connection)

    def unregister(self, group: str, client_id: str, connection: ConnectionT) -> None:
        channels = self._groups.get(group, {})
        channel = channels.get(connection)
        if channel is not None and channel.client_id == client_id:
            self._remove(group, connection)

    def drop(self, connection: ConnectionT, group: str) -> None:
        """Forget a connection in one group, if it is in it."""
        if connection in self._groups.get(group, {}):
            self._remove(group, connection)

    def on_close(self, connection: ConnectionT) -> None:
        for group in list(self.memberships.of(connection)):
            self._remove(group, connection)

    def first_expiry(self) -> float:
        """When the first of them would be silent for too long, or one that comes now."""
        oldest = self.memberships.oldest()
        return (self._clock.monotonic() if oldest is None else oldest) + self._expiry

    def expire(self) -> list[ConnectionT]:
        """Drop producers without a heartbeat for the expiry time; their connections, to be closed."""
        silent = list(self.memberships.older_than(self._clock.monotonic() - self._expiry))
        for connection, group in silent:
            self._remove(group, connection)
        return list(dict.fromkeys(connection for connection, _ in silent))

    def _remove(self, group: str, connection: ConnectionT) -> None:
        self.memberships.forget(connection, group)
        channels = self._groups[group]
        self._forget_id(channels.pop(connection).client_id, connection)
        if not channels:
            del self._groups[group]

    def _forget_id(self, client_id: str, connection: ConnectionT) -> None:
        """In one group less it goes by that id."""
        clients = self._clients[client_id].connections
        clients[connection].groups -= 1
        if not clients[connection].groups:
            del clients[connection]
            if not clients:
                del self._clients[client_id]
