"""Sends of threads: the first try of each is written as soon as the loop hears of it, without a task of its own.

A thread waits for the answer itself, so nothing in the loop does: who takes it is a :class:`FirstTry`, as in
``send_many`` (``send_window``), which tells the thread. What has to wait for something, and what fails at its first
try, goes on in a task through the one loop of tries, as any other send.

Fast path: benchmark "blocking sends". Sends through middlewares, and those with a queue of their own, are no part of
it: they are calls of the producer's coroutines.

Source: own design; Apache RocketMQ 5.x ``DefaultMQProducer.send`` waits on a latch in the thread that sends.
"""

from __future__ import annotations

from itertools import count

from rocketbox.calls_from_threads import Call, CallsFromThreads
from rocketbox.client.instance import MQClientInstance
from rocketbox.client.send_window import FirstTry
from rocketbox.client.sending import Sender
from rocketbox.message import Message, SendResult

__all__ = ["BlockingSends"]


class _Send(Call):
    """One send: its message, and the time that it has."""

    __slots__ = ("message", "sends", "timeout")

    def __init__(self, what: str, sends: BlockingSends, message: Message, timeout: float) -> None:
        super().__init__(what)
        self.sends = sends
        self.message = message
        self.timeout = timeout

    def begin(self) -> None:
        self.sends.begin(self)

    def cancel(self) -> None:
        self.sends.cancel(self)


class BlockingSends:
    """Those of one producer."""

    def __init__(self, sender: Sender, instance: MQClientInstance, retries: int) -> None:
        self._instance = instance
        self._calls: CallsFromThreads = instance.calls
        self._clock = instance.clock
        self._numbers = count()
        self._sends: dict[int, _Send] = {}  # that have begun, by their number
        self._window = sender.open_window(sender.options.send_message_timeout, retries)
        self._window.on_settled, self._window.on_failed = self._settle, self._go_on

    def send(self, what: str, message: Message, timeout: float) -> SendResult:
        """Send one message from a thread, and return what the broker answered. Raises as ``Producer.send``."""
        result: SendResult = self._calls.wait_for(_Send(what, self, message, timeout))
        return result

    # --- in the loop -------------------------------------------------------------------------------------------------

    def begin(self, send: _Send) -> None:
        number = next(self._numbers)
        self._sends[number] = send
        window = self._window
        window.timeout = send.timeout
        try:
            window.start(number, send.message, self._clock.monotonic())
        except Exception as error:  # whatever it is belongs to who sends
            self._settle(number, error)

    def cancel(self, send: _Send) -> None:
        """Its answer is not waited for any more."""
        for number, each in list(self._sends.items()):
            if each is send:
                self._settle(number, send.cut_short())

    def _settle(self, number: int, outcome: SendResult | Exception) -> None:
        send = self._sends.pop(number, None)
        if send is None:
            return  # it was cancelled, and has ended for its thread
        if isinstance(outcome, Exception):
            send.error = outcome
        else:
            send.result = outcome
        send.end()

    def _go_on(self, first: FirstTry) -> None:
        if first.index not in self._sends:
            return  # it was cancelled: nobody waits, and it is not tried again
        self._instance.tasks.start(f"send {first.index} of a thread", self._deliver, first, restart=False)

    async def _deliver(self, first: FirstTry) -> None:
        try:
            outcome = await self._window.deliver(first)
        except Exception as error:
            self._settle(first.index, error)
        else:
            self._settle(first.index, outcome)
        finally:  # a cancellation: the client is being closed
            if (send := self._sends.get(first.index)) is not None:
                self._settle(first.index, send.cut_short())
