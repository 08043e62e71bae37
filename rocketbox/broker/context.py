"""What every request handler of a broker is given: its tables, its store, and the parts that answer, ask and announce.

A handler class is made with the context alone, and says by ``codes()`` which requests it answers; the broker joins what
they say. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from rocketbox.access.control import AccessControl
from rocketbox.access.resources import Need
from rocketbox.broker.askers import Askers
from rocketbox.broker.client_requests import ClientRequests
from rocketbox.broker.clients import ConsumerTable, ProducerTable
from rocketbox.broker.durable_replies import DurableReplies
from rocketbox.broker.filters import FilterFactory
from rocketbox.broker.groups import GroupTable
from rocketbox.broker.half_messages import HalfMessages
from rocketbox.broker.locks import QueueLocks
from rocketbox.broker.offsets import OffsetTable
from rocketbox.broker.options import BrokerOptions
from rocketbox.broker.persister import Persister
from rocketbox.broker.pull_hold import PullHold
from rocketbox.broker.put_stage import PutStage
from rocketbox.broker.registration import Registration
from rocketbox.broker.store.message_store import MessageStore
from rocketbox.broker.timers import TimerDelivery
from rocketbox.broker.topics import TopicTable
from rocketbox.clock import Clock
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.connection import Connection, RequestHandler
from rocketbox.remoting.turns import Turns

__all__ = ["BrokerContext", "Handlers", "join_codes"]


@dataclass(frozen=True, kw_only=True)
class BrokerContext:
    """The parts of one broker."""

    options: BrokerOptions
    clock: Clock
    store: MessageStore
    """For reading; what is stored goes through ``puts``."""
    puts: PutStage
    halves: HalfMessages
    """The open transactions."""
    replies: DurableReplies
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    consumers: ConsumerTable[Connection]
    producers: ProducerTable[Connection]
    locks: QueueLocks
    held_pulls: PullHold
    timers: TimerDelivery
    registration: Registration
    filters: Mapping[str, FilterFactory]
    """What makes the filter of a subscription, by its expression type."""
    requests: ClientRequests
    persister: Persister
    turns: Turns
    """For requests that take long in the loop."""
    access: AccessControl | None = None
    """Who may do what; None: everybody everything."""
    askers: Askers
    """Whose requests are to be answered; known with access control alone."""

    def refusal(
        self, connection: Connection, request: RemotingCommand, needs: Iterable[Need]
    ) -> RemotingCommand | None:
        """The answer to somebody who may not do what a handler has read in his request; None when he may."""
        return None if self.access is None else self.access.refusal(connection, request, needs)


class Handlers(Protocol):
    """A family of request handlers."""

    def codes(self) -> Mapping[int, RequestHandler]:
        """Which handler answers which request code."""


def join_codes(families: Iterable[Handlers]) -> dict[int, RequestHandler]:
    """The handlers of all families by code. Raises ValueError when two answer the same code."""
    joined: dict[int, RequestHandler] = {}
    owners: dict[int, str] = {}
    for family in families:
        name = type(family).__name__
        for code, handler in family.codes().items():
            if code in owners:
                raise ValueError(f"request code {int(code)} is answered by {owners[code]} and by {name}")
            joined[int(code)] = handler
            owners[int(code)] = name
    return joined
