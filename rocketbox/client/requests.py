"""Requests: messages whose sender waits for a reply.

    Asker.ask: known to the brokers -> the request is sent -> its reply comes (326) -> a message, or ReplyError

A reply may come by any broker of the cluster, and only one that knows this client can hand it over: each of them is
told by heartbeat before a request leaves. Who waits for which reply is ``waiting_requests``' table, how a message gets
to a broker ``sending``'s part, how requests are answered that of ``replies``.

Source: Apache RocketMQ 5.x ``DefaultMQProducerImpl.request``, ``prepareSendRequest``. Unlike there, the brokers of the
reply topic are told as well, a broker that has restarted is told again first, and a reply counts although the answer to
the send of its request was lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from rocketbox.client.checks import check_size
from rocketbox.client.instance import MQClientInstance
from rocketbox.client.lanes import Lanes
from rocketbox.client.middleware import SendContext, SendMiddleware, chain
from rocketbox.client.queue_choice import QueueTarget
from rocketbox.client.sending import Sender
from rocketbox.client.tries import Tries
from rocketbox.client.waiting_requests import WaitingRequest
from rocketbox.errors import BrokerError, ClientError, NotDurableError, RemotingError, ReplyError, RocketBoxError
from rocketbox.message import Message, MessageExt, SendResult, encode_properties
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.headers import ReplyMessageRequestHeader
from rocketbox.protocol.request_reply import (
    ARRIVE_TIME,
    CORRELATION_ID,
    ERROR_CLASS,
    REPLY_TO_CLIENT,
    TAKES_ERRORS,
    TTL,
    message_of_reply,
    reply_topic,
)

__all__ = ["Asker", "RequestContext"]

MOST_TOPICS = 1_000  # whose brokers are known to know this client


@dataclass(slots=True)
class RequestContext(SendContext):
    """The send of a request, for middlewares; what they get back is the result of the send, not the reply."""

    waiting: WaitingRequest | None = None


class _RequestTries(Tries):
    """Those of a request: one that has its reply is not sent again, or it would be carried out twice."""

    __slots__ = ("_waiting",)

    def __init__(self, waiting: WaitingRequest, now: float, timeout: float, retries: int) -> None:
        super().__init__(now, timeout, retries)
        self._waiting = waiting

    @property
    def are_needless(self) -> bool:
        return self._waiting.answered


class Asker:
    """Sends the requests of one producer and waits for their replies."""

    def __init__(
        self, sender: Sender, instance: MQClientInstance, middlewares: Sequence[SendMiddleware] | None = None
    ) -> None:
        self._sender = sender
        self._instance = instance
        self._clock = instance.clock
        self._reply_topics: set[str] = set()  # of the clusters that were asked since somebody wanted to know
        self._known: dict[str, Lanes] = {}  # topics whose reply topics' brokers were asked for
        if middlewares is None:
            middlewares = instance.options.send_middleware
        self._around = chain(middlewares, self._send_as_said) if middlewares else None

    async def ask(self, message: Message, timeout: float, queue: QueueTarget | None) -> MessageExt:
        """Send message and return the reply to it, within timeout seconds for both."""
        sender, instance = self._sender, self._instance
        await sender.must_be_open()
        now = self._clock.monotonic()
        retries = sender.options.retry_times_when_send_failed
        waiting = instance.waiting_requests.expect(sender.group, timeout, now)
        try:
            try:
                if self._around is not None:
                    await self._around(
                        RequestContext(sender.group, [message], timeout, retries, queue, waiting=waiting)
                    )
                else:
                    await self._send(message, waiting, _RequestTries(waiting, now, timeout, retries), queue)
            except NotDurableError:
                pass  # it is stored; that it was not lost since is what the reply shows
            except (RemotingError, BrokerError):
                if not waiting.answered:  # else it was stored all the same
                    raise
            command = await waiting.reply()
        finally:
            instance.waiting_requests.forget(waiting)
        return self._read(command)

    def topics_in_use(self) -> set[str]:
        """The topics of replies that were waited for since this was asked last: their routes are kept fresh."""
        used, self._reply_topics = self._reply_topics, set()
        return used

    async def _send_as_said(self, context: SendContext) -> SendResult | None:
        """The innermost of the chain: send what the middlewares have left of a context."""
        context.msg_ids = ()  # a middleware may pass it on a second time
        waiting = getattr(context, "waiting", None)
        if not isinstance(waiting, WaitingRequest):
            raise ClientError("a middleware passed on a context of its own for a request; pass on the one it was given")
        if len(context.messages) != 1:
            raise ClientError(f"a request is one message; a middleware left {len(context.messages)} in its context")
        timeout = context.timeout
        if not isinstance(timeout, int | float) or not timeout > 0:
            raise ClientError(f"a middleware left timeout={timeout!r} in its context; a send has more than 0 seconds")
        tries = _RequestTries(waiting, self._clock.monotonic(), timeout, context.retries)
        return await self._send(context.messages[0], waiting, tries, context.queue, context)

    async def _send(
        self,
        message: Message,
        waiting: WaitingRequest,
        tries: Tries,
        queue: QueueTarget | None,
        context: SendContext | None = None,
    ) -> SendResult | None:
        sender = self._sender
        request = sender.request(message)
        waiting.topic, waiting.msg_id = request.topic, request.msg_id
        if context is not None:
            context.msg_ids = (request.msg_id,)
        request.properties = check_size(
            request.properties
            + encode_properties(
                {
                    CORRELATION_ID: waiting.correlation_id,
                    REPLY_TO_CLIENT: self._instance.client_id,
                    TTL: str(round(waiting.timeout * 1000)),
                    TAKES_ERRORS: "true",
                }
            )
        )
        await self._become_known(request.topic, tries)
        to = None if queue is None else await sender.queue_for(queue, message, tries)
        return await sender.deliver(request, tries, to, message.hash_key)

    async def _become_known(self, topic: str, tries: Tries) -> None:
        """Have the brokers that may get the reply know this client. Raises NoRouteError."""
        sender, instance = self._sender, self._instance
        lanes = sender.lanes.get(topic)
        if lanes is None:
            lanes = await sender.lanes.find(topic, tries.deadline - self._clock.monotonic())
        known = self._known.get(topic) is lanes
        if known and not instance.strangers():
            if not self._reply_topics:  # asked for since the last request
                self._reply_topics |= self._topics_of_replies(topic, lanes)
            return
        left = tries.deadline - self._clock.monotonic()
        with self._clock.move_on_after(instance.time_to_become_known(left)):
            if not known:
                await self._find_brokers_of_replies(topic, lanes)
            await instance.greet(instance.strangers())
        tries.now = self._clock.monotonic()

    async def _find_brokers_of_replies(self, topic: str, lanes: Lanes) -> None:
        topics = self._topics_of_replies(topic, lanes)
        self._reply_topics |= topics
        if len(self._known) >= MOST_TOPICS:
            self._known.clear()
        self._known[topic] = lanes
        for each in topics:
            with suppress(RocketBoxError):  # then it comes by a broker of the topic, or not at all
                await self._instance.find_route(each)

    def _topics_of_replies(self, topic: str, lanes: Lanes) -> set[str]:
        route = self._instance.cached_route(lanes.template_topic or topic)
        brokers = route.data.broker_datas if route is not None else ()
        return {reply_topic(each.cluster) for each in brokers if each.broker_name in lanes.brokers and each.cluster}

    def _read(self, command: RemotingCommand) -> MessageExt:
        """The reply as a message. Raises ReplyError when it says that the request has failed; HeaderError,
        RemoteProtocolError (CodecMissingError) when it cannot be read."""
        header = ReplyMessageRequestHeader.decode(command.ext_fields)
        reply = message_of_reply(header, command.body, self._instance.options.max_unpacked_bytes)
        reply.topic = self._instance.namespace.unwrap(reply.topic)
        reply.set_property(ARRIVE_TIME, str(self._clock.time_ms()))
        error_class = reply.properties.get(ERROR_CLASS)
        if error_class is not None:
            raise ReplyError(error_class, reply.body.decode("utf-8", "replace"), reply)
        return reply
