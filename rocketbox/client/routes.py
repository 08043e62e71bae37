"""From a topic's route data to the queues one may send to and read from, and to brokers' addresses.

Pure functions and one value; keeping routes is ``route_table``'s part, asking for them ``instance``'s.

Source: Apache RocketMQ 5.x ``MQClientInstance.topicRouteData2TopicPublishInfo``,
``topicRouteData2TopicSubscribeInfo``, ``DefaultMQProducerImpl.tryToFindTopicPublishInfo``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from rocketbox.message import MessageQueue
from rocketbox.protocol.bodies import TopicRouteData, ordered_queues
from rocketbox.protocol.codes import MASTER_ID, PermName

__all__ = ["BrokerTable", "TopicRoute", "default_route", "make_route", "same_route_data"]

BrokerTable = dict[str, dict[int, str]]
"""Broker name -> broker id (0 is the master) -> address."""


@dataclass(frozen=True)
class TopicRoute:
    """Where a topic lives: queues to send to (of brokers with a master) and queues to read from."""

    topic: str
    data: TopicRouteData = field(repr=False)
    publish_queues: tuple[MessageQueue, ...]
    subscribe_queues: tuple[MessageQueue, ...]
    ordered: bool = False

    @property
    def broker_names(self) -> list[str]:
        """The names of the topic's brokers, sorted."""
        return sorted(broker.broker_name for broker in self.data.broker_datas)


def make_route(topic: str, data: TopicRouteData) -> TopicRoute:
    """The route of a topic from what a name server said."""
    return TopicRoute(
        topic, data, tuple(_publish_queues(topic, data)), tuple(_subscribe_queues(topic, data)),
        ordered=bool(data.order_topic_conf),
    )  # fmt: skip


def _publish_queues(topic: str, data: TopicRouteData) -> Iterable[MessageQueue]:
    if data.order_topic_conf:
        for name, count in ordered_queues(data):
            for queue_id in range(count):
                yield MessageQueue(topic, name, queue_id)
        return
    with_master = {broker.broker_name for broker in data.broker_datas if MASTER_ID in broker.broker_addrs}
    for queues in sorted(data.queue_datas, key=lambda queues: queues.broker_name):
        if queues.perm & PermName.WRITE and queues.broker_name in with_master:
            for queue_id in range(queues.write_queue_nums):
                yield MessageQueue(topic, queues.broker_name, queue_id)


def _subscribe_queues(topic: str, data: TopicRouteData) -> Iterable[MessageQueue]:
    for queues in sorted(data.queue_datas, key=lambda queues: queues.broker_name):
        if queues.perm & PermName.READ:
            for queue_id in range(queues.read_queue_nums):
                yield MessageQueue(topic, queues.broker_name, queue_id)


def default_route(topic: str, template: TopicRoute, most_queues: int) -> TopicRoute:
    """The route that a topic will have once a first send has made it from the template topic (TBW102).

    Each broker of the template gets ``min(most_queues, the template's read queues)`` queues.
    """
    queue_datas = []
    for queues in template.data.queue_datas:
        count = min(most_queues, queues.read_queue_nums)
        queue_datas.append(replace(queues, read_queue_nums=count, write_queue_nums=count))
    return make_route(topic, replace(template.data, queue_datas=tuple(queue_datas)))


def same_route_data(one: TopicRouteData, other: TopicRouteData) -> bool:
    """Whether both say the same, in whatever order."""
    return _sorted(one) == _sorted(other)


def _sorted(data: TopicRouteData) -> TopicRouteData:
    return replace(
        data,
        queue_datas=tuple(sorted(data.queue_datas, key=lambda queues: queues.broker_name)),
        broker_datas=tuple(sorted(data.broker_datas, key=lambda broker: broker.broker_name)),
    )
