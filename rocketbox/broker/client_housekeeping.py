"""Forgetting clients: those whose connection closed, that send no heartbeat any more, or may not be members any more.

Source: Apache RocketMQ 5.x ``ClientHousekeepingService``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import anyio
import anyio.lowlevel

from rocketbox.access.control import AccessControl
from rocketbox.access.resources import Action, Need, group_need, topic_need
from rocketbox.broker.clients import ClientChannel, ConsumerTable, ProducerTable
from rocketbox.broker.locks import QueueLocks
from rocketbox.clock import Clock
from rocketbox.rare_log import RareLog
from rocketbox.remoting.connection import Connection

__all__ = ["ClientHousekeeping", "membership_needs"]

_log = logging.getLogger(__name__)

CLIENT_SCAN_INTERVAL = 10.0  # seconds between two looks, at least
MEMBERS_OF_A_STEP = 100  # whose rights are looked at in one turn of the loop: about 0.5 ms


def membership_needs(group: str, topics: Iterable[str]) -> Iterator[Need]:
    """What a member of a consumer group needs: to consume in it, and from each topic it is subscribed to."""
    yield group_need(group, Action.SUB)
    for topic in topics:
        yield topic_need(topic, Action.SUB)


class ClientHousekeeping:
    """Keeps the tables of clients free of those that are gone. :meth:`run` is its task.

    With access control :meth:`follow_rights` is another: a member whose user was deleted or disabled, or may not
    consume in the group any more, is dropped at once, since it would hold queues of which it gets nothing. (A changed
    key drops nobody: members sign with the new one in a moment. Apache's broker waits for missing heartbeats in each
    case.) Locks of queues stay until they end, for its handlers may still be at work.
    """

    def __init__(
        self,
        consumers: ConsumerTable[Connection],
        producers: ProducerTable[Connection],
        locks: QueueLocks,
        clock: Clock,
    ) -> None:
        self._consumers = consumers
        self._producers = producers
        self._locks = locks
        self._clock = clock
        self._rights_changed = anyio.Event()
        self._log = RareLog(_log)

    def connection_closed(self, connection: Connection) -> None:
        """A client is gone; its groups' other members are told."""
        self._producers.on_close(connection)
        self._consumers.on_close(connection)

    async def run(self) -> None:
        """Drop the silent ones and the locks nobody renews, for ever."""
        while True:
            # Whoever comes meanwhile has the whole time as well.
            first = min(each.first_expiry() for each in (self._locks, self._consumers, self._producers))
            await self._clock.sleep(max(CLIENT_SCAN_INTERVAL, first - self._clock.monotonic()))
            self._locks.expire()
            for connection in {*self._consumers.expire(), *self._producers.expire()}:
                _log.warning("the client at %s sent no heartbeat and is dropped", connection.remote_address)
                connection.close("no heartbeat")

    def rights_changed(self) -> None:
        """Accounts or their rights have changed: have :meth:`follow_rights` look at all members."""
        self._rights_changed.set()

    async def follow_rights(self, access: AccessControl) -> None:
        """Drop those who may not be members any more whenever rights have changed, for ever."""
        while True:
            await self._rights_changed.wait()
            self._rights_changed = anyio.Event()
            for number, (connection, name) in enumerate(self._consumers.memberships, 1):
                group = self._consumers.group(name)
                channel = None if group is None else group.channels.get(connection)
                if group is not None and channel is not None:
                    needs = membership_needs(name, group.subscriptions)
                    if self._may_not(access, connection, channel, needs, name):
                        self._consumers.drop(connection, name)
                if number % MEMBERS_OF_A_STEP == 0:
                    await anyio.lowlevel.checkpoint()
            for number, (connection, name) in enumerate(self._producers.memberships, 1):
                channel = self._producers.channel(connection, name)
                if channel is not None and self._may_not(access, connection, channel, (), name):
                    self._producers.drop(connection, name)
                if number % MEMBERS_OF_A_STEP == 0:
                    await anyio.lowlevel.checkpoint()

    def _may_not(
        self, access: AccessControl, connection: Connection, channel: ClientChannel, needs: Iterable[Need], group: str
    ) -> bool:
        if access.may_still(connection, channel.access_key, needs):
            return False
        self._log.tell(
            logging.WARNING, self._clock.monotonic(), "rights",
            "the client at %s is dropped from group %s: its user is gone, or may not be a member any more",
            connection.remote_address, ascii(group)[1:-1],
        )  # fmt: skip
        return True
