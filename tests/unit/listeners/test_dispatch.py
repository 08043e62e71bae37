"""What a handler does, as outcomes; invalid payloads and their limit; results that are sent on."""

from __future__ import annotations

import inspect
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import anyio
import pytest
from pydantic import BaseModel, field_validator

from rocketbox.client.handler_threads import HandlerThreads
from rocketbox.client.outcomes import failures_of_result
from rocketbox.clock import RealClock
from rocketbox.errors import BatchFailed, HandlerError, Reject, RetryLater
from rocketbox.listeners.arguments import HandlerBinding
from rocketbox.listeners.binding import Beans, read_signature
from rocketbox.listeners.dispatch import HandlerDispatch, Invocation
from rocketbox.listeners.invalid_limit import InvalidLimit
from rocketbox.listeners.options import OnInvalid
from rocketbox.message import ConsumeMode, MessageExt, encode_properties
from rocketbox.template import CodecMessageConverter, JsonMessageConverter, MessageConverter, PayloadError
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.anyio


class Departure(BaseModel):
    row: int


class SteppedClock(RealClock):
    """A clock that stands still until it is moved."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def message(body: bytes) -> MessageExt:
    fields = (0, 0, 0, 0, 0, 0, 0, 0, 0, b"\x7f\0\0\1", 1, 0, b"\x7f\0\0\1", 1, 0, 0, len(body))
    return MessageExt(fields, body, "departures", b"", "broker-a")


class Checked(BaseModel):
    raises: ClassVar[Exception]
    row: int

    @field_validator("row")
    @classmethod
    def check(cls, row: int) -> int:
        if row == 13:
            raise cls.raises
        return row


def rows(*numbers: int | None) -> list[MessageExt]:
    """One message for each number; None is a body that cannot be read."""
    return [message(b"{" if number is None else b'{"row":%d}' % number) for number in numbers]


def never_closed() -> None:
    raise AssertionError("the limit closed")


def dispatch(
    function: Callable[..., Any],
    *,
    limit: InvalidLimit | None = None,
    on_invalid: OnInvalid = OnInvalid.DEAD_LETTER,
    consume_mode: ConsumeMode = ConsumeMode.CONCURRENTLY,
    sent: list[Any] | None = None,
    threads: HandlerThreads | None = None,
    converter: MessageConverter | None = None,
) -> HandlerDispatch:
    converter = converter or JsonMessageConverter()
    beans = Beans(has=lambda hint: False, provider=lambda hint: lambda: None)
    binding = HandlerBinding(read_signature(function, beans=beans, converter=converter), beans.provider, converter)

    async def reply(invocation: Invocation, payloads: list[Any]) -> None:
        assert sent is not None
        sent.append(payloads)

    return HandlerDispatch(
        group="desk",
        binding=binding,
        limit=limit or InvalidLimit(100, RealClock(), never_closed),
        on_invalid=on_invalid,
        consume_mode=consume_mode,
        reply=None if sent is None else reply,
        threads=threads,
    )


def kinds(outcomes: Sequence[Exception | None] | None) -> list[str] | None:
    return None if outcomes is None else [type(outcome).__name__ for outcome in outcomes]


async def test_a_handler_that_returns_has_consumed() -> None:
    seen = []

    async def handler(departure: Departure) -> str:
        seen.append(departure.row)
        return "ignored: there is no send_to"

    assert await dispatch(handler).handle(rows(1)) is None
    assert seen == [1]


NAMING = b"""{"row": 1, "__class__": "antigravity.Thing", "@type": "antigravity.Thing", "@class": "antigravity.Thing",
"__module__": "antigravity", "py/object": "antigravity.Thing", "$type": "antigravity.Thing, antigravity",
"__reduce__": ["antigravity.Thing", []], "!!python/object": "antigravity.Thing", "__dict__": {"row": 2}}"""
NAMES_IN_HEADERS = {
    "__TypeId__": "antigravity.Thing",
    "__class__": "antigravity.Thing",
    "@type": "antigravity.Thing",
    "contentType": "application/x-java-serialized-object;type=antigravity.Thing",
    "content-type": "application/python-pickle",
}


async def test_a_message_that_names_a_class_makes_nothing_but_what_the_handler_declares() -> None:
    """A module of Python's own, which says so when it is imported, stands for what somebody would like to run."""
    seen: list[Any] = []

    async def model(departure: Departure) -> None:
        seen.append(departure)

    async def mapping(departure: dict[str, Any]) -> None:
        seen.append(departure)

    async def text(departure: str) -> None:
        seen.append(departure)

    raw = encode_properties(NAMES_IN_HEADERS)
    fields = (0, 0, 0, 0, 0, 0, 0, 0, 0, b"\x7f\0\0\1", 1, 0, b"\x7f\0\0\1", 1, 0, 0, len(NAMING))
    naming = MessageExt(fields, NAMING, "departures", raw, "broker-a")
    assert naming.properties["__TypeId__"] == "antigravity.Thing"
    for converter in (JsonMessageConverter(), CodecMessageConverter()):
        for handler in (model, mapping, text):
            assert await dispatch(handler, converter=converter).handle([naming]) is None
    assert [type(each) for each in seen] == [Departure, dict, str] * 2
    assert [vars(each) for each in seen[::3]] == [{"row": 1}] * 2
    assert seen[1] == seen[4] == json.loads(NAMING)
    assert seen[2] == seen[5] == NAMING.decode()
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("error", [Reject("no"), RetryLater(timedelta(seconds=5)), ValueError("x")])
async def test_what_a_handler_raises_is_the_outcome_of_its_message(error: Exception) -> None:
    async def handler(departure: Departure) -> None:
        raise error

    with pytest.raises(type(error)):
        await dispatch(handler).handle(rows(1))


async def test_an_outcome_may_be_returned_instead_of_raised() -> None:
    async def handler(departure: Departure) -> Reject | None:
        return Reject("no") if departure.row else None

    assert kinds(await dispatch(handler).handle(rows(1))) == ["Reject"]
    assert await dispatch(handler).handle(rows(0)) is None


@pytest.mark.parametrize("way", ["async", "def", "prepared"])
async def test_the_class_of_an_outcome_is_none(way: str) -> None:
    async def handler(departure: Departure) -> type[Reject]:
        return Reject

    def blocking(departure: Departure) -> type[Reject]:
        return Reject

    async with HandlerThreads(1, "desk", RealClock()) as pool:
        of = dispatch(handler if way == "async" else blocking, threads=pool)
        outcomes: Any = of.handle(rows(1))
        if way == "prepared":
            outcomes.close()
            prepared = of.prepare(rows(1))
            assert prepared is not None
            outcomes = prepared()
        with pytest.raises(HandlerError, match=r"returned the class Reject: write Reject\(\.\.\.\)"):
            await outcomes


async def test_a_def_handler_runs_in_a_thread_of_the_pool() -> None:
    threads = []

    def handler(departures: list[Departure]) -> None:
        threads.append(threading.current_thread().name)

    async with HandlerThreads(1, "desk", RealClock()) as pool:
        assert await dispatch(handler, threads=pool).handle(rows(1, 2)) is None
    assert threads == ["desk-0"]


@pytest.mark.parametrize(
    ("on_invalid", "outcome"),
    [(OnInvalid.DEAD_LETTER, "Reject"), (OnInvalid.RETRY, "PayloadError"), (OnInvalid.SKIP, "NoneType")],
)
async def test_an_invalid_payload_never_reaches_the_handler(on_invalid: OnInvalid, outcome: str) -> None:
    seen = []

    async def handler(departure: Departure) -> None:
        seen.append(departure.row)

    async def batch(departures: list[Departure]) -> None:
        seen.extend(departure.row for departure in departures)

    single = await dispatch(handler, on_invalid=on_invalid).handle(rows(None))
    assert (kinds(single) or ["NoneType"]) == [outcome]
    several = await dispatch(batch, on_invalid=on_invalid).handle(rows(1, None, 3))
    assert (kinds(several) or ["NoneType"] * 3) == ["NoneType", outcome, "NoneType"]
    assert seen == [1, 3]


async def test_nothing_overtakes_an_invalid_message_of_an_orderly_queue_that_is_retried() -> None:
    seen: list[int] = []

    async def batch(departures: list[Departure]) -> None:
        seen.extend(departure.row for departure in departures)

    orderly = dispatch(batch, on_invalid=OnInvalid.RETRY, consume_mode=ConsumeMode.ORDERLY)
    outcomes = await orderly.handle(rows(1, 2, None, 4))
    assert kinds(outcomes) == ["NoneType", "NoneType", "PayloadError", "NotTriedError"]
    assert seen == [1, 2]
    assert kinds(await orderly.handle(rows(None, 4))) == ["PayloadError", "NotTriedError"]
    assert seen == [1, 2]


async def test_what_an_orderly_batch_that_fails_did_not_get_counts_as_not_tried() -> None:
    async def batch(departures: list[Departure]) -> None:
        raise ValueError("no seat is free")

    orderly = dispatch(batch, on_invalid=OnInvalid.RETRY, consume_mode=ConsumeMode.ORDERLY)
    assert kinds(await orderly.handle(rows(1, None, 4))) == ["ValueError", "PayloadError", "NotTriedError"]


async def test_the_signal_of_a_task_group_counts_before_an_invalid_message_of_an_orderly_batch() -> None:
    async def batch(departures: list[Departure]) -> None:
        raise ExceptionGroup("unhandled errors in a TaskGroup", [Reject("no seat")])

    orderly = dispatch(batch, on_invalid=OnInvalid.RETRY, consume_mode=ConsumeMode.ORDERLY)
    outcomes = await orderly.handle(messages := rows(1, None, 4))
    assert [type(error).__name__ for _, error in failures_of_result(messages, outcomes)] == [
        "Reject", "PayloadError", "NotTriedError",
    ]  # fmt: skip


@pytest.mark.parametrize("error", [KeyError("gates"), Reject("row 13")])
async def test_what_a_validator_raises_concerns_its_message_alone(error: Exception) -> None:
    Checked.raises = error
    seen: list[int] = []

    async def batch(checked: list[Checked]) -> None:
        seen.extend(each.row for each in checked)

    kind = type(error).__name__
    assert kinds(await dispatch(batch).handle(rows(12, 13, 14))) == ["NoneType", kind, "NoneType"]
    assert seen == [12, 14]
    orderly = dispatch(batch, consume_mode=ConsumeMode.ORDERLY)
    assert kinds(await orderly.handle(rows(12, 13, 14))) == ["NoneType", kind, "NotTriedError"]
    assert seen == [12, 14, 12]


async def test_a_batch_that_failed_within_a_task_group_counts_the_messages_that_the_handler_saw() -> None:
    async def fail() -> None:
        raise BatchFailed(1)

    async def handle(departures: list[Departure]) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail)

    bodies = (b"{}", b'{"row": 1}', b'{"row": 2}', b'{"row": 3}')
    outcomes = await dispatch(handle).handle([message(body) for body in bodies])
    assert outcomes is not None
    assert [type(each).__name__ for each in outcomes] == ["Reject", "NoneType", "BatchFailed", "BatchFailed"]


async def test_a_failed_batch_counts_the_messages_that_the_handler_saw() -> None:
    async def batch(departures: list[Departure]) -> None:
        raise BatchFailed(1)  # the second that can be read

    outcomes = await dispatch(batch).handle(rows(1, None, 3, 4))
    assert kinds(outcomes) == ["NoneType", "Reject", "BatchFailed", "BatchFailed"]


@pytest.mark.parametrize("index", [2, 3])
async def test_a_batch_that_failed_past_its_end_consumes_nothing(index: int) -> None:
    async def batch(departures: list[Departure]) -> None:
        raise BatchFailed(index)  # as when a handler counts from 1

    for numbers, expected in [((1, 2), ["BatchFailed"] * 2), ((None, 1, 2), ["Reject", "BatchFailed", "BatchFailed"])]:
        assert kinds(await dispatch(batch).handle(rows(*numbers))) == expected


async def test_an_exception_brings_back_the_messages_that_the_handler_saw_and_no_invalid_one() -> None:
    async def batch(departures: list[Departure]) -> None:
        raise ValueError("broken")

    assert kinds(await dispatch(batch).handle(rows(None, 2))) == ["Reject", "ValueError"]


async def test_a_batch_may_return_one_outcome_for_each_message() -> None:
    async def batch(departures: list[Departure]) -> list[Exception | None]:
        return [None, RetryLater(5), Reject("no")]

    assert kinds(await dispatch(batch).handle(rows(1, 2, 3))) == ["NoneType", "RetryLater", "Reject"]


@pytest.mark.parametrize("returned", [[None], ["a", "b"], 7])
async def test_a_batch_that_returns_something_else_has_failed(returned: Any) -> None:
    async def batch(departures: list[Departure]) -> Any:
        return returned

    with pytest.raises(TypeError, match="returned"):
        await dispatch(batch).handle(rows(1, 2))


async def test_what_a_handler_returns_is_sent_on_and_none_sends_nothing() -> None:
    sent: list[Any] = []

    async def handler(departure: Departure) -> str | None:
        return f"alert {departure.row}" if departure.row > 1 else None

    async def batch(departures: list[Departure]) -> list[str | None]:
        return [f"alert {departure.row}" if departure.row > 1 else None for departure in departures]

    for number in (1, 2):
        assert await dispatch(handler, sent=sent).handle(rows(number)) is None
    assert await dispatch(batch, sent=sent).handle(rows(1, 2, 3)) is None
    assert await dispatch(batch, sent=sent).handle(rows(1)) is None
    assert sent == [["alert 2"], ["alert 2", "alert 3"]]


async def test_a_failed_send_is_a_failed_handler() -> None:
    async def handler(departure: Departure) -> str:
        return "alert"

    async def broken(invocation: Invocation, payloads: list[Any]) -> None:
        raise ConnectionError("no broker")

    failing = dispatch(handler, sent=[])
    failing = HandlerDispatch(group="desk", binding=failing.binding, limit=failing.limit, reply=broken)
    with pytest.raises(ConnectionError):
        await failing.handle(rows(1))


async def test_above_the_limit_invalid_messages_are_held_until_the_container_goes_on() -> None:
    closings: list[float] = []
    clock = SteppedClock()
    limit = InvalidLimit(2, clock, lambda: closings.append(clock.now))

    async def handler(departure: Departure) -> None: ...

    limited = dispatch(handler, limit=limit)
    outcomes: list[Any] = []

    async def handle() -> None:
        outcomes.append(await limited.handle(rows(None)))

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(handle)
        await anyio.wait_all_tasks_blocked()
        assert (len(outcomes), closings, limit.closed) == (2, [0.0], True)
        assert await limited.handle(rows(7)) is None  # what can be read goes on
        limit.open()
        await anyio.wait_all_tasks_blocked()
        assert (len(outcomes), closings, limit.closed) == (4, [0.0], False)


async def test_the_limit_counts_one_minute() -> None:
    clock = SteppedClock()
    limit = InvalidLimit(1, clock, never_closed)
    for minute in range(3):
        clock.now = minute * 60.0
        assert await limit.pass_one()
    assert not limit.closed


@pytest.mark.parametrize("mode", ConsumeMode)
async def test_a_call_that_is_held_when_the_container_stops_begins_with_nothing_more(mode: ConsumeMode) -> None:
    """What it has done is done; nothing else of it counts as an attempt."""
    limit = InvalidLimit(1, SteppedClock(), lambda: None)
    handled: list[object] = []

    async def one(departure: Departure) -> None:
        handled.append(departure.row)

    async def batch(departures: list[Departure]) -> None:
        handled.append([each.row for each in departures])

    outcomes: list[list[str]] = []

    async def handle(handler: Callable[..., Any]) -> None:
        found = await dispatch(handler, limit=limit, consume_mode=mode).handle(rows(1, None, 2, None, 3))
        outcomes.append([type(each).__name__ for each in found or ()])

    async with anyio.create_task_group() as group:
        group.start_soon(handle, one)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(handle, batch)
        await anyio.wait_all_tasks_blocked()
        assert outcomes == []
        limit.abandon()
    untried = "NotTriedError"
    assert sorted(outcomes) == [["NoneType", "Reject", "NoneType", untried, untried], [untried] * 5]
    assert handled == [1, 2]


async def test_what_is_held_can_go_back_while_the_container_goes_on() -> None:
    clock = SteppedClock()
    held: list[str] = []

    @contextmanager
    def holding() -> Iterator[None]:
        held.append("one")
        try:
            yield
        finally:
            held.remove("one")

    limit = InvalidLimit(1, clock, lambda: None, holding)
    outcomes: list[str] = []

    async def pass_one() -> None:
        outcomes.append("passed" if await limit.pass_one() else "back")

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(pass_one)
        await anyio.wait_all_tasks_blocked()
        assert (outcomes, len(held)) == (["passed"], 2)
        limit.give_back()
        await anyio.wait_all_tasks_blocked()
        assert (outcomes, held, limit.closed) == (["passed", "back", "back"], [], True)
        group.start_soon(pass_one)
        await anyio.wait_all_tasks_blocked()
        assert len(held) == 1
        limit.open()
    assert outcomes[3:] == ["passed"]


async def test_nothing_is_held_once_the_container_stops() -> None:
    limit = InvalidLimit(0, SteppedClock(), lambda: None)
    limit.abandon()
    with anyio.fail_after(PATIENCE):
        assert not await limit.pass_one()


async def test_the_reason_of_an_invalid_payload_travels_with_its_rejection() -> None:
    async def handler(departure: Departure) -> None: ...

    outcomes = await dispatch(handler).handle([message(b'{"row":"x"}')])
    assert outcomes is not None
    assert "row: Input should be a valid integer" in str(outcomes[0])
    retried = await dispatch(handler, on_invalid=OnInvalid.RETRY).handle([message(b"{}")])
    assert retried is not None
    assert isinstance(retried[0], PayloadError)


async def test_a_prepared_call_of_a_def_means_the_same_as_the_whole_handler() -> None:
    def one(departure: Departure) -> Any:
        if departure.row == 1:
            raise RetryLater(timedelta(seconds=10))
        return {2: Reject("no"), 3: "a result"}.get(departure.row)

    def batch(departures: list[Departure]) -> Any:
        match departures[0].row:
            case 1:
                raise BatchFailed(1, "the second")
            case 2:
                return [None, Reject("no")]
            case 3:
                return "not a list"
            case 4:
                return [None]
        return None

    async def outcome(call: Callable[[], Any]) -> list[str] | str | None:
        try:
            result = call()
            named = kinds(await result if inspect.isawaitable(result) else result)
            return None if named is None or set(named) == {"NoneType"} else named  # both say that all are consumed
        except Exception as error:
            return type(error).__name__

    for function, of in ((one, rows), (batch, lambda row: rows(row, 9))):
        sent, sent_before = list[Any](), list[Any]()
        async with HandlerThreads(1, "desk", RealClock()) as pool:
            for number in range(5):
                messages = of(number)
                for replies in (None, sent):
                    prepared = dispatch(function, sent=replies).prepare(messages)
                    assert prepared is not None
                    whole = dispatch(function, sent=None if replies is None else sent_before, threads=pool)
                    before = await outcome(partial(whole.handle, messages))
                    if function is batch and number == 1:
                        assert (before, await outcome(prepared)) == (["NoneType", "BatchFailed"], "BatchFailed")
                    else:
                        assert await outcome(prepared) == before
        assert repr(sent) == repr(sent_before)
    assert dispatch(one).prepare(rows(None)) is None
    assert dispatch(batch).prepare(rows(1, None)) is None
