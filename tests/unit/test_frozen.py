"""Values of ``@frozen`` behave as those of ``@dataclass(frozen=True)``, which each test compares them with."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field
from functools import cached_property
from typing import Any

import pytest

from rocketbox.frozen import frozen


@frozen
class Point:
    """A place."""

    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list, compare=False)
    secret: str = field(default="", repr=False)
    names: dict[str, str] = field(default_factory=dict, hash=False, repr=False)

    @cached_property
    def sum(self) -> int:
        return self.x + self.y


@frozen
class Empty:
    """Nothing."""


@frozen(kw_only=True)
class Named:
    """All by name, checked."""

    name: str

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a name is needed")

    def __repr__(self) -> str:
        return f"<{self.name}>"


def both(make: Callable[[Any], Any]) -> tuple[Any, Any]:
    """What ``make`` makes of a class, decorated in either way."""
    made = []
    for decorator in (dataclass(frozen=True), frozen):

        class Pair:
            left: int
            right: Any = None

        made.append(make(decorator(Pair)))
    return made[0], made[1]


def test_values_are_equal_where_their_compared_fields_are() -> None:
    assert Point(1, 2, ["a"]) == Point(1, 2, ["b"])
    assert Point(1, 2) != Point(1, 3)
    assert Point(1, names={"a": "b"}) != Point(1)
    assert Point(1).__eq__((1, 0)) is NotImplemented
    assert Empty() == Empty()


def test_values_are_keys() -> None:
    assert {Point(1, 2): "a"}[Point(1, 2, ["other"])] == "a"
    assert len({Empty(), Empty()}) == 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(Point(1, secret=[]))  # type: ignore[arg-type]


def test_a_value_of_a_subclass_is_another() -> None:
    class Special(Point):
        pass

    assert Special(1) != Point(1)
    assert Special(1) == Special(1)
    assert repr(Special(1)).endswith("Special(x=1, y=0, tags=[])")


def test_it_shows_what_a_dataclass_shows() -> None:
    theirs, ours = both(lambda pair: repr(pair(1, "two")))
    assert ours == theirs
    assert repr(Point(1, secret="s")) == "Point(x=1, y=0, tags=[])"
    assert repr(Named(name="n")) == "<n>"
    around = Point(1)
    around.tags.append(around)  # type: ignore[arg-type]
    assert repr(around) == "Point(x=1, y=0, tags=[...])"


@pytest.mark.parametrize("name", ["left", "right"])
def test_nobody_changes_a_value(name: str) -> None:
    def change(pair: Any) -> str:
        with pytest.raises(FrozenInstanceError) as refused:
            setattr(pair(1), name, 2)
        return str(refused.value)

    def delete(pair: Any) -> str:
        with pytest.raises(FrozenInstanceError) as refused:
            delattr(pair(1), name)
        return str(refused.value)

    for attempt in (change, delete):
        theirs, ours = both(attempt)
        assert ours == theirs


def test_a_value_takes_no_other_attributes() -> None:
    with pytest.raises(FrozenInstanceError):
        Point(1).other = 2  # type: ignore[attr-defined]


def test_what_dataclasses_offers_works() -> None:
    point = Point(1, 2)
    assert dataclasses.replace(point, y=5) == Point(1, 5)
    assert [each.name for each in dataclasses.fields(point)] == ["x", "y", "tags", "secret", "names"]
    assert dataclasses.asdict(Named(name="n")) == {"name": "n"}
    match point:
        case Point(x, y):
            assert (x, y) == (1, 2)


def test_values_are_copied_and_pickled() -> None:
    point = Point(1, 2)
    assert point.sum == 3
    assert copy.deepcopy(point) == copy.copy(point) == pickle.loads(pickle.dumps(point)) == point


def test_what_is_wrong_is_refused_where_a_value_is_made() -> None:
    with pytest.raises(ValueError, match="a name is needed"):
        Named(name="")
    with pytest.raises(TypeError):
        Named("n")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Point()  # type: ignore[call-arg]
