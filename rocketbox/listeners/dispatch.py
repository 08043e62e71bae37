"""One listener's handler: each call of it is one :class:`Invocation`, which binds, calls, judges and replies.

Outcomes are what the push consumer understands: None is consumed, :class:`Reject` dead-lettered,
:class:`RetryLater` brought back after its delay, any other exception brought back by RocketMQ's own retry. What is
raised from here holds for all messages of the call.

Where consume middleware is installed, the invocation is the context that it gets (``context.invocation``).

A handler may be an ``async def``, a ``def`` (which runs in a thread), or anything that is called like one. What it
returns and can be awaited is awaited, once; what can still be awaited then is a forgotten ``await``, and so is a send
that was made and never begun (``template.unawaited``): the messages have failed.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from types import CoroutineType
from typing import Any, Self

from rocketbox.client.handler_threads import HandlerThreads
from rocketbox.client.middleware import ConsumeContext
from rocketbox.client.outcomes import MessageHandler, NotTriedError, Outcome, Outcomes, PreparedCall, signal_in
from rocketbox.errors import BatchFailed, HandlerError, Reject
from rocketbox.hints import name_of
from rocketbox.listeners.arguments import HandlerBinding
from rocketbox.listeners.invalid_limit import InvalidLimit
from rocketbox.listeners.one_time_values import where_an_iterator_lies
from rocketbox.listeners.options import OnInvalid
from rocketbox.listeners.signature import HandlerSignature
from rocketbox.message import ConsumeMode, MessageExt
from rocketbox.protocol.request_reply import asks_for_reply
from rocketbox.safe_repr import one_line
from rocketbox.template import PayloadError
from rocketbox.template.unawaited import Call, current_call, never_begun, not_awaited

__all__ = ["HandlerDispatch", "Invocation"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class HandlerDispatch:
    """What the invocations of one handler share; it makes them.

    ``reply`` sends on what the handler returned (None: it has no ``send_to``); it gets the invocation, for the messages
    that are answered. ``answer`` sends it to who has sent a message as a request; a batch answers nobody.
    """

    group: str
    binding: HandlerBinding
    limit: InvalidLimit
    on_invalid: OnInvalid = OnInvalid.DEAD_LETTER
    consume_mode: ConsumeMode = ConsumeMode.CONCURRENTLY
    reply: Callable[[Invocation, list[Any]], Awaitable[None]] | None = None
    places: int = 1
    """To how many destinations ``reply`` sends."""
    answer: Callable[[MessageExt, Any], Awaitable[None]] | None = None
    threads: HandlerThreads | None = None

    def invocation(self, messages: list[MessageExt]) -> Invocation:
        """A call with these messages, which has not begun."""
        return Invocation(self, messages)

    async def handle(self, messages: list[MessageExt]) -> Outcomes:
        """One outcome for each message, or None when all of them are consumed."""
        return await Invocation(self, messages).run()

    def prepare(self, messages: list[MessageExt]) -> PreparedCall | None:
        """The call for a thread that does what :meth:`handle` does; None where not all payloads can be read."""
        binding = self.binding
        if binding.is_batch:
            arguments, invalid = binding.batch_arguments(messages)
            if invalid:
                return None
        elif len(messages) > 1:
            return None  # each has a call of its own
        else:
            try:
                arguments = binding.arguments(messages[0])
            except PayloadError:
                return None
        invocation = Invocation(self, messages, arguments)
        current_call.set(invocation.made)  # in the context in which it will be called
        return invocation.call

    async def call(self, arguments: list[Any]) -> Any:
        """Call the handler where it belongs, in the loop or in a thread; what it returned is awaited if it can be."""
        if self.binding.is_async:
            result = self.binding.call(arguments)
        else:
            assert self.threads is not None, "a def handler has threads"
            result = await self.threads.run(self.binding.call, arguments)
        return await result if _can_be_awaited(result) else result

    def comes_back(self, error: Exception) -> bool:
        """Whether a message that cannot be read holds up those behind it, where there is an order."""
        return not isinstance(error, PayloadError) or self.on_invalid is OnInvalid.RETRY

    async def invalid(self, message: MessageExt, error: Exception) -> Outcome:
        """What becomes of a message that cannot be read."""
        if not isinstance(error, PayloadError):
            return error  # a validator of the user's raised it: that is an outcome as if the handler had
        if self.on_invalid is OnInvalid.DEAD_LETTER and not await self.limit.pass_one():
            return NotTriedError("too many payloads could not be read (invalid-limit)")
        match self.on_invalid:
            case OnInvalid.SKIP:
                _log.warning(
                    "%s: message %s of topic %s cannot be read (skip): %s",
                    self.binding.signature.name, one_line(message.msg_id), one_line(message.topic), error,
                )  # fmt: skip
                return None
            case OnInvalid.RETRY:  # the consumer logs what fails, once
                return error
            case OnInvalid.DEAD_LETTER:
                return Reject(f"{self.binding.signature.name}: it cannot be read (dead-letter): {error}")


class Invocation(ConsumeContext):
    """One call of a listener: with all messages of a batch, else with one message after another.

    ``arguments`` are the handler's, in the order of its parameters, once they are bound; ``result`` is what it
    returned, once it has. Both are those of the last message where there are several calls. ``skipped`` says of each
    message that could not be read, and was skipped for that (``on_invalid``), why.
    """

    __slots__ = ("_dispatch", "arguments", "made", "result", "skipped")

    def __init__(
        self, dispatch: HandlerDispatch, messages: list[MessageExt], arguments: list[Any] | None = None
    ) -> None:
        self.messages = messages
        self._dispatch = dispatch
        self.arguments = arguments
        self.result: Any = None
        self.skipped: tuple[Exception, ...] = ()
        self.made = made = Call()
        made.unbegun = {}

    @property
    def consumer_group(self) -> str:  # type: ignore[override]  # it is the listener's, and no field of its own
        return self._dispatch.group

    @property
    def invocation(self) -> Self:
        return self

    @property
    def listener(self) -> str:
        """The handler's name."""
        return self._dispatch.binding.signature.name

    @property
    def handler(self) -> Callable[..., Any]:
        """The function itself; of a bean's method the function in its class."""
        return self._dispatch.binding.signature.function

    @property
    def signature(self) -> HandlerSignature:
        """What the handler takes."""
        return self._dispatch.binding.signature

    @property
    def where(self) -> str:
        """``file:line`` of the handler."""
        return self._dispatch.binding.signature.where

    def check_before(self, check: Callable[[], None]) -> None:
        """Have ``check`` called in the handler's place first, with its arguments bound, in its thread if it has one.

        What it raises counts as raised by the handler. Of several the first one is called first. For tools of tests,
        which look at the arguments or let handlers fail.
        """
        self._dispatch = replace(self._dispatch, binding=self._dispatch.binding.with_check(check))

    def pass_to(self, handler: MessageHandler) -> Awaitable[Outcomes]:
        return self.run()

    async def run(self) -> Outcomes:
        """Bind, call and reply: one outcome for each message, or None when all of them are consumed.

        Fast path: a message whose ``async def`` returns None costs this coroutine and the handler's own.
        """
        dispatch, messages = self._dispatch, self.messages
        binding = dispatch.binding
        made = self.made
        if made.unbegun is None:
            made.unbegun = {}  # it is called again
            self.skipped = ()
        current_call.set(made)  # in the context of this call alone
        made.about = self
        try:
            if binding.is_batch:
                return _unless_consumed(await self._run_batch(messages))
            if len(messages) != 1:
                return _unless_consumed(await self._run_each(messages))
            if not binding.is_async:
                outcome = await self._run_one(messages[0])
                return None if outcome is None else [outcome]
            try:
                self.arguments = arguments = binding.arguments(messages[0])
            except PayloadError as error:
                return _unless_consumed([await self._invalid(messages[0], error)])
            handler = binding.positional
            result = handler(*arguments) if handler is not None else binding.call(arguments)
            if type(result) is CoroutineType or _can_be_awaited(result):
                result = await result
            return (
                None
                if result is None and not made.unbegun
                else _unless_consumed([await self._outcome(result, messages[0])])
            )
        finally:
            made.unbegun = made.about = None

    async def _run_each(self, messages: Sequence[MessageExt]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for message in messages:
            outcome = await self._run_one(message)
            if isinstance(outcome, NotTriedError):  # nor are those behind it
                return outcomes + [outcome] * (len(messages) - len(outcomes))
            outcomes.append(outcome)
        return outcomes

    async def _run_one(self, message: MessageExt) -> Outcome:
        try:
            self.arguments = arguments = self._dispatch.binding.arguments(message)
        except PayloadError as error:
            return await self._invalid(message, error)
        return await self._outcome(await self._dispatch.call(arguments), message)

    async def _invalid(self, message: MessageExt, error: Exception) -> Outcome:
        """What becomes of a message that cannot be read."""
        outcome = await self._dispatch.invalid(message, error)
        if outcome is None:
            self.skipped = (*self.skipped, error)
        return outcome

    def call(self) -> Outcomes | Awaitable[Outcomes]:
        """Call a ``def`` handler in a thread, with arguments that were bound in the loop.

        What comes back where it did not just return is to be awaited in the loop.
        """
        arguments, binding = self.arguments, self._dispatch.binding
        assert arguments is not None
        handler = binding.positional
        self.made.about = self
        try:
            result = handler(*arguments) if handler is not None else binding.call(arguments)
        except BaseException:
            self.made.unbegun = self.made.about = None
            raise
        if not self.made.unbegun and (result is None or self._is_dropped(result)):
            self.made.unbegun = self.made.about = None
            return None
        return self._end(result)

    def _is_dropped(self, result: Any) -> bool:
        """Whether nobody looks at what a ``def`` handler returned: nothing is left to do then."""
        dispatch = self._dispatch
        dropped = dispatch.reply is None and not dispatch.binding.is_batch and not self._answers(self.messages[0])
        return dropped and not isinstance(result, Exception | type) and not _can_be_awaited(result)

    async def _end(self, result: Any) -> Outcomes:
        """What is left to do in the loop after a call in a thread."""
        current_call.set(self.made)
        try:
            if _can_be_awaited(result):
                result = await result
            if self._dispatch.binding.is_batch:
                return _unless_consumed(await self._outcomes(result, len(self.messages)))
            return _unless_consumed([await self._outcome(result, self.messages[0])])
        finally:
            self.made.unbegun = self.made.about = None

    # --- batches ------------------------------------------------------------------------------------------------------

    async def _run_batch(self, messages: Sequence[MessageExt]) -> list[Outcome]:
        dispatch = self._dispatch
        arguments, invalid = dispatch.binding.batch_arguments(messages)
        back = [index for index, error in invalid.items() if dispatch.comes_back(error)]
        if back and dispatch.consume_mode is ConsumeMode.ORDERLY:
            # What follows such a message of the queue must not overtake it: only those before it are handled now.
            first = min(back)
            unreadable = await self._invalid(messages[first], invalid[first])
            try:
                before = await self._run_batch(messages[:first]) if first else []
            except Exception as failure:
                before = [failure] * first
            if held := next((each for each in before if isinstance(each, NotTriedError)), None):
                return before + [held] * (len(messages) - first)
            return [*before, unreadable, *(NotTriedError() for _ in messages[first + 1 :])]
        outcomes: list[Outcome] = [None] * len(messages)
        for index, error in invalid.items():
            outcomes[index] = outcome = await self._invalid(messages[index], error)
            if isinstance(outcome, NotTriedError):  # nor is any of the batch
                return [outcome] * len(messages)
        handled = [index for index in range(len(messages)) if index not in invalid]
        if not handled:
            return outcomes
        try:
            returned = await self._call_batch(arguments, len(handled))
        except Exception as error:
            meant, first = signal_in(error), 0
            if isinstance(meant, BatchFailed):  # past the end it says nothing: all come back
                first = meant.index if meant.index < len(handled) else 0
            elif not invalid:
                raise
            for index in handled[first:]:
                outcomes[index] = meant
        else:
            for index, outcome in zip(handled, returned, strict=True):
                outcomes[index] = outcome
        return outcomes

    async def _call_batch(self, arguments: list[Any], count: int) -> Sequence[Outcome]:
        self.arguments = arguments
        return await self._outcomes(await self._dispatch.call(arguments), count)

    # --- outcomes -----------------------------------------------------------------------------------------------------

    def _answers(self, message: MessageExt) -> bool:
        """Whether somebody waits for what is returned of a message."""
        return self._dispatch.answer is not None and asks_for_reply(message.raw_properties)

    async def _outcome(self, result: Any, message: MessageExt) -> Outcome:
        """That of one message whose handler returned result: sent on first, then told to who has asked for it."""
        self._check_awaited(result)
        self.result = result
        if isinstance(result, Exception):  # an outcome that was returned instead of raised
            return result
        if isinstance(result, type) and issubclass(result, BaseException):
            raise HandlerError(f"{self.listener} returned the class {result.__name__}: write {result.__name__}(...)")
        if result is not None:
            replies = self._dispatch.reply is not None
            answers = self._answers(message)
            self._check_writable((self._dispatch.places if replies else 0) + answers, result)
            if self._dispatch.reply is not None:
                await self._dispatch.reply(self, [result])
            if self._dispatch.answer is not None and answers:
                await self._dispatch.answer(message, result)
        return None

    def _check_writable(self, places: int, result: Any) -> None:
        """Raise PayloadError where a value goes to several places and could be written for one of them alone."""
        if places > 1 and (where := where_an_iterator_lies(result)) is not None:
            raise PayloadError(
                f"{self.listener} returned an iterator{f' in {where}' if where else ''}, which can be read once, and "
                f"the value goes to {places} places (@send_to, the answer to a request): return a list; nothing was "
                "sent"
            )

    async def _outcomes(self, result: Any, count: int) -> Sequence[Outcome]:
        """Those of a batch: its result is payloads to send on where it has a ``send_to``, else one outcome each."""
        self._check_awaited(result)
        self.result = result
        if result is None:
            return [None] * count
        if not isinstance(result, list | tuple):
            raise TypeError(
                f"{self.listener} takes a batch and returned {type(result).__name__}; it may return None or a list"
            )
        for each in result:
            self._check_awaited(each)
        if self._dispatch.reply is not None:
            if payloads := [payload for payload in result if payload is not None]:
                self._check_writable(self._dispatch.places, payloads)
                await self._dispatch.reply(self, payloads)
            return [None] * count
        if len(result) != count or not all(outcome is None or isinstance(outcome, Exception) for outcome in result):
            raise TypeError(
                f"{self.listener} got {count} messages and returned a list of {len(result)}; it must hold one outcome "
                "for each: None, Reject(...), RetryLater(...) or another exception"
            )
        return result

    def _check_awaited(self, result: Any) -> None:
        """Raise HandlerError where something that can be awaited was left behind."""
        signature = self._dispatch.binding.signature
        who = f"{signature.name} ({signature.where})"
        if _can_be_awaited(result):
            forgotten = name_of(result)
            if type(result) is CoroutineType:
                result.close()
            raise HandlerError(f"{who} returned {forgotten} without awaiting it: write return await ...")
        if not self.made.unbegun:
            return
        lost = never_begun(self.made)
        self.made.unbegun = {}  # a further message of this call
        if lost:
            raise HandlerError(not_awaited(lost, who, is_async=signature.is_async))


def _can_be_awaited(result: Any) -> bool:
    return type(result) is CoroutineType or (result is not None and inspect.isawaitable(result))


def _unless_consumed(outcomes: Sequence[Outcome]) -> Outcomes:
    """The outcomes; None where all messages are consumed."""
    return outcomes if any(outcome is not None for outcome in outcomes) else None
