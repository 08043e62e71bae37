"""Replies: how a consumer answers a request, by a value or by the exception that it has failed with.

A reply goes to a broker that the asking client is connected to. That is the one which has the request, as a rule; if it
does not know the client (any more), the other brokers of the reply topic are asked in turn. A broker answers when the
client has taken the reply, so who replies knows whether anybody was reached. While the client loses its connections,
or a broker starts anew, none of them knows it for a moment: they are asked again, round after round, as long as the
time of the reply lasts and that of the request (TTL) does. Each reply that waits so holds up a handler. So when that
was in vain for one of them, further ones to the same client are tried in one round, for ten seconds.

An exception is told to who asks by one of our own clients, for a request says whether its sender understands that; of a
request by a client of Apache's the exception is a failed message, as of any other.

Source: Apache RocketMQ 5.x ``MessageUtil.createReplyMessage``, ``DefaultMQProducerImpl.sendKernelImpl`` (code 325).
Unlike there, the broker of the request comes first, and not the next one in turn; and there a reply is tried three
times, one right after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from math import inf

from rocketbox.client.api.answers import refusal
from rocketbox.client.checks import check_body, check_size, check_timeout, message_properties
from rocketbox.client.instance import MQClientInstance
from rocketbox.client.lanes import Lane, LaneTable
from rocketbox.client.options import ProducerOptions
from rocketbox.client.outcomes import NobodyError, NotTriedError
from rocketbox.client.tries import RETRY_CODES
from rocketbox.errors import (
    AccessDeniedError,
    BatchFailed,
    BrokerError,
    ClientError,
    NoRouteError,
    RemotingError,
    RequestTimeoutError,
    RetryLater,
    RocketBoxError,
)
from rocketbox.message import Message, MessageExt, MessageQueue, Property, encode_properties
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.prepared_sends import SendRequest
from rocketbox.protocol.request_reply import (
    CORRELATION_ID,
    ERROR_CLASS,
    MESSAGE_TYPE,
    REPLY,
    REPLY_TO_CLIENT,
    TAKES_ERRORS,
    TTL,
    asks_for_reply,
    reply_topic,
)
from rocketbox.rare_log import RareLog
from rocketbox.safe_repr import one_line, said_by_a_peer

__all__ = ["Replier", "is_answer", "wants_reply"]

_log = logging.getLogger(__name__)

REPLY_CODE = int(RequestCode.SEND_REPLY_MESSAGE_V2)
FIRST_PAUSE = 0.25  # seconds before all brokers are asked again, doubled each time: each may keep a copy of each try
LONGEST_PAUSE = 2.0  # seconds; a client that lost its connections is back within a few
GONE_FOR = 10.0  # seconds for which nobody waits for a client that was waited for in vain: it has died, mostly
MOST_GONE = 1_000
MOST_LANES = 1_000  # that are kept: the cluster in whose topic a reply goes is what the request says
MOST_PATIENT = 2  # replies to one client that hold up handlers for the whole time: it may be frozen
IMPATIENCE = 0.5  # seconds that further ones wait to hear that it has them; they are with the broker, and may reach it
LONGEST_ERROR = 4_000  # characters of an exception's text that are told
LONGEST_CLASS = 200


def wants_reply(message: MessageExt) -> bool:
    """Whether a message is a request: its sender waits for a reply."""
    return asks_for_reply(message.raw_properties) and bool(message.properties.get(REPLY_TO_CLIENT))


def is_answer(message: MessageExt, error: Exception) -> bool:
    """Whether the error with which the handler of a message has failed is told to who has sent it as a request.

    Not RetryLater, by which the handler says that it answers later, and nothing that came of another message.
    """
    if isinstance(error, RetryLater | BatchFailed | NotTriedError | NobodyError):
        return False
    return wants_reply(message) and message.properties.get(TAKES_ERRORS) == "true"


class Replier:
    """Answers the requests that a consumer group gets; ``timeout`` seconds for each reply with all its tries."""

    def __init__(self, group: str, instance: MQClientInstance, timeout: float) -> None:
        self._group = group
        self._instance = instance
        self._clock = instance.clock
        self._timeout = timeout
        self._options = ProducerOptions()
        self._lanes = LaneTable(group, instance, self._options)
        self._prepared: dict[tuple[str, str], Lane] = {}  # by topic and broker
        self._gone: dict[str, float] = {}  # until when, by the ids of clients
        self._patient: dict[str, int] = {}  # how many handlers wait for a client, as long as it takes
        self._told = RareLog(_log)
        self._mark = encode_properties({Property.INSTANCE_ID: instance.namespace.name} if instance.namespace else {})

    async def reply(
        self,
        request: MessageExt,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Answer a request with a body of 1 byte or more.

        Raises InvalidMessageError for what cannot be sent, ClientError for a message that asks for no reply,
        BrokerError with code 1 when no broker reaches who asked as long as he waits, RemotingError when none answers:
        then the reply may have been taken.
        """
        await self._send(request, body, dict(properties or {}), {}, timeout)

    async def try_to_reply(self, request: MessageExt, body: bytes, properties: Mapping[str, str] | None = None) -> bool:
        """As :meth:`reply`, but what keeps the reply from its asker is logged; whether he is known to have it.

        Handlers wait for few replies to one client: one that has stopped (a debugger, a machine that sleeps) takes what
        it is sent and says nothing, and holds up no requests of others. Raises InvalidMessageError and the like for
        what cannot be sent at all.
        """
        try:
            await self._send_from_handler(request, body, dict(properties or {}), {})
        except (RemotingError, BrokerError, NoRouteError) as error:
            self._not_told("a reply", request, error)
            return False
        return True

    async def tell_error(self, request: MessageExt, error: Exception) -> bool:
        """Answer with the class and text of an exception; whether who asked has heard of it."""
        kind = type(error)
        name = (
            kind.__qualname__
            if kind.__module__ in ("builtins", "rocketbox.errors")
            else (f"{kind.__module__}.{kind.__qualname__}")
        )
        text = self._instance.told(error)[:LONGEST_ERROR] or name
        own = {ERROR_CLASS: _printable(name)[:LONGEST_CLASS]}
        try:
            await self._send_from_handler(request, text.encode("utf-8", "replace"), {}, own)
        except RocketBoxError as failure:
            self._not_told("an error", request, failure)
            return False
        return True

    def _not_told(self, what: str, request: MessageExt, error: RocketBoxError) -> None:
        self._told.tell(
            logging.WARNING, self._clock.monotonic(), what,
            "group %s: %s to request %s of %s did not reach who asked: %s",
            self._group, what, said_by_a_peer(request.msg_id), request.topic, error,
        )  # fmt: skip

    async def _send_from_handler(
        self, request: MessageExt, body: bytes, properties: Mapping[str, str], own: Mapping[str, str]
    ) -> None:
        asker = request.properties.get(REPLY_TO_CLIENT, "")
        patient = self._patient.get(asker, 0)
        if patient >= MOST_PATIENT or self._clock.monotonic() < self._gone.get(asker, -inf):
            await self._send(request, body, properties, own, None, IMPATIENCE)
            return
        self._patient[asker] = patient + 1
        try:
            await self._send(request, body, properties, own, None)
        except RequestTimeoutError:
            self._note_gone(asker, self._clock.monotonic())
            raise
        finally:
            if self._patient[asker] == 1:
                del self._patient[asker]
            else:
                self._patient[asker] -= 1

    async def _send(
        self,
        request: MessageExt,
        body: bytes,
        properties: Mapping[str, str],
        own: Mapping[str, str],
        timeout: float | None,
        patience: float = inf,
    ) -> None:
        """``patience``: seconds that a broker is given which has the reply; who refuses it is asked again as always."""
        instance, clock = self._instance, self._clock
        seconds = self._timeout if timeout is None else check_timeout(timeout)
        instance.check_running(f"consumer {self._group}")
        topic, marks = _marks_of_reply(request)
        check_body(topic, body, self._options.max_message_size)
        born = clock.time_ms()
        msg_id = instance.unique_ids.next(born)
        text = message_properties(Message(topic, body, properties=properties), msg_id)
        text = check_size(text + encode_properties({**marks, **own}) + self._mark)
        reply = SendRequest(topic, body, text, msg_id, born, code=REPLY_CODE)
        began = clock.monotonic()
        deadline = began + seconds
        again_until = min(deadline, began + _seconds_left(request, born))
        pause = FIRST_PAUSE
        asker = marks[REPLY_TO_CLIENT]
        while True:
            failure = await self._ask_each(request.broker_name, topic, reply, deadline, patience)
            if failure is None:
                self._gone.pop(asker, None)
                return
            if not _may_pass(failure) or (patience < inf and isinstance(failure, RequestTimeoutError)):
                raise failure
            now = clock.monotonic()
            if now < self._gone.get(asker, -inf):
                raise failure
            if now + pause >= again_until:
                if pause > FIRST_PAUSE and isinstance(failure, BrokerError):
                    self._note_gone(asker, now)
                raise failure
            await clock.sleep(pause)
            instance.check_running(f"consumer {self._group}")
            pause = min(2 * pause, LONGEST_PAUSE)

    def _note_gone(self, asker: str, now: float) -> None:
        self._gone.pop(asker, None)
        if len(self._gone) >= MOST_GONE:
            del self._gone[next(iter(self._gone))]
        self._gone[asker] = now + GONE_FOR

    async def _ask_each(
        self, first: str | None, topic: str, reply: SendRequest, deadline: float, patience: float
    ) -> RemotingError | BrokerError | NoRouteError | None:
        """Have one broker after the other hand over the reply; why none has, the last reason that may pass first."""
        instance, tried = self._instance, set[str]()
        name = first or await self._next_broker(topic, tried, deadline)
        failure: RemotingError | BrokerError | None = None
        while name is not None:
            tried.add(name)
            try:
                await self._send_to(name, reply, min(deadline, self._clock.monotonic() + patience))
                return None
            except RequestTimeoutError as error:  # it may have been handed over
                return error
            except ClientError as error:  # no address of that broker is known
                _log.debug("a reply to topic %s cannot go by broker %s: %s", topic, name, error)
            except (RemotingError, BrokerError) as error:
                if failure is None or _may_pass(error) or not _may_pass(failure):
                    failure = error
            if self._clock.monotonic() >= deadline:
                break
            name = await self._next_broker(topic, tried, deadline)
        return failure or NoRouteError(topic, instance.name_servers, namespace=instance.options.namespace)

    async def _send_to(self, broker_name: str, reply: SendRequest, deadline: float) -> None:
        address = self._instance.broker_address(broker_name)
        lane = self._prepared.get((reply.topic, broker_name))
        if lane is None or lane.address != address:
            lane = self._lanes.lane_of(MessageQueue(reply.topic, broker_name, 0), reply.topic)
            if len(self._prepared) >= MOST_LANES:
                self._prepared.clear()
            self._prepared[reply.topic, broker_name] = lane
        reply.template = lane.template
        now = self._clock.monotonic()
        remoting = self._instance.remoting
        answer = await remoting.request_prepared(address, reply, timeout=deadline - now, now=now)
        if answer.code != 0:
            raise refusal(answer, address, REPLY_CODE, {"topic": reply.topic}, remoting.credentials)

    async def _next_broker(self, topic: str, tried: set[str], deadline: float) -> str | None:
        """Another broker that may know the client which asked."""
        names: list[str] = []
        with self._clock.move_on_after(max(0.0, deadline - self._clock.monotonic())), suppress(RocketBoxError):
            route = await self._instance.find_route(topic)
            names = [] if route is None else route.broker_names
        return next((name for name in names if name not in tried), None)


def _marks_of_reply(request: MessageExt) -> tuple[str, dict[str, str]]:
    """The topic of a reply to a request, and the properties by which it finds who asked. Raises ClientError."""
    said = request.properties
    missing = [name for name in (CORRELATION_ID, REPLY_TO_CLIENT, Property.CLUSTER) if not said.get(name)]
    if missing:
        raise ClientError(
            f"message {one_line(request.msg_id)} of {request.topic} asks for no reply: it has no property "
            f"{', '.join(missing)}"
        )
    marks = {MESSAGE_TYPE: REPLY, CORRELATION_ID: said[CORRELATION_ID], REPLY_TO_CLIENT: said[REPLY_TO_CLIENT]}
    if TTL in said:
        marks[TTL] = said[TTL]
    return reply_topic(said[Property.CLUSTER]), marks


def _seconds_left(request: MessageExt, now_ms: int) -> float:
    """For how long who asked waits still, by this machine's clock; infinite where the request does not say."""
    try:
        return (request.born_timestamp_ms + int(request.properties[TTL]) - now_ms) / 1000
    except (KeyError, ValueError, OverflowError):
        return inf


def _may_pass(failure: RocketBoxError) -> bool:
    """Whether a broker may hand over a moment later what it has not now: who asked may be connecting again."""
    if isinstance(failure, BrokerError):
        return failure.code in RETRY_CODES and not isinstance(failure, AccessDeniedError)
    return True


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)
