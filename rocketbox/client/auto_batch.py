"""Sends that are joined to batches by themselves (``auto_batch``): many awaited one by one, few requests.

A send waits for others to the same topic for ``batch_max_delay``, or until its batch is full. All of a batch are one
request, of which all are stored or none; each send has a result, or an error, of its own. What may not stand in a batch
goes as it would otherwise: a message that is delayed, to be compressed or too large, and one to a retry topic.

    joined ->  open (others join) -> full, or its time is over, or the producer stops -> on its way -> told

The time that a send has is that of its batch, from the first message on: the wait for others is a part of it, and so is
that for room. Who has waited for room for more than half of its time goes alone, for others would have no time left.

A batch has a task of its own. What is refused as a batch because of one of its messages (code 13) is sent one by one,
so that the right one is told. A send that is cancelled takes its message out again while its batch is open.

Source: Apache RocketMQ 5.x ``ProduceAccumulator`` (limits and their names). Unlike there: a result for each message.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import anyio

from rocketbox.client.batches import Element, errors_of, results_of
from rocketbox.client.instance import MQClientInstance
from rocketbox.client.middleware import SendContext, result_of
from rocketbox.client.options import ProducerOptions
from rocketbox.client.sending import Sender
from rocketbox.client.tries import Tries
from rocketbox.errors import (
    BrokerError,
    ClientStateError,
    RocketBoxError,
    SendTimeoutError,
    TooManyRequestsError,
)
from rocketbox.message import Message, MessageQueue, SendResult
from rocketbox.protocol.codes import ResponseCode
from rocketbox.waiters import Waiter, make_waiter

__all__ = ["AutoBatch"]


@dataclass(eq=False)
class _Joined:
    """A message that waits in a batch, and who waits for what becomes of it."""

    message: Message
    element: Element
    waiter: Waiter
    given_up: bool = False


@dataclass(eq=False)
class _Batch:
    """Messages that go together; ``first`` says what they have alike, and its time, from ``began`` on, is theirs."""

    first: Message
    began: float
    queue: MessageQueue | None
    timeout: float
    retries: int
    joined: list[_Joined] = field(default_factory=list)
    size: int = 0
    is_open: bool = True
    closed: anyio.Event = field(default_factory=anyio.Event)

    def close(self) -> None:
        """Nobody joins any more."""
        self.is_open = False
        self.closed.set()


class AutoBatch:
    """Joins the sends of one producer."""

    def __init__(self, sender: Sender, instance: MQClientInstance, options: ProducerOptions) -> None:
        self._sender = sender
        self._instance = instance
        self._clock = instance.clock
        self._options = options
        self._most_bytes = min(options.batch_max_bytes, options.max_message_size)
        self._open: dict[Hashable, _Batch] = {}
        self._under_way: set[_Batch] = set()
        self._held = 0
        self._room = anyio.Event()
        self._all_told = anyio.Event()

    def takes(self, message: Message) -> bool:
        """Whether a message may wait for others; one that is wrong is told so by who sends it otherwise."""
        return self._sender.may_stand_in_batch(message)

    async def send(
        self,
        message: Message,
        began: float,
        timeout: float,
        retries: int,
        queue: MessageQueue | None,
        context: SendContext,
    ) -> SendResult | None:
        """Send a message with others, and return its result; None: it is too large to stand in a batch.

        Its ``timeout`` is from ``began`` on (monotonic); ``context`` is told its id. Raises what a send raises, and
        TooManyRequestsError when ``total_batch_max_bytes`` wait already and no room comes in that time.
        """
        self._sender.check_open()
        element = self._sender.element(message, self._clock.time_ms())
        size = element.size_within(self._most_bytes)
        if size > self._most_bytes:
            return None
        if self._held and self._held + size > self._options.total_batch_max_bytes:
            await self._until_room(size, began + timeout)
            self._sender.check_open()
        context.msg_ids = (element.msg_id,)
        batch = self._batch_for(message, size, began, timeout, retries, queue)
        joined = _Joined(message, element, make_waiter())
        batch.joined.append(joined)
        batch.size += size
        self._held += size
        if batch.size >= self._most_bytes or len(batch.joined) >= self._options.batch_max_messages:
            batch.close()
        try:
            result: SendResult = await joined.waiter
        finally:
            joined.given_up = True  # means something only when this was cancelled
        return result

    async def flush(self) -> None:
        """Send what waits now, and return when all is told."""
        for batch in self._under_way:
            batch.close()
        while self._under_way:
            self._all_told = anyio.Event()
            await self._all_told.wait()

    async def _until_room(self, size: int, deadline: float) -> None:
        most = self._options.total_batch_max_bytes
        with self._clock.move_on_after(max(0.0, deadline - self._clock.monotonic())):
            while self._held and self._held + size > most:
                await self._room.wait()
        if self._held and self._held + size > most:
            raise TooManyRequestsError(f"the bytes that wait in batches of producer {self._sender.group}", most)

    def _batch_for(
        self, message: Message, size: int, began: float, timeout: float, retries: int, queue: MessageQueue | None
    ) -> _Batch:
        """The open batch that a message joins, or its own."""
        left = began + timeout - self._clock.monotonic()
        if left < timeout / 2:
            alone = self._begin(None, message, began, queue, timeout, retries)
            alone.close()
            return alone
        alike = (message.topic, message.hash_key, message.wait_store_ok, queue, timeout, retries)
        batch = self._open.get(alike)
        if batch is not None and batch.is_open and batch.size + size <= self._most_bytes:
            batch.began = min(batch.began, began)
        else:
            if batch is not None:
                batch.close()
            batch = self._open[alike] = self._begin(alike, message, began, queue, timeout, retries)
        if left < timeout and left < 2 * self._options.batch_max_delay:
            batch.close()  # half of the time that is left is for its tries
        return batch

    def _begin(
        self, alike: Hashable, message: Message, began: float, queue: MessageQueue | None, timeout: float, retries: int
    ) -> _Batch:
        batch = _Batch(message, began, queue, timeout, retries)
        self._under_way.add(batch)
        try:
            self._instance.tasks.start(f"batch to {message.topic}", self._run, alike, batch, restart=False)
        except BaseException:
            self._forget(alike, batch)
            raise
        return batch

    async def _run(self, alike: Hashable, batch: _Batch) -> None:
        """The life of a batch from its first message on."""
        try:
            delay = self._options.batch_max_delay
            with self._clock.move_on_after(delay if delay < batch.timeout else batch.timeout / 2):  # half for its tries
                await batch.closed.wait()
            batch.close()
            if self._open.get(alike) is batch:
                del self._open[alike]
            await self._deliver([joined for joined in batch.joined if not joined.given_up], batch)
        finally:
            closed = ClientStateError("the client was closed while a batch waited; its messages may be stored")
            for joined in batch.joined:
                _tell(joined, closed)
            self._forget(alike, batch)

    def _forget(self, alike: Hashable, batch: _Batch) -> None:
        if self._open.get(alike) is batch:
            del self._open[alike]
        self._under_way.discard(batch)
        self._held -= batch.size
        self._room.set()
        self._room = anyio.Event()
        if not self._under_way:
            self._all_told.set()

    async def _deliver(self, all_joined: list[_Joined], batch: _Batch) -> None:
        """Send messages of a batch in one request, and tell each what became of it."""
        if not all_joined:
            return
        sender, first, born = self._sender, all_joined[0], self._clock.time_ms()
        tries = Tries(batch.began, batch.timeout, batch.retries)
        tries.now = self._clock.monotonic()
        try:
            if len(all_joined) == 1:
                request = sender.request_of(first.element, first.message, born)
            else:
                request = sender.batch_of([joined.element for joined in all_joined], first.message, born)
            result = result_of(await sender.deliver(request, tries, batch.queue, batch.first.hash_key))
        except RocketBoxError as error:
            if len(all_joined) > 1 and isinstance(error, BrokerError) and error.code == ResponseCode.MESSAGE_ILLEGAL:
                for joined in all_joined:  # nothing is stored: which of them was meant?
                    await self._deliver([joined], batch)
                return
            for joined, told in zip(all_joined, errors_of(error, len(all_joined)), strict=True):
                _tell(joined, _own(told, joined))
            return
        for joined, own in zip(all_joined, results_of(result, len(all_joined)), strict=True):
            _tell(joined, own)


def _own(error: Exception, joined: _Joined) -> Exception:
    """An error of a batch, as it is told of one of its messages."""
    if isinstance(error, SendTimeoutError):
        return SendTimeoutError(error.address, joined.element.msg_id, error.timeout, error.tries)
    return error


def _tell(joined: _Joined, outcome: SendResult | Exception) -> None:
    if joined.given_up or joined.waiter.done():
        return
    if isinstance(outcome, SendResult):
        joined.waiter.set_result(outcome)
    else:
        joined.waiter.set_exception(outcome)
