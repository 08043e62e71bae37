"""The container of a consumer group: one push consumer, and the functions that get its messages.

It starts and stops them together and pauses the group when too many payloads cannot be read. Which functions belong
to a group, and with which options, is the registrar's decision.

Source: rocketmq-spring 2.3 ``DefaultRocketMQListenerContainer`` (there one container is one bean and one topic).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Self

from rocketbox.client import MQClientInstance, PushConsumer
from rocketbox.client.push_consumer import ConsumerState
from rocketbox.client.replies import Replier, wants_reply
from rocketbox.clock import Clock
from rocketbox.errors import NotStartedError
from rocketbox.listeners.arguments import HandlerBinding
from rocketbox.listeners.binding import Beans
from rocketbox.listeners.container_state import ContainerState, ContainerStatus
from rocketbox.listeners.dispatch import HandlerDispatch, Invocation
from rocketbox.listeners.invalid_limit import InvalidLimit
from rocketbox.listeners.options import consumer_options
from rocketbox.listeners.plans import ContainerPlan, ListenerFunction
from rocketbox.listeners.tag_routing import TagRouter
from rocketbox.marks import send_to
from rocketbox.message import Message, MessageExt, MessageQueue
from rocketbox.tasks import TaskState
from rocketbox.template import MessageConverter, RocketMQTemplate
from rocketbox.template.content_types import write_payload
from rocketbox.template.spring_headers import CONTENT_TYPE

__all__ = ["ListenerContainer"]

_log = logging.getLogger(__name__)


class ListenerContainer:
    """Consumes for one group from ``async with`` to its end.

    ``template_of(cluster)`` is what gives, when it is called, the template for what ``send_to`` sends on; without a
    cluster of its own it goes to that of the listener. ``given`` are options of the consumer that win over the plan's.
    ``paused(told)`` is called when the group pauses itself, with why and what to do. ``payload_held()`` stands around
    the time in which a payload that cannot be read is held for that, in the task of its call.
    """

    def __init__(
        self,
        plan: ContainerPlan,
        *,
        instance: MQClientInstance,
        beans: Beans,
        converter: MessageConverter,
        template_of: Callable[[str | None], Callable[[], RocketMQTemplate]],
        clock: Clock,
        await_termination: float = 15.0,
        given: Mapping[str, Any] = MappingProxyType({}),
        paused: Callable[[str], object] = lambda told: None,
        payload_held: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.plan = plan
        self._instance = instance
        self._beans = beans
        self._converter = converter
        self._template_of = template_of
        self._clock = clock
        self._await_termination = await_termination
        self._given = given
        self._tell_of_pause = paused
        self._payload_held = payload_held
        self._stack = AsyncExitStack()
        self._consumer: PushConsumer | None = None
        self._limit: InvalidLimit | None = None
        self._status = ContainerStatus.STOPPED
        self._reason: str | None = None
        self._drained = False

    @property
    def group(self) -> str:
        return self.plan.group

    @property
    def name(self) -> str:
        """What ``app.listeners`` knows it by: a group has one container."""
        return self.plan.group

    @property
    def cluster(self) -> str | None:
        return self.plan.cluster

    @property
    def consumer(self) -> PushConsumer:
        """The push consumer, for what the container does not offer."""
        if self._consumer is None:
            raise NotStartedError(f"the listener container of group {self.group}")
        return self._consumer

    async def __aenter__(self) -> Self:
        plan = self.plan
        async with AsyncExitStack() as stack:
            limit, paused = plan.options.invalid_limit, self._pause_for_invalid
            self._limit = InvalidLimit(limit, self._clock, paused, self._payload_held)
            options = consumer_options(plan.options, self._given, cluster=plan.cluster)
            consumer = PushConsumer(plan.group, instance=self._instance, options=options)
            for topic in plan.topics:  # before the consumer starts: the brokers hear of all topics together
                await self._subscribe(consumer, topic, self._limit)
            # From here on, for handlers run before the consumer has all its queues, and may have to pause it.
            self._consumer, self._status = consumer, ContainerStatus.RUNNING
            try:
                await stack.enter_async_context(consumer)
            except BaseException:
                self._consumer, self._status = None, ContainerStatus.STOPPED
                raise
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None or isinstance(error, Exception):
                await self.drain(self._await_termination)
        finally:
            try:
                await self._stack.__aexit__(kind, error, trace)
            finally:
                self._consumer = None

    async def drain(self, timeout: float) -> None:
        """Stop pulling for good and give running handlers ``timeout`` seconds (or less, if the group says so)."""
        self._status, self._reason = ContainerStatus.STOPPED, "stopping"
        if self._limit is not None:
            self._limit.abandon()
        if not self._drained:
            self._drained = True
            own = self.plan.options.await_termination_when_shutdown
            await self.consumer.drain(timeout if own is None else min(own, timeout))

    def describe(self) -> list[str]:
        """One line for each of its functions, as in the start log."""
        return self.plan.describe()

    def pause(self, reason: str = "paused by the application") -> None:
        """Pull no more; what was pulled is still handled. Readiness goes down with the reason.

        One that stops pulls no more anyway, and stays as it is.
        """
        if self._drained:
            return
        self.consumer.pause()
        self._status, self._reason = ContainerStatus.PAUSED, reason

    def resume(self) -> None:
        """Pull again, and deal with the invalid payloads that were held; one that stops stays as it is."""
        if self._drained:
            return
        self.consumer.resume()
        self._status, self._reason = ContainerStatus.RUNNING, None
        assert self._limit is not None
        self._limit.open()

    def end_pause(self, reason: str) -> None:
        """Resume a group that is paused for that reason; one that ``invalid-limit`` would have paused meanwhile is
        paused for that now."""
        if self._status is not ContainerStatus.PAUSED or self._reason != reason:
            return
        assert self._limit is not None
        if self._limit.closed:
            self._reason = self._too_many_invalid
        else:
            self.resume()

    async def skip(self, ends: Mapping[MessageQueue, int]) -> None:
        """As :meth:`PushConsumer.skip`; the unreadable payloads that are held are passed over as well.

        In order, a queue goes on only when none of its messages is in hand any more.
        """
        assert self._limit is not None
        self._limit.give_back()  # in the next turn, when what stands before these offsets was dropped
        await self.consumer.skip(ends)

    def begin_anew(self) -> None:
        """Unreadable payloads of before count no more, and a group that they have paused goes on.

        One that the application has paused stays so.
        """
        assert self._limit is not None
        if self._limit.closed and self._reason == self._too_many_invalid:
            self.resume()
        else:
            self._limit.open()

    def state(self) -> ContainerState:
        """What health shows; ``progress`` is the sum of its queues."""
        if self._consumer is None:
            return ContainerState(self.cluster, self.group, self._status, False, self._reason)
        now = self._consumer.state()
        ready, reason = self._status is ContainerStatus.RUNNING, self._reason
        if ready and (missing := self.consumer.missing_topics):
            ready, reason = False, f"waits for topic {', '.join(missing)}, which no name server knows yet"
        if ready and now.refused:
            ready, reason = False, f"the servers refuse it: {'; '.join(now.refused)}"
        if ready and now.hung_handlers:
            ready, reason = False, f"all threads of its def handlers hang: {'; '.join(now.hung_handlers)}"
        if ready and now.missing_codecs:
            codecs = ", ".join(now.missing_codecs)
            ready, reason = False, f"messages came that are compressed with {codecs}, which cannot be read"
        progress = _progress(now)
        if (trace := self.consumer.trace) is not None:
            progress["trace_lost"] = trace.dropped + trace.failed
        return ContainerState(self.cluster, self.group, self._status, ready, reason, progress)

    @property
    def _too_many_invalid(self) -> str:
        return f"more than {self.plan.options.invalid_limit} payloads a minute could not be read (invalid-limit)"

    def _pause_for_invalid(self) -> None:
        if self._status is not ContainerStatus.PAUSED:  # else whoever has paused it has said why, and it stays so
            self.pause(self._too_many_invalid)
        told = (
            f"group {self.group} is paused: {self._too_many_invalid}. Nothing more is dead-lettered; mend the "
            f"handler's type or the sender and start again, or call app.listeners[{self.group!r}].resume()"
        )
        _log.error("%s", told)
        self._tell_of_pause(told)

    async def _subscribe(self, consumer: PushConsumer, topic: str, limit: InvalidLimit) -> None:
        """Subscribe a topic for its function, or once for all of its functions, by tag."""
        functions = [function for function in self.plan.functions if function.topic == topic]
        first, *others = functions
        dispatches = [self._dispatch(function, consumer, limit) for function in functions]
        router = TagRouter(self.group, list(zip(functions, dispatches, strict=True))) if others else None
        receiver = router or dispatches[0]
        in_threads = router.in_threads if router is not None else not first.signature.is_async
        await consumer.subscribe(
            topic,
            router.expression if router is not None else first.selector_expression,
            receiver.handle,
            selector_type=first.selector_type,
            batch_max_size=(router or first).batch_max_size,
            prepare=receiver.prepare if in_threads else None,
            context_of=receiver.invocation,
            receiver_of=None if router is None else router.receiver_of,
        )

    def _dispatch(self, function: ListenerFunction, consumer: PushConsumer, limit: InvalidLimit) -> HandlerDispatch:
        return HandlerDispatch(
            group=self.group,
            binding=HandlerBinding(function.signature, self._beans.provider, self._converter),
            limit=limit,
            on_invalid=function.on_invalid,
            consume_mode=self.plan.options.consume_mode,
            reply=self._replier(function.replies) if function.replies else None,
            places=len(function.replies),
            answer=partial(self._answer, consumer.replier),
            threads=consumer.threads,
        )

    async def _answer(self, replier: Replier, request: MessageExt, value: Any) -> None:
        """Tell who has sent a request what its handler returned; that he is gone is logged, for it changes nothing.

        Raises InvalidMessageError (PayloadError) for a value that is no body: the handler has failed.
        """
        if wants_reply(request):
            if isinstance(value, Message):
                await replier.try_to_reply(request, value.body, value.properties)
            else:
                body, content_type = write_payload(self._converter, value, None)
                await replier.try_to_reply(request, body, {CONTENT_TYPE: content_type} if content_type else None)

    def _replier(self, replies: Sequence[send_to]) -> Callable[[Invocation, list[Any]], Awaitable[None]]:
        targets = [(reply.destination, self._template_of(reply.cluster or self.cluster)) for reply in replies]

        async def send_on(invocation: Invocation, payloads: list[Any]) -> None:
            for destination, template_of in targets:
                template = template_of()
                if len(payloads) == 1:
                    await template.send(destination, payloads[0])
                else:
                    await template.send_many(destination, payloads)

        return send_on


def _progress(now: ConsumerState) -> dict[str, object]:
    pulled = [queue.seconds_since_pull for queue in now.queues]
    return {
        "queues": len(now.queues),
        "lag": now.lag,
        "held": now.held,
        "busy_handlers": now.busy_workers,
        "seconds_since_pull": round(min(pulled), 3) if pulled else None,
        "restarting": [f"{task.name}: {task.error}" for task in now.tasks if task.state is TaskState.WAITING],
    }
