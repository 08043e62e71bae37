"""Who is connected: the consumers of each group with their subscriptions, and the producers.

Holds tables alone; sending the notice that a group's members changed is the caller's part (``on_change``), and so is
closing connections that have gone silent.

Source: Apache RocketMQ 5.x ``ConsumerManager``, ``ConsumerGroupInfo``, ``ProducerManager``, ``ClientChannelInfo``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rocketbox.clock import Clock
from rocketbox.message import ConsumeFromWhere, MessageModel
from rocketbox.protocol.tags import SubscriptionData

__all__ = ["CLIENT_EXPIRY", "ClientChannel", "ConsumerGroup", "ConsumerTable", "ProducerTable"]

CLIENT_EXPIRY = 120.0  # seconds without a heartbeat; Apache's channelExpiredTimeout

ConnectionT = TypeVar("ConnectionT", bound=Hashable)


@dataclass(slots=True)
class ClientChannel:
    """A client as one of its heartbeats described it; ``last_update`` is on the monotonic clock."""

    client_id: str
    language: int
    version: int
    last_update: float


@dataclass(slots=True)
class ConsumerGroup(Generic[ConnectionT]):
    """The members of a group and what it is subscribed to; the last heartbeat of any member decides."""

    name: str
    consume_type: str
    message_model: MessageModel | None
    consume_from_where: ConsumeFromWhere | None
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    channels: dict[ConnectionT, ClientChannel] = field(default_factory=dict)

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


class ConsumerTable(Generic[ConnectionT]):
    """All consumer groups. ``on_change(group)`` is called when members or topics of a clustering group changed.

    Apache tells nobody when a silent client is dropped by the scan; here the others hear of it at once.
    """

    def __init__(
        self, clock: Clock, on_change: Callable[[ConsumerGroup[ConnectionT]], None], expiry: float = CLIENT_EXPIRY
    ) -> None:
        self._clock = clock
        self._on_change = on_change
        self._expiry = expiry
        self._groups: dict[str, ConsumerGroup[ConnectionT]] = {}

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
        subscriptions: Iterable[SubscriptionData] | None,
    ) -> bool:
        """Take a heartbeat in; whether members or topics changed. Subscriptions None: the beat did not carry them."""
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = ConsumerGroup(name, consume_type, message_model, consume_from_where)
        group.consume_type = consume_type
        group.message_model = message_model
        group.consume_from_where = consume_from_where
        changed = group.update_channel(connection, channel)
        if subscriptions is not None:
            changed = group.update_subscriptions(subscriptions) or changed
        if changed:
            self._tell(group)
        return changed

    def unregister(self, name: str, client_id: str, connection: ConnectionT) -> None:
        """A client leaves a group."""
        group = self._groups.get(name)
        if group is None:
            return
        channel = group.channels.get(connection)
        if channel is not None and channel.client_id == client_id:
            self._remove(group, [connection])

    def on_close(self, connection: ConnectionT) -> None:
        """Forget a connection in all groups; their other members are told."""
        for group in list(self._groups.values()):
            if connection in group.channels:
                self._remove(group, [connection])

    def expire(self) -> list[ConnectionT]:
        """Drop clients without a heartbeat for the expiry time; their connections, to be closed."""
        oldest = self._clock.monotonic() - self._expiry
        dropped: list[ConnectionT] = []
        for group in list(self._groups.values()):
            silent = [connection for connection, channel in group.channels.items() if channel.last_update < oldest]
            if silent:
                self._remove(group, silent)
                dropped += silent
        return list(dict.fromkeys(dropped))

    def _remove(self, group: ConsumerGroup[ConnectionT], connections: list[ConnectionT]) -> None:
        for connection in connections:
            del group.channels[connection]
        if not group.channels:
            del self._groups[group.name]
        else:
            self._tell(group)

    def _tell(self, group: ConsumerGroup[ConnectionT]) -> None:
        if group.message_model is not MessageModel.BROADCASTING:  # each member has all queues, whoever comes or goes
            self._on_change(group)


class ProducerTable(Generic[ConnectionT]):
    """All producer groups."""

    def __init__(self, clock: Clock, expiry: float = CLIENT_EXPIRY) -> None:
        self._clock = clock
        self._expiry = expiry
        self._groups: dict[str, dict[ConnectionT, ClientChannel]] = {}

    def channels(self, group: str) -> dict[ConnectionT, ClientChannel]:
        """The producers of a group (a copy)."""
        return dict(self._groups.get(group, {}))

    def register(self, group: str, connection: ConnectionT, channel: ClientChannel) -> None:
        self._groups.setdefault(group, {})[connection] = channel

    def unregister(self, group: str, client_id: str, connection: ConnectionT) -> None:
        channels = self._groups.get(group, {})
        channel = channels.get(connection)
        if channel is not None and channel.client_id == client_id:
            self._remove(group, connection)

    def on_close(self, connection: ConnectionT) -> None:
        for group in [name for name, channels in self._groups.items() if connection in channels]:
            self._remove(group, connection)

    def expire(self) -> list[ConnectionT]:
        """Drop producers without a heartbeat for the expiry time; their connections, to be closed."""
        oldest = self._clock.monotonic() - self._expiry
        silent = [
            (group, connection)
            for group, channels in self._groups.items()
            for connection, channel in channels.items()
            if channel.last_update < oldest
        ]
        for group, connection in silent:
            self._remove(group, connection)
        return list(dict.fromkeys(connection for _, connection in silent))

    def _remove(self, group: str, connection: ConnectionT) -> None:
        channels = self._groups[group]
        del channels[connection]
        if not channels:
            del self._groups[group]
