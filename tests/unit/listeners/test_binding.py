"""Binding by type: each kind of parameter, and each mistake with its text. (Hints here are text: see the import.)"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar

import pytest
from pydantic import BaseModel
from typing_extensions import TypeAliasType

from rocketbox.errors import ConfigurationError, Finding
from rocketbox.listeners.arguments import HandlerBinding
from rocketbox.listeners.binding import Beans, read_signature
from rocketbox.listeners.signature import HandlerSignature, Role
from rocketbox.marks import Header
from rocketbox.message import Message, MessageExt, encode_properties
from rocketbox.template import JsonMessageConverter, PayloadError, RocketMQTemplate

if TYPE_CHECKING:
    from decimal import Decimal


class Departure(BaseModel):
    flight: str


class Arrival(BaseModel):
    airport: str


@dataclasses.dataclass
class Gate:
    name: str


class Seat(TypedDict):
    row: int


class Desk:
    """An ordinary class, a bean."""


class DeskProperties(BaseModel):
    threshold: int = 60


CONVERTER = JsonMessageConverter()
DESK, PROPERTIES = Desk(), DeskProperties()
OBJECTS: dict[Any, Any] = {Desk: DESK, DeskProperties: PROPERTIES, RocketMQTemplate: object()}
BEANS = Beans(has=lambda hint: hint in OBJECTS, provider=lambda hint: functools.partial(OBJECTS.__getitem__, hint))


def message(body: bytes = b'{"flight":"UA1"}', **properties: str) -> MessageExt:
    fields = (0, 0, 0, 3, 7, 41, 0, 0, 0, b"\x7f\0\0\1", 1, 0, b"\x7f\0\0\1", 1, 0, 0, len(body))
    return MessageExt(fields, body, "departures", encode_properties(properties), "broker-a")


def read(function: Callable[..., Any]) -> HandlerSignature:
    return read_signature(function, beans=BEANS, converter=CONVERTER)


def call(function: Callable[..., Any], *messages: MessageExt) -> Any:
    binding = HandlerBinding(read(function), BEANS.provider, CONVERTER)
    if binding.signature.is_batch:
        arguments, invalid = binding.batch_arguments(messages)
        assert not invalid
        return binding.call(arguments)
    return binding.call(binding.arguments(messages[0]))


@pytest.mark.parametrize(
    ("hint", "body", "value"),
    [
        (Departure, b'{"flight":"UA1"}', Departure(flight="UA1")),
        (Departure | Arrival, b'{"airport":"JFK"}', Arrival(airport="JFK")),
        (Gate, b'{"name":"B7"}', Gate("B7")),
        (Seat, b'{"row":7}', {"row": 7}),
        (dict, b'{"a":1}', {"a": 1}),
        (dict[str, int], b'{"a":1}', {"a": 1}),
        (str, b"text", "text"),
        (bytes, b"\xff", b"\xff"),
    ],
)
def test_the_payload_may_be_any_of_its_types_alone_or_in_batches(hint: Any, body: bytes, value: Any) -> None:
    def one(payload):  # type: ignore[no-untyped-def]
        return payload

    one.__annotations__["payload"] = hint
    assert call(one, message(body)) == value
    one.__annotations__["payload"] = list[hint]
    assert call(one, message(body), message(body)) == [value, value]


def test_messages_headers_and_beans_stand_beside_the_payload() -> None:
    def handler(
        departure: Departure,
        ext: MessageExt,
        desk: Desk,
        airport: Annotated[str, Header("airport")],
        plain: Message,
        attempt: Annotated[int, Header("attempt")] = 1,
        missing: Annotated[str, Header("missing")] = "none",
        *,
        properties: DeskProperties,
        maybe: Desk | None,
        absent: Annotated[float | None, Header("absent")],
        limit: int = 3,
    ) -> dict[str, Any]:
        return locals()

    given = message(airport="JFK", attempt="2", TAGS="UA", KEYS="k1 k2")
    assert call(handler, given) == {
        "departure": Departure(flight="UA1"),
        "ext": given,
        "desk": DESK,
        "airport": "JFK",
        "plain": Message(
            "departures",
            given.body,
            tag="UA",
            keys=("k1", "k2"),
            properties={"airport": "JFK", "attempt": "2"},
            flag=7,
        ),
        "attempt": 2,
        "missing": "none",
        "properties": PROPERTIES,
        "maybe": DESK,
        "absent": None,
        "limit": 3,
    }


def test_a_handler_may_take_the_message_only() -> None:
    def handler(ext: MessageExt) -> MessageExt:
        return ext

    def batch(ext: list[MessageExt]) -> list[MessageExt]:
        return ext

    given = message()
    assert call(handler, given) is given
    assert call(batch, given, given) == [given, given]
    assert read(handler).payload is None


def test_a_message_with_words_about_it_is_a_message() -> None:
    def one(ext: Annotated[MessageExt, "as it came"]) -> MessageExt:
        return ext

    def batch(messages: list[Annotated[Message, "without what the broker says"]]) -> list[Message]:
        return messages

    first = message()
    assert call(one, first) is first
    assert [type(each) for each in call(batch, first, message())] == [Message, Message]


One = TypeAliasType("One", Departure)
Batch = TypeAliasType("Batch", list[Departure])
OrderT = TypeVar("OrderT")
BatchOf = TypeAliasType("BatchOf", list[OrderT], type_params=(OrderT,))
Maybe = TypeAliasType("Maybe", list[Departure] | None)
Messages = TypeAliasType("Messages", list[MessageExt])


@pytest.mark.parametrize(
    "hint",
    [
        Annotated[list[Departure], "at most a hundred"],
        Batch,
        Annotated[Batch, "at most a hundred"],
        BatchOf[Departure],
        list[One],
    ],
)
def test_a_batch_by_another_name_is_bound_as_the_list(hint: Any) -> None:
    def handler(departures, messages: Messages):  # type: ignore[no-untyped-def]
        return departures, messages

    handler.__annotations__["departures"] = hint
    first = message()
    assert call(handler, first, first) == ([Departure(flight="UA1")] * 2, [first, first])


@pytest.mark.parametrize("hint", [Annotated[list[Departure] | None, "no"], Maybe])
def test_a_batch_by_another_name_may_not_be_absent_either(hint: Any) -> None:
    def handler(departures): ...  # type: ignore[no-untyped-def]

    handler.__annotations__["departures"] = hint
    with pytest.raises(ConfigurationError, match="that may be absent, and a batch always holds messages"):
        read(handler)


def test_a_batch_leaves_out_what_cannot_be_read_and_says_which() -> None:
    def handler(departures: list[Departure], messages: list[MessageExt], desk: Desk) -> None: ...

    binding = HandlerBinding(read(handler), BEANS.provider, CONVERTER)
    messages = [message(), message(b"{"), message(b'{"flight":"AA7"}')]
    arguments, invalid = binding.batch_arguments(messages)
    assert arguments == [[Departure(flight="UA1"), Departure(flight="AA7")], [messages[0], messages[2]], DESK]
    assert list(invalid) == [1]


def test_a_missing_or_wrong_header_is_an_unreadable_message() -> None:
    def handler(departure: Departure, gate: Annotated[int, Header("gate")]) -> None: ...

    with pytest.raises(PayloadError, match="header 'gate' is missing"):
        call(handler, message())
    with pytest.raises(PayloadError, match=r"header 'gate' cannot be read: .*valid integer"):
        call(handler, message(gate="B7"))


def test_a_hint_that_exists_for_type_checkers_only_fails_only_where_it_is_needed() -> None:
    def fine(departure: Departure, limit: Decimal | None = None) -> Decimal | None: ...

    def wrong(departure: Departure, limit: Decimal) -> None: ...

    assert [parameter.role for parameter in read(fine).parameters] == [Role.PAYLOAD, Role.DEFAULT]
    with pytest.raises(ConfigurationError, match="parameter 'limit' cannot be resolved: name 'Decimal' is not defined"):
        read(wrong)


def test_a_bound_method_is_bound_without_its_self() -> None:
    class Listeners:
        def on_departure(self, departure: Departure) -> str:
            return departure.flight

    assert call(Listeners().on_departure, message()) == "UA1"


def test_a_decorated_coroutine_function_stays_one() -> None:
    async def handler(departure: Departure) -> None: ...

    @functools.wraps(handler)
    def traced(*args: Any) -> Any:
        return handler(*args)

    assert read(handler).is_async
    assert read(traced).is_async


def two_payloads(first: Departure, second: Gate) -> None: ...


def no_payload(desk: Desk) -> None: ...


def no_hint(departure) -> None: ...  # type: ignore[no-untyped-def]


def unknown_class(departure: Departure, other: functools.partial[int]) -> None: ...


def single_in_batch(departures: list[Departure], ext: MessageExt) -> None: ...


def header_in_batch(departures: list[Departure], gate: Annotated[str, Header("gate")]) -> None: ...


def bare_list(departures: list) -> None: ...  # type: ignore[type-arg]


def template_in_a_def(departure: Departure, template: RocketMQTemplate) -> None: ...


def number(minutes: int) -> None: ...


async def generator(departure: Departure) -> Any:
    yield departure


@pytest.mark.parametrize(
    ("function", "what", "fix"),
    [
        (two_payloads, "has more than one payload: first: Departure and second: Gate", "@bean"),
        (no_payload, "takes neither a payload nor a message", "or MessageExt"),
        (no_hint, "has a parameter 'departure' without a type", "annotate it"),
        (unknown_class, "'other' of type functools.partial[int], which is neither a payload nor a bean", "@bean"),
        (single_in_batch, "takes a batch, and one MessageExt in parameter 'ext'", "take list[MessageExt] there too"),
        (header_in_batch, "takes a batch, and one header 'gate'", "list[MessageExt]"),
        (bare_list, "takes a list without saying of what in parameter 'departures'", "list[Departure]"),
        (template_in_a_def, "is a plain def and takes RocketMQTemplate", "async def"),
        (number, "'minutes' of type int, which is neither a payload nor a bean", "a payload is a pydantic model"),
        (generator, "is a generator", "return the value"),
    ],
)
def test_a_wrong_signature_says_what_where_and_what_to_do(function: Callable[..., Any], what: str, fix: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(function)
    (finding,) = caught.value.findings
    assert finding.what.startswith(f"listener {function.__name__} ")
    assert what in finding.what
    assert finding.where is not None
    assert re.fullmatch(rf".*test_binding\.py:{function.__code__.co_firstlineno}", finding.where)
    assert fix in (finding.fix or "")


def test_all_mistakes_of_a_signature_are_found_together() -> None:
    def handler(first, second: int, template: RocketMQTemplate) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(ConfigurationError) as caught:
        read(handler)
    assert len(caught.value.findings) == 3


def test_the_container_may_say_why_a_bean_is_missing() -> None:
    async def handler(departure: Departure, template: RocketMQTemplate) -> None: ...

    def left_out(hint: Any, who: str, where: str) -> Finding:
        return Finding(f"{who} needs {hint.__name__}", where, "set rocketmq.producer.group")

    beans = Beans(
        has=lambda hint: False, provider=lambda hint: functools.partial(OBJECTS.__getitem__, hint), left_out=left_out
    )
    with pytest.raises(ConfigurationError) as caught:
        read_signature(handler, beans=beans, converter=CONVERTER)
    (finding,) = caught.value.findings
    assert finding.what.startswith("parameter template of listener test_the_container_may_say_why_a_bean_is_missing")
    assert finding.what.endswith("needs RocketMQTemplate")
    assert finding.fix == "set rocketmq.producer.group"


def test_a_marked_method_is_called_on_the_bean_of_its_class() -> None:
    class Listeners:
        def __init__(self, name: str) -> None:
            self.name = name

        def on_departure(self, departure: Departure) -> str:
            return f"{self.name} saw {departure.flight}"

    beans = Beans(has=lambda hint: hint is Listeners, provider=lambda hint: lambda: Listeners("desk"))
    signature = read_signature(Listeners.on_departure, beans=beans, converter=CONVERTER, owner=Listeners)
    binding = HandlerBinding(signature, beans.provider, CONVERTER)
    assert binding.call(binding.arguments(message())) == "desk saw UA1"
    with pytest.raises(ConfigurationError, match=r"is a method of .*Listeners, and there is no such bean"):
        read_signature(Listeners.on_departure, beans=BEANS, converter=CONVERTER, owner=Listeners)
