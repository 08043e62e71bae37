"""Clients: heartbeats (34), leaving (35), who is in a group (38), queue locks (41, 42), what they ask for (46).

Source: Apache RocketMQ 5.x ``ClientManageProcessor``, ``ConsumerManageProcessor``, ``AdminBrokerProcessor``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from rocketbox.broker.clients import ClientChannel
from rocketbox.broker.context import BrokerContext
from rocketbox.broker.limits import LimitError
from rocketbox.errors import RemoteProtocolError
from rocketbox.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    decode_heartbeat,
    decode_lock_batch_request,
    encode_consumer_list,
    encode_lock_batch_response,
    loads_loose,
)
from rocketbox.protocol.codes import RequestCode, ResponseCode, retry_topic
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import GetConsumerListByGroupRequestHeader, UnregisterClientRequestHeader
from rocketbox.remoting.connection import Connection, RequestHandler

__all__ = ["ClientHandler"]

_FINGERPRINT = "broker.heartbeat_fingerprint"  # attribute of a connection


class ClientHandler:
    """Answers what clients say about themselves."""

    def __init__(self, context: BrokerContext) -> None:
        self._topics = context.topics
        self._groups = context.groups
        self._consumers = context.consumers
        self._filters = context.filters
        self._producers = context.producers
        self._locks = context.locks
        self._registration = context.registration
        self._clock = context.clock

    def codes(self) -> Mapping[int, RequestHandler]:
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
        }

    def heartbeat(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None]:
        """Take a client's groups in; before the answer the name servers know each group's retry topic."""
        beat = decode_heartbeat(request.body)
        channel = ClientChannel(beat.client_id, request.language, request.version, self._clock.monotonic())
        new_topics: list[str] = []
        refused: LimitError | None = None
        for producer in beat.producer_data_set:
            try:
                self._producers.register(producer.group_name, connection, channel)
            except LimitError as error:
                refused = error
                break
        for consumer in beat.consumer_data_set:
            try:
                new_topics += self._register_consumer(connection, channel, consumer, without_sub=beat.without_sub)
            except LimitError as error:  # the client's other groups are as good as before
                refused = refused or error
        if refused is not None:
            return RemotingCommand.response(refused.code, str(refused))
        response = RemotingCommand.response(
            ext_fields={
                "IS_SUPPORT_HEART_BEAT_V2": "true",
                "IS_SUB_CHANGE": "true" if _is_news(connection, beat) else "false",
            }
        )
        if any(self._registration.is_pending(topic) for topic in new_topics):
            return self._answer_when_known(new_topics, response)
        return response

    def unregister(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """A client leaves its groups; their other members are told."""
        header = UnregisterClientRequestHeader.decode(request.ext_fields)
        if header.producer_group:
            self._producers.unregister(header.producer_group, header.client_id, connection)
        if header.consumer_group:
            self._consumers.unregister(header.consumer_group, header.client_id, connection)
        return RemotingCommand.response()

    def consumer_list(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """The ids of a group's members; 1 when it has none."""
        header = GetConsumerListByGroupRequestHeader.decode(request.ext_fields)
        group = self._consumers.group(header.consumer_group)
        if group is None:
            return RemotingCommand.response(
                ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}"
            )
        return RemotingCommand.response(body=encode_consumer_list(group.client_ids()))

    def check_config(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Whether a subscription could be served: what the broker has no filter for, it could not."""
        try:
            body = loads_loose(request.body)
        except ValueError as error:
            raise RemoteProtocolError(f"a subscription cannot be read: {error}") from None
        subscription = body.get("subscriptionData") if isinstance(body, dict) else None
        kind = (subscription.get("expressionType") if isinstance(subscription, dict) else None) or "TAG"
        if kind in self._filters:
            return RemotingCommand.response()
        return RemotingCommand.response(
            ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind}"
        )

    def lock(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Lock queues for a client; which of them it holds now."""
        body = decode_lock_batch_request(request.body)
        try:
            held = self._locks.lock(body.consumer_group, body.client_id, body.mq_set)
        except LimitError as error:
            return RemotingCommand.response(error.code, str(error))
        return RemotingCommand.response(body=encode_lock_batch_response(held))

    def unlock(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Give a client's locks back."""
        body = decode_lock_batch_request(request.body)
        self._locks.unlock(body.consumer_group, body.client_id, body.mq_set)
        return RemotingCommand.response()

    def _register_consumer(
        self, connection: Connection, channel: ClientChannel, data: ConsumerData, *, without_sub: bool
    ) -> list[str]:
        """The group's retry topic; none when the group is unknown and may not be made. Raises LimitError."""
        group = self._groups.find(data.group_name, connection.remote_address)
        if group is None:
            return []
        topic = retry_topic(data.group_name)
        ordered = any(
            known.order
            for subscription in data.subscription_data_set
            if (known := self._topics.get(subscription.topic)) is not None
        )
        if group.retry_queue_nums > 0:
            self._topics.create_for_group(topic, group.retry_queue_nums, order=ordered, by=connection.remote_address)
        self._consumers.register(
            data.group_name,
            connection,
            channel,
            consume_type=data.consume_type,
            message_model=data.message_model,
            consume_from_where=data.consume_from_where,
            subscriptions=None if without_sub else data.subscription_data_set,
        )
        return [topic]

    async def _answer_when_known(self, topics: list[str], response: RemotingCommand) -> RemotingCommand:
        await self._registration.announced(*topics)
        return response


def _is_news(connection: Connection, beat: HeartbeatData) -> bool:
    """Whether the client should go on sending whole beats.

    A client that sends a fingerprint leaves its subscriptions out once we have seen that fingerprint.
    """
    if beat.heartbeat_fingerprint == 0:
        return True
    known = connection.attributes.get(_FINGERPRINT)
    if not beat.without_sub:
        connection.attributes[_FINGERPRINT] = beat.heartbeat_fingerprint
    return bool(known != beat.heartbeat_fingerprint)
