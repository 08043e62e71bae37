"""What hints ask the container for, what bean functions provide by theirs, and whether one fits the other.

How annotations become types is in ``rocketbox.hints``.
"""

from __future__ import annotations

import collections.abc
import contextlib
import inspect
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any

from typing_extensions import TypeAliasType

from rocketbox.boot.marks import Qualifier

__all__ = [
    "Dependency",
    "fits",
    "hint_name",
    "is_bean_type",
    "misplaced_qualifier",
    "provided_name",
    "provided_type",
    "dependency_of",
]


@dataclass(frozen=True)
class Dependency:
    """What somebody asks the container for."""

    type_: Any
    qualifier: str | None = None
    every: bool = False  # list[T]: all of them
    optional: bool = False  # T | None

    def __str__(self) -> str:
        name = hint_name(self.type_)
        return f"{name} named {self.qualifier!r}" if self.qualifier is not None else name


def dependency_of(hint: Any) -> Dependency:
    """Read ``T``, ``Annotated[T, Qualifier("x")]``, ``list[T]`` and ``T | None``, in any useful nesting."""
    qualifier: str | None = None
    every = optional = False
    while True:
        origin = typing.get_origin(hint)
        arguments = typing.get_args(hint)
        if isinstance(hint, TypeAliasType):
            hint = hint.__value__
        elif origin is Annotated:
            qualifier = next((extra.name for extra in arguments[1:] if isinstance(extra, Qualifier)), qualifier)
            hint = arguments[0]
        elif type(None) in arguments and len(arguments) == 2 and not every:
            optional = True
            (hint,) = (argument for argument in arguments if argument is not type(None))
        elif origin is list and not every and not optional:
            every = True
            (hint,) = arguments
        else:
            return Dependency(hint, qualifier, every, optional)


def is_bean_type(hint: Any) -> bool:
    """Whether a bean can be asked for by it: a class or what stands for one, and not what every object is."""
    if hint in (object, Any, None, type(None)) or typing.get_origin(hint) in (typing.Union, types.UnionType):
        return False
    return isinstance(hint, type | typing.NewType) or typing.get_origin(hint) is not None


def misplaced_qualifier(parameter: str, hint: Any, default: Any) -> tuple[str, str] | None:
    """What is wrong with a Qualifier that stands where none is looked for, and what to write; None when all is well.

    The parameter would be given any bean of its type, or the Qualifier itself.
    """
    name = hint_name(dependency_of(hint).type_) if hint is not inspect.Parameter.empty else "TheType"
    if isinstance(default, Qualifier):
        return "has a Qualifier as its default", f'write {parameter}: Annotated[{name}, Qualifier("{default.name}")]'
    if default is Qualifier or _names_qualifier_class(hint):
        return "has a Qualifier without a name", f'write {parameter}: Annotated[{name}, Qualifier("name")]'
    return None


def _names_qualifier_class(hint: Any) -> bool:
    if typing.get_origin(hint) is Annotated and any(each is Qualifier for each in typing.get_args(hint)[1:]):
        return True
    return any(_names_qualifier_class(each) for each in typing.get_args(hint))


_WRAPPERS = (
    collections.abc.Iterator,
    collections.abc.Generator,
    collections.abc.AsyncIterator,
    collections.abc.AsyncGenerator,
    collections.abc.Iterable,
    collections.abc.AsyncIterable,
    contextlib.AbstractContextManager,
    contextlib.AbstractAsyncContextManager,
    collections.abc.Awaitable,
    collections.abc.Coroutine,
)


def provided_type(hint: Any, *, wrapped: bool) -> Any:
    """The type of the bean; ``wrapped``: the return type is an iterator or context manager of it."""
    if typing.get_origin(hint) is Annotated:
        return provided_type(typing.get_args(hint)[0], wrapped=wrapped)
    arguments = typing.get_args(hint)
    if wrapped and typing.get_origin(hint) in _WRAPPERS and arguments:
        return provided_type(arguments[0], wrapped=False)
    return hint


def provided_name(hint: Any) -> str | None:
    """The name that a return type gives the bean: ``Annotated[T, Qualifier("x")]``, also inside of an iterator."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Annotated:
        own = next((extra.name for extra in arguments[1:] if isinstance(extra, Qualifier)), None)
        return own or provided_name(arguments[0])
    return provided_name(arguments[0]) if typing.get_origin(hint) in _WRAPPERS and arguments else None


def hint_name(hint: Any) -> str:
    """A type as a user would write it, without modules."""
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return " | ".join("None" if argument is type(None) else hint_name(argument) for argument in arguments)
    if origin is not None and isinstance(origin, type):
        return f"{origin.__name__}[{', '.join(hint_name(argument) for argument in arguments)}]"
    return str(hint).replace("typing.", "")


def fits(provided: Any, asked: Any) -> bool:
    """Whether a bean that provides one type can be given where the other is asked for."""
    if type(asked) is type and isinstance(provided, type):  # a plain class, as most are: it is no other's by agreement
        return issubclass(provided, asked) and (asked is not object or provided is object)
    if provided == asked:
        return True
    if isinstance(provided, type) and isinstance(asked, type):  # as below, without looking for type arguments
        return asked is not object and _is_subclass(provided, asked)
    if typing.get_args(asked):
        bases: tuple[Any, ...] = getattr(typing.get_origin(provided) or provided, "__orig_bases__", ())
        return any(fits(base, asked) for base in bases)
    plain = typing.get_origin(provided) or provided
    if not isinstance(plain, type) or not isinstance(asked, type) or asked is object:
        return False
    return _is_subclass(plain, asked)


def _is_subclass(class_: type, asked: type) -> bool:
    if asked in class_.__mro__:
        return True
    try:
        return issubclass(class_, asked)
    except TypeError:  # a Protocol that is not checkable at run time
        return False
