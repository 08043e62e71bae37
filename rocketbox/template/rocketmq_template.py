"""RocketMQTemplate: the object by which a service sends.

It turns a destination, a payload and keyword options into a message and hands it to a producer; routes, queues,
retries and timeouts are the producer's.

Source: rocketmq-spring 2.3 ``RocketMQTemplate`` (its send overloads as four verbs with keyword options).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import wraps
from inspect import unwrap
from typing import Any, Concatenate, ParamSpec, TypeVar

from rocketbox.calls_from_threads import CallsFromThreads
from rocketbox.client import LocalWork, Producer, QueueTarget, Transaction, TransactionSendResult
from rocketbox.errors import ClientStateError, ConfigurationError, Finding, InvalidMessageError
from rocketbox.message import Compression, Message, MessageExt, SendResult
from rocketbox.template.blocking_transactions import BlockingTransaction, work_in_transaction
from rocketbox.template.content_types import (
    CodecMessageConverter,
    content_type_of,
    read_payload,
    spring_content_type,
    write_payload,
)
from rocketbox.template.converters import MessageConverter
from rocketbox.template.forwarding import as_message
from rocketbox.template.headers import delivery_time, keys_of, split_destination, timeout_seconds, to_properties
from rocketbox.template.spring_headers import CONTENT_TYPE, ID, TIMESTAMP
from rocketbox.template.unawaited import expects_await

__all__ = ["BlockingRocketMQTemplate", "RocketMQTemplate"]

ReplyT = TypeVar("ReplyT")
ResultT = TypeVar("ResultT")
P = ParamSpec("P")


class RocketMQTemplate:
    """Sends payloads to destinations (``topic`` or ``topic:tag``).

    Options are the same for every verb: ``keys`` (one or several words by which the message is found), ``tag`` (the
    same as in the destination), ``hash_key`` (messages of one key go to one queue; their order holds when each send is
    awaited before the next), ``queue`` (a queue; a function that is given the topic's queues and the message and
    returns one of them; or QueueChoice.RANDOM), ``delay`` (how long it waits), ``delay_level`` (the same as one of
    RocketMQ's levels, 1 to 18) or ``deliver_at`` (a datetime with a time zone), ``timeout`` (over all tries),
    ``headers`` (properties of the message), ``compression`` (how the body is compressed, whatever its size; NONE: not
    at all; the producer's settings decide when it is not said), ``cluster`` (the name of a further cluster,
    ``rocketmq.clusters.<name>``, whose template is to send it; this one when it is not said). Other delays than the
    levels, and times, take brokers from RocketMQ 5.0 on.

    Times are a timedelta or text with a unit (``"30s"``, ``"1m"``); ``timeout`` also a number of seconds.

    A payload that is a :class:`~rocketbox.Message` is taken as it is: the destination takes the place of its topic,
    and an option that is given that of its own. A :class:`~rocketbox.MessageExt`, which a handler was given, is sent
    on as a new message with its body, tag, keys, hash key, flag and headers; a delay, and what it was retried, stays
    behind.

    The destination None is the default one (``rocketmq.producer.default-destination``; with ``cluster`` that of the
    further cluster).

    All verbs raise InvalidMessageError (nothing was sent), NoRouteError, NotDurableError (it is stored: do not send
    again), RequestTimeoutError (it may be stored), BrokerError, ConnectError; with ``cluster`` ConfigurationError too,
    when that cluster has no producer.
    """

    def __init__(
        self,
        producer: Producer,
        *,
        converter: MessageConverter | None = None,
        template_of: Callable[[str], RocketMQTemplate] | None = None,
        default_destination: str | None = None,
        spring_headers: bool = False,
    ) -> None:
        """``template_of`` finds the template of a further cluster by its name, and raises for one that has none.

        ``default_destination`` is that of sends which name None. ``spring_headers`` puts ``id``, ``timestamp`` and
        ``contentType`` on each message, as rocketmq-spring does, for those who read them.
        """
        if default_destination is not None:
            split_destination(default_destination)
        self.default_destination = default_destination
        self.producer = producer
        self.converter: MessageConverter = converter or CodecMessageConverter()
        self._spring_headers = spring_headers
        self._template_of = template_of
        self._templates: dict[str, RocketMQTemplate] = {}
        self._reply_types: set[Any] = set()  # that replies can be read as

    @property
    def blocking(self) -> BlockingRocketMQTemplate:
        """The same verbs for code that cannot await: in threads, of ``def`` handlers and of programs without a loop."""
        return BlockingRocketMQTemplate(self)

    @expects_await
    async def send(
        self,
        destination: str | None,
        payload: object,
        *,
        keys: str | Sequence[str] | None = None,
        tag: str | None = None,
        hash_key: str | None = None,
        queue: QueueTarget | None = None,
        delay: timedelta | str | None = None,
        delay_level: int | None = None,
        deliver_at: datetime | None = None,
        timeout: timedelta | str | float | None = None,
        headers: Mapping[str, object] | None = None,
        compression: Compression | None = None,
        cluster: str | None = None,
    ) -> SendResult:
        """Send one payload and return what the broker answered."""
        template = self._of(cluster)
        message = template.to_message(
            destination,
            payload,
            keys=keys,
            tag=tag,
            hash_key=hash_key,
            delay=delay,
            delay_level=delay_level,
            deliver_at=deliver_at,
            headers=headers,
            compression=compression,
        )
        return await template.producer.send(message, timeout=timeout_seconds(timeout), queue=queue)

    @expects_await
    async def send_and_receive(
        self,
        destination: str | None,
        payload: object,
        reply_type: type[ReplyT],
        *,
        keys: str | Sequence[str] | None = None,
        tag: str | None = None,
        hash_key: str | None = None,
        queue: QueueTarget | None = None,
        compression: Compression | None = None,
        timeout: timedelta | str | float | None = None,
        headers: Mapping[str, object] | None = None,
        cluster: str | None = None,
    ) -> ReplyT:
        """Send one payload as a request, and return the reply to it as a value of ``reply_type``.

        A listener of the destination replies by returning a value. ``timeout`` is for both ways together (the
        producer's ``send_message_timeout`` where it is not said). With ``MessageExt`` the whole reply is returned.

        Raises ReplyTimeoutError: it may have been carried out. ReplyError: the listener has raised an exception.
        PayloadError: the reply is no ``reply_type``; where none can be, nothing was sent.
        """
        template = self._of(cluster)
        if reply_type is not MessageExt:
            template._check_reply_type(reply_type)
        message = template.to_message(
            destination, payload, keys=keys, tag=tag, hash_key=hash_key, headers=headers, compression=compression
        )
        reply = await template.producer.request(message, timeout=timeout_seconds(timeout), queue=queue)
        if reply_type is MessageExt:
            return reply  # type: ignore[return-value]  # it is a MessageExt, as was asked for
        value: ReplyT = read_payload(template.converter, reply.body, reply_type, content_type_of(reply))
        return value

    @expects_await
    async def send_one_way(
        self,
        destination: str | None,
        payload: object,
        *,
        keys: str | Sequence[str] | None = None,
        tag: str | None = None,
        hash_key: str | None = None,
        queue: QueueTarget | None = None,
        delay: timedelta | str | None = None,
        delay_level: int | None = None,
        deliver_at: datetime | None = None,
        headers: Mapping[str, object] | None = None,
        compression: Compression | None = None,
        cluster: str | None = None,
    ) -> None:
        """Send one payload without an answer: it may be lost, and nobody is told."""
        template = self._of(cluster)
        message = template.to_message(
            destination,
            payload,
            keys=keys,
            tag=tag,
            hash_key=hash_key,
            delay=delay,
            delay_level=delay_level,
            deliver_at=deliver_at,
            headers=headers,
            compression=compression,
        )
        await template.producer.send_one_way(message, queue=queue)

    @expects_await
    async def send_batch(
        self,
        destination: str | None,
        payloads: Iterable[object],
        *,
        keys: str | Sequence[str] | None = None,
        tag: str | None = None,
        hash_key: str | None = None,
        queue: QueueTarget | None = None,
        timeout: timedelta | str | float | None = None,
        headers: Mapping[str, object] | None = None,
        cluster: str | None = None,
    ) -> list[SendResult]:
        """Send the payloads together and return the result of each, in order; the broker takes no delay on a batch.

        They go in as few requests as their size needs; those of one request are stored together or not at all.
        """
        template = self._of(cluster)
        messages = [
            template.to_message(destination, payload, keys=keys, tag=tag, hash_key=hash_key, headers=headers)
            for payload in payloads
        ]
        return await template.producer.send_batch(messages, timeout=timeout_seconds(timeout), queue=queue)

    @expects_await
    async def send_many(
        self,
        destination: str | None,
        payloads: Iterable[object],
        *,
        keys: str | Sequence[str] | None = None,
        tag: str | None = None,
        hash_key: str | None = None,
        queue: QueueTarget | None = None,
        delay: timedelta | str | None = None,
        delay_level: int | None = None,
        deliver_at: datetime | None = None,
        timeout: timedelta | str | float | None = None,
        headers: Mapping[str, object] | None = None,
        compression: Compression | None = None,
        cluster: str | None = None,
    ) -> list[SendResult]:
        """Send the payloads each on its own, many at once (pipelined), and return the results in their order.

        The options hold for all of them; :meth:`to_message` makes messages that have their own, and a function as
        ``queue`` is asked for each. Messages are not stored in the order in which they stand.
        """
        template = self._of(cluster)
        messages = [
            template.to_message(
                destination,
                payload,
                keys=keys,
                tag=tag,
                hash_key=hash_key,
                delay=delay,
                delay_level=delay_level,
                deliver_at=deliver_at,
                headers=headers,
                compression=compression,
            )
            for payload in payloads
        ]
        return await template.producer.send_many(messages, timeout=timeout_seconds(timeout), queue=queue)

    @expects_await
    async def recall(
        self, handle: str | None, *, timeout: timedelta | str | float | None = None, cluster: str | None = None
    ) -> str:
        """Have a message that waits for its time not be delivered, by its ``SendResult.recall_handle``; its id.

        When this returns, the message never comes. See ``Producer.recall`` for what it takes and raises.
        """
        return await self._of(cluster).producer.recall(handle, timeout=timeout_seconds(timeout))

    def transaction(
        self,
        destination: str | None,
        payload: object,
        *,
        keys: str | Sequence[str] | None = None,
        tag: str | None = None,
        hash_key: str | None = None,
        queue: QueueTarget | None = None,
        timeout: timedelta | str | float | None = None,
        headers: Mapping[str, object] | None = None,
        compression: Compression | None = None,
        cluster: str | None = None,
    ) -> Transaction:
        """A payload that consumers get only if the block is left without an exception::

            async with template.transaction("orders:paid", order) as transaction:
                ...  # the work: a database's transaction, mostly

        Entering stores a half message, which nobody gets, and raises what :meth:`send` does, InvalidMessageError also
        where no ``@rocketmq_transaction_listener`` is for the destination. The end of the block commits; an exception
        rolls back, and goes on; with a cancellation the listener decides. ``transaction.rollback()`` and ``.unknown()``
        say otherwise.
        """
        template = self._of(cluster)
        message = template.to_message(
            destination, payload, keys=keys, tag=tag, hash_key=hash_key, headers=headers, compression=compression
        )
        return template.producer.transaction(message, timeout=timeout_seconds(timeout), queue=queue)

    @expects_await
    async def send_in_transaction(
        self,
        destination: str | None,
        payload: object,
        work: LocalWork,
        *,
        keys: str | Sequence[str] | None = None,
        tag: str | None = None,
        hash_key: str | None = None,
        queue: QueueTarget | None = None,
        timeout: timedelta | str | float | None = None,
        headers: Mapping[str, object] | None = None,
        compression: Compression | None = None,
        cluster: str | None = None,
    ) -> TransactionSendResult:
        """Store a half message, call ``work(transaction)``, and commit or roll back as what it returns says.

        ``work`` is an ``async def``, or a ``def``, which is called in a thread; it returns a LocalTransactionState.
        What it raises is raised, and leaves it to the ``@rocketmq_transaction_listener`` to decide.
        """
        template = self._of(cluster)
        message = template.to_message(
            destination, payload, keys=keys, tag=tag, hash_key=hash_key, headers=headers, compression=compression
        )
        return await template.producer.send_in_transaction(message, work, timeout=timeout_seconds(timeout), queue=queue)

    def _check_reply_type(self, type_: Any) -> None:
        """Raise PayloadError for a type that no body can be read as, before the request is carried out."""
        try:
            if type_ in self._reply_types:
                return
        except TypeError:  # an Annotated with unhashable metadata
            self.converter.check(type_)
            return
        self.converter.check(type_)
        self._reply_types.add(type_)

    def _of(self, cluster: str | None) -> RocketMQTemplate:
        """The template of a cluster: what is sent there has its producer, default destination and headers."""
        if cluster is None:
            return self
        known = self._templates.get(cluster)
        if known is None:
            if self._template_of is None:
                raise ConfigurationError(
                    Finding(
                        f"this template has a producer of its own alone, and none of cluster {cluster!r}",
                        fix="take the template from RocketBox, or give it template_of=",
                    )
                )
            known = self._templates[cluster] = self._template_of(cluster)
        return known

    def to_message(
        self,
        destination: str | None,
        payload: object,
        *,
        keys: str | Sequence[str] | None = None,
        tag: str | None = None,
        hash_key: str | None = None,
        delay: timedelta | str | None = None,
        delay_level: int | None = None,
        deliver_at: datetime | None = None,
        headers: Mapping[str, object] | None = None,
        compression: Compression | None = None,
    ) -> Message:
        """The message that a send with these arguments sends."""
        if destination is None and (destination := self.default_destination) is None:
            raise InvalidMessageError(
                "the send names no destination, and there is no default one; name it, or set "
                f"{self.producer.instance.options.settings_prefix}.producer.default-destination"
            )
        topic, destination_tag = split_destination(destination)
        if tag is None:
            tag = destination_tag
        elif destination_tag not in (None, tag):
            raise InvalidMessageError(f"destination {destination!r} and tag={tag!r} name different tags")
        properties = to_properties(headers) if headers else {}
        time = delivery_time(delay, delay_level, deliver_at)
        if isinstance(payload, MessageExt):
            payload = as_message(payload)
        if isinstance(payload, Message):
            if self._spring_headers:
                properties = self._with_spring_headers(properties, payload.body, payload.properties.get(CONTENT_TYPE))
            if (tag, keys, hash_key, time, compression) == _UNSAID and not properties and topic == payload.topic:
                return payload  # a copy would be a tenth of the whole send (benchmark "blocking sends")
            return replace(
                payload,
                topic=topic,
                tag=payload.tag if tag is None else tag,
                keys=payload.keys if keys is None else keys_of(keys),
                hash_key=payload.hash_key if hash_key is None else hash_key,
                delay_level=payload.delay_level if time is None else time.delay_level,
                delay=payload.delay if time is None else time.delay,
                deliver_at=payload.deliver_at if time is None else time.deliver_at,
                properties={**payload.properties, **properties},
                compression=payload.compression if compression is None else compression,
            )
        body, content_type = write_payload(self.converter, payload, properties.get(CONTENT_TYPE))
        if content_type is not None:
            properties[CONTENT_TYPE] = content_type
        if self._spring_headers:
            properties = self._with_spring_headers(properties, payload, content_type)
        return Message(
            topic,
            body,
            tag=tag,
            keys=keys_of(keys),
            properties=properties,
            hash_key=hash_key,
            delay_level=0 if time is None else time.delay_level,
            delay=None if time is None else time.delay,
            deliver_at=None if time is None else time.deliver_at,
            compression=compression,
        )

    def _with_spring_headers(
        self, properties: dict[str, str], payload: object, content_type: str | None
    ) -> dict[str, str]:
        clock = self.producer.instance.clock
        own = {ID: clock.uuid(), TIMESTAMP: str(clock.time_ms())}
        return {**own, CONTENT_TYPE: spring_content_type(payload, content_type), **properties}


def _blocking(
    function: Callable[Concatenate[RocketMQTemplate, P], Coroutine[Any, Any, ResultT]],
) -> Callable[Concatenate[BlockingRocketMQTemplate, P], ResultT]:
    """A verb of the template as a plain function that returns when it has been done."""
    name = function.__name__

    @wraps(unwrap(function))
    def call(template: BlockingRocketMQTemplate, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        return template._call(name, *args, **kwargs)  # type: ignore[no-any-return]  # found by its name

    call.__qualname__ = f"BlockingRocketMQTemplate.{name}"
    return call


def _blocking_of_several(
    function: Callable[Concatenate[RocketMQTemplate, P], Coroutine[Any, Any, ResultT]],
) -> Callable[Concatenate[BlockingRocketMQTemplate, P], ResultT]:
    """The same for a verb of several payloads, which are drawn in the calling thread: that may block, too."""
    name = function.__name__

    @wraps(unwrap(function))
    def call(template: BlockingRocketMQTemplate, /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        template._calls.check(f"template.blocking.{name}")
        in_order, named = list[Any](args), dict[str, Any](kwargs)
        if len(in_order) > 1:
            in_order[1] = list(in_order[1])
        elif "payloads" in named:
            named["payloads"] = list(named["payloads"])
        return template._call(name, *in_order, **named)  # type: ignore[no-any-return]  # as above

    call.__qualname__ = f"BlockingRocketMQTemplate.{name}"
    return call


def _taking_the_same(
    function: Callable[Concatenate[RocketMQTemplate, P], object],
) -> Callable[[Callable[..., ResultT]], Callable[Concatenate[BlockingRocketMQTemplate, P], ResultT]]:
    """Marks a function that takes what a verb of the template takes, and returns something of its own."""

    def taking(own: Callable[..., ResultT]) -> Callable[Concatenate[BlockingRocketMQTemplate, P], ResultT]:
        own.__wrapped__ = unwrap(function)  # type: ignore[attr-defined]  # what inspect.signature looks at
        return own

    return taking


_UNSAID = (None,) * 5
_SEND = "template.blocking.send"
_PLAIN_SEND = RocketMQTemplate.send


class BlockingRocketMQTemplate:
    """The verbs of :class:`RocketMQTemplate` for code that blocks: ``template.blocking``, or injected by its type.

    They take and raise the same, and return when what they do is done, in the loop in which the client runs; any number
    of threads may call at once. Each also raises ClientStateError where an event loop runs in the calling thread, which
    it would stop, and in the thread of the client's own loop while that stands still; NotStartedError before the client
    has started and after it was closed (nothing was sent), and ForkedError in a fork of its process. A close waits up
    to 3 s for what is under way; what it then cuts short raises ClientStateError, and may have been sent.
    """

    def __init__(self, template: RocketMQTemplate) -> None:
        self._template = template

    @property
    def _calls(self) -> CallsFromThreads:
        producer = getattr(self._template, "producer", None)
        if not isinstance(producer, Producer):
            raise ClientStateError(
                f"the template is a {type(self._template).__qualname__}, which has no Producer whose loop could be "
                "called into: let something of your own take the place of BlockingRocketMQTemplate, too"
            )
        return producer.instance.calls

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self._calls.call(f"template.blocking.{name}", getattr(self._template, name), *args, **kwargs)

    @_taking_the_same(RocketMQTemplate.send)
    def send(
        self,
        destination: str | None,
        payload: object,
        *,
        queue: QueueTarget | None = None,
        timeout: timedelta | str | float | None = None,
        cluster: str | None = None,
        **options: Any,
    ) -> SendResult:
        """Send one payload and return what the broker answered."""
        template = self._template
        is_plain = getattr(type(template), "send", None) is _PLAIN_SEND and "send" not in template.__dict__
        if queue is not None or cluster is not None or not is_plain:
            result: SendResult = self._call(
                "send", destination, payload, queue=queue, timeout=timeout, cluster=cluster, **options
            )
            return result
        message = template.to_message(destination, payload, **options)
        return template.producer.send_from_thread(_SEND, message, timeout=timeout_seconds(timeout))

    send_one_way = _blocking(RocketMQTemplate.send_one_way)
    send_batch = _blocking_of_several(RocketMQTemplate.send_batch)
    send_many = _blocking_of_several(RocketMQTemplate.send_many)
    send_and_receive = _blocking(RocketMQTemplate.send_and_receive)
    recall = _blocking(RocketMQTemplate.recall)

    @_taking_the_same(RocketMQTemplate.transaction)
    def transaction(self, *args: Any, **options: Any) -> AbstractContextManager[Transaction]:
        """A payload that consumers get only if the block is left without an exception::

            with template.blocking.transaction("orders:paid", order) as transaction:
                ...  # the work, in this thread

        As the template's, see there.
        """
        self._calls.check("template.blocking.transaction")
        return BlockingTransaction(self._calls, self._template.transaction(*args, **options))

    @_taking_the_same(RocketMQTemplate.send_in_transaction)
    def send_in_transaction(
        self, destination: str | None, payload: object, work: LocalWork, **options: Any
    ) -> TransactionSendResult:
        """Store a half message, call ``work(transaction)`` in this thread, and commit or roll back as it returns.

        An ``async def`` is awaited in the client's loop. What ``work`` raises is raised, and leaves it to the
        ``@rocketmq_transaction_listener`` to decide.
        """
        self._calls.check("template.blocking.send_in_transaction")
        transaction = self._template.transaction(destination, payload, **options)
        return work_in_transaction(self._calls, transaction, work)

    @_taking_the_same(RocketMQTemplate.to_message)
    def to_message(self, *args: Any, **options: Any) -> Message:
        """The message that a send with these arguments sends."""
        return self._template.to_message(*args, **options)
