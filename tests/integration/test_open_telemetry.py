"""Spans of OpenTelemetry: what sends and calls of handlers say, and that they are in one trace."""

from __future__ import annotations

import sys
from typing import Any

import anyio
import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra dev brings opentelemetry-sdk")

from opentelemetry import baggage, context, trace
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from rocketbox import otel
from rocketbox.client import ClientOptions, Producer, PushConsumer
from rocketbox.client.middleware import ConsumeContext, ConsumeNext, SendContext
from rocketbox.client.options import ConsumerOptions
from rocketbox.client.outcomes import Outcomes
from rocketbox.errors import InvalidMessageError
from rocketbox.message import ConsumeFromWhere, Message, MessageExt, SendStatus
from rocketbox.otel import MessageSpans
from rocketbox.testing import Harness
from tests.support.broker.wire import Wire, embedded
from tests.support.framework.services import ServiceMaker
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio


class Spans:
    """A tracer provider whose spans a test reads."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def ended(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.ended if span.name == name]


@pytest.fixture
def spans() -> Spans:
    return Spans()


def ids(of: SpanContext | None) -> tuple[int, int]:
    """Where a span is: what came with a message differs from it in that it is remote."""
    assert of is not None
    return of.trace_id, of.span_id


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return {name.removeprefix("messaging."): value for name, value in (span.attributes or {}).items()}


def options(spans: Spans, **more: Any) -> ClientOptions:
    own = MessageSpans(tracer_provider=spans.provider, **more)
    return ClientOptions(send_middleware=(own.send,), consume_middleware=(own.consume,))


class Handling:
    """A handler that keeps what it gets, and the trace it runs in."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.got: list[MessageExt] = []
        self.traces: list[int] = []
        self.done = anyio.Event()
        self._count = count
        self._error = error

    async def __call__(self, messages: list[MessageExt]) -> None:
        self.got += messages
        self.traces.append(trace.get_current_span().get_span_context().trace_id)
        if len(self.got) >= self._count:
            self.done.set()
        if self._error is not None and not messages[0].reconsume_times:
            raise self._error


async def consume(wire: Wire, spans: Spans, handling: Handling, *, batch: int = 1, **more: Any) -> None:
    consumer = PushConsumer(
        "desk", name_server=wire.servers.name_server_address, client_options=options(spans, **more),
        options=ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET),
    )  # fmt: skip
    await consumer.subscribe("orders", "*", handling, batch_max_size=batch)
    async with consumer:
        with anyio.fail_after(PATIENCE):
            await handling.done.wait()


def producer(wire: Wire, spans: Spans, **more: Any) -> Producer:
    return Producer("payers", name_server=wire.servers.name_server_address, client_options=options(spans, **more))


async def test_a_send_and_the_call_of_a_handler_are_in_one_trace(tmp_path: Any, spans: Spans) -> None:
    handling = Handling(1)
    async with embedded(tmp_path) as wire:
        async with producer(wire, spans, namespace="N") as sender:
            result = await sender.send(Message("orders", b"x", tag="A", keys=["k1", "k2"], hash_key="h"))
        await consume(wire, spans, handling, namespace="N")
    send, process = spans.ended
    assert (send.name, send.kind, process.name, process.kind) == (
        "send orders", SpanKind.PRODUCER, "process orders", SpanKind.CONSUMER,
    )  # fmt: skip
    created = ids(send.context)
    assert ids(process.parent) == created
    assert [ids(link.context) for link in process.links] == [created]
    assert handling.traces == [created[0]]
    assert handling.got[0].properties["traceparent"].startswith(f"00-{created[0]:032x}-{created[1]:016x}-")
    alike = {
        "system": "rocketmq", "rocketmq.namespace": "N", "destination.name": "orders", "message.id": result.msg_id,
        "destination.partition.id": str(result.queue.queue_id), "rocketmq.message.tag": "A",
        "rocketmq.message.keys": ("k1", "k2"), "rocketmq.message.group": "h",
    }  # fmt: skip
    assert attributes(send) == {
        **alike, "operation.name": "send", "operation.type": "send", "rocketmq.message.type": "fifo",
    }  # fmt: skip
    assert attributes(process) == {
        **alike, "operation.name": "process", "operation.type": "process", "consumer.group.name": "desk",
    }  # fmt: skip
    assert {span.status.status_code for span in (send, process)} == {StatusCode.UNSET}


async def test_a_send_is_a_part_of_what_is_going_on_and_takes_its_baggage_along(tmp_path: Any, spans: Spans) -> None:
    handling = Handling(1)
    tracer = spans.provider.get_tracer("test")
    async with embedded(tmp_path) as wire:
        async with producer(wire, spans) as sender:
            with tracer.start_as_current_span("request") as request:
                token = context.attach(baggage.set_baggage("user", "ada"))
                await sender.send_one_way(Message("orders", b"x"))
                context.detach(token)
        await consume(wire, spans, handling)
    send, process = spans.named("send orders")[0], spans.named("process orders")[0]
    assert ids(send.parent) == ids(request.get_span_context())
    assert ids(process.parent) == ids(send.context)
    assert handling.got[0].properties["baggage"] == "user=ada"


async def test_a_batch_has_one_span_to_which_the_calls_have_links(tmp_path: Any, spans: Spans) -> None:
    handling = Handling(2)
    async with embedded(tmp_path, default_topic_queue_nums=1) as wire:
        async with producer(wire, spans) as sender:
            await sender.send_batch([Message("orders", b"1"), Message("orders", b"2")])
        await consume(wire, spans, handling, batch=10)
    (send,), (process,) = spans.named("send orders"), spans.named("process orders")
    assert (attributes(send)["batch.message_count"], attributes(process)["batch.message_count"]) == (2, 2)
    assert [ids(link.context) for link in process.links] == [ids(send.context)] * 2
    assert process.parent is None, "a batch is part of no one message's trace"
    assert "message.id" not in attributes(process)


async def test_a_message_that_is_sent_on_keeps_where_it_was_made(tmp_path: Any, spans: Spans) -> None:
    made = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    handling = Handling(1)
    async with embedded(tmp_path) as wire:
        async with producer(wire, spans) as sender:
            await sender.send(Message("orders", b"x", properties={"traceparent": made}))
        await consume(wire, spans, handling)
    send, process = spans.ended
    assert send.kind is SpanKind.CLIENT
    assert [f"{link.context.span_id:016x}" for link in (*send.links, *process.links)] == ["b7ad6b7169203331"] * 2
    assert handling.got[0].properties["traceparent"] == made


class FailingProcessor(SpanProcessor):
    """A span processor of a user's that has a fault."""

    def __init__(self, at: str) -> None:
        self._at = at

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self._at == "start":
            raise RuntimeError("on_start")
        if self._at == "start, by an exit":
            raise SystemExit("on_start")

    def on_end(self, span: ReadableSpan) -> None:
        if self._at == "end":
            raise RuntimeError("on_end")
        if self._at == "end, by an exit":
            raise SystemExit("on_end")


class FailingPropagator(TextMapPropagator):
    """A propagator that fails, or writes what no message can hold."""

    def __init__(self, at: str) -> None:
        self._at = at

    def extract(self, carrier: Any, context: Any = None, getter: Any = None) -> Any:
        if self._at == "extract":
            raise ValueError("a header that cannot be read")
        return context

    def inject(self, carrier: Any, context: Any = None, setter: Any = None) -> None:
        if self._at == "inject":
            raise ValueError("inject")
        if self._at == "separator":
            carrier["x-origin"] = "a\x01b"
        if self._at == "reserved":
            carrier["KEYS"] = "k"

    @property
    def fields(self) -> set[str]:
        return set()


@pytest.mark.parametrize(
    "at",
    ["start", "end", "start, by an exit", "end, by an exit", "extract", "inject", "separator", "reserved"],
)
async def test_what_fails_in_open_telemetry_fails_no_send_and_no_call(
    tmp_path: Any, caplog: pytest.LogCaptureFixture, at: str
) -> None:
    spans, handled = Spans(), anyio.Event()
    outcomes: list[object] = []
    propagator = None
    if at.startswith(("start", "end")):
        spans.provider.add_span_processor(FailingProcessor(at))
    else:
        propagator = FailingPropagator(at)
    own = MessageSpans(tracer_provider=spans.provider, propagator=propagator)

    async def outermost(context: ConsumeContext, call_next: ConsumeNext) -> Outcomes:
        try:
            outcome = await call_next(context)
            outcomes.append(outcome)
            return outcome
        except Exception as error:
            outcomes.append(error)
            raise
        finally:
            handled.set()

    client_options = ClientOptions(send_middleware=(own.send,), consume_middleware=(outermost, own.consume))
    handling = Handling(1)
    async with embedded(tmp_path) as wire:
        address = wire.servers.name_server_address
        async with Producer("payers", name_server=address, client_options=client_options) as sender:
            assert (await sender.send(Message("orders", b"x", properties={"a": "b"}))).status is SendStatus.SEND_OK
        consumer = PushConsumer(
            "desk", name_server=address, client_options=client_options,
            options=ConsumerOptions(consume_from_where=ConsumeFromWhere.FIRST_OFFSET),
        )  # fmt: skip
        await consumer.subscribe("orders", "*", handling)
        async with consumer:
            with anyio.fail_after(PATIENCE):
                await handled.wait()
    assert ([each.body for each in handling.got], outcomes) == ([b"x"], [None])
    assert "OpenTelemetry: " in caplog.text


async def test_a_header_of_the_users_own_stays_whatever_the_context_has_of_its_name(
    tmp_path: Any, spans: Spans
) -> None:
    handling = Handling(1)
    async with embedded(tmp_path) as wire:
        async with producer(wire, spans) as sender:
            token = context.attach(baggage.set_baggage("cart", "7"))
            try:
                await sender.send(Message("orders", b"x", properties={"baggage": "a suitcase"}))
            finally:
                context.detach(token)
        await consume(wire, spans, handling)
    assert handling.got[0].properties["baggage"] == "a suitcase"
    assert "traceparent" in handling.got[0].properties


async def test_a_message_without_room_for_the_context_goes_without(tmp_path: Any, spans: Spans) -> None:
    handling = Handling(1)
    async with embedded(tmp_path) as wire:
        async with producer(wire, spans) as sender:
            token = context.attach(baggage.set_baggage("cart", "c" * 4_000))
            await sender.send(Message("orders", b"x", properties={"note": "n" * 30_000}))
            context.detach(token)
        await consume(wire, spans, handling)
    assert "traceparent" not in handling.got[0].properties


async def test_what_is_wrong_with_a_message_is_said_as_without_spans(tmp_path: Any, spans: Spans) -> None:
    wrong: Any = "soon"
    async with embedded(tmp_path) as wire, producer(wire, spans) as sender:
        with pytest.raises(InvalidMessageError, match="deliver_at is 'soon'"):
            await sender.send(Message("orders", b"x", deliver_at=wrong))


class UnwritableError(Exception):
    def __str__(self) -> str:
        raise ValueError("a session that is closed")


async def test_an_error_that_cannot_be_written_out_stays_what_it_was(spans: Spans) -> None:
    async def fails(context: SendContext) -> None:
        raise UnwritableError

    with pytest.raises(UnwritableError):
        await MessageSpans(tracer_provider=spans.provider).send(
            SendContext("payers", [Message("orders", b"x")], timeout=1, retries=0), fails
        )
    assert [span.status.status_code for span in spans.ended] == [StatusCode.ERROR]


async def test_a_send_and_a_call_that_are_cancelled_or_exit_have_an_error(spans: Spans) -> None:
    own = MessageSpans(tracer_provider=spans.provider)

    async def waits(context: SendContext) -> None:
        await anyio.sleep_forever()

    async def exits(context: ConsumeContext) -> None:
        raise SystemExit(1)

    with anyio.move_on_after(0):
        await own.send(SendContext("payers", [Message("orders", b"x")], timeout=1, retries=0), waits)
    with pytest.raises(SystemExit):
        await own.consume(
            ConsumeContext(
                "desk",
                [
                    MessageExt(
                        (0, 0, 0, 0, 0, 1, 0, 0, 0, b"\x7f\0\0\1", 1, 0, b"\x7f\0\0\1", 2, 0, 0, 1), b"x", "orders", b""
                    )
                ],
            ),
            exits,
        )
    send, process = spans.ended
    assert (send.status.status_code, process.status.status_code) == (StatusCode.ERROR, StatusCode.ERROR)
    assert "Cancelled" in attributes(send)["error.type"]
    assert attributes(process)["error.type"] == "SystemExit"


async def test_errors_have_their_class_and_what_they_say_is_masked(tmp_path: Any, spans: Spans) -> None:
    def hide(text: str) -> str:
        return text.replace("hunter2", "***")

    handling = Handling(2, ValueError("hunter2"))
    async with embedded(tmp_path, message_delay_level="1s 1s 1s") as wire:
        async with producer(wire, spans) as sender:
            with pytest.raises(InvalidMessageError):
                await sender.send(Message("orders", b""))
            await sender.send(Message("orders", b"x"))
        await consume(wire, spans, handling, mask=hide)
    refused, sent = spans.named("send orders")
    failed, retried = spans.named("process orders")
    assert refused.status.status_code is StatusCode.ERROR
    assert (refused.attributes or {})["error.type"] == "rocketbox.errors.InvalidMessageError"
    assert (failed.attributes or {})["error.type"] == "ValueError"
    assert failed.status.description == "ValueError: ***"
    assert retried.status.status_code is StatusCode.UNSET
    assert ids(failed.parent) == ids(retried.parent) == ids(sent.context), "a retry is in the same trace"


# --- in an application ------------------------------------------------------------------------------------------------

SERVICE = """
from rocketbox import RocketBox, rocketmq_listener, send_to
from opentelemetry import trace

app = RocketBox("desk", scan=[__name__])
traces = []

@rocketmq_listener(topic="orders", consumer_group="desk")
@send_to("bills")
async def bill(order: str) -> str:
    traces.append(trace.get_current_span().get_span_context().trace_id)
    return order

@rocketmq_listener(topic="bills", consumer_group="post")
def post(bill: str) -> None:
    traces.append(trace.get_current_span().get_span_context().trace_id)
"""
SETTINGS = "rocketmq: {name-server: embedded, producer: {group: desk}}\n"


@pytest.fixture
def set_up(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> Spans:
    """As a process that has set its tracer provider: OpenTelemetry lets that be done once."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", spans.provider)
    return spans


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("more", "expected"), [("", 4), ("rocketbox.otel.enabled: false\n", 0)])
async def test_a_service_whose_process_has_set_it_up_has_spans(
    service: ServiceMaker, set_up: Spans, more: str, expected: int
) -> None:
    module = service(SERVICE, SETTINGS + more)
    async with Harness(module.app) as harness:
        await harness.send("orders", "one")
        await harness.drain()
    assert len(set_up.ended) == expected
    if expected:
        assert len({span.context.trace_id for span in set_up.ended if span.context}) == 1
        assert set(module.traces) == {span.context.trace_id for span in set_up.ended if span.context}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_without_a_provider_there_is_nothing(service: ServiceMaker) -> None:
    module = service(SERVICE, SETTINGS)
    async with Harness(module.app) as harness:
        await harness.send("orders", "one")
        await harness.drain()
        assert "traceparent" not in harness.calls(module.bill)[0].messages[0].properties


def test_it_is_seen_without_loading_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert not otel.is_set_up()
    assert "opentelemetry.trace" not in sys.modules


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_bean_of_the_users_is_taken(service: ServiceMaker, spans: Spans) -> None:
    source = SERVICE + (
        "\nfrom rocketbox import bean\nfrom rocketbox.otel import MessageSpans\nprovider = []\n"
        "@bean\ndef spans() -> MessageSpans:\n    return MessageSpans(tracer_provider=provider[0])\n"
    )
    module = service(source, SETTINGS)
    module.provider.append(spans.provider)
    async with Harness(module.app) as harness:
        await harness.send("orders", "one")
        await harness.drain()
    assert len(spans.ended) == 4
