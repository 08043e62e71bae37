"""What the client itself costs for each message: its own Python, without system calls, other processes or a broker.

Sends go over a connection in memory whose peer answers at once; what the peer takes is measured and left out. Messages
to be consumed are put into process queues as a pull does it, and the handler only counts them. CPU time is that of the
process, all of its threads, kept on one processor.

Rounds are many and short, and the 5th percentile is what counts: other work on the machine only adds to a round, and
hardly ever leaves one in twenty alone. To compare two states of the code, run this in a checkout of each, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import struct
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
from rich.console import Console
from rich.progress import track
from rich.table import Table

from rocketbox.client import ClientOptions, ConsumerOptions, Credentials, Producer, ProducerOptions
from rocketbox.client.consume import ConcurrentConsumer
from rocketbox.client.handler_threads import HandlerThreads, preparation
from rocketbox.client.middleware import SendContext, wrap_handler
from rocketbox.client.outcomes import AnyHandler, Preparation
from rocketbox.client.process_queue import ProcessQueue
from rocketbox.client.subscriptions import Subscriptions
from rocketbox.client.trace import ConsumerTrace
from rocketbox.clock import RealClock
from rocketbox.listeners.arguments import HandlerBinding
from rocketbox.listeners.binding import Beans, read_signature
from rocketbox.listeners.dispatch import HandlerDispatch
from rocketbox.listeners.invalid_limit import InvalidLimit
from rocketbox.message import Compression, Message, MessageExt, MessageQueue, SelectorType, SendResult
from rocketbox.otel import MessageSpans
from rocketbox.protocol.bodies import BrokerData, QueueData, TopicRouteData, encode_topic_route
from rocketbox.protocol.codes import RequestCode
from rocketbox.protocol.command import RemotingCommand, encode_ext_fields, encode_response
from rocketbox.protocol.framing import FrameReader
from rocketbox.remoting.connection import Connection, Opened
from rocketbox.remoting.network import Listener
from rocketbox.tasks import Supervisor
from rocketbox.template import CodecMessageConverter, JsonMessageConverter, RocketMQTemplate
from rocketbox.waiters import Waiter

__all__ = ["FEATURES", "LOADS", "PLAIN", "main", "measure"]

BODY = b"x" * 1024
TOPIC = "T"
QUEUES = 8
IN_FLIGHT = 256
BATCH = 32
ANSWER_PIECE = 65_536  # bytes that come in at once, as from a socket

ONE_WAY = 2  # the flag of a request that wants no answer
SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
ASKED = struct.Struct(">IIHBHII")  # size, type and header size, code, language, version, opaque, flag
ANSWER = struct.Struct(">IIHBHIIII")  # the same, then sizes of remark and fields
FIELDS = encode_ext_fields(
    {"msgId": "7F0000010000272100000000000ABCDE", "queueId": "0", "queueOffset": "123456", "TRACE_ON": "true"}
)
ROUTE = encode_topic_route(
    TopicRouteData(
        queue_datas=(QueueData(broker_name="b", read_queue_nums=QUEUES, write_queue_nums=QUEUES, perm=6),),
        broker_datas=(BrokerData(cluster="c", broker_name="b", broker_addrs={0: "10.0.0.1:10911"}),),
    )
)


def _answers(requests: bytes) -> bytes:
    """The answers of a name server and broker to some frames: sends are read by their heads alone."""
    answers = []
    at = 0
    while at < len(requests):
        size, tagged, code, _, _, opaque, flag = ASKED.unpack_from(requests, at)
        if flag & ONE_WAY:
            pass
        elif tagged >> 24 == 1 and code in SENDS:
            header = 21 + len(FIELDS)
            answers.append(ANSWER.pack(4 + header, 1 << 24 | header, 0, 0, 479, opaque, 1, 0, len(FIELDS)) + FIELDS)
        else:
            (request,) = FrameReader().feed(requests[at : at + 4 + size])
            body = ROUTE if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC else b""
            answers.append(encode_response(request, RemotingCommand.response(0, body=body)))
        at += 4 + size
    return b"".join(answers)


class _Peer:
    """A driver that hands frames to its own peer, which answers in the next turn of the loop."""

    connection: Connection
    waiter: Callable[[], Waiter]

    def __init__(self, network: _PeerNetwork) -> None:
        self._network = network
        self._loop = asyncio.get_running_loop()
        self.waiter = self._loop.create_future

    def schedule_flush(self) -> None:
        self._loop.call_soon(self._flush)

    def pause_reading(self) -> None:
        """What is answered was asked for: it is never too much."""

    def resume_reading(self) -> None:
        """It never pauses."""

    def close(self) -> None:
        self.connection.lost("closed")

    def abort(self) -> None:
        self.connection.lost("aborted")

    def _flush(self) -> None:
        requests = self.connection.take_output()
        if not requests:
            return
        self.connection.flushed(len(requests))
        began = time.process_time()
        answers = _answers(requests)
        self._network.seconds += time.process_time() - began
        if answers:
            self._loop.call_soon(self._receive, answers)

    def _receive(self, answers: bytes) -> None:
        for start in range(0, len(answers), ANSWER_PIECE):
            piece = answers[start : start + ANSWER_PIECE]
            self.connection.get_buffer(ANSWER_PIECE)[: len(piece)] = piece
            self.connection.buffer_updated(len(piece))


class _PeerNetwork:
    """Connects to a peer of its own; ``seconds`` is the CPU time that all peers have taken."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def connect(self, host: str, port: int, opened: Opened, tasks: Supervisor) -> Connection:
        peer = _Peer(self)
        peer.connection = opened(peer, (host, 1), (host, port))
        return peer.connection

    async def listen(self, host: str, port: int, opened: Opened, tasks: Supervisor) -> Listener:
        raise OSError("nobody listens here")


def _message(number: int) -> Message:
    return Message(TOPIC, BODY, tag="A", keys=(f"k{number}",))


def _with(**options: Any) -> Callable[[int], Message]:
    return lambda number: Message(TOPIC, BODY, tag="A", keys=(f"k{number}",), **options)


async def _through(
    context: SendContext, call_next: Callable[[SendContext], Awaitable[SendResult | None]]
) -> SendResult | None:
    return await call_next(context)


# --- sends -----------------------------------------------------------------------------------------------------------


async def _send(
    producer: Producer,
    messages: int,
    make: Callable[[int], Message] = _message,
    queue: Callable[[Sequence[MessageQueue], Message], MessageQueue] | None = None,
) -> None:
    async def send_one(number: int) -> None:
        await producer.send(make(number), queue=queue)

    await _at_once(messages, send_one)


async def _send_by_template(producer: Producer, messages: int, payload: Any = BODY) -> None:
    template = RocketMQTemplate(producer, converter=CodecMessageConverter())

    async def send_one(number: int) -> None:
        await template.send(f"{TOPIC}:A", payload, keys=f"k{number}")

    await _at_once(messages, send_one)


async def _at_once(messages: int, send_one: Callable[[int], Awaitable[None]]) -> None:
    numbers = iter(range(messages))

    async def send() -> None:
        for number in numbers:
            await send_one(number)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(IN_FLIGHT):
            tasks.create_task(send())


async def _send_many(producer: Producer, messages: int) -> None:
    await producer.send_many([_message(number) for number in range(messages)])


async def _send_one_way(producer: Producer, messages: int) -> None:
    for number in range(messages):
        await producer.send_one_way(_message(number))
    await asyncio.sleep(0)  # what was added last is written in the next turn of the loop


async def _send_batches(producer: Producer, messages: int) -> None:
    for first in range(0, messages, BATCH):
        await producer.send_batch([_message(first + index) for index in range(BATCH)])


async def _in_threads(threads: int, messages: int, send: Callable[[Message], object]) -> None:
    """Threads that each wait for their own sends."""
    numbers = iter(range(messages))
    limiter = anyio.CapacityLimiter(threads)

    def send_all() -> None:
        for number in numbers:
            send(_message(number))

    async with anyio.create_task_group() as tasks:
        for _ in range(threads):
            tasks.start_soon(partial(anyio.to_thread.run_sync, send_all, limiter=limiter))


async def _send_blocking(producer: Producer, messages: int, threads: int = 20) -> None:
    blocking = RocketMQTemplate(producer).blocking
    await _in_threads(threads, messages, lambda message: blocking.send(TOPIC, message))


async def _send_from_thread(producer: Producer, messages: int) -> None:
    template = RocketMQTemplate(producer)
    await _in_threads(20, messages, lambda message: anyio.from_thread.run(template.send, TOPIC, message))


async def _send_called(producer: Producer, messages: int) -> None:
    blocking = RocketMQTemplate(producer).blocking
    await _in_threads(20, messages, lambda message: blocking._call("send", TOPIC, message))


async def _make(producer: Producer, messages: int) -> None:
    for number in range(messages):
        _message(number)


# --- consuming -------------------------------------------------------------------------------------------------------


class _Seen:
    """A handler that counts; under a lock, for it may run in threads."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._left = 0
        self.all_seen = asyncio.Event()

    def expect(self, messages: int) -> None:
        self._left = messages
        self.all_seen.clear()

    def count(self, messages: list[MessageExt]) -> None:
        with self._lock:
            self._left -= len(messages)
            if not self._left:
                self._loop.call_soon_threadsafe(self.all_seen.set)

    async def count_in_loop(self, messages: list[MessageExt]) -> None:
        self.count(messages)


def _listener(seen: _Seen, threads: HandlerThreads) -> HandlerDispatch:
    """A ``def`` of one text, as ``@rocketmq_listener`` marks it."""
    one = [_message_ext(0)]

    def handler(text: str) -> None:
        seen.count(one)

    converter, beans = JsonMessageConverter(), Beans(has=lambda hint: False, provider=lambda hint: lambda: None)
    binding = HandlerBinding(read_signature(handler, beans=beans, converter=converter), beans.provider, converter)
    return HandlerDispatch(
        group="cost", binding=binding, limit=InvalidLimit(1, RealClock(), lambda: None), threads=threads
    )


def _pulled(messages: int) -> list[ProcessQueue]:
    """Messages in four queues, as pulls have put them there."""
    each = messages // 4
    queues = [ProcessQueue(MessageQueue(TOPIC, "b", number), 0, now=0.0) for number in range(4)]
    for queue in queues:
        queue.put([_message_ext(offset) for offset in range(each)], each)
    return queues


def _message_ext(offset: int) -> MessageExt:
    fields: tuple[Any, ...] = (100, 0, 0, 0, 0, offset, 0, 0, 0, b"", 0, 0, b"", 0, 0, 0, len(BODY))
    return MessageExt(fields, BODY, TOPIC, b"")


@asynccontextmanager
async def _consumer(producer: Producer, seen: _Seen, load: Load) -> AsyncIterator[ConcurrentConsumer]:
    clock, options = RealClock(), ConsumerOptions()
    subscriptions = Subscriptions("cost", producer.instance, options)
    async with HandlerThreads(options.concurrency, "cost", clock) as threads, Supervisor("cost", clock) as tasks:
        handler: AnyHandler
        prepare: Preparation | None
        if load.listener:
            dispatch = _listener(seen, threads)
            handler, prepare = dispatch.handle, dispatch.prepare
        else:
            handler = seen.count if load.in_threads else seen.count_in_loop
            prepare = preparation(handler)
        called = threads.handler(handler)
        trace = ConsumerTrace("cost", producer.instance, options)
        if load.traced:
            trace.start()
            called, prepare = wrap_handler("cost", (trace,), called), None
        subscriptions.put(TOPIC, "*", called, SelectorType.TAG, load.batch_max_size, prepare)
        consumer = ConcurrentConsumer(
            "cost", options, subscriptions, threads=threads, send_back=None, tasks=tasks, clock=clock
        )
        consumer.start()
        yield consumer
        await trace.stop()


# --- rounds ----------------------------------------------------------------------------------------------------------

Round = Callable[[int], Awaitable[float]]
"""Handles so many messages and returns the CPU seconds that the client took."""


def _signed() -> ClientOptions:
    return ClientOptions(credentials=Credentials(access_key="rocketmqtest", secret_key="12345678"))


def _watched() -> ClientOptions:
    return ClientOptions(send_middleware=(_through,))


def _with_spans() -> ClientOptions:
    """Those of an application that has a tracer, whose spans go nowhere."""
    from opentelemetry.sdk.trace import TracerProvider

    return ClientOptions(send_middleware=(MessageSpans(tracer_provider=TracerProvider()).send,))


@dataclass(frozen=True)
class Load:
    """``sends``: what a producer does; None: messages are consumed, by a ``def`` handler or not, one or some a call.

    ``listener``: the handler is a ``def`` that takes the text of the message. ``traced``: with message trace, what its
    own sends cost among it.
    """

    messages: int
    sends: Callable[[Producer, int], Awaitable[None]] | None = None
    in_threads: bool = False
    listener: bool = False
    batch_max_size: int = 1
    traced: bool = False
    options: ProducerOptions | None = None
    client_options: Callable[[], ClientOptions] = ClientOptions
    """Of a producer of its own, where they are not the usual ones."""


LOADS = {
    "send, 256 in flight": Load(2048, _send),
    "send, 256 in flight, traced": Load(2048, _send, traced=True),
    "send, 256 in flight, with a hash_key": Load(2048, partial(_send, make=_with(hash_key="k"))),
    "send, 256 in flight, to a queue of a function": Load(2048, partial(_send, queue=lambda queues, _: queues[0])),
    "send, 256 in flight, with a property": Load(2048, partial(_send, make=_with(properties={"region": "north"}))),
    "send, 256 in flight, with a delay": Load(2048, partial(_send, make=_with(delay=timedelta(seconds=90)))),
    "send, 256 in flight, compressed by zlib": Load(512, partial(_send, make=_with(compression=Compression.ZLIB))),
    "send, 256 in flight, in auto-batches": Load(2048, _send, options=ProducerOptions(auto_batch=True)),
    "send, 256 in flight, signed": Load(2048, _send, client_options=_signed),
    "send, 256 in flight, through a middleware": Load(2048, _send, client_options=_watched),
    "send, 256 in flight, with spans": Load(2048, _send, client_options=_with_spans),
    "send, 256 in flight, by the template": Load(2048, _send_by_template),
    "send, 256 in flight, JSON by the template": Load(2048, partial(_send_by_template, payload={"text": "x" * 1000})),
    "send_many": Load(2048, _send_many),
    "one-way": Load(512, _send_one_way),
    "batch of 32": Load(512, _send_batches),
    "blocking sends, 20 threads": Load(2048, _send_blocking),
    "blocking sends, 20 threads, as calls of coroutines": Load(2048, _send_called),
    "blocking sends, 20 threads, by anyio.from_thread": Load(2048, _send_from_thread),
    "blocking sends, one thread": Load(512, partial(_send_blocking, threads=1)),
    "making the Message": Load(512, _make),
    "consumed, async def handler": Load(4000),
    "consumed, async def handler, traced": Load(960, traced=True),
    "consumed, def handler": Load(4000, in_threads=True),
    "consumed, def handler, 16 a call": Load(4000, in_threads=True, batch_max_size=16),
    "consumed, def listener": Load(4000, listener=True),
}


FEATURES = tuple(name for name in LOADS if name.startswith("send, 256 in flight,"))
"""Each is a send with one thing more: what that costs is the difference to :data:`PLAIN`."""
PLAIN = "send, 256 in flight"


async def _round_of(load: Load, producer: Producer, network: _PeerNetwork, stack: AsyncExitStack) -> Round:
    if (sends := load.sends) is not None:

        async def send(messages: int) -> float:
            began, answering = time.process_time(), network.seconds
            await sends(producer, messages)
            return time.process_time() - began - (network.seconds - answering)

        return send
    seen = _Seen()

    consumer = await stack.enter_async_context(_consumer(producer, seen, load))

    async def consume(messages: int) -> float:
        queues = _pulled(messages)
        seen.expect(messages)
        began = time.process_time()
        for queue in queues:
            consumer.offer(queue)
        await seen.all_seen.wait()
        return time.process_time() - began

    return consume


async def measure(names: list[str], rounds: int, share: float = 1.0) -> dict[str, list[float]]:
    """Microseconds for each message of each load, round by round, the loads in turns; the first one is not counted.

    ``share``: the part of the messages that a round has otherwise.
    """
    network = _PeerNetwork()
    results: dict[str, list[float]] = {name: [] for name in names}
    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(Producer("cost", name_server="10.0.0.2:9876", network=network))
        await producer.send(_message(0))  # from here on its route is known
        tracing = Producer("traced", instance=producer.instance, options=ProducerOptions(enable_msg_trace=True))
        await stack.enter_async_context(tracing)
        each = []
        for name in names:
            by = tracing if LOADS[name].traced else producer
            if LOADS[name].options is not None or LOADS[name].client_options is not ClientOptions:
                by = Producer(
                    "featured", name_server="10.0.0.2:9876", network=network, options=LOADS[name].options,
                    client_options=LOADS[name].client_options(),
                )  # fmt: skip
                await stack.enter_async_context(by)
                await by.send(_message(0))
            each.append((name, LOADS[name], await _round_of(LOADS[name], by, network, stack)))
        for number in track(range(rounds + 1), "measuring", console=Console(stderr=True)):
            for name, load, run in each:
                messages = max(BATCH, round(load.messages * share) // BATCH * BATCH)
                seconds = await run(messages)
                if number:
                    results[name].append(seconds / messages * 1e6)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.client_cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"loads: {'; '.join(LOADS)}",
    )
    parser.add_argument("--rounds", type=int, default=80, help="rounds over all loads (80)")
    parser.add_argument("--only", default="", help="loads whose name holds this text")
    parser.add_argument("--cpu", type=int, default=0, help="the processor to stay on (0)")
    parser.add_argument("--json", action="store_true", help="print the rounds of each load, in one line")
    arguments = parser.parse_args()
    names = [name for name in LOADS if arguments.only in name]
    if not names:
        parser.error(f"no load holds {arguments.only!r} in its name; there are: {'; '.join(LOADS)}")
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    if (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {arguments.cpu})
    results = asyncio.run(measure(names, arguments.rounds))
    if arguments.json:
        print(json.dumps(results))
        return
    table = Table(title=f"client alone, Python {platform.python_version()}, {arguments.rounds} rounds")
    for column in ("load", "5th percentile, us", "median, us"):
        table.add_column(column, justify="left" if column == "load" else "right")
    for name, each in results.items():
        table.add_row(name, f"{sorted(each)[len(each) // 20]:.2f}", f"{statistics.median(each):.2f}")
    Console(width=120).print(table, highlight=False)


if __name__ == "__main__":
    main()
