"""``@frozen``: a dataclass whose values nobody changes, for a quarter of what ``@dataclass(frozen=True)`` takes.

``dataclasses`` writes and compiles six methods for each such class when its module is loaded: 0.4 ms, and a service
loads a hundred of them. Here the constructor alone is compiled; all classes share the other methods, which go by the
names of the fields. A value takes twice as long to be made, compared and hashed, and half as long again to be read. So
this is for what is used while a service starts, and not for what is used for each message.

To ``dataclasses.fields`` and ``dataclasses.replace`` it is a dataclass like any other.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform, overload

__all__ = ["frozen"]

ClassT = TypeVar("ClassT")


@overload
def frozen(class_: type[ClassT], /) -> type[ClassT]: ...
@overload
def frozen(*, kw_only: bool = False) -> Callable[[type[ClassT]], type[ClassT]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(class_: type | None = None, /, *, kw_only: bool = False) -> Any:
    """Makes a class one of values: equal where their fields are, with a hash, and an error for who changes one.

    A method that the class has itself stays. ``field(...)`` means what it means to ``dataclasses``.
    """

    def make(class_: type) -> type:
        own = frozenset(vars(class_))
        made: Any = dataclass(repr=False, eq=False, kw_only=kw_only)(class_)
        compared = [each for each in fields(made) if each.compare]
        made.__compared__ = _getter(compared)
        made.__hashed__ = _getter([each for each in compared if each.hash is not False])
        for name, method in _METHODS.items():
            if name not in own:
                setattr(made, name, method)
        return class_

    return make if class_ is None else make(class_)


def _getter(of: Sequence[Field[Any]]) -> Any:
    return staticmethod(attrgetter(*(each.name for each in of)) if of else type)


@reprlib.recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{type(self).__qualname__}({shown})"


def _eq(self: Any, other: Any) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    return self.__compared__(self) == self.__compared__(other)


def _hash(self: Any) -> int:
    return hash(self.__hashed__(self))


def _setattr(self: Any, name: str, value: object) -> None:
    if name in vars(self) or name not in self.__dataclass_fields__:  # else its constructor is at work
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _delattr(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


_METHODS = {"__repr__": _repr, "__eq__": _eq, "__hash__": _hash, "__setattr__": _setattr, "__delattr__": _delattr}
