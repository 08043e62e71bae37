"""Many messages in flight for one task: the first try of each is written as soon as there is room in the window.

No task waits for an answer. Who takes it is a :class:`FirstTry`, which notes the result where it belongs; the task that
sends is woken when a quarter of the window is free. Whatever cannot be written at once, and what fails at its first
try, goes on in a task of its own through the one loop of tries (``sending``), as with any other send. Which queue a try
goes to and how long it may take is said there, too.

Fast path: a task for each place in the window, with its chain of awaits, took 1.2 times the processor time of a send
that is awaited alone, this takes 0.7 times (benchmarks "send_many" and "send, 256 in flight").

Source: own design; Apache RocketMQ 5.x has ``send(message, callback)`` and leaves the window to its user.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence, Sized
from typing import Final

from rocketbox.client.api.send import send_result
from rocketbox.client.lanes import Lane, Lanes
from rocketbox.client.queue_choice import QueueTarget
from rocketbox.client.tries import Tries
from rocketbox.clock import Clock
from rocketbox.errors import BrokerError, ClientError, NotDurableError, RemotingError, RocketBoxError
from rocketbox.message import Message, MessageQueue, SendResult, SendStatus
from rocketbox.own_failures import as_failure
from rocketbox.protocol.codes import ResponseCode
from rocketbox.protocol.command import RemotingCommand
from rocketbox.protocol.prepared_sends import SendRequest
from rocketbox.remoting.client import RemotingClient
from rocketbox.remoting.connection import Connection
from rocketbox.tasks import Supervisor
from rocketbox.waiters import Waiter, make_waiter

__all__ = ["FirstTry", "OpenWindow", "SendWindow"]

READ_CLOCK_EVERY = 32  # messages that are started without a look at the clock
_UNKNOWN: Final = ClientError("the send has not ended")  # each is replaced


class FirstTry(Tries):
    """The tries of one message, and where the first of them went; takes its answer."""

    __slots__ = ("connection", "failure", "index", "lane", "lanes", "message", "queue", "request", "window")

    lanes: Lanes
    connection: Connection

    def __init__(self, window: SendWindow, index: int, request: SendRequest, message: Message, now: float) -> None:
        super().__init__(now, window.timeout, window.retries)
        self.window = window
        self.index = index
        self.request = request
        self.message = message
        self.queue: MessageQueue | None = None
        """The one it has to go to, once that is known; None: any."""
        self.lane: Lane | None = None
        """Where it is to go; None while nobody knows."""
        self.failure: RocketBoxError | None = None
        """Why it came to nothing; None as well when it was not made yet."""

    def done(self) -> bool:
        return False  # who does not want the answer any more has the connection forget it

    def set_result(self, answer: RemotingCommand) -> None:
        window = self.window
        if answer.code or window.looks_at_answers or window.faults:
            window.judge(self, answer)
            return
        request, lane = self.request, self.lane
        assert lane is not None
        window.settle(
            self.index, SendResult(SendStatus.SEND_OK, request.msg_id, request.topic, lane.broker_name, answer)
        )

    def set_exception(self, error: RocketBoxError) -> None:
        self.failure = error
        self.window.go_on(self)


class SendWindow:
    """``await SendWindow(...).run(messages)``: a result or an error for each message, in order.

    ``prepare`` makes the request of a message. ``start`` makes its first try and returns True, or False when that has
    to wait for something. What these two raise is the message's error. ``deliver`` makes the first try, or what follows
    on its failure; ``succeeded`` hears of first tries that were all it took, when ``measures`` or while ``faults`` are
    known.
    """

    def __init__(
        self,
        name: str,
        remoting: RemotingClient,
        clock: Clock,
        *,
        size: int,
        timeout: float,
        retries: int,
        target: QueueTarget | None,
        prepare: Callable[[Message], SendRequest],
        start: Callable[[FirstTry], bool],
        deliver: Callable[[FirstTry], Awaitable[SendResult]],
        succeeded: Callable[[FirstTry], None],
        faults: Sized,
        measures: bool,
    ) -> None:
        self.timeout = timeout
        self.retries = retries
        self.target = target
        """What ``queue=`` says of all messages."""
        self.faults = faults
        self.looks_at_answers = measures or bool(remoting.hooks)
        self._remoting = remoting
        self._clock = clock
        self._size = size
        self._prepare = prepare
        self._start = start
        self._deliver = deliver
        self._succeeded = succeeded
        self._tasks = Supervisor(name, clock)
        self._outcomes: list[SendResult | Exception] = []
        self._in_flight = 0
        self._to_go_on: list[FirstTry] = []
        self._waiter: Waiter | None = None
        self._wake_at = -1  # how many may be in flight still when the task goes on
        self._now = 0.0

    async def run(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        """Send all of them, whatever happens to others."""
        self._outcomes = [_UNKNOWN] * len(messages)
        try:
            async with self._tasks:
                await self._fill(messages)
        finally:
            if self._in_flight:
                self._remoting.forget_requests(lambda taker: isinstance(taker, FirstTry) and taker.window is self)
        return self._outcomes

    async def _fill(self, messages: Sequence[Message]) -> None:
        size, refill_at = self._size, self._size - max(1, self._size // 4)
        outcomes = self._outcomes
        for index, message in enumerate(messages):
            if self._in_flight >= size:
                await self._until(refill_at)
            elif index % READ_CLOCK_EVERY == 0:
                self._now = self._clock.monotonic()
            try:
                first = FirstTry(self, index, self._prepare(message), message, self._now)
                if not self._start(first):
                    self._to_go_on.append(first)
            except BaseException as error:  # whatever it is: a message without an outcome would be lost silently
                outcomes[index] = _failure(error)
            else:
                self._in_flight += 1
        await self._until(0)

    async def _until(self, in_flight: int) -> None:
        """Return when no more than that are in flight."""
        while True:
            going_on, self._to_go_on = self._to_go_on, []
            for first in going_on:
                self._tasks.start(f"message {first.index}", self._go_on, first, restart=False)
            if self._in_flight <= in_flight:
                break
            self._wake_at, self._waiter = in_flight, make_waiter()
            try:
                await self._waiter
            finally:
                self._wake_at, self._waiter = -1, None
        self._now = self._clock.monotonic()

    async def _go_on(self, first: FirstTry) -> None:
        try:
            outcome: SendResult | Exception = await self._deliver(first)
        except BaseException as error:  # as above; and nobody would end the wait for it
            outcome = _failure(error)
        self.settle(first.index, outcome)

    # --- called by first tries ---------------------------------------------------------------------------------------

    def settle(self, index: int, outcome: SendResult | Exception) -> None:
        """A message has come to its end."""
        self._outcomes[index] = outcome
        self._in_flight -= 1
        if self._in_flight <= self._wake_at:
            self._wake()

    def judge(self, first: FirstTry, answer: RemotingCommand) -> None:
        """What an answer means of which there is more to say than that the message is stored."""
        lane, request = first.lane, first.request
        assert lane is not None
        if answer.code == ResponseCode.GO_AWAY:
            self._remoting.leave(lane.address, first.connection)
            self.go_on(first)  # nothing was sent: that was no try yet
            return
        self._remoting.answered(lane.address, request.code, answer)
        try:
            result = send_result(
                answer, lane.address, request.topic, lane.broker_name, request.msg_id, self._remoting.credentials
            )
            if result.status is not SendStatus.SEND_OK:
                raise NotDurableError(result)
        except (RemotingError, BrokerError, NotDurableError) as error:
            first.failure = error
            self.go_on(first)
        else:
            self._succeeded(first)
            self.settle(first.index, result)

    def go_on(self, first: FirstTry) -> None:
        """A message goes on in a task of its own."""
        self._to_go_on.append(first)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _failure(error: BaseException) -> Exception:
    """What a message's send has failed with, where a user's selector exits as well; raises what cancels the task."""
    failure = as_failure(error, hosted=True)
    if not isinstance(failure, Exception):
        raise failure
    if failure is not error:
        failure.__cause__ = error
    return failure


class OpenWindow(SendWindow):
    """For first tries of sends that come one by one, and wait elsewhere: it has neither a size nor an end.

    ``on_settled(index, outcome)`` hears of each end, ``on_failed(first)`` of a first try that :meth:`deliver` is to go
    on with.
    """

    def settle(self, index: int, outcome: SendResult | Exception) -> None:
        self.on_settled(index, outcome)

    def go_on(self, first: FirstTry) -> None:
        self.on_failed(first)

    on_settled: Callable[[int, SendResult | Exception], object]
    on_failed: Callable[[FirstTry], object]

    def start(self, index: int, message: Message, now: float) -> None:
        """Make the first try of a message, or have it made. Raises what the message is refused for."""
        first = FirstTry(self, index, self._prepare(message), message, now)
        if not self._start(first):
            self.on_failed(first)

    async def deliver(self, first: FirstTry) -> SendResult:
        """What follows on a first try, or that first try."""
        return await self._deliver(first)
