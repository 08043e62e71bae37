"""How a message gets to a broker: checks, route, queue, tries inside one deadline, and what a failure is called.

Holds :class:`Sender`, which ``producer`` gives a life of its own and ``instance`` keeps one of for the retries of
consumers. The header and the meaning of one answer are ``api.send``'s.

Source: Apache RocketMQ 5.x ``DefaultMQProducerImpl.sendDefaultImpl``, ``sendKernelImpl``, ``MQFaultStrategy`` (with
its fault table off, the default), ``TopicPublishInfo``, ``MessageBatch``. Unlike there: a send to a chosen queue (or
by hash key) is tried again on that queue; a one-way send to a broker that cannot be reached goes to another one, or
raises; a silent broker ends in an error that says so, not in "too much request".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rocketbox.client.api.send import send_by_template, send_message, send_message_one_way
from rocketbox.client.checks import check_body, check_topic, encode_checked, message_properties
from rocketbox.client.options import ProducerOptions
from rocketbox.client.routes import TopicRoute, default_route
from rocketbox.errors import (
    BrokerError,
    ClientError,
    ConnectError,
    ConnectionClosedError,
    InvalidMessageError,
    NoRouteError,
    NotDurableError,
    NotStartedError,
    RemotingError,
    RequestTimeoutError,
    RocketBoxError,
    SendManyError,
    SendTimeoutError,
)
from rocketbox.message import Message, MessageQueue, Property, SendResult, SendStatus, encode_properties
from rocketbox.protocol.codes import CLIENT_VERSION, RETRY_PREFIX, LanguageCode, ResponseCode, SerializeType
from rocketbox.protocol.headers import SendMessageRequestHeader, SendTemplate
from rocketbox.protocol.stored_message import encode_batch
from rocketbox.protocol.tags import java_string_hash
from rocketbox.tasks import Supervisor

if TYPE_CHECKING:
    from rocketbox.client.instance import MQClientInstance

__all__ = ["Sender"]

RETRY_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
"""Answers after which another try may fare better; all others are raised at once."""

PAUSE_BEFORE_SAME_BROKER = 0.05  # seconds, doubled with each try: a broker that is just restarting gets the time
TEMPLATE_IS_RIGHT_FOR = (SerializeType.ROCKETMQ, LanguageCode.PYTHON, CLIENT_VERSION)
FOR_A_TOPIC_TO_COME = -1  # a version that no route has, so that the tables are looked at before each send
MAX_TURN = 0x7FFF_FFFF
MAX_KNOWN_TOPICS = 10_000  # names whose check is remembered


class _Lane:
    """One queue to send to: where it is, and its prepared header (None where only the general path is right)."""

    __slots__ = ("address", "broker_name", "queue", "template")

    def __init__(self, queue: MessageQueue, address: str, template: SendTemplate | None) -> None:
        self.queue = queue
        self.broker_name = queue.broker_name
        self.address = address
        self.template = template


class _Lanes:
    """The queues of a topic, as of one version of its route. A topic to come has those of a template topic."""

    __slots__ = ("brokers", "by_queue", "lanes", "sent_to", "template_topic", "template_version",
                 "version")  # fmt: skip

    def __init__(self, lanes: list[_Lane], version: int, template: tuple[str, int] | None = None) -> None:
        self.brokers = len({lane.broker_name for lane in lanes})
        self.lanes = lanes
        self.by_queue = {lane.queue: lane for lane in lanes}
        self.version = version if template is None else FOR_A_TOPIC_TO_COME
        self.template_topic = None if template is None else template[0]
        self.template_version = 0 if template is None else template[1]
        self.sent_to = True


class _Outgoing:
    """A checked message on its way. A plain one has none of the rarer header fields (batch, reconsume times)."""

    __slots__ = ("batch", "body", "flag", "hash_key", "is_plain", "max_reconsume", "msg_id", "properties", "reconsume",
                 "topic")  # fmt: skip

    def __init__(
        self, topic: str, body: bytes, properties: bytes, msg_id: str, flag: int, hash_key: str | None = None
    ) -> None:
        self.topic = topic
        self.body = body
        self.properties = properties
        self.msg_id = msg_id
        self.flag = flag
        self.hash_key = hash_key
        self.is_plain = True
        self.batch = False
        self.reconsume = 0
        self.max_reconsume: int | None = None


class _Failure:
    """What went wrong so far with one message, over all its tries."""

    __slots__ = ("error", "maybe_stored", "tries", "weak")

    def __init__(self) -> None:
        self.error: RocketBoxError | None = None
        self.maybe_stored = False
        self.tries: list[str] = []
        self.weak: SendResult | None = None

    def add(self, lane: _Lane, error: RocketBoxError) -> None:
        self.error = error
        if isinstance(error, NotDurableError):
            self.weak = error.result
        self.maybe_stored = self.maybe_stored or isinstance(error, ConnectionClosedError | RequestTimeoutError)
        self.tries.append(f"{lane.broker_name} ({lane.address}): {error}")

    def final(self, msg_id: str, timeout: float) -> RocketBoxError:
        """The error to raise: of the last try's kind, telling of all of them."""
        error = self.error
        story = f"message {msg_id}, {len(self.tries)} tries: " + "; ".join(self.tries)
        maybe = "; it may have been stored, and sending it again would then duplicate it" if self.maybe_stored else ""
        if isinstance(error, RequestTimeoutError):
            return SendTimeoutError(error.address, msg_id, timeout, self.tries)
        if isinstance(error, ConnectionClosedError):
            return ConnectionClosedError(error.address, f"{error.reason} ({story}{maybe})")
        if isinstance(error, ConnectError):
            return ConnectError(
                error.address, f"{error.reason} ({story}{maybe})" if len(self.tries) > 1 else error.reason
            )
        assert error is not None
        error.add_note(story + maybe)
        return error


class Sender:
    """Sends for one producer group over a client instance."""

    def __init__(self, group: str, instance: MQClientInstance, options: ProducerOptions | None = None) -> None:
        self.group = group
        self.options = options or ProducerOptions()
        self._instance = instance
        self._clock = instance.clock
        self._remoting = instance.remoting
        self._routes = instance.routes
        self._ids = instance.unique_ids
        self._turn = self._clock.random.getrandbits(31)
        self._topics: set[str] = set()
        self._lanes: dict[str, _Lanes] = {}
        remoting = instance.options.remoting
        self._has_template = (remoting.serialization, remoting.language, remoting.version) == TEMPLATE_IS_RIGHT_FOR
        self._open = True

    # --- what users call ---------------------------------------------------------------------------------------------

    async def send(
        self, message: Message, *, timeout: float | None = None, queue: MessageQueue | None = None
    ) -> SendResult:
        """Send one message and return what the broker answered, within ``timeout`` seconds over all tries.

        Tries go round the topic's queues, each on another broker than the one that failed before. A message with a
        ``hash_key``, or sent to a ``queue``, is tried on that queue only.

        Raises InvalidMessageError and NoRouteError: nothing was sent. ConnectError: nothing was sent, unless it says
        otherwise. SendTimeoutError, ConnectionClosedError: it may have been stored. NotDurableError: it is stored, do
        not send it again. BrokerError: the broker refused it.
        """
        options = self.options
        return await self._deliver(
            self._outgoing(message),
            queue,
            timeout or options.send_message_timeout,
            options.retry_times_when_send_failed,
        )

    async def send_one_way(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send one message without an answer: a broker that fails loses it, and nobody is told.

        A broker that cannot be connected is no loss: another one is tried, and ConnectError raised when there is none.
        """
        outgoing = self._outgoing(message)
        timeout = self.options.send_message_timeout
        deadline = self._clock.monotonic() + timeout
        topic = message.topic
        lanes = self._lanes.get(topic)
        if lanes is None or lanes.version != self._routes.version(topic):
            lanes = await self._find_lanes(topic, deadline, timeout)
        lanes.sent_to = True
        failure = _Failure()
        lane: _Lane | None = None
        for _ in range(1 + self.options.retry_times_when_send_failed):
            lane = self._choose(lanes, outgoing, queue, lane)
            remaining = deadline - self._clock.monotonic()
            if remaining <= 0 and failure.tries:
                break
            try:
                await send_message_one_way(
                    self._remoting, lane.address, self._header(outgoing, lane), message.body, timeout=remaining
                )
            except RemotingError as error:
                failure.add(lane, error)
                self._instance.suspect_route(message.topic)
            else:
                return
        raise failure.final(outgoing.msg_id, timeout)

    async def send_batch(
        self, messages: Iterable[Message], *, timeout: float | None = None, queue: MessageQueue | None = None
    ) -> SendResult:
        """Send messages of one topic in one request: all of them are stored, one behind the other, or none.

        Raises InvalidMessageError when there are none, when they differ in topic, ``wait_store_ok`` or ``hash_key``,
        when one has a delay level or goes to a retry topic, and when together they are larger than max_message_size:
        nothing is split. Otherwise as :meth:`send`. The result's ``msg_id`` and ``offset_msg_id`` are lists joined by
        commas.
        """
        if not self._open:
            raise NotStartedError(f"producer {self.group}")
        batch = list(messages)
        first = self._check_batch(batch)
        elements = []
        ids = []
        for message in batch:
            check_body(message.topic, message.body, self.options.max_message_size)
            msg_id = self._ids.next()
            ids.append(msg_id)
            elements.append((message.flag, message.body, message_properties(message, msg_id)))
        body = encode_batch(elements)
        if len(body) > self.options.max_message_size:
            raise InvalidMessageError(
                f"the batch of {len(batch)} messages to {first.topic!r} takes {len(body)} bytes, at most "
                f"{self.options.max_message_size} are allowed (rocketmq.producer.max-message-size); send smaller ones"
            )
        # Only WAIT: a 4.9 broker appends what stands here to every element, a UNIQ_KEY would give them all one id.
        properties = encode_properties({Property.WAIT: "true" if first.wait_store_ok else "false"})
        outgoing = _Outgoing(first.topic, body, properties, ",".join(ids), 0, first.hash_key)
        outgoing.batch, outgoing.is_plain = True, False
        return await self._deliver(
            outgoing, queue, timeout or self.options.send_message_timeout, self.options.retry_times_when_send_failed
        )

    async def send_many(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[SendResult]:
        """Send messages each on its own, up to ``send_many_window`` of them in flight, and return results in order.

        ``timeout`` is that of each message, which is tried ``retry_times_when_send_async_failed`` more times. They are
        not stored in the order in which they stand. All are tried whatever happens to others; raises SendManyError with
        every result and error when one of them fails.
        """
        if not self._open:
            raise NotStartedError(f"producer {self.group}")
        batch = list(messages)
        timeout = timeout or self.options.send_message_timeout
        retries = self.options.retry_times_when_send_async_failed
        outcomes: list[SendResult | Exception | None] = [None] * len(batch)
        queue = iter(enumerate(batch))
        failed = False

        async def work() -> None:
            nonlocal failed
            for index, message in queue:
                try:
                    outcomes[index] = await self._deliver(self._outgoing(message), None, timeout, retries)
                except Exception as error:  # whatever it is: a message without an outcome would be lost silently
                    outcomes[index] = error
                    failed = True

        async with Supervisor(f"send_many of {self.group}", self._clock) as workers:
            # Workers instead of a task a message: a task costs as much as the send (performance notes).
            tasks = [
                workers.start(f"worker {number}", work, restart=False)
                for number in range(min(self.options.send_many_window, len(batch)))
            ]
            for task in tasks:
                await task.wait()
        results = [outcome for outcome in outcomes if outcome is not None]
        if failed:
            raise SendManyError(results)
        return [result for result in results if isinstance(result, SendResult)]

    async def send_prepared(
        self, topic: str, body: bytes, properties: dict[str, str], *, flag: int = 0, timeout: float | None = None
    ) -> SendResult:
        """Send a message whose properties are complete, RocketMQ's own among them: what a consumer sends back itself.

        Nothing is checked but sizes. To a retry topic the header carries RECONSUME_TIME and MAX_RECONSUME_TIMES, which
        are taken out of the properties (Apache's ``sendKernelImpl``).
        """
        check_body(topic, body, self.options.max_message_size)
        msg_id = properties.get(Property.UNIQ_KEY) or self._ids.next()
        complete = {Property.WAIT: "true", **properties, Property.UNIQ_KEY: msg_id}
        reconsume, max_reconsume = 0, None
        if topic.startswith(RETRY_PREFIX):
            reconsume = int(complete.pop(Property.RECONSUME_TIME, "0"))
            if (most := complete.pop(Property.MAX_RECONSUME_TIMES, None)) is not None:
                max_reconsume = int(most)
        outgoing = _Outgoing(topic, body, encode_checked(complete), msg_id, flag)
        outgoing.reconsume, outgoing.max_reconsume, outgoing.is_plain = reconsume, max_reconsume, False
        return await self._deliver(
            outgoing, None, timeout or self.options.send_message_timeout, self.options.retry_times_when_send_failed
        )

    # --- checks ------------------------------------------------------------------------------------------------------

    def _outgoing(self, message: Message) -> _Outgoing:
        """A message with an id of its own, checked."""
        topic = message.topic
        if not self._open:
            raise NotStartedError(f"producer {self.group}")
        if topic not in self._topics:
            self._check_topic(topic)
        check_body(topic, message.body, self.options.max_message_size)
        msg_id = self._ids.next()
        return _Outgoing(
            topic, message.body, message_properties(message, msg_id), msg_id, message.flag, message.hash_key
        )

    def _check_topic(self, topic: str) -> None:
        check_topic(topic)
        if len(self._topics) < MAX_KNOWN_TOPICS:
            self._topics.add(topic)

    def _check_batch(self, batch: Sequence[Message]) -> Message:
        if not batch:
            raise InvalidMessageError("a batch needs at least one message")
        first = batch[0]
        self._check_topic(first.topic)
        if first.topic.startswith(RETRY_PREFIX):
            raise InvalidMessageError(f"a batch cannot go to a retry topic ({first.topic!r})")
        for message in batch:
            if message.topic != first.topic:
                raise InvalidMessageError(f"a batch has one topic; this one has {first.topic!r} and {message.topic!r}")
            if message.wait_store_ok != first.wait_store_ok:
                raise InvalidMessageError("the messages of a batch differ in wait_store_ok")
            if message.hash_key != first.hash_key:
                raise InvalidMessageError("the messages of a batch differ in hash_key, but they all go to one queue")
            if message.delay_level:
                raise InvalidMessageError("a message of a batch has a delay_level; send delayed messages one by one")
        return first

    # --- tries -------------------------------------------------------------------------------------------------------

    async def _deliver(
        self, outgoing: _Outgoing, queue: MessageQueue | None, timeout: float, retries: int
    ) -> SendResult:
        """Try until a broker has the message, the first try and all retries are used up, or the time is."""
        options, clock, topic = self.options, self._clock, outgoing.topic
        deadline = clock.monotonic() + timeout
        fixed = queue is not None or outgoing.hash_key is not None
        failure: _Failure | None = None
        failed: _Lane | None = None
        for left in range(retries, -1, -1):
            lanes = self._lanes.get(topic)
            if lanes is None or lanes.version != self._routes.version(topic):
                try:
                    lanes = await self._find_lanes(topic, deadline, timeout)
                except RocketBoxError:
                    if failure is None:
                        raise
                    break  # what the tries said tells more
            lanes.sent_to = True
            lane = self._choose(lanes, outgoing, queue, failed)
            remaining = deadline - clock.monotonic()
            if remaining <= 0 and failure is not None:
                break
            if left and options.send_msg_max_timeout_per_request is not None:
                remaining = min(remaining, options.send_msg_max_timeout_per_request)
            try:
                template = lane.template
                if template is None or not outgoing.is_plain:
                    result = await self._send_generally(outgoing, lane, remaining)
                else:
                    result = await send_by_template(
                        self._remoting,
                        lane.address,
                        template,
                        topic,
                        lane.broker_name,
                        outgoing.msg_id,
                        clock.time_ms(),
                        outgoing.properties,
                        outgoing.body,
                        outgoing.flag,
                        remaining,
                    )
            except BrokerError as refusal:
                if refusal.code not in RETRY_CODES:
                    raise
                error: RocketBoxError = refusal
            except RemotingError as broken:
                self._instance.suspect_route(topic)
                error = broken
            else:
                if result.status is SendStatus.SEND_OK:
                    return result
                error = NotDurableError(result)
            if failure is None:
                failure = _Failure()
            failure.add(lane, error)
            if failure.weak is not None and not options.retry_another_broker_when_not_store_ok:
                break
            if left and (fixed or lanes.brokers == 1):  # the same broker again: give it a moment
                pause = PAUSE_BEFORE_SAME_BROKER * 2 ** (retries - left)
                await clock.sleep(max(0.0, min(pause, deadline - clock.monotonic())))
            failed = lane
        assert failure is not None
        if failure.weak is None:
            raise failure.final(outgoing.msg_id, timeout)
        if options.accept_weak_ack:
            return failure.weak
        raise NotDurableError(failure.weak)

    async def _send_generally(self, outgoing: _Outgoing, lane: _Lane, timeout: float) -> SendResult:
        header = self._header(outgoing, lane)
        return await send_message(
            self._remoting, lane.address, header, outgoing.body, msg_id=outgoing.msg_id, timeout=timeout
        )

    def _header(self, outgoing: _Outgoing, lane: _Lane) -> SendMessageRequestHeader:
        return SendMessageRequestHeader(
            producer_group=self.group,
            topic=outgoing.topic,
            default_topic=self.options.create_topic_key,
            default_topic_queue_nums=self.options.default_topic_queue_nums,
            queue_id=lane.queue.queue_id,
            sys_flag=0,
            born_timestamp=self._clock.time_ms(),
            flag=outgoing.flag,
            properties=outgoing.properties.decode(),
            reconsume_times=outgoing.reconsume,
            unit_mode=False,
            max_reconsume_times=outgoing.max_reconsume,
            batch=outgoing.batch,
            bname=lane.broker_name,
        )

    def _choose(self, lanes: _Lanes, outgoing: _Outgoing, queue: MessageQueue | None, failed: _Lane | None) -> _Lane:
        """The queue asked for, the key's queue, or the next one in turn, if possible of another broker than failed."""
        if queue is not None:
            return lanes.by_queue.get(queue) or self._lane_of(queue, outgoing.topic)
        everywhere = lanes.lanes
        count = len(everywhere)
        if outgoing.hash_key is not None:
            return everywhere[abs(java_string_hash(outgoing.hash_key)) % count]
        self._turn = turn = (self._turn + 1) & MAX_TURN
        lane = everywhere[turn % count]
        if failed is not None:
            for _ in range(count):
                if lane.broker_name != failed.broker_name:
                    break
                self._turn = turn = (self._turn + 1) & MAX_TURN
                lane = everywhere[turn % count]
        return lane

    # --- routes ------------------------------------------------------------------------------------------------------

    async def _find_lanes(self, topic: str, deadline: float, timeout: float) -> _Lanes:
        """The topic's queues from the tables of the instance or, once, from a name server."""
        instance, routes = self._instance, self._routes
        if not instance.running:
            raise NotStartedError(f"producer {self.group}")
        known = self._lanes.get(topic)
        if (
            known is not None
            and known.template_topic is not None
            and known.template_version == routes.version(known.template_topic)
            and routes.get(topic) is None
        ):
            return known
        route: TopicRoute | None = None
        with self._clock.move_on_after(max(0.0, deadline - self._clock.monotonic())):
            route, template = await self._publish_route(topic)
        if route is None:
            raise RequestTimeoutError(
                ", ".join(instance.name_servers), f"the question where topic {topic!r} lives", timeout
            )
        found = []
        for queue in route.publish_queues:
            try:
                found.append(self._lane_of(queue, topic))
            except ClientError:  # an order configuration may name a broker that has no master now
                continue
        if not found:
            raise NoRouteError(topic, instance.name_servers, "none of its queues may be written to")
        made_from = None if template is None else (template, routes.version(template))
        lanes = self._lanes[topic] = _Lanes(found, routes.version(topic), made_from)
        return lanes

    async def _publish_route(self, topic: str) -> tuple[TopicRoute, str | None]:
        """The topic's route; or, for the first send to make it, a copy of the template topic's, and that one's name."""
        instance, options = self._instance, self.options
        try:
            if (route := await instance.find_route(topic)) is not None:
                return route, None
            template = await instance.find_route(options.create_topic_key)
        except (RemotingError, BrokerError) as error:
            raise NoRouteError(topic, instance.name_servers, str(error)) from error
        if template is None:
            raise NoRouteError(topic, instance.name_servers)
        return default_route(topic, template, options.default_topic_queue_nums), template.topic

    def topics_in_use(self) -> set[str]:
        """The topics that it has sent to since this was asked last; what is prepared for forgotten ones goes."""
        used: set[str] = set()
        for topic, lanes in list(self._lanes.items()):
            if lanes.sent_to:
                lanes.sent_to = False
                used.update((topic, lanes.template_topic or topic))
            elif self._routes.get(topic) is None:
                del self._lanes[topic]
        return used

    def _lane_of(self, queue: MessageQueue, topic: str) -> _Lane:
        if queue.topic != topic:
            raise InvalidMessageError(f"a message to topic {topic!r} cannot go to a queue of {queue.topic!r}")
        address = self._instance.broker_address(queue.broker_name)
        template = None
        if self._has_template:
            template = SendTemplate(
                self.group,
                topic,
                queue.queue_id,
                queue.broker_name,
                default_topic=self.options.create_topic_key,
                default_topic_queue_nums=self.options.default_topic_queue_nums,
            )
        return _Lane(queue, address, template)
