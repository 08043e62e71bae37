"""The members of a client, and the table of what brokers ask of them: from request code to the member's method.

A member is a producer or a consumer that is registered with the client instance under its group. A request names the
group; what is asked of a group that is not here, or of something this client does not do yet, is refused in words.

Source: Apache RocketMQ 5.x ``ClientRemotingProcessor``, ``MQProducerInner``, ``MQConsumerInner``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from rocketbox.client.api.stored_names import unwrap_names
from rocketbox.client.routes import TopicRoute
from rocketbox.errors import RemoteProtocolError, RocketBoxError
from rocketbox.message import MessageExt, Property
from rocketbox.protocol.bodies import ConsumerData
from rocketbox.protocol.codes import RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.namespaces import Namespace
from rocketbox.protocol.stored_message import decode_messages
from rocketbox.remoting.connection import Connection

__all__ = [
    "CONSUMER_REQUESTS",
    "REFUSED_REQUESTS",
    "ConsumerMember",
    "ConsumerRequest",
    "ProducerMember",
    "refusal",
    "serve_transaction_check",
]


class ConsumerMember(Protocol):
    """What an instance wants to know from a consumer that is registered with it."""

    @property
    def group(self) -> str:
        """The consumer group."""

    def consumer_data(self) -> ConsumerData:
        """What the heartbeat says of this consumer."""

    def topics(self) -> set[str]:
        """The topics whose routes are kept fresh, the retry topic among them."""

    def on_route_changed(self, topic: str, route: TopicRoute) -> None:
        """One of its topics has a route for the first time, or another one than before."""

    def on_ids_changed(self) -> None:
        """Members of the group came or went, or a broker has just come to know this one: rebalance now."""

    def has_offsets_to_persist(self) -> bool:
        """Whether :meth:`persist_offsets` has anything to do."""

    async def persist_offsets(self) -> None:
        """Tell the brokers, or write to disk, how far the group has consumed."""


class ProducerMember(Protocol):
    """What an instance wants to know from a producer that is registered with it."""

    @property
    def group(self) -> str:
        """The producer group."""

    def topics_in_use(self) -> set[str]:
        """The topics that it has sent to since this was asked last, and those by whose brokers it is to be known: their
        routes are kept fresh.
        """

    def check_transaction(self, connection: Connection, request: RemotingCommand, message: MessageExt) -> None:
        """A broker asks what became of the transaction of a message of this group; it is told later."""


@dataclass(frozen=True)
class ConsumerRequest:
    """A request to the consumer whose group the field names; ``method`` gives the answer."""

    group_field: str
    method: Callable[[ConsumerMember, RemotingCommand], RemotingCommand]

    def serve(
        self, consumers: Mapping[str, ConsumerMember], request: RemotingCommand, namespace: Namespace
    ) -> RemotingCommand:
        """What the member answers; code 1 when there is no consumer of the group here."""
        group = namespace.unwrap(request.ext_fields.get(self.group_field, ""))
        member = consumers.get(group)
        if member is None:
            return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, f"no consumer of group {group!r} runs here")
        return self.method(member, request)


def _ids_changed(member: ConsumerMember, request: RemotingCommand) -> RemotingCommand:
    member.on_ids_changed()
    return RemotingCommand.response()


CONSUMER_REQUESTS: Mapping[RequestCode, ConsumerRequest] = {
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: ConsumerRequest("consumerGroup", _ids_changed),
}

REFUSED_REQUESTS: Mapping[RequestCode, str] = {
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: "a running consumer cannot be reset; stop the group, set its offsets "
    "with Admin.commit or mqadmin, and start it again",
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: "consumers do not tell their offsets; ask the brokers for those that "
    "are committed",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "consumers do not describe themselves to mqadmin; see the service's health",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "a message cannot be handed to a consumer; send it to the topic again",
}
"""What this client does not do yet, and what to do instead: a clear answer is more than a request that does nothing."""


def serve_transaction_check(
    producers: Mapping[str, ProducerMember],
    connection: Connection,
    request: RemotingCommand,
    namespace: Namespace,
    max_body_bytes: int,
    unreadable: Callable[[RocketBoxError | ValueError], None],
) -> RemotingCommand | None:
    """Hand the question of a broker (39) to the producer of the group that the message names.

    A body is unpacked to at most ``max_body_bytes``. ``unreadable`` is told why one cannot be read: brokers ask
    one-way.
    """
    try:
        (message,) = decode_messages(request.body, max_body_bytes=max_body_bytes)
    except (RemoteProtocolError, ValueError) as error:
        unreadable(error)
        return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, f"the message cannot be read: {error}")
    unwrap_names([message], namespace)
    group = namespace.unwrap(message.properties.get(Property.PGROUP, ""))
    member = producers.get(group)
    if member is None:
        return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, f"no producer of group {group!r} runs here")
    member.check_transaction(connection, request, message)
    return None


def refusal(code: RequestCode) -> RemotingCommand:
    """The answer to a request of REFUSED_REQUESTS."""
    text = f"request {code:d} ({code.name}) is not served by rocketbox's client: {REFUSED_REQUESTS[code]}"
    return RemotingCommand.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)
