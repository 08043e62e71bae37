"""Bean functions whose annotations are text: each is resolved when it is needed, and only then."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import pytest

from rocketbox.boot.definitions import Source, Style, define
from rocketbox.boot.dependencies import Dependency, dependency_of
from rocketbox.boot.marks import Qualifier, bean

if TYPE_CHECKING:
    from decimal import Decimal  # not there at run time


class Engine:
    pass


@bean
class Car:
    def __init__(self, engine: Engine, spare: Annotated[Engine | None, Qualifier("spare")]) -> None:
        self.engine = engine


def test_text_annotations_of_a_constructor_are_resolved() -> None:
    definition = define(Car, Source.USER)
    assert definition.provides is Car
    engine, spare = definition.parameters()
    assert engine.dependency == Dependency(Engine)
    assert spare.dependency == Dependency(Engine, "spare", optional=True)


def test_one_hint_that_exists_for_checkers_only_does_not_spoil_the_others() -> None:
    def car(engine: Engine, price: Decimal | None = None) -> Car:
        return Car(engine, None)

    definition = define(car, Source.USER)
    assert definition.provides is Car
    engine, price = definition.parameters()
    assert engine.dependency == Dependency(Engine)
    assert price.dependency is None
    assert price.has_default
    assert price.problem == "its type Decimal | None cannot be resolved: name 'Decimal' is not defined"


def test_a_return_type_that_exists_for_checkers_only_is_a_problem_of_its_bean() -> None:
    def price() -> Decimal:
        raise AssertionError("never called")

    finding = define(price, Source.USER).problem_finding()
    assert finding is not None
    assert finding.what == (
        "bean price has a return type that cannot be resolved: Decimal (name 'Decimal' is not defined)"
    )


def test_a_context_manager_provides_what_it_yields() -> None:
    @asynccontextmanager
    async def engine() -> AsyncIterator[Engine]:
        yield Engine()

    definition = define(engine, Source.USER)
    assert (definition.provides, definition.style) == (Engine, Style.CONTEXT)


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (Engine, Dependency(Engine)),
        (Engine | None, Dependency(Engine, optional=True)),
        (list[Engine], Dependency(Engine, every=True)),
        (Annotated[Engine, Qualifier("a")], Dependency(Engine, "a")),
        (Annotated[Engine, "something else"], Dependency(Engine)),
        (Annotated[list[Engine], Qualifier("a")], Dependency(Engine, "a", every=True)),
        (list[Annotated[Engine, Qualifier("a")]], Dependency(Engine, "a", every=True)),
        (int | str, Dependency(int | str)),
    ],
)
def test_what_a_hint_asks_for(hint: object, expected: Dependency) -> None:
    assert dependency_of(hint) == expected
