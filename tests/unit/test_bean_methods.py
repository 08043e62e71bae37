"""Which method of a bean is called for a marked one: that of its name, of the object that is there."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, Generic, TypeVar
from unittest.mock import Mock

import pytest

from rocketbox.bean_methods import BeanMethod
from rocketbox.boot.marks import Qualifier

ItemT = TypeVar("ItemT")


def unnamed(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: f"around {function(*arguments)}"


class Desk(Generic[ItemT]):
    def sell(self, item: ItemT) -> str:
        return f"sold {item}"

    lend = unnamed(lambda self, item: f"lent {item}")
    give = functools.partialmethod(sell, "a gift")
    __hide = unnamed(lambda self, item: f"hid {item}")


class Till(Desk[str]):
    pass


class Special(Till):
    def sell(self, item: str) -> str:
        return f"{super().sell(item)} at half price"

    def lend(self, item: str) -> str:
        return f"{item} is not lent"


class StandIn:
    def sell(self, item: str) -> str:
        return f"never sold {item}"


@pytest.mark.parametrize(
    ("name", "arguments", "bean", "expected"),
    [
        ("sell", ["cup"], Till(), "sold cup"),
        ("sell", ["cup"], Special(), "sold cup at half price"),
        ("sell", ["cup"], StandIn(), "never sold cup"),
        ("lend", ["cup"], Till(), "around lent cup"),
        ("lend", ["cup"], Special(), "cup is not lent"),
        ("give", [], Till(), "sold a gift"),
        ("give", [], Special(), "sold a gift"),  # it calls what stood beside it, as anywhere in Python
        ("_Desk__hide", ["cup"], Special(), "around hid cup"),
    ],
)
@pytest.mark.parametrize("owner", [Till, Desk[str], Annotated[Till, Qualifier("a")]])
def test_the_method_of_the_object_is_called(
    owner: Any, name: str, arguments: list[str], bean: object, expected: str
) -> None:
    assert BeanMethod(vars(Desk)[name], owner).of(bean)(*arguments) == expected


def test_an_object_may_have_one_of_its_own() -> None:
    till = Till()
    till.sell = lambda item: f"{item} is sold out"  # type: ignore[method-assign]
    assert BeanMethod(Desk.sell, Till).of(till)("cup") == "cup is sold out"


def test_of_two_names_it_is_that_of_the_def() -> None:
    class Both:
        def second(self) -> str:
            return "there"

        first = second

    class Other(Both):
        def second(self) -> str:
            return "other"

    method = vars(Both)["second"]
    assert BeanMethod(method, Both).of(Other())() == "other"


def test_what_stands_in_no_class_is_bound_to_the_object() -> None:
    def sell(desk: object, item: str) -> str:
        return f"{type(desk).__name__} sold {item}"

    assert BeanMethod(sell, Till).of(Till())("cup") == "Till sold cup"


class Closed(Till):
    sell = None  # type: ignore[assignment]


@pytest.mark.parametrize("bean", [Closed(), type("Closed", (), {})()])
def test_an_object_without_the_method_is_named(bean: object) -> None:
    with pytest.raises(TypeError, match=r"^Closed has no method sell, .* the listener Desk.sell: write one$"):
        BeanMethod(Desk.sell, Till).of(bean)


def test_of_names_that_are_hidden_below_none_is_called() -> None:
    class Night(Till):
        sell_by_day = Desk.sell

        def sell(self, item: str) -> str:
            return f"{item} by night"

    assert BeanMethod(Desk.sell, Night).of(Night())("cup") == "sold cup"


class Async(Till):
    async def sell(self, item: str) -> str:  # type: ignore[override]
        return item


class Generates(Till):
    def sell(self, item: str) -> Iterator[str]:  # type: ignore[override]
        yield item


class GeneratesAsync(Till):
    async def sell(self, item: str) -> AsyncIterator[str]:  # type: ignore[override]
        yield item


@pytest.mark.parametrize(
    ("bean", "kind"), [(Async(), "async def"), (Generates(), "generator"), (GeneratesAsync(), "generator")]
)
def test_a_method_that_is_called_in_another_way_is_refused(bean: Till, kind: str) -> None:
    method = BeanMethod(Desk.sell, Till)
    for _ in range(2):  # each time
        with pytest.raises(TypeError, match=rf"\.sell \(.*\) is a {kind} in the place of .* Desk.sell, which is def"):
            method.of(bean)
    assert method.of(Till())("cup") == "sold cup"


def test_a_def_in_the_place_of_an_async_def_is_refused() -> None:
    class Back(Async):
        def sell(self, item: str) -> str:  # type: ignore[override]
            return item

    with pytest.raises(TypeError, match=r"Back\.sell \(.*\) is a def in the place of .*, which is async def"):
        BeanMethod(Async.sell, Async).of(Back())


def test_what_can_be_anything_is_called() -> None:
    assert BeanMethod(Async.sell, Async).of(Mock())("cup") is not None
