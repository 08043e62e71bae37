"""PushConsumer: subscribe to topics, and handlers are called with what comes.

Holds the consumer's life. What is subscribed and told to brokers is in ``subscriptions``, which queues it has in
``assignment``, pulling in ``pull_loop``, calling handlers in ``consume``.

Source: Apache RocketMQ 5.x ``DefaultMQPushConsumer``, ``DefaultMQPushConsumerImpl``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import anyio

from rocketbox.client.assignment import PATIENCE, QueueAssignment
from rocketbox.client.checks import check_group, check_topic
from rocketbox.client.consume import ConcurrentConsumer, OrderlyConsumer
from rocketbox.client.handler_threads import HandlerThreads, preparation
from rocketbox.client.instance import MQClientInstance, own_or_shared
from rocketbox.client.local_offsets import LocalOffsetStore, default_offset_dir
from rocketbox.client.membership import Membership
from rocketbox.client.middleware import ContextOf, wrap_handler
from rocketbox.client.offset_store import OffsetStore, RemoteOffsetStore
from rocketbox.client.options import ClientOptions, ConsumerOptions
from rocketbox.client.outcomes import BROKER_DECIDES, DEAD_LETTER, AnyHandler, Preparation
from rocketbox.client.process_queue import FlowLimits, ProcessQueue
from rocketbox.client.pull_gate import PullGate
from rocketbox.client.pull_loop import PullContext, PullLoop
from rocketbox.client.queue_locks import QueueLocks
from rocketbox.client.rebalance import Rebalancer
from rocketbox.client.replies import Replier
from rocketbox.client.routes import TopicRoute
from rocketbox.client.send_back import SendBack
from rocketbox.client.subscriptions import ReceiverOf, Subscription, Subscriptions
from rocketbox.client.trace import ConsumerTrace
from rocketbox.client.trace_dispatcher import TraceCounts
from rocketbox.clock import Clock
from rocketbox.errors import (
    ClientError,
    ClientStateError,
    CodecMissingError,
    NotStartedError,
    RemoteProtocolError,
    RocketBoxError,
)
from rocketbox.message import MessageExt, MessageQueue, SelectorType
from rocketbox.protocol.bodies import ConsumerData
from rocketbox.remoting.network import Network
from rocketbox.safe_repr import also_when_unmade
from rocketbox.tasks import SupervisedTask, Supervisor, TaskHealth, ended_most

__all__ = ["ConsumerState", "PushConsumer", "QueueState"]

_log = logging.getLogger(__name__)

MAX_BATCH_SIZE = 1024
PAUSED = "its user paused it"
HUNG = "all threads of its def handlers hang"
CANCELLED_HANDLERS_END = 1.0  # seconds for cancelled handlers to clear up before the queues are handed on
STOP_TIMEOUT = 5.0  # seconds for the last commit and the unlocking, also when everything is being cancelled
REMINDER_INTERVAL = 60.0  # seconds between two warnings of topics that do not exist


@dataclass(frozen=True)
class QueueState:
    """One queue of a consumer. ``lag`` counts messages up to the broker's end as the last pull knew it."""

    queue: MessageQueue
    commit_offset: int
    pulled_to: int
    lag: int
    held: int
    waiting: int
    in_process: int
    locked: bool
    seconds_since_pull: float


@dataclass(frozen=True)
class ConsumerState:
    """What health shows of a consumer. ``topics_without_route`` are subscribed, and no name server knows them.

    ``hung_handlers`` are the lines at which all threads of its def handlers hang, for which it does not pull.
    ``missing_codecs`` are those with which messages came that cannot be read here; they come back later. ``refused`` is
    what servers refuse this group: which permission of which user is missing, or that its keys are not taken.
    """

    group: str
    running: bool
    paused: bool
    busy_workers: int
    queues: tuple[QueueState, ...]
    topics_without_route: tuple[str, ...]
    hung_handlers: tuple[str, ...]
    missing_codecs: tuple[str, ...]
    refused: tuple[str, ...]
    tasks: tuple[TaskHealth, ...]

    @property
    def lag(self) -> int:
        return sum(queue.lag for queue in self.queues)

    @property
    def held(self) -> int:
        """Messages pulled and not consumed yet."""
        return sum(queue.held for queue in self.queues)


class PushConsumer:
    """A member of a consumer group.

    ``async with PushConsumer("desk", name_server="127.0.0.1:9876") as consumer: await consumer.subscribe(...)``.

    Give a name server, or an ``instance`` that is shared with others and outlives the consumer. Topics that are
    subscribed to before the ``async with`` are told to the brokers together, which spares other members of the group
    a moment in which this one seems to want less than they.

    Leaving the block stops pulling, lets running handlers finish for up to ``await_termination`` seconds, commits,
    gives locks back and leaves the group. What was cancelled by then is not committed.

    Raises InvalidGroupError for a group that RocketMQ does not take.
    """

    def __init__(
        self,
        group: str,
        *,
        name_server: str | Sequence[str] | None = None,
        instance: MQClientInstance | None = None,
        options: ConsumerOptions | None = None,
        client_options: ClientOptions | None = None,
        clock: Clock | None = None,
        network: Network | None = None,
    ) -> None:
        check_group(group, "consumer")
        options = options or ConsumerOptions()
        instance, self._owns_instance = own_or_shared(
            f"consumer {group}", name_server, instance, client_options=client_options, clock=clock, network=network
        )
        check_group(group, "consumer", instance.namespace)
        self._group = group = instance.namespace.unwrap(group)
        self._instance = instance
        self._options = options
        self._clock = instance.clock
        self._subscriptions = Subscriptions(group, instance, options)
        self._running = False
        self._closed = False
        self._registered = False
        self._reminding = False
        self._told_of_late_handlers = False
        self._gate = PullGate()
        self._missing_codecs: set[str] = set()
        self._rounds: SupervisedTask | None = None
        self._stack = AsyncExitStack()
        self._tasks = Supervisor(f"consumer {group}", self._clock)
        self._rebalancer = Rebalancer(self._rebalance, self._options.rebalance_interval, self._clock)
        needs_locks = self._options.orderly and not self._options.broadcasting
        self.threads = HandlerThreads(options.concurrency, group, self._clock)
        """Those of its def handlers."""
        self._send_back = None if self._options.broadcasting else SendBack(group, instance)
        self._replier = Replier(group, instance, options.reply_timeout)
        self._trace = ConsumerTrace(group, instance, options) if options.enable_msg_trace else None
        self._consume_middleware = instance.options.consume_middleware
        if self._trace is not None:
            self._consume_middleware = (self._trace, *self._consume_middleware)  # the outermost: it sees what comes out
        self._consumer = self._make_consumer()
        self._local_offsets = self._make_local_offsets() if self._options.broadcasting else None
        offsets: OffsetStore = self._local_offsets or RemoteOffsetStore(group, instance)
        membership = Membership(
            group=group, instance=instance, options=self._options, subscriptions=self._subscriptions,
            tasks=self._tasks, again=self._rebalancer.again, refusals=instance.refusals(group),
        )  # fmt: skip
        self._queues = QueueAssignment(
            membership,
            offsets=offsets,
            locks=QueueLocks(group, instance) if needs_locks else None,
            pull=self._start_pulling,
            offer=self._consumer.offer,
        )
        self._pull_context = PullContext(
            group=group, instance=instance, options=self._options, subscriptions=self._subscriptions,
            limits=self._limits, offer=self._consumer.offer, reset=self._queues.reset, gate=self._gate.passed,
            may_pull=self._queues.may_commit, set_aside=self._set_aside,
        )  # fmt: skip

    def _make_consumer(self) -> ConcurrentConsumer | OrderlyConsumer:
        group, options, subscriptions = self._group, self._options, self._subscriptions
        send_back, tasks, clock = self._send_back, self._tasks, self._clock
        if options.orderly:
            return OrderlyConsumer(
                group, options, subscriptions, send_back=send_back, tasks=tasks, clock=clock, replier=self._replier
            )
        return ConcurrentConsumer(
            group, options, subscriptions, threads=self.threads, send_back=send_back, tasks=tasks, clock=clock,
            replier=self._replier,
        )  # fmt: skip

    def _make_local_offsets(self) -> LocalOffsetStore:
        directory = self._options.local_offset_dir or default_offset_dir()
        client = self._instance.options
        # A name that stays the same when the process starts again, as Java has it: without the process id.
        name = f"{self._instance.ip}@{client.instance_name}" + (f"@{client.unit_name}" if client.unit_name else "")
        return LocalOffsetStore(
            self._instance.storage, directory, name, self._group, self._clock, self._instance.namespace,
            client.namespace_v2,
        )  # fmt: skip

    # --- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._running or self._closed:
            raise ClientStateError(f"consumer {self._group!r} was started before; make a new PushConsumer")
        async with AsyncExitStack() as stack:
            if self._owns_instance:
                await stack.enter_async_context(self._instance)
            if self._local_offsets is not None:
                await stack.enter_async_context(self._local_offsets)
            await stack.enter_async_context(self.threads)
            await stack.enter_async_context(self._tasks)
            if self._trace is not None:
                self._trace.start()
                stack.push_async_callback(self._trace.stop)
            self._running = True
            stack.push_async_exit(self._leave)
            self._consumer.start()
            if self._options.consume_timeout != float("inf"):
                self._tasks.start("def handlers", self.threads.watch, self._options.consume_timeout, self._on_hung)
            self._rounds = self._tasks.start("rebalance", self._rebalancer.run)
            if self._queues.lock_upkeep is not None:
                self._tasks.start("queue locks", self._queues.lock_upkeep.keep)
            if self._subscriptions.subscribed:
                await self._begin(self._subscriptions.subscribed)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._instance.remoting.check_end(f"consumer {self.group}")
        return await self._stack.__aexit__(kind, error, trace)

    async def stop_pulling(self) -> None:
        """Pull nothing more and begin no more handlers, for good; those that run go on, the queues stay."""
        self._check_loop()
        self._closed = True
        self._rebalancer.end()
        self._consumer.close()
        if self._rounds is not None:
            self._rounds.cancel()
            await self._rounds.wait()
        await self._queues.stop_pulling()

    async def drain(self, timeout: float) -> bool:
        """Stop pulling and wait up to timeout seconds for running handlers; whether all have ended."""
        await self.stop_pulling()
        with self._clock.move_on_after(timeout):
            await self._consumer.drained()
        if self._consumer.busy and not self._told_of_late_handlers:
            self._told_of_late_handlers = True
            _log.warning(
                "group %s: %d handlers still run after %g s (await_termination): their messages are not committed",
                self._group,
                self._consumer.busy,
                timeout,
            )
        return not self._consumer.busy

    async def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let handlers finish, then commit, unlock and leave the group.

        When everything is being cancelled no handler is waited for, and the rest takes at most a few seconds.
        """
        try:
            if error is None or isinstance(error, Exception):
                await self.drain(self._options.await_termination)
        finally:
            await self._say_goodbye()

    async def _say_goodbye(self) -> None:
        with anyio.CancelScope(shield=True):
            try:
                await self.stop_pulling()
                self._consumer.cancel()
                with self._clock.move_on_after(CANCELLED_HANDLERS_END):
                    await self._consumer.drained()
                await self._queues.release(STOP_TIMEOUT)
            finally:  # a task's own cancel(), as asyncio.timeout() calls it, comes through the shield
                self._queues.forget_all()
                self._running = False
                if self._registered:
                    self._registered = False
                    await self._instance.unregister_consumer(self._group)

    @also_when_unmade
    def __repr__(self) -> str:
        state = "running" if self._running else "closed" if self._closed else "not started"
        topics = sorted(self._subscriptions.subscribed)
        return f"PushConsumer({self._group!r}, {state}, {len(self._queues.queues)} queues of {topics})"

    def _check_loop(self) -> None:
        """Raise OtherLoopError in another loop than that in which it runs."""
        self._instance.remoting.check_loop(f"consumer {self._group}")

    # --- subscriptions -----------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        topic: str,
        expression: str,
        handler: AnyHandler,
        *,
        selector_type: SelectorType = SelectorType.TAG,
        batch_max_size: int = 1,
        prepare: Preparation | None = None,
        context_of: ContextOf | None = None,
        receiver_of: ReceiverOf | None = None,
    ) -> None:
        """Have handler called with the messages of topic that expression selects (``"*"`` or ``"A || B"``).

        A ``def`` handler runs in a thread, so it may block; at most ``concurrency`` of them run at once. An ``async
        def`` that only gets the arguments of a ``def`` ready may come with ``prepare``, which does so in the loop and
        returns the call for the thread, where no task is needed then; for what it returns None of or fails with,
        handler is called. ``context_of`` makes what middlewares get, in place of a plain ``ConsumeContext``. A handler
        that stands for several receivers comes with ``receiver_of``: then each call has messages of one of them.

        On a running consumer this returns after the brokers know of it and this member has been given its queues as far
        as they can be had now: what is sent from then on is consumed. A topic that does not exist yet is asked for each
        second. Subscribing to a topic again replaces expression and handler.

        Raises ClientError for a bad topic, expression or batch size, RemotingError when no name server answers
        (unless ``wait_for_servers``).
        """
        self._check_loop()
        if self._closed:
            raise ClientStateError(f"consumer {self._group!r} is closed")
        check_topic(topic, self._instance.namespace)
        topic = self._instance.namespace.unwrap(topic)
        if not 1 <= batch_max_size <= MAX_BATCH_SIZE:
            raise ClientError(f"batch_max_size of {topic!r} is {batch_max_size}; it must be from 1 to {MAX_BATCH_SIZE}")
        in_thread = self.threads.handler(handler)
        wrapped = wrap_handler(self._group, self._consume_middleware, in_thread, context_of)
        prepare = (prepare or preparation(handler)) if wrapped is in_thread else None  # middleware wraps it all
        before = self._subscriptions.put(
            topic, expression, wrapped, selector_type, batch_max_size, prepare, receiver_of
        )
        if not self._running:
            return
        try:
            await self._begin([topic])
        except BaseException:  # a cancellation, too, must not leave half a subscription
            self._take_back(topic, before)
            raise

    async def reply(
        self,
        request: MessageExt,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Answer a message that is a request (``Producer.request``), within ``timeout`` seconds (``reply_timeout``).

        Returns when the client that asked has the reply. Raises ClientError for a message that asks for none,
        InvalidMessageError, BrokerError with code 1 when no broker reaches that client any more, RemotingError.
        """
        if not self._running:
            raise NotStartedError(f"consumer {self._group}")
        self._check_loop()
        await self._replier.reply(request, body, properties=properties, timeout=timeout)

    @property
    def replier(self) -> Replier:
        """What its replies go by."""
        return self._replier

    def _take_back(self, topic: str, before: Subscription | None) -> None:
        """Let topic be subscribed as it was before, newer than what brokers may have been told meanwhile."""
        if before is None:
            self._subscriptions.remove(topic)
            self._queues.forget_topic(topic)
        else:
            self._subscriptions.put_back(topic, before)
        self._instance.request_heartbeat()
        self._rebalancer.wake()

    async def unsubscribe(self, topic: str) -> None:
        """Give the topic's queues back, after its running handlers have had a second to end."""
        self._check_loop()
        topic = self._instance.namespace.unwrap(topic)
        if not self._subscriptions.remove(topic):
            return
        self._queues.forget_topic(topic)
        if self._running:
            self._instance.request_heartbeat()
            await self._rebalancer.now()
            await self._queues.settled()

    async def _begin(self, topics: Iterable[str]) -> None:
        for topic in topics:
            try:
                route = await self._instance.find_route(topic)
            except RocketBoxError:
                if not self._options.wait_for_servers:
                    raise
                _log.warning("group %s: no name server answers yet; %s is asked for each second", self._group, topic)
                continue
            self._queues.starts.note_first_route(topic, route.subscribe_queues if route else ())
            if route is None:
                _log.warning("group %s: topic %s does not exist yet; it is asked for each second", self._group, topic)
        if self.missing_topics and not self._reminding:
            self._reminding = True
            self._tasks.start("missing topics", self._remind_of_missing_topics)
        if not self._registered:
            self._instance.register_consumer(self._group, self)
            self._registered = True
        tellings = [
            self._tasks.start(f"telling {name}", self._subscriptions.tell, name, restart=False)
            for name in self._instance.broker_names
        ]
        await self._rebalancer.now()
        await self._queues.settled()
        await ended_most(tellings, PATIENCE, self._clock)

    @property
    def missing_topics(self) -> tuple[str, ...]:
        """The subscribed topics that no name server has known yet: nothing of them is consumed."""
        return tuple(t for t in self._subscriptions.subscribed if self._instance.cached_route(t) is None)

    @property
    def trace(self) -> TraceCounts | None:
        """What became of the records of its message trace; None: it has none (``enable_msg_trace``)."""
        return None if self._trace is None else self._trace.counts

    @property
    def missing_codecs(self) -> tuple[str, ...]:
        """The codecs of messages that came and cannot be read here."""
        return tuple(sorted(self._missing_codecs))

    async def _remind_of_missing_topics(self) -> None:
        """Warn each minute, until they are there: the instance asks for them each second."""
        while True:
            await self._clock.sleep(REMINDER_INTERVAL)
            missing = self.missing_topics
            if not missing:
                self._reminding = False
                return
            _log.warning("group %s: still no route for %s; nothing of it is consumed", self._group, ", ".join(missing))

    # --- what the instance asks (ConsumerMember) ---------------------------------------------------------------------

    @property
    def group(self) -> str:
        return self._group

    def topics(self) -> set[str]:
        """The subscribed topics, with clustering the group's retry topic as well."""
        return self._subscriptions.topics

    def consumer_data(self) -> ConsumerData:
        """What a heartbeat says of this consumer."""
        return self._subscriptions.consumer_data()

    def on_route_changed(self, topic: str, route: TopicRoute) -> None:
        self._queues.starts.note_first_route(
            topic, route.subscribe_queues
        )  # counts if no name server answered at the start
        self._rebalancer.wake()

    def on_ids_changed(self) -> None:
        self._rebalancer.wake()
        if self._running and not self._closed:
            self._tasks.start("commit", self.persist_offsets, restart=False)  # who takes a queue over reads it at once

    def has_offsets_to_persist(self) -> bool:
        """Whether more is consumed than is committed."""
        return bool(self._queues.uncommitted())

    async def persist_offsets(self) -> None:
        """Commit how far each queue is consumed, now."""
        self._check_loop()
        await self._queues.persist()

    async def skip(self, ends: Mapping[MessageQueue, int]) -> None:
        """Go on at these offsets: what stands before them in their queue is not handled any more.

        Queues that this consumer does not have, or is further in, are left as they are. Handlers that run go on; what
        becomes of their messages no longer counts. Returns when the offsets are committed, or could not be yet.
        """
        self._check_loop()
        await self._queues.skip(ends)

    # --- pause and state ---------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Pull nothing until :meth:`resume`; what is held is still consumed.

        It stays a member of its group: queues go to others that join and come from others that leave, and keep their
        place meanwhile. (A paused consumer of Java's takes part in no rebalance: what it should hand on is consumed by
        two members then, and commits go back and forth.)
        """
        self._gate.close(PAUSED)

    def resume(self) -> None:
        """End a pause."""
        self._gate.open(PAUSED)

    @property
    def paused(self) -> bool:
        return self._gate.closed_by(PAUSED)

    def _on_hung(self) -> None:
        if self.threads.hung:
            self._gate.close(HUNG)
        else:
            self._gate.open(HUNG)

    def state(self) -> ConsumerState:
        """Queues with their lag, and what is in hand; cheap, and always there."""
        now = self._clock.monotonic()
        return ConsumerState(
            group=self._group,
            running=self._running and not self._closed,
            paused=self.paused,
            busy_workers=self._consumer.busy,
            queues=tuple(
                QueueState(
                    queue=each.queue,
                    commit_offset=each.commit_offset,
                    pulled_to=each.pulled_to,
                    lag=each.lag,
                    held=each.count,
                    waiting=len(each.waiting),
                    in_process=each.in_process,
                    locked=each.lock_holds(now),
                    seconds_since_pull=now - each.last_pull_at,
                )
                for each in sorted(self._queues.queues, key=lambda each: each.queue)
            ),
            topics_without_route=tuple(sorted(self.missing_topics)),
            hung_handlers=self.threads.hung,
            missing_codecs=self.missing_codecs,
            refused=self._instance.refusals(self._group).missing if self._running else (),
            tasks=tuple(self._tasks.health()) if self._running else (),
        )

    # --- for its parts -----------------------------------------------------------------------------------------------

    def _rebalance(self) -> None:
        if self._registered and not self._closed:
            self._queues.rebalance()

    def _start_pulling(self, messages: ProcessQueue) -> SupervisedTask:
        name = f"pull {messages.queue.topic} {messages.queue.broker_name}/{messages.queue.queue_id}"
        return self._tasks.start(name, PullLoop(messages, self._pull_context).run)

    async def _set_aside(self, message: MessageExt, error: RemoteProtocolError) -> bool:
        """A message that cannot be read goes to the dead-letter queue; if only a codec is missing it is tried again."""
        level = DEAD_LETTER
        if isinstance(error, CodecMissingError):
            self._missing_codecs.add(error.codec)
            level = BROKER_DECIDES
        if self._send_back is None:
            return True  # broadcasting has neither retries nor a dead-letter queue; it has been logged
        return await self._send_back.send_back(message, level, self._options.max_reconsume_times)

    def _limits(self, topic: str) -> FlowLimits:
        """The limits of one queue of topic; those of the topic are shared among the queues held of it."""
        options = self._options
        messages, size = options.pull_threshold_for_queue, options.pull_threshold_size_for_queue
        if options.pull_threshold_for_topic > 0 or options.pull_threshold_size_for_topic > 0:
            queues = max(1, self._queues.count(topic))
            if options.pull_threshold_for_topic > 0:
                messages = max(1, options.pull_threshold_for_topic // queues)
            if options.pull_threshold_size_for_topic > 0:
                size = max(1, options.pull_threshold_size_for_topic // queues)
        return FlowLimits(messages, size, None if options.orderly else options.consume_concurrently_max_span)
