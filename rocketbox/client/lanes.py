"""Lanes: the queues that a producer may send a topic's messages to, each with its address and prepared header.

Lanes are made from the topic's route (``route_table``) and stay right as long as its version is the same. A topic that
no name server knows yet gets those that it will have once a first send has made it, from the template topic's route.

Source: Apache RocketMQ 5.x ``TopicPublishInfo``, ``DefaultMQProducerImpl.tryToFindTopicPublishInfo``.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from rocketbox.client.instance import MQClientInstance
from rocketbox.client.options import ProducerOptions
from rocketbox.client.routes import TopicRoute, default_route
from rocketbox.errors import (
    AccessDeniedError,
    BrokerError,
    ClientError,
    InvalidMessageError,
    NoRouteError,
    RemotingError,
)
from rocketbox.message import MessageQueue
from rocketbox.protocol.namespaces import header_fields
from rocketbox.protocol.prepared_sends import SendTemplate
from rocketbox.protocol.tags import java_string_hash

__all__ = ["Lane", "LaneTable", "Lanes"]

NO_ROUTE = 0  # the version of a topic that no name server knows yet
AWAY_FOR = 600.0  # seconds in which a broker that has left a topic's route may be about to come back


class Lane:
    """One queue to send to: where it is, and what is the same in all sends to it."""

    __slots__ = ("address", "broker_name", "queue", "template")

    def __init__(self, queue: MessageQueue, address: str, template: SendTemplate) -> None:
        self.queue = queue
        self.broker_name = queue.broker_name
        self.address = address
        self.template = template


class Lanes:
    """The lanes of a topic, as of one version of its route. A topic to come has those of a template topic.

    ``queues`` are those that a key or a function chooses among, where there are more of them than lanes: of an ordered
    topic all that its configuration names, those of brokers that are away among them.
    """

    __slots__ = ("addresses", "all", "away", "brokers", "by_queue", "one_broker", "queues", "sent_to", "takes_timers",
                 "template_topic", "template_version", "version")  # fmt: skip

    def __init__(
        self,
        lanes: list[Lane],
        version: int,
        template: tuple[str, int] | None = None,
        queues: Sequence[MessageQueue] | None = None,
    ) -> None:
        self.all = lanes
        self.queues = [lane.queue for lane in lanes] if queues is None else queues
        self.brokers = frozenset(lane.broker_name for lane in lanes)
        self.addresses = frozenset(lane.address for lane in lanes)
        self.one_broker = len(self.brokers) == 1
        self.by_queue = {lane.queue: lane for lane in lanes}
        self.version = version if template is None else NO_ROUTE
        self.template_topic = None if template is None else template[0]
        self.template_version = 0 if template is None else template[1]
        self.sent_to = True
        self.takes_timers: dict[str, Lane] = {}
        """A lane of each broker, by its name, that was found to be new enough for times of delivery."""
        self.away: dict[str, tuple[Lane, float]] = {}
        """The same of brokers that have left the route, and when that was seen on the monotonic clock."""

    def follow(self, former: Lanes, now: float) -> None:
        """Take the place of former ones: keep what was found out about brokers, and which of them are away."""
        here = self.brokers
        self.takes_timers = {name: lane for name, lane in former.takes_timers.items() if name in here}
        away = former.away | {name: (lane, now) for name, lane in former.takes_timers.items() if name not in here}
        self.away = {name: each for name, each in away.items() if name not in here and each[1] + AWAY_FOR > now}

    def timer_broker_away(self, now: float) -> Lane | None:
        """The lane of a broker that has left the route, may come back to it, and takes times of delivery."""
        return next((lane for lane, since in self.away.values() if since + AWAY_FOR > now), None)

    def besides(self, broker_names: Set[str]) -> Lanes | None:
        """Those of the other brokers, for one send; None when there are none."""
        left = [lane for lane in self.all if lane.broker_name not in broker_names]
        return Lanes(left, self.version) if left else None

    def queue_of(self, hash_key: str) -> MessageQueue:
        """The queue that Java's clients choose for a key."""
        return self.queues[abs(java_string_hash(hash_key)) % len(self.queues)]


class LaneTable:
    """The lanes of one producer group, by topic."""

    def __init__(self, group: str, instance: MQClientInstance, options: ProducerOptions) -> None:
        self._group = group
        self._instance = instance
        self._options = options
        self._routes = instance.routes
        self._versions = instance.routes.versions
        self._lanes: dict[str, Lanes] = {}

    def get(self, topic: str) -> Lanes | None:
        """The topic's lanes, if they are still right; they count as sent to."""
        lanes = self._lanes.get(topic)
        if lanes is None or lanes.version != self._versions.get(topic, 0):
            return None
        template = lanes.template_topic
        if template is not None and lanes.template_version != self._versions.get(template, 0):
            return None
        lanes.sent_to = True  # a mark instead of the time: it is set with each message
        return lanes

    async def find(self, topic: str, timeout: float) -> Lanes:
        """The topic's lanes from the tables of the instance or, once, from a name server within timeout seconds.

        Raises NoRouteError: there are none, or nobody told in time. Nothing was sent.
        """
        instance, routes = self._instance, self._routes
        instance.check_running(f"producer {self._group}")
        route: TopicRoute | None = None
        with instance.clock.move_on_after(max(0.0, timeout)):
            route, template = await self._publish_route(topic)
        if route is None:
            raise NoRouteError(
                topic,
                instance.name_servers,
                f"no answer within {timeout:.3g} s, the time of the send; nothing was sent",
                namespace=instance.options.namespace,
            )
        if (lanes := self.get(topic)) is not None:  # made by another send that waited for the same answer
            return lanes
        found = []
        for queue in route.publish_queues:
            try:
                found.append(self.lane_of(queue, topic))
            except ClientError:  # an order configuration may name a broker that has no master now
                continue
        if not found:
            detail = "none of its queues may be written to"
            raise NoRouteError(topic, instance.name_servers, detail, namespace=instance.options.namespace)
        made_from = None if template is None else (template, routes.version(template))
        queues = route.publish_queues if route.ordered else None
        lanes = Lanes(found, routes.version(topic), made_from, queues)
        if (former := self._lanes.get(topic)) is not None:
            lanes.follow(former, instance.clock.monotonic())
        self._lanes[topic] = lanes
        return lanes

    async def _publish_route(self, topic: str) -> tuple[TopicRoute, str | None]:
        """The topic's route; or, for the first send to make it, a copy of the template topic's, and that one's name."""
        instance, options = self._instance, self._options
        try:
            if (route := await instance.find_route(topic)) is not None:
                return route, None
            template = await instance.find_route(options.create_topic_key)
        except AccessDeniedError:
            raise
        except (RemotingError, BrokerError) as error:
            namespace = instance.options.namespace
            raise NoRouteError(topic, instance.name_servers, str(error), namespace=namespace) from error
        if template is None:
            raise NoRouteError(topic, instance.name_servers, namespace=instance.options.namespace)
        return default_route(topic, template, options.default_topic_queue_nums), template.topic

    def lane_of(self, queue: MessageQueue, topic: str) -> Lane:
        """The lane to any queue of topic. Raises ClientError when no address of its broker is known."""
        if not isinstance(queue, MessageQueue):
            raise InvalidMessageError(f"queue={queue!r} is {type(queue).__name__}; it must be a MessageQueue")
        if queue.topic != topic:
            raise InvalidMessageError(f"a message to topic {topic!r} cannot go to a queue of {queue.topic!r}")
        number = queue.queue_id
        if not isinstance(number, int) or number < 0:
            raise InvalidMessageError(f"queue={queue!r} has queue_id {number!r}; it must be a number from 0 on")
        instance = self._instance
        remoting = instance.options.remoting
        template = SendTemplate(
            instance.namespace.wrap(self._group),
            instance.namespace.wrap(topic),
            queue.queue_id,
            queue.broker_name,
            default_topic=instance.namespace.wrap(self._options.create_topic_key),
            default_topic_queue_nums=self._options.default_topic_queue_nums,
            language=remoting.language,
            version=remoting.version,
            more=header_fields(instance.options.namespace_v2),
        )
        return Lane(queue, instance.broker_address(queue.broker_name), template)

    def topics_in_use(self) -> set[str]:
        """The topics that were sent to since this was asked last; what is prepared for forgotten ones goes."""
        used: set[str] = set()
        for topic, lanes in list(self._lanes.items()):
            if lanes.sent_to:
                lanes.sent_to = False
                used.update((topic, lanes.template_topic or topic))
            elif self._routes.get(topic) is None:
                del self._lanes[topic]
        return used
