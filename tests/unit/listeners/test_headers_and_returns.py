"""Types of headers that no text becomes, and return types that cannot be meant: both are found before the start."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, Protocol, TypedDict

import pytest
from pydantic import BaseModel, BeforeValidator, Json

from rocketbox.errors import ConfigurationError, Finding
from rocketbox.listeners.binding import Beans, read_signature
from rocketbox.listeners.options import OptionLayer
from rocketbox.listeners.registrar import Candidate, ClusterSettings, plan_containers
from rocketbox.listeners.signature import Role
from rocketbox.marks import Header, send_to
from rocketbox.message import MessageExt
from rocketbox.template import JsonMessageConverter

NO_BEANS = Beans(has=lambda hint: False, provider=lambda hint: lambda: None)


class Order(BaseModel):
    number: int


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Number(enum.Enum):
    ONE = 1


@dataclass
class Point:
    x: int


class Row(TypedDict):
    number: int


def with_header(hint: Any) -> Callable[..., Any]:
    def handler(order, value) -> None: ...  # type: ignore[no-untyped-def]

    handler.__annotations__ = {"order": Order, "value": Annotated[hint, Header("h")], "return": None}
    return handler


@pytest.mark.parametrize(
    "hint",
    [
        str, int, float, bool, bytes, Decimal, datetime, date, timedelta, uuid.UUID, Colour, Level, Any, object,
        Literal["a", "b"], str | None, int | None, list[str] | str, Json[list[int]],
        Annotated[list[str], BeforeValidator(lambda text: text.split(","))],
    ],
)  # fmt: skip
def test_a_header_may_be_whatever_some_text_becomes(hint: Any) -> None:
    read_signature(with_header(hint), beans=NO_BEANS, converter=JsonMessageConverter())


@pytest.mark.parametrize(
    "hint",
    [
        dict[str, int], list[str], set[str], tuple[int, ...], Sequence[int], Mapping[str, str], Order, Point, Row,
        list[str] | None, dict[str, int] | list[int], Literal[1, 2], Callable[[], None], type[Order],
    ],
)  # fmt: skip
def test_a_header_of_a_type_that_no_text_becomes_is_refused(hint: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_signature(with_header(hint), beans=NO_BEANS, converter=JsonMessageConverter())
    (finding,) = caught.value.findings
    assert "takes header 'h' in parameter 'value' as a type that no text can become: " in finding.what
    assert finding.fix == "take str, int, float, bool, datetime, timedelta or an Enum"


async def nothing(order: Order) -> None: ...


async def one(order: Order) -> Order:
    return order


async def perhaps(order: Order) -> Order | None: ...


async def unsaid(order: Order):  # type: ignore[no-untyped-def]
    ...


async def unresolvable(order: Order) -> Nobody: ...  # type: ignore[name-defined]  # noqa: F821


async def anything(order: Order) -> Any: ...


async def batch_of_one(orders: list[Order]) -> Order: ...  # type: ignore[empty-body]


async def batch_of_one_or_none(orders: list[Order]) -> Order | None: ...


async def batch(orders: list[Order]) -> list[Order]:
    return orders


async def batch_or_none(orders: list[Order]) -> list[Order | None] | None: ...


async def outcomes(orders: list[Order]) -> Sequence[Exception | None]:
    return []


async def silent_batch(orders: list[Order]) -> None: ...


def optional(message: MessageExt, gate: Annotated[str, Header("gate")] | None) -> None: ...


def as_default(message: MessageExt, gate: str = Header("gate")) -> None: ...  # type: ignore[assignment]


def untyped_default(message: MessageExt, gate=Header("gate")) -> None: ...  # type: ignore[no-untyped-def] # noqa: B008


def without_name(message: MessageExt, gate: Annotated[str, Header] = "A1") -> None: ...


def of_a_batch(messages: list[MessageExt], gates: list[Annotated[str, Header("gate")]]) -> None: ...


def in_a_union(message: MessageExt, gate: str | Annotated[int, Header("gate")]) -> None: ...


def test_a_header_that_may_be_absent_is_a_header_wherever_none_stands() -> None:
    signature = read_signature(optional, beans=NO_BEANS, converter=JsonMessageConverter())
    assert [(each.role, each.header) for each in signature.parameters[1:]] == [(Role.HEADER, "gate")]


@pytest.mark.parametrize(
    ("function", "what", "fix"),
    [
        (as_default, "a Header as its default in parameter 'gate'", "write gate: Annotated[str, Header('gate')]"),
        (untyped_default, "a Header as its default in parameter 'gate'", "write gate: Annotated[str, Header('gate')]"),
        (without_name, "a Header without its name in parameter 'gate'", 'write gate: Annotated[..., Header("name")]'),
        (in_a_union, "a Header inside of its type in parameter 'gate'", "write gate: Annotated[..., Header('gate')]"),
        (
            of_a_batch,
            "a Header inside of its type in parameter 'gates'",
            "take list[MessageExt] and read each message's properties",
        ),
    ],
)
def test_a_header_in_the_wrong_place_is_refused_and_not_given_the_body(
    function: Callable[..., Any], what: str, fix: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_signature(function, beans=NO_BEANS, converter=JsonMessageConverter())
    (finding,) = caught.value.findings
    assert (finding.what, finding.fix) == (f"listener {function.__name__} has {what}", fix)


def later(order: Order) -> Awaitable[Order]: ...  # type: ignore[empty-body]


def later_nothing(order: Order) -> Coroutine[Any, Any, None]: ...  # type: ignore[empty-body]


def iterable(orders: list[Order]) -> Iterable[Order]: ...  # type: ignore[empty-body]


class Asked(Protocol):
    """One that isinstance cannot ask for."""

    number: int


def batch_of_row(orders: list[Order]) -> Row: ...  # type: ignore[empty-body]


def batch_of_asked(orders: list[Order]) -> Asked: ...  # type: ignore[empty-body]


def batch_of_any(orders: list[Order]) -> Any: ...


def batch_of_any_later(orders: list[Order]) -> Awaitable[Any]: ...  # type: ignore[empty-body]


def findings(function: Callable[..., Any], *, sends_on: bool) -> list[Finding]:
    said = OptionLayer({"topic": "orders", "consumer_group": "billing"}, lambda name: "app.py")
    candidate = Candidate(function, said, (send_to("invoices"),) if sends_on else ())
    converter = JsonMessageConverter()
    return plan_containers([candidate], {None: ClusterSettings()}, beans=NO_BEANS, converter=converter)[1]


@pytest.mark.parametrize(
    ("function", "alone", "sends_on"),
    [
        (nothing, None, "returns None, so that nothing is ever sent"),
        (later_nothing, None, "returns None, so that nothing is ever sent"),
        (silent_batch, None, "returns None, so that nothing is ever sent"),
        (batch_of_one, "takes a batch and returns one Order", "takes a batch and returns one Order"),
        (batch_of_one_or_none, "takes a batch and returns one Order", "takes a batch and returns one Order"),
        *((each, None, None) for each in (one, perhaps, unsaid, unresolvable, anything, batch, batch_or_none)),
        *((each, None, None) for each in (outcomes, later, iterable, batch_of_asked, batch_of_any, batch_of_any_later)),
        (batch_of_row, "takes a batch and returns one Row", "takes a batch and returns one Row"),
    ],
)
def test_a_return_type_that_cannot_be_meant_is_refused(
    function: Callable[..., Any], alone: str | None, sends_on: str | None
) -> None:
    for expected, found in ((alone, findings(function, sends_on=False)), (sends_on, findings(function, sends_on=True))):
        assert len(found) == (expected is not None)
        for finding in found:
            assert expected is not None
            assert expected in finding.what
            assert f"listener {function.__name__} " in finding.what
            assert finding.fix
            assert finding.fix.startswith("return ")
            assert "test_headers_and_returns.py" in (finding.where or "")
