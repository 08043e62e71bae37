"""Topics by request: made or changed (17), listed (21), deleted (215).

Source: Apache RocketMQ 5.x ``AdminBrokerProcessor`` (updateAndCreateTopic, getAllTopicConfig, deleteTopic).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Mapping

from rocketbox.blocking import run_blocking
from rocketbox.broker.context import BrokerContext
from rocketbox.broker.handlers.refused import Refused
from rocketbox.broker.limits import LimitError
from rocketbox.broker.names import topic_name_problem
from rocketbox.broker.topic_attributes import change_attributes
from rocketbox.errors import StoreError
from rocketbox.protocol.admin_bodies import encode_topic_configs
from rocketbox.protocol.codes import PermName, RequestCode, ResponseCode, is_system_topic
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import CreateTopicRequestHeader, DeleteTopicRequestHeader, PagedListRequestHeader
from rocketbox.protocol.registration_bodies import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from rocketbox.remoting.connection import Connection, RequestHandler
from rocketbox.safe_repr import one_line

__all__ = ["TopicHandler"]

_log = logging.getLogger(__name__)

FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")


class TopicHandler:
    """Answers what tools and programs ask about topics."""

    def __init__(self, context: BrokerContext) -> None:
        self._topics = context.topics
        self._takes_mixed = context.options.enable_mixed_message_type
        self._store = context.store
        self._offsets = context.offsets
        self._held_pulls = context.held_pulls
        self._registration = context.registration
        self._half_deleted: set[str] = set()  # which are not in the table any more, and could not be deleted whole

    def codes(self) -> Mapping[int, RequestHandler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.put,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.list_all,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
        }

    def put(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None]:
        """Make or change a topic; answered when it is written down and the name servers know it."""
        header = CreateTopicRequestHeader.decode(request.ext_fields)
        try:
            topic = self._wanted(header)
        except Refused as refused:
            return refused.response()
        return self._put(topic, connection.remote_address)

    async def _put(self, topic: TopicConfig, peer: str) -> RemotingCommand:
        known = topic == self._topics.get(topic.topic_name)
        try:  # what is known may be so from an attempt that could not be written down
            change = self._topics.last_change if known else self._topics.put(topic)
            await self._topics.change_written(change)
        except LimitError as error:
            return RemotingCommand.response(error.code, str(error))
        except StoreError as error:
            return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, str(error))
        await self._registration.announced(topic.topic_name)
        if not known:
            _log.info("topic %s was made or changed by %s: %s", topic.topic_name, peer, topic)
        return RemotingCommand.response()

    def _wanted(self, header: CreateTopicRequestHeader) -> TopicConfig:
        """The topic as it should be. Raises Refused.

        Apache takes any permission and any number of queues, 0 and less among them; such a topic cannot be used.
        """
        name = header.topic
        check_topic(name, built_in=self._topics.is_built_in(name))
        if header.topic_filter_type not in FILTER_TYPES:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"topicFilterType = [{header.topic_filter_type}] value invalid")
        if min(header.read_queue_nums, header.write_queue_nums) < 1:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"topic {name} would have {header.read_queue_nums} queues to read and {header.write_queue_nums} to "
                "write; it needs one at least (its permission may forbid to read or write)",
            )
        if not 0 <= header.perm < PermName.PRIORITY:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"{header.perm} is no permission: it is a sum of 4 (read), 2 (write) and 1 (inherit)",
            )
        known = self._topics.get(name)
        try:
            attributes = change_attributes(None if known is None else known.attributes, header.attributes or "")
        except ValueError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        if not self._takes_mixed and "+message.type=MIXED" in (header.attributes or "").split(","):
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"MIXED message type is not supported. Topic {name} would have message.type=MIXED; give it NORMAL, "
                "FIFO, DELAY or TRANSACTION, or leave it out, or set enable-mixed-message-type",
            )
        return TopicConfig(
            topic_name=name,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
            attributes=attributes,
        )

    async def list_all(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """All topics, or from the ``topicSeq``-th on as many as ``maxTopicNum`` says.

        A part of another version of the table than the asker has (``dataVersion``) begins at the first topic.
        """
        header = PagedListRequestHeader.decode(request.ext_fields)
        version = self._topics.version
        topics = list(self._topics.all().values())  # in the order in which they were made: new ones come last
        first = header.topic_seq if header.data_version and _version_of(header.data_version) == version else 0
        page = topics[first:] if header.max_topic_num is None else topics[first : first + header.max_topic_num]
        wrapper = TopicConfigSerializeWrapper({topic.topic_name: topic for topic in page}, version)
        body = await run_blocking(encode_topic_configs, wrapper)
        return RemotingCommand.response(ext_fields={"totalTopicNum": str(len(topics))}, body=body)

    def delete(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None]:
        """Delete a topic, if it is there: its queues, and how far groups are in it; its records stay until retention.

        The route is the name servers' part: whoever deletes a topic tells them next (216). A producer that goes on
        sending makes the topic again, where that is allowed.
        """
        name = DeleteTopicRequestHeader.decode(request.ext_fields).topic
        try:
            check_deletable(name, built_in=self._topics.is_built_in(name))
        except Refused as refused:
            return refused.response()
        return self._delete(name, connection.remote_address)

    async def _delete(self, name: str, peer: str) -> RemotingCommand:
        was_there = self._was_there(name)
        change = self._topics.delete(name)
        if was_there:
            self._half_deleted.add(name)
        try:
            if was_there:  # the store keeps the names of deleted topics, and can keep so many of them
                await self._store.delete_topic(name)
                self._half_deleted.discard(name)
            self._offsets.delete_topic(name)
            self._held_pulls.wake_topic(name)
            await self._topics.change_written(change)
        except (StoreError, OSError, TimeoutError) as error:
            _log.error("topic %s could not be deleted: %s", one_line(name), error)
            return RemotingCommand.response(
                ResponseCode.SYSTEM_ERROR, f"topic {name} is not deleted for certain, try again: {error}"
            )
        _log.info("topic %s was deleted by %s", one_line(name), peer)
        return RemotingCommand.response()

    def _was_there(self, name: str) -> bool:
        """Whether there is anything of a topic: that it is in the table, messages, or what a deletion left."""
        return (
            self._topics.get(name) is not None
            or name in self._half_deleted
            or any(topic == name for topic, _ in self._store.queues())
        )


def check_deletable(name: str, *, built_in: bool) -> None:
    """Refuse what is no topic, or one that the broker uses itself; Apache looks at nothing else."""
    if not name.strip():
        raise Refused(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
    if built_in or is_system_topic(name):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")


def check_topic(name: str, *, built_in: bool) -> None:
    """Refuse a name that a topic cannot have, or that the broker uses itself."""
    problem = topic_name_problem(name)
    if problem is not None:
        raise Refused(ResponseCode.INVALID_PARAMETER, problem)
    check_deletable(name, built_in=built_in)


def _version_of(text: str) -> DataVersion | None:
    try:
        return DataVersion.from_json(json.loads(text))
    except (ValueError, TypeError, AttributeError):
        return None
