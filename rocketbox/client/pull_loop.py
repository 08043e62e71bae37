"""Pulling one queue: one task that asks, puts what comes into the process queue, and asks again.

While handlers work on one answer the next pull is already under way; it stops when the queue holds more than its
limits. A broker parks a pull for which it has nothing (long polling), so an idle queue costs one request in 15 s.

Source: Apache RocketMQ 5.x ``DefaultMQPushConsumerImpl.pullMessage``, ``PullAPIWrapper.processPullResult``. Unlike
there, a wait for room ends as soon as there is some, a pull that comes back during a pause is asked for again, and no
pull carries a commit along: a broker pulls and commits in different threads, so one that waits for its disk would
overwrite a newer commit with an old one. All commits go by way of ``offset_store``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from rocketbox.client.api.pull import PullResult, PullStatus, pull_message
from rocketbox.client.instance import MQClientInstance
from rocketbox.client.options import ConsumerOptions
from rocketbox.client.process_queue import FlowLimits, ProcessQueue
from rocketbox.client.subscriptions import Subscriptions
from rocketbox.errors import AccessDeniedError, BrokerError, CodecMissingError, RemoteProtocolError, RocketBoxError
from rocketbox.message import MessageExt, Property
from rocketbox.protocol.codes import MASTER_ID, PullSysFlag, ResponseCode, retry_topic
from rocketbox.protocol.headers import PullMessageRequestHeader
from rocketbox.protocol.tags import SubscriptionData
from rocketbox.safe_repr import one_line

__all__ = ["PullContext", "PullLoop", "has_tag"]

_log = logging.getLogger(__name__)

AFTER_THE_HOLD = (
    15.0  # seconds until a pull that a broker held is given up; longer than an Apache broker's own 5 s step
)
AFTER_AN_ERROR = 1.0  # seconds
AFTER_FLOW_CONTROL = 0.02
LOG_AGAIN_AFTER = 60.0  # seconds in which one queue's repeated errors are one line
TAGS = Property.TAGS.encode() + b"\x01"
PROPERTY_END = b"\x02"


def has_tag(raw_properties: bytes, tags: frozenset[bytes]) -> bool:
    """Whether the TAGS of a property text is one of tags; brokers compare hashes only, and two tags may share one."""
    start = raw_properties.find(TAGS)
    while start > 0 and raw_properties[start - 1] != PROPERTY_END[0]:  # the end of another name, such as MYTAGS
        start = raw_properties.find(TAGS, start + 1)
    if start < 0:
        return False
    start += len(TAGS)
    end = raw_properties.find(PROPERTY_END, start)
    return raw_properties[start : end if end >= 0 else len(raw_properties)] in tags


@dataclass(frozen=True)
class PullContext:
    """What all pull loops of a consumer share, and whom they tell.

    ``offer`` is called after messages were put, ``reset`` when the broker says that the queue goes on elsewhere;
    ``gate`` returns when the consumer is not paused (and whether that had to be waited for); ``set_aside`` gives a
    message that cannot be read back to the broker, if it can.
    """

    group: str
    instance: MQClientInstance
    options: ConsumerOptions
    subscriptions: Subscriptions
    limits: Callable[[str], FlowLimits]
    offer: Callable[[ProcessQueue], None]
    reset: Callable[[ProcessQueue, int], Awaitable[None]]
    gate: Callable[[], Awaitable[bool]]
    may_pull: Callable[[ProcessQueue], bool]
    set_aside: Callable[[MessageExt, RemoteProtocolError], Awaitable[bool]]


class PullLoop:
    """Keeps one process queue filled until it is closed."""

    def __init__(self, queue: ProcessQueue, context: PullContext) -> None:
        self._queue = queue
        self._context = context
        self._clock = context.instance.clock
        self._is_retry = queue.topic == retry_topic(context.group)
        self._doing = f"reading {queue.topic}"
        self._singly = 0  # so many more pulls are for one message each, to find one that cannot be read
        self._failing = False
        self._told_of_failing = False
        self._logged_at: float | None = None
        self._broker_id = MASTER_ID  # the machine that the broker suggested last

    async def run(self) -> None:
        """Pull until the queue is closed."""
        queue, context = self._queue, self._context
        while not self._queue.closed:
            await context.gate()
            await queue.room(context.limits(queue.topic))
            subscription = context.subscriptions.told(queue.queue.broker_name, queue.topic)
            if subscription is None or not context.may_pull(queue):  # not told to its broker yet, or not locked now
                await self._pause()
                continue
            try:
                result = await self._pull(subscription)
            except RemoteProtocolError as error:
                await self._pass_unreadable(subscription, error)
                continue
            except RocketBoxError as error:
                await self._recover(error)
                continue
            if queue.closed:
                return
            if self._failing:
                context.instance.refusals(context.group).allowed(self._doing)
                if self._told_of_failing:
                    _log.info("group %s: pulling %s works again", context.group, queue.queue)
                self._failing = self._told_of_failing = False
            if result.status is PullStatus.FOUND and (await context.gate() or queue.over_budget):
                continue  # no longer wanted now: what came is asked for again
            await self._handle(result)

    async def _pull(self, subscription: SubscriptionData, *, decompress: bool = True) -> PullResult:
        queue, context = self._queue, self._context
        options = context.options
        hold = context.instance.options.broker_suspend_max_time
        address = await context.instance.pull_address(queue.queue, self._broker_id)
        queue.last_pull_at = self._clock.monotonic()
        return await pull_message(
            context.instance.remoting,
            address,
            PullMessageRequestHeader(
                consumer_group=context.group,
                topic=queue.topic,
                queue_id=queue.queue.queue_id,
                queue_offset=queue.pulled_to,
                max_msg_nums=1 if self._singly or queue.only_one else options.pull_batch_size,
                sys_flag=int(PullSysFlag.SUSPEND),
                commit_offset=0,
                suspend_timeout_millis=int(hold * 1000),
                sub_version=subscription.sub_version,
                expression_type=subscription.expression_type,
                max_msg_bytes=options.pull_batch_size_in_bytes,
                bname=queue.queue.broker_name,
            ),
            timeout=hold + AFTER_THE_HOLD,
            decompress=decompress,
            max_body_bytes=context.instance.options.max_unpacked_bytes,
        )

    async def _pass_unreadable(self, subscription: SubscriptionData, error: RemoteProtocolError) -> None:
        """Find the message that cannot be read and set it aside, so that others come."""
        if not self._singly:
            self._singly = self._context.options.pull_batch_size
            return
        try:
            result = await self._pull(subscription, decompress=False)
        except RocketBoxError as worse:  # not even its record: nothing can be said of what comes behind it
            await self._recover(worse)
            return
        for message in result.messages:
            if self._may_log():
                what_now = (
                    "comes back later" if isinstance(error, CodecMissingError) else "goes to the dead-letter queue"
                )
                _log.error("group %s: message %s at offset %d of %s cannot be read, it %s: %s",
                           self._context.group, one_line(message.msg_id), message.queue_offset, self._queue.queue,
                           what_now, error)  # fmt: skip
            if not await self._context.set_aside(message, error):
                await self._pause()
                return
        self._queue.put((), result.next_begin_offset)

    async def _handle(self, result: PullResult) -> None:
        queue, context = self._queue, self._context
        queue.end_offset = result.max_offset
        self._broker_id = result.suggest_which_broker_id
        self._singly = max(0, self._singly - 1)
        before = queue.pulled_to
        if result.status is PullStatus.OFFSET_ILLEGAL and result.next_begin_offset != before:
            await context.reset(queue, result.next_begin_offset)
            return
        messages = self._selected(result.messages)
        if self._is_retry:
            _restore_topics(messages)
        next_offset = result.next_begin_offset
        if (fitting := queue.fitting(messages)) < len(messages):
            messages, next_offset = messages[:fitting], messages[fitting - 1].queue_offset + 1
        if queue.put(messages, next_offset):
            context.offer(queue)
        if result.status is not PullStatus.NO_NEW_MSG and queue.pulled_to == before:
            if self._may_log():
                _log.warning(
                    "group %s: a pull of %s at %d got no further (%s)",
                    context.group, queue.queue, before, result.status.name,
                )  # fmt: skip
            await self._pause()
        elif context.options.pull_interval and result.status is PullStatus.FOUND:
            await self._clock.sleep(context.options.pull_interval)

    def _selected(self, messages: Sequence[MessageExt]) -> Sequence[MessageExt]:
        tags = self._context.subscriptions.selection(self._queue.topic)
        return [message for message in messages if has_tag(message.raw_properties, tags)] if tags else messages

    def _may_log(self) -> bool:
        """Whether something that is told once a minute may be told again."""
        now = self._clock.monotonic()
        if self._logged_at is not None and now - self._logged_at <= LOG_AGAIN_AFTER:
            return False
        self._logged_at = now
        return True

    async def _pause(self) -> None:
        """A second, more or less: those who were cut off together do not come back in one moment."""
        await self._clock.sleep(AFTER_AN_ERROR * self._clock.random.uniform(0.8, 1.2))

    async def _recover(self, error: RocketBoxError) -> None:
        """Wait as long as the error asks for, and do what may end it."""
        context, queue = self._context, self._queue
        code = error.code if isinstance(error, BrokerError) else None
        self._failing = True
        if not isinstance(error, AccessDeniedError) and self._may_log():
            self._told_of_failing = True
            _log.warning("group %s: pulling %s failed, it is tried again: %s", context.group, queue.queue, error)
        self._broker_id = MASTER_ID  # who was suggested may be the one that fails
        if isinstance(error, AccessDeniedError):
            refusals = context.instance.refusals(context.group)
            refusals.refused(self._doing, error)
            await refusals.pause(self._doing)
            return
        if code == ResponseCode.FLOW_CONTROL:
            await self._clock.sleep(AFTER_FLOW_CONTROL)
            return
        if code in (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST):
            context.instance.request_heartbeat()  # the broker does not know what this group selects, or no longer
        await self._pause()
        if not isinstance(error, BrokerError) or code == ResponseCode.TOPIC_NOT_EXIST:
            await self._refresh_route()  # the broker may have got another address, or have lost the topic

    async def _refresh_route(self) -> None:
        try:
            await self._context.instance.refresh_route(self._queue.topic)
        except RocketBoxError as error:
            _log.debug("group %s: route of %s: %s", self._context.group, self._queue.topic, error)


def _restore_topics(messages: Sequence[MessageExt]) -> None:
    """Give messages of a retry topic the topic back that they were first sent to."""
    for message in messages:
        if origin := message.properties.get(Property.RETRY_TOPIC):
            message.topic = origin
