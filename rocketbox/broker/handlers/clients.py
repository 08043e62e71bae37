"""Clients: heartbeats (34), leaving (35), who is in a group (38), queue locks (41, 42), what they ask for (46).

Source: Apache RocketMQ 5.x ``ClientManageProcessor``, ``ConsumerManageProcessor``, ``AdminBrokerProcessor``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from typing import NamedTuple

from rocketbox.access.resources import Action, Need, group_need, topic_need
from rocketbox.broker.client_housekeeping import membership_needs
from rocketbox.broker.clients import ClientChannel
from rocketbox.broker.context import BrokerContext
from rocketbox.broker.limits import LimitError
from rocketbox.errors import RemoteProtocolError
from rocketbox.message import MessageQueue
from rocketbox.protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    ProducerData,
    encode_consumer_list,
    heartbeat_in_steps,
    lock_request_in_steps,
    lock_response_in_steps,
)
from rocketbox.protocol.codes import RequestCode, ResponseCode, retry_topic
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import GetConsumerListByGroupRequestHeader, UnregisterClientRequestHeader
from rocketbox.protocol.loose_json import Steps, loads_in_steps
from rocketbox.remoting.connection import Connection, RequestHandler
from rocketbox.remoting.signing import ACCESS_KEY

__all__ = ["ClientHandler"]

_FINGERPRINT = "broker.heartbeat_fingerprint"  # attribute of a connection


GROUPS_OF_A_STEP = 20  # a new one takes some 50 us
QUEUES_OF_A_STEP = 500
LONGEST_SHOWN = 100  # characters of a name that an answer repeats
LONGEST_NAME = 255  # characters of a name that is kept
LONGEST_CLIENT_ID = 1024  # Java's have some 60: address, process and time


class _Answer(NamedTuple):
    """What a client is answered, once the name servers know some topics."""

    response: RemotingCommand
    new_topics: list[str]


class ClientHandler:
    """Answers what clients say about themselves."""

    def __init__(self, context: BrokerContext) -> None:
        self._refusal = context.refusal
        self._topics = context.topics
        self._groups = context.groups
        self._consumers = context.consumers
        self._filters = context.filters
        self._producers = context.producers
        self._locks = context.locks
        self._registration = context.registration
        self._clock = context.clock
        self._turns = context.turns
        self._most_groups = context.options.max_groups_per_connection

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
        return self._in_turns(connection, self._take_beat(connection, request))

    def _take_beat(self, connection: Connection, request: RemotingCommand) -> Steps[_Answer]:
        beat = yield from heartbeat_in_steps(request.body)
        for count in (len(beat.producer_data_set), len(beat.consumer_data_set)):
            if count > self._most_groups:
                self._consumers.memberships.refused += 1
                raise LimitError(
                    f"a heartbeat names {count} groups of a kind", self._most_groups, "max-groups-per-connection"
                )
        _check_beat(beat)
        refusal = self._refusal(connection, request, _beat_needs(beat))
        if refusal is not None:
            return _Answer(refusal, [])
        channel = ClientChannel(
            beat.client_id,
            request.language,
            request.version,
            self._clock.monotonic(),
            request.ext_fields.get(ACCESS_KEY),
        )
        new_topics: list[str] = []
        refused: LimitError | None = None
        groups: list[ProducerData | ConsumerData] = [*beat.producer_data_set, *beat.consumer_data_set]
        for number, group in enumerate(groups, 1):
            if connection.closed:  # it was forgotten, which must not come before what is noted here
                break
            if number > GROUPS_OF_A_STEP:  # meanwhile its rights may have been taken, and it was dropped
                refusal = self._refusal(connection, request, _group_needs(group))
                if refusal is not None:
                    return _Answer(refusal, new_topics)
            try:
                if isinstance(group, ConsumerData):
                    new_topics += self._register_consumer(connection, channel, group, without_sub=beat.without_sub)
                else:
                    self._producers.register(group.group_name, connection, channel)
            except LimitError as error:  # the client's other groups are as good as before
                refused = refused or error
            if number % GROUPS_OF_A_STEP == 0:
                yield
        if refused is not None:
            raise refused
        return _Answer(_beat_response(connection, beat), new_topics)

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

    def check_config(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None]:
        """Whether a subscription could be served: what the broker has no filter for, it could not."""
        return self._in_turns(connection, self._check_config(request))

    def lock(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None]:
        """Lock queues for a client; which of them it holds now."""
        return self._in_turns(connection, self._lock(connection, request))

    def unlock(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None]:
        """Give a client's locks back."""
        return self._in_turns(connection, self._unlock(connection, request))

    def _check_config(self, request: RemotingCommand) -> Steps[_Answer]:
        try:
            body = yield from loads_in_steps(request.body)
        except ValueError as error:
            raise RemoteProtocolError(f"a subscription cannot be read: {error}") from None
        subscription = body.get("subscriptionData") if isinstance(body, dict) else None
        kind = (subscription.get("expressionType") if isinstance(subscription, dict) else None) or "TAG"
        if kind in self._filters:
            return _Answer(RemotingCommand.response(), [])
        remark = f"The broker does not support consumer to filter message by {str(kind)[:LONGEST_SHOWN]}"
        return _Answer(RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark), [])

    def _lock(self, connection: Connection, request: RemotingCommand) -> Steps[_Answer]:
        body = yield from lock_request_in_steps(request.body)
        _check_length("client id", body.client_id, LONGEST_CLIENT_ID)
        _check_length("name of a group", body.consumer_group)
        refusal = self._refusal(connection, request, _lock_needs(body))
        if refusal is not None:
            return _Answer(refusal, [])
        held: list[MessageQueue] = []
        for start in range(0, len(body.mq_set), QUEUES_OF_A_STEP):
            queues = body.mq_set[start : start + QUEUES_OF_A_STEP]
            for queue in queues:
                _check_length("name of a topic", queue.topic)
                _check_length("name of a broker", queue.broker_name)
            held += self._locks.lock(body.consumer_group, body.client_id, queues, connection.remote_address)
            if start + QUEUES_OF_A_STEP < len(body.mq_set):
                yield
        return _Answer(RemotingCommand.response(body=(yield from lock_response_in_steps(held))), [])

    def _unlock(self, connection: Connection, request: RemotingCommand) -> Steps[_Answer]:
        body = yield from lock_request_in_steps(request.body)
        refusal = self._refusal(connection, request, _lock_needs(body))
        if refusal is not None:
            return _Answer(refusal, [])
        for start in range(0, len(body.mq_set), QUEUES_OF_A_STEP):
            queues = body.mq_set[start : start + QUEUES_OF_A_STEP]
            self._locks.unlock(body.consumer_group, body.client_id, queues)
            if start + QUEUES_OF_A_STEP < len(body.mq_set):
                yield
        return _Answer(RemotingCommand.response(), [])

    # --- large requests ---

    def _in_turns(
        self, connection: Connection, steps: Steps[_Answer]
    ) -> RemotingCommand | Awaitable[RemotingCommand | None]:
        """The answer; of a large request later, done in turns with everybody else."""
        try:
            answer = self._turns.run(steps, connection)
        except LimitError as error:
            return RemotingCommand.response(error.code, str(error))
        if isinstance(answer, _Answer):
            return self._answer(answer)
        return self._answer_later(answer)

    async def _answer_later(self, awaited: Awaitable[_Answer]) -> RemotingCommand | None:
        try:
            answer = self._answer(await awaited)
        except LimitError as error:
            return RemotingCommand.response(error.code, str(error))
        return await answer if isinstance(answer, Awaitable) else answer

    def _answer(self, answer: _Answer) -> RemotingCommand | Awaitable[RemotingCommand | None]:
        if any(self._registration.is_pending(topic) for topic in answer.new_topics):
            return self._answer_when_known(answer.new_topics, answer.response)
        return answer.response

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


def _beat_needs(beat: HeartbeatData) -> Iterator[Need]:
    """To consume in each group that a client says it is of, and from each topic it says it wants."""
    for consumer in beat.consumer_data_set:
        yield from _group_needs(consumer)


def _group_needs(group: ProducerData | ConsumerData) -> Iterator[Need]:
    if isinstance(group, ConsumerData):
        yield from membership_needs(group.group_name, (each.topic for each in group.subscription_data_set))


def _lock_needs(body: LockBatchRequestBody) -> Iterator[Need]:
    """To consume in the group, and from the topic of each queue."""
    yield group_need(body.consumer_group, Action.SUB)
    for topic in {queue.topic for queue in body.mq_set}:
        yield topic_need(topic, Action.SUB)


def _check_beat(beat: HeartbeatData) -> None:
    """Whether what would be kept of it has a length that it may have; subscriptions have a budget of their own."""
    _check_length("client id", beat.client_id, LONGEST_CLIENT_ID)
    for producer in beat.producer_data_set:
        _check_length("name of a group", producer.group_name)
    for consumer in beat.consumer_data_set:
        _check_length("name of a group", consumer.group_name)
        _check_length("consume type", consumer.consume_type)


def _check_length(what: str, text: str, most: int = LONGEST_NAME) -> None:
    """Raises RemoteProtocolError."""
    if len(text) > most:
        raise RemoteProtocolError(f"the {what} has {len(text)} characters; {most} is the most")


def _beat_response(connection: Connection, beat: HeartbeatData) -> RemotingCommand:
    return RemotingCommand.response(
        ext_fields={
            "IS_SUPPORT_HEART_BEAT_V2": "true",
            "IS_SUB_CHANGE": "true" if _is_news(connection, beat) else "false",
        }
    )


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
