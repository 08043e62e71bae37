"""Pulls (11): the checks, the read with its filter, the long poll, and the commit that may come along.

Source: Apache RocketMQ 5.x ``PullMessageProcessor``, ``DefaultPullMessageResultHandler``, ``DefaultMessageFilter``.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass

from rocketbox.access.control import LONGEST_KEY
from rocketbox.access.resources import Action, Need, group_need, topic_need
from rocketbox.broker.context import BrokerContext
from rocketbox.broker.filters import filter_bytes
from rocketbox.broker.handlers.refused import Refused, check_committer
from rocketbox.broker.limits import LimitError
from rocketbox.broker.pull_hold import HELD_PULL_BYTES, HeldPull
from rocketbox.broker.store.message_filter import MessageFilter
from rocketbox.broker.store.reading import GetMessageStatus, GetResult
from rocketbox.errors import InvalidMessageError, StoreError
from rocketbox.message import MessageModel
from rocketbox.protocol.codes import PermName, PullSysFlag, RequestCode, ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.group_config import SubscriptionGroupConfig
from rocketbox.protocol.headers import PullMessageResponseHeader
from rocketbox.protocol.pull_frames import PullHead, PullReader, PullReplyTemplate
from rocketbox.protocol.tags import SubscriptionData, parse_subscription
from rocketbox.rare_log import RareLog
from rocketbox.remoting.connection import Connection, RequestHandler
from rocketbox.remoting.signing import ACCESS_KEY

__all__ = ["PullHandler"]

_log = logging.getLogger(__name__)

# Members taken once: with an enum ``&`` costs ten times as much.
_READ = int(PermName.READ)
_COMMIT_OFFSET = int(PullSysFlag.COMMIT_OFFSET)
_SUSPEND = int(PullSysFlag.SUSPEND)
_SUBSCRIPTION = int(PullSysFlag.SUBSCRIPTION)

_FORBIDDEN_BROKER = 1
_FORBIDDEN_GROUP = 2
_FORBIDDEN_TOPIC = 3
_FORBIDDEN_BROADCAST = 4

MAX_EXPRESSION = 65_536  # characters of a subscription, as of one in a heartbeat
SHORT_TEXT = 256  # characters that a pull on hold may keep
WRITTEN_AT_ONCE = 1 << 20  # bytes of records; whether an answer with more fits into a frame is looked at
_HELD_FIELDS = (
    "consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis",
    "subVersion",
)  # fmt: skip

_CODES = {
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


def _forbidden(remark: str, kind: int) -> Refused:
    return Refused(ResponseCode.NO_PERMISSION, remark, {"forbiddenType": str(kind)})


@dataclass(slots=True)
class _Pull:
    """A pull that passed the checks."""

    request: RemotingCommand
    head: PullHead
    offset: int
    filter: MessageFilter | None
    filter_bytes: int

    def let_go(self) -> None:
        """Keep only what the answer, and hooks, will need: a header may have megabytes, and very many pulls may wait.

        The fields that are kept are numbers, and names of what there is.
        """
        signed = len(self.request.ext_fields.get(ACCESS_KEY, "")) <= LONGEST_KEY  # a longer one is nobody's
        self.request.keep_fields((*_HELD_FIELDS, ACCESS_KEY) if signed else _HELD_FIELDS)
        if len(self.head.subscription or "") > SHORT_TEXT:
            self.head = dataclasses.replace(self.head, subscription=None)


class PullHandler:
    """Answers pulls, at once or when there is a message."""

    def __init__(self, context: BrokerContext) -> None:
        options = context.options
        self._options = options
        self._clock = context.clock
        self._log = RareLog(_log)
        self._topics = context.topics
        self._groups = context.groups
        self._consumers = context.consumers
        self._offsets = context.offsets
        self._filters = context.filters
        self._store = context.store
        self._most_messages = max(
            options.store.max_transfer_count_on_message_in_memory, options.store.max_transfer_count_on_message_in_disk
        )
        self._hold = context.held_pulls
        self._refusal = context.refusal
        self._reader = PullReader()
        self._found = PullReplyTemplate(GetMessageStatus.FOUND.name)

    def codes(self) -> Mapping[int, RequestHandler]:
        return {RequestCode.PULL_MESSAGE: self.handle}

    def handle(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Why there are no messages; None where there are, which are answered, or while the pull waits for one."""
        head, offset, commit_offset = self._reader.read(request)
        try:
            if head.sys_flag & _COMMIT_OFFSET:
                check_committer(head.consumer_group)
            pull = self._check(request, head, offset, connection.remote_address)
        except Refused as refused:
            return refused.response()
        except LimitError as error:
            return RemotingCommand.response(error.code, str(error))
        if head.sys_flag & _COMMIT_OFFSET:
            self._commit(head, commit_offset, connection.remote_address)
        try:
            found = self._store.get_from_memory(*self._wanted(pull))
        except StoreError as error:
            return _unreadable(error)
        if found is None:
            return self._handle_from_disk(connection, pull)
        return self._answer_or_hold(connection, pull, found)

    def _commit(self, head: PullHead, offset: int, client: str) -> None:
        """Keep the offset that came along. Where none more is kept the messages are for the group all the same."""
        try:
            self._offsets.commit(head.consumer_group, head.topic, head.queue_id, offset, client)
        except LimitError as error:
            self._log.tell(
                logging.WARNING, self._clock.monotonic(), error.setting,
                "the offset of %s in %s/%d, which came with a pull of %s, is not kept: %s",
                head.consumer_group, head.topic, head.queue_id, client, error,
            )  # fmt: skip

    async def _handle_from_disk(self, connection: Connection, pull: _Pull) -> RemotingCommand | None:
        try:
            found = await self._store.fetch(*self._wanted(pull))
        except (OSError, StoreError) as error:
            return _unreadable(error)
        return self._answer_or_hold(connection, pull, found)

    def _answer_or_hold(self, connection: Connection, pull: _Pull, found: GetResult) -> RemotingCommand | None:
        code, head = _code(found, pull.offset), pull.head
        if code == ResponseCode.PULL_NOT_FOUND and head.sys_flag & _SUSPEND:
            refusal = self._hold.refusal(connection, HELD_PULL_BYTES + pull.filter_bytes)
            if refusal is not None:
                return RemotingCommand.response(ResponseCode.SYSTEM_BUSY, f"[PULL_HOLD_FULL]{refusal}")
            pull.let_go()
            held = HeldPull(
                connection,
                pull,
                head.topic,
                head.queue_id,
                head.consumer_group,
                pull.offset,
                pull.filter,
                self._resume,
                HELD_PULL_BYTES + pull.filter_bytes,
            )
            self._hold.hold(held, self._suspend_seconds(head))
            return None
        return self._answer(connection, pull.request, code, found)

    def _answer(
        self, connection: Connection, request: RemotingCommand, code: ResponseCode, found: GetResult
    ) -> RemotingCommand | None:
        """The answer to a pull; None for messages, with which it is answered."""
        if code != ResponseCode.SUCCESS or (size := sum(map(len, found.records))) > WRITTEN_AT_ONCE:
            return _answer(code, found)
        frame = self._found.encode(
            request, found.next_begin_offset, found.min_offset, found.max_offset, found.records, size
        )
        connection.reply_frame(request, frame)
        return None

    def _resume(self, held: HeldPull) -> Awaitable[None] | None:
        """Answer a pull that was on hold, with whatever there is now.

        A peer that takes no bytes is told that there is nothing: what it does not read must not gather here, and it
        asks again when it has read that.
        """
        pull: _Pull = held.request
        connection: Connection = held.connection
        answer: RemotingCommand | None
        if connection.closed:
            return None
        try:
            if self._topics.get(held.topic) is None:
                answer = RemotingCommand.response(
                    ResponseCode.TOPIC_NOT_EXIST, f"topic[{held.topic}] not exist, apply first please!"
                )
            elif self._groups.get(held.group) is None:
                answer = RemotingCommand.response(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{held.group}] does not exist"
                )
            elif refusal := self._refusal(connection, pull.request, _pull_needs(held)):
                answer = refusal  # what was allowed when it came is not any more
            elif connection.congested:
                answer = _answer(ResponseCode.PULL_NOT_FOUND, self._nothing(held))
            else:
                found = self._store.get_from_memory(*self._wanted(pull))
                if found is None:
                    return self._resume_from_disk(connection, pull)
                answer = self._answer(connection, pull.request, _code(found, held.offset), found)
        except StoreError as error:
            answer = _unreadable(error)
        if answer is not None:
            connection.reply(pull.request, answer)
        return None

    async def _resume_from_disk(self, connection: Connection, pull: _Pull) -> None:
        try:
            found = await self._store.fetch(*self._wanted(pull))
            answer = self._answer(connection, pull.request, _code(found, pull.offset), found)
        except (OSError, StoreError) as error:
            answer = _unreadable(error)
        if answer is not None:
            connection.reply(pull.request, answer)

    def _nothing(self, held: HeldPull) -> GetResult:
        least = self._store.min_offset(held.topic, held.queue_id)
        end = self._store.max_offset(held.topic, held.queue_id)
        return GetResult(GetMessageStatus.OFFSET_FOUND_NULL, held.offset, least, end)

    def _suspend_seconds(self, head: PullHead) -> float:
        if self._options.long_polling_enable:
            # Nobody waits for longer than a client may be silent, whatever it asks for.
            return min(head.suspend_timeout_millis, self._options.channel_expired_timeout) / 1000
        return self._options.short_polling_time_mills / 1000

    def _wanted(self, pull: _Pull) -> tuple[str, int, int, int, None, MessageFilter | None]:
        """What the store is asked."""
        head = pull.head
        # More would not be answered, but so much more of the queue searched.
        most = min(head.max_msg_nums, self._most_messages)
        return head.topic, head.queue_id, pull.offset, most, None, pull.filter

    def _check(self, request: RemotingCommand, head: PullHead, offset: int, client: str) -> _Pull:
        if not self._options.broker_permission & _READ:
            raise _forbidden(
                f"the broker[{self._options.broker_name}] pulling message is forbidden",
                _FORBIDDEN_BROKER,
            )
        group = self._groups.find(head.consumer_group, client)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{head.consumer_group}] does not exist",
            )
        if not group.consume_enable:
            raise _forbidden(
                f"subscription group no permission, {head.consumer_group}",
                _FORBIDDEN_GROUP,
            )
        topic = self._topics.get(head.topic)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{head.topic}] not exist, apply first please!")
        if not topic.perm & _READ:
            raise _forbidden(
                f"the topic[{head.topic}] pulling message is forbidden",
                _FORBIDDEN_TOPIC,
            )
        if not 0 <= head.queue_id < topic.read_queue_nums:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{head.queue_id}] is illegal, topic:[{head.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}]",
            )
        subscription = self._subscription(head, group)
        make_filter = self._filters.get(subscription.expression_type)
        if make_filter is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {subscription.expression_type}",
            )
        try:
            return _Pull(request, head, offset, make_filter(subscription), filter_bytes(subscription))
        except InvalidMessageError as error:
            raise Refused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}"
            ) from error

    def _subscription(self, head: PullHead, group: SubscriptionGroupConfig) -> SubscriptionData:
        """What the pull selects: its own expression, or what the group's heartbeats said."""
        if head.sys_flag & _SUBSCRIPTION:
            kind = head.expression_type or "TAG"
            if (size := len(head.subscription or "")) > MAX_EXPRESSION:
                raise Refused(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                    f"the consumer's subscription has {size} characters; {MAX_EXPRESSION} is the most",
                )
            if kind != "TAG":  # Apache takes any text here, without a look at it
                return SubscriptionData(topic=head.topic, sub_string=head.subscription or "", expression_type=kind)
            try:
                return parse_subscription(head.topic, head.subscription or "*", kind)
            except InvalidMessageError as error:
                raise Refused(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}"
                ) from error
        members = self._consumers.group(head.consumer_group)
        if members is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                "the consumer's group info not exist: no heartbeat of the group has arrived",
            )
        if not group.consume_broadcast_enable and members.message_model is MessageModel.BROADCASTING:
            raise _forbidden(
                f"the consumer group[{head.consumer_group}] can not consume by broadcast way",
                _FORBIDDEN_BROADCAST,
            )
        subscription = members.subscriptions.get(head.topic)
        if subscription is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: {head.consumer_group} has not subscribed {head.topic}",
            )
        if subscription.sub_version < head.sub_version:
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                "the consumer's subscription not latest: a heartbeat with the newer one has not arrived",
            )
        return subscription


def _pull_needs(held: HeldPull) -> tuple[Need, ...]:
    return topic_need(held.topic, Action.SUB), group_need(held.group, Action.SUB)


def _unreadable(error: Exception) -> RemotingCommand:
    return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, f"the store cannot be read: {error}")


def _code(found: GetResult, offset: int) -> ResponseCode:
    if found.status is GetMessageStatus.FOUND:
        return ResponseCode.SUCCESS
    code = _CODES.get(found.status)
    if code is None:  # there is no such queue, or nothing was ever in it
        return ResponseCode.PULL_OFFSET_MOVED if offset != 0 else ResponseCode.PULL_NOT_FOUND
    return code


def _answer(code: ResponseCode, found: GetResult) -> RemotingCommand:
    header = PullMessageResponseHeader(
        suggest_which_broker_id=0,
        next_begin_offset=found.next_begin_offset,
        min_offset=found.min_offset,
        max_offset=found.max_offset,
        topic_sys_flag=0,
        group_sys_flag=0,
    )
    return RemotingCommand.response(code, found.status.name, header.encode(), b"".join(found.records))
