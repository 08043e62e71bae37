"""OpenTelemetry: a span for each send and for each call of a handler, linked by what travels with the message.

:class:`MessageSpans` holds the two middlewares. A send has a span of the kind PRODUCER, whose context goes into the
message's properties as W3C Trace Context (``traceparent``, ``tracestate``; ``baggage`` as well, by OpenTelemetry's
default propagators). A call of a handler has a span of the kind CONSUMER with a link to the context of each message; of
one message alone that is its parent too, so that both are in one trace. A message that brings a context of its own, as
one that is sent on does, keeps it: the span of its send has a link to it.

Names and attributes are those of OpenTelemetry's semantic conventions for messaging and for RocketMQ, version 1.44
(both of the status "development"). An error is a status with its class as ``error.type``; what it says is masked as
``mask`` says, and its stack is not told.

Spans change nothing of what they tell of: what OpenTelemetry raises (a span processor, a sampler or a propagator that
fails, a header that it cannot read) is told in the log, and the send or the call goes on without what it was to add.
Nor is a message refused for the context that is added to it: one that has no room for it goes without.

``pip install rocketbox[otel]`` brings what this needs. Nothing here is imported before a :class:`MessageSpans` is made.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rocketbox.client.checks import message_properties
from rocketbox.client.middleware import ConsumeContext, ConsumeNext, SendContext, SendNext
from rocketbox.client.outcomes import Failures, Outcomes, failures_of_error, failures_of_result
from rocketbox.clock import RealClock
from rocketbox.errors import ConfigurationError, Finding, InvalidMessageError, RemoteProtocolError
from rocketbox.message import MAX_PROPERTIES_BYTES, Message, MessageExt, Property, SendResult
from rocketbox.rare_log import RareLog
from rocketbox.safe_repr import safe_str
from rocketbox.version import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Link, Span, SpanKind, TracerProvider

__all__ = ["MessageSpans", "is_set_up"]

SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
SYSTEM = "rocketmq"
SHOWN_CHARACTERS = 500  # of what an error says
REMINDER_PERIOD = 60.0  # seconds between two warnings of the same kind
MOST_ADDED_BYTES = 1024  # to the properties, by what sends the message and by its broker

_log = logging.getLogger(__name__)


def is_set_up() -> bool:
    """Whether somebody takes spans: the process has set a tracer provider. Imports nothing."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return False
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)


class MessageSpans:
    """Two middlewares: ``ClientOptions(send_middleware=(spans.send,), consume_middleware=(spans.consume,))``.

    ``tracer_provider`` and ``propagator`` are OpenTelemetry's global ones, if nothing is said. ``namespace`` is that of
    the client, for the attribute of this name; ``mask`` takes secrets out of what an error says. Raises
    ConfigurationError where OpenTelemetry is not installed.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        propagator: TextMapPropagator | None = None,
        namespace: str | None = None,
        mask: Callable[[str], str] | None = None,
    ) -> None:
        try:
            from opentelemetry import context, propagate, trace
        except ImportError as error:
            what = "spans of OpenTelemetry are asked for, and it is not installed"
            raise ConfigurationError(Finding(what, fix="pip install rocketbox[otel]")) from error
        self._context, self._trace = context, trace
        self._empty = context.Context()
        self._provider = tracer_provider
        self._given_propagator = propagator
        self._propagator = propagator or propagate.get_global_textmap()
        self._tracer = trace.get_tracer("rocketbox", __version__, tracer_provider, SCHEMA)
        self._mask = mask
        self._log, self._clock = RareLog(_log, REMINDER_PERIOD), RealClock()
        self._always: dict[str, Any] = {"messaging.system": SYSTEM}
        if namespace is not None:
            self._always["messaging.rocketmq.namespace"] = namespace

    def of_client(self, *, namespace: str | None, mask: Callable[[str], str] | None) -> MessageSpans:
        """The same for the client of a namespace."""
        return MessageSpans(
            tracer_provider=self._provider, propagator=self._given_propagator, namespace=namespace,
            mask=self._mask if mask is None else mask,
        )  # fmt: skip

    # --- sends -------------------------------------------------------------------------------------------------------

    async def send(self, context: SendContext, call_next: SendNext) -> SendResult | None:
        """The middleware of sends."""
        messages = list(context.messages)
        if not messages or not all(isinstance(message, Message) for message in messages):
            return await call_next(context)  # what refuses it says why
        own = [self._context_of(message.properties) for message in messages]
        kind = self._trace.SpanKind.CLIENT if all(own) else self._trace.SpanKind.PRODUCER
        span = self._start("send", kind, lambda: (messages[0].topic, self._attributes_of(context, messages)), links=own)
        if span is None:
            return await call_next(context)
        with self._current(span):
            if not all(own):
                context.messages = [
                    message if its_own else self._with_context(message, span)
                    for message, its_own in zip(messages, own, strict=True)
                ]
            try:
                result = await call_next(context)
            except BaseException as error:  # a cancellation as well
                self._failed(span, error)
                raise
            if result is not None:
                self._tell_result(span, result, alone=len(messages) == 1)
            return result

    def _attributes_of(self, context: SendContext, messages: Sequence[Message]) -> dict[str, Any]:
        first = messages[0]
        found: dict[str, Any] = {
            **self._always,
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": first.topic,
        }
        if context.batch:
            found["messaging.batch.message_count"] = len(messages)
            return found
        found["messaging.rocketmq.message.type"] = _type_of(context, first)
        if first.tag is not None:
            found["messaging.rocketmq.message.tag"] = first.tag
        if first.keys:
            found["messaging.rocketmq.message.keys"] = tuple(first.keys)
        if first.hash_key is not None:
            found["messaging.rocketmq.message.group"] = first.hash_key
        if first.delay_level:
            found["messaging.rocketmq.message.delay_time_level"] = first.delay_level
        elif first.deliver_at is not None:
            found["messaging.rocketmq.message.delivery_timestamp"] = round(first.deliver_at.timestamp() * 1000)
        return found

    def _with_context(self, message: Message, span: Span) -> Message:
        """The message with the span's context, where it has room for that."""
        try:
            if not span.get_span_context().is_valid:
                return message
            carrier: dict[str, str] = {}
            self._propagator.inject(carrier, context=self._trace.set_span_in_context(span))
            carrier = {name: value for name, value in carrier.items() if value.strip()}
            found = replace(message, properties={**carrier, **message.properties})  # a header of the user's own stays
            size = len(message_properties(found, "")) + MOST_ADDED_BYTES
            if size > MAX_PROPERTIES_BYTES:
                raise InvalidMessageError(f"its properties would take {size} bytes of {MAX_PROPERTIES_BYTES}")
        except BaseException as error:
            self._spared("a message goes without its context", error)
            return message
        return found

    # --- calls of handlers -------------------------------------------------------------------------------------------

    async def consume(self, context: ConsumeContext, call_next: ConsumeNext) -> Outcomes:
        """The middleware of calls of handlers."""
        messages = list(context.messages)
        if not messages:
            return await call_next(context)
        own = [self._context_of(message.properties) for message in messages]
        parent = own[0] if len(messages) == 1 else None
        span = self._start(
            "process", self._trace.SpanKind.CONSUMER,
            lambda: (messages[0].topic, self._attributes_of_call(context, messages)),
            links=own, parent=parent or self._empty,
        )  # fmt: skip
        if span is None:
            return await call_next(context)
        with self._current(span, parent):
            try:
                outcomes = await call_next(context)
            except Exception as error:
                self._messages_failed(span, failures_of_error(messages, error))
                raise
            except BaseException as error:  # cancelled, for its time or by the stop; or it has exited
                self._failed(span, error)
                raise
            if outcomes is not None:
                self._messages_failed(span, failures_of_result(messages, outcomes))
            return outcomes

    def _attributes_of_call(self, context: ConsumeContext, messages: Sequence[MessageExt]) -> dict[str, Any]:
        first = messages[0]
        found: dict[str, Any] = {
            **self._always,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": first.topic,
            "messaging.consumer.group.name": context.consumer_group,
        }
        if len(messages) > 1:
            found["messaging.batch.message_count"] = len(messages)
            return found
        found["messaging.message.id"] = first.msg_id
        found["messaging.destination.partition.id"] = str(first.queue_id)
        if first.tag is not None:
            found["messaging.rocketmq.message.tag"] = first.tag
        if first.keys:
            found["messaging.rocketmq.message.keys"] = first.keys
        if (group := first.properties.get(Property.SHARDING_KEY)) is not None:
            found["messaging.rocketmq.message.group"] = group
        return found

    def _messages_failed(self, span: Span, failures: Failures) -> None:
        if failures:
            self._failed(span, failures[0][1])

    # --- spans -------------------------------------------------------------------------------------------------------

    def _context_of(self, properties: Mapping[str, str]) -> Context | None:
        """The context that a message brings; None: it has none."""
        if not properties:
            return None
        try:
            found = self._propagator.extract(properties, context=self._empty)
            return found if self._trace.get_current_span(found).get_span_context().is_valid else None
        except BaseException as error:
            self._spared("the context of a message cannot be read", error)
            return None

    def _start(
        self,
        operation: str,
        kind: SpanKind,
        describe: Callable[[], tuple[str, Mapping[str, Any]]],
        *,
        links: Sequence[Context | None],
        parent: Context | None = None,
    ) -> Span | None:
        """A span of an operation at what ``describe`` says: the topic, and attributes. None: there can be none."""
        try:
            topic, attributes = describe()
            linked = [self._link(context) for context in links if context is not None]
            return self._tracer.start_span(f"{operation} {topic}", parent, kind, attributes, linked)
        except BaseException as error:  # of OpenTelemetry; or of a message that what sends it refuses, and says why
            self._spared("there is no span", error)
            return None

    def _link(self, context: Context) -> Link:
        return self._trace.Link(self._trace.get_current_span(context).get_span_context())

    def _current(self, span: Span, around: Context | None = None) -> _Current:
        """Lets the span be the current one, within what else a message has brought (baggage)."""
        return _Current(self._context, self._trace.set_span_in_context(span, around), lambda: self._end(span))

    def _end(self, span: Span) -> None:
        try:
            span.end()
        except BaseException as error:  # what it tells of has happened all the same
            self._spared("a span cannot be ended", error)

    def _spared(self, what: str, error: BaseException) -> None:
        """OpenTelemetry has failed: that is told, and what it was to tell of goes on.

        It awaits nothing, so a cancellation is none of the send or call, but one that a processor let out.
        """
        if isinstance(error, KeyboardInterrupt):
            raise error
        told = f"{type(error).__name__}: {safe_str(error)}"
        told = (told if self._mask is None else self._mask(told))[:SHOWN_CHARACTERS]
        self._log.tell(logging.WARNING, self._clock.monotonic(), what, "OpenTelemetry: %s: %s", what, told)

    def _failed(self, span: Span, error: BaseException) -> None:
        told = f"{type(error).__name__}: {safe_str(error)}"
        told = (told if self._mask is None else self._mask(told))[:SHOWN_CHARACTERS]
        try:
            span.set_attribute("error.type", _name_of(error))
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, told))
        except BaseException as own:
            self._spared("a span takes no error", own)

    def _tell_result(self, span: Span, result: SendResult, *, alone: bool) -> None:
        try:
            if alone:
                span.set_attribute("messaging.message.id", result.msg_id)
            span.set_attribute("messaging.destination.partition.id", str(result.queue.queue_id))
        except RemoteProtocolError:  # the message is stored all the same
            return
        except BaseException as error:
            self._spared("a span takes no result", error)


class _Current:
    """``with``: a span is the current one; at the end it is over."""

    def __init__(self, context: Any, entered: Context, end: Callable[[], None]) -> None:
        self._context = context
        self._entered = entered
        self._end = end

    def __enter__(self) -> None:
        self._token = self._context.attach(self._entered)

    def __exit__(self, *args: object) -> None:
        self._context.detach(self._token)
        self._end()


def _type_of(context: SendContext, message: Message) -> str:
    if context.transaction is not None:
        return "transaction"
    if message.delay_level or message.delay is not None or message.deliver_at is not None:
        return "delay"
    return "normal" if message.hash_key is None else "fifo"


def _name_of(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
