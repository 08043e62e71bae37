"""Whatever can be called is run, and what it returns is awaited; a forgotten await never counts as consumed."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import re
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, create_autospec

import anyio
import pytest

from rocketbox.client import Producer
from rocketbox.client.handler_threads import HandlerThreads
from rocketbox.clock import RealClock
from rocketbox.errors import HandlerError
from rocketbox.hints import makes_coroutine, name_of, place_of
from rocketbox.listeners.arguments import HandlerBinding
from rocketbox.listeners.binding import Beans, read_signature
from rocketbox.listeners.dispatch import HandlerDispatch, Invocation
from rocketbox.listeners.invalid_limit import InvalidLimit
from rocketbox.message import Message, MessageExt, SendResult
from rocketbox.template import JsonMessageConverter, RocketMQTemplate
from tests.support.living_objects import living
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")]

NO_BEANS = Beans(has=lambda hint: False, provider=lambda hint: lambda: None)
seen: list[Any] = []


class Recorder(Producer):
    """A producer without servers: it keeps what it is to send."""

    def __init__(self) -> None:
        super().__init__("desk", name_server="127.0.0.1:1")
        self.sent: list[bytes] = []

    async def send(self, message: Message, **options: Any) -> SendResult:
        await anyio.lowlevel.checkpoint()
        self.sent.append(message.body)
        return None  # type: ignore[return-value]  # nobody looks at it


@pytest.fixture
def template() -> RocketMQTemplate:
    seen.clear()
    return RocketMQTemplate(Recorder())


@pytest.fixture
async def threads() -> AsyncIterator[HandlerThreads]:
    async with HandlerThreads(2, "desk", RealClock()) as threads:
        yield threads


def message(body: str = "a") -> MessageExt:
    fields = (0, 0, 0, 0, 0, 0, 0, 0, 0, b"\x7f\0\0\1", 1, 0, b"\x7f\0\0\1", 1, 0, 0, len(body))
    return MessageExt(fields, body.encode(), "texts", b"", "broker-a")


def dispatch(function: Callable[..., Any], threads: HandlerThreads | None = None, *, replies: bool = False) -> Any:
    converter = JsonMessageConverter()
    signature = read_signature(function, beans=NO_BEANS, converter=converter)

    async def reply(invocation: Invocation, payloads: list[Any]) -> None:
        seen.append((invocation.messages[0].body, payloads))

    return HandlerDispatch(
        group="desk",
        binding=HandlerBinding(signature, NO_BEANS.provider, converter),
        limit=InvalidLimit(1, RealClock(), lambda: None),
        reply=reply if replies else None,
        threads=threads,
    )


async def call(function: Callable[..., Any], threads: HandlerThreads | None = None, *, way: str = "whole") -> Any:
    """The outcomes of one call: of the whole handler, or of one that was prepared for a thread."""
    of = dispatch(function, threads)
    if way == "whole":
        return await of.handle([message()])
    prepared = of.prepare([message()])
    assert threads is not None
    result = await threads.run(prepared)
    return await result if inspect.isawaitable(result) else result


# --- what can be called ----------------------------------------------------------------------------------------------


class AsyncObject:
    async def __call__(self, text: str) -> None:
        await anyio.lowlevel.checkpoint()
        seen.append(text)


class PlainObject:
    def __call__(self, text: str) -> None:
        seen.append(text)


async def coroutine(text: str, *, times: int = 1) -> None:
    await anyio.lowlevel.checkpoint()
    seen.append(text * times)


def returns_a_coroutine(text: str) -> Coroutine[Any, Any, None]:
    return coroutine(text)


def plain(text: str, times: int = 1) -> None:
    seen.append(text * times)


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


def retyped(function: Callable[..., Any]) -> Callable[..., Any]:
    def inner(text: str) -> Any:
        return function(text)

    return inner


KINDS: list[tuple[Callable[..., Any], bool, str, str]] = [
    (coroutine, True, "coroutine", "a"),
    (AsyncObject(), True, "AsyncObject", "a"),
    (partial(coroutine, times=2), True, "coroutine", "aa"),
    (partial(AsyncObject()), True, "AsyncObject", "a"),
    (logged(coroutine), True, "coroutine", "a"),
    (logged(AsyncObject().__call__), True, "AsyncObject.__call__", "a"),
    (retyped(coroutine), False, "retyped.<locals>.inner", "a"),
    (retyped(AsyncObject()), False, "retyped.<locals>.inner", "a"),
    (returns_a_coroutine, False, "returns_a_coroutine", "a"),
    (PlainObject(), False, "PlainObject", "a"),
    (partial(plain, times=2), False, "plain", "aa"),
    (logged(plain), False, "plain", "a"),
]


@pytest.mark.parametrize(("function", "is_async", "name", "value"), KINDS)
async def test_every_kind_of_callable_is_run(
    function: Callable[..., Any], is_async: bool, name: str, value: str, threads: HandlerThreads
) -> None:
    seen.clear()
    assert makes_coroutine(function) is is_async
    assert name_of(function) == name
    assert re.search(r"test_handler_calls_of_every_kind\.py:\d+$", place_of(function))
    assert await call(function, threads) is None
    assert seen == [value]
    if not is_async:
        assert await call(function, threads, way="prepared") is None
        assert seen == [value, value]


async def test_a_future_that_a_decorated_coroutine_function_returns_is_awaited(anyio_backend_name: str) -> None:
    if anyio_backend_name != "asyncio":
        return

    @functools.wraps(coroutine)
    def in_a_task(*args: Any, **kwargs: Any) -> Awaitable[None]:
        return asyncio.ensure_future(coroutine(*args, **kwargs))

    seen.clear()
    assert await call(in_a_task) is None
    assert seen == ["a"]


async def test_what_is_bound_by_a_partial_is_no_parameter(threads: HandlerThreads) -> None:
    def handler(first: str, text: str, desk: dict[str, int]) -> None:
        seen.append((first, text, desk))

    seen.clear()
    assert await call(partial(handler, "bound", desk={"a": 1}), threads) is None
    assert seen == [("bound", "a", {"a": 1})]


async def test_what_a_def_returns_to_be_awaited_is_awaited_before_it_is_sent_on(threads: HandlerThreads) -> None:
    async def later() -> str:
        await anyio.lowlevel.checkpoint()
        return "result"

    def handler(text: str) -> Any:
        return later()

    seen.clear()
    of = dispatch(handler, threads, replies=True)
    assert await of.handle([message()]) is None
    prepared = of.prepare([message()])()
    assert await prepared is None
    assert seen == [(b"a", ["result"])] * 2


# --- a forgotten await -----------------------------------------------------------------------------------------------


def line_of(function: Callable[..., Any], text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    number = first + next(number for number, line in enumerate(lines) if text in line)
    return f"{Path(__file__).relative_to(Path.cwd())}:{number}"


async def test_a_send_that_nobody_awaits_fails_its_message_with_the_place(template: RocketMQTemplate) -> None:
    async def handler(text: str) -> None:
        template.send("alerts", text)  # type: ignore[unused-coroutine]
        await anyio.lowlevel.checkpoint()

    with pytest.raises(HandlerError) as caught:
        await call(handler)
    told = str(caught.value)
    assert f"handler ({place_of(handler)}) did not await RocketMQTemplate.send" in told
    assert line_of(handler, "template.send") in told
    assert told.endswith("write await before it")


@pytest.mark.parametrize("way", ["whole", "prepared"])
async def test_a_def_that_makes_a_send_and_drops_it_fails_too(
    template: RocketMQTemplate, threads: HandlerThreads, way: str
) -> None:
    def handler(text: str) -> None:
        sending = template.send_many("alerts", [text])
        del sending

    with pytest.raises(HandlerError, match=r"did not await RocketMQTemplate\.send_many .*declare it with async def"):
        await call(handler, threads, way=way)


async def test_a_coroutine_that_an_async_handler_returns_fails_its_message(template: RocketMQTemplate) -> None:
    async def handler(text: str) -> Any:
        return template.send("alerts", text)

    async def batch(texts: list[str]) -> Any:
        return [template.send("alerts", text) for text in texts]

    with pytest.raises(HandlerError, match=r"returned RocketMQTemplate\.send without awaiting it: write return await"):
        await call(handler)
    for replies in (True, False):
        with pytest.raises(HandlerError, match=r"batch \(.*returned RocketMQTemplate\.send without awaiting it"):
            await dispatch(batch, replies=replies).handle([message()])


async def test_a_send_in_a_task_that_the_handler_awaits_counts_as_the_handlers(template: RocketMQTemplate) -> None:
    async def forgetful() -> None:
        template.send_one_way("alerts", "x")  # type: ignore[unused-coroutine]

    async def handler(text: str) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(forgetful)

    with pytest.raises(HandlerError, match=r"did not await RocketMQTemplate\.send_one_way"):
        await call(handler)


async def test_sends_that_a_task_holds_and_has_not_begun_are_no_mistake(template: RocketMQTemplate) -> None:
    producer = template.producer
    assert isinstance(producer, Recorder)
    async with anyio.create_task_group() as group:

        async def handler(text: str) -> None:
            group.start_soon(template.send, "alerts", text)

        assert await call(handler) is None
        assert producer.sent == []
    assert producer.sent == [b"a"]


async def test_asyncio_tasks_futures_and_cancelled_ones_are_no_mistake(
    template: RocketMQTemplate, anyio_backend_name: str
) -> None:
    if anyio_backend_name != "asyncio":
        return
    producer, tasks = template.producer, list[Any]()
    assert isinstance(producer, Recorder)

    async def handler(text: str) -> None:
        tasks.append(asyncio.create_task(template.send("alerts", text)))
        cancelled = asyncio.create_task(template.send("alerts", "cancelled before it began"))
        cancelled.cancel()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(template.send("alerts", "no time"), 0)
        template.send("alerts", "closed").close()
        await asyncio.gather(template.send("alerts", "gathered"), return_exceptions=True)

    assert await call(handler) is None
    await asyncio.gather(*tasks)
    assert sorted(producer.sent) == [b"a", b"gathered"]


async def test_a_send_that_is_kept_for_later_is_no_mistake(template: RocketMQTemplate) -> None:
    kept: list[Any] = []

    async def handler(text: str) -> None:
        kept.append(template.send("alerts", text))

    assert await call(handler) is None
    await kept[0]
    assert isinstance(template.producer, Recorder)
    assert template.producer.sent == [b"a"]


async def test_a_def_may_hand_a_send_to_the_loop(
    template: RocketMQTemplate, threads: HandlerThreads, anyio_backend_name: str
) -> None:
    if anyio_backend_name != "asyncio":
        return
    loop = asyncio.get_running_loop()

    def handler(text: str) -> None:
        asyncio.run_coroutine_threadsafe(template.send("alerts", text), loop).result(PATIENCE)
        futures.append(asyncio.run_coroutine_threadsafe(template.send("alerts", "later"), loop))

    futures: list[Any] = []
    for way in ("whole", "prepared"):
        assert await call(handler, threads, way=way) is None
    await asyncio.gather(*map(asyncio.wrap_future, futures))
    assert isinstance(template.producer, Recorder)
    assert sorted(template.producer.sent) == [b"a", b"a", b"later", b"later"]


async def test_a_message_that_failed_anyway_keeps_its_own_reason(template: RocketMQTemplate) -> None:
    async def handler(text: str) -> None:
        template.send("alerts", text)  # type: ignore[unused-coroutine]
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        await call(handler)


async def test_what_a_task_sends_after_the_handler_has_returned_is_not_kept(template: RocketMQTemplate) -> None:
    calls: list[Invocation] = []
    go_on, count = anyio.Event(), 50

    async def later() -> None:
        await go_on.wait()
        for _ in range(count):
            await template.send("alerts", "x")
        template.send("alerts", "dropped")  # type: ignore[unused-coroutine]

    async with anyio.create_task_group() as group:

        async def handler(text: str) -> None:
            group.start_soon(later)

        invocation = dispatch(handler).invocation([message()])
        calls.append(invocation)
        assert await invocation.run() is None
        go_on.set()
    assert isinstance(template.producer, Recorder)
    assert len(template.producer.sent) == count
    assert invocation.made.unbegun is None


async def test_a_handler_that_sends_much_keeps_nothing_of_it(template: RocketMQTemplate) -> None:
    most = 0

    async def handler(text: str) -> None:
        nonlocal most
        for _ in range(100):
            await template.send("alerts", text)
            most = max(most, len(invocation.made.unbegun or ()))

    invocation = dispatch(handler).invocation([message()])
    assert await invocation.run() is None
    assert most == 0


async def test_what_a_call_has_begun_keeps_nothing_of_its_message(template: RocketMQTemplate) -> None:
    go_on = anyio.Event()
    async with anyio.create_task_group() as group:

        async def handler(message: MessageExt) -> None:
            await template.send("alerts", "x")
            group.start_soon(go_on.wait)

        given = message()
        messages = [given]
        assert await dispatch(handler).handle(messages) is None
        holders = [each for each in gc.get_referrers(given) if type(each) in (list, Invocation)]
        assert holders == [messages]
        go_on.set()


async def test_nothing_of_a_call_waits_for_the_garbage_collector(template: RocketMQTemplate) -> None:
    async def handler(text: str) -> None:
        await template.send("alerts", text)

    of = dispatch(handler)
    await of.handle([message()])
    gc.collect()
    gc.disable()
    try:
        before = len(living(Invocation, MessageExt))
        for _ in range(20):
            await of.handle([message()])
        assert len(living(Invocation, MessageExt)) <= before + 1
    finally:
        gc.enable()


def test_mocks_and_web_frameworks_take_the_verbs_for_coroutine_functions() -> None:
    for verb in ("send", "send_one_way", "send_batch", "send_many"):
        assert isinstance(getattr(AsyncMock(spec=RocketMQTemplate), verb), AsyncMock)
        assert inspect.iscoroutinefunction(inspect.unwrap(getattr(RocketMQTemplate, verb)))
        asks = inspect.iscoroutinefunction if sys.version_info >= (3, 14) else asyncio.iscoroutinefunction
        assert asks(getattr(RocketMQTemplate(Recorder()), verb))
        pending = getattr(create_autospec(RocketMQTemplate, instance=True), verb)("a", "b")
        assert inspect.iscoroutine(pending)
        pending.close()


async def test_a_plain_handler_runs_in_a_thread_and_an_object_with_async_call_in_the_loop(
    threads: HandlerThreads,
) -> None:
    ran: list[bool] = []

    class Plain:
        def __call__(self, text: str) -> None:
            ran.append(threading.current_thread() is threading.main_thread())

    class Async:
        async def __call__(self, text: str) -> None:
            ran.append(threading.current_thread() is threading.main_thread())

    for handler in (Plain(), Async()):
        assert await call(handler, threads) is None
    assert ran == [False, True]
