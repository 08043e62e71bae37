"""How a message gets to a broker: checks, queue, and one loop of tries for whatever is sent.

Holds :class:`Sender`; a ``producer`` has one, and ``send_back`` keeps one for the retries of consumers. What users call
is ``producer``'s part, queues and prepared headers are ``lanes``', the rules of tries ``tries``', brokers to be avoided
``broker_faults``', the meaning of one answer ``api.send``'s.

    request, batch_request, send_prepared -> SendRequest -> deliver, write, deliver_many: lane, try, and on

Source: Apache RocketMQ 5.x ``DefaultMQProducerImpl.sendDefaultImpl``, ``sendKernelImpl``, ``MQFaultStrategy``,
``MessageBatch``. Unlike there: a send to a chosen queue (or by hash key) is tried again, on that queue; a one-way send
to a broker that cannot be reached goes to another one, or raises; a silent broker ends in an error that says so, not in
"too much request".
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter, itemgetter
from threading import get_ident
from typing import TypeVar

from anyio.lowlevel import checkpoint

from rocketbox.client.api.send import send_result
from rocketbox.client.api.stored_names import TOPIC_PROPERTIES
from rocketbox.client.batches import Element, Part, parts_of
from rocketbox.client.broker_faults import BrokerFaults, LatencyTable, ShortMemory
from rocketbox.client.checks import (
    check_body,
    check_flag,
    check_size,
    check_timeout,
    check_topic,
    encode_checked,
    message_properties,
    wrong_message,
)
from rocketbox.client.delays import TimerSendRequest, is_timed
from rocketbox.client.instance import MQClientInstance
from rocketbox.client.lanes import Lane, Lanes, LaneTable
from rocketbox.client.middleware import result_of
from rocketbox.client.options import ProducerOptions
from rocketbox.client.packing import TO_BE_PACKED, Packing
from rocketbox.client.queue_choice import QueueChoice, QueueTarget, check_target, selected
from rocketbox.client.send_window import FirstTry, OpenWindow, SendWindow
from rocketbox.client.timer_support import OlderBrokerError, check_takes_timers
from rocketbox.client.tries import RETRY_CODES, Tries
from rocketbox.errors import (
    AccessDeniedError,
    BrokerError,
    ClientError,
    ClientStateError,
    ConnectError,
    HookFailedError,
    InvalidMessageError,
    LocalProtocolError,
    NoRouteError,
    NotDurableError,
    NotStartedError,
    RemotingError,
    RocketBoxError,
)
from rocketbox.message import Compression, Message, MessageQueue, Property, SendResult, SendStatus, encode_properties
from rocketbox.protocol.codes import RETRY_PREFIX, RequestCode, ResponseCode
from rocketbox.protocol.prepared_sends import PLAIN_NUMBERS, SendRequest, encode_send_numbers
from rocketbox.protocol.stored_message import encode_batch

__all__ = ["Sender"]

WindowT = TypeVar("WindowT", bound=SendWindow)

MAX_TURN = 0x7FFF_FFFF
MAX_KNOWN_TOPICS = 10_000  # names whose check is remembered
BUSY_CODES = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.GO_AWAY,
        ResponseCode.FLOW_CONTROL,
    }
)
"""Refusals that say something of the broker, not of one topic on it."""
NEW_KEYS_WITHIN = 1.5  # seconds that a send waits for new keys whose old ones a server does not take any more
BATCH_NUMBERS = encode_send_numbers(batch=True)
_IN_BATCH = itemgetter(0, 1, 2)  # an element's flag, body and properties
_SAME_IN_BATCH = attrgetter(
    "topic", "hash_key", "wait_store_ok", "compression", "delay_level", "delay", "deliver_at"
)  # of a message: what the rules of batches are about
_new_tuple = tuple.__new__


class Sender:
    """Sends for one producer group over a client instance."""

    def __init__(self, group: str, instance: MQClientInstance, options: ProducerOptions | None = None) -> None:
        self.group = group
        self.options = options or ProducerOptions()
        self._instance = instance
        self._clock = instance.clock
        self._remoting = instance.remoting
        self._home = instance.remoting.home
        self.lanes = LaneTable(group, instance, self.options)
        self._faults: BrokerFaults = LatencyTable() if self.options.send_latency_fault_enable else ShortMemory()
        self._packing = Packing(self.options)
        self._turn = self._clock.random.getrandbits(31)
        self._topics: dict[str, str] = {}  # that were checked, as they are called in here
        self._namespace = instance.namespace
        # Java's mark of a namespace, which brokers keep and nobody of them reads.
        self._mark = encode_properties({Property.INSTANCE_ID: instance.namespace.name} if instance.namespace else {})
        self.is_open = True
        """Whether it sends; else NotStartedError is raised."""
        self._is_closed = False

    def open(self) -> None:
        """Send from now on. The turn of queues is drawn anew: a process that was forked has the same random state."""
        self._turn = self._clock.random.getrandbits(31)
        self.is_open = True

    def close(self) -> None:
        """Send no more."""
        self.is_open, self._is_closed = False, True

    async def send_prepared(
        self,
        topic: str,
        body: bytes,
        properties: dict[str, str],
        *,
        flag: int = 0,
        sys_flag: int = 0,
        timed: bool = False,
        timeout: float | None = None,
    ) -> SendResult:
        """Send a message whose properties are complete, RocketMQ's own among them: what a consumer sends back itself.

        ``timed``: a timer property is among them, so only brokers will do that know those.

        Nothing is checked but sizes, and no middleware sees it. To a retry topic the header carries RECONSUME_TIME and
        MAX_RECONSUME_TIMES, which are taken out of the properties (Apache's ``sendKernelImpl``).
        """
        check_body(topic, body, self.options.max_message_size)
        born = self._clock.time_ms()
        msg_id = properties.get(Property.UNIQ_KEY) or self._instance.identity.unique_ids.next(born)
        complete = {Property.WAIT: "true", **properties, Property.UNIQ_KEY: msg_id}
        if namespace := self._namespace:
            complete |= {name: namespace.wrap(complete[name]) for name in TOPIC_PROPERTIES if name in complete}
            complete[Property.INSTANCE_ID] = namespace.name
        reconsume, max_reconsume = 0, None
        if topic.startswith(RETRY_PREFIX):
            reconsume = int(complete.pop(Property.RECONSUME_TIME, "0"))
            if (most := complete.pop(Property.MAX_RECONSUME_TIMES, None)) is not None:
                max_reconsume = int(most)
        numbers = encode_send_numbers(
            flag=flag, sys_flag=sys_flag, reconsume_times=reconsume, max_reconsume_times=max_reconsume
        )
        kind = TimerSendRequest if timed else SendRequest
        request = kind(topic, body, encode_checked(complete), msg_id, born, numbers=numbers)
        options = self.options
        seconds = options.send_message_timeout if timeout is None else check_timeout(timeout)
        tries = Tries(self._clock.monotonic(), seconds, options.retry_times_when_send_failed)
        return result_of(await self.deliver(request, tries))

    # --- from messages to requests -----------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises NotStartedError, ForkedError, OtherLoopError when nothing can be sent (from here)."""
        if self._is_closed:
            raise NotStartedError(f"producer {self.group}", "it was stopped, and stays so: make a new Producer")
        self._instance.check_running(f"producer {self.group}")
        if not self.is_open:
            raise NotStartedError(f"producer {self.group}")

    async def must_be_open(self) -> None:
        """Raises as :meth:`check_open` does; NotStartedError when the loop has gone on, for who tries again without end
        must not hold it up."""
        try:
            self.check_open()
        except NotStartedError:
            with suppress(RuntimeError):  # where no loop runs
                await checkpoint()
            raise

    def request(self, message: Message) -> SendRequest:
        """A checked message with an id of its own. Raises InvalidMessageError."""
        home = self._home
        if not (self.is_open and home.thread == get_ident() and home.runs()):
            self.check_open()
        try:
            said, body = message.topic, message.body
            topic = self._topics.get(said) or self._check_topic(said)
            is_plain = type(body) is bytes and 0 < len(body) < self._packing.plain_below and message.compression is None
            if not is_plain:
                check_body(topic, body, self.options.max_message_size)
            born = self._clock.time_ms()
            msg_id = self._instance.unique_ids.next(born)
            properties = message_properties(message, msg_id)
            if self._mark:
                properties = check_size(properties + self._mark)
            flag = message.flag
            timed = (message.deliver_at is not None or message.delay is not None) and is_timed(message)
            if not is_plain:
                request = self._packing.request(topic, message, properties, msg_id, born, check_flag(flag))
                return TimerSendRequest.of(request) if timed else request
            numbers = PLAIN_NUMBERS if flag == 0 else encode_send_numbers(flag=check_flag(flag))
            if timed:
                return TimerSendRequest(topic, body, properties, msg_id, born, numbers=numbers)
        except (AttributeError, TypeError, UnicodeEncodeError) as error:
            raise wrong_message(message, error) from error
        return SendRequest(topic, body, properties, msg_id, born, numbers=numbers)

    def batch_requests(self, batch: Sequence[Message]) -> list[tuple[Part, SendRequest]]:
        """Checked messages in as few requests as their size allows, each with an id of its own.

        Raises InvalidMessageError that tells which message breaks a rule.
        """
        first = self._check_batch(batch)
        born = self._clock.time_ms()
        elements = []
        for index, message in enumerate(batch):
            try:
                elements.append(self.element(message, born))
            except InvalidMessageError as error:
                raise _of_batch(index, error) from error
        most = self.options.max_message_size
        return [
            (
                part,
                self.request(batch[part.start])
                if part.alone
                else self.batch_of(elements[part.start : part.end], first, born),
            )
            for part in parts_of([each.size_within(most) for each in elements], most)
        ]

    def element(self, message: Message, born_ms: int) -> Element:
        """A message that may stand in a batch, checked, with an id of its own. Raises InvalidMessageError."""
        try:
            body, flag = message.body, message.flag
            if type(body) is not bytes or not 0 < len(body) <= self.options.max_message_size:
                check_body(message.topic, body, self.options.max_message_size)
            msg_id = self._instance.unique_ids.next(born_ms)
            properties = message_properties(message, msg_id)
            # Its own __new__ is a function of Python's, which takes twice as long (benchmark "batch of 32").
            return _new_tuple(Element, (check_flag(flag) if flag else 0, body, properties, msg_id))
        except (AttributeError, TypeError, UnicodeEncodeError) as error:
            raise wrong_message(message, error) from error

    def batch_request(self, batch: Sequence[Message]) -> SendRequest:
        """Checked messages as one request. Raises InvalidMessageError, also when they are too large for one."""
        (_, request), *more = self.batch_requests(batch)
        if more:
            raise InvalidMessageError(
                f"{len(batch)} messages of a batch to {batch[0].topic!r} take more than "
                f"{self.options.max_message_size} bytes, which are allowed (rocketmq.producer.max-message-size), after "
                "a middleware has had them"
            )
        return request

    def batch_of(self, elements: Sequence[Element], first: Message, born_ms: int) -> SendRequest:
        """Messages of a batch as one request; what they have alike is said by ``first``."""
        body = encode_batch(map(_IN_BATCH, elements))
        # Only WAIT: a 4.9 broker appends what stands here to every element, a UNIQ_KEY would give them all one id.
        properties = encode_properties({Property.WAIT: "true" if first.wait_store_ok else "false"}) + self._mark
        code = int(RequestCode.SEND_BATCH_MESSAGE)
        topic = self._topics.get(first.topic) or self._check_topic(first.topic)
        ids = ",".join([element.msg_id for element in elements])
        return SendRequest(topic, body, properties, ids, born_ms, code=code, numbers=BATCH_NUMBERS)

    def request_of(self, element: Element, message: Message, born_ms: int) -> SendRequest:
        """A message that was to stand in a batch as an ordinary one. Raises InvalidMessageError."""
        topic = self._topics.get(message.topic) or self._check_topic(message.topic)
        properties = check_size(element.properties + self._mark)
        numbers = PLAIN_NUMBERS if element.flag == 0 else encode_send_numbers(flag=element.flag)
        return SendRequest(topic, element.body, properties, element.msg_id, born_ms, numbers=numbers)

    def may_stand_in_batch(self, message: Message) -> bool:
        """Whether a message keeps the rules of batches, and none of what it asks for is lost in one."""
        try:
            self._check_in_batch(message, message)
        except InvalidMessageError:
            return False
        return message.compression is Compression.NONE or len(message.body) < self._packing.plain_below

    def _check_topic(self, topic: str) -> str:
        """The topic as it is called in here. Raises InvalidMessageError."""
        check_topic(topic, self._namespace)
        plain = self._namespace.unwrap(topic)
        if len(self._topics) < MAX_KNOWN_TOPICS:
            self._topics[topic] = plain
        return plain

    def _is_same(self, one: str, other: str) -> bool:
        unwrap = self._namespace.unwrap
        return bool(self._namespace) and unwrap(one) == unwrap(other)

    def _check_batch(self, batch: Sequence[Message]) -> Message:
        if not batch:
            raise InvalidMessageError("a batch needs at least one message")
        # Where all are alike in what is looked at, what holds for the first one holds for each.
        for index, message in enumerate(batch[:1] if _are_alike(batch) else batch):
            try:
                self._check_in_batch(message, batch[0])
            except InvalidMessageError as error:
                raise _of_batch(index, error) from error
        return batch[0]

    def _check_in_batch(self, message: Message, first: Message) -> None:
        """Raise InvalidMessageError unless the message may stand in a batch with the ``first`` one."""
        try:
            topic, hash_key = message.topic, message.hash_key
            if message is first or topic != first.topic:
                self._check_topic(topic)
            if topic.startswith(RETRY_PREFIX):
                raise InvalidMessageError(f"a batch cannot go to a retry topic ({topic!r})")
            if message.delay_level or message.delay is not None or message.deliver_at is not None:
                raise InvalidMessageError(
                    "a message of a batch has a delay_level, delay or deliver_at; send delayed ones one by one"
                )
            if message.compression not in (None, Compression.NONE):
                raise InvalidMessageError(
                    "a message of a batch has a compression, and batches go as they are; send it one by one"
                )
            if topic != first.topic and not self._is_same(topic, first.topic):
                raise InvalidMessageError(f"a batch has one topic; this one has {first.topic!r} and {topic!r}")
            if message.wait_store_ok != first.wait_store_ok:
                raise InvalidMessageError("the messages of a batch differ in wait_store_ok")
            if hash_key != first.hash_key:
                raise InvalidMessageError("the messages of a batch differ in hash_key, but they all go to one queue")
        except (AttributeError, TypeError) as error:
            raise wrong_message(message, error) from error

    # --- which queue, where somebody says it -------------------------------------------------------------------------

    async def queue_for(self, target: QueueTarget, message: Message, tries: Tries) -> MessageQueue | None:
        """The queue that ``queue=`` of a send means; None: the next one. Raises what a user's selector raises."""
        if isinstance(target, MessageQueue):
            return target
        check_target(target)
        self.check_open()
        said = message.topic
        topic = self._topics.get(said) or self._check_topic(said)
        lanes = self.lanes.get(topic)
        if lanes is None:
            lanes = await self.lanes.find(topic, tries.deadline - tries.now)
            tries.now = self._clock.monotonic()
        return self._queue_said(target, message, lanes)

    def _queue_said(self, target: QueueTarget, message: Message, lanes: Lanes) -> MessageQueue | None:
        """The queue that a target means among those of the topic; for RANDOM the turn is drawn, and it is the next."""
        if isinstance(target, MessageQueue):
            return target
        if not isinstance(target, QueueChoice):
            return selected(target, [*lanes.queues], message)
        if target is QueueChoice.RANDOM:
            if message.hash_key is not None:
                raise InvalidMessageError("a message has a hash_key, which chooses its queue, and queue= says RANDOM")
            self._turn = self._clock.random.getrandbits(31)
        return None

    # --- tries -------------------------------------------------------------------------------------------------------

    async def deliver(
        self,
        request: SendRequest,
        tries: Tries,
        queue: MessageQueue | None = None,
        hash_key: str | None = None,
        first: Lane | None = None,
    ) -> SendResult | None:
        """Try until a broker has the message, the tries are used up (``tries``), or the time is.

        A queue that was given, or that the key chooses at first, is kept whatever happens to the topic's route. One-way
        sends have no result. ``first`` is the lane of the first try, if it is chosen already.
        """
        options, topic = self.options, request.topic
        if request.numbers is TO_BE_PACKED:
            await self._pack(request, tries)
        lane: Lane | None = None
        older: set[str] = set()  # brokers that know no timer properties
        while True:
            lanes = self.lanes.get(topic)
            if lanes is None:
                lanes = await self.find_lanes(topic, tries, request.msg_id)
            if queue is None and hash_key is not None:
                queue = lanes.queue_of(hash_key)
            whole = lanes
            if older and queue is None:
                lanes = lanes.besides(older) or lanes
            if first is not None:
                lane, first = first, None
            elif queue is None:
                lane = self._next_lane(lanes, tries)
            else:
                lane = self._lane_to(queue, topic, lanes, lane)
            if lanes.one_broker and options.send_msg_max_timeout_per_request is None:
                share = tries.deadline - tries.now
            else:
                share = self._share(lane, lanes, tries, fixed=queue is not None)
            request.template = lane.template
            try:
                if request.timer:
                    share = await self._until_takes_timers(request, lane, share, tries)
                    whole.takes_timers[lane.broker_name] = lane
                if request.one_way:
                    await self._remoting.send_prepared_oneway(lane.address, request, timeout=share, now=tries.now)
                    result = None
                else:
                    answer = await self._remoting.request_prepared(lane.address, request, timeout=share, now=tries.now)
                    result = send_result(
                        answer, lane.address, topic, lane.broker_name, request.msg_id, self._remoting.credentials
                    )
                    if result.status is not SendStatus.SEND_OK:
                        raise NotDurableError(result)
            except LocalProtocolError as error:
                raise _too_large(topic, error) from error
            except OlderBrokerError as error:
                older.add(lane.broker_name)
                if queue is None and not lanes.brokers <= older:
                    continue
                away = None if queue is not None else whole.timer_broker_away(tries.now)
                if away is not None:
                    accepted = await self._go_on_after(_away(away, topic), request, tries, lanes, away, fixed=True)
                    if accepted is not None:
                        return accepted
                    continue
                if tries.error is None:
                    raise
                raise tries.end(request.msg_id) from error  # a newer broker, gone by now, may have stored it
            except (RemotingError, BrokerError, NotDurableError) as error:
                accepted = await self._go_on_after(error, request, tries, lanes, lane, fixed=queue is not None)
                if accepted is not None:
                    return accepted
            except (ClientStateError, HookFailedError) as error:
                if tries.error is None:
                    raise
                raise tries.end(request.msg_id) from error  # the try before may have stored it
            else:
                if self._faults.known or self._faults.measures:
                    self._note_success(lane, tries)
                return result

    async def _pack(self, request: SendRequest, tries: Tries) -> None:
        """Compress the body in a thread, as long as the send has time. Raises ClientError: nothing was sent."""
        size = len(request.body)
        with self._clock.move_on_after(tries.deadline - tries.now):  # the wait for a thread; its end is waited for
            await self._packing.pack(request)
        tries.now = self._clock.monotonic()
        if tries.now >= tries.deadline:  # no broker is to blame, so none is avoided for it
            raise ClientError(
                f"message {request.msg_id} to {request.topic!r} was not sent: the time of the send was over before its "
                f"body of {size} bytes was compressed (rocketmq.producer.send-message-timeout, "
                "compress-type and compress-level)"
            )

    def write(self, request: SendRequest) -> bool:
        """Write a one-way send to any queue, if it has to wait for nothing; whether it was written.

        Fast path: without the loop of tries, in which nothing is awaited then; with what else is spared a one-way
        send takes three tenths less (benchmark "one-way").
        """
        lanes = self.lanes.get(request.topic)
        if lanes is None or self._faults.known or self._faults.measures or request.timer:
            return False
        if request.numbers is TO_BE_PACKED:
            return False
        everywhere, turn = lanes.all, self._turn + 1
        lane = everywhere[turn % len(everywhere)]
        request.template = lane.template
        try:
            written = self._remoting.write_prepared(lane.address, request)
        except LocalProtocolError as error:
            raise _too_large(request.topic, error) from error
        except (RemotingError, BrokerError):  # a hook's; the loop meets it again, and counts it
            return False
        if written:
            self._turn = turn & MAX_TURN
        return written

    async def deliver_many(
        self, messages: Sequence[Message], timeout: float, retries: int, queue: QueueTarget | None = None
    ) -> list[SendResult | Exception]:
        """Send messages each on its own, up to ``send_many_window`` of them in flight: result or error of each."""
        return await self._window(SendWindow, f"send_many of {self.group}", timeout, retries, queue).run(messages)

    def open_window(self, timeout: float, retries: int) -> OpenWindow:
        """A window for sends that come one by one."""
        return self._window(OpenWindow, f"sends of {self.group}", timeout, retries)

    def _window(
        self, kind: type[WindowT], name: str, timeout: float, retries: int, queue: QueueTarget | None = None
    ) -> WindowT:
        faults = self._faults
        return kind(
            name,
            self._remoting,
            self._clock,
            size=self.options.send_many_window,
            timeout=timeout,
            retries=retries,
            target=queue,
            prepare=self.request,
            start=self._start,
            deliver=self._deliver_from,
            succeeded=self._note_first_success,
            faults=faults.known,
            measures=faults.measures,
        )

    def _start(self, first: FirstTry) -> bool:
        """For the window of send_many: choose a lane and make the first try, if it has to wait for nothing."""
        request = first.request
        lanes = self.lanes.get(request.topic)
        if lanes is None or request.numbers is TO_BE_PACKED or request.timer:
            return False
        first.lanes = lanes
        queue, key = None, first.message.hash_key
        if (target := first.window.target) is not None:
            queue = self._queue_said(target, first.message, lanes)
        if queue is None and key is not None:
            queue = lanes.queue_of(key)
        first.queue = queue
        lane = self._next_lane(lanes, first) if queue is None else self._lane_to(queue, request.topic, lanes, None)
        first.lane = lane
        share = self._share(lane, lanes, first, fixed=queue is not None)
        request.template = lane.template
        try:
            connection = self._remoting.start_prepared(lane.address, request, first, timeout=share, now=first.now)
        except LocalProtocolError as error:
            raise _too_large(request.topic, error) from error
        except (RemotingError, BrokerError) as error:  # a hook's
            first.failure = error
            return False
        if connection is None:
            return False
        first.connection = connection
        return True

    async def _deliver_from(self, first: FirstTry) -> SendResult:
        """For the window of send_many: what follows on a first try, or that first try."""
        request, lane, queue, key = first.request, first.lane, first.queue, first.message.hash_key
        if first.failure is None:
            if lane is None and (target := first.window.target) is not None:
                queue = await self.queue_for(target, first.message, first)
            return result_of(await self.deliver(request, first, queue, key, lane))
        assert lane is not None
        fixed = queue is not None
        accepted = await self._go_on_after(first.failure, request, first, first.lanes, lane, fixed=fixed)
        return accepted if accepted is not None else result_of(await self.deliver(request, first, queue))

    def _note_first_success(self, first: FirstTry) -> None:
        if first.lane is not None and (self._faults.known or self._faults.measures):
            self._note_success(first.lane, first)

    async def _go_on_after(
        self, error: RocketBoxError, request: SendRequest, tries: Tries, lanes: Lanes, lane: Lane, *, fixed: bool
    ) -> SendResult | None:
        """Return when the next try is due; at once with a weak acknowledgement that is accepted after all.

        Raises the error of the send where no other try follows.
        """
        options, clock = self.options, self._clock
        for_good = isinstance(error, BrokerError) and error.code not in RETRY_CODES
        if isinstance(error, AccessDeniedError):
            for_good = not (error.wrong_keys and await self._has_new_keys(tries))
        if for_good and tries.error is None:
            raise error
        began, tries.now = tries.now, clock.monotonic()
        if isinstance(error, RemotingError):
            self._instance.suspect_route(request.topic)
        if isinstance(error, RemotingError) or (
            isinstance(error, BrokerError)
            and error.code in BUSY_CODES
            and not isinstance(error, AccessDeniedError)  # which says nothing of the broker
        ):
            self._faults.failed(lane.broker_name, tries.now, tries.now - began)
        weak_is_final = not options.retry_another_broker_when_not_store_ok
        if tries.goes_on_after(lane, error, weak_is_final=weak_is_final) and not (for_good or tries.are_needless):
            others = not fixed and not lanes.brokers <= tries.tried
            if pause := tries.pause(clock, others=others):
                await clock.sleep(pause)
                tries.now = clock.monotonic()
            if tries.now < tries.deadline and not tries.are_needless:
                return None
        if tries.weak is not None and options.accept_weak_ack:
            return tries.weak
        raise tries.end(request.msg_id)

    async def _until_takes_timers(self, request: SendRequest, lane: Lane, share: float, tries: Tries) -> float:
        """Find out that the lane's broker knows timer properties; the seconds of the try that are left then."""
        began = tries.now
        with self._clock.move_on_after(share) as scope:
            await check_takes_timers(self._instance, lane.address, lane.broker_name, request.topic)
        tries.now = self._clock.monotonic()
        if scope.cancelled_caught:
            raise ConnectError(lane.address, f"no answer to a heartbeat within {share:.3g} s; nothing was sent")
        return share - (tries.now - began)

    async def _has_new_keys(self, tries: Tries) -> bool:
        """Whether a refusal of the keys may be about those before: they change while messages are on their way."""
        keys = self._instance.keys
        left = tries.deadline - self._clock.monotonic()
        return keys is not None and left > 0 and await keys.found_new(min(left, NEW_KEYS_WITHIN))

    def _note_success(self, lane: Lane, tries: Tries) -> None:
        now = self._clock.monotonic()
        self._faults.succeeded(lane.broker_name, now, now - tries.now)

    async def find_lanes(self, topic: str, tries: Tries, msg_id: str = "") -> Lanes:
        """The topic's lanes, where they have to be asked for; ``msg_id`` is that of what was tried already.

        Raises NoRouteError: there are none, or nobody told in time.
        """
        try:
            lanes = await self.lanes.find(topic, tries.deadline - tries.now)
        except RocketBoxError:
            if tries.error is None:
                raise
            raise tries.end(msg_id) from tries.error  # what the tries said tells more
        tries.now = self._clock.monotonic()
        if tries.now >= tries.deadline:
            names = self._instance.name_servers
            detail = "the time of the send was over when it was told; nothing was sent"
            raise NoRouteError(topic, names, detail, namespace=self._namespace.name)
        return lanes

    # --- which queue -------------------------------------------------------------------------------------------------

    def _next_lane(self, lanes: Lanes, tries: Tries) -> Lane:
        """The next one in turn; if possible of a broker that was not tried yet and is not to be avoided."""
        everywhere, faults, now = lanes.all, self._faults, tries.now
        count = len(everywhere)
        self._turn = turn = (self._turn + 1) & MAX_TURN
        if tries.error is None and not faults.known:
            return everywhere[turn % count]
        tried = tries.tried if tries.error is not None else frozenset()
        in_turn = [everywhere[(turn + number) % count] for number in range(count)]
        lane = next(
            (lane for lane in in_turn if lane.broker_name not in tried and not faults.avoids(lane.broker_name, now)),
            next((lane for lane in in_turn if lane.broker_name not in tried), in_turn[0]),
        )
        self._turn = (turn + in_turn.index(lane)) & MAX_TURN
        faults.chosen(lane.broker_name, now)
        return lane

    def _share(self, lane: Lane, lanes: Lanes, tries: Tries, *, fixed: bool) -> float:
        """The seconds of the try at hand. A ``fixed`` lane has no other beside it."""
        limit = self.options.send_msg_max_timeout_per_request
        places = 1 if fixed or lanes.one_broker else self._places(lane, lanes, tries)
        return tries.share(places, limit)

    def _places(self, lane: Lane, lanes: Lanes, tries: Tries) -> int:
        """How many brokers there are to turn to: that of this try, and those that are neither tried nor avoided."""
        tried = tries.tried if tries.error is not None else frozenset()
        faults, now = self._faults, tries.now
        others = lanes.brokers - tried - {lane.broker_name}
        return 1 + (sum(not faults.avoids(name, now) for name in others) if faults.known else len(others))

    def _lane_to(self, queue: MessageQueue, topic: str, lanes: Lanes, last: Lane | None) -> Lane:
        """The lane to a queue that is given, whether the topic's route names it now or not.

        ``last`` is that of the try before: a broker that stops takes itself out of the routes, and may come back there.
        """
        lane = lanes.by_queue.get(queue)
        if lane is not None:
            return lane
        if self._namespace and isinstance(queue, MessageQueue):
            queue = replace(queue, topic=self._namespace.unwrap(queue.topic))
        try:
            return self.lanes.lane_of(queue, topic)
        except ClientError:
            if last is None:
                raise
            return last


def _are_alike(batch: Sequence[Message]) -> bool:
    try:
        return [*map(_SAME_IN_BATCH, batch)].count(_SAME_IN_BATCH(batch[0])) == len(batch)
    except (AttributeError, TypeError):  # of what is no message
        return False


def _of_batch(index: int, error: InvalidMessageError) -> InvalidMessageError:
    return InvalidMessageError(f"message {index} of the batch: {error}")


def _away(lane: Lane, topic: str) -> ConnectError:
    return ConnectError(
        lane.address,
        f"broker {lane.broker_name} is not in the route of topic {topic!r} now, and it is the one that keeps times of "
        "delivery: the others are older than RocketMQ 5.0. Nothing was sent",
    )


def _too_large(topic: str, error: LocalProtocolError) -> InvalidMessageError:
    return InvalidMessageError(f"the message to {topic!r} cannot be sent: {error}")
