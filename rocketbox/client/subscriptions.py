"""A consumer's subscriptions: what is wanted of each topic, in which version, and which broker has been told what.

A pull names the version of the subscription it means, and a broker that knows only an older one refuses it. So each
broker is told by a heartbeat before a pull refers to it, on its own: one that is silent delays only its own pulls.

Source: Apache RocketMQ 5.x ``DefaultMQPushConsumerImpl.subscribe``, ``RebalancePushImpl.messageQueueChanged``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from rocketbox.client.instance import MQClientInstance
from rocketbox.client.message_source import MessageSource
from rocketbox.client.options import ConsumerOptions
from rocketbox.client.outcomes import MessageHandler, Preparation
from rocketbox.message import MessageExt, SelectorType
from rocketbox.protocol.bodies import ConsumerData
from rocketbox.protocol.codes import retry_topic
from rocketbox.protocol.tags import SubscriptionData, parse_subscription

__all__ = ["Receiver", "ReceiverOf", "Subscription", "Subscriptions"]


@dataclass(frozen=True, eq=False)
class Receiver:
    """One of several who handle the messages of a topic: its name, and how many messages a call of it has at most."""

    name: str
    batch_max_size: int


ReceiverOf = Callable[[MessageExt], Receiver]
"""Whose a message is, where a topic has several receivers."""


@dataclass(frozen=True)
class Subscription:
    """One topic of a consumer: what to select, and who handles it, up to ``batch_max_size`` messages a call.

    ``prepare`` makes the call in a thread that does the same as ``handler``; None: there is none. With ``receiver_of``
    each call has messages of one receiver, up to as many as that one takes.
    """

    data: SubscriptionData
    handler: MessageHandler
    batch_max_size: int = 1
    prepare: Preparation | None = None
    receiver_of: ReceiverOf | None = None

    def take(self, queue: MessageSource, *, in_order: bool = False) -> list[MessageExt]:
        """The messages of the next call, from a queue of this topic."""
        if self.receiver_of is None or self.batch_max_size == 1 or not queue.waiting:
            return queue.take(self.batch_max_size)
        return self.take_like_the_first(queue, in_order=in_order)

    def take_like_the_first(self, queue: MessageSource, *, in_order: bool = False) -> list[MessageExt]:
        """The messages of the next call, from a queue whose first one is of this topic; of the group's retry topic
        others may not be.

        Those of one receiver are taken past those of others, as far as a batch may reach, unless it is ``in_order``.
        """
        receiver_of, first = self.receiver_of, queue.waiting[0]
        receiver = None if receiver_of is None else receiver_of(first)

        def fits(message: MessageExt) -> bool:
            return message.topic == first.topic and (receiver_of is None or receiver_of(message) is receiver)

        limit = self.batch_max_size if receiver is None else receiver.batch_max_size
        return queue.take(limit, fits, 0 if in_order else self.batch_max_size - 1)

    def receiver(self, message: MessageExt) -> str:
        """The name of who handles message, where the topic has several receivers; else ""."""
        return "" if self.receiver_of is None else self.receiver_of(message).name


class Subscriptions:
    """Those of one group's member, by topic; with clustering the group's retry topic is always among what is told."""

    def __init__(self, group: str, instance: MQClientInstance, options: ConsumerOptions) -> None:
        self._group = group
        self._instance = instance
        self._options = options
        self._retry_topic = None if options.broadcasting else retry_topic(group)
        self._started_ms = instance.clock.time_ms()
        self._wanted: dict[str, Subscription] = {}
        self._told: dict[str, dict[str, SubscriptionData]] = defaultdict(dict)  # by broker name: pulls refer to these

    # --- what is wanted ----------------------------------------------------------------------------------------------

    def get(self, topic: str) -> Subscription | None:
        return self._wanted.get(topic)

    @property
    def subscribed(self) -> tuple[str, ...]:
        """The topics that were subscribed to."""
        return tuple(self._wanted)

    @property
    def topics(self) -> set[str]:
        """The subscribed topics, with clustering the group's retry topic as well."""
        return {*self._wanted, *([self._retry_topic] if self._retry_topic else [])}

    @property
    def all_in_threads(self) -> bool:
        """Whether every topic's handler is a ``def`` whose calls can be prepared."""
        return all(subscription.prepare is not None for subscription in self._wanted.values())

    def put(
        self,
        topic: str,
        expression: str,
        handler: MessageHandler,
        selector_type: SelectorType,
        batch_max_size: int,
        prepare: Preparation | None = None,
        receiver_of: ReceiverOf | None = None,
    ) -> Subscription | None:
        """Want topic like this, instead of what is returned. Raises ClientError for a bad expression."""
        data = replace(parse_subscription(topic, expression, selector_type), sub_version=self._next_version(topic))
        before = self._wanted.get(topic)
        self._wanted[topic] = Subscription(data, handler, batch_max_size, prepare, receiver_of)
        return before

    def put_back(self, topic: str, before: Subscription) -> None:
        """Want topic as it was before, in a version newer than what brokers may have been told meanwhile."""
        self._wanted[topic] = replace(before, data=replace(before.data, sub_version=self._next_version(topic)))

    def remove(self, topic: str) -> bool:
        """Want topic no more; whether it was wanted."""
        for told in self._told.values():
            told.pop(topic, None)
        return self._wanted.pop(topic, None) is not None

    def renew(self, topic: str) -> None:
        """Make this member's subscription the newest one at the brokers, for it decides about these queues now.

        Without it a member that went away would leave its selection.
        """
        if (subscription := self._wanted.get(topic)) is not None:
            self.put_back(topic, subscription)
            self._instance.request_heartbeat()

    def _next_version(self, topic: str) -> int:
        """The time in ms, but later than the one the topic had before: brokers take the newer subscription."""
        known = self._wanted.get(topic)
        return max(self._instance.clock.time_ms(), known.data.sub_version + 1 if known else 0)

    def _current(self) -> Iterable[SubscriptionData]:
        yield from (subscription.data for subscription in self._wanted.values())
        if self._retry_topic is not None:
            yield replace(parse_subscription(self._retry_topic, "*", SelectorType.TAG), sub_version=self._started_ms)

    # --- what brokers know -------------------------------------------------------------------------------------------

    def consumer_data(self) -> ConsumerData:
        """What a heartbeat says of this consumer."""
        return ConsumerData(
            group_name=self._group,
            message_model=self._options.message_model,
            consume_from_where=self._options.consume_from_where,
            subscription_data_set=tuple(self._current()),
        )

    async def tell(self, broker_name: str) -> None:
        """Send a heartbeat to a broker with the subscriptions as they are now; pulls may refer to them afterwards.

        It returns whether or not the broker answers: one that was not reached refuses the pull, and is told again.
        """
        current = tuple(self._current())
        await self._instance.heartbeat_now(broker_name=broker_name)
        wanted = self.topics
        self._told[broker_name].update({data.topic: data for data in current if data.topic in wanted})

    def known_to(self, broker_name: str) -> bool:
        """Whether a broker has been told of this consumer."""
        return bool(self._told.get(broker_name))

    def told(self, broker_name: str, topic: str) -> SubscriptionData | None:
        """What a broker has been told of topic last; None: nothing yet."""
        return self._told[broker_name].get(topic)

    def selection(self, topic: str) -> frozenset[bytes]:
        """The tags that topic's messages must have one of, as they are wanted now; empty: whatever they have."""
        subscription = self._wanted.get(topic)
        if subscription is None or subscription.data.expression_type != SelectorType.TAG.value:
            return frozenset()
        return frozenset(tag.encode() for tag in subscription.data.tags_set)
