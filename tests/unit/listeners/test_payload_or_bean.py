"""What a parameter is where it could be the payload and could be a bean; payloads that have a default."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, RootModel

from rocketbox.boot.beans import BeanContainer
from rocketbox.boot.conditions import Verdict
from rocketbox.boot.dependencies import dependency_of
from rocketbox.boot.marks import Qualifier, bean
from rocketbox.clock import RealClock
from rocketbox.errors import ConfigurationError, Finding
from rocketbox.listeners.arguments import HandlerBinding
from rocketbox.listeners.binding import Beans, read_signature
from rocketbox.listeners.signature import HandlerSignature, Role
from rocketbox.message import MessageExt
from rocketbox.template import JsonMessageConverter, PayloadError

CONVERTER = JsonMessageConverter()


class Order(BaseModel):
    number: int


class Orders(RootModel[list[Order]]):
    """A body that is an array."""


class DeskProperties(BaseModel):
    threshold: int = 60


@dataclasses.dataclass
class Limits:
    most: int = 3


class Desk:
    """An ordinary class."""


class NoSettings:
    profiles: Sequence[str] = ()

    def text(self, key: str) -> str | None:
        return None


def beans(*objects: Any, **named: Any) -> Beans:
    """A real container with these objects, each under its own type, or by its name."""
    container = BeanContainer(NoSettings(), RealClock())
    for each in objects:
        container.add_instance(each)
    for name, each in named.items():
        container.add_instance(each, name=name)
    assert container.plan() == []
    return Beans(
        container.has, container.provider, container.left_out, container.ambiguous,
        lambda hint: dependency_of(hint).qualifier is not None,
    )  # fmt: skip


ROUTES, TEXT = {"A": 1}, "THE BEAN"
EVERYTHING = beans(ROUTES, TEXT, b"THE BYTES", DeskProperties(), Desk())


def read(function: Callable[..., Any], of: Beans = EVERYTHING) -> HandlerSignature:
    return read_signature(function, beans=of, converter=CONVERTER)


def wrong(function: Callable[..., Any], of: Beans = EVERYTHING) -> Finding:
    with pytest.raises(ConfigurationError) as caught:
        read(function, of)
    (finding,) = caught.value.findings
    return finding


def message(body: bytes) -> MessageExt:
    fields = (0, 0, 0, 3, 7, 41, 0, 0, 0, b"\x7f\0\0\1", 1, 0, b"\x7f\0\0\1", 1, 0, 0, len(body))
    return MessageExt(fields, body, "orders", b"", "broker-a")


def given(function: Callable[..., Any], body: bytes, of: Beans = EVERYTHING) -> list[Any]:
    binding = HandlerBinding(read(function, of), of.provider, CONVERTER)
    if not binding.signature.is_batch:
        return binding.arguments(message(body))
    arguments, invalid = binding.batch_arguments([message(body)])
    for error in invalid.values():
        raise error
    return arguments


@pytest.mark.parametrize(
    ("hint", "body", "value"),
    [
        (str, b"text", "text"),
        (bytes, b"text", b"text"),
        (dict, b'{"a":2}', {"a": 2}),
        (dict[str, int], b'{"a":2}', {"a": 2}),
        (Mapping[str, int], b'{"a":2}', {"a": 2}),
        (str | bytes, b"text", "text"),
        (dict[str, int] | None, b"null", None),
    ],
)
@pytest.mark.parametrize("beside_a_message", [True, False])
def test_text_bytes_and_mappings_are_the_payload_whatever_beans_there_are(
    hint: Any, body: bytes, value: Any, beside_a_message: bool
) -> None:
    def one(payload, message: MessageExt | None = None) -> None: ...  # type: ignore[no-untyped-def]

    def batch(payload) -> None: ...  # type: ignore[no-untyped-def]

    one.__annotations__["payload"] = hint
    assert given(one, body)[0] == value
    if hint != dict[str, int] | None:
        batch.__annotations__["payload"] = list[hint]
        assert given(batch, body) == [[value]]


def test_text_is_a_bean_only_by_its_name() -> None:
    of = beans(desk_name="the desk", other="another")

    def handler(order: Order, name: Annotated[str, Qualifier("desk_name")]) -> None: ...

    def missing(order: Order, name: Annotated[str, Qualifier("nobody")]) -> None: ...

    def optional(
        order: Order,
        one: Annotated[str | None, Qualifier("nobody")],
        two: Annotated[str, Qualifier("nobody")] | None,
        three: Annotated[str, Qualifier("nobody")] = "3",
    ) -> None: ...

    assert given(handler, b'{"number":1}', of) == [Order(number=1), "the desk"]
    assert "needs a bean of type str named 'nobody', and there is none" in wrong(missing, of).what
    assert given(optional, b'{"number":1}', of) == [Order(number=1), None, None, "3"]


def test_a_name_that_no_bean_has_is_told_where_the_container_knows_nothing_of_it() -> None:
    def handler(order: Order, name: Annotated[Desk, Qualifier("nobody")]) -> None: ...

    finding = wrong(handler, beans())
    assert "asks for a bean in parameter 'name' by its name" in finding.what
    assert "@bean" in (finding.fix or "")


def test_a_model_that_is_a_bean_is_given_beside_what_surely_is_the_payload() -> None:
    def handler(order: Order, properties: DeskProperties, desk: Desk) -> None: ...

    assert given(handler, b'{"number":1}')[:2] == [Order(number=1), DeskProperties()]
    assert [each.role for each in read(handler).parameters] == [Role.PAYLOAD, Role.BEAN, Role.BEAN]


def alone(properties: DeskProperties) -> None: ...


def beside_a_message(message: MessageExt, properties: DeskProperties) -> None: ...


def with_a_default(message: MessageExt, properties: DeskProperties | None = None) -> None: ...


def in_batches(properties: list[DeskProperties]) -> None: ...


@pytest.mark.parametrize("function", [alone, beside_a_message, with_a_default, in_batches])
def test_a_model_that_is_a_bean_and_may_be_the_payload_is_refused(function: Callable[..., Any]) -> None:
    finding = wrong(function)
    assert "DeskProperties" in finding.what
    assert "'properties', which a body can be read as, and there is such a bean" in finding.what
    assert 'Qualifier("name")' in (finding.fix or "")


def test_a_model_whose_bean_a_condition_left_out_or_that_has_several_is_no_payload_either() -> None:
    class Never:
        def evaluate(self, context: Any) -> Verdict:
            return Verdict(False, "it is Monday", None, "wait for Tuesday")

    @bean(Never())
    def limits() -> Limits:
        return Limits()

    container = BeanContainer(NoSettings(), RealClock())
    container.add(limits)
    container.add_instance(DeskProperties(), name="one")
    container.add_instance(DeskProperties(), name="two")
    assert container.plan() == []
    of = Beans(container.has, container.provider, container.left_out, container.ambiguous)

    def left_out(message: MessageExt, limits: Limits) -> None: ...

    def several(message: MessageExt, properties: DeskProperties) -> None: ...

    def beside_a_payload(order: Order, limits: Limits) -> None: ...

    assert "there is such a bean" in wrong(left_out, of).what
    assert "there is such a bean" in wrong(several, of).what
    assert "it is Monday" in wrong(beside_a_payload, of).what


def test_a_payload_with_a_default_is_given_and_its_default_stands_for_an_empty_body() -> None:
    nobody = Order(number=0)

    def optional(message: MessageExt, order: Order | None = None) -> None: ...

    def certain(order: Order = nobody) -> None: ...

    def text(text: str = "nothing") -> None: ...

    for function, empty in ((optional, None), (certain, nobody)):
        assert given(function, b'{"number":7}')[-1] == Order(number=7)
        assert given(function, b"")[-1] is empty
        with pytest.raises(PayloadError):
            given(function, b" ")
    assert given(optional, b"null")[-1] is None
    assert given(text, b"a") == ["a"]
    assert given(text, b"") == ["nothing"]
    with pytest.raises(PayloadError):
        given(required, b"")


def required(order: Order) -> None: ...


def two(order: Order, mode: str = "fast") -> None: ...


def absent_batch(message: list[MessageExt], orders: list[Order] | None = None) -> None: ...


def batch_with_a_default(orders: list[Order] = []) -> None: ...  # noqa: B006


def absent_messages(messages: list[MessageExt] | None = None) -> None: ...


def a_sequence(message: MessageExt, orders: Sequence[Order] = ()) -> None: ...


def half_a_payload(message: MessageExt, order: Order | int = 3) -> None: ...


@pytest.mark.parametrize(
    ("function", "what", "fix"),
    [
        (two, "has more than one payload: order: Order and mode: str", "what is to keep its default has no type"),
        (absent_batch, "takes a batch in parameter 'orders' that may be absent", "write orders: list[Order]"),
        (batch_with_a_default, "takes a batch in parameter 'orders' that may be absent", "orders: Order"),
        (absent_messages, "takes a batch in parameter 'messages' that may be absent", "messages: list[MessageExt]"),
        (a_sequence, "'orders' of type collections.abc.Sequence[", "a payload is a pydantic model"),
        (half_a_payload, "'order' of type ", "a payload is a pydantic model"),
    ],
)
def test_a_default_that_would_be_given_for_ever_is_refused(function: Callable[..., Any], what: str, fix: str) -> None:
    finding = wrong(function)
    assert what in finding.what
    assert fix in (finding.fix or "")


def test_what_no_body_can_be_read_as_keeps_its_default() -> None:
    def handler(  # type: ignore[no-untyped-def]
        order: Order, limit: int = 3, *, mode="fast", clock: RealClock | None = None, of: Callable[[Order], int] = hash
    ) -> None: ...

    assert given(handler, b'{"number":1}')[1:] == [3, "fast", None, hash]


def test_a_message_is_given_whatever_its_default() -> None:
    def handler(order: Order, message: MessageExt | None = None) -> None: ...

    assert isinstance(given(handler, b'{"number":1}')[1], MessageExt)


def test_an_array_in_one_message_is_told_from_a_batch_of_messages() -> None:
    def batch(orders: list[Order]) -> None: ...

    def one(orders: Orders) -> None: ...

    array = b'[{"number":1},{"number":2}]'
    with pytest.raises(PayloadError, match=re.escape("list[Order] is a batch of messages") + r".*RootModel\[list\[Ord"):
        given(batch, array)
    with pytest.raises(PayloadError) as caught:
        given(batch, b'{"number":"x"}')
    assert "RootModel" not in str(caught.value)
    assert given(one, array) == [Orders([Order(number=1), Order(number=2)])]


def test_an_undecorated_wrapper_is_told_what_it_lacks() -> None:
    def handler(*args: Any, **kwargs: Any) -> None: ...

    assert "functools.wraps" in (wrong(handler).fix or "")
