"""From messages to one handler's call, and from what it does to an outcome for each message.

Outcomes are what the push consumer understands: None is consumed, :class:`Reject` dead-lettered,
:class:`RetryLater` brought back after its delay, any other exception brought back by RocketMQ's own retry. What is
raised from here holds for all messages of the call.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import anyio

from rocketbox.client.handler_threads import HandlerThreads
from rocketbox.client.outcomes import Outcome, Outcomes, PreparedCall
from rocketbox.clock import Clock
from rocketbox.errors import BatchFailed, Reject, RetryLater
from rocketbox.listeners.binding import HandlerBinding
from rocketbox.listeners.options import OnInvalid
from rocketbox.message import ConsumeMode, MessageExt
from rocketbox.template import PayloadError

__all__ = ["HandlerDispatch", "InvalidLimit"]

_log = logging.getLogger(__name__)

LIMIT_WINDOW = 60.0  # seconds over which invalid payloads are counted


class InvalidLimit:
    """Counts payloads that cannot be read; above ``limit`` a minute it closes, and they are held until it opens.

    One bad deploy must not empty a whole backlog into the dead-letter queue. ``on_closed`` is told once per closing.
    """

    def __init__(self, limit: int, clock: Clock, on_closed: Callable[[], None]) -> None:
        self.limit = limit
        self.closed = False
        self._clock = clock
        self._on_closed = on_closed
        self._times: deque[float] = deque()
        self._changed = anyio.Event()
        self._abandoned = False

    async def pass_one(self) -> None:
        """Return when one more may be dealt with; RetryLater when the container stops before that."""
        while not self._admit():
            if not self._abandoned:
                await self._changed.wait()
            if self._abandoned:
                raise RetryLater(timedelta(seconds=10))

    def open(self) -> None:
        """Let the held ones go on, and count anew."""
        self.closed = False
        self._times.clear()
        self._wake()

    def abandon(self) -> None:
        """The container stops: what is held goes back to the broker."""
        self._abandoned = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _admit(self) -> bool:
        if self.closed:
            return False
        now = self._clock.monotonic()
        while self._times and self._times[0] <= now - LIMIT_WINDOW:
            self._times.popleft()
        if len(self._times) >= self.limit:
            self.closed = True
            self._on_closed()
            return False
        self._times.append(now)
        return True


@dataclass(frozen=True, kw_only=True)
class HandlerDispatch:
    """Calls one handler. ``reply`` sends on what it returns (None: it has no ``send_to``)."""

    binding: HandlerBinding
    limit: InvalidLimit
    on_invalid: OnInvalid = OnInvalid.DEAD_LETTER
    consume_mode: ConsumeMode = ConsumeMode.CONCURRENTLY
    reply: Callable[[list[Any]], Awaitable[None]] | None = None
    threads: HandlerThreads | None = None

    async def handle(self, messages: Sequence[MessageExt]) -> list[Outcome] | None:
        """One outcome for each message, or None when all of them are consumed."""
        if self.binding.signature.is_batch:
            outcomes = await self._handle_batch(messages)
        else:
            outcomes = [await self._handle_one(message) for message in messages]
        return outcomes if any(outcome is not None for outcome in outcomes) else None

    def prepare(self, messages: Sequence[MessageExt]) -> PreparedCall | None:
        """The call for a thread that does what :meth:`handle` does; None where not all payloads can be read."""
        if self.binding.signature.is_batch:
            arguments, invalid = self.binding.batch_arguments(messages)
            return None if invalid else partial(self._call_batch, arguments, len(messages))
        if len(messages) > 1:
            return None  # each has a call of its own
        try:
            return partial(self._call_one, self.binding.arguments(messages[0]))
        except PayloadError:
            return None

    def _call_one(self, arguments: list[Any]) -> Outcomes | Awaitable[Outcomes]:
        result = self.binding.call(arguments)
        if isinstance(result, Exception):
            return [result]
        return self._sent_on(result) if result is not None and self.reply is not None else None

    def _call_batch(self, arguments: list[Any], count: int) -> Outcomes | Awaitable[Outcomes]:
        result = self.binding.call(arguments)
        return None if result is None else self._returned(result, count)

    async def _sent_on(self, result: Any) -> None:
        assert self.reply is not None
        await self.reply([result])

    async def _handle_one(self, message: MessageExt) -> Outcome:
        try:
            arguments = self.binding.arguments(message)
        except PayloadError as error:
            return await self._invalid(message, error)
        result = await self._call(arguments)
        if isinstance(result, Exception):  # an outcome that was returned instead of raised
            return result
        if result is not None and self.reply is not None:
            await self._sent_on(result)
        return None

    async def _handle_batch(self, messages: Sequence[MessageExt]) -> list[Outcome]:
        arguments, invalid = self.binding.batch_arguments(messages)
        if invalid and self.on_invalid is OnInvalid.RETRY and self.consume_mode is ConsumeMode.ORDERLY:
            # What follows an invalid message of the queue must not overtake it: only those before it are handled now.
            first = min(invalid)
            error = await self._invalid(messages[first], invalid[first])
            before = await self._handle_batch(messages[:first]) if first else []
            return [*before, *([error] * (len(messages) - first))]
        outcomes: list[Outcome] = [None] * len(messages)
        for index, error in invalid.items():
            outcomes[index] = await self._invalid(messages[index], error)
        handled = [index for index in range(len(messages)) if index not in invalid]
        if not handled:
            return outcomes
        try:
            result = await self._call(arguments)
            returned = await self._returned(result, len(handled))
        except BatchFailed as failed:
            first = failed.index if failed.index < len(handled) else 0  # past the end it says nothing: all come back
            for index in handled[first:]:
                outcomes[index] = failed
        except Exception as error:
            if not invalid:
                raise
            for index in handled:
                outcomes[index] = error
        else:
            for index, outcome in zip(handled, returned, strict=True):
                outcomes[index] = outcome
        return outcomes

    async def _returned(self, result: Any, count: int) -> Sequence[Outcome]:
        """What a batch handler returned: payloads to send on where it has a ``send_to``, else one outcome each."""
        name = self.binding.signature.name
        if result is None:
            return [None] * count
        if not isinstance(result, list | tuple):
            raise TypeError(f"{name} takes a batch and returned {type(result).__name__}; it may return None or a list")
        if self.reply is not None:
            if payloads := [payload for payload in result if payload is not None]:
                await self.reply(payloads)
            return [None] * count
        if len(result) != count or not all(outcome is None or isinstance(outcome, Exception) for outcome in result):
            raise TypeError(
                f"{name} got {count} messages and returned a list of {len(result)}; it must hold one outcome for each: "
                "None, Reject(...), RetryLater(...) or another exception"
            )
        return result

    async def _call(self, arguments: list[Any]) -> Any:
        if self.binding.signature.is_async:
            return await self.binding.call(arguments)
        assert self.threads is not None, "a def handler has threads"
        return await self.threads.run(self.binding.call, arguments)

    async def _invalid(self, message: MessageExt, error: PayloadError) -> Outcome:
        await self.limit.pass_one()
        _log.warning(
            "%s: message %s of topic %s cannot be read (%s): %s",
            self.binding.signature.name,
            message.msg_id,
            message.topic,
            self.on_invalid.value,
            error,
        )
        match self.on_invalid:
            case OnInvalid.SKIP:
                return None
            case OnInvalid.RETRY:
                return error
            case OnInvalid.DEAD_LETTER:
                return Reject(str(error))
