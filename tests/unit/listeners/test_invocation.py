"""One invocation: what middleware sees of a listener's call, and what it may change."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rocketbox.client import ConsumeContext, ConsumeMiddleware, ConsumeNext
from rocketbox.client.middleware import wrap_handler
from rocketbox.client.outcomes import MessageHandler, NotTriedError
from rocketbox.clock import RealClock
from rocketbox.errors import Reject, RetryLater
from rocketbox.hints import place_of
from rocketbox.listeners import Beans, Invocation
from rocketbox.listeners.arguments import HandlerBinding
from rocketbox.listeners.binding import read_signature
from rocketbox.listeners.dispatch import HandlerDispatch
from rocketbox.listeners.invalid_limit import InvalidLimit
from rocketbox.listeners.options import OnInvalid
from rocketbox.message import MessageExt
from rocketbox.template import JsonMessageConverter

pytestmark = pytest.mark.anyio

NO_BEANS = Beans(has=lambda hint: False, provider=lambda hint: lambda: None)


def message(body: str) -> MessageExt:
    fields = (0, 0, 0, 0, 0, 0, 0, 0, 0, b"\x7f\0\0\1", 1, 0, b"\x7f\0\0\1", 1, 0, 0, len(body))
    return MessageExt(fields, body.encode(), "texts", b"", "broker-a")


def dispatch(function: Callable[..., Any], **options: Any) -> HandlerDispatch:
    converter = JsonMessageConverter()
    binding = HandlerBinding(
        read_signature(function, beans=NO_BEANS, converter=converter), NO_BEANS.provider, converter
    )
    limit = options.pop("limit", InvalidLimit(1, RealClock(), lambda: None))
    return HandlerDispatch(group="desk", binding=binding, limit=limit, **options)


def around(of: HandlerDispatch, *middlewares: ConsumeMiddleware) -> MessageHandler:
    return wrap_handler("desk", middlewares, of.handle, of.invocation)


async def test_a_middleware_sees_the_invocation_before_and_after_the_call() -> None:
    seen: list[Any] = []

    async def handler(text: str, message: MessageExt) -> str:
        seen.append("called")
        return text.upper()

    async def looking(context: ConsumeContext, call_next: ConsumeNext) -> Any:
        invocation = context.invocation
        assert invocation is context
        assert isinstance(invocation, Invocation)
        seen.append((invocation.listener, invocation.where, invocation.arguments, invocation.result))
        outcomes = await call_next(context)
        assert invocation.arguments is not None
        seen.append((context.consumer_group, invocation.arguments[0], invocation.result, outcomes))
        return outcomes

    assert await around(dispatch(handler), looking)([message("a")]) is None
    name = handler.__qualname__
    assert seen == [(name, place_of(handler), None, None), "called", ("desk", "a", "A", None)]


async def test_a_handler_of_a_bare_consumer_has_no_invocation() -> None:
    async def handler(messages: list[MessageExt]) -> None: ...

    async def looking(context: ConsumeContext, call_next: ConsumeNext) -> Any:
        assert context.invocation is None
        return await call_next(context)

    assert await wrap_handler("desk", [looking], handler)([message("a")]) is None


async def test_a_middleware_may_have_another_context_or_other_messages_handled() -> None:
    seen: list[Sequence[str]] = []

    async def handler(texts: list[str]) -> None:
        seen.append(texts)

    async def without_the_first(context: ConsumeContext, call_next: ConsumeNext) -> Any:
        context.messages = context.messages[1:]
        return await call_next(context)

    async def another(context: ConsumeContext, call_next: ConsumeNext) -> Any:
        return await call_next(ConsumeContext(context.consumer_group, [message("x"), *context.messages]))

    both = [message("a"), message("b")]
    assert await around(dispatch(handler), without_the_first)(both) is None
    assert await around(dispatch(handler), another)(both) is None
    assert seen == [["b"], ["x", "a", "b"]]


async def test_a_policy_may_judge_what_a_handler_raised_and_call_it_again() -> None:
    tries: list[str] = []

    async def handler(text: str) -> None:
        tries.append(text)
        if text == "slow":
            raise ConnectionError("no answer")
        if len(tries) < 3:
            raise ValueError("not yet")

    async def policy(context: ConsumeContext, call_next: ConsumeNext) -> Any:
        for _ in range(3):
            try:
                return await call_next(context)
            except ValueError:
                continue
            except ConnectionError as error:
                raise RetryLater("30s") from error
        raise Reject("three times")

    assert await around(dispatch(handler), policy)([message("a")]) is None
    assert tries == ["a", "a", "a"]
    with pytest.raises(RetryLater):
        await around(dispatch(handler), policy)([message("slow")])


async def test_what_replies_gets_the_invocation_and_so_the_messages_that_are_answered() -> None:
    seen: list[Any] = []

    async def handler(text: str) -> str:
        return text.upper()

    async def reply(invocation: Invocation, payloads: list[Any]) -> None:
        seen.append((invocation.messages[0].body, payloads))

    assert await dispatch(handler, reply=reply).handle([message("a")]) is None
    assert seen == [(b"a", ["A"])]


@pytest.mark.parametrize(
    ("on_invalid", "held"), [(OnInvalid.SKIP, False), (OnInvalid.RETRY, False), (OnInvalid.DEAD_LETTER, True)]
)
async def test_the_invalid_limit_guards_dead_lettering_alone(
    on_invalid: OnInvalid, held: bool, caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[bool] = []

    async def handler(row: dict[str, int]) -> None: ...

    limit = InvalidLimit(3, RealClock(), lambda: closed.append(True))
    of = dispatch(handler, on_invalid=on_invalid, limit=limit)
    if held:
        limit.abandon()  # what is held goes back at once
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            await of.handle([message("{")])
        assert closed == []
        outcomes = await of.handle([message("{")]) or [None]
        assert isinstance(outcomes[0], NotTriedError) is held
    assert closed == ([True] if held else [])


@pytest.mark.parametrize("way", ["async def", "def"])
async def test_a_call_without_middleware_takes_few_steps(way: str) -> None:
    """Counted, for time says little here: functions of Python that one message goes through, the handler among them."""

    async def in_the_loop(text: str) -> None: ...

    def in_a_thread(text: str) -> None: ...

    messages = [message("a")]
    in_loop, in_thread = dispatch(in_the_loop), dispatch(in_a_thread)

    def call() -> None:
        if way == "async def":
            with contextlib.suppress(StopIteration):
                in_loop.handle(messages).send(None)
        else:
            prepared = in_thread.prepare(messages)
            assert prepared is not None
            assert prepared() is None

    steps: list[str] = []

    def count(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            steps.append(frame.f_code.co_qualname)

    call()  # what is made once is made
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(before)
    own = [each for each in steps if each.startswith(("Handler", "Invocation", "_"))]
    assert len(own) <= 6, own
