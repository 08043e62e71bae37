"""What the broker asks and tells its clients, over the connections they have opened.

Holds who is reached and what happens when nobody answers; what is asked are small objects that write the request and,
if there is one, read the answer. In which serialization is the connection's part: the one its peer used last.

Source: Apache RocketMQ 5.x ``Broker2Client``, ``DefaultConsumerIdsChangeListener``,
``AdminBrokerProcessor.callConsumer``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol, TypeVar

import anyio
import anyio.lowlevel

from rocketbox.broker.clients import ConsumerGroup, ConsumerTable
from rocketbox.broker.groups import GroupTable
from rocketbox.clock import Clock
from rocketbox.errors import BrokerError, ConnectionClosedError, RemotingError
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.remoting.connection import Connection

__all__ = [
    "TOLD_AT_ONCE",
    "ClientNotOnlineError",
    "ClientNotice",
    "ClientRequest",
    "ClientRequests",
    "ConsumerIdsChanged",
]

_log = logging.getLogger(__name__)

TOLD_AT_ONCE = 100  # members of a group, in one turn of the loop: about 0.5 ms
NOTICE_PAUSE = 0.1  # seconds for which changes of a large group are gathered
ANSWER_TIMEOUT = 5.0  # seconds; Apache's, of its admin's questions to consumers

AnswerT_co = TypeVar("AnswerT_co", covariant=True)


class ClientNotice(Protocol):
    """What a client is told."""

    def encode(self) -> RemotingCommand: ...


class ClientRequest(Protocol[AnswerT_co]):
    """What a client is asked."""

    def encode(self) -> RemotingCommand: ...

    def decode(self, response: RemotingCommand) -> AnswerT_co:
        """The answer in a response of code 0. Raises RemoteProtocolError when it cannot be read."""


class ClientNotOnlineError(RemotingError):
    """No member of the group with that id is connected."""

    def __init__(self, group: str, client_id: str) -> None:
        self.group = group
        self.client_id = client_id
        super().__init__(f"the consumer <{group}> <{client_id}> is not online")


@dataclass(frozen=True)
class ConsumerIdsChanged:
    """The members of a group, or its topics, have changed (40)."""

    group: str

    def encode(self) -> RemotingCommand:
        return RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": self.group})


class ClientRequests:
    """Requests from this broker to its clients. :meth:`run` is its task, which tells large groups."""

    def __init__(self, groups: GroupTable, consumers: ConsumerTable[Connection], clock: Clock) -> None:
        self._groups = groups
        self._consumers = consumers
        self._clock = clock
        self._changed: dict[str, None] = {}  # large groups whose members are to be told
        self._signal = anyio.Event()
        self.dropped = 0
        """Notices that were not sent, because their clients did not take what they were sent before."""

    def consumer_ids_changed(self, group: ConsumerGroup[Connection]) -> None:
        """Have the members of a group share the queues anew.

        Those of a large one are told a moment later, of all changes until then at once: thousands that come one after
        another, or one that comes and goes, would have thousands of notices sent for each of them.
        """
        config = self._groups.get(group.name)
        if config is not None and not config.notify_consumer_ids_changed_enable:
            return
        if len(group.channels) > TOLD_AT_ONCE:
            self._changed[group.name] = None
            self._signal.set()
            return
        notice = ConsumerIdsChanged(group.name)
        for connection in list(group.channels):
            self.tell(connection, notice)

    async def run(self) -> None:
        """Tell the members of large groups, few in a turn of the loop, for ever."""
        while True:
            await self._signal.wait()
            self._signal = anyio.Event()
            await self._clock.sleep(NOTICE_PAUSE)
            changed, self._changed = self._changed, {}
            for name in changed:
                group, notice = self._consumers.group(name), ConsumerIdsChanged(name)
                for number, connection in enumerate(list(group.channels) if group is not None else (), 1):
                    self.tell(connection, notice)
                    if number % TOLD_AT_ONCE == 0:
                        await anyio.lowlevel.checkpoint()

    def tell(self, connection: Connection, notice: ClientNotice) -> None:
        """Send a notice, which is not answered; one to a client that is gone, or reads nothing, is dropped.

        Who misses a notice loses nothing but time: clients look after a while by themselves.
        """
        if connection.congested:
            self.dropped += 1
            _log.debug("%s does not read: it is not told %r", connection.remote_address, notice)
            return
        try:
            connection.send_oneway(notice.encode())
        except ConnectionClosedError:
            _log.debug("%s was gone before it was told %r", connection.remote_address, notice)

    async def ask(
        self, group: str, client_id: str, request: ClientRequest[AnswerT_co], *, timeout: float = ANSWER_TIMEOUT
    ) -> AnswerT_co:
        """What a member of a group answers.

        Raises ClientNotOnlineError, ConnectionClosedError when it leaves meanwhile, RequestTimeoutError and
        TooManyRequestsError when it is mute, BrokerError with the code that it answered instead, RemoteProtocolError
        when its answer cannot be read.
        """
        connection = self._connection_of(group, client_id)
        response = await connection.request(request.encode(), timeout=timeout)
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark, connection.remote_address)
        return request.decode(response)

    def _connection_of(self, group: str, client_id: str) -> Connection:
        members = self._consumers.group(group)
        for connection, channel in members.channels.items() if members is not None else ():
            if channel.client_id == client_id and not connection.closed:
                return connection
        raise ClientNotOnlineError(group, client_id)
