"""Middleware: what wraps every send and every call of a handler. Trace, metrics and users' own code stand on it.

    async def middleware(context, call_next):
        ...                                    # before; the context may be changed
        result = await call_next(context)      # the next middleware, and at last the send or the handler
        ...                                    # after; an exception passes through unless it is caught here
        return result

They are handed to the client (``ClientOptions.send_middleware``, ``.consume_middleware``), the outermost first. A chain
is made once; without any there is none, and nothing is called. In an application all beans of the two types are
installed, in the order in which they are declared. Requests and answers themselves, below all this, are seen by an
``RpcHook``.

Source: design of rocketbox; the hooks of Apache RocketMQ 5.x are ``SendMessageHook``, ``ConsumeMessageHook``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from rocketbox.client.outcomes import MessageHandler, Outcomes
from rocketbox.client.queue_choice import QueueTarget
from rocketbox.errors import ClientError, HandlerError
from rocketbox.message import LocalTransactionState, Message, MessageExt, SendResult

__all__ = [
    "ConsumeContext",
    "ConsumeMiddleware",
    "ConsumeNext",
    "ContextOf",
    "EndingTransaction",
    "SendContext",
    "SendMiddleware",
    "SendNext",
    "chain",
    "result_of",
    "wrap_handler",
]


class EndingTransaction(Protocol):
    """The transaction that a half message is sent in."""

    @property
    def from_check(self) -> bool:
        """Whether its broker is told its end because it has asked; while ``told`` is called, of that end."""

    def on_end(self, told: Callable[[LocalTransactionState], object]) -> None:
        """Have ``told`` called with how it has ended, when its broker is told: UNKNOWN may be followed by another."""


@dataclass(slots=True)
class SendContext:
    """One send: of one message, or of a batch in one request. Of ``send_many`` each message is a send.

    A ``send_batch`` that takes several requests is several sends. ``transaction``: the message is the half message of
    one, which nobody gets before it is committed. ``msg_ids`` are those of the messages, once all middlewares have
    passed them on: they tell what was sent also where no result does, of one-way sends and of those that fail.
    """

    producer_group: str
    messages: Sequence[Message]
    timeout: float
    retries: int
    queue: QueueTarget | None = None
    one_way: bool = False
    batch: bool = False
    transaction: EndingTransaction | None = None
    msg_ids: tuple[str, ...] = ()


@dataclass(slots=True)
class ConsumeContext:
    """One call of a handler with messages of one topic."""

    consumer_group: str
    messages: list[MessageExt]

    @property
    def invocation(self) -> Any:
        """The call itself where a listener runs (``rocketbox.listeners.Invocation``); None for any other handler."""
        return None

    def pass_to(self, handler: MessageHandler) -> Awaitable[Outcomes]:
        """Have the messages handled: what the end of the chain does."""
        return handler(self.messages)


SendNext = Callable[[SendContext], Awaitable[SendResult | None]]
"""Sends; the result is None for one-way sends alone."""

ConsumeNext = Callable[[ConsumeContext], Awaitable[Outcomes]]
"""Calls the handler; what it returns or raises is the outcome of the messages (``outcomes``)."""


class SendMiddleware(Protocol):
    """Wraps sends: an ``async def``, or an object with an ``async`` ``__call__``; a bean of this type is installed."""

    def __call__(self, context: SendContext, call_next: SendNext, /) -> Awaitable[SendResult | None]: ...


class ConsumeMiddleware(Protocol):
    """Wraps calls of handlers: an ``async def``, or an object with an ``async`` ``__call__``; a bean of this type is
    installed."""

    def __call__(self, context: ConsumeContext, call_next: ConsumeNext, /) -> Awaitable[Outcomes]: ...


ContextOf = Callable[[list[MessageExt]], ConsumeContext]
"""Makes the context of a call with these messages."""

ContextT = TypeVar("ContextT")
ResultT = TypeVar("ResultT")


def chain(
    middlewares: Sequence[Callable[[ContextT, Callable[[ContextT], Awaitable[ResultT]]], Awaitable[ResultT]]],
    last: Callable[[ContextT], Awaitable[ResultT]],
) -> Callable[[ContextT], Awaitable[ResultT]]:
    """A function that goes through all middlewares, the first one outermost, to last."""
    for middleware in reversed(middlewares):
        last = _around(middleware, last)
    return last


def _around(
    middleware: Callable[[ContextT, Callable[[ContextT], Awaitable[ResultT]]], Awaitable[ResultT]],
    call_next: Callable[[ContextT], Awaitable[ResultT]],
) -> Callable[[ContextT], Awaitable[ResultT]]:
    return lambda context: middleware(context, call_next)


def result_of(result: SendResult | None) -> SendResult:
    """The result of a send that has one, for it was not one-way. Raises ClientError where a middleware lost it."""
    if not isinstance(result, SendResult):
        raise ClientError(f"a middleware returned {result!r} for a send; it must return what call_next returned")
    return result


def _that_returns(middleware: ConsumeMiddleware) -> ConsumeMiddleware:
    """A middleware whose None does not pass for "all consumed" where it was told that messages failed."""

    name = getattr(middleware, "__qualname__", type(middleware).__qualname__)

    async def checked(context: ConsumeContext, call_next: ConsumeNext) -> Outcomes:
        told: Outcomes = None

        async def tell(context: ConsumeContext) -> Outcomes:
            nonlocal told
            told = await call_next(context)
            return told

        outcomes = await middleware(context, tell)
        if outcomes is None and told is not None:
            raise HandlerError(
                f"middleware {name} returned None, and {len(told)} messages had outcomes that are lost "
                "so: write return await call_next(context); to have them consumed all the same, return a list of None"
            )
        return outcomes

    return checked


def wrap_handler(
    group: str,
    middlewares: Sequence[ConsumeMiddleware],
    handler: MessageHandler,
    context_of: ContextOf | None = None,
) -> MessageHandler:
    """The handler with the middlewares around it; itself when there are none.

    A middleware that drops what ``call_next`` returned would have failed messages consumed: that is an error.

    ``context_of`` makes the contexts, of who has calls of its own: they are what is called then, not the handler.
    """
    if not middlewares:
        return handler
    checked = [_that_returns(middleware) for middleware in middlewares]
    around = chain(checked, lambda context: context.pass_to(handler))
    make: ContextOf = context_of or partial(ConsumeContext, group)
    return lambda messages: around(make(messages))
